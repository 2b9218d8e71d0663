"""bert_jax: BERT (Devlin et al., 2019) in JAX and Flax."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bert_jax import figures as figures
    from bert_jax import tasks as tasks
    from bert_jax.inference.model import load as load
    from bert_jax.training.from_python import finetune as finetune

__version__ = "0.1.0"
__all__ = ["figures", "finetune", "load", "tasks"]


def __getattr__(name: str) -> Any:
    """Imports JAX and all the rest only for those who ask for it."""
    if name == "load":
        from bert_jax.inference.model import load

        return load
    if name in __all__:
        return importlib.import_module(f"bert_jax.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
