"""Language modelling in both directions, each alone: the comparison with ELMo.

Two LSTMs, one from left to right and one from right to left, predict each token from the
tokens on their side (Peters et al., 2018, section 3.1). The loss is the mean over tokens t
and both directions of -log p(t | those before) and -log p(t | those after). Embeddings and
the output layer, here that of masked LM, are shared by the directions, the LSTMs are not
(``model.encoder="lstm"``). ELMo reads characters; this reads the tokens of the vocabulary.
Fine-tuning learns how much each layer counts (section 3.2, model/lstm.py, LayerMix).
"""

from bert_jax.data.examples import ExampleConfig
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.objectives.causal import Causal
from bert_jax.objectives.objective import check_model


def pretraining(
    model: BertConfig, compute: ComputeConfig, examples: ExampleConfig
) -> Causal:
    """The objective of a run that is configured so."""
    check_model(__name__, model, "each side alone", pairs=examples.next_sentence)
    return Causal(BertForPreTraining(model, compute))
