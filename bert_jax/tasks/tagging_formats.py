"""Tagged sentences from files, what their tags spell, and scores of tags in percent.

A scheme says how the tags of words spell spans:
  iob1   I-PER I-PER; B-PER only where an entity follows one of its own type. CoNLL-2003's
         own files. Becomes iob2 on reading, as conlleval reads it: a B- always begins an
         entity, and so does an I- that continues none of its type.
  iob2   B-PER I-PER (BIO).
  iobes  B-PER I-PER E-PER, S-PER for an entity of one word.
  bilou  the same with other letters: B-PER I-PER L-PER, U-PER.
  bmeso  the same with other letters: B-PER M-PER E-PER, S-PER (BMES with types).
  bmes   B M E S without types: the characters of a word, for word segmentation.
  plain  any tags, one a word, that make no spans: part of speech.

Spans are read as conlleval reads them, which is what seqeval does unless its strict mode
is asked for: an I- that continues no span of its type begins one.
"""

import dataclasses
import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.errors import UserError, counted
from bert_jax.tasks import tables
from bert_jax.tasks.tables import read_lines

SEGMENT_LABELS = ("B", "E", "M", "S")
DOCUMENT_START = "-DOCSTART-"
# Letters that iob1 and iob2 do not have.
BEYOND_IOB = frozenset("ELMSU")
_AS_IOBES = {"L": "E", "U": "S", "M": "I"}


class Scheme(NamedTuple):
    """kind: what its tags spell: "entities" with types, "words" of characters, or "tags".

    form: what each tag matches; expected: how to say that.
    """

    kind: str
    form: str
    expected: str


SCHEMES = {
    "iob1": Scheme("entities", r"O|[BI]-.+", "O, B-TYPE or I-TYPE"),
    "iob2": Scheme("entities", r"O|[BI]-.+", "O, B-TYPE or I-TYPE"),
    "iobes": Scheme("entities", r"O|[BIES]-.+", "O, B-TYPE, I-TYPE, E-TYPE or S-TYPE"),
    "bilou": Scheme("entities", r"O|[BILU]-.+", "O, B-TYPE, I-TYPE, L-TYPE or U-TYPE"),
    "bmeso": Scheme("entities", r"O|[BMES]-.+", "O, B-TYPE, M-TYPE, E-TYPE or S-TYPE"),
    "bmes": Scheme("words", r"[BMES]", "B, M, E or S"),
    "plain": Scheme("tags", r".+", "a tag"),
}


