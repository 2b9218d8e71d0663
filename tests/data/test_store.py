import json

import numpy as np
import pytest

from bert_jax.data.store import (
    LONGEST_SENTENCE,
    RECORD_TOKENS,
    ShardWriter,
    TokenStore,
    finish_store,
    token_dtype,
)
from bert_jax.errors import UserError


def make_documents(seed=0, count=40):
    """Documents of 1 to 60 sentences of 1 to 300 ids, one sentence over a record."""
    rng = np.random.default_rng(seed)
    documents = [
        [
            rng.integers(0, 30000, rng.integers(1, 300)).astype(np.uint16)
            for _ in range(rng.integers(1, 60))
        ]
        for _ in range(count)
    ]
    documents[3][0] = rng.integers(0, 30000, RECORD_TOKENS + 5).astype(np.uint16)
    return documents


def write(directory, shards_of_documents, vocab_size=30000):
    shards = len(shards_of_documents)
    for shard, documents in enumerate(shards_of_documents):
        writer = ShardWriter(directory, shard, shards, token_dtype(vocab_size))
        for document in documents:
            writer.write(document)
        writer.close()
    return finish_store(
        directory,
        shards,
        vocab_size=vocab_size,
        vocabulary_fingerprint="f",
        settings={"inputs": ["x"]},
    )


def test_every_sentence_and_range_reads_back(tmp_path):
    documents = make_documents()
    info = write(tmp_path, [documents[:15], documents[15:], []])
    store = TokenStore(tmp_path)
    sentences = [s for d in documents for s in d]
    assert store.info == info
    assert info.documents == len(documents)
    assert info.sentences == len(sentences)
    assert info.tokens == sum(map(len, sentences))
    assert info.records > len(documents)
    assert np.diff(store.document_sentences).tolist() == [len(d) for d in documents]
    assert store.sentence_lengths.tolist() == [len(s) for s in sentences]

    rng = np.random.default_rng(1)
    ranges = []
    for _ in range(300):
        d = rng.integers(len(documents))
        first, end = store.document_sentences[d : d + 2]
        start = int(rng.integers(first, end))
        ranges.append((start, int(rng.integers(start, end)) + 1))
    for (start, stop), ids in zip(ranges, store.read_sentences(ranges), strict=True):
        assert np.array_equal(ids, np.concatenate(sentences[start:stop]))


def test_empty_sentences_and_documents_are_left_out(tmp_path):
    ids = np.array([1, 2], np.uint16)
    empty = np.array([], np.uint16)
    info = write(tmp_path, [[[ids, empty, ids], [], [empty], [ids]]])
    assert (info.documents, info.sentences, info.tokens) == (2, 3, 6)


def test_a_sentence_over_uint16_is_cut_into_several(tmp_path):
    ids = np.arange(LONGEST_SENTENCE + 10) % 30000
    info = write(tmp_path, [[[ids]]])
    store = TokenStore(tmp_path)
    assert info.sentences == 2
    assert np.array_equal(store.read_sentences([(0, 2)])[0], ids)


def test_ids_over_uint16_take_four_bytes(tmp_path):
    ids = np.array([70_000, 3])
    write(tmp_path, [[[ids]]], vocab_size=80_000)
    assert TokenStore(tmp_path).read_sentences([(0, 1)])[0].tolist() == [70_000, 3]


def test_a_store_without_index_json_is_not_whole(tmp_path):
    write(tmp_path, [make_documents()])
    (tmp_path / "index.json").unlink()
    with pytest.raises(UserError, match=r"python -m bert_jax\.prepare"):
        TokenStore(tmp_path)


def test_an_unfinished_shard_leaves_no_part_behind(tmp_path):
    writer = ShardWriter(tmp_path, 0, 1, token_dtype(100))
    writer.write([np.array([1, 2])])
    assert not ShardWriter.is_written(tmp_path, 0)
    writer.close()
    assert ShardWriter.is_written(tmp_path, 0)
    assert not list(tmp_path.rglob("*.tmp"))


def test_no_text_at_all_is_an_error(tmp_path):
    with pytest.raises(UserError, match="no text was found"):
        write(tmp_path, [[]])


def test_damage_is_named(tmp_path):
    write(tmp_path, [make_documents()])
    index = tmp_path / "index.json"
    values = json.loads(index.read_text())
    index.write_text(json.dumps(values | {"shards": [[values["shards"][0][0], 3]]}))
    with pytest.raises(UserError, match="records, expected 3"):
        TokenStore(tmp_path).read_sentences([(0, 1)])
    index.write_text(json.dumps(values | {"format": 99}))
    with pytest.raises(UserError, match="format 99"):
        TokenStore(tmp_path)
    for content, message in (("{", "is not JSON"), ('{"format": 1}', "is damaged")):
        index.write_text(content)
        with pytest.raises(UserError, match=f"{message}.*prepare the text again"):
            TokenStore(tmp_path)
