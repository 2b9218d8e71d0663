"""Rules and templates of transformers' classes; tests/golden/templates/classes.json has
the ids of AutoTokenizer."""

import json
import logging

import pytest
import tokenizers

from bert_jax.data.class_rules import BERT, GENERAL
from bert_jax.data.spiece import fairseq_json
from bert_jax.data.tokenizer import FAIRSEQ_TOKENS
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.errors import UserError

TEXTS = [
    "The cat's bee sat on the mat.",
    " The cat, a cat  and a bee",
    "a <mask> cat",
    "the<mask>, a  <mask> .",
    "Caf\u00e9 e\u0301 \u4e2d\u6587 \U0001f642 don't (see) it's 12,5",
    "a\ttab\nline\u00a0space ",
]
FOLDERS = ["byte_level", "fairseq", "../huggingface/tokenizer"]


@pytest.fixture
def write(golden, tmp_path):
    """Writes the tokenizer.json of a golden folder with changed parts and settings."""

    def write_files(folder, parts, settings):
        source = golden / "templates" / folder
        if folder == "fairseq":
            model = (source / "sentencepiece.bpe.model").read_bytes()
            content = fairseq_json(model, "XLMRobertaTokenizer", None, space=True)
        else:
            content = load_tokenizer(source).to_json()
        path = tmp_path / "tokenizer.json"
        path.write_text(json.dumps(json.loads(content) | parts))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        return tmp_path

    return write_files


@pytest.fixture
def rows(golden):
    return json.loads((golden / "templates/classes.json").read_text())


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_class_has_its_own_rules_and_template(write, rows, folder, tmp_path):
    """As loaded, as saved, and in the library that reads only tokenizer.json."""
    rows = [row for row in rows if row["folder"] == folder]
    assert len(rows) >= 8
    for row in rows:
        tokenizer = load_tokenizer(write(folder, row["parts"], row["settings"]))
        saved = tmp_path / "saved"
        tokenizer.save(saved)
        exported = tokenizers.Tokenizer.from_str(tokenizer.to_json().decode())
        for other in (tokenizer, load_tokenizer(saved)):
            for text, ids in zip(TEXTS, row["texts"], strict=True):
                found = other(text, allow_mask=True)["input_ids"].tolist()
                assert found == ids == exported.encode(text).ids, (row, text)
            pair = other("A cat's", "12 bees")
            assert pair["input_ids"].tolist() == row["ids"], row
            assert pair["token_type_ids"].tolist() == row["types"]
            assert other.fingerprint() == tokenizer.fingerprint()
        pair = exported.encode("A cat's", "12 bees")
        assert (pair.ids, pair.type_ids) == (row["ids"], row["types"])
        for path in saved.iterdir():  # the next row may have another file name
            path.unlink()


@pytest.mark.parametrize("name", GENERAL)
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_general_class_reads_all_of_the_file(write, rows, folder, name):
    for row in rows:
        parts = row["parts"]
        if row["folder"] != folder:
            continue
        if parts.get("post_processor", {}) is None or "special_tokens" in str(parts):
            continue  # these files have no special tokens
        settings = {"tokenizer_class": name, "add_prefix_space": True}
        path = write(folder, parts, settings) / "tokenizer.json"
        tokenizer = load_tokenizer(path)
        library = tokenizers.Tokenizer.from_file(str(path))
        for text in TEXTS:
            found = tokenizer(text, allow_mask=True)["input_ids"].tolist()
            assert found == library.encode(text).ids


@pytest.mark.parametrize("name", [*GENERAL, None])
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_file_without_a_template_gets_the_template_of_its_tokens(write, folder, name):
    path = write(folder, {"post_processor": None}, {"tokenizer_class": name})
    tokenizer = load_tokenizer(path)
    ids, types = tokenizer.build(tokenizer.encode("a"), tokenizer.encode("b"))
    exported = tokenizers.Tokenizer.from_str(tokenizer.to_json().decode())
    assert exported.encode("a", "b").ids == ids.tolist()
    assert exported.encode("a", "b").type_ids == types.tolist()
    cls, sep = tokenizer.cls_id, tokenizer.sep_id
    if tokenizer.special == FAIRSEQ_TOKENS:
        assert (tokenizer.template.between, types.any()) == ((sep, sep), False)
    else:
        assert (tokenizer.template.between, types[-1]) == ((sep,), 1)
    assert (ids[0], ids[-1]) == (cls, sep)


def test_the_space_of_a_class_is_off_if_its_settings_do_not_name_it(write):
    """ByteLevelBPETokenizer(add_prefix_space=True) sets it in tokenizer.json."""
    space = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
    for name, settings, first in (
        ("RobertaTokenizer", {}, "a"),
        ("RobertaTokenizerFast", {"add_prefix_space": None}, "a"),
        ("RobertaTokenizer", {"add_prefix_space": True}, "\u0120a"),
        ("PreTrainedTokenizerFast", {"add_prefix_space": False}, "\u0120a"),
        (None, {}, "\u0120a"),
        (None, {"add_prefix_space": False}, "a"),
    ):
        settings = {"tokenizer_class": name, **settings}
        path = write("byte_level", {"pre_tokenizer": space}, settings)
        assert load_tokenizer(path).tokenize("a") == [first], settings


def test_rules_of_a_file_that_are_not_used_are_logged(write, caplog):
    lower = {"normalizer": {"type": "Lowercase"}}
    with caplog.at_level(logging.WARNING):
        for name in ("PreTrainedTokenizerFast", "RobertaTokenizer"):
            path = write("byte_level", lower, {"tokenizer_class": name})
            load_tokenizer(path)
    (message,) = caplog.messages
    assert "its normalizer is not used, because RobertaTokenizer has its own" in message
    caplog.clear()
    load_tokenizer(write("byte_level", {}, {"tokenizer_class": "RobertaTokenizer"}))
    for name in BERT:
        load_tokenizer(write(FOLDERS[2], {}, {"tokenizer_class": name}))
    steps = {"normalizer": {"type": "Sequence", "normalizers": []}}
    load_tokenizer(write("fairseq", steps, {"tokenizer_class": None}))
    assert not caplog.messages


def test_a_file_with_the_rules_of_its_class_keeps_its_bytes(write):
    """The fingerprint of a store is the hash of this file."""
    for folder, name in zip(
        FOLDERS[:2], ("RobertaTokenizer", "XLMRobertaTokenizerFast"), strict=True
    ):
        path = write(folder, {}, {"tokenizer_class": name}) / "tokenizer.json"
        assert load_tokenizer(path).to_json() == path.read_bytes()


def test_missing_special_tokens_are_named(write):
    """A file without special tokens is not damaged."""
    vocab = {"[PAD]": 0, "[UNK]": 1, "cat": 2}
    model = {"type": "WordPiece", "vocab": vocab, "unk_token": "[UNK]"}
    model |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    parts = {"model": model, "added_tokens": [], "post_processor": None}
    settings = {"tokenizer_class": "BertTokenizer"}
    folder = write("../huggingface/tokenizer", parts, settings)
    with pytest.raises(UserError, match=r"\[CLS\]") as error:
        load_tokenizer(folder)
    assert "damaged" not in str(error.value)
