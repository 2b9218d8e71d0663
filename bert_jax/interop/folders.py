"""Folders that are written whole or not at all."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from bert_jax.errors import UserError


@contextlib.contextmanager
def new_folder(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yields a hidden folder beside ``path`` which takes its place at the end.

    After an exception, or a kill, ``path`` is what it was. Raises UserError where it is
    a file, or holds something, unless ``overwrite``.
    """
    path = Path(path).absolute()
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; name a folder that is yet to be made")
    if not overwrite and path.is_dir() and any(path.iterdir()):
        raise UserError(f"{path} is not empty; name a folder that is yet to be made")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, old = (path.with_name(f".{path.name}.{end}") for end in ("tmp", "old"))
    shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed
    temporary.mkdir()
    try:
        yield temporary
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
            path.rename(old)
        temporary.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
