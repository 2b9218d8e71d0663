"""bert_jax.vocabulary and bert_jax.prepare."""

import inspect
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import bert_jax
from bert_jax.commands import prepare, vocabulary
from bert_jax.data.store import TokenStore
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.data.wordpiece import WordPieceTokenizer
from bert_jax.errors import UserError
from bert_jax.training import text_functions
from bert_jax.training.text_functions import file_names

LINES = ["Das Meer ist ruhig.", "Der Wal schläft bzw. taucht.", "", "Ein Café am Meer."]
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def word_tokenizer(words):
    return WordPieceTokenizer([*SPECIALS, *words], True)


@pytest.fixture
def text(tmp_path):
    """JSON lines whose texts are in the field "body"."""
    path = tmp_path / "notes.jsonl"
    lines = [f'{{"body": "{line} {line}"}}\n' for line in LINES if line]
    path.write_text("".join(lines) * 9)
    return path


def test_a_byte_level_bpe_is_trained_on_the_sentences_of_prepared_text(tmp_path):
    """A sentence has the space before it, unless it starts a document."""
    path = tmp_path / "text.txt"
    path.write_text("Whales swim.\nAhab sleeps.\n\nWhales swim.\nAhab eats.\n\n" * 9)
    tokenizer = bert_jax.vocabulary(
        path, tmp_path / "bpe.json", size=320, kind="bpe", cased=True
    )
    assert {"Whales", "\u0120Ahab"} <= {*tokenizer.tokens}
    assert not {"Ahab", "\u0120Whales"} & {*tokenizer.tokens}
    prepared = tmp_path / "store"
    bert_jax.prepare(path, tokenizer, prepared, workers=1)
    stored = TokenStore(prepared)
    sentences = np.array([[0, len(stored.sentence_offsets) - 1]])
    (ids,) = stored.read_sentences(sentences)
    used = [tokenizer.tokens[i] for i in ids]
    assert used.count("Whales") == used.count("\u0120Ahab") == 18


