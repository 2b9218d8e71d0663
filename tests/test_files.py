import errno
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import zipfile
from pathlib import Path

import pytest

from bert_jax import files
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.files import locked, new_file, new_folder
from bert_jax.interop.load import load
from bert_jax.runs import read_runs


def test_text_is_utf8_without_its_byte_order_mark(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfgr\xc3\xbcn\r\n\xe2\x80\xa8\xef\xbb\xbfb")
    assert files.read_text(path, "text") == "grün\r\n\u2028\ufeffb"
    with path.open("rb") as file:
        lines = list(files.decode_lines(file, path))
    # U+2028 does not end a line. A byte order mark after the start is a character.
    assert lines == [(1, "grün\r\n"), (2, "\u2028\ufeffb")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\nb\xe9\n", r"a.txt:2 is not UTF-8 at byte 1 \(0xe9\); convert"),
        ("a\n".encode("utf-16-be"), "a.txt:1 is a binary or UTF-16 file; expected"),
        (b"a\n\xc3", r"a.txt:2 is not UTF-8 at byte 0 \(0xc3\)"),
    ],
)
def test_other_encodings_are_refused_at_their_line(tmp_path, content, message):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        files.read_text(path, "text")


def test_a_cut_character_is_dropped_on_demand():
    raw = "aé€😀".encode()
    for end in range(1, len(raw) + 1):
        text = files.decode(raw[:end], "a.txt", cut=True)
        assert "aé€😀".startswith(text)
        assert len(raw[:end]) - len(text.encode()) < 4
    with pytest.raises(UserError, match="not UTF-8 at byte 1"):
        files.decode(b"a\xffb", "a.txt", cut=True)


def test_json_must_be_an_object(tmp_path):
    path = tmp_path / "a.json"
    files.write_json(path, {"a": [1, "é"]})
    assert files.read_json(path, "settings") == {"a": [1, "é"]}
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert files.read_json(path, "settings") == {"a": 1}
    for content, message in (
        (b"{", r"a\.json is not JSON \(.*\); expected settings"),
        (b"\xff\xfe{", r"a\.json is not JSON \(.*\); expected settings"),
        (b'{"a":' * 100_000, r"a\.json is not JSON \(.*\); expected settings"),
        (b"[1]", r"a\.json contains a JSON list; expected settings"),
    ):
        path.write_bytes(content)
        with pytest.raises(UserError, match=message) as error:
            files.read_json(path, "settings")
        assert "\n" not in str(error.value)


def test_a_path_that_is_no_file_is_refused(tmp_path):
    for path, message in (
        (tmp_path / "none", "none does not exist; expected a vocabulary"),
        (tmp_path, "is a folder; expected a vocabulary"),
        (tmp_path / ("a" * 300), "cannot read .*name too long.*expected a vocabulary"),
    ):
        with pytest.raises(UserError, match=f"(?i){message}"):
            files.read_text(path, "a vocabulary")
        with pytest.raises(UserError, match=f"(?i){message}"):
            files.read_json(path, "a vocabulary")


def test_a_file_is_unchanged_until_its_replacement(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("old")
    with new_file(path, "w") as file:
        file.write("new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    with pytest.raises(KeyboardInterrupt), new_file(path, "w") as file:
        file.write("half")
        raise KeyboardInterrupt
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    received = []
    reader = threading.Thread(target=lambda: received.append(path.read_text()))
    reader.start()
    with new_file(path, "w") as file:
        file.write("through")
    reader.join()
    assert received == ["through"]
    assert path.is_fifo()


def test_a_folder_is_unchanged_until_its_replacement(tmp_path):
    path = tmp_path / "out"
    with new_folder(path) as folder:
        (folder / "a").write_text("a")
        assert not path.exists()
    with pytest.raises(UserError, match="out is not empty"), new_folder(path):
        pass
    with (
        pytest.raises(KeyboardInterrupt),
        new_folder(path, overwrite=True) as folder,
    ):
        (folder / "b").write_text("b")
        raise KeyboardInterrupt
    assert [p.name for p in path.iterdir()] == ["a"]
    with new_folder(path, overwrite=True) as folder:
        (folder / "b").write_text("b")
    assert [p.name for p in path.iterdir()] == ["b"]
    with (
        pytest.raises(NotADirectoryError, match=r"/b'$"),
        new_folder(path / "b"),
    ):
        pass
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("odd"), r"a\.zip is damaged .*odd"),
        (zipfile.BadZipFile("odd"), r"a\.zip is damaged .*odd"),
        (
            OSError(5, "Input/output error"),
            r"cannot read a\.zip \(Input/output error\)",
        ),
        (UserError("a.zip:3 has no label"), r"^a\.zip:3 has no label$"),
    ],
)
def test_an_exception_of_a_parser_is_one_line(error, message):
    caught = pytest.raises(UserError, match=message)
    with caught as error_info, files.reading("a.zip", "pairs"):
        raise error
    assert str(error_info.value).endswith(("; expected pairs", "no label"))


