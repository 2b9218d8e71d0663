"""Activations in config.json."""

from typing import Any

from bert_jax.errors import UserError

# BertConfig.activation by its names in transformers. The first name of each is written.
# Google's bert_config.json has "gelu" for both forms, Hugging Face has a name for each.
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


def read_activation(name: Any, key: str) -> str:
    """BertConfig.activation. name: the value of ``key`` in config.json."""
    if name not in _ACTIVATIONS:
        raise UserError(f"{key}={name!r}, expected one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def activation_name(activation: str) -> str:
    """The inverse of :func:`read_activation`."""
    names = [name for name, ours in _ACTIVATIONS.items() if ours == activation]
    return names[0]
