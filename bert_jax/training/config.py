"""A pretraining run as frozen dataclasses; the command's ConfigDict ends here."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.data.examples import ExampleConfig
from bert_jax.data.pipeline import Phase
from bert_jax.errors import UserError
from bert_jax.interop.config_json import with_compute
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.parallel.mesh import MeshConfig
from bert_jax.settings import (
    check_ranges,
    differences,
    from_settings,
    setting,
    to_dict,
    with_defaults,
)
from bert_jax.training.optimizer import OptimizerConfig


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Which text, and how examples are drawn from it."""

    path: str = setting(
        "", "a store written by python -m bert_jax.prepare; empty: corpus is prepared"
    )
    corpus: tuple[str, ...] = setting(
        (), "inputs, as prepare takes them, that are prepared into the workdir"
    )
    vocabulary_size: int = setting(
        30_522, "tokens of the vocabulary that is trained on corpus"
    )
    lower_case: bool = setting(
        True, "whether the vocabulary that is trained on corpus has no capitals"
    )
    holdout: float = setting(
        0.01, "share of the documents kept for evaluation", least=0, below=1
    )
    examples: ExampleConfig = setting(factory=ExampleConfig)
    packing: bool = setting(
        False,
        "pairs share rows, so that a batch has fewer of them; the step learns the same, "
        "with other dropout masks",
    )
    threads: int = setting(2, "threads that read and draw batches, on each host")
    prefetch: int = setting(8, "batches drawn ahead of the step")


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Everything that a pretraining run depends on."""

    model: BertConfig
    data: DataConfig
    optimizer: OptimizerConfig
    phases: tuple[Phase, ...]
    init_from: str = setting(
        "",
        "a checkpoint to begin with, as bert_jax.load reads it; heads that it lacks, or "
        "without it all parameters, are random",
    )
    compute: ComputeConfig = setting(factory=ComputeConfig)
    mesh: MeshConfig = setting(factory=MeshConfig)
    seed: int = setting(0, "of new parameters, examples, masks and dropout")
    accumulation: int = setting(
        1,
        "parts of a batch computed one after the other: less memory, the same step",
        least=1,
    )
    log_every: int = setting(100, "steps between reports", least=1)
    eval_every: int = setting(10_000, "steps between evaluations; 0 for none", least=0)
    eval_batches: int = setting(100, "batches of an evaluation", least=1)
    checkpoint_every: int = setting(10_000, "steps between checkpoints", least=1)
    keep_checkpoints: int = setting(3, "newest checkpoints that are kept", least=1)
    prompts: tuple[str, ...] = setting(
        (), "sentences with [MASK], filled in at the end of the run"
    )

    @property
    def total_steps(self) -> int:
        """Steps over all phases, which one schedule runs through."""
        return sum(phase.steps for phase in self.phases)


def train_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a config file says, with the default of every setting that it leaves out."""
    return with_defaults(TrainConfig, with_compute(given))


def train_config(settings: Mapping[str, Any]) -> TrainConfig:
    """Builds a TrainConfig from nested mappings, checking every name and type."""
    settings = with_compute(settings)
    phases = from_settings(tuple[Phase, ...], settings.get("phases", ()), "phases")
    if not phases:
        raise UserError("config.phases is empty; give at least one phase")
    if "total_steps" in settings.get("optimizer", {}):
        raise UserError(
            "config.optimizer.total_steps is the sum of the phases' steps; "
            "set --config.phases[0].steps instead"
        )
    config = from_settings(TrainConfig, settings, "")
    check_ranges(config)
    for i, phase in enumerate(config.phases):
        if phase.sequence_length > config.model.max_positions:
            raise UserError(
                f"phases[{i}].sequence_length={phase.sequence_length} is over the "
                f"position table of {config.model.max_positions}; set --config.phases[{i}]"
                ".sequence_length or --config.model.max_positions"
            )
    return config


# What may change when a run goes on: where and how it computes and what it reports,
# not what it computes.
_MAY_CHANGE = frozenset(
    {
        "compute.dtype",
        "compute.remat",
        "compute.attention_impl",
        "compute.float32_gradients",
        "data.path",  # the store is compared by its contents
        "data.packing",
        "data.threads",
        "data.prefetch",
        "mesh",
        "optimizer",
        "accumulation",
        "log_every",
        "eval_every",
        "eval_batches",
        "checkpoint_every",
        "keep_checkpoints",
        "prompts",
    }
)


def resume_differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """The fields that keep a run from going on with another config: 'name: old -> new'.

    ``old`` and ``new`` are what ``settings.to_dict`` gives, with what identifies the data
    beside it. A setting that is younger than the old config had its default there. Steps
    may be added to the last phase.
    """
    return [
        f"{name}: {a!r} -> {b!r}"
        for name, a, b in differences(to_dict(train_settings(old)), new)
        if not any(name == free or name.startswith(f"{free}.") for free in _MAY_CHANGE)
        and not (name == f"phases[{len(new['phases']) - 1}].steps" and b > a)
    ]
