"""Words of a segmenter: stored, and masked whole."""

import re
import sys
import types

import numpy as np
import pytest

from bert_jax.data.examples import ExampleConfig, ExampleSource
from bert_jax.data.preparation import prepare
from bert_jax.data.segmenter import encode_words, open_segmenter
from bert_jax.data.store import TokenStore
from bert_jax.data.vocabulary_training import train_vocabulary
from bert_jax.data.wordpiece import WordPieceTokenizer
from bert_jax.errors import UserError

# "I love natural language processing.", split like jieba.
WORDS = ["我", "爱", "自然语言", "处理", "。"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def longest(text):
    """Splits into words of a small dictionary and runs of Latin letters, from the left."""
    return re.findall("自然语言|处理|北京|北㐀|大学|[A-Za-z]+|.", text)


@pytest.fixture(scope="module")
def tokenizer():
    characters = sorted(set("我爱自然语言处理。北京大学在"))
    return WordPieceTokenizer([*SPECIAL, *characters, "bert", "##s", "##x"], True)


def words_of(text, tokenizer, segmenter=longest):
    """The tokens of a text, joined into words."""
    ((ids, continues),) = encode_words([text], tokenizer, segmenter)
    assert ids.tolist() == tokenizer.encode(text).tolist()
    words = []
    for token, goes_on in zip(ids, continues, strict=True):
        name = tokenizer.tokens[token].removeprefix("##")
        words[-1:] = [words[-1] + name] if goes_on else [*words[-1:], name]
    return words


def test_tokens_that_continue_a_word_are_marked(tokenizer):
    assert words_of("我爱自然语言处理。", tokenizer) == WORDS
    # Without a segmenter each ideograph is a word.
    assert not tokenizer.continuation[tokenizer.encode("自然语言")].any()
    # With Latin words, unknown characters, and spaces between words.
    text = "北京大学 BERTs 在x大學"
    expected = ["北京", "大学", "berts", "在", "[UNK]", "大", "[UNK]"]
    assert words_of(text, tokenizer) == expected
    # A segmenter that drops spaces and returns an unknown word.
    assert words_of("我爱 自然", tokenizer, str.split) == ["我爱", "自然"]
    with pytest.raises(UserError, match="expected the next part of '我爱'"):
        words_of("我爱", tokenizer, lambda text: ["爱", "我"])


def test_tokens_of_sentencepiece_that_continue_a_word_are_marked():
    text = ["我爱自然语言处理", "北京大学在北京", "自然语言", "处理我爱北京"] * 30
    tokenizer = train_vocabulary(text, 40, kind="sentencepiece")
    joined = [word.replace("▁", "") for word in words_of("我爱自然语言处理", tokenizer)]
    assert "".join(joined) == "我爱自然语言处理"
    assert all(w in ("我", "爱", "我爱", "自然语言", "处理") for w in joined), joined


@pytest.fixture
def store(tokenizer, tmp_path, monkeypatch):
    """Prepared text with the words of a segmenter."""
    monkeypatch.setitem(sys.modules, "dictionary", types.SimpleNamespace(cut=longest))
    sentences = [
        "我爱自然语言处理。",
        "北京大学在北京。",
        "BERTs 处理北㐀自然语言。",
    ] * 8
    path, store = tmp_path / "text.txt", tmp_path / "store"
    path.write_text("\n".join([*sentences, "", *sentences]))
    report = prepare(
        [str(path)], tokenizer, store, workers=1, segmenter="dictionary:cut"
    )
    assert report.counts["unknown"] == 16  # one character in every third sentence
    return [str(path)], store


@pytest.mark.parametrize("masking", ["whole_word", "ngram", "token"])
def test_words_are_masked_whole(store, tokenizer, masking):
    words_store = TokenStore(store[1])
    assert words_store.info.settings["words"] == "dictionary:cut"
    assert (words_store.info.token_dtype, words_store.info.word_bit) == ("<u2", 1 << 15)
    config = ExampleConfig(masking=masking, mask_rate=0.3, mask_share=1, random_share=0)
    source = ExampleSource(
        words_store, tokenizer, config, sequence_length=32, max_predictions=12, seed=1
    )
    batch = source.draw(range(source.epoch_size))
    ids = batch["input_ids"].copy()
    rows, slots = np.nonzero(batch["mlm_weights"])
    ids[rows, batch["mlm_positions"][rows, slots]] = batch["mlm_ids"][rows, slots]
    assert ids.max() < tokenizer.vocab_size  # the word bit is removed
    masked = batch["input_ids"] == tokenizer.mask_id
    word = tokenizer.encode("自然语言")
    starts = (np.lib.stride_tricks.sliding_window_view(ids, 4, axis=1) == word).all(2)
    together = {masked[row, i : i + 4].sum() for row, i in np.argwhere(starts)}
    assert (together == {0, 4}) == (masking != "token")


def test_a_store_of_words_is_read_like_other_stores(store, tokenizer, tmp_path):
    inputs, directory = store
    plain = tmp_path / "plain"
    prepare(inputs, tokenizer, plain, workers=1)
    with_words, without = TokenStore(directory), TokenStore(plain)
    ranges = np.array([[0, len(without.sentence_offsets) - 1]])
    (a,), (b,) = (s.read_sentences(ranges) for s in (with_words, without))
    assert np.array_equal(a & 0x7FFF, b)
    assert without.info.word_bit == 0
    assert "words" not in without.info.settings
    with pytest.raises(UserError, match="words was dictionary:cut, now None"):
        prepare(inputs, tokenizer, directory, workers=1)


@pytest.mark.parametrize("name", ["jiebo", "os:nothing", "nowhere:cut"])
def test_a_missing_segmenter_is_a_one_line_error(name):
    with pytest.raises(UserError, match=rf"segmenter={name} cannot .*\[chinese"):
        open_segmenter(name)


def test_words_of_jieba_are_marked(tokenizer):
    pytest.importorskip("jieba", reason="the extra chinese is not installed")
    assert words_of("我爱自然语言处理。", tokenizer, open_segmenter("jieba")) == WORDS


@pytest.fixture(scope="module")
def byte_level():
    """A byte-level BPE whose tokens are parts of Chinese characters and whole words."""
    text = ["The model reads text. 自然语言 \u0101"] * 20
    return train_vocabulary(text, 300, kind="bpe", lower_case=False)


def test_tokens_of_byte_level_bpe_that_continue_a_word_are_marked(byte_level):
    """The vocabulary marks spaces, so its tokens do not overrule the segmenter."""

    def words(text):
        ((ids, continues),) = encode_words([text], byte_level, longest)
        groups = np.split(ids, np.flatnonzero(~continues)[1:])
        return [byte_level.decode(group) for group in groups]

    assert len(byte_level.tokenize("我爱自然语言处理。")) > 14
    assert words("我爱自然语言处理。") == WORDS
    assert words("北京大学 BERTs 在x") == ["北京", "大学", " BERTs", " 在", "x"]


def test_chinese_words_of_byte_level_bpe_are_masked_whole(byte_level, array_store):
    """Without a segmenter each character is a word, of one or several tokens."""
    sentences = ["我爱自然语言处理", "北京大学在北京", "The model 处理 text"]
    documents = [byte_level.encode_batch(sentences) for _ in range(6)]
    config = ExampleConfig(
        "whole_word", mask_rate=0.3, mask_share=1, random_share=0, next_sentence=False
    )
    source = ExampleSource(
        array_store(documents),
        byte_level,
        config,
        sequence_length=64,
        max_predictions=20,
        seed=2,
    )
    batch = source.draw(range(40))
    shares, found = [], set()
    for i in range(40):
        used = batch["mlm_weights"][i] > 0
        ids = batch["input_ids"][i].copy()
        ids[batch["mlm_positions"][i][used]] = batch["mlm_ids"][i][used]
        ids = ids[: source.lengths(range(40))[i]]
        masked = batch["input_ids"][i][: len(ids)] == byte_level.mask_id
        words = np.cumsum(byte_level.word_starts(ids))
        for word in np.unique(words[masked]):
            assert masked[words == word].all()
        groups = np.split(ids, np.flatnonzero(byte_level.word_starts(ids))[1:])
        found |= {byte_level.decode(group) for group in groups}
        shares.append(masked.mean())
    assert found >= {"爱", "学", " model"}
    assert min(shares) > 0.1 and max(shares) < 0.4
