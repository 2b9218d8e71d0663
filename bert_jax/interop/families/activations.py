"""Activations in config.json."""

# Names of activations in transformers, by BertConfig.activation.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_new",
    "relu": "relu",
    "silu": "silu",
}
