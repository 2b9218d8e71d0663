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

Spans are read as conlleval and seqeval (without its strict mode) read them: an I- that does
not continue a span of its type starts one.
"""

import dataclasses
import functools
import logging
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.errors import UserError, counted
from bert_jax.tasks.rows import Record, ending, not_empty, text_lines

logger = logging.getLogger(__name__)

UNTYPED = "_"  # seqeval's type of tags without a type
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


def read_columns(
    path: Path, column: int, word_column: int = -1, *, tagged: bool = True
) -> Iterator[Record]:
    """Yields the sentences of a file with a word and its tag on each line.

    Blank lines separate sentences. A sentence has "words", "tags" and "document". The first
    word decides whether tabs or blanks separate columns. A line that starts with -DOCSTART-
    starts a document. Comments before a sentence are skipped: they start with "#" and a
    blank or a tab, and have another number of columns than the words, or a tag that no word
    has. "#" is always a tag, which the Penn Treebank gives the word "#". In CoNLL-U (ten
    columns) tokens of several words and empty nodes are skipped.

    column: column of the tag, from 0, or from the end if negative.
    word_column: column of the word, from 0; -1: 1 in a .conllu file, otherwise 0.
    tagged: whether the tags are read to learn or to score them.

    Raises UserError with file and line for a line that has another number of columns than
    the first line, an empty column, the number of a word in place of the word, or a line
    inside a sentence that may be a comment.
    """
    if word_column < 0:
        word_column = int(ending(path) == ".conllu")
    lines = [(number, line.strip(" \r\n")) for number, line in text_lines(path)]
    words = [(n, x) for n, x in lines if _has_word(x) and not _COMMENT.match(x)]
    if not words:
        raise UserError(
            f"{path} has no sentences; expected a word and its tag on a line"
        )
    _, first = words[0]
    has_tabs = "\t" in first
    width = len(_columns(first, has_tabs))
    if ending(path) == ".conllu" and width == _CONLL_U and column == -1 and tagged:
        actual = f"{path}: the last column of CoNLL-U (MISC) has no tags"
        raise UserError(f"{actual}; set data.column=3 for parts of speech (UPOS)")
    layout = _Layout(has_tabs, width, word_column, column, {"#"})
    for number, line in words:
        layout.tags.add(layout.fields(f"{path}:{number}", line)[column])
    if has_tabs:  # a line inside a sentence is a word: comments have blanks after "#"
        layout.tags.update(_tags_inside(lines, width, column))
    sentences = list(_sentences(path, lines, layout))
    if layout.width > 2 and _are_numbers(sentences):
        actual = (
            f"{sentences[0][0]}: the words in column {word_column} are numbers, 1 to n"
        )
        needed = "set data.word_column to the column of the words, from 0"
        raise UserError(f"{actual} in every sentence; {needed}")
    return iter(sentences)


Lines = list[tuple[int, str]]  # number and text of each line


def _sentences(path: Path, lines: Lines, layout: "_Layout") -> Iterator[Record]:
    """Yields the place, the words, the tags and the document of each sentence."""
    words: list[str] = []
    tags: list[str] = []
    where, documents = "", 0
    for number, line in [*lines, (0, "")]:
        if not _has_word(line):
            if words:
                yield where, {"words": words, "tags": tags, "document": documents}
                words, tags = [], []
            documents += line.startswith(_DOCUMENT)
            continue
        place = f"{path}:{number}"
        if _COMMENT.match(line) and not words and layout.is_comment(line):
            continue
        fields = layout.fields(place, line)
        if _COMMENT.match(line) and layout.is_comment(line):
            actual = f"{place}: {line!r} is a comment in a sentence, or a word"
            needed = "move the comment before the sentence, or separate columns by tabs"
            raise UserError(f"{actual} with a tag that no other word has; {needed}")
        if layout.width == _CONLL_U and _NO_WORD.fullmatch(fields[0]):
            continue
        if not words:
            where = place
        words.append(fields[layout.word])
        tags.append(fields[layout.tag])


_DOCUMENT = "-DOCSTART-"
_COMMENT = re.compile("#[ \t]")  # but "# O" may be a word
_CONLL_U = 10  # columns
_NO_WORD = re.compile(r"\d+[-.]\d+")  # 1-2: a token of two words; 1.1: an empty node


class _Layout(NamedTuple):
    """The columns of a file.

    width: number of columns. word, tag: columns of the word and of its tag. tags: all tags
    of words.
    """

    has_tabs: bool
    width: int
    word: int
    tag: int
    tags: set[str]

    def is_comment(self, line: str) -> bool:
        """Whether a line that starts with "#" is not a word, by its columns and its tag."""
        fields = _columns(line, self.has_tabs)
        return len(fields) != self.width or fields[self.tag] not in self.tags

    def fields(self, where: str, line: str) -> list[str]:
        """The columns of a line. Raises UserError if the word or the tag is missing."""
        fields = _columns(line, self.has_tabs)
        are_columns = self.word < self.width and -self.width <= self.tag < self.width
        if are_columns and len(fields) == self.width:
            is_tag_elsewhere = self.tag % self.width != self.word
            if is_tag_elsewhere and fields[self.word] and fields[self.tag]:
                return fields
        actual = f"{where} has {counted(sum(map(bool, fields)), 'column')}"
        separator = "blanks"
        if self.has_tabs:
            separator = "tabs"
        raise UserError(
            f"{actual}; expected {max(self.width, 2)} separated by {separator}, with the "
            f"tag in column {self.tag} (data.column) and the word in column {self.word} "
            "(data.word_column)"
        )


def _has_word(line: str) -> bool:
    """Whether a line has a word. Separator lines of WNUT contain tabs."""
    return bool(line.strip(" \t")) and not line.startswith(_DOCUMENT)


def _columns(line: str, has_tabs: bool) -> list[str]:
    """The columns of a line. A word may contain blanks of Unicode."""
    if has_tabs:
        return re.split(r" *\t *", line)
    return re.split("[ \t]+", line)


def _tags_inside(lines: list[tuple[int, str]], width: int, column: int) -> set[str]:
    """The tags of words "#" inside sentences, if tabs separate columns."""
    tags = set()
    is_inside = False
    for _, line in lines:
        is_comment = _COMMENT.match(line) is not None
        fields = _columns(line, has_tabs=True)
        if is_comment and is_inside and len(fields) == width:
            tags.add(fields[column])
        is_inside = _has_word(line) and (is_inside or not is_comment)
    return tags


def _are_numbers(sentences: list[Record]) -> bool:
    """Whether the words of every sentence are 1, 2, 3 and so on."""
    longest = 0
    for _, values in sentences:
        words = values["words"]
        if words != [str(number) for number in range(1, len(words) + 1)]:
            return False
        longest = max(longest, len(words))
    return longest > 1


def read_segmented(path: Path) -> Iterator[Record]:
    """Yields the sentences of a file with a sentence on each line, blanks between words.

    The "words" are characters, the "tags" are bmes.
    """

    def sentences() -> Iterator[Record]:
        for number, line in text_lines(path):
            words = line.split()
            if words:
                tags = "".join(shape(len(word), "bmes") for word in words)
                values = {"words": [*"".join(words)], "tags": [*tags]}
                yield f"{path}:{number}", values

    return not_empty(sentences(), path, "sentence")


# Titles, companies, places and months. Their full stop is part of the word.
_ABBREVIATIONS = """
    Mr Mrs Ms Messrs Dr Drs Prof Rev Fr Hon Gen Col Maj Capt Cmdr Lt Sgt Cpl Pvt Gov Sen
    Sens Rep Reps Pres Supt Jr Sr Inc Corp Co Cos Ltd Bros Assn Dept Univ St Ste Ave Blvd Rd
    Mt Ft Jan Feb Apr Aug Sept Sep Oct Nov Dec etc vs viz cf al ca pp vol ed
