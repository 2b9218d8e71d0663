"""Language modelling in both directions, each alone: the comparison with ELMo.

Two LSTMs (``model.encoder="lstm"``) predict each token, one from the tokens before it and
one from the tokens after it (Peters et al., 2018, section 3.1). The loss is the mean of
both losses over all tokens. The directions share the embeddings and the output layer, which
is the head of masked LM. ELMo reads characters. This model reads tokens of the vocabulary.
Fine-tuning learns a weight for each layer (section 3.2, model/lstm.py, LayerMix).
"""

from bert_jax.data.examples import ExampleConfig
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.objectives.causal import Causal
from bert_jax.objectives.objective import check_model


def pretraining(
    model: BertConfig, compute: ComputeConfig, examples: ExampleConfig
) -> Causal:
    """The objective of a run with these configs."""
    check_model(__name__, model, "each side alone", pairs=examples.next_sentence)
    return Causal(BertForPreTraining(model, compute))
