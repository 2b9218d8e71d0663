"""Fine-tuning on rows from Python, for every family."""

import dataclasses
import functools
import json
import logging
import math
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import bert_jax
from bert_jax.arguments import in_groups
from bert_jax.errors import UserError
from bert_jax.interop.load import load
from bert_jax.model.config import ComputeConfig, MeshConfig
from bert_jax.settings import to_dict
from bert_jax.tasks import splits
from bert_jax.training import cross_validation, from_python
from bert_jax.training.config import (
    DataConfig,
    FineTuneOptimizer,
    ModelSettings,
    OptimizerConfig,
)

WORDS = [f"w{i}" for i in range(40)]


def texts(count=24, seed=0):
    """Texts that contain one of two clues, and the number of the clue."""
    random = np.random.default_rng(seed)
    for i in range(count):
        words = random.choice(WORDS, random.integers(3, 9)).tolist()
        words[random.integers(len(words))] = ("bad", "good")[i % 2]
        yield words, i % 2


class Frame:
    """The used part of a pandas data frame."""

    columns = ("text", "label")

    def __init__(self, rows):
        self.rows = rows

    def to_dict(self, form):
        assert form == "records"
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def classification():
    rows = [(" ".join(words), ("no", "yes")[clue]) for words, clue in texts()]
    return bert_jax.tasks.classification(max_length=24), Frame(rows)


def glue():
    # Classes by number, as in Hugging Face's data sets.
    rows = [
        {"sentence1": "is it ?", "sentence2": " ".join(words), "label": clue, "idx": i}
        for i, (words, clue) in enumerate(texts())
    ]
    return bert_jax.tasks.glue("rte", max_length=24), rows


def tagging():
    rows = [
        (words, ["B-PER" if word in ("good", "bad") else "O" for word in words])
        for words, _ in texts()
    ]
    return bert_jax.tasks.tagging(max_length=24), rows


def choices():
    rows = []
    for words, clue in texts():
        others = [word for word in words if word not in ("good", "bad")]
        both = [" ".join([*others, "good"]), " ".join([*others, "bad"])]
        rows.append(("is it ?", both[:: 1 if clue else -1], 1 - clue))
    return bert_jax.tasks.choices(max_length=24), rows


def squad():
    rows = [
        ("color is it ?", " ".join(words), ("bad", "good")[clue])
        for words, clue in texts()
    ]
    settings = dict(max_question_length=8, max_answer_length=3, n_best=3)
    return bert_jax.tasks.squad(max_length=24, **settings), rows


SETTINGS = dict(
    epochs=10,
    batch_size=8,
    learning_rate=1e-2,
    bias_correction=True,
    buckets=1,
    checkpoint_every=1000,  # at the end: each save takes as long as many steps
    model=dict(hidden_dropout=0.0, attention_dropout=0.0),
)


MAKERS = (classification, glue, tagging, choices, squad)


def test_labels_and_warnings_are_logged(checkpoint_dir, caplog):
    """Classes that only dev has follow in the order of the labels."""
    text, log = "a gripping film of two lost hours", []
    labels = ["bad"] * 5 + ["good"] * 4 + ["good "] * 2 + [f"x{i}" for i in range(9)]
    model = bert_jax.finetune(
        bert_jax.tasks.classification(max_length=5),
        init_from=checkpoint_dir,
        train=[(text, label) for label in labels],
        dev=[(text, "bad"), ("so so", "d"), ("so", "c")],
        log=log.append,
        **SETTINGS | {"epochs": 1},
    )
    lines = "\n".join(log)
    for line in (
        "dev: 3 rows, 1 of them truncated, 3 sequences, 100.0% of the tokens unknown\n",
        "warning: train: 100% of the tokens are unknown: the vocabulary of "
        f"{checkpoint_dir} does not suit the text; use",
        "warning: dev: labels that train lacks: c, d\n",
        "labels: 'bad' (5), 'c' (0), 'd' (0), 'good' (4), 'good ' (2), 'x0' (1), ",
        "'x4' (1) and 4 more\n",
        "longer than max_length=5 and lose text; raise data.max_length\n",
    ):
        assert line in lines
    assert model.labels == ("bad", "c", "d", "good", "good ", *labels[11:])
    model.predict(text)
    model.evaluate([(text, "bad")])
    assert caplog.text.count("100% of the tokens are unknown: the vocabulary of ") == 2


