"""Every implementation of attention, and its gradient, against plain formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.model import attention
from bert_jax.model.attention import attend, choose_attention
from bert_jax.model.kernels import attention_fused
from bert_jax.model.kernels.attention_xla import MASKED_SCORE
from bert_jax.model.kernels.dropout import keep_mask
from bert_jax.parallel.mesh import MeshConfig, batch_sharding, make_mesh, traced_on

KEY = jax.random.key(5)


def plain(q, k, v, mask, dropout_rate=0.0, dropout_key=None, query_numbers_BQ=None):
    """As in modeling.py: scores, softmax, dropout, mean of the values; float32."""
    scores = jnp.einsum("BQNH,BKNH->BNQK", q, k) / np.sqrt(q.shape[-1])
    if query_numbers_BQ is None:
        read = (mask != 0)[:, None]
    else:
        read = query_numbers_BQ[:, :, None] == mask[:, None]
    probs = jax.nn.softmax(scores + jnp.where(read, 0.0, MASKED_SCORE)[:, None])
    if dropout_rate:
        keep = keep_mask(dropout_key, dropout_rate, probs.shape)
        probs = jnp.where(keep, probs / (1 - dropout_rate), 0.0)
    return jnp.einsum("BNQK,BKNH->BQNH", probs, v)


def inputs(queries=12, L=12):
    """Queries, keys, values, an output's gradient; rows without, with and all padding."""
    rng = np.random.default_rng(0)
    B, N, H = 4, 2, 8
    shapes = ((B, queries, N, H), (B, L, N, H), (B, L, N, H), (B, queries, N, H))
    arrays = [np.float32(rng.normal(size=shape)) for shape in shapes]
    mask = np.int32(np.arange(L) < np.array([[L], [7], [1], [0]]))
    return *arrays, mask


def output_and_gradients(function, q, k, v, grad, mask, **options):
    out, vjp = jax.vjp(lambda *qkv: function(*qkv, mask, **options), q, k, v)
    return [np.float32(x) for x in (out, *vjp(grad.astype(out.dtype)))]


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("queries", [12, 5])
def test_output_and_gradients_are_those_of_the_plain_formulas(rate, queries):
    options = {"dropout_rate": rate, "dropout_key": KEY} if rate else {}
    ours = output_and_gradients(attend, *inputs(queries), **options)
    theirs = output_and_gradients(plain, *inputs(queries), **options)
    for got, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=5e-6)


def test_bfloat16_rounds_a_few_times_and_no_more():
    """Root mean square errors of output and gradients, in units of 2**-9.

    A single rounding to nearest of numbers of any size makes about 0.6 of it.
    """
    exact_inputs = [jnp.asarray(x, jnp.bfloat16) for x in inputs()[:4]]
    mask = inputs()[4]
    exact = output_and_gradients(
        plain, *(x.astype(jnp.float32) for x in exact_inputs), mask
    )
    rough = output_and_gradients(attend, *exact_inputs, mask)
    for ours, theirs in zip(rough, exact, strict=True):
        error = np.sqrt(np.mean((ours - theirs) ** 2) / np.mean(theirs**2))
        assert 0.3 < error * 2**9 < 4


