import hashlib
import json
import pickle
import random
import unicodedata

import numpy as np
import pytest
from sentencepiece import SentencePieceProcessor
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from tokenizers.processors import BertProcessing

from bert_jax.data import vocabulary_training, wordpiece
from bert_jax.data.library import LibraryTokenizer
from bert_jax.data.spiece import SentencePieceTokenizer
from bert_jax.data.tokenizer import count_unknown, unknown_warning
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.data.wordpiece import WordPieceTokenizer
from bert_jax.errors import UserError
from bert_jax.inference.evaluation import text_features

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TOKENS = [*SPECIAL, "the", "a", "##b", "##ab", ".", "[", "]"]
CJK = range(0x4E00, 0xA000), range(0x3400, 0x4DC0), range(0x20000, 0x2A6E0)
CJK += range(0x2A700, 0x2B740), range(0x2B740, 0x2B820), range(0x2B820, 0x2CEB0)
CJK += range(0xF900, 0xFB00), range(0x2F800, 0x2FA20)
# Characters for which a shortcut could differ from Google's rules.
CORNERS = "ΣσςİıßẞǅK\u212b≠\u037e\u1fef\u0345\u0301\u302e\U0001d165\u00ad\u200d'.:·’“—"
CORNERS += "\ufffd\0\x01\x0b\x1c\x7f\x85\u2028\u2029\u00a0\u3000\t\r\n \ud800\udfff"
CORNERS += "一\u9fff\u3400\uf900\ufaff\U00020000\U0002ceaf\U0002ceb0\U0002f800あカ가"
# Characters of SCRIPTS newer than transformers' tables, and the final sigma.
OTHERS = {0x3A3, 0xECE, 0x9FD, 0x9FE, 0xA76, *range(0xAFA, 0xB00), 0xB55, 0xC04}
OTHERS |= {0xC3C, 0xC77, 0xC84, 0xD00, 0xD3B, 0xD3C, 0xD81, 0xEBA}

CASES = [True, pytest.param(False, marks=pytest.mark.long)]


def google_words(text, lower_case):
    """Words by the rules of tokenization.py, character by character."""
    kind = unicodedata.category
    alone = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"

    def clean(c):
        if c in " \t\n\r" or kind(c) == "Zs":
            return " "
        if c in "\0\ufffd" or kind(c) in ("Cc", "Cf"):
            return ""
        return f" {c} " if any(ord(c) in block for block in CJK) else c

    words = []
    for word in "".join(map(clean, text)).split():
        if lower_case:
            word = unicodedata.normalize("NFD", word.lower())
            word = "".join(c for c in word if kind(c) != "Mn")
        parted = (f" {c} " if c in alone or kind(c)[0] == "P" else c for c in word)
        words += "".join(parted).split()
    return words


def our_words(text, lower_case, strip_accents=None):
    splitter = wordpiece.Splitter(lower_case, strip_accents)
    return [w for rough in splitter.rough_words(text) for w in splitter.words(rough)]


