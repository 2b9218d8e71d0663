"""The examples that guides show. tests/tasks/test_families.py runs examples/clue.py."""

import dataclasses

import jax
import pytest

from bert_jax.data.packing import Packing
from bert_jax.model.config import ComputeConfig
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
