"""Single runs and sweeps: complete, interrupted and repeated."""

import dataclasses
import json
import shutil
import statistics
import types
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.errors import DivergenceError, UserError
from bert_jax.files import locked, write_json
from bert_jax.interop.load import load
from bert_jax.settings import to_dict
from bert_jax.tasks.families import FAMILIES
from bert_jax.training import finetune as tuning
from bert_jax.training import finetune_data
from bert_jax.training import run as engine
from bert_jax.training.config import SweepConfig, finetune_config
from bert_jax.training.results import table, write_table
from bert_jax.training.sweep import run_names, run_one, run_sweep

GRID = dict(batch_size=(8,), learning_rate=(1e-5, 1e-2), epochs=(2,), seeds=(0, 1))
NAMES = [
    f"batch8-rate{rate}-epochs2-seed{seed}"
    for seed in (0, 1)
    for rate in ("1e-05", "0.01")
]


@pytest.fixture(scope="module")
def config(settings):
    model = dict(hidden_dropout=0.1, attention_dropout=0.1)
    return finetune_config(settings("regression", model=model, sweep=GRID))


def ran(log):
    return [line.removeprefix("== ") for line in log if line.startswith("== ")]


@pytest.fixture(scope="module")
def uninterrupted(config, tmp_path_factory):
    """An undisturbed sweep: workdir, result, log, and the compiled steps."""
    workdir, log, steps = tmp_path_factory.mktemp("sweep") / "runs", [], []
    real, checksum = engine.compile_step, finetune_data.params_checksum
    checksums = []

    def counted(*arguments, **settings):
        steps.append(real(*arguments, **settings))
        return steps[-1]

    def counted_checksum(params):
        checksums.append(checksum(params))
        return checksums[-1]

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(engine, "compile_step", counted)
        monkeypatch.setattr(finetune_data, "params_checksum", counted_checksum)
        content = run_sweep(config, workdir, log.append)
    assert len(checksums) == 1  # of all runs, which start with the same parameters
    return workdir, content, log, steps


def score_of(workdir, name):
    results = json.loads((workdir / "sweep" / name / "results.json").read_text())
    return results["scores"]["dev"]["pearson"]


def check_end(workdir, expected):
    """Checks that both workdirs have equal best models and tables, and no other weights."""
    for name in ("best/model.safetensors", "sweep.json", "sweep.md"):
        assert (workdir / name).read_bytes() == (expected / name).read_bytes()
    assert [p.parent for p in workdir.rglob("model.safetensors")] == [workdir / "best"]
    answers = "predictions/dev_predictions.tsv"
    best = json.loads((workdir / "sweep.json").read_text())["best_run"]
    source = workdir / "sweep" / best / answers
    assert (workdir / answers).read_bytes() == source.read_bytes()


def test_the_caption_of_a_table_has_what_the_table_has(tmp_path):
    results = {"main_metric": "accuracy", "scores": {"dev": {"accuracy": 90.0}}}
    variants = {"a": [("", "a-3")], "b": [("", "b-3")]}
    log = []
    one = table({"a": variants["a"]}, {"a-3": results}, [3])
    write_table(tmp_path / "one.json", one, log.append)
    assert log[-1].endswith("Mean ± deviation over the seed 3. 1 of 1 run finished.")
    two = table(variants, {"a-3": results, "b-3": results}, [3, 4])
    write_table(tmp_path / "two.json", two, log.append)
    caption = (
        "over the seeds 3, 4; in brackets the difference from a ± its standard error."
    )
    assert caption in log[-1]


