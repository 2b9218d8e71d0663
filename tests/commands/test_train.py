"""The train command. tests/training tests the runs themselves."""

import contextlib
import dataclasses
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bert_jax.commands import cli
from bert_jax.commands import train as command
from bert_jax.commands.config_file import parse
from bert_jax.data.mixture import Text
from bert_jax.data.pipeline import TrainingBatches, eval_batches, split_documents
from bert_jax.data.store import TokenStore
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.training import pretrain
from bert_jax.training.config import train_config
from bert_jax.training.workdir import draw_run

REPOSITORY = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def train():
    """A function that runs the command or a program, and returns exit code and output."""

    def train(*arguments, program=("-m", "bert_jax.train"), **environment):
        return subprocess.run(
            [sys.executable, *program, *map(str, arguments)],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            env=os.environ | environment,
        )

    return train


@pytest.fixture(scope="module")
def uninterrupted(config_file, tmp_path_factory):
    """The workdir and the output of an undisturbed run of this process."""
    workdir = tmp_path_factory.mktemp("uninterrupted")
    output = io.StringIO()
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(cli, "start", lambda *arguments: None)
        patch.setattr(pretrain, "draw_run", draw_run)  # as for users
        stack.enter_context(contextlib.redirect_stdout(output))
        stack.enter_context(contextlib.redirect_stderr(output))
        command.main(["--config", str(config_file), "--workdir", str(workdir)])
    return workdir, output.getvalue()


def test_the_module_of_the_original_name_is_the_command(train):
    """The shortest run of ``python -m bert_jax.train``, which ends before JAX starts."""
    done = train("--config", "none.py")
    assert done.returncode == 2
    assert "error: none.py is not a file" in done.stderr


