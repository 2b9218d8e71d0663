"""Runs of a table of settings, which show whether each setting reaches its place.

Most runs need no model: they stop where the engine starts, or train :class:`Probe`, whose
gradients are known. :class:`Table` compares a run with a value and a run without it.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import re
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from bert_jax.errors import DivergenceError, UserError
from bert_jax.inference import pretrained as pretrained_model
from bert_jax.interop.train_state import read_step
from bert_jax.model.bert import BertForPreTraining
from bert_jax.parallel.mesh import make_mesh
from bert_jax.settings import all_settings
from bert_jax.training import finetune as tuning
from bert_jax.training import finetune_data, pretrain_evaluation, study, sweep
from bert_jax.training import pretrain as pretraining_of
from bert_jax.training import run as engine
from bert_jax.training.config import finetune_config, train_config
from bert_jax.training.hooks import Training, call_hooks
from bert_jax.training.metrics import RunProgress

Settings = dict[str, Any]  # values by full name, such as "phases[0].steps"
# The short form checks a setting in a run with other settings, the long form on its own.
among_others_and_alone = pytest.mark.parametrize(
    "alone", [False, pytest.param(True, marks=pytest.mark.long)]
)


class Row(NamedTuple):
    """A setting: a value that is not its default, and what the value must change.

    arrives: function of what a run shows. True with the value, False with the default.
    run: name of the run, which shows several settings. needs: other settings without which
    the value changes nothing.
    """

    value: Any
    arrives: Callable[[Any], bool]
    run: str
    needs: Mapping[str, Any] = types.MappingProxyType({})


class Table:
    """Rows by the full names of their settings, and the way to run them.

    kinds: the kind of each run; "job" for other runs. observe: function of (kind, settings)
    that returns what a run shows.
    """

    def __init__(
        self,
        rows: dict[str, Row],
        kinds: dict[str, str],
        observe: Callable[[str, Settings], Any],
    ):
        self.rows, self._kinds, self._observe, self._seen = rows, kinds, observe, {}

    def seen(self, run: str, settings: Settings) -> Any:
        """The observations of a run with the given settings. Each run is made once."""
        kind = self._kinds.get(run, "job")
        key = kind, repr(sorted(settings.items()))
        if key not in self._seen:
            self._seen[key] = self._observe(kind, settings)
        return self._seen[key]

    def check(self, name: str, *, alone: bool) -> None:
        """Fails if a setting does not arrive, or if its row cannot fail.

        alone: whether the run has only this setting. Otherwise it has all values of its
        rows.
        """
        row = self.rows[name]
        alone = alone or row.run == "alone"
        names = (
            [name] if alone else [n for n in self.rows if self.rows[n].run == row.run]
        )
        needs = itertools.chain(*(self.rows[n].needs.items() for n in names))
        settings = dict(needs) | {n: self.rows[n].value for n in names}
        assert row.arrives(self.seen(row.run, settings)), f"{name}={row.value!r}"
        with contextlib.suppress(UserError):  # the needs alone may be impossible
            unchanged = row.arrives(self.seen(row.run, dict(row.needs)))
            assert not unchanged, f"the row of {name} cannot fail"


def nested(settings: Settings) -> dict[str, Any]:
    """Settings by full names as nested dictionaries. phases[0] is the only phase."""
    result: dict[str, Any] = {}
    for name, value in settings.items():
        *groups, last = name.replace("phases[0]", "phases").split(".")
        group = result
        for part in groups:
            group = group.setdefault(part, {})
        group[last] = value
    if "phases" in result:
        result["phases"] = [result["phases"]]
    return result


@dataclasses.dataclass(frozen=True)
class Probe:
    """An objective with known gradients, and metrics that describe its batches.

    The gradient of a parameter is ``GRADIENTS`` times the ``strength`` of the batch.
    number: makes each probe different, so that no run finds a compiled program.
    """

    number: int
    model: BertForPreTraining | None
    traced: list = dataclasses.field(compare=False, default_factory=list)
    sum_names = ("loss", "rows", "tokens_seen", "masked", "draw")
    frozen = ""
    rules = ((r"(drawn|probe)/", jax.sharding.PartitionSpec()),)
    _count = itertools.count()

    def init(self, key):
        params = {name: jnp.array(value) for name, value in START.items()}
        params["drawn/bias"] = jax.random.normal(key, (3,))
        return traverse_util.unflatten_dict(params, sep="/")

    def weights(self, batch):
        return {"loss": jnp.float32(1)}

    def sums(self, params, batch, key):
        if key is not None:
            self.traced.append(batch["input_ids"].shape)
        flat = traverse_util.flatten_dict(params, sep="/")
        products = [jnp.vdot(GRADIENTS[name], flat[name]) for name in GRADIENTS]
        masked = batch.get("mlm_weights", jnp.zeros(1))
        return {
            "loss": strength(batch, jnp) * sum(products),
            "rows": jnp.float32(len(batch["input_ids"])),
            "tokens_seen": jnp.sum(batch["attention_mask"]).astype(jnp.float32),
            "masked": jnp.sum(masked).astype(jnp.float32),
            "draw": jnp.float32(0) if key is None else jax.random.uniform(key),
        }

    def eval_sums(self, params, batch):
        return self.sums(params, batch, None)

    def metrics(self, sums):
        return {name: float(sums[name]) for name in self.sum_names}

    def summary(self, metrics):
        return ""

    def flops(self, batch):
        return 1.0


def pretraining(model, compute, examples):
    """The objective of a run with ``objective="tests.settings_probe"``."""
    return Probe(next(Probe._count), BertForPreTraining(model, compute))


_random = np.random.default_rng(7)
_SHAPES = {
    "bert/embeddings/word/embedding": (8, 4),
    "bert/encoder/layer_0/intermediate/kernel": (8, 4),
    "bert/encoder/layer_1/intermediate/kernel": (8, 4),
    "probe/bias": (3,),
}
START = {name: np.float32(_random.normal(size=x)) for name, x in _SHAPES.items()}
GRADIENTS = {name: np.float32(_random.normal(size=x)) for name, x in _SHAPES.items()}


def strength(batch, numpy=np):
    """The factor of the gradients of a batch: a sum over its rows, from 0 to 8 or so."""
    ids_B = batch["input_ids"][:, 2] % 97
    return numpy.sum(numpy.square(ids_B.astype("float32"))) / 8000


def trained_by_hand(config, batches, average=0.0) -> dict[str, np.ndarray]:
    """The parameters of a Probe after a run, in float64 (optimization.py; LAMB; WSD).

    average: decay rate of the average of the parameters, which is returned in their place.
    """
    params = {name: np.float64(array) for name, array in START.items()}
    zeros = {name: np.zeros_like(array) for name, array in params.items()}
    m, v, total, count = zeros, zeros, len(batches), 0
    first = total - config.decay_steps
    warmup = config.warmup_steps or int(total * config.warmup)
    powers = {"embeddings": 3, "layer_0": 2, "layer_1": 1}
    means = dict(params)
    for step, batch in enumerate(batches):
        rate = config.learning_rate * (1 - step / total)
        if config.schedule != "linear":
            done = 0
            if step > first:
                done = (step - first) / config.decay_steps
            if config.schedule == "wsd_sqrt":
                done = done**0.5
            rate = config.learning_rate * (1 - done + done * config.final_rate)
        if step < warmup:
            rate = config.learning_rate * step / warmup
        grads = {name: float(strength(batch)) * g for name, g in GRADIENTS.items()}
        norm = np.sqrt(sum(np.sum(np.square(g)) for g in grads.values()))
        if config.largest_norm is not None and norm > config.largest_norm:
            continue
        factor, count = min(1.0, config.clip_norm / norm), count + 1
        grads = {name: factor * g for name, g in grads.items()}
        b1, b2 = config.beta1, config.beta2
        m = {name: b1 * m[name] + (1 - b1) * g for name, g in grads.items()}
        v = {name: b2 * v[name] + (1 - b2) * g**2 for name, g in grads.items()}
        for name, value in params.items():
            m_hat, v_hat = m[name], v[name]
            is_stable = config.name == "stable_adamw"
            if config.bias_correction or is_stable:
                m_hat, v_hat = m_hat / (1 - b1**count), v_hat / (1 - b2**count)
            update = m_hat / (np.sqrt(v_hat) + config.epsilon)
            if not name.endswith("bias"):
                update = update + config.weight_decay * value
                if config.name == "lamb":
                    update *= np.linalg.norm(value) / np.linalg.norm(update)
            if is_stable:
                ratio = grads[name] ** 2 / np.maximum(v_hat, config.epsilon**2)
                update = update / max(1.0, np.sqrt(np.mean(ratio)))
            power = sum(n for part, n in powers.items() if part in name)
            params[name] = value - rate * config.layer_decay**power * update
        means = {
            name: average * mean + (1 - average) * params[name]
            for name, mean in means.items()
        }
    return means


def has_number(text: str, value: float, count: int = 1) -> bool:
    """Whether a number occurs in the text of a program at least ``count`` times."""
    found = re.findall(r"(?<![\w.])\d+\.\d+(?:e-\d+)?|\d+e-\d+", text)
    numbers = np.array([*map(float, found)])
    return np.isclose(numbers, value, rtol=1e-6).sum() >= count


def with_model(seen: "Seen", group: str, **values: Any) -> "Seen":
    """The run with these values in the config of its model."""
    objective, name = seen.job.objective, {"model": "config"}.get(group, group)
    changed = dataclasses.replace(getattr(objective.model, name), **values)
    model = objective.model.clone(**{name: changed})
    objective = dataclasses.replace(objective, model=model)
    job = dataclasses.replace(seen.job, objective=objective)
    return dataclasses.replace(seen, job=job)


def traced_as(seen: "Seen", group: str, **values: Any) -> bool:
    """Whether the loss equals the loss of a model with these values in its config."""
    return seen.text == with_model(seen, group, **values).text


def has_float32_gradients(seen: "Seen") -> bool:
    """Whether the gradients equal a model's with float32_gradients."""
    other = with_model(seen, "compute", float32_gradients=True)
    return seen.gradient_text == other.gradient_text


