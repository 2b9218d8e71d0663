"""Copies of folders in object stores (gs:// and other URLs), in a cache of this machine.

Checkpoints of a run are not copied. Orbax reads and writes them in the store.
"""

import hashlib
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
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

# Files of a model: in its folder, in best/, or in the folder of a module of
# sentence-transformers, such as 1_Pooling.
_OF_MODEL = re.compile(r"(best/)?(\d+_\w+/)?[^/]+")
_DOWNLOADS = 8  # files at a time
# Names of the time of a change in gcsfs, s3fs and adlfs.
_TIMES = ("mtime", "updated", "LastModified", "last_modified")
VERSIONS = ".files"  # the file with sizes and times of a copy's files


def local_copy(path: str | os.PathLike, *, model: bool = False) -> Path:
    """Returns ``path`` if it is local, and otherwise a copy of its files in the cache.

    path: a folder, or the prefix of Google's bert_model.ckpt files. model: whether to copy
    only the model's files, without the other folders of a run. A copy is reused if its
    files have the same sizes and times in the store.
    """
    if not is_remote(path):
        return Path(path)
    remote, prefix = open_remote(path), ""
    if not (files := list_files(remote)):
        remote, prefix = remote.parent, remote.name
        files = list_files(remote)
    if not any(name.startswith(prefix) for name in files):
        raise UserError(f"{path} does not exist; expected a folder or a checkpoint")
    # Config and vocabulary do not have the prefix in their names.
    files = {
        name: version
        for name, version in files.items()
        if name.startswith(prefix) or name.endswith((".json", ".txt"))
        if not model or _OF_MODEL.fullmatch(name)
    }
    folder, versions = cached_folder(remote), json.dumps(files)
    # Several processes of a host may need the copy at the same time. One downloads it.
    with unwatched(), locked(folder.with_name(f".{folder.name}"), wait=True):
        old = folder / VERSIONS
        if not old.is_file() or old.read_text() != versions:
            with new_folder(folder, overwrite=True) as new:
                download(remote, list(files), new)
                (new / VERSIONS).write_text(versions)
    return folder / prefix


def list_files(folder: epath.Path) -> dict[str, list]:
    """Size and time of each file below a remote folder, by name, without its lock."""
    store, root = fsspec.core.url_to_fs(os.fspath(folder))
    files = {}
    for path, about in store.find(root, detail=True).items():
        name = path.removeprefix(root).lstrip("/")  # empty if the folder is a file
        if name not in ("", LOCK) and not name.endswith("/"):
            times = [str(about[key]) for key in _TIMES if about.get(key)]
            files[name] = [about["size"], *times]
    return files


def download(folder: os.PathLike | str, names: list[str], target: Path) -> None:
    """Copies files of a remote folder into a local folder, several at a time.

    The copies keep their names. After an error no further download starts.
    """
    store, root = fsspec.core.url_to_fs(os.fspath(folder))
    for name in names:  # object stores accept any name
        if not (target / name).resolve().is_relative_to(target.resolve()):
            raise UserError(f"{name!r} in {folder} is outside the folder; rename it")

    def copy(name: str) -> None:
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        store.get_file(f"{root}/{name}", os.fspath(path))

    with ThreadPoolExecutor(_DOWNLOADS, "downloads") as pool:
        copies = pool.map(copy, names)
        for _ in Progress("downloading", copies, total=len(names), unit="files"):
            pass


def upload(folder: Path, target: epath.Path, names: list[str]) -> None:
    """Writes files of a local folder to a remote folder, in the order of ``names``."""
    for name in Progress("uploading", names, unit="files"):
        write_remote(target / name, (folder / name).read_bytes())


def write_remote(path: epath.Path, content: bytes) -> None:
    """Writes a file of a store, in one request if it is smaller than 50 MiB.

    An upload in several requests fails if the last answer is lost.
    """
    store, name = fsspec.core.url_to_fs(os.fspath(path))
    store.pipe_file(name, content)


def cached_folder(remote: os.PathLike | str, group: str = "") -> Path:
    """The path of the copy of ``remote`` in the cache, or in its folder ``group``."""
    name = os.fspath(remote).rstrip("/")
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return cache_folder() / group / f"{name.rpartition('/')[2]}-{digest}"
