"""Tagging of words: named entities, parts of speech, Chinese word segmentation.

Paper, section 5.3: the label of a word sits on its first token, all other positions count
for nothing, and the tag of each word is decided alone, by argmax, with no CRF on top; so
predicted tags may be ill-formed, and scores read them as conlleval does.
"""

import dataclasses
import functools
import itertools
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy

from bert_jax.data import sequences
from bert_jax.data.sequences import Window
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError, counted
from bert_jax.settings import check_ranges, setting
from bert_jax.tasks import tables
from bert_jax.tasks import tagging_formats as formats
from bert_jax.tasks.class_names import by_position
from bert_jax.tasks.rows import Placed, Row
from bert_jax.tasks.source import Source
from bert_jax.tasks.tables import Record
from bert_jax.tasks.tagging_formats import TaggedSentence
from bert_jax.tasks.task import (
    IGNORED,
    Answer,
    Features,
    Outcome,
    Outputs,
    Task,
    with_id,
)

logger = logging.getLogger(__name__)

_BLANK = re.compile(r"\s")

_FIRST_LINES = 20  # of a file, which show what it has

_TASKS = ("conll2003", "wnut17", "columns", "segmented")
_COLUMNS = {"conll2003": 4, "wnut17": 2}  # of the tasks that fix how many there are
_FILES = {  # the names that a file goes by, if not SPLIT.txt
    ("conll2003", "train"): ("eng.train", "train.txt"),
    ("conll2003", "dev"): ("eng.testa", "valid.txt"),
    ("conll2003", "test"): ("eng.testb", "test.txt"),
    ("wnut17", "train"): ("wnut17train.conll",),
    ("wnut17", "dev"): ("emerging.dev.conll",),
    ("wnut17", "test"): ("emerging.test.annotated",),
}


@dataclasses.dataclass(frozen=True)
class TaggingConfig:
    """Which data set, and how its sentences become sequences."""

    task: str = setting(
        doc="conll2003 (4 columns), wnut17, columns (any file with a word and its tag a "
        "line) or segmented (Chinese text with spaces between words)",
        one_of=_TASKS,
    )
    dir: str = setting("", "the folder of the files")
    train: str = setting("", "a file below dir; empty: the data set's own name")
    dev: str = setting("", "as train")
    test: str = setting("", "as train; need not be there")
    scheme: str = setting(
        "auto",
        "tag scheme: iob1, iob2, iobes, bilou, bmeso (BMES with types), bmes or plain; "
        "auto: recognised from the training file",
        one_of=("auto", *formats.SCHEMES),
    )
    column: int = setting(
        -1,
        "the column of the tag, from 0, or from the end if negative; the word is in 0",
    )
    labels: tuple[str, ...] = setting(
        (), "the tags, as iob2 for iob1 files; empty: those of the training file"
    )
    max_length: int = setting(
        128, "tokens of a sequence, [CLS] and [SEP] included", least=3
    )
    stride: int = setting(
        0, "tokens from one window over a longer sentence to the next; 0: half a window"
    )
    document_context: bool = setting(
        False,
        "fill a sequence with the sentences before and after, of the same document",
    )

    words: str = setting(
        "auto",
        "what predict takes for words in a text: what stands between blanks; punctuation: "
        "marks are words too; clitics: and 's and n't; auto: as in the training file",
        one_of=("auto", "blanks", "punctuation", "clitics"),
    )

    def __post_init__(self):
        check_ranges(self, "data.")
        if self.task == "segmented" and (
            self.scheme not in ("auto", "bmes")
            or self.labels not in ((), formats.SEGMENT_LABELS)
        ):
            raise UserError(
                f"data.scheme={self.scheme!r}, data.labels={self.labels}: "
                "expected 'bmes' and its labels for segmented text, or nothing"
            )
        if not 0 <= self.stride <= self.max_length - 2:
            raise UserError(
                f"data.stride={self.stride}, expected 1 to {self.max_length - 2} "
                "(max_length without [CLS] and [SEP]), or 0 for half of that"
            )
        if len(set(self.labels)) != len(self.labels):
            raise UserError(f"data.labels={self.labels} names a label twice")


