"""Folders in object stores (gs:// and the like) as folders of this machine.

Files that are appended to, mapped or replaced live here, in a cache, and are copied;
checkpoints, which are large, go straight to the store through Orbax.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from etils import epath

from bert_jax.errors import UserError
from bert_jax.parallel.distributed import is_leader


def is_remote(path: str | os.PathLike) -> bool:
    """Whether ``path`` is a URL, such as gs://bucket/folder."""
    return "://" in os.fspath(path)


class RunFolder:
    """A run's workdir.

    local: where its small files are read and written. checkpoints: where Orbax writes.
    Of a local workdir both are within it, and :meth:`upload` does nothing.
    Process 0 alone uploads.
    """

    def __init__(self, workdir: str | os.PathLike):
        self._remote = _open(workdir) if is_remote(workdir) else None
        if self._remote is None:
            self.local = Path(workdir)
            self.checkpoints: os.PathLike = self.local.absolute() / "checkpoints"
        else:
            self.local = _cache_folder(self._remote)
            self.checkpoints = self._remote / "checkpoints"
        self._uploaded: dict[Path, tuple[int, int]] = {}

    def fetch(self) -> None:
        """Makes the local files those of the store: a run may go on on other machines."""
        self.local.mkdir(parents=True, exist_ok=True)
        if self._remote is None or not self._remote.exists():
            return
        for source, name in _files(self._remote, skip="checkpoints"):
            target = self.local / name
            target.parent.mkdir(parents=True, exist_ok=True)
            source.copy(target, overwrite=True)
            self._uploaded[Path(name)] = _version(target)

    def upload(self) -> None:
        """Copies what is new or changed since the last call into the store.

        What the run prepared for itself, in text/, stays: it can be made again.
        """
        if self._remote is None or not is_leader():
            return
        for source, name in _files(epath.Path(self.local), skip="text"):
            path = Path(name)
            version = _version(self.local / path)
            if self._uploaded.get(path) != version:
                target = self._remote / name
                target.parent.mkdir(parents=True, exist_ok=True)
                source.copy(target, overwrite=True)
                self._uploaded[path] = version


def local_copy(path: str | os.PathLike, last: str) -> Path:
    """A local folder with the files of ``path``: itself, or a copy in the cache.

    last: the file that makes the folder whole. A copy with the same one is used again.
    """
    if not is_remote(path):
        return Path(path)
    remote = _open(path)
    if not (remote / last).exists():
        raise UserError(f"{remote} has no {last}; expected a folder that has one")
    folder = _cache_folder(remote)
    if (folder / last).is_file():
        if (folder / last).read_bytes() == (remote / last).read_bytes():
            return folder
        shutil.rmtree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Several processes of a host may copy at once: each its own, the first one stays.
    partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        for source, name in _files(remote):
            target = partial / name
            target.parent.mkdir(parents=True, exist_ok=True)
            source.copy(target)
        try:
            partial.rename(folder)
        except OSError:
            if not (folder / last).is_file():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _open(path: str | os.PathLike) -> epath.Path:
    remote = epath.Path(path)
    try:
        remote.exists()
    except (ImportError, ValueError) as error:
        raise UserError(
            f"{remote} needs a library that reads it ({error}); for gs:// pip install "
            "'bert_jax[gcs]'"
        ) from error
    return remote


def _cache_folder(remote: epath.Path) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    digest = hashlib.sha256(os.fspath(remote).encode()).hexdigest()[:16]
    return Path(cache, "bert_jax", f"{remote.name}-{digest}")


def _files(
    folder: epath.Path, skip: str = "", prefix: str = ""
) -> Iterator[tuple[epath.Path, str]]:
    """The files below ``folder`` with their relative names; the folder ``skip`` not."""
    for path in folder.iterdir():
        name = prefix + path.name
        if not path.is_dir():
            yield path, name
        elif name != skip:
            yield from _files(path, skip, f"{name}/")


def _version(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns
