"""Each command that writes files is killed and started again, and nothing is lost.

The signal is sent at a random moment, or at a phase such as a step of a checkpoint's save.
The short form sends SIGKILL, and one Ctrl-C during a save. The long form also sends
SIGTERM, uses a bucket, and kills one of four processes. The final files equal the files
of an undisturbed run bit for bit.

``make test`` kills a pretraining run twice, and ``make test-all`` runs nine kills. The
long form with 200 kills takes about 40 minutes:
``python -m pytest tests/faults/test_kills.py -n0 --kills 200``.
"""

import json
import os
import random
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from etils import epath

from bert_jax.files import write_text
from bert_jax.training.workdir import RunFolder
from tests.faults.ends import PHASES

ENDS = Path(__file__).parent / "ends.py"
# Number of kills of each work: in make test-all, and of the 200 of the long form.
SHARES = {
    "pretraining": (2, 40),
    "fine-tuning": (2, 40),
    "sweep": (1, 15),
    "prepare": (1, 28),
    "vocabulary": (1, 15),
    "convert": (1, 10),
    "embed": (1, 10),
    "pretraining in a bucket": (0, 20),
    "fine-tuning in a bucket": (0, 10),
    "pretraining as one of four": (0, 12),
}
# Phases that do not occur in pretraining, and in fine-tuning.
NOT_PRETRAINING = {
    "the best model is replaced",
    "a sweep's best model was replaced",
    "results were written",
}
NOT_FINE_TUNING = {"a sweep's best model was replaced"}
ENDS_OF_PRETRAINING = [
    {"signal": "SIGKILL", "phase": "metadata is written", "number": 2},
    {"signal": "SIGINT", "phase": "arrays are copied", "number": 1},
]
CODES = {"SIGKILL": [-9], "SIGTERM": [-15, 75], "SIGINT": [130]}
# Exit codes of a job in which one of four processes ends. JAX ends the others with 134.
JOB_CODES = {
    "SIGKILL": [137, 134, 75],
    "SIGTERM": [143, 134, 75],
    "SIGINT": [130, 134, 75],
}
# Replaces Python: ends.py ends one process of a job.
ONE_ENDS = """#!/usr/bin/env bash
if [[ "${{9-}}" == {victim} ]]; then shift 2 && exec {python} {ends} {how} "$@"; fi
exec {python} "$@"
"""
PRETRAINING = (
    "--checkpoint_every=2", "--eval_every=3", "--prompts=()",
)  # fmt: skip
FINE_TUNING = (
    "--epochs=3", "--batch_size=2", "--sweep.epochs=(3,)",
    "--sweep.batch_size=(2,)", "--checkpoint_every=2",
    "--model.hidden_dropout=0.1", "--model.attention_dropout=0.1",
)  # fmt: skip


