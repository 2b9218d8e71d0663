"""Fine-tuning tasks, as ``bert_jax.finetune`` takes them, with the rows that each reads.

A row is a dictionary, or a tuple in this order:

classification   "text", "label"
pairs            "text_a", "text_b", "label"
multi_label      "text", "label" (a list of names)
sentence_vectors "text_a", "text_b", "label" (a number, or none), "negative" (or none)
glue, sick       the columns of the data set, or as above
tagging          "words", "tags"
choices          "context", "choices", "label" (the number of the right one, from 0)
squad            "question", "context", "answers" (texts of the context)

An "id" is kept. ``dir`` and the other settings of a task are in docs/settings.md under
"data"; what is not given has the default there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bert_jax.tasks.multiple_choice import MultipleChoice
    from bert_jax.tasks.question_answering import Squad
    from bert_jax.tasks.text_classification import Classification, MultiLabel
    from bert_jax.tasks.text_vectors import SentenceVectors
    from bert_jax.tasks.word_tagging import Tagging


def glue(name: str, **settings: Any) -> Classification:
    """One of GLUE's: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte or wnli."""
    return _task("classification", settings, task=name)


def sick(name: str, **settings: Any) -> Classification:
    """SICK's "entailment" or "relatedness"."""
    return _task("classification", settings, task=f"sick_{name}")


def classification(**settings: Any) -> Classification:
    """Classes of texts, or numbers with ``regression=True``."""
    return _task("classification", settings, task="table")


def pairs(**settings: Any) -> Classification:
    """As :func:`classification`, of two texts."""
    columns = {"text_a": "text_a", "text_b": "text_b"}
    return _task("classification", columns | settings, task="table")


def multi_label(**settings: Any) -> MultiLabel:
    """Any number of classes for a text."""
    return _task("multi_label", settings)


def sentence_vectors(name: str = "table", **settings: Any) -> SentenceVectors:
    """Vectors of texts whose cosine measures how close two texts are.

    name: "stsb" or "sick_relatedness", where rows are those of the data set.
    """
    return _task("sentence_vectors", settings, task=name)


def tagging(**settings: Any) -> Tagging:
    """A tag for each word, such as the names of people and places."""
    return _task("tagging", settings)


def choices(**settings: Any) -> MultipleChoice:
    """The right one of some texts that may follow a context, two or more of them."""
    return _task("multiple_choice", settings)


def squad(**settings: Any) -> Squad:
    """The part of a text that answers a question.

    With ``version_2=True`` (SQuAD 2.0) there may be none: "is_impossible" is True.
    """
    return _task("question_answering", settings)


def _task(family: str, settings: dict[str, Any], **own: Any) -> Any:
    # Imported late: who only tokenises or pretrains needs no scikit-learn.
    from bert_jax.settings import from_settings
    from bert_jax.tasks.families import FAMILIES

    kind = FAMILIES[family]
    return kind(from_settings(kind.config_class, settings | own, "data"))
