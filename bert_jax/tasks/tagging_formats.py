"""Tagged sentences: their files, the schemes of tags, the words of a text, and scores.

A scheme defines how the tags of words spell spans:
  iob2   B-PER I-PER (BIO): B- begins an entity, I- continues it.
  iob1   I-PER I-PER, and B-PER only after an entity of the same type (CoNLL-2003's files).
         iob1 becomes iob2 when it is read.
  iobes  B-PER I-PER E-PER, and S-PER for an entity of one word.
  bilou  iobes with other letters: B-PER I-PER L-PER, and U-PER.
  bmeso  iobes with other letters: B-PER M-PER E-PER, and S-PER (BMES with types).
  bmes   B M E S without types, for the characters of words (word segmentation).
  plain  any tags without spans, such as parts of speech.

Spans are read as conlleval and seqeval (without its strict mode) read them: an I- that
continues no span of its type begins one.
"""

import dataclasses
import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError, counted
from bert_jax.tasks.rows import Record, ending, is_table, read_lines

SEGMENT_LABELS = ("B", "E", "M", "S")
DOCUMENT_START = "-DOCSTART-"
# The tags of each scheme. "plain" comes last, because it has them all.
SCHEMES = {
    "iob1": "O|[BI]-.+",
    "iob2": "O|[BI]-.+",
    "iobes": "O|[BIES]-.+",
    "bilou": "O|[BILU]-.+",
    "bmeso": "O|[BMES]-.+",
    "bmes": "[BMES]",
    "plain": ".+",
}
_AS_IOBES = {"L": "E", "U": "S", "M": "I"}


