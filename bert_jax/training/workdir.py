"""The workdir of a run, on a disk or in a bucket."""

import contextlib
import copy
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from etils import epath

from bert_jax import files, remote
from bert_jax.errors import UserError
from bert_jax.files import LOCK, PROGRAMS
from bert_jax.interop.find import BEST, CHECKPOINTS
from bert_jax.interop.train_state import newest_step
from bert_jax.parallel.processes import check_same, is_leader, on_leader
from bert_jax.progress import Log, unwatched
from bert_jax.runs import CURVES, METRICS, RESULTS

# Folders that are not copied with the small files of a workdir. Orbax writes checkpoints,
# JAX writes programs, prepared() copies text, and features are needed during a run only.
_APART = {CHECKPOINTS, PROGRAMS, "text", "features"}
# Files and folders that a run replaces or deletes. PREDICTIONS has the answers of a split.
PREDICTIONS = "predictions"
_REPLACED = (METRICS, CURVES, PREDICTIONS, CHECKPOINTS)


class RunFolder:
    """The workdir of a run. Every process makes one; process 0 writes the small files.

    local: folder for the small files of process 0. checkpoints: folder for the checkpoints
    of all processes. Both are in the workdir if it is on a disk, which all processes must
    share. For a bucket, ``local`` is a cache on the machine of process 0, and
    :meth:`upload` copies its files.
    """

    def __init__(self, workdir: str | os.PathLike):
        self._remote = files.open_remote(workdir) if files.is_remote(workdir) else None
        self.local = Path(workdir)
        self.checkpoints: os.PathLike = self.local.absolute() / CHECKPOINTS
        if self._remote is not None:
            # Not the folder of local_copy, which another command on this machine may
            # replace.
            self.local = remote.cached_folder(self._remote, "runs")
            self.checkpoints = self._remote / CHECKPOINTS
        self._uploaded: dict[str, tuple[int, int]] = {}
        self._token = ""

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Locks the workdir on a disk, or makes this run its owner in a bucket.

        All processes must call it. Raises UserError, which names the process that has the
        lock.

        Buckets have no locks, and a killed run cannot release one. So the newest run owns
        the workdir: it writes a token into an owner file. An older run that still works
        there stops at its next upload. Two runs of one machine have the same cache of a
        bucket, so the cache is locked.
        """
        with contextlib.ExitStack() as stack:
            on_leader(lambda: self._lock(stack))
            yield

    def _lock(self, stack: contextlib.ExitStack) -> None:
        if self._remote is None:
            stack.enter_context(files.locked(self.local))
            return
        beside = self.local.with_name(f".{self.local.name}")
        stack.enter_context(files.locked(beside, name=self._remote))
        self._token = files.this_process(token=secrets.token_hex(8))
        remote.write_remote(self._remote / LOCK, self._token.encode())

    def child(self, name: str) -> "RunFolder":
        """A folder in this one as the workdir of another run, such as a run of a sweep.

        Its upload copies the files of both.
        """
        child = copy.copy(self)
        child.local = self.local / name
        child.checkpoints = epath.Path(self.checkpoints).parent / name / CHECKPOINTS
        child.upload = self.upload
        return child

    def fetch(self) -> None:
        """Makes the folder ``local``; all processes must call it.

        For a bucket, process 0 gets its small files. Files that a killed run did not
        upload are deleted.
        """

        def fetch() -> None:
            if self._remote is not None:
                shutil.rmtree(self.local, ignore_errors=True)
                names = filter(_is_small, remote.list_files(self._remote))
                remote.download(self._remote, list(names), self.local)
                self._uploaded = _versions(self.local)
            self.local.mkdir(parents=True, exist_ok=True)

        on_leader(fetch)

    def upload(self) -> None:
        """Writes changed files of process 0 to the bucket, and deletes files that it
        deleted.

        results.json shows that a run is finished, so it is written last. Files of the
        workdir itself are written after files in its folders. Raises UserError if another
        run has become the owner.
        """
        if self._remote is None or not is_leader():
            return
        lock, owner = self._remote / LOCK, ""
        with contextlib.suppress(FileNotFoundError):
            owner = lock.read_text() if self._token else ""
        if owner != self._token:
            raise UserError(
                f"{self._remote} now belongs to {files.lock_owner(owner)}, which started "
                "later; this run stops without a save: use another folder"
            )
        versions = _versions(self.local)
        changed = dict(versions.items() - self._uploaded.items())
        remote.upload(self.local, self._remote, sorted(changed, key=_order))
        for name in self._uploaded.keys() - versions.keys():
            (self._remote / name).unlink(missing_ok=True)
        self._uploaded = versions

    def prepared(self, name: str, last: str, make: Callable[[Path], None]) -> Path:
        """A folder that process 0 makes once and all processes read.

        make: function that fills a folder, or completes it after a kill. last: file that
        is written last. Returns the folder, or a copy on this machine if the workdir is in
        a bucket. All processes must call it. The step deadline is off meanwhile, because
        parts of the work report no progress. The other processes wait at most
        processes.WAIT seconds.
        """
        place = (self._remote or self.local) / name

        def prepare() -> None:
            if (place / last).exists():
                return
            folder = remote.cached_folder(place) if self._remote else place
            with unwatched():
                make(folder)
                if self._remote:
                    names = sorted(_versions(folder), key=lambda name: name == last)
                    remote.upload(folder, place, names)
                    # The folder is now a copy; see local_copy.
                    files.write_text(
                        folder / remote.VERSIONS, json.dumps(remote.list_files(place))
                    )

        on_leader(prepare)
        return remote.local_copy(place)

    def delete_checkpoints(self) -> None:
        """Deletes all checkpoints. If their folder is a link, the link stays.

        Only process 0 calls it.
        """
        if files.is_remote(self.checkpoints):
            epath.Path(self.checkpoints).rmtree(missing_ok=True)
        else:
            files.delete_folder(Path(self.checkpoints))

    def has_run(self) -> bool:
        """Whether the workdir has a checkpoint or results."""
        if newest_step(self.checkpoints):
            return True
        return any((self.local / name).exists() for name in (BEST, RESULTS))

    def check_replaced(self) -> None:
        """Raises UserError if the workdir has no run, but files that a run may replace.

        They are not the files of a run, which writes config.json before all of them. In a
        bucket, best/ may be uploaded before config.json.
        """
        config, names = self.local / "config.json", list(_REPLACED)
        if config.is_file():
            settings = files.read_json(config, "the config of a run")
            if settings.keys() & {"family", "phases", "hidden_size"}:
                return  # of a run, or of a checkpoint, which a run refuses later
            names.insert(0, config.name)
        made = (self.local / name for name in ("sweep", RESULTS))
        if any(path.exists() for path in made) or newest_step(self.checkpoints):
            return
        best = self.local / BEST
        if not best.is_symlink() and not (best / config.name).is_file():
            names.append(BEST)
        for name in names:
            place = epath.Path(self.local / name)
            if name == CHECKPOINTS:
                place = epath.Path(self.checkpoints)
            is_used = place.is_file() or (place.is_dir() and any(place.iterdir()))
            if is_used:
                raise UserError(
                    f"{place} is not of a run, and a run may replace it; use another "
                    "workdir"
                )

    def check_shared(self, name: str) -> None:
        """Checks that all processes see the file ``name`` of process 0.

        All processes must call it. Raises UserError if the workdir is on a disk that they
        do not share.
        """
        path, content = self.local / name, ""
        if self._remote is None and path.is_file():
            content = path.read_text(encoding="utf-8")
        check_same(content, f"{path}; give a workdir that all hosts share")


def _order(name: str) -> tuple[bool, bool, str]:
    return Path(name).name == RESULTS, "/" not in name, name


def _is_small(name: str) -> bool:
    """Whether a file of a workdir is copied with it."""
    *folders, file = name.split("/")
    temporary = file.endswith(".tmp") or file in (LOCK, remote.VERSIONS)
    return _APART.isdisjoint(folders) and not temporary


def _versions(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of each complete small file below a local folder, by its name."""
    versions = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and _is_small(name):
            versions[name] = path.stat().st_size, path.stat().st_mtime_ns
    return versions