def test_every_point_runs_with_every_seed_and_the_best_model_is_kept(uninterrupted):
    workdir, content, log, steps = uninterrupted
    assert ran(log) == NAMES
    assert (
        sum(line.startswith("train: ") for line in log) == 1
    )  # the rows are read once
    assert len(steps) == 4 and len({id(step) for step in steps}) == 1
    scores = {name: score_of(workdir, name) for name in NAMES}
    assert len(set(scores.values())) == len(NAMES)
    points = {
        "batch8-rate1e-05-epochs2": NAMES[::2],
        "batch8-rate0.01-epochs2": NAMES[1::2],
    }
    assert list(content["variants"]) == list(points)
    for point, names in points.items():
        point_scores, variant = (
            [scores[name] for name in names],
            content["variants"][point],
        )
        assert variant["scores"]["pearson"]["scores"] == point_scores
        mean, deviation = statistics.mean(point_scores), statistics.stdev(point_scores)
        assert variant["scores"]["pearson"]["mean"] == mean
        assert variant["scores"]["pearson"]["deviation"] == deviation
        assert f"| {point.ljust(24)}  | {mean:.1f} ± {deviation:.1f}" in log[-2]
    best = max(scores, key=scores.get)
    assert (content["best_run"], content["metric"]) == (best, "pearson")
    assert log[-1].startswith(f"best: {best}, pearson {scores[best]:.2f}; ")
    assert load(workdir).extra["scores"]["pearson"] == scores[best]
    assert {p.name for p in (workdir / "sweep" / best).iterdir()} == {
        *("config.json", "metrics.jsonl", "predictions", "results.json", "tensorboard")
    }
    check_end(workdir, workdir)


def test_a_run_of_a_sweep_equals_a_single_run_of_its_config(
    uninterrupted, config, metric_lines, tmp_path
):
    optimizer = dataclasses.replace(config.optimizer, learning_rate=1e-2)
    alone = dataclasses.replace(config, epochs=2, seed=1, optimizer=optimizer)
    run_one(alone, tmp_path, [].append)
    assert metric_lines(tmp_path) == metric_lines(
        uninterrupted[0] / "sweep" / NAMES[-1]
    )


def test_an_interrupted_sweep_resumes_bit_for_bit(uninterrupted, config, tmp_path):
    """The interruption is in the third run, after its first saved model."""
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
    assert run_sweep(config, tmp_path, log.append) == uninterrupted[1]
    assert ran(log) == NAMES[2:]
    check_end(tmp_path, uninterrupted[0])


def score(config):
    """The score of a simulated run. The fourth run is the best."""
    return 9 - abs(config.seed - 100 * config.optimizer.learning_rate)


@pytest.fixture
def run(config, monkeypatch):
    """A function that runs a sweep of simulated runs: returns result and names."""

    rows = FAMILIES[config.family](config.data).splits.checksum

    def prepare(config, workdir, log, fold, run):
        content = {"labels": [], "start": 1, "content": rows}
        if fold is not None:
            content["content"] = fold.splits.checksum
        return types.SimpleNamespace(fold=fold, content=content)

    monkeypatch.setattr(finetune_data, "prepare", prepare)
    monkeypatch.setattr(finetune_data, "params_checksum", lambda params: 1)

    def run(workdir, diverges=lambda config: False, **changes):
        def finetune(config, prepared, folder, log, change_settings, *, keep_answers):
            place = folder.local
            fold = prepared.fold
            assert keep_answers == (fold is not None)
            assert fold is None or fold.config == config.data
            for name in ("best/model.safetensors", "predictions/dev_predictions.tsv"):
                write_json(place / name, place.name)
            write_json(place / "config.json", to_dict(config) | prepared.content)
            if diverges(config):
                raise DivergenceError("the loss became nan")
            scores = {"dev": {"pearson": score(config)}}
            results = {"main_metric": "pearson", "scores": scores}
            write_json(place / "results.json", results)
            return results

        monkeypatch.setattr(tuning, "finetune", finetune)
        log = []
        own = dataclasses.replace(config, **changes)
        return run_sweep(own, workdir, log.append), ran(log), log

    return run


@pytest.fixture
def made(run, tmp_path):
    """The workdir of a finished sweep of simulated runs, and a copy to damage."""
    assert run(tmp_path / "made")[0]["best_run"] == NAMES[3]
    shutil.copytree(tmp_path / "made", tmp_path / "copy")
    return tmp_path / "made", tmp_path / "copy"


def test_a_finished_sweep_runs_nothing_again(made, run, tmp_path):
    uninterrupted, copy = made
    target = tmp_path / "precious.tsv"
    target.write_text("content")
    answers = copy / "predictions/dev_predictions.tsv"
    answers.unlink()
    answers.symlink_to(target)
    assert run(copy)[1] == []
    check_end(copy, uninterrupted)
    assert target.read_text() == "content"  # the link's target is unchanged


