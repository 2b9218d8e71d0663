import os
import random
import subprocess
import sys

import pytest

from bert_jax.data import vocabulary_training
from bert_jax.data.tokenizer import Template
from bert_jax.data.vocabulary_training import (
    count_words,
    extend_vocabulary,
    train_vocabulary,
)
from bert_jax.data.wordpiece import Splitter, WordPieceTokenizer
from bert_jax.errors import UserError

UNUSED = [f"[unused{i}]" for i in range(994)]
LAYOUT = ["[PAD]", *UNUSED[:99], "[UNK]", "[CLS]", "[SEP]", "[MASK]", *UNUSED[99:]]


@pytest.fixture(scope="module")
def lines(golden):
    text = (golden / "pretraining_data/moby_dick_sentences.txt").read_text()
    return [line for line in text.split("\n") if line]


@pytest.fixture(scope="module")
def ten_thousand(lines):
    return train_vocabulary(lines, 10000)


def test_a_vocabulary_has_its_size_layout_and_tokens(ten_thousand, golden, lines):
    google = (golden / "tokenizer/uncased_vocab.txt").read_text().split("\n")
    assert google[:999] == ten_thousand.tokens[:999] == LAYOUT
    assert len(set(ten_thousand.tokens)) == ten_thousand.vocab_size == 10000
    assert ten_thousand.tokenize("The whale") == ["the", "whale"]
    ids = [i for row in ten_thousand.encode_batch(lines) for i in row]
    assert ids.count(ten_thousand.unk_id) < 1e-4 * len(ids)
    # 9,000 tokens for this text: nearly every word is one token (measured: 1.06).
    assert len(ids) / sum(count_words(lines, Splitter(True)).values()) < 1.1
    small = train_vocabulary(lines[:300], 700)
    assert small.vocab_size == 700
    assert small.tokens[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert not any(token.startswith("[unused") for token in small.tokens)


def test_a_text_that_gives_few_tokens_has_no_unused_tokens(lines):
    """fill_mask would predict them."""
    tokens = train_vocabulary(lines[:300], 9000).tokens
    assert tokens[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert 1000 < len(tokens) < 8000
    assert not any(token.startswith("[unused") for token in tokens)
    assert tokens[5:] == train_vocabulary(lines[:300], 7000).tokens[5:]


def test_words_that_save_most_tokens_extend_a_vocabulary(lines):
    small = train_vocabulary(lines[:300], 700)
    text = (
        ["The zymurgist's 1851 zymurgists"] * 9 + ["quahog the whale"] * 2 + ["xylem"]
    )
    longer = extend_vocabulary(small, text, 2)
    assert longer.tokens == [*small.tokens, "zymurgists", "zymurgist"]  # no numbers
    assert longer.lower_case == small.lower_case
    assert longer.tokenize("Zymurgist zymurgists whale") == [
        *("zymurgist", "zymurgists"),
        *small.tokenize("whale"),
    ]
    every = extend_vocabulary(small, text, 100).tokens[700:]
    assert "quahog" in every
    assert "xylem" not in every  # once
    assert "the" not in every
    with pytest.raises(UserError, match="no frequent new words"):
        extend_vocabulary(small, ["the the"], 5)
    for count in (0, -1):
        with pytest.raises(UserError, match=f"^words={count}, expected at least 1$"):
            extend_vocabulary(small, text, count)


def test_words_that_are_unknown_extend_a_vocabulary(lines):
    """They need one token before and after, but before this token was [UNK]."""
    small = train_vocabulary(lines[:300], 700)
    text = ["a gap of 5 µm and a β-blocker"] * 4 + ["zymurgist"] * 3
    assert small.tokenize("µm β") == ["[UNK]", "[UNK]"]
    longer = extend_vocabulary(small, text, 100)
    assert {"µm", "β", "zymurgist"} <= {*longer.tokens[700:]}
    assert longer.tokenize("5 µm β-zymurgist")[1:] == ["µm", "β", "-", "zymurgist"]
    # An unknown word counts as one saved token each time, the other word as all but one.
    saved = 3 * (len(small.tokenize("zymurgist")) - 1)
    for count, first in ((saved + 1, "µm"), (saved - 1, "zymurgist")):
        words = ["µm"] * count + ["zymurgist"] * 3
        assert extend_vocabulary(small, words, 1).tokens[700:] == [first]
    # A word beyond the limit stays unknown.
    short = WordPieceTokenizer(small.tokens, True, True, 20)
    with pytest.raises(UserError, match="no frequent new words"):
        extend_vocabulary(short, ["z" * 21] * 9, 1)


def test_only_wordpiece_is_extended():
    tokenizer = train_vocabulary(["the sea was calm"] * 9, 20, kind="sentencepiece")
    with pytest.raises(
        UserError, match=r"only to WordPiece vocabularies, .* kind=sentencepiece;"
    ):
        extend_vocabulary(tokenizer, ["µm"] * 9, 1)


def test_an_extended_vocabulary_keeps_the_rules_of_its_tokenizer(lines):
    trained = train_vocabulary(lines[:300], 700, keep_accents=True)
    rules = (True, False, 100)  # lower_case, strip_accents, longest_word
    tokenizer = WordPieceTokenizer(trained.tokens, *rules)
    longer = extend_vocabulary(tokenizer, ["Zymurgy"] * 9, 2)
    assert longer.tokens[700:] == ["zymurgy"]
    assert (longer.lower_case, longer.strip_accents) == (True, False)
    assert longer.tokenize("Zymurgy " + "a" * 101) == ["zymurgy", "[UNK]"]


def test_cased_keeps_capitals_and_accents(lines):
    text = ["Ahab saw Zoë"] * 20 + lines[:200]
    for lower_case, token in ((False, "Zoë"), (True, "zoe")):
        tokenizer = train_vocabulary(text, 900, lower_case=lower_case)
        assert tokenizer.lower_case is lower_case
        assert tokenizer.tokenize("Zoë") == [token]


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece", "bpe"])
def test_the_same_text_gives_the_same_vocabulary_in_every_process(kind, tmp_path):
    # Random words of six letters: hundreds of pairs have equal counts.
    rng = random.Random(3)
    words = ["".join(rng.choices("abcdef", k=rng.randrange(1, 9))) for _ in range(9000)]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(" ".join(words[i : i + 9]) for i in range(0, 9000, 9)))
    code = (
        "import sys\n"
        "from bert_jax.data import vocabulary_training as v\n"
        "v._SAMPLED = 600\n"
        "lines = open(sys.argv[1]).read().split('\\n')\n"
        "tokenizer = v.train_vocabulary(lines, 300, kind=sys.argv[2])\n"
        "sys.stdout.buffer.write(tokenizer.content)"
    )
    command = [sys.executable, "-c", code, path, kind]
    contents = set()
    for number in ("1", "2"):
        env = {**os.environ, "RAYON_NUM_THREADS": number, "PYTHONHASHSEED": number}
        contents.add(
            subprocess.run(command, env=env, check=True, capture_output=True).stdout
        )
    assert len(contents) == 1


@pytest.mark.parametrize("lower_case", [False, True])
def test_a_byte_level_bpe_has_robertas_special_tokens(lines, lower_case):
    text = ["Call me Zo\u00eb, said Ahab."] * 9 + lines[:300]
    tokenizer = train_vocabulary(text, 500, kind="bpe", lower_case=lower_case)
    assert tokenizer.tokens[:5] == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    assert (len(tokenizer), tokenizer.lower_case) == (500, lower_case)
    assert tokenizer.template == Template((0,), (2, 2), (2,), second_type=0)
    mask = tokenizer.encode("the <mask>", allow_mask=True)
    assert mask.tolist() == [*tokenizer.encode("the"), 4]
    # Every text has tokens and is restored from them.
    text = "Zo\u00eb \U0001f642 \u4e2d"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == (text.lower() if lower_case else text)
    assert tokenizer.unk_id not in ids
    merged = {token for token in tokenizer.tokens[5 + 256 :] if len(token) > 1}
    assert len(merged) == 500 - 5 - 256 and "\u0120the" in merged


def test_a_small_text_gives_a_smaller_vocabulary():
    text = ["the sea and the ship and the whale"] * 3
    tokenizer = train_vocabulary(text, 2000)
    assert 5 < tokenizer.vocab_size < 60
    assert tokenizer.tokenize("the whale") == ["the", "whale"]
    smaller = train_vocabulary(text, 2000, kind="sentencepiece")
    assert 5 < smaller.vocab_size < 60
    assert 261 < train_vocabulary(text, 2000, kind="bpe").vocab_size < 300


def test_a_text_of_one_character_has_a_vocabulary():
    tokens = train_vocabulary(["a a"] * 3, 100).tokens
    assert tokens == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]