def test_numbers_far_from_the_head_are_logged_and_scored(checkpoint_dir):
    log, numbers = [], [99_000.0, 101_000.0, 102_000.0, 98_000.0] * 4
    task = bert_jax.tasks.classification(regression=True, max_length=8)
    rows = [(f"{'a good' if x > 1e5 else 'a bad'} ship", x) for x in numbers]
    settings = SETTINGS | {"epochs": 1}
    model = bert_jax.finetune(
        task,
        init_from=checkpoint_dir,
        train=rows,
        dev=rows[:4],
        log=log.append,
        **settings,
    )
    scores = model.scores["dev"]
    assert [*scores] == ["pearson", "spearman", "pearson_spearman", "rmse", "mae"]
    assert 90_000 < scores["mae"] < scores["rmse"] < 110_000
    extent = "98000 to 102000"
    assert f"labels: {extent}, mean 100000, deviation 1581" in log
    assert any(x.startswith(f"warning: train: labels of {extent} are far") for x in log)
    mean = "the mean of the labels, 100000,"
    assert f"dev: baseline: {mean} has rmse 1581 and mae 1500" in log
    assert any(x.startswith("warning: dev: rmse is ") and "nothing" in x for x in log)
    with pytest.raises(
        UserError, match=r"main_metric='mae', .* expected one of pearson, spear"
    ):
        bert_jax.finetune(
            task, init_from=checkpoint_dir, train=rows, main_metric="mae", **settings
        )


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, marks=[pytest.mark.long] * (make in (glue, choices)))
        for make in MAKERS
    ],
)
def test_rows_of_python_train_a_model_that_answers(make, checkpoint_dir, tmp_path):
    task, rows = make()
    rows = rows if isinstance(rows, Frame) else iter(rows)
    logged = []

    def exact(gold, predicted):
        """The share of the rows with an equal label, tag list, choice or answer.

        Dev has 6 rows. evaluate gets all 24.
        """
        assert len(gold) == len(predicted) and len(gold) in (6, 24)
        if make is squad:
            gold = [text for ((text, _),) in gold]
        pairs = zip(gold, predicted, strict=True)
        return {"exact": 100 * np.mean([a == b for a, b in pairs])}

    model = bert_jax.finetune(
        task,
        init_from=checkpoint_dir,
        train=rows,
        dev=0.25,
        workdir=tmp_path / "run",
        log=logged.append,
        metrics=exact,
        **SETTINGS,
    )
    assert "dev: 25% of the training rows, which are held out" in logged
    assert any(line.startswith("train: 18 rows") for line in logged)
    assert any(line.startswith("dev: 6 rows") for line in logged)
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert model.scores == results["scores"]
    main = results["main_metric"]
    assert model.scores["dev"][main] > 90
    assert model.scores["dev"]["exact"] > 90
    assert f"{main} {model.scores['dev'][main]:.2f}" in repr(model)
    again = bert_jax.load(tmp_path / "run")
    assert again.labels == model.labels
    _, rows = make()
    scores = model.evaluate(rows)
    assert scores[main] > 90
    assert scores["exact"] > 90
    if make in (classification, squad):
        del scores["exact"]  # only the model of the run has its metrics
        assert scores == again.evaluate(rows)
        again = again.evaluate(rows, metrics=lambda *_: {"given": 7})
        assert again == scores | {"given": 7}
        sent = pickle.loads(pickle.dumps(model))  # without the function of this test
        assert sent.evaluate(rows) == scores and model.metrics is exact