def test_weights_left_by_a_killed_sweep_are_deleted(made, run, tmp_path):
    uninterrupted, copy = made
    for folder in ("best", "checkpoints/8"):
        write_json(copy / "sweep" / NAMES[0] / folder / "model.safetensors", "left")
    disk = tmp_path / "disk"
    for folder in ("best", "checkpoints"):
        write_json(disk / folder / "8/model.safetensors", "left on another disk")
        (copy / "sweep" / NAMES[1] / folder).symlink_to(disk / folder)
    assert run(copy)[1] == []
    check_end(copy, uninterrupted)
    assert list(copy.rglob("checkpoints")) == [
        copy / "sweep" / NAMES[1] / "checkpoints"  # the link
    ]
    assert sorted(disk.rglob("*")) == [disk / "best", disk / "checkpoints"]


def test_of_runs_with_equal_scores_the_first_by_name_is_the_best(made, run):
    _, copy = made
    path = copy / "sweep" / NAMES[1] / "results.json"
    path.write_text((copy / "sweep" / NAMES[3] / "results.json").read_text())
    write_json(copy / "sweep" / NAMES[1] / "best/model.safetensors", NAMES[1])
    content, names, _ = run(copy)
    assert (content["best_run"], names) == (min(NAMES[1], NAMES[3]), [])


def test_a_score_that_is_not_a_number_is_never_the_best(made, run):
    """The first run by name is compared first."""
    _, copy = made
    path = copy / "sweep" / min(NAMES) / "results.json"
    path.write_text(path.read_text().replace(str(score_of(copy, min(NAMES))), "NaN"))
    content, names, log = run(copy)
    assert (content["best_run"], names) == (NAMES[3], [])
    assert "nan ± nan" in log[-2]


@pytest.mark.parametrize("name", NAMES[::3])
def test_only_a_run_without_results_runs_again(name, made, run):
    uninterrupted, copy = made
    (copy / "sweep" / name / "results.json").unlink()
    assert run(copy)[1] == [name]
    check_end(copy, uninterrupted)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
@pytest.mark.parametrize("train", [run_one, run_sweep])
def test_a_link_that_cannot_be_replaced_is_an_error_before_training(
    train, config, monkeypatch, tmp_path
):
    (tmp_path / "best").symlink_to("/proc/1")
    monkeypatch.setattr(
        finetune_data, "prepare", lambda *_: pytest.fail("read the data")
    )
    with pytest.raises(UserError, match="best is a link to /proc/1, which cannot be"):
        train(config, tmp_path)


def test_a_deleted_best_model_is_reported(made, run):
    uninterrupted, copy = made
    shutil.rmtree(copy / "best")
    with pytest.raises(UserError, match=rf"best is missing.*{NAMES[3]}/results.json"):
        run(copy)
    (copy / "sweep" / NAMES[3] / "results.json").unlink()
    assert run(copy)[1] == [NAMES[3]]
    check_end(copy, uninterrupted)


@pytest.mark.parametrize("old_model", ["", "best", ".best.old"])
def test_an_interrupted_move_of_the_best_model_is_repeated(old_model, made, run):
    uninterrupted, copy = made
    (copy / "best").rename(copy / "sweep" / NAMES[3] / "best")
    if old_model:
        write_json(copy / old_model / "model.safetensors", "another model")
    run(copy)
    check_end(copy, uninterrupted)


@pytest.mark.parametrize("name", ["", NAMES[2]])
def test_a_sweep_is_the_same_on_moved_data(name, made, run, config):
    """Its places are compared by their content, even if all runs are finished."""
    uninterrupted, copy = made
    if name:
        (copy / "sweep" / name / "results.json").unlink()
    data = dataclasses.replace(config.data, dir="elsewhere")
    moved = {"data": data, "init_from": "elsewhere"}
    assert run(copy, **moved)[1] == [name] * bool(name)
    check_end(copy, uninterrupted)
    for key, value, message in (
        ("content", "other rows", r"data\.dir: .* -> 'elsewhere'"),
        ("start", 2, "init_from: .* -> 'elsewhere'"),
    ):
        path = copy / "sweep" / NAMES[1] / "config.json"
        settings = json.loads(path.read_text())
        write_json(path, settings | {key: value})
        for grid in (config.sweep, SweepConfig(**GRID | {"seeds": (5,)})):
            with pytest.raises(
                UserError, match=f"{NAMES[1]} contains a run with other.*{message}"
            ):
                run(copy, sweep=grid, **moved)
        write_json(path, settings)


