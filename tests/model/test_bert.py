import dataclasses
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from bert_jax.model.bert import BertForPreTraining, BertModel
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.parameters import stack_layers
from bert_jax.model.tokens import Tokens

SIZES = BertConfig(
    vocab_size=200,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    intermediate_size=64,
    max_positions=24,
)
SMALL = SIZES, ComputeConfig()  # the config argument of the functions below


def make_batch(rows=4, length=16, predictions=3, seed=0):
    """Arguments of the model: rows of 9 to ``length`` tokens with predictions."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(9, length + 1, rows)
    return (
        rng.integers(0, SIZES.vocab_size, (rows, length), np.int32),
        rng.integers(0, 2, (rows, length), np.int32),
        np.int32(np.arange(length) < lengths[:, None]),
        rng.integers(0, 9, (rows, predictions), np.int32),
    )


def replace(**changes):
    """SMALL with changes to either of its configs."""
    ours = {name: changes[name] for name in changes if hasattr(SIZES, name)}
    rest = {name: changes[name] for name in changes if name not in ours}
    return dataclasses.replace(SIZES, **ours), ComputeConfig(**rest)


def shapes(config, module=BertForPreTraining):
    """The shapes of the parameters, without initialising them."""
    args = make_batch()[: 4 if module is BertForPreTraining else 3]
    init = partial(module(*config).init, deterministic=True)
    return jax.eval_shape(init, jax.random.key(0), *args)["params"]


@cache
def init(seed=0):
    """Initial parameters of SMALL, without scanned layers."""
    model = BertForPreTraining(*SMALL)
    run = jax.jit(partial(model.init, deterministic=True))
    return run(jax.random.key(seed), *make_batch())["params"]


@cache
def _forward(config, deterministic):
    @jax.jit
    def run(params, args, key):
        rngs = None if deterministic else {"dropout": key}
        model = BertForPreTraining(*config)
        return model.apply(
            {"params": params}, *args, deterministic=deterministic, rngs=rngs
        )

    return run


def forward(config, params, args, dropout_seed=None):
    deterministic = dropout_seed is None
    key = jax.random.key(dropout_seed or 0)
    return _forward(config, deterministic)(params, args, key)


@cache
def _encode(config):
    apply = partial(BertModel(*config).apply, deterministic=True)
    return jax.jit(lambda params, args: apply({"params": params}, *args))


def encode(config, params, args):
    """The outputs of the last layer, at all positions, and of the pooler."""
    return _encode(config)(params["bert"], args[:3])


def loss(params, config, args, dropout_seed=None):
    output = forward(config, params, args, dropout_seed)
    mlm = jax.nn.log_softmax(output.mlm_logits_BMW)[:, :, 7]
    nsp = jax.nn.log_softmax(output.nsp_logits_B2)[:, 1]
    return -jnp.mean(mlm) - jnp.mean(nsp)


def gradients(config, params, args, dropout_seed=None):
    grad = jax.grad(partial(loss, config=config, args=args, dropout_seed=dropout_seed))
    return jax.jit(grad)(params)


def stacked(params):
    bert = params["bert"]
    return params | {"bert": bert | {"encoder": stack_layers(bert["encoder"])}}


def assert_close(a, b, atol):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=0, atol=atol), a, b)


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize(
    ("config", "with_heads", "without"),
    [
        (BertConfig.base(), 110_106_428, 109_482_240),
        (BertConfig.large(), 336_226_108, 335_141_888),
    ],
    ids=["base", "large"],
)
def test_parameter_counts(config, with_heads, without, scan_layers):
    """The word table's rows beyond the vocabulary do not count as parameters."""
    filling = (config.word_rows - config.vocab_size) * config.hidden_size
    assert (config.word_rows, filling) == (30_592, 70 * config.hidden_size)

    def count(module):
        scanned = config, ComputeConfig(scan_layers=scan_layers)
        leaves = jax.tree.leaves(shapes(scanned, module))
        return sum(leaf.size for leaf in leaves) - filling

    assert count(BertForPreTraining) == with_heads
    assert count(BertModel) == without


def test_rows_beyond_the_vocabulary_change_nothing():
    """They get no gradient, and their probability is exactly 0 for any values."""
    args, params = make_batch(), jax.tree.map(np.asarray, init())
    grads = gradients(SMALL, params, args)["bert"]["embeddings"]["word"]["embedding"]
    assert grads.shape == (256, 32) and np.any(grads[199]) and not np.any(grads[200:])
    logits = forward(SMALL, params, args).mlm_logits_BMW[..., :200]
    words = params["bert"]["embeddings"]["word"]
    words["embedding"] = np.concatenate(
        [words["embedding"][:200], np.full((56, 32), 9.0)]
    )
    output = forward(SMALL, params, args)
    assert np.array_equal(output.mlm_logits_BMW[..., :200], logits)
    assert output.mlm_logits_BMW.shape[-1] == 256
    assert not np.any(jax.nn.softmax(output.mlm_logits_BMW)[..., 200:])