def test_own_metrics_choose_the_best_model_and_a_callback_stops(
    checkpoint_dir, tmp_path
):
    """The call of metrics before the first step does not count for the best model."""
    task, frame = classification()
    rows, calls = frame.to_dict("records"), []
    values = iter([9.0, 1.0, 3.0, 2.0, 7.0])
    arguments = dict(init_from=checkpoint_dir, train=rows[:16], dev=rows[16:])
    arguments |= dict(
        workdir=tmp_path / "run", metrics=lambda *_: {"mine": next(values)}
    )
    settings = SETTINGS | {"epochs": 5, "class_weights": "balanced"}
    settings["compute"] = {"dtype": "bfloat16"}

    def third(step, scores):
        calls.append((step, dict(scores)))
        scores.clear()  # does not change the run's scores
        return len(calls) == 3

    model = bert_jax.finetune(
        task, **arguments, callback=third, main_metric="mine", **settings
    )
    assert [(step, scores["mine"]) for step, scores in calls] == [
        (2, 1),
        (4, 3),
        (6, 2),
    ]
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    summary = [results[x] for x in ("main_metric", "stopped_at", "steps", "best_epoch")]
    assert summary == ["mine", 6, 10, 2]
    assert model.scores["dev"]["mine"] == 7 and "accuracy" in model.scores["dev"]
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    lines = [line for line in map(json.loads, text.splitlines()) if "mine" in line]
    assert [(line["step"], line["mine"]) for line in lines] == [
        *((0, 9), (2, 1), (4, 3), (6, 2))
    ]
    # A finished run gets the metrics of this call. It keeps its own scores, which may have
    # been computed on another device, and its dtype.
    results["scores"]["dev"] |= {"accuracy": 12.5, "mine": 3}
    (tmp_path / "run" / "results.json").write_text(json.dumps(results))
    arguments["metrics"] = lambda gold, predicted: {"two": len(gold), "other": 5}
    again = bert_jax.finetune(task, **arguments, main_metric="mine", **settings)
    kept = {name: x for name, x in results["scores"]["dev"].items() if name != "mine"}
    assert again.scores["dev"] == kept | {"two": 8, "other": 5}
    assert ("checkpoint", "bfloat16") in again._devices._kept
    assert ("checkpoint", "auto") not in again._devices._kept
    arguments["workdir"] = None
    for wrong in ({"accuracy": 1}, {"own": None}, {"own": np.ones(2)}):
        arguments["metrics"] = lambda *_, wrong=wrong: wrong
        with pytest.raises(
            UserError, match=r"metrics returned .*other names than accuracy"
        ):
            bert_jax.finetune(task, **arguments, **settings)


