"""The configs of pretraining, fine-tuning and studies, as frozen dataclasses."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_jax.data.examples import ExampleConfig, Phase
from bert_jax.data.store import read_info
from bert_jax.errors import UserError
from bert_jax.files import is_remote
from bert_jax.interop.config_json import with_compute
from bert_jax.model.config import (
    POOLINGS,
    BertConfig,
    ComputeConfig,
    FeatureConfig,
)
from bert_jax.parallel.config import MeshConfig
from bert_jax.settings import (
    check_ranges,
    differences,
    from_settings,
    setting,
    setting_like,
    to_dict,
)

_SEEDS = {"least": 0, "below": 1 << 32}  # jax.random.key uses 32 bits


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Paper, A.2: learning rate 1e-4, 10,000 warmup steps, weight decay 0.01, linear decay.

    LAMB: You et al. (2020), algorithm 2. Muon: Jordan (2024), with Liu et al.'s scale.
    """

    learning_rate: float = setting(doc="the peak, where warmup ends", least=0)
    warmup_steps: int = setting(0, "steps until the peak; 0: see warmup", least=0)
    warmup: float = setting(0.0, "share of all steps until the peak", least=0, below=1)
    beta1: float = setting(
        0.9, "share of the gradients' mean that a step keeps", least=0, below=1
    )
    beta2: float = setting(
        0.999,
        "share of the squared gradients' mean that a step keeps",
        least=0,
        below=1,
    )
    epsilon: float = setting(1e-6, "added to the root of that mean", above=0)
    weight_decay: float = setting(
        0.01, "times the learning rate; not of biases and LayerNorm", least=0
    )
    clip_norm: float = setting(
        1.0,
        "largest norm of all gradients together; inf: gradients are not clipped",
        above=0,
        most=math.inf,
    )
    bias_correction: bool = setting(
        False,
        "correct both means in the first steps; the original does not, but it keeps small "
        "fine-tuning tasks from collapsing",
    )
    spike_norm: float = setting(
        0.0,
        "a batch whose gradients have a larger norm is a spike, which the step leaves out "
        "and the run stops at; 0: only numbers that are not finite are, and stop it",
        least=0,
    )
    skip_spikes: bool = setting(
        False,
        "go on after a spike, also where a number is not finite: its batch is left out, "
        "and the report says so",
    )
    name: str = setting(
        "adam",
        "adam; lamb, for batches of thousands; muon, for the encoder's kernels, with Adam "
        "for all other parameters (docs/objectives.md)",
        one_of=("adam", "lamb", "muon"),
    )

    def __post_init__(self):
        check_ranges(self, "optimizer.")

    @property
    def largest_norm(self) -> float | None:
        """Of the gradients of a batch that is learned from; None: any."""
        if self.spike_norm or self.skip_spikes:
            return self.spike_norm or math.inf
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What pretraining and fine-tuning share: the settings of the engine."""

    optimizer: OptimizerConfig
    init_from: str = setting(
        "",
        "the checkpoint to begin with: a Hugging Face folder, Google's bert_model.ckpt, a "
        "workdir, or a name on a hub (org/name, org/name@revision). Fine-tuning needs one; "
        "pretraining draws what it lacks at random",
    )
    compute: ComputeConfig = setting(factory=ComputeConfig)
    mesh: MeshConfig = setting(factory=MeshConfig)
    seed: int = setting(
        0,
        "random seed of parameters, example order, masks and dropout",
        **_SEEDS,
    )
    accumulation: int = setting(
        1,
        "parts of a batch computed one after the other: less memory, the same step",
        least=1,
    )
    data_timeout: int = setting(
        300, "seconds without a batch after which the run ends; 0: it waits", least=0
    )
    log_every: int = setting(100, "steps between reports", least=1)
    checkpoint_every: int = setting(10_000, "steps between checkpoints", least=1)
    profile_steps: str = setting(
        "",
        "the first and the last step, such as 10:20, of a profile in the workdir's "
        "tensorboard folder, which XProf and TensorBoard show; empty: none",
    )
    tracker: str = setting(
        "",
        "where metrics go beside the workdir: wandb or trackio, a library to be "
        "installed; empty: nowhere",
        one_of=("", "wandb", "trackio"),
    )

    def __post_init__(self):
        check_ranges(self)
        begin, end = self.profiled_steps
        if end < begin:
            raise UserError(
                f"profile_steps={self.profile_steps!r}, expected the first and the last "
                "step, such as 10:20; set profile_steps"
            )

    @property
    def profiled_steps(self) -> tuple[int, int]:
        """The first and the last step of a profile; (0, 0) for none."""
        match = re.fullmatch(r"([1-9]\d*):(\d+)", self.profile_steps)
        if match:
            return int(match[1]), int(match[2])
        return (1, 0) if self.profile_steps else (0, 0)


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Which text, and how examples are drawn from it."""

    path: str = setting(
        "", "a store written by bert_jax prepare; empty: corpus is prepared"
    )
    corpus: tuple[str, ...] = setting(
        (), "inputs, as prepare takes them, that are prepared into the workdir"
    )
    language: str = setting(
        "en",
        "language of corpus: its abbreviations, such as Dr., do not end a sentence",
    )
    vocabulary_size: int = setting(
        30_522, "tokens of the vocabulary that is trained on corpus", least=1
    )
    lower_case: bool = setting(
        True, "whether the vocabulary that is trained on corpus has no capitals"
    )
    keep_accents: bool = setting(
        False,
        "whether a vocabulary without capitals keeps accents and vowel signs, which "
        "Google's tokenizer removes",
    )
    holdout: float = setting(
        0.01, "share of the documents kept for evaluation", least=0, below=1
    )
    examples: ExampleConfig = setting(factory=ExampleConfig)
    packing: bool = setting(
        False,
        "pairs share rows, so that a batch has fewer of them; the step learns the same, "
        "with other dropout masks; off for LSTMs",
    )
    threads: int = setting(
        2, "threads that read and draw batches, on each host", least=1
    )
    prefetch: int = setting(8, "batches drawn ahead of the step", least=1)

    def check_text(self) -> None:
        """Raises UserError where no text is named, or where there is none on this machine.

        A command calls it before it imports JAX.
        """
        if not self.path and not self.corpus:
            raise UserError(
                "the config names no text; set data.path to the output of "
                "bert_jax prepare"
            )
        if not self.path or is_remote(self.path):
            return
        if not Path(self.path).exists():
            raise UserError(
                f"{self.path} holds no prepared text; run bert_jax vocabulary "
                f"--input TEXT --size {self.vocabulary_size} --output vocab.txt, then "
                "bert_jax prepare --input TEXT --vocabulary vocab.txt --output "
                f"{self.path}, or set data.path"
            )
        read_info(Path(self.path))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig(RunConfig):
    """Everything that a pretraining run depends on."""

    model: BertConfig
    data: DataConfig
    phases: tuple[Phase, ...]
    objective: str = setting(
        "bert_jax.objectives.mlm_nsp",
        "what is learned: the module of a PretrainingObjective, this one or your own",
    )
    eval_every: int = setting(10_000, "steps between evaluations; 0 for none", least=0)
    eval_batches: int = setting(100, "batches of an evaluation", least=1)
    eval_mask_rate: float = setting(
        0.15,
        "share of all tokens that is predicted in an evaluation, up to the last phase's "
        "max_predictions; the same for runs with other data.examples.mask_rate, so that "
        "they compare",
        above=0,
        below=1,
    )
    keep_checkpoints: int = setting(3, "newest checkpoints that are kept", least=1)
    prompts: tuple[str, ...] = setting(
        (), "sentences with [MASK], filled in at the end of the run"
    )

    def __post_init__(self):
        super().__post_init__()
        if not self.phases:
            raise UserError("phases is empty; give at least one phase")
        for i, phase in enumerate(self.phases):
            if phase.sequence_length > self.model.max_positions:
                raise UserError(
                    f"phases[{i}].sequence_length={phase.sequence_length} is over the "
                    f"position table of {self.model.max_positions}; set phases"
                    f"[{i}].sequence_length or model.max_positions"
                )

    @property
    def total_steps(self) -> int:
        """Steps over all phases, which one schedule runs through."""
        return sum(phase.steps for phase in self.phases)

    @property
    def packs(self) -> bool:
        """Whether pairs share rows. An LSTM reads one sequence a row."""
        return self.data.packing and self.model.kind.attends


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """What a fine-tuning run may choose beside its checkpoint; see BertConfig."""

    hidden_dropout: float = setting_like(BertConfig, "hidden_dropout", 0.1)
    attention_dropout: float = setting_like(BertConfig, "attention_dropout", 0.1)
    activation: str = setting(
        "",
        "empty: the checkpoint's own; Google's since February 2019 need gelu_tanh, which "
        "their config files cannot say",
    )
    pooling: str = setting(
        "",
        "what a classifier reads, token or mean; empty: the checkpoint's own",
        one_of=("", *POOLINGS),
    )
    max_positions: int = setting(
        0,
        "longest sequence, in tokens, of a checkpoint that is to read longer texts: its "
        "table of positions is stretched; 0: the checkpoint's own",
        least=0,
    )
    initializer_range: float = setting(
        0.0,
        "standard deviation of a new head or pooler, cut at two of them; 0: the "
        "checkpoint's own",
        least=0,
    )

    def changes(self) -> dict[str, Any]:
        """The fields of BertConfig that these settings replace."""
        always = ("hidden_dropout", "attention_dropout")  # others: the checkpoint's
        return {k: v for k, v in vars(self).items() if k in always or v}


