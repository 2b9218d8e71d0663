"""Files of object stores (gs:// and other URLs) as files of this machine.

A folder is copied into a cache of this machine. Checkpoints of a run are large: Orbax reads
and writes them in the store.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files import (
    cache_folder,
    is_name,
    is_remote,
    open_remote,
    set_up_stores,
)
from bert_jax.locks import LOCK, locked
from bert_jax.parallel.deadline import unwatched
from bert_jax.progress import Progress

set_up_stores()


def local_copy(
    path: str | os.PathLike,
    last: str,
    check: Callable[[Path], None] | None = None,
) -> Path:
    """Returns ``path`` if it is local, and otherwise a copy of the folder in the cache.

    last: file that is written last. A copy with an equal file is used again. check:
    function that raises UserError if a new copy is damaged. A damaged copy is removed.
    """
    if not is_remote(path):
        return Path(path)
    remote = open_remote(path)
    if not (remote / last).exists():
        raise UserError(f"{remote} has no {last}; expected a folder that has one")
    return _cached(remote, dict(remote_files(remote)), last, check)


def local_checkpoint(path: str | os.PathLike) -> Path:
    """Returns ``path`` if it is local, and otherwise a copy of its files in the cache.

    path: a folder, or the prefix of Google's bert_model.ckpt files. The only folder in a
    remote folder that is copied is best/. Orbax reads checkpoints/ in the store.
    """
    if not is_remote(path):
        return Path(path)
    remote = open_remote(path)
    if remote.exists():
        files = dict(remote_files(remote, lambda name: name == "best"))
        return _cached(remote, files, ".files")
    # The config and the vocabulary have names without the prefix.
    beside = remote_files(remote.parent, lambda name: False)
    files = {
        name: file
        for name, file in beside
        if name.startswith(remote.name) or file.suffix in (".json", ".txt")
    }
    if not any(name.startswith(remote.name) for name in files):
        raise UserError(f"{remote} does not exist; expected a checkpoint")
    return _cached(remote.parent, files, ".files") / remote.name


def _cached(
    remote: epath.Path,
    files: dict[str, epath.Path],
    mark: str,
    check: Callable[[Path], None] | None = None,
) -> Path:
    """A folder in the cache with ``files``, by their names in ``remote``.

    mark: file of the copy that shows whether the copy is still the same: one of ``files``,
    or a list of their names, sizes and times.
    """
    folder = cached_folder(remote)
    if mark in files:
        version = files[mark].read_bytes()
    else:
        stats = {name: file.stat() for name, file in sorted(files.items())}
        listed = [[name, s.length, float(s.mtime)] for name, s in stats.items()]
        version = json.dumps(listed).encode()

    def is_same() -> bool:
        return (folder / mark).is_file() and (folder / mark).read_bytes() == version

    if is_same():
        return folder
    # Several processes of a host may need the copy at the same time: one downloads.
    place = partial_folder(folder)
    with contextlib.ExitStack() as stack:
        with unwatched():
            stack.enter_context(locked(place.parent, wait=True))
        if is_same():
            return folder
        shutil.rmtree(place, ignore_errors=True)  # of a killed download
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        download(files, place)
        (place / mark).write_bytes(version)
        if check is not None:
            check(place)
        shutil.rmtree(folder, ignore_errors=True)
        place.rename(folder)
    return folder


def partial_folder(folder: Path) -> Path:
    """The place of a download that becomes ``folder``. Its parent is locked meanwhile."""
    return folder.with_name(f".{folder.name}") / "partial"


def cached_folder(remote: epath.Path, group: str = "") -> Path:
    """The place of a copy of ``remote`` in the cache, or in the folder ``group`` there."""
    digest = hashlib.sha256(os.fspath(remote).encode()).hexdigest()[:16]
    return cache_folder() / group / f"{remote.name}-{digest}"


def download(files: dict[str, epath.Path], folder: Path) -> None:
    """Copies remote files into a local folder, by their names there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, file in Progress("downloading", files.items(), unit="files"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        file.copy(folder / name, overwrite=True)


def remote_files(
    folder: epath.Path,
    wanted: Callable[[str], bool] = lambda folder: True,
    prefix: str = "",
) -> Iterator[tuple[str, epath.Path]]:
    """The files below ``folder`` with their relative names.

    wanted: function of the name of a folder; False if its files are left out. Raises
    UserError for a name that could lead out of a local folder.
    """
    for path in folder.iterdir():
        if not is_name(path.name):
            raise UserError(f"{path} is not the name of a file; rename it in the store")
        if not path.is_dir():
            if path.name != LOCK:
                yield prefix + path.name, path
        elif wanted(path.name):
            yield from remote_files(path, wanted, f"{prefix}{path.name}/")
