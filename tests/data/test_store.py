import json
import zlib

import numpy as np
import pytest

from bert_jax.data import store as store_file
from bert_jax.data.store import (
    TokenStore,
    _write_sums,
    finish_store,
    shard_writer,
    stored_type,
)
from bert_jax.data.tokenizer import token_dtype
from bert_jax.errors import UserError


def make_documents(seed=0, count=40):
    """Documents of 1 to 60 sentences of 1 to 300 ids, one sentence beyond uint16."""
    rng = np.random.default_rng(seed)
    documents = [
        [
            rng.integers(0, 30000, rng.integers(1, 300)).astype(np.uint16)
            for _ in range(rng.integers(1, 60))
        ]
        for _ in range(count)
    ]
    documents[3][0] = rng.integers(0, 30000, 70_000).astype(np.uint16)
    return documents


def write(directory, shards_of_documents, vocab_size=30000):
    shards = len(shards_of_documents)
    for shard, documents in enumerate(shards_of_documents):
        with shard_writer(directory, shard, shards, token_dtype(vocab_size)) as write:
            for document in documents:
                write(document)
    identity = {"vocabulary_fingerprint": "f", "settings": {"shards": shards}}
    return finish_store(directory, vocab_size, identity)


def test_every_sentence_and_range_is_read_back(tmp_path):
    documents = make_documents()
    info = write(tmp_path, [documents[:15], documents[15:], []])
    store = TokenStore(tmp_path)
    sentences = [s for d in documents for s in d]
    assert store.info == info
    assert info.documents == len(documents)
    assert info.sentences == len(sentences)
    assert info.tokens == sum(map(len, sentences))
    assert np.diff(store.document_sentences).tolist() == [len(d) for d in documents]
    assert np.diff(store.sentence_offsets).tolist() == [len(s) for s in sentences]

    rng = np.random.default_rng(1)
    ranges = []
    for _ in range(300):
        d = rng.integers(len(documents))
        first, end = store.document_sentences[d : d + 2]
        start = int(rng.integers(first, end))
        ranges.append((start, int(rng.integers(start, end)) + 1))
    actual = store.read_sentences(np.array(ranges))
    for (start, stop), ids in zip(ranges, actual, strict=True):
        assert np.array_equal(ids, np.concatenate(sentences[start:stop]))


def test_each_file_has_the_checksum_of_its_numbers(tmp_path):
    documents = make_documents()
    info = write(tmp_path, [documents[:15], [], documents[15:]])
    store = TokenStore(tmp_path)
    shards = ["shard-00000-of-00003.tokens", "shard-00002-of-00003.tokens"]
    for name in shards:
        assert info.checksums[name] == zlib.crc32((tmp_path / name).read_bytes())
    for name, numbers in (
        ("index/sentence_offsets.npy", store.sentence_offsets),
        ("index/document_sentences.npy", store.document_sentences),
    ):
        assert info.checksums[name] == zlib.crc32(numbers.tobytes())
    assert list(store.files) == list(info.checksums)
    # The fingerprint depends only on the text.
    same = write(tmp_path / "same", [documents[:15], [], documents[15:]])
    other = write(tmp_path / "other", [documents[:15], [], documents[:14:-1]])
    assert same.fingerprint() == info.fingerprint() != other.fingerprint()
    assert (other.documents, other.tokens) == (info.documents, info.tokens)


def test_an_unfinished_preparation_of_0_2_0_is_refused(tmp_path):
    """Its finished shards have no checksums."""
    documents = make_documents()
    for shard, part in enumerate((documents[:15], documents[15:])):
        with shard_writer(tmp_path, shard, 2, token_dtype(30000)) as append:
            for document in part:
                append(document)
    path = tmp_path / "index/part-00000.npz"
    with np.load(path) as arrays:
        old = {name: arrays[name] for name in arrays if name != "checksum"}
    np.savez(path, **old)
    identity = {"vocabulary_fingerprint": "f", "settings": {"shards": 2}}
    with pytest.raises(
        UserError, match=r"part-00000\.npz .*checksum.* delete the fold"
    ):
        finish_store(tmp_path, 30000, identity)


@pytest.mark.parametrize(
    ("name", "place", "change", "message"),
    [
        ("sentence_offsets", 5, -4000, "a number is not above the number before it"),
        ("sentence_offsets", 0, 1, "numbers from 1 to "),
        ("sentence_offsets", -1, 1, r"numbers from 0 to .*; expected .* 0 to .*; copy"),
        ("document_sentences", 5, 60, "a number is not above the number before it"),
    ],
)
def test_an_index_that_is_not_consistent_is_refused(
    tmp_path, name, place, change, message
):
    documents = make_documents()
    write(tmp_path, [documents[:15], documents[15:]])
    path = tmp_path / f"index/{name}.npy"
    numbers = np.load(path)
    numbers[place] += change
    np.save(path, numbers)
    with pytest.raises(UserError, match=f"(?s){name}.*{message}"):
        TokenStore(tmp_path)


def test_a_step_down_between_two_blocks_of_the_index_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(store_file, "_BLOCK", 8)
    write(tmp_path, [make_documents(count=30)])
    path = tmp_path / "index/document_sentences.npy"
    numbers = np.load(path)
    for place in (7, 8, 9):
        wrong = numbers.copy()
        wrong[place] = wrong[place - 1]
        np.save(path, wrong)
        with pytest.raises(UserError, match=r"document_sentences\.npy is damaged"):
            TokenStore(tmp_path)
    np.save(path, numbers)
    TokenStore(tmp_path)


