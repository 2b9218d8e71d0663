"""The task that a checkpoint was trained for, built without its data."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.settings import from_settings
from bert_jax.tasks.families import FAMILIES
from bert_jax.tasks.task import Task

_LONGEST = {
    "span": 384
}  # the paper's; for other heads, what the model has positions for


@dataclasses.dataclass(frozen=True)
class SavedTask:
    """family: a key of FAMILIES. single, pair: the task on a text, and on two.

    They are one task where the checkpoint says which it is, as ours do.
    """

    family: str
    single: Task
    pair: Task

    def reading(self, line: str) -> Task:
        """The one that reads inputs which begin with this line."""
        return self.pair if _has_two_texts(line) else self.single


def saved_task(checkpoint: Checkpoint, path: Path | str, max_length: int) -> SavedTask:
    """What the checkpoint was fine-tuned for; for those of others, what its head fits.

    max_length: tokens of a sequence, instead of what is saved; 0 to leave it.
    Raises UserError for heads that no task has.
    """
    if checkpoint.extra:
        family, settings = _ours(checkpoint, path)
        settings = [settings]
    else:
        family, settings = _others(checkpoint, path)
    tasks = []
    for values in settings:
        if max_length:
            values = values | {"max_length": max_length}
        config = from_settings(FAMILIES[family].config, values, "data")
        tasks.append(FAMILIES[family].task(config))
    return SavedTask(family, tasks[0], tasks[-1])


def _ours(checkpoint: Checkpoint, path: Path | str) -> tuple[str, dict[str, Any]]:
    family, settings = (checkpoint.extra.get(name) for name in ("family", "data"))
    if family not in FAMILIES or not isinstance(settings, dict):
        raise UserError(
            f"{path}: 'bert_jax' in config.json has the family {family!r}, expected one "
            f"of {', '.join(FAMILIES)} and its settings under 'data'; delete the key to "
            "have the task made from the head"
        )
    return family, settings


def _others(checkpoint: Checkpoint, path: Path | str) -> tuple[str, list[dict]]:
    """Settings of a task on single texts and, where there may be two, of one on pairs."""
    labels, kind = checkpoint.labels, checkpoint.problem_type
    longest = _LONGEST.get(checkpoint.head, checkpoint.config.max_positions)
    length = {"max_length": min(longest, checkpoint.config.max_positions)}
    if checkpoint.head == "token":
        return "tagging", [length | {"task": "columns", "labels": labels}]
    if checkpoint.head == "span":
        return "question_answering", [length]
    if checkpoint.head == "choice":
        return "multiple_choice", [length | {"task": "table"}]
    if kind == "multi_label_classification" or (kind == "regression" and labels):
        raise UserError(
            f"{path}: its head gives {len(labels)} numbers that do not compete "
            f"({kind}); expected one label, or one number, a text"
        )
    given = length | {"task": "table", "labels": labels, "regression": not labels}
    return "classification", [given, given | {"text_b": "text_b"}]


def _has_two_texts(line: str) -> bool:
    if line.lstrip("\ufeff ").startswith("{"):
        try:
            return "text_b" in json.loads(line)
        except ValueError:
            return False  # the task says what is wrong with it
    return "\t" in line