def test_splits_may_be_given_and_a_test_split_may_have_labels(
    checkpoint_dir, tmp_path, capsys, caplog, monkeypatch
):
    task, frame = classification()
    rows = frame.to_dict("records")
    (tmp_path / "dev.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    log = []
    arguments = dict(init_from=str(checkpoint_dir), train=rows, epochs=1, warmup=0.0)
    arguments |= dict(dev=tmp_path / "dev.jsonl", log=log.append)
    model = bert_jax.finetune(task, **arguments, test=rows[:9])
    assert set(model.scores) == {"dev", "test"}
    assert str(model.workdir) in repr(model) and model.workdir.is_dir()
    arguments |= dict(workdir=tmp_path / "run", test=[row["text"] for row in rows])
    assert set(bert_jax.finetune(task, **arguments).scores) == {"dev"}
    written = (tmp_path / "run/predictions/test_predictions.tsv").read_text()
    assert len(written.splitlines()) == 1 + len(rows)
    # A finished run does not run again, and other rows are refused as another run.
    log.clear()
    capsys.readouterr()
    caplog.clear()
    with caplog.at_level("INFO"), monkeypatch.context() as patch:
        run = from_python.run_one

        def run_one(*args, **kwargs):
            logging.getLogger("bert_jax.tasks").warning("a warning")
            return run(*args, **kwargs)

        patch.setattr(from_python, "run_one", run_one)
        bert_jax.finetune(task, **arguments, verbose=0)
        assert (log, caplog.messages, capsys.readouterr()) == ([], [], ("", ""))
        patch.setattr(from_python, "is_leader", lambda: False)
        bert_jax.finetune(task, **arguments | {"train": list(rows)})
        assert (caplog.messages, capsys.readouterr().out) == (["a warning"], "")
        assert not {line[:5] for line in log} & {"next:", "dev: "}
    log.clear()
    bert_jax.finetune(task, **arguments)
    assert [line[:16] for line in log] == ["already finished", "next: model.pred"]
    with pytest.raises(
        UserError, match=r"other settings \(data.dir: 'rows.* init_from="
    ):
        bert_jax.finetune(task, **arguments | {"train": rows[1:]})


@pytest.mark.parametrize(
    "make, row, message",
    [
        (classification, 3, " is of type int; expected a text"),
        (classification, ("good", float("nan")), ': "label" is missing'),
        (classification, ("good", 1.5), ": the label is 1.5"),
        (tagging, (["a", "b"], ["O"]), " has 2 words and the tags .*; expected"),
        (choices, ("a", ["b"], 0), ": 'choices' must be a list of at least two texts"),
        (squad, ("a", "b", "c"), ": the answer 'c' is not in the context"),
    ],
)
def test_the_error_has_the_bad_row(make, row, message):
    task, rows = make()
    rows = rows.to_dict("records") if isinstance(rows, Frame) else rows
    with pytest.raises(UserError, match=f"^train, row 1{message}"):
        task.with_rows(train=[rows[0], row, *rows[1:]]).read("train")


def test_the_default_length_fits_the_position_table(checkpoint_dir, tmp_path):
    """The checkpoint has 32 positions, but squad's questions have 64 tokens by default."""
    _, rows = squad()
    bert_jax.finetune(
        bert_jax.tasks.squad(),
        init_from=checkpoint_dir,
        train=rows,
        dev=rows[:4],
        workdir=tmp_path,
        log=[].append,
        epochs=1,
    )
    saved = load(tmp_path).extra["data"]
    assert saved["max_length"] == 32


def test_rows_of_dev_that_are_also_in_train_give_a_warning(checkpoint_dir, tmp_path):
    rows, lines = [(" ".join(words), label) for words, label in texts()], []
    dev = [*rows[:3], ("bad bad bad bad bad", 0)]
    bert_jax.finetune(
        bert_jax.tasks.classification(max_length=32),
        init_from=checkpoint_dir,
        train=rows,
        dev=dev,
        workdir=tmp_path,
        log=lines.append,
        epochs=1,
    )
    warning = "warning: dev: 3 of 4 rows have the same tokens as a row of train, so"
    assert sum(line.startswith(warning) for line in lines) == 1


def test_recombined_sentences_are_other_rows(checkpoint_dir, tmp_path):
    words = ["sea bad", "sea good", "bad sea", "good sea"]
    lines: list[str] = []
    bert_jax.finetune(
        bert_jax.tasks.sentence_vectors(max_length=24),
        init_from=checkpoint_dir,
        train=[(words[0], words[1], 1.0), (words[2], words[3], 0.0)],
        dev=[(words[0], words[2], 1.0), (words[1], words[3], 0.0)],
        workdir=tmp_path,
        log=lines.append,
        epochs=1,
    )
    assert not any("same tokens" in line for line in lines)


def test_pairs_without_labels_need_dev(checkpoint_dir, tmp_path):
    task = bert_jax.tasks.sentence_vectors(loss="contrastive", max_length=24)
    pairs = [
        (" ".join(a), " ".join(b))
        for (a, _), (b, _) in zip(texts(), texts(24, 1), strict=True)
    ]
    arguments = dict(
        init_from=checkpoint_dir, train=pairs, epochs=1, log=[].append, workdir=tmp_path
    )
    with pytest.raises(UserError, match=r"^train, row \d+: no label and no negative"):
        bert_jax.finetune(task, **arguments)
    labelled = [(*pair, i % 3) for i, pair in enumerate(pairs[:6])]
    model = bert_jax.finetune(task, **arguments, dev=labelled)
    assert "pearson" in model.scores["dev"]


def test_a_missing_value_in_a_column_of_whole_numbers_is_refused():
    """pandas turns the column into the floats 0.0, 1.0 and NaN."""
    pandas = pytest.importorskip("pandas")
    texts = ["bad", "good", "so so"]
    gap = pandas.DataFrame({"text": texts, "label": [0, 1, None]})
    task = bert_jax.tasks.classification().with_rows(train=gap)
    with pytest.raises(UserError, match=r'^train, row 2: "label" is missing'):
        _ = task.labels
    for labels in ([0, 1, 1], np.array([0, 1, 1], np.int8), pandas.array([0, 1, 1])):
        frame = pandas.DataFrame({"text": texts, "label": labels})
        task = bert_jax.tasks.classification().with_rows(train=frame)
        assert task.labels == ("0", "1")
        assert [row.label for row in task.read("train")] == ["0", "1", "1"]


def test_a_label_of_minus_one_is_missing_in_a_test_split():
    """As in GLUE's test splits of Hugging Face."""
    train = [{"sentence": "a", "label": 0}, {"sentence": "b", "label": 1}]
    test = [{"sentence": "c", "label": -1}, {"sentence": "d", "label": -1}]
    task = bert_jax.tasks.glue("sst2").with_rows(train=train, dev=train, test=test)
    assert (task.splits.scored, task.splits.predicted) == (
        ("dev",),
        ("test",),
    )
    assert [row.label for row in task.read("test")] == [None, None]
    mixed = bert_jax.tasks.glue("sst2").with_rows(train=train, test=[*test, train[0]])
    assert mixed.splits.scored == ("dev", "test")
    with pytest.raises(
        UserError, match=r"^test, row 0: label '-1' is not in the label"
    ):
        mixed.read("test")
    sentiment = [("a", -1), ("b", 0), ("c", 1)]
    task = bert_jax.tasks.classification().with_rows(train=sentiment)
    assert task.labels == ("-1", "0", "1")


def test_a_split_may_be_a_data_set_of_a_hub(monkeypatch):
    monkeypatch.setattr(splits, "read_hub", lambda *names: names)
    for split, hub_split in {
        "train": "train",
        "dev": "validation",
        "test": "test",
    }.items():
        assert splits.from_hub("hf:org/a:b", split) == ("hf:org/a:b", hub_split)
    rows = [("hf:a", "b")]
    assert splits.from_hub(rows, "train") is rows


def test_the_dev_share_of_a_task_is_held_out():
    task, rows = bert_jax.tasks.classification(dev=0.3), [("a", "b"), ("c", "d")] * 10
    log: list[str] = []
    held_out = from_python._with_rows(task, rows, None, None, 0, log.append)
    assert len(held_out.splits.rows["dev"]) == 6
    assert log == ["dev: 30% of the training rows, which are held out"]


def test_a_string_is_not_read_as_a_file():
    with pytest.raises(UserError, match=r"^train is a str, .* or a file as Path"):
        bert_jax.tasks.classification().with_rows(train="a.csv")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({}, "there are no training rows"),
        ({"dev": [("good", "yes")]}, "give train=rows .dev and test need it"),
        ({"train": []}, "^train has no rows"),
        ({"train": [("a", "b")], "seed": -1}, "^seed=-1, expected at least 0 and "),
        ({"train": [("good", "a")] * 9, "epoch": 1}, "epoch is not an arg.*epochs"),
        ({"num_train_epochs": 3}, r"^num_train_epochs is not .* did you mean epochs\?"),
        (
            {"lr": 1e-4},
            r"^lr is not an argument of finetune; did you mean learning_rate",
        ),
        (
            {"max_length": 16},
            r"^max_length is not an argument of finetune, but of the task: "
            r"bert_jax\.tasks\.classification\(max_length=16\)",
        ),
        ({"callbacks": [print]}, r"finetune; did you mean callback\?"),
        ({"eval_dataset": []}, r"finetune; did you mean dev\?"),
        ({"metrics": "f1"}, "^metrics='f1', expected a function of labels and answers"),
        ({"callback": "f1"}, "^callback='f1', expected a function of the step and"),
        (
            {"dtype": "auto"},
            r"^dtype is not .* of a group: compute=dict\(dtype=\.\.\.\)",
        ),
        ({"folds": 3}, "^folds is not an argument of finetune; expected one of"),
        (
            {"data": {"max_length": 8}},
            "^data is not an argument of finetune; expected one of",
        ),
        ({"train": [("good", "a")] * 9}, "rows with 1 label .a.;"),
        (
            {"train": [("a", "b")], "workdir": 3},
            "^workdir=3, expected the path of a folder",
        ),
        (
            {"train": [("a", "b")], "workdir": __file__},
            "^workdir=.* must be a folder, but is a file",
        ),
        ({"optimizer": [1]}, r"^optimizer=\[1\], expected a dictionary of settings"),
        *(
            (
                {"train": [("good", "a")] * 9, "dev": share},
                f"^dev={float(share)}, expected rows, or a share .* above 0 and below 1",
            )
            for share in (0, True, 1.0, -0.1, np.float32(1.5))
        ),
    ],
)
def test_a_wrong_argument_is_a_one_line_error(arguments, message, checkpoint_dir):
    task, _ = classification()
    with pytest.raises(UserError, match=message):
        bert_jax.finetune(task, init_from=checkpoint_dir, log=[].append, **arguments)
    with pytest.raises(UserError, match=r"^the task is 'x'; expected one of"):
        bert_jax.finetune("x", init_from=checkpoint_dir, train=[("a", "b")])
    with pytest.raises(UserError, match="is of type dict, expected a path or a model"):
        bert_jax.finetune(task, init_from={}, train=[("a", "b")])


