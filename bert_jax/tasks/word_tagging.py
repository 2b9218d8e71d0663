"""Tagging of words: named entities, parts of speech, Chinese word segmentation.

Paper, section 5.3: the first token of a word has the label of the word, and the other
tokens have none. The tag of each word is decided alone, without a CRF, so predicted tags
may be ill-formed.
"""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy

from bert_jax.data import sequences
from bert_jax.data.batching import IGNORED, Features
from bert_jax.data.sequences import Window
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError, counted
from bert_jax.settings import Label, setting
from bert_jax.tasks import tagging_formats as formats
from bert_jax.tasks import task as base
from bert_jax.tasks.cells import is_list_beside, parse_list
from bert_jax.tasks.rows import Placed, Record, Row, ending, is_table, value_of
from bert_jax.tasks.source import DataConfig, Source, label_of
from bert_jax.tasks.tagging_formats import Sentence
from bert_jax.tasks.task import Answer, Answers, Outcome, Outputs, with_id

Rows = list[Sentence]

_FILES = {
    ("conll2003", "train"): ("eng.train", "train.txt"),
    ("conll2003", "dev"): ("eng.testa", "valid.txt"),
    ("conll2003", "test"): ("eng.testb", "test.txt"),
    ("wnut17", "train"): ("wnut17train.conll",),
    ("wnut17", "dev"): ("emerging.dev.conll",),
    ("wnut17", "test"): ("emerging.test.annotated",),
}


@dataclasses.dataclass(frozen=True)
class TaggingConfig(DataConfig):
    """The data set of tagged words, and how sentences become sequences."""

    task: str = setting(
        "columns",
        "conll2003, wnut17, columns (any file with a word and its tag on each line) "
        "or segmented (Chinese text with spaces between words)",
        one_of=("conll2003", "wnut17", "columns", "segmented"),
    )
    scheme: str = setting(
        "auto",
        "iob1, iob2, iobes, bilou, bmeso (BMES with types), bmes or plain; auto: "
        "recognised from the training tags",
        one_of=("auto", *formats.SCHEMES),
    )
    column: int = setting(-1, "column of the tag, from 0; -1: the last column")
    word_column: int = setting(
        -1,
        "column of the word, from 0. -1: 1 in a .conllu file, otherwise 0. The words of "
        "GermEval are in column 1",
        least=-1,
    )
    labels: tuple[Label, ...] = setting(
        (), "all tags; empty: the tags of train, sorted"
    )
    max_length: int = setting(128, "maximum number of tokens of a sequence", least=3)
    stride: int = setting(0, "tokens between window starts; 0: half a window", least=0)
    document_context: bool = setting(
        False, "fill each sequence with the sentences before and after its sentence"
    )
    words: str = setting(
        "treebank",
        "how predict splits a text: treebank (as the Penn Treebank: punctuation marks, 's "
        "and n't are words) or blanks. Older names of treebank: auto, punctuation, clitics",
        one_of=("treebank", "blanks", "auto", "punctuation", "clitics"),
    )


class TaggingSource(Source):
    """Files with a word and its tag on each line, segmented text, or tables."""

    def file_names(self, split: str) -> Sequence[str]:
        return _FILES.get((self.config.task, split), (f"{split}.txt",))

    def read_file(self, path: Path, split: str) -> Iterator[Record]:
        if not self._has_words(path):
            return super().read_file(path, split)
        if self.config.task == "segmented":
            return formats.read_segmented(path)
        return formats.read_columns(path, self.config.column, self.config.word_column)

    def is_own(self, path: Path) -> bool:
        """Whether the file ends in .conll or .conllu."""
        is_conll = ending(path) in (".conll", ".conllu")
        return is_conll and self.config.task != "segmented"

    def _has_words(self, path: Path) -> bool:
        return not is_table(path) or ending(path) == ".tsv"


