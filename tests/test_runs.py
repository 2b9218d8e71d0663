"""Runs are read from their workdirs, compared, and drawn by plot."""

import json
import re

import pytest
from etils import epath

from bert_jax import figures, runs
from bert_jax.commands import plot as command
from bert_jax.errors import UserError
from bert_jax.runs import (
    compare,
    read_metrics,
    read_references,
    read_runs,
    table,
)

LINE = {"step": 1, "split": "dev"}


def write_run(folder, config, lines, results=None):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in lines))
    if results:
        (folder / "results.json").write_text(json.dumps(results))
    return folder


def pretraining(rate, accuracy):
    """Config and metrics of a run with a learning rate and two evaluations."""
    config = {
        "optimizer": {"learning_rate": rate},
        "phases": [{"steps": 20, "batch_size": 4, "sequence_length": 8}],
        "seed": 0,
    }
    lines = [
        {"step": 5, "split": "train", "loss": 7.0, "tokens_per_second": None},
        {"step": 10, "split": "train", "loss": 5.5, "tokens_per_second": 100.0},
        {"step": 10, "split": "eval", "loss": 6.0, "mlm_accuracy": 0.3},
        {"step": 15, "split": "train", "loss": 5.0, "tokens_per_second": 104.0},
        {"step": 20, "split": "train", "loss": 5.2, "tokens_per_second": 130.0},
        {"step": 20, "split": "train", "seconds": 61.5},
        {"step": 20, "split": "eval", "loss": 5.9, "mlm_accuracy": accuracy},
    ]
    for i, line in enumerate(lines):
        if line["split"] == "eval":
            if i > 3:  # older versions did not write the length
                line |= {"sequence_length": 8}
            line |= {"mlm_majority": [0.05, 0.06][i > 3]}
            line |= {"perplexity": [90.0, 99.0][i > 3]}
    return config, lines


@pytest.fixture
def two(tmp_path):
    return [
        write_run(tmp_path / "a" / "tiny", *pretraining(1e-3, 0.25)),
        write_run(tmp_path / "b" / "tiny", *pretraining(2e-3, 0.4)),
    ]


def test_the_best_error_of_a_regression_is_the_smallest(tmp_path):
    values = enumerate([2.0, 1.0, 1.2], 1)
    lines = [{"step": i, "split": "dev", "rmse": x, "pearson": x} for i, x in values]
    folder = write_run(tmp_path / "run", {"family": "classification"}, lines)
    values = runs._summaries(read_runs([folder])[0])
    assert (values["dev rmse"]["best"], values["dev rmse"]["step"]) == (1.0, 2)
    assert (values["dev pearson"]["best"], values["dev pearson"]["step"]) == (2.0, 1)


def test_references_with_one_name_have_more_folders_in_it(two):
    names = [run.name for run in read_references(iter(two))]
    assert names == ["reference a/tiny", "reference b/tiny"]


def test_the_length_of_an_evaluation_is_not_a_score(two):
    run = read_runs(two)[0]
    assert [line.get("sequence_length") for line in run.metrics][2::4] == [None, 8]
    assert run.scores == ["mlm_accuracy"]
    assert not [
        name for row in compare(read_runs(two)) for name in row if "len" in name
    ]


def test_names_start_where_the_paths_differ(two, tmp_path):
    assert [run.name for run in read_runs(two)] == ["a/tiny", "b/tiny"]
    assert [run.name for run in read_runs([two[0], two[0]])] == ["tiny"]
    write_run(tmp_path / "other", *pretraining(1e-3, 0.25))
    names = [run.name for run in read_runs([two[0], tmp_path / "other"])]
    assert names == ["a/tiny", "other"]


def test_a_sweep_is_replaced_by_its_runs(tmp_path):
    for name in ("rate1", "rate2"):
        write_run(tmp_path / "sweep" / name, *pretraining(1e-3, 0.25))
    (tmp_path / "sweep" / "not begun").mkdir()
    (tmp_path / "new" / "sweep").mkdir(parents=True)
    with pytest.raises(UserError, match="has reported yet; try later"):
        read_runs([tmp_path / "new"])
    assert [run.name for run in read_runs([tmp_path])] == ["rate1", "rate2"]


def test_runs_in_a_bucket_are_read_there(bucket, two, tmp_path, monkeypatch):
    remote = epath.Path(bucket) / "run"
    for path in two[0].iterdir():
        (remote / path.name).write_text(path.read_text())
    (run,) = read_runs([str(remote)])
    (local,) = read_runs([two[0]])
    assert run.name == "run"
    assert (run.config, run.metrics) == (local.config, local.metrics)
    monkeypatch.chdir(tmp_path)
    command.main([str(remote)])
    assert (tmp_path / "curves.png").exists()


