import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.flops import step
from bert_jax.objectives.electra import Electra, ReplacedTokens
from bert_jax.objectives.mlm_nsp import MlmNsp

pytestmark = pytest.mark.usefixtures("optimized")


def test_base_at_512_costs_556_megaflop_a_token():
    # By hand, forward and backward (6 operations a weight), in megaflop: 510 for the
    # 84.9M weights of the layers; 12 * 4 * 512 * 768 * 3 = 57 for scores and values;
    # 23 for the head at 80 of 512 positions. The last layer computes 81 positions: the
    # other 431 skip its 5.9M weights and their scores.
    per_token = (
        step(BertConfig.base(), ComputeConfig(), 1, 512, predictions=80, sequences=1)
        / 512
        / 1e6
    )
    spared = 431 / 512 * 6 * (5.898 + 2 * 512 * 768 / 1e6)
    assert per_token == pytest.approx(509.6 + 56.6 + 22.5 - spared, abs=0.1)
    per_token = (
        step(
            BertConfig.base(),
            ComputeConfig(scan_layers=True),
            1,
            512,
            predictions=80,
            sequences=1,
        )
        / 512
        / 1e6
    )
    assert per_token == pytest.approx(509.6 + 56.6 + 22.5, abs=0.1)


def test_large_at_128_by_hand():
    queries = 23 * 128 + 21
    matrices = queries * (2 * 1024**2 + 2 * 1024 * 4096) + 24 * 128 * 2 * 1024**2
    attention = queries * 2 * 128 * 1024
    heads = 20 * (1024**2 + 1024 * 30522) + 1024**2 + 2 * 1024
    by_hand = 6 * 256 * (matrices + attention + heads)
    assert (
        step(BertConfig.large(), ComputeConfig(), 256, 128, predictions=20, sequences=1)
        == by_hand
    )


def test_a_window_counts_its_keys():
    """Layers 1, 2, 4 and 5 of 7 attend to 129 of 1,024 tokens, or to all of 100."""
    config = BertConfig(512, 256, 7, 4, 384)
    local = dataclasses.replace(config, window=64, global_every=3)
    for length, keys in ((1024, 129), (100, 100)):
        full, windowed = (
            step(x, ComputeConfig(), 8, length, whole=True) for x in (config, local)
        )
        assert full - windowed == 6 * 8 * 4 * length * 2 * (length - keys) * 256


def test_all_positions_attend_to_the_window_of_the_last_layer():
    """Its blocks contain all queries, even if few outputs are needed."""
    config = BertConfig(512, 256, 3, 4, 384, window=64, global_every=2)
    D, F, length, keys = 256, 384, 1024, 129
    whole, windowed = (
        step(dataclasses.replace(config, num_layers=layers), ComputeConfig(), 8, length)
        for layers in (3, 2)
    )
    before = length * (4 * D * D + 2 * D * F)
    scores = {"global": 2 * length * length * D, "window": 2 * length * keys * D}
    keys_and_values = length * 2 * D * D
    shared = before + scores["global"] + keys_and_values
    assert whole == 48 * (shared + before + scores["window"])
    assert windowed == whole - 48 * keys_and_values  # without the keys of a third layer


def test_the_mean_of_all_tokens_needs_the_whole_last_layer():
    config = BertConfig(512, 128, 2, 2, 256)
    batch = {
        "input_ids": np.zeros((8, 64)),
        "mlm_ids": np.zeros((8, 10)),
        "nsp_labels": np.zeros(8),
    }
    counts = [
        MlmNsp(BertForPreTraining(dataclasses.replace(config, pooling=x))).flops(batch)
        for x in ("token", "mean")
    ]
    skipped = 64 - 11
    rest = 2 * 128 * 128 + 2 * 128 * 256 + 2 * 64 * 128
    assert counts[1] - counts[0] == 48 * skipped * rest


def test_a_packed_row_counts_the_heads_of_its_pairs():
    """The last layer, the pooler and the NSP head compute eight [CLS] instead of one."""
    config = BertConfig.base()
    D, F = 768, 3072
    more = 7 * (2 * D * D + 2 * D * F + 2 * 512 * D + D * D + 2 * D)
    single, eight = (
        step(config, ComputeConfig(), 224, 512, predictions=85, sequences=pairs)
        for pairs in (1, 8)
    )
    assert eight - single == 6 * 224 * more


def test_compiler_counts_about_as_much():
    """XLA's count of a forward pass also contains elementwise operations."""
    config = BertConfig(
        vocab_size=512,
        hidden_size=128,
        num_layers=2,
        num_heads=2,
        intermediate_size=512,
        max_positions=64,
    )
    model = BertForPreTraining(config)
    ids = jax.ShapeDtypeStruct((2, 64), jnp.int32)
    positions = jax.ShapeDtypeStruct((2, 8), jnp.int32)
    params = jax.eval_shape(MlmNsp(model).init, jax.random.key(0))

    def forward(params, ids, positions):
        return model.apply(
            {"params": params}, ids, ids, ids, positions, deterministic=True
        )

    cost = jax.jit(forward).lower(params, ids, positions).compile().cost_analysis()
    analytic = (
        step(config, ComputeConfig(), 2, 64, predictions=8, sequences=1) / 3
    )  # the backward pass: twice
    assert analytic <= cost["flops"] <= 1.15 * analytic


def test_compiler_counts_about_as_much_of_replaced_token_detection():
    config = BertConfig(
        vocab_size=512,
        hidden_size=256,
        num_layers=1,
        num_heads=4,
        intermediate_size=1024,
        max_positions=64,
    )
    objective = ReplacedTokens(Electra(config))
    tokens, masked = (jax.ShapeDtypeStruct((4, n), jnp.int32) for n in (64, 10))
    names = ("input_ids", "token_type_ids", "attention_mask")
    batch = dict.fromkeys(names, tokens) | {
        **dict.fromkeys(("mlm_positions", "mlm_ids"), masked),
        "mlm_weights": jax.ShapeDtypeStruct((4, 10), jnp.float32),
    }
    params = jax.eval_shape(objective.init, jax.random.key(0))
    forward = jax.jit(lambda *args: objective.sums(*args, None)).lower(params, batch)
    analytic = objective.flops(batch) / 3
    assert analytic <= forward.cost_analysis()["flops"] <= 1.05 * analytic