@dataclasses.dataclass(frozen=True)
class TaggedSentence:
    """The words of a sentence, or the characters of one, and their tags.

    document: sentences in a row that have the same are of one document.
    where: "file:line" of the first word, or the place among rows of Python.
    text, offsets: the text of the sentence and the characters [start, end) of each word
    in it; None for a sentence that came as words.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    document: Any
    where: str
    text: str = ""
    offsets: tuple[tuple[int, int], ...] | None = None
    id: Any = None

    def place(self, word: int) -> str:
        """The place of a word: "file:line" in a file with one word a line."""
        name, _, line = self.where.rpartition(":")
        if line.isdecimal() and has_word_lines(Path(name)):
            return f"{name}:{int(line) + word}"
        return f"{self.where}, word {word},"


def has_word_lines(path: Path) -> bool:
    """Whether a file of tagged words has a word a line, by its ending."""
    return not tables.is_table(path) or tables.ending(path) == ".tsv"


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
    lines = _lines(path)
    filled = [line for line in lines if not _parts(line)]
    if not filled:
        raise UserError(f"{path} holds no words; expected a word and its tag a line")
    first, tabs = lines.index(filled[0]) + 1, "\t" in filled[0]
    expected = columns or len(_split(filled[0], tabs))
    if expected < 2:
        raise UserError(f"{path}:{first} has 1 column; expected a word and its tag")
    if not -expected < column < expected or column == 0:
        raise UserError(
            f"{path}:{first} has {expected} columns, the tag was to be in column "
            f"{column}; set data.column to 1 to {expected - 1}, or -1 for the last"
        )
    marked = any(line.startswith(DOCUMENT_START) for line in lines)
    sentences, documents = [], 0
    numbered = enumerate(lines, 1)
    for between, block in itertools.groupby(numbered, lambda pair: _parts(pair[1])):
        if between:
            documents += sum(line.startswith(DOCUMENT_START) for _, line in block)
            continue
        rows = {number: _split(line, tabs) for number, line in block}
        for number, row in rows.items():
            if len(row) != expected or not row[0] or not row[column]:
                like = "" if columns else f", as in line {first}"
                raise UserError(
                    f"{path}:{number} has {counted(sum(map(bool, row)), 'column')}, "
                    f"expected {expected}{like}, separated by "
                    f"{'tabs' if tabs else 'blanks'}; correct the line"
                )
        words = tuple(row[0] for row in rows.values())
        tags = tuple(row[column] for row in rows.values())
        document = documents if marked else len(sentences)
        sentences.append(TaggedSentence(words, tags, document, f"{path}:{min(rows)}"))
    return sentences


def read_segmented(path: Path) -> list[TaggedSentence]:
    """Sentences of a file with one a line, blanks between words: characters and bmes tags.

    Blank lines part documents; without any every sentence is a document.
    """
    lines = _lines(path)
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


def find_words(text: str, how: str) -> tuple[tuple[int, int], ...]:
    """The characters [start, end) of the words of a text.

    how: "blanks", which stand between words; "punctuation", whose marks before and after
    a word are words too; "clitics", and so are 's, n't and their like, as in the Penn
    Treebank and CoNLL-2003; "characters", each but blanks.
    """
    if how == "characters":
        return tuple((i, i + 1) for i, c in enumerate(text) if not c.isspace())
    found = []
    for chunk in re.finditer(r"\S+", text):
        lengths = [len(chunk[0])]
        if how != "blanks":
            lengths = map(len, _words_and_marks(chunk[0], clitics=how == "clitics"))
        ends = list(itertools.accumulate(lengths, initial=chunk.start()))
        found += itertools.pairwise(ends)
    return tuple(found)


# Marks before and after a word; runs of one mark are one word, such as "...".
_MARKS = re.compile(r"(.)\1*")
_CLITIC = re.compile(r"(?i)(n['\u2019]t|['\u2019](s|re|ve|ll|d|m))$")
# A full stop belongs to U.S., p.m., J. and to titles.
_ABBREVIATION = re.compile(
    r"(\w{1,2}\.){2,}|[A-Z]\.|"
    r"(Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|Gen|Sen|Rep|Gov|Inc|Corp|Ltd|Co|No|vs)\."
)
_BEFORE, _AFTER = "@#$&+-\u2212\u20ac\u00a3", "+#"  # a part of the word that they touch


def _words_and_marks(chunk: str, *, clitics: bool) -> list[str]:
    """The words of what stands between two blanks."""
    # An address; an emoticon, or marks alone; what was parted before.
    if "://" in chunk or not any(map(str.isalnum, chunk)) or _CLITIC.fullmatch(chunk):
        return [chunk]
    others = {c for c in chunk if not c.isalnum()}
    core = chunk.lstrip("".join(others - {*_BEFORE}))
    before, end = chunk[: len(chunk) - len(core)], len(core)
    while core[end - 1] in others - {*_AFTER} and not _ABBREVIATION.fullmatch(
        core[:end]
    ):
        end -= 1
    core, after = core[:end], core[end:]
    words = [core]
    if clitics and (found := _CLITIC.search(core)):
        words = [core[: found.start()], found[0]]
    marks = [[mark[0] for mark in _MARKS.finditer(part)] for part in (before, after)]
    return [*marks[0], *words, *marks[1]]


def word_style(words: Iterable[str]) -> str:
    """Which of find_words' ways gives such words, as a training file has them."""
    words = Counter(words)
    if words["'s"] or words["n't"] or words["\u2019s"]:
        return "clitics"
    alone = words["."] + words[","]
    attached = sum(n for word, n in words.items() if word[-1] in ".," and len(word) > 2)
    return "punctuation" if alone > attached else "blanks"


def check_words(words: Any, where: str, expected: str) -> tuple[str, ...]:
    """The words of a sentence, each a text that is not empty."""
    if not isinstance(words, list | tuple) or not all(
        isinstance(word, str) and word for word in words
    ):
        raise UserError(f'{where}: "words" is not a list of words; expected {expected}')
    return tuple(words)


def segment_tags(words: Iterable[str]) -> tuple[str, ...]:
    """The bmes tags of the characters of words."""
    tags = ("S" if len(word) == 1 else f"B{'M' * (len(word) - 2)}E" for word in words)
    return tuple("".join(tags))


def word_tags(tags: Sequence[str]) -> list[str]:
    """The iob2 tags of the words that bmes tags spell; each character is in one of them.

    A word starts at a B or S and after an E or S, so that ill-formed tags have words too.
    """
    return [
        "B-word" if tag in "BS" or before in "ES" else "I-word"
        for before, tag in zip(("E", *tags), tags, strict=False)
    ]


def recognise(tags: Iterable[Sequence[str]]) -> str:
    """The scheme of the tags of sentences.

    Tags spell entities if at least half of the different tags, "O" aside, start with B-,
    I-, E-, S-, L-, M- or U-. `normalise` refuses the other tags.
    """
    tags = [tuple(sentence) for sentence in tags]
    seen = {tag for sentence in tags for tag in sentence}
    spans = {tag for tag in seen if re.fullmatch(r"[BIES](-.+)?|[LMU]-.+", tag)}
    if seen & {"B", "E", "S"} and seen <= set("BMES"):
        return "bmes"
    if len(spans) < len(seen - spans - {"O"}):
        return "plain"
    if any(tag[0] in BEYOND_IOB for tag in spans):

        def allowed(scheme: str) -> int:
            return sum(bool(re.fullmatch(SCHEMES[scheme].form, tag)) for tag in seen)

        return max(("iobes", "bilou", "bmeso"), key=allowed)
    return "iob2" if all(iob1_to_iob2(t) == t for t in tags) else "iob1"


