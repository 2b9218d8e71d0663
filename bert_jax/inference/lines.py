"""Lines of text, as predict and embed read them."""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from bert_jax.errors import UserError
from bert_jax.files import decode_lines

STANDARD = "-"  # stdin, or stdout
CHUNK = 4096  # lines that are in memory together


def input_name(path: str) -> str:
    """What errors call an input."""
    return "stdin" if path == STANDARD else path


def read_lines(path: str) -> Iterator[str]:
    """The lines of a UTF-8 file or pipe, or of stdin for "-", without their ends.

    Raises UserError where there is no such file, or where a line is not UTF-8.
    """
    folder = Path(path).is_dir()
    if path != STANDARD and (folder or not Path(path).exists()):
        what = "is a folder" if folder else "does not exist"
        raise UserError(f"{path} {what}; expected a file of text, or - for stdin")
    with contextlib.ExitStack() as stack:
        file: Iterable[bytes] = sys.stdin.buffer
        if path != STANDARD:
            file = stack.enter_context(Path(path).open("rb"))
        for _, line in decode_lines(file, input_name(path)):
            yield line.rstrip("\r\n")


def chunks(
    lines: Iterable[str], size: int, ends: Callable[[str], bool] = lambda line: True
) -> Iterator[list[str]]:
    """Lists of ``size`` lines, or more until one that a chunk may end with."""
    chunk: list[str] = []
    for line in lines:
        chunk.append(line)
        if len(chunk) >= size and ends(line):
            yield chunk
            chunk = []
    if chunk:
        yield chunk
