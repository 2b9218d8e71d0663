"""The built-in corpus: the English text in Python itself, as documents of sentences.

Every CPython contains two sources: the language reference in ``pydoc_data.topics`` and the
docstrings of the standard library, which are parsed without importing the modules. Code,
grammar, tables, signatures and mark-up are removed. The text differs a little between
versions of Python.
"""

import ast
import functools
import platform
import re
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from pydoc_data import topics  # a dictionary of strings

from bert_jax.data.sentences import split_sentences

SIZE = 1_400_000  # bytes of the text, rounded, for progress and shards
FINGERPRINT = f"python-{platform.python_version()}"
_LEFT_OUT = re.compile(r"(site|dist)-packages|tests?|idle_test|pydoc_data")  # folders
_SCOPES = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_LONG = 6  # minimum number of sentences of a docstring that is its own document
# Common words, which are frequent in English sentences and rare in code.
_ENGLISH = """a an and are as at be but by can do for from has have if in into is it its may
not of on or such than that the then there these they this to was when where which will with
you"""
_COMMON = frozenset(_ENGLISH.split())
_WORD = re.compile(r"[\"'(]*[A-Za-z]+(['’-][A-Za-z]+)*[\"')]*[,.;:!?]*$")
# Headings with their underlines, lines of code, and the marks of list items.
_BREAKS = (
    r"(?m)(?:^ *[^\s>*-].*\n){1,3} *([*=\-~^\"#.])\1{2,} *$",
    r"(?m)^.*(>>>|::=|[{}\\]|={2,}|-{3,}|\+-| = | \| |\w\(\w+, \w).*$|^ *[:@#$|].*$",
    r"(?m)^ *([*+o-]|\d{1,2}[.)]|\([a-z0-9]\)) +",
)
# Roles and marks of reStructuredText, quoted names, and phrases before sentences.
_MARKS = {
    r":[a-z:]+:`~?([^`<]+?)(\s*<[^>]*>)?`": r"\1",
    r"`+|\*{1,2}(?=\w)|(?<=[\w.)])\*{1,2}|\s?\[\d+\]|\s?\|(?=\w)": "",
    r"(?<=[a-z]-) (?=[a-z])": "",
    r"\"([\w.()\[\]*:<>+=-]+)\"": r"\1",
    r"(New|Added|Changed|Deprecated)( since| in)? version [\d.]+[:.,]?\s*": "",
    r"(Note|Warning|See also|CPython implementation detail|Details):\s*": "",
}
# Tables of arguments and introductions of code.
_LISTING = re.compile(r" : | --? .* --? |^(Examples?|Arg(ument)?s|Usage|Written by)\b")
_END = re.compile(r"[.!?][\"')]*$")


@functools.cache  # parsing takes seconds, and the text is read several times
def read_documents() -> list[list[str]]:
    """Documents of sentences: topics by name, then modules by path. Do not modify them.

    The docstrings of a module with fewer than _LONG sentences form one document.
    """
    documents = []
    seen: set[str] = set()  # topics quote each other, and methods repeat docstrings
    for texts in _files():
        files: list[list[str]] = []
        rest: list[str] = []
        for text in texts:
            sentences = prose_sentences(text)
            if len(sentences) >= _LONG:
                files.append(sentences)
            else:
                rest += sentences
        for sentences in (*files, rest):
            new = []
            for sentence in sentences:
                if sentence not in seen:
                    seen.add(sentence)
                    new.append(sentence)
            if len(new) >= 2:
                documents.append(new)
    return documents


def _files() -> Iterator[Iterable[str]]:
    """The texts of each topic and of each module."""
    for _, text in sorted(topics.topics.items()):
        yield [text]
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        if not any(map(_LEFT_OUT.fullmatch, path.relative_to(library).parts)):
            yield _docstrings(ast.parse(path.read_bytes()))


def _docstrings(node: ast.AST) -> Iterator[str]:
    """The docstrings in a syntax tree, in order."""
    if isinstance(node, _SCOPES):
        yield ast.get_docstring(node) or ""
    for field in ("body", "orelse", "handlers", "finalbody"):
        for child in getattr(node, field, ()):
            yield from _docstrings(child)


def prose_sentences(text: str) -> list[str]:
    """The English sentences of a text in reStructuredText."""
    for pattern in _BREAKS:
        text = re.sub(pattern, "\n\n", text)
    sentences = []
    for paragraph in re.split(r"\n\s*\n", text):
        plain = " ".join(paragraph.split())
        for pattern, replacement in _MARKS.items():
            plain = re.sub(pattern, replacement, plain)
        words = plain.split()
        common = sum(word.strip(",.;:()").lower() in _COMMON for word in words)
        if common < 0.15 * len(words) or not _is_plain(words, 5, 0.7):
            continue
        for sentence in split_sentences(" ".join(words)):
            sentence = sentence.rstrip(":;,")
            if _is_sentence(sentence):
                if not _END.search(sentence):
                    sentence += "."
                sentences.append(sentence)
    return sentences


def _is_sentence(sentence: str) -> bool:
    words = sentence.split()
    return (
        _is_plain(words, 4, 0.6)
        and not _LISTING.search(sentence)
        and (sentence[0].isupper() or sentence[0] in "\"'(“")
        and words[-1].lower() not in _COMMON  # the start of code that was removed
    )


def _is_plain(words: list[str], least: int, share: float) -> bool:
    plain = list(filter(_WORD.match, words))
    return len(words) >= least and len(plain) >= share * len(words)
