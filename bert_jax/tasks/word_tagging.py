"""Tagging of words: named entities, parts of speech, Chinese word segmentation.

Paper, section 5.3: the first token of a word has the label of the word, and the other
tokens have none. The tag of each word is predicted on its own, without a CRF, so predicted
tags may be ill-formed.
"""

import dataclasses
import functools
import itertools
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from bert_jax.data import sequences
from bert_jax.data.batching import IGNORED, Features
from bert_jax.data.sequences import Window
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError, counted
from bert_jax.settings import Label, setting
from bert_jax.tasks import tagging_formats as formats
from bert_jax.tasks.cells import is_list_beside, looks_like_list, parse_list
from bert_jax.tasks.data_sets import DATA_SETS
from bert_jax.tasks.labels import class_of, in_order, numbers_of
from bert_jax.tasks.rows import (
    Placed,
    Record,
    ending,
    is_table,
    text_lines,
    value_of,
)
from bert_jax.tasks.splits import DataConfig, Form, named_columns
from bert_jax.tasks.tagging_formats import Sentence
from bert_jax.tasks.task import (
    Answer,
    Answers,
    Outcome,
    Outputs,
    Scores,
    Task,
    joined_features,
    records_of,
    with_id,
)

logger = logging.getLogger(__name__)

Rows = list[Sentence]

_SPLITTINGS = ("treebank", "blanks", "auto", "punctuation", "clitics")


@dataclasses.dataclass(frozen=True)
class TaggingConfig(DataConfig):
    """The data set of tagged words, and how sentences become sequences."""

    task: str = setting(
        "columns",
        "conll2003, wnut17, columns (any file with a word and its tag on each line) "
        "or segmented (Chinese text with spaces between words)",
        one_of=DATA_SETS["tagging"],
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
        (), "all tags; empty: the classes of a data set, or the tags of train and dev"
    )
    max_length: int = setting(128, "maximum number of tokens of a sequence", least=3)
    stride: int = setting(0, "tokens between window starts; 0: half a window", least=0)
    document_context: bool = setting(
        False, "fill each sequence with the sentences before and after its sentence"
    )
    words: str = setting("", "table: column of the words; empty: words, tokens or text")
    tags: str = setting("", "table: column of the tags; empty: tags or ner_tags")
    splitting: str = setting(
        "treebank",
        "how predict splits a text: treebank (similar to the Penn Treebank: punctuation "
        "marks, 's and n't are words) or blanks. Older names of treebank: auto, "
        "punctuation, clitics",
        one_of=_SPLITTINGS,
    )

    def __post_init__(self):
        if self.words in _SPLITTINGS:  # before 0.3 this setting had the name words
            object.__setattr__(self, "splitting", self.words)
            object.__setattr__(self, "words", "")
        super().__post_init__()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggingForm(Form):
    """Sentences in tables, in columns of words and tags, or segmented text."""

    config: TaggingConfig
    others: tuple[str, ...] = ("id", "document")
    lists: tuple[str, ...] = ("words", "tags")
    tabs: bool = False

    def read_file(self, path: Path, split: str) -> Iterator[Placed]:
        if is_table(path) and (ending(path) != ".tsv" or self._has_header(path)):
            return super().read_file(path, split)
        if self.config.task == "segmented":
            return formats.read_segmented(path)
        numbers = self.config.column, self.config.word_column
        return formats.read_columns(path, *numbers, tagged=split != "test")

    def _has_header(self, path: Path) -> bool:
        """Whether the first line of a TSV file names the columns of words and tags.

        Other TSV files have a word and its tag on each line.
        """
        for _, line in text_lines(path):
            found = {*line.rstrip("\r\n").split("\t")}
            return all(found.intersection(names) for names in self.columns.values())
        return False

    def is_own(self, path: Path) -> bool:
        is_conll = ending(path) in (".conll", ".conllu")
        return is_conll and self.config.task != "segmented"

    def by_position(self, where: str, row: Any, labelled: bool) -> dict[str, Any]:
        """The values of a row by name. A tuple of texts to predict is the words."""
        if isinstance(row, tuple) and is_words(row) and not labelled:
            row = (row,)
        return super().by_position(where, row, labelled)

    def is_list(self, name: str, cell: str, values: Mapping[str, Any]) -> bool:
        """Whether the words or the tags must be a list.

        Words with blanks between them may start with a bracket, such as "( see above )",
        if there are as many tags. A text to predict may start with a bracket as well. The
        column "text" has no lists.
        """
        if not super().is_list(name, cell, values):
            return False
        is_tags = name in self.columns["tags"]
        if is_tags and len(cell.split()[0]) > 1:
            return True  # "[X," is not a tag, but "(" is
        beside = self.columns["tags"]
        if is_tags:
            beside = self.columns["words"]
        for column in beside:
            if values.get(column) is not None:
                return is_list_beside(cell, values[column])
        if is_tags or name == "text":
            return is_tags
        items = parse_list(cell)
        if isinstance(items, list) and is_words(items):
            return True
        is_word = cell.strip()[1:2].isspace()  # the bracket is a word
        return name in ("words", "tokens") and looks_like_list(cell) and not is_word

    def numbered(self, records: Iterable[Record]) -> Iterator[Record]:
        """Yields the records with numbers of documents. An empty text ends a document.

        Records with "document" keep it.
        """
        document = 0
        for where, values in records:
            if values.get("document") is None:
                values = values | {"document": document}
            yield where, values
            for name in self.columns["words"]:
                words = values.get(name)
                if isinstance(words, str):
                    words = words.split()
                if words is not None and len(words) == 0:
                    document += 1


