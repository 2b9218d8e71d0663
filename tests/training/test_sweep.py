"""Sweeps: run whole, interrupted, and again."""

import dataclasses
import json
import shutil
import statistics
import types

import pytest

from bert_jax.errors import DivergenceError, UserError
from bert_jax.files import locked, write_json
from bert_jax.interop.load import load
from bert_jax.settings import to_dict
from bert_jax.training import run as engine
from bert_jax.training import sweep
from bert_jax.training.config import SweepConfig, finetune_config
from bert_jax.training.sweep import run_one, run_sweep

GRID = dict(batch_size=(8,), learning_rate=(1e-5, 1e-2), epochs=(2,), seeds=(0, 1))
NAMES = [
    f"batch8-rate{rate}-epochs2-seed{seed}"
    for seed in (0, 1)
    for rate in ("1e-05", "0.01")
]


@pytest.fixture(autouse=True)
def _on_one_device(one_device):
    with one_device():
        yield


@pytest.fixture(scope="module")
def config(settings):
    model = dict(hidden_dropout=0.1, attention_dropout=0.1)
    return finetune_config(settings("regression", model=model, sweep=GRID))


def ran(log):
    return [line.removeprefix("== ") for line in log if line.startswith("== ")]


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory, one_device):
    """A sweep without interruption: workdir, result, log, and the compiled steps."""
    workdir, log, steps = tmp_path_factory.mktemp("sweep") / "runs", [], []
    real = engine.compile_step

    def counted(*arguments, **settings):
        steps.append(real(*arguments, **settings))
        return steps[-1]

    with one_device(), pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(engine, "compile_step", counted)
        content = run_sweep(config, workdir, log.append)
    return workdir, content, log, steps


def score_of(workdir, name):
    results = json.loads((workdir / "sweep" / name / "results.json").read_text())
    return results["scores"]["dev"]["pearson"]


def check_end(workdir, expected):
    """Both workdirs have the same best model and table, and no other weights."""
    for name in ("best/model.safetensors", "sweep.json"):
        assert (workdir / name).read_bytes() == (expected / name).read_bytes()
    assert [p.parent for p in workdir.rglob("model.safetensors")] == [workdir / "best"]
    answers = "predictions/dev_predictions.tsv"
    best = json.loads((workdir / "sweep.json").read_text())["best_run"]
    source = workdir / "sweep" / best / answers
    assert (workdir / answers).read_bytes() == source.read_bytes()


def test_every_point_runs_with_every_seed_and_the_best_model_stays(whole):
    workdir, content, log, steps = whole
    assert ran(log) == NAMES
    assert sum(line.startswith("train: ") for line in log) == 1  # read once for all
    assert len(steps) == 4 and len({id(step) for step in steps}) == 1
    scores = {name: score_of(workdir, name) for name in NAMES}
    assert len(set(scores.values())) == len(NAMES)
    for row, names in zip(content["points"], (NAMES[::2], NAMES[1::2]), strict=True):
        own = [scores[name] for name in names]
        assert row["scores"] == own
        assert (row["mean"], row["deviation"]) == (
            statistics.mean(own),
            statistics.stdev(own),
        )
    best = max(scores, key=scores.get)
    assert content["best_run"] == best
    assert load(workdir).extra["scores"]["pearson"] == scores[best]
    assert {p.name for p in (workdir / "sweep" / best).iterdir()} == {
        *("config.json", "metrics.jsonl", "predictions", "results.json", "tensorboard")
    }
    check_end(workdir, workdir)
    row = max(content["points"], key=lambda row: row["mean"])
    *_, line, last = log
    assert f"rate {row['learning_rate']:<7g} epochs 2" in line
    assert f"pearson {row['mean']:.2f} +- {row['deviation']:.2f}" in line
    assert last.startswith(f"best: {best}, pearson ")


def test_a_run_of_a_sweep_is_the_run_of_its_config_alone(
    whole, config, metric_lines, tmp_path
):
    optimizer = dataclasses.replace(config.optimizer, learning_rate=1e-2)
    alone = dataclasses.replace(config, epochs=2, seed=1, optimizer=optimizer)
    run_one(alone, tmp_path, [].append)
    assert metric_lines(tmp_path) == metric_lines(whole[0] / "sweep" / NAMES[-1])