def test_a_setting_of_a_task_is_named_with_its_function(checkpoint_dir):
    task, _ = squad()
    with pytest.raises(UserError, match=r"bert_jax\.tasks\.squad\(n_best=4\)"):
        bert_jax.finetune(task, init_from=checkpoint_dir, n_best=4)


def test_paths_of_a_run_may_start_with_the_home_folder(
    tmp_path, monkeypatch, checkpoint_dir
):
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    quiet = dict(workdir="~/run", log=[].append)
    with pytest.raises(UserError, match=f"{home}/none does not exist"):
        bert_jax.pretrain(text="~/a.txt", init_from="~/none", steps=1, **quiet)
    with pytest.raises(UserError, match=f"{home}/a.txt does not exist"):
        bert_jax.pretrain(text="~/a.txt", init_from=checkpoint_dir, steps=1, **quiet)
    rows = [(f"{word} text", word) for word in ("good", "bad") * 8]
    task = bert_jax.tasks.classification()
    with pytest.raises(UserError, match=f"{home}/none does not exist"):
        bert_jax.finetune(task, init_from=Path("~/none"), train=rows, **quiet)
    with pytest.raises(UserError, match=f"{home}/rows.csv does not exist"):
        path = Path("~/rows.csv")
        bert_jax.finetune(task, init_from=checkpoint_dir, train=path, **quiet)
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    assert bert_jax.tasks.tagging(dir=Path("~/x")).config.dir == f"{home}/x"


