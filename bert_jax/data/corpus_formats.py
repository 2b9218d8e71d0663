"""The text formats: lines of a file to documents, and which format a file has.

A format is one entry of FORMATS, at the end. Every reader takes (offset, line) pairs and
yields (offset, sentences) with the byte offset at which the document begins. Readers hold
one document at a time and cut one that is longer than LONGEST_DOCUMENT, so memory does
not depend on the file.
"""

import dataclasses
import html
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePath

from bert_jax.data.sentences import split_sentences
from bert_jax.errors import UserError

Lines = Iterable[tuple[int, str]]  # byte offset, text without its line end
Documents = Iterator[tuple[int, list[str]]]  # byte offset, sentences

# Characters. No book is this long; a file without any document boundary may be.
LONGEST_DOCUMENT = 16 << 20
# Characters. Shorter lines without an end mark are headings, captions or table cells;
# in WikiExtractor's output headings end with a full stop, so there length alone decides.
HEADING = 60
# A Markdown chapter shorter than this, in sentences, is joined with the next.
SHORT_CHAPTER = 8

_SENTENCE_MARKS = tuple(".!?…。！？।")
_CLOSING = "\"'”’»)]"
_END_MARKS = (*_SENTENCE_MARKS, *_CLOSING, ":", ";")


def is_heading(text: str) -> bool:
    """Whether a line or paragraph looks like a heading and not like prose."""
    return len(text) < HEADING and not text.endswith(_END_MARKS)


def read_lines_format(lines: Lines, *_: object) -> Documents:
    """One sentence a line, kept as it is; blank lines between documents."""
    first, size, sentences = 0, 0, []
    for offset, line in lines:
        sentence = line.strip()
        if sentence and size < LONGEST_DOCUMENT:
            first = first if sentences else offset
            size += len(sentence)
            sentences.append(sentence)
        else:
            if sentences:
                yield first, sentences
            first, size, sentences = offset, len(sentence), [sentence] * bool(sentence)
    if sentences:
        yield first, sentences


def read_paragraphs_format(lines: Lines, *_: object) -> Documents:
    """Paragraphs between blank lines, hard-wrapped or not; headings are dropped.

    A document ends with the file, at two blank lines in a row, or at a form feed, where
    it has at least SHORT_CHAPTER sentences by then.
    """
    builder = _Builder()
    blank = 0
    for offset, line in lines:
        if line.startswith("\f") or (blank >= 2 and line.strip()):
            yield from builder.end_chapter()
        stripped = line.strip()
        if stripped:
            blank = 0
            yield from builder.add_line(offset, stripped)
        else:
            blank += 1
            yield from builder.end_paragraph()
    yield from builder.end_document()


_DOC_START = "<doc "
_TAG = re.compile(r"</?[A-Za-z][^<>]{0,200}>")
_EMPTY_PARENTHESES = re.compile(r" ?\([\s,;]*\)")


def read_wikiextractor_format(lines: Lines, *_: object) -> Documents:
    """WikiExtractor's <doc> elements, one document each.

    As the paper has it, only text passages are kept: titles, headings, list items and
    table cells are dropped, which is every line that does not end a sentence or is
    shorter than HEADING.
    """
    first, size, sentences = 0, 0, []
    for offset, line in lines:
        starts = line.startswith(_DOC_START)
        if starts or line.startswith("</doc>") or size >= LONGEST_DOCUMENT:
            if sentences:
                yield first, sentences
            first, size, sentences = offset, 0, []
            if starts:
                continue
        text = clean_wiki_line(line)
        if len(text) >= HEADING and text.rstrip(_CLOSING).endswith(_SENTENCE_MARKS):
            size += len(text)
            sentences += split_sentences(text)
    if sentences:
        yield first, sentences


def clean_wiki_line(line: str) -> str:
    """Drops the markup that WikiExtractor left in a line."""
    text = line
    if "&" in text:
        text = html.unescape(text)
    if "<" in text:
        text = _TAG.sub(" ", text)
    if "(" in text:
        text = _EMPTY_PARENTHESES.sub("", text)
    return " ".join(text.split())