def steps_of(seen: "Seen", split: str) -> list[int]:
    """The steps of a split's lines in metrics.jsonl."""
    return [line["step"] for line in seen.lines(split)]


def saves(seen: "Seen") -> list[int]:
    """The steps whose state was saved."""
    return [arguments[1] for arguments, _ in seen.calls["save"]]


def trains_as(name: str, value: Any) -> Callable[["Seen"], bool]:
    """Whether a run trains with this value of an optimizer setting."""
    return lambda seen: seen.trains_as(**{name: value})


def mesh_is(**sizes: int) -> Callable[["Seen"], bool]:
    """Whether the axes of the mesh have these sizes."""
    return lambda seen: {n: seen.job.mesh.shape[n] for n in sizes} == sizes


def is_split(seen: "Seen") -> bool:
    """Whether a kernel of the state is split over the devices of data."""
    ((_, _, abstract), _) = seen.calls["compile_step"][0]
    kernel = abstract.params["bert"]["encoder"]["layer_0"]["intermediate"]["kernel"]
    return "data" in str(kernel.sharding.spec)


class _StoppedError(Exception):
    """Ends a run when a test has seen enough."""


@dataclasses.dataclass
class Seen:
    """The observations of a run.

    job: the run as the engine gets it. calls: arguments of functions by their name.
    error: the DivergenceError that ended the run. prepared, results: model and data of a
    fine-tuning, and its results. study: the study.
    probe: the objective that replaced the run's own.
    """

    config: Any
    workdir: Path
    job: Any = None
    log: list[str] = dataclasses.field(default_factory=list)
    calls: dict[str, list] = dataclasses.field(default_factory=dict)
    error: DivergenceError | None = None
    prepared: Any = None
    probe: "Probe | None" = None
    results: dict[str, Any] | None = None
    study: Any = None

    @functools.cached_property
    def batches(self) -> list[dict[str, np.ndarray]]:
        """The batches of all steps."""
        return [self.job.batches[step] for step in range(len(self.job.batches))]

    @functools.cached_property
    def all(self) -> dict[str, np.ndarray]:
        """The rows of all batches, of pretraining without packing."""
        names = self.batches[0]
        return {n: np.concatenate([x[n] for x in self.batches]) for n in names}

    @functools.cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters of the objective, by path."""
        shapes = jax.eval_shape(self.job.objective.init, jax.random.key(0))
        flat = traverse_util.flatten_dict(shapes, sep="/")
        return {name: leaf.shape for name, leaf in flat.items()}

    @functools.cached_property
    def text(self) -> str:
        """The text of the loss of a training batch, before XLA."""
        return self._traced(lambda loss: loss)

    @functools.cached_property
    def gradient_text(self) -> str:
        """The text of the gradients, before XLA."""
        return self._traced(jax.grad)

    def _traced(self, transform: Callable) -> str:
        objective, batch = self.job.objective, self.batches[0]
        params = jax.eval_shape(objective.init, jax.random.key(0))

        def loss(params, batch, key):
            return sum(objective.sums(params, batch, key).values())

        jaxpr = jax.make_jaxpr(transform(loss))(params, batch, jax.random.key(0))
        return re.sub(r"0x[0-9a-f]+", "", f"{jaxpr} {jaxpr.consts}")

    @functools.cached_property
    def init_text(self) -> str:
        """The text of the initialisation of the parameters."""
        return str(jax.make_jaxpr(self.job.objective.init)(jax.random.key(0)))

    @functools.cached_property
    def params(self) -> dict[str, np.ndarray]:
        """The parameters of the newest checkpoint."""
        return traverse_util.flatten_dict(
            jax.device_get(read_step(self.workdir / "checkpoints")[1]), sep="/"
        )

    def lines(self, split: str) -> list[dict[str, Any]]:
        """The metrics of a split."""
        text = (self.workdir / "metrics.jsonl").read_text()
        return [x for x in map(json.loads, text.splitlines()) if x["split"] == split]

    def trains_as(self, **settings: Any) -> bool:
        """Whether the parameters equal the optimizer's result with these settings."""
        optimizer = dataclasses.replace(self.config.optimizer, **settings)
        expected = trained_by_hand(optimizer, self.batches)
        return _all_close(self.params, expected)

    def averages_as(self, average: float) -> bool:
        """Whether the run kept the average with this decay rate."""
        try:
            _, means = read_step(self.workdir / "checkpoints", average="ema")
        except UserError:  # the run has no average
            return False
        expected = trained_by_hand(self.config.optimizer, self.batches, average)
        flat = traverse_util.flatten_dict(means, sep="/")
        return _all_close(flat, expected)


