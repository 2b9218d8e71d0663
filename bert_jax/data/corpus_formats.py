"""The text formats: lines of a file to documents, and which format a file has.

A format is one entry of FORMATS, at the end. Every reader takes lines and yields documents,
lists of sentences. It holds one document at a time and cuts one that is longer than
LONGEST_DOCUMENT, so memory does not depend on the file.
"""

import collections
import dataclasses
import html
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePath
from typing import NamedTuple

from bert_jax.data.sentences import split_sentences
from bert_jax.errors import UserError
from bert_jax.files import parse_json

Lines = Iterable[str]  # without their ends
Documents = Iterator[list[str]]  # sentences

# Characters. No book is this long; a file without any document boundary may be.
LONGEST_DOCUMENT = 16 << 20
# Width of a text. Shorter ones without an end mark are headings, captions or table cells.
HEADING = 60
# A chapter shorter than this, in sentences, is joined with the next.
SHORT_CHAPTER = 8
# A document that has end marks behind less than this share of its characters is in a
# language without known marks, such as Thai.
_MARKED = 0.25

_ASCII_MARKS = tuple(".!?…")
_SENTENCE_MARKS = (*_ASCII_MARKS, *"。！？｡।॥۔؟።։။។៕།")
_CLOSING = "\"'”“’‘»«)]」』）】》〉"
_END_MARKS = (*_SENTENCE_MARKS, *_CLOSING, ":", ";")
# Lines that end a paragraph or a chapter, and that no text is equal to.
_PARAGRAPH, _CHAPTER = "\n", "\f"

# Reasons to leave text out, as reports name them.
HEADINGS = "headings"
UNMARKED = "lines without an end mark"
CODE = "lines of code, tables or front matter"
EMPTY = "documents without text"


@dataclasses.dataclass(frozen=True)
class Reading:
    """How text is read, and how much of it was left out.

    text_field: key of the text in JSONL rows and tfds examples. language: see
    split_sentences. dropped: number of lines, paragraphs or documents that were left out,
    by reason.
    """

    text_field: str = "text"
    language: str = "en"
    dropped: collections.Counter[str] = dataclasses.field(
        default_factory=collections.Counter
    )


class BadLineError(UserError):
    """A line that its format does not allow; read_source adds where it is."""


class Passages(NamedTuple):
    """The text passages of a document, and the reasons for which others were dropped."""

    texts: list[str]
    dropped: collections.Counter[str]


def _documents(
    texts: Iterable[str | None],
    passages: Callable[[list[str]], Passages],
    reading: Reading,
    shortest: int = 0,
) -> Documents:
    """Joins texts to documents. A document may end at a None.

    passages: chooses among the texts of a document. shortest: number of sentences that a
    document needs, or it is joined with the next.
    """
    document: list[str] = []
    size = 0
    for text in texts:
        if size >= LONGEST_DOCUMENT or (text is None and document):
            chosen = passages(document)
            sentences = _split(chosen.texts, reading)
            if size >= LONGEST_DOCUMENT or len(sentences) >= shortest:
                yield from _counted(sentences, chosen, reading)
                document, size = [], 0
        if text is not None:
            document.append(text)
            size += len(text)
    if document:
        chosen = passages(document)
        yield from _counted(_split(chosen.texts, reading), chosen, reading)


def _split(texts: Iterable[str], reading: Reading) -> list[str]:
    return [s for text in texts for s in split_sentences(text, reading.language)]


def _counted(sentences: list[str], chosen: Passages, reading: Reading) -> Documents:
    """The document, if it has text; adds what was left out of it to the counts."""
    reading.dropped.update(chosen.dropped)
    if sentences:
        yield sentences
    else:
        reading.dropped[EMPTY] += 1