class Tagging(Task):
    """A tag for each word; entities are scored as conlleval scores them.

    A sentence over max_length tokens is cut into windows. Each word is trained on and
    predicted once, in the window with the most context around it.
    """

    family = "tagging"
    config_class = TaggingConfig
    head = "token"
    gold = "tags"

    def __init__(self, config: TaggingConfig):
        super().__init__(config)
        usual = {"words": ("words", "tokens", "text"), "tags": ("tags", "ner_tags")}
        columns, data_set = named_columns(config, usual), DATA_SETS["tagging"]
        self.form = TaggingForm(
            columns=columns,
            usual=usual,
            labels=tuple(config.labels),
            config=config,
            data_set=data_set[config.task],
        )

    @functools.cached_property
    def scheme(self) -> str:
        """The scheme in the config, or the scheme of the labels or of the rows."""
        if self.config.scheme != "auto":
            return self.config.scheme
        if self.config.task == "segmented":
            return "bmes"
        known = self.config.labels or self.splits.classes
        if known:
            return formats.recognise(known)
        tags: set[str] = set()
        for row in _sentences(self):
            tags.update(row.tags)
        return formats.recognise(tags)

    @property
    def kind(self) -> str:
        """The spans of the tags: "entities", "words", or "tags" for no spans."""
        return formats.kind_of(self.scheme)

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """The tags in the config or of a data set, or the tags of the rows in order.

        Every letter of a scheme for every type is appended.
        """
        if self.config.labels or self.scheme == "bmes":
            return self.config.labels or ("B", "E", "M", "S")
        tags = self.splits.classes
        if not tags:
            found: set[str] = set()  # with iob2 instead of iob1
            for row in _sentences(self):
                found.update(formats.spelled(row.tags, self.scheme, self.scheme))
            tags = formats.of_one_form(in_order(found), self.scheme)
            formats.warn_of_forms(tags, self.scheme)
        return tags + formats.missing_tags(tags, self.scheme)

    @property
    def main_metric(self) -> str:
        if self.kind == "tags":
            return "accuracy"
        return "f1"

    def read(self, split: str) -> Rows:
        """The sentences of a split, with the tags that are learned; see Task.read."""
        rows = super().read(split)
        lengths = {len(row.words) for row in rows}
        if lengths == {1} and len(rows) > 1:
            advice = "a row is a whole sentence, with lists of its words and tags"
            logger.warning(f"each row of {split} has one word; {advice}")
        return rows

    def row(self, where: str, values: Mapping[str, Any], labelled: bool) -> Sentence:
        row = _sentence(self, where, values, labelled)
        if labelled:
            return well_formed(row, self.scheme, self.labels)
        return row

    def encode(self, rows: Rows, tokenizer: Tokenizer) -> Features:
        """Sequences [CLS] words [SEP], all of token type 0; see Task.encode.

        A word has the tokens that it has after a space. A word without tokens (control
        characters) becomes [UNK]. A word with more tokens than a window loses its last
        tokens, and its row counts as truncated.
        extra: for each sequence, the numbers of the words that it predicts, and the
        positions of their first tokens, both int (words,).
        """
        capacity = self.config.max_length - tokenizer.overhead(1)
        stride = self.config.stride or (capacity + 1) // 2
        unknown = np.array([tokenizer.unk_id], tokenizer.dtype)
        texts = [row.words for row in rows]
        if self.config.document_context:
            texts = []
            for _, group in itertools.groupby(rows, lambda row: row.document):
                texts.append([word for row in group for word in row.words])
        words = [*itertools.chain.from_iterable(texts)]
        encoded = tokenizer.encode_batch(tokenizer.spaced(words, first=True))
        tokens, cut = [], np.zeros(len(encoded), bool)
        for number, ids in enumerate(encoded):
            tokens.append(ids[:capacity])
            cut[number] = len(ids) > capacity
            if not len(ids):
                tokens[-1] = unknown
        offsets = np.cumsum([0, *map(len, tokens)])
        bounds = np.cumsum([0, *(len(row.words) for row in rows)]).tolist()
        documents: list[Window] = []  # the words of the document around each row
        for _, group in itertools.groupby(rows, lambda row: row.document):
            first, last = len(documents), len(documents) + len(list(group))
            documents += [(bounds[first], bounds[last])] * (last - first)
        numbers = numbers_of(self.labels)
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
                joined.append(tokenizer.build(inside))
                (before,) = tokenizer.starts(len(inside))
                positions = before + offsets[first + words] - offsets[start]
                extra.append((words, positions))
                row_of.append(i)
                if row.tags is not None:
                    target = np.full_like(joined[-1][0], IGNORED)
                    target[positions] = [numbers[row.tags[w]] for w in words]
                    labels.append(target)
        targets = {}
        if labels:
            targets["labels"] = labels
        more = {"extra": extra, "truncated": truncated}
        return joined_features(joined, row_of, targets, **more)

    def decode(self, rows: Rows, features: Features, outputs: Outputs) -> Answers:
        """Words, tags and the probabilities of the tags; see Task.decode.

        "entities" (unless tags are plain) have type, text, start and end (words, end
        exclusive), and the product of the probabilities of their words. A row that was a
        text also has "offsets", the characters [start, end) of each word, and the
        "characters" of each entity.
        """
        p_of_rows = [np.zeros((len(row.words), self.outputs)) for row in rows]
        pairs = zip(features.extra, outputs, strict=True)
        for i, ((words, positions), logits) in zip(
            features.example, pairs, strict=True
        ):
            logits = np.float64(logits[positions])
            p_of_rows[i][words] = scipy.special.softmax(logits, axis=-1)
        pairs = zip(rows, p_of_rows, strict=True)
        return [with_id(row, tagged(self, row, p)) for row, p in pairs]

    def score(self, rows: Rows, answers: Answers) -> Scores:
        """See tagging_formats.scores."""
        gold = [list(row.tags) for row in rows]
        predicted = [answer["tags"] for answer in answers]
        return formats.scores(gold, predicted, self.scheme)

    def outcomes(self, row: Sentence, answer: Answer) -> Iterator[Outcome]:
        """The tag of each word. The classes are types of entities, without B- and I-."""
        text, entities = " ".join(row.words), self.kind == "entities"
        tags = row.words, row.tags, answer["tags"], answer["probabilities"]
        for word, gold, tag, p in zip(*tags, strict=True):
            classes = gold, tag
            if entities:
                classes = gold[2:] or gold, tag[2:] or tag
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
            tags = [answer["tags"]]
            if row.tags:
                tags = [row.tags, *tags]
            if self.kind == "entities":
                tags = [formats.spelled(x, self.scheme, "iob2") for x in tags]
            # Columns have blanks between them, so words have none.
            words = [re.sub(r"\s", "_", word) or "_" for word in row.words]
            lines += [*map(" ".join, zip(words, *tags, strict=True)), ""]
        return {name: "".join(f"{line}\n" for line in lines)}


