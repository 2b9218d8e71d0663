"""Two processes that a cluster's launcher, or flags, connect; how they stop and end."""

import dataclasses
import os
import random
import signal
import socket
import subprocess
from pathlib import Path

import jax
import pytest

from bert_jax.commands import cli
from bert_jax.errors import UserError
from bert_jax.locks import locked
from bert_jax.parallel import deadline, processes
from bert_jax.parallel.processes import connect, leave, lost_peer
from bert_jax.training.config import RunConfig

REPOSITORY = Path(__file__).parents[2]
PORTS = 61_440  # JAX's first: it adds the job's number to it

MEMBER = """
import sys
from pathlib import Path
import jax
import numpy as np
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 3)
from bert_jax.commands import cli
from bert_jax.parallel.mesh import MeshConfig, make_mesh, put_batch
from bert_jax.parallel.processes import check_same, from_leader, wait_for_all

def main(argv):
    cli.start(cli.JOB_FLAGS | dict(distributed=True, join_timeout=120))
    wait_for_all("start")
    check_same([0.5, "text"], "values")
    assert from_leader(lambda: [jax.process_index(), None]) == [0, None]
    counts = jax.process_count(), jax.local_device_count(), jax.device_count()
    # Pairs of 3 + 3 devices: each process has rows of its own, and some of the other's.
    for model, rows in (1, 24), (2, 18), (3, 24), (6, 12):
        mesh = make_mesh(MeshConfig(model=model))
        batch = put_batch({"x": np.zeros((12, 4))}, mesh)  # 12 of this process
        assert batch["x"].shape == (rows, 4), (mesh, batch["x"].shape)
    Path(argv[0]).write_text(f"{jax.process_index()} {counts}")

cli.run(main)
"""


FAILS = """
import os
import signal
import sys
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
from bert_jax.commands import cli
from bert_jax.errors import UserError
from bert_jax.parallel.mesh import MeshConfig, make_mesh, put_batch
from bert_jax.parallel.processes import wait_for_all
from bert_jax.progress import print_line

def main(argv):
    process, failing, kind, port = argv
    cli.start(cli.JOB_FLAGS | dict(
        coordinator_address=f"127.0.0.1:{port}", num_processes=2,
        process_id=int(process), join_timeout=120, heartbeat_timeout=3,
    ))
    mesh = make_mesh(MeshConfig())
    for step in range(100):
        if step == 3 and process in failing:
            if kind == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if kind == "late":
                wait_for_all("the text", timeout=1)
            if kind == "unread":
                reader, writer = os.pipe()
                os.close(reader)
                os.dup2(writer, sys.stdout.fileno())
                print_line("to nobody")
            if kind == "full":
                os.dup2(os.open("/dev/full", os.O_WRONLY), sys.stderr.fileno())
                raise UserError("stderr cannot be written")
            raise {"user": UserError, "bug": ValueError}[kind]("the disk is full")
        batch = put_batch({"x": jax.numpy.ones((1, 4))}, mesh)
        print(jax.jit(jax.numpy.sum)(batch["x"]))
    return 0

cli.run(main)
"""


STOPS = """
import itertools
import jax
jax.config.update("jax_platforms", "cpu")
from bert_jax.commands import cli
from bert_jax.parallel.processes import stop_requests

def main(argv):
    process, port = argv
    cli.start(cli.JOB_FLAGS | dict(
        coordinator_address=f"127.0.0.1:{port}", num_processes=2,
        process_id=int(process), join_timeout=120,
    ))
    jax.devices()
    with stop_requests() as stop_requested:
        print("begun", flush=True)
        print(next(call for call in itertools.count(1) if stop_requested()))

cli.run(main)
"""


KEEPS = """
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
from bert_jax.commands import cli
from bert_jax.parallel.mesh import MeshConfig, make_mesh, put_batch

def main(argv):
    process, port, workdir = argv
    flags = cli.JOB_FLAGS | dict(
        coordinator_address=f"127.0.0.1:{port}", num_processes=2,
        process_id=int(process), join_timeout=120,
    )
    cli.start(flags, workdir)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    batch = put_batch({"x": jax.numpy.ones((1, 4))}, make_mesh(MeshConfig()))
    events = []
    jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
    assert jax.jit(jax.numpy.sum)(batch["x"]) == 8
    print(events.count("/jax/compilation_cache/cache_hits"))

cli.run(main)
"""


RAISES = """
import sys
from pathlib import Path
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
from bert_jax.commands import cli
from bert_jax.errors import UserError
from bert_jax.locks import locked
from bert_jax.parallel.processes import from_leader, is_leader, on_leader
from bert_jax.training.workdir import RunFolder

def fail(error):
    raise error

def fails(action):
    try:
        action()
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)

def main(argv):
    process, folder, port = argv
    cli.start(cli.JOB_FLAGS | dict(
        coordinator_address=f"127.0.0.1:{port}", num_processes=2,
        process_id=int(process), join_timeout=120,
    ))
    for error in UserError("user"), ValueError("bug"), KeyboardInterrupt("key"):
        fails(lambda: from_leader(lambda: fail(error)))
    assert on_leader(lambda: {1}) == ({1} if is_leader() else None)
    used = RunFolder(f"{folder}/used")
    fails(lambda: used.held().__enter__())
    file = RunFolder(f"{folder}/file")
    fails(file.fetch)
    fails(lambda: used.prepared("text", "last", lambda place: fail(OSError("full"))))
    return from_leader(lambda: 0)

cli.run(main)
"""


