"""A grid of 2 x 2 points and 2 seeds, run whole, in parts, and again."""

import dataclasses
import json
import shutil
import statistics
import types

import pytest

from bert_jax.data import batching
from bert_jax.errors import DivergenceError, UserError
from bert_jax.interop.load import load
from bert_jax.locks import locked
from bert_jax.settings import to_dict
from bert_jax.training import run as engine
from bert_jax.training import sweep
from bert_jax.training.config import SweepConfig, finetune_config
from bert_jax.training.sweep import run_one, run_sweep

GRID = dict(batch_size=(8,), learning_rate=(1e-5, 1e-2), epochs=(8, 1), seeds=(0, 1))
NAMES = [
    f"batch8-rate{rate}-epochs{epochs}-seed{seed}"
    for seed in (0, 1)
    for rate in ("1e-05", "0.01")
    for epochs in (8, 1)
]


@pytest.fixture(scope="module", autouse=True)
def _several_shapes():
    """Also of so few rows, where a second one is not worth its compilation."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(batching, "WORTH", 0)
        yield


@pytest.fixture(autouse=True)
def _on_one_device(one_device):
    with one_device():
        yield


@pytest.fixture(scope="module")
def config(settings):
    return finetune_config(
        settings(
            "regression",
            model=dict(hidden_dropout=0.1, attention_dropout=0.1),
            buckets=2,
            sweep=GRID,
        )
    )


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory, one_device):
    """The sweep without interruption: workdir, what it returned, what it logged, and the
    compiled steps of its runs."""
    workdir, said = tmp_path_factory.mktemp("sweep") / "runs", []
    steps = []
    with one_device(), pytest.MonkeyPatch.context() as monkeypatch:
        real = engine.compile_step

        def counted(*arguments, **settings):
            steps.append(real(*arguments, **settings))
            return steps[-1]

        monkeypatch.setattr(engine, "compile_step", counted)
        content = run_sweep(config, workdir, said.append)
    return workdir, content, said, steps


@pytest.fixture
def copy(whole, tmp_path):
    """A copy of the finished sweep, to be harmed."""
    return shutil.copytree(whole[0], tmp_path / "runs")


def results_of(workdir, name):
    return json.loads((workdir / "sweep" / name / "results.json").read_text())


def score_of(workdir, name):
    return results_of(workdir, name)["scores"]["dev"]["pearson"]


def weights(workdir):
    return (workdir / "best" / "model.safetensors").read_bytes()


def check_end(workdir, whole):
    """The same best model and table, and no weights but these."""
    assert weights(workdir) == weights(whole[0])
    table, expected = (
        json.loads((w / "sweep.json").read_text()) for w in (workdir, whole[0])
    )
    assert table == expected
    assert [p.parent for p in workdir.rglob("model.safetensors")] == [workdir / "best"]
    answers = "predictions/dev_predictions.tsv"
    best = workdir / "sweep" / table["best_run"]
    assert (workdir / answers).read_bytes() == (best / answers).read_bytes()
    assert not [p for p in workdir.rglob("*") if p.name.startswith(".")]


def ran(said):
    return [line.removeprefix("== ") for line in said if line.startswith("== ")]


def test_every_point_runs_with_every_seed(whole):
    workdir, content, said, _ = whole
    assert ran(said) == NAMES
    assert sum(line.startswith("train: ") for line in said) == 1  # read once for all
    for row in content["points"]:
        names = [
            f"batch8-rate{row['learning_rate']:g}-epochs{row['epochs']}-seed{seed}"
            for seed in (0, 1)
        ]
        scores = [score_of(workdir, name) for name in names]
        assert row["scores"] == scores
        assert row["mean"] == statistics.mean(scores)
        assert row["deviation"] == statistics.stdev(scores)
        assert row["best"] == max(scores)
    settings = [(row["learning_rate"], row["epochs"]) for row in content["points"]]
    assert settings == [(1e-5, 8), (1e-5, 1), (1e-2, 8), (1e-2, 1)]


def test_the_table_is_printed_with_the_best_point_last(whole):
    _, content, said, _ = whole
    lines = [line for line in said if line.startswith("batch ")]
    assert len(lines) == 4
    best = max(content["points"], key=lambda row: row["mean"])
    assert f"rate {best['learning_rate']:<7g} epochs {best['epochs']}" in lines[-1]
    assert f"pearson {best['mean']:.2f} +- {best['deviation']:.2f}" in lines[-1]
    assert said[-1].startswith(f"best: {content['best_run']}, pearson ")


def test_the_best_model_stays_and_the_others_go(whole):
    workdir, content, _, _ = whole
    scores = {name: score_of(workdir, name) for name in NAMES}
    assert len(set(scores.values())) == len(NAMES)
    best = max(scores, key=scores.get)
    assert best not in (NAMES[0], NAMES[-1])  # or the tests below show less
    assert content["best_run"] == best
    assert load(workdir).extra["scores"]["pearson"] == scores[best]
    assert [p.parent for p in workdir.rglob("model.safetensors")] == [workdir / "best"]
    for name in NAMES:
        assert {p.name for p in (workdir / "sweep" / name).iterdir()} == {
            "config.json",
            "metrics.jsonl",
            "predictions",
            "results.json",
            "tensorboard",
        }


def test_rates_and_seeds_share_what_is_compiled(whole):
    """One compiled step, of few shapes, in eight runs."""
    workdir, _, _, steps = whole
    assert len(steps) == 8
    assert len({id(step) for step in steps}) == 1
    shapes = [results_of(workdir, name)["shapes"] for name in NAMES]
    assert len({shape for run in shapes for shape in run}) <= 4


def test_a_run_of_a_sweep_is_the_run_of_its_config_alone(
    whole, config, metric_lines, tmp_path
):
    """No run sees what the ones before it did."""
    name = NAMES[-1]
    alone = dataclasses.replace(
        config,
        epochs=1,
        seed=1,
        optimizer=dataclasses.replace(config.optimizer, learning_rate=1e-2),
    )
    run_one(alone, tmp_path, [].append)
    assert metric_lines(tmp_path) == metric_lines(whole[0] / "sweep" / name)


def test_a_finished_sweep_runs_nothing_again(copy, whole, config, monkeypatch):
    monkeypatch.setattr(sweep, "prepare", lambda *_: pytest.fail("runs again"))
    said = []
    assert run_sweep(config, copy, said.append) == whole[1]
    assert said[:-1] == whole[2][-5:-1]
    assert said[-1].endswith(f"its model is in {copy / 'best'}")
    check_end(copy, whole)


def test_predictions_are_not_written_through_a_link(copy, whole, config, tmp_path):
    target = tmp_path / "precious.tsv"
    target.write_text("content")
    answers = copy / "predictions/dev_predictions.tsv"
    answers.unlink()
    answers.symlink_to(target)
    run_sweep(config, copy, [].append)
    assert target.read_text() == "content"
    check_end(copy, whole)


@pytest.mark.parametrize("number", [0, 5, 7, "best"])
def test_a_run_without_results_runs_again_alone(number, copy, whole, config):
    """Its model comes and goes; or it is the best again."""
    name = whole[1]["best_run"] if number == "best" else NAMES[number]
    (copy / "sweep" / name / "results.json").unlink()
    said = []
    assert run_sweep(config, copy, said.append) == whole[1]
    assert ran(said) == [name]
    check_end(copy, whole)


def test_an_interrupted_sweep_goes_on(whole, config, tmp_path):
    """In the middle of the third run, when it has a model already."""
    said = []

    def interrupt(line):
        said.append(line)
        if ran(said) == NAMES[:3] and line.startswith("epoch 4"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(config, tmp_path, interrupt)
    assert (tmp_path / "sweep" / NAMES[2] / "best").exists()
    assert load(tmp_path).extra["scores"]["pearson"] == max(
        score_of(tmp_path, name) for name in NAMES[:2]
    )
    said.clear()
    run_sweep(config, tmp_path, said.append)
    assert ran(said) == NAMES[2:]
    check_end(tmp_path, whole)


@pytest.mark.parametrize("place", ["record", "old", "new", "rest"])
def test_a_move_of_the_best_model_that_was_cut_short_is_made_up_for(
    place, copy, whole, config
):
    """Before the record, after it, with the old model aside, and with it left over."""
    best = copy / "best"
    origin = copy / "sweep" / whole[1]["best_run"] / "best"
    worse = shutil.copytree(best, copy / "worse")
    (worse / "model.safetensors").write_bytes(b"another model")
    if place == "record":  # nothing was kept before
        best.rename(origin)
        shutil.rmtree(worse)
        (copy / "sweep" / "kept.json").unlink()
    elif place == "old":
        best.rename(origin)
        worse.rename(best)
    elif place == "new":
        best.rename(origin)
        worse.rename(copy / ".best.old")
    else:
        worse.rename(copy / ".best.old")
        best.rename(origin)
    assert run_sweep(config, copy, [].append) == whole[1]
    check_end(copy, whole)


def test_points_may_be_added_in_any_order(copy, whole, config):
    """A new point that comes first in the grid does not take the best one's place."""
    grid = dataclasses.replace(config.sweep, learning_rate=(1e-6, 1e-5, 1e-2))
    wider = dataclasses.replace(config, sweep=grid)
    said = []
    content = run_sweep(wider, copy, said.append)
    added = [n for n in ran(said) if "rate1e-06" in n]
    assert len(added) == len(ran(said)) == 4
    assert len(content["points"]) == 6
    best = max(score_of(copy, name) for name in (*NAMES, *added))
    if score_of(copy, whole[1]["best_run"]) == best:
        assert content["best_run"] == whole[1]["best_run"]
        assert weights(copy) == weights(whole[0])
    assert load(copy).extra["scores"]["pearson"] == best


