import csv
import functools
import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bert_jax
from bert_jax.commands import embed, predict, score
from bert_jax.errors import UserError
from bert_jax.inference import evaluation
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.model.bert import BertForPreTraining, BertModel
from bert_jax.model.config import BertConfig, FeatureConfig
from bert_jax.model.tokens import Tokens
from bert_jax.objectives.networks import make_model
from bert_jax.tasks.rows import read_rows
from tests.word_tokenizer import TOKENIZER

CONFIG = BertConfig(
    vocab_size=TOKENIZER.vocab_size,
    hidden_size=32,
    num_layers=1,
    num_heads=2,
    intermediate_size=32,
    max_positions=80,
    initializer_range=0.5,
)
HEADS = {
    "classes": ("sequence", 2, {"labels": ("bad", "good")}),
    "number": ("sequence", 1, {"problem_type": "regression"}),
    "entities": ("token", 3, {"labels": ("B-LOC", "B-PER", "O")}),
    "parts of speech": ("token", 2, {"labels": ("NOUN", "VERB")}),
    "segments": ("token", 4, {"labels": ("B", "E", "M", "S")}),
    "choice": ("choice", 1, {}),
    "span": ("span", 2, {}),
    "blanks": ("pretraining", 0, {}),
    "encoder": ("none", 0, {}),
}
INPUTS = {
    "classes": ["a good film", "the bad dog eats ."],
    "number": ["a good film", "the bad dog eats ."],
    "entities": ["the man sees rome", "a cat"],
    "parts of speech": ["the man sees rome", "a cat"],
    "segments": ["abc d", "ef"],
    "choice": ["the man\teats\tsees rome", "who ?\ta dog\ta cat\ta film"],
    "span": ["who eats ?\tthe big man eats", "where ?\tthe dog sees rome ."],
    "blanks": ["the [MASK] sees [MASK]", "[MASK] ?"],
}
COLUMNS = {  # of answers.csv, as docs/tasks.md has them
    "classes": "label,probability,probabilities.bad,probabilities.good",
    "number": "value",
    "entities": "words,tags,probabilities,offsets,entities",
    "parts of speech": "words,tags,probabilities,offsets",
    "segments": "words,tags,probabilities,offsets,entities",
    "choice": "choice,text,probability,probabilities",
    "span": "id,answer,probability,start,end",
    "blanks": "text,blanks",
}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A function of a key of HEADS that returns the folder of a random checkpoint."""
    ids = jnp.zeros((1, 8), jnp.int32)

    @functools.cache
    def make(name):
        head, outputs, settings = HEADS[name]
        inputs = [ids, ids, ids + 1]
        if head == "pretraining":
            model, inputs = BertForPreTraining(CONFIG), [*inputs, ids]
        elif head == "none":
            model = BertModel(CONFIG)
        else:
            model = make_model(CONFIG, head, outputs, FeatureConfig())
            inputs = [Tokens.of_mask(*inputs)]
        init = functools.partial(model.init, deterministic=True)
        shapes = jax.eval_shape(init, jax.random.key(1), *inputs)["params"]
        random = np.random.default_rng(1)
        params = jax.tree.map(
            lambda x: np.float32(random.normal(scale=0.5, size=x.shape)), shapes
        )
        params = {"bert": params} if head == "none" else params
        folder = tmp_path_factory.mktemp("checkpoint")
        checkpoint = Checkpoint(CONFIG, params, TOKENIZER, head, **settings)
        save_huggingface(folder, checkpoint)
        return str(folder)

    return make


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """A function of checkpoint, lines and flags that returns stdout's lines and stderr."""

    def run(path, lines, *arguments, stdin=False):
        text = "".join(f"{line}\n" for line in lines)
        (tmp_path / "input.txt").write_text(text, encoding="utf-8")
        source = "-" if stdin else str(tmp_path / "input.txt")
        if stdin:
            given = io.TextIOWrapper(io.BytesIO(text.encode()))
            monkeypatch.setattr("sys.stdin", given)
        form = [] if "--output" in arguments else ["--json"]
        predict.main(["--checkpoint", path, "--input", source, *form, *arguments])
        output = capsys.readouterr()
        return output.out.splitlines(), output.err

    return run


