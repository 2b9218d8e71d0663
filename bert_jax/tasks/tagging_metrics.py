"""What tags spell, and scores of tags in percent.

Spans are read as conlleval reads them, which is what seqeval does unless its strict mode
is asked for: an I- that continues no span of its type begins one.
"""

from collections.abc import Sequence

from seqeval.metrics.sequence_labeling import (
    accuracy_score,
    get_entities,
    precision_recall_fscore_support,
)

from bert_jax.tasks.tagging_formats import segments

Tags = Sequence[list[str]]  # of each sentence
WORD = "word"  # the type of the spans of word segmentation


def entities(tags: list[str]) -> list[tuple[str, int, int]]:
    """The (type, start, end) of entities, end exclusive."""
    return [(name, start, last + 1) for name, start, last in get_entities(tags)]


def words(tags: list[str]) -> list[tuple[str, int, int]]:
    """The same of the words that bmes tags spell."""
    return [(WORD, start, end) for start, end in segments(tags)]


def as_iob2(spans: list[tuple[str, int, int]], length: int) -> list[str]:
    """The iob2 tags of a sentence with these spans."""
    tags = ["O"] * length
    for name, start, end in spans:
        tags[start:end] = [f"B-{name}", *[f"I-{name}"] * (end - start - 1)]
    return tags


def accuracy(gold: Tags, predicted: Tags) -> dict[str, float]:
    """The share of right tags."""
    return {"accuracy": 100 * float(accuracy_score(gold, predicted))}


def entity_scores(gold: Tags, predicted: Tags) -> dict[str, float]:
    """F1, precision and recall of entities, and "f1/TYPE" of each type that occurs."""
    scores = _span_scores(gold, predicted)
    types = {name for tags in (*gold, *predicted) for name, *_ in entities(tags)}
    _, _, f1, _ = precision_recall_fscore_support(gold, predicted, zero_division=0)
    for name, value in zip(sorted(types), f1, strict=True):
        scores[f"f1/{name}"] = 100 * float(value)
    return scores


def word_scores(gold: Tags, predicted: Tags) -> dict[str, float]:
    """F1, precision and recall of the words that bmes tags spell."""
    return _span_scores(
        *([as_iob2(words(row), len(row)) for row in tags] for tags in (gold, predicted))
    )


def surface_f1(
    sentences: Sequence[Sequence[str]], gold: Tags, predicted: Tags
) -> float:
    """F1 over the different (text, type) pairs of all sentences.

    WNUT-17's second measure (Derczynski et al. 2017): an entity counts once, however
    often it occurs.
    """
    a, b = (
        {
            (" ".join(sentence[start:end]), name)
            for sentence, row in zip(sentences, tags, strict=True)
            for name, start, end in entities(row)
        }
        for tags in (gold, predicted)
    )
    return 200 * len(a & b) / max(len(a) + len(b), 1)


def _span_scores(gold: Tags, predicted: Tags) -> dict[str, float]:
    precision, recall, f1, _ = precision_recall_fscore_support(
        gold, predicted, average="micro", zero_division=0
    )
    scores = {"f1": f1, "precision": precision, "recall": recall}
    return {name: 100 * float(value) for name, value in scores.items()}
