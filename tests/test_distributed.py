"""Jobs of several processes, as on several hosts."""

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from etils import epath
from safetensors.numpy import load_file

from bert_jax.commands import config_file
from bert_jax.settings import to_dict
from bert_jax.training.config import train_config
from bert_jax.training.pretrain import pretrain
from bert_jax.training.workdir import RunFolder

REPOSITORY = Path(__file__).parent.parent
STEPS = 32  # a few seconds, so that a test can stop the run
# Rows are split over half of the devices, heads and feed-forward over 2. The job of four
# processes has 8 devices and the other jobs have 4, for the same run.
RUN = ("--mesh.data=-1", "--mesh.model=2")
LONG = (*RUN, f"--phases[0].steps={STEPS}")
# Between processes gradients are summed in another order.
TOLERANCE = 2e-5
# Gloo, which connects CPUs, prints this line for each process. Its threads can interrupt
# lines of each other.
GLOO = "[Gloo] Rank is connected to peer ranks. Expected number of ranks is :"


@pytest.fixture(scope="module")
def one_phase(one_phase_of, small_store):
    """A config with one compilation per process and a text that the run prepares."""
    path = one_phase_of(0)
    text = small_store[0].parent / "text.txt"
    path.write_text(
        path.read_text()
        + f"""
one_phase = get_config

def get_config():
    config = one_phase()
    config["data"] |= dict(path="", vocabulary_size={small_store[1]}, corpus=("{text}",))
    return config
"""
    )
    return path