def _all_close(params: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    return all(
        np.allclose(params[name], expected[name], rtol=0, atol=2e-5)
        for name in expected
    )


@contextlib.contextmanager
def watched(seen: Seen, until: str):
    """Records in ``seen`` what the engine receives.

    until: "job": stops before the engine starts. "step": before the step is compiled.
    "end": runs all steps.
    """
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(_StoppedError):

        def note(module, name, stops=False):
            function, calls = getattr(module, name), seen.calls.setdefault(name, [])

            def noted(*arguments, **options):
                calls.append((arguments, options))
                if stops:
                    raise _StoppedError
                return function(*arguments, **options)

            patch.setattr(module, name, noted)

        def run(job, *rest):
            seen.job = job
            if until == "job":
                raise _StoppedError
            return engine.run(job, *rest)

        @contextlib.contextmanager
        def trace(folder):
            puts = seen.calls["put_batch"]
            first = len(puts) + 1
            yield
            seen.calls["profile"] = [(first, len(puts))]

        tracker = types.ModuleType("wandb")
        tracker.init = lambda **options: seen.calls.setdefault("init", [options])
        tracker.log = tracker.finish = lambda *arguments, **options: None
        patch.setitem(sys.modules, "wandb", tracker)
        patch.setattr(engine.jax.profiler, "trace", trace)
        patch.setattr(
            engine.jax.profiler,
            "start_server",
            lambda port: seen.calls.setdefault("port", [port]),
        )
        patch.setattr(engine.jax.profiler, "stop_server", lambda: None)
        patch.setattr(pretraining_of, "run", run)
        note(engine.CheckpointStore, "save")
        note(engine, "put_batch")
        note(engine, "compile_step", stops=until == "step")
        note(engine, "drawn_ahead")
        note(engine, "init_state")
        try:
            yield note
        except DivergenceError as error:
            seen.error = error


def pretrained(
    settings: Settings, workdir: Path, until: str, *, all_devices: bool = False
) -> Seen:
    """The observations of a pretraining with these settings; see :func:`watched`.

    all_devices: whether it uses all devices, as for users.
    """
    config = train_config(nested(settings))
    seen = Seen(config, workdir)
    with watched(seen, until) as note:
        note(pretrain_evaluation, "eval_batches")
        drawn_ahead = pretrain_evaluation.drawn_ahead

        def for_evaluation(*arguments, **options):
            seen.calls.setdefault("eval_ahead", []).append(options)
            return drawn_ahead(*arguments, **options)

        def fill(model, rows, options):
            seen.calls["prompts"] = [text for _, text in rows.placed]
            return []

        with pytest.MonkeyPatch.context() as patch:
            if all_devices:
                patch.setattr(pretraining_of, "make_mesh", make_mesh)
            patch.setattr(pretrain_evaluation, "drawn_ahead", for_evaluation)
            patch.setattr(pretrained_model, "fill_mask", fill)
            pretraining_of.pretrain(config, workdir, seen.log.append)
    return seen


def tuned(
    settings: Settings, workdir: Path, until: str, *, all_devices: bool = False
) -> Seen:
    """The observations of a fine-tuning with these settings, without its model's program.

    settings: nested, as for ``finetune_config``.
    until: as for :func:`watched`; "step" and "end" train a :class:`Probe` with the run's
      config and batches. "results": the model gives random logits, and no step is done.
      "sweep": lists the runs of a sweep in ``calls["runs"]``.
    """
    config = finetune_config(settings)
    seen = Seen(config, workdir)
    with watched(seen, until) as note, pytest.MonkeyPatch.context() as patch:

        def run(job, folder, log):
            seen.job = job
            if until == "job":
                raise _StoppedError
            if until == "results":
                return None, _evaluated(job, seen), 0
            seen.probe = Probe(next(Probe._count), None)
            unchanged = {"hooks": (), "initial_params": None}
            engine.run(
                dataclasses.replace(job, objective=seen.probe, **unchanged), folder, log
            )
            raise _StoppedError

        def prepare(*arguments):
            seen.prepared = prepared(*arguments)
            return seen.prepared

        def model(forward, params, features, **options):
            seen.calls.setdefault("run_model", []).append(options)
            logits = random_logits(seen.prepared)
            return [logits(i, ids) for i, ids in enumerate(features.input_ids)]

        def list_runs(runs, config, folder):
            seen.calls["runs"] = {run.name: run.config for run in runs}
            raise _StoppedError

        prepared = finetune_data.prepare
        note(tuning, "evaluate_split")
        patch.setattr(tuning, "run", run)
        patch.setattr(finetune_data, "prepare", prepare)
        patch.setattr(tuning, "run_model", model)
        patch.setattr(finetune_data, "with_hidden", lambda split, *_, **options: split)
        note(finetune_data, "with_hidden")
        patch.setattr(sweep, "_missing", list_runs)
        if all_devices:
            patch.setattr(finetune_data, "make_mesh", make_mesh)
        if until == "sweep":
            sweep.run_sweep(config, workdir, seen.log.append)
        else:
            seen.results = sweep.run_one(config, workdir, seen.log.append)
    return seen


def random_logits(prepared: Any) -> Callable[[int, np.ndarray], np.ndarray]:
    """A function of a sequence's number and ids that returns random outputs of a head."""
    task, width = prepared.task, prepared.checkpoint.config.hidden_size

    def logits(number, ids):
        random = np.random.default_rng(number)
        if task.head in ("token", "span"):
            return random.normal(size=(len(ids), task.outputs))
        if task.head in ("mean", "cls"):
            vector = random.normal(size=width)
            return vector / np.linalg.norm(vector)
        return random.normal(size=task.outputs)

    return logits


def _evaluated(job, seen: Seen) -> RunProgress:
    """Evaluates a run with random parameters after each step, and returns its progress."""
    progress = RunProgress(tokens=1.0, computed_tokens=1.0, seconds=1.0)
    writes = seen.calls.setdefault("write", [])
    reporter = types.SimpleNamespace(
        progress=progress,
        log=seen.log.append,
        write=lambda *line: writes.append(line),
        finish_report=lambda: None,
        start_window=lambda: None,
        timed=lambda name: contextlib.nullcontext(),
    )
    shapes = jax.eval_shape(job.objective.init, jax.random.key(0))
    params = jax.tree.map(lambda x: np.ones(x.shape, np.float32), shapes)
    state = types.SimpleNamespace(params=params)
    training = Training(reporter, len(job.batches), 0, state)
    call_hooks(job.hooks, training)
    while not training.ends:
        training.step += 1
        call_hooks(job.hooks, training)
    return progress


def studied(config: Any, folder: Path) -> Seen:
    """The inputs of the parts of a study. Nothing is trained."""
    seen = Seen(config, folder)

    def note(name, result):
        calls = seen.calls.setdefault(name, [])

        def noted(config, *arguments):
            calls.append(config)
            return result

        return noted

    def accuracy(score, sets):
        sizes = seen.calls.setdefault("sets", [])
        sizes += [len([*pairs]) for _, pairs in sets]
        return types.SimpleNamespace(accuracy=0.5, pairs=sum(sizes), by_set={})

    def finished(folder, *arguments):
        return {} if any(folder.glob("*.json")) else None

    results = {"scores": {}, "tokens": 1, "flops": 1.0, "seconds": 1.0}
    tuned = {"main_metric": "accuracy", "scores": {"dev": {"accuracy": 1.0}}}
    checkpoint = types.SimpleNamespace(params={"mlm": {}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "pretrain", note("pretrain", None))
        patch.setattr(study, "run_one", note("run_one", tuned))
        patch.setattr(study, "_pretrained", lambda *arguments: results)
        patch.setattr(study, "load", lambda path: checkpoint)
        patch.setattr(study, "accuracy", accuracy)
        patch.setattr(study, "finished", finished)
        seen.study = study.Study(config, folder, seen.log.append)
        seen.study.run()
    return seen


def config_of(
    call: Callable[..., Any], module: Any, name: str, **arguments: Any
) -> Any:
    """The config that a function of Python gives to ``module.name``, which ends it."""
    configs = []

    def stop(config, *arguments, **options):
        configs.append(config)
        raise _StoppedError

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(_StoppedError):
        patch.setattr(module, name, stop)
        call()
    return configs[0]


def values_of(config: Any) -> Settings:
    """All settings of a config by their full names."""
    return {setting.full: setting.value for setting in all_settings(config)}


WSD = {"optimizer.schedule": "wsd_sqrt"}
# Settings of pretraining and of fine-tuning.
SHARED_ROWS = {
    "compute.dtype": Row("bfloat16", lambda x: "bf16[" in x.text, "alone"),
    "compute.attention_impl": Row(
        "plain", lambda x: traced_as(x, "compute", attention_impl="plain"), "alone"
    ),
    "compute.remat": Row("full", lambda x: "remat" in x.gradient_text, "alone"),
    "compute.float32_gradients": Row(
        True, has_float32_gradients, "alone", {"compute.dtype": "bfloat16"}
    ),
    "log_every": Row(4, lambda x: steps_of(x, "train") == [4, 6], "engine"),
    # Batches of evaluations are not counted.
    "profile_steps": Row("2:3", lambda x: x.calls.get("profile") == [(2, 3)], "engine"),
    "profile_port": Row(9413, lambda x: x.calls.get("port") == [9413], "engine"),
    "tracker": Row("wandb", lambda x: len(x.calls.get("init", ())) == 1, "engine"),
    "optimizer.learning_rate": Row(0.03, trains_as("learning_rate", 0.03), "engine"),
    "optimizer.warmup_steps": Row(2, trains_as("warmup_steps", 2), "engine"),
    "optimizer.beta1": Row(0.8, trains_as("beta1", 0.8), "engine"),
    "optimizer.beta2": Row(0.95, trains_as("beta2", 0.95), "engine"),
    "optimizer.epsilon": Row(0.003, trains_as("epsilon", 0.003), "engine"),
    "optimizer.weight_decay": Row(0.3, trains_as("weight_decay", 0.3), "engine"),
    "optimizer.warmup": Row(0.5, trains_as("warmup", 0.5), "other optimizer"),
    "optimizer.bias_correction": Row(
        True, trains_as("bias_correction", True), "other optimizer"
    ),
    "optimizer.name": Row("lamb", trains_as("name", "lamb"), "other optimizer"),
    "optimizer.schedule": Row("wsd_sqrt", trains_as("schedule", "wsd_sqrt"), "wsd"),
    "optimizer.decay_steps": Row(3, trains_as("decay_steps", 3), "wsd", WSD),
    "optimizer.final_rate": Row(
        0.4, trains_as("final_rate", 0.4), "wsd", WSD | {"optimizer.decay_steps": 3}
    ),
    "mesh.replica": Row(2, mesh_is(replica=2), "mesh"),
    "mesh.model": Row(2, mesh_is(model=2), "mesh"),
    "mesh.data": Row(2, mesh_is(data=2, model=4), "two of data", {"mesh.model": -1}),
    "mesh.fsdp": Row(True, is_split, "mesh"),
}
SHARED_KINDS = {
    "engine": "end",
    "wsd": "end",
    "other optimizer": "end",
    "mesh": "step",
    "two of data": "step",
}