def write(path, tokens):
    path.write_text("\n".join([*tokens, ""]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return load_tokenizer(write(tmp_path_factory.mktemp("v") / "vocab.txt", TOKENS))


@pytest.fixture(scope="module")
def mixed():
    """A SentencePiece model of English, Japanese and Thai."""
    text = [
        "the cat saw the cats",
        "セーターを着た猫である。名前はまだ無い。",
        "แมวนั่งบนเสื่อ น้ำ",
    ]
    return vocabulary_training.train_vocabulary(text * 20, 62, kind="sentencepiece")


@pytest.mark.parametrize("case", ["uncased", "cased"])
def test_every_golden_string_has_googles_tokens(golden, uncased, case):
    tokenizer = WordPieceTokenizer(uncased.tokens, case == "uncased")
    rows = json.loads((golden / "tokenizer/google_full_tokenizer.json").read_text())
    assert len(rows) == 46
    for row in rows:
        assert tokenizer.tokenize(row["text"]) == row[case], row["text"]
    batch = tokenizer.encode_batch([row["text"] for row in rows])
    tokens = [[tokenizer.tokens[i] for i in ids] for ids in batch]
    assert tokens == [row[case] for row in rows]


@pytest.mark.parametrize("lower_case", [True, False])
def test_random_strings_are_split_like_the_original(lower_case):
    kinds = {}
    for code in range(0x110000):
        kinds.setdefault(unicodedata.category(chr(code)), []).append(chr(code))
    combining = [c for c in kinds["Mn"] + kinds["Mc"] if unicodedata.combining(c)]
    ascii_only = [chr(c) for c in range(128)]
    groups = [*kinds.values(), *[CORNERS] * 8, combining, combining, *[ascii_only] * 12]
    rng = random.Random(1)
    for _ in range(3000):
        text = "".join(rng.choice(rng.choice(groups)) for _ in range(rng.randrange(40)))
        assert our_words(text, lower_case) == google_words(text, lower_case), text


@pytest.mark.parametrize("lower_case", CASES)
def test_characters_of_the_first_plane_are_split_like_the_original(lower_case):
    splitter = wordpiece.Splitter(lower_case)
    for first in range(0, 0x10000, 8):
        # The distance keeps each character out of the context of the others.
        text = " ".join(f"{chr(c)} aΣ{chr(c)}Bb" for c in range(first, first + 8))
        ours = [w for r in splitter.rough_words(text) for w in splitter.words(r)]
        assert ours == google_words(text, lower_case), hex(first)


# Latin, accents, Greek and Cyrillic, Hebrew, Arabic, Indic to Burmese, Khmer, kana.
SCRIPTS = (0x41, 0x250), (0x300, 0x370), (0x370, 0x530), (0x591, 0x5F5), (0x600, 0x61C)
SCRIPTS += (0x900, 0x10A0), (0x1780, 0x17DE), (0x1E00, 0x1F00), (0x3041, 0x30FF)


def transformers_words(text, lower_case, strip_accents=None):
    normalizer = normalizers.BertNormalizer(
        lowercase=lower_case, strip_accents=strip_accents
    )
    normalized = normalizer.normalize_str(text)
    return [
        w for w, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normalized)
    ]


@pytest.mark.parametrize("strip_accents", [None, True, False])
@pytest.mark.parametrize("lower_case", [True, False])
def test_scripts_are_split_like_transformers(lower_case, strip_accents):
    """All scripts except for the few characters of OTHERS."""
    rules = lower_case, strip_accents
    for code in {c for block in SCRIPTS for c in range(*block)} - OTHERS:
        text = f"a{chr(code)} क{chr(code)} {chr(code)}ब"
        assert our_words(text, *rules) == transformers_words(text, *rules), hex(code)


@pytest.mark.parametrize("lower_case", CASES)
def test_only_the_documented_characters_differ_from_transformers(lower_case):
    """docs/checkpoints.md names them."""

    def differs(text):
        return our_words(text, lower_case) != transformers_words(text, lower_case)

    # Unassigned, surrogates, private use.
    left_out = ("Cn", "Cs", "Co")
    every = (chr(code) for code in range(0x110000))
    known = [c for c in every if unicodedata.category(c) not in left_out]
    texts = [f"a{char}b" for char in known]
    blocks = [texts[i : i + 16] for i in range(0, len(texts), 16)]
    odd = [t[1] for block in blocks if differs(" ".join(block)) for t in block]
    odd = {char for char in odd if differs(f"a{char}b")}
    assert {chr(code) for code in range(0x2B820, 0x2B920)} <= odd
    newer = [char for char in odd if not "\U0002b820" <= char < "\U0002b920"]
    assert len(newer) < 600
    kinds = {unicodedata.category(char)[0] for char in newer}
    assert kinds <= {"M", "P", "C", "S", "L"}
    assert all(differs(f"a{char}b") for char in "\ue000\uf8ff\U000f0000")


@pytest.mark.parametrize(
    "words",
    [
        "में मे म",  # in, a syllable, a letter
        "ज़रा जरा",  # nukta: a little, old age
        "சொல் சொல சல",  # virama
        "ที่ ที",  # tone mark
        "schön schon",
        "עִם עם",
    ],
)
def test_kept_accents_distinguish_words(words, tmp_path):
    """Google's rules merge these words."""
    count = len(words.split())
    assert len(set(our_words(words, True))) < count
    assert our_words(words, True, False) == words.split()
    text = [words, "NOW"] * 9
    vocabulary = vocabulary_training.train_vocabulary(text, 300, keep_accents=True)
    assert vocabulary.tokenize(f"{words} Now") == [*words.split(), "now"]
    google = vocabulary_training.train_vocabulary(text, 300)
    assert vocabulary.fingerprint() != google.fingerprint()
    vocabulary.save(tmp_path)
    for same in (load_tokenizer(tmp_path), pickle.loads(pickle.dumps(vocabulary))):
        assert same.tokenize(words) == words.split()
        assert same.fingerprint() == vocabulary.fingerprint()


def test_ids_are_the_same_with_a_cold_a_warm_and_a_full_cache(golden, monkeypatch):
    path = golden / "tokenizer" / "uncased_vocab.txt"
    text = (golden / "pretraining_data/moby_dick_sentences.txt").read_text()
    lines = text.split("\n")[:1500]
    cold = load_tokenizer(path)
    expected = cold.encode_batch(lines)
    monkeypatch.setattr(wordpiece, "CACHED_WORDS", 50)
    tiny = load_tokenizer(path)
    for again in (cold.encode_batch(lines), tiny.encode_batch(lines)):
        assert all(map(np.array_equal, again, expected))
    assert len(tiny._word_ids) <= 50
    assert expected[0].dtype == np.uint16


def test_words_of_over_200_characters_are_unknown_and_not_cached(small):
    assert small.tokenize("a" + "b" * 199) == ["a", *["##b"] * 199]
    assert small.tokenize("a" + "b" * 200 + " the") == ["[UNK]", "the"]
    assert max(map(len, small._word_ids)) <= 200


def test_lone_surrogates_are_unknown_words(small, mixed):
    assert small.tokenize("a\ud800b the \udfff") == ["[UNK]", "the", "[UNK]"]
    assert len(mixed.encode("猫\ud800で")) >= 2


def test_special_tokens_continuation_and_decode(small):
    special = small.pad_id, small.unk_id, small.cls_id, small.sep_id, small.mask_id
    assert special == (0, 1, 2, 3, 4)
    assert small.mask_id not in small.encode("the [MASK].")
    with_masks = small.encode("[MASK]the [MASK].", allow_mask=True)
    assert [small.tokens[i] for i in with_masks] == ["[MASK]", "the", "[MASK]", "."]
    assert with_masks.dtype == small.dtype == np.uint16
    assert np.flatnonzero(small.continuation).tolist() == [7, 8]
    assert small.decode(small.encode("The abab the.")) == "the abab the."
    assert small.encode("").shape == (0,)
    assert small.encode_batch([]) == []


TEXTS = "The cat sat.", "", "na\u00efve [MASK] \u732b!", "a b c d e f g h"
PAIRS = "A dog barked at it.", "x y", "", "i j k l m n o p"
CAT, NAIVE = [101, 1996, 4937, 2938, 1012, 102], [101, 15743, 103, 100, 999, 102]
LETTERS = [101, *range(1037, 1045), 102, *range(1045, 1054), 102]


@pytest.mark.parametrize(
    ("pairs", "max_length", "rows", "firsts"),
    [
        (None, None, [CAT, [101, 102], NAIVE, LETTERS[:10]], [6, 2, 6, 10]),
        (None, 9, [CAT, [101, 102], NAIVE, [*LETTERS[:8], 102]], [6, 2, 6, 9]),
        (
            *(PAIRS, 10),
            [
                [101, 1996, 4937, 2938, 1012, 102, 1037, 3899, 17554, 102],
                [101, 102, 1060, 1061, 102],
                [*NAIVE, 102],
                [101, 1037, 1038, 1039, 1040, 102, 1045, 1046, 1047, 102],
            ],
            [6, 2, 6, 6],
        ),
    ],
)
def test_batches_equal_transformers(pairs, max_length, rows, firsts, uncased):
    """The ids of BertTokenizer 5.24 (padding=True, truncation=True).

    Pairs are truncated by the rule of the original (truncate_seq_pair): if two texts have
    the same length, the second loses a token. So for an odd number of tokens the first text
    keeps one token more, whereas in transformers the longer text does.
    """
    batch = uncased(TEXTS, pairs, max_length=max_length)
    longest = max(map(len, rows))
    padded = [row + [0] * (longest - len(row)) for row in rows]
    types = [
        [int(a <= i < len(r)) for i in range(longest)]
        for r, a in zip(rows, firsts, strict=True)
    ]
    mask = [[int(i < len(r)) for i in range(longest)] for r in rows]
    assert list(batch) == ["input_ids", "token_type_ids", "attention_mask"]
    for array, expected in zip(batch.values(), (padded, types, mask), strict=True):
        assert array.dtype == np.int32
        assert array.tolist() == expected
    longer_first = uncased("A dog barked at it.", "The cat sat.", max_length=10)
    expected = [101, 1037, 3899, 17554, 2012, 102, 1996, 4937, 2938, 102]
    assert longer_first["input_ids"].tolist() == expected
    for i, row in enumerate(rows):
        alone = uncased(TEXTS[i], pairs and pairs[i], max_length=max_length)
        assert alone["input_ids"].tolist() == row


def test_a_call_and_predict_read_the_same_tokens(uncased):
    """One rule truncates pairs for the tokenizer, for predict and for tasks."""
    rows = [("a " * a, "b " * b) for a in range(9) for b in range(9)]
    for max_length in (3, 8, 9):
        batch = uncased(*zip(*rows, strict=True), max_length=max_length)
        features = text_features(uncased, rows, max_length)
        room = max_length - uncased.overhead(2)
        longer = [len(a.split()) + len(b.split()) > room for a, b in rows]
        assert features.truncated == sum(longer)
        for i, (ids, types) in enumerate(
            zip(features.input_ids, features.token_type_ids, strict=True)
        ):
            used = batch["attention_mask"][i] == 1
            assert batch["input_ids"][i][used].tolist() == ids.tolist()
            assert batch["token_type_ids"][i][used].tolist() == types.tolist()


def test_a_sequence_has_its_special_tokens_types_and_starts(small):
    """``starts`` returns the starts of the texts, ``overhead`` counts all other tokens."""
    texts = [small.encode("the abab"), small.encode("a [the].")]
    for count in (1, 2):
        input_ids, token_type_ids = small.build(*texts[:count])
        assert (input_ids.dtype, token_type_ids.dtype) == (np.int32, np.int32)
        lengths = [len(text) for text in texts[:count]]
        assert (
            len(input_ids)
            == len(token_type_ids)
            == sum(lengths) + small.overhead(count)
        )
        for start, text in zip(small.starts(*lengths), texts, strict=False):
            assert input_ids[start : start + len(text)].tolist() == text.tolist()
    assert input_ids.tolist() == [2, 5, 6, 7, 8, 3, 6, 10, 5, 11, 9, 3]
    assert token_type_ids.tolist() == [0] * 6 + [1] * 6
    assert small.build(texts[0][:0])[0].tolist() == [2, 3]


def test_padding_and_truncation(uncased, mixed):
    ids = uncased(TEXTS, padding=8)["input_ids"]
    assert ids.tolist()[3] == [*LETTERS[:7], 102] and ids.shape == (4, 8)
    longest = uncased(TEXTS, max_length=12, padding="max_length")
    assert longest["attention_mask"].sum(axis=1).tolist() == [6, 2, 6, 10]
    assert longest["input_ids"].shape == (4, 12)
    assert uncased([])["input_ids"].shape == (0, 0)
    known = pickle.loads(pickle.dumps(uncased))
    known.model_max_length = 5
    assert uncased("a " * 999)["input_ids"].shape == (1001,)  # no model, no maximum
    assert known(TEXTS, padding="max_length")["input_ids"].shape == (4, 5)
    assert known(TEXTS, truncation=False)["input_ids"].shape == (4, 10)
    assert pickle.loads(pickle.dumps(known)).model_max_length == 5
    ordinary = uncased("[MASK]", allow_mask=False)["input_ids"].tolist()
    assert ordinary == [101, *uncased.encode("[MASK]"), 102]
    # A different padding id and kind of tokenizer.
    for tokenizer in (WordPieceTokenizer(TOKENS[::-1], True), mixed):
        batch = tokenizer(["the", "the a the"])["input_ids"]
        assert batch[0, -1] == tokenizer.pad_id and batch[1, -1] == tokenizer.sep_id


def test_texts_of_any_column_type_are_encoded(uncased):
    expected = uncased([*TEXTS])["input_ids"].tolist()
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": TEXTS}, index=[7, 5, 3, 1])
    for texts in (
        frame["text"],
        np.array(TEXTS),
        frame["text"].to_numpy(),
        iter(TEXTS),
    ):
        assert uncased(texts)["input_ids"].tolist() == expected
    with pytest.raises(UserError, match="texts is a table; expected a text, or a list"):
        uncased(frame)


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        ((["a", None],), {}, r"texts\[1\] is None, expected a text"),
        ((["a", float("nan")],), {}, r"texts\[1\] is nan, expected a text"),
        ((["a", "b"], ["c", 3]), {}, r"pairs\[1\] is 3, expected a text"),
        (([("a", "b")],), {}, r"texts\[0\] is \('a', 'b'\), .* second texts as pairs="),
        (({"text": "a"},), {}, "texts is a table; expected"),
        (("a",), {"max_length": 1}, "max_length=1, expected at least 2"),
        (("a", "b"), {"max_length": 2}, "max_length=2, expected at least 3"),
        (("a",), {"padding": "max_length"}, "with a max_length"),
        (("a",), {"padding": False}, "padding=False, expected True"),
        (("a",), {"padding": "right"}, "padding='right', expected True"),
        (
            ("a b c",),
            {"padding": 4, "truncation": False},
            "5 tokens, expected at most 4",
        ),
        (("a",), {"truncation": "only_first"}, "expected one of True, False"),
    ],
)
def test_wrong_texts_and_arguments_are_one_line_errors(
    arguments, settings, message, uncased
):
    with pytest.raises(UserError, match=message):
        uncased(*arguments, **settings)