def slurm(job, process):
    return {
        "SLURM_JOB_ID": f"{job}",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": f"{process}",
        "SLURM_LOCALID": f"{process}",
    }


def open_mpi(job, process):
    return {
        "OMPI_MCA_orte_hnp_uri": f"{job * 4096}.0;tcp://127.0.0.1:34911",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_RANK": f"{process}",
        "OMPI_COMM_WORLD_LOCAL_RANK": f"{process}",
    }


@pytest.fixture
def job_number():
    """One whose port nobody has."""
    while True:
        number = random.randrange(4096)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", PORTS + number)):
                return number


@pytest.mark.parametrize("launcher", [slurm, open_mpi])
def test_a_job_is_found_in_the_environment(python, launcher, job_number, tmp_path):
    processes = [
        subprocess.Popen(
            [python, "-c", MEMBER, tmp_path / f"{process}"],
            cwd=REPOSITORY,
            env=os.environ | launcher(job_number, process),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(2)
    ]
    outputs = [process.communicate() for process in processes]
    for number, process in enumerate(processes):
        assert process.returncode == 0, outputs
        assert (tmp_path / f"{number}").read_text() == f"{number} (2, 3, 6)"


def start_two(python, script, *arguments):
    """Two processes that run ``script`` with their number and ``arguments``."""
    return [
        subprocess.Popen(
            [python, "-c", script, *map(str, (process, *arguments))],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(2)
    ]


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize("asked", [0, 1])
def test_sigterm_to_one_process_stops_all_at_the_same_call(python, port, asked):
    """They ask all the time; whoever kept Python's lock meanwhile would hear nothing."""
    processes = start_two(python, STOPS, port)
    for process in processes:
        assert process.stdout.readline() == "begun\n"
    processes[asked].send_signal(signal.SIGTERM)
    outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    calls = [int(output) for output, _ in outputs]
    assert calls[0] == calls[1] > 0


def test_programs_are_kept_in_the_workdir(python, port, bucket, monkeypatch):
    """JAX has process 0 alone keep them; here it finds them on another machine.

    On CPUs no other process finds them: the key has the process's own devices in it.
    """
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    for round_ in range(2):
        monkeypatch.setenv("XDG_CACHE_HOME", f"/nowhere/{round_}")
        processes = start_two(python, KEEPS, port, f"{bucket}/run")
        outputs = [process.communicate() for process in processes]
        hits = [int(output.split()[-1]) for output, _ in outputs]
        assert (hits[0] > 0) == (round_ > 0), outputs


def test_an_error_in_process_0_is_an_error_in_all(python, port, tmp_path):
    """And all can go on: no process waits for a call that another one left out."""
    (tmp_path / "file").write_text("")
    with locked(tmp_path / "used"):
        jobs = start_two(python, RAISES, tmp_path, port)
        outputs = [job.communicate() for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], outputs
    first, other = (output.splitlines() for output, _ in outputs)
    assert first[:3] == ["UserError: user", "ValueError: bug", "KeyboardInterrupt: key"]
    assert first[3].startswith(f"UserError: {tmp_path / 'used'} is in use by process")
    assert first[4].startswith("FileExistsError")
    assert first[5] == "OSError: full"
    line = "UserError: process 0 failed and prints the reason; correct it and run the "
    assert other == [line + "same command again"] * 6


# A process that lost another one: code 75 if a collective fails, SIGABRT if JAX ends it.
LOST = (75, -signal.SIGABRT)


@pytest.mark.parametrize("failing", ["0", "1"])
@pytest.mark.parametrize(
    ("kind", "code", "line"),
    [
        ("user", 2, "error: the disk is full"),
        ("bug", 1, "ValueError: the disk is full"),
        ("killed", -signal.SIGKILL, ""),
        ("late", 75, "error: another process failed or was lost (DEADLINE_EXCEEDED: "),
        ("unread", 141, "stopped before the end: the reader of the output"),
        ("full", 2, ""),
    ],
)
def test_a_process_that_fails_ends_the_others(python, port, failing, kind, code, line):
    processes = start_two(python, FAILS, failing, kind, port)
    errors = [process.communicate()[1] for process in processes]
    failed, other = int(failing), 1 - int(failing)
    assert processes[failed].returncode == code, errors
    assert processes[other].returncode in LOST, errors
    lines = errors[failed].splitlines()
    assert any(found.startswith(line) for found in lines) or not line
    assert errors[failed].count("Traceback") == (kind == "bug")
    assert "Traceback" not in errors[other]
    if processes[other].returncode == 75:
        assert errors[other].count("error: another process failed or was lost") == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (dict(num_processes=2), "--num_processes and --process_id need --coordinator"),
        (
            dict(coordinator_address="h:1", num_processes=2, process_id=2),
            "--process_id=2 of --num_processes=2, expected 0",
        ),
        (
            dict(coordinator_address="h", num_processes=2, process_id=0),
            "--coordinator_address=h, expected HOST:PORT",
        ),
        (
            dict(coordinator_address="h:70000", num_processes=2, process_id=0),
            "--coordinator_address=h:70000, expected HOST:PORT",
        ),
        (
            dict(
                coordinator_address="h:1",
                num_processes=2,
                process_id=0,
                heartbeat_timeout=0,
            ),
            "--heartbeat_timeout=0, expected 3 or more",
        ),
    ],
)
def test_wrong_flags_are_one_line(flags, message):
    with pytest.raises(UserError) as error:
        connect(**flags)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_without_a_cluster_there_is_one_line(python):
    script = (
        "from bert_jax.commands import cli\n"
        "cli.run(lambda argv: cli.start(cli.JOB_FLAGS | dict(distributed=True)))"
    )
    done = subprocess.run(
        [python, "-c", script], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        "error: --distributed found no Cloud TPU, GKE, Slurm or Open"
    )


