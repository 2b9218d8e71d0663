"""The training engine with a test objective, which is a single class."""

import collections
import dataclasses
import functools
import json
import os
import re
import signal
import socket
import sys
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import PartitionSpec

import bert_jax
from bert_jax.errors import DivergenceError, Preempted, UserError
from bert_jax.interop.train_state import CheckpointStore, newest_step
from bert_jax.model.config import ComputeConfig
from bert_jax.parallel.mesh import MeshConfig, make_mesh
from bert_jax.runs import read_metrics
from bert_jax.training import hooks, metrics
from bert_jax.training import run as engine
from bert_jax.training.config import RunConfig
from bert_jax.training.hooks import evaluation
from bert_jax.training.optimizer import OptimizerConfig
from bert_jax.training.run import Job, divergence_advice, run
from bert_jax.training.workdir import RunFolder, draw_run

# Compiled as for users: the resume tests compare runs bit for bit.
pytestmark = pytest.mark.usefixtures("fused")

STEPS, VOCABULARY = 9, 12


class Bigrams(nn.Module):
    """Logits of the next token from the token before it."""

    @nn.compact
    def __call__(self, input_ids_BL):
        x_BLV = jax.nn.one_hot(input_ids_BL, VOCABULARY)
        x_BLD = nn.Dense(4, name="narrow")(x_BLV)
        return nn.Dense(VOCABULARY, name="wide")(x_BLD)


@dataclasses.dataclass(frozen=True)
class NextToken:
    """Mean loss of the next token, without padding."""

    model: nn.Module
    sum_names = ("loss", "weight", "correct")
    frozen = ""
    rules = ((r"(narrow|wide)/kernel$", PartitionSpec(None, None)),)

    def init(self, key):
        return self.model.init(key, jnp.zeros((1, 2), jnp.int32))["params"]

    def flops(self, batch):
        return 2.0 * 3 * batch["input_ids"].size * 2 * 4 * VOCABULARY

    def weights(self, batch):
        return {"loss": jnp.sum(self._asked(batch))}

    def sums(self, params, batch, key):
        del key
        ids_BL, asked_BL = batch["input_ids"], self._asked(batch)
        logits = self.model.apply({"params": params}, ids_BL[:, :-1])
        log_p = jax.nn.log_softmax(logits)
        losses = -jnp.take_along_axis(log_p, ids_BL[:, 1:, None], axis=-1)[..., 0]
        right = jnp.argmax(logits, axis=-1) == ids_BL[:, 1:]
        return {
            "loss": jnp.sum(asked_BL * losses),
            "weight": jnp.sum(asked_BL),
            "correct": jnp.sum(asked_BL * right),
        }

    def metrics(self, sums):
        return {"accuracy": sums["correct"] / sums["weight"]}

    def summary(self, metrics):
        return f"accuracy {metrics['accuracy']:.1%}"

    def _asked(self, batch):
        return batch["attention_mask"][:, 1:].astype(jnp.float32)


def every_fourth(step):
    return step % 4 == 0


def never(step):
    return False


def stops_at(at):
    """The arguments of a job that is interrupted after a step."""

    def evaluate(step, params, reporter):
        raise KeyboardInterrupt

    return dict(evaluates=lambda step: step == at, evaluate=evaluate)


def same(state, expected):
    """Whether two trees are equal bit for bit."""
    return jax.tree.all(jax.tree.map(np.array_equal, state, expected))


class Batches:
    """Batches of eight rows of consecutive numbers with different lengths."""

    def __len__(self):
        return STEPS

    def __getitem__(self, step):
        random = np.random.default_rng(step)
        starts_B1 = random.integers(0, VOCABULARY, (8, 1))
        lengths_B1 = random.integers(3, 7, (8, 1))
        return {
            "input_ids": np.int32((starts_B1 + np.arange(6)) % VOCABULARY),
            "attention_mask": np.int32(np.arange(6) < lengths_B1),
        }


@pytest.fixture
def make_job():
    """A function of (config changes, job changes) that makes a job on one device.

    evaluates, evaluate: the steps and the function of an evaluation.
    """

    def evaluate(step, params, reporter):
        reporter.progress.evaluation[str(step)] = step  # any value of a run

    def make(config=None, evaluates=every_fourth, evaluate=evaluate, **changes):
        mesh = make_mesh(MeshConfig(), jax.devices()[:1])
        settings = dict(
            optimizer=OptimizerConfig(learning_rate=0.1, warmup_steps=2),
            log_every=3,
            checkpoint_every=2,
        )
        settings = dict(
            config=RunConfig(**settings | (config or {})),
            objective=NextToken(Bigrams()),
            batches=Batches(),
            mesh=mesh,
            identity={"name": "bigrams"},
            hooks=[evaluation(evaluates, evaluate)],
        )
        return Job(**settings | changes)

    return make


