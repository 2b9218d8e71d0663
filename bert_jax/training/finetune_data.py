"""From a config to what its runs share: checkpoint, task, tokenised splits."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.inference.evaluation import Split, with_hidden
from bert_jax.interop.initial import make_model
from bert_jax.interop.load import Checkpoint, check_length, check_vocabulary, load
from bert_jax.model.tagger import FeatureTagger
from bert_jax.parallel.mesh import make_mesh
from bert_jax.tasks.families import FAMILIES
from bert_jax.tasks.task import Task
from bert_jax.training.finetune_config import FineTuneConfig

FEATURES = "features"  # the folder of a frozen encoder's vectors; gone after the run


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


def prepare(
    config: FineTuneConfig, workdir: Path, log: Callable[[str], None]
) -> Prepared:
    """Loads ``config.init_from`` and reads and tokenises every split of the task.

    In the feature-based approach the frozen encoder's vectors are written to
    ``workdir``/features.
    """
    if not config.init_from:
        raise UserError(
            "init_from is empty, expected a checkpoint: a Hugging Face folder, Google's "
            "bert_model.ckpt or a workdir; set --config.init_from"
        )
    checkpoint = load(
        config.init_from,
        **config.model.changes(),
        **dataclasses.asdict(config.compute),
    )
    check_vocabulary(checkpoint, config.init_from)
    check_length(config.data.max_length, checkpoint, "--config.data.max_length")
    task = FAMILIES[config.family](config.data)
    train = _split(task, "train", checkpoint.tokenizer, log, config.train_rows)
    splits = [
        _split(task, name, checkpoint.tokenizer, log)
        for name in (*task.eval_splits, *task.predict_splits)
    ]
    model = make_model(
        checkpoint.config,
        task.head,
        task.outputs,
        config.features,
        checkpoint.compute,
    )
    if isinstance(model, FeatureTagger):
        train, *splits = [
            with_hidden(
                split,
                model,
                checkpoint,
                workdir / FEATURES,
                batch_size=config.eval_batch_size,
                mesh=make_mesh(config.mesh),
                log=log,
            )
            for split in (train, *splits)
        ]
    return Prepared(checkpoint, task, train, tuple(splits))


def _split(
    task: Task,
    name: str,
    tokenizer: Tokenizer,
    log: Callable[[str], None],
    most: int = 0,
) -> Split:
    rows: Any = task.read(name)
    if not rows:
        raise UserError(
            f"{task.config.dir}: the {name} split has no rows; expected at least one"
        )
    if most:
        rows = rows[:most]
    features = task.features(rows, tokenizer)
    sequences = len(features.input_ids)
    cut = f", {features.truncated:,} of them truncated" if features.truncated else ""
    log(
        f"{name}: {len(rows):,} rows{cut}, {sequences:,} sequences, "
        f"{sum(map(len, features.input_ids)) / max(sequences, 1):.1f} tokens on average"
    )
    return Split(name, rows, features)
