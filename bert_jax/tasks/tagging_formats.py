"""Tagged sentences from files, what their tags spell, and scores of tags in percent.

A scheme says how the tags of words spell spans:
  iob1   I-PER I-PER; B-PER only where an entity follows one of its own type. CoNLL-2003's
         own files. Becomes iob2 on reading, as conlleval reads it: a B- always begins an
         entity, and so does an I- that continues none of its type.
  iob2   B-PER I-PER (BIO).
  iobes  B-PER I-PER E-PER, S-PER for an entity of one word.
  bmes   B M E S without types: the characters of a word, for word segmentation.
  plain  any tags, one a word, that make no spans: part of speech.

Spans are read as conlleval reads them, which is what seqeval does unless its strict mode
is asked for: an I- that continues no span of its type begins one.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from seqeval.metrics.sequence_labeling import (
    accuracy_score,
    get_entities,
    precision_recall_fscore_support,
)

from bert_jax.errors import UserError
from bert_jax.files import parse_json, read_text

SEGMENT_LABELS = ("B", "E", "M", "S")
DOCUMENT_START = "-DOCSTART-"
_FORMS = {  # scheme -> what its tags match, and how to say that
    "iob1": (re.compile(r"O|[BI]-.+"), "O, B-TYPE or I-TYPE"),
    "iob2": (re.compile(r"O|[BI]-.+"), "O, B-TYPE or I-TYPE"),
    "iobes": (re.compile(r"O|[BIES]-.+"), "O, B-TYPE, I-TYPE, E-TYPE or S-TYPE"),
    "bmes": (re.compile(r"[BMES]"), "B, M, E or S"),
    "plain": (re.compile(r".+"), "a tag"),
}
SCHEMES = tuple(_FORMS)


@dataclasses.dataclass(frozen=True)
class TaggedSentence:
    """The words of a sentence, or the characters of one, and their tags.

    document: sentences in a row with the same number are of one document.
    where: "file:line" of the first word.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    document: int
    where: str

    def place(self, word: int) -> str:
        """The "file:line" of a word of a file with one word a line."""
        name, line = self.where.rsplit(":", 1)
        return f"{name}:{int(line) + word}"


def read_columns(path: Path, column: int, columns: int = 0) -> list[TaggedSentence]:
    """Sentences of a file with a word a line, its tag in a column, blank lines between.

    The first line decides whether tabs or any blanks part the columns. The word is in the
    first column. A line that starts with -DOCSTART- begins a document; in a file without
    such lines every sentence is a document. Tags are as they stand in the file.

    column: which column holds the tag, from 0, or from the end if negative.
    columns: how many there must be; 0 for as many as the first line has.
    Raises UserError for a file that is missing, empty or not UTF-8, and for a line whose
    columns are not as many as the others' or empty.
    """
    sentences, tabs, expected, first = [], False, columns, 0
    blocks = list(_blocks(_lines(path)))
    marked = any(documents for documents, _, _ in blocks)
    for documents, start, lines in blocks:
        if not first:
            first, tabs = start, "\t" in lines[0]
            expected = columns or len(_split(lines[0], tabs))
            _check_column(column, expected, f"{path}:{start}")
        rows = [_split(line, tabs) for line in lines]
        for number, row in enumerate(rows, start):
            if len(row) != expected or not row[0] or not row[column]:
                like = "" if columns else f", as in line {first}"
                raise UserError(
                    f"{path}:{number} has {_count(sum(map(bool, row)))}, expected "
                    f"{expected}{like}, separated by {'tabs' if tabs else 'blanks'}; "
                    "correct the line"
                )
        sentences.append(
            TaggedSentence(
                words=tuple(row[0] for row in rows),
                tags=tuple(row[column] for row in rows),
                document=documents if marked else len(sentences),
                where=f"{path}:{start}",
            )
        )
    if not sentences:
        raise UserError(f"{path} holds no words; expected a word and its tag a line")
    return sentences


def read_segmented(path: Path) -> list[TaggedSentence]:
    """Sentences of a file with one a line, blanks between words: characters and bmes tags.

    Blank lines part documents; without any every sentence is a document.
    """
    lines = _lines(path)
    while lines and not lines[-1].strip():
        lines.pop()
    marked = not all(line.strip() for line in lines)
    sentences, document = [], 0
    for number, line in enumerate(lines, 1):
        words = line.split()
        if words:
            where = f"{path}:{number}"
            characters, tags = tuple("".join(words)), segment_tags(words)
            sentences.append(TaggedSentence(characters, tags, document, where))
        document += not (words and marked)
    if not sentences:
        raise UserError(f"{path} holds no words; expected a sentence a line")
    return sentences


def parse_words(line: str, where: str, *, characters: bool) -> tuple[str, ...]:
    """The words of a line to tag: text, words between blanks, or {"words": [...]}.

    characters: of text each character but blanks is a word, as segmentation wants it.
    where: "name:line", for errors.
    """
    if not line.lstrip().startswith('{"'):
        words = line.split()
        return tuple("".join(words) if characters else words)
    expected = '{"words": ["A", "sentence"]} or plain words'
    words = parse_json(line, where, expected).get("words")
    if not isinstance(words, list) or not all(
        isinstance(word, str) and word for word in words
    ):
        raise UserError(f'{where}: "words" is not a list of words; expected {expected}')
    return tuple(words)