def test_a_new_objective_trains_logs_evaluates_and_saves(make_job, tmp_path):
    lines = []
    state, progress, _ = run(make_job(), RunFolder(tmp_path), lines.append)
    assert int(state.step) == STEPS
    assert [*progress.evaluation.values()] == [0, 4, 8]
    # Every token is the token before it plus one.
    first, second, last = read_metrics(tmp_path / "metrics.jsonl")
    assert [first["step"], second["step"], last["step"]] == [3, 6, 9]
    assert last["loss"] < first["loss"]
    assert last["accuracy"] > first["accuracy"]
    batches = [Batches()[step] for step in range(3)]
    share = np.mean([batch["attention_mask"].mean() for batch in batches])
    assert first["padding"] == pytest.approx(1 - share, abs=1e-6)
    assert "accuracy" in lines[-2] and lines[-1].startswith("time ")
    assert progress.tokens == sum(
        Batches()[step]["attention_mask"].sum() for step in range(STEPS)
    )
    assert progress.shapes == {"8x6": STEPS}


def test_a_report_is_made_while_the_next_step_runs(
    make_job, metric_lines, monkeypatch, tmp_path
):
    """On accelerators. A save and the end of the run wait for the report."""
    config = {"checkpoint_every": 6}
    run(make_job(config), RunFolder(tmp_path / "cpu"), print)
    events, compile_step = [], engine.compile_step

    def compiled(*arguments, **settings):
        step = compile_step(*arguments, **settings)

        def noted(*arguments, **settings):
            events.append("step")
            return step(*arguments, **settings)

        return noted

    def log(line):
        if line.startswith("step "):
            events.append(line.split()[1])

    monkeypatch.setattr(engine, "compile_step", compiled)
    monkeypatch.setattr(engine, "steps_ahead", lambda mesh: 2)
    run(make_job(config, evaluates=never), RunFolder(tmp_path / "late"), log)
    expected = [*["step"] * 4, "3/9", *["step"] * 2, "6/9", *["step"] * 3, "9/9"]
    assert events == expected
    assert metric_lines(tmp_path / "late") == metric_lines(tmp_path / "cpu")


@dataclasses.dataclass(frozen=True)
class HalfFrozen(NextToken):
    """Trains only the second layer."""

    frozen: str = "narrow/"


def test_an_objective_without_a_base_class_trains_on_several_devices(
    make_job, tmp_path
):
    """Objectives for version 0.2 are such classes."""
    alone, _, _ = run(make_job(), RunFolder(tmp_path / "alone"), print)
    mesh = make_mesh(MeshConfig(), jax.devices()[:2])
    both, _, _ = run(make_job(mesh=mesh), RunFolder(tmp_path / "both"), print)
    assert np.abs(alone.params["wide"]["kernel"]).max() > 0.1
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5),
        jax.device_get(both.params),
        jax.device_get(alone.params),
    )


def test_frozen_parameters_stay_and_have_no_moments(make_job, tmp_path):
    objective = HalfFrozen(Bigrams())
    params = jax.device_get(objective.init(jax.random.key(3)))
    job = make_job(objective=objective, initial_params=params)
    state, _, _ = run(job, RunFolder(tmp_path), print)
    after = jax.device_get(state.params)
    jax.tree.map(np.testing.assert_array_equal, after["narrow"], params["narrow"])
    assert np.abs(after["wide"]["kernel"] - params["wide"]["kernel"]).min() > 0
    shapes = [leaf.shape for leaf in jax.tree.leaves(state.opt_state)]
    assert shapes.count((4, VOCABULARY)) == 2 and (VOCABULARY, 4) not in shapes


def test_data_are_checked_after_reports_and_before_saves(
    make_job, tmp_path, monkeypatch
):
    """A wait for the check is not counted as training time."""
    calls, start_window = [], metrics.Reporter.start_window

    def check_data(*, wait):
        calls.append("save" if wait else "report")
        return wait and calls.count("save") == 1  # only the first save waits

    def counted(reporter):
        calls.append("window")
        start_window(reporter)

    monkeypatch.setattr(metrics.Reporter, "start_window", counted)
    job = make_job(check_data=check_data, evaluates=lambda step: False)
    run(job, RunFolder(tmp_path), lambda line: None)
    # The start, and step 1, which compiles; then the first save, after step 2.
    assert calls[:4] == ["window", "window", "save", "window"]
    # Reports after steps 3, 6 and 9, saves after 4, 6, 8 and 9.
    rest = ["report", "save", "report", "save", "save", "report", "save"]
    assert calls[4:] == rest


def test_a_line_has_the_means_of_its_steps_and_the_last_learning_rate(
    make_job, tmp_path
):
    lines = {}
    for every in (1, 3):
        folder = RunFolder(tmp_path / str(every))
        run(make_job({"log_every": every}), folder, lambda line: None)
        lines[every] = read_metrics(folder.local / "metrics.jsonl")
    for name in ("loss", "grad_norm"):
        means = np.reshape([line[name] for line in lines[1]], (3, 3)).mean(axis=1)
        assert [line[name] for line in lines[3]] == pytest.approx(means, rel=1e-5)
    rates = [line["learning_rate"] for line in lines[1]]
    by_hand = [0, 0.05, *(0.1 * (1 - step / STEPS) for step in range(2, STEPS))]
    assert rates == pytest.approx(by_hand, rel=1e-5)
    assert [line["learning_rate"] for line in lines[3]] == rates[2::3]


