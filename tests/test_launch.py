"""Launch scripts: their printed commands, and shellcheck."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
SCRIPTS = sorted((REPOSITORY / "launch").glob("*.sh"))
RUN = ("--workdir", "gs://b/bert", "--", "--config", "base")


def launch(script, *arguments):
    return subprocess.run(
        [REPOSITORY / "launch" / script, *arguments],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable},
    )


def tpu_vm(*arguments):
    return launch(
        "tpu_vm.sh", "--dry_run", "--name", "bert", "--zone", "z", *arguments, *RUN
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_has_no_complaints(script):
    checker = shutil.which("shellcheck", path=Path(sys.executable).parent)
    if checker is None:
        pytest.skip("shellcheck is not installed: pip install -e '.[test]'")
    done = subprocess.run([checker, script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_tpu_vm_is_created_installed_run_and_deleted():
    done = tpu_vm("--type", "v4-32", "--spot", "--project", "p")
    assert done.returncode == 0, done.stderr
    steps = [line for line in done.stdout.splitlines() if line.startswith("gcloud")]
    create, copy, install, run, delete = steps
    where = "--zone z --project p"
    assert create == (
        f"gcloud compute tpus queued-resources create bert {where} --accelerator-type "
        "v4-32 --runtime-version tpu-ubuntu2204-base --node-id bert --spot "
    )
    assert copy.endswith(f"bert:bert_jax.tar.gz {where} --worker=all ")
    assert "pip" in install
    assert "bert_jax\\ train\\ --distributed\\ --workdir\\ gs://b/bert" in run
    assert "--config\\ base" in run
    assert delete == (
        f"gcloud compute tpus queued-resources delete bert {where} --force --quiet "
    )


@pytest.mark.parametrize("script", ["tpu_vm.sh", "multislice.sh"])
def test_legacy_scripts_name_their_replacement(script):
    text = (REPOSITORY / "launch" / script).read_text()
    assert text.startswith("#!/usr/bin/env bash\n# The old way: ")
    shown = launch("tpu_vm.sh", "--help").stdout
    assert shown.startswith("The old way: ")
    assert "launch/gke.yaml" in shown
    assert "launch/sky.yaml" in shown


def test_slices_are_nodes_of_one_resource():
    done = launch(
        "multislice.sh", "--num_slices", "2", "--dry_run", "--name", "bert", "--zone",
        "z", "--type", "v5litepod-16", *RUN,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--node-count 2 --node-prefix bert" in done.stdout
    assert done.stdout.count("--mesh.replica=2") == 2  # one start on each slice
    for node in ("bert-0", "bert-1"):
        assert f"tpu-vm ssh {node}" in done.stdout
    assert "v2-alpha-tpuv5-lite" in done.stdout


def test_local_processes_get_their_numbers_and_address():
    done = launch(
        "local_processes.sh", "--processes", "3", "--devices", "4", "--port", "1234",
        "--dry_run", "--", "--config", "a b.py",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    for i, line in zip((2, 1, 0), lines, strict=True):
        assert "--coordinator_address 127.0.0.1:1234 --num_processes 3" in line
        assert line.endswith(f"--process_id {i} --config a\\ b.py ")


def stand_in_for_python(folder, script):
    """A fake Python for local_processes.sh, which gets its process number in $1."""
    path = folder / "python"
    path.write_text(
        f"""#!/usr/bin/env bash
