"""bert_jax: BERT (Devlin et al., 2019) in JAX and Flax."""

import importlib

__version__ = "0.1.0"
__all__ = ["figures", "load"]


def __getattr__(name: str):
    """Imports JAX only for those who load a checkpoint, matplotlib for who draws."""
    if name == "load":
        from bert_jax.inference.model import load

        return load
    if name == "figures":
        return importlib.import_module("bert_jax.figures")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
