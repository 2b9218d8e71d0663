"""Folders in object stores (gs:// and the like) as folders of this machine.

Files that are appended to, mapped or replaced live in a cache on this machine and are
copied. Every machine has a cache of its own: what process 0 writes there, the others
never see. Checkpoints, which are large, go straight to the store through Orbax.
"""

import contextlib
import copy
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files import (
    PROGRAMS,
    cache_folder,
    is_name,
    is_remote,
    open_remote,
    set_up_stores,
)
from bert_jax.locks import LOCK, Lease, locked
from bert_jax.parallel.processes import check_same, is_leader, wait_for_all

set_up_stores()

CHECKPOINTS = "checkpoints"
_PREPARATION = 24 * 3600  # seconds that the other processes wait for a prepared text
# Subfolders of a workdir that are not copied with its small files: Orbax reads and
# writes checkpoints in the store, and JAX programs, prepared() copies text, features live
# for one run.
_APART = (CHECKPOINTS, PROGRAMS, "text", "features")


class RunFolder:
    """A run's workdir. Every process makes one; process 0 alone writes its small files.

    local: where process 0 reads and writes small files. checkpoints: where Orbax of all
    processes writes. Both lie in a local workdir, which all processes must share. Of a
    remote one, ``local`` is a cache of process 0's machine, and nothing in the store
    changes before :meth:`upload`.
    """

    def __init__(self, workdir: str | os.PathLike):
        self._remote = open_remote(workdir) if is_remote(workdir) else None
        if self._remote is None:
            self.local = Path(workdir)
            self.checkpoints: os.PathLike = self.local.absolute() / CHECKPOINTS
        else:
            self.local = _cache_folder(self._remote)
            self.checkpoints = self._remote / CHECKPOINTS
        self._uploaded: dict[str, tuple[int, int]] = {}
        self._lease: Lease | None = None

    @contextlib.contextmanager
    def held(self, log: Callable[[str], None]) -> Iterator[None]:
        """Keeps other runs out of the workdir; of several processes, process 0 does.

        Raises UserError that names the process which works there.
        """
        if not is_leader():
            yield
        elif self._remote is None:
            with locked(self.local):
                yield
        else:
            with Lease(self._remote / LOCK, log) as self._lease:
                yield

    def child(self, name: str) -> "RunFolder":
        """A folder within this one as the workdir of another run, such as one of a sweep.

        Its upload is that of the whole.
        """
        child = copy.copy(self)
        child.local = self.local / name
        child.checkpoints = epath.Path(self.checkpoints).parent / name / CHECKPOINTS
        child.upload = self.upload
        return child

    def fetch(self) -> None:
        """Makes process 0's small files those of the store; all processes must call it.

        A run may go on on other machines, and what a killed one did not upload is not
        part of it.
        """
        if is_leader():
            self.local.mkdir(parents=True, exist_ok=True)
            if self._remote is not None:
                _mirror(self._remote, self.local, _is_small)
                self._uploaded = _versions(self.local)
        wait_for_all("fetch")

    def upload(self) -> None:
        """Copies what process 0 changed since the last call, and deletes what is gone.

        Files at the top come last: whoever finds results.json finds what it tells of.
        The other processes do nothing. Raises UserError where another run has taken the
        workdir, which happens to one that stood still for half a minute.
        """
        if self._remote is None or not is_leader():
            return
        if self._lease is not None:
            self._lease.check()
        versions = _versions(self.local)
        for name in sorted(versions, key=lambda name: ("/" not in name, name)):
            if self._uploaded.get(name) != versions[name]:
                _copy(epath.Path(self.local / name), self._remote / name)
        for name in self._uploaded.keys() - versions.keys():
            (self._remote / name).unlink(missing_ok=True)
        self._uploaded = versions

    def prepared(
        self,
        name: str,
        last: str,
        make: Callable[[Path], None],
        check: Callable[[Path], None] | None = None,
    ) -> Path:
        """A subfolder that process 0 makes once and all processes read.

        make: fills the folder that it is given, or goes on where it was killed. last: the
        file that makes the folder whole. check: see local_copy. Returns each process's own
        copy of a remote workdir's folder. All processes must call it.
        """
        place = (self._remote or self.local) / name
        if is_leader() and not (place / last).exists():
            folder = _cache_folder(place) if self._remote else place
            make(folder)
            if self._remote:
                names = sorted(_versions(folder), key=lambda name: (name == last, name))
                for file in names:
                    _copy(epath.Path(folder / file), place / file)
        wait_for_all(name, timeout=_PREPARATION)
        return local_copy(place, last, check)

    def check_shared(self, name: str) -> None:
        """Checks that all processes see the file ``name`` which process 0 wrote.

        All processes must call it. Raises UserError where a local workdir is not on a
        disk that they share; only the store of a remote one is shared, and is.
        """
        wait_for_all(name)
        content = ""
        if self._remote is None and (self.local / name).is_file():
            content = (self.local / name).read_text(encoding="utf-8")
        check_same(
            content, f"{self.local / name}; give a --workdir that all hosts share"
        )


