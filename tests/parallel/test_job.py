"""Two processes that find each other by what a cluster's launcher sets; the roll call.

They also count the rows of a batch, which needs several processes.
"""

import concurrent.futures
import contextlib
import itertools
import os
import random
import re
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from bert_jax.errors import UserError
from bert_jax.parallel.job import Job, join

REPOSITORY = Path(__file__).parents[2]
PORTS = 61_440  # JAX's first: it adds the job's number to it

MEMBER = """
import sys
from pathlib import Path
import jax
import numpy as np
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 3)
from bert_jax import cli
from bert_jax.parallel.distributed import wait_for_all
from bert_jax.parallel.mesh import MeshConfig, make_mesh, put_batch

def main(argv):
    cli.start(cli.JOB_FLAGS | dict(distributed=True, join_timeout=120))
    wait_for_all("start")
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
import sys
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
from bert_jax import cli
from bert_jax.errors import UserError
from bert_jax.parallel.mesh import MeshConfig, make_mesh, put_batch

def main(argv):
    process, failing, failing_step, kind, port = argv
    cli.start(cli.JOB_FLAGS | dict(
        coordinator_address=f"127.0.0.1:{port}", num_processes=2,
        process_id=int(process), join_timeout=120,
    ))
    mesh = make_mesh(MeshConfig())
    for step in range(100):
        if step == int(failing_step) and process in failing:
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
from bert_jax import cli
from bert_jax.parallel.distributed import stop_requests

def main(argv):
    process, port = argv
    cli.start(cli.JOB_FLAGS | dict(
        coordinator_address=f"127.0.0.1:{port}", num_processes=2,
        process_id=int(process), join_timeout=120,
    ))
    jax.devices()
    with stop_requests() as asked:
        print("begun", flush=True)
        print(next(call for call in itertools.count(1) if asked()))

cli.run(main)
"""