class Tagging(base.Task):
    """A tag for each word; entities are scored as conlleval scores them.

    A sentence over max_length tokens is cut into windows. Each word is trained on and
    predicted once, in the window with most context around it.
    """

    family = "tagging"
    config_class = TaggingConfig
    source_class = TaggingSource
    head = "token"
    tabs = False
    list_columns = ("words", "tags")
    columns: ClassVar = {
        "words": ("words", "tokens", "text"),
        "tags": ("tags", "ner_tags"),
    }

    @functools.cached_property
    def _training(self) -> Rows:
        return super().read("train")

    @functools.cached_property
    def scheme(self) -> str:
        """The scheme in the config, or the scheme of the labels or of the training rows."""
        if self.config.scheme != "auto":
            return self.config.scheme
        if self.config.task == "segmented":
            return "bmes"
        labels = self.config.labels
        return formats.recognise(labels or (x for r in self._training for x in r.tags))

    @property
    def kind(self) -> str:
        """The spans of the tags: "entities", "words", or "tags" for no spans."""
        return {"bmes": "words", "plain": "tags"}.get(self.scheme, "entities")

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """The tags in the config, or the tags of the training rows, sorted."""
        if self.config.labels or self.scheme == "bmes":
            return self.config.labels or ("B", "E", "M", "S")
        rows = (self._learned(row) for row in self._training)
        return tuple(sorted({tag for tags in rows for tag in tags}))

    @property
    def main_metric(self) -> str:
        return "accuracy" if self.kind == "tags" else "f1"

    def read(self, split: str) -> Rows:
        """The sentences of a split, with iob2 tags instead of iob1; see Task.read."""
        rows = self._training if split == "train" else super().read(split)
        return [self._checked(row) for row in rows] if self.labelled(split) else rows

    def _learned(self, row: Sentence) -> list[str]:
        """The tags with iob2 instead of iob1."""
        return formats.spelled(row.tags, self.scheme, self.scheme)

    def _checked(self, row: Sentence) -> Sentence:
        """The row with the tags that are learned. Raises UserError for wrong tags."""
        learned, iob = self._learned(row), self.scheme in ("iob1", "iob2")
        for word, tag, new in zip(row.words, row.tags, learned, strict=True):
            # An I- that begins an entity becomes B-.
            allowed = new == tag or (iob and new == f"B{tag[1:]}")
            if not allowed or new not in self.label_ids:
                raise UserError(
                    f"{row.where}: the word {word!r} has the tag {tag!r}; expected a tag "
                    f"of {self.scheme} (data.scheme) that fits the tags beside it, in the "
                    f"label set {', '.join(self.labels)} (data.labels)"
                )
        return dataclasses.replace(row, tags=tuple(learned))

    def rows(self, placed: Iterable[Placed], *, labelled: bool = False) -> Iterator:
        """Yields sentences. In rows without "document" an empty text ends a document."""
        document = 0
        for row in super().rows(placed, labelled=labelled):
            if row.document is None:
                row = dataclasses.replace(row, document=document)
            yield row
            document += not row.words

    def row(self, where: str, values: Mapping[str, Any], labelled: bool) -> Sentence:
        """A sentence. The words are a list, or a text, which :func:`find_words` splits.

        A tag may be the number of a label. "document" has the same value in sentences that
        follow each other in a document.
        """
        text, offsets, tags = "", None, None
        words = value_of(where, values, self.columns["words"])
        if isinstance(words, str) and labelled:
            words = words.split()
        elif isinstance(words, str):
            how = "characters" if self.kind == "words" else self.config.words
            text, offsets = words, formats.find_words(words, how)
            words = [text[start:end] for start, end in offsets]
        if not _is_texts(words):
            raise UserError(f'{where}: "words" is not a list of words')
        if labelled:
            tags = value_of(where, values, self.columns["tags"])
            tags = tags.split() if isinstance(tags, str) else tags
            if isinstance(tags, list):
                tags = tuple(label_of(tag, self.config.labels) for tag in tags)
            if not _is_texts(tags) or len(tags) != len(words):
                actual = f"{where} has {counted(len(words), 'word')} and the tags"
                expected = "a tag for each word, or its number in data.labels"
                raise UserError(f"{actual} {tags!r:.200}; expected {expected}")
        document, key = values.get("document"), values.get("id")
        return Sentence(tuple(words), tags, document, where, text, offsets, key)

    def values(self, where: str, row: Row, *, labelled: bool) -> dict[str, Any]:
        """The values of a row by name. A tuple of texts to predict is the words."""
        if isinstance(row, tuple) and _is_texts(row) and not labelled:
            row = (row,)
        return super().values(where, row, labelled=labelled)

    def is_list(self, name: str, cell: str, values: Mapping[str, Any]) -> bool:
        """Whether the words or the tags must be a list.

        Words with blanks between them may start with a bracket, such as "( see above )", if
        there are as many tags.
        """
        if not super().is_list(name, cell, values):
            return False
        is_tags = name in self.columns["tags"]
        if is_tags and len(cell.split()[0]) > 1:
            return True  # "[X," is not a tag, but "(" is
        beside = self.columns["words" if is_tags else "tags"]
        others = [values[x] for x in beside if values.get(x) is not None]
        if others:
            return is_list_beside(cell, others[0])
        if is_tags or name in ("words", "tokens"):
            return True
        # A text to predict may start with a bracket, and "text" is always a text.
        return name != "text" and parse_list(cell) is not None

    def encode(self, rows: Rows, tokenizer: Tokenizer) -> Features:
        """Sequences [CLS] words [SEP], all of token type 0; see Task.encode.

        A word without tokens (control characters) becomes [UNK]. A word with more tokens
        than a window loses its last tokens, and its row counts as truncated.
        extra: for each sequence the numbers of the words that it predicts, and the
        positions of their first tokens, both int (words,).
        """
        capacity = self.config.max_length - 2
        stride = self.config.stride or (capacity + 1) // 2
        unknown = np.array([tokenizer.unk_id], tokenizer.dtype)
        encoded = tokenizer.encode_batch([word for row in rows for word in row.words])
        tokens = [ids[:capacity] if len(ids) else unknown for ids in encoded]
        cut = np.array([len(ids) > capacity for ids in encoded], bool)
        offsets = np.cumsum([0, *map(len, tokens)])
        bounds = np.cumsum([0, *(len(row.words) for row in rows)]).tolist()
        documents: list[Window] = []  # the words of the document around each row
        for _, group in itertools.groupby(rows, lambda row: row.document):
            first, last = len(documents), len(documents) + len(list(group))
            documents += [(bounds[first], bounds[last])] * (last - first)
        joined, labels, extra, row_of, truncated = [], [], [], [], 0
        for i, row in enumerate(rows):
            first, last = bounds[i : i + 2]
            truncated += int(cut[first:last].any())
            spans = sequences.windows(offsets, (first, last), capacity, stride)
            if self.config.document_context:
                spans = [widen(offsets, s, documents[i], capacity) for s in spans]
            owner = sequences.owners(offsets, (first, last), spans)
            for j, (start, stop) in enumerate(spans):
                words = np.flatnonzero(owner == j)
                if not len(words):
                    continue  # the window predicts no word
                inside = np.concatenate(tokens[start:stop])
                joined.append(sequences.join(tokenizer, inside))
                positions = 1 + offsets[first + words] - offsets[start]
                extra.append((words, positions))
                row_of.append(i)
                if row.tags is not None:
                    target = np.full_like(joined[-1][0], IGNORED)
                    target[positions] = [self.label_ids[row.tags[w]] for w in words]
                    labels.append(target)
        targets = {"labels": labels} if labels else {}
        more = {"extra": extra, "truncated": truncated}
        return base.joined_features(joined, row_of, targets, **more)

    def golds(self, row: Sentence) -> Sequence[str]:
        return row.tags or ()

    def decode(self, rows: Rows, features: Features, outputs: Outputs) -> Answers:
        """Words, tags and the probabilities of the tags; see Task.decode.

        "entities" (unless tags are plain) have type, text, start and end (words, end
        exclusive), and the product of the probabilities of their words. A row that was a
        text also has "offsets", the characters [start, end) of each word, and the
        "characters" of each entity.
        """
        p_of_rows = [np.zeros((len(row.words), self.outputs)) for row in rows]
        pairs = zip(features.extra, outputs, strict=True)
        for i, ((words, positions), logits) in zip(features.row, pairs, strict=True):
            logits = np.float64(logits[positions])
            p_of_rows[i][words] = scipy.special.softmax(logits, axis=-1)
        pairs = zip(rows, p_of_rows, strict=True)
        return [with_id(row, self._answer(row, p)) for row, p in pairs]

    def _answer(self, row: Sentence, p: np.ndarray) -> Answer:
        """The answer to a row; p: float (words, labels)."""
        tags, best = [self.labels[i] for i in p.argmax(axis=-1)], p.max(axis=-1)
        answer = {"words": [*row.words], "tags": tags, "probabilities": best.tolist()}
        if row.offsets is not None:
            answer["offsets"] = [[*place] for place in row.offsets]
        if self.kind == "tags":
            return answer
        segmented, answer["entities"] = self.kind == "words", []
        for name, start, end in formats.entities(tags, self.scheme):
            text = ("" if segmented else " ").join(row.words[start:end])
            name = "word" if segmented else name
            entity = {"type": name, "text": text, "start": start, "end": end}
            if row.offsets is not None:
                place = [row.offsets[start][0], row.offsets[end - 1][1]]
                text = text if segmented else row.text[slice(*place)]
                entity |= {"text": text, "characters": place}
            entity["probability"] = math.prod(answer["probabilities"][start:end])
            answer["entities"].append(entity)
        return answer

    def score(self, rows: Rows, answers: Answers) -> base.Scores:
        """See tagging_formats.scores."""
        gold = [list(row.tags) for row in rows]
        predicted = [answer["tags"] for answer in answers]
        return formats.scores(gold, predicted, self.scheme)

    def outcomes(self, row: Sentence, answer: Answer) -> Iterator[Outcome]:
        """The tag of each word. The classes are types of entities, without B- and I-."""
        text, entities = " ".join(row.words), self.kind == "entities"
        tags = row.words, row.tags, answer["tags"], answer["probabilities"]
        for word, gold, tag, p in zip(*tags, strict=True):
            classes = (gold[2:] or gold, tag[2:] or tag) if entities else (gold, tag)
            yield Outcome(text, gold, tag, p, gold == tag, word, classes)

    def export(self, rows: Rows, answers: Answers, split: str) -> dict[str, str]:
        """SPLIT.conll, which conlleval reads, or SPLIT.segmented.txt for segmentation.

        SPLIT.conll has "word gold predicted" lines, without gold if rows have no tags.
        Entities have iob2 tags. SPLIT.segmented.txt has a sentence on each line.
        """
        name, lines = f"{split}.conll", []
        for row, answer in zip(rows, answers, strict=True):
            if self.kind == "words":
                name = f"{split}.segmented.txt"
                lines.append(" ".join(x["text"] for x in answer["entities"]))
                continue
            tags = [row.tags, answer["tags"]] if row.tags else [answer["tags"]]
            if self.kind == "entities":
                tags = [formats.spelled(x, self.scheme, "iob2") for x in tags]
            # Columns have blanks between them, so words have none.
            words = [re.sub(r"\s", "_", word) for word in row.words]
            lines += [*map(" ".join, zip(words, *tags, strict=True)), ""]
        return {name: "".join(f"{line}\n" for line in lines)}


def _is_texts(values: Any) -> bool:
    """Whether the values are a sequence of texts that are not empty."""
    is_sequence = isinstance(values, list | tuple)
    return is_sequence and all(x and isinstance(x, str) for x in values)


def widen(offsets: np.ndarray, window: Window, document: Window, size: int) -> Window:
    """The window with as many words of its document around it as fit.

    Half of the added words are on each side. If the document ends on one side, the other
    side gets the rest.

    offsets: see data.sequences.windows. size: maximum number of tokens of a window.
    """
    (start, stop), (low, high) = window, document
    room = size - (offsets[stop] - offsets[start])
    after = offsets[high] - offsets[stop]
    before = max(room // 2, room - after)
    start = max(low, int(np.searchsorted(offsets, offsets[start] - before)))
    stop = min(high, sequences.last_stop(offsets, start, size))
    # The end of the document, or a long word there, leaves room before the window.
    start = max(low, int(np.searchsorted(offsets, offsets[stop] - size)))
    return start, stop
