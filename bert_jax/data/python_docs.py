"""The embedded corpus: the English inside Python itself, as documents of sentences.

Two sources, both part of every CPython: the language reference in ``pydoc_data.topics``
and the docstrings of the standard library. Docstrings are parsed out of the source
files; nothing is imported or run. Code, grammar, tables, signatures and mark-up are
left out, so what remains reads as English. The text differs a little between versions
of Python.
"""

import ast
import functools
import platform
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from bert_jax.data.sentences import split_sentences
from bert_jax.errors import UserError

# Bytes of the text that read_documents gives, rounded: for progress and balance.
SIZE = 1_400_000
# A docstring with this many sentences is a document of its own; the shorter ones of a
# module, which are about one subject, are one document together.
_LONG_DOCSTRING = 6

_LEFT_OUT = frozenset(
    ("site-packages", "dist-packages", "test", "tests", "idle_test", "pydoc_data")
)
_SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

# English has these in every sentence, code hardly ever.
_ENGLISH = """a an and are as at be but by can do for from has have if in into is it its may
not of on or such than that the then there these they this to was when where which will with
you"""
_COMMON = frozenset(_ENGLISH.split())
_WORD = re.compile(r"[\"'(]*[A-Za-z]+(['’-][A-Za-z]+)*[\"')]*[,.;:!?]*$")
_CODE = re.compile(
    r">>>|::=|[{}\\]|={2,}|-{3,}|\+-|\s=\s|\s\|\s|\w\(\w+, \w|^\s*[:@#$|]\w?"
)
_LIST_ITEM = re.compile(r"\s*([*+o-]|\d{1,2}[.)]|\([a-z0-9]\))\s+")
_UNDERLINE = re.compile(r"\s*([*=\-~^\"#.])\1{2,}\s*$")
_ROLE = re.compile(r":[a-z:]+:`~?([^`<]+?)(\s*<[^>]*>)?`")
_MARKS = re.compile(r"`+|\*{1,2}(?=\w)|(?<=[\w.)])\*{1,2}|\s?\[\d+\]|\s?\|(?=\w)")
_QUOTED_NAME = re.compile(r"\"([\w.()\[\]*:<>+=-]+)\"")
# Tables of arguments and lead-ins to code that is gone.
_LISTING = re.compile(r" : | --? .* --? |^(Examples?|Arg(ument)?s|Usage|Written by)\b")
_ENDED = re.compile(r"[.!?][\"')]*$")
_PREFIX = re.compile(
    r"((New|Added|Changed|Deprecated)( since| in)? version [\d.]+[:.,]?( \w+ in version "
    r"[\d.]+:?)?|Note:|Warning:|See also:|CPython implementation detail:|Details:)\s*"
)


def fingerprint() -> str:
    """Tells this interpreter's documents from another's."""
    return f"python-{platform.python_version()}"


@functools.cache  # parsing takes seconds; a vocabulary and a store read it twice
def read_documents() -> list[list[str]]:
    """Documents of sentences: topics by name, then modules by path. Do not change it."""
    seen: set[str] = set()  # topics quote each other, methods repeat their base class's
    documents = []
    for sentences in _raw_documents():
        fresh = [s for s in dict.fromkeys(sentences) if s not in seen]
        seen.update(fresh)
        if len(fresh) >= 2:
            documents.append(fresh)
    return documents


def _raw_documents() -> Iterator[list[str]]:
    # The one import: a module that holds nothing but a dict of strings.
    from pydoc_data import topics

    for name in sorted(topics.topics):
        yield prose_sentences(topics.topics[name])

    library = Path(sysconfig.get_path("stdlib"))
    paths = [
        path
        for path in sorted(library.rglob("*.py"))
        if not _LEFT_OUT.intersection(path.relative_to(library).parts)
    ]
    if not paths:
        raise UserError(
            f"{library} holds no Python source; python-docs needs the standard library's "
            "source files: name text files instead"
        )
    for path in paths:
        rest: list[str] = []
        for docstring in _docstrings(path):
            sentences = prose_sentences(docstring)
            if len(sentences) >= _LONG_DOCSTRING:
                yield sentences
            else:
                rest += sentences
        yield rest


def _docstrings(path: Path) -> list[str]:
    """Docstrings of a source file in their order; none where it does not parse."""
    try:
        return list(_docstrings_below(ast.parse(path.read_bytes())))
    except (SyntaxError, ValueError):  # templates and samples of other versions
        return []


def _docstrings_below(node: ast.AST) -> Iterator[str]:
    if isinstance(node, _SCOPES) and (text := ast.get_docstring(node)):
        yield text
    # Statements only: expressions hold no docstrings, and are most of the tree.
    for field in ("body", "orelse", "handlers", "finalbody"):
        for child in getattr(node, field, ()):
            yield from _docstrings_below(child)


def prose_sentences(text: str) -> list[str]:
    """The English sentences of a reStructuredText-like text."""
    sentences = []
    for paragraph in _paragraphs(text):
        plain = _plain_text(paragraph)
        if not _is_prose(plain):
            continue
        for sentence in split_sentences(plain):
            # "... into a program:" reads well without the code, "... is equal to:" not.
            lead_in = sentence.rstrip(":;,")
            cut_off = lead_in.rpartition(" ")[2].lower() in _COMMON
            if _is_sentence(lead_in) and not cut_off:
                sentences.append(lead_in if _ENDED.search(lead_in) else lead_in + ".")
    return sentences


def _paragraphs(text: str) -> Iterator[str]:
    """Blocks of lines between blank lines; list items begin a block, tables end one."""
    block: list[str] = []
    for line in [*text.expandtabs().split("\n"), ""]:
        item, underline = _LIST_ITEM.match(line), _UNDERLINE.match(line)
        is_text = line.strip() and not underline and not _CODE.search(line)
        if item or not is_text:
            # An underlined line was a heading; a line of code spoils only itself.
            if block and not underline:
                # The reference is wrapped at hyphens too.
                yield re.sub(r"(?<=[a-z])- (?=[a-z])", "-", " ".join(block))
            block = []
        if is_text:
            block.append(line[item.end() :].strip() if item else line.strip())


def _plain_text(paragraph: str) -> str:
    text = _ROLE.sub(r"\1", paragraph)
    text = _MARKS.sub("", text)
    text = _QUOTED_NAME.sub(r"\1", text)
    text = _PREFIX.sub("", text)
    return " ".join(text.split())


def _is_prose(text: str) -> bool:
    words = text.split()
    common = sum(word.strip(",.;:()").lower() in _COMMON for word in words)
    return len(words) >= 5 and common >= 0.15 * len(words) and _is_plain(words, 0.7)


def _is_sentence(sentence: str) -> bool:
    words = sentence.split()
    return (
        len(words) >= 4
        and not _LISTING.search(sentence)
        and _is_plain(words, 0.6)
        and (sentence[0].isupper() or sentence[0] in "\"'(“")
    )


def _is_plain(words: list[str], share: float) -> bool:
    return sum(bool(_WORD.match(word)) for word in words) >= share * len(words)
