"""Jobs of several processes, as several hosts would run them."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
STEPS = 39  # some seconds: time to stop it in
# Rows over half of the devices, heads and feed-forward over 2. The job of four has 16
# devices in all, the others 8: one run, whatever the mesh.
RUN = (
    "--config.mesh.data=-1",
    "--config.mesh.model=2",
    f"--config.phases[0].steps={STEPS}",
)
# Between processes the sums of gradients are added in another order.
TOLERANCE = 2e-5
# What Gloo, which joins CPUs, says of each process. Its threads break into one another's
# lines.
GLOO = "[Gloo] Rank is connected to peer ranks. Expected number of ranks is :"


def command(*arguments) -> list[str]:
    return [sys.executable, "-m", "bert_jax.train", *map(str, arguments)]


@pytest.fixture(scope="module")
def one_phase(one_phase_of):
    """One compilation for each process."""
    return one_phase_of(0)


def start(processes, logs, *arguments, devices=8):
    """launch/local_processes.sh, its output a pipe of text."""
    script = [
        REPOSITORY / "launch/local_processes.sh",
        "--processes", processes, "--devices", devices // processes, "--logs", logs,
        "--", *arguments,
    ]  # fmt: skip
    return subprocess.Popen(
        [*map(str, script)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHON": sys.executable, "PYTHONUNBUFFERED": "1"},
    )


def finish(job, logs):
    """Its exit code and output; that of the others where it fails."""
    output, _ = job.communicate()
    others = "".join(path.read_text() for path in sorted(logs.glob("*.log")))
    return job.returncode, output + others


def wait_for_step(job, wanted):
    """What a job prints until it has done ``wanted`` updates."""
    printed = ""
    for line in job.stdout:
        printed += line
        step = re.match(r"step (\d+)/", line)
        if step and int(step[1]) >= wanted:
            return printed
    raise AssertionError(f"the job ended before: {printed}")


@pytest.fixture(scope="module")
def one_process(one_phase, tmp_path_factory):
    """The workdir of a run of one process with all devices."""
    workdir = tmp_path_factory.mktemp("one")
    logs = workdir / "logs"
    code, output = finish(
        start(1, logs, "--config", one_phase, "--workdir", workdir, *RUN), logs
    )
    assert code == 0, output
    return workdir


@pytest.fixture
def check_equal(one_process, metric_lines):
    """A function that checks a workdir's metrics against those of one process."""

    def check(workdir):
        lines, expected = metric_lines(workdir), metric_lines(one_process)
        assert len(lines) == len(expected)
        for line, other in zip(lines, expected, strict=True):
            assert line == pytest.approx(other, abs=TOLERANCE)

    return check


def test_four_processes_train_as_one(check_equal, one_phase, tmp_path):
    logs = tmp_path / "logs"
    arguments = ("--config", one_phase, "--workdir", tmp_path / "run", *RUN)
    code, output = finish(start(4, logs, *arguments, devices=16), logs)
    assert code == 0, output
    check_equal(tmp_path / "run")
    others = [path.read_text() for path in logs.iterdir()]
    assert len(others) == 3
    # Only process 0 logs.
    words = {w for text in others for w in re.findall(r"[^\s\d]+", text)}
    assert words <= set(GLOO.split())


def test_killed_or_asked_to_stop_it_goes_on_with_other_hosts(
    check_equal, one_phase, tmp_path
):
    """Two processes, of which one is killed; four, which are asked to stop; then one."""
    logs = tmp_path / "logs"
    arguments = ("--config", one_phase, "--workdir", tmp_path / "run", *RUN)
    job = start(2, logs, *arguments)
    wait_for_step(job, 12)  # the save at step 10 waited for that at step 5
    victim = subprocess.run(
        ["pgrep", "-f", f"process_id 1 .*{tmp_path}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    os.kill(int(victim[0]), signal.SIGKILL)
    code, output = finish(job, logs)
    assert code not in (0, 75), output

    # So few checkpoints that the next is one on request.
    job = start(4, logs, *arguments, "--config.checkpoint_every=1000")
    printed = wait_for_step(job, 16)
    assert re.search(r"resuming at step (5|10)\b", printed), printed
    job.send_signal(signal.SIGTERM)
    code, output = finish(job, logs)
    assert code == 75, output
    stopped = re.search(rf"asked to stop after step (\d+) of {STEPS}; saved", output)
    assert stopped, output
    newest = max(int(p.name) for p in (tmp_path / "run/checkpoints").iterdir())
    assert newest == int(stopped[1])

    code, output = finish(start(1, logs, *arguments), logs)
    assert code == 0, output
    assert f"resuming at step {newest}" in output
    check_equal(tmp_path / "run")


def test_a_process_that_does_not_come_is_named(config_file, tmp_path):
    arguments = (
        "--config", config_file, "--workdir", tmp_path, "--num_processes=3",
        "--join_timeout=5",
    )  # fmt: skip
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    jobs = [
        subprocess.Popen(
            command(
                *arguments, f"--coordinator_address={address}", f"--process_id={i}"
            ),
            cwd=REPOSITORY,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for i, address in [(0, "127.0.0.1:36571"), (2, "127.0.0.1:36572")]
    ]
    errors = [job.communicate()[1] for job in jobs]
    assert [job.returncode for job in jobs] == [2, 2], errors
    assert errors[0].startswith("error: processes 1, 2 did not join within 5 s")
    assert errors[1].startswith(
        "error: process 0 at 127.0.0.1:36572 did not answer within 5 s"
    )