def test_shapes_and_dtypes_of_the_outputs():
    for dtype in ("float32", "bfloat16"):
        config = replace(dtype=dtype)
        output = forward(config, init(), make_batch())
        assert output.mlm_logits_BMW.shape == (4, 3, 256)
        assert output.nsp_logits_B2.shape == (4, 2)
        assert output.mlm_logits_BMW.dtype == output.nsp_logits_B2.dtype == jnp.float32
        encoded = encode(config, init(), make_batch())
        assert encoded.sequence_BLD.shape == (4, 16, 32)
        assert encoded.pooled_BD.shape == (4, 32)
        assert encoded.sequence_BLD.dtype == dtype
        assert {leaf.dtype for leaf in jax.tree.leaves(shapes(config))} == {
            np.dtype("float32")
        }


def test_scanned_layers_equal_the_loop():
    args = make_batch()
    scan = replace(scan_layers=True)
    assert_close(
        forward(scan, stacked(init()), args), forward(SMALL, init(), args), 1e-5
    )
    assert_close(
        gradients(scan, stacked(init()), args),
        stacked(gradients(SMALL, init(), args)),
        1e-6,
    )


@pytest.mark.parametrize(("scan_layers", "remat"), [(False, "full"), (True, "dots")])
def test_recomputed_layers_have_the_same_gradients(scan_layers, remat):
    """With dropout: the recomputation must draw the same masks."""
    args = make_batch()
    params = stacked(init()) if scan_layers else init()
    kept = gradients(replace(scan_layers=scan_layers), params, args, dropout_seed=1)
    again = gradients(
        replace(scan_layers=scan_layers, remat=remat), params, args, dropout_seed=1
    )
    assert_close(again, kept, 1e-6)
    assert max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(kept)) > 1e-2


@pytest.mark.parametrize("scan_layers", [False, True])
def test_recomputed_layers_keep_little_for_the_backward_pass(scan_layers):
    """full: the layer's input. dots: the products with kernels, too, but not attention's.

    Without remat: the input of every product and softmax as well.
    """
    args = make_batch()
    params = stacked(init()) if scan_layers else init()

    def kept(remat):
        config = replace(scan_layers=scan_layers, remat=remat)
        value = partial(loss, config=config, args=args, dropout_seed=1)
        backward = jax.eval_shape(lambda params: jax.vjp(value, params)[1], params)
        return sum(leaf.size for leaf in jax.tree.leaves(backward))

    # At least ten (B, L, D) arrays less for each layer that computes all positions.
    layers = 2 if scan_layers else 1
    assert kept("none") - kept("full") > 10 * layers * 4 * 16 * 32
    # Four projections of width D and the product of width F in each layer.
    assert kept("dots") - kept("full") >= layers * 4 * 16 * (4 * 32 + 2 * 32)
    assert kept("none") - kept("dots") > layers * 4 * 2 * 16 * 16  # the softmax


@pytest.mark.parametrize(("layers", "outside"), [(2, 0), (3, 1)])
def test_layers_outside_a_loop_are_also_computed_again(layers, outside):
    """Only in a loop the compiler cannot share a layer's two computations."""
    changes = dict(num_layers=layers, window=2, global_every=2)
    config = dataclasses.replace(SIZES, **changes)
    assert config.scanned == (outside, 2)
    compute = ComputeConfig(scan_layers=True, remat="full")
    model = BertModel(config, compute)
    inputs = make_batch()[:3]
    init = partial(model.init, deterministic=True)
    params = jax.eval_shape(init, jax.random.key(0), *inputs)

    def total(params):
        output = model.apply(params, *inputs, deterministic=True)
        return output.sequence_BLD.sum()

    jaxpr = str(jax.make_jaxpr(jax.grad(total))(params))
    assert ("prevent_cse=True" in jaxpr) == (outside > 0)


