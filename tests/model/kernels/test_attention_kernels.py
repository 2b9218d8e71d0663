"""Every implementation of attention, and its gradient, against the plain formula."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model import window as in_blocks
from bert_jax.model.bert import attend_plain
from bert_jax.model.kernels import attention_fused, attention_xla
from bert_jax.model.kernels.attention import attend
from bert_jax.model.tokens import Tokens
from bert_jax.parallel.mesh import (
    MeshConfig,
    batch_sharding,
    make_mesh,
    summed_over_devices,
    traced_on,
)

pytestmark = pytest.mark.usefixtures("optimized")

KEY = jax.random.key(5)


def inputs(queries=12, L=12):
    """Queries, keys, values, the output's gradient, and rows with different padding."""
    rng = np.random.default_rng(0)
    B, N, H = 4, 2, 8
    shapes = ((B, queries, N, H), (B, L, N, H), (B, L, N, H), (B, queries, N, H))
    arrays = [np.float32(rng.normal(size=shape)) for shape in shapes]
    mask = np.int32(np.arange(L) < np.array([[L], [7], [1], [0]]))
    return *arrays, Tokens.of_mask(mask, mask, mask)


def output_and_gradients(function, q, k, v, grad, tokens, **options):
    """function: attend or attend_plain; the queries are at the first positions."""
    queries = np.broadcast_to(np.arange(q.shape[1]), q.shape[:2])
    where = tokens, queries if q.shape[1] < k.shape[1] else None
    if function is attend_plain:
        where = (tokens.attends(where[1]),)

    @jax.jit
    def run(q, k, v):
        out, vjp = jax.vjp(lambda *qkv: function(*qkv, *where, **options), q, k, v)
        return out, *vjp(grad.astype(out.dtype))

    return [np.float32(x) for x in run(q, k, v)]


@pytest.mark.parametrize(("queries", "rate"), [(12, 0.1), (5, 0.0), (5, 0.5)])
def test_output_and_gradients_equal_the_plain_formula(queries, rate):
    options = {"dropout_rate": rate, "dropout_key": KEY} if rate else {}
    ours = output_and_gradients(attend, *inputs(queries), **options)
    theirs = output_and_gradients(attend_plain, *inputs(queries), **options)
    for actual, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=5e-6)


def test_on_a_gpu_the_gradient_reads_only_the_signed_weights(monkeypatch):
    """Three arrays are written to memory, and the numbers are the same."""
    options = {"dropout_rate": 0.1, "dropout_key": KEY}
    *arrays, grad, tokens = inputs()
    expected = output_and_gradients(attend, *inputs(), **options)
    monkeypatch.setattr(attention_xla, "platform", lambda: "gpu")
    actual = output_and_gradients(attend, *inputs(), **options)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)

    def loss(q, k, v):
        return jnp.sum(grad * attend(q, k, v, tokens, **options))

    text = jax.jit(jax.grad(loss)).lower(*arrays).as_text()
    written = re.findall(r"optimization_barrier .* : tensor<4x2x12x12x(\w+)>", text)
    assert sorted(written) == ["f32", "f32", "i1"]


def test_bfloat16_rounds_only_a_few_times():
    """Root mean square errors of output and gradients, in units of 2**-9.

    One rounding to nearest makes an error of about 0.6 of this unit.
    """
    exact_inputs = [jnp.asarray(x, jnp.bfloat16) for x in inputs()[:4]]
    tokens = inputs()[4]
    exact = output_and_gradients(
        attend_plain, *(x.astype(jnp.float32) for x in exact_inputs), tokens
    )
    rough = output_and_gradients(attend, *exact_inputs, tokens)
    for ours, theirs in zip(rough, exact, strict=True):
        error = np.sqrt(np.mean((ours - theirs) ** 2) / np.mean(theirs**2))
        assert 0.3 < error * 2**9 < 4


def packed(queries=128, L=128):
    """Like inputs(), with packed sequences."""
    arrays = inputs(queries, L)[:4]
    ids = np.int32(np.arange(L) % 3 + 1) * (np.arange(L) < L - 9)
    ids = np.tile(ids, (4, 1))
    return *arrays, Tokens(ids, ids, ids, np.tile(np.arange(3), (4, 1)))


def test_splash_equals_the_plain_formula():
    ours = output_and_gradients(attend, *inputs(5, 128), implementation="splash")
    theirs = output_and_gradients(attend_plain, *inputs(5, 128))
    for got, expected in zip(ours, theirs, strict=True):
        # A row of only padding has scores of -10,000, too large to compare in float32.
        np.testing.assert_allclose(got[:3], expected[:3], rtol=1e-6, atol=5e-6)