def test_a_port_in_use_is_one_line():
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UserError, match=f"cannot use port {port} of --coordinator"):
            connect(coordinator_address=f"h:{port}", num_processes=1, process_id=0)


def test_the_deadline_does_not_replace_the_exit_code(monkeypatch):
    """Process 0 waits 3 s before it exits. The deadline may be over meanwhile."""
    ended, slept = [], []
    monkeypatch.setattr(deadline.time, "sleep", lambda s: slept.append(deadline._waits))
    monkeypatch.setattr(os, "_exit", ended.append)
    leave(2, together=False)
    assert slept == [1] and ended == [2]


def test_processes_wait_a_day_for_process_0(monkeypatch):
    """It may prepare text for hours. A lost process ends the wait at once."""
    waits = []

    class Client:
        def wait_at_barrier(self, key, milliseconds):
            waits.append(milliseconds)

        def blocking_key_value_get(self, key, milliseconds):
            waits.append(milliseconds)
            return '{"value": 1}'

    monkeypatch.setattr(processes, "_client", Client)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    processes.wait_for_all("fetch")
    assert processes.from_leader(int) == 1
    assert waits == [24 * 3600 * 1000] * 2


def test_a_run_without_data_ends_before_its_deadline():
    (field,) = (f for f in dataclasses.fields(RunConfig) if f.name == "data_timeout")
    assert field.default < cli.JOB_FLAGS["step_timeout"]


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (
            ValueError("UNKNOWN: Gloo all-reduce failed: Connection closed by peer"),
            True,
        ),
        (
            RuntimeError(
                "INTERNAL: NCCL operation ncclAllReduce(a, b) failed: remote process "
                "exited or there was a network error."
            ),
            True,
        ),
        (
            RuntimeError(
                "INTERNAL: NCCL operation ncclGroupEnd() failed: unhandled system error "
                "(run with NCCL_DEBUG=INFO for details)."
            ),
            True,
        ),
        (
            RuntimeError(
                "UNAVAILABLE: The following tasks are unhealthy (stopped sending "
                "heartbeats):\n/job:jax_worker/replica:0/task:1"
            ),
            True,
        ),
        (TimeoutError("INTERNAL: Barrier failed because: task is set to ERROR"), True),
        (
            OSError("UNAVAILABLE: Failed to send RPC to coordination service. Either"),
            True,
        ),
        (
            RuntimeError("DEADLINE_EXCEEDED: Barrier timed out. Id: text/1::0. This"),
            True,
        ),
        (
            RuntimeError(
                "DEADLINE_EXCEEDED: GetKeyValue() timed out with key: leader/1"
            ),
            True,
        ),
        (KeyError("barrier"), False),
        (AttributeError("module 'jax' has no attribute 'collective'"), False),
        (ImportError("libgloo.so: cannot open shared object file"), False),
        (
            ValueError("INTERNAL: 'stablehlo.collective_permute' op failed to verify"),
            False,
        ),
        (ValueError("INTERNAL: Mosaic: cannot lower barrier_wait"), False),
        (
            RuntimeError(
                "INTERNAL: NCCL operation ncclCommInitRankConfig(a, b) failed: unhandled "
                "system error"
            ),
            False,
        ),
        (ValueError("UNKNOWN: Gloo context initialization failed: no address"), False),
        (ValueError("config.seed=x, expected a number"), False),
        (UserError("corpus/barrier.txt does not exist"), False),
        (OSError(28, "No space left on device"), False),
        (None, False),
    ],
)
def test_a_lost_process_is_known_by_the_message(error, lost):
    """By whatever type, and also as the cause of another error."""
    assert bool(lost_peer(error)) == lost
    outer = UserError("a checkpoint could not be written")
    outer.__cause__ = error
    assert bool(lost_peer(outer)) == lost