def test_padding_changes_nothing_at_real_positions():
    """Its amount, ids, token types and embeddings do not matter."""
    ids, segments, mask, positions = make_batch()
    expected = forward(SMALL, init(), make_batch())
    sequence_BLD = encode(SMALL, init(), make_batch()).sequence_BLD
    padding = mask == 0
    assert padding.any()
    longer = [np.pad(x, ((0, 0), (0, 8))) for x in (ids, segments, mask)]
    for args in (
        (np.where(padding, 77, ids), np.where(padding, 1, segments), mask, positions),
        (*longer, positions),
    ):
        output = forward(SMALL, init(), args)
        encoded = encode(SMALL, init(), args)
        difference = np.abs(encoded.sequence_BLD[:, :16] - sequence_BLD)
        assert np.max(difference[mask == 1]) < 2e-6
        assert_close(output.mlm_logits_BMW, expected.mlm_logits_BMW, 2e-6)
        assert_close(output.nsp_logits_B2, expected.nsp_logits_B2, 2e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_fully_padded_row_is_finite_and_changes_no_other_row(dtype):
    ids, segments, mask, positions = make_batch()
    empty = mask.copy()
    empty[1] = 0
    config = replace(dtype=dtype)
    args = (ids, segments, empty, positions)
    output = forward(config, init(), args)
    for leaf in jax.tree.leaves((output, gradients(config, init(), args))):
        assert np.all(np.isfinite(np.float32(leaf)))
    of_all_rows = forward(config, init(), (ids, segments, mask, positions))
    others = np.array([0, 2, 3])
    assert_close(
        output.mlm_logits_BMW[others], of_all_rows.mlm_logits_BMW[others], 1e-6
    )


def test_bfloat16_stays_near_float32():
    """8 bits of mantissa: errors of hundredths, as LayerNorm's output has deviation 1."""
    args = make_batch()
    exact, rough = (
        forward(replace(dtype=d), init(), args) for d in ("float32", "bfloat16")
    )
    real = args[2] == 1
    encoded = [
        np.float32(encode(replace(dtype=d), init(), args).sequence_BLD)
        for d in ("float32", "bfloat16")
    ]
    sequence = encoded[1] - encoded[0]
    assert 1e-3 < np.sqrt(np.mean(sequence[real] ** 2)) < 0.02
    assert np.max(np.abs(sequence[real])) < 0.1
    assert_close(rough.nsp_logits_B2, exact.nsp_logits_B2, 0.01)
    assert_close(rough.mlm_logits_BMW, exact.mlm_logits_BMW, 0.02)


@pytest.mark.parametrize("scan_layers", [False, True])
def test_hidden_dropout_zeroes_its_share_of_the_embeddings_and_branches(scan_layers):
    """Measured on the output of each Dropout module."""
    config = replace(hidden_size=64, hidden_dropout=0.2, scan_layers=scan_layers)
    args = make_batch(rows=8, length=24)[:3]
    model = BertModel(*config)
    params = jax.jit(partial(model.init, deterministic=True))(jax.random.key(0), *args)[
        "params"
    ]

    @jax.jit
    def run(key):
        return model.apply(
            {"params": params},
            *args,
            deterministic=False,
            rngs={"dropout": key},
            capture_intermediates=lambda module, _: "ropout" in type(module).__name__,
            mutable="intermediates",
        )[1]["intermediates"]

    outputs = jax.tree.leaves(run(jax.random.key(1)))
    # The embeddings and two branches per layer, stacked or not; 12,288 numbers each.
    assert sum(leaf.size for leaf in outputs) == (1 + 2 * 2) * 8 * 24 * 64
    branches = [
        x for leaf in outputs for x in np.asarray(leaf).reshape(-1, 8 * 24 * 64)
    ]
    for branch in branches:
        assert abs(np.mean(branch == 0) - 0.2) < 4 * np.sqrt(0.16 / branch.size)
    for i, one in enumerate(branches):
        for other in branches[:i]:
            agree = np.mean((one == 0) == (other == 0))
            assert abs(agree - 0.68) < 0.03, "two places share a dropout mask"


def test_dropout_follows_its_key_and_stops_when_deterministic():
    args = make_batch()
    logits = [
        forward(SMALL, init(), args, dropout_seed=seed).nsp_logits_B2
        for seed in (1, 1, 2)
    ]
    assert np.array_equal(logits[0], logits[1])
    assert not np.allclose(logits[0], logits[2])
    none = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    exact = forward(SMALL, init(), args)
    assert_close(forward(replace(**none), init(), args, dropout_seed=1), exact, 0)
    for name in none:  # each kind of dropout by itself
        one = forward(replace(**none | {name: 0.2}), init(), args, dropout_seed=1)
        assert not np.allclose(one.nsp_logits_B2, exact.nsp_logits_B2)


def test_a_model_whose_dropout_is_0_trains_without_a_key():
    config = replace(hidden_dropout=0.0, attention_dropout=0.0)
    apply = partial(BertModel(*config).apply, deterministic=False)
    params = {"params": shapes(config, BertModel)}
    output = jax.eval_shape(apply, params, *make_batch(rows=4, length=16)[:3])
    assert output.sequence_BLD.shape == (4, 16, SIZES.hidden_size)


@pytest.mark.parametrize("scan_layers", [False, True])
def test_initial_values(scan_layers):
    """A deviation of 0.02 cut at two deviations leaves 0.0176; biases 0, scales 1."""
    config = replace(
        vocab_size=2000,
        hidden_size=128,
        intermediate_size=256,
        max_positions=128,
        scan_layers=scan_layers,
    )
    model = BertForPreTraining(*config)
    params = jax.jit(partial(model.init, deterministic=True))(
        jax.random.key(0), *make_batch()
    )["params"]
    random_leaves = 0
    for name, leaf in traverse_util.flatten_dict(params, sep="/").items():
        if name.endswith(("kernel", "embedding")):
            random_leaves += 1
            if name.endswith("word/embedding"):
                assert leaf.shape == (2048, 128) and not np.any(leaf[2000:])
                leaf = leaf[:2000]
            assert np.max(np.abs(leaf)) <= 0.04, name
            # 0.8796 of the nominal deviation, within five standard errors.
            tolerance = 5 * 0.0176 * np.sqrt(0.5 / leaf.size)
            assert abs(np.std(leaf) - 0.8796 * 0.02) < tolerance, name
            assert abs(np.mean(leaf)) < 5 * 0.0176 / np.sqrt(leaf.size), name
            if "/layers/" in name:  # each scanned layer has its own key
                pair = np.corrcoef(*np.reshape(leaf, (2, -1)))
                assert abs(pair[0, 1]) < 0.1, name
        else:
            assert np.all(leaf == (1 if name.endswith("scale") else 0)), name
    assert random_leaves == 3 + 6 * (1 if scan_layers else 2) + 3


@pytest.mark.parametrize(
    "changes", [{}, {"scan_layers": True}, {"window": 2, "global_every": 0}]
)
def test_selected_positions_equal_the_same_positions_of_all(changes):
    """Values and gradients are equal. A separate last layer without window does less."""
    config = replace(**changes)
    scan_layers = "scan_layers" in changes
    params = dict(init()["bert"])
    if scan_layers:
        params["encoder"] = stack_layers(params["encoder"])
    args = make_batch()[:3]
    chosen_BQ = np.array([[0, 5, 5], [0, 1, 2], [0, 15, 3], [0, 7, 0]])

    @partial(jax.jit, static_argnames="alone")
    def run(params, alone):
        def loss(params):
            output = BertModel(*config).apply(
                {"params": params},
                *args,
                deterministic=True,
                pool=False,
                positions_BQ=chosen_BQ if alone else None,
            )
            x_BQD = output.sequence_BLD
            if not alone:
                x_BQD = jnp.take_along_axis(x_BQD, chosen_BQ[:, :, None], axis=1)
            return jnp.sum(jnp.sin(x_BQD)), x_BQD

        return jax.grad(loss, has_aux=True)(params)

    few, every = run(params, True), run(params, False)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), few, every)
    assert few[1].shape == (4, 3, 32)
    flops = {
        alone: run.lower(params, alone).compile().cost_analysis()["flops"]
        for alone in (True, False)
    }
    assert (flops[True] < 0.8 * flops[False]) == (not changes)


@pytest.mark.parametrize("changes", [{}, {"window": 2, "global_every": 0}])
def test_the_last_hidden_state_has_the_selected_positions(changes):
    """With and without scanned layers."""
    params, batch = init()["bert"], Tokens.of_mask(*make_batch()[:3])
    stacked = params | {"encoder": stack_layers(params["encoder"])}
    chosen_BQ = np.array([[0, 5], [1, 2], [3, 15], [0, 7]])
    found = []
    for scan_layers, given in ((False, params), (True, stacked)):
        model = BertModel(*replace(**changes, scan_layers=scan_layers))
        output = model.apply(
            {"params": given},
            batch,
            deterministic=True,
            pool=False,
            hidden_states=True,
            positions_BQ=chosen_BQ,
            method="encode",
        )
        *_, last = output.hidden_states
        np.testing.assert_array_equal(last, output.sequence_BLD)
        found.append(output.hidden_states)
    loop, scan = found
    assert [x.shape for x in loop] == [x.shape for x in scan]
    for one, other in zip(loop, scan, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
