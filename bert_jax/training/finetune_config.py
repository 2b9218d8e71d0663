"""A fine-tuning run as frozen dataclasses."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.interop.config_json import with_compute
from bert_jax.model.config import ComputeConfig
from bert_jax.model.tagger import FeatureConfig
from bert_jax.parallel.mesh import MeshConfig
from bert_jax.settings import (
    check_ranges,
    from_settings,
    setting,
    setting_doc,
    with_defaults,
)
from bert_jax.tasks.families import FAMILIES
from bert_jax.training.optimizer import OptimizerConfig


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """What a fine-tuning run may choose beside its checkpoint; see BertConfig."""

    hidden_dropout: float = setting(
        0.1, "probability of dropping a value of the embeddings or of a layer's branch"
    )
    attention_dropout: float = setting(
        0.1, "probability of dropping an attention probability"
    )
    activation: str = setting(
        "",
        "empty: the checkpoint's own; Google's since February 2019 need gelu_tanh, which "
        "their config files cannot say",
    )
    initializer_range: float = setting(
        0.0,
        "standard deviation of a new head or pooler, cut at two of them; 0: the "
        "checkpoint's own",
        least=0,
    )

    def changes(self) -> dict[str, Any]:
        """The fields of BertConfig that these settings replace."""
        own = {"activation": "", "initializer_range": 0.0}  # the checkpoint's
        values = dataclasses.asdict(self)
        return {k: v for k, v in values.items() if k not in own or v != own[k]}


@dataclasses.dataclass(frozen=True)
class FineTuneOptimizer(OptimizerConfig):
    """Paper, A.3: the pretraining optimizer, peak learning rate 5e-5, 3e-5 or 2e-5."""

    learning_rate: float = setting(
        5e-5, setting_doc(OptimizerConfig, "learning_rate"), least=0
    )
    warmup: float = setting(
        0.1, setting_doc(OptimizerConfig, "warmup"), least=0, below=1
    )


@dataclasses.dataclass(frozen=True)
class SweepConfig:
    """The grid of ``--sweep`` (paper, A.3) and the seeds of each of its points."""

    batch_size: tuple[int, ...] = setting((16, 32), "batch sizes to try")
    learning_rate: tuple[float, ...] = setting(
        (5e-5, 3e-5, 2e-5), "peak learning rates to try"
    )
    epochs: tuple[int, ...] = setting((3, 4), "numbers of epochs to try")
    seeds: tuple[int, ...] = setting((0, 1, 2), "seeds of the runs of each point")


@dataclasses.dataclass(frozen=True)
class FineTuneConfig:
    """Everything that a fine-tuning run depends on."""

    family: str = setting(
        doc="the kind of task: classification, tagging, multiple_choice or "
        "question_answering"
    )
    data: Any  # the config of the family
    init_from: str = setting(
        "",
        "the checkpoint to begin with: a Hugging Face folder, Google's bert_model.ckpt or "
        "a workdir; a run needs one",
    )
    compute: ComputeConfig = setting(factory=ComputeConfig)
    fresh_head: bool = setting(
        False, "begin with a random head though the checkpoint has one"
    )
    model: ModelSettings = setting(factory=ModelSettings)
    optimizer: FineTuneOptimizer = setting(factory=FineTuneOptimizer)
    features: FeatureConfig = setting(factory=FeatureConfig)
    mesh: MeshConfig = setting(factory=MeshConfig)
    sweep: SweepConfig = setting(factory=SweepConfig)
    batch_size: int = setting(
        32, "examples of a step (of long texts: windows)", least=1
    )
    eval_batch_size: int = setting(
        64,
        "rows of 32 tokens that the model computes at a time, or fewer longer rows",
        least=1,
    )
    epochs: int = setting(3, "times that each example is learned from", least=1)
    accumulation: int = setting(
        1,
        "parts of a batch computed one after the other: less memory, the same step",
        least=1,
    )
    evaluations: int = setting(1, "scores of the dev split in an epoch", least=1)
    buckets: int = setting(
        2,
        "classes of lengths, at most; a batch is of one, and each compiles a shape: more "
        "leave less padding where a device has few sequences of a batch",
        least=1,
    )
    train_rows: int = setting(0, "use the first rows alone; 0: all", least=0)
    log_every: int = setting(50, "steps between reports", least=1)
    checkpoint_every: int = setting(500, "steps between checkpoints", least=1)
    seed: int = setting(
        0, "of the new head, the order of examples and dropout", least=0
    )


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
    check_ranges(config)
    if config.optimizer.learning_rate == 0:
        raise UserError(
            "optimizer.learning_rate=0.0, expected above 0; set "
            "--config.optimizer.learning_rate"
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