def test_creating_a_task_does_not_import_jax():
    program = """
import sys
import bert_jax
from bert_jax.tasks import rows
assert "bert_jax.tasks.families" not in sys.modules
assert "squad" in dir(bert_jax.tasks)
task = bert_jax.tasks.glue("stsb", dir="glue/STS-B")
assert not {"jax", "sklearn"} & {*sys.modules}
print(task, *dir(bert_jax.tasks))
"""
    command = [sys.executable, "-c", program]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.startswith("Classification(dir='glue/STS-B', task='stsb') ")
    # Modules of the package do not have the names of the functions.
    assert {make.__name__ for make in MAKERS} <= set(output.split())


def test_a_run_on_moved_or_copied_data_is_the_same_run(
    checkpoint_dir, tmp_path, monkeypatch
):
    """The place of the data, unused columns and the place of the checkpoint may change."""
    monkeypatch.chdir(tmp_path)
    rows = [("good film", "a", "x"), ("bad film", "b", "y")] * 6
    for name, more in (("one", False), ("two", True)):
        lines = [",".join(row[: 2 + more]) for row in [("text", "label", "n"), *rows]]
        (tmp_path / name).mkdir()
        (tmp_path / name / "t.csv").write_text("\n".join(lines))
        (tmp_path / name / "train.csv").write_text("\n".join(lines))
        (tmp_path / name / "dev.csv").write_text("\n".join(lines[:7]))
    shutil.copytree(checkpoint_dir, tmp_path / "copy")
    task, log = bert_jax.tasks.classification(max_length=24), []
    arguments = dict(init_from=str(checkpoint_dir), epochs=1, log=log.append)
    first = arguments | {"workdir": tmp_path / "run", "train": Path("one/t.csv")}
    model = bert_jax.finetune(task, **first)
    for change in (
        {"train": tmp_path / "one/t.csv"},
        {"train": Path("two/t.csv")},
        {"init_from": "copy"},
    ):
        del log[:]
        assert bert_jax.finetune(task, **first | change).scores == model.scores
        assert any(line.startswith("already finished") for line in log), change
    of_folder = arguments | {"workdir": tmp_path / "run2"}
    dirs = ("one", "./one/", str(tmp_path / "one"), "two")
    for number, folder in enumerate(dirs):
        del log[:]
        task = bert_jax.tasks.classification(max_length=24, dir=folder)
        bert_jax.finetune(task, **of_folder)
        assert any(line.startswith("already finished") for line in log) == (number > 0)
    (tmp_path / "two/train.csv").write_text("text,label\ngood,a\nbad,b\nso,a\n")
    with pytest.raises(
        UserError, match=r"run2 contains a run with other settings \(.*data\.dir: 'one'"
    ):
        bert_jax.finetune(task, **of_folder)


def test_a_head_with_the_same_labels_keeps_their_order(checkpoint_dir, tmp_path):
    """The labels of a head are not sorted, and its parameters are kept."""
    rows = [("good film", "yes"), ("bad film", "no")] * 8
    words = [(["anna", "walks"], ["B-PER", "O"]), (["in", "paris"], ["O", "B-PER"])] * 8
    for name, task, train, labels in (
        ("classes", "classification", rows, ("yes", "no")),
        ("tags", "tagging", words, ("O", "B-PER")),
    ):
        make = getattr(bert_jax.tasks, task)
        arguments = dict(train=train, epochs=1, log=[].append)
        first = bert_jax.finetune(
            make(max_length=24, labels=labels),
            init_from=checkpoint_dir,
            workdir=tmp_path / name,
            **arguments,
        )
        assert first.labels == labels
        log = []
        arguments |= dict(init_from=tmp_path / name, log=log.append)
        second = bert_jax.finetune(make(max_length=24), **arguments)
        assert second.labels == labels
        assert not any("initialised at random" in line for line in log)
        fresh = bert_jax.finetune(make(max_length=24), fresh_head=True, **arguments)
        assert set(fresh.labels) >= {*labels} and fresh.labels[0] != labels[0]


