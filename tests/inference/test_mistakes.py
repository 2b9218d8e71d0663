import datetime
import html
import json

import pytest

import bert_jax
from bert_jax.inference.lines import Part, json_texts
from bert_jax.inference.mistakes import (
    LONGEST,
    confusion,
    majority_warning,
    mean_baseline,
    number_lines,
    worst_errors,
    write_mistakes,
)


def rows_of(task, rows):
    return task.with_rows(dev=rows).read("dev")


CLASSES = bert_jax.tasks.classification(labels=("a", "b"))
NUMBERS = bert_jax.tasks.classification(regression=True)
TAGS = bert_jax.tasks.tagging(labels=("B-LOC", "B-PER", "I-LOC", "O"))
CHOICES = bert_jax.tasks.choices()
QUESTIONS = bert_jax.tasks.squad()


def labelled(*answers):
    return [{"label": label, "probability": p} for label, p in answers]


def test_the_most_confident_errors_come_first():
    rows = [{"text": f"t{i}", "label": "aab"[i], "id": i} for i in range(3)]
    answers = labelled(("b", 0.6), ("a", 0.9), ("a", 0.7))
    second, first = (
        {"text": f"t{i}", "gold": gold, "predicted": other, "confidence": p}
        | {"where": f"dev, row {i}", "id": i}
        for i, gold, other, p in ((0, "a", "b", 0.6), (2, "b", "a", 0.7))
    )
    assert worst_errors(CLASSES, rows_of(CLASSES, rows), answers) == [first, second]


@pytest.mark.parametrize(
    "values, warns",
    [
        ([1, 3, 4, 8], False),
        ([4, 4, 4, 4], True),  # the mean itself
        ([8, 5, 2, 1], True),
        ([0.1, 0.1, 0.1, 0.1], True),
    ],
)
def test_answers_no_better_than_the_mean_are_a_warning(values, warns):
    baseline, warning = mean_baseline([1, 3, 4, 8], values)
    # The distances from the mean, 4, are 3, 1, 0 and 4.
    mean = "the mean of the labels, 4,"
    assert baseline == f"baseline: {mean} has rmse 2.55 and mae 2"
    assert bool(warning) == warns
    if warns:
        assert f"{mean} gives 2.55: the run has learned nothing; try" in warning
    assert mean_baseline([2, 2], [5, 5])[1] == ""


@pytest.mark.parametrize(
    "labels, warns",
    [
        ([0, 5, 2.5], False),
        ([1, 10, 4], False),
        ([-1, 1], False),
        ([3, 20, 7], True),
        ([98_000, 102_000], True),
        ([1e-5, 3e-5], True),
        ([1e5, 1e5], False),  # another warning names equal labels
    ],
)
def test_labels_far_from_a_new_head_are_a_warning(labels, warns):
    shown, warning = number_lines(labels)
    assert shown.startswith(f"{min(labels):.6g} to {max(labels):.6g}, mean ")
    assert bool(warning) == warns
    shown, warning = number_lines([98_000, 102_000])
    assert shown == "98000 to 102000, mean 100000, deviation 2000"
    assert warning.endswith(
        "train on (label - 100000) / 2000, and convert answers back"
    )


def shown(task, rows, predictions):
    errors = worst_errors(task, rows_of(task, rows), predictions)
    names = ("text", "gold", "predicted", "confidence")
    return [tuple(error.get(name) for name in names) for error in errors]


def test_errors_of_every_family_are_shown():
    answers = [{"value": 1.5}, {"value": 0.0}]
    mistakes = shown(NUMBERS, [("x", 1), ("y", 2)], answers)
    assert mistakes == [("y", 2.0, 0.0, None), ("x", 1.0, 1.5, None)]
    answers = [{"choice": 1, "text": "d", "probability": 0.6}]
    answers.append({"choice": 0, "text": "c", "probability": 0.7})
    rows = [("x", ["c", "d"], 0), ("y", ["c", "d"], 0)]
    assert shown(CHOICES, rows, answers) == [("x", "c", "d", 0.6)]
    answer = {"tags": ["O", "B-PER"], "probabilities": [0.9, 0.8]}
    rows = rows_of(TAGS, [(["in", "Rome"], ["O", "B-LOC"])])
    assert worst_errors(TAGS, rows, [answer]) == [
        {
            "word": "Rome",
            "text": "in Rome",
            "gold": "B-LOC",
            "predicted": "B-PER",
            "confidence": 0.8,
            "where": "dev, row 0",
        }
    ]
    rows = [("who?", "the whale", "whale"), ("who?", "the whale", "whale")]
    answers = [
        {"answer": "", "probability": 0.3},
        {"answer": "A whale", "probability": 1},
    ]
    assert shown(QUESTIONS, rows, answers) == [
        ("who? ‖ the whale", "whale", "(no answer)", 0.3)
    ]


