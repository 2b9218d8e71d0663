"""Lines in, one file out: what predict and embed share."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from bert_jax.errors import UserError

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
        for number, line in enumerate(file, 1):
            try:
                yield line.decode().rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{input_name(path)}:{number} is not UTF-8 ({error.reason}); convert "
                    "the file"
                ) from error


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


@contextlib.contextmanager
def new_file(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """A file that takes its place at the end, or leaves nothing after an exception."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; expected the name of a file")
    encoding = None if "b" in mode else "utf-8"
    if path.exists() and not path.is_file():  # a pipe or a device: nothing to replace
        with path.open(mode, encoding=encoding) as file:
            yield file
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open(mode, encoding=encoding) as file:
            yield file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
