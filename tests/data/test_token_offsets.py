"""Character offsets of tokens, and words of a segmenter: stored, and masked whole."""

import random
import re
import sys
import types

import numpy as np
import pytest

from bert_jax.data.examples import ExampleConfig, ExampleSource
from bert_jax.data.preparation import prepare
from bert_jax.data.store import TokenStore
from bert_jax.data.token_offsets import (
    encode_with_offsets,
    encode_words,
    open_segmenter,
)
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.data.vocabulary_training import train_vocabulary
from bert_jax.data.wordpiece import WordPieceTokenizer
from bert_jax.errors import UserError

# Composed and separate accents, ideographs, dropped characters, and letters whose
# length changes.
ALPHABET = "aeéÉe\u0301ñßİ中文あ가Δ£€1,.-'()“—\u200b\ufeff\x0b\u00a0\u3000\t\n     "
# "I love natural language processing.", split like jieba.
WORDS = ["我", "爱", "自然语言", "处理", "。"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def characters(text, tokenizer):
    (tokens,) = encode_with_offsets([text], tokenizer)
    parts = [text[a:b] for a, b in zip(tokens.starts, tokens.ends, strict=True)]
    return list(zip((tokenizer.tokens[i] for i in tokens.ids), parts, strict=True))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Smith's  (1895)", "smith|Smith '|' s|s (|( 1895|1895 )|)"),
        ("un-Ängstlich", "un|un -|- ang|Äng ##st|st ##lich|lich"),
        ("a\u0301b", "ab|a\u0301b"),
        ("ÀÉtraÎne\u0301", "ae|ÀÉ ##train|traÎn ##e|e\u0301"),
        ("中國x", "中|中 國|國 x|x"),
        ("\ufeffplay\u200bing.", "playing|play\u200bing .|."),
    ],
)
def test_tokens_have_the_offsets_of_their_characters(uncased, text, expected):
    expected = [tuple(pair.split("|")) for pair in expected.split(" ")]
    assert characters(text, uncased) == expected


@pytest.mark.parametrize("name", ["added", "bpe", "unigram"])
def test_tokens_of_other_tokenizers_have_offsets(golden, name):
    """Some tokens contain spaces, and some tokens are only spaces."""
    tokenizer = load_tokenizer(golden / "tokenizers" / name)
    text = "the  cat <e1> bee, a <x>cat"
    pairs = characters(text, tokenizer)
    parts = [part for token, part in pairs if token not in ("\u0120", "\u2581")]
    assert "".join(parts) == text.replace(" ", "")
    assert (len(parts) == len(pairs)) == (name == "added")
    assert (("<e1>", "<e1>") in pairs) == (name == "added")


@pytest.mark.parametrize(
    ("tokens", "text", "expected"),
    [
        # Google's final sigma: our ids, and the characters of the whole word.
        ("οδος οδοσ the", "the ΟΔΟΣ the", "the|the οδος|ΟΔΟΣ the|the"),
        ("ο ##δ ##ο ##ς", "ΟΔΟΣ", "ο|ΟΔΟΣ ##δ|ΟΔΟΣ ##ο|ΟΔΟΣ ##ς|ΟΔΟΣ"),
        ("a ##b ( )", "東(zé AB", "[UNK]|東 (|( [UNK]|zé a|A ##b|B"),
        # One character becomes two tokens.
        ("\u1100 ##\u1161", "\uac00", "\u1100|\uac00 ##\u1161|\uac00"),
    ],
)
def test_tokens_of_unusual_words_have_offsets(tokens, text, expected):
    tokenizer = WordPieceTokenizer([*SPECIAL, *tokens.split()], True)
    pairs = [tuple(pair.split("|")) for pair in expected.split(" ")]
    assert characters(text, tokenizer) == pairs


@pytest.mark.parametrize("lower_case", [True, False])
def test_offsets_of_random_texts_reproduce_their_tokens(uncased, lower_case):
    tokenizer = WordPieceTokenizer(uncased.tokens, lower_case)
    generator = random.Random(0)
    texts = ["".join(generator.choices(ALPHABET, k=40)) for _ in range(500)]
    matched = 0
    for text, tokens in zip(texts, encode_with_offsets(texts, tokenizer), strict=True):
        np.testing.assert_array_equal(tokens.ids, tokenizer.encode(text))
        assert (np.diff(tokens.starts) >= 0).all() and (np.diff(tokens.ends) >= 0).all()
        for i, start, stop in zip(tokens.ids, tokens.starts, tokens.ends, strict=True):
            part = text[start:stop]
            assert 0 <= start < stop <= len(text)
            if i == tokenizer.unk_id or "가" in part:  # one character, several letters
                continue
            surface = "".join(tokenizer.tokenize(part)).replace("##", "")
            assert tokenizer.tokens[i].removeprefix("##") == surface
            matched += 1
    assert matched > 3000


def test_sentencepiece_tokens_have_offsets():
    text = ["the whale swam in the sea, and the sea was the whale's"] * 20
    tokenizer = train_vocabulary(text, 40, kind="sentencepiece")
    pairs = characters("Whale  zé sea", tokenizer)
    # The mark of a space has the offset of its word's first character.
    expected = [("▁whale", "Whale"), ("▁", "z"), ("[UNK]", "zé"), ("▁sea", "sea")]
    assert pairs == expected
    # The lower-cased form of this letter has two characters.
    assert characters("\u0130\u0130 sea", tokenizer)[-1] == ("▁sea", "sea")


def test_text_without_tokens_has_no_offsets(uncased):
    tokens, none = encode_with_offsets([" \u200b ", ""], uncased)
    assert len(tokens.ids) == len(none.ids) == 0


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


@pytest.mark.parametrize("text", ["zoe\u0301", "\u1112\u1161\u11ab"])
def test_a_composed_character_keeps_all_of_its_parts(text, uncased):
    """The tokenizer composes them, or removes the accent."""
    lines = ["the whale swam in the sea, and the sea was the whale's zo\u00e9 \ud55c"]
    composing = train_vocabulary(lines * 20, 45, kind="sentencepiece")
    for tokenizer in (composing, uncased):
        (tokens,) = encode_with_offsets([f"{text} {text}"], tokenizer)
        assert len(text) in tokens.ends and tokens.ends[-1] == 2 * len(text) + 1