def segment_tags(words: Iterable[str]) -> tuple[str, ...]:
    """The bmes tags of the characters of words."""
    return tuple(
        tag
        for word in words
        for tag in ("S" if len(word) == 1 else f"B{'M' * (len(word) - 2)}E")
    )


def segments(tags: Sequence[str]) -> list[tuple[int, int]]:
    """The words, as (start, end), that bmes tags spell; each character is in one of them.

    A word starts at a B or S and after an E or S, so that ill-formed tags have words too.
    """
    starts = [
        i
        for i, tag in enumerate(tags)
        if i == 0 or tag in ("B", "S") or tags[i - 1] in ("E", "S")
    ]
    return list(zip(starts, [*starts[1:], len(tags)], strict=True))


def recognise(tags: Iterable[Sequence[str]]) -> str:
    """The scheme of the tags of sentences.

    Tags are of entities where no fewer than half of those seen, "O" aside, start with B-,
    I-, E- or S-; the others are then errors for `normalise` to find.
    """
    tags = [tuple(sentence) for sentence in tags]
    seen = {tag for sentence in tags for tag in sentence}
    spans = {tag for tag in seen if re.fullmatch(r"[BIES](-.+)?", tag)}
    if seen & {"B", "E", "S"} and seen <= set("BMES"):
        return "bmes"
    if len(spans) < len(seen - spans - {"O"}):
        return "plain"
    if any(tag[0] in "ES" for tag in spans):
        return "iobes"
    return "iob2" if all(iob1_to_iob2(t) == t for t in tags) else "iob1"


def normalise(sentence: TaggedSentence, scheme: str) -> TaggedSentence:
    """The sentence with its tags checked against a scheme, and iob1 made iob2.

    Raises UserError that names the line of a tag which the scheme does not know, or which
    it does not allow after the tag before it.
    """
    form, expected = _FORMS[scheme]
    for i, tag in enumerate(sentence.tags):
        if not form.fullmatch(tag):
            raise UserError(
                f"{sentence.place(i)} has the tag {tag!r}; the scheme {scheme} expects "
                f"{expected}: correct the tag, or set config.data.scheme"
            )
    if scheme == "plain":
        return sentence
    if scheme == "iob1":
        return dataclasses.replace(sentence, tags=iob1_to_iob2(sentence.tags))
    if (wrong := _first_misplaced(sentence.tags, scheme)) is not None:
        after = sentence.tags[wrong - 1] if wrong else "nothing"
        tag = repr(sentence.tags[wrong]) if wrong < len(sentence.tags) else "the end"
        hint = ", or set config.data.scheme=iob1" if scheme == "iob2" else ""
        raise UserError(
            f"{sentence.place(min(wrong, len(sentence.tags) - 1))} has {tag} after "
            f"{after!r}, which the scheme {scheme} does not allow: correct the tags{hint}"
        )
    return sentence


def iob1_to_iob2(tags: Sequence[str]) -> tuple[str, ...]:
    """Tags in which every entity begins with B-, where conlleval sees one begin."""
    previous = ("O", *tags)
    return tuple(
        f"B{tag[1:]}" if tag[0] == "I" and before[1:] != tag[1:] else tag
        for before, tag in zip(previous, tags, strict=False)
    )


def _first_misplaced(tags: Sequence[str], scheme: str) -> int | None:
    """The first tag that does not fit the one before; len(tags) for the sentence's end."""
    opened = None  # the type of the span that the tags so far have begun, "" in bmes
    for i, tag in enumerate([*tags, "O"]):
        continues = tag[0] in "IME"
        if continues and tag[2:] != opened:
            return i
        # In iob2 a span ends where it is not continued; the others say where it ends.
        if not continues and opened is not None and scheme != "iob2":
            return i
        opened = tag[2:] if tag[0] in "BIM" else None
    return None


def _lines(path: Path) -> list[str]:
    """Lines of a file; only line feeds end them, as words may hold other separators."""
    text = read_text(
        path,
        "a tagged file, so set config.data.dir and the names of its files",
    )
    return text.replace("\r\n", "\n").split("\n")


def _blocks(lines: list[str]) -> Iterator[tuple[int, int, list[str]]]:
    """Lines of words between separators: (-DOCSTART- lines so far, first line, lines)."""
    documents, block = 0, []
    for number, line in enumerate([*lines, ""], 1):
        opens = line.startswith(DOCUMENT_START)
        if line.strip(" \t") and not opens:
            block.append(line)
            continue
        if block:
            yield documents, number - len(block), block
            block = []
        documents += opens


def _split(line: str, tabs: bool) -> list[str]:
    """Columns; a word may hold a blank that is not ASCII, or any blank between tabs."""
    if tabs:
        return [field.strip(" ") for field in line.split("\t")]
    return re.findall(r"[^ \t]+", line)


def _check_column(column: int, columns: int, where: str) -> None:
    if columns < 2:
        raise UserError(f"{where} has {_count(columns)}; expected a word and its tag")
    if not -columns < column < columns or column == 0:
        raise UserError(
            f"{where} has {columns} columns, the tag was to be in column {column}; set "
            f"config.data.column to 1 to {columns - 1}, or -1 for the last"
        )


def _count(columns: int) -> str:
    return f"{columns} column{'' if columns == 1 else 's'}"


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