@contextlib.contextmanager
def open_workdir(
    workdir: str | os.PathLike, log: Log
) -> Iterator[tuple[RunFolder, Log]]:
    """Locks a workdir for one run, and copies its small files from a bucket.

    Yields the folder, and a ``log`` that prints in process 0 only.
    If another run has the lock, raises UserError, which names its process. Files of the
    user are an error, too; see :meth:`RunFolder.check_replaced`. A new local folder that is
    still empty after an error is deleted.
    """
    folder = RunFolder(workdir)
    is_new = not folder.local.exists()
    try:
        with folder.held():
            folder.fetch()
            on_leader(folder.check_replaced)
            yield folder, log if is_leader() else lambda line: None
    except UserError:
        if is_new and is_leader():
            with contextlib.suppress(OSError):  # it is not empty
                folder.local.rmdir()
        raise


def is_drawn(folder: RunFolder) -> bool:
    """Whether the workdir's curves.png is newer than its metrics.

    It is not if the run was killed between its last checkpoint and its pictures.
    """
    picture, numbers = folder.local / CURVES, folder.local / METRICS
    if not picture.exists() or not numbers.exists():
        return False
    return picture.stat().st_mtime_ns >= numbers.stat().st_mtime_ns


def draw_run(folder: RunFolder, log: Log) -> None:
    """Draws the workdir's curves.png and its confusion matrices. Only process 0 calls it.

    A run does not fail because of its pictures: an error, such as a missing matplotlib, is
    logged.
    """
    try:
        from bert_jax import figures

        figures.save_confusions(folder.local / "predictions")
        figures.save(figures.curves(folder.local), folder.local / CURVES)
        log(f"picture: {folder.local / CURVES}")
    except Exception as error:
        log(f"no picture: {error}")
    folder.upload()