# The other families run the same code on other tags.
RARE = {"number", "parts of speech", "segments"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.long] * (n in RARE)) for n in INPUTS],
)
def test_json_lines_and_a_table_of_each_family(name, checkpoint, run, tmp_path):
    lines, err = run(checkpoint(name), INPUTS[name])
    answers = [json.loads(line) for line in lines]
    assert len(answers) == len(INPUTS[name])
    warnings = err.splitlines()
    # The vocabulary of the test does not have the words of one of the inputs.
    assert len(warnings) == (name == "segments")
    assert all("of the tokens are unknown" in warning for warning in warnings)
    for answer in answers:
        for probability in _probabilities(answer):
            assert 0 <= probability <= 1 + 1e-9
    path = tmp_path / "table.csv"
    run(checkpoint(name), INPUTS[name], "--output", str(path))
    table = path.read_text().splitlines()
    assert (table[0], len(table)) == (COLUMNS[name], 3)


@pytest.mark.parametrize("name", ["classes", "entities", "choice", "span"])
def test_a_frame_without_rows_has_the_columns_of_answers(name, checkpoint):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": [], "other": []})
    answered = bert_jax.load(checkpoint(name)).predict(frame, as_frame=True)
    names = [x for x in COLUMNS[name].split(",") if x != "id"]
    assert [*answered] == ["text", "other", *(f"predicted_{x}" for x in names)]
    assert len(answered) == 0


def _probabilities(answer):
    for name, value in answer.items():
        if name == "probability":
            yield value
        elif name == "probabilities":
            values = list(value.values()) if isinstance(value, dict) else value
            yield from values
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for entry in value:
                yield from _probabilities(entry)


def test_several_texts_of_a_flag_are_one_row(checkpoint, capsys, run):
    name = "choice"
    texts = [x for line in INPUTS[name] for x in ("--text", *line.split("\t"))]
    predict.main(["--checkpoint", checkpoint(name), "--json", *texts])
    lines = capsys.readouterr().out.splitlines()
    assert lines == run(checkpoint(name), INPUTS[name])[0]
    assert lines == run(checkpoint(name), INPUTS[name], stdin=True)[0]
    with pytest.raises(UserError, match="one of the arguments --text --input is req"):
        predict.main(["--checkpoint", checkpoint(name)])


def test_tags_of_a_text_have_character_offsets(checkpoint, run, capsys, tmp_path):
    text = "the man sees rome, paris."
    (line,), _ = run(checkpoint("entities"), [text])
    answer = json.loads(line)
    assert answer["words"] == ["the", "man", "sees", "rome", ",", "paris", "."]
    assert [text[a:b] for a, b in answer["offsets"]] == answer["words"]
    for entity in answer["entities"]:
        assert entity["text"] == text[slice(*entity["characters"])]
        start, end = (
            answer["offsets"][i] for i in (entity["start"], entity["end"] - 1)
        )
        assert entity["characters"] == [start[0], end[1]]
    (tmp_path / "words.jsonl").write_text('{"words": ["rome,", "paris"]}\n')
    flags = ["--checkpoint", checkpoint("entities"), "--json"]
    predict.main([*flags, "--input", str(tmp_path / "words.jsonl")])
    answer = json.loads(capsys.readouterr().out)
    assert answer["words"] == ["rome,", "paris"] and "offsets" not in answer