def test_an_interrupted_sweep_resumes_bit_for_bit(whole, config, tmp_path):
    """In the third run, when it has a model already."""
    log = []

    def interrupt(line):
        log.append(line)
        if ran(log) == NAMES[:3] and line.startswith("epoch 2"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(config, tmp_path, interrupt)
    assert (tmp_path / "sweep" / NAMES[2] / "best").exists()
    assert load(tmp_path).extra["scores"]["pearson"] == max(
        score_of(tmp_path, name) for name in NAMES[:2]
    )
    log.clear()
    assert run_sweep(config, tmp_path, log.append) == whole[1]
    assert ran(log) == NAMES[2:]
    check_end(tmp_path, whole[0])


def score(config):
    """The score of a made-up run. The second run is the best."""
    return 9 - abs(config.seed - 100 * config.optimizer.learning_rate)


@pytest.fixture
def run(config, monkeypatch):
    """A function that runs a sweep of made-up runs: its result, and the runs it ran."""
    task = types.SimpleNamespace(main_metric="pearson")
    prepared = types.SimpleNamespace(task=task)
    monkeypatch.setattr(sweep, "prepare", lambda *_: prepared)

    def run(workdir, diverges=lambda config: False, **changes):
        def finetune(config, prepared, folder, log, change_settings):
            place = folder.local
            for name in ("best/model.safetensors", "predictions/dev_predictions.tsv"):
                write_json(place / name, place.name)
            write_json(place / "config.json", to_dict(config))
            if diverges(config):
                raise DivergenceError("the loss became nan")
            scores = {"dev": {"pearson": score(config)}}
            results = {"main_metric": "pearson", "scores": scores}
            write_json(place / "results.json", results)
            return results

        monkeypatch.setattr(sweep, "finetune", finetune)
        log = []
        own = dataclasses.replace(config, **changes)
        return run_sweep(own, workdir, log.append), ran(log), log

    return run


@pytest.fixture
def made(run, tmp_path):
    """The workdir of a finished sweep of made-up runs, and a copy to damage."""
    assert run(tmp_path / "made")[0]["best_run"] == NAMES[3]
    shutil.copytree(tmp_path / "made", tmp_path / "copy")
    return tmp_path / "made", tmp_path / "copy"


def test_a_finished_sweep_runs_nothing_again(made, run, tmp_path):
    whole, copy = made
    target = tmp_path / "precious.tsv"
    target.write_text("content")
    answers = copy / "predictions/dev_predictions.tsv"
    answers.unlink()
    answers.symlink_to(target)
    assert run(copy)[1] == []
    check_end(copy, whole)
    assert target.read_text() == "content"  # not written through the link


@pytest.mark.parametrize("name", NAMES)
def test_a_run_without_results_runs_again_alone(name, made, run):
    whole, copy = made
    (copy / "sweep" / name / "results.json").unlink()
    assert run(copy)[1] == [name]
    check_end(copy, whole)


@pytest.mark.parametrize("old_model", ["", "best", ".best.old"])
def test_a_move_of_the_best_model_that_was_cut_short_is_repeated(old_model, made, run):
    whole, copy = made
    (copy / "best").rename(copy / "sweep" / NAMES[3] / "best")
    if old_model:
        write_json(copy / old_model / "model.safetensors", "another model")
    run(copy)
    check_end(copy, whole)


def test_points_may_be_added_in_any_order(made, run):
    _, copy = made
    grid = SweepConfig(**GRID | {"learning_rate": (1e-6, 1e-5, 1e-2)})
    content, names, _ = run(copy, sweep=grid)
    assert names == [f"batch8-rate1e-06-epochs2-seed{seed}" for seed in (0, 1)]
    assert len(content["points"]) == 3
    assert content["best_run"] == NAMES[3]
    # The best model of all runs stays, also of runs that are not in the grid.
    best = (copy / "best/model.safetensors").read_text()
    content, _, _ = run(copy, sweep=SweepConfig(**GRID | {"learning_rate": (1e-6,)}))
    assert content["best_run"] == NAMES[3]
    assert (copy / "best/model.safetensors").read_text() == best


def test_a_best_model_that_was_deleted_is_reported(made, run):
    whole, copy = made
    shutil.rmtree(copy / "best")
    with pytest.raises(UserError, match="the model of the best run is no longer in"):
        run(copy)
    (copy / "sweep" / NAMES[3] / "results.json").unlink()
    assert run(copy)[1] == [NAMES[3]]
    check_end(copy, whole)


def test_a_model_out_of_the_workdir_is_neither_moved_nor_deleted(made, run):
    """A workdir from elsewhere may name any folder as its best run."""
    whole, copy = made
    name = {"run": f"../../{whole.name}/sweep/{NAMES[0]}"}
    model = whole / "sweep" / NAMES[0] / "best"
    model.mkdir()
    write_json(copy / "sweep" / sweep._KEPT, name)
    with pytest.raises(UserError, match="the model of the best run is no longer in"):
        run(copy)
    assert model.exists()


def test_a_run_that_diverges_is_counted_and_not_run_again(run, tmp_path):
    def diverges(config):
        return config.seed == 1 or config.optimizer.learning_rate == 1e-2

    content, names, log = run(tmp_path, diverges)
    assert names == NAMES
    assert log.count("diverged: the loss became nan") == 3
    assert content["best_run"] == NAMES[0]
    (model,) = tmp_path.rglob("model.safetensors")
    assert NAMES[0] in model.read_text()
    assert [row["diverged"] for row in content["points"]] == [1, 2]
    assert "batch 8   rate 0.01    epochs 2  2 diverged" in log
    assert run(tmp_path, diverges)[:2] == (content, [])
    shutil.rmtree(tmp_path)
    with pytest.raises(UserError, match=r"every run in .*sweep diverged; lower"):
        run(tmp_path, lambda config: True)


def test_other_settings_are_refused_before_anything_runs(made, run, config, tmp_path):
    _, copy = made
    other_points = SweepConfig(**GRID | {"batch_size": (16,)})
    for grid in (config.sweep, other_points):
        with pytest.raises(UserError, match="train_rows: 0 -> 8"):
            run(copy, train_rows=8, sweep=grid)
    with locked(copy), pytest.raises(UserError, match="is in use by process"):
        run(copy)
    with pytest.raises(UserError, match="holds a sweep; use another workdir"):
        run_one(config, copy)
    write_json(tmp_path / "single/config.json", {})
    with pytest.raises(UserError, match="holds a single run"):
        run(tmp_path / "single")
    odd = SweepConfig(batch_size=(8, 9))
    with pytest.raises(UserError, match="batch_size=9 is not a multiple of"):
        run(tmp_path / "odd", sweep=odd, accumulation=2)
    assert not (tmp_path / "odd").exists()
