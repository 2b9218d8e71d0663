"""The characters of tokens."""

import random

import numpy as np
import pytest

from bert_jax.data.token_offsets import encode_with_offsets
from bert_jax.data.tokenizer import WordPieceTokenizer
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.data.vocabulary_training import train_vocabulary

# Accents of both forms, ideographs, dropped characters, letters that change length.
ALPHABET = "aeéÉe\u0301ñßİ中文あ가Δ£€1,.-'()“—\u200b\ufeff\x0b\u00a0\u3000\t\n     "
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def characters(text, tokenizer):
    (tokens,) = encode_with_offsets([text], tokenizer)
    found = [text[a:b] for a, b in zip(tokens.starts, tokens.ends, strict=True)]
    return list(zip((tokenizer.tokens[i] for i in tokens.ids), found, strict=True))


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
def test_tokens_know_their_characters(uncased, text, expected):
    expected = [tuple(pair.split("|")) for pair in expected.split(" ")]
    assert characters(text, uncased) == expected


@pytest.mark.parametrize("name", ["added", "bpe", "unigram"])
def test_tokens_of_other_tokenizers_know_their_characters(golden, name):
    """Also behind spaces, which are part of some tokens, and which some tokens are."""
    tokenizer = load_tokenizer(golden / "tokenizers" / name)
    text = "the  cat <e1> bee, a <x>cat"
    found = characters(text, tokenizer)
    parts = [part for token, part in found if token not in ("\u0120", "\u2581")]
    assert "".join(parts) == text.replace(" ", "")
    assert (len(parts) == len(found)) == (name == "added")
    assert (("<e1>", "<e1>") in found) == (name == "added")


@pytest.mark.parametrize(
    ("tokens", "text", "expected"),
    [
        # Google's final sigma: the ids are ours, the characters those of the word.
        ("οδος οδοσ the", "the ΟΔΟΣ the", "the|the οδος|ΟΔΟΣ the|the"),
        ("ο ##δ ##ο ##ς", "ΟΔΟΣ", "ο|ΟΔΟΣ ##δ|ΟΔΟΣ ##ο|ΟΔΟΣ ##ς|ΟΔΟΣ"),
        ("a ##b ( )", "東(zé AB", "[UNK]|東 (|( [UNK]|zé a|A ##b|B"),
        # One character is two tokens.
        ("\u1100 ##\u1161", "\uac00", "\u1100|\uac00 ##\u1161|\uac00"),
    ],
)
def test_tokens_of_odd_words_have_places(tokens, text, expected):
    tokenizer = WordPieceTokenizer([*SPECIAL, *tokens.split()], True)
    pairs = [tuple(pair.split("|")) for pair in expected.split(" ")]
    assert characters(text, tokenizer) == pairs


@pytest.mark.parametrize("lower_case", [True, False])
def test_any_text_gives_its_own_tokens_and_its_own_characters(uncased, lower_case):
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


def test_sentencepiece_words_between_spaces():
    text = ["the whale swam in the sea, and the sea was the whale's"] * 20
    tokenizer = train_vocabulary(text, 40, kind="sentencepiece")
    found = characters("Whale  zé sea", tokenizer)
    # The mark of a space shares its word's first character.
    expected = [("▁whale", "Whale"), ("▁", "z"), ("[UNK]", "zé"), ("▁sea", "sea")]
    assert found == expected
    # The lower-cased letter has two characters.
    assert characters("\u0130\u0130 sea", tokenizer)[-1] == ("▁sea", "sea")


def test_text_without_tokens(uncased):
    tokens, none = encode_with_offsets([" \u200b ", ""], uncased)
    assert len(tokens.ids) == len(none.ids) == 0
