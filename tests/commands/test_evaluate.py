"""The evaluate command scores a checkpoint like its run, and trains nothing."""

import dataclasses
import json

import pytest

import bert_jax
from bert_jax.commands import evaluate
from bert_jax.errors import UserError
from bert_jax.inference.model import Bert, load
from bert_jax.training.config import finetune_config
from bert_jax.training.sweep import run_one


@pytest.fixture(scope="module")
def finished(settings, tmp_path_factory):
    """The settings, the workdir and the results of a run."""
    values = settings("classification", epochs=2)
    workdir = tmp_path_factory.mktemp("run")
    results = run_one(finetune_config(values), workdir, [].append)
    return values, workdir, results


@pytest.fixture
def run(finished, capsys):
    _, workdir, _ = finished

    def run(*arguments):
        evaluate.main(["--checkpoint", str(workdir), *map(str, arguments)])
        return capsys.readouterr().out.splitlines()

    return run


def test_scores_and_files_equal_the_runs(finished, run, tmp_path):
    given, workdir, results = finished
    lines = run("--output", tmp_path / "out")
    scores = results["scores"]
    assert lines == [
        f"{split}: "
        + " ".join(f"{name} {value:.2f}" for name, value in scores[split].items())
        for split in scores
    ]
    written = json.loads((tmp_path / "out/scores.json").read_text())
    for split, values in scores.items():
        assert written[split] == pytest.approx(values)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    for name in {n for n in names if n != "scores.json" and not n.endswith(".png")}:
        assert (workdir / "predictions" / name).is_file()
    confusion = {"dev.confusion.json", "dev.confusion.png"}
    assert {*confusion, "dev.errors.html", "dev.errors.jsonl"} <= names
    assert run("--data.dir", given["data"]["dir"]) == lines
    with pytest.raises(
        UserError, match=r"/out is not empty"
    ):  # checked before all other errors
        run("--output", tmp_path / "out", "--input", "missing.csv")


