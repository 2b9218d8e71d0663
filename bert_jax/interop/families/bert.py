"""BERT (Devlin et al., 2019). Google's names are the same with slashes (tensorflow.py)."""

from bert_jax.interop.families.family import Family

# The classes of tasks, which are the same in all families.
TASKS = {
    "ForSequenceClassification": ("sequence", ("pooler", "classifier")),
    "ForMultipleChoice": ("choice", ("pooler", "classifier")),
    "ForTokenClassification": ("token", ("classifier",)),
    "ForQuestionAnswering": ("span", ("qa_outputs",)),
}
BERT = Family(
    model_types={"bert": "Bert"},
    classes={
        "ForPreTraining": ("pretraining", ("pooler", "mlm", "nsp")),
        "ForMaskedLM": ("pretraining", ("mlm",)),
        "LMHeadModel": ("pretraining", ("mlm",)),
        "ForNextSentencePrediction": ("pretraining", ("pooler", "nsp")),
        "Model": ("none", ("pooler",)),
        **TASKS,
    },
    prefix="bert.",
    layer="bert.encoder.layer.{}.",
    names={
        "bert/embeddings/word": "bert.embeddings.word_embeddings",
        "bert/embeddings/position": "bert.embeddings.position_embeddings",
        "bert/embeddings/segment": "bert.embeddings.token_type_embeddings",
        "bert/embeddings/norm": "bert.embeddings.LayerNorm",
        "attention/query": "attention.self.query",
        "attention/key": "attention.self.key",
        "attention/value": "attention.self.value",
        "attention/output": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "intermediate": "intermediate.dense",
        "feed_forward_output": "output.dense",
        "feed_forward_norm": "output.LayerNorm",
        "bert/pooler": "bert.pooler.dense",
        "mlm/transform": "cls.predictions.transform.dense",
        "mlm/norm": "cls.predictions.transform.LayerNorm",
        "mlm": "cls.predictions",
        "nsp": "cls.seq_relationship",
        "classifier": "classifier",
        "qa_outputs": "qa_outputs",
    },
    decoder="cls.predictions.decoder",
    keys={
        "vocab_size": "vocab_size",
        "hidden_size": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "intermediate_size": "intermediate_size",
        "max_positions": "max_position_embeddings",
        "type_vocab_size": "type_vocab_size",
        "hidden_dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
        "activation": "hidden_act",
        "layer_norm_epsilon": "layer_norm_eps",
        "initializer_range": "initializer_range",
        "causal": "is_decoder",
    },
    kept=("classifier_dropout", "bos_token_id", "eos_token_id"),
)


def encoder_names(prefix: str) -> dict[str, str]:
    """BERT's names with another prefix, without the names of pretraining heads."""
    names = {}
    for path, name in BERT.names.items():
        if not path.startswith(("mlm", "nsp")):
            names[path] = name.replace(BERT.prefix, prefix, 1)
    return names
