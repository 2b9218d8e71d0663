"""The plain formula of attention, and the choice of an implementation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.model import device
from bert_jax.model.bert import BertForPreTraining, attend_plain
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.kernels import attention_fused
from bert_jax.model.kernels.attention_xla import attend_xla
from bert_jax.model.tokens import Tokens
from bert_jax.objectives.mlm_nsp import MlmNsp


def tokens_of(mask):
    return Tokens.of_mask(mask, mask, np.int32(mask))


def test_attention_by_hand():
    """One query at a time, in float64; half of the keys masked."""
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 2, 6, 3, 8))
    mask = np.array([[1, 1, 1, 1, 1, 1], [1, 0, 1, 0, 0, 1]])
    out = attend_plain(*(jnp.float32(x) for x in (q, k, v)), tokens_of(mask).attends())
    for b, i, n in np.ndindex(2, 6, 3):
        keys = mask[b] == 1
        weights = np.exp(k[b, keys, n] @ q[b, i, n] / np.sqrt(8))
        expected = weights / weights.sum() @ v[b, keys, n]
        np.testing.assert_allclose(out[b, i, n], expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("function", [attend_plain, attend_xla])
def test_attention_dropout_keeps_and_rescales_single_probabilities(function):
    """Uniform attention to one-hot values shows each probability."""
    B, L, N, rate = 8, 32, 4, 0.1
    q = jnp.zeros((B, L, N, L))
    v = jnp.broadcast_to(jnp.eye(L)[None, :, None], (B, L, N, L))
    mask = jnp.ones((B, L), jnp.int32)
    key = jax.random.key(3)
    attends = tokens_of(mask).attends()
    out = function(q, q, v, attends, dropout_rate=rate, dropout_key=key)
    kept = np.asarray(out > 0)
    np.testing.assert_allclose(out[kept], 1 / L / (1 - rate), rtol=1e-5)
    # 32,768 draws: the tolerance is four standard errors of 0.0017.
    assert abs(kept.mean() - (1 - rate)) < 0.0066
    # Rows, queries, heads and keys do not share masks: neighbours agree by chance.
    for axis in range(4):
        neighbours = np.roll(kept, 1, axis)
        assert abs(np.mean(kept == neighbours) - 0.82) < 0.015, axis


CHOICES = [
    # platform, setting, keys, dtype: the implementation
    ("cpu", "auto", 512, "float32", "xla"),
    ("tpu", "auto", 512, "bfloat16", "plain"),
    ("gpu", "auto", 512, "bfloat16", "plain"),
    ("tpu", "xla", 512, "bfloat16", "xla"),
    ("tpu", "splash", 512, "bfloat16", "splash"),
    ("tpu", "splash", 520, "bfloat16", "xla"),
    ("gpu", "cudnn", 128, "bfloat16", "cudnn"),
    ("gpu", "cudnn", 127, "bfloat16", "xla"),
]


@pytest.mark.parametrize(("platform", "setting", "length", "dtype", "chosen"), CHOICES)
def test_kernels_are_used_only_on_request(
    monkeypatch, platform, setting, length, dtype, chosen
):
    """On CPUs the form with its own gradient was measured; it is the default there."""
    for module in (attention_fused, device):
        monkeypatch.setattr(module, "platform", lambda: platform)
    monkeypatch.setattr(attention_fused, "capability", lambda: 9.0)
    settings = {"length": length, "dtype": dtype, "dropout_rate": 0.0, "causal": False}
    assert attention_fused.choose_attention(setting, **settings) == chosen


@pytest.mark.parametrize(
    ("implementation", "settings", "message"),
    [
        ("splash", {"dropout_rate": 0.1}, "needs model.attention_dropout=0"),
        ("splash", {"causal": True}, "needs model.causal=False"),
        ("cudnn", {}, "needs an NVIDIA GPU from Ampere on"),
    ],
)
def test_the_error_has_the_missing_requirement(implementation, settings, message):
    usual = {"length": 128, "dtype": "float32", "dropout_rate": 0.0, "causal": False}
    with pytest.raises(UserError, match=message):
        attention_fused.choose_attention(implementation, **usual | settings)


def test_inference_replaces_an_unsuitable_kernel(monkeypatch):
    """Prompts are shorter than rows, and other devices evaluate a TPU's model."""
    choose = functools.partial(
        attention_fused.choose_attention, dtype="float32", causal=False
    )
    assert choose("splash", length=256, dropout_rate=0.0) == "splash"
    assert choose("splash", length=100, dropout_rate=0.0) == "xla"
    for implementation in ("splash", "cudnn"):
        monkeypatch.setattr(attention_fused, "platform", lambda: "other")
        settings = {"length": 128, "dropout_rate": 0.0}
        assert choose(implementation, **settings, required=False) == "xla"
        with pytest.raises(UserError):
            choose(implementation, **settings)


def test_a_model_with_splash_is_initialised_and_encodes():
    """The kernel needs a multiple of 128 tokens. Initialisation uses fewer."""
    config = BertConfig(60, 16, 1, 2, 32, max_positions=128)
    ids = np.random.default_rng(0).integers(0, 60, (2, 128), np.int32)
    mask = np.int32(np.arange(128) < [[128], [90]])

    def encode(implementation):
        model = BertForPreTraining(config, ComputeConfig(attention_impl=implementation))

        @jax.jit
        def run(key):
            params = {"params": MlmNsp(model).init(key)}
            inputs = ids, 0 * ids, mask, ids[:, :4]
            return model.apply(params, *inputs, deterministic=True)

        return run(jax.random.key(0)).mlm_logits_BMW

    np.testing.assert_allclose(encode("splash"), encode("plain"), rtol=0, atol=2e-6)