def test_an_empty_line_has_an_answer(checkpoint, run, tmp_path):
    name = "entities"
    texts = [INPUTS[name][0], "", INPUTS[name][1]]
    lines, err = run(checkpoint(name), texts)
    assert (len(lines), err) == (3, "")
    others = [json.loads(lines[i]) for i in (0, 2)]
    alone, _ = run(checkpoint(name), INPUTS[name])
    for actual, line in zip(others, alone, strict=True):
        assert actual.keys() == json.loads(line).keys() == json.loads(lines[1]).keys()
    run(checkpoint(name), texts, "--output", str(tmp_path / "a.csv"))
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("command", "more", "good", "bad"),
    [
        (embed, [], "the man", "a\tb\tc"),
        (predict, [], "the [MASK]", "the man"),
        (predict, ["--next_sentence"], "the man\ta cat", "the man"),
        (score, [], "the man", "the man " * 50),
    ],
)
def test_an_output_file_is_replaced_by_a_complete_file(
    command, more, good, bad, checkpoint, tmp_path
):
    folder, texts = tmp_path / "out", tmp_path / "texts.txt"
    path = folder / ("x.npz" if command is embed else "x.jsonl")
    folder.mkdir()
    path.write_bytes(b"before")
    flags = ["--checkpoint", checkpoint("blanks"), "--input", str(texts), *more]
    texts.write_text(f"{good}\n{bad}\n")
    with pytest.raises(UserError, match=r"texts.txt:2"):
        command.main([*flags, "--output", str(path)])
    assert path.read_bytes() == b"before"
    texts.write_text(f"{good}\n{good}\n")
    command.main([*flags, "--output", str(path)])
    if command is embed:
        assert np.load(path)["embeddings"].shape == (2, 32)
    else:
        assert len(path.read_text().splitlines()) == 2
    assert list(folder.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "lines", "arguments", "message"),
    [
        ("encoder", ["a"], [], "finetune.*embed"),
        ("classes", ["a"], ["--max_length", "81"], "exceeds the model's 80 positions"),
        ("classes", ["a"], ["--batch_size", "0"], "batch_size=0"),
        (
            "choice",
            ["a\tb"],
            [],
            "input.txt:1: 'choices' must be a list of at least two",
        ),
        (
            "span",
            ["who eats"],
            [],
            "input.txt:1 has 1 value; expected question, context",
        ),
        ("blanks", ["[MASK]", "the man"], [], r"input.txt:2: no \[MASK\]"),
        ("blanks", ["[MASK]" + " a" * 90], [], "input.txt:1 has 93 tokens, at most 80"),
        ("classes", [], [], "input.txt is empty"),
        ("span", [], [], "input.txt is empty"),
    ],
)
def test_bad_input_is_a_one_line_error(
    name, lines, arguments, message, checkpoint, run
):
    with pytest.raises(UserError, match=message) as caught:
        run(checkpoint(name), lines, *arguments)
    assert "\n" not in str(caught.value)


REVIEWS = [("7", "a good film"), ("9", 'the "bad" dog, eats')]


def write_table(path):
    """Writes the rows of REVIEWS in the format of the path's ending."""
    if path.suffix == ".csv":
        text = "id,text\n" + "".join(
            f'{i},"{t.replace(chr(34), 2 * chr(34))}"\n' for i, t in REVIEWS
        )
    elif path.suffix == ".tsv":
        text = "id\ttext\n" + "".join(f"{i}\t{t}\n" for i, t in REVIEWS)
    else:
        rows = [{"id": int(i), "text": t} for i, t in REVIEWS]
        lines = "".join(f"{json.dumps(row)}\n" for row in rows)
        text = lines if path.suffix == ".jsonl" else json.dumps(rows)
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "json"])
def test_a_table_is_read_by_columns_and_keeps_them_in_the_output(
    ending, checkpoint, run, capsys, tmp_path
):
    expected, _ = run(checkpoint("classes"), [text for _, text in REVIEWS])
    path = write_table(tmp_path / f"new.{ending}")
    predict.main(["--checkpoint", checkpoint("classes"), "--input", path, "--json"])
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    typed = [7, 9] if ending in ("jsonl", "json") else ["7", "9"]
    assert [answer.pop("id") for answer in answers] == typed
    assert [answer.pop("text") for answer in answers] == [text for _, text in REVIEWS]
    for answer, line in zip(answers, expected, strict=True):
        other = {f"predicted_{name}": x for name, x in json.loads(line).items()}
        assert answer.keys() == other.keys()
        for name in ("predicted_label", "predicted_probability"):
            assert answer[name] == pytest.approx(other[name], abs=1e-6)
    # The same rows in Python.
    model = bert_jax.load(checkpoint("classes"))
    rows = [{"id": i, "text": text} for i, text in REVIEWS]
    assert [answer["id"] for answer in model.predict(rows)] == ["7", "9"]
    rows = [{"id": i, "text": "a good film"} for i in (0, 7, "7", None)]
    assert [a.get("id") for a in model.predict(rows)] == [0, 7, "7", None]


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
@pytest.mark.parametrize(
    ("command", "flags", "columns", "new"),
    [
        (score, [], ["tokens"], ["log_probability", "predicted_tokens"]),
        (predict, [], ["blanks"], ["predicted_blanks"]),
        (
            predict,
            ["--next_sentence"],
            ["blanks", "probability"],
            ["predicted_probability"],
        ),
    ],
)
def test_a_pretrained_model_answers_beside_the_columns_of_a_table(
    command, flags, columns, new, ending, checkpoint, tmp_path
):
    """An answer with the name of a column, even of the text itself, gets a prefix."""
    names = "tokens", "blanks", "probability"
    row = {"text": "a cat", "id": "7", "predicted_tokens": "old"}
    row |= dict.fromkeys(names, "the [MASK]")
    table, output = tmp_path / f"new.{ending}", tmp_path / f"answers.{ending}"
    rows = [row, row | {"id": ""}]
    if ending == "jsonl":
        rows[0] = row | {"id": 7, "topic": ["x", "y"]}
    lines = [json.dumps(x) for x in rows]
    if ending == "csv":
        lines = [",".join(x) for x in (row, *(x.values() for x in rows))]
    table.write_text("".join(f"{line}\n" for line in lines))
    flags = ["--checkpoint", checkpoint("blanks"), "--input", str(table), *flags]
    command.main([*flags, "--columns", *columns, "--output", str(output)])
    answers = [answer for _, answer in read_rows(output)]
    for answer, given in zip(answers, rows, strict=True):
        assert answer.keys() == given.keys() | set(new)
        changed = {name for name in answer if answer[name] != given.get(name)}
        assert changed == set(new)


@pytest.mark.parametrize("command", [predict, score, embed])
def test_an_output_that_is_the_input_is_refused(command, checkpoint, tmp_path):
    text, name = "the man\ta cat\n", "x.npz" if command is embed else "x.jsonl"
    for path in (tmp_path / "x.csv", tmp_path / name):
        path.write_text(text)
    (tmp_path / "link.jsonl").symlink_to(tmp_path / name)
    kind = "classes" if command is predict else "blanks"
    flags = ["--checkpoint", checkpoint(kind), "--input", str(tmp_path / name)]
    outputs = [name] if command is embed else [name, "link.jsonl"]
    for output in outputs:
        with pytest.raises(UserError, match=f"{output} is the input"):
            command.main([*flags, "--output", str(tmp_path / output)])
    assert (tmp_path / name).read_text() == text


@pytest.mark.parametrize("command", [predict, score])
def test_an_output_with_an_unknown_ending_is_refused(command, checkpoint, tmp_path):
    kind = "classes" if command is predict else "blanks"
    flags = ["--checkpoint", checkpoint(kind), "--text", "a dog"]
    for name in ("a.tsv", "a.xlsx", "a.json"):
        message = f"{name} must end in .csv or .jsonl"
        with pytest.raises(UserError, match=message):
            command.main([*flags, "--output", str(tmp_path / name)])
    path = tmp_path / "answers"
    command.main([*flags, "--output", str(path)])
    assert [*json.loads(path.read_text())]
    with pytest.raises(UserError, match=r"a\.csv must end in .jsonl with --json"):
        command.main([*flags, "--output", str(tmp_path / "a.csv"), "--json"])


@pytest.mark.parametrize(
    ("command", "kind", "name"),
    [
        (predict, "classes", "new.csv"),
        (score, "blanks", "new.csv"),
        (predict, "blanks", "pairs.tsv"),
    ],
)
def test_answers_are_written_as_csv(command, kind, name, checkpoint, capsys, tmp_path):
    pairs = "text_a\ttext_b\na dog, big\tthe man\n?\ta cat\n"
    (tmp_path / "pairs.tsv").write_text(pairs)
    write_table(tmp_path / "new.csv")
    flags = ["--checkpoint", checkpoint(kind), "--input", str(tmp_path / name)]
    flags += ["--next_sentence"] * (name == "pairs.tsv")
    command.main([*flags, "--json"])
    expected = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    command.main([*flags, "--output", str(tmp_path / "answers.CSV")])
    with (tmp_path / "answers.CSV").open(newline="") as file:
        written = list(csv.DictReader(file))
    assert len(written) == len(expected) == 2
    for row, answer in zip(written, expected, strict=True):
        name = "predicted_probabilities"
        for key, value in answer.pop(name, {}).items():
            assert float(row.pop(f"{name}.{key}")) == pytest.approx(value)
        assert row == {key: str(value) for key, value in answer.items()}


