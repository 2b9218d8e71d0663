import json

import numpy as np
import pytest

from bert_jax.data.store import (
    TokenStore,
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
