"""Fine-tuning tasks for ``bert_jax.finetune``, and the rows that each task reads.

A row is a dictionary, or a tuple in this order:

classification   "text", "label"
pairs            "text_a", "text_b", "label"
multi_label      "text", "label" (a list of names)
sentence_vectors "text_a", "text_b", and "label" (a number) or "negative", if any
glue, sick       the columns of the data set, or as above
tagging          "words", "tags"
choices          "context", "choices", "label" (number of the right choice, from 0)
squad            "question", "context", "answers" (texts of the context)

Rows are given as a list, a data frame or a dictionary of columns. An "id" is copied into
the answer. ``help(bert_jax.tasks.classification)`` lists the settings of a task.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bert_jax.tasks.families import *  # noqa: F403

__all__ = ["choices", "classification", "glue", "multi_label", "pairs"]  # noqa: F405
__all__ += ["sentence_vectors", "sick", "squad", "tagging"]  # noqa: F405


def __getattr__(name: str) -> Any:
    """Imports the families, which are slow to import, when a task is first used."""
    if name in __all__:
        return getattr(importlib.import_module("bert_jax.tasks.families"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
