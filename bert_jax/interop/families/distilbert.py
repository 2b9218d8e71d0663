"""DistilBERT (Sanh et al., 2019).

Its sinusoids (sinusoidal_pos_embds) are stored as a table, and are read as one. Fine-tuning
changes the table, so that an exported config.json has sinusoidal_pos_embds=False.
"""

from bert_jax.interop.families.bert import TASKS
from bert_jax.interop.families.family import Family

DISTILBERT = Family(
    model_types={"distilbert": "DistilBert"},
    classes={
        "ForMaskedLM": ("pretraining", ("mlm",)),
        "Model": ("none", ()),
        **TASKS,
    },
    prefix="distilbert.",
    layer="distilbert.transformer.layer.{}.",
    names={
        "bert/embeddings/word": "distilbert.embeddings.word_embeddings",
        "bert/embeddings/position": "distilbert.embeddings.position_embeddings",
        "bert/embeddings/norm": "distilbert.embeddings.LayerNorm",
        "attention/query": "attention.q_lin",
        "attention/key": "attention.k_lin",
        "attention/value": "attention.v_lin",
        "attention/output": "attention.out_lin",
        "attention_norm": "sa_layer_norm",
        "intermediate": "ffn.lin1",
        "feed_forward_output": "ffn.lin2",
        "feed_forward_norm": "output_layer_norm",
        "mlm/transform": "vocab_transform",
        "mlm/norm": "vocab_layer_norm",
        "mlm": "vocab_projector",
        "classifier": "classifier",
        "qa_outputs": "qa_outputs",
    },
    head_names={
        "sequence": {"bert/pooler": "pre_classifier"},
        "choice": {"bert/pooler": "pre_classifier"},
    },
    decoder="vocab_projector",
    keys={
        "vocab_size": "vocab_size",
        "hidden_size": "dim",
        "num_layers": "n_layers",
        "num_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "max_positions": "max_position_embeddings",
        "hidden_dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "activation": "activation",
        "initializer_range": "initializer_range",
    },
    kept=("seq_classif_dropout", "qa_dropout", "bos_token_id", "eos_token_id"),
    options={"type_vocab_size": 0, "pooler": "relu"},
)