def test_a_run_starts_from_a_model_in_memory(checkpoint_dir, tmp_path):
    """The run equals a run from the saved model. Another model is another run."""
    task, frame = classification()
    rows, log = frame.to_dict("records"), []
    loaded = bert_jax.load(checkpoint_dir)
    changed = jax.tree.map(lambda x: np.float32(1.25) * x, loaded.params)
    start = dataclasses.replace(loaded, params=changed)
    start.save(tmp_path / "saved")
    arguments = dict(train=rows, dev=rows, epochs=1, log=log.append)
    expected = bert_jax.finetune(task, init_from=tmp_path / "saved", **arguments)
    arguments |= dict(workdir=tmp_path / "run")
    model = bert_jax.finetune(task, init_from=start, **arguments)
    jax.tree.map(np.testing.assert_array_equal, model.params, expected.params)
    folder = json.loads((tmp_path / "run/config.json").read_text())["init_from"]
    jax.tree.map(np.testing.assert_array_equal, load(folder).params, start.params)
    bert_jax.finetune(task, init_from=start, **arguments)
    assert any(line.startswith("already finished") for line in log)
    with pytest.raises(UserError, match=r"other settings \(.*init_from"):
        bert_jax.finetune(task, init_from=loaded, **arguments)
    with pytest.raises(UserError, match="on one machine; save the model with"):
        bert_jax.finetune(task, init_from=start, **arguments | {"workdir": "gs://x/y"})


def test_a_group_of_settings_may_be_a_config(checkpoint_dir, monkeypatch, tmp_path):
    configs = []

    def stop(config, *_, **__):
        configs.append(config)
        raise UserError("stopped")

    monkeypatch.setattr(from_python, "run_one", stop)
    monkeypatch.setattr(cross_validation, "run_sweep", stop)
    monkeypatch.setattr(from_python.pretraining, "pretrain", stop)
    chosen = dict(learning_rate=3e-4, beta1=0.8, clip_norm=math.inf)
    optimizer = FineTuneOptimizer(**chosen)
    groups = dict(optimizer=optimizer, mesh=MeshConfig(fsdp=True))
    groups |= dict(compute=ComputeConfig(remat="dots"), init_from=checkpoint_dir)
    groups["workdir"] = tmp_path
    task, rows = bert_jax.tasks.classification(), [("a", "x"), ("b", "y")] * 4
    tuned = groups | dict(train=rows, model=ModelSettings(pooling="mean"))
    with pytest.raises(UserError, match="class OptimizerConfig, expected FineTuneO"):
        bert_jax.finetune(task, **tuned | dict(optimizer=OptimizerConfig(1e-3)))
    groups["optimizer"] = OptimizerConfig(**chosen)
    for function, arguments in (
        (functools.partial(bert_jax.finetune, task), tuned | dict(verbose=0)),
        (functools.partial(bert_jax.cross_validate, task), tuned | dict(folds=2)),
        (bert_jax.pretrain, groups | dict(text=__file__, steps=3, data=DataConfig())),
    ):
        with pytest.raises(UserError, match="stopped"):
            function(**arguments)
        config = configs[-1]
        assert config.optimizer == arguments["optimizer"]
        assert config.mesh.fsdp and config.compute.remat == "dots"
    assert [x.model.pooling for x in configs[:2]] == ["mean", "mean"]
    changed = groups | dict(text=__file__, steps=3, warmup=0.4)
    with pytest.raises(UserError, match="stopped"):
        bert_jax.pretrain(**changed)
    changed = dataclasses.replace(groups["optimizer"], warmup=0.4)
    assert configs[-1].optimizer == changed


@pytest.mark.parametrize(
    ("objective", "line"),
    [
        ("bert_jax.objectives.mlm_nsp", "next: model.fill_mask('The [MASK] is here.')"),
        ("bert_jax.objectives.electra", "next: bert_jax.finetune(task, init_from='"),
    ],
)
def test_only_a_masked_lm_is_advised_to_fill_masks(
    objective, line, checkpoint_dir, monkeypatch, tmp_path
):
    model = bert_jax.load(checkpoint_dir)
    monkeypatch.setattr(from_python.pretraining, "pretrain", lambda *_, **__: None)
    monkeypatch.setattr(from_python, "load", lambda workdir: model)
    monkeypatch.setattr(
        from_python, "read_runs", lambda _: [SimpleNamespace(metrics=[])]
    )
    lines = []
    arguments = dict(text=__file__, steps=3, objective=objective, log=lines.append)
    bert_jax.pretrain(workdir=tmp_path, init_from=checkpoint_dir, **arguments)
    assert lines[-1].startswith(line)