def test_a_comparison_has_differing_settings_and_last_and_best_metrics(two):
    first, second = compare(read_runs(two))
    assert first == {
        "run": "a/tiny",
        "optimizer.learning_rate": 1e-3,
        "steps": 20,
        "train loss": {"last": 5.2, "best": 5.0, "step": 15},
        "eval loss": {"last": 5.9, "best": 5.9, "step": 20},
        "eval perplexity": {"last": 99.0, "best": 90.0, "step": 10},
        "eval mlm_accuracy": {"last": 0.25, "best": 0.3, "step": 10, "baseline": 0.06},
        "seconds": 61.5,
        "tokens per second": 104,
    }
    assert second["optimizer.learning_rate"] == 2e-3
    assert second["eval mlm_accuracy"]["best"] == 0.4


def test_the_baseline_of_an_accuracy_of_fine_tuning_is_its_majority(tmp_path):
    line = {"step": 3, "split": "dev", "accuracy": 80.0, "f1": 70.0, "majority": 52.0}
    run = write_run(tmp_path / "run", {"family": "classification"}, [line])
    (row,) = compare(read_runs([run]))
    score = {"last": 80.0, "best": 80.0, "step": 3}
    assert row["dev accuracy"] == score | {"baseline": 52.0}
    assert row["dev f1"] == {"last": 70.0, "best": 70.0, "step": 3}
    assert "dev majority" not in row


@pytest.mark.parametrize("length", [4, 16])
def test_the_best_score_is_a_score_of_the_last_length(tmp_path, length):
    config, lines = pretraining(1e-3, 0.25)
    other = {"steps": 5, "batch_size": 4, "sequence_length": length}
    for first, best in ((12, 0.25), (20, 0.3)):
        phases = [{"steps": first, "batch_size": 4, "sequence_length": 8}, other]
        run = write_run(tmp_path / str(first), config | {"phases": phases}, lines)
        (change,) = compare(read_runs([run]))
        assert change["eval mlm_accuracy"]["best"] == best
        assert change["train loss"] == {"last": 5.2, "best": 5.0, "step": 15}


@pytest.mark.parametrize("causal", [True, False])
def test_the_best_loss_is_a_loss_of_the_last_direction(tmp_path, causal):
    """Left-to-right losses and losses of masked tokens are not comparable."""
    config, lines = pretraining(1e-3, 0.25)
    del lines[-1]["perplexity"]
    sizes = {"batch_size": 4, "sequence_length": 8}
    phases = [
        {"steps": 6, "causal": causal} | sizes,
        {"steps": 4, "causal": causal} | sizes,
        {"steps": 10, "causal": not causal} | sizes,
    ]
    lines[2]["loss"] = 4.0
    (run,) = compare(
        read_runs([write_run(tmp_path / "run", config | {"phases": phases}, lines)])
    )
    assert run["eval loss"] == {"last": 5.9, "best": 5.9, "step": 20}
    assert run["train loss"] == {"last": 5.2, "best": 5.0, "step": 15}
    assert "eval perplexity" not in run  # of the direction before


def test_a_setting_that_one_run_lacks_differs(tmp_path, two):
    config, lines = pretraining(1e-3, 0.25)
    sizes = {"batch_size": 4, "sequence_length": 8}
    phases = [{"steps": steps} | sizes for steps in (20, 5)]
    more = config | {"phases": phases, "seed": 1}
    third = write_run(tmp_path / "more", more, lines)
    first, second = compare(read_runs([two[0], third]))
    assert (first["phases[1].steps"], first["seed"]) == (None, 0)
    assert (second["phases[1].steps"], second["seed"]) == (5, 1)
    assert "optimizer.learning_rate" not in first


def test_settings_that_changed_during_a_run_are_shown_with_their_steps(tmp_path, two):
    config, lines = pretraining(2e-3, 0.3)
    change = {"optimizer.learning_rate": {"from": 1e-3, "to": 2e-3}}
    config["changes"] = [{"step": 1500, "settings": change}]
    row = compare(read_runs([*two, write_run(tmp_path / "c", config, lines)]))[2]
    assert row["optimizer.learning_rate"] == 2e-3
    assert row["changes[0].step"] == 1500
    assert row["changes[0].settings.optimizer.learning_rate.from"] == 1e-3


def test_plot_prints_a_table_or_json_and_draws(two, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command.main([str(path) for path in two])
    out, err = capsys.readouterr()
    lines = [re.split("  +", line) for line in out.splitlines()]
    assert ["", "a/tiny", "b/tiny"] in lines
    assert ["optimizer.learning_rate", "0.001", "0.002"] in lines
    assert ["train loss", *["5.2 (best 5 at step 15)"] * 2] in lines
    accuracy = ["0.25 (best 0.3 at step 10), baseline 0.06", "0.4, baseline 0.06"]
    assert ["eval mlm_accuracy", *accuracy] in lines
    assert ["tokens per second", "104", "104"] in lines
    assert err == "curves.png\n"
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    command.main([*(str(path) for path in two), "--json"])
    assert json.loads(capsys.readouterr().out) == compare(read_runs(two))


def test_a_table_shows_each_type_of_value():
    rows = [
        {"run": "a", "seed": 3, "freeze": True, "init_from": "", "score": 1500.0},
        {"run": "b", "layers": [1, 2], "folds": None},
    ]
    assert [re.split("  +", line.rstrip()) for line in table(rows)] == [
        ["", "a", "b"],
        ["seed", "3", "-"],
        ["freeze", "true", "-"],
        ["init_from", '""', "-"],
        ["score", "1,500", "-"],
        ["layers", "-", "[1, 2]"],
        ["folds", "-", "-"],
    ]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [((), "a/tiny/curves.png"), (("--output", "new/a.svg"), "new/a.svg")],
)
def test_plot_names_the_picture(two, tmp_path, monkeypatch, arguments, name):
    monkeypatch.chdir(tmp_path)
    command.main(["a/tiny", *arguments])
    content = (tmp_path / name).read_bytes()
    assert b"<svg" in content or content.startswith(b"\x89PNG")
    with pytest.raises(UserError, match=r"must end in \.png, \.svg or \.pdf"):
        command.main(["a/tiny", "--output", "a.gif"])


