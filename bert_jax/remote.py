"""Folders of object stores (gs:// and other URLs), copied into a cache of this machine.

Checkpoints of a run are large, so they are not copied: Orbax reads and writes them in the
store.
"""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import fsspec
from etils import epath

from bert_jax.errors import UserError
from bert_jax.files import (
    LOCK,
    cache_folder,
    is_remote,
    locked,
    new_folder,
    open_remote,
    set_up_stores,
)
from bert_jax.progress import Progress, unwatched

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
    files = list_files(open_remote(path))
    if last not in files:
        raise UserError(f"{path} has no {last}; expected a folder that has one")
    return _cached(path, files, last, check)


def local_checkpoint(path: str | os.PathLike) -> Path:
    """Returns ``path`` if it is local, and otherwise a copy of its files in the cache.

    path: a folder, or the prefix of Google's bert_model.ckpt files. The only folder in a
    remote folder that is copied is best/. Orbax reads checkpoints/ in the store.
    """
    if not is_remote(path):
        return Path(path)
    remote = open_remote(path)
    if files := list_files(remote):
        files = {n: v for n, v in files.items() if "/" not in n.removeprefix("best/")}
        return _cached(path, files, ".files")
    # The config and the vocabulary have names without the prefix.
    files = {
        name: version
        for name, version in list_files(remote.parent).items()
        if name.startswith(remote.name) or name.endswith((".json", ".txt"))
        if "/" not in name
    }
    if not any(name.startswith(remote.name) for name in files):
        raise UserError(f"{remote} does not exist; expected a checkpoint")
    return _cached(remote.parent, files, ".files") / remote.name


def list_files(folder: epath.Path) -> dict[str, list]:
    """The files below a remote folder: size and time by name, without its lock."""
    store, root = fsspec.core.url_to_fs(os.fspath(folder))
    found = store.find(root, detail=True)
    files = {
        name.removeprefix(root).lstrip("/"): about for name, about in found.items()
    }
    # A folder that is itself a file has one name, which is empty.
    return {
        name: [about["size"], str(about.get("mtime") or about.get("updated"))]
        for name, about in files.items()
        if name not in ("", LOCK) and not name.endswith("/")
    }


def download(folder: os.PathLike | str, names: list[str], target: Path) -> None:
    """Copies files of a remote folder into a local folder, under the same names."""
    store, root = fsspec.core.url_to_fs(os.fspath(folder))
    for name in Progress("downloading", names, unit="files"):
        path = target / name
        # Object stores accept any name.
        if not path.resolve().is_relative_to(target.resolve()):
            raise UserError(f"{name!r} in {folder} leads out of the folder; rename it")
        path.parent.mkdir(parents=True, exist_ok=True)
        store.get_file(f"{root}/{name}", os.fspath(path))


def upload(folder: Path, target: epath.Path, names: list[str]) -> None:
    """Writes files of a local folder to a remote folder, in this order."""
    for name in Progress("uploading", names, unit="files"):
        write_remote(target / name, (folder / name).read_bytes())


def write_remote(path: epath.Path, content: bytes) -> None:
    """Writes a file of a store in one request, if it has less than 50 MiB.

    An upload of several requests fails if the last answer is lost.
    """
    store, name = fsspec.core.url_to_fs(os.fspath(path))
    store.pipe_file(name, content)


def cached_folder(remote: os.PathLike | str, group: str = "") -> Path:
    """The place of a copy of ``remote`` in the cache, or in the folder ``group`` there."""
    name = os.fspath(remote).rstrip("/")
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return cache_folder() / group / f"{name.rpartition('/')[2]}-{digest}"


def _cached(
    remote: os.PathLike | str,
    files: dict[str, list],
    mark: str,
    check: Callable[[Path], None] | None = None,
) -> Path:
    """A folder in the cache with ``files``, by their names in ``remote``.

    mark: file of the copy that shows whether the copy is still the same: one of ``files``,
    or a list of their names, sizes and times.
    """
    folder, version = cached_folder(remote), json.dumps(files, sort_keys=True).encode()
    if mark in files:
        version = (epath.Path(remote) / mark).read_bytes()

    def is_same() -> bool:
        return (folder / mark).is_file() and (folder / mark).read_bytes() == version

    if is_same():
        return folder
    # Several processes of a host may need the copy at the same time: one downloads.
    with unwatched(), locked(folder.with_name(f".{folder.name}"), wait=True):
        if not is_same():
            with new_folder(folder, overwrite=True) as new:
                download(remote, list(files), new)
                (new / mark).write_bytes(version)
                if check is not None:
                    check(new)
    return folder