def packed(queries=128, L=128):
    """As inputs(), with sequences side by side; the numbers of the queries."""
    *arrays, _ = inputs(queries, L)
    mask = np.int32(np.arange(L) // 50 + 1) * (np.arange(L) < L - 9)
    numbers = mask if queries == L else np.int32(np.arange(queries) % 2 + 1)
    arrays[3] *= (numbers > 0)[:, None, None]  # nothing is asked of padding
    return *arrays, np.tile(mask, (4, 1)), np.tile(numbers, (4, 1))


@pytest.mark.parametrize("queries", [128, 5])
def test_splash_equals_the_plain_formulas(queries):
    ours = output_and_gradients(attend, *inputs(queries, 128), implementation="splash")
    theirs = output_and_gradients(plain, *inputs(queries, 128))
    for got, expected in zip(ours, theirs, strict=True):
        # A row of padding alone is beyond comparison at float32: scores - 10,000.
        np.testing.assert_allclose(got[:3], expected[:3], rtol=1e-6, atol=5e-6)


@pytest.mark.parametrize("queries", [128, 5])
@pytest.mark.parametrize("implementation", ["xla", "splash"])
def test_packed_sequences_do_not_see_each_other(implementation, queries):
    *arrays, numbers = packed(queries)
    ours = output_and_gradients(
        attend, *arrays, query_numbers_BQ=numbers, implementation=implementation
    )
    theirs = output_and_gradients(plain, *arrays, query_numbers_BQ=numbers)
    real = (numbers > 0)[:, :, None, None]
    np.testing.assert_allclose(ours[0] * real, theirs[0] * real, rtol=0, atol=5e-6)
    for got, expected in zip(ours[1:], theirs[1:], strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=5e-6)


def test_splash_on_a_mesh_computes_each_devices_rows_and_heads():
    mesh = make_mesh(MeshConfig(data=4, model=2))
    q, k, v, _, mask = inputs(128, 128)

    def output(q, k, v):
        return attend(q, k, v, mask, implementation="splash")

    spread = jax.device_put((q, k, v), batch_sharding(mesh))
    ours = jax.jit(traced_on(mesh, output))(*spread)
    assert len(ours.sharding.device_set) == 8
    np.testing.assert_array_equal(ours, jax.jit(output)(q, k, v))


@pytest.fixture
def on_gpu(monkeypatch):
    """What cuDNN is asked for, computed by XLA instead."""
    asked = []
    original = jax.nn.dot_product_attention

    def stand_in(*args, implementation, **options):
        asked.append(implementation)
        return original(*args, implementation="xla", **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", stand_in)
    for module in (attention, attention_fused):
        monkeypatch.setattr(module, "mesh_platform", lambda: "gpu")
    monkeypatch.setattr(attention, "_capability", lambda: 9.0)
    return asked


@pytest.mark.parametrize("queries", [12, 5])
def test_cudnn_is_asked_for_the_same(on_gpu, queries):
    """Its padding of queries and its mask; the kernel itself needs a GPU."""
    arrays = [jnp.asarray(x, jnp.bfloat16) for x in inputs(queries)[:4]]
    mask = inputs()[4]
    ours = output_and_gradients(attend, *arrays, mask)
    theirs = output_and_gradients(attend, *arrays, mask, implementation="xla")
    assert set(on_gpu) == {"cudnn"}
    for got, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got[:3], expected[:3], rtol=0, atol=0.03)


CHOICES = [
    # platform, keys, dtype, dropout: what "auto" takes
    ("cpu", 512, "float32", 0.0, "xla"),
    ("tpu", 512, "bfloat16", 0.0, "splash"),
    ("tpu", 512, "bfloat16", 0.1, "xla"),
    ("tpu", 128, "bfloat16", 0.0, "xla"),
    ("tpu", 520, "bfloat16", 0.0, "xla"),
    ("gpu", 128, "bfloat16", 0.0, "cudnn"),
    ("gpu", 128, "bfloat16", 0.1, "xla"),
    ("gpu", 128, "float32", 0.0, "xla"),
    ("gpu", 127, "bfloat16", 0.0, "xla"),
]


@pytest.mark.parametrize(("platform", "keys", "dtype", "rate", "chosen"), CHOICES)
def test_auto_takes_the_kernel_that_can_be_had(
    monkeypatch, platform, keys, dtype, rate, chosen
):
    monkeypatch.setattr(attention, "mesh_platform", lambda: platform)
    monkeypatch.setattr(attention, "_capability", lambda: 9.0)
    settings = {"keys": keys, "dtype": dtype, "dropout_rate": rate}
    assert choose_attention("auto", **settings) == chosen


@pytest.mark.parametrize(
    ("implementation", "settings", "message"),
    [
        ("splash", {"dropout_rate": 0.1}, "needs --config.model.attention_dropout=0"),
        ("splash", {"keys": 100}, "needs sequences of a multiple of 128 tokens"),
        ("cudnn", {}, "needs an NVIDIA GPU from Ampere on"),
    ],
)
def test_what_cannot_be_had_is_named(implementation, settings, message):
    settings = {"keys": 128, "dtype": "float32", "dropout_rate": 0.0} | settings
    with pytest.raises(UserError, match=message):
        choose_attention(implementation, **settings)


def test_the_choice_is_logged_once(caplog):
    q, k, v, _, mask = inputs(L=14)
    with caplog.at_level("INFO", logger="bert_jax"):
        attend(q[:, :12], k, v, mask)
        attend(q[:, :12], k, v, mask)
    assert caplog.messages == ["attention over 14 positions, dropout 0: xla"]
