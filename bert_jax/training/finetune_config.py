"""A fine-tuning run as frozen dataclasses."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.interop.config_json import with_compute
from bert_jax.interop.initial import FeatureConfig
from bert_jax.model.config import ComputeConfig
from bert_jax.parallel.mesh import MeshConfig
from bert_jax.settings import from_settings, with_defaults
from bert_jax.tasks.families import FAMILIES
from bert_jax.training.optimizer import OptimizerConfig


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """What a fine-tuning run may choose beside its checkpoint; see BertConfig.

    activation: "" for the checkpoint's own. Google's checkpoints since February 2019 need
    "gelu_tanh", which their config files cannot say. initializer_range: deviation of what
    is made anew, the head or a pooler, cut at two of them; 0 for the checkpoint's own.
    """

    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    activation: str = ""
    initializer_range: float = 0.0

    def changes(self) -> dict[str, Any]:
        """The fields of BertConfig that these settings replace."""
        own = {"activation": "", "initializer_range": 0.0}  # the checkpoint's
        values = dataclasses.asdict(self)
        return {k: v for k, v in values.items() if k not in own or v != own[k]}


@dataclasses.dataclass(frozen=True)
class FineTuneOptimizer(OptimizerConfig):
    """Paper, A.3: the pretraining optimizer, peak learning rate 5e-5, 3e-5 or 2e-5."""

    learning_rate: float = 2e-5
    warmup: float = 0.1  # share of the steps


@dataclasses.dataclass(frozen=True)
class SweepConfig:
    """The grid of ``--sweep`` (paper, A.3) and the seeds of each of its points."""

    batch_size: tuple[int, ...] = (16, 32)
    learning_rate: tuple[float, ...] = (5e-5, 3e-5, 2e-5)
    epochs: tuple[int, ...] = (3, 4)
    seeds: tuple[int, ...] = (0, 1, 2)


@dataclasses.dataclass(frozen=True)
class FineTuneConfig:
    """Everything that a fine-tuning run depends on.

    family: a key of FAMILIES, whose config ``data`` is. init_from: what
      ``bert_jax.load`` reads. fresh_head: drop the head that the checkpoint may have.
    batch_size: rows an update (windows, for long texts). accumulation: microbatches.
    buckets: classes of lengths, at most: a batch is of one class. Each compiles a shape of
      its own; more of them leave less padding where the devices are as many as a batch's
      sequences.
    train_rows: use the first rows alone; 0 for all. evaluations: on dev, an epoch.
    log_every, checkpoint_every: steps. seed: of the head, the order and dropout.
    """

    family: str
    data: Any
    init_from: str = ""
    compute: ComputeConfig = dataclasses.field(default_factory=ComputeConfig)
    fresh_head: bool = False
    model: ModelSettings = dataclasses.field(default_factory=ModelSettings)
    optimizer: FineTuneOptimizer = dataclasses.field(default_factory=FineTuneOptimizer)
    features: FeatureConfig = dataclasses.field(default_factory=FeatureConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    sweep: SweepConfig = dataclasses.field(default_factory=SweepConfig)
    batch_size: int = 32
    eval_batch_size: int = 64
    epochs: int = 3
    accumulation: int = 1
    evaluations: int = 1
    buckets: int = 2
    train_rows: int = 0
    log_every: int = 50
    checkpoint_every: int = 500
    seed: int = 0


def finetune_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a config file says, with the default of every setting that it leaves out."""
    settings = with_compute(given)
    data = with_defaults(_data_class(settings), settings.get("data", {}))
    return with_defaults(FineTuneConfig, settings | {"data": data})


def _data_class(settings: Mapping[str, Any]) -> type:
    family = settings.get("family")
    if family not in FAMILIES:
        raise UserError(
            f"config.family={family!r}, expected one of {', '.join(FAMILIES)}"
        )
    return FAMILIES[family].config_class


def finetune_config(settings: Mapping[str, Any]) -> FineTuneConfig:
    """Builds a FineTuneConfig from nested mappings, checking every name and type."""
    settings = with_compute(settings)
    data = from_settings(_data_class(settings), settings.get("data", {}), "data")
    config = from_settings(FineTuneConfig, settings | {"data": data}, "")
    check(config)
    return config


def check(config: FineTuneConfig) -> None:
    """Raises UserError for a value that no run can have."""
    positive = ("batch_size", "eval_batch_size", "epochs", "accumulation")
    positive += ("evaluations", "buckets", "log_every", "checkpoint_every")
    lowest_values = dict.fromkeys(positive, 1) | {"train_rows": 0, "seed": 0}
    for name, lowest in lowest_values.items():
        if getattr(config, name) < lowest:
            raise UserError(
                f"{name}={getattr(config, name)}, expected at least {lowest}; set "
                f"--config.{name}"
            )
    if not config.optimizer.learning_rate > 0:
        raise UserError(
            f"optimizer.learning_rate={config.optimizer.learning_rate}, expected a rate "
            "above 0; set --config.optimizer.learning_rate"
        )
    if not config.model.initializer_range >= 0:
        raise UserError(
            f"model.initializer_range={config.model.initializer_range}, expected a "
            "deviation, or 0 for the checkpoint's own; set "
            "--config.model.initializer_range"
        )
    if config.batch_size % config.accumulation:
        raise UserError(
            f"batch_size={config.batch_size} is not a multiple of "
            f"accumulation={config.accumulation}; set --config.accumulation"
        )
    for name, values in dataclasses.asdict(config.sweep).items():
        if not values:
            raise UserError(
                f"sweep.{name} is empty, expected one value at least; set "
                f"--config.sweep.{name}"
            )