def start(processes, logs, *arguments, devices=4, command="train"):
    """Starts launch/local_processes.sh with a text pipe as output."""
    script = [
        REPOSITORY / "launch/local_processes.sh", "--command", command,
        "--processes", processes, "--devices", devices // processes,
        "--logs", logs, "--caches", logs.parent / "caches", "--restarts", 0,
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


def start_each(port, command, *arguments, processes=2, started=(0, 1)):
    """Starts processes of a command without a launcher."""
    command = [sys.executable, "-m", "bert_jax", command, *map(str, arguments)]
    command += [f"--num_processes={processes}"]
    command += [f"--coordinator_address=127.0.0.1:{port}"]
    return [
        subprocess.Popen(
            [*command, f"--process_id={process}"],
            cwd=REPOSITORY,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"},
        )
        for process in started
    ]


def finish(job, logs):
    """The exit code of a job, and the output of all its processes."""
    output, _ = job.communicate()
    others = "".join(path.read_text() for path in sorted(logs.glob("*.log")))
    return job.returncode, output + others


def wait_for_step(job, wanted):
    """The output of a job until it has done ``wanted`` updates."""
    printed = ""
    for line in job.stdout:
        printed += line
        step = re.match(r"step (\d+)/", line)
        if step and int(step[1]) >= wanted:
            return printed
    raise AssertionError(f"the job ended before: {printed}")


@pytest.fixture
def check_equal(one_phase, metric_lines, tmp_path):
    """A function that compares a workdir's metrics to a run of this process."""

    def check(workdir, *flags):
        reference = tmp_path / "one"
        argv = ["--config", str(one_phase), *flags]
        pretrain(
            config_file.parse(argv, "bert_jax train", train_config).config, reference
        )
        lines, expected = metric_lines(workdir), metric_lines(reference)
        assert len(lines) == len(expected)
        for line, other in zip(lines, expected, strict=True):
            assert line == pytest.approx(other, abs=TOLERANCE)

    return check


SIGNAL = """
import itertools
import os
import signal
import sys
from bert_jax.training import pretrain, pretrain_evaluation, run

def interrupt(module, name, call):
    original, calls = getattr(module, name), itertools.count(1)

    def interrupted(*args, **kwargs):
        if next(calls) == call:
            os.kill(os.getpid(), signal.{number})
        return original(*args, **kwargs)

    setattr(module, name, interrupted)

if sys.argv[sys.argv.index("--process_id") + 1] == "1":
    interrupt({function}, {call})
"""


def with_signal(config, path, number, function, call):
    """A copy of a config whose process 1 sends itself a signal at a call of a function."""
    prelude = SIGNAL.format(number=number, function=function, call=call)
    path.write_text(prelude + config.read_text())
    return path


def killed_after(step, config, path):
    """A copy of a config whose process 1 is killed after a step and before its save."""
    # The first call is before the first step.
    return with_signal(config, path, "SIGKILL", 'run, "call_hooks"', step + 1)


def check_lost(code, output):
    """A collective fails with one line and code 75, or JAX ends the other process."""
    assert code in (75, 137), output
    count = output.count("error: another process failed or was lost")
    assert count == 1 or (code == 137 and count == 0), output
    assert "Traceback" not in output, output


@pytest.mark.long
def test_two_processes_train_as_one(check_equal, one_phase, tmp_path):
    logs = tmp_path / "logs"
    no_prompts = "--prompts=()"
    arguments = ("--config", one_phase, "--workdir", tmp_path / "run", *RUN)
    job = start(2, logs, *arguments, no_prompts)
    code, output = finish(job, logs)
    assert code == 0, output
    check_equal(tmp_path / "run", no_prompts)  # on one device
    (other,) = [path.read_text() for path in logs.iterdir()]
    # Only process 0 logs.
    assert set(re.findall(r"[^\s\d]+", other)) <= set(GLOO.split())


@pytest.mark.long
def test_a_killed_or_stopped_run_resumes_with_other_hosts(
    check_equal, one_phase, bucket, tmp_path
):
    """One of two processes is killed; four get SIGTERM; one process finishes the run.

    The workdir is gs://, and no process reads a file of another process's disk.
    """
    logs = tmp_path / "logs"
    arguments = ("--workdir", bucket, *LONG)
    # The save at step 8 has waited for the save at step 4.
    killed = killed_after(10, one_phase, tmp_path / "killed.py")
    code, output = finish(start(2, logs, "--config", killed, *arguments), logs)
    assert "preparing" in output
    check_lost(code, output)

    # Checkpoints are so rare that the next one is due to the signal.
    shutil.rmtree(tmp_path / "caches")
    arguments = ("--config", one_phase, *arguments, "--change_settings")
    seldom = (*arguments, "--checkpoint_every=1000")
    job = start(4, logs, *seldom, devices=8)
    printed = wait_for_step(job, 16)
    assert re.search(r"resuming at step (4|8)\b", printed), printed
    assert "preparing" not in printed
    job.send_signal(signal.SIGTERM)
    code, output = finish(job, logs)
    assert code == 75, output
    stopped = re.search(rf"asked to stop after step (\d+) of {STEPS}; saved", output)
    assert stopped, output
    newest = max(int(p.name) for p in (epath.Path(bucket) / "checkpoints").iterdir())
    assert newest == int(stopped[1])

    code, output = finish(start(1, logs, *arguments), logs)
    assert code == 0, output
    assert f"resuming at step {newest}" in output
    assert "gcsfs" not in output
    folder = RunFolder(bucket)
    folder.fetch()
    check_equal(folder.local, *LONG)


FINE_TUNING = (
    *("--mesh.data=-1", "--mesh.model=2", "--mesh.fsdp=True"),
    *("--epochs=3", "--batch_size=2", "--checkpoint_every=2"),
    *("--model.hidden_dropout=0.1", "--model.attention_dropout=0.1"),
)


@pytest.mark.long
def test_fine_tuning_resumes_with_other_hosts(
    finetune_folder, bucket, metric_lines, tmp_path
):
    """On one process; on two, until one is killed; on four. The workdir is gs://.

    Heads and feed-forward are split over two devices, matrices over all devices.
    """
    logs = tmp_path / "logs"
    arguments = ("--config", finetune_folder / "config.py", *FINE_TUNING)
    fine_tune = functools.partial(start, command="finetune")
    workdir = tmp_path / "one"
    job = fine_tune(1, logs, *arguments, "--workdir", workdir)
    code, output = finish(job, logs)
    assert code == 0, output

    killed = killed_after(7, finetune_folder / "config.py", tmp_path / "killed.py")
    arguments = (*FINE_TUNING, "--workdir", bucket)
    check_lost(*finish(fine_tune(2, logs, "--config", killed, *arguments), logs))

    shutil.rmtree(tmp_path / "caches")
    arguments = ("--config", finetune_folder / "config.py", *arguments)
    code, output = finish(fine_tune(4, logs, *arguments), logs)
    assert code == 0, output
    assert re.search(r"resuming at step [46]\b", output), output
    folder = RunFolder(bucket)
    folder.fetch()
    lines, expected = metric_lines(folder.local), metric_lines(workdir)
    assert len(lines) == len(expected)
    for line, other in zip(lines, expected, strict=True):
        assert line == pytest.approx(other, abs=TOLERANCE)
    results, expected = (
        json.loads((path / "results.json").read_text())
        for path in (folder.local, workdir)
    )
    assert results["scores"] == expected["scores"]
    assert results["best_epoch"] == expected["best_epoch"]
    weights, expected = (
        load_file(path / "best/model.safetensors") for path in (folder.local, workdir)
    )
    assert weights.keys() == expected.keys()
    for name, array in weights.items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-4)
    assert not (epath.Path(bucket) / "checkpoints").exists()