def test_thousands_of_ideographs_have_their_own_tokens():
    characters = [chr(c) for c in range(0x4E00, 0x4E00 + 2500)]
    tokenizer = train_vocabulary(["".join(characters)] * 3, 9000)
    assert set(characters) <= set(tokenizer.tokens)
    assert "##一" not in tokenizer.tokens


def test_very_rare_characters_are_left_out():
    text = ["plain words of plain letters"] * 9000 + ["☃"]
    tokenizer = train_vocabulary(text, 300)
    assert "☃" not in tokenizer.tokens
    assert tokenizer.tokenize("☃ plain") == ["[UNK]", "plain"]


def test_words_are_counted_after_the_tokenizers_rules():
    text = ["Été, été", "ÉTÉ\u00a0x" + "y" * 300, "et\x01e"]
    assert count_words(text, Splitter(True)) == {"ete": 4, ",": 1}
    cased = {"Été": 1, ",": 1, "été": 1, "ÉTÉ": 1}
    assert count_words(text[:2], Splitter(False)) == cased


def test_the_number_of_counted_words_is_limited(monkeypatch, lines):
    monkeypatch.setattr(vocabulary_training, "_COUNTED_WORDS", 100)
    words = count_words((f"the sea word{i}" for i in range(5000)), Splitter(True))
    assert len(words) <= 100
    assert words["the"] == words["sea"] == 5000
    monkeypatch.setattr(vocabulary_training, "_TRAINED_WORDS", 5000)
    fed = sum(len(line.split()) for line in vocabulary_training._repeat(words))
    assert 3000 < fed < 7000