@pytest.fixture
def run(tmp_path):
    """A function that runs a command and returns its exit code and output.

    how: when and by which signal the command ends, for ends.py.
    """
    environment = {
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }

    def run(module, argv, how):
        command = [sys.executable, ENDS, json.dumps(how), module]
        if module == "four":
            named = {
                "python": shlex.quote(sys.executable),
                "ends": shlex.quote(str(ENDS)),
                "how": shlex.quote(json.dumps(how)),
                "victim": how.get("process", "none"),
            }
            environment["PYTHON"] = str(tmp_path / "python")
            write_text(tmp_path / "python", ONE_ENDS.format(**named))
            (tmp_path / "python").chmod(0o755)
            launcher = ENDS.parent.parent.parent / "launch/local_processes.sh"
            command = [launcher, "--processes", "4", "--devices", "1"]
            command += ["--logs", tmp_path / "logs", "--restarts", "0"]
            command += ["--", "--join_timeout=15"]
        done = subprocess.run(
            [*command, *map(str, argv)],
            cwd=ENDS.parent.parent.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | environment,
        )
        logs = [path.read_text() for path in (tmp_path / "logs").glob("*.log")]
        return done.returncode, "".join([done.stdout, *logs])

    return run


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def works(one_phase_of, finetune_folder, golden, metric_lines, small_store, tmp_path):
    """By name: a command, a function of its flags, and a function of its results."""
    text = golden / "pretraining_data" / "moby_dick_sentences.txt"
    lines = tmp_path / "lines.txt"
    lines.write_text("it is good\nit is bad\n" * 500)
    config = one_phase_of(0)
    fine_tune = ("--config", finetune_folder / "config.py", *FINE_TUNING)

    def checkpoints(folder):
        """The checksums of all arrays, as saved by the run."""
        by_checkpoint = {}
        for path in epath.Path(folder).iterdir():
            saved = json.loads((path / "_CHECKPOINT_METADATA").read_text())
            content = json.loads(saved["custom_metadata"]["content"])
            progress = content["notes"]["progress"]
            for name in [*progress]:
                if name.endswith("seconds"):
                    del progress[name]
            by_checkpoint[path.name] = content
        return by_checkpoint

    def local(workdir):
        folder = RunFolder(workdir)
        folder.fetch()
        return folder.local

    def pretrained(workdir):
        return metric_lines(local(workdir)), checkpoints(workdir / "checkpoints")

    def fine_tuned(workdir):
        assert not (workdir / "checkpoints").exists()
        workdir = local(workdir)
        results = json.loads((workdir / "results.json").read_text())
        return (
            metric_lines(workdir),
            {k: v for k, v in results.items() if not k.endswith("_seconds")},
            contents(workdir / "predictions"),
        )

    def swept(workdir):
        runs = sorted((workdir / "sweep").glob("batch*"))
        return (
            json.loads((workdir / "sweep.json").read_text()),
            [(run.name, *fine_tuned(run)) for run in runs],
            contents(workdir / "best"),
        )

    pretrain = ("--config", config, *PRETRAINING)
    # The run prepares this text in the bucket.
    corpus = (
        "--data.path=",
        f"--data.corpus=('{text}',)",
        f"--data.vocabulary_size={small_store[1]}",
    )
    finetune = (
        "finetune",
        lambda place: (*fine_tune, "--workdir", place),
        lambda place: (fine_tuned(place), contents(local(place) / "best")),
    )
    return {
        "pretraining": (
            "train", lambda place: (*pretrain, "--workdir", place), pretrained
        ),
        "pretraining in a bucket": (
            "train", lambda place: (*pretrain, *corpus, "--workdir", place), pretrained
        ),
        "pretraining as one of four": (
            "four", lambda place: (*pretrain, "--workdir", place), pretrained
        ),
        "fine-tuning": finetune,
        "fine-tuning in a bucket": finetune,
        "sweep": (
            "finetune",
            lambda place: ("--sweep", *fine_tune, "--workdir", place),
            swept,
        ),
        "prepare": (
            "prepare",
            lambda place: (
                *("--input", text, "--vocabulary", small_store[0], "--output", place),
                *("--shards", 20, "--workers", 1),
            ),
            contents,
        ),
        "vocabulary": (
            "vocabulary",
            lambda place: ("--input", text, "--size", 900, "--output", place / "vocab.txt"),
            lambda place: {
                name: content
                for name, content in contents(place).items()
                if not name.endswith(".tmp")  # left by a killed process
            },
        ),
        "convert": (
            "convert",
            lambda place: (
                *("--checkpoint", finetune_folder / "checkpoint"),
                *("--output", place),
            ),
            contents,
        ),
        "embed": (
            "embed",
            lambda place: (
                *("--checkpoint", finetune_folder / "checkpoint", "--input", lines),
                *("--output", place / "x.npz"),
            ),
            lambda place: (place / "x.npz").read_bytes(),
        ),
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", SHARES)
def test_a_killed_command_ends_like_an_undisturbed_one(
    name, works, run, bucket, kills, tmp_path
):
    short, share = SHARES[name]
    left = share * kills // 200 if kills else short
    if not left:
        pytest.skip("only in the long form: --kills 200")
    module, flags, result = works[name]
    place = tmp_path
    if name.endswith("in a bucket"):
        place = epath.Path(bucket)
    moments = random.Random(kills or name)
    phases = []
    if name.startswith("pretraining"):
        phases = [phase for phase in PHASES if phase not in NOT_PRETRAINING]
    elif name.startswith("fine-tuning"):
        phases = [phase for phase in PHASES if phase not in NOT_FINE_TUNING]

    def end(seconds):
        """The signal of the next process, and its time or phase."""
        signals = ("SIGKILL",) * 4 + ("SIGTERM", "SIGINT") if kills else ("SIGKILL",)
        how = {"signal": moments.choice(signals)}
        if name == "pretraining" and not kills:
            return ENDS_OF_PRETRAINING[-left]
        if module == "four":
            how["process"] = moments.choice([0, 0, 0, 1, 2, 3])
        if phases and moments.random() < 0.6:
            number = moments.randint(1, 4 if kills else 2)
            return how | {"phase": moments.choice(phases), "number": number}
        return how | {"seconds": moments.uniform(0.05, seconds)}

    began = time.monotonic()
    how = {"reached": str(tmp_path / "reached")} if phases and module != "four" else {}
    code, output = run(module, flags(place / "whole"), how)
    assert code == 0, output
    if how:
        assert json.loads((tmp_path / "reached").read_text()) == sorted(phases)
    seconds = time.monotonic() - began
    expected, number, done = result(place / "whole"), 0, []
    while left:
        number += 1
        assert number <= 10 * (len(done) + 5), f"most signals had no effect: {how}"
        folder = place / str(number)
        code = None
        while code != 0:
            how = end(seconds) if left else {}
            began = time.monotonic()
            code, output = run(module, flags(folder), how)
            # A Ctrl-C in JAX's callback of the garbage collector is printed and ignored.
            if "Exception ignored in" not in output:
                assert "Traceback" not in output, (how, output)
            if code != 0:
                codes = JOB_CODES if module == "four" else CODES
                assert code in codes.get(how.get("signal"), ()), (how, output)
                left -= 1
                done.append((code, how))
            elif "seconds" in how:  # the signal was too late
                seconds = min(seconds, time.monotonic() - began)
            if name == "convert" and folder.exists():  # an existing folder is complete
                code = 0
        assert result(folder) == expected, done
    print(f"{name}: {len(done)} of {len(done)}, in {number} workdirs")
