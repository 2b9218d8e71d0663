"""The families of tasks, their functions in ``bert_jax.tasks``, and tasks of checkpoints.

A new family is a file with its Task, an entry of _TASKS, and a function here.
"""

from collections.abc import Mapping
from typing import Any

from bert_jax.arguments import accepts
from bert_jax.errors import UserError
from bert_jax.settings import from_settings
from bert_jax.tasks.data_sets import TABLE
from bert_jax.tasks.multiple_choice import MultipleChoice
from bert_jax.tasks.question_answering import Squad, SquadConfig
from bert_jax.tasks.task import VECTOR_HEADS, Task
from bert_jax.tasks.text_classification import (
    SEVERAL_LABELS,
    Classification,
    MultiLabel,
    text_or_pair,
)
from bert_jax.tasks.text_vectors import SentenceVectors
from bert_jax.tasks.word_tagging import Tagging

_TASKS = (Classification, MultiLabel, Tagging, MultipleChoice, Squad, SentenceVectors)
FAMILIES: dict[str, type[Task]] = {task.family: task for task in _TASKS}


# Functions of bert_jax.tasks


@accepts(Classification.config_class, leave_out=("task",))
def glue(name: str, **settings: Any) -> Classification:
    """A task of GLUE: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte or wnli."""
    return _task(Classification, settings, task=name)


@accepts(Classification.config_class, leave_out=("task",))
def sick(name: str, **settings: Any) -> Classification:
    """A task of SICK: "entailment" or "relatedness"."""
    return _task(Classification, settings, task=f"sick_{name}")


@accepts(Classification.config_class, leave_out=("task",))
def classification(**settings: Any) -> Classification:
    """A class for each text, or a number with ``regression=True``."""
    return _task(Classification, settings, task="table")


@accepts(Classification.config_class, leave_out=("task",))
def pairs(
    *, text_a: str = "", text_b: str = "text_b", **settings: Any
) -> Classification:
    """A class or a number for each pair of texts; see :func:`classification`.

    text_a: column of the first text; empty: text_a or text. text_b: column of the second
    text.
    """
    return _task(Classification, settings, task="table", text_a=text_a, text_b=text_b)


@accepts(MultiLabel.config_class, leave_out=("task",))
def multi_label(**settings: Any) -> MultiLabel:
    """Any number of classes for a text.

    ``label=["food", "service"]`` reads a column with a 0 or 1 for each label.
    """
    return _task(MultiLabel, settings)


@accepts(SentenceVectors.config_class, leave_out=("task",))
def sentence_vectors(name: str = "table", **settings: Any) -> SentenceVectors:
    """Text embeddings. The cosine of two vectors measures how close their texts are.

    name: "stsb" or "sick_relatedness" for rows of this data set.
    """
    return _task(SentenceVectors, settings, task=name)


@accepts(Tagging.config_class)
def tagging(**settings: Any) -> Tagging:
    """A tag for each word, such as the names of people and places."""
    return _task(Tagging, settings)


@accepts(MultipleChoice.config_class)
def choices(**settings: Any) -> MultipleChoice:
    """The right one of two or more texts that may follow a context."""
    return _task(MultipleChoice, settings)


@accepts(Squad.config_class)
def squad(**settings: Any) -> Squad:
    """The part of a context that answers a question.

    With ``version_2=True`` (SQuAD 2.0) a question may have no answer: "answers" is empty,
    or "is_impossible" is True.
    """
    return _task(Squad, settings)


def _task(kind: type[Task], settings: dict[str, Any], **fixed: Any) -> Any:
    return kind(from_settings(kind.config_class, settings | fixed, "data"))


# Tasks of checkpoints

VERSION = (
    "0.3"  # version of bert_jax since which saved settings have their current meaning
)


def saved_task(saved: Mapping[str, Any]) -> Task:
    """The task that a saved model was fine-tuned for.

    saved: ``extra`` of its Checkpoint: "family", "data", and since 0.3 "version".
    """
    family, data = saved.get("family"), saved.get("data")
    if family not in FAMILIES:
        actual = f"'bert_jax' in config.json has the family {family!r}"
        raise UserError(f"{actual}, expected one of {', '.join(FAMILIES)}")
    if "version" not in saved and isinstance(data, Mapping):
        data = with_usual_columns(data)
    kind = FAMILIES[family]
    return kind(from_settings(kind.config_class, data, "data"))


def with_usual_columns(data: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a task of 0.2 in which a default name of a column is empty.

    In 0.2 the default was a name, such as "text", which a data set or a row could replace
    by another usual name. Now a name is the user's, and only an empty name may be replaced.
    """
    usual = {"text_a": ("text", "text_a"), "label": ("label",)}
    if data.get("task") != TABLE:  # in a table, text_b shows that the rows are pairs
        usual["text_b"] = ("text_b",)
    changed = dict(data)
    for key, names in usual.items():
        if changed.get(key) in names:
            changed[key] = ""
    return changed


def task_of_head(checkpoint: Any) -> Task:
    """The task for a Checkpoint that was fine-tuned elsewhere, by its head."""
    labels, head = checkpoint.labels, checkpoint.head
    length = _longest(checkpoint)
    if head == "sequence":
        return _texts(checkpoint)
    if head == "token":
        return Tagging(Tagging.config_class(labels=labels, max_length=length))
    if head == "choice":
        return MultipleChoice(MultipleChoice.config_class(max_length=length))
    if head == "span":  # SQuAD 1.1, in windows of the paper's length
        return Squad(SquadConfig(max_length=min(SquadConfig.max_length, length)))
    if head in VECTOR_HEADS:
        length = checkpoint.extra.get("modules", {}).get("max_length", length)
        settings = {"pooling": head, "max_length": length}
        return SentenceVectors(SentenceVectors.config_class(**settings))
    actual = f"a {head} head without 'bert_jax' in config.json"
    raise UserError(
        f"{actual}; no task is known for it: copy the folder of the run again"
    )


def _longest(checkpoint: Any) -> int:
    """Maximum number of tokens of a sequence."""
    if checkpoint.tokenizer is None:
        return checkpoint.config.max_positions
    return checkpoint.tokenizer.model_max_length or checkpoint.config.max_positions


def _texts(checkpoint: Any) -> Task:
    """The task for texts or pairs. A head without labels means regression."""
    labels, problem = checkpoint.labels, checkpoint.problem_type
    settings = {"task": TABLE, "max_length": _longest(checkpoint)}
    if checkpoint.tokenizer is not None:
        settings["truncation"] = checkpoint.tokenizer.truncation
    if problem == SEVERAL_LABELS:
        config = MultiLabel.config_class(labels=labels, **settings)
        return text_or_pair(MultiLabel(config))
    if problem == "regression" and labels:
        actual = f"the regression head has {len(labels)} outputs"
        raise UserError(f"{actual}; expected one number for each text")
    if labels:
        config = Classification.config_class(labels=labels, **settings)
    else:
        config = Classification.config_class(regression=True, **settings)
    return text_or_pair(Classification(config))
