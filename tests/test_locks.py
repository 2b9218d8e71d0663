"""Whose a folder is. What a run does with its lease: tests/parallel/test_remote.py."""

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
from bert_jax.locks import Lease, locked


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
    assert "has no locks: start nothing else there" in caplog.text


@pytest.mark.parametrize("who", ["of another machine", "of this one", "damaged"])
def test_a_dead_run_keeps_no_workdir(bucket, quick_leases, who):
    """One of this machine is known to be dead; of others nothing is heard any more."""
    mark = {"process": 1, "host": "far", "machine": "far", "born": "1", "token": "a"}
    if who == "of this one":
        mark |= {"machine": locks._machine()}
    mark = "{" if who == "damaged" else json.dumps(mark)
    path, lines = epath.Path(bucket) / ".lock", []
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(mark)
    with Lease(path, lines.append):
        assert path.read_text() != mark
    if who == "of another machine":
        assert lines[-1] == "process 1 on far has not been heard of for 0.5 s"
    else:
        assert not lines