@pytest.mark.long
def test_two_processes_stop_early_together(finetune_folder, tmp_path):
    """Dev scores stay equal at a tiny learning rate. A killed run keeps its count."""
    logs, workdir = tmp_path / "logs", tmp_path / "run"
    config = finetune_folder / "config.py"
    arguments = ("--workdir", workdir, "--epochs=6", "--patience=3")
    arguments += ("--optimizer.learning_rate=1e-9",)
    fine_tune = functools.partial(start, command="finetune")
    # There are two steps in an epoch, and one evaluation was not better.
    killed = killed_after(5, config, tmp_path / "killed.py")
    check_lost(*finish(fine_tune(2, logs, "--config", killed, *arguments), logs))
    code, output = finish(fine_tune(2, logs, "--config", config, *arguments), logs)
    assert code == 0, output
    assert re.search(r"resuming at step [24]\b", output), output
    assert "stopped early after step 8 of 12: 3 evaluations without" in output
    assert json.loads((workdir / "results.json").read_text())["stopped_at"] == 8


@pytest.mark.long
def test_processes_of_different_runs_end_with_one_line(one_phase, tmp_path):
    config = tmp_path / "seeds.py"
    config.write_text(
        one_phase.read_text()
        + """
import sys
same = get_config

def get_config():
    config = same()
    config["seed"] += sys.argv[sys.argv.index("--process_id") + 1] == "1"
    return config
"""
    )
    logs = tmp_path / "logs"
    job = start(2, logs, "--config", config, "--workdir", tmp_path / "run")
    code, output = finish(job, logs)
    assert code == 2
    error = "process 1 and process 0 differ in config or data; start all with the same"
    assert output.count(error) == 2  # one line from each process
    assert "Traceback" not in output
    assert not (tmp_path / "run/config.json").exists()


@pytest.mark.long
def test_damaged_text_ends_all_processes_before_the_first_save(
    one_phase_of, small_store, tmp_path
):
    store = shutil.copytree(small_store[0], tmp_path / "store")
    (shard,) = store.glob("shard-*")
    ids = np.fromfile(shard, "<u2")
    ids[::9] = 7
    ids.tofile(shard)
    logs, workdir = tmp_path / "logs", tmp_path / "run"
    config = "--config", one_phase_of(0), f"--data.path={store}", "--workdir", workdir
    code, output = finish(start(2, logs, *config), logs)
    assert code == 2
    assert output.count(f"error: {shard} is damaged (") == 2, output
    assert "Traceback" not in output
    assert list((workdir / "checkpoints").iterdir()) == []


DAMAGED_ROWS = """
import sys
from bert_jax.data.pipeline import TrainingBatches
from bert_jax.errors import UserError
get_batch = TrainingBatches.__getitem__

def damaged(batches, step):
    if step == 2:
        raise UserError("shard-0 is damaged")
    return get_batch(batches, step)

if "--process_id=1" in sys.argv:
    TrainingBatches.__getitem__ = damaged
"""


@pytest.mark.long
def test_damaged_rows_of_one_process_end_all(one_phase_of, port, tmp_path):
    config = tmp_path / "config.py"
    config.write_text(DAMAGED_ROWS + one_phase_of(0).read_text())
    jobs = start_each(port, "train", "--config", config, "--workdir", tmp_path / "run")
    first, other = (job.communicate()[1] for job in jobs)
    assert "error: shard-0 is damaged" in other.splitlines()
    # A launcher stops at code 2, and starts the other codes again.
    assert jobs[1].returncode == 2
    assert jobs[0].returncode in (75, -signal.SIGABRT), first
    assert "Traceback" not in first + other