"""
# Similar to the Penn Treebank. Hashtags and addresses are words.
_TREEBANK = r"""(?x)
    \w+://\S+
    | [\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+            # a.b@c.org
    | \w[\w.-]{0,64}\.(?:com|org|net|edu|gov)\b(?:/\S*\w)?
    | (?:[^\W\d_]\.){2,}                           # U.S.
    | \b[^\W\d_]\.(?=\s)                           # J. Smith
    | \b(?:ABBREVIATIONS)\.
    | \bNos?\.(?=\s?\d)                            # No. 5
    | (?i:n['’]t\b | ['’](?:s|re|ve|ll|d|m)\b)     # clitics
    | [@\#]? \w+? (?=(?i:n['’]t\b))                # ca of can't
    | [@\#]? \w+ (?:
        [-/&@] \w+
        | (?<=\d)[.,:](?=\d) \w+                   # 1,000.5
        | (?!(?i:['’](?:s|re|ve|ll|d|m)\b)) ['’] \w+
      )*
    | [\U0001f1e6-\U0001f1ff]{2}                   # the flag of a country
    | ([^\w\s])\1*                                 # marks: ( ... --
""".replace("ABBREVIATIONS", "|".join(_ABBREVIATIONS.split()))
_WORDS = {"blanks": r"\S+", "characters": r"\S"}


def find_words(text: str, how: str) -> tuple[tuple[int, int], ...]:
    """The characters [start, end) of each word of a text.

    how: "treebank": punctuation marks and clitics ('s, n't) are words, similar to the Penn
      Treebank; "blanks": blanks separate words; "characters": each character is a word.
    """
    if how not in _WORDS:
        text = _without_marks(text)
    pattern = _WORDS.get(how, _TREEBANK)
    return tuple(match.span() for match in re.finditer(pattern, text))


_JOINER = "\u200d"  # joins emoji to one picture


def _without_marks(text: str) -> str:
    """A text of the same length in which combining marks and joiners are other characters.

    A mark belongs to the character before it: it becomes the letter "a" after a letter or a
    digit, and repeats any other character, such as an emoji. A joiner also joins the emoji
    after it. A mark at the start of a word belongs to the character after it, and a mark
    alone is not a word.
    """
    new: list[str] = []
    leading = 0  # marks at the start of a word, which wait for their character
    for i, char in enumerate(text):
        before = " "
        if new:
            before = new[-1]
        if not _is_mark(char):
            is_joined = i > 0 and text[i - 1] == _JOINER and not before.isspace()
            is_emoji = not (char.isalnum() or char.isspace())
            if is_joined and is_emoji and not before.isalnum():
                char = before
            new[len(new) - leading :] = [_as_mark(char)] * leading
            leading = 0
            new.append(char)
        elif leading or before.isspace():
            leading += 1
            new.append(" ")
        else:
            new.append(_as_mark(before))
    return "".join(new)


def _is_mark(char: str) -> bool:
    """Whether a character is a combining mark, a joiner or the colour of a skin."""
    is_colour = "\U0001f3fb" <= char <= "\U0001f3ff"
    return is_colour or unicodedata.category(char) in ("Mn", "Mc", "Me", "Cf")


def _as_mark(char: str) -> str:
    """The character that replaces a mark beside this character."""
    if char.isalnum() or char == "_":
        return "a"
    return char


def recognise(tags: Iterable[str]) -> str:
    """The scheme of the different tags of a file. For tags in iob1 it is iob2.

    Tags spell entities if at least half of the tags other than "O" look like tags of
    entities. The others count as mistakes.
    """
    tags = {*tags}
    if tags & {"B", "E", "S"} and tags <= {*SCHEMES["bmes"]}:
        return "bmes"
    spans = {tag for tag in tags if re.fullmatch(r"[BIES](-.+)?|[LMU]-.+", tag)}
    if len(spans) < len(tags - spans - {"O"}):
        return "plain"

    def allowed(scheme: str) -> int:
        form = f"O|[{SCHEMES[scheme]}](-.+)?"
        return sum(bool(re.fullmatch(form, tag)) for tag in tags)

    return max(("iob2", "iobes", "bilou", "bmeso"), key=allowed)


def kind_of(scheme: str) -> str:
    """The spans of a scheme: "entities", "words", or "tags" for no spans."""
    return {"bmes": "words", "plain": "tags"}.get(scheme, "entities")


def missing_tags(tags: Iterable[str], scheme: str) -> tuple[str, ...]:
    """The tags that a scheme has for the types of ``tags``, but ``tags`` lacks, sorted.

    A model then has an output for every tag of a type, even if the rows only have entities
    of one word.
    """
    if kind_of(scheme) != "entities":
        return ()
    tags = {*tags}
    types = {tag[1:] for tag in tags if tag != "O"}  # "-PER", or "" without a type
    whole = {letter + name for letter in SCHEMES[scheme] for name in types}
    return tuple(sorted((whole | {"O"}) - tags))


# The letter of a scheme in lower case, before another mark, or at the end.
_OTHER_FORM = re.compile(r"[bieslmu][-_].+|[BIESLMU]_.+|.+[-_][BIESLMU]")


def warn_of_forms(tags: Iterable[str], scheme: str) -> None:
    """Warns of tags that spell entities in a form that no scheme has, such as "b-per"."""
    others = [tag for tag in tags if tag not in ("O", "o")]
    odd = [tag for tag in others if _OTHER_FORM.fullmatch(tag)]
    if kind_of(scheme) == "tags" and 2 * len(odd) > len(others):
        logger.warning(
            f"tags such as {odd[0]!r} are scored by accuracy; for the F1 of entities "
            "write them as B-PER, I-PER and O"
        )


def of_one_form(tags: tuple[str, ...], scheme: str) -> tuple[str, ...]:
    """The tags. A tag without a type is an error, and left out, if others have a type."""
    typed = tuple(tag for tag in tags if tag == "O" or tag[1:])
    if kind_of(scheme) == "entities" and {*typed} - {"O"}:
        return typed
    return tags


Tags = Sequence[list[str]]  # the tags of each sentence


def entities(tags: Sequence[str], scheme: str) -> list[tuple[str, int, int]]:
    """The (type, start, end) of each entity, end exclusive.

    Tags without a type, as in bmes, have the type UNTYPED.
    """
    # seqeval is imported late because it takes a second.
    from seqeval.metrics.sequence_labeling import get_entities

    spans = get_entities(_as_iobes(tags, scheme))
    return [(name, start, last + 1) for name, start, last in spans]


def _as_iobes(tags: Sequence[str], scheme: str) -> list[str]:
    """The tags with the letters that seqeval reads. Any other tag becomes O."""
    letters = dict(zip(reversed(SCHEMES[scheme]), "SEIB", strict=True))
    new = []
    for tag in tags:
        letter = letters.get(tag[:1])
        if letter:
            new.append(letter + tag[1:])
        else:
            new.append("O")
    return new


def spelled(tags: Sequence[str], scheme: str, target: str) -> list[str]:
    """The well-formed tags of the same entities in the scheme ``target``."""
    if scheme == "plain":
        return [*tags]
    new = ["O"] * len(tags)
    for name, start, end in entities(tags, scheme):
        kind = f"-{name}"
        if name == UNTYPED:
            kind = ""
        new[start:end] = [letter + kind for letter in shape(end - start, target)]
    return new


def shape(count: int, scheme: str) -> str:
    """The letters of a span of ``count`` words."""
    begin, inside, end, single = SCHEMES[scheme]
    if count == 1:
        return single
    return begin + inside * (count - 2) + end


def scores(gold: Tags, predicted: Tags, scheme: str) -> dict[str, float]:
    """The accuracy of tags, and F1, precision and recall of spans, in percent.

    Entities also have "f1/TYPE" for each type that occurs.
    """
    from seqeval.metrics import sequence_labeling as seqeval

    shares = {"accuracy": seqeval.accuracy_score(gold, predicted)}
    if scheme != "plain":
        letters = [_as_iobes(tags, scheme) for tags in gold]
        others = [_as_iobes(tags, scheme) for tags in predicted]
        count = seqeval.precision_recall_fscore_support
        prf = functools.partial(count, letters, others)
        precision, recall, f1, _ = prf(average="micro", zero_division=0)
        shares |= {"f1": f1, "precision": precision, "recall": recall}
    if scheme not in ("plain", "bmes"):
        types = set()
        for tags in (*gold, *predicted):
            types.update(name for name, *_ in entities(tags, scheme))
        _, _, f1_of_types, _ = prf(zero_division=0)
        for name, f1 in zip(sorted(types), f1_of_types, strict=True):
            if name != UNTYPED:
                shares[f"f1/{name}"] = f1
    return {name: 100 * float(value) for name, value in shares.items()}
