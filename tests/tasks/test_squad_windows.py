"""Offsets of tokens, windows over contexts, and answers from the windows' logits."""

import math
import random
import unicodedata

import numpy as np
import pytest

from bert_jax.data.tokenizer import WordPieceTokenizer, load_tokenizer
from bert_jax.data.vocabulary_training import train_vocabulary
from bert_jax.tasks.squad_format import Question
from bert_jax.tasks.squad_windows import (
    Window,
    answer_question,
    build_windows,
    encode_with_offsets,
)

# Accents of both forms, ideographs, dropped characters, letters that change length.
ALPHABET = "aeéÉe\u0301ñßİ中文あ가Δ£€1,.-'()“—\u200b\ufeff\x0b\u00a0\u3000\t\n     "
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="module")
def uncased(golden):
    return load_tokenizer(golden / "tokenizer" / "uncased_vocab.txt")


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


def test_words_that_the_library_cuts_in_another_way_are_kept_whole():
    """Google's final sigma: the ids are ours, the characters those of the word."""
    tokens = [
        *SPECIAL,
        "οδος",
        "οδος".replace("ς", "σ"),
        "ο",
        "##δ",
        "##ο",
        "##ς",
        "the",
    ]
    tokenizer = WordPieceTokenizer(tokens, True)
    assert characters("the ΟΔΟΣ the", tokenizer) == [
        ("the", "the"),
        ("οδος", "ΟΔΟΣ"),
        ("the", "the"),
    ]
    (tokens,) = encode_with_offsets(
        ["ΟΔΟΣ"], WordPieceTokenizer(tokens[:5] + tokens[7:], True)
    )
    assert [(a, b) for a, b in zip(tokens.starts, tokens.ends, strict=True)] == [
        (0, 4)
    ] * 4


def test_unknown_words_between_known_ones():
    tokenizer = WordPieceTokenizer([*SPECIAL, "a", "##b", "(", ")"], True)
    expected = [("[UNK]", "東"), ("(", "("), ("[UNK]", "zé"), ("a", "A"), ("##b", "B")]
    assert characters("東(zé AB", tokenizer) == expected


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


def test_characters_that_are_several_tokens_share_a_place():
    jamo = unicodedata.normalize("NFD", "가")
    tokenizer = WordPieceTokenizer([*SPECIAL, jamo[0], f"##{jamo[1]}"], True)
    assert characters("가", tokenizer) == [(jamo[0], "가"), (f"##{jamo[1]}", "가")]


def test_sentencepiece_words_between_spaces():
    text = ["the whale swam in the sea, and the sea was the whale's"] * 20
    tokenizer = train_vocabulary(text, 40, kind="sentencepiece")
    found = characters("Whale  zé sea", tokenizer)
    # The mark of a space shares its word's first character.
    expected = [("▁whale", "Whale"), ("▁", "z"), ("[UNK]", "zé"), ("▁sea", "sea")]
    assert found == expected


def test_text_without_tokens(uncased):
    tokens, none = encode_with_offsets([" \u200b ", ""], uncased)
    assert len(tokens.ids) == len(none.ids) == 0


@pytest.fixture(scope="module")
def words(golden):
    text = (golden / "pretraining_data" / "moby_dick_sentences.txt").read_text()
    return [*text.split()[:3000], "São", "£20,980", "Ōtaki's", "(1895–1943)", "東京"]


def question(context, text=None, *, asked="Who?", impossible=None):
    answers = () if text is None else ((text, context.index(text)),)
    return Question("q", asked, context, "", answers, impossible, "here")


def windows(rows, tokenizer, max_length=40, stride=8, longest=8, training=False):
    return build_windows(
        rows,
        tokenizer,
        max_length=max_length,
        stride=stride,
        max_question_length=longest,
        training=training,
    )


@pytest.mark.parametrize("seed", range(3))
def test_answers_come_back_from_their_labels(uncased, words, seed):
    generator = random.Random(seed)
    rows, golds = [], []
    for _ in range(200):
        chosen = generator.choices(words, k=generator.randint(1, 90))
        spaces = generator.choices([" ", "  ", "\n"], k=len(chosen))
        context = "".join(w + s for w, s in zip(chosen, spaces, strict=True))
        first = generator.randrange(len(chosen))
        stop = min(len(chosen), first + generator.randint(1, 4))
        start = sum(
            len(w) + len(s) for w, s in zip(chosen[:first], spaces, strict=False)
        )
        parts = zip(chosen[first:stop], spaces[first:stop], strict=True)
        gold = "".join(w + s for w, s in parts)
        gold = gold.rstrip()
        rows.append(Question("", "Who is it?", context, "", ((gold, start),), None, ""))
        golds.append(gold)
    features = windows(rows, uncased)
    start, end = features.targets["start"], features.targets["end"]
    held = set()
    for i, (row, window) in enumerate(zip(features.row, features.extra, strict=True)):
        ids = features.input_ids[i]
        assert (ids == uncased.sep_id).sum() == 2 and ids[0] == uncased.cls_id
        assert len(ids) == window.offset + len(window.starts) + 1 <= 40
        np.testing.assert_array_equal(
            features.token_type_ids[i], np.arange(len(ids)) >= window.offset
        )
        if start[i] == 0:
            assert end[i] == 0
            continue
        held.add(int(row))
        first = window.starts[start[i] - window.offset]
        stop = window.ends[end[i] - window.offset]
        assert first == rows[row].answers[0][1]
        assert rows[row].context[first:stop] == golds[row]
        gold_ids = uncased.encode(golds[row])
        np.testing.assert_array_equal(ids[start[i] : end[i] + 1], gold_ids)
    # Windows of 31 tokens, 8 apart, hold every answer of at most 24 tokens.
    lengths = [len(uncased.encode(gold)) for gold in golds]
    assert held >= {i for i, length in enumerate(lengths) if length <= 24}
    assert len(held) > 190


