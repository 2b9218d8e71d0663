"""bert_jax: BERT (Devlin et al., 2019) in JAX and Flax."""

__version__ = "0.1.0"
__all__ = ["load"]


def __getattr__(name: str):
    """Imports JAX and all the rest only for those who load a checkpoint."""
    if name == "load":
        from bert_jax.inference.model import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