def test_other_data_is_scored_or_refused(finished, run, tmp_path):
    _, workdir, _ = finished
    rows = [{"text": "w1 good w2", "label": "yes"}, {"text": "w3 bad", "label": "no"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "a.csv").write_text("text,label\nw1 good w2,yes\nw3 bad,no\n")
    lines = run("--input", tmp_path / "a.jsonl")
    assert lines == run("--input", tmp_path / "a.csv")
    model = load(workdir)
    scores = model.evaluate(rows)
    assert lines == [f"dev: accuracy {scores['accuracy']:.2f} f1_macro "
                     f"{scores['f1_macro']:.2f}"]  # fmt: skip
    assert model.evaluate(tmp_path / "a.csv") == scores
    assert model.evaluate(tuple(row.values()) for row in rows) == scores
    (tmp_path / "b.csv").write_text("text,label\nw1,maybe\n")
    with pytest.raises(UserError, match=r"b\.csv:2: label 'maybe' is not in the label"):
        run("--input", tmp_path / "b.csv")
    with pytest.raises(UserError, match="dev has no rows"):
        model.evaluate([])


def test_the_column_of_the_text_may_be_named(finished, run, tmp_path):
    _, workdir, _ = finished
    rows = [{"text": "w1 good w2", "label": "yes"}, {"text": "w3 bad", "label": "no"}]
    other = [{"title": "x", "review": r["text"], "label": r["label"]} for r in rows]
    (tmp_path / "a.csv").write_text(
        "".join(f"{','.join(row)}\n" for row in [other[0], *map(dict.values, other)])
    )
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    model = load(workdir)
    scores = model.evaluate(rows)
    assert model.evaluate(other, columns="review") == scores
    assert model.evaluate(tmp_path / "a.csv", columns=["review"]) == scores
    assert run("--input", tmp_path / "a.csv", "--columns", "review") == run(
        "--input", tmp_path / "b.jsonl"
    )
    with pytest.raises(
        UserError, match=r"row 0: no column 'text'.*set columns to its name$"
    ):
        model.evaluate(other)
    with pytest.raises(
        UserError, match=r"a\.csv:2: no column 'body'; the columns are t"
    ):
        run("--input", tmp_path / "a.csv", "--columns", "body")
    with pytest.raises(UserError, match=r"row 0: no column 'label'"):
        model.evaluate([{"review": "w1"}], columns="review")
    for split in ("train", "dev"):
        (tmp_path / f"{split}.csv").write_bytes((tmp_path / "a.csv").read_bytes())
    output = run("--data.dir", tmp_path, "--columns", "review")
    assert output == run("--input", tmp_path / "b.jsonl")


def test_a_task_without_labels_has_the_labels_of_the_checkpoint(finished):
    _, workdir, _ = finished
    rows = [("w1 good w2", "yes"), ("w3 bad", "no")]
    other = [{"review": text, "kind": label} for text, label in rows]
    model = load(workdir)
    scores = model.evaluate(rows)
    task = bert_jax.tasks.classification()
    assert model.evaluate(rows, task=task, max_length=24) == scores
    task = bert_jax.tasks.classification(text_a="review", label="kind")
    assert model.evaluate(other, task=task, max_length=24) == scores


def test_a_checkpoint_without_a_task_is_refused(checkpoint_dir, finished):
    with pytest.raises(UserError, match="encoder without a head"):
        evaluate.main(["--checkpoint", str(checkpoint_dir)])


def test_a_head_of_another_tool_is_scored(finished, caplog):
    """Its classes have other names. They are matched by position or by a task."""
    _, workdir, _ = finished
    rows = [("w1 good w2", "yes"), ("w3 bad", "no"), ("good w4 w5", "no")]
    model = load(workdir)
    scores = model.evaluate(rows)
    other = dataclasses.replace(model, extra={}, labels=("LABEL_0", "LABEL_1"))
    numbers = [(text, int(label == "yes")) for text, label in rows]
    assert other.evaluate(numbers) == scores
    named = bert_jax.tasks.classification(labels=("no", "yes"))
    caplog.clear()
    with caplog.at_level("WARNING", "bert_jax"):
        assert other.evaluate(rows, task=named, max_length=24) == scores
    assert caplog.messages == [
        "classes are matched by position: LABEL_0 is no, LABEL_1 is yes"
    ]
    # If the names are known, they decide, ignoring order and case.
    for labels in (("yes", "no"), ("YES", "No")):
        renamed = [(t, {"yes": labels[0], "no": labels[1]}[label]) for t, label in rows]
        reordered = bert_jax.tasks.classification(labels=labels)
        assert model.evaluate(renamed, task=reordered, max_length=24) == scores
    strange = bert_jax.tasks.classification(labels=("no", "maybe"))
    with pytest.raises(
        UserError, match="the classes are no, yes, the labels of the task no, maybe; g"
    ):
        model.evaluate(rows, task=strange)
    with pytest.raises(UserError, match="label 'yes' is not in the label set LABEL_0"):
        other.evaluate(rows)
    three = bert_jax.tasks.classification(labels=("no", "yes", "maybe"))
    with pytest.raises(
        UserError, match=r"with 2 outputs, but the task needs a \w+ head with 3"
    ):
        other.evaluate(rows, task=three)


@pytest.fixture
def search_folder(tmp_path):
    """A folder in BEIR's form."""
    queries, corpus = ["sea good", "it bad"], ["sea good ship", "bad", "red it is"]
    (tmp_path / "search/qrels").mkdir(parents=True)
    for name, texts in (("queries", queries), ("corpus", corpus)):
        rows = (
            json.dumps({"_id": f"{name}{i}", "text": x}) for i, x in enumerate(texts)
        )
        (tmp_path / f"search/{name}.jsonl").write_text("\n".join(rows))
    scores = "query-id corpus-id score\nqueries0 corpus1 1\nqueries1 corpus2 2\n"
    scores = scores.replace(" ", "\t")
    (tmp_path / "search/qrels/test.tsv").write_text(scores)
    return queries, corpus, [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ((), {}),
        (
            (
                *("--query_prompt", "red ", "--document_prompt", "ship sea "),
                *("--max_length", 5, "--batch_size", 8),
            ),
            {"query_prompt": "red ", "document_prompt": "ship sea ", "max_length": 5},
        ),
    ],
)
def test_a_search_is_scored(finished, run, search_folder, tmp_path, flags, options):
    _, workdir, _ = finished
    (line,) = run("--search", tmp_path / "search", "--output", tmp_path / "out", *flags)
    model = bert_jax.load(workdir)
    expected = model.evaluate_search(*search_folder, **options)
    written = json.loads((tmp_path / "out/scores.json").read_text())["search"]
    assert written == pytest.approx(expected)
    shown = " ".join(f"{name} {score:.2f}" for name, score in expected.items())
    assert line == f"search: {shown}"


def test_the_options_of_a_search_reach_it(run, search_folder, tmp_path, monkeypatch):
    seen = {}
    monkeypatch.setattr(
        Bert, "evaluate_search", lambda self, *rows, **more: seen.update(more) or {}
    )
    flags = ("--query_prompt", "a: ", "--document_prompt", "b: ", "--max_length", 7)
    run(
        "--search",
        tmp_path / "search",
        *flags,
        "--batch_size",
        5,
        "--dtype",
        "bfloat16",
    )
    assert seen == {
        "query_prompt": "a: ",
        "document_prompt": "b: ",
        "max_length": 7,
        "batch_size": 5,
        "dtype": "bfloat16",
        "excluded": [],
    }


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("--search", "x", "--input", "y"),
            "--search cannot be combined with --input, --data",
        ),
        (
            ("--search", "x", "--data.dir", "y"),
            "--search cannot be combined with --input",
        ),
        (
            ("--search", "x", "--columns", "y"),
            "--search cannot be combined with --input",
        ),
        (("--query_prompt", "x"), "--query_prompt and --document_prompt need --search"),
        (("--input", "x", "--data.dir", "y"), "--input cannot be combined with --data"),
    ],
)
def test_flags_without_an_effect_are_refused(run, flags, message):
    with pytest.raises(UserError, match=message):
        run(*flags)
