import copy
import json

import numpy as np
import pytest

import bert_jax
from bert_jax.errors import UserError
from bert_jax.tasks.multiple_choice import MultipleChoice, MultipleChoiceConfig
from bert_jax.tasks.task import write_answers

SWAG = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,"
    "ending0,ending1,ending2,ending3,label\n"
    '0,v,17,"The cat, ran. He",The cat ran.,He,gold,"sat, ran",sat,"ran ""x""",bad,2\n'
)


def build(folder, task, files, **settings):
    for name, content in files.items():
        (folder / name).write_text(content)
    return MultipleChoice(MultipleChoiceConfig(task=task, dir=str(folder), **settings))


def codah_line(number, label=3):
    return f'o\tcontext {number} "\ta\tb\tc\td\t{label}\n'


def letters(tokenizer, features):
    """Sequences as strings: one character a token, [CLS] as <, [SEP] as >."""
    text = ["".join(tokenizer.tokens[i] for i in ids) for ids in features.input_ids]
    return [t.replace("[CLS]", "<").replace("[SEP]", ">") for t in text]


def test_swag_is_read(tmp_path, tokenizer):
    unlabelled = "\n".join(line.rpartition(",")[0] for line in SWAG.splitlines())
    task = build(
        tmp_path, "swag", {"train.csv": SWAG, "val.csv": SWAG, "test.csv": unlabelled}
    )
    assert (task.splits.scored, task.splits.predicted) == (("dev",), ("test",))
    assert (task.head, task.outputs, task.labels) == ("choice", 1, ())
    (row,) = task.read("train")
    assert row.context == "The cat ran."
    assert row.choices == ("He sat, ran", "He sat", 'He ran "x"', "He bad")
    assert (row.label, row.id) == (2, "17")
    assert task.read("test")[0].label is None
    features = task.encode([row], tokenizer)
    assert letters(tokenizer, features)[1] == "<thecatran.>h##esat>"
    np.testing.assert_array_equal(
        features.token_type_ids[1], [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]
    )
    assert features.choices == 4
    assert set(features.targets) == {"label"}
    np.testing.assert_array_equal(features.targets["label"], [2])


def test_codah_is_split_by_row_number(tmp_path):
    lines = "".join(codah_line(i) for i in range(13))
    for fold in range(5):
        task = build(tmp_path, "codah", {"codah.tsv": lines}, fold=fold)
        assert task.splits.scored == ("dev", "test")
        numbers = {
            split: [int(row.context.split()[1]) for row in task.read(split)]
            for split in ("train", "dev", "test")
        }
        assert numbers["test"] == list(range(fold, 13, 5))
        assert numbers["dev"] == list(range((fold + 1) % 5, 13, 5))
        assert sorted(x for part in numbers.values() for x in part) == [*range(13)]
    (row, *_) = task.read("test")
    assert row.context == 'context 4 "'
    assert (row.choices, row.label) == (("a", "b", "c", "d"), 3)


JSONL = (
    '{"context": "a", "choices": ["b", "c"], "label": 1, "id": 4}\n'
    '{"context": "d", "choices": ["e", "f", "g h"], "label": "2"}\n'
)


def test_choices_in_a_cell(tmp_path):
    lines = ["context,choices,label", "(a),\"['b', 'c d']\",1", "a,\"['b' 'c d']\",0"]
    content = "\n".join(lines)
    (first, second) = build(tmp_path, "table", {"train.csv": content}).read("train")
    assert first.choices == second.choices == ("b", "c d")
    assert (first.context, first.label) == ("(a)", 1)
    bad = content.replace("'c d'", "c d")
    with pytest.raises(
        UserError, match=r"train\.csv:2: column 'choices' starts like a l"
    ):
        build(tmp_path, "table", {"train.csv": bad}).read("train")