_BLOCK = re.compile(r"\n\s*\n")
# A line of this length that another follows was wrapped; shorter ones end where they
# should, longer ones are whole paragraphs.
_WRAPPED = range(40, 101)


def text_sentences(text: str) -> list[str]:
    """Sentences of a text with line breaks, as web corpora have it in a JSON field.

    A line is a paragraph, except where the text is hard-wrapped. Headings are dropped.
    """
    sentences = []
    for block in _BLOCK.split(text):
        paragraph: list[str] = []
        for line in block.splitlines():
            paragraph.append(" ".join(line.split()))
            if len(line) not in _WRAPPED:
                sentences += _paragraph_sentences(paragraph)
                paragraph = []
        sentences += _paragraph_sentences(paragraph)
    return sentences


def _paragraph_sentences(lines: list[str]) -> list[str]:
    text = " ".join(lines)
    return [] if is_heading(text) else split_sentences(text)


def read_jsonl_format(
    lines: Lines, field: str, locate: Callable[[int], str]
) -> Documents:
    """One JSON object a line, its text in ``field``.

    locate(offset) names file and line for the UserError that a bad line raises.
    """
    for offset, line in lines:
        if _is_blank(line):
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{locate(offset)}: not JSON ({error})") from error
        text = row.get(field) if isinstance(row, dict) else None
        if not isinstance(text, str):
            found = ", ".join(sorted(row)[:8]) if isinstance(row, dict) else "no object"
            raise UserError(
                f'{locate(offset)}: expected a JSON object with text in "{field}", found '
                f"{found}; set --text_field"
            )
        if sentences := text_sentences(text):
            yield offset, sentences


_FENCE = re.compile(r"\s{0,3}(```|~~~)")
_RULE = re.compile(r"\s{0,3}([-*_=])(\s*\1){2,}\s*$")
_HEADER = re.compile(r"\s{0,3}#{1,6}(\s|$)")
_WHOLLY_BOLD = re.compile(r"\s*(\*\*|__)[^*_]*\1\s*$")
_ITEM = re.compile(r"\s*([-*+]|\d{1,3}[.)])\s+")
_IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
_LINK = re.compile(r"\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])")
_EMPHASIS = re.compile(r"(?<![^\W_])[_*]+(?=[^\s_*])|(?<=[^\s_*])[_*]+(?![^\W_])")
_ESCAPE = re.compile(r"\\([\\`*_{}\[\]()#+\-.!>~|])")


def read_markdown_format(lines: Lines, *_: object) -> Documents:
    """Markdown as prose: a chapter, which a header begins, is a document.

    Headers, front matter, rules, code, tables and wholly bold lines (speakers in plays,
    titles) are dropped; emphasis, links and list marks leave their text. Chapters of
    less than SHORT_CHAPTER sentences are joined with the next.
    """
    builder = _Builder()
    fence, front_matter = "", False
    for number, (offset, line) in enumerate(lines):
        if number == 0 and line.strip() == "---":
            front_matter = True
        elif front_matter:
            front_matter = line.strip() not in ("---", "...")
        elif match := _FENCE.match(line):
            yield from builder.end_paragraph()
            fence = "" if fence == match[1] else fence or match[1]
        elif fence:
            continue
        elif _HEADER.match(line):
            yield from builder.end_chapter()
        elif not line.strip() or _RULE.match(line) or _WHOLLY_BOLD.match(line):
            yield from builder.end_paragraph()
        elif line.lstrip().startswith("|"):
            continue
        else:
            line = line.lstrip("> \t")
            if item := _ITEM.match(line):
                yield from builder.end_paragraph()
                line = line[item.end() :]
            yield from builder.add_line(offset, clean_markdown(line))
    yield from builder.end_document()