def test_a_best_model_that_was_deleted_is_told(copy, whole, config):
    shutil.rmtree(copy / "best")
    with pytest.raises(UserError, match="the model of the best run is no longer in"):
        run_sweep(config, copy, [].append)
    name = whole[1]["best_run"]
    (copy / "sweep" / name / "results.json").unlink()
    said = []
    run_sweep(config, copy, said.append)
    assert ran(said) == [name]
    check_end(copy, whole)


@pytest.fixture
def diverging_sweep(config, tmp_path, monkeypatch):
    """A function of the condition on which a run diverges, once it has a model: what the
    sweep returns, what it said. The score of the others is seed - 100 x rate."""
    task = types.SimpleNamespace(main_metric="pearson")
    prepared = types.SimpleNamespace(task=task)
    monkeypatch.setattr(sweep, "prepare", lambda *_: prepared)

    def sweep_with(diverges):
        def finetune(config, prepared, folder, log, change_settings):
            workdir = folder.local
            for name in ("best", "predictions"):
                (workdir / name).mkdir(parents=True)
            (workdir / "best/model.safetensors").write_text(workdir.name)
            (workdir / "config.json").write_text(json.dumps(to_dict(config)))
            if diverges(config):
                raise DivergenceError("the loss became nan")
            score = config.seed - 100 * config.optimizer.learning_rate
            results = {"main_metric": "pearson", "scores": {"dev": {"pearson": score}}}
            (workdir / "results.json").write_text(json.dumps(results))
            return results

        monkeypatch.setattr(sweep, "finetune", finetune)
        said = []
        return run_sweep(config, tmp_path, said.append), said

    return sweep_with