def test_a_run_writes_all_files_to_its_workdir(uninterrupted):
    workdir, output = uninterrupted
    names = {"config.json", "vocab.txt", "metrics.jsonl", "tensorboard", "checkpoints"}
    assert names <= {path.name for path in workdir.iterdir()}
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in lines]
    steps = [(line["step"], line["split"]) for line in lines]
    train_steps = [(step, "train") for step in (2, 4, 6, 8, 10, 12, 14)]
    assert steps == sorted(
        [*train_steps, *((step, "eval") for step in (0, 6, 9, 9, 12, 14))],
        key=lambda s: (s[0], s[1] == "eval"),
    )
    common = {"loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy"}
    extra = {"learning_rate", "grad_norm", "tokens_per_second", "mfu"}
    for line in lines:
        assert set(line) >= common | (extra if line["split"] == "train" else set())
    assert sorted(p.name for p in (workdir / "checkpoints").iterdir()) == ["12", "14"]
    assert "the [MASK] of the sea  ->" in output
    *lines, first, second = output.splitlines()
    assert f"picture: {workdir / 'curves.png'}" in lines
    assert first.startswith(f"next: bert_jax predict --checkpoint {workdir} --text ")
    tuned = f"--config table --init_from={workdir} --data.dir=DIR"
    assert second == f"next: bert_jax finetune {tuned}"
    assert (workdir / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_end_of_a_phase_is_evaluated_at_both_lengths(uninterrupted, config_file):
    """A report has the baselines of the last evaluation at its length."""
    workdir, output = uninterrupted
    config = parse(["--config", str(config_file)], "usage", train_config).config
    store = TokenStore(config.data.path)
    train, held_out = split_documents(store.info.documents, config.data.holdout)
    tokenizer, examples = load_tokenizer(config.data.path), config.data.examples
    batches = TrainingBatches(
        [Text(store, train)], tokenizer, config.phases, examples, seed=0
    )
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    texts = [Text(store, held_out)]
    evaluations = [line for line in map(json.loads, lines) if line["split"] == "eval"]
    for i, j in enumerate((0, 0, 0, 1, 1, 1)):
        phase = dataclasses.replace(config.phases[j], steps=config.eval_batches)
        batches_of_eval = eval_batches(batches, phase, texts, config.eval_mask_rate)
        labels = np.concatenate([batch["nsp_labels"] for batch in batches_of_eval])
        most = max(labels.mean(), 1 - labels.mean())
        assert evaluations[i]["nsp_majority"] == pytest.approx(most)
        step, length = evaluations[i]["step"], phase.sequence_length
        assert evaluations[i]["sequence_length"] == length
        assert f"step {step}  eval at {length} tokens: " in output
        shown = re.search(
            rf"\nstep {step + 2 - step % 2}/14 .*nsp.*baseline (.*?)%", output
        )
        assert step == 14 or i == 2 or float(shown[1]) == round(100 * most, 1)


@pytest.mark.long
def test_packed_rows_train_like_unpacked_rows(train, one_phase_of, tmp_path):
    """Without dropout the losses are equal, and less padding is computed."""
    path, lines = one_phase_of(1), {}
    for packing in (True, False):
        workdir = tmp_path / str(packing)
        done = train(
            "--config",
            path,
            "--workdir",
            workdir,
            f"--data.packing={packing}",
            "--data.examples.short_sequence_rate=0.9",
            "--model.max_positions=256",
            "--phases[0].sequence_length=256",
            "--phases[0].steps=9",
            "--model.hidden_dropout=0.0",
            "--model.attention_dropout=0.0",
        )
        assert done.returncode == 0, done.stderr
        text = (workdir / "metrics.jsonl").read_text()
        lines[packing] = [json.loads(line) for line in text.splitlines()]
    for packed, alone in zip(lines[True], lines[False], strict=True):
        for name in ("mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy"):
            assert packed[name] == pytest.approx(alone[name], abs=1e-4), name
    padding = {
        packing: sum(line.get("padding") or 0 for line in run)
        for packing, run in lines.items()
    }
    assert padding[True] < 0.75 * padding[False]


@pytest.fixture
def main(monkeypatch, capsys):
    """A function that runs the command in this process, and returns its output."""
    monkeypatch.setattr(cli, "start", lambda *arguments: None)

    def main(*arguments):
        command.main([*map(str, arguments)])
        return capsys.readouterr().out.splitlines()

    return main


def test_a_finished_run_does_not_train_again(main, uninterrupted, config_file):
    """No file is written or changed."""
    workdir, _ = uninterrupted

    def files():
        paths = (path for path in workdir.rglob("*") if path.name != ".lock")
        return {path: path.stat().st_mtime_ns for path in paths if path.is_file()}

    before = files()
    output = main("--config", config_file, "--workdir", workdir)
    assert files() == before
    assert "already finished (14 steps)" in output


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("--model.hidden_size=80", "model.hidden_size: 40 -> 80"),
        ("--log_every=1", "log_every: 2 -> 1"),
    ],
)
def test_a_workdir_of_another_run_is_refused(
    main, uninterrupted, config_file, change, message
):
    workdir, _ = uninterrupted
    config = (workdir / "config.json").read_text()
    with pytest.raises(UserError, match=message):
        main("--config", config_file, "--workdir", workdir, change)
    assert (workdir / "config.json").read_text() == config


@pytest.mark.long
def test_a_full_disk_is_a_one_line_error_and_the_run_resumes(
    train, config_file, metric_lines, tmp_path
):
    """A limit on file sizes simulates the full disk. Both runs are processes."""
    undisturbed, workdir = tmp_path / "undisturbed", tmp_path / "run"
    done = train("--config", config_file, "--workdir", undisturbed)
    assert done.returncode == 0, done.stderr
    arguments = ("--config", config_file, "--workdir", workdir)
    script = (
        "import resource, sys\n"
        "from bert_jax.commands import cli, train\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))\n"
        "cli.run(train.main)\n"
    )
    full = train(*arguments, program=("-c", script))
    assert full.returncode == 2
    assert full.stderr.splitlines()[-1].startswith("error: a checkpoint in ")
    assert "Traceback" not in full.stderr
    assert not [p for p in (workdir / "checkpoints").iterdir() if p.name.isdigit()]
    done = train(*arguments)
    assert done.returncode == 0, done.stderr
    assert metric_lines(workdir) == metric_lines(undisturbed)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "required: --config"),
        ("--config=nowhere.py", "nowhere.py is not a file"),
        ("--config=base", "bert_jax prepare"),
        ("--config=tiny --model.hiden_size=3", "mean --model.hidden_size"),
        ("--config=tiny extra", "unexpected argument 'extra'"),
    ],
)
def test_a_wrong_command_line_is_a_one_line_error(main, line, message, tmp_path):
    with pytest.raises(UserError, match=re.escape(message)) as error:
        main(*line.split(), "--workdir", tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