def test_a_resumed_state_needs_a_learning_rate(checkpoint_dir, tmp_path):
    """The default of a new run would replace the rate of the resumed run."""
    with pytest.raises(UserError, match=r"learning_rate is missing; set it"):
        bert_jax.pretrain(
            text=tmp_path, init_from=checkpoint_dir, init_state=True, steps=3
        )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (dict(text=__file__), ()),
        (dict(text=__file__, prompts=["a [MASK]"]), ("a [MASK]",)),
        (dict(steps=3), ("the [MASK] of the sea",)),
    ],
)
def test_prompts_of_a_config_are_about_its_own_text(
    arguments, expected, checkpoint_dir, monkeypatch, tmp_path
):
    configs = []

    def record(config, *_, **__):
        configs.append(config)
        raise KeyboardInterrupt

    monkeypatch.setattr(from_python.pretraining, "pretrain", record)
    own = dict(init_from=str(checkpoint_dir), phases=[dict(steps=2)])
    own["prompts"] = ("the [MASK] of the sea",)
    with pytest.raises(KeyboardInterrupt):
        bert_jax.pretrain(own | {"data": {"corpus": ["moby"]}}, tmp_path, **arguments)
    with pytest.raises(KeyboardInterrupt):  # a config without a text is about any text
        bert_jax.pretrain(own, tmp_path, **{"text": __file__} | arguments)
    assert configs[0].prompts == expected
    assert configs[1].prompts == tuple(arguments.get("prompts", own["prompts"]))


def test_two_values_of_one_setting_are_refused(checkpoint_dir):
    twice = dict(learning_rate=1e-4, optimizer={"learning_rate": 1e-3})
    with pytest.raises(
        UserError, match=r"learning_rate and optimizer\['learning_rate'\]"
    ):
        bert_jax.finetune(
            bert_jax.tasks.classification(), init_from=checkpoint_dir, train=[], **twice
        )


def test_a_setting_replaces_the_value_of_a_config():
    """The config has a value for each setting, including settings that were not given."""
    optimizer = FineTuneOptimizer(learning_rate=1e-4, warmup=0.3)
    given = {"optimizer": optimizer, "warmup": 0.2, "epochs": 7}
    grouped = in_groups(bert_jax.finetune, given)
    expected = dataclasses.replace(optimizer, warmup=0.2)
    assert grouped == {"optimizer": to_dict(expected), "epochs": 7}


@pytest.mark.parametrize("wrong", [0.5, [], b"x", object()])
def test_values_of_other_types_are_refused_in_one_line(wrong, checkpoint_dir, tmp_path):
    """Each function refuses a wrong value, and names its argument."""
    text, task = tmp_path / "a.txt", bert_jax.tasks.classification()
    text.write_text("The sea.")
    start = dict(init_from=checkpoint_dir, workdir=tmp_path / "run", verbose=0)
    pretrain = functools.partial(bert_jax.pretrain, text=text, steps=1, **start)
    start["train"] = [("a", "x"), ("b", "y")] * 4
    finetune = functools.partial(bert_jax.finetune, task, **start)
    folds = functools.partial(bert_jax.cross_validate, task, **start)
    vocabulary = functools.partial(bert_jax.vocabulary, input=text, output="v.txt")
    prepare = functools.partial(bert_jax.prepare, text, checkpoint_dir, output="s")
    names = {
        pretrain: ("config", "data", "optimizer", "init_from", "log", "workdir"),
        finetune: ("optimizer", "mesh", "init_from", "log", "workdir"),
        folds: ("model", "folds", "init_from", "log", "change_settings"),
        vocabulary: ("output", "kind", "input_format", "language"),
        prepare: ("output", "input_format", "workers", "segmenter"),
    }
    for function, arguments in names.items():
        for name in arguments:
            with pytest.raises(UserError, match=f"^{name}|number of {name} is"):
                function(**{name: wrong})
    for function in (bert_jax.tokenizer, bert_jax.load):
        with pytest.raises(UserError, match="expected the path of a folder"):
            function(wrong)
    for name in ("data", "optimizer"):
        with pytest.raises(UserError, match=f"^{name}=None, expected a dictionary"):
            pretrain(**{name: None})
