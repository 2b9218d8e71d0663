"""BERT (Devlin et al., 2019) and its family in JAX and Flax.

load reads a checkpoint, and tokenizer only its tokenizer. vocabulary and prepare make a
vocabulary and a store from text. pretrain and finetune train a model, and cross_validate
fine-tunes on folds. tasks describes fine-tuning tasks, and figures draws runs and models.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bert_jax import figures as figures
    from bert_jax import tasks as tasks
    from bert_jax.inference.model import load as load
    from bert_jax.interop.load import tokenizer as tokenizer
    from bert_jax.training.cross_validation import cross_validate as cross_validate
    from bert_jax.training.from_python import finetune as finetune
    from bert_jax.training.from_python import pretrain as pretrain
    from bert_jax.training.text_functions import prepare as prepare
    from bert_jax.training.text_functions import vocabulary as vocabulary

__version__ = "0.3.0.dev0"
__all__ = [
    "cross_validate",
    "figures",
    "finetune",
    "load",
    "prepare",
    "pretrain",
    "tasks",
    "tokenizer",
    "vocabulary",
]

_FUNCTIONS = {
    "cross_validate": "bert_jax.training.cross_validation",
    "finetune": "bert_jax.training.from_python",
    "load": "bert_jax.inference.model",
    "prepare": "bert_jax.training.text_functions",
    "pretrain": "bert_jax.training.from_python",
    "tokenizer": "bert_jax.interop.load",
    "vocabulary": "bert_jax.training.text_functions",
}


def __getattr__(name: str) -> Any:
    """Imports JAX and the rest of the package when they are first used."""
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(_FUNCTIONS[name]), name)
    if name in __all__:
        return importlib.import_module(f"bert_jax.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