def clean_markdown(line: str) -> str:
    """Drops the marks inside a line of Markdown and keeps its text."""
    text = line
    if "[" in text:
        text = _LINK.sub(r"\1", _IMAGE.sub("", text))
    if "<" in text:
        text = _TAG.sub(" ", text)
    if "`" in text:
        text = text.replace("`", "")
    if "_" in text or "*" in text:
        text = _EMPHASIS.sub("", text)
    if "\\" in text:
        text = _ESCAPE.sub(r"\1", text)
    if "&" in text:
        text = html.unescape(text)
    return " ".join(text.split())


class _Builder:
    """Gathers lines to paragraphs, paragraphs to documents."""

    def __init__(self) -> None:
        self._paragraph: list[str] = []
        self._sentences: list[str] = []
        self._paragraph_size = self._size = 0  # characters
        self._first: int | None = None

    def add_line(self, offset: int, text: str) -> Documents:
        if self._paragraph_size >= LONGEST_DOCUMENT:  # a paragraph without end
            yield from self.end_document()
        if self._first is None:
            self._first = offset
        self._paragraph.append(text)
        self._paragraph_size += len(text)

    def _take_paragraph(self) -> None:
        self._sentences += _paragraph_sentences(self._paragraph)
        self._size += self._paragraph_size
        self._paragraph, self._paragraph_size = [], 0

    def end_paragraph(self) -> Documents:
        self._take_paragraph()
        if self._size >= LONGEST_DOCUMENT:
            yield from self.end_document()

    def end_chapter(self) -> Documents:
        self._take_paragraph()
        if len(self._sentences) >= SHORT_CHAPTER:
            yield from self.end_document()

    def end_document(self) -> Documents:
        self._take_paragraph()
        if self._sentences:
            yield self._first or 0, self._sentences
        self._sentences, self._size, self._first = [], 0, None


def _is_json_object(start: str) -> bool:
    first = start.split("\n", 1)[0]
    try:
        return first.startswith("{") and isinstance(json.loads(first), dict)
    except ValueError:
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


def _is_blank(line: str) -> bool:
    return not line or line.isspace()


@dataclasses.dataclass(frozen=True)
class TextFormat:
    """How text of one format is known and read.

    matches(suffix, head): whether a file with this suffix of its name, in small letters
    and without .gz, and this beginning has the format. read(lines, text_field, locate):
    the documents; text_field is the user's, locate(offset) names file and line for errors.
    is_boundary(line): whether a reader may begin at this line, so that several processes
    read one file; None where it reads files as a whole.
    """

    matches: Callable[[str, str], bool]
    read: Callable[[Lines, str, Callable[[int], str]], Documents]
    is_boundary: Callable[[str], bool] | None = None


# From the general to the special: of those that match a file the last one is taken.
FORMATS: dict[str, TextFormat] = {
    "paragraphs": TextFormat(
        matches=lambda suffix, head: True,
        read=read_paragraphs_format,
        is_boundary=_is_blank,
    ),
    "lines": TextFormat(
        matches=lambda suffix, head: _has_sentence_lines(head),
        read=read_lines_format,
        is_boundary=_is_blank,
    ),
    "markdown": TextFormat(
        matches=lambda suffix, head: suffix in (".md", ".markdown"),
        read=read_markdown_format,
    ),
    "jsonl": TextFormat(
        matches=lambda suffix, head: (
            suffix in (".jsonl", ".ndjson", ".json") or _is_json_object(head.lstrip())
        ),
        read=read_jsonl_format,
        is_boundary=lambda line: True,
    ),
    "wikiextractor": TextFormat(
        matches=lambda suffix, head: head.lstrip().startswith(_DOC_START),
        read=read_wikiextractor_format,
        is_boundary=lambda line: line.startswith(_DOC_START),
    ),
}


def detect_format(name: str, head: str) -> str:
    """The format of a file from its name and the beginning of its text."""
    suffix = PurePath(name.lower().removesuffix(".gz")).suffix
    matching = (
        format
        for format, rules in reversed(FORMATS.items())
        if rules.matches(suffix, head)
    )
    return next(matching)