def test_the_sample_for_sentencepiece_is_evenly_spaced(monkeypatch):
    sample = vocabulary_training._sample((str(i) for i in range(10000)), 1000)
    values = [int(s) for s in sample]
    assert len(set(values)) == 1000
    assert abs(sum(values) / 1000 - 5000) < 4 * 10000 / (12 * 1000) ** 0.5
    assert vocabulary_training._sample(["a", " ", "b"], 5) == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "size", "kind", "message"),
    [
        (["\0 \n"], 1000, "wordpiece", "the input has no words; expected text"),
        ([" "], 1000, "sentencepiece", "no sentence was found"),
        (["abc"], 5, "wordpiece", "too small for 5 special tokens and .*; raise it"),
        (["abcdefghij"], 12, "wordpiece", "too small for 5 special tokens"),
        (["abcdefghij"], 12, "sentencepiece", "size=12 is too small"),
        (["abc"], 260, "bpe", "size=260, expected at least 261 for all bytes"),
        ([" "], 300, "bpe", "the input has no words; expected text"),
        (["abc"], 100, "words", "expected one of wordpiece, sentencepiece, bpe"),
    ],
)
def test_impossible_requests_are_refused(text, size, kind, message):
    with pytest.raises(UserError, match=message) as caught:
        train_vocabulary(text, size, kind=kind)
    assert "\n" not in str(caught.value)
