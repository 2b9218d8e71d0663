"""The finetune command in a process. tests/training tests the runs themselves."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.commands import finetune
from bert_jax.errors import UserError

REPOSITORY = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def files(finetune_folder):
    return finetune_folder


@pytest.fixture(scope="module")
def start():
    """A function that starts the command with text pipes for output and errors."""

    def start(*arguments, **environment):
        return subprocess.Popen(
            [sys.executable, "-m", "bert_jax", "finetune", *map(str, arguments)],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )

    return start


@pytest.fixture(scope="module")
def command(start):
    """A function that runs the command and returns its exit code and output."""

    def command(*arguments, **environment):
        with start(*arguments, **environment) as process:
            output = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, *output)

    return command


# Twelve steps in three epochs, with dropout and packed rows, so that losses are noticed.
RESUMED = (
    "--epochs=3", "--batch_size=2", "--sweep.epochs=(3,)",
    "--sweep.batch_size=(2,)",
    "--model.hidden_dropout=0.1", "--model.attention_dropout=0.1",
)  # fmt: skip


def of_a_run(workdir, metric_lines):
    """The results of a run that must be equal bit for bit."""
    results = json.loads((workdir / "results.json").read_text())
    return (
        metric_lines(workdir),
        {k: v for k, v in results.items() if not k.endswith("_seconds")},
        {
            path.relative_to(workdir): path.read_bytes()
            for path in sorted(workdir.glob("predictions/*"))
        },
    )


@pytest.fixture(scope="module")
def uninterrupted(command, files, tmp_path_factory):
    """The workdir of an undisturbed sweep, and its output."""
    path = tmp_path_factory.mktemp("whole")
    arguments = ("--sweep", "--config", files / "config.py", "--workdir", path)
    done = command(*arguments, *RESUMED)
    assert done.returncode == 0, done.stderr
    return path, done.stdout


@pytest.mark.long
def test_a_sweep_finishes_and_does_not_run_again(command, uninterrupted, files):
    workdir, output = uninterrupted
    names = [f"batch2-rate0.001-epochs3-seed{seed}" for seed in (5, 6)]
    assert all(f"== {name}" in output for name in names)
    table = json.loads((workdir / "sweep.json").read_text())
    (point,) = table["variants"].values()
    assert len(point["scores"]["accuracy"]["scores"]) == 2
    assert (workdir / "best" / "model.safetensors").is_file()
    for name in names:
        for picture in ("curves.png", "predictions/dev.confusion.png"):
            content = (workdir / "sweep" / name / picture).read_bytes()
            assert content.startswith(b"\x89PNG")
    next_line = f"next: bert_jax evaluate --checkpoint {workdir} --input FILE"
    arguments = ("--sweep", "--config", files / "config.py", "--workdir", workdir)
    second = command(*arguments, *RESUMED)
    assert second.returncode == 0, second.stderr
    assert second.stderr.splitlines()[-1] == next_line
    assert "==" not in second.stdout
    assert second.stdout.splitlines() == output.splitlines()[-6:]


@pytest.mark.long
def test_sigterm_saves_a_checkpoint_and_ends_with_75(
    start, command, files, uninterrupted, metric_lines, tmp_path
):
    arguments = ("--config", files / "config.py", "--workdir", tmp_path, *RESUMED)
    point = "--optimizer.learning_rate=1e-3", "--seed=5"  # of the sweep
    arguments = (*arguments, *point, "--checkpoint_every=1000")
    process = start(*arguments, PYTHONUNBUFFERED="1")
    with process:
        for line in process.stdout:
            if line.startswith("step 3/"):
                process.send_signal(signal.SIGTERM)
        last = process.stderr.read().splitlines()[-1]
    assert process.returncode == 75
    assert "asked to stop after step" in last
    assert "the same command resumes there" in last
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] >= ["3"]
    done = command(*arguments)
    assert done.returncode == 0, done.stderr
    assert "resuming at step" in done.stdout
    other = uninterrupted[0] / "sweep/batch2-rate0.001-epochs3-seed5"
    assert of_a_run(tmp_path, metric_lines) == of_a_run(other, metric_lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--optimizer.warmpu=0"], "did you mean --optimizer.warmup?"),
        (["--epochs=0"], "epochs=0, expected at least 1"),
        (["--init_from="], "set init_from"),
        (["--init_from=nowhere"], "nowhere does not exist"),
        (
            ["--data.dir=nowhere"],
            "and 7 more (it is empty or does not exist); set data.dir",
        ),
        (["--data.max_length=17"], "exceeds the model's 16 positions"),
        (["extra"], "unexpected argument 'extra'"),
        (["--learning_rate=3e-4"], "did you mean --optimizer.learning_rate?"),
    ],
)
def test_a_wrong_command_line_is_a_one_line_error(arguments, message, files, tmp_path):
    flags = ["--config", str(files / "config.py"), "--workdir", str(tmp_path)]
    for sweep in ([], ["--sweep"]):
        with pytest.raises(UserError) as error:
            finetune.main([*flags, *sweep, *arguments])
        assert message in str(error.value)
        assert "\n" not in str(error.value)
        assert {path.name for path in tmp_path.iterdir()} <= {".lock"}
