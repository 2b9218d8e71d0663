"""Text formats: readers from lines to documents, and detection of a file's format.

A format is an entry of FORMATS, at the end of this file. Every reader takes lines and
yields documents, which are lists of sentences. A document longer than LONGEST_DOCUMENT is
cut, so memory does not depend on the size of the file, except for Markdown.
"""

import html
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import NamedTuple

from bert_jax.data.sentences import split_sentences
from bert_jax.errors import UserError
from bert_jax.files import parse_json

Lines = Iterable[str]  # without their ends
Documents = Iterator[list[str]]  # sentences

# Number of characters. No book is this long, but a file without document boundaries may be.
LONGEST_DOCUMENT = 16 << 20
# Width of a text. Shorter texts without an end mark are headings, captions or table cells.
HEADING = 60
# Number of sentences. A chapter with fewer is joined with the next one.
SHORT_CHAPTER = 8
# Minimum share of a document's characters that are in texts with end marks. If the share is
# smaller, the language is taken to have no known marks, as Thai.
_MARKED = 0.25

_ASCII_MARKS = tuple(".!?…")
_SENTENCE_MARKS = (*_ASCII_MARKS, *"。！？｡।॥۔؟።։။។៕།")
_CLOSING = "\"'”“’‘»«)]」』）】》〉"
_END_MARKS = (*_SENTENCE_MARKS, *_CLOSING, ":", ";")
# The line that ends a chapter. An empty line ends a paragraph.
_CHAPTER = "\f"

# The name of omitted text in reports.
PASSAGES = "headings, list items, tables or blocks of code"


@dataclass(frozen=True)
class Reading:
    """Settings of a reader, and counts of the text that it left out.

    format: a key of FORMATS, or "auto": see detect_format. text_field: key of the text in
    JSONL rows and tfds examples. language: see split_sentences. dropped: number of PASSAGES
    that were left out.
    """

    format: str = "auto"
    text_field: str = "text"
    language: str = "en"
    dropped: Counter[str] = field(default_factory=Counter)

    def __post_init__(self):
        if self.format != "auto" and self.format not in FORMATS:
            known = ", ".join(["auto", *FORMATS])
            raise UserError(f"input_format={self.format!r}, expected one of {known}")


def _runs(lines: Lines) -> Iterator[list[str]]:
    """Lists of the lines between empty lines; an empty list for each _CHAPTER."""
    run: list[str] = []
    size = 0
    for line in itertools.chain(lines, [""]):
        if run and (line in ("", _CHAPTER) or size >= LONGEST_DOCUMENT):
            yield run
            run, size = [], 0
        if line == _CHAPTER:
            yield []
        elif line:
            run.append(line)
            size += len(line)


def _documents(
    texts: Iterable[str],
    choose: Callable[[Sequence[str]], Sequence[str]],
    reading: Reading,
    shortest: int = 0,
) -> Documents:
    """Joins texts to documents.

    texts: an empty text ends a document of at least ``shortest`` sentences. choose:
    function that returns the texts of a document to keep.
    """
    document: list[str] = []
    for run in itertools.chain(_runs(texts), [[]]):
        document += run
        kept = choose(document)
        sentences = [s for t in kept for s in split_sentences(t, reading.language)]
        is_long = sum(map(len, document)) >= LONGEST_DOCUMENT
        if run and len(sentences) < shortest and not is_long:
            continue  # joined with the next
        reading.dropped[PASSAGES] += len(document) - len(kept)
        if sentences:
            yield sentences
        document = []


def _prose_documents(lines: Lines, reading: Reading) -> Documents:
    """The documents of lines. Joins lines to paragraphs."""
    paragraphs = (" ".join(run) for run in _runs(lines))
    return _documents(paragraphs, _prose, reading, SHORT_CHAPTER)


def _has_marks(texts: Sequence[str]) -> bool:
    """Whether the sentences of a document end with known marks. Thai has none."""
    marks = (*_SENTENCE_MARKS, ":", ";")
    marked = sum(len(text) for text in texts if _ends_with(text, marks))
    return marked >= _MARKED * sum(map(len, texts))


def _ends_with(text: str, marks: tuple[str, ...]) -> bool:
    """Whether a text ends with one of ``marks``, perhaps before quotation marks."""
    return text.rstrip(_CLOSING).endswith(marks)


def _width(text: str) -> int:
    """Number of characters. In short texts Chinese, Japanese and Korean count twice.

    A paragraph of 40 Chinese characters is too long for a heading.
    """
    if len(text) > 100 or text.isascii():
        return len(text)
    return len(text) + sum(unicodedata.east_asian_width(c) in "WF" for c in text)


