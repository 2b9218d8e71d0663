"""Character offsets of tokens."""

import random

import numpy as np
import pytest

from bert_jax.data.token_offsets import encode_with_offsets
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.data.vocabulary_training import train_vocabulary
from bert_jax.data.wordpiece import WordPieceTokenizer

# Composed and separate accents, ideographs, dropped characters, and letters whose
# length changes.
ALPHABET = "aeéÉe\u0301ñßİ中文あ가Δ£€1,.-'()“—\u200b\ufeff\x0b\u00a0\u3000\t\n     "
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


@pytest.mark.parametrize("text", ["zoe\u0301", "\u1112\u1161\u11ab"])
def test_a_composed_character_keeps_all_of_its_parts(text, uncased):
    """The tokenizer composes them, or removes the accent."""
    lines = ["the whale swam in the sea, and the sea was the whale's zo\u00e9 \ud55c"]
    composing = train_vocabulary(lines * 20, 45, kind="sentencepiece")
    for tokenizer in (composing, uncased):
        (tokens,) = encode_with_offsets([f"{text} {text}"], tokenizer)
        assert len(text) in tokens.ends and tokens.ends[-1] == 2 * len(text) + 1
