"""The text formats: lines of a file to documents, and which format a file has.

A format is one entry of FORMATS, at the end. Every reader takes lines and yields documents,
lists of sentences. It holds one document at a time and cuts one that is longer than
LONGEST_DOCUMENT, so memory does not depend on the file.
"""

import contextlib
import dataclasses
import html
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePath

from bert_jax.data.sentences import split_sentences
from bert_jax.errors import UserError
from bert_jax.files import parse_json

Lines = Iterable[str]  # without their ends
Documents = Iterator[list[str]]  # sentences
# Characters and sentences that go on with a document; None where one may end.
Piece = tuple[int, list[str]] | None

# Characters. No book is this long; a file without any document boundary may be.
LONGEST_DOCUMENT = 16 << 20
# Characters. Shorter lines without an end mark are headings, captions or table cells;
# in WikiExtractor's output headings end with a full stop, so there length alone decides.
HEADING = 60
# A chapter shorter than this, in sentences, is joined with the next.
SHORT_CHAPTER = 8

_SENTENCE_MARKS = tuple(".!?…。！？।")
_CLOSING = "\"'”’»)]"
_END_MARKS = (*_SENTENCE_MARKS, *_CLOSING, ":", ";")
# Lines that end a paragraph or a chapter, and that no text is equal to.
_PARAGRAPH, _CHAPTER = "\n", "\f"


class BadLineError(UserError):
    """A line that its format does not allow; read_source adds where it is."""


def _documents(pieces: Iterable[Piece], shortest: int = 1) -> Documents:
    """Joins pieces; a document that may end does so from ``shortest`` sentences on."""
    document: list[str] = []
    size = 0
    for piece in pieces:
        ends = piece is None and len(document) >= shortest
        if ends or size >= LONGEST_DOCUMENT:
            if document:
                yield document
            document, size = [], 0
        if piece is not None:
            size += piece[0]
            document += piece[1]
    if document:
        yield document


def _paragraphs(lines: Lines) -> Iterator[Piece]:
    """Joins lines up to a _PARAGRAPH or _CHAPTER to paragraphs; headings are dropped."""
    paragraph: list[str] = []
    size = 0
    for line in itertools.chain(lines, [_PARAGRAPH]):
        if line in (_PARAGRAPH, _CHAPTER) or size >= LONGEST_DOCUMENT:
            text = " ".join(paragraph)
            heading = len(text) < HEADING and not text.endswith(_END_MARKS)
            yield size, [] if heading else split_sentences(text)
            paragraph, size = [], 0
        if line == _CHAPTER:
            yield None
        elif line != _PARAGRAPH:
            paragraph.append(line)
            size += len(line)


def read_lines_format(lines: Lines, *_: object) -> Documents:
    """One sentence a line, kept as it is; blank lines between documents."""
    sentences = (line.strip() for line in lines)
    return _documents((len(s), [s]) if s else None for s in sentences)


def read_paragraphs_format(lines: Lines, *_: object) -> Documents:
    """Paragraphs between blank lines, hard-wrapped or not; headings are dropped.

    A document ends with the file, at two blank lines in a row, or at a form feed, where
    it has at least SHORT_CHAPTER sentences by then.
    """
    return _documents(_paragraphs(_plain_lines(lines)), SHORT_CHAPTER)


def _plain_lines(lines: Lines) -> Iterator[str]:
    blank = 0
    for line in lines:
        text = line.strip()
        if line.startswith("\f") or (blank >= 2 and text):
            yield _CHAPTER
        yield text or _PARAGRAPH
        blank = 0 if text else blank + 1


_TAG = re.compile(r"</?[A-Za-z][^<>]{0,200}>")
_EMPTY_PARENTHESES = re.compile(r" ?\([\s,;]*\)")


def read_wikiextractor_format(lines: Lines, *_: object) -> Documents:
    """WikiExtractor's <doc> elements, one document each.

    As the paper has it, only text passages are kept: titles, headings, list items and
    table cells are dropped, which is every line that does not end a sentence or is
    shorter than HEADING.
    """
    return _documents(_wiki_pieces(lines))


def _wiki_pieces(lines: Lines) -> Iterator[Piece]:
    for line in lines:
        if line.startswith(("<doc ", "</doc>")):
            yield None
            continue
        text = _EMPTY_PARENTHESES.sub("", _TAG.sub(" ", _unescape(line)))
        text = " ".join(text.split())
        if len(text) >= HEADING and text.rstrip(_CLOSING).endswith(_SENTENCE_MARKS):
            yield len(text), split_sentences(text)


# A line of this length that another follows was wrapped; shorter ones end where they
# should, longer ones are whole paragraphs.
_WRAPPED = range(40, 101)


def text_sentences(text: str) -> list[str]:
    """Sentences of a text with line breaks, as web corpora have it in a JSON field.

    A line is a paragraph, except where the text is hard-wrapped. Headings are dropped.
    """
    pieces = _paragraphs(_web_lines(text))
    return [sentence for _, sentences in pieces for sentence in sentences]


def _web_lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        yield " ".join(line.split()) or _PARAGRAPH
        if len(line) not in _WRAPPED:
            yield _PARAGRAPH


def read_jsonl_format(lines: Lines, field: str) -> Documents:
    """One JSON object a line, its text in ``field``."""
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
        if sentences := text_sentences(text):
            yield sentences


