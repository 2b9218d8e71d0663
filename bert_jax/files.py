"""Local files: read as UTF-8 or JSON, written completely or not at all."""

import codecs
import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import shutil
import socket
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bert_jax.errors import UserError, naming
from bert_jax.schema import check, has_kind

if TYPE_CHECKING:
    from etils import epath

LONGEST_LINE = 64 << 20  # bytes
_LONGEST_NAME = 200  # bytes; hidden files replace a longer name by its checksum
# The start of a URL. ``Path`` joins its two slashes.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
LOCK = ".lock"  # the file that names the process that uses a folder
PROGRAMS = "programs"  # the folder of a workdir with JAX's compiled programs
# Libraries whose exceptions mean that an object store does not answer, or refuses access.
STORE_LIBRARIES = {"aiohttp", "gcsfs", "google", "requests"}
_SURROGATE = re.compile(r"[\ud800-\udfff]|\\u[dD][89a-fA-F]")


def expanded(path: Any) -> Any:
    """A path as text, with the user's home folder instead of ~ or ~NAME at its start.

    A shell expands ~ in ``--output ~/x``, but not in ``--output=~/x``. ~NAME stays if there
    is no such user. A value that is not a path is returned unchanged.
    """
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str) or not text.startswith("~"):
        return text
    try:
        return str(Path(text).expanduser())
    except RuntimeError:
        return text


def is_remote(path: str | os.PathLike) -> bool:
    """Whether ``path`` is the URL of an object store, such as gs://bucket/folder."""
    return "://" in os.fspath(path)


def check_local(
    path: str | os.PathLike,
    advice: str = "write to a local path, and copy the files to the bucket",
) -> None:
    """Raises UserError for a URL. ``Path`` would make a local folder "gs:" of it."""
    if _URL.match(os.fspath(path)):
        raise UserError(f"{path} is a URL; {advice}")


def ending(path: str | os.PathLike) -> str:
    """The suffix of a file's name in lower case: ".csv" of DATA.CSV."""
    return Path(path).suffix.lower()


def set_up_stores() -> None:
    """Configures access to object stores. Call it before gcsfs is imported."""
    # gcsfs' client for hierarchical buckets requests the bucket's layout at every call,
    # which takes four times as long and logs a warning without credentials.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    import fsspec.config

    # Other processes write to the store, so a cached listing may be out of date.
    fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False


def open_remote(path: str | os.PathLike) -> "epath.Path":
    """A URL as a path. Raises UserError if the library for its store is missing."""
    # Imported late, because few commands read object stores.
    set_up_stores()
    from etils import epath

    try:
        remote = epath.Path(path)
        remote.exists()
    except (ImportError, ValueError, KeyError) as error:  # KeyError: an unknown scheme
        raise UserError(
            f"{path} needs a library ({error}); for gs:// pip install -e '.[gcs]' in the "
            "folder of bert_jax"
        ) from error
    return remote


def decode(raw: bytes, where: object, *, cut: bool = False) -> str:
    """UTF-8 bytes as text, without a byte order mark at the start.

    where: name of the bytes in errors, such as "FILE" or "FILE:LINE". cut: whether ``raw``
    may end within a character, which is then left out.
    """
    if b"\0" in raw:  # valid UTF-8, but never in a text
        raise UserError(f"{where} is a binary or UTF-16 file; expected UTF-8 text")
    raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        return codecs.utf_8_decode(raw, "strict", not cut)[0]
    except UnicodeDecodeError as error:
        raise UserError(
            f"{where} is not UTF-8 at byte {error.start} (0x{raw[error.start]:02x}); "
            "convert it with iconv -t utf-8"
        ) from error


def decode_lines(file: IO[bytes], name: object) -> Iterator[tuple[int, str]]:
    """Line numbers from 1, and lines with their line feeds. Nothing else ends a line.

    Raises UserError for a line that is not UTF-8.
    """
    for number, raw in enumerate(file, 1):
        yield number, decode(raw, f"{name}:{number}")


def check_line_end(first_line: str) -> None:
    """Raises UserError for a file whose lines end in a carriage return, as on old Macs.

    first_line: the first line of the file, with its end.
    """
    # Only the last line has no line feed.
    if not first_line.endswith("\n") and "\r" in first_line.rstrip("\r"):
        actual = "lines end in CR, as on old Macs; expected LF or CR LF"
        raise UserError(f"{actual}: convert them with tr '\\r' '\\n'")