class TaggingSource(Source):
    """Files with a word and its tag a line, segmented text, or tables."""

    def file_names(self, split: str) -> Sequence[str]:
        return _FILES.get((self.config.task, split), (f"{split}.txt",))

    def is_own(self, path: Path) -> bool:
        """A .conll file, or a file of words whose first lines have tags."""
        if tables.ending(path) == ".conll" or self.config.task == "segmented":
            return self.config.task != "segmented"
        if not (path.is_file() and formats.has_word_lines(path)):
            return False
        lines = (line.split() for _, line in tables.read_lines(path))
        filled = (x for x in lines if x and x[0] != formats.DOCUMENT_START)
        first = [*itertools.islice(filled, _FIRST_LINES)]
        tags = [words[self.config.column :][:1] for words in first if len(words) > 1]
        known = all(tag and tag[0] in self.labels for tag in tags)
        return bool(first) and len(tags) == len(first) and known

    def read_file(self, path: Path, split: str) -> Iterator[Record]:
        if not formats.has_word_lines(path):
            yield from super().read_file(path, split)
            return
        if self.config.task == "segmented":
            rows = formats.read_segmented(path)
        else:
            columns = _COLUMNS.get(self.config.task, 0)
            rows = formats.read_columns(path, self.config.column, columns)
        for row in rows:
            own = {"words": row.words, "tags": row.tags, "document": row.document}
            yield row.where, own


