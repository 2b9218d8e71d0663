"""Locks of folders on disks and owners of folders in buckets."""

import errno
import json
import os
import re
import socket
import subprocess
import sys

import pytest
from etils import epath

from bert_jax import locks
from bert_jax.errors import UserError
from bert_jax.locks import check_owned, locked, owned


def test_a_folder_is_one_process_s_until_it_ends(tmp_path):
    """Ends in whatever way: a lock file without its process locks nobody out."""
    folder = tmp_path / "run"
    script = (
        "import sys\nfrom pathlib import Path\nfrom bert_jax.locks import locked\n"
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


def test_a_file_system_without_locks_is_told(tmp_path, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    with locked(tmp_path / "run"):
        pass
    assert "has no locks: start no second run there" in caplog.text


def test_a_lock_is_not_written_through_a_link(tmp_path):
    target = tmp_path / "precious.txt"
    target.write_text("content")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.lock").symlink_to(target)
    with pytest.raises(UserError, match="is a link"), locked(tmp_path / "run"):
        pytest.fail("locked")
    assert target.read_text() == "content"


def test_the_newest_run_owns_a_folder_in_a_bucket(bucket):
    """Also after a run that was killed and left its file, whatever is in it."""
    folder = epath.Path(bucket)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".lock").write_text("{")
    with owned(folder) as first:
        check_owned(folder, first)
        name = re.escape(f"process {os.getpid()} on {socket.gethostname()}")
        with owned(folder) as second:
            check_owned(folder, second)
            with pytest.raises(
                UserError, match=f"now belongs to {name}, which started"
            ):
                check_owned(folder, first)
        with pytest.raises(UserError, match="now belongs to another process"):
            check_owned(folder, first)
    with owned(folder):
        pass
    assert not (folder / ".lock").exists()