_FENCE = re.compile(r"\s{0,3}(```|~~~)")
_RULE = re.compile(r"\s{0,3}([-*_=])(\s*\1){2,}\s*$")
_HEADER = re.compile(r"\s{0,3}#{1,6}(\s|$)")
_WHOLLY_BOLD = re.compile(r"\s*(\*\*|__)[^*_]*\1\s*$")
_ITEM = re.compile(r"\s*([-*+]|\d{1,3}[.)])\s+")
# No mark inside its own kind, so that each place of a line is looked at a few times, not
# once for each mark before it. An address may have parentheses, one level of them.
_ADDRESS = r"\((?:[^()]|\([^()]*\))*+\)"
_IMAGE = re.compile(rf"!\[[^\[\]]*+\]{_ADDRESS}")
_LINK = re.compile(rf"\[([^\[\]]*+)\](?:{_ADDRESS}|\[[^\[\]]*+\])")
# Runs of marks, but one between two letters (snake_case) and those that stand alone.
_EMPHASIS = re.compile(
    r"(?<![_*])(?!(?<=[^\W_])[_*][^\W_])(?:(?<=\S)[_*]++|[_*]++(?=\S))"
)
_ESCAPE = re.compile(r"\\([\\`*_{}\[\]()#+\-.!>~|])")


def read_markdown_format(lines: Lines, *_: object) -> Documents:
    """Markdown as prose: a chapter, which a header begins, is a document.

    Headers, front matter, rules, code, tables and wholly bold lines (speakers in plays,
    titles) are dropped; emphasis, links and list marks leave their text. Chapters of
    less than SHORT_CHAPTER sentences are joined with the next.
    """
    return _documents(_paragraphs(_markdown_lines(lines)), SHORT_CHAPTER)


def _markdown_lines(lines: Lines) -> Iterator[str]:
    fence, front_matter = "", False
    for number, line in enumerate(lines):
        if number == 0 and line.strip() == "---":
            front_matter = True
        elif front_matter:
            front_matter = line.strip() not in ("---", "...")
        elif match := _FENCE.match(line):
            yield _PARAGRAPH
            fence = "" if fence == match[1] else fence or match[1]
        elif fence or line.lstrip().startswith("|"):
            continue
        elif _HEADER.match(line):
            yield _CHAPTER
        elif not line.strip() or _RULE.match(line) or _WHOLLY_BOLD.match(line):
            yield _PARAGRAPH
        else:
            line = line.lstrip("> \t")
            if item := _ITEM.match(line):
                yield _PARAGRAPH
                line = line[item.end() :]
            yield _clean_markdown(line)


def _clean_markdown(line: str) -> str:
    """Drops the marks inside a line and keeps its text."""
    text = _LINK.sub(r"\1", _IMAGE.sub("", line))
    text = _TAG.sub(" ", text).replace("`", "")
    if "_" in text or "*" in text:  # the search is slow
        text = _EMPHASIS.sub("", text)
    return " ".join(_unescape(_ESCAPE.sub(r"\1", text)).split())


# A number that html.unescape would make U+FFFD of, if Python read as many digits.
_NO_CHARACTER = re.compile(r"&#[0-9]{9,};?")


def _unescape(text: str) -> str:
    """Characters for HTML's names and numbers of them."""
    return html.unescape(_NO_CHARACTER.sub("\ufffd", text)) if "&" in text else text


def _is_json_object(head: str) -> bool:
    first = head.split("\n", 1)[0]
    with contextlib.suppress(UserError):
        return first.startswith("{") and bool(parse_json(first, "", ""))
    return False


def _has_sentence_lines(head: str) -> bool:
    """Whether nearly every line is one sentence and some blocks have several lines."""
    lines = [line.strip() for line in head.split("\n")]
    filled = [line for line in lines[:-1] or lines if line][:2000]
    if not filled:
        return False
    ended = sum(line.endswith(_END_MARKS) for line in filled)
    sentences = sum(len(split_sentences(line)) for line in filled)
    followed = any(a and b for a, b in itertools.pairwise(lines))
    return (
        ended > 0.7 * len(filled)
        and sentences < 1.3 * len(filled)
        and (followed or len(filled) == 1)
    )


def _begins_doc(text: str) -> bool:
    return text.startswith("<doc ")


def _is_blank(line: str) -> bool:
    return not line.strip()


@dataclasses.dataclass(frozen=True)
class TextFormat:
    """How text of one format is read and known.

    read(lines, text_field): the documents, or a BadLineError; text_field is the user's.
    is_boundary(line): whether a reader may begin at this line, so that several processes
    read one file; None where it reads files as a whole. suffixes: of file names, in small
    letters and without .gz, that have the format. begins(head): whether text of the format
    begins like that, blanks before it left out.
    """

    read: Callable[[Lines, str], Documents]
    is_boundary: Callable[[str], bool] | None = None
    suffixes: tuple[str, ...] = ()
    begins: Callable[[str], bool] = lambda head: False


# From the general to the special: of those that match a file the last one is taken.
FORMATS: dict[str, TextFormat] = {
    "paragraphs": TextFormat(
        read_paragraphs_format, _is_blank, begins=lambda head: True
    ),
    "lines": TextFormat(read_lines_format, _is_blank, begins=_has_sentence_lines),
    "markdown": TextFormat(read_markdown_format, suffixes=(".md", ".markdown")),
    "jsonl": TextFormat(
        read_jsonl_format,
        is_boundary=lambda line: True,
        suffixes=(".jsonl", ".ndjson", ".json"),
        begins=_is_json_object,
    ),
    "wikiextractor": TextFormat(
        read_wikiextractor_format, is_boundary=_begins_doc, begins=_begins_doc
    ),
}


def detect_format(name: str, head: str) -> str:
    """The format of a file from its name and the beginning of its text."""
    suffix, head = PurePath(name.lower().removesuffix(".gz")).suffix, head.lstrip()
    return next(
        format
        for format, how in reversed(FORMATS.items())
        if suffix in how.suffixes or how.begins(head)
    )