def cache_folder() -> Path:
    """The folder bert_jax in $XDG_CACHE_HOME or ~/.cache. RuntimeError without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "bert_jax")


def valid_text(text: str) -> str:
    """Text without lone surrogates, which UTF-8 cannot encode. They become U+FFFD.

    JSON's escapes ("\\ud800") and the command line may contain lone surrogates.
    """
    if _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@contextlib.contextmanager
def reading(where: object, expected: str) -> Iterator[None]:
    """Turns any exception of a parser into a one-line UserError.

    where: the file, or its line. expected: description of a correct file. The message names
    a Git LFS pointer or a web page, which a failed download leaves in place of the file.
    """
    try:
        yield
    except UserError:
        _check_download(where)
        raise
    except OSError as error:
        reason = {
            FileNotFoundError: f"{where} does not exist",
            IsADirectoryError: f"{where} is a folder",
        }.get(type(error), f"cannot read {where} ({error.strerror or error})")
        raise UserError(f"{reason}; expected {expected}") from error
    except ImportError as error:
        message = f"{where} needs a library ({error}): pip install {error.name}"
        raise UserError(message) from error
    except Exception as error:  # parsers raise many types for a damaged file
        _check_download(where)
        raise UserError(
            f"{where} is damaged ({error!r:.200}); expected {expected}"
        ) from error


def _check_download(where: object) -> None:
    """Raises UserError if a file that could not be read is an LFS pointer or a web page."""
    start = b""
    if isinstance(where, Path):
        with contextlib.suppress(OSError), where.open("rb") as file:
            start = file.read(200).removeprefix(codecs.BOM_UTF8).lstrip().lower()
    if start.startswith(b"version https://git-lfs.github.com/"):
        raise UserError(
            f"{where} is a Git LFS pointer, not the file itself; run 'git lfs pull' in its "
            "folder, or 'hf download'"
        )
    if start.startswith((b"<!doctype html", b"<html")):
        raise UserError(
            f"{where} is a web page, not the file itself; download it again, for example "
            "with 'hf download'"
        )


def read_text(path: Path, expected: str) -> str:
    """The text of a UTF-8 file. expected: description of a correct file, for errors."""
    with reading(path, expected), Path(path).open("rb") as file:
        return "".join(line for _, line in decode_lines(file, path))


def read_json(path: Path, expected: str, form: Any = dict) -> Any:
    """The value in a JSON file. expected: description of a correct file, for errors.

    form: the value's type, see schema.check. Raises UserError with the name of the file and
    of a key whose value is of another type.
    """
    with reading(path, expected):
        return parse_json(Path(path).read_bytes(), path, expected, form)


def parse_json(
    text: str | bytes,
    where: object,
    expected: str,
    form: Any = dict,
    *,
    unique: bool = False,
) -> Any:
    """Parses a JSON value. where, expected: see :func:`reading`. form: see read_json.

    unique: whether a repeated key is an error. Otherwise its last value counts.
    """
    try:
        text = text if isinstance(text, str) else text.decode("utf-8-sig")
        value = json.loads(text, object_pairs_hook=_unique if unique else None)
        if _SURROGATE.search(text):
            value = json.loads(valid_text(json.dumps(value, ensure_ascii=False)))
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{where} is not JSON ({error}); expected {expected}"
        ) from error
    if not has_kind(value, form):
        kind = type(value).__name__
        raise UserError(f"{where} contains a JSON {kind}; expected {expected}")
    with naming(where):
        check(value, form)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The dictionary of the pairs. Raises ValueError for a key that occurs twice."""
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {max(names, key=names.count)!r} occurs twice")
    return values


def check_output(output: Path | str, *inputs: str | None) -> None:
    """Raises UserError for an output that is an input file, or is in an input folder.

    It must be a local path.
    """
    check_local(output)
    for path in map(Path, filter(None, inputs)):
        with reading(
            repr(str(path)[:80]), "the name of a file; write a text to a file"
        ):
            exists = path.is_file() or path.is_dir()  # a terminal is neither
        if exists and Path(output).resolve().is_relative_to(path.resolve()):
            raise UserError(
                f"output={output} is the input {path} or inside it; choose another name"
            )


