"""The functions of ``bert_jax.tasks``. Each makes a task from settings of its family."""

from typing import Any

from bert_jax.settings import from_settings, with_arguments
from bert_jax.tasks.multiple_choice import MultipleChoice
from bert_jax.tasks.question_answering import Squad
from bert_jax.tasks.task import Task
from bert_jax.tasks.text_classification import Classification, MultiLabel
from bert_jax.tasks.text_vectors import SentenceVectors
from bert_jax.tasks.word_tagging import Tagging


@with_arguments(Classification.config_class, leave_out=("task",))
def glue(name: str, **settings: Any) -> Classification:
    """A task of GLUE: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte or wnli."""
    return _task(Classification, settings, task=name)


@with_arguments(Classification.config_class, leave_out=("task",))
def sick(name: str, **settings: Any) -> Classification:
    """A task of SICK: "entailment" or "relatedness"."""
    return _task(Classification, settings, task=f"sick_{name}")


@with_arguments(Classification.config_class, leave_out=("task",))
def classification(**settings: Any) -> Classification:
    """A class for each text, or a number with ``regression=True``."""
    return _task(Classification, settings, task="table")


@with_arguments(Classification.config_class, leave_out=("task",))
def pairs(
    *, text_a: str = "", text_b: str = "text_b", **settings: Any
) -> Classification:
    """A class or a number for each pair of texts; see :func:`classification`.

    text_a: column of the first text; empty: text_a or text. text_b: column of the second
    text.
    """
    return _task(Classification, settings, task="table", text_a=text_a, text_b=text_b)


@with_arguments(MultiLabel.config_class, leave_out=("task",))
def multi_label(**settings: Any) -> MultiLabel:
    """Any number of classes for a text.

    ``label=["food", "service"]`` reads a column with a 0 or 1 for each label.
    """
    return _task(MultiLabel, settings)


@with_arguments(SentenceVectors.config_class, leave_out=("task",))
def sentence_vectors(name: str = "table", **settings: Any) -> SentenceVectors:
    """Vectors of texts. The cosine of two vectors measures how close the texts are.

    name: "stsb" or "sick_relatedness" for rows of this data set.
    """
    return _task(SentenceVectors, settings, task=name)


@with_arguments(Tagging.config_class)
def tagging(**settings: Any) -> Tagging:
    """A tag for each word, such as the names of people and places."""
    return _task(Tagging, settings)


@with_arguments(MultipleChoice.config_class)
def choices(**settings: Any) -> MultipleChoice:
    """The right text of two or more texts that may follow a context."""
    return _task(MultipleChoice, settings)


@with_arguments(Squad.config_class)
def squad(**settings: Any) -> Squad:
    """The part of a context that answers a question.

    With ``version_2=True`` (SQuAD 2.0) a question may have no answer: "answers" is empty,
    or "is_impossible" is True.
    """
    return _task(Squad, settings)


def _task(kind: type[Task], settings: dict[str, Any], **fixed: Any) -> Any:
    return kind(from_settings(kind.config_class, settings | fixed, "data"))