def normalise(sentence: TaggedSentence, scheme: str) -> TaggedSentence:
    """The sentence with its tags checked against a scheme, and iob1 made iob2.

    Raises UserError that names the line of a tag which the scheme does not know, or which
    it does not allow after the tag before it.
    """
    for i, tag in enumerate(sentence.tags):
        if not re.fullmatch(SCHEMES[scheme].form, tag):
            raise UserError(
                f"{sentence.place(i)} has the tag {tag!r}; the scheme {scheme} expects "
                f"{SCHEMES[scheme].expected}: correct the tag, or set data.scheme"
            )
    if scheme == "plain":
        return sentence
    if scheme == "iob1":
        return dataclasses.replace(sentence, tags=iob1_to_iob2(sentence.tags))
    opened = None  # the type of the span that the tags so far have begun, "" in bmes
    for i, tag in enumerate([*sentence.tags, "O"]):
        continues = tag[0] in "IMEL"
        # In iob2 a span ends where it is not continued; the others say where it ends.
        left_open = opened is not None and scheme != "iob2"
        if tag[2:] != opened if continues else left_open:
            last = len(sentence.tags) - 1
            found = repr(tag) if i <= last else "the end"
            after = sentence.tags[i - 1] if i else "nothing"
            hint = ", or set data.scheme=iob1" if scheme == "iob2" else ""
            raise UserError(
                f"{sentence.place(min(i, last))} has {found} after {after!r}, which the "
                f"scheme {scheme} does not allow: correct the tags{hint}"
            )
        opened = tag[2:] if tag[0] in "BIM" else None
    return sentence


def iob1_to_iob2(tags: Sequence[str]) -> tuple[str, ...]:
    """Tags in which every entity begins with B-, where conlleval sees one begin."""
    previous = ("O", *tags)
    return tuple(
        f"B{tag[1:]}" if tag[0] == "I" and before[1:] != tag[1:] else tag
        for before, tag in zip(previous, tags, strict=False)
    )


def _lines(path: Path) -> list[str]:
    """Lines up to the last that is not blank.

    Only line feeds end them, as words may hold other separators.
    """
    text = "".join(line for _, line in read_lines(path)).replace("\r\n", "\n")
    return text.rstrip(" \t\n").split("\n")


def _parts(line: str) -> bool:
    """Whether a line stands between sentences."""
    return not line.strip(" \t") or line.startswith(DOCUMENT_START)


def _split(line: str, tabs: bool) -> list[str]:
    """Columns; a word may hold a blank that is not ASCII, or any blank between tabs."""
    if tabs:
        return [field.strip(" ") for field in line.split("\t")]
    return re.findall(r"[^ \t]+", line)


Tags = Sequence[list[str]]  # of each sentence


def entities(tags: list[str]) -> list[tuple[str, int, int]]:
    """The (type, start, end) of entities, end exclusive."""
    # Imported here because it takes a second, and a wrong setting should not.
    from seqeval.metrics.sequence_labeling import get_entities

    found = get_entities(_as_iobes(tags))
    return [(name, start, last + 1) for name, start, last in found]


def _as_iobes(tags: Iterable[str]) -> list[str]:
    """Tags of bilou and bmeso with the letters of iobes, which seqeval reads."""
    return [_AS_IOBES.get(tag[0], tag[0]) + tag[1:] for tag in tags]


def as_iob2(tags: list[str]) -> list[str]:
    """The iob2 tags of the same entities."""
    iob2 = ["O"] * len(tags)
    for name, start, end in entities(tags):
        iob2[start:end] = [f"B-{name}", *[f"I-{name}"] * (end - start - 1)]
    return iob2


def scores(gold: Tags, predicted: Tags, kind: str) -> dict[str, float]:
    """The share of right tags; F1, precision and recall of what they spell, if anything.

    Of entities also "f1/TYPE" of each type that occurs.
    """
    from seqeval.metrics import sequence_labeling as seqeval

    prf = functools.partial(seqeval.precision_recall_fscore_support, zero_division=0)
    found = {"accuracy": seqeval.accuracy_score(gold, predicted)}
    if kind == "words":
        gold, predicted = (list(map(word_tags, tags)) for tags in (gold, predicted))
    if kind == "entities":
        gold, predicted = (list(map(_as_iobes, tags)) for tags in (gold, predicted))
    if kind != "tags":
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