def test_an_answer_within_a_token_is_the_token(uncased):
    rows = [question('the "Japanese" imports', "Japan")]
    features = windows(rows, uncased)
    (start,), (end,) = features.targets["start"], features.targets["end"]
    token = uncased.tokens[features.input_ids[0][start]]
    assert (start, end) == (6, 6) and token == "japanese"  # [CLS] who ? [SEP] the "


def test_every_token_is_best_in_one_window(uncased, words):
    context = " ".join(words[:120])
    features = windows([question(context)], uncased)
    assert len(features.extra) > 10
    best = [start for w in features.extra for start in w.starts[w.best]]
    everywhere = {start for w in features.extra for start in w.starts}
    assert len(best) == len(set(best)) and set(best) == everywhere


def test_long_questions_are_cut_and_counted(uncased):
    rows = [question("a b", asked="who " * 9), question("a b", asked="who " * 8)]
    features = windows(rows, uncased)
    assert features.truncated == 1
    assert [window.offset for window in features.extra] == [10, 10]
    np.testing.assert_array_equal(features.input_ids[0], features.input_ids[1])


def test_targets_need_a_label_in_every_row(uncased):
    right = question("the sea", "sea", asked="what")
    impossible = question("the sea", asked="what", impossible=True)
    features = windows([right, impossible], uncased, training=True)
    assert features.extra == []
    np.testing.assert_array_equal(features.targets["start"], [4, 0])
    np.testing.assert_array_equal(features.targets["end"], [4, 0])
    assert windows([right, question("the sea")], uncased).targets == {}


def test_a_context_without_tokens_has_a_window(uncased):
    features = windows([question("\u200b", "\u200b", asked="what")], uncased)
    assert len(features.input_ids) == 1 and len(features.extra[0].starts) == 0
    assert features.targets["start"].tolist() == [0]


def test_no_rows(uncased):
    features = windows([], uncased)
    assert features.row.shape == (0,) and features.input_ids == []


CONTEXT = "aa bb cc dd ee"
OFFSET = 2


def row(context=CONTEXT):
    return Question("q7", "?", context, "", (), None, "here")


def window(first=0, stop=5, best=None):
    places = np.arange(first, stop, dtype=np.int32)
    best = np.ones(len(places), bool) if best is None else np.array(best, bool)
    return Window(OFFSET, places * 3, places * 3 + 2, best)


def logits(start, end, cls=(0.0, 0.0)):
    """Rows: [CLS], the question, the context and [SEP]; elsewhere high, to be ignored."""
    context = np.stack([start, end], axis=1)
    return np.concatenate([[cls], [(99, 99)], context, [(99, 99)]]).astype(np.float32)


def answer(
    windows, outputs, longest=30, n_best=20, null_threshold=None, context=CONTEXT
):
    return answer_question(
        row(context),
        windows,
        outputs,
        max_answer_length=longest,
        n_best=n_best,
        null_threshold=null_threshold,
    )


def test_the_best_span_and_its_probability():
    result = answer([window()], [logits([0, 5, 0, 3, 0], [0, 0, 4, 0, 0])], n_best=3)
    assert result["answer"] == "bb cc" == CONTEXT[result["start"] : result["end"]]
    assert result["id"] == "q7" and "null_odds" not in result
    # Sums: bb cc 9; then bb, bb cc dd, bb cc dd ee 5, of which the earlier ones count.
    assert [entry["text"] for entry in result["nbest"]] == ["bb cc", "bb", "bb cc dd"]
    probability = math.exp(9) / (math.exp(9) + 2 * math.exp(5))
    assert result["probability"] == pytest.approx(probability, rel=1e-12)
    assert result["probability"] == result["nbest"][0]["probability"]
    assert sum(e["probability"] for e in result["nbest"]) == pytest.approx(1)
    first = result["nbest"][0]
    assert (first["start_logit"], first["end_logit"]) == (5.0, 4.0)