def test_ids_become_text_and_tokens_as_in_transformers(uncased, mixed):
    ids = uncased(TEXTS)["input_ids"]
    texts = uncased.decode(ids)
    assert texts[0] == "[CLS] the cat sat. [SEP] [PAD] [PAD] [PAD] [PAD]"
    assert texts[2] == "[CLS] naive [MASK] [UNK]! [SEP] [PAD] [PAD] [PAD] [PAD]"
    texts = uncased.decode(ids.tolist(), skip_special_tokens=True)
    assert texts == ["the cat sat.", "", "naive!", "a b c d e f g h"]
    assert uncased.decode(1996) == uncased.decode(np.int32(1996)) == "the"
    assert uncased.decode([[1996], [4937, 2938]]) == ["the", "cat sat"]
    for text in ("ab", ["the"], 1.5):
        with pytest.raises(UserError, match="not a token id; expected 0 to 30521"):
            uncased.decode(text)
    for wrong in (-100, 30522):
        with pytest.raises(
            UserError, match=f"{wrong} is not a token id; expected 0 to 30521"
        ):
            uncased.decode([1996, wrong])
    assert len(uncased) == 30522
    rules = "lower_case=True, strip_accents=True, model_max_length=None"
    assert repr(uncased) == f"WordPieceTokenizer(30,522 tokens, {rules})"
    ids = mixed("the cat \u732b")["input_ids"]
    assert mixed.decode(ids, skip_special_tokens=True) == "the cat \u732b"


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece"])
def test_saved_pickled_and_loaded_tokenizers_are_the_same(kind, small, mixed, tmp_path):
    tokenizer = {"wordpiece": small, "sentencepiece": mixed}[kind]
    tokenizer.save(tmp_path / "deep" / "folder")
    loaded = load_tokenizer(tmp_path / "deep" / "folder")
    text = "The a. 猫である [MASK]"
    for other in (loaded, pickle.loads(pickle.dumps(tokenizer))):
        assert other.fingerprint() == tokenizer.fingerprint()
        assert other.kind == kind
        assert np.array_equal(other.continuation, tokenizer.continuation)
        for allow in (True, False):
            ours = tokenizer.encode(text, allow_mask=allow)
            assert np.array_equal(other.encode(text, allow_mask=allow), ours)
    files = {path.name for path in (tmp_path / "deep" / "folder").iterdir()}
    assert files == {tokenizer.file_name, "tokenizer_config.json"}