def test_a_new_file_is_not_written_through_a_link(tmp_path):
    """Both the final name and the temporary name are links."""
    target, path = tmp_path / "precious.txt", tmp_path / "new.txt"
    target.write_text("content")
    path.symlink_to(target)
    path.with_name(f".new.txt.{os.getpid()}.tmp").symlink_to(target)
    with new_file(path, "w") as file:
        file.write("new")
    assert path.read_text() == "new" and not path.is_symlink()
    assert target.read_text() == "content"


def content(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_a_link_to_a_folder_stays_and_its_folder_is_replaced(tmp_path):
    """Such as WORKDIR/best on another disk."""
    target, link = tmp_path / "big/model", tmp_path / "run/best"
    target.mkdir(parents=True)
    link.parent.mkdir()
    link.symlink_to(target, target_is_directory=True)
    for number in range(3):
        with new_folder(link, overwrite=True) as folder:
            (folder / f"file{number}").write_text(str(number))
        assert content(target) == {f"file{number}": str(number)}
    source = tmp_path / "run/other"
    source.mkdir()
    (source / "moved").write_text("x")
    # Version 0.2.0 left the link under this name.
    (target.parent / ".model.old").symlink_to(tmp_path)
    files.replace_folder(source, link)
    assert content(target) == {"moved": "x"}
    assert link.is_symlink() and list(link.parent.iterdir()) == [link]
    assert list(target.parent.iterdir()) == [target]
    files.delete_folder(link)
    assert link.is_symlink() and content(target) == {}
    files.delete_folder(target)
    files.delete_folder(target)
    assert not target.exists()


def test_a_folder_is_moved_to_another_disk_through_a_link(tmp_path):
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs /dev/shm on another disk")
    with tempfile.TemporaryDirectory(dir=other) as disk:
        (tmp_path / "best").symlink_to(Path(disk, "model"))
        Path(disk, "model").mkdir()
        Path(disk, "model/old").write_text("old")
        (tmp_path / "source").mkdir()
        (tmp_path / "source/new").write_text("new")
        files.replace_folder(tmp_path / "source", tmp_path / "best")
        assert content(Path(disk, "model")) == {"new": "new"}
        assert not (tmp_path / "source").exists()
        assert (tmp_path / "best").is_symlink()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_link_to_a_folder_that_cannot_be_replaced_is_refused(tmp_path):
    """No user can make a folder in /proc, not even root, who can do so everywhere else."""
    link = tmp_path / "best"
    link.symlink_to("/proc/1")
    message = r"best is a link to /proc/1, which cannot be replaced, because no folder"
    with pytest.raises(UserError, match=message):
        files.check_link(link)
    target = tmp_path / "disk/model"
    link.unlink()
    files.check_link(link)
    target.mkdir(parents=True)
    link.symlink_to(target)
    (target.parent / ".model.tmp/left").mkdir(parents=True)
    files.check_link(link)
    assert list(target.parent.iterdir()) == [target]


def test_a_link_to_a_missing_folder_is_refused(tmp_path):
    """The folder may be on a disk that is not mounted."""
    link = tmp_path / "best"
    link.symlink_to("missing/model")
    message = (
        "best is a link to missing/model, which does not exist; make that folder, or"
    )
    with pytest.raises(UserError, match=message), new_folder(link, overwrite=True):
        pass
    with pytest.raises(UserError, match=message), new_file(link / "file"):
        pass
    with pytest.raises(UserError, match=message), locked(link):
        pass
    assert list(tmp_path.iterdir()) == [link]


def test_a_name_may_have_255_bytes(tmp_path):
    for name in ("é" * 127, "a" * 255, "b" * 255):
        with new_file(tmp_path / name, "w") as file:
            file.write(name)
        folder = tmp_path / "folders" / name
        for _ in range(2):
            with new_folder(folder, overwrite=True) as new:
                (new / "a").write_text(name)
        assert (tmp_path / name).read_text() == (folder / "a").read_text() == name
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("kind", ["pipe", "hard link"])
def test_a_lock_file_that_is_something_else_is_refused(tmp_path, kind):
    """The target of a hard link would be overwritten."""
    (tmp_path / "run").mkdir()
    (tmp_path / "precious").write_text("content")
    if kind == "pipe":
        os.mkfifo(tmp_path / "run/.lock")
    else:
        os.link(tmp_path / "precious", tmp_path / "run/.lock")
    message = (
        r"\.lock is a pipe, a device, or a hard link .* expected a file: delete it"
    )
    with pytest.raises(UserError, match=message), locked(tmp_path / "run"):
        pass
    assert (tmp_path / "precious").read_text() == "content"


def test_a_folder_is_locked_until_its_process_ends(tmp_path):
    """After any kind of end: a lock file without its process has no effect."""
    folder = tmp_path / "run"
    script = (
        "import sys\nfrom pathlib import Path\nfrom bert_jax.files import locked\n"
        "with locked(Path(sys.argv[1])):\n    print(flush=True)\n    input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        child.stdout.readline()
        name = re.escape(f"in use by process {child.pid} on {socket.gethostname()};")
        for _ in range(2):
            with pytest.raises(UserError, match=name), locked(folder):
                pytest.fail("taken twice")
        child.kill()
    assert (folder / ".lock").exists()
    with locked(folder):
        assert json.loads((folder / ".lock").read_text())["process"] == os.getpid()
    assert not list(folder.iterdir())


def test_a_file_system_without_locks_gives_a_warning(tmp_path, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    with locked(tmp_path / "run"):
        pass
    assert "has no locks: start only one run there" in caplog.text


def test_a_lock_is_not_written_through_a_link(tmp_path):
    target = tmp_path / "precious.txt"
    target.write_text("content")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.lock").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"), locked(tmp_path / "run"):
        pytest.fail("locked")
    assert target.read_text() == "content"


def test_paths_may_start_with_the_home_folder(tmp_path, monkeypatch):
    """Output files and folders, the workdir of a run, and a checkpoint."""
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    for path in ("~/a.txt", Path("~/b/c.txt")):
        with new_file(path, "w") as file:
            file.write("x")
    with new_folder("~/model") as folder:
        (folder / "config.json").write_text("{}")
    names = [str(x.relative_to(home)) for x in home.rglob("*") if x.is_file()]
    assert sorted(names) == ["a.txt", "b/c.txt", "model/config.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    for read, message in (
        (lambda: read_runs([Path("~/model")]), f"{home}/model has no metrics.jsonl"),
        (lambda: load("~/none"), f"{home}/none does not exist"),
        (lambda: load_tokenizer("~/none.txt"), f"no vocabulary at {home}/none.txt"),
    ):
        with pytest.raises(UserError, match=message):
            read()


def test_a_text_that_is_too_long_for_a_name_is_no_input(tmp_path):
    with pytest.raises(
        UserError, match=r"^cannot read 'a a a.*write a text to a file$"
    ):
        files.check_output(tmp_path / "out", "a " * 2000)


def test_a_rename_that_fails_leaves_the_old_folder(tmp_path, monkeypatch):
    target = tmp_path / "best"
    target.mkdir()
    (target / "a").write_text("old")
    rename, fails = Path.rename, []

    def failing(self, place):
        if place == target and not fails:
            fails.append(place)
            raise OSError(errno.EIO, "the disk fails")
        return rename(self, place)

    monkeypatch.setattr(Path, "rename", failing)
    with (
        pytest.raises(OSError, match="the disk fails"),
        new_folder(target, overwrite=True) as folder,
    ):
        (folder / "a").write_text("new")
    assert fails and (target / "a").read_text() == "old"
    # After a kill between the two renames the old folder has its hidden name.
    target.rename(tmp_path / ".best.old")
    with pytest.raises(KeyError), new_folder(target, overwrite=True):
        raise KeyError
    with new_folder(target, overwrite=True) as folder:
        (folder / "a").write_text("new")
    assert (target / "a").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


@pytest.mark.parametrize("url", ["gs://bucket/out.csv", "gs:/bucket/out", "memory://a"])
def test_a_url_is_not_a_local_output(url, tmp_path, monkeypatch):
    """``Path("gs://bucket")`` is the local folder gs:/bucket."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"^{url} is a URL; write to a local path"):
        files.check_output(url)
    for make in (files.new_file, files.new_folder):
        with pytest.raises(UserError, match="is a URL"), make(Path(url)):
            pass
    with pytest.raises(UserError, match="is a URL"):
        files.make_folder(Path(url))
    assert not any(tmp_path.iterdir())