def _sentences(task: Tagging) -> Iterator[Sentence]:
    """Yields the sentences of train and dev, from which the scheme and the labels come."""
    records_of(task, "train")  # raises UserError without rows
    for split in ("train", "dev"):
        for where, values in task.splits.rows.get(split, ()):
            yield _sentence(task, where, values, True)


def _sentence(
    task: Tagging, where: str, values: Mapping[str, Any], labelled: bool
) -> Sentence:
    """The sentence of a row, with the tags of the row.

    The words are a list, or a text, which :func:`find_words` splits. A tag may be the
    number of a label. "document" has the same value in sentences that follow each other in
    a document.
    """
    text, offsets, tags = "", None, None
    words = value_of(where, values, task.form.columns["words"])
    if isinstance(words, str) and labelled:
        words = words.split()
    elif isinstance(words, str):
        how = task.config.splitting
        if task.kind == "words":
            how = "characters"
        text, offsets = words, formats.find_words(words, how)
        words = [text[start:end] for start, end in offsets]
    if not is_words(words):
        raise UserError(f'{where}: "words" is not a list of words')
    if labelled:
        tags = value_of(where, values, task.form.columns["tags"])
        if isinstance(tags, str):
            tags = tags.split()
        known = task.config.labels or task.splits.classes
        if isinstance(tags, list) and known:
            tags = [_tag_of(where, tag, known) for tag in tags]
        if not is_words(tags) or "" in tags or len(tags) != len(words):
            actual = f"{where} has {counted(len(words), 'word')} and the tags"
            expected = "a tag for each word, or its number in data.labels"
            raise UserError(f"{actual} {tags!r:.200}; expected {expected}")
        tags = tuple(tags)
    document, key = values.get("document"), values.get("id")
    return Sentence(tuple(words), tags, document, where, text, offsets, key)