def local_copy(
    path: str | os.PathLike,
    last: str,
    check: Callable[[Path], None] | None = None,
) -> Path:
    """A local folder with the files of ``path``: itself, or a copy in the cache.

    last: the file that makes the folder whole. A copy with the same one is used again.
    check: function that raises UserError if a new copy is damaged. A damaged copy is
    removed.
    """
    if not is_remote(path):
        return Path(path)
    remote = open_remote(path)
    if not (remote / last).exists():
        raise UserError(f"{remote} has no {last}; expected a folder that has one")
    folder = _cache_folder(remote)
    if (folder / last).is_file():
        if (folder / last).read_bytes() == (remote / last).read_bytes():
            return folder
        shutil.rmtree(folder, ignore_errors=True)
    _mirror(remote, folder, last=last)
    try:
        if check is not None:
            check(folder)
    except UserError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def local_checkpoint(path: str | os.PathLike) -> Path:
    """A local path with the files of the checkpoint ``path``: itself, or a copy.

    path: a folder, or the prefix of Google's bert_model.ckpt files, local or remote. Files
    of a remote folder and of its best/ are copied into the cache where they changed.
    checkpoints/, which a workdir has, stays remote: Orbax reads it in the store.
    """
    if not is_remote(path):
        return Path(path)
    remote = open_remote(path)
    folder = _cache_folder(remote)
    if not remote.exists():
        folder = _cache_folder(remote.parent) / remote.name
        found = [p for p in remote.parent.iterdir() if p.name.startswith(remote.name)]
        if not found:
            raise UserError(f"{remote} does not exist; expected a checkpoint")
        # Beside the prefix stand the config and the vocabulary.
        found += [p for p in remote.parent.iterdir() if p.suffix in (".json", ".txt")]
        for source in found:
            _copy(source, epath.Path(folder.parent / source.name))
    else:
        _mirror(remote, folder, lambda name: name == "best")
    return folder


def _cache_folder(remote: epath.Path) -> Path:
    digest = hashlib.sha256(os.fspath(remote).encode()).hexdigest()[:16]
    return cache_folder() / f"{remote.name}-{digest}"


def _is_small(folder: str) -> bool:
    return folder not in _APART


def _mirror(
    remote: epath.Path,
    local: Path,
    wanted: Callable[[str], bool] = lambda folder: True,
    last: str = "",
) -> None:
    """Makes ``local`` equal ``remote``: copies what changed, deletes what is not there.

    wanted: whether a folder of this name is not left out. Files have the store's time, by
    which they are known; ``last`` is copied last.
    """
    local.mkdir(parents=True, exist_ok=True)
    found = dict(_remote_files(remote, wanted) if remote.exists() else ())
    for name in sorted(found, key=lambda name: (name == last, name)):
        stat, target = found[name].stat(), local / name
        if target.is_file():
            ours = target.stat()
            if (ours.st_size, ours.st_mtime) == (stat.length, float(stat.mtime)):
                continue
        # Several processes of a host may copy at once: each a file of its own first.
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            found[name].copy(partial, overwrite=True)
            os.utime(partial, (stat.mtime, stat.mtime))
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    for name in _versions(local, wanted).keys() - found.keys():
        (local / name).unlink(missing_ok=True)


def _remote_files(
    folder: epath.Path, wanted: Callable[[str], bool], prefix: str = ""
) -> Iterator[tuple[str, epath.Path]]:
    """The files below ``folder`` by their relative names."""
    for path in folder.iterdir():
        if not is_name(path.name):  # a store takes any, which could lie elsewhere here
            raise UserError(f"{path} is no name of a file; rename it in the store")
        if not path.is_dir():
            if path.name != LOCK:
                yield prefix + path.name, path
        elif wanted(path.name):
            yield from _remote_files(path, wanted, f"{prefix}{path.name}/")


def _versions(
    folder: Path, wanted: Callable[[str], bool] = _is_small
) -> dict[str, tuple[int, int]]:
    """Size and time of each whole file below a local folder, by its relative name."""
    versions = {}
    for directory, names, files in os.walk(folder):
        names[:] = filter(wanted, names)
        for file in files:
            path = Path(directory, file)
            # Temporary files come and go while another process copies.
            with contextlib.suppress(FileNotFoundError):
                if not file.endswith(".tmp") and file != LOCK:
                    stat = path.stat()
                    name = path.relative_to(folder).as_posix()
                    versions[name] = (stat.st_size, stat.st_mtime_ns)
    return versions


def _copy(source: epath.Path, target: epath.Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    source.copy(target, overwrite=True)