def test_text_is_a_list_of_files(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    names, expected = ["~/a.txt", "b/*.txt"], [f"{tmp_path}/a.txt", "b/*.txt"]
    for text in (
        names,
        tuple(names),
        iter(names),
        [Path(name) for name in names],
        np.array(names),
        pd.Series(names),
        pl.Series(names),
        pa.array(names),
        pd.DataFrame({"file": names}),
        pl.DataFrame({"file": names}),
        pa.table({"file": names}),
        {"file": names},
    ):
        assert file_names(text, "text") == expected
    for text in ("~/a.txt", Path("~/a.txt"), np.array("~/a.txt")):
        assert file_names(text, "text") == expected[:1]
    for text in (None, "", (), np.array([]), pd.Series([], dtype=object)):
        assert file_names(text, "text") == []
    for text, message in (
        (
            pd.DataFrame({"a": names, "b": names}),
            "a table with 2 columns; expected one",
        ),
        (["a.txt", None], r"text\[1\]=None, expected the name of a file"),
        (pd.Series([1.5]), r"text\[0\]=1.5, expected the name of a file"),
        (5, "text=5, expected the names of files"),
        (b"a", "text=b'a', expected the names of files"),
    ):
        with pytest.raises(UserError, match=message):
            file_names(text, "text")


def defaults(function):
    parameters = inspect.signature(function).parameters.values()
    return {x.name: x.default for x in parameters}


def of_command(command, monkeypatch, function, *line):
    """The arguments with which a command calls ``function``."""
    seen = {}

    def called(**settings):
        seen.update(settings)
        raise UserError("seen")

    monkeypatch.setattr(text_functions, function, called)
    with pytest.raises(UserError, match="seen"):
        command.main([*line, "--input", "a.txt", "--output", "b.txt"])
    return seen


@pytest.mark.parametrize("name", ["vocabulary", "prepare"])
def test_a_command_has_the_arguments_and_defaults_of_its_function(name, monkeypatch):
    command = {"vocabulary": vocabulary, "prepare": prepare}[name]
    line = ["--vocabulary", "v.txt"] if name == "prepare" else []
    expected = defaults(getattr(bert_jax, name))
    given = {"input": ["a.txt"], "output": "b.txt"}
    if line:
        given["vocabulary"] = "v.txt"
    assert of_command(command, monkeypatch, name, *line) == expected | given


def test_a_vocabulary_is_written_and_returned(text, tmp_path):
    settings = dict(input_format="jsonl", text_field="body", language="de")
    output = tmp_path / "new" / "words.txt"
    cased = bert_jax.vocabulary(text, output, size=70, cased=True, **settings)
    assert cased.tokenize("Meer") == ["Meer"] and not cased.lower_case
    assert bert_jax.tokenizer(output).fingerprint() == cased.fingerprint()
    accents = bert_jax.vocabulary([text], output, keep_accents=True, **settings)
    assert "café" in accents.tokens and accents.lower_case
    output = tmp_path / "spiece.model"
    sentencepiece = bert_jax.vocabulary(
        text, output, size=30, kind="sentencepiece", **settings
    )
    assert (sentencepiece.kind, sentencepiece.vocab_size) == ("sentencepiece", 30)


def test_a_vocabulary_is_extended(text, tmp_path):
    old = word_tokenizer(["das", "meer", "w", "##al"])
    settings = dict(words=2, input_format="jsonl", text_field="body")
    output = tmp_path / "more.txt"
    more = bert_jax.vocabulary(text, output, extend=old, **settings)
    assert more.tokens[: len(old)] == old.tokens and len(more) == len(old) + 2
    again = bert_jax.vocabulary(text, tmp_path / "x.txt", extend=output, **settings)
    assert again.tokens[: len(more)] == more.tokens and len(again) == len(more) + 2


@pytest.mark.parametrize("there", ["tokenizer.json", "spiece.model"])
def test_a_vocabulary_of_another_kind_in_the_folder_is_refused(there, text, tmp_path):
    """Both would have the same file of settings."""
    folder = tmp_path / "vocabulary"
    folder.mkdir()
    (folder / there).write_text("mine")
    settings = dict(size=50, text_field="body")
    with pytest.raises(UserError, match=f"in the same folder as {there}"):
        bert_jax.vocabulary(text, folder / "vocab.txt", **settings)
    assert [path.name for path in folder.iterdir()] == [there]
    bert_jax.vocabulary(text, folder / "other.txt", **settings)
    written = {"other.txt", "other_config.json"}
    assert {path.name for path in folder.iterdir()} == {there, *written}


@pytest.mark.parametrize("owner", ["index.json", "config.json", "bert_config.json"])
def test_the_vocabulary_of_a_text_or_a_model_is_not_replaced(owner, text, tmp_path):
    """The text or the model would silently have other tokens."""
    (tmp_path / owner).write_text('{"hidden_size": 8}')
    (tmp_path / "vocab.txt").write_text("[PAD]\n")
    with pytest.raises(
        UserError, match="is the vocabulary of the text or model in its"
    ):
        bert_jax.vocabulary(text, tmp_path / "vocab.txt", size=50, text_field="body")
    assert (tmp_path / "vocab.txt").read_text() == "[PAD]\n"
    (tmp_path / owner).unlink()
    (tmp_path / "config.json").write_text('{"mine": 1}')
    bert_jax.vocabulary(text, tmp_path / "vocab.txt", size=50, text_field="body")


def test_an_extended_vocabulary_keeps_the_rules_of_sequences(text, tmp_path):
    old = word_tokenizer(["das", "meer", "w", "##al"])
    old.truncation = "tail"
    old.template = old.template._replace(second_type=0)
    output = tmp_path / "more.txt"
    bert_jax.vocabulary(text, output, extend=old, words=2, text_field="body")
    more = bert_jax.tokenizer(output)
    assert len(more) == len(old) + 2
    assert (more.truncation, more.template.second_type) == ("tail", 0)


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            dict(output="v.model"),
            r"output=v\.model, expected a \.txt file for wordpiece",
        ),
        (
            dict(kind="words"),
            "kind='words', expected one of wordpiece, sentencepiece, bpe",
        ),
        (
            dict(extend=3, words=1),
            "extend is of type int; expected a file, a tokenizer",
        ),
        (dict(extend="v.txt", size=9), "^size has no effect with the other arguments"),
        (dict(input=[]), "^input is empty; expected the name of at least one file"),
    ],
)
def test_a_wrong_argument_of_a_vocabulary_is_one_line(settings, message, text):
    settings = {"input": text, "output": "v.txt"} | settings
    with pytest.raises(UserError, match=message):
        bert_jax.vocabulary(**settings)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_format": "text"}, "input_format='text', expected one of auto, "),
        ({"workers": "2"}, "workers='2', expected a value of type int"),
        ({"language": 3}, "language=3, expected a value of type str"),
        ({"beam": ["--runner"]}, r"beam=\['--runner'\], expected"),
    ],
)
def test_a_wrong_argument_of_a_preparation_is_one_line(
    options, message, text, tmp_path
):
    tokenizer = word_tokenizer(["das"])
    with pytest.raises(UserError, match=message):
        bert_jax.prepare(text, tokenizer, tmp_path / "store", **options)
    assert not (tmp_path / "store").exists()