@pytest.mark.parametrize("queries", [128, 5])
@pytest.mark.parametrize("implementation", ["xla", "splash"])
def test_packed_sequences_do_not_see_each_other(implementation, queries):
    arrays = packed(queries)
    ours = output_and_gradients(attend, *arrays, implementation=implementation)
    theirs = output_and_gradients(attend_plain, *arrays)
    for got, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=5e-6)


@pytest.mark.parametrize("window", [4, 64])
def test_splash_with_a_window_equals_the_masked_square(window):
    """Even a row of only padding, and padding far from the first sequence, are finite."""
    q, k, v, grad = inputs(256, 256)[:4]
    ids = np.int32(np.arange(256) // 50 + 1) * (np.arange(256) < 240)
    ids = np.stack([ids, ids > 0, ids == 1, 0 * ids]).astype(np.int32)
    tokens = Tokens(ids, ids, ids, np.tile(np.arange(5) * 50, (4, 1)))
    grad = grad * (ids > 0)[..., None, None]  # like the gradient of a loss
    options = {"implementation": "splash", "window": window}
    ours = output_and_gradients(attend, q, k, v, grad, tokens, **options)
    attends = tokens.attends(None, False, window)

    def formula(q, k, v, tokens, positions):
        return attend_plain(q, k, v, attends)

    theirs = output_and_gradients(formula, q, k, v, grad, tokens)
    used = (ids > 0)[..., None, None]
    for got, expected in zip(ours, theirs, strict=True):
        assert np.isfinite(got).all()
        np.testing.assert_allclose(got * used, expected * used, rtol=1e-6, atol=5e-6)


def test_splash_on_a_mesh_computes_each_devices_rows_and_heads():
    mesh = make_mesh(MeshConfig(data=4, model=2))
    q, k, v, _, tokens = inputs(128, 128)

    def output(q, k, v):
        return attend(q, k, v, tokens, implementation="splash")

    def of_own_rows(batch):
        return attend(*batch, implementation="splash").sum(axis=0)

    spread = jax.device_put((q, k, v), batch_sharding(mesh))
    ours = jax.jit(traced_on(mesh, output))(*spread)
    assert len(ours.sharding.device_set) == 8
    expected = jax.jit(output)(q, k, v)
    np.testing.assert_array_equal(ours, expected)
    total = jax.jit(traced_on(mesh, summed_over_devices(of_own_rows)))(
        (*spread, tokens)
    )
    np.testing.assert_allclose(total, expected.sum(axis=0), rtol=1e-5, atol=1e-5)


@pytest.fixture
def on_gpu(monkeypatch):
    """XLA replaces cuDNN; returns the list of requested implementations."""
    requested = []
    original = jax.nn.dot_product_attention

    def stand_in(*args, implementation, **options):
        requested.append(implementation)
        return original(*args, implementation="xla", **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", stand_in)
    monkeypatch.setattr(attention_fused, "platform", lambda: "gpu")
    monkeypatch.setattr(attention_fused, "capability", lambda: 9.0)
    return requested


def test_cudnn_gets_the_same_arguments(on_gpu):
    """Its padding of queries and its mask; the kernel itself needs a GPU."""
    arrays = [jnp.asarray(x, jnp.bfloat16) for x in inputs(5)[:4]]
    tokens = inputs()[4]
    ours = output_and_gradients(attend, *arrays, tokens, implementation="cudnn")
    theirs = output_and_gradients(attend, *arrays, tokens, implementation="xla")
    assert set(on_gpu) == {"cudnn"}
    for got, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got[:3], expected[:3], rtol=0, atol=0.03)


def test_cudnn_computes_a_window_in_blocks(on_gpu, monkeypatch):
    """cuDNN has no window to the right, so each block is a row with a mask."""
    monkeypatch.setattr(in_blocks, "QUERIES", 8)
    *arrays, tokens = inputs(60, 60)
    arrays = [jnp.asarray(x, jnp.bfloat16) for x in arrays]
    run = functools.partial(output_and_gradients, attend, *arrays, tokens, window=5)
    ours, theirs = run(implementation="cudnn"), run(implementation="xla")
    assert set(on_gpu) == {"cudnn"}
    for got, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got[0], expected[0], rtol=0, atol=0.03)