@dataclasses.dataclass(frozen=True)
class TaggedSentence:
    """The words of a sentence (or its characters, in word segmentation) and their tags.

    document: sentences that follow each other in one document have the same value.
    where: "file:line" of the first word, or the place of the row.
    text, offsets: the text of the sentence, and the characters [start, end) of each word in
      it; offsets is None for a sentence that was a list of words.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    document: Any
    where: str
    text: str = ""
    offsets: tuple[tuple[int, int], ...] | None = None
    id: Any = None

    def place(self, word: int) -> str:
        """The place of a word: "file:line" in a file with a word on each line."""
        name, _, line = self.where.rpartition(":")
        if line.isdecimal() and has_word_lines(Path(name)):
            return f"{name}:{int(line) + word}"
        return f"{self.where}, word {word},"


def has_word_lines(path: Path) -> bool:
    """Whether a file of tagged words has a word on each line, by its ending."""
    return not is_table(path) or ending(path) == ".tsv"


def read_columns(path: Path, column: int) -> Iterator[Record]:
    """The sentences of a file with a word and its tag on each line, blank lines between.

    A sentence has "words", "tags" and "document". The first line decides whether tabs or
    blanks separate columns. The word is in the first column. A line that starts with
    -DOCSTART- begins a document; a sentence before the first such line is a document of
    its own.

    column: column of the tag, from 0, or from the end if negative.
    Raises UserError with file and line for a line that has another number of columns than
    the first line, or an empty column.
    """
    sentence: list[list[str]] = []
    width, tabs, first, sentences, documents = 0, False, 0, 0, 0
    for number, line in itertools.chain(read_lines(path), [(0, "")]):
        line, start = line.rstrip("\r\n"), line.startswith(DOCUMENT_START)
        if line.strip(" \t") and not start:
            tabs = tabs if width else "\t" in line
            # A word may contain blanks of Unicode.
            fields = line.split("\t") if tabs else re.findall(r"[^ \t]+", line)
            fields = [field.strip(" ") for field in fields]
            width = width or len(fields)
            inside = column and -width < column < width == len(fields)
            if not (inside and fields[0] and fields[column]):
                count, parts = sum(map(bool, fields)), "tabs" if tabs else "blanks"
                raise UserError(
                    f"{path}:{number} has {counted(count, 'column')}; expected "
                    f"{max(width, 2)} separated by {parts}, with the tag in column "
                    f"{column} (data.column)"
                )
            first = first if sentence else number
            sentence.append([fields[0], fields[column]])
            continue
        if sentence:
            words, tags = map(list, zip(*sentence, strict=True))
            values = {"words": words, "tags": tags, "document": documents or -sentences}
            yield f"{path}:{first}", values
            sentence, sentences = [], sentences + 1
        documents += start
    if not sentences:
        raise UserError(
            f"{path} has no words; expected a word and its tag on each line"
        )


def read_segmented(path: Path) -> Iterator[Record]:
    """The sentences of a file with one on each line and blanks between words.

    The "words" are the characters, the "tags" are bmes.
    """
    number = 0
    for number, line in read_lines(path):
        if words := line.split():
            tags = segment_tags(words)
            yield f"{path}:{number}", {"words": [*"".join(words)], "tags": tags}
    if not number:
        raise UserError(f"{path} is empty; expected a sentence on each line")


_WORDS = {
    "blanks": r"\S+",
    "characters": r"\S",
    # The conventions of the Penn Treebank, also for hashtags and addresses of the web.
    "treebank": r"""(?xi)
        \w+://\S+
        | (?:[^\W\d_]\.){2,}                   # U.S.
        | \b[^\W\d_]\.(?=\s)                   # J. Smith
        | n['’]t\b | ['’](?:s|re|ve|ll|d|m)\b  # clitics
        | [@\#]? \w+? (?=n['’]t\b)             # ca of can't
        | [@\#]? \w+ (?:(?!['’](?:s|re|ve|ll|d|m)\b) [-.,:/@&'’] \w+)*
        | ([^\w\s])\1*                         # marks: ( ... --
    """,
}


def find_words(text: str, how: str) -> tuple[tuple[int, int], ...]:
    """The characters [start, end) of the words of a text.

    how: "treebank": marks and clitics ('s, n't) are words, as in the Penn Treebank;
      "blanks": words have blanks between them; "characters": each character is a word.
    """
    # Combining marks and joiners belong to the letter before them.
    kinds = map(unicodedata.category, text)
    shape = "".join(
        "a" if kind in ("Mn", "Mc", "Cf") else character
        for character, kind in zip(text, kinds, strict=True)
    )
    return tuple(
        found.span()
        for found in re.finditer(_WORDS.get(how, _WORDS["treebank"]), shape)
    )


def segment_tags(words: Iterable[str]) -> list[str]:
    """The bmes tags of the characters of words."""
    tags = ("S" if len(word) == 1 else f"B{'M' * (len(word) - 2)}E" for word in words)
    return [*"".join(tags)]


def word_tags(tags: Sequence[str]) -> list[str]:
    """The iob2 tags of the words that bmes tags spell.

    A word begins at a B or S and after an E or S, so that each character is in a word, also
    if the tags are ill-formed.
    """
    return [
        "B-word" if tag in "BS" or before in "ES" else "I-word"
        for before, tag in zip(("E", *tags), tags, strict=False)
    ]


def recognise(tags: Iterable[str]) -> str:
    """The scheme of the different tags of a file; the answer for iob1 is iob2.

    Tags spell entities if at least half of the tags besides "O" look like tags of entities.
    The scheme does not allow the other tags.
    """
    tags = {*tags}
    if tags & {"B", "E", "S"} and tags <= {*SEGMENT_LABELS}:
        return "bmes"
    spans = {tag for tag in tags if re.fullmatch(r"[BIES](-.+)?|[LMU]-.+", tag)}
    if len(spans) < len(tags - spans - {"O"}):
        return "plain"

    def allowed(scheme: str) -> int:
        return sum(bool(re.fullmatch(SCHEMES[scheme], tag)) for tag in tags)

    return max(("iob2", "iobes", "bilou", "bmeso"), key=allowed)


def iob1_to_iob2(tags: Sequence[str]) -> tuple[str, ...]:
    """Tags with a B- wherever conlleval sees an entity begin."""
    return tuple(
        f"B{tag[1:]}" if tag[:1] == "I" and before[1:] != tag[1:] else tag
        for before, tag in zip(("O", *tags), tags, strict=False)
    )


Tags = Sequence[list[str]]  # the tags of each sentence


def entities(tags: Iterable[str]) -> list[tuple[str, int, int]]:
    """The (type, start, end) of entities, end exclusive."""
    # seqeval is imported late because it takes a second.
    from seqeval.metrics.sequence_labeling import get_entities

    found = get_entities(_as_iobes(tags))
    return [(name, start, last + 1) for name, start, last in found]


def _as_iobes(tags: Iterable[str]) -> list[str]:
    """The tags with the letters that seqeval reads."""
    return [_AS_IOBES.get(tag[0], tag[0]) + tag[1:] for tag in tags]


def as_iob2(tags: Sequence[str]) -> list[str]:
    """The iob2 tags of the same entities."""
    iob2 = ["O"] * len(tags)
    for name, start, end in entities(tags):
        iob2[start:end] = [f"B-{name}", *[f"I-{name}"] * (end - start - 1)]
    return iob2


def scores(gold: Tags, predicted: Tags, kind: str) -> dict[str, float]:
    """The accuracy of tags; F1, precision and recall of the spans, in percent.

    Entities also have "f1/TYPE" for each type that occurs.
    """
    from seqeval.metrics import sequence_labeling as seqeval

    prf = functools.partial(seqeval.precision_recall_fscore_support, zero_division=0)
    found = {"accuracy": seqeval.accuracy_score(gold, predicted)}
    if kind != "tags":
        spelled = word_tags if kind == "words" else _as_iobes
        gold, predicted = (list(map(spelled, tags)) for tags in (gold, predicted))
        precision, recall, f1, _ = prf(gold, predicted, average="micro")
        found |= {"f1": f1, "precision": precision, "recall": recall}
    if kind == "entities":
        types = {name for tags in (*gold, *predicted) for name, *_ in entities(tags)}
        _, _, f1, _ = prf(gold, predicted)
        found |= {f"f1/{x}": y for x, y in zip(sorted(types), f1, strict=True)}
    return {name: 100 * float(value) for name, value in found.items()}


def surface_f1(
    sentences: Sequence[Sequence[str]], gold: Tags, predicted: Tags
) -> float:
    """F1 over the different (text, type) pairs of all sentences, in percent.

    This is the second measure of WNUT-17 (Derczynski et al. 2017).
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