def _has_marks(texts: list[str]) -> bool:
    """Whether the sentences of a document end with known marks.

    A list of the marks of all languages would not do: Thai has none.
    """
    marks = (*_SENTENCE_MARKS, ":", ";")
    marked = sum(len(t) for t in texts if t.rstrip(_CLOSING).endswith(marks))
    return marked >= _MARKED * sum(map(len, texts))


def _width(text: str) -> int:
    """Characters of a text. In short texts Chinese, Japanese and Korean ones count twice.

    A paragraph of 40 such characters is too long for a heading.
    """
    if len(text) > 100 or text.isascii():
        return len(text)
    return len(text) + sum(unicodedata.east_asian_width(c) in "WF" for c in text)


def _prose(paragraphs: list[str]) -> Passages:
    """The paragraphs without headings: short ones that have no end mark.

    Nothing is a heading in a document of a language without known marks.
    """
    passages = [
        text
        for text in paragraphs
        if text.endswith(_END_MARKS) or _width(text) >= HEADING
    ]
    if len(passages) == len(paragraphs) or not _has_marks(paragraphs):
        return Passages(paragraphs, collections.Counter())
    dropped = {HEADINGS: len(paragraphs) - len(passages)}
    return Passages(passages, collections.Counter(dropped))


def _paragraphs(lines: Lines) -> Iterator[str | None]:
    """Joins lines up to a _PARAGRAPH or _CHAPTER to paragraphs; None ends a chapter."""
    paragraph: list[str] = []
    size = 0
    for line in itertools.chain(lines, [_PARAGRAPH]):
        if line in (_PARAGRAPH, _CHAPTER) or size >= LONGEST_DOCUMENT:
            if paragraph:
                yield " ".join(paragraph)
            paragraph, size = [], 0
        if line == _CHAPTER:
            yield None
        elif line != _PARAGRAPH:
            paragraph.append(line)
            size += len(line)


def read_lines_format(lines: Lines, reading: Reading) -> Documents:
    """One sentence a line, kept as it is; blank lines between documents."""
    document: list[str] = []
    size = 0
    for line in itertools.chain(lines, [""]):
        sentence = line.strip()
        if document and (not sentence or size >= LONGEST_DOCUMENT):
            yield document
            document, size = [], 0
        if sentence:
            document.append(sentence)
            size += len(sentence)


def read_paragraphs_format(lines: Lines, reading: Reading) -> Documents:
    """Paragraphs between blank lines, hard-wrapped or not; headings are dropped.

    A document ends with the file, at two blank lines in a row, or at a form feed, where
    it has at least SHORT_CHAPTER sentences by then.
    """
    return _documents(
        _paragraphs(_plain_lines(lines)), _prose, reading, shortest=SHORT_CHAPTER
    )


def _plain_lines(lines: Lines) -> Iterator[str]:
    blank = 0
    for line in lines:
        text = line.strip()
        if line.startswith("\f") or (blank >= 2 and text):
            yield _CHAPTER
        yield text or _PARAGRAPH
        blank = 0 if text else blank + 1


# An element with attributes or without, or an address of the web or of mail. Text such as
# "1 <n and n> 2" is none.
_TAG = re.compile(
    r"</?[A-Za-z][\w.:-]*(?:\s+[\w:-]+\s*=[^<>]{0,200})?\s*/?>"
    r"|<[^\s<>]{1,200}[:@][^\s<>]{1,200}>"
)
_EMPTY_PARENTHESES = re.compile(r" ?\([\s,;]*\)")
_TITLE = re.compile(r'title="(.*)">')


def read_wikiextractor_format(lines: Lines, reading: Reading) -> Documents:
    """WikiExtractor's <doc> elements, one document each.

    As the paper has it, only text passages are kept: titles, headings, list items and
    table cells are dropped. Headings are lines shorter than HEADING that end with a full
    stop, which WikiExtractor puts there. The other lines are dropped if they do not end a
    sentence, except in a language without known marks.
    """
    return _documents(_wiki_lines(lines, reading.dropped), _wiki_passages, reading)