def test_the_error_names_the_shard_of_an_id_that_is_too_large(tmp_path):
    documents = make_documents()
    write(tmp_path, [documents[:15], documents[15:]])
    path = tmp_path / "shard-00001-of-00002.tokens"
    ids = np.fromfile(path, "<u2")
    ids[7] = 30_000
    ids.tofile(path)
    store = TokenStore(tmp_path)
    first = store.document_sentences[15]
    ranges = np.array([[0, 3], [first, first + 1], [first + 1, first + 2]])
    message = r"shard-00001-of-00002.tokens is damaged \(a token has the id 30,000\); "
    with pytest.raises(UserError, match=f"{message}expected ids below 30,000; copy"):
        store.check_ids(ranges, 30_000)
    # A range that ends with its shard is not in the next shard.
    path = tmp_path / "shard-00000-of-00002.tokens"
    ids = np.fromfile(path, "<u2")
    ids[7] = 30_000
    ids.tofile(path)
    store = TokenStore(tmp_path)
    with pytest.raises(UserError, match=r"shard-00000-of-00002.tokens is damaged"):
        store.check_ids(np.array([[0, first]]), 30_000)


def test_an_empty_range_at_the_end_of_a_store_is_read(tmp_path):
    """A text of one sentence has no B, which is read as an empty range."""
    documents = make_documents(count=4)
    info = write(tmp_path, [documents[:2], documents[2:]])
    ends = np.array([info.sentences, sum(map(len, documents[:2]))])
    texts = TokenStore(tmp_path).read_sentences(np.stack([ends, ends], axis=1))
    assert [len(text) for text in texts] == [0, 0]


def test_empty_sentences_and_documents_are_left_out(tmp_path):
    ids = np.array([1, 2], np.uint16)
    empty = np.array([], np.uint16)
    info = write(tmp_path, [[[ids, empty, ids], [], [empty], [ids]]])
    assert (info.documents, info.sentences, info.tokens) == (2, 3, 6)


def test_offsets_go_beyond_32_bits(tmp_path):
    """English Wikipedia has more than 2^31 tokens. No text is needed for its index."""
    parts = [tmp_path / f"{i}.npz" for i in range(2)]
    lengths = [1 << 30, 1 << 31], [7, 1 << 32]
    for part, values in zip(parts, lengths, strict=True):
        np.savez(part, sentence_lengths=np.array(values, np.int64))
    path = tmp_path / "sentence_offsets.npy"
    count, totals, checksum = _write_sums(parts, "sentence_lengths", path)
    assert (count, totals) == (4, [3 << 30, 7 + (1 << 32)])
    offsets = np.load(path)
    assert checksum == zlib.crc32(offsets)
    expected = [0, 1 << 30, 3 << 30, 7 + (3 << 30), 7 + (7 << 30)]
    assert offsets.tolist() == expected


def test_ids_over_uint16_use_four_bytes(tmp_path):
    ids = np.array([70_000, 3])
    write(tmp_path, [[[ids]]], vocab_size=80_000)
    read = TokenStore(tmp_path).read_sentences(np.array([[0, 1]]))[0]
    assert read.tolist() == [70_000, 3]


@pytest.mark.parametrize("size", [300, 1 << 15, 1 + (1 << 15), 1 + (1 << 16)])
def test_the_bit_of_words_is_above_every_id(size):
    dtype, bit = stored_type(size, words=True)
    assert size <= bit < min(np.iinfo(dtype).max, np.iinfo(np.int32).max)
    assert stored_type(size, words=False) == (token_dtype(size), 0)


def test_the_error_names_a_damaged_index(tmp_path):
    write(tmp_path, [make_documents()])
    index = tmp_path / "index.json"
    values = json.loads(index.read_text())
    for content, message in (
        # Format 1 used ArrayRecord files.
        (json.dumps(values | {"format": 1}), "format 1.*; expected .* of format 2"),
        (json.dumps(values | {"sentences": 3}), "expected 4 numbers"),
        ("{", "is not JSON"),
        ('{"format": 2}', "index.json is damaged"),
        (
            json.dumps(values | {"documents": None}),
            "index.json: documents=None, expected a whole number$",
        ),
        (json.dumps(values | {"token_dtype": "x"}), "token_dtype='x', expected one of"),
        (
            json.dumps(values | {"shards": [[1.5, 4]]}),
            r"shards\[0\]\[0\]=1.5, expected a text",
        ),
        (json.dumps(values | {"shards": [["a"]]}), "expected a list of 2 items"),
        (json.dumps(values | {"shards": []}), "index.json"),
        (None, "index.json does not exist; expected prepared text"),
    ):
        index.write_text(content) if content else index.unlink()
        with pytest.raises(UserError, match=message):
            TokenStore(tmp_path)


@pytest.mark.parametrize("name", ["shard-00001-of-00002.tokens", "index/{}.npy"])
@pytest.mark.parametrize("damage", ["cut", "grow", "empty", "remove"])
def test_the_error_names_a_damaged_file(tmp_path, name, damage):
    documents = make_documents()
    write(tmp_path, [documents[:15], documents[15:]])
    path = tmp_path / name.format("sentence_offsets")
    content = path.read_bytes()
    if damage == "grow" and path.suffix == ".npy":
        path = tmp_path / name.format("document_sentences")  # a file of another size
    changed = {"cut": content[:-2], "grow": content + b"\0\0", "empty": b""}
    path.unlink()
    if damage != "remove":
        path.write_bytes(changed[damage])
    with pytest.raises(UserError, match=rf"{path.name} .*again"):
        TokenStore(tmp_path)