class TwoWidths(Batches):
    """Every third batch is wider. Counts the reads of each batch."""

    def __init__(self):
        self.drawn = collections.Counter()

    def __getitem__(self, step):
        self.drawn[step] += 1
        padding = ((0, 0), (0, 2 * (step % 3 == 2)))
        return {
            name: np.pad(x, padding) for name, x in super().__getitem__(step).items()
        }


def test_each_shape_is_compiled_once_and_each_batch_read_once(make_job, tmp_path):
    widths, batches = [], TwoWidths()

    class Noted(NextToken):
        def sums(self, params, batch, key):
            widths.append(batch["input_ids"].shape[1])
            return super().sums(params, batch, key)

    job = make_job({"log_every": 1}, objective=Noted(Bigrams()), batches=batches)
    _, progress, _ = run(job, RunFolder(tmp_path), lambda line: None)
    assert widths == [6, 8]
    assert progress.shapes == {"8x6": 6, "8x8": 3}
    assert batches.drawn == dict.fromkeys(range(STEPS), 1)
    # A step that compiles has no rates.
    lines = read_metrics(tmp_path / "metrics.jsonl")
    for name in ("tokens_per_second", "data_wait", "seconds_left"):
        without = [line["step"] for line in lines if line[name] is None]
        assert without == [1, 3], name


@pytest.mark.parametrize("stop", [pytest.param(1, marks=pytest.mark.long), 5, 9])
def test_an_interrupted_run_resumes_bit_for_bit(make_job, metric_lines, tmp_path, stop):
    """Parameters, moments, metrics and progress are equal after any interruption."""
    expected, expected_progress, _ = run(
        make_job(), RunFolder(tmp_path / "whole"), lambda line: None
    )

    def interrupt(training):
        if training.step == stop:
            raise KeyboardInterrupt

    folder = RunFolder(tmp_path / "parts")
    with pytest.raises(KeyboardInterrupt):
        job = make_job()
        job = dataclasses.replace(job, hooks=[(1, interrupt), *job.hooks])
        run(job, folder, lambda line: None)
    state, progress, _ = run(make_job(), folder, lambda line: None)
    assert same(state.params, expected.params)
    assert same(state.opt_state, expected.opt_state)
    assert metric_lines(tmp_path / "parts") == metric_lines(tmp_path / "whole")
    for name in ("evaluation", "tokens", "computed_tokens", "shapes"):
        assert getattr(progress, name) == getattr(expected_progress, name), name
    lines = read_metrics(tmp_path / "parts/metrics.jsonl")
    seconds = [*(line["seconds"] for line in lines), progress.seconds]
    assert seconds == sorted(seconds) and seconds[0] > 0


RECIPE = OptimizerConfig(
    learning_rate=0.1,
    warmup_steps=2,
    name="stable_adamw",
    beta2=0.9,
    schedule="wsd_sqrt",
    decay_steps=4,
    final_rate=0.02,
)


def test_a_decay_from_a_kept_checkpoint_equals_a_run_that_decays_there(
    make_job, metric_lines, tmp_path
):
    """Bit for bit, even if the decay is interrupted. All runs keep an average.

    The run that stays at the peak gives its optimizer, sums and average.
    """

    def job(decay_steps=4, **changes):
        optimizer = dataclasses.replace(RECIPE, decay_steps=decay_steps)
        return make_job(dict(optimizer=optimizer), average=0.8, **changes)

    expected, progress, _ = run(job(), RunFolder(tmp_path / "whole"), print)
    assert not same(expected.average, expected.params)
    stable = RunFolder(tmp_path / "stable")
    constant, *_ = run(job(0, keep_checkpoints_every=4), stable, print)
    assert not same(constant.params, expected.params)
    decays, lines = functools.partial(job, start_state=(stable.checkpoints, 4)), []
    folder = RunFolder(tmp_path / "decayed")
    with pytest.raises(KeyboardInterrupt):
        run(decays(**stops_at(7)), folder, lines.append)
    assert "resuming at step 4" in lines
    state, again, first = run(decays(), folder, print)
    assert first == 6  # its own checkpoint
    for name in ("params", "opt_state", "average", "sums"):
        assert same(getattr(state, name), getattr(expected, name)), name
    lines = [x for x in metric_lines(tmp_path / "whole") if x["step"] > 4]
    assert metric_lines(tmp_path / "decayed") == lines
    assert again.tokens == progress.tokens
    done = job(start_state=(stable.checkpoints, None))
    with pytest.raises(
        UserError, match=r"after step 9, but this run ends at step 9; a"
    ):
        run(done, RunFolder(tmp_path / "none"), print)
    with pytest.raises(UserError, match=r"no checkpoint of step 5; .*: 4, 8, 9$"):
        missing = job(start_state=(stable.checkpoints, 5))
        run(missing, RunFolder(tmp_path / "none"), print)