def _prose(texts: Sequence[str]) -> Sequence[str]:
    """The paragraphs without headings, which are short texts without an end mark.

    A document of a language without known marks has no headings.
    """
    kept = [t for t in texts if t.endswith(_END_MARKS) or _width(t) >= HEADING]
    if len(kept) < len(texts) and not _has_marks(texts):
        return texts
    return kept


def read_lines_format(lines: Lines, reading: Reading) -> Documents:
    """One sentence in each line, and blank lines between documents."""
    return _runs(map(str.strip, lines))


def read_paragraphs_format(lines: Lines, reading: Reading) -> Documents:
    """Paragraphs between blank lines, hard-wrapped or not. Headings are dropped.

    A document ends with the file, and at two blank lines or a form feed if it has at least
    SHORT_CHAPTER sentences.
    """
    return _prose_documents(_plain_lines(lines), reading)


def _plain_lines(lines: Lines) -> Iterator[str]:
    blank = 0
    for line in lines:
        text = line.strip()
        if line.startswith("\f") or (blank >= 2 and text):
            yield _CHAPTER
        yield text
        blank += 1
        if text:
            blank = 0


# An element with or without attributes, or a web or mail address, but not text such as
# "1 <n and n> 2".
_TAG = (
    r"</?[A-Za-z][\w.:-]*(?:\s+[\w:-]+\s*=[^<>]{0,200})?\s*/?>"
    r"|<[^\s<>]{1,200}[:@][^\s<>]{1,200}>"
)
_EMPTY_PARENTHESES = re.compile(r" ?\([\s,;]*\)")
_TITLE = re.compile(r'title="(.*)">')


def read_wikiextractor_format(lines: Lines, reading: Reading) -> Documents:
    """WikiExtractor's <doc> elements, one document each.

    Only text passages are kept, as in the paper. Titles, headings, list items and table
    cells are dropped. Headings are lines shorter than HEADING that end with a full stop,
    which WikiExtractor adds. Other lines are dropped if they do not end a sentence, except
    in a language without known marks.
    """
    return _documents(_wiki_lines(lines, reading.dropped), _passages, reading)


def _wiki_lines(lines: Lines, dropped: Counter[str]) -> Iterator[str]:
    title = ""
    for line in lines:
        if line.startswith(("<doc ", "</doc>")):
            yield ""
            title = "".join(map(html.unescape, _TITLE.findall(line)))
            continue
        # Tags are removed before characters are decoded, because &lt;int&gt; is text.
        text = line
        if "<" in line:  # saves a slow search
            text = re.sub(_TAG, " ", line)
        text = _EMPTY_PARENTHESES.sub("", html.unescape(text))
        text = " ".join(text.split())
        if text and text == title:
            dropped[PASSAGES] += 1
        elif text:
            yield text


def _passages(lines: Sequence[str]) -> Sequence[str]:
    texts = [
        t for t in lines if _width(t) >= HEADING or not _ends_with(t, _ASCII_MARKS)
    ]
    if not _has_marks(texts):
        return texts
    return [text for text in texts if _ends_with(text, _SENTENCE_MARKS)]


# Widths of wrapped lines. Shorter lines end a paragraph, longer lines are paragraphs.
_WRAPPED = range(40, 101)


def text_sentences(text: str, reading: Reading) -> list[str]:
    """Sentences of a text with line breaks, such as a JSON field of a web corpus.

    Each line is a paragraph unless the text is hard-wrapped. Headings are dropped.
    """
    documents = _prose_documents(_web_lines(text), reading)
    return list(itertools.chain.from_iterable(documents))