@contextlib.contextmanager
def new_file(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Opens a temporary file that replaces ``path`` at the end.

    An exception or a kill leaves ``path`` unchanged. Text is UTF-8. A pipe or a device is
    written directly. Raises UserError if ``path`` is a folder or a URL.
    """
    check_local(path)
    path = Path(expanded(path))
    if path.is_dir():
        raise UserError(f"{path} is a folder; expected the name of a file")
    encoding = None if "b" in mode else "utf-8"
    if path.exists() and not path.is_file():
        with path.open(mode, encoding=encoding) as file:
            yield file
        return
    make_folder(path.parent)
    # The name has the process id, because two runs may write the file at the same time.
    temporary = _hidden(path, f".{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)  # a killed process's file, or a link
    try:
        with temporary.open(mode.replace("w", "x"), encoding=encoding) as file:
            yield file
        temporary.replace(path)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT) and error.filename is None:
            error.filename = str(path)  # a failed write does not name its file
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a UTF-8 file completely or not at all."""
    with new_file(path) as file:
        file.write(text.encode())


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file completely or not at all."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def _hidden(path: Path, ending: str) -> Path:
    """The path of a hidden file beside ``path``: its name and ``ending``.

    A name may have at most 255 bytes, so a long name is replaced by its checksum.
    """
    name = path.name
    if len(os.fsencode(name)) > _LONGEST_NAME:
        name = f"{zlib.crc32(os.fsencode(name)):08x}"
    return path.with_name(f".{name}{ending}")


def linked_folder(path: Path) -> Path:
    """The folder that ``path`` points to if it is a link, otherwise ``path``.

    Raises UserError for a link to a folder that does not exist. The folder may be on a disk
    that is not mounted, so it is not created.
    """
    if not path.is_symlink():
        return path
    if not path.exists():
        raise UserError(
            f"{path} is a link to {path.readlink()}, which does not exist; make that "
            "folder, or delete the link"
        )
    return path.resolve()


def make_folder(path: Path) -> None:
    """Makes a folder and its parents, if they do not exist. Raises UserError for a URL."""
    check_local(path)
    linked_folder(path).mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def new_folder(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Makes a hidden folder beside ``path`` that replaces ``path`` at the end.

    An exception leaves ``path`` unchanged. A kill does so too, or, between two renames,
    leaves the old folder under a hidden name until the next replacement. If ``path`` is a
    link, the folder that it points to is replaced. Raises NotADirectoryError for a file,
    and UserError for a folder that is not empty unless ``overwrite``, and for a URL.
    """
    check_local(path)
    path = linked_folder(Path(expanded(path)).absolute())
    if path.exists() and any(path.iterdir()) and not overwrite:
        raise UserError(f"{path} is not empty; expected the name of a new folder")
    make_folder(path.parent)
    temporary = _hidden(path, ".tmp")
    _remove(temporary)  # a killed process's folder
    temporary.mkdir()
    try:
        yield temporary
        replace_folder(temporary, path)
    finally:
        _remove(temporary)


def replace_folder(source: Path, target: Path) -> None:
    """Moves a folder to ``target``, which may be another folder or a link to one."""
    target = linked_folder(target)
    if source.stat().st_dev != target.parent.stat().st_dev:  # a link to another disk
        with new_folder(target, overwrite=True) as copy:
            shutil.copytree(source, copy, dirs_exist_ok=True)
        _remove(source)
        return
    old = _hidden(target, ".old")
    if old.exists() and not target.exists():  # a kill between the two renames
        old.rename(target)
    _remove(old)
    replaces = target.exists()
    if replaces:
        target.rename(old)
    try:
        source.rename(target)
    except OSError:
        if replaces:
            old.rename(target)
        raise
    _remove(old)


def check_link(path: Path) -> None:
    """Raises UserError if ``path`` is a link to a folder that cannot be replaced.

    Its parent must be writable, because a new folder is written beside the old one.
    """
    if not path.is_symlink():
        return
    target = linked_folder(path)
    trial = _hidden(target, ".tmp")
    try:
        _remove(trial)  # a killed process's folder
        trial.mkdir()
        trial.rmdir()
    except OSError as error:
        raise UserError(
            f"{path} is a link to {target}, which cannot be replaced, because no folder "
            f"can be made in {target.parent} ({error.strerror}); use a link to a folder "
            "in a writable folder, or delete the link"
        ) from error


def _remove(path: Path) -> None:
    """Deletes a folder or a link, if there is one."""
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def delete_folder(path: Path) -> None:
    """Deletes a folder, if there is one. For a link, deletes what its target contains."""
    if not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    if not path.is_dir():
        return
    for entry in path.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


@contextlib.contextmanager
def locked(
    folder: Path,
    *,
    wait: bool = False,
    name: object = None,
    file_name: str = LOCK,
) -> Iterator[None]:
    """Creates a folder and locks it, at most until this process ends.

    wait: whether to wait while another process has the lock. Otherwise raises UserError,
    which names that process and the folder, or ``name``. file_name: name of the lock file,
    for a part of the work in the folder.
    """
    make_folder(folder)
    path = folder / file_name
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    with contextlib.ExitStack() as stack:
        held = False
        while not held:
            descriptor = os.open(path, flags, 0o666)
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
                os.close(descriptor)
                actual = "a pipe, a device, or a hard link to another file"
                raise UserError(f"{path} is {actual}; expected a file: delete it")
            file = stack.enter_context(os.fdopen(descriptor, "r+"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError as error:
                raise UserError(
                    f"{name or folder} is in use by {lock_owner(file.read(1000))}; wait "
                    "until it ends, or use another folder"
                ) from error
            except OSError:  # a file system without locks
                logging.getLogger(__name__).warning(
                    f"the file system of {folder} has no locks: start only one run there"
                )
            # The last owner may have deleted the file after this process opened it.
            with contextlib.suppress(FileNotFoundError):
                held = os.path.samestat(os.fstat(descriptor), path.stat())
        file.truncate()
        file.write(this_process())
        file.flush()
        stack.callback(path.unlink, missing_ok=True)
        yield


def this_process(**more: str) -> str:
    """The content of a lock file."""
    return json.dumps({"host": socket.gethostname(), "process": os.getpid(), **more})


def lock_owner(content: bytes | str) -> str:
    """The name of the process that wrote a lock file."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        owner = json.loads(content)
        return f"process {owner['process']} on {owner['host']}"
    return "another process"  # which has just opened the file
