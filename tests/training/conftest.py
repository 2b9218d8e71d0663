"""A small model and batches of the right shapes, for the tests of training."""

import jax
import numpy as np
import pytest

from bert_jax.model.config import BertConfig


@pytest.fixture(scope="session")
def small_model_config() -> BertConfig:
    return BertConfig(
        vocab_size=96,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        intermediate_size=32,
        max_positions=16,
        hidden_dropout=0.1,
        attention_dropout=0.1,
    )


@pytest.fixture(scope="session")
def make_batch():
    """A function of (seed, rows): a batch with padding and unused predictions."""

    def make(seed: int, rows: int = 16, length: int = 16, predictions: int = 4):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(8, length + 1, rows)
        used = rng.integers(1, predictions + 1, rows)
        return {
            "input_ids": rng.integers(0, 96, (rows, length), np.int32),
            "token_type_ids": rng.integers(0, 2, (rows, length), np.int32),
            "attention_mask": np.int32(np.arange(length) < lengths[:, None]),
            "mlm_positions": rng.integers(0, 8, (rows, predictions), np.int32),
            "mlm_ids": rng.integers(0, 96, (rows, predictions), np.int32),
            "mlm_weights": np.float32(np.arange(predictions) < used[:, None]),
            "nsp_labels": rng.integers(0, 2, rows, np.int32),
        }

    return make


@pytest.fixture(scope="session")
def max_difference():
    """The largest absolute difference between two trees of arrays."""

    def difference(a, b):
        pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
        return max(float(np.max(np.abs(np.subtract(x, y)))) for x, y in pairs)

    return difference