def test_the_last_line_has_the_shares_of_the_time(make_job, monkeypatch, tmp_path):
    """A step takes a second, a save two, a load four and an evaluation five.

    The killed process had done step 5 and saved step 4.
    """
    seconds = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: seconds[0])

    def slow(owner, name, cost):
        function = getattr(owner, name)

        def call(*arguments):
            seconds[0] += cost
            return function(*arguments)

        monkeypatch.setattr(owner, name, call)

    def evaluate(step, params, reporter):
        seconds[0] += 5

    slow(engine, "put_batch", 1)
    slow(CheckpointStore, "save", 2)
    slow(CheckpointStore, "restore", 4)
    job, lines = make_job({"log_every": 1}, evaluate=evaluate), []
    # Three evaluations, five saves, and nine steps. The first step compiles.
    run(job, RunFolder(tmp_path / "whole"), lines.append)
    assert lines[-1] == (
        "time 00:34: 23.5% training  2.9% compiling  44.1% evaluating  29.4% saving  "
        "0.0% lost to restarts"
    )

    def kill(training):
        if training.step == 5:
            raise RuntimeError

    folder = RunFolder(tmp_path / "killed")
    with pytest.raises(RuntimeError):
        run(dataclasses.replace(job, hooks=[*job.hooks, (1, kill)]), folder, print)
    _, progress, first = run(job, folder, lines.append)
    # The checkpoint was written before its save ended. Step 5 compiles in the new process.
    assert (first, progress.lost_seconds) == (4, 2 + 1 + 4)
    times = progress.compile_seconds, progress.evaluation_seconds, progress.save_seconds
    assert times == (2, 15, 8) and progress.seconds == 32 - 2
    assert lines[-1] == (
        "time 00:39: 17.9% training  5.1% compiling  38.5% evaluating  20.5% saving  "
        "17.9% lost to restarts"
    )
    # A second process that is killed before it saves loses step 5, its load and a save.
    folder, killed = RunFolder(tmp_path / "twice"), [*job.hooks, (1, kill)]
    for _ in range(2):
        with pytest.raises(RuntimeError):
            run(dataclasses.replace(job, hooks=killed), folder, print)
    _, progress, first = run(job, folder, lines.append)
    assert (first, progress.lost_seconds) == (4, 2 + 1 + 4 + 1 + 4)


def test_a_profiler_connects_to_the_port_of_a_run(make_job, tmp_path):
    with socket.socket() as probe:
        probe.bind(("", 0))
        number = probe.getsockname()[1]
    connected = []

    def connect(step, params, reporter):
        socket.create_connection(("localhost", number)).close()
        connected.append(step)

    job = make_job({"profile_port": number}, evaluate=connect)
    run(job, RunFolder(tmp_path / "a"), print)
    assert connected == [0, 4, 8]
    with socket.socket() as other:  # the port is free after the run
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("", number))
        other.listen()
        with pytest.raises(UserError, match=f"profile_port={number}: Address already"):
            run(job, RunFolder(tmp_path / "b"), print)
    assert not (tmp_path / "b/config.json").exists()


def test_a_state_that_is_not_finite_is_neither_saved_nor_evaluated(make_job, tmp_path):
    job = make_job(
        config=dict(optimizer=OptimizerConfig(learning_rate=1e38), log_every=100),
        evaluate=lambda step, *_: step and pytest.fail("evaluated"),
    )
    with pytest.raises(DivergenceError, match=r"became (nan|inf) in the steps before"):
        run(job, RunFolder(tmp_path), lambda line: None)
    assert not [p for p in (tmp_path / "checkpoints").iterdir() if p.name.isdigit()]


class OneEmpty(Batches):
    """The batch of step 4 is empty, so its loss is 0 / 0."""

    def __getitem__(self, step):
        batch = super().__getitem__(step)
        return batch | {"attention_mask": batch["attention_mask"] * (step != 3)}


def skipping(**settings):
    rates = dict(learning_rate=0.1, warmup_steps=2)
    return dict(optimizer=OptimizerConfig(**rates, skip_spikes=True, **settings))


