import numpy as np
import pytest

from bert_jax.tasks import tagging_formats as metrics

LABELS = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")


def conlleval_counts(gold, predicted):
    """(found in gold, found in predicted, right), counted apart from the code."""

    def spans(tags):
        found, before = [], "O"
        for i, tag in enumerate(tags):
            if tag[0] == "B" or (tag[0] == "I" and before[1:] != tag[1:]):
                found.append([tag[2:], i, i])
            elif tag[0] == "I":
                found[-1][2] = i
            before = tag
        return set(map(tuple, found))

    counts = np.zeros(3, int)
    for a, b in zip(gold, predicted, strict=True):
        a, b = spans(a), spans(b)
        counts += [len(a), len(b), len(a & b)]
    return counts


# What conlleval (version 2004-01-26) printed for these tags: phrases in gold, found, right.
CONLLEVAL = [
    ("O B-PER O", "O I-PER O", (1, 1, 1)),  # an I- after O begins an entity
    ("B-PER I-PER", "B-PER I-LOC", (1, 2, 0)),  # and so does one of another type
    ("B-PER B-LOC", "B-PER I-LOC", (2, 2, 2)),
    ("B-PER I-PER", "I-PER I-PER", (1, 1, 1)),
    ("B-PER I-PER", "I-PER B-PER", (1, 2, 0)),
    ("B-PER I-PER O", "B-PER I-PER I-PER", (1, 1, 0)),
    ("B-PER O B-PER", "B-PER I-PER B-PER", (2, 2, 1)),
    ("O O", "O O", (0, 0, 0)),
    ("O O", "B-LOC O", (0, 1, 0)),
    ("B-LOC O", "O O", (1, 0, 0)),
]


@pytest.mark.parametrize("gold, predicted, counts", CONLLEVAL)
def test_entities_count_as_conlleval_counts_them(gold, predicted, counts):
    found, guessed, right = counts
    gold, predicted = [gold.split()], [predicted.split()]
    assert tuple(conlleval_counts(gold, predicted)) == counts
    assert len(metrics.entities(predicted[0])) == guessed
    scores = metrics.entity_scores(gold, predicted)
    assert scores["precision"] == (100 * right / guessed if guessed else 0)
    assert scores["recall"] == (100 * right / found if found else 0)
    assert scores["f1"] == pytest.approx(200 * right / max(found + guessed, 1))


def test_scores_of_random_tags():
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 12, 200)
    gold, predicted = ([rng.choice(LABELS, n).tolist() for n in sizes] for _ in "ab")
    scores = metrics.entity_scores(gold, predicted)
    found, guessed, right = conlleval_counts(gold, predicted)
    assert right > 50
    assert scores["precision"] == pytest.approx(100 * right / guessed)
    assert scores["recall"] == pytest.approx(100 * right / found)
    assert scores["f1"] == pytest.approx(200 * right / (found + guessed))
    for name in ("LOC", "PER"):
        one = [
            [[t if t[2:] == name else "O" for t in row] for row in tags]
            for tags in (gold, predicted)
        ]
        # Taking the others out joins nothing: what is left begins as it did.
        a, b = (
            {(i, s) for i, row in enumerate(tags) for s in metrics.entities(row)}
            for tags in one
        )
        expected = 200 * len(a & b) / (len(a) + len(b))
        assert scores[f"f1/{name}"] == pytest.approx(expected)


def test_surface_forms_count_once():
    sentences = [["Paris", "saw", "Paris"], ["paris"], ["New", "York"]]
    gold = [["B-LOC", "O", "B-LOC"], ["B-LOC"], ["B-LOC", "I-LOC"]]
    predicted = [["B-LOC", "O", "B-PER"], ["O"], ["B-LOC", "I-LOC"]]
    # Three forms in gold, three predicted, two in both.
    assert metrics.surface_f1(sentences, gold, predicted) == pytest.approx(200 / 3)
    assert metrics.surface_f1([["a"]], [["O"]], [["O"]]) == 0


def test_word_scores():
    gold, predicted = [list("BEBE"), list("SSBE")], [list("BMME"), list("SSSS")]
    # Right are two one-character words of the five in gold and the five found.
    scores = metrics.word_scores(gold, predicted)
    assert scores == pytest.approx(dict(f1=40, precision=40, recall=40))
    assert metrics.accuracy(gold, predicted) == {"accuracy": 50}


def test_spans_and_back():
    rng = np.random.default_rng(0)
    for _ in range(100):
        tags = rng.choice(LABELS, rng.integers(1, 12)).tolist()
        spans = metrics.entities(tags)
        well_formed = metrics.as_iob2(spans, len(tags))
        assert metrics.entities(well_formed) == spans
        # Only how an entity begins is repaired.
        assert [t[1:] for t in well_formed] == [t[1:] for t in tags]
