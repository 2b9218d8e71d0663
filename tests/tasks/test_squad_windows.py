import random

import numpy as np
import pytest

from bert_jax.data.tokenizer import load_tokenizer
from bert_jax.tasks.squad_format import Question
from bert_jax.tasks.squad_windows import best_windows, build_windows, window_ranges


@pytest.fixture(scope="module")
def uncased(golden):
    return load_tokenizer(golden / "tokenizer" / "uncased_vocab.txt")


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


@pytest.mark.parametrize(
    ("tokens", "room", "stride", "expected"),
    [
        (0, 5, 2, [(0, 0)]),
        (5, 5, 2, [(0, 5)]),
        (6, 5, 2, [(0, 5), (2, 6)]),
        (9, 5, 2, [(0, 5), (2, 7), (4, 9)]),
        (9, 3, 8, [(0, 3), (3, 6), (6, 9)]),  # no further apart than they are long
    ],
)
def test_window_ranges(tokens, room, stride, expected):
    np.testing.assert_array_equal(window_ranges(tokens, room, stride), expected)


def test_windows_leave_nothing_out():
    generator = random.Random(1)
    for _ in range(500):
        tokens, room, stride = (generator.randint(1, top) for top in (300, 60, 60))
        ranges = window_ranges(tokens, room, stride)
        covered = set().union(*(range(*r) for r in ranges.tolist()))
        assert covered == set(range(tokens))
        assert (ranges[:, 1] - ranges[:, 0] <= room).all()
        assert (np.diff(ranges[:, 1]) > 0).all()  # every window adds something


def test_the_best_window_has_most_context_on_its_shorter_side():
    # Windows 0-5, 2-7, 4-9 of 9 tokens; e.g. token 4 has 0, 2 and 0 tokens beside it.
    ranges = np.array([(0, 5), (2, 7), (4, 9)])
    #  places: 0  1  2  3  4  5  6  7  8; at 3 both have 1, the first wins
    expected = [0, 0, 0, 0, 1, 1, 2, 2, 2]
    np.testing.assert_array_equal(best_windows(ranges), expected)
    # The longer window wins a tie: token 5 is the last of one, the first of the other.
    np.testing.assert_array_equal(
        best_windows(np.array([(0, 6), (5, 15)])), [0] * 5 + [1] * 10
    )


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