def tagged(task: Tagging, row: Sentence, p: np.ndarray) -> Answer:
    """The answer to a row; p: float (words, labels)."""
    tags, best = [task.labels[i] for i in p.argmax(axis=-1)], p.max(axis=-1)
    answer = {"words": [*row.words], "tags": tags, "probabilities": best.tolist()}
    if row.offsets is not None:
        answer["offsets"] = [[*place] for place in row.offsets]
    if task.kind == "tags":
        return answer
    answer["entities"] = []
    for name, start, end in formats.entities(tags, task.scheme):
        words = row.words[start:end]
        entity = {"type": name, "text": " ".join(words), "start": start, "end": end}
        if task.kind == "words":
            entity |= {"type": "word", "text": "".join(words)}
        if row.offsets is not None:
            first, last = row.offsets[start][0], row.offsets[end - 1][1]
            entity["characters"] = [first, last]
            if task.kind == "entities":
                entity["text"] = row.text[first:last]
        entity["probability"] = math.prod(answer["probabilities"][start:end])
        answer["entities"].append(entity)
    return answer


def is_words(values: Any) -> bool:
    """Whether the values are a sequence of texts."""
    is_sequence = isinstance(values, list | tuple)
    return is_sequence and all(isinstance(x, str) for x in values)


def _tag_of(where: str, tag: Any, labels: tuple[str, ...]) -> Any:
    """The tag that a value means: its name, or the number of a label."""
    if isinstance(tag, str | int | float) and tag != "":
        return class_of(where, tag, labels)
    return tag


def well_formed(row: Sentence, scheme: str, labels: tuple[str, ...]) -> Sentence:
    """The row with the tags that are learned. Raises UserError for wrong tags.

    An I- that does not continue an entity starts one, as conlleval reads it.
    """
    new = formats.spelled(row.tags, scheme, scheme)
    inside = formats.SCHEMES[scheme][1:2]
    has_entities = formats.kind_of(scheme) == "entities"
    for word, tag, right in zip(row.words, row.tags, new, strict=True):
        is_stray = has_entities and tag[:1] == inside and tag[1:] == right[1:]
        if right not in labels or not (right == tag or is_stray):
            raise UserError(
                f"{row.where}: the word {word!r} has the tag {tag!r}; expected a tag "
                f"of {scheme} (data.scheme) that fits the neighbouring tags, in the "
                f"label set {', '.join(labels)} (data.labels)"
            )
    return dataclasses.replace(row, tags=tuple(new))


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