def test_a_folder_with_other_files_is_refused(text, tmp_path):
    """A vocabulary in the folder of a model is not replaced."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "vocab.txt").write_text("mine")
    with pytest.raises(UserError, match=r"model is not empty: it contains vocab\.txt"):
        bert_jax.prepare(text, word_tokenizer(["das"]), folder, text_field="body")
    assert (folder / "vocab.txt").read_text() == "mine"


def test_text_is_prepared_with_all_settings(text, tmp_path, monkeypatch):
    tokenizer = word_tokenizer(["das", "meer", "ist", "ruhig", ".", "der", "wal"])
    settings = dict(input_format="jsonl", text_field="body", language="de", shards=3)
    settings["segmenter"] = "tests.training.test_text_functions:segment"
    store = tmp_path / "store"
    report = bert_jax.prepare(text, tokenizer, store, workers=1, **settings)
    written = TokenStore(store).info
    assert report.info == written and len(written.shards) == 3
    kept = {
        name: written.settings[name] for name in ("text_field", "language", "words")
    }
    assert kept == {
        "text_field": "body",
        "language": "de",
        "words": settings["segmenter"],
    }
    assert written.settings["format"] == "jsonl"
    assert written.vocabulary_fingerprint == tokenizer.fingerprint()
    again = bert_jax.prepare([text], store, store, workers=1, **settings)
    assert str(again).endswith("was already prepared")
    seen = {}
    beam = lambda *_, **more: seen.update(more, options=_[3])  # noqa: E731
    monkeypatch.setattr(text_functions, "prepare_with_beam", beam)
    settings |= dict(workers=5, beam="--runner=Direct --x 1")
    bert_jax.prepare(text, tokenizer, "gs://bucket/store", **settings)
    assert (seen["workers"], seen["options"]) == (5, ["--runner=Direct", "--x", "1"])


def segment(text):
    """A segmenter: the words of a text."""
    return text.split()


def test_a_name_on_the_hub_gives_its_vocabulary(text, tmp_path, golden, monkeypatch):
    """For both functions. Only its small files are downloaded."""
    cached = shutil.copytree(golden / "huggingface/pretraining", tmp_path / "cache")
    tokenizer = load_tokenizer(golden / "huggingface/tokenizer")
    tokenizer.save(cached)
    asked = []

    def from_hub(name, *, weights):
        asked.append((str(name), weights))
        return cached

    monkeypatch.setattr("bert_jax.interop.load.from_hub", from_hub)
    reading = dict(text_field="body", language="de")
    bert_jax.prepare(text, "org/model@v1", tmp_path / "store", workers=1, **reading)
    prepared = TokenStore(tmp_path / "store").info
    assert prepared.vocab_size == tokenizer.vocab_size
    more = bert_jax.vocabulary(
        text, tmp_path / "vocab.txt", extend="org/model", words=1, **reading
    )
    assert more.tokens[:-1] == tokenizer.tokens
    assert asked == [("org/model@v1", False), ("org/model", False)]
    with pytest.raises(UserError, match=r"missing/vocab\.txt"):  # is a file
        bert_jax.prepare(text, "missing/vocab.txt", tmp_path / "other", **reading)
    assert len(asked) == 2


def test_a_model_gives_its_vocabulary(text, tmp_path):
    class Model:
        tokenizer = word_tokenizer(["das", "meer"])

    bert_jax.prepare(text, Model(), tmp_path / "store", text_field="body")
    found = TokenStore(tmp_path / "store").info.vocabulary_fingerprint
    assert found == Model.tokenizer.fingerprint()
    with pytest.raises(UserError, match=r"vocabulary is of type int; expected a file"):
        bert_jax.prepare(text, 3, tmp_path / "other")
