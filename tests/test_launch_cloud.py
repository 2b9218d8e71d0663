"""The files for clouds: their form, the commands in them, and the versions in the image.

The last test needs `pip install skypilot`, which has a hundred requirements.
"""

import contextlib
import math
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bert_jax.commands import cli, train
from bert_jax.commands.config_file import parse
from bert_jax.errors import PREEMPTED
from bert_jax.training.config import train_config

ROOT = Path(__file__).parent.parent
JOBSET = yaml.safe_load((ROOT / "launch/gke.yaml").read_text())
[SLICES] = JOBSET["spec"]["replicatedJobs"]
JOB = SLICES["template"]["spec"]
POD = JOB["template"]["spec"]
[CONTAINER] = POD["containers"]
SKY = yaml.safe_load((ROOT / "launch/sky.yaml").read_text())


def form(value):
    """The structure of a value: keys, and the types of strings, numbers and flags."""
    if isinstance(value, dict):
        return {key: form(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [form(value[0])]
    return type(value)


def settings_of(command, monkeypatch):
    """(config, workdir, flags) that `bert_jax train` reads from a command."""
    monkeypatch.chdir(ROOT)
    assert [Path(command[0]).name, command[1]] == ["bert_jax", "train"]
    flags = cli.JOB_FLAGS | {"change_settings": False}
    return parse(command[2:], train.__doc__, train_config, flags)


def test_the_jobset_has_the_fields_of_the_api():
    chips = {"google.com/tpu": int}
    pod = {
        "restartPolicy": str,
        "terminationGracePeriodSeconds": int,
        "serviceAccountName": str,
        "nodeSelector": {
            "cloud.google.com/gke-tpu-accelerator": str,
            "cloud.google.com/gke-tpu-topology": str,
        },
        "containers": [
            {
                "name": str,
                "image": str,
                "command": [str],
                "ports": [{"containerPort": int}],
                "resources": {"requests": chips, "limits": chips},
            }
        ],
    }
    code = {"containerName": str, "operator": str, "values": [int]}
    job = {
        "parallelism": int,
        "completions": int,
        "backoffLimit": int,
        "podFailurePolicy": {"rules": [{"action": str, "onExitCodes": code}]},
        "template": {"spec": pod},
    }
    exclusive = "alpha.jobset.sigs.k8s.io/exclusive-topology"
    rule = {"name": str, "action": str, "onJobFailureReasons": [str]}
    assert form(JOBSET) == {
        "apiVersion": str,
        "kind": str,
        "metadata": {"name": str, "annotations": {exclusive: str}},
        "spec": {
            "failurePolicy": {"maxRestarts": int, "rules": [rule]},
            "replicatedJobs": [
                {"name": str, "replicas": int, "template": {"spec": job}}
            ],
        },
    }


def test_the_jobset_has_a_process_for_each_host_of_the_slice(monkeypatch):
    topology = POD["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
    chips = CONTAINER["resources"]["limits"]["google.com/tpu"]
    hosts = math.prod(map(int, topology.split("x"))) // chips
    assert JOB["parallelism"] == JOB["completions"] == hosts == 4
    assert CONTAINER["resources"]["requests"] == CONTAINER["resources"]["limits"]
    config, workdir, flags = settings_of(CONTAINER["command"], monkeypatch)
    assert flags["distributed"]
    assert config.mesh.replica == SLICES["replicas"]
    assert workdir.startswith("gs://")
    assert config.data.path.startswith("gs://")


def test_only_an_error_of_the_user_ends_the_jobset():
    [rule] = JOB["podFailurePolicy"]["rules"]
    codes = rule["onExitCodes"]
    assert rule["action"] == "FailJob"
    assert (codes["operator"], codes["values"]) == ("In", [2])
    assert codes["containerName"] == CONTAINER["name"]
    [rule] = JOBSET["spec"]["failurePolicy"]["rules"]
    assert rule["action"] == "FailJobSet"
    assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    assert (
        POD["restartPolicy"] == "Never"
    )  # Kubernetes requires this together with a policy
    assert JOB["backoffLimit"] == 0  # otherwise a single pod would restart


def test_the_line_of_gcluster_makes_the_same_job():
    text = (ROOT / "launch/README.md").read_text().replace("\\\n", " ")
    [line] = re.findall(r"^gcluster job submit (.*?)^```", text, flags=re.M | re.S)
    words = shlex.split(line)
    by_flag = dict(zip(words[::2], words[1::2], strict=True))
    assert shlex.split(by_flag["--command"]) == CONTAINER["command"]
    assert by_flag["--name"] == JOBSET["metadata"]["name"]
    assert by_flag["--image"] == CONTAINER["image"]
    assert by_flag["--service-account"] == POD["serviceAccountName"]
    selector = POD["nodeSelector"]
    assert by_flag["--topology"] == selector["cloud.google.com/gke-tpu-topology"]
    table = (ROOT / "launch/gke.yaml").read_text()
    accelerator = selector["cloud.google.com/gke-tpu-accelerator"]
    assert re.search(rf"{by_flag['--compute-type']} +{accelerator} ", table)
    assert by_flag["--num-slices"] == str(SLICES["replicas"])
    restarts = JOBSET["spec"]["failurePolicy"]["maxRestarts"]
    assert by_flag["--restarts"] == str(restarts)
    minutes = int(by_flag["--grace-period"].removesuffix("m"))
    assert 60 * minutes == POD["terminationGracePeriodSeconds"]
    again = {int(code) for code in by_flag["--restart-on-exit-codes"].split(",")}
    assert again >= {1, PREEMPTED, 134, 135, 137}
    assert 2 not in again


def test_the_task_of_skypilot_has_the_fields_of_its_format():
    assert form(SKY) == {
        "name": str,
        "workdir": str,
        "envs": {"BUCKET": type(None), "TRAIN": str},  # SkyPilot requires BUCKET
        "resources": {
            "infra": str,
            "accelerators": str,
            "disk_size": int,
            "autostop": {"idle_minutes": int, "down": bool},
            "job_recovery": {"recover_on_exit_codes": [int]},
        },
        "setup": str,
        "run": str,
    }
    recovery = SKY["resources"]["job_recovery"]
    assert recovery == {"recover_on_exit_codes": [PREEMPTED]}


@pytest.mark.parametrize("part", ["setup", "run"])
def test_shellcheck_has_no_complaints_about_the_task_of_skypilot(part):
    checker = shutil.which("shellcheck", path=Path(sys.executable).parent)
    if checker is None:
        pytest.skip("shellcheck is not installed: pip install -e '.[test]'")
    done = subprocess.run(
        [checker, "--shell=bash", "-"], input=SKY[part], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def run_task(folder, part, programs, **variables):
    """The arguments of each program that a part of the task calls."""
    (folder / ".venv/bin").mkdir(parents=True)
    for path in (*(folder / name for name in programs), folder / ".venv/bin/bert_jax"):
        path.write_text('#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@"\n')
        path.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", SKY[part]],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PATH": f"{folder}:/usr/bin:/bin", **variables},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


HOSTS = {
    "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NODE_RANK": "1",
}


@pytest.mark.parametrize(("programs", "device"), [([], "tpu"), (["nvidia-smi"], "gpu")])
def test_the_task_of_skypilot_installs_and_runs(
    programs, device, tmp_path, monkeypatch
):
    setup = run_task(tmp_path / "setup", "setup", ["uv", *programs])
    assert setup[-7:] == shlex.split(
        f"uv pip install -c constraints.txt -e .[{device},gcs]"
    )
    train = {"BUCKET": "b", "TRAIN": SKY["envs"]["TRAIN"], **HOSTS}
    command = run_task(tmp_path / "run", "run", programs, **train)
    config, workdir, flags = settings_of(command, monkeypatch)
    assert (config.data.path, workdir) == ("gs://b/text", "gs://b/bert")
    if device == "tpu":
        assert flags["distributed"]
    else:
        assert not flags["distributed"]
        assert flags["coordinator_address"] == "10.0.0.7:8476"
        assert (flags["num_processes"], flags["process_id"]) == (2, 1)


def needed_by(requirements):
    """The names of all packages that pip installs for some lines of requirements.

    The test's environment answers, so requirements of other packages are missing.
    """
    visited, left = set(), [Requirement(line) for line in requirements]
    while left:
        wanted = left.pop()
        if (key := (canonicalize_name(wanted.name), *sorted(wanted.extras))) in visited:
            continue
        visited.add(key)
        with contextlib.suppress(metadata.PackageNotFoundError):
            for line in metadata.requires(wanted.name) or []:
                marker = (requirement := Requirement(line)).marker
                extras = wanted.extras or {""}
                if not marker or any(marker.evaluate({"extra": x}) for x in extras):
                    left.append(requirement)
    return {name for name, *_ in visited}


def lines_of(file):
    """The lines of requirements.txt or constraints.txt, without comments."""
    lines = (ROOT / file).read_text().splitlines()
    bare = [line.partition("#")[0].strip() for line in lines]
    return [line for line in bare if line]


def test_the_image_has_the_versions_of_the_constraints():
    """Docker could run each instruction in this clone."""
    text = (ROOT / "launch/Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line and line[0] != "#"]
    copied = set()
    for instruction, *words in lines:
        if instruction == "COPY":
            assert all((ROOT / name).exists() for name in words[:-1]), words
            copied |= {*words[:-1]}
        elif instruction == "RUN":
            assert " ".join(words) == (
                "pip install --no-cache-dir -c constraints.txt -e '.[tpu,gcs]'"
            )
            # The files that this command reads. The code may follow.
            assert copied == {
                *("constraints.txt", "requirements.txt", "pyproject.toml", "setup.py"),
                *("README.md", "bert_jax/__init__.py"),
            }
    assert copied >= {"bert_jax", "experiments"}


def test_constraints_pin_everything_that_is_installed():
    pinned = {line.partition("==")[0] for line in lines_of("constraints.txt")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = lines_of("requirements.txt")
    for name in ("tpu", "gcs", "tfds", "test", "docs"):
        lines = project["optional-dependencies"][name]
        needed += [line for line in lines if not line.startswith("bert_jax[")]
    assert needed_by(needed) <= pinned


@pytest.mark.long
def test_the_jobset_is_one_of_the_models_of_jobset():
    models = pytest.importorskip("kubeflow_trainer_api.models")
    read = models.JobsetV1alpha2JobSet.from_dict(JOBSET).to_dict()
    [job] = read["spec"]["replicatedJobs"]
    [container] = job["template"]["spec"]["template"]["spec"]["containers"]
    for port in container["ports"]:
        assert port.pop("protocol") == "TCP"  # the only default added by the models
    assert read == JOBSET  # unknown fields would be missing


@pytest.mark.long
def test_skypilot_reads_its_task(monkeypatch):
    sky = pytest.importorskip("sky")
    monkeypatch.chdir(ROOT)
    task = sky.Task.from_yaml_config(dict(SKY), env_overrides=[("BUCKET", "b")])
    [resources] = task.resources
    assert resources.accelerators == {"tpu-v6e-8": 1}
    assert task.envs["BUCKET"] == "b"