cd {folder}
while [[ "$1" != --process_id ]]; do shift; done
shift
{script}
"""
    )
    path.chmod(0o755)
    return path


def start_again(folder, stand_in, *options):
    return subprocess.run(
        [
            REPOSITORY / "launch" / "local_processes.sh",
            *("--port", "1234", "--logs", folder / "logs", *options),
            *("--", "--config", "x.py", "--workdir", folder / "run"),
        ],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHON": str(stand_in)},
    )


@pytest.mark.parametrize(
    ("codes", "restarts", "code"),
    [
        ((75, 0), 1, 0),  # preempted, then finished
        ((137, 134, 1, 0), 3, 0),  # killed, ended by JAX, a bug, then finished
        ((75, 75), 1, 75),  # one restart more than allowed
        ((2, 0), 3, 2),  # an error of the user would occur again
    ],
)
def test_a_stopped_job_is_started_again(codes, restarts, code, tmp_path):
    """A fake Python exits with each code in turn."""
    (tmp_path / "codes").write_text("".join(f"{c}\n" for c in codes))
    stand_in = stand_in_for_python(
        tmp_path, 'code=$(head -1 codes) && sed -i 1d codes\nexit "$code"'
    )
    options = ("--processes", "1", "--restarts", str(restarts))
    done = start_again(tmp_path, stand_in, *options)
    assert done.returncode == code, done.stderr
    assert done.stdout.count("starting again") == len(codes) - (
        (tmp_path / "codes").read_text().count("\n") + 1
    )


def test_a_job_is_started_again_three_times_without_a_newer_checkpoint(tmp_path):
    """The first two starts save a checkpoint each."""
    stand_in = stand_in_for_python(
        tmp_path,
        "n=$(cat n || echo 0); echo $((n + 1)) >n\n"
        "mkdir -p run/checkpoints/$((n < 2 ? 10 * n : 10))/state\nexit 134",
    )
    done = start_again(tmp_path, stand_in, "--processes", "1")
    assert done.returncode == 134, done.stderr
    assert done.stdout.count("starting again") == 2 + 3
    assert (tmp_path / "n").read_text() == "6\n"


@pytest.mark.parametrize(
    ("codes", "code"),
    [((134, 2, 75), 2), ((75, 134, 0), 75), ((0, 137, 75), 75), ((0, 134, 0), 134)],
)
def test_the_code_of_a_job_is_2_then_75_then_another(codes, code, tmp_path):
    stand_in = stand_in_for_python(
        tmp_path, f"codes=({' '.join(map(str, codes))})\nexit ${{codes[$1]}}"
    )
    options = ("--processes", "3", "--restarts", "0")
    assert start_again(tmp_path, stand_in, *options).returncode == code


def test_processes_that_end_while_another_end_is_handled_are_not_waited_for(tmp_path):
    """Bash misses some processes that end at once, so 8 jobs have 8 processes each."""
    stand_in = stand_in_for_python(
        tmp_path,
        "if (($1 == 7)); then kill -9 $$; fi\nsleep 0.0$((RANDOM % 4))\nexit 75",
    )
    options = ("--processes", "8", "--restarts", "0")
    for _ in range(8):
        assert start_again(tmp_path, stand_in, *options).returncode == 75


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ("tpu_vm.sh", ["--zone", "z"], "--name is missing"),
        (
            "tpu_vm.sh",
            ["--name", "b", "--zone", "z", "--type", "v9-8"],
            "nothing to run",
        ),
        (
            "tpu_vm.sh",
            ["--name", "b", "--zone", "z", "--type", "v9-8", *RUN],
            "no runtime known for --type v9-8",
        ),
        (
            "tpu_vm.sh",
            ["--name", "b", "--zone", "z", "--type", "tpu7x-16", *RUN],
            "Cloud TPU's API has no TPU7x; use launch/gke.yaml",
        ),
        (
            "tpu_vm.sh",
            [
                "--name",
                "b",
                "--zone",
                "z",
                "--type",
                "v4-8",
                "--workdir",
                "/w",
                "--",
                "x",
            ],
            "expected gs://",
        ),
        ("tpu_vm.sh", ["--nam", "b"], "unknown option --nam"),
        ("local_processes.sh", [], "nothing to run"),
        ("local_processes.sh", ["--processes", "0", "--", "x"], "--processes 0"),
    ],
)
def test_wrong_arguments_are_a_one_line_error(script, arguments, message):
    done = launch(script, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
