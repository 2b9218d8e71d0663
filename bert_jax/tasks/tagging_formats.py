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
from bert_jax.tasks.rows import Record, read_lines

# Letters of the first, a middle and the last word of a span, and of a span of one word.
SCHEMES = {
    "iob1": "BIIB",
    "iob2": "BIIB",
    "iobes": "BIES",
    "bilou": "BILU",
    "bmeso": "BMES",
    "bmes": "BMES",
    "plain": "",
}


@dataclasses.dataclass(frozen=True)
class Sentence:
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


def read_columns(path: Path, column: int) -> Iterator[Record]:
    """Yields the sentences of a file with a word and its tag on each line.

    Blank lines separate sentences. A sentence has "words", "tags" and "document". The first
    line decides whether tabs or blanks separate columns. The word is in the first column. A
    line that starts with -DOCSTART- begins a document.

    column: column of the tag, from 0, or from the end if negative.
    Raises UserError with file and line for a line that has another number of columns than
    the first line, or an empty column.
    """
    sentence: list[list[str]] = []
    width, tabs, where, documents = 0, False, "", 0
    for number, line in itertools.chain(read_lines(path), [(0, "")]):
        start = line.startswith("-DOCSTART-")
        if line.strip(" \t\r\n") and not start:
            tabs = tabs if width else "\t" in line
            # A word may contain blanks of Unicode.
            fields = re.split(r" *\t *" if tabs else "[ \t]+", line.strip(" \r\n"))
            width = width or len(fields)
            inside = column and -width < column < width == len(fields)
            if not (inside and fields[0] and fields[column]):
                actual = counted(sum(map(bool, fields)), "column")
                needed = f"{max(width, 2)} separated by {'tabs' if tabs else 'blanks'}"
                needed += f", with the tag in column {column} (data.column)"
                raise UserError(f"{path}:{number} has {actual}; expected {needed}")
            where = where if sentence else f"{path}:{number}"
            sentence.append([fields[0], fields[column]])
        elif sentence:
            words, tags = map(list, zip(*sentence, strict=True))
            yield where, {"words": words, "tags": tags, "document": documents}
            sentence = []
        documents += start


def read_segmented(path: Path) -> Iterator[Record]:
    """Yields the sentences of a file with a sentence on each line, blanks between words.

    The "words" are characters, the "tags" are bmes.
    """
    for number, line in read_lines(path):
        if words := line.split():
            tags = "".join(shape(len(word), "bmes") for word in words)
            yield f"{path}:{number}", {"words": [*"".join(words)], "tags": [*tags]}


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
    """The characters [start, end) of each word of a text.

    how: "treebank": punctuation marks and clitics ('s, n't) are words, as in the Penn
      Treebank; "blanks": blanks separate words; "characters": each character is a word.
    """
    # Combining marks and joiners belong to the letter before them.
    marks = ("Mn", "Mc", "Cf")
    letters = "".join("a" if unicodedata.category(x) in marks else x for x in text)
    pattern = _WORDS.get(how, _WORDS["treebank"])
    return tuple(match.span() for match in re.finditer(pattern, letters))


def recognise(tags: Iterable[str]) -> str:
    """The scheme of the different tags of a file. For tags in iob1 it is iob2.

    Tags spell entities if at least half of the tags other than "O" look like tags of
    entities. The other half are errors of the scheme.
    """
    tags = {*tags}
    if tags & {"B", "E", "S"} and tags <= {*SCHEMES["bmes"]}:
        return "bmes"
    spans = {tag for tag in tags if re.fullmatch(r"[BIES](-.+)?|[LMU]-.+", tag)}
    if len(spans) < len(tags - spans - {"O"}):
        return "plain"

    def allowed(scheme: str) -> int:
        form = f"O|[{SCHEMES[scheme]}]-.+"
        return sum(bool(re.fullmatch(form, tag)) for tag in tags)

    return max(("iob2", "iobes", "bilou", "bmeso"), key=allowed)


Tags = Sequence[list[str]]  # the tags of each sentence


def entities(tags: Sequence[str], scheme: str) -> list[tuple[str, int, int]]:
    """The (type, start, end) of each entity, end exclusive. The type of bmes is "_"."""
    # seqeval is imported late because it takes a second.
    from seqeval.metrics.sequence_labeling import get_entities

    spans = get_entities(_as_iobes(tags, scheme))
    return [(name, start, last + 1) for name, start, last in spans]


def _as_iobes(tags: Sequence[str], scheme: str) -> list[str]:
    """The tags with the letters that seqeval reads. Any other tag becomes O."""
    letters = dict(zip(reversed(SCHEMES[scheme]), "SEIB", strict=True))
    pairs = [(letters.get(tag[:1]), tag[1:]) for tag in tags]
    return [letter + kind if letter else "O" for letter, kind in pairs]


def spelled(tags: Sequence[str], scheme: str, target: str) -> list[str]:
    """The well-formed tags of the same entities in the scheme ``target``."""
    if scheme == "plain":
        return [*tags]
    new = ["O"] * len(tags)
    for name, start, end in entities(tags, scheme):
        kind = "" if target == "bmes" else f"-{name}"
        new[start:end] = [x + kind for x in shape(end - start, target)]
    return new


def shape(count: int, scheme: str) -> str:
    """The letters of a span of ``count`` words."""
    begin, inside, end, single = SCHEMES[scheme]
    return single if count == 1 else begin + inside * (count - 2) + end


def scores(gold: Tags, predicted: Tags, scheme: str) -> dict[str, float]:
    """The accuracy of tags, and F1, precision and recall of spans, in percent.

    Entities also have "f1/TYPE" for each type that occurs.
    """
    from seqeval.metrics import sequence_labeling as seqeval

    shares = {"accuracy": seqeval.accuracy_score(gold, predicted)}
    if scheme != "plain":
        both = [[_as_iobes(tags, scheme) for tags in x] for x in (gold, predicted)]
        prf = functools.partial(seqeval.precision_recall_fscore_support, *both)
        precision, recall, f1, _ = prf(average="micro", zero_division=0)
        shares |= {"f1": f1, "precision": precision, "recall": recall}
    if scheme not in ("plain", "bmes"):
        rows = (*gold, *predicted)
        types = sorted({name for tags in rows for name, *_ in entities(tags, scheme)})
        f1 = zip(types, prf(zero_division=0)[2], strict=True)
        shares |= {f"f1/{name}": value for name, value in f1}
    return {name: 100 * float(value) for name, value in shares.items()}
