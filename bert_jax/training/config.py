"""The configs of pretraining, fine-tuning and studies, as frozen dataclasses."""

import ast
import dataclasses
import importlib
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from bert_jax.data.examples import ExampleConfig
from bert_jax.data.mixture import BLOCK
from bert_jax.data.phases import Phase
from bert_jax.data.store import read_info
from bert_jax.errors import UserError, counted
from bert_jax.files import expanded, is_remote, open_remote, parse_json, reading
from bert_jax.interop.config_json import RunJson, learns_from_pairs, with_remat
from bert_jax.interop.families import FAMILIES
from bert_jax.interop.find import check_checkpoint
from bert_jax.model.config import (
    POOLINGS,
    BertConfig,
    ComputeConfig,
    FeatureConfig,
    MeshConfig,
)
from bert_jax.settings import (
    FilePath,
    Sentence,
    check_names,
    check_ranges,
    from_settings,
    label_name,
    setting,
    setting_like,
)

_SHORTEST = 5  # [CLS], two [SEP] and a token of each text
SCHEDULES = ("linear", "wsd_linear", "wsd_sqrt")
_SEED = {"least": 0, "below": 1 << 32}  # jax.random.key uses 32 bits


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Paper, A.2: learning rate 1e-4, 10,000 warmup steps, weight decay 0.01, linear decay.

    LAMB: You et al. (2020), algorithm 2. Muon: Jordan (2024), with the update scale of Liu
    et al. (2025). StableAdamW: Wortsman et al. (2023), algorithm 2. Warmup, stable, decay:
    Hu et al. (2024); with a tail of 1 - sqrt: Hägele et al. (2024).
    """

    layer_decay: ClassVar[float] = 1.0  # a setting of fine-tuning
    learning_rate: float = setting(doc="peak learning rate, after warmup", least=0)
    warmup_steps: int = setting(0, "number of warmup steps; 0: use warmup", least=0)
    warmup: float = setting(0.0, "warmup as a share of all steps", least=0, below=1)
    schedule: str = setting(
        "linear",
        "learning rate after warmup. linear: falls to 0 at the end, counted from step 0. "
        "wsd_linear, wsd_sqrt: constant, then a decay over the last decay_steps, "
        "linearly or as 1 - sqrt(share of decay_steps)",
        one_of=SCHEDULES,
    )
    decay_steps: int = setting(
        0, "number of last steps in which wsd decays; 0: no decay", least=0
    )
    final_rate: float = setting(
        0.0, "learning rate at the end of wsd, as a share of the peak", least=0, most=1
    )
    beta1: float = setting(0.9, "decay rate of Adam's first moment", least=0, below=1)
    beta2: float = setting(0.999, "decay rate of the second moment", least=0, below=1)
    epsilon: float = setting(1e-6, "added to the divisor of Adam's update", above=0)
    weight_decay: float = setting(0.01, "decay of matrices and embeddings", least=0)
    clip_norm: float = setting(
        1.0, "maximum global gradient norm; inf: no clipping", above=0, most=math.inf
    )
    bias_correction: bool = setting(
        False,
        "Adam's bias correction, which the original lacks. Helps on few rows. stable_adamw "
        "always has it",
    )
    spike_norm: float = setting(
        0.0, "stop at a larger gradient norm; 0: only at NaN or infinity", least=0
    )
    skip_spikes: bool = setting(False, "skip batches over spike_norm, and continue")
    name: str = setting(
        "adam",
        "optimizer; lamb suits large batches. stable_adamw takes a smaller step for a "
        "parameter whose gradients suddenly grow, so it needs no clip_norm",
        one_of=("adam", "lamb", "muon", "stable_adamw"),
    )

    def __post_init__(self):
        check_ranges(self, "optimizer.")
        for name in ("decay_steps", "final_rate"):
            value = getattr(self, name)
            if value and self.schedule == "linear":
                needed = "optimizer.schedule=wsd_linear or wsd_sqrt"
                raise UserError(f"optimizer.{name}={value} needs {needed}")

    @property
    def largest_norm(self) -> float | None:
        """Gradient norm above which a batch is skipped; None: no batch is skipped."""
        return self.spike_norm or (math.inf if self.skip_spikes else None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Settings of both pretraining and fine-tuning."""

    longest_interval: ClassVar[int] = 10_000  # steps; see steps_between_saves
    optimizer: OptimizerConfig
    init_from: FilePath = setting(
        "",
        "checkpoint to start from: a Hugging Face folder, Google's bert_model.ckpt, the "
        "workdir of a run, or a name on the Hub, such as org/name or org/name@revision",
    )
    compute: ComputeConfig = setting(factory=ComputeConfig)
    mesh: MeshConfig = setting(factory=MeshConfig)
    seed: int = setting(
        0, "random seed of parameters, example order, masks and dropout", **_SEED
    )
    accumulation: int = setting(
        1,
        "number of microbatches per step. More need less memory for the same update",
        least=1,
    )
    data_timeout: int = setting(
        300, "stop if no batch arrives for this many seconds; 0: wait forever", least=0
    )
    log_every: int = setting(100, "steps between lines of the log", least=1)
    checkpoint_every: int = setting(
        0, "steps between checkpoints; 0: a tenth of the run, at most 10,000", least=0
    )
    profile_steps: str = setting(
        "", "first and last step to profile for TensorBoard, such as 10:20"
    )
    profile_port: int = setting(
        0,
        "port of process 0 to which TensorBoard and xprof connect to profile the run; 0: "
        "none",
        least=0,
        most=65_535,
    )
    tracker: str = setting(
        "",
        "experiment tracker that receives the metrics",
        one_of=("", "wandb", "trackio"),
    )

    def __post_init__(self):
        check_ranges(self)
        profiled = re.fullmatch(r"(\d+):(\d+)", self.profile_steps)
        in_order = profiled and 1 <= int(profiled[1]) <= int(profiled[2])
        if self.profile_steps and not in_order:
            expected = "the first and the last step, such as 10:20"
            raise UserError(
                f"profile_steps={self.profile_steps!r}, expected {expected}"
            )

    def tracker_library(self) -> ModuleType | None:
        """The library of ``tracker``. Raises UserError if it is not installed."""
        if not self.tracker:
            return None
        with reading(f"tracker={self.tracker!r}", "its library"):
            return importlib.import_module(self.tracker)

    def steps_between_saves(self, total_steps: int) -> int:
        """``checkpoint_every``, or its default for a run of ``total_steps``."""
        tenth = max(1, total_steps // 10)
        return self.checkpoint_every or min(tenth, self.longest_interval)


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The text of pretraining, and how examples are made from it."""

    path: FilePath = setting("", "output folder of bert_jax prepare, instead of corpus")
    mixture: tuple[FilePath, ...] = setting(
        (), "several output folders of bert_jax prepare, instead of path"
    )
    weights: tuple[float, ...] = setting(
        (),
        "a number for each folder of mixture: its share of the sequences, relative to the "
        "other folders",
        above=0,
    )
    corpus: tuple[FilePath, ...] = setting(
        (), "text to prepare: files, folders or globs"
    )
    language: str = setting("en", "language of corpus, to split its sentences")
    vocabulary_size: int = setting(
        30_522,
        "size of the vocabulary to train, if model.vocab_size is not set; unused with "
        "init_from",
        least=1,
    )
    lower_case: bool = setting(True, "train a lower-case vocabulary")
    keep_accents: bool = setting(
        False, "keep accents and vowel signs in a lower-case vocabulary"
    )
    holdout: float = setting(
        0.01, "share of the documents for evaluation", least=0, below=1
    )
    examples: ExampleConfig = setting(factory=ExampleConfig)
    packing: bool = setting(False, "put several pairs into a row: less padding")
    threads: int = setting(2, "threads that make batches, on each host", least=1)
    prefetch: int = setting(8, "number of batches to make in advance", least=1)

    @property
    def prepared(self) -> tuple[str, ...]:
        """The folders of prepared text; none with a corpus."""
        if self.path:
            return (self.path,)
        return self.mixture

    def check_rows(self) -> None:
        """Raises UserError for packed single sentences, whose rows depend on the text."""
        if self.packing and self.examples.single_sentences:
            raise UserError(
                "equal_compute cannot count the rows of packed single sentences; set "
                "equal_compute=False and choose the steps of each variant"
            )

    def check_text(self) -> None:
        """Raises UserError unless one text or mixture is named, and prepared texts
        exist.
        """
        places = {
            f"data.path={self.path}": self.path,
            "data.mixture": self.mixture,
            "data.corpus": self.corpus,
        }
        given = [name for name, place in places.items() if place]
        if len(given) != 1:
            actual = "the config names no text"
            if given:
                actual = f"{' and '.join(given)} are given together"
            raise UserError(
                f"{actual}; set exactly one of data.path (an output of bert_jax prepare), "
                "data.mixture (several outputs) and data.corpus (text files), and leave "
                "the others empty"
            )
        self._check_weights()
        for path in self.prepared:
            if not is_remote(path):
                read_info(Path(path))

    def _check_weights(self) -> None:
        """Raises UserError unless each folder of the mixture has a weight that is large
        enough.
        """
        if len(self.weights) != len(self.mixture):
            folders = counted(len(self.mixture), "folder")
            raise UserError(
                f"data.weights={self.weights} for {folders} of data.mixture; expected a "
                "number for each folder"
            )
        if self.weights and min(self.weights) * BLOCK < sum(self.weights):
            raise UserError(
                f"data.weights={self.weights} gives a folder less than 1 of {BLOCK:,} "
                "sequences; raise the smallest weight, or leave out its folder"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig(RunConfig):
    """All settings of a pretraining."""

    model: BertConfig
    data: DataConfig
    phases: tuple[Phase, ...] = setting(
        doc="dictionaries of the settings of a phase, such as steps and batch_size"
    )
    objective: str = setting(
        "bert_jax.objectives.mlm_nsp", "Python module that defines the loss"
    )
    eval_every: int = setting(
        10_000,
        "steps between evaluations. Each phase is also evaluated at its end. 0: none",
        least=0,
    )
    eval_batches: int = setting(100, "number of batches of an evaluation", least=1)
    eval_mask_rate: float = setting(
        0.15,
        "share of the tokens that evaluations mask, in all phases",
        above=0,
        below=1,
    )
    keep_checkpoints: int = setting(3, "number of newest checkpoints to keep", least=1)
    keep_checkpoints_every: int = setting(
        0,
        "also save and keep the checkpoint of each multiple of this many steps, or of the "
        "next step if its batch is skipped; 0: none",
        least=0,
    )
    init_state: bool = setting(
        False,
        "resume the checkpoint of a run in init_from, with its step, optimizer and random "
        "key, in this workdir. Can start the decay of wsd from a checkpoint of its stable "
        "part",
    )
    average: float = setting(
        0.0,
        "decay rate of a moving average of the parameters over the steps (EMA), such as "
        "0.999; 0: none. load and convert read it on request",
        least=0,
        below=1,
    )
    eval_average: bool = setting(False, "also evaluate the average of the parameters")
    z_loss: float = setting(
        0.0,
        "factor of the squared log-normalizer of the MLM softmax, which is added to the "
        "loss, such as 1e-4",
        least=0,
    )
    prompts: tuple[Sentence, ...] = setting(
        (), "sentences with [MASK] that the model fills in at the end of the run"
    )

    def __post_init__(self):
        super().__post_init__()
        model_type, types = self.model.model_type, self.model.type_vocab_size
        if model_type not in FAMILIES:
            raise UserError(
                f"model.model_type={model_type!r}, expected one of {', '.join(FAMILIES)}"
            )
        if self.data.examples.next_sentence and types < 2:
            raise UserError(
                f"model.type_vocab_size={types} must be 2 for pairs of sentences; set it, "
                "or set data.examples.next_sentence=False"
            )
        if not self.phases:
            raise UserError("phases is empty; give at least one phase with steps")
        limit, mask_rate = self.model.max_positions, self.data.examples.mask_rate
        completed = []
        for i, phase in enumerate(self.phases):
            phase = phase.completed(limit)
            actual = f"phases[{i}].sequence_length={phase.sequence_length}"
            if phase.sequence_length < _SHORTEST:
                raise UserError(f"{actual}, expected at least {_SHORTEST}")
            if phase.sequence_length > limit:
                raise UserError(
                    f"{actual}, expected at most model.max_positions={limit}"
                )
            _check_mask_rates(phase, mask_rate, f"phases[{i}]")
            completed.append(phase)
        object.__setattr__(self, "phases", tuple(completed))
        if self.init_state and not self.init_from:
            raise UserError("init_state=True needs init_from, the checkpoint of a run")
        if self.eval_average and not self.average:
            raise UserError("eval_average=True needs average, such as average=0.999")

    @property
    def total_steps(self) -> int:
        """Steps of all phases, which share one schedule."""
        return sum(phase.steps for phase in self.phases)


def _check_mask_rates(phase: Phase, default: float, name: str) -> None:
    """Raises UserError for a rate below 0 or above 1, or with more masks than places.

    phase: a phase whose sequence length is set. default: mask rate of a phase without its
    own rates. name: name of the phase.
    """
    rates = phase.mask_rates(default)
    if rates.smallest < -1e-9 or rates.largest > 1 + 1e-9:
        span = f"from {rates.smallest:.4g} to {rates.largest:.4g}"
        raise UserError(
            f"{name}.mask_rate_spread={phase.mask_rate_spread} gives mask rates {span}, "
            "expected 0 to 1; set a smaller mask_rate_spread"
        )
    # The original's max_predictions_per_seq may be smaller than its mask rate needs.
    is_fixed = (rates.first, rates.spread) == (default, 0) and rates.last == default
    needed = phase.predictions(rates.largest)
    if not is_fixed and 0 < phase.max_predictions < needed:
        raise UserError(
            f"{name}.max_predictions={phase.max_predictions}, expected at least {needed} "
            f"for a mask rate of {rates.largest:.4g}; leave it out, or set it to 0"
        )


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """Settings of the model that fine-tuning may change; see BertConfig."""

    hidden_dropout: float = setting_like(BertConfig, "hidden_dropout", 0.1)
    attention_dropout: float = setting_like(BertConfig, "attention_dropout", 0.1)
    activation: str = setting(
        "", "empty: as in the checkpoint. Google's since 2019 need gelu_tanh"
    )
    pooling: str = setting(
        "", "input of a classifier; empty: as in the checkpoint", one_of=("", *POOLINGS)
    )
    max_positions: int = setting(
        0, "new, larger number of positions; 0: as in the checkpoint", least=0
    )
    initializer_range: float = setting(
        0.0, "standard deviation of a new head; 0: as in the checkpoint", least=0
    )

    def changes(self) -> dict[str, Any]:
        """The fields of BertConfig that these settings replace."""
        always = ("hidden_dropout", "attention_dropout")
        return {k: v for k, v in vars(self).items() if k in always or v}


@dataclasses.dataclass(frozen=True)
class FineTuneOptimizer(OptimizerConfig):
    """Paper, A.3: the pretraining optimizer, peak learning rate 5e-5, 3e-5 or 2e-5."""

    learning_rate: float = setting(5e-5, "peak learning rate, after warmup", above=0)
    warmup: float = setting_like(OptimizerConfig, "warmup", 0.1)
    layer_decay: float = setting(
        1.0, "learning rate of a layer, relative to the layer above", above=0, most=1
    )


@dataclasses.dataclass(frozen=True)
class SweepConfig:
    """The grid of ``--sweep``: the paper's (A.3), without 2 epochs.

    Each point runs with each seed.
    """

    batch_size: tuple[int, ...] = setting((16, 32), "batch sizes to try", least=1)
    learning_rate: tuple[float, ...] = setting(
        (5e-5, 3e-5, 2e-5), "learning rates to try", above=0
    )
    epochs: tuple[int, ...] = setting((3, 4), "numbers of epochs to try", least=1)
    seeds: tuple[int, ...] = setting((0, 1, 2), "random seeds of each point", **_SEED)
    folds: int = setting(
        0, "cross-validation folds of the training rows; 0: score on dev", least=0
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuneConfig(RunConfig):
    """All settings of a fine-tuning."""

    longest_interval: ClassVar[int] = 500
    family: str = setting(doc="kind of task, such as classification or tagging")
    data: Any  # the config of the family
    epochs: int = setting(3, "number of passes over the training rows", least=1)
    batch_size: int = setting(32, "number of sequences of a step", least=1)
    optimizer: FineTuneOptimizer = setting(factory=FineTuneOptimizer)
    evaluations: int = setting(1, "evaluations on dev in each epoch", least=1)
    patience: int = setting(
        0, "stop after this many evaluations without a better score; 0: never", least=0
    )
    main_metric: str = setting(
        "", "dev score that picks the best model; empty: the task's main score"
    )
    class_weights: dict[str, float] | str = setting(
        factory=dict, doc="weight of each label in the loss (default 1), or balanced"
    )
    label_smoothing: float = setting(
        0.0, "share of the target spread evenly over all labels", least=0, below=1
    )
    freeze: bool = setting(False, "train the head and the pooler, not the encoder")
    freeze_layers: int = setting(
        -1, "freeze the embeddings and this many first layers; -1: nothing", least=-1
    )
    fresh_head: bool = setting(False, "start with a new head, not the checkpoint's")
    train_rows: int = setting(0, "number of training rows to use; 0: all", least=0)
    eval_batch_size: int = setting(
        64, "batch size of evaluation at length 32; smaller at longer lengths", least=1
    )
    buckets: int = setting(
        2, "maximum number of lengths to pad to. Each compiles a program", least=1
    )
    log_every: int = setting_like(RunConfig, "log_every", 50)
    checkpoint_every: int = setting(
        0, "steps between checkpoints; 0: a tenth of the run, at most 500", least=0
    )
    model: ModelSettings = setting(factory=ModelSettings)
    features: FeatureConfig = setting(factory=FeatureConfig)
    sweep: SweepConfig = setting(factory=SweepConfig)


@dataclasses.dataclass(frozen=True)
class Variant:
    """A pretraining of a study, and the settings that its fine-tunings change."""

    pretrain: Any = setting(doc="settings of the pretraining, as of bert_jax train")
    finetune: Any = setting(
        factory=dict, doc="settings that replace the tasks' settings"
    )


@dataclasses.dataclass(frozen=True)
class StudyConfig:
    """The settings of a study, which ``get_study`` of its file returns.

    The study pretrains each variant with each seed, and fine-tunes it on each task. All
    variants are compared with the first variant.
    """

    variants: dict[str, Variant] = setting(doc="the variants by name")
    tasks: dict[str, Any] = setting(
        factory=dict, doc="fine-tunings by name: settings without init_from"
    )
    seeds: tuple[int, ...] = setting((0, 1, 2), "random seeds of each variant", **_SEED)
    pairs: tuple[FilePath, ...] = setting(
        (), "files of minimal pairs, as for score --pairs"
    )
    pairs_per_set: int = setting(0, "number of pairs of each set; 0: all", least=0)
    equal_compute: bool = setting(
        False, "change the steps so that all variants compute as much as the first"
    )

    def __post_init__(self):
        check_ranges(self)


# Settings that are not read from a checkpoint, but have the defaults of BertConfig.
_DROPOUTS = ("hidden_dropout", "attention_dropout")
_SIZES = [
    field.name
    for field in dataclasses.fields(BertConfig)
    if field.default is dataclasses.MISSING
]


def with_architecture(
    settings: Mapping[str, Any], workdir: os.PathLike | str = ""
) -> Mapping[str, Any]:
    """Settings of a pretraining. Missing sizes of ``model`` are added from ``init_from``.

    All missing settings of the model except the dropout are read from the checkpoint. With
    init_state, which continues a run, the dropout is read as well. vocab_size is the number
    of tokens of its tokenizer, because the word table may have more rows.
    data.examples.next_sentence is False, unless the settings have it, for a checkpoint that
    does not learn from pairs. If the checkpoint was deleted, the settings are read from the
    run in ``workdir``, if it started from that checkpoint.
    """
    model, path = settings.get("model", {}), expanded(settings.get("init_from"))
    if not isinstance(model, Mapping) or not _is_pretraining(settings):
        return settings
    missing = [f"model.{name}" for name in _SIZES if name not in model]
    data, needed = settings.get("data"), list(missing)
    if isinstance(data, Mapping) and data.get("corpus"):
        # The text defines the size of the vocabulary.
        needed = [name for name in missing if name != "model.vocab_size"]
    if not path and needed not in ([], ["model.vocab_size"]):
        raise UserError(f"missing: {', '.join(needed)}; set each of them, or init_from")
    if not path or not missing:
        return settings
    try:
        known, pairs = _architecture(path)
    except UserError:
        folder = Path(workdir)
        if is_remote(workdir):
            folder = open_remote(workdir)
        file, run = folder / "config.json", {}
        if workdir and file.is_file():
            run = parse_json(file.read_bytes(), file, "the config of a run", RunJson)
        if run.get("init_from") != path:
            raise
        known = run["model"]
        examples = run.get("data", {}).get("examples", {})
        pairs = examples.get("next_sentence", True)
    if not settings.get("init_state"):
        known = {name: known[name] for name in known if name not in _DROPOUTS}
    settings = {**settings, "model": known | dict(model)}
    if pairs:
        return settings
    return _without_pairs(settings)


def _without_pairs(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings with data.examples.next_sentence=False, unless they ask for pairs."""
    data = settings.get("data", {})
    if not isinstance(data, Mapping):
        return settings
    examples = data.get("examples", {})
    if not isinstance(examples, Mapping) or examples.get("sentence_order"):
        return settings
    examples = {"next_sentence": False, **examples}
    return {**settings, "data": {**data, "examples": examples}}


def _architecture(path: str) -> tuple[dict[str, Any], bool]:
    """The settings of a checkpoint's model, and whether it learns from pairs."""
    check_checkpoint(path, "init_from")
    # Imported late: it imports JAX, and a command line without init_from needs none.
    from bert_jax.interop.load import load

    checkpoint = load(path, weights=False)
    known = {**vars(checkpoint.config)}
    if checkpoint.tokenizer is not None:
        known["vocab_size"] = checkpoint.tokenizer.vocab_size
    return known, learns_from_pairs(checkpoint.config)


def with_any_sizes(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings with arbitrary sizes of the model, to list the names of all settings.

    Real sizes may need a checkpoint that only the command line names.
    """
    if not _is_pretraining(settings):
        return settings
    model = settings.get("model", {})
    sizes = dict.fromkeys(_SIZES, 1) | {"max_positions": 1 << 30}
    sizes["hidden_size"] = 2 * model.get("num_heads", 1)
    return {**settings, "model": sizes | model}


def _is_pretraining(settings: Mapping[str, Any]) -> bool:
    return {"phases", "optimizer"} <= settings.keys()


def train_config(
    settings: Mapping[str, Any], workdir: os.PathLike | str = ""
) -> TrainConfig:
    """Builds a TrainConfig from nested mappings, checking every name and type.

    model.vocab_size and data.vocabulary_size are one number if a vocabulary is trained on
    data.corpus: if only one is given, the other gets its value. workdir: see
    :func:`with_architecture`.
    """
    settings = with_remat(settings)
    if "family" in settings:
        actual = f"family={settings['family']!r} is a setting of fine-tuning"
        needed = "expected a pretraining config, such as base or further_pretraining"
        raise UserError(f"{actual}; {needed}")
    # A misspelled name is reported, not the setting that is missing because of it.
    check_names(TrainConfig, settings, "")
    if isinstance(settings.get("model"), Mapping):
        check_names(BertConfig, settings["model"], "model")
    settings = with_architecture(settings, workdir)
    model, data = settings.get("model"), settings.get("data")
    if isinstance(model, Mapping) and isinstance(data, Mapping) and data.get("corpus"):
        size = data.get("vocabulary_size", DataConfig.vocabulary_size)
        if "vocab_size" not in model:
            model = {**model, "vocab_size": size}
        elif "vocabulary_size" not in data and not settings.get("init_from"):
            data = {**data, "vocabulary_size": model["vocab_size"]}
        settings = {**settings, "model": model, "data": data}
    return from_settings(TrainConfig, settings, "")


def finetune_config(settings: Mapping[str, Any]) -> FineTuneConfig:
    """Builds a FineTuneConfig from nested mappings, checking every name and type."""
    # Imported late: pretraining has no tasks.
    from bert_jax.tasks.families import FAMILIES as TASK_FAMILIES

    settings = with_remat(settings)
    family = settings.get("family")
    if "phases" in settings and "family" not in settings:
        needed = "expected a fine-tuning config, such as table or sst2"
        raise UserError(f"phases is a setting of pretraining; {needed}")
    if family not in TASK_FAMILIES:
        expected = ", ".join(TASK_FAMILIES)
        raise UserError(f"family={family!r}, expected one of {expected}")
    kind = TASK_FAMILIES[family].config_class
    data = from_settings(kind, settings.get("data", {}), "data")
    weights = _class_weights(settings.get("class_weights", {}))
    changes = {"data": data, "class_weights": weights}
    return from_settings(FineTuneConfig, settings | changes, "")


def _class_weights(weights: Any) -> dict[str, float] | str:
    """The setting from a dictionary, its text, a Series of pandas, or "balanced"."""
    if isinstance(weights, str) and weights == "balanced":
        return weights
    try:
        if isinstance(weights, str):
            weights = ast.literal_eval(weights)
        by_label = {
            str(label_name(label)): float(weight)
            for label, weight in dict(weights).items()
        }
        if all(0 <= weight < math.inf for weight in by_label.values()):
            return by_label
    except (SyntaxError, TypeError, ValueError):
        pass
    raise UserError(
        f"class_weights={weights!r:.200}, expected balanced, or a dictionary of labels and "
        "weights of at least 0, such as {'good': 1, 'bad': 2.5}"
    )