def test_rows_may_have_different_numbers_of_choices(tmp_path, tokenizer):
    task = build(tmp_path, "table", {"train.jsonl": JSONL})
    rows = task.read("train")
    features = task.encode(rows, tokenizer)
    expected = ["<a>b>", "<a>c>", "<>", "<d>e>", "<d>f>", "<d>gh>"]
    assert letters(tokenizer, features) == expected
    assert features.choices == 3
    np.testing.assert_array_equal(features.example, [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(features.targets["label"], [1, 2])
    mask = features.targets["choice_mask"]
    np.testing.assert_array_equal(mask, [[1, 1, 0], [1, 1, 1]])
    assert mask.dtype == np.float32
    # The absent choice has by far the best score and is never predicted.
    outputs = [np.float32(x) for x in (0, np.log(3), 50, 1, 1, 1)]
    first, second = task.decode(rows, features, outputs)
    assert first == {
        "id": 4,
        "choice": 1,
        "text": "c",
        "probability": pytest.approx(0.75),
        "probabilities": pytest.approx([0.25, 0.75]),
    }
    assert second["probabilities"] == pytest.approx([1 / 3] * 3)
    assert task.score(rows, [first, second]) == {"accuracy": 50}


def test_truncation_cuts_the_longer_text_and_counts_rows(parse, tmp_path, tokenizer):
    task = build(tmp_path, "table", {}, max_length=8)
    lines = ["a b c d\te f g h\tx", "a b c\tb d\tc", "a b c d e f\tg\th"]
    features = task.encode(parse(task, lines, "in"), tokenizer)
    assert letters(tokenizer, features) == [
        *("<abc>ef>", "<abcd>x>"),
        *("<abc>bd>", "<abc>c>"),
        *("<abcd>g>", "<abcd>h>"),
    ]
    assert features.truncated == 2
    assert features.targets == {}
    from_left = copy.copy(tokenizer)
    from_left.truncation = "tail"
    features = task.encode(parse(task, lines, "in"), from_left)
    assert letters(tokenizer, features)[:2] == ["<bcd>gh>", "<abcd>x>"]


def test_lines_are_parsed_and_predictions_are_written(parse, tmp_path):
    task = build(tmp_path, "table", {})
    lines = ["a\tb\tc\td\r\n", {"context": "e", "choices": ["f", "g"], "id": "x"}]
    first, second = parse(task, lines, "in")
    assert (first.context, first.choices) == ("a", ("b", "c", "d"))
    assert (second.choices, second.id, second.where) == (("f", "g"), "x", "in:2")
    answers = [{"choice": 1}, {"choice": 0}]
    (path,) = write_answers(task, [first, second], answers, "test", tmp_path / "out")
    assert path == tmp_path / "out" / "test_predictions.csv"
    assert path.read_text() == ",pred\n0,1\n1,0\n"


def table(**changes):
    row = {"context": "a", "choices": ["b", "c"], "label": 0} | changes
    return json.dumps({name: value for name, value in row.items() if value is not None})


@pytest.mark.parametrize(
    "task, name, content, message",
    [
        ("swag", "train.csv", SWAG.replace(",2\n", ",4\n"), ":2: label '4' must be"),
        ("swag", "train.csv", SWAG.replace("sent1", "s"), "or 'sent1'; the columns"),
        (
            "swag",
            "train.csv",
            SWAG.replace("The cat ran.", " "),
            "csv:2: the text is empty",
        ),
        ("codah", "codah.tsv", codah_line(0, "x") * 5, "tsv:3: label 'x' .*0 to 3"),
        ("codah", "codah.tsv", "o\ta\tb\tc\n", "tsv:1: row has 4 columns.*has 7"),
        ("codah", "other.tsv", "", r"has no .*, codah\.tsv "),
        ("table", "train.jsonl", table(choices=None), "jsonl:1: no column 'choices'"),
        ("table", "train.jsonl", table(label=True), "label 'True' .* 0 to 1"),
        ("table", "train.jsonl", table(choices=["b"]), "'choices' must be a list"),
        (
            "table",
            "train.jsonl",
            table(choices=["b", ""]),
            "jsonl:1: the text is empty",
        ),
    ],
)
def test_bad_files_are_refused(tmp_path, task, name, content, message):
    with pytest.raises(UserError, match=message):
        build(tmp_path, task, {name: content}).read("train")


def test_bad_lines_are_refused(parse, tmp_path):
    task = build(tmp_path, "table", {})
    with pytest.raises(UserError, match="in:1 has 1 value; expected context, choices"):
        parse(task, ["a"])
    with pytest.raises(
        UserError, match="in:1: 'choices' must be a list of at least two"
    ):
        parse(task, ["a\tb"])


def test_a_column_of_choices_that_is_named_must_exist():
    row = dict(zip(("sent1", "sent2"), "ab", strict=True), label=0)
    row |= {f"ending{i}": "c" for i in range(4)}
    task = bert_jax.tasks.choices(task="swag")
    assert task.with_rows(dev=[row]).read("dev")[0].choices == ("b c",) * 4
    task = bert_jax.tasks.choices(task="swag", choices="options")
    with pytest.raises(UserError, match="no column 'options'"):
        task.with_rows(dev=[row])


def test_a_file_that_a_user_names_is_not_divided_into_folds(tmp_path):
    lines = "".join(codah_line(i) for i in range(10))
    for name in ("codah.tsv", "dev.tsv"):
        (tmp_path / name).write_text(lines)
    paths = {"train": tmp_path / "codah.tsv", "dev": tmp_path / "dev.tsv"}
    task = bert_jax.tasks.choices(task="codah").with_rows(**paths)
    assert [len(task.read(split)) for split in ("train", "dev")] == [10, 10]
    task = build(tmp_path, "codah", {}, train="dev.tsv", dev="dev.tsv")
    assert len(task.read("train")) == 10
    # The published file keeps its folds, so that no row of dev is in train.
    task = build(tmp_path, "codah", {}, train="codah.tsv")
    assert [len(task.read(split)) for split in ("train", "dev")] == [6, 2]
    rows = [{"context": "c", "choices": ["a", "b"], "label": 1}]
    (tmp_path / "more.json").write_text(json.dumps(rows))
    task = bert_jax.tasks.choices(task="codah").with_rows(dev=tmp_path / "more.json")
    assert task.read("dev")[0].choices == ("a", "b")