def test_the_fingerprint_of_0_1_0_is_accepted(small, mixed):
    for tokenizer in (small, mixed):
        text = "\n".join([tokenizer.kind, "True", *tokenizer.tokens])
        old = hashlib.sha256(text.encode()).hexdigest()
        assert tokenizer.has_fingerprint(old)
        assert tokenizer.has_fingerprint(tokenizer.fingerprint())
        assert not tokenizer.has_fingerprint("")
        assert (tokenizer.fingerprint() == old) == (tokenizer is small)


def test_a_saved_folder_contains_its_class_and_case(small, tmp_path):
    path = write(tmp_path / "vocab.txt", TOKENS)
    WordPieceTokenizer(TOKENS, False).save(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "BertTokenizer"
    assert (config["do_lower_case"], config["mask_token"]) == (False, "[MASK]")
    assert path.read_text().split("\n") == [*TOKENS, ""]
    assert load_tokenizer(tmp_path).lower_case is False
    assert small.fingerprint() != load_tokenizer(tmp_path).fingerprint()


def test_sentencepiece_needs_no_spaces_and_restores_the_text(mixed):
    text = "セーターを着た猫である。"
    ids = mixed.encode(text)
    assert 2 < len(ids) <= len(text) + 1
    assert mixed.unk_id not in ids
    assert mixed.decode(ids) == text
    assert mixed.mask_id not in mixed.encode("[MASK]")
    assert not mixed.continuation[: len(SPECIAL)].any()


@pytest.mark.parametrize(
    "text",
    [
        "ガラスのパン",
        "한국어 각각",
        "tiếng việt một",
        "\uff76\uff9e\uff97\uff7d \uff8a\uff9f\uff9d",
        "\uff41\u0301\uff42\u0304 \u2460\u0308 \ufef0\u064e \u32ac\uff5e",
    ],
)
def test_decomposed_letters_have_the_tokens_of_the_sentencepiece_package(text, mixed):
    """File names and texts of Macs are decomposed. The fourth text is halfwidth Japanese.

    The last text has marks after fullwidth and circled characters and an Arabic form, and
    the tilde that the rules keep.
    """
    package = SentencePieceProcessor(model_proto=mixed.content)
    for form in (text, unicodedata.normalize("NFD", text)):
        normalized = mixed.library.normalizer.normalize_str(form)
        assert normalized == package.normalize(form)[1:].replace("\u2581", " ")
        assert mixed.encode(form).tolist() == package.encode(form)


@pytest.mark.parametrize("change", ["scores", "normalizer"])
def test_sentencepiece_models_of_equal_tokens_have_different_fingerprints(change):
    """Scores choose between tokens, and the normaliser changes the text first."""
    text = ["the cat saw the cats that sat there"] * 20
    tokenizer = vocabulary_training.train_vocabulary(text, 30, kind="sentencepiece")
    model = ModelProto.FromString(tokenizer.content)
    text = "ｔｈｅ cat"
    if change == "scores":
        for piece in model.pieces[len(SPECIAL) :]:
            piece.score = -100.0 * (len(piece.piece) > 1)
    else:
        model.normalizer_spec.precompiled_charsmap = b""
    other = SentencePieceTokenizer(model.SerializeToString())
    assert other.tokens == tokenizer.tokens
    assert other.lower_case == tokenizer.lower_case
    assert other.tokenize(text) != tokenizer.tokenize(text)
    assert other.fingerprint() != tokenizer.fingerprint()
    assert not other.has_fingerprint(tokenizer.fingerprint())


RULES = {
    "model_type": ("trainer_spec", 2, "model_type is 2, expected 1"),
    "byte_fallback": ("trainer_spec", True, "byte_fallback is 1, expected 0"),
    "treat_whitespace_as_suffix": ("trainer_spec", True, "is 1, expected 0"),
    "add_dummy_prefix": ("normalizer_spec", False, "is 0, expected 1"),
    "remove_extra_whitespaces": ("normalizer_spec", False, "is 0, expected 1"),
    "escape_whitespaces": ("normalizer_spec", False, "is 0, expected 1"),
}


@pytest.mark.parametrize("name", RULES)
def test_sentencepiece_rules_that_the_library_lacks_are_refused(name, mixed):
    part, value, message = RULES[name]
    model = ModelProto.FromString(mixed.content)
    setattr(getattr(model, part), name, value)
    with pytest.raises(UserError, match=f"{message}; save the tokenizer as") as caught:
        SentencePieceTokenizer(model.SerializeToString())
    assert name in str(caught.value)


def test_a_user_defined_symbol_of_sentencepiece_is_refused(mixed):
    """The library does not match it first. A special token may be user-defined."""
    model = ModelProto.FromString(mixed.content)
    for i, token in ((mixed.mask_id, "[MASK]"), (len(mixed) - 1, "\u263a")):
        model.pieces[i].piece = token
        model.pieces[i].score = 0
        model.pieces[i].type = ModelProto.SentencePiece.USER_DEFINED
        if token == "[MASK]":
            same = SentencePieceTokenizer(model.SerializeToString())
            assert same.mask_id not in same.encode("[MASK]")
            assert same.encode("[MASK]", allow_mask=True).tolist() == [same.mask_id]
            continue
        with pytest.raises(
            UserError, match="'\u263a' is a user-defined symbol, which is not"
        ):
            SentencePieceTokenizer(model.SerializeToString())


@pytest.mark.parametrize("lower_case", [True, False])
def test_cached_words_of_sentencepiece_have_the_ids_of_the_library(golden, lower_case):
    """Even for spaces, marks of spaces and long words. to_json() has the same ids."""
    text = (golden / "pretraining_data/moby_dick_sentences.txt").read_text()
    lines = text.split("\n")[:600]
    tokenizer = vocabulary_training.train_vocabulary(
        lines, 600, kind="sentencepiece", lower_case=lower_case
    )
    library = Tokenizer.from_str(tokenizer.to_json().decode())
    library.encode_special_tokens = True
    odd = ["", " ", "  the  sea ", "the\u2581sea \u2581 ", "\u3000sea\t", "\ud800"]
    odd += [
        "x" * 99 + " sea " + "sea" * 99,
        "\uff34\uff48\uff45 \ufb01sh",
        "\u0130 \u03a3",
        "sea\x85 the \u00b4 sea\u00a0the\x85",
    ]
    for line in [*lines, *odd, *lines[:9]]:
        plain = line.encode("utf-8", "replace").decode()
        expected = library.encode(plain, add_special_tokens=False).ids
        assert tokenizer.encode(line).tolist() == expected, line
        masked = f"{line}[MASK]{line}"
        ids = tokenizer.encode(masked, allow_mask=True).tolist()
        assert ids.count(tokenizer.mask_id) == 1
    assert max(map(len, tokenizer._word_ids)) <= 40
    assert tokenizer._word_ids


@pytest.mark.parametrize("kind", ["sentencepiece", "tokenizers"])
def test_special_tokens_in_cased_text_are_ordinary(kind):
    """A Unigram model contains its special tokens with the highest score."""
    sentences = ["The Cat saw [ M A S K ] U N C L E P D b x the cats"] * 20
    tokenizer = vocabulary_training.train_vocabulary(
        sentences, 60, kind="sentencepiece", lower_case=False
    )
    if kind == "tokenizers":
        tokenizer = LibraryTokenizer(tokenizer.to_json())
    assert tokenizer.tokens[:5] == SPECIAL
    for text in ("[MASK]", "The [CLS] Cat[SEP][PAD]", "x[UNK]", "a [MASK] b"):
        tokens = tokenizer.tokenize(text)
        assert not {*tokens} & {*SPECIAL}
        assert "".join(tokens).replace("\u2581", " ").strip() == text
    masked = tokenizer.encode("Cat [MASK][SEP]", allow_mask=True)
    tokens = [tokenizer.tokens[i] for i in masked]
    assert tokens.count("[MASK]") == 1
    assert "[SEP]" not in tokens
    text = "[CLS] The Cat[MASK] [SEP]".replace(" [SEP]", "[SEP]")
    assert tokenizer.decode(tokenizer("The Cat [MASK]")["input_ids"]) == text


def words_of(tokenizer, text):
    words = []
    for i in tokenizer.encode(text):
        if tokenizer.continuation[i]:
            words[-1] += tokenizer.tokens[i]
        else:
            words.append(tokenizer.tokens[i])
    return words


@pytest.mark.parametrize("text", ["セーターを着た猫である。", "แมวนั่งบนเสื่อ"])
def test_in_languages_without_spaces_each_token_is_a_word(mixed, text):
    """Except for marks of long vowels and tones, and punctuation."""
    tokens, words = mixed.tokenize(text), words_of(mixed, text)
    assert "".join(words).strip("\u2581") == text
    marks = [t for t in tokens if unicodedata.category(t[0]) not in ("Lo", "So")]
    assert len(words) == len(tokens) - len(marks) > 5 and marks
    assert not any(word.startswith(("ー", "。", "\u0e31", "\u0e48")) for word in words)


def test_words_of_tokenizers_that_mark_spaces(golden, mixed):
    folder = golden / "tokenizers"
    assert words_of(mixed, "the cats saw") == ["\u2581the", "\u2581cats", "\u2581saw"]
    split = words_of(load_tokenizer(folder / "added"), "the <e1> cats")
    assert split == ["the", "<e1>", "cat##s"]
    for name, space in (("bpe", "\u0120"), ("unigram", "\u2581")):
        tokenizer = load_tokenizer(folder / name)
        split = words_of(tokenizer, "the cat's")
        assert not tokenizer.continuation[: len(SPECIAL)].any()
        assert split == [f"{space}the", f"{space}cat's"]
    ids = {token: i for i, token in enumerate(TOKENS)}
    words = Tokenizer(models.WordLevel(ids, "[UNK]"))  # does not mark spaces
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer = LibraryTokenizer(words.to_str().encode())
    assert words_of(tokenizer, "the a the") == ["the", "a", "the"]


@pytest.fixture(scope="module")
def spaced():
    """A SentencePiece model of words with spaces, and of words without."""
    text = ["the cat. the cat sat."] * 50 + ["\u732b\u306e\u732b."] * 50
    return vocabulary_training.train_vocabulary(text, 24, kind="sentencepiece")


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("cat [MASK].", ["\u2581cat", "[MASK]", "."]),
        ("cat [MASK] cat", ["\u2581cat", "[MASK]", "\u2581cat"]),
        ("[MASK]\u306e[MASK]", ["[MASK]", "\u306e", "[MASK]"]),
        (" [MASK] ", ["[MASK]"]),
    ],
)
def test_sentencepiece_puts_no_space_behind_a_mask(text, tokens, spaced):
    ids = spaced.encode(text, allow_mask=True)
    assert [spaced.tokens[i] for i in ids] == tokens


def test_unknown_tokens_are_counted_without_other_special_tokens():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = WordPieceTokenizer([*special, "the", "ship"], True)
    text = tokenizer.encode_batch(["the ж ship ж", ""])
    sequences = [tokenizer.build(ids)[0] for ids in text]
    known = len(tokenizer.encode("the ship"))
    assert count_unknown(sequences, tokenizer) == (2, known + 2)
    assert count_unknown([], tokenizer) == (0, 0)
    assert unknown_warning(5, 100, "a/model") == unknown_warning(0, 0, "a/model") == ""
    warning = unknown_warning(6, 100, "a/model")
    assert warning.startswith("6% of the tokens are unknown: the vocabulary of a/model")
