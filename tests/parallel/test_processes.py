"""Two processes connect by a launcher's environment or by flags, stop and end."""

import dataclasses
import errno
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import jax
import pytest
from jax._src import compiler

from bert_jax import progress
from bert_jax.commands import cli
from bert_jax.errors import PREEMPTED, Preempted, UserError
from bert_jax.files import locked
from bert_jax.parallel import processes
from bert_jax.parallel.processes import connect, leave, lost_peer, stop_requests
from bert_jax.training.config import RunConfig

REPOSITORY = Path(__file__).parents[2]
PORTS = 61_440  # JAX's first port, to which it adds the job's number

# The arguments of every script are NUMBER PORT ...
START = """
import itertools, os, signal, sys
from pathlib import Path
import jax
import numpy as np
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's & ignores SIGINT
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", {devices})
from bert_jax.commands import cli
from bert_jax.errors import UserError
from bert_jax.parallel.mesh import MeshConfig, make_mesh, process_rows, put_batch
from bert_jax.parallel.processes import (
    check_same, from_leader, is_leader, on_leader, stop_requests, wait_for_all,
)
from bert_jax.progress import print_line
from bert_jax.training.workdir import RunFolder

def connect(process, port, workdir="", **flags):
    flags = dict(join_timeout=120) | flags
    if port != "0":
        address = f"127.0.0.1:{{port}}"
        flags |= dict(
            coordinator_address=address, num_processes=2, process_id=int(process)
        )
    cli.start(cli.JOB_FLAGS | flags, workdir)

def fails(action):
    try:
        action()
    except BaseException as error:
        print(f"{{type(error).__name__}}: {{error}}", flush=True)

def fail(error):
    raise error

def main(argv):
    process, port, *arguments = argv
{body}

cli.run(main)
"""


