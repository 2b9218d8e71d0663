"""Words that a segmenter finds: flags of tokens, in a store, and masked as one."""

import re
import sys
import types

import numpy as np
import pytest

from bert_jax.data.examples import ExampleConfig, ExampleSource
from bert_jax.data.preparation import prepare
from bert_jax.data.segmenters import encode_words, open_segmenter
from bert_jax.data.store import TokenStore
from bert_jax.data.tokenizer import WordPieceTokenizer
from bert_jax.data.vocabulary_training import train_vocabulary
from bert_jax.errors import UserError
from bert_jax.inference.inspection import inspect

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# "I love natural language processing.", cut as jieba does.
WORDS = ["我", "爱", "自然语言", "处理", "。"]


def longest(text):
    """The words of a small dictionary and runs of Latin letters, from the left."""
    return re.findall("自然语言|处理|北京|北㐀|大学|[A-Za-z]+|.", text)


@pytest.fixture(scope="module")
def tokenizer():
    characters = sorted(set("我爱自然语言处理。北京大学在"))
    return WordPieceTokenizer([*SPECIAL, *characters, "bert", "##s", "##x"], True)


def words_of(text, tokenizer, segmenter=longest):
    """The tokens of a text, joined where one continues a word."""
    ((ids, continues),) = encode_words([text], tokenizer, segmenter)
    assert ids.tolist() == tokenizer.encode(text).tolist()
    words = []
    for token, goes_on in zip(ids, continues, strict=True):
        name = tokenizer.tokens[token].removeprefix("##")
        words[-1:] = [words[-1] + name] if goes_on else [*words[-1:], name]
    return words


def test_tokens_that_continue_a_word(tokenizer):
    assert words_of("我爱自然语言处理。", tokenizer) == WORDS
    # Without a segmenter each ideograph is a word.
    assert not tokenizer.continuation[tokenizer.encode("自然语言")].any()
    # Latin words, unknown characters, and spaces between words.
    text = "北京大学 BERTs 在x大學"
    expected = ["北京", "大学", "berts", "在", "[UNK]", "大", "[UNK]"]
    assert words_of(text, tokenizer) == expected
    # A segmenter that drops spaces and knows too little.
    assert words_of("我爱 自然", tokenizer, str.split) == ["我爱", "自然"]
    with pytest.raises(UserError, match="which is not in the rest of '我爱'"):
        words_of("我爱", tokenizer, lambda text: ["爱", "我"])


def test_tokens_of_sentencepiece_continue_words_too():
    text = ["我爱自然语言处理", "北京大学在北京", "自然语言", "处理我爱北京"] * 30
    tokenizer = train_vocabulary(text, 40, kind="sentencepiece")
    joined = [word.replace("▁", "") for word in words_of("我爱自然语言处理", tokenizer)]
    assert "".join(joined) == "我爱自然语言处理"
    assert all(w in ("我", "爱", "我爱", "自然语言", "处理") for w in joined), joined


@pytest.fixture
def store(tokenizer, tmp_path, monkeypatch):
    """A prepared text of sentences with a segmenter's words."""
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
    assert report.counts["unknown"] == 16  # a character of every third sentence
    return [str(path)], store


@pytest.mark.parametrize("masking", ["whole_word", "ngram", "token"])
def test_words_are_masked_whole(store, tokenizer, masking):
    found = TokenStore(store[1])
    assert found.info.settings["words"] == "dictionary:cut"
    assert (found.info.token_dtype, found.info.word_bit) == ("<u2", 1 << 15)
    config = ExampleConfig(masking=masking, mask_rate=0.3, mask_share=1, random_share=0)
    source = ExampleSource(
        found, tokenizer, config, sequence_length=32, max_predictions=12, seed=1
    )
    batch = source.draw(range(source.epoch_size))
    ids = batch["input_ids"].copy()
    rows, slots = np.nonzero(batch["mlm_weights"])
    ids[rows, batch["mlm_positions"][rows, slots]] = batch["mlm_ids"][rows, slots]
    assert ids.max() < tokenizer.vocab_size  # no bit is left
    masked = batch["input_ids"] == tokenizer.mask_id
    word = tokenizer.encode("自然语言")
    starts = (np.lib.stride_tricks.sliding_window_view(ids, 4, axis=1) == word).all(2)
    together = {masked[row, i : i + 4].sum() for row, i in np.argwhere(starts)}
    assert (together == {0, 4}) == (masking != "token")


def test_a_store_of_words_is_read_as_any_other(store, tokenizer, tmp_path):
    inputs, directory = store
    plain = tmp_path / "plain"
    prepare(inputs, tokenizer, plain, workers=1)
    with_words, without = TokenStore(directory), TokenStore(plain)
    ranges = np.array([[0, len(without.sentence_offsets) - 1]])
    (a,), (b,) = (s.read_sentences(ranges) for s in (with_words, without))
    assert np.array_equal(a & 0x7FFF, b)
    assert without.info.word_bit == 0
    assert "words" not in without.info.settings
    shown = [inspect(path) for path in (directory, plain)]
    assert shown[0]["unknown"] == shown[1]["unknown"] > 0
    with pytest.raises(UserError, match="words was dictionary:cut, now None"):
        prepare(inputs, tokenizer, directory, workers=1)


@pytest.mark.parametrize("name", ["jiebo", "os:nothing", "nowhere:cut"])
def test_a_segmenter_that_is_not_there(name):
    with pytest.raises(UserError, match=rf"segmenter {name} is not there .*\[chinese"):
        open_segmenter(name)


def test_jieba_if_it_is_installed(tokenizer):
    pytest.importorskip("jieba", reason="the extra chinese is not installed")
    assert words_of("我爱自然语言处理。", tokenizer, open_segmenter("jieba")) == WORDS
