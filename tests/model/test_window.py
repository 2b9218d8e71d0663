"""Attention with a window equals attention with a mask of the whole square."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model import window as in_blocks
from bert_jax.model.bert import BertModel, attend_plain
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.kernels.attention import attend
from bert_jax.model.parameters import stack_layers
from bert_jax.model.tokens import Tokens
from bert_jax.model.window import attend_in_blocks
from bert_jax.parallel.mesh import (
    MeshConfig,
    batch_sharding,
    make_mesh,
    summed_over_devices,
    traced_on,
)
from bert_jax.training.estimate import collectives

CASES = [
    # window, length, and the number of queries of a block
    (1, 61, 8),
    (4, 64, 8),
    (5, 33, 8),
    (16, 101, 8),
    (64, 259, 128),
    (16, 64, 8),  # as many scores as in blocks, so it is computed as a whole
    (64, 31, 128),  # shorter than the window
]


@pytest.fixture
def queries(monkeypatch):
    """Sets the number of queries of a block."""
    return functools.partial(monkeypatch.setattr, in_blocks, "QUERIES")


def rows(length, count=4):
    """Packed rows whose sequences start anywhere, a row with padding, and an empty one."""
    random = np.random.default_rng(length)
    ids = np.zeros((count, length), np.int32)
    starts = np.zeros((count, 3), np.int32)
    ids[0] = 1
    cuts = np.sort(random.choice(np.arange(1, length), 3, replace=False))
    for number, (start, end) in enumerate(zip([0, *cuts[:2]], cuts, strict=True)):
        ids[1, start:end], starts[1, number] = number + 1, start
    ids[2, : length // 2] = 1
    input_ids = random.integers(1, 50, ids.shape, np.int32)
    return Tokens(input_ids, 0 * ids, ids, starts)


def square(tokens, window, causal):
    """Which tokens attend to each other, from the definition: bool (B, L, L)."""
    ids = np.asarray(tokens.segment_ids)
    places = np.arange(ids.shape[1])
    distance = places[None, :] - places[:, None]
    attends = ids[:, None, :] == np.maximum(ids, 1)[:, :, None]
    attends &= (distance >= -window) & (distance <= (0 if causal else window))
    return attends


def values(length, seed=0, width=8):
    """Queries, keys, values and the gradient of the output, float32 (4, L, 2, H)."""
    shape = (4, 4, length, 2, width)
    return list(np.float32(np.random.default_rng(seed).normal(size=shape)))


def output_and_gradients(function, q, k, v, grad, tokens):
    """The numbers of the tokens. Vectors of padding have no meaning."""
    used = np.asarray(tokens.segment_ids > 0)[..., None, None]

    @jax.jit
    def run(q, k, v):
        out, vjp = jax.vjp(function, q, k, v)
        return out * used, *vjp((grad * used).astype(out.dtype))

    return [np.float32(x) for x in run(q, k, v)]


def windowed(form, tokens, window, causal=False, **options):
    """A function of queries, keys and values."""
    reach = {"window": window, "causal": causal}
    if form == "plain":
        plain = functools.partial(attend_plain, **options)
        return functools.partial(attend_in_blocks, plain, tokens=tokens, **reach)
    return functools.partial(
        attend, tokens=tokens, implementation=form, **reach, **options
    )


@pytest.mark.parametrize(("window", "length", "size"), CASES)
@pytest.mark.parametrize("form", ["plain", "xla"])
def test_blocks_equal_the_masked_square(form, window, length, size, queries):
    """Output and gradients. For every second length also with causal attention."""
    queries(size)
    arrays, tokens = values(length), rows(length)
    for causal in (False, True)[: 1 + length % 2]:
        attends = square(tokens, window, causal)
        expected = output_and_gradients(
            functools.partial(attend_plain, attends_BQL=attends), *arrays, tokens
        )
        function = windowed(form, tokens, window, causal)
        ours = output_and_gradients(function, *arrays, tokens)
        for actual, reference in zip(ours, expected, strict=True):
            np.testing.assert_allclose(actual, reference, rtol=0, atol=3e-6)
            assert np.any(reference)


def test_a_window_by_hand(queries):
    """One query at a time, in float64."""
    queries(8)
    window, length = 5, 45
    (q, k, v, _), tokens = values(length), rows(length)
    out = np.asarray(jax.jit(windowed("xla", tokens, window))(q, k, v))
    ids = np.asarray(tokens.segment_ids)
    for b, i, n in np.ndindex(3, length, 2):
        keys = np.arange(max(i - window, 0), min(i + window + 1, length))
        keys = keys[ids[b, keys] == ids[b, i]]
        if ids[b, i]:
            scores = np.float64(k[b, keys, n]) @ np.float64(q[b, i, n]) / np.sqrt(8)
            weights = np.exp(scores)
            expected = weights / weights.sum() @ v[b, keys, n]
            np.testing.assert_allclose(out[b, i, n], expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("form", ["plain", "xla"])
def test_dropout_drops_single_probabilities_and_rescales_the_others(form, queries):
    """One-hot values show each probability. Other values have the same mask."""
    queries(8)
    length, window, rate = 48, 6, 0.25
    tokens = rows(length)
    q, k, _, grad = values(length, width=length)
    v = np.broadcast_to(np.eye(length, dtype=np.float32)[None, :, None], q.shape)
    dropout = {"dropout_rate": rate, "dropout_key": jax.random.key(3)}
    function = jax.jit(windowed(form, tokens, window, **dropout))
    shown = np.asarray(function(q, k, v))  # the probabilities of each query
    attends = square(tokens, window, False)
    probs = np.asarray(attend_plain(q, k, v, attends))
    used = np.asarray(tokens.segment_ids > 0)[:, :, None, None]
    possible = attends[:, :, None] & used
    kept = (shown > 0) & possible
    np.testing.assert_allclose(shown[kept], probs[kept] / (1 - rate), rtol=1e-4)
    # 5,000 draws: four standard errors.
    share = kept.sum() / np.broadcast_to(possible, kept.shape).sum()
    assert abs(share - (1 - rate)) < 4 * (rate * (1 - rate) / 5000) ** 0.5
    others = values(length, seed=1, width=length)[2]
    expected = np.einsum("BQNL,BLNH->BQNH", shown, others)
    np.testing.assert_allclose(
        used * function(q, k, others), used * expected, rtol=0, atol=1e-5
    )
    # Both forms have the same mask and the same gradients.
    ours, theirs = (
        output_and_gradients(
            windowed(name, tokens, window, **dropout), q, k, others, grad, tokens
        )
        for name in ("plain", form)
    )
    for actual, reference in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(actual, reference, rtol=0, atol=2e-5)


@pytest.mark.parametrize("form", ["plain", "xla"])
def test_bfloat16_rounds_only_a_few_times(form, queries):
    """Root mean square errors of output and gradients, in units of 2**-9."""
    queries(8)
    tokens = rows(61)
    exact = [jnp.asarray(x, jnp.bfloat16) for x in values(61)]
    reference = output_and_gradients(
        windowed("plain", tokens, 7), *(x.astype(jnp.float32) for x in exact), tokens
    )
    rough = output_and_gradients(windowed(form, tokens, 7), *exact, tokens)
    for ours, theirs in zip(rough, reference, strict=True):
        error = np.sqrt(np.mean((ours - theirs) ** 2) / np.mean(theirs**2))
        assert 0.3 < error * 2**9 < 4


@pytest.mark.parametrize("form", ["plain", "xla"])
def test_no_array_grows_with_the_square_of_the_length(form):
    """The largest array of output and gradients has 4 * 64 scores for each query."""
    for length in (1024, 4096):
        ids = jnp.ones((1, length), jnp.int32)
        tokens = Tokens(ids, ids, ids, ids[:, :1])
        x = jax.ShapeDtypeStruct((1, length, 1, 4), jnp.float32)

        def total(q, k, v, tokens=tokens):
            return windowed(form, tokens, 64)(q, k, v).sum()

        text = jax.jit(jax.grad(total, argnums=(0, 1, 2))).lower(x, x, x).as_text()
        shapes = re.findall(r"tensor<([\dx]+)x\w+>", text)
        sizes = [np.prod([int(n) for n in shape.split("x")]) for shape in shapes]
        assert max(sizes) == length * 4 * 64


@pytest.mark.parametrize("form", ["plain", "xla"])
def test_a_mesh_splits_rows_and_heads_and_exchanges_nothing(form, queries):
    queries(8)
    mesh = make_mesh(MeshConfig(data=4, model=2))
    q, k, v, _ = values(48)
    tokens = rows(48)
    options = {"dropout_rate": 0.2, "dropout_key": jax.random.key(1)}
    options["dropout_impl"] = "bytes"

    def output(q, k, v, tokens):
        return windowed(form, tokens, 5, **options)(q, k, v)

    expected = jax.jit(output)(q, k, v, tokens)
    sharding = jax.sharding.NamedSharding(
        mesh, jax.sharding.PartitionSpec(("replica", "data"), None, "model")
    )
    spread = jax.device_put((q, k, v), sharding)
    tokens = jax.device_put(tokens, batch_sharding(mesh))
    run = jax.jit(traced_on(mesh, output)).lower(*spread, tokens).compile()
    assert not collectives(run.as_text())
    actual = run(*spread, tokens)
    assert len(actual.sharding.device_set) == 8
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6)

    def of_own_rows(batch):
        return output(*batch).sum(axis=0)

    total = jax.jit(traced_on(mesh, summed_over_devices(of_own_rows)))(
        (*spread, tokens)
    )
    np.testing.assert_allclose(total, expected.sum(axis=0), rtol=0, atol=1e-5)


# Layers 0 and 3 attend to all tokens, layers 1, 2 and 4 to a window.
MODEL = BertConfig(
    *(50, 16, 5, 2, 24, 80),
    window=4,
    global_every=3,
    initializer_range=0.2,
    hidden_dropout=0,
    attention_dropout=0,
)


def encoded(params, tokens, compute=ComputeConfig(), config=MODEL, **options):
    if compute.scan_layers:
        encoder = stack_layers(params["encoder"], *config.scanned)
        params = params | {"encoder": encoder}
    apply = functools.partial(BertModel(config, compute).apply, method="encode")
    run = functools.partial(apply, deterministic=True, pool=False, **options)
    return jax.jit(lambda params, tokens: run({"params": params}, tokens))(
        params, tokens
    )


@pytest.fixture(scope="module")
def params():
    init = functools.partial(BertModel(MODEL).init, method="encode", deterministic=True)
    init = functools.partial(init, pool=False)
    return jax.jit(init)(jax.random.key(0), rows(20))["params"]


@pytest.mark.parametrize(
    "compute",
    [
        ComputeConfig(attention_impl="plain"),
        ComputeConfig(remat="full"),
        ComputeConfig(scan_layers=True),
        ComputeConfig(scan_layers=True, remat="dots"),
    ],
    ids=["plain", "remat", "scan", "scan-remat"],
)
def test_a_model_in_blocks_equals_a_model_with_masks(compute, params, queries):
    """Hidden states of every layer, and the output at a few positions."""
    tokens = rows(61)
    used = np.asarray(tokens.segment_ids > 0)[..., None]
    expected = encoded(params, tokens, hidden_states=True)  # 61 < 4 * 64
    queries(8)
    ours = encoded(params, tokens, compute, hidden_states=True)
    assert len(ours.hidden_states) == len(expected.hidden_states) == 6
    for state, reference in zip(
        ours.hidden_states, expected.hidden_states, strict=True
    ):
        np.testing.assert_allclose(used * state, used * reference, rtol=0, atol=1e-5)
    positions = np.int32([[60, 3, 3, 17], [0, 1, 0, 0], [29, 5, 11, 2], [0, 0, 0, 0]])
    some = encoded(params, tokens, compute, positions_BQ=positions).sequence_BLD
    reference = np.take_along_axis(
        np.asarray(expected.sequence_BLD), positions[..., None], axis=1
    )
    np.testing.assert_allclose(some[:3], reference[:3], rtol=0, atol=1e-5)
    # Without the window the output differs, so this test can fail.
    everywhere = dataclasses.replace(MODEL, window=0, global_every=1)
    other = encoded(params, tokens, config=everywhere).sequence_BLD
    assert np.abs(used * (other - expected.sequence_BLD)).max() > 0.1


@pytest.mark.parametrize("impl", ["plain", "xla"])
def test_attention_that_is_drawn_is_0_outside_the_window(impl, params, queries):
    """Probabilities (B, N, Q, L) of each layer, at all positions and at a few."""
    queries(8)
    tokens = rows(40)
    positions = np.int32([[39, 2, 20]] * 4)

    def drawn(config, positions_BQ=None):
        model = BertModel(config, ComputeConfig(attention_impl=impl))
        apply = functools.partial(model.apply, method="encode", mutable=["attention"])
        options = dict(deterministic=True, pool=False, positions_BQ=positions_BQ)
        _, kept = jax.jit(lambda: apply({"params": params}, tokens, **options))()
        layers = kept["attention"]["encoder"]
        return [
            np.asarray(*layers[f"layer_{i}"]["attention"].values())[0] for i in range(5)
        ]

    for i, probs in enumerate(drawn(MODEL)):
        assert probs.shape == (4, 2, 40, 40)
        np.testing.assert_allclose(probs.sum(axis=-1), 1, rtol=1e-5)
        attends = square(tokens, MODEL.pattern(i).window or 40, causal=False)
        assert (probs[0, 0] > 0).sum() == attends[0].sum()
    # A last layer with a window computes all positions.
    for config in (MODEL, dataclasses.replace(MODEL, global_every=4)):
        last, few = drawn(config)[4], drawn(config, positions)[4]
        if not config.pattern(4).window:
            last = np.take_along_axis(last, positions[:, None, :, None], axis=2)
        np.testing.assert_allclose(few, last, rtol=0, atol=1e-6)