def start_two(body, *arguments, devices=1, environments=({}, {})):
    """Starts two processes that run ``body`` with their number and ``arguments``."""
    body = "\n".join(f"    {line}" for line in body.splitlines())
    script = START.format(body=body, devices=devices)
    return [
        subprocess.Popen(
            [sys.executable, "-c", script, *map(str, (number, *arguments))],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
        for number, environment in enumerate(environments)
    ]


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
    """A job number whose port is free."""
    while True:
        number = random.randrange(4096)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", PORTS + number)):
                return number


MEMBER = """
connect(process, port, distributed=True)
wait_for_all("start")
check_same([0.5, "text"], "values")
assert from_leader(lambda: [jax.process_index(), None]) == [0, None]
# Pairs of 3 + 3 devices: each process has its own rows and some rows of the other.
for model, rows in (1, 24), (2, 18), (3, 24), (6, 12):
    mesh = make_mesh(MeshConfig(model=model))
    local = process_rows(mesh, rows)
    assert len(local) == 12, (mesh, local)
    batch = put_batch({"x": local}, mesh)
    for shard in batch["x"].addressable_shards:
        assert np.array_equal(shard.data, np.arange(rows)[shard.index]), (mesh, shard)
fails(lambda: check_same(process, "numbers"))
print(jax.process_index(), jax.process_count(), jax.device_count())
"""


@pytest.mark.parametrize(
    "launcher", [slurm, pytest.param(open_mpi, marks=pytest.mark.long)]
)
def test_a_job_is_read_from_the_environment(launcher, job_number):
    environments = [launcher(job_number, process) for process in range(2)]
    jobs = start_two(MEMBER, 0, devices=3, environments=environments)
    outputs = [job.communicate() for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], outputs
    differ = "UserError: process 1 and process 0 differ in numbers"
    for number, (output, _) in enumerate(outputs):
        assert output.splitlines()[-2:] == [differ, f"{number} 2 6"]


STOPS = """
connect(process, port)
jax.devices()
with stop_requests() as stop_requested:
    print("begun", flush=True)
    call = next(call for call in itertools.count(1) if stop_requested())
print(call)
"""


@pytest.mark.parametrize(
    ("process", "number"),
    [
        pytest.param(0, signal.SIGTERM, marks=pytest.mark.long),
        (1, signal.SIGTERM),
        pytest.param(1, signal.SIGINT, marks=pytest.mark.long),
    ],
)
def test_a_signal_to_one_process_stops_all_at_the_same_call(port, process, number):
    jobs = start_two(STOPS, port)
    for job in jobs:
        assert job.stdout.readline() == "begun\n"
    jobs[process].send_signal(number)
    outputs = [job.communicate() for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], outputs
    calls = [int(output.split()[-1]) for output, _ in outputs]
    assert calls[0] == calls[1] > 0


def send(*numbers):
    for number in numbers:
        signal.raise_signal(number)


@pytest.fixture
def pythons_handler():
    """Ctrl-C raises KeyboardInterrupt, as in a terminal and in a notebook."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


def test_the_first_interrupt_is_a_request_and_the_second_ends_at_once(
    pythons_handler, capfd
):
    with pytest.raises(KeyboardInterrupt), stop_requests() as requested:
        assert requested() is None
        send(signal.SIGINT)
        assert requested() is KeyboardInterrupt
        assert requested() is None
        send(signal.SIGINT)
        pytest.fail("not interrupted")
    assert capfd.readouterr().err == processes._STOPPING.decode()
    with stop_requests() as requested:
        send(signal.SIGTERM)
        assert requested() is Preempted
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("number", "stop"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Preempted)],
)
def test_a_signal_after_the_last_step_is_not_lost(number, stop, pythons_handler):
    """Otherwise a sweep would start its next run."""
    message = "after the last step, which is saved"
    with pytest.raises(stop, match=message), stop_requests():
        send(number)


def test_an_error_is_not_replaced_by_a_request(pythons_handler):
    with pytest.raises(UserError, match="a full disk"), stop_requests():
        send(signal.SIGTERM)
        raise UserError("a full disk")


def test_other_handlers_and_other_threads_are_left_alone(monkeypatch):
    """nohup ignores Ctrl-C, and a program may have its own handler."""
    received = []
    before = signal.signal(signal.SIGINT, lambda *_: received.append(1))
    try:
        with stop_requests() as requested:
            send(signal.SIGINT)
            assert requested() is None
    finally:
        signal.signal(signal.SIGINT, before)
    assert received == [1]

    def in_thread():
        with stop_requests() as requested:
            received.append(requested())

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    assert received == [1, None]


KEEPS = """
connect(process, port, arguments[0])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
batch = put_batch({"x": jax.numpy.ones((1, 4))}, make_mesh(MeshConfig()))
events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
assert jax.jit(jax.numpy.sum)(batch["x"]) == 8
print(events.count("/jax/compilation_cache/cache_hits"))
"""


def test_compiled_programs_are_saved_in_the_workdir(port, bucket, monkeypatch):
    """Process 0 saves compiled programs, and loads them on another machine.

    On CPUs no other process can load them, because the key contains its devices.
    """
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    for round_ in range(2):
        monkeypatch.setenv("XDG_CACHE_HOME", f"/nowhere/{round_}")
        jobs = start_two(KEEPS, port, f"{bucket}/run")
        outputs = [job.communicate() for job in jobs]
        hits = [int(output.split()[-1]) for output, _ in outputs]
        assert (hits[0] > 0) == (round_ > 0), outputs


RAISES = """
folder, = arguments
connect(process, port)
for error in UserError("user"), ValueError("bug"), KeyboardInterrupt("key"):
    fails(lambda: from_leader(lambda: fail(error)))
assert on_leader(lambda: {1}) == ({1} if is_leader() else None)
used = RunFolder(f"{folder}/used")
fails(lambda: used.held().__enter__())
fails(RunFolder(f"{folder}/file").fetch)
fails(lambda: used.prepared("text", "last", lambda place: fail(OSError("full"))))
disk = Path(f"{folder}/disk_of_{process}")
on_leader(lambda: [disk.mkdir(), (disk / "config.json").write_text("{}")])
fails(lambda: RunFolder(disk).check_shared("config.json"))
assert from_leader(lambda: 0) == 0
"""


def test_an_error_in_process_0_is_raised_in_all_processes(port, tmp_path):
    """All processes can continue, and no process waits for another."""
    (tmp_path / "file").write_text("")
    with locked(tmp_path / "used"):
        jobs = start_two(RAISES, port, tmp_path)
        outputs = [job.communicate() for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], outputs
    first, other = (output.splitlines() for output, _ in outputs)
    assert first[:3] == ["UserError: user", "ValueError: bug", "KeyboardInterrupt: key"]
    assert first[3].startswith(f"UserError: {tmp_path / 'used'} is in use by process")
    assert first[4].startswith("FileExistsError")
    assert first[5] == "OSError: full"
    for number, lines in enumerate((first, other)):
        shared = (
            f"{tmp_path}/disk_of_{number}/config.json; give a workdir that all hosts"
        )
        assert shared in lines[-1]
    line = "UserError: process 0 failed and prints the reason; correct it and run the "
    assert other[:6] == [line + "same command again"] * 6


FAILS = """
failing, kind = arguments
connect(process, port, heartbeat_timeout=3)
mesh = make_mesh(MeshConfig())
for step in range(100):
    if step == 3 and process == failing:
        if kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
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
"""
# Exit code after the loss of another process: 75 if a collective fails, SIGABRT if JAX
# ends the process.
LOST = (75, -signal.SIGABRT)


@pytest.mark.parametrize(
    ("failed", "kind", "code", "line"),
    [
        pytest.param(0, "user", 2, "error: the disk is full", marks=pytest.mark.long),
        pytest.param(1, "user", 2, "error: the disk is full", marks=pytest.mark.long),
        pytest.param(
            1, "bug", 1, "ValueError: the disk is full", marks=pytest.mark.long
        ),
        pytest.param(0, "killed", -signal.SIGKILL, "", marks=pytest.mark.long),
        (1, "killed", -signal.SIGKILL, ""),
        pytest.param(
            0,
            "unread",
            141,
            "stopped before the end: the reader of the output",
            marks=pytest.mark.long,
        ),
        pytest.param(1, "full", 2, "", marks=pytest.mark.long),
    ],
)
def test_a_failed_process_ends_the_other_processes(port, failed, kind, code, line):
    jobs, other = start_two(FAILS, port, failed, kind), 1 - failed
    errors = [job.communicate()[1] for job in jobs]
    assert jobs[failed].returncode == code, errors
    assert jobs[other].returncode in LOST, errors
    lines = errors[failed].splitlines()
    assert any(printed.startswith(line) for printed in lines) or not line
    assert errors[failed].count("Traceback") == (kind == "bug")
    assert "Traceback" not in errors[other]
    if jobs[other].returncode == 75:
        assert errors[other].count("error: another process failed or was lost") == 1


@pytest.mark.parametrize(
    "flags",
    [
        dict(num_processes=2),
        dict(coordinator_address="h:1", num_processes=2, process_id=2),
        dict(coordinator_address="h", num_processes=2, process_id=0),
        dict(coordinator_address="h:70000", num_processes=2, process_id=0),
    ],
)
def test_wrong_flags_are_a_one_line_error(flags):
    with pytest.raises(UserError, match=r"--coordinator_address=HOST:PORT with "):
        connect(**flags)


def test_a_missing_cluster_is_a_one_line_error():
    jobs = start_two("connect(process, port, distributed=True)", 0)
    for job in jobs:
        (line,) = job.communicate()[1].splitlines()
        assert "expected --distributed in a job of Cloud TPU, GKE, Slurm or" in line
        assert job.returncode == 2


def test_the_flags_reach_jax(monkeypatch):
    calls = []
    monkeypatch.setattr(
        jax.distributed,
        "initialize",
        lambda *args, **names: calls.append((args, names)),
    )
    connect(distributed=True, join_timeout=41, heartbeat_timeout=7)
    timeouts = {"initialization_timeout": 41, "heartbeat_timeout_seconds": 7}
    assert calls == [((), timeouts)]


def test_a_port_in_use_is_a_one_line_error():
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UserError, match=f"already in use.* {port}.*a free port"):
            connect(coordinator_address=f"h:{port}", num_processes=1, process_id=0)


def test_the_deadline_does_not_replace_the_exit_code(monkeypatch):
    """Process 0 waits 3 s before it exits. The deadline may pass during this time."""
    ended, slept = [], []
    monkeypatch.setattr(
        processes.time, "sleep", lambda s: slept.append(progress._waits)
    )
    monkeypatch.setattr(os, "_exit", ended.append)
    leave(2, together=False)
    assert slept == [1] and ended == [2]


def test_processes_wait_a_day_for_process_0(monkeypatch):
    """Process 0 may prepare text for hours. A lost process ends the wait immediately."""
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


NCCL = "INTERNAL: NCCL operation "


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (ValueError("UNKNOWN: Gloo all-reduce failed: Connection closed"), True),
        (RuntimeError(f"{NCCL}ncclAllReduce(a) failed: remote process exited"), True),
        (RuntimeError(f"{NCCL}ncclGroupEnd() failed: unhandled system error"), True),
        (RuntimeError("UNAVAILABLE: tasks (stopped sending heartbeats):\n/job:"), True),
        (TimeoutError("INTERNAL: Barrier failed because: task is set to ERROR"), True),
        (OSError("UNAVAILABLE: Failed to send RPC to coordination service"), True),
        (RuntimeError("DEADLINE_EXCEEDED: Barrier timed out. Id: text/1::0."), True),
        (RuntimeError("DEADLINE_EXCEEDED: GetKeyValue() timed out with key: l"), True),
        (
            RuntimeError(
                "UNAVAILABLE: Socket closed\nAdditional GRPC error information from "
                "remote target x while calling "
                "/xla.coordination.CoordinationService/Barrier:"
            ),
            True,
        ),
        # Orbax quotes the message of JAX.
        (
            TimeoutError(
                "Timeout waiting at barrier '[op=1] next_awaitable_signal'. The original "
                "error raised was: INTERNAL: Barrier failed because: task is set to ERROR: "
                "UNAVAILABLE: Task 1 heartbeat timeout."
            ),
            True,
        ),
        (
            RuntimeError("x: INTERNAL: A task is already in error before the barrier"),
            True,
        ),
        (RuntimeError("FAILED_PRECONDITION: Agent is not in CONNECTED state."), True),
        (RuntimeError("ABORTED: Leader incarnation ID mismatch: the leader"), True),
        (ValueError("x: UNAVAILABLE: Error reading gs://b/a: socket closed"), False),
        (RuntimeError("FAILED_PRECONDITION: Buffer was deleted"), False),
        (RuntimeError("RuntimeError: heartbeat timeout"), False),
        (ValueError("UNAVAILABLE: Error reading gs://b/a: socket closed"), False),
        (ValueError("UNAVAILABLE: CURL error: Connection reset by peer"), False),
        (KeyError("barrier"), False),
        (AttributeError("module 'jax' has no attribute 'collective'"), False),
        (ValueError("INTERNAL: 'stablehlo.collective_permute' op failed"), False),
        (ValueError("INTERNAL: Mosaic: cannot lower barrier_wait"), False),
        (
            RuntimeError(f"{NCCL}ncclCommInitRank(a) failed: unhandled system"),
            False,
        ),
        (ValueError("UNKNOWN: Gloo context initialization failed: no address"), False),
        (UserError("corpus/barrier.txt does not exist"), False),
        (OSError(28, "No space left on device"), False),
        (None, False),
    ],
)
def test_a_lost_process_is_recognised_by_the_message(error, lost):
    """For every exception type, and as the cause of another error."""
    outer = UserError("a checkpoint could not be written")
    outer.__cause__ = error
    assert bool(lost_peer(error)) == bool(lost_peer(outer)) == lost


SECONDS, BUSY = 10, 80  # of the step deadline


class Exit(BaseException):
    """Raised in place of the end of this process."""


@pytest.fixture
def end(monkeypatch):
    """A function of a callback for each second. It returns the second of the exit."""

    def run(each_second):
        clock = [0.0]

        def sleep(seconds):
            clock[0] += seconds
            each_second(clock[0])

        def leave(code):
            assert code == PREEMPTED
            raise Exit

        monkeypatch.setattr(os, "_exit", leave)
        monkeypatch.setattr(processes.time, "sleep", sleep)
        monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
        progress.made_progress()
        with pytest.raises(Exit):
            processes._watch(SECONDS)
        return clock[0]

    return run


def test_a_process_without_progress_ends_with_its_stacks(end, capfd):
    assert end(lambda second: None) == SECONDS
    line, *stacks = capfd.readouterr().err.splitlines()
    assert line.startswith("error: no step, evaluation, save or preparation made")
    assert "for 10 s (--step_timeout)" in line
    assert any(f"in {end.__name__}" in line for line in stacks)


def test_a_process_that_cannot_print_also_ends(end, monkeypatch):
    def fails(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(progress, "print_line", fails)
    assert end(lambda second: None) == SECONDS


def test_updates_and_items_are_progress(end):
    items = iter(progress.Progress("items", range(BUSY // 2), unit="items"))
    updates = progress.Progress("updates", unit="updates")

    def happens(second):
        if second <= BUSY:
            updates.update() if second % 2 else next(items)

    assert end(happens) == BUSY + SECONDS


def test_a_wait_for_other_processes_is_not_a_stall(end):
    wait = progress.unwatched()

    def happens(second):
        if second == 1:
            wait.__enter__()
        elif second == BUSY:
            wait.__exit__(None, None, None)

    assert end(happens) == BUSY + SECONDS


def test_compilation_is_not_a_stall(end):
    """The compiler may run in any thread."""
    assert compiler.__file__.endswith(processes._COMPILER)
    scope, compiled = {}, threading.Event()
    code = "def compiles(event): event.wait()"
    exec(compile(code, "/venv/jax/_src/compiler.py", "exec"), scope)
    thread = threading.Thread(target=scope["compiles"], args=(compiled,))
    thread.start()

    def happens(second):
        if second == BUSY:
            compiled.set()
            thread.join()

    assert end(happens) >= BUSY + SECONDS - 1