def test_a_run_that_diverges_is_told_counted_and_not_tried_again(
    diverging_sweep, tmp_path
):
    """All of one point, and half of another, which would have been the best."""

    def diverges(config):
        rate = config.optimizer.learning_rate
        return (rate == 1e-2 if config.epochs == 8 else rate < 1e-2) and (
            config.seed == 1 or rate == 1e-2
        )

    content, said = diverging_sweep(diverges)
    assert ran(said) == NAMES
    assert said.count("diverged: the loss became nan") == 3
    best = "batch8-rate1e-05-epochs8-seed1"
    assert content["best_run"] == best
    assert [p.read_text() for p in tmp_path.rglob("model.safetensors")] == [best]
    assert [row["diverged"] for row in content["points"]] == [0, 1, 2, 0]
    assert content["points"][2]["scores"] == []
    lines = [line for line in said if line.startswith("batch ")]
    assert lines[0] == "batch 8   rate 0.01    epochs 8  2 diverged"
    assert sum(line.endswith("of 1)  1 diverged") for line in lines) == 1
    again, said = diverging_sweep(diverges)
    assert again == content
    assert not ran(said)


def test_a_sweep_of_which_every_run_diverges_is_an_error(diverging_sweep):
    with pytest.raises(UserError, match=r"every run in .*sweep diverged; lower"):
        diverging_sweep(lambda config: True)


def test_a_sweep_of_another_config_is_refused_before_anything_runs(
    copy, config, monkeypatch
):
    monkeypatch.setattr(sweep, "prepare", lambda *_: pytest.fail("runs"))
    changed = dataclasses.replace(config, train_rows=8)
    # The second one shares no point with the runs that are there.
    elsewhere = dataclasses.replace(changed, sweep=SweepConfig(batch_size=(16,)))
    for other in (changed, elsewhere):
        with pytest.raises(UserError, match="train_rows: 0 -> 8") as error:
            run_sweep(other, copy)
        assert "\n" not in str(error.value)


def test_a_sweep_and_a_single_run_do_not_share_a_workdir(copy, config, tmp_path):
    with locked(copy), pytest.raises(UserError, match="is in use by process"):
        run_sweep(config, copy)
    with pytest.raises(UserError, match="holds a sweep; add --sweep"):
        run_one(config, copy)
    single = tmp_path / "single"
    single.mkdir()
    (single / "config.json").write_text("{}")
    with pytest.raises(UserError, match="holds a single run"):
        run_sweep(config, single)


def test_a_grid_with_an_impossible_point_is_refused_before_anything_runs(
    config, tmp_path
):
    halves = dataclasses.replace(config, accumulation=2)
    odd = dataclasses.replace(halves, sweep=SweepConfig(batch_size=(8, 9)))
    with pytest.raises(UserError, match="batch_size=9 is not a multiple of"):
        run_sweep(odd, tmp_path)
    assert not list(tmp_path.iterdir())