class Tagging(Task):
    """One tag a word; scores as conlleval's where tags spell entities.

    A sentence over max_length tokens is cut into windows (sequences.owners says
    which of them a word is predicted in); each word is trained on and predicted once.
    """

    family = "tagging"
    config_class = TaggingConfig
    source_class = TaggingSource
    head = "token"
    counted = "words"
    tabs = False
    # The second names are those of Hugging Face's data sets.
    columns: ClassVar = {"words": ("words", "tokens"), "tags": ("tags", "ner_tags")}

    @classmethod
    def for_head(cls, checkpoint: Any) -> "Tagging | None":
        """The labels are the tags."""
        longest, labels = checkpoint.config.max_positions, checkpoint.labels
        config = TaggingConfig("columns", labels=labels, max_length=longest)
        return cls(config) if checkpoint.head == cls.head else None

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """The tags; those of the training file, sorted, where the config has none."""
        if self.config.labels:
            return self.config.labels
        if self.scheme == "bmes":
            return formats.SEGMENT_LABELS
        return tuple(sorted({tag for row in self._training for tag in row.tags}))

    def saved_config(self) -> TaggingConfig:
        """Also how predict is to find words in a text."""
        config = super().saved_config()
        if config.words != "auto":
            return config
        words = (word for row in self._training for word in row.words)
        return dataclasses.replace(config, words=formats.word_style(words))

    @functools.cached_property
    def scheme(self) -> str:
        """The scheme of the files; "auto" reads the training file to find it."""
        if self.config.scheme != "auto":
            return self.config.scheme
        if self.config.task == "segmented":
            return "bmes"
        # Rows to be scored come without training rows.
        split = "train" if self.source.has("train") else self.source.eval_splits[0]
        scheme = formats.recognise(row.tags for row in super().read(split))
        where = self.source.place(split)
        logger.info("%s: its tags are of the scheme %s", where, scheme)
        return scheme

    @functools.cached_property
    def kind(self) -> str:
        """What the tags spell, as the labels show it: "entities", "words" or "tags"."""
        scheme = self.config.scheme
        if scheme == "auto":
            scheme = formats.recognise((label,) for label in self.labels)
        return formats.SCHEMES[scheme].kind

    @property
    def main_metric(self) -> str:
        """Accuracy for tags that spell nothing, F1 for all others."""
        return "accuracy" if self.kind == "tags" else "f1"

    def read(self, split: str) -> list[TaggedSentence]:
        """Sentences of "train", "dev" or "test"; see Task.read."""
        rows = self._training if split == "train" else self._checked(split)
        for row in rows:
            for i, tag in enumerate(row.tags or ()):
                if tag not in self.label_ids:
                    raise UserError(
                        f"{row.place(i)} has the tag {tag!r}, which is not in the label "
                        f"set ({', '.join(self.labels)}); correct it, or name all labels "
                        "in data.labels"
                    )
        if self.config.document_context and (
            len({row.document for row in rows}) == len(rows) > 1
        ):
            where = self.source.place(split)
            raise UserError(
                f"{where} does not say which sentences belong together, by "
                f"{formats.DOCUMENT_START} lines, or blank lines in segmented text; set "
                "data.document_context=False"
            )
        return rows

    def row(
        self, where: str, values: Mapping[str, Any], labelled: bool
    ) -> TaggedSentence:
        """A sentence; "document" says which sentences follow each other in one.

        Words are a list, or a text. Punctuation of a text to predict is split from its
        words as in the training data; of a text to segment, each character is a word.
        """
        text, offsets = "", None
        names = self.columns["words"] + ("text",) * (not labelled)
        words = tables.value(where, values, names)
        if isinstance(words, str) and not labelled:
            # A checkpoint that does not say is of CoNLL-2003, most likely.
            how = "clitics" if self.config.words == "auto" else self.config.words
            how = "characters" if self.kind == "words" else how
            text, offsets = words, formats.find_words(words, how)
            words = tuple(text[start:end] for start, end in offsets)
        words = words.split() if isinstance(words, str) else words
        words = formats.check_words(words, where, '{"words": ["A", "sentence"]}')
        index = values.get("id")
        tags, document = None, values.get("document", where)
        if labelled:
            tags = tables.value(where, values, self.columns["tags"])
            tags = tags.split() if isinstance(tags, str) else tags
            if not isinstance(tags, list | tuple) or not all(
                isinstance(tag, str | int) and tag != "" for tag in tags
            ):
                raise UserError(
                    f"{where}: tags are no list of tags; expected one a word"
                )
            if not self.config.labels and any(isinstance(tag, int) for tag in tags):
                raise UserError(
                    f"{where}: the tags are numbers, and their names are missing; set "
                    "data.labels to the names in the order of their numbers, such "
                    "as ('O', 'B-PER', 'I-PER')"
                )
            tags = tuple(
                tag
                if isinstance(tag, str)
                else by_position(self.config.labels, tag) or str(tag)
                for tag in tags
            )
            if len(tags) != len(words):
                raise UserError(
                    f"{where} has {counted(len(words), 'word')} and "
                    f"{counted(len(tags), 'tag')}; expected a tag for each word"
                )
        return TaggedSentence(words, tags, document, where, text, offsets, index)

    def values(self, where: str, row: Row, *, labelled: bool) -> dict[str, Any]:
        """Of a tuple of texts to predict: they are the words."""
        words = isinstance(row, tuple) and all(isinstance(x, str) for x in row)
        row = (row,) if words and not labelled else row
        return super().values(where, row, labelled=labelled)

    def rows(
        self, placed: Iterable[Placed], columns: Sequence[str] = (), *, labelled=False
    ) -> Iterator[TaggedSentence]:
        """With document_context, empty texts to predict separate documents."""
        if not self.config.document_context or labelled:
            yield from super().rows(placed, columns, labelled=labelled)
            return
        document = 0

        def sentences() -> Iterator[Placed]:
            nonlocal document
            for where, row in placed:
                if isinstance(row, str) and not row.strip():
                    document += 1
                else:
                    yield where, row

        for row in super().rows(sentences(), columns):
            own = document if row.document == row.where else row.document
            yield dataclasses.replace(row, document=own)

    def encode(self, rows: list[TaggedSentence], tokenizer: Tokenizer) -> Features:
        """Sequences [CLS] words [SEP], all of token type 0; see Task.encode.

        A word without tokens (control characters) is [UNK], so that it has a prediction;
        one with more tokens than a window loses its last ones (counted in truncated).
        extra: of each sequence the words of its row that it predicts, and the positions
        of their first tokens, both int (words,).
        """
        capacity = self.config.max_length - 2
        stride = self.config.stride or (capacity + 1) // 2
        tokens = tokenizer.encode_batch([word for row in rows for word in row.words])
        unknown = np.array([tokenizer.unk_id], tokenizer.dtype)
        tokens = [ids if len(ids) else unknown for ids in tokens]
        cut = [len(ids) > capacity for ids in tokens]
        tokens = [ids[:capacity] for ids in tokens]
        offsets = np.cumsum([0, *map(len, tokens)])
        bounds = np.cumsum([0, *(len(row.words) for row in rows)]).tolist()
        documents: list[Window] = []  # the words of the document around each row
        for _, group in itertools.groupby(rows, lambda row: row.document):
            first, last = len(documents), len(documents) + len(list(group))
            documents += [(bounds[first], bounds[last])] * (last - first)
        input_ids, token_type_ids, labels, extra, sequence_rows = [], [], [], [], []
        truncated = 0
        for i, row in enumerate(rows):
            first, last = bounds[i : i + 2]
            truncated += any(cut[first:last])
            spans = sequences.windows(offsets, (first, last), capacity, stride)
            if self.config.document_context:
                spans = [widen(offsets, s, documents[i], capacity) for s in spans]
            owner = sequences.owners(offsets, (first, last), spans)
            for j, (start, stop) in enumerate(spans):
                words = np.flatnonzero(owner == j)
                if not len(words):
                    continue  # nothing is asked of it
                inside = np.concatenate(tokens[start:stop])
                sequence, types = sequences.join(tokenizer, inside)
                positions = 1 + offsets[first + words] - offsets[start]
                input_ids.append(sequence)
                token_type_ids.append(types)
                extra.append((words, positions))
                sequence_rows.append(i)
                if row.tags is not None:
                    target = np.full_like(sequence, IGNORED)
                    target[positions] = [self.label_ids[row.tags[w]] for w in words]
                    labels.append(target)
        return Features(
            input_ids,
            token_type_ids,
            np.array(sequence_rows, np.int32),
            targets={"labels": labels} if labels else {},
            extra=extra,
            truncated=truncated,
        )

    def warnings(self, features: Features, tokenizer: Tokenizer) -> list[str]:
        """Also an uncased vocabulary for names, and rows that are mostly context."""
        found = super().warnings(features, tokenizer)
        if self.kind == "entities" and tokenizer.lower_case:
            found.append(
                "the checkpoint's vocabulary has no capitals, which tell names from other "
                "words; a cased checkpoint finds more of them"
            )
        if self.config.document_context:
            own = sum(2 + at[-1] - at[0] + 1 for _, at in features.extra)
            times = sum(map(len, features.input_ids)) / own
            if times >= 10:
                found.append(
                    f"document_context makes rows {times:.0f} times as long, and a step as "
                    "much slower; data.document_context=False, or a smaller "
                    "data.max_length, is faster"
                )
        return found

    def decode(
        self, rows: list[TaggedSentence], features: Features, outputs: Outputs
    ) -> list[Answer]:
        """Words, their tags and the probabilities of these; see Task.decode.

        "entities" (but of tags that spell nothing): type, text, start and end (words, end
        exclusive), and as probability the product of its words' probabilities. Of a row
        that came as text also its "offsets", the characters [start, end) of each word,
        and the "characters" of each entity.
        """
        shares = [np.zeros((len(row.words), self.outputs)) for row in rows]
        for i, (words, positions), logits in zip(
            features.row, features.extra, outputs, strict=True
        ):
            shares[i][words] = scipy.special.softmax(
                np.float64(logits[positions]), axis=-1
            )
        answers = []
        for row, p in zip(rows, shares, strict=True):
            answer = {
                "words": list(row.words),
                "tags": [self.labels[i] for i in p.argmax(axis=-1)],
                "probabilities": p.max(axis=-1).tolist(),
            }
            if row.offsets is not None:
                answer["offsets"] = [list(place) for place in row.offsets]
            if self.kind != "tags":
                answer["entities"] = self._entities(row, answer)
            answers.append(with_id(row, answer))
        return answers

    def cells(
        self, row: TaggedSentence, prediction: dict[str, Any]
    ) -> list[dict[str, str]]:
        """Entities with probabilities; else the tagged words, and their least probable."""
        if self.kind == "entities":
            found = (
                f"{entity['text']} ({entity['type']} {entity['probability']:.2f})"
                for entity in prediction["entities"]
            )
            text = row.text or " ".join(row.words)
            cells = {"text": text, "entities": ", ".join(found) or "-"}
            return [with_id(row, cells)]
        if self.kind == "words":
            tagged = [entity["text"] for entity in prediction["entities"]]
        else:
            pairs = zip(prediction["words"], prediction["tags"], strict=True)
            tagged = ["/".join(pair) for pair in pairs]
        least = min(prediction["probabilities"], default=1.0)
        return [with_id(row, {"least": f"{least:.4f}", "tagged": " ".join(tagged)})]

    def score(
        self, rows: list[TaggedSentence], predictions: list[Answer]
    ) -> dict[str, float]:
        """Accuracy of tags, and f1, precision and recall of what they spell, in percent.

        Also "f1/TYPE" of entities; "surface_f1" for WNUT-17. See tagging_formats.
        """
        gold = [list(row.tags) for row in rows]
        predicted = [answer["tags"] for answer in predictions]
        scores = formats.scores(gold, predicted, self.kind)
        if self.config.task == "wnut17":
            sentences = [row.words for row in rows]
            scores["surface_f1"] = formats.surface_f1(sentences, gold, predicted)
        return scores

    def outcomes(self, row: TaggedSentence, answer: Answer) -> Iterator[Outcome]:
        """The tag of each word. Types of entities are classes, without B- and I-."""
        text = " ".join(row.words)
        found = zip(answer["tags"], answer["probabilities"], strict=True)
        for word, gold, (tag, p) in zip(row.words, row.tags, found, strict=True):
            classes = self._class(gold), self._class(tag)
            yield Outcome(text, gold, tag, p, gold == tag, word, classes)

    def _class(self, tag: str) -> str:
        return tag[2:] if self.kind == "entities" and tag != "O" else tag

    def export(
        self, rows: list[TaggedSentence], predictions: list[Answer], split: str
    ) -> dict[str, str]:
        """SPLIT.conll as conlleval reads it, and SPLIT.segmented.txt for segmentation.

        The first has "word gold predicted" lines, without gold where rows have no tags;
        iobes, bilou and bmeso tags become iob2, because conlleval does not know their
        letters. The second has a sentence a line.
        """
        as_iob2 = self.kind == "entities" and any(
            label[0] in formats.BEYOND_IOB for label in self.labels
        )
        lines, sentences = [], []
        for row, answer in zip(rows, predictions, strict=True):
            tags = [list(row.tags), answer["tags"]] if row.tags else [answer["tags"]]
            if as_iob2:
                tags = map(formats.as_iob2, tags)
            # One blank parts conlleval's columns, so no word or tag may hold any.
            columns = [[_BLANK.sub("_", x) for x in c] for c in (row.words, *tags)]
            lines += [*map(" ".join, zip(*columns, strict=True)), ""]
            if self.kind == "words":
                words = (_BLANK.sub("_", x["text"]) for x in answer["entities"])
                sentences.append(" ".join(words))
        files = {f"{split}.conll": lines}
        if sentences:
            files[f"{split}.segmented.txt"] = sentences
        return {name: "".join(f"{x}\n" for x in text) for name, text in files.items()}

    @functools.cached_property
    def _training(self) -> list[TaggedSentence]:
        return self._checked("train")

    def _checked(self, split: str) -> list[TaggedSentence]:
        """Sentences whose tags the scheme allows."""
        rows = super().read(split)
        if not self.labelled(split):
            return rows
        return [formats.normalise(row, self.scheme) for row in rows]

    def _entities(
        self, row: TaggedSentence, answer: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """What the tags of an answer spell."""
        tags = answer["tags"]
        if self.kind == "words":
            tags = formats.word_tags(tags)
        found = []
        for name, start, end in formats.entities(tags):
            text, characters = " ".join(row.words[start:end]), {}
            if row.offsets is not None:
                place = [row.offsets[start][0], row.offsets[end - 1][1]]
                text, characters = row.text[slice(*place)], {"characters": place}
            if self.kind == "words":
                text = "".join(row.words[start:end])
            probability = math.prod(answer["probabilities"][start:end])
            entity = {"type": name, "text": text, "start": start, "end": end}
            found.append(entity | characters | {"probability": probability})
        return found


def widen(
    offsets: np.ndarray, window: Window, document: Window, capacity: int
) -> Window:
    """A window with as many words of its document around it as fit, half on each side.

    offsets, capacity: see data.sequences.windows. Where the document ends on one side,
    the other has the rest.
    """
    (start, stop), (low, high) = window, document
    room = capacity - (offsets[stop] - offsets[start])
    after = offsets[high] - offsets[stop]
    before = max(room // 2, room - after)
    start = max(low, int(np.searchsorted(offsets, offsets[start] - before)))
    stop = min(high, sequences.last_stop(offsets, start, capacity))
    # What the end of the document, or a long word there, left free.
    start = max(low, int(np.searchsorted(offsets, offsets[stop] - capacity)))
    return start, stop
