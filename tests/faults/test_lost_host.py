"""A host is lost: its network cable is unplugged, or its process is stopped.

Each process of a job has its own network namespace. A bridge connects the namespaces, like
a switch. The other process ends after the heartbeat timeout, the launcher starts the job
again, and the result equals an undisturbed run bit for bit.

``make test-all`` unplugs a cable for a moment, and then permanently. The long form tries N
faults at random moments, with the users' default timeout (a minute each):
``python -m pytest tests/faults/test_lost_host.py -n0 -s --kills 20``.
"""

import contextlib
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from bert_jax.commands import train
from bert_jax.parallel.mesh import make_mesh
from bert_jax.training import pretrain

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).parents[2]
STEPS = 40
FAULTS = ("cut for a moment", "cut", "stopped")
SHORT = FAULTS[:2]  # of make test-all
ENVIRONMENT = {
    "PYTHONUNBUFFERED": "1",
    "PYTHONPATH": str(REPOSITORY),
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
}
# Replaces Python: runs on the host of the process and plugs its cable in again.
ON_ITS_HOST = """#!/usr/bin/env bash
ip link set {name}$9 up
[[ $9 == 0 ]] || exec 2>>"${{0%/*}}/said"
exec ip netns exec {name}$9 unshare --uts bash -c 'hostname "$0"; exec "$@"' host$9 \
  {python} "${{@:1:4}}" 10.213.{subnet}.1:"${{5##*:}}" "${{@:6}}"
"""


def ip(command: str) -> None:
    done = subprocess.run(["ip", *command.split()], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {command}: {done.stderr.strip()}")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """A name: host i has the namespace NAMEi and a cable, the device of the same name."""
    subnet = os.getpid() % 256
    name = f"b{subnet}h"
    with contextlib.ExitStack() as stack:

        def undo(command):
            stack.callback(
                subprocess.run, ["ip", *command.split()], stderr=subprocess.DEVNULL
            )

        try:
            undo(f"link del {name}")
            ip(f"link add {name} type bridge")
            ip(f"link set {name} up")
            for i in range(2):
                configuration = Path(f"/etc/netns/{name}{i}")
                undo(f"netns del {name}{i}")
                ip(f"netns add {name}{i}")
                ip(f"link add {name}{i} type veth peer name eth0 netns {name}{i}")
                ip(f"link set {name}{i} master {name} up")
                ip(f"-n {name}{i} addr add 10.213.{subnet}.{i + 1}/24 dev eth0")
                ip(f"-n {name}{i} link set eth0 up")
                ip(f"-n {name}{i} link set lo up")
                configuration.mkdir(parents=True)
                stack.callback(configuration.rmdir)
                stack.callback((configuration / "hosts").unlink)
                lines = (f"10.213.{subnet}.{k + 1} host{k}" for k in range(2))
                (configuration / "hosts").write_text(
                    "\n".join(["127.0.0.1 localhost", *lines])
                )
        except OSError as error:  # no root, no command, or forbidden in this container
            pytest.skip(f"hosts need network namespaces ({error})")
        python = tmp_path_factory.mktemp("bin") / "python"
        python.write_text(
            ON_ITS_HOST.format(
                name=name, subnet=subnet, python=shlex.quote(sys.executable)
            )
        )
        python.chmod(0o755)
        yield name, python


def process_of(number: int, workdir: Path) -> int:
    listing = subprocess.run(
        ["pgrep", "-f", f"process_id {number} .*{workdir} "],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(listing.stdout.split()[0])


def end_all(group: int) -> None:
    """Ends all processes of the group, even after a failed test."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def contents(workdir: Path, metric_lines):
    """The metrics, and the checksums of all arrays, as saved by the run."""
    arrays = {}
    for path in (workdir / "checkpoints").iterdir():
        saved = json.loads((path / "_CHECKPOINT_METADATA").read_text())
        arrays[path.name] = json.loads(saved["custom_metadata"]["content"])["arrays"]
    return metric_lines(workdir), arrays


def test_a_lost_host_ends_the_other_processes_and_the_run_resumes(
    hosts, one_phase_of, metric_lines, kills, monkeypatch, tmp_path
):
    name, python = hosts
    moments = random.Random(kills)
    # The timeout and a shorter time, in seconds.
    timeout, moment = (30, 5) if kills else (6, 1)
    faults = [moments.choice(FAULTS) for _ in range(kills)] if kills else SHORT
    logs = tmp_path / "logs"
    arguments = [
        f"--config={one_phase_of(0)}", f"--phases[0].steps={STEPS}",
        "--checkpoint_every=7", "--eval_every=1000", "--prompts=()",
    ]  # fmt: skip

    # A sum of two numbers has one order, so two processes equal one with two devices.
    with monkeypatch.context() as patch:
        patch.setattr(
            pretrain, "make_mesh", lambda config: make_mesh(config, jax.devices()[:2])
        )
        train.main([*arguments, f"--workdir={tmp_path / 'whole'}"])
    expected = contents(tmp_path / "whole", metric_lines)

    waiting, number, seconds = [*faults], 0, []
    while waiting:
        number += 1
        workdir = tmp_path / f"{number}"
        script = [
            REPOSITORY / "launch/local_processes.sh", "--processes", 2, "--devices", 1,
            "--logs", logs, "--port", 29_417, "--restarts", len(faults), "--",
            *arguments, "--workdir", workdir, f"--heartbeat_timeout={timeout}",
        ]  # fmt: skip
        with contextlib.ExitStack() as stack:
            job = stack.enter_context(
                subprocess.Popen(
                    [*map(str, script)],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    env=os.environ | ENVIRONMENT | {"PYTHON": str(python)},
                    start_new_session=True,
                )
            )
            stack.callback(end_all, job.pid)
            at, lost, printed = 2 * moments.randint(4, STEPS // 4), [], []
            for line in job.stdout:
                printed.append(line)
                step = re.match(r"step (\d+)/", line)
                if step and int(step[1]) >= at and waiting:
                    fault, began = waiting.pop(0), time.monotonic()
                    at = int(step[1]) + moments.randint(2, 8)
                    if fault == "stopped":
                        os.kill(process_of(1, workdir), signal.SIGSTOP)
                    else:
                        ip(f"link set {name}1 down")
                    if fault == "cut for a moment":
                        time.sleep(moment)
                        ip(f"link set {name}1 up")
                    else:
                        lost.append(fault)
                elif "Terminating process because" in line:
                    seconds.append(time.monotonic() - began)
                    if fault == "stopped":  # the test then need not wait for its end
                        os.kill(process_of(1, workdir), signal.SIGCONT)
            job.wait()
        output = "".join(printed) + python.with_name("said").read_text()
        assert job.returncode == 0, output
        assert "Traceback" not in output, output
        assert (
            len(lost) == output.count("starting again") == output.count("resuming at")
        )
        assert contents(workdir, metric_lines) == expected, faults
    print(f"{faults}; to the end of the others: {seconds}")
    assert len(seconds) == sum(fault != "cut for a moment" for fault in faults)
    if kills:  # make test-all may run on a machine of any speed
        assert all(found < 2 * timeout for found in seconds)