def test_confusion_counts_equal_a_count_by_hand():
    rows = rows_of(CLASSES, [("x", "a"), ("x", "a"), ("x", "b"), ("x", "a")])
    answers = labelled(("a", 1), ("b", 1), ("b", 1), ("a", 1))
    assert confusion(CLASSES, rows, answers) == (["a", "b"], [[2, 1], [0, 1]])
    # Types of entities without the prefix of the tag. Each word counts.
    tags = ["B-LOC", "I-LOC", "O", "O"]
    rows = rows_of(TAGS, [("a b c d".split(), tags)])  # noqa: SIM905
    answer = {"tags": ["B-LOC", "B-PER", "O", "B-PER"], "probabilities": [1] * 4}
    labels, counts = confusion(TAGS, rows, [answer])
    assert labels == ["LOC", "O", "PER"]
    assert counts == [[1, 0, 1], [0, 1, 1], [0, 0, 0]]
    rows = rows_of(CHOICES, [("x", ["c", "d", "e"], 2)])
    answer = {"choice": 0, "text": "c", "probability": 1}
    assert confusion(CHOICES, rows, [answer]) == (["0", "2"], [[0, 0], [1, 0]])
    answer |= {"choice": 2, "text": "e"}  # one label, without a warning of scikit-learn
    assert confusion(CHOICES, rows, [answer]) == (["2"], [[1]])
    assert confusion(NUMBERS, rows_of(NUMBERS, [("x", 1)]), [{"value": 1}]) == ([], [])
    second = bert_jax.tasks.squad(version_2=True)
    rows = [
        ("who?", "a whale", "whale"),
        {**ASKED, "answers": [], "is_impossible": True},
    ]
    rows = rows_of(second, rows)
    answers = [{"answer": "whale", "probability": 1}] * 2
    assert confusion(second, rows, answers) == (
        ["answer", "no answer"],
        [[1, 0], [1, 0]],
    )


ASKED = {"question": "who?", "context": "a whale"}


@pytest.mark.parametrize(
    "counts, warned",
    [
        ([[0, 30], [0, 70]], True),
        ([[20, 10], [20, 50]], True),
        ([[21, 9], [20, 50]], False),
        ([[0, 0], [0, 70]], False),  # one class gives no warning
        ([], False),
    ],
)
def test_a_score_at_the_largest_class_gives_a_warning(counts, warned):
    line = majority_warning(counts)
    assert bool(line) == warned
    if warned:
        assert line.startswith("70.0% are right, and always predicting the largest")
        assert "bias_correction" in line and "\n" not in line


def test_files_of_errors_and_confusion_are_written(tmp_path):
    text = "<b>&"
    count = LONGEST + 5
    day = datetime.date(2020, 1, 2)  # an id of a type that JSON lacks
    rows = rows_of(CLASSES, [{"text": text, "label": "a", "id": day}] * count)
    answers = labelled(*(("b", i / count) for i in range(count)))
    paths = write_mistakes(tmp_path, CLASSES, "dev", rows, answers)
    assert [path.name for path in paths] == [
        "dev.errors.jsonl",
        "dev.errors.html",
        "dev.confusion.json",
    ]
    errors = [json.loads(line) for line in paths[0].read_text().splitlines()]
    expected = worst_errors(CLASSES, rows, answers)[:LONGEST]
    assert errors == [error | {"id": "2020-01-02"} for error in expected]
    (line,) = json_texts([Part(None, [{"id": day}])])
    assert json.loads(line) == {"id": "2020-01-02"}
    page = paths[1].read_text()
    assert page.count("<tr>") == 1 + LONGEST
    assert html.escape(text) in page and text not in page
    assert f"{count} errors in {count} rows of dev" in page
    one = write_mistakes(tmp_path / "one", CLASSES, "dev", rows[:1], answers[:1])
    assert "<title>1 error in 1 row of dev, " in one[1].read_text()
    assert json.loads(paths[2].read_text()) == {
        "split": "dev",
        "of": "rows",
        "labels": ["a", "b"],
        "counts": [[0, count], [0, 0]],
    }
    assert "<td>confidence</td>" in page and "<td>0.5122</td>" in page
    none = write_mistakes(tmp_path / "n", NUMBERS, "dev", *[[]] * 2)
    assert [path.name for path in none] == ["dev.errors.jsonl", "dev.errors.html"]
    rows = rows_of(TAGS, [(["Rome"], ["B-LOC"])])
    answers = [{"tags": ["O"], "probabilities": [1]}]
    path = write_mistakes(tmp_path, TAGS, "dev", rows, answers)[-1]
    assert json.loads(path.read_text())["of"] == "words"