def test_a_batch_without_a_finite_loss_is_skipped_on_request(
    make_job, metric_lines, tmp_path
):
    """One warning is logged, even after an interruption."""
    with pytest.raises(DivergenceError, match=r"(loss|gradient norm) became nan"):
        run(make_job(batches=OneEmpty()), RunFolder(tmp_path / "a"), print)
    # The last good checkpoint is kept.
    assert [path.name for path in (tmp_path / "a/checkpoints").iterdir()] == ["2"]
    job = make_job(skipping(), batches=OneEmpty())
    lines = []
    expected, *_ = run(job, RunFolder(tmp_path / "whole"), lines.append)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(expected.params))
    resumed, *_ = run(job, RunFolder(tmp_path / "a"), print)
    assert same(resumed.params, expected.params)
    (line,) = [line for line in lines if "warning" in line]
    assert line.startswith("warning: skipped 1 of 3 batches before step 6, whose loss")
    expected_metrics = metric_lines(tmp_path / "whole")
    assert [line["skipped"] for line in expected_metrics] == [0, 1, 0]

    folder = RunFolder(tmp_path / "parts")
    with pytest.raises(KeyboardInterrupt):
        run(make_job(skipping(), batches=OneEmpty(), **stops_at(5)), folder, print)
    state, *_ = run(job, folder, print)
    assert metric_lines(tmp_path / "parts") == expected_metrics
    assert same(state.params, expected.params)
    # If all numbers are finite, nothing changes.
    plain, *_ = run(make_job(), RunFolder(tmp_path / "plain"), print)
    guarded, *_ = run(make_job(skipping()), RunFolder(tmp_path / "guarded"), print)
    assert same(plain.params, guarded.params)


def test_a_spike_or_too_many_skipped_batches_stop_the_run(
    make_job, tmp_path, monkeypatch
):
    job = make_job(dict(optimizer=OptimizerConfig(0.1, spike_norm=1e-6)))
    message = "skipped 2 of 2 batches before step 2.*skip_spikes=True"
    with pytest.raises(DivergenceError, match=message):
        run(job, RunFolder(tmp_path / "a"), print)
    # A run shorter than SKIPPED steps cannot skip all of them.
    job = make_job(skipping(spike_norm=1e-6) | dict(log_every=2))
    with pytest.raises(DivergenceError, match=r"skipped \d of \d batches"):
        run(job, RunFolder(tmp_path / "short"), print)
    # Six batches in succession are too many, in one report or in several.
    monkeypatch.setattr(metrics, "SKIPPED", 6)
    for name, every in (("b", 3), ("c", 1), ("d", 100)):
        settings = skipping(spike_norm=1e-6) | dict(log_every=every)
        with pytest.raises(DivergenceError, match=r"skipped \d of \d batches"):
            run(make_job(settings), RunFolder(tmp_path / name), print)


def test_a_state_after_a_spike_is_not_saved(make_job, tmp_path):
    """The run stops before the save, so it can resume without the skipped batch."""
    settings = dict(log_every=100, checkpoint_every=1)
    spikes = OptimizerConfig(learning_rate=0.1, warmup_steps=2, spike_norm=1e6)
    job = make_job(settings | dict(optimizer=spikes), evaluates=never, batches=Empty(4))
    folder = RunFolder(tmp_path / "run")
    message = "skipped 1 of 4 batches before step 4,"
    with pytest.raises(DivergenceError, match=message):
        run(job, folder, print)
    assert newest_step(folder.checkpoints) == 3
    job = make_job(settings, evaluates=never, change_settings=True)
    state, *_ = run(job, folder, print)
    expected, *_ = run(job, RunFolder(tmp_path / "whole"), print)
    assert same(state.params, expected.params)


class Fewer(Batches):
    def __len__(self):
        return 5


def test_a_finished_run_with_more_steps_reports_each_step_once(make_job, tmp_path):
    """The last report of the first run is not at a multiple of log_every."""
    folder = RunFolder(tmp_path / "run")
    run(make_job(evaluates=never, batches=Fewer()), folder, print)
    run(make_job(evaluates=never, change_settings=True), folder, print)
    lines = read_metrics(tmp_path / "run/metrics.jsonl")
    computed = {line["step"]: line["computed_tokens"] for line in lines}
    assert computed == {step: 48 * step for step in (3, 5, 6, 9)}


def test_a_warmup_longer_than_the_run_is_logged(make_job, tmp_path):
    optimizer = OptimizerConfig(learning_rate=0.1, warmup_steps=90)
    lines = []
    run(make_job(dict(optimizer=optimizer)), RunFolder(tmp_path), lines.append)
    assert lines[0] == (
        "warning: the warmup of 90 steps is longer than the run of 9 steps, so the "
        "learning rate only rises to 0.01; set optimizer.warmup_steps"
    )


def test_a_report_whose_only_batch_is_skipped_does_not_end_a_run(make_job, tmp_path):
    job = make_job(skipping() | dict(log_every=1), batches=Empty(2, 3, 5))
    lines = []
    run(job, RunFolder(tmp_path / "run"), lines.append)
    assert (
        sum(line.startswith("warning: skipped 1 of 1 batches") for line in lines) == 3
    )
    written = read_metrics(tmp_path / "run/metrics.jsonl")
    steps = {line["step"] for line in written if line["split"] == "train"}
    assert {1, 4, 6} <= steps and not {2, 3, 5} & steps


class Empty(Batches):
    """Batches of some steps are empty, so they are skipped."""

    def __init__(self, *steps):
        self.steps = steps

    def __getitem__(self, step):
        batch = super().__getitem__(step)
        mask = batch["attention_mask"] * (step + 1 not in self.steps)
        return batch | {"attention_mask": mask}