def _wiki_lines(
    lines: Lines, dropped: collections.Counter[str]
) -> Iterator[str | None]:
    title = ""
    for line in lines:
        if line.startswith(("<doc ", "</doc>")):
            yield None
            found = _TITLE.search(line)
            title = html.unescape(found[1]) if found else ""
            continue
        # Tags before characters: &lt;int&gt; is text.
        text = html.unescape(_TAG.sub(" ", line) if "<" in line else line)
        text = " ".join(_EMPTY_PARENTHESES.sub("", text).split())
        if text == title:
            dropped[HEADINGS] += bool(text)
        elif text:
            yield text


def _wiki_passages(lines: list[str]) -> Passages:
    texts, passages = [], []
    for line in lines:
        end = line.rstrip(_CLOSING)
        if end.endswith(_ASCII_MARKS) and _width(line) < HEADING:
            continue
        texts.append(line)
        if end.endswith(_SENTENCE_MARKS):
            passages.append(line)
    dropped = collections.Counter({HEADINGS: len(lines) - len(texts)})
    if not _has_marks(texts):
        return Passages(texts, dropped)
    dropped[UNMARKED] += len(texts) - len(passages)
    return Passages(passages, dropped)


# A line of this width that another follows was wrapped; shorter ones end where they
# should, longer ones are whole paragraphs.
_WRAPPED = range(40, 101)


def text_sentences(text: str, reading: Reading) -> list[str]:
    """Sentences of a text with line breaks, as web corpora have it in a JSON field.

    A line is a paragraph, except where the text is hard-wrapped. Headings are dropped.
    """
    documents = _documents(_paragraphs(_web_lines(text)), _prose, reading)
    return list(itertools.chain.from_iterable(documents))