@dataclasses.dataclass(frozen=True)
class FineTuneOptimizer(OptimizerConfig):
    """Paper, A.3: the pretraining optimizer, peak learning rate 5e-5, 3e-5 or 2e-5."""

    learning_rate: float = setting(5e-5, "the peak, where warmup ends", above=0)
    warmup: float = setting_like(OptimizerConfig, "warmup", 0.1)


@dataclasses.dataclass(frozen=True)
class SweepConfig:
    """The grid of ``--sweep`` (paper, A.3) and the seeds of each of its points."""

    batch_size: tuple[int, ...] = setting((16, 32), "batch sizes to try", least=1)
    learning_rate: tuple[float, ...] = setting(
        (5e-5, 3e-5, 2e-5), "peak learning rates to try", above=0
    )
    epochs: tuple[int, ...] = setting((3, 4), "numbers of epochs to try", least=1)
    seeds: tuple[int, ...] = setting(
        (0, 1, 2), "seeds of the runs of each point", **_SEEDS
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuneConfig(RunConfig):
    """Everything that a fine-tuning run depends on."""

    family: str = setting(
        doc="the kind of task: classification, multi_label, tagging, multiple_choice, "
        "question_answering or sentence_vectors"
    )
    data: Any  # the config of the family
    optimizer: FineTuneOptimizer = setting(factory=FineTuneOptimizer)
    fresh_head: bool = setting(
        False, "begin with a random head though the checkpoint has one"
    )
    freeze: bool = setting(
        False,
        "the encoder stays as it is; the head, the pooler and the weights of an LSTM's "
        "layers learn",
    )
    model: ModelSettings = setting(factory=ModelSettings)
    features: FeatureConfig = setting(factory=FeatureConfig)
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
    evaluations: int = setting(1, "scores of the dev split in an epoch", least=1)
    buckets: int = setting(
        2,
        "classes of lengths, at most; a batch is of one, and each compiles a shape: more "
        "leave less padding where a device has few sequences of a batch",
        least=1,
    )
    train_rows: int = setting(0, "use the first rows alone; 0: all", least=0)
    log_every: int = setting_like(RunConfig, "log_every", 50)
    checkpoint_every: int = setting_like(RunConfig, "checkpoint_every", 500)

    def __post_init__(self):
        super().__post_init__()
        if self.batch_size % self.accumulation:
            raise UserError(
                f"batch_size={self.batch_size} is not a multiple of "
                f"accumulation={self.accumulation}; set accumulation"
            )
        for name, values in vars(self.sweep).items():
            if not values:
                raise UserError(
                    f"sweep.{name} is empty, expected one value at least; set "
                    f"sweep.{name}"
                )


@dataclasses.dataclass(frozen=True)
class Variant:
    """A pretraining that a study compares, and what its fine-tunings do differently."""

    pretrain: Any = setting(
        doc="the settings of its pretraining; variants with the same share the run"
    )
    finetune: Any = setting(
        factory=dict, doc="settings of its fine-tunings, in place of the tasks' own"
    )


@dataclasses.dataclass(frozen=True)
class StudyConfig:
    """What ``get_study`` of a study's file gives: variants times tasks times seeds.

    The first variant is what the others are compared with.
    """

    variants: dict[str, Variant] = setting(doc="what is compared, by name")
    tasks: dict[str, Any] = setting(
        factory=dict, doc="the settings of each fine-tuning, by name, without init_from"
    )
    seeds: tuple[int, ...] = setting(
        (0, 1, 2),
        "seeds, each of a pretraining and of the fine-tunings from it",
        **_SEEDS,
    )
    pairs: tuple[str, ...] = setting(
        (), "files of minimal pairs, as bert_jax minimal_pairs takes them"
    )
    pairs_per_set: int = setting(0, "use the first pairs of each set; 0: all", least=0)
    equal_compute: bool = setting(
        False,
        "scale the steps of each pretraining so that all take as many floating point "
        "operations as the first",
    )

    def __post_init__(self):
        check_ranges(self)
        for name in ("variants", "seeds"):
            if not getattr(self, name):
                raise UserError(f"the study's {name} are empty; expected one at least")


def train_config(settings: Mapping[str, Any]) -> TrainConfig:
    """Builds a TrainConfig from nested mappings, checking every name and type."""
    settings = with_compute(settings)
    if "total_steps" in settings.get("optimizer", {}):
        raise UserError(
            "optimizer.total_steps is the sum of the phases' steps; "
            "set phases[0].steps instead"
        )
    return from_settings(TrainConfig, settings, "")


def finetune_config(settings: Mapping[str, Any]) -> FineTuneConfig:
    """Builds a FineTuneConfig from nested mappings, checking every name and type."""
    # Imported late: pretraining has no tasks.
    from bert_jax.tasks.families import FAMILIES

    settings = with_compute(settings)
    family = settings.get("family")
    if family not in FAMILIES:
        raise UserError(f"family={family!r}, expected one of {', '.join(FAMILIES)}")
    kind = FAMILIES[family].config_class
    data = from_settings(kind, settings.get("data", {}), "data")
    return from_settings(FineTuneConfig, settings | {"data": data}, "")


# The settings that --change_settings may change in an unfinished run. Group names stand
# for all of their settings.
_MAY_CHANGE = (
    *("mesh", "accumulation", "log_every", "checkpoint_every"),
    *("profile_steps", "tracker", "data_timeout"),
    *("optimizer.spike_norm", "optimizer.skip_spikes"),
)
_PRETRAINING_MAY_CHANGE = (
    *("compute.dtype", "compute.remat", "compute.attention_impl"),
    *("compute.float32_gradients", "data.packing", "data.threads", "data.prefetch"),
    "data.path",  # the contents of the store are compared
    *("keep_checkpoints", "prompts"),
)
# Further settings of pretraining that --change_settings may change. They change its scores.
_CHANGE_SCORES = ("optimizer", "eval_every", "eval_batches", "eval_mask_rate")
_FINE_TUNING_MAY_CHANGE = ("eval_batch_size",)
# What config.json contains beside the settings, and the grid that a run is part of.
_NO_SETTINGS = ("text", "rows", "changes")
_IGNORED = ("changes", "sweep")

_STEPS = ", but a run can only get more steps, in its last phase"

Change = tuple[str, Any, Any]  # name, old value, new value


def changed_settings(old: dict[str, Any], new: dict[str, Any]) -> list[Change]:
    """The settings of a run that differ between two of its configs.

    old, new: from ``settings.to_dict``, with the "text" of pretraining. A setting that
    ``old`` does not have gets its default. The "rows" of fine-tuning count if both have
    them. Raises UserError if ``old`` has a setting that does not exist any more.
    """
    read = finetune_config if "family" in new else train_config
    if "family" in new or "phases" in new:
        settings = {k: v for k, v in old.items() if k not in _NO_SETTINGS}
        old = old | to_dict(read(settings))
    ignored = _IGNORED if "rows" in old and "rows" in new else (*_IGNORED, "rows")
    return [
        change
        for change in differences(old, new)
        if change[0].partition(".")[0].partition("[")[0] not in ignored
    ]


def more_steps(change: Change, new: dict[str, Any]) -> bool:
    """Whether a change adds steps to the last phase of pretraining."""
    name, before, after = change
    last = f"phases[{len(new.get('phases', ())) - 1}].steps"
    return name == last and after > before


def resume_differences(
    old: dict[str, Any],
    new: dict[str, Any],
    free: Sequence[str] = (),
    *,
    same_scores: bool = False,
) -> list[str]:
    """The settings that no flag can change in a run, as "name: old -> new".

    old, new: see :func:`changed_settings`. free: further settings that may differ.
    same_scores: whether settings that change the scores, and the steps, must be equal.
    """
    own = _FINE_TUNING_MAY_CHANGE
    if "family" not in new:
        own = _PRETRAINING_MAY_CHANGE + (() if same_scores else _CHANGE_SCORES)
    free = (*_MAY_CHANGE, *own, *free)
    try:
        changes = changed_settings(old, new)
    except UserError as error:
        return [str(error)]
    return [
        shown_change(change) + _STEPS * change[0].endswith("].steps")
        for change in changes
        if not any(
            change[0] == f or change[0].startswith((f"{f}.", f"{f}[")) for f in free
        )
        and (same_scores or not more_steps(change, new))
    ]


def shown_change(change: Change) -> str:
    """A change in words."""
    # Imported late: pretraining has no tasks.
    from bert_jax.tasks.source import ROWS

    name, before, after = change
    given = all(str(x).startswith(ROWS) for x in (before, after))
    if name == "rows" or (name == "data.dir" and given):
        return "the rows of train, dev or test differ"
    return f"{name}: {before!r} -> {after!r}"
