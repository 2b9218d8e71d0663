"""From a config to what its runs share: checkpoint, task, tokenised splits."""

import dataclasses
from collections.abc import Callable
from typing import Any

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.finetuning.config import FineTuneConfig
from bert_jax.finetuning.evaluation import Split
from bert_jax.finetuning.families import FAMILIES
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.tasks.task import Task
from bert_jax.training.load import load


@dataclasses.dataclass(frozen=True)
class Prepared:
    """What the runs of a sweep share.

    splits: those that are scored, the first of which picks the best model; then those
    that are predicted only.
    """

    checkpoint: Checkpoint
    task: Task
    train: Split
    splits: tuple[Split, ...]


def prepare(config: FineTuneConfig, say: Callable[[str], None]) -> Prepared:
    """Loads ``config.init_from`` and reads and tokenises every split of the task."""
    if not config.init_from:
        raise UserError(
            "init_from is empty, expected a checkpoint: a Hugging Face folder, Google's "
            "bert_model.ckpt or a workdir; set --config.init_from"
        )
    checkpoint = load(config.init_from, **config.model.changes())
    if checkpoint.tokenizer is None:
        raise UserError(
            f"{config.init_from} has no vocabulary; put the vocab.txt that belongs to "
            "the checkpoint beside its config.json"
        )
    check_length(config.data.max_length, checkpoint, "--config.data.max_length")
    task = FAMILIES[config.family].task(config.data)
    train = _split(task, "train", checkpoint.tokenizer, say, config.train_rows)
    splits = [
        _split(task, name, checkpoint.tokenizer, say)
        for name in (*task.eval_splits, *task.predict_splits)
    ]
    return Prepared(checkpoint, task, train, tuple(splits))


def check_length(max_length: int, checkpoint: Checkpoint, setting: str) -> None:
    """Raises where sequences would be longer than the position table."""
    positions = checkpoint.config.max_positions
    if max_length > positions:
        raise UserError(
            f"max_length={max_length} is over the position table of {positions}; set "
            f"{setting} to {positions} or less"
        )


def _split(
    task: Task,
    name: str,
    tokenizer: Tokenizer,
    say: Callable[[str], None],
    most: int = 0,
) -> Split:
    rows: Any = task.read(name)
    if not rows:
        raise UserError(f"the {name} split has no rows; expected at least one")
    if most:
        rows = rows[:most]
    features = task.features(rows, tokenizer, training=name == "train")
    sequences = len(features.input_ids)
    cut = f", {features.truncated:,} of them truncated" if features.truncated else ""
    say(
        f"{name}: {len(rows):,} rows{cut}, {sequences:,} sequences, "
        f"{sum(map(len, features.input_ids)) / max(sequences, 1):.1f} pieces on average"
    )
    return Split(name, rows, features)
