"""Damaged and unusual files, inputs found by fuzz.py, and properties of readers."""

import importlib.util
import json
import sys
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies

from bert_jax.data.corpus_formats import FORMATS, Reading
from bert_jax.data.sentences import split_sentences
from bert_jax.errors import UserError
from bert_jax.files import decode_lines, parse_json, valid_text
from bert_jax.tasks.rows import escaped, read_rows

HERE = Path(__file__).parent
spec = importlib.util.spec_from_file_location("fuzz", HERE / "fuzz.py")
fuzz = importlib.util.module_from_spec(spec)
sys.modules["fuzz"] = fuzz
spec.loader.exec_module(fuzz)

# No deadline, as no result may depend on the machine's speed. Examples are fixed.
hypothesis.settings.register_profile(
    "short", max_examples=60, deadline=None, derandomize=True, database=None
)
hypothesis.settings.load_profile("short")

DEEP = "[" * 5000
CONFIG = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
}
QUESTION = {"id": "3", "question": "q", "context": "a b"}
ANSWERS = {"text": ["a"], "answer_start": []}
NO_ANSWERS = {"context": "a", "qas": [{"id": "1", "question": "q", "answers": None}]}
POINTER = """version https://git-lfs.github.com/spec/v1
oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
size 12345
"""
FOUND = [
    ("corpus-jsonl", '{"text": "The \\ud800 sea."}', "result"),
    ("corpus-jsonl", f'{{"text": {DEEP}', "error"),
    ("corpus-markdown", "[" * 12_000, "result"),
    ("corpus-markdown", "![" * 6000, "result"),
    ("corpus-markdown", "*" * 12_000, "result"),
    ("corpus-text", "`" * 12_000, "result"),
    ("corpus-text", "\u0301\u0323" * 6000, "result"),
    ("squad-json", json.dumps({"data": [{"paragraphs": [NO_ANSWERS]}]}), "result"),
    ("squad-jsonl", json.dumps(QUESTION | {"answers": ANSWERS}), "error"),
    ("squad-jsonl", json.dumps(QUESTION | {"answers": 1}), "error"),
    ("tags-jsonl", '{"words": ["a"], "tags": [["O"]]}', "error"),
    ("tags-jsonl", '{"words": ["a"], "tags": [""]}', "error"),
    ("labels-jsonl", f'{{"text": "a", "label": "{DEEP}"}}', "error"),
    ("labels-jsonl", f'{{"text": "a", "label": "{"7" * 5000}"}}', "error"),
    ("table-jsonl", '{"text": "The", "label": "x", "id": NaN}', "result"),
    ("config.json", json.dumps(CONFIG | {"num_hidden_layers": 10**7}), "error"),
    ("config.json", json.dumps(CONFIG | {"layer_norm_eps": -1}), "error"),
    ("config.json", json.dumps(CONFIG | {"type_vocab_size": None}), "error"),
    ("config.json", POINTER, "error"),
    ("safetensors", POINTER, "error"),
    ("torch-zip", POINTER, "error"),
    ("tensorflow-index", POINTER, "error"),
    ("tokenizer.json", POINTER, "error"),
    ("store", '{"format": 2, "shards": [["a"]]}', "error"),
    ("run-results", '{"main_metric": "f1", "scores": {"dev": {}}}', "error"),
    ("run-metrics", '{"step": "1", "split": "dev"}\n', "error"),
    ("tokenizer-added_tokens", '{"[MASK]": "4"}', "error"),
    ("vectors-modules.json", '[{"type": "x.Pooling", "path": {}}]', "error"),
    ("config-squad", '{"model_type": ["bert"]}', "error"),
    ("study", '{"variants": [], "seeds": "0"}', "error"),
    ("safetensors-index", '{"weight_map": {"a": ""}}', "error"),
    ("safetensors-index", '{"weight_map": {"a": "."}}', "error"),
    ("safetensors-index", '{"weight_map": {"a": "../../x.safetensors"}}', "error"),
]


