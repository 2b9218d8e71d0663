"""The examples that guides show. tests/tasks/test_families.py runs examples/clue.py."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import bert_jax
from bert_jax.commands import convert
from bert_jax.commands.config_file import parse
from bert_jax.data.packing import Packing
from bert_jax.interop.train_state import read_step
from bert_jax.model.config import ComputeConfig
from bert_jax.runs import read_metrics
from bert_jax.training.config import train_config
from bert_jax.training.pretrain import pretrain
from examples import sides


def test_sums_of_packed_rows_are_the_sums_of_single_sequences(
    small_model_config, make_batch
):
    config = dataclasses.replace(
        small_model_config, hidden_dropout=0.0, attention_dropout=0.0
    )
    objective = sides.pretraining(config, ComputeConfig(), None)
    params = jax.jit(objective.init)(jax.random.key(0))
    compute = jax.jit(lambda batch: objective.sums(params, batch, None))
    batch = make_batch(0)
    packing = Packing((16,), 4, length=16, max_pairs=2, max_predictions=8)
    rows = packing.rows(batch["attention_mask"].sum(axis=1))
    packed = packing.pack(batch, rows, pad_id=0)
    assert packed["nsp_weights"].sum(axis=1).max() == 2
    expected, sums = compute(batch), compute(packed)
    assert sums["side_weight"] == expected["side_weight"]
    loss = float(expected["side_loss"])
    assert float(sums["side_loss"]) == pytest.approx(loss, rel=1e-5)


def test_the_guide_of_modernbert_kills_resumes_and_exports(small_store, tmp_path):
    """The config of the page at a small size: bits after a kill, and the export."""
    store, vocab_size = small_store
    flags = [f"--data.path={store}", "--data.corpus=()", "--data.holdout=0.2"]
    flags += [f"--model.vocab_size={vocab_size}", "--model.hidden_size=16"]
    flags += ["--model.intermediate_size=24", "--model.num_layers=2"]
    flags += ["--model.window=4", "--model.max_positions=32", "--compute.dtype=float32"]
    flags += ["--phases[0].steps=8", "--phases[0].batch_size=4", "--eval_every=4"]
    flags += ["--phases[0].sequence_length=32", "--eval_batches=1", "--log_every=1"]
    flags += ["--optimizer.warmup_steps=2", "--optimizer.decay_steps=3"]
    flags += ["--checkpoint_every=3", "--prompts=()"]
    config = parse(["--config", "modernbert_small", *flags], "", train_config).config
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    pretrain(config, whole, lambda line: None)

    def kill(line):
        if line.startswith("step 5/8 "):
            raise ConnectionAbortedError

    with pytest.raises(ConnectionAbortedError):
        pretrain(config, killed, kill)
    lines = []
    pretrain(config, killed, lines.append)
    assert "resuming at step 3" in lines
    for average in ("", "ema"):
        params, expected = (
            read_step(run / "checkpoints", average=average)[1]
            for run in (killed, whole)
        )
        jax.tree.map(np.testing.assert_array_equal, params, expected)

    # The recipe of the page: masks, learning rates and the evaluation of the average.
    (phase,) = config.phases
    assert (phase.mask_rate, phase.last_mask_rate) == (0.3, 0.15)
    metrics = read_metrics(killed / "metrics.jsonl")
    rates = [x["learning_rate"] for x in metrics if x["split"] == "train"]
    shares = 0, 0.5, 1, 1, 1, 1, 1 - (1 / 3) ** 0.5, 1 - (2 / 3) ** 0.5
    assert rates == pytest.approx([3e-3 * share for share in shares], rel=1e-5)
    assert {x["split"] for x in metrics} == {"train", "eval", "eval_average"}

    text = "It is a [MASK] day, and nobody came to the door of the house by the sea."
    logits = bert_jax.load(killed, average="ema").logits(text)
    for run in (whole, killed):
        folder = tmp_path / f"{run.name}_exported"
        arguments = ["--checkpoint", str(run), "--average", "ema"]
        convert.main([*arguments, "--output", str(folder)])
        np.testing.assert_array_equal(bert_jax.load(folder).logits(text), logits)
    files = [path.read_bytes() for path in tmp_path.glob("*_exported/*.safetensors")]
    assert len(files) == 2 and files[0] == files[1]
    exported = json.loads((folder / "config.json").read_text())
    assert exported["architectures"] == ["ModernBertForMaskedLM"]
    assert exported["local_attention"] == 8