def _web_lines(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        line = " ".join(line.split())
        yield line or _PARAGRAPH
        if _width(line) not in _WRAPPED:
            yield _PARAGRAPH


def read_jsonl_format(lines: Lines, reading: Reading) -> Documents:
    """One JSON object a line, its text in ``reading.text_field``."""
    field = reading.text_field
    for line in lines:
        if _is_blank(line):
            continue
        expected = f'a JSON object with text in "{field}"'
        try:
            row = parse_json(line, "the line", expected)
        except UserError as error:
            raise BadLineError(str(error)) from error
        text = row.get(field)
        if not isinstance(text, str):
            found = ", ".join(sorted(row)[:8])
            raise BadLineError(f"expected {expected}, found {found}; set --text_field")
        if sentences := text_sentences(text, reading):
            yield sentences
        elif not text.strip():
            reading.dropped[EMPTY] += 1


_FENCE = re.compile(r"\s{0,3}(```|~~~)")
_HEADER = re.compile(r"\s{0,3}#{1,6}(\s|$)")
_BOLD_LINE = re.compile(r"\s*(\*\*|__)[^*_]*\1\s*$")
_RULE = re.compile(r"\s{0,3}([-*_=])(\s*\1){2,}\s*$")
_ITEM = re.compile(r"^\s*([-*+]|\d{1,3}[.)])\s+")
_ADDRESS = r"\((?:[^()]|\([^()]*\))*+\)"  # of a link, with one level of parentheses
# What replaces the marks inside a line: images, links, tags, emphasis, code, escapes.
_MARKS = (
    (re.compile(rf"!\[[^\[\]]*+\]{_ADDRESS}"), ""),
    (re.compile(rf"\[([^\[\]]*+)\](?:{_ADDRESS}|\[[^\[\]]*+\])"), r"\1"),
    (re.compile(rf"(`+)(.+?)\1|{_TAG.pattern}"), lambda found: found[2] or " "),
    (re.compile(r"(?<!\w)[*_]+(?=\S)|(?<=\S)[*_]+(?!\w)|`+"), ""),
    (re.compile(r"\\([\\`*_{}\[\]()#+\-.!>~|])"), r"\1"),
)


def read_markdown_format(lines: Lines, reading: Reading) -> Documents:
    """Markdown as plain text. A header starts a chapter, and a chapter is a document.

    Headers, front matter, code, tables and lines that are bold throughout (titles, or
    speakers in plays) are dropped. Chapters of fewer than SHORT_CHAPTER sentences are
    joined with the next.
    """
    paragraphs = _paragraphs(_markdown_lines(lines, reading.dropped))
    return _documents(paragraphs, _prose, reading, shortest=SHORT_CHAPTER)


def _markdown_lines(lines: Lines, dropped: collections.Counter[str]) -> Iterator[str]:
    inside = ""  # the mark that ends front matter or a block of code
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        mark = "---" if line.strip() == "---" and not number else fence and fence[1]
        if inside or mark or line.lstrip().startswith("|"):
            dropped[CODE] += not mark
            yield _PARAGRAPH
            ends = inside and line.strip().startswith(inside)
            inside = "" if ends else inside or mark or ""
        elif _HEADER.match(line) or _BOLD_LINE.match(line):
            dropped[HEADINGS] += 1
            yield _CHAPTER if _HEADER.match(line) else _PARAGRAPH
        elif _RULE.match(line) or not line.strip():
            yield _PARAGRAPH
        else:
            line = line.lstrip("> \t")
            if _ITEM.match(line):
                yield _PARAGRAPH
            line = _ITEM.sub("", line)
            for pattern, text in _MARKS:
                line = pattern.sub(text, line)
            yield " ".join(html.unescape(line).split())


def _has_sentence_lines(head: str, language: str) -> bool:
    """Whether nearly every line is one sentence and some blocks have several lines."""
    lines = [line.strip() for line in head.split("\n")]
    filled = [line for line in lines[:-1] or lines if line][:2000]
    if not filled:
        return False
    ended = sum(line.endswith(_END_MARKS) for line in filled)
    sentences = sum(len(split_sentences(line, language)) for line in filled)
    followed = any(a and b for a, b in itertools.pairwise(lines))
    return (
        ended > 0.7 * len(filled)
        and sentences < 1.3 * len(filled)
        and (followed or len(filled) == 1)
    )


def _starts_doc(line: str) -> bool:
    return line.startswith("<doc ")


def _is_blank(line: str) -> bool:
    return not line.strip()


@dataclasses.dataclass(frozen=True)
class TextFormat:
    """How one text format is read.

    read(lines, reading): yields documents, raises BadLineError and counts dropped text.
    is_boundary(line): whether a reader can start at this line, so that several processes
    can read one file; None if a file must be read completely. suffixes: suffixes of file
    names that have this format, in lower case.
    """

    read: Callable[[Lines, Reading], Documents]
    is_boundary: Callable[[str], bool] | None = None
    suffixes: tuple[str, ...] = ()


FORMATS: dict[str, TextFormat] = {
    "paragraphs": TextFormat(read_paragraphs_format, _is_blank),
    "lines": TextFormat(read_lines_format, _is_blank),
    "markdown": TextFormat(read_markdown_format, suffixes=(".md", ".markdown")),
    "jsonl": TextFormat(
        read_jsonl_format, lambda line: True, suffixes=(".jsonl", ".ndjson", ".json")
    ),
    "wikiextractor": TextFormat(read_wikiextractor_format, _starts_doc),
}


def detect_format(name: str, head: str, language: str = "en") -> str:
    """The format of a file from the suffix of its name, or from the start of its text."""
    suffixes = [suffix.lower() for suffix in PurePath(name).suffixes[-2:]]
    for format, how in FORMATS.items():
        if set(suffixes).intersection(how.suffixes):
            return format
    head = head.lstrip()
    if _starts_doc(head):
        return "wikiextractor"
    if head.startswith('{"'):
        return "jsonl"
    return "lines" if _has_sentence_lines(head, language) else "paragraphs"