@pytest.mark.long
@pytest.mark.parametrize("name", fuzz.READERS)
def test_every_reader_of_the_fuzz_script_reads_its_seed(tmp_path, name):
    """Otherwise each of its mutations would be an error, and show nothing."""
    reader = fuzz.READERS[name]
    seed = reader.seed
    content = seed.read_bytes() if isinstance(seed, Path) else seed.encode()
    assert fuzz.check(reader, tmp_path, content) == "result"


@pytest.mark.parametrize(("reader", "content", "outcome"), FOUND)
def test_an_unusual_file_gives_a_result_or_a_one_line_error(
    tmp_path, reader, content, outcome
):
    assert fuzz.check(fuzz.READERS[reader], tmp_path, content.encode()) == outcome


texts = strategies.text(
    strategies.characters() | strategies.sampled_from("\ud800\udc00\n\t\"'[]{}()*_!. "),
    max_size=60,
)
values = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | texts,
    lambda inner: strategies.lists(inner) | strategies.dictionaries(texts, inner),
    max_leaves=8,
)


@hypothesis.given(strategies.dictionaries(texts, values))
def test_json_changes_only_half_characters(value):
    text = json.dumps(value)
    parsed = parse_json(text, "a", "b")
    json.dumps(parsed, ensure_ascii=False).encode()  # UTF-8 can encode it
    if not any(
        0xD800 <= ord(c) < 0xE000 for c in json.dumps(value, ensure_ascii=False)
    ):
        assert parsed == value


@hypothesis.given(texts)
def test_valid_text_changes_only_half_characters(text):
    valid = valid_text(text)
    valid.encode()
    kept = [c for c in text if not 0xD800 <= ord(c) < 0xE000]
    assert [c for c in valid if c != "\ufffd" and ord(c) < 1 << 16] == [
        c for c in kept if c != "\ufffd" and ord(c) < 1 << 16
    ]


@hypothesis.given(texts.map(lambda text: " ".join(text.split())))
def test_sentences_contain_the_paragraph_except_blanks(paragraph):
    joined = "".join("".join(split_sentences(paragraph)).split())
    assert joined == "".join(paragraph.split())


@hypothesis.given(strategies.lists(texts.map(lambda text: text.replace("\n", " "))))
def test_every_format_accepts_every_text(lines):
    for name, form in FORMATS.items():
        try:
            documents = list(form.read(iter(lines), Reading()))
        except UserError:
            assert name == "jsonl"
            continue
        assert all(document and all(document) for document in documents)


@hypothesis.given(strategies.lists(strategies.tuples(texts, texts), min_size=1))
def test_cells_of_a_tsv_file_can_contain_any_text(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("tsv") / "a.tsv"
    rows = [tuple(escaped(valid_text(f"x{text}")) for text in row) for row in rows]
    hypothesis.assume(not any("\0" in text for row in rows for text in row))
    path.write_bytes("".join("\t".join(r) + "\n" for r in [("a", "b"), *rows]).encode())
    cells = [tuple(row.values()) for _, row in read_rows(path)]
    assert cells == rows


@hypothesis.given(strategies.binary(max_size=200))
def test_decoded_lines_have_the_bytes_of_the_file(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    path.write_bytes(content)
    try:
        with path.open("rb") as file:
            text = "".join(line for _, line in decode_lines(file, path))
    except UserError as error:
        assert "UTF-8" in str(error)
    else:
        assert text.encode() == content.removeprefix(b"\xef\xbb\xbf")


def test_a_message_is_one_line_for_any_quoted_text():
    error = UserError(f"a\x1b[2J\n\ud800\u2028{'b' * 9999}")
    assert str(error).startswith("a\\u001b[2J\\n\\ud800\\u2028bbb")
    assert str(error).isprintable()
    assert len(str(error)) < 2000