@pytest.mark.parametrize("name", ["", NAMES[2]])
def test_a_sweep_notices_files_that_were_changed_in_place(name, made, run, config):
    """Whether or not all runs are finished, and in runs of earlier grids."""
    _, copy = made
    if name:
        (copy / "sweep" / name / "results.json").unlink()
    path = copy / "sweep" / NAMES[1] / "config.json"
    settings = json.loads(path.read_text())
    write_json(path, settings | {"content": "other rows"})
    for grid in (config.sweep, SweepConfig(**GRID | {"seeds": (5,)})):
        with pytest.raises(
            UserError, match=f"{NAMES[1]} contains a run whose rows differ"
        ):
            run(copy, sweep=grid)


def test_folds_are_the_same_on_moved_data(run, config, tmp_path):
    grid = SweepConfig(**GRID | {"folds": 2, "seeds": (0,)})
    first, names, _ = run(tmp_path / "runs", sweep=grid)
    assert len(names) == 4
    folder = tmp_path / "moved"
    shutil.copytree(config.data.dir, folder)
    moved = dataclasses.replace(config.data, dir=str(folder))
    arguments = {"sweep": grid, "init_from": "elsewhere", "data": moved}
    assert run(tmp_path / "runs", **arguments)[:2] == (first, [])
    (train,) = folder.glob("train*")
    train.write_text("".join(train.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(
        UserError, match=r"contains a run with other settings \(.*data\.dir: 'rows:"
    ):
        run(tmp_path / "runs", **arguments)


def test_points_may_be_added_in_any_order(made, run):
    _, copy = made
    grid = SweepConfig(**GRID | {"learning_rate": (1e-6, 1e-5, 1e-2)})
    content, names, _ = run(copy, sweep=grid)
    assert names == [f"batch8-rate1e-06-epochs2-seed{seed}" for seed in (0, 1)]
    assert len(content["variants"]) == 3
    assert content["best_run"] == NAMES[3]
    # The best model of all runs is kept, including runs outside the grid.
    best = (copy / "best/model.safetensors").read_text()
    content, _, _ = run(copy, sweep=SweepConfig(**GRID | {"learning_rate": (1e-6,)}))
    assert (content["best_run"], len(content["variants"])) == (NAMES[3], 1)
    assert (copy / "best/model.safetensors").read_text() == best


def test_each_fold_is_dev_of_a_run_and_the_table_has_the_standard_error(run, tmp_path):
    grid = SweepConfig(**GRID | {"folds": 3})
    content, names, log = run(tmp_path, sweep=grid)
    assert names == [
        f"batch8-rate{rate}-epochs2-seed{seed}-fold{fold}"
        for seed in (0, 1)
        for fold in range(3)
        for rate in ("1e-05", "0.01")
    ]
    dirs = {}
    for name in names:
        saved = json.loads((tmp_path / "sweep" / name / "config.json").read_text())
        dirs.setdefault(saved["data"]["dir"], []).append(name)
    assert [len(runs) for runs in dirs.values()] == [2] * 6  # all points share a fold
    variant = content["variants"]["batch8-rate1e-05-epochs2"]["scores"]["pearson"]
    assert variant["standard_error"] == statistics.stdev(variant["scores"]) / 6**0.5
    assert len(variant["scores"]) == 6
    mean, error = statistics.mean(variant["scores"]), variant["standard_error"]
    assert f"| batch8-rate1e-05-epochs2  | {mean:.1f} ± {error:.1f}" in log[-2]
    assert "Mean ± standard error over 3 folds and the seeds 0, 1; in" in log[-2]
    # The sweep resumes after an interruption.
    (tmp_path / "sweep" / names[4] / "results.json").unlink()
    assert run(tmp_path, sweep=grid)[:2] == (content, [names[4]])
    path = tmp_path / "sweep" / names[0] / "config.json"
    settings = json.loads(path.read_text())
    settings["data"]["dir"] = "rows:ce1e4031631f"  # as version 0.2 wrote it
    for note in ("labels", "content", "start"):
        settings.pop(note, None)
    path.write_text(json.dumps(settings))
    with pytest.raises(
        UserError, match=f"{names[0]} contains a run of version 0.2 on .* a"
    ):
        run(tmp_path, sweep=grid)


def test_a_diverged_run_is_counted_and_does_not_run_again(run, config, tmp_path):
    def diverges(config):
        return config.seed == 1 or config.optimizer.learning_rate == 1e-2

    content, names, log = run(tmp_path, diverges)
    assert names == NAMES
    assert log.count("diverged: the loss became nan") == 3
    assert content["best_run"] == NAMES[0]
    (model,) = tmp_path.rglob("model.safetensors")
    assert NAMES[0] in model.read_text()
    assert [variant["diverged"] for variant in content["variants"].values()] == [1, 2]
    assert "| batch8-rate0.01-epochs2   | -        | 2         |" in log[-2]
    assert run(tmp_path, diverges)[:2] == (content, [])
    one = dataclasses.replace(config, epochs=2, seed=1)
    one = dataclasses.replace(
        one, optimizer=dataclasses.replace(one.optimizer, learning_rate=1e-5)
    )
    with pytest.raises(
        UserError, match=f"{NAMES[2]} diverged: the loss became nan; use"
    ):
        run_one(one, tmp_path / "sweep" / NAMES[2])
    shutil.rmtree(tmp_path)
    with pytest.raises(UserError, match=r"every run in .*sweep diverged; lower"):
        run(tmp_path, lambda config: True)


def test_each_batch_size_of_a_grid_is_compared_with_accumulation(run, tmp_path):
    """batch_size of the config is 8, and no run of the second sweep has it."""
    small = SweepConfig(**GRID | {"batch_size": (8, 4)})
    message = "accumulation=8, expected at most batch_size=4"
    with pytest.raises(UserError, match=message):
        run(tmp_path, accumulation=8, sweep=small)
    assert not (tmp_path / "sweep").exists()
    large = SweepConfig(**GRID | {"batch_size": (16,)})
    assert len(run(tmp_path, accumulation=16, sweep=large)[1]) == len(NAMES)


def test_other_settings_are_refused_before_a_run_starts(made, run, config, tmp_path):
    _, copy = made
    other_points = SweepConfig(**GRID | {"batch_size": (16,)})
    for grid in (config.sweep, other_points):
        with pytest.raises(UserError, match="train_rows: 0 -> 8"):
            run(copy, train_rows=8, sweep=grid)
    with locked(copy), pytest.raises(UserError, match="is in use by process"):
        run(copy)
    with pytest.raises(UserError, match="contains a sweep; use another workdir"):
        run_one(config, copy)
    write_json(tmp_path / "single/config.json", {"family": "regression"})
    with pytest.raises(UserError, match="contains a single run"):
        run(tmp_path / "single")


@pytest.mark.parametrize(
    "changes", [{"learning_rate": (1e-4, 1.0000001e-4)}, {"seeds": (3, 3)}]
)
def test_two_runs_of_one_name_are_refused_before_a_run(config, changes):
    """Learning rates that differ after the sixth digit, and a value that is given twice."""
    sweep = dataclasses.replace(config.sweep, **changes)
    with pytest.raises(
        UserError, match="two runs of the sweep have the name batch8-rate"
    ):
        run_names(dataclasses.replace(config, sweep=sweep))


def test_a_finished_sweep_refuses_a_checkpoint_whose_weights_changed(
    uninterrupted, config, tmp_path
):
    """The second call trains nothing, and would report scores of the old weights."""
    start = tmp_path / "start"
    shutil.copytree(uninterrupted[0] / "best", start)
    sweep = SweepConfig(**GRID | {"learning_rate": (1e-5,), "seeds": (0,)})
    again = dataclasses.replace(config, init_from=str(start), sweep=sweep)
    run_sweep(again, tmp_path / "runs", [].append)
    run_sweep(again, tmp_path / "runs", [].append)
    weights = start / "model.safetensors"
    tensors = load_file(weights)
    name = next(iter(tensors))
    save_file(tensors | {name: tensors[name] + 1}, weights, {"format": "pt"})
    with pytest.raises(UserError, match="weights of init_from changed after the run"):
        run_sweep(again, tmp_path / "runs", [].append)