@pytest.fixture
def saved_steps(monkeypatch):
    """The steps that runs save."""
    steps, save = [], CheckpointStore.save

    def noted(self, step, *rest):
        steps.append(step)
        save(self, step, *rest)

    monkeypatch.setattr(CheckpointStore, "save", noted)
    return steps


def test_a_run_that_skips_to_its_end_keeps_the_checkpoints_before(
    make_job, saved_steps, tmp_path, monkeypatch
):
    """After an update that destroys the parameters every batch is skipped."""
    monkeypatch.setattr(hooks, "SKIPPED", 4)
    settings = skipping() | dict(log_every=100)
    batches = Empty(6, 7, 8, 9)
    job = make_job(settings, batches=batches, evaluates=never)
    message = (
        "the last 4 batches were skipped; the checkpoints of steps 2 and 4 are kept: lower "
        "optimizer.learning_rate, and resume with change_settings=True; if the run "
        "diverges again at once, delete checkpoint 4"
    )
    with pytest.raises(DivergenceError, match=f"^{re.escape(message)}$"):
        run(job, RunFolder(tmp_path / "run"), print)
    assert saved_steps == [2, 4]
    # With one batch more that is used, the run has not diverged.
    job = dataclasses.replace(job, batches=Empty(7, 8, 9))
    state, *_ = run(job, RunFolder(tmp_path / "run"), print)
    assert int(state.step) == STEPS and saved_steps == [2, 4, 6, 9]


def test_a_step_whose_batch_is_skipped_is_not_saved(make_job, saved_steps, tmp_path):
    """The next step is saved. The last step is saved if only its batch is skipped."""
    job = make_job(skipping(), batches=Empty(4, 5, 9), evaluates=never)
    run(job, RunFolder(tmp_path / "a"), print)
    assert saved_steps == [2, 6, 8, 9]
    # A finite evaluation shows that the parameters are not destroyed.
    saved_steps.clear()
    finite = evaluation(lambda step: step == 4, lambda *_: None)
    evaluated = dataclasses.replace(job, hooks=[finite])
    run(evaluated, RunFolder(tmp_path / "b"), print)
    assert saved_steps == [2, 4, 6, 8, 9]

    def log(line):
        if line.startswith("step 6/"):
            os.kill(os.getpid(), signal.SIGTERM)

    saved_steps.clear()
    stopped = dataclasses.replace(job, batches=Empty(6))
    message = "after step 6 of 9; not saved, because its batch was skipped: the same"
    with pytest.raises(Preempted, match=message):
        run(stopped, RunFolder(tmp_path / "c"), log)
    assert saved_steps == [2, 4]
    state, *_ = run(stopped, RunFolder(tmp_path / "c"), print)
    assert int(state.step) == STEPS


def test_an_evaluation_that_is_not_finite_ends_the_run(make_job, saved_steps, tmp_path):
    def evaluate(step, *rest):
        metrics.check_finite(step, {"loss of an evaluation": np.nan if step else 2.5})

    message = (
        r"the loss of an evaluation became nan in the steps before step 4; the checkpoint "
        r"of step 2 is kept: lower optimizer\.learning_rate or set optimizer\.skip_spikes"
    )
    with pytest.raises(DivergenceError, match=message):
        run(make_job(evaluate=evaluate), RunFolder(tmp_path), print)
    assert saved_steps == [2]


@pytest.mark.parametrize(
    ("settings", "dtype", "checkpoints", "advice"),
    [
        (
            {},
            "bfloat16",
            [],
            "no checkpoint was saved: lower optimizer.learning_rate or set compute.dtype="
            "float32 or set optimizer.skip_spikes=True, and start again",
        ),
        (
            {"skip_spikes": True, "spike_norm": 3.0},
            "float32",
            [2000],
            "the checkpoint of step 2,000 is kept: lower optimizer.learning_rate or raise "
            "optimizer.spike_norm, and resume with change_settings=True",
        ),
        (
            {"skip_spikes": True},
            "float32",
            [9, 6, 3],
            "the checkpoints of steps 3, 6 and 9 are kept: lower optimizer.learning_rate, "
            "and resume with change_settings=True; if the run diverges "
            "again at once, delete "
            "checkpoint 9",
        ),
    ],
)
def test_the_advice_is_about_settings_and_checkpoints_that_there_are(
    settings, dtype, checkpoints, advice
):
    config = RunConfig(
        optimizer=OptimizerConfig(learning_rate=0.1, **settings),
        compute=ComputeConfig(dtype=dtype),
    )
    assert divergence_advice(config, checkpoints) == advice