def test_results_of_fine_tuning_are_compared(tmp_path):
    results = {"scores": {"test": {"accuracy": 81.25}}, "train_seconds": 75.5}
    lines = [{"step": 3, "split": "dev", "accuracy": 80.0}]
    folder = write_run(tmp_path / "run", {"family": "classification"}, lines, results)
    (row,) = compare(read_runs([folder]))
    assert row["best model: test accuracy"] == 81.25
    assert row["seconds of training"] == 75.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, "does not exist; expected the workdir of a run"),
        (
            lambda folder: folder.mkdir(),
            r"has no metrics\.jsonl; expected the workdir",
        ),
        (
            lambda folder: write_run(folder, {}, []),
            r"has not reported yet",
        ),
        (
            lambda folder: write_run(folder, [1], [{"step": 1, "split": "dev"}]),
            r"config\.json contains a JSON list",
        ),
        (
            lambda folder: write_run(folder, {"phases": 1}, [LINE]),
            r"config\.json: phases=1, expected a list$",
        ),
        (
            lambda folder: write_run(folder, {"phases": [{"batch_size": 4}]}, [LINE]),
            r"config\.json: phases\[0\]\.steps is missing, expected a whole number$",
        ),
        (
            lambda folder: write_run(folder, {}, [LINE], {"scores": {"dev": 3}}),
            r"results\.json: scores\.dev=3, expected an object$",
        ),
    ],
)
def test_a_folder_without_a_run_is_refused(tmp_path, make, message):
    make(tmp_path / "run")
    with pytest.raises(UserError, match=message):
        read_runs([tmp_path / "run"])


def test_lines_with_values_of_another_type_are_left_out(tmp_path, caplog):
    good = [LINE, {"step": 2, "split": "dev", "f1": None}]
    bad = [
        {"step": "2", "split": "dev"},
        {"step": 2, "split": None},
        {"step": 2, "split": "dev", "f1": "80"},
        {"step": 2, "split": "dev", "f1": [80]},
        [2],
    ]
    run = write_run(tmp_path / "run", {}, [good[0], *bad, good[1]])
    assert read_metrics(run / "metrics.jsonl") == good
    assert len(caplog.records) == len(bad)
    assert "metrics.jsonl:2 is damaged and left out" in caplog.records[0].message


def test_a_run_is_compared_with_a_reference_by_its_tokens(two, tmp_path, capsys):
    config, lines = pretraining(1e-3, 0.25)
    config["phases"] = [
        {"steps": 100, "batch_size": 4, "sequence_length": 8},
        {"steps": 900, "batch_size": 2, "sequence_length": 16},
    ]
    long = [{"step": step, "split": "eval", "loss": 8.0} for step in (0, 500, 1000)]
    mine = write_run(tmp_path / "mine", config, lines)
    other = write_run(tmp_path / "references/long", config, long)
    (run,) = read_runs([other])
    assert run.tokens([0, 50, 100, 1000]) == [0, 1600, 3200, 32_000]
    packed = [
        {"step": step, "split": "train", "computed_tokens": 20.0 * step}
        for step in (50, 1000)
    ]
    run = read_runs([write_run(tmp_path / "packed", config, packed)])[0]
    assert run.tokens([0, 25, 50, 1000]) == [0, 500, 1000, 20_000]
    command.main([str(mine), "--reference", str(other), "--reference", "tiny"])
    out, err = capsys.readouterr()
    assert out.splitlines()[0].split() == [
        *("mine", "reference", "long", "reference", "tiny")
    ]
    assert err.strip() == str(mine / "reference.png")
    assert (mine / "reference.png").read_bytes().startswith(b"\x89PNG")
    picture = figures.curves(mine, references=[other])
    (axes,) = (a for a in picture.axes if a.get_title("left") == "loss")
    tokens_by_label = {line.get_label(): list(line.get_xdata()) for line in axes.lines}
    assert tokens_by_label["mine, train"] == [32 * step for step in (5, 10, 15, 20)]
    assert tokens_by_label["reference long, eval"] == [0, 16_000, 32_000]
    lines = [{"step": 3, "split": "dev", "accuracy": 80.0}]
    tuned = write_run(tmp_path / "run", {"family": "x"}, lines)
    with pytest.raises(UserError, match="run is not a pretraining run"):
        command.main([str(tuned), "--reference", str(other)])