KEEPS = """
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 1)
from bert_jax import cli
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


@pytest.mark.parametrize(
    ("failing", "step", "kind", "code"),
    [
        ("0", 3, "user", 2),
        ("1", 3, "bug", 1),
        ("1", 0, "user", 2),
        ("01", 3, "user", 2),
    ],
)
def test_a_process_that_fails_ends_all_with_its_line(
    python, port, failing, step, kind, code
):
    processes = start_two(python, FAILS, failing, step, kind, port)
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [code, code], errors
    name = {"user": "", "bug": "ValueError: "}[kind]
    for number, error in enumerate(errors):
        own = f"{name or 'error: '}the disk is full"
        told = f"error: process {1 - number}: {name}the disk is full"
        # Of two that fail at once, each may hear of the other first.
        expected = {own} if f"{number}" in failing else {told}
        if failing == "01":
            expected.add(told)
        assert error.splitlines()[-1] in expected
        assert "***" not in error  # of a C++ stack trace
        assert error.count("Traceback") == (kind == "bug" and f"{number}" in failing)


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (dict(distributed=True), "--distributed found no Cloud TPU, GKE, Slurm or"),
        (dict(num_processes=2), "--num_processes and --process_id need --coordinator"),
        (
            dict(coordinator_address="h:1", num_processes=2, process_id=2),
            "--process_id=2 of --num_processes=2, expected 0",
        ),
        (dict(heartbeat_timeout=0), "--heartbeat_timeout=0, expected 3 or more"),
    ],
)
def test_a_job_that_cannot_be_is_one_line(job, message):
    with pytest.raises(UserError) as error:
        join(**job)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


# The roll call between threads, which stand for processes.


@pytest.fixture
def address(port):
    return f"127.0.0.1:{port}"


def meet(address, count, process, timeout):
    job = Job(address, count, process)
    job.meet(timeout)
    job.close()


def call_all(address, count, processes, timeout):
    """What each of ``processes`` raises; None where it returns."""
    with concurrent.futures.ThreadPoolExecutor(len(processes)) as pool:
        calls = [pool.submit(meet, address, count, i, timeout) for i in processes]
        return [call.exception() for call in calls]


def test_all_return_when_all_are_there_and_the_port_is_free_again(address):
    for _ in range(3):
        assert call_all(address, 4, [3, 1, 0, 2], timeout=20) == [None] * 4


def test_those_who_came_learn_who_did_not(address):
    errors = call_all(address, 4, [0, 2], timeout=1)
    for error in errors:
        assert isinstance(error, UserError)
        assert str(error).startswith("processes 1, 3 did not join within 1 s")


def test_without_process_0_there_is_no_answer(address):
    (error,) = call_all(address, 2, [1], timeout=0.5)
    assert str(error).startswith(f"process 0 at {address} did not answer within 0.5 s")


def test_a_stranger_is_not_counted(address):
    host, port = address.split(":")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        zero = pool.submit(meet, address, 2, 0, 20)
        # What a scan of ports sends: no text, no end of a line, no number of a process.
        for message in (b"hello\n", b"7\n", b"\x16\x03\xff\n", b"9" * 10_000 + b"\n"):
            with call(host, int(port)) as stranger:
                stranger.sendall(message)
        assert not zero.done()
        pool.submit(meet, address, 2, 1, 20).result()
        zero.result()


@pytest.mark.parametrize("process", [0, 1])
@pytest.mark.parametrize(
    ("says", "line", "code"),
    [
        (
            b"",
            "{} has not been heard of for 0.3 s; start the same command again, which",
            75,
        ),
        (None, "{} ended without a word; start the same command again, which", 75),
        (b'{"line": "error: process 7: full", "code": 2}\n', "process 7: full", 2),
    ],
)
def test_what_another_process_says_last_ends_this_one(
    process, says, line, code, address, monkeypatch, capsys
):
    """The other one is a socket: silent, closed, or with a report."""
    ended = concurrent.futures.Future()
    monkeypatch.setattr(os, "_exit", ended.set_result)
    monkeypatch.setattr("bert_jax.parallel.job._LINGER", 0.1)
    host, port = address.split(":")
    with contextlib.ExitStack() as stack:
        if process:
            server = stack.enter_context(socket.create_server((host, int(port))))
        job = Job(address, 2, process)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            meeting = pool.submit(job.meet, 20)
            if process:
                other, _ = server.accept()
                stack.enter_context(other)
                assert other.makefile().readline() == f"1 {socket.gethostname()}\n"
                other.sendall(b"\n")
            else:
                other = stack.enter_context(call(host, int(port)))
                other.sendall(b"1 far\n")
            meeting.result()
        job.watch(0.3)
        if says is None:
            other.shutdown(socket.SHUT_RDWR)
        else:
            other.sendall(says)
        assert ended.result(timeout=20) == code
        job._stop()
    name = f"process 0 at {address}" if process else "process 1 on far"
    assert capsys.readouterr().err.startswith(f"error: {line.format(name)}")


def call(host, port):
    """A connection to a server that may not be there yet."""
    while True:
        try:
            return socket.create_connection((host, port), timeout=5)
        except ConnectionRefusedError:
            continue


def test_a_process_that_stood_still_says_so(address, monkeypatch, capsys):
    """As one that was stopped, or whose machine was moved."""
    ended = concurrent.futures.Future()
    monkeypatch.setattr(os, "_exit", ended.set_result)
    job = Job(address, 1, 0)
    job.meet(20)
    job.watch(0.5)
    job._loop.call_soon_threadsafe(time.sleep, 2)
    assert ended.result(timeout=20) == 75
    job._stop()
    assert re.match(
        r"error: this process stood still for [12] s;", capsys.readouterr().err
    )


@contextlib.contextmanager
def connected(address, count):
    """The processes of a job, all in this one."""
    jobs = [Job(address, count, i) for i in range(count)]
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        list(pool.map(lambda job: job.meet(20), jobs))
        for job in jobs:
            job.watch(20)
        yield jobs
        list(pool.map(Job.close, jobs))


def test_asked_to_stop_all_do_at_the_same_call(address):
    """Whoever is asked, several at once too, and however far the others are by then."""
    for asked in [0], [2], [1, 2, 0], [1, 1]:
        together = threading.Barrier(3)

        def train(job, together=together, asked=asked):
            assert not any(job.stops() for _ in range(7))
            together.wait(20)
            for _ in range(asked.count(job.process)):
                job.ask_to_stop()
            return next(step for step in itertools.count(8) if job.stops())

        with connected(address, 3) as jobs:
            assert not any(job.stops() for job in jobs)
            with concurrent.futures.ThreadPoolExecutor(3) as pool:
                steps = list(pool.map(train, jobs))
            assert len(set(steps)) == 1, steps
            assert all(job.stops() for job in jobs)  # also whoever asks later


def test_asked_before_the_first_call_all_stop_there(address):
    """As a job that is asked while it compiles."""
    with connected(address, 2) as jobs:
        jobs[1].ask_to_stop()
        with jobs[0]._agreed:
            assert jobs[0]._agreed.wait_for(lambda: jobs[0]._last == 1, 20)
        assert all(job.stops() for job in jobs)


def test_an_address_without_a_port_is_refused():
    with pytest.raises(UserError, match=r"expected HOST:PORT"):
        meet("localhost", 2, 1, 1)
    with pytest.raises(UserError, match=r"expected HOST:PORT"):
        meet("localhost:70000", 2, 0, 1)


def test_a_port_in_use_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} .* cannot be used"):
            meet(f"127.0.0.1:{port}", 2, 0, 1)