@pytest.fixture
def pythons_handler():
    """Ctrl-C raises KeyboardInterrupt, as in a terminal and in a notebook."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGTERM, Preempted), (signal.SIGINT, KeyboardInterrupt)],
)
@pytest.mark.parametrize("stop", [3, STEPS])
def test_a_signal_saves_the_step_and_the_run_resumes_bit_for_bit(
    number, error, stop, make_job, tmp_path, pythons_handler
):
    """Also after the last step, as other runs of a sweep may follow."""
    expected, *_ = run(make_job(), RunFolder(tmp_path / "plain"), print)

    def log(line):
        if line.startswith(f"step {stop}/"):
            signal.raise_signal(number)

    folder = RunFolder(tmp_path / "run")
    with pytest.raises(error, match=f"after step {stop} of {STEPS}; saved"):
        run(make_job(), folder, log)
    assert newest_step(folder.checkpoints) == stop
    state, *_ = run(make_job(), folder, print)
    assert int(state.step) == STEPS
    assert same(state.params, expected.params)


def test_a_signal_during_the_last_save_ends_the_run_after_the_save(
    make_job, monkeypatch, tmp_path
):
    wait_for_save = CheckpointStore.__exit__

    def interrupted(store, *error):
        signal.raise_signal(signal.SIGTERM)
        wait_for_save(store, *error)

    monkeypatch.setattr(CheckpointStore, "__exit__", interrupted)
    job = make_job()
    with pytest.raises(Preempted, match="after the last step, which is saved"):
        run(job, RunFolder(tmp_path), print)
    assert newest_step(tmp_path / "checkpoints") == STEPS
    monkeypatch.undo()
    assert run(job, RunFolder(tmp_path), print)[2] == STEPS


def test_a_second_interrupt_ends_without_a_save(make_job, tmp_path, pythons_handler):
    def log(line):
        if line.startswith("step 3/"):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    folder = RunFolder(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(make_job(), folder, log)
    assert newest_step(folder.checkpoints) == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("every", [0, 4])
def test_the_default_saves_a_tenth_of_the_run_apart(
    make_job, saved_steps, tmp_path, every
):
    batches = [Batches()[step] for step in range(35)]
    job = make_job({"checkpoint_every": every}, batches=batches, evaluates=never)
    run(job, RunFolder(tmp_path), print)
    assert saved_steps == [*range(every or 3, 35, every or 3), 35]


def test_clocks_that_jump_change_nothing(make_job, metric_lines, tmp_path, monkeypatch):
    expected, *_ = run(make_job(), RunFolder(tmp_path / "plain"), print)
    random, now = np.random.default_rng(0), time.time()

    def jump():
        return now + random.uniform(-100, 100)

    monkeypatch.setattr(time, "time", jump)
    monkeypatch.setattr(time, "time_ns", lambda: int(1e9 * jump()))
    folder = RunFolder(tmp_path / "jumps")
    with folder.held():
        state, *_ = run(make_job(), folder, print)
    assert metric_lines(tmp_path / "jumps") == metric_lines(tmp_path / "plain")
    assert same(state.params, expected.params)
    monkeypatch.undo()
    again, *_ = run(make_job(), folder, print)
    assert int(again.step) == STEPS


def test_an_unfinished_run_accepts_changed_settings_only_on_request(make_job, tmp_path):
    """config.json has the settings of the newest start, and every change."""

    def job(rate, **changes):
        return make_job(identity={"mesh": rate}, **changes)

    def config():
        return json.loads((tmp_path / "config.json").read_text())

    folder, lines = RunFolder(tmp_path), []
    with pytest.raises(KeyboardInterrupt):
        run(job(0.1, **stops_at(5)), folder, print)
    message = (
        r"contains a run with other settings \(mesh: 0.1 -> 0.2\); .*change_settings"
    )
    with pytest.raises(UserError, match=message):
        run(job(0.2), folder, print)
    assert config() == {"mesh": 0.1}
    # The change is recorded although no step with the new setting is saved.
    first = {"step": 4, "settings": {"mesh": {"from": 0.1, "to": 0.2}}}
    with pytest.raises(KeyboardInterrupt):
        run(job(0.2, change_settings=True, **stops_at(5)), folder, print)
    assert config() == {"mesh": 0.2, "changes": [first]}
    message = (
        r"contains a run with other settings \(mesh: 0.2 -> 0.1\); .*change_settings"
    )
    with pytest.raises(UserError, match=message):
        run(job(0.1), folder, print)
    with pytest.raises(KeyboardInterrupt):
        run(job(0.1, change_settings=True, **stops_at(5)), folder, print)
    assert config() == {"mesh": 0.1}
    with pytest.raises(KeyboardInterrupt):
        run(job(0.2, change_settings=True, **stops_at(5)), folder, print)
    # The same command resumes without change_settings.
    with pytest.raises(KeyboardInterrupt):
        run(job(0.2, **stops_at(7)), folder, lines.append)
    assert "settings change after step 4: mesh: 0.1 -> 0.2; " in "\n".join(lines)
    assert config() == {"mesh": 0.2, "changes": [first]}
    run(job(0.3, change_settings=True), folder, print)
    second = {"step": 6, "settings": {"mesh": {"from": 0.2, "to": 0.3}}}
    finished = {"mesh": 0.3, "changes": [first, second]}
    assert config() == finished
    run(job(0.3), folder, print)
    # The run is finished, or has done more steps than the new number.
    run(job(0.1, change_settings=True), folder, print)
    assert config() == finished
    with pytest.raises(
        UserError, match="has already done 9 steps, but its config has 8; add"
    ):
        shorter = [Batches()[step] for step in range(8)]
        run(job(0.1, change_settings=True, batches=shorter), folder, print)


@pytest.mark.parametrize("name", ["text.vocabulary", "rows"])
def test_a_run_keeps_its_vocabulary_and_its_rows(make_job, tmp_path, name):
    """Other words or labels would change the meaning of the ids."""

    def job(value, **changes):
        group, _, leaf = name.rpartition(".")
        identity = {group: {leaf: value}} if group else {leaf: value}
        return make_job(identity=identity, **changes)

    folder = RunFolder(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(job(1, **stops_at(5)), folder, print)
    with pytest.raises(
        UserError, match=rf"^{name}: 1 -> 2: a run keeps its vocabulary and rows"
    ):
        run(job(2, change_settings=True), folder, print)
    _, _, first = run(job(1), folder, print)
    assert first == 4


def test_a_run_draws_its_curves_or_logs_the_reason(tmp_path, monkeypatch):
    lines = []
    draw_run(RunFolder(tmp_path), lines.append)
    assert lines[0].startswith("no picture: ") and "has no metrics.jsonl" in lines[0]
    line = json.dumps({"step": 1, "split": "train", "loss": 2.0})
    (tmp_path / "metrics.jsonl").write_text(f"{line}\n")
    counts = dict(split="dev", of="rows", labels=["no", "yes"], counts=[[2, 1], [0, 4]])
    (tmp_path / "predictions").mkdir()
    (tmp_path / "predictions" / "dev.confusion.json").write_text(json.dumps(counts))
    draw_run(RunFolder(tmp_path), lines.append)
    assert lines[1:] == [f"picture: {tmp_path / 'curves.png'}"]
    for name in ("curves.png", "predictions/dev.confusion.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "bert_jax.figures", raising=False)
    monkeypatch.delitem(vars(bert_jax), "figures", raising=False)
    draw_run(RunFolder(tmp_path), lines.append)
    assert lines[2] == "no picture: pictures need matplotlib; pip install matplotlib"


@pytest.mark.parametrize(("steps", "count"), [("3:6", 0), ("7:50", 1), ("20:30", 0)])
def test_a_profile_contains_the_steps_that_run(make_job, tmp_path, steps, count):
    """The run of 9 steps resumes after step 4, which is within the steps 3 to 6."""
    folder = RunFolder(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(make_job(**stops_at(5)), folder, print)
    run(make_job(dict(profile_steps=steps), change_settings=True), folder, print)
    profiles = tmp_path / "tensorboard" / "plugins" / "profile"  # TensorBoard's folder
    traces = list(profiles.rglob("*.xplane.pb"))
    assert all(b"train_step" in path.read_bytes() for path in traces)
    assert len(traces) == count


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_tracker_resumes_its_run(make_job, tmp_path, monkeypatch, name):
    """wandb resumes a run with the same id, and trackio a run with the same name."""
    library, key = types.ModuleType(name), {"wandb": "id", "trackio": "name"}[name]
    opened = []
    library.init = lambda **settings: opened.append(settings)
    library.log = library.finish = lambda *args, **settings: None
    monkeypatch.setitem(sys.modules, name, library)
    config = dict(tracker=name)
    for workdir in ("a/base", "b/base"):
        folder = RunFolder(tmp_path / workdir)
        with pytest.raises(KeyboardInterrupt):
            run(make_job(config, identity={"rate": 1}, **stops_at(5)), folder, print)
        changed = dict(identity={"rate": 2}, change_settings=True)
        run(make_job(config, **changed), folder, print)
    names = [settings[key] for settings in opened]
    assert names[0] == names[1] != names[2] == names[3]
    assert all(settings["name"].startswith("base") for settings in opened)
    # The tracker shows what config.json has.
    change = {"step": 4, "settings": {"rate": {"from": 1, "to": 2}}}
    assert opened[0]["config"] == {"rate": 1}
    assert opened[1]["config"] == {"rate": 2, "changes": [change]}


@pytest.mark.parametrize("steps", ["4", "a:b", "1:2:3", "5:2", "0:3"])
def test_steps_to_profile_are_a_first_and_a_last_step(make_job, steps):
    with pytest.raises(UserError, match=r"profile_steps='.*', expected the first and"):
        make_job(dict(profile_steps=steps))


def test_skipped_batches_of_an_earlier_setting_do_not_stop_a_run(make_job, tmp_path):
    """The checkpoint of step 5 counts the batch that was skipped at step 4."""
    folder = RunFolder(tmp_path)
    settings = skipping() | dict(log_every=100, checkpoint_every=1)
    with pytest.raises(KeyboardInterrupt):
        run(make_job(settings, batches=Empty(4), **stops_at(6)), folder, print)
    assert newest_step(folder.checkpoints) == 5
    plain = dict(log_every=100, checkpoint_every=1)
    state, *_ = run(make_job(plain, change_settings=True), folder, print)
    assert int(state.step) == STEPS
