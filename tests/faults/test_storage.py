"""Storage fails while a run trains: a disk, and a bucket behind a bad network.

The run either ends like an undisturbed run, or stops with a one-line error and resumes with
the same command after the storage is repaired. Nothing is lost in either case.

``make test-all`` runs each fault of a disk once, and one run in a bucket with one of fifty
requests failing. ``python -m pytest tests/faults/test_storage.py -n0 -s --kills 20`` makes
20 runs with one of ten requests failing.
"""

import collections
import contextlib
import http.client
import http.server
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import urllib.parse
from pathlib import Path

import pytest
from etils import epath

from bert_jax.commands import cli, train
from bert_jax.errors import UserError
from bert_jax.interop.train_state import CheckpointStore
from bert_jax.training.config import finetune_config
from bert_jax.training.finetune_data import prepare
from bert_jax.training.workdir import RunFolder

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).parents[2]
FLAGS = ("--checkpoint_every=2", "--eval_every=3", "--prompts=()")


def mount(*arguments: object) -> None:
    done = subprocess.run(
        ["mount", *map(str, arguments)], capture_output=True, text=True
    )
    if done.returncode:
        raise OSError(f"mount: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path):
    """A disk of 4 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    try:
        mount("-t", "tmpfs", "-o", "size=4m", "tmpfs", path)
    except OSError as error:  # no root, no command, or forbidden in this container
        pytest.skip(f"the test needs the right to mount a disk ({error})")
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


@pytest.fixture
def left_by(metric_lines):
    """A function of a workdir: its metrics, and the checksums of its arrays."""

    def left(workdir):
        folder, arrays = RunFolder(workdir), {}
        folder.fetch()
        for path in epath.Path(folder.checkpoints).iterdir():
            saved = json.loads((path / "_CHECKPOINT_METADATA").read_text())
            content = json.loads(saved["custom_metadata"]["content"])
            arrays[path.name] = content["arrays"]
        return metric_lines(folder.local), arrays

    return left


@pytest.fixture(scope="module")
def undisturbed_run(one_phase_of, tmp_path_factory):
    """The flags of a run, and the workdir of an undisturbed run."""
    flags, workdir = ["--config", str(one_phase_of(0)), *FLAGS], tmp_path_factory
    workdir = workdir.mktemp("whole")
    train.main([*flags, "--workdir", str(workdir)])
    return flags, workdir


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "other").open("wb") as file:
        while file.write(bytes(4096)):
            file.flush()


def put_back(run: Path) -> None:
    shutil.rmtree(run)  # the newly started folder
    run.with_name("moved").rename(run)


@pytest.mark.parametrize(
    ("on_disk", "fails", "repairs", "message"),
    [
        (".", fill, lambda disk: (disk / "other").unlink(), "No space left on device"),
        (
            "checkpoints",
            lambda disk: mount("-o", "remount,ro", disk),
            lambda disk: mount("-o", "remount,rw", disk),
            "checkpoints could not be written",
        ),
        (
            "",
            lambda run: run.rename(run.with_name("moved")),
            put_back,
            "metrics.jsonl is no longer there",
        ),
        ("", lambda run: shutil.rmtree(run / "checkpoints"), None, None),
    ],
    ids=["full", "read-only", "workdir gone", "checkpoints gone"],
)
def test_a_failed_disk_is_a_one_line_error_and_the_run_resumes(
    on_disk,
    fails,
    repairs,
    message,
    request,
    undisturbed_run,
    left_by,
    monkeypatch,
    tmp_path,
):
    flags, undisturbed = undisturbed_run
    workdir = place = tmp_path / "run"
    if on_disk:
        place = request.getfixturevalue("disk")
        workdir.mkdir()
        if on_disk == ".":
            workdir = place / "run"
        else:
            (workdir / on_disk).symlink_to(place)
    calls = itertools.count(1)
    plain = CheckpointStore._check_writable

    def check(store):
        if next(calls) == 3:  # call 1 is from the store's start; no save is running
            fails(place)
        plain(store)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStore, "_check_writable", check)
        argv = [*flags, "--workdir", str(workdir)]
        if message is None:
            train.main(argv)
        else:
            with pytest.raises((UserError, OSError)) as caught:
                train.main(argv)
            error = caught.value
            line = (
                str(error) if isinstance(error, UserError) else cli._users_line(error)
            )
            assert message in line
            assert "\n" not in line
            repairs(place)
            train.main(argv)
    assert left_by(workdir) == left_by(undisturbed)


def test_features_on_a_full_disk_are_an_error_and_leave_no_file(disk, settings):
    """A page of a mapped file without a block on the disk would end the process."""
    features = {"layers": (-1,), "width": 8}
    config = finetune_config(settings("tagging", features=features))
    fill(disk)
    (disk / "other").write_bytes(bytes((4 << 20) - 30_000))
    with pytest.raises(OSError, match="No space left on device") as caught:
        prepare(config, disk / "run", [].append)
    path = disk / "run/features/train-0.npy"
    assert str(path) in cli._users_line(caught.value)
    assert list(path.parent.iterdir()) == []


def test_a_full_disk_ends_all_processes_with_one_line(disk, one_phase_of, tmp_path):
    """The failed save runs in the background."""
    (disk / "other").write_bytes(bytes((4 << 20) - 900_000))
    logs = tmp_path / "logs"
    done = subprocess.run(
        [
            REPOSITORY / "launch/local_processes.sh",
            *("--processes", "2", "--devices", "1", "--restarts", "0", "--logs", logs),
            *("--", "--config", one_phase_of(0), "--workdir", disk / "run", *FLAGS),
            "--phases[0].steps=1000",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHON": sys.executable},
    )
    output = done.stdout + (logs / "process_1.log").read_text()
    assert done.returncode == 2, output
    (line,) = [x for x in output.splitlines() if "No space left on device" in x]
    assert line.startswith("error: ") and str(disk / "run") in line
    assert "Traceback" not in output


class BadNetwork(http.server.ThreadingHTTPServer):
    """A proxy of a server. A share ``rate`` of the requests fails in one of ``kinds``."""

    def __init__(self, target: str):
        super().__init__(("127.0.0.1", 0), _Request)
        self.target, self.rate = urllib.parse.urlsplit(target).netloc, 0.0
        self.kinds = ("429", "503", "dropped", "answer lost", "late")
        self.random, self.done = random.Random(0), collections.Counter()

    def handle_error(self, *_: object) -> None:
        """Prints nothing if a client was killed."""


class _Request(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        server, kind = self.server, "passed on"
        if server.random.random() < server.rate:
            kind = server.random.choice(server.kinds)
        server.done[kind] += 1
        if kind == "dropped":
            self.close_connection = True
            return
        if kind.isdigit():
            error = {"error": {"code": int(kind), "message": "try again"}}
            self._answer(int(kind), {}, json.dumps(error).encode())
            return
        if kind == "late":
            time.sleep(0.5)
        far = http.client.HTTPConnection(server.target, timeout=60)
        with contextlib.closing(far):
            far.request(self.command, self.path, body, dict(self.headers))
            answer = far.getresponse()
            content = answer.read()
        if kind == "answer lost":
            self.close_connection = True
            return
        self._answer(answer.status, dict(answer.getheaders()), content)

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in (
                "content-length",
                "connection",
                "transfer-encoding",
            ):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = _pass_on


@pytest.fixture
def network(storage_server):
    """A proxy of the bucket without failures so far, and the environment that uses it."""
    server = BadNetwork(storage_server["STORAGE_EMULATOR_HOST"])
    address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield (
        server,
        os.environ
        | storage_server
        | {
            "STORAGE_EMULATOR_HOST": address,
            "TENSORSTORE_GCS_HTTP_URL": address,
            "JAX_NUM_CPU_DEVICES": "1",  # like the runs of this process
        },
    )
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_bucket_behind_a_bad_network_loses_nothing(
    undisturbed_run, bucket, network, small_store, left_by, kills
):
    """The bucket also contains the training text."""
    flags, undisturbed = undisturbed_run
    text = small_store[0].parent / "text.txt"
    corpus = [
        *("--data.path=", f"--data.corpus=('{text}',)"),
        f"--data.vocabulary_size={small_store[1]}",
    ]
    expected, ends = left_by(undisturbed), []
    server, environment = network
    server.rate = 0.1 if kills else 0.02
    for number in range(kills or 1):
        argv = [*flags, *corpus, "--workdir", f"{bucket}/{number}"]
        code = None
        while code != 0:
            run = subprocess.run(
                [sys.executable, "-m", "bert_jax.train", *argv],
                cwd=REPOSITORY,
                capture_output=True,
                text=True,
                env=environment,
            )
            code = run.returncode
            assert "Traceback" not in run.stderr, run.stderr
            if code != 0:
                *_, line = run.stderr.splitlines()
                ends.append(line)
                assert code == 2, run.stderr
                assert line.startswith("error: "), run.stderr
        assert left_by(epath.Path(f"{bucket}/{number}")) == expected
    print(f"{kills or 1} runs, {dict(server.done)}, ended {len(ends)} times: {ends}")