def another_run(workdir):
    argv = ["--config", "experiments/tiny.py"]
    config = config_file.parse(argv, "bert_jax train", train_config).config
    (workdir / "config.json").write_text(json.dumps(to_dict(config)))
    (workdir / "results.json").write_text("{}")


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "prepare", "line"),
    [
        ("train", another_run, "contains a run with other settings"),
        (  # after all checks
            "train",
            lambda workdir: (workdir / "config.json").mkdir(),
            "config.json is a folder; expected",
        ),
        (  # after the last step
            "finetune",
            lambda workdir: (workdir / "predictions").write_text(""),
            "/predictions",
        ),
    ],
    ids=["another run", "first files", "predictions"],
)
def test_an_error_of_process_0_is_one_line_in_each(
    command, prepare, line, one_phase_of, finetune_folder, port, tmp_path
):
    config = {
        "train": one_phase_of(0),
        "finetune": finetune_folder / "config.py",
    }[command]
    workdir = tmp_path / "run"
    workdir.mkdir()
    prepare(workdir)
    jobs = start_each(port, command, "--config", config, "--workdir", workdir)
    first, other = (job.communicate()[1] for job in jobs)
    assert [job.returncode for job in jobs] == [2, 2], first + other
    errors = [x for x in first.splitlines() if x.startswith("error: ")]
    assert len(errors) == 1 and line in errors[0], first
    assert other.replace(GLOO, "").strip().splitlines()[-1:] == [
        "error: process 0 failed and prints the reason; correct it and run the same "
        "command again"
    ], other
    assert "Traceback" not in first + other


@pytest.mark.long
@pytest.mark.parametrize(
    ("module", "name", "call", "earliest"),
    [
        ("pretrain", "open_text", 1, 1),  # preparation, in process 0
        ("run", "init_state", 1, 1),  # the first state
        ("pretrain_evaluation", "drawn_ahead", 2, 7),  # evaluation after step 6
    ],
)
def test_sigterm_takes_effect_at_the_next_step(
    one_phase, module, name, call, earliest, tmp_path
):
    """JAX needs several of the short steps of this run to agree on the last step."""
    logs = tmp_path / "logs"
    function = f'{module}, "{name}"'
    config = with_signal(one_phase, tmp_path / "c.py", "SIGTERM", function, call)
    arguments = ("--config", config, "--workdir", tmp_path / "run")
    arguments += ("--phases[0].steps=3000", "--checkpoint_every=3000")
    code, output = finish(start(2, logs, *arguments, devices=2), logs)
    assert code == 75, output
    stopped = re.findall(r"asked to stop after step (\d+) of 3000; saved", output)
    assert len(stopped) == 2 and stopped[0] == stopped[1], output
    assert int(stopped[0]) >= earliest
    checkpoints = {path.name for path in (tmp_path / "run/checkpoints").iterdir()}
    assert checkpoints == {stopped[0]}


@pytest.mark.long
def test_the_doctor_finds_two_processes_ready(tmp_path):
    logs = tmp_path / "logs"
    job = start(2, logs, "--workdir", tmp_path / "run", command="doctor")
    code, output = finish(job, logs)
    assert code == 0, output
    lines = [line for line in output.splitlines() if re.match("ok |failed |", line)]
    assert sum(line.startswith("ok ") for line in lines) == 10  # lines of process 0
    assert "ok devices: 4 x cpu, processes: 2" in output
    assert "ok collective: the sum of 1 to 4 over the devices is 10" in output
    assert output.count("\nready\n") == 1
    assert {path.name for path in tmp_path.iterdir()} - {"caches"} == {"logs"}


@pytest.mark.long
def test_a_missing_process_ends_the_other_processes(config_file, port, tmp_path):
    """JAX ends the processes with its own error, in which RegisterTask names the step."""
    arguments = ("--config", config_file, "--workdir", tmp_path, "--join_timeout=5")
    jobs = start_each(port, "train", *arguments, processes=3, started=(0, 2))
    errors = [job.communicate()[1] for job in jobs]
    assert [job.returncode for job in jobs] == [-signal.SIGABRT] * 2, errors
    assert "RegisterTask" in errors[0] + errors[1]