def test_columns_name_the_texts_of_a_pair_in_their_order(checkpoint, capsys, tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("title,review\na dog,a good film\na cat,the bad dog\n")
    flags = ["--checkpoint", checkpoint("classes"), "--input", str(path), "--columns"]
    model = bert_jax.load(checkpoint("classes"))
    assert model.predict([]) == []
    titles, reviews = ("a dog", "a cat"), ("a good film", "the bad dog")
    for columns, rows in (
        (["review"], list(reviews)),
        (["title", "review"], list(zip(titles, reviews, strict=True))),
        (["review", "title"], list(zip(reviews, titles, strict=True))),
    ):
        predict.main([*flags, *columns, "--json"])
        answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [(row.pop("title"), row.pop("review")) for row in answers] == [
            *zip(titles, reviews, strict=True)
        ]
        assert answers == [
            {f"predicted_{name}": x for name, x in answer.items()}
            for answer in model.predict(rows)
        ]


def test_top_lists_labels_of_texts_and_tokens_of_blanks(checkpoint, run):
    (line, _), _ = run(checkpoint("classes"), INPUTS["classes"], "--top", "1")
    answer = json.loads(line)
    assert [*answer] == ["label", "probability", "top"]
    assert answer["top"] == [{k: answer[k] for k in ("label", "probability")}]
    for more, count in (["--top", "2"], 2), ([], 5):
        (line, _), _ = run(checkpoint("blanks"), INPUTS["blanks"], *more)
        assert [len(blank) for blank in json.loads(line)["blanks"]] == [count] * 2


def test_a_column_that_the_first_rows_lack_is_refused(
    checkpoint, monkeypatch, tmp_path
):
    path = tmp_path / "new.jsonl"
    path.write_text('{"text": "a"}\n' * 2 + '{"text": "a", "note": "b"}\n')
    chunks = functools.partial(evaluation.chunks)
    monkeypatch.setattr(
        evaluation, "chunks", lambda rows, size, *more: chunks(rows, 2, *more)
    )
    flags = ["--checkpoint", checkpoint("classes"), "--input", str(path)]
    predict.main([*flags, "--output", str(tmp_path / "a.jsonl")])
    with pytest.raises(UserError, match="column 'note' is missing in the first"):
        predict.main([*flags, "--output", str(tmp_path / "a.csv")])


def test_next_sentence_reads_two_texts_or_a_file_of_pairs(checkpoint, capsys, tmp_path):
    pairs = [["the dog eats .", "the man sees"], ["a big film", "good ?"]]
    model = bert_jax.load(checkpoint("blanks"))
    expected = [model.next_sentence(*pair) for pair in pairs]
    path = tmp_path / "pairs.txt"
    path.write_text("".join(f"{first}\t{second}\n" for first, second in pairs))
    flags = ["--checkpoint", checkpoint("blanks"), "--next_sentence"]
    predict.main([*flags, "--input", str(path), "--json"])
    lines = capsys.readouterr().out.splitlines()
    predict.main([*flags, "--text", *pairs[0], "--text", *pairs[1], "--json"])
    assert capsys.readouterr().out.splitlines() == lines
    for line, pair, probability in zip(lines, pairs, expected, strict=True):
        answer = json.loads(line)
        assert [answer["first"], answer["second"]] == pair
        assert answer["probability"] == pytest.approx(probability, abs=1e-6)
    path.write_text("a dog\ta cat\nonly one\n")
    with pytest.raises(UserError, match=r"pairs\.txt:2 has 1 text; expected a pair"):
        predict.main([*flags, "--input", str(path)])