def test_the_end_is_not_before_the_start_nor_too_far():
    scores = logits([0, 0, 0, 0, 9], [9, 0, 0, 0, 0])
    assert answer([window()], [scores])["answer"] in ("aa", "ee")
    scores = logits([9, 0, 0, 0, 0], [0, 0, 1, 2, 3])
    for longest, expected in [(5, "aa bb cc dd ee"), (4, "aa bb cc dd"), (1, "aa")]:
        assert answer([window()], [scores], longest)["answer"] == expected


def test_all_spans_against_a_search_of_all():
    rng = np.random.default_rng(0)
    for _ in range(30):
        start, end = rng.normal(size=(2, 5))
        result = answer([window()], [logits(start, end)], longest=3, n_best=4)
        spans = {
            CONTEXT[i * 3 : j * 3 + 2]: start[i] + end[j]
            for i in range(5)
            for j in range(i, min(i + 3, 5))
        }
        best = sorted(spans, key=spans.get, reverse=True)[:4]
        assert [entry["text"] for entry in result["nbest"]] == best


def test_a_start_counts_in_its_best_window_only():
    windows = [window(0, 3, [1, 1, 0]), window(2, 5, [1, 1, 1])]
    left = logits([0, 0, 9], [0, 0, 9])
    right = logits([1, 0, 0], [2, 0, 0])
    result = answer(windows, [left, right])
    # The 18 of cc in the left window is not its own; aa cc and bb cc may end there.
    assert result["nbest"][0] == pytest.approx(
        {**result["nbest"][0], "text": "aa bb cc", "start_logit": 0, "end_logit": 9}
    )
    entry = next(e for e in result["nbest"] if e["text"] == "cc")
    assert (entry["start_logit"], entry["end_logit"]) == (1.0, 2.0)


def test_a_text_is_listed_once():
    scores = logits([3, 0, 0, 0, 2], [3, 0, 0, 0, 2])
    result = answer([window()], [scores], context="aa bb cc dd aa", longest=1)
    texts = [entry["text"] for entry in result["nbest"]]
    assert sorted(texts) == ["aa", "bb", "cc", "dd"]
    assert (result["start"], result["end"]) == (0, 2)


@pytest.mark.parametrize(
    ("threshold", "expected"), [(-2.5, ""), (-2.0, "bb"), (0.0, "bb")]
)
def test_null_odds(threshold, expected):
    # Best span 3 + 4 = 7; null: the smaller of 6 + 0.5 and 2 + 3, so odds of -2.
    windows = [window(0, 3, [1, 1, 0]), window(2, 5)]
    outputs = [
        logits([0, 3, 0], [0, 4, 0], cls=(6.0, 0.5)),
        logits([0, 0, 0], [0, 0, 0], cls=(2.0, 3.0)),
    ]
    result = answer(windows, outputs, null_threshold=threshold, n_best=3)
    assert result["null_odds"] == -2.0
    assert result["answer"] == expected
    assert (result["start"], result["end"]) == ((3, 5) if expected else (None, None))
    # Sums: bb 7, null 5, then bb cc 3 + 0 (aa bb has 0 + 4).
    assert [e["text"] for e in result["nbest"]] == ["bb", "", "aa bb"]
    total = math.exp(7) + math.exp(5) + math.exp(4)
    part = math.exp(7 if expected else 5)
    assert result["probability"] == pytest.approx(part / total, rel=1e-12)


def test_the_empty_answer_stays_in_sight():
    scores = logits([5, 5, 5, 5, 5], [5, 5, 5, 5, 5], cls=(-5.0, -5.0))
    result = answer([window()], [scores], null_threshold=0.0, n_best=3)
    assert [bool(e["text"]) for e in result["nbest"]] == [True, True, True, False]
    assert result["null_odds"] == -20.0
    # Even of one, the best answer and the empty one are both listed.
    scores = logits([1, 0, 0, 0, 0], [0, 0, 0, 0, 0], cls=(5.0, 5.0))
    result = answer([window()], [scores], null_threshold=99.0, n_best=1)
    assert [e["text"] for e in result["nbest"]] == ["", "aa"]
    assert result["answer"] == "aa" and result["probability"] < 0.001


@pytest.mark.parametrize("null_threshold", [None, 0.0])
@pytest.mark.parametrize("empty", [True, False])
def test_no_span_is_an_empty_answer(null_threshold, empty):
    # A context without tokens, and a model that diverged.
    view = window(0, 0) if empty else window()
    scores = logits([], []) if empty else np.full((8, 2), np.nan, np.float32)
    result = answer([view], [scores], null_threshold=null_threshold)
    assert (result["answer"], result["start"], result["end"]) == ("", None, None)
    assert [e["text"] for e in result["nbest"]] == (
        [] if null_threshold is None else [""]
    )