def _web_lines(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        line = " ".join(line.split())
        yield line
        if _width(line) not in _WRAPPED:
            yield ""


def read_jsonl_format(lines: Lines, reading: Reading) -> Documents:
    """One JSON object in each line, with its text in ``reading.text_field``."""
    expected = f'a JSON object with text in "{reading.text_field}"'
    for line in lines:
        if not line.strip():
            continue
        row = parse_json(line, "the line", expected)
        text = row.get(reading.text_field)
        if reading.text_field not in row:
            keys = ", ".join(sorted(row)[:8])
            raise UserError(f"expected {expected}, found {keys}; set text_field")
        if not isinstance(text, str):
            actual = f"found a value of type {type(text).__name__} there"
            raise UserError(f"expected {expected}, {actual}; drop the row")
        sentences = text_sentences(text, reading)
        if sentences:
            yield sentences


_ADDRESS = r"\((?:[^()\n]|\([^()\n]*\))*+\)"  # of a link, with one level of parentheses
# Patterns of Markdown that is left out and counted, and their replacements.
_LEFT_OUT = (
    (r"\A---\s*\n(?s:.*?)^[ \t]*---.*$", ""),  # front matter
    (r"^ {0,3}(```|~~~)(?s:.*?)(?:^[ \t]*\1.*$|\Z)", ""),  # code
    (r"(?:^[ \t]*\|.*(?:\n|\Z))+", "\n"),  # a table
    (r"^[ \t]{0,3}#{1,6}([ \t].*)?$", _CHAPTER),  # a header
    (r"^[ \t]*(\*\*|__)[^*_\n]*\1[ \t]*$", ""),  # a line that is bold
)
_MARKS = (
    (r"^[ \t]{0,3}([-*_=])([ \t]*\1){2,}[ \t]*$", ""),  # a rule
    (r"^[> \t]*(?:(?:[-*+]|\d{1,3}[.)])[ \t]+)", "\n"),  # an item of a list
    (r"^[> \t]+", ""),
    (rf"!\[[^\[\]\n]*+\]{_ADDRESS}", ""),
    (rf"\[([^\[\]\n]*+)\](?:{_ADDRESS}|\[[^\[\]\n]*+\])", r"\1"),
    (rf"(`+)(.+?)\1|{_TAG}", lambda match: match[2] or " "),
    (r"(?<!\w)[*_]+(?=\S)|(?<=\S)[*_]+(?!\w)|`+", ""),
    (r"\\([\\`*_{}\[\]()#+\-.!>~|])", r"\1"),
)


def read_markdown_format(lines: Lines, reading: Reading) -> Documents:
    """Markdown as plain text. A header starts a chapter, which is a document.

    Headers, front matter, code, tables and bold lines (titles, or speakers in plays) are
    dropped. Chapters of fewer than SHORT_CHAPTER sentences are joined with the next one.
    """
    text = "\n".join(lines)
    for pattern, replacement in _LEFT_OUT:
        text, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
        reading.dropped[PASSAGES] += count
    for pattern, replacement in _MARKS:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return _prose_documents(map(_plain, text.split("\n")), reading)


def _plain(line: str) -> str:
    """A line with decoded characters and single spaces, or _CHAPTER."""
    if line == _CHAPTER:
        return line
    return " ".join(html.unescape(line).split())


def _has_sentence_lines(head: str, language: str) -> bool:
    """Whether nearly every line is one sentence and some blocks have several lines."""
    lines = list(map(str.strip, head.split("\n")))
    filled = list(filter(None, lines[:-1] or lines))[:2000]
    ended = sentences = 0
    for line in filled:
        ended += line.endswith(_END_MARKS)
        sentences += len(split_sentences(line, language))
    followed = any(map(all, itertools.pairwise(lines))) or len(filled) == 1
    return followed and ended > 0.7 * len(filled) and sentences < 1.3 * len(filled)


class TextFormat(NamedTuple):
    """A text format.

    read(lines, reading): yields documents, raises UserError for a bad line and counts what
    it leaves out. boundary: pattern of lines at which a reader can start, so several
    processes can read one file. None if a file must be read completely. suffixes: suffixes
    of file names of this format, in lower case. start: pattern of the
    text with which only files of this format start.
    """

    read: Callable[[Lines, Reading], Documents]
    boundary: str | None = None
    suffixes: tuple[str, ...] = ()
    start: str = ""


_BLANK = r"\s*$"
_OBJECT = r'\{"|\{[ \t]+"[^"]*"[ \t]*:'
FORMATS: dict[str, TextFormat] = {
    "paragraphs": TextFormat(read_paragraphs_format, _BLANK),
    "lines": TextFormat(read_lines_format, _BLANK),
    "markdown": TextFormat(read_markdown_format, suffixes=(".md", ".markdown")),
    "jsonl": TextFormat(read_jsonl_format, "", (".jsonl", ".ndjson", ".json"), _OBJECT),
    "wikiextractor": TextFormat(read_wikiextractor_format, "<doc ", start="<doc "),
}


def detect_format(name: str, head: str, language: str = "en") -> str:
    """The format of a file from the suffix of its name, or from the start of its text."""
    head = head.lstrip()
    for format, how in FORMATS.items():
        starts = how.start and re.match(how.start, head)
        if starts or file_suffixes(name).intersection(how.suffixes):
            return format
    if _has_sentence_lines(head, language):
        return "lines"
    return "paragraphs"


def file_suffixes(name: str) -> set[str]:
    """The last two suffixes of a file name in lower case, such as ".txt" and ".gz"."""
    return set(map(str.lower, PurePath(name).suffixes[-2:]))
