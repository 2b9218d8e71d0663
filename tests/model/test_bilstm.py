import dataclasses
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model.bilstm import BertWithBiLstm, BiLstm
from bert_jax.model.config import BertConfig, ComputeConfig, FeatureConfig
from bert_jax.model.parameters import stack_layers
from bert_jax.model.tokens import Tokens
from bert_jax.objectives.networks import make_model

SMALL = FeatureConfig((0, -1), width=8, dropout=0.5)
NO_FEATURES = FeatureConfig()
LABELS = 5
FEATURES = 12


def make_batch(length=9, lengths=(9, 4, 1), seed=0):
    features = np.random.default_rng(seed).normal(size=(len(lengths), length, FEATURES))
    mask = np.int32(np.arange(length) < np.array(lengths)[:, None])
    return np.float32(features), mask


def tokens_of(mask):
    return Tokens.of_mask(0 * mask, 0 * mask, mask)


def shapes(config, features, labels=LABELS):
    """The shapes of the parameters, without initialising them."""
    init = partial(BiLstm(config, labels).init, deterministic=True)
    batch = jnp.zeros((1, 2, features)), tokens_of(jnp.ones((1, 2), jnp.int32))
    return jax.eval_shape(init, jax.random.key(0), *batch)["params"]


@cache
def parameters():
    """Normal random numbers. Unlike in initial parameters no bias is 0."""
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: np.float32(rng.normal(scale=0.4, size=leaf.shape)),
        shapes(SMALL, FEATURES),
    )


@cache
def _apply(deterministic):
    return jax.jit(partial(BiLstm(SMALL, LABELS).apply, deterministic=deterministic))


def run(features, mask, key=None):
    rngs = None if key is None else {"dropout": jax.random.key(key)}
    apply = _apply(deterministic=key is None)
    tokens = tokens_of(mask)
    return np.asarray(apply({"params": parameters()}, features, tokens, rngs=rngs))


def count(tree):
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def test_parameter_count():
    """The number of the paper, computed by hand for four layers of BASE."""
    first, second = 8 * 768 * (3072 + 768 + 1), 8 * 768 * (1536 + 768 + 1)
    assert (
        count(shapes(FeatureConfig(), 4 * 768, labels=9)) == first + second + 1537 * 9
    )


def test_padding_changes_nothing():
    features, mask = make_batch()
    logits = run(features, mask)
    assert logits.shape == (3, 9, 5)
    assert logits.dtype == np.float32
    noise = np.where(mask[..., None], features, np.float32(1e3))
    longer = np.pad(noise, ((0, 0), (0, 3), (0, 0)), constant_values=-7)
    padded = run(longer, np.pad(mask, ((0, 0), (0, 3))))
    alone = run(features[1:2, :4], mask[1:2, :4])
    np.testing.assert_allclose(logits[1, :4], alone[0], atol=1e-6)
    real = mask.astype(bool)
    np.testing.assert_allclose(padded[:, :9][real], logits[real], atol=1e-6)


@pytest.mark.parametrize("by_token", [True, False])
def test_sequences_of_a_row_have_the_same_outputs_as_alone(by_token):
    """Packed rows and a padded row. Both directions start at each sequence."""
    rows = (5, 3, 4), (1, 7), (4,)
    features, _ = make_batch(length=14, lengths=(12, 8, 4))
    segment_ids, starts = np.zeros((3, 14), np.int32), np.zeros((3, 3), np.int32)
    for row, lengths in enumerate(rows):
        ids = np.repeat(1 + np.arange(len(lengths)), lengths)
        segment_ids[row, : len(ids)] = ids
        starts[row, : len(lengths)] = np.cumsum((0, *lengths[:-1]))
    model = BiLstm(SMALL, LABELS, by_token)
    apply = jax.jit(partial(model.apply, deterministic=True))
    packed = tokens_of(segment_ids).replace(starts=starts)
    together = apply({"params": parameters()}, features, packed)
    assert together.shape == (3, 14 if by_token else 3, LABELS)
    for row, lengths in enumerate(rows):
        for slot, (start, length) in enumerate(zip(starts[row], lengths, strict=False)):
            part = np.s_[row : row + 1, start : start + length]
            one = tokens_of(np.ones((1, length), np.int32))
            alone = apply({"params": parameters()}, features[part], one)
            here = (
                together[row, start : start + length]
                if by_token
                else together[row, slot]
            )
            np.testing.assert_allclose(
                here, np.squeeze(alone, (0,) if by_token else (0, 1)), atol=1e-6
            )


def test_dropout_follows_its_key():
    first, same, other = (run(*make_batch(), key=key) for key in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    assert not np.allclose(first, other)
    assert not np.allclose(first, run(*make_batch()))


def test_layers_follow_the_formulas_of_an_lstm():
    """The first layer against Hochreiter and Schmidhuber's formulas with forget gates."""
    features, mask = make_batch(length=5, lengths=(3,))
    p = jax.tree.map(np.asarray, parameters())

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    def direction(name, x):
        kernel, bias = (p[f"{name}_inputs"][part] for part in ("kernel", "bias"))
        h = c = np.zeros(8)
        states = []
        for step in x:
            gates = step @ kernel + bias + h @ p[name]["state"]["kernel"]
            i, f, g, o = np.split(gates, 4)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            states.append(h)
        return np.array(states)

    x = features[0, :3]
    for layer in range(2):
        forward = direction(f"layer_{layer}_forward", x)
        backward = direction(f"layer_{layer}_backward", x[::-1])[::-1]
        x = np.concatenate([forward, backward], axis=-1)
    logits = x @ p["classifier"]["kernel"] + p["classifier"]["bias"]
    np.testing.assert_allclose(run(features, mask)[0, :3], logits, atol=1e-5)


BERT = BertConfig(
    vocab_size=50,
    hidden_size=6,
    num_layers=2,
    num_heads=2,
    intermediate_size=8,
    max_positions=12,
    initializer_range=0.3,
)


@pytest.fixture(scope="module")
def tagger():
    """The module, its parameters and the encoder's inputs."""
    model = BertWithBiLstm(BERT, LABELS, SMALL)
    _, mask = make_batch()
    ids = np.random.default_rng(0).integers(0, 50, mask.shape, np.int32)
    tokens = tokens_of(mask).replace(input_ids=ids)
    init = jax.jit(partial(model.init, deterministic=True))
    return model, init(jax.random.key(0), tokens)["params"], tokens


def test_tagging_features_equals_tagging_tokens(tagger):
    model, params, tokens = tagger

    def apply(params, *inputs, model=model, **options):
        return jax.jit(partial(model.apply, **options))({"params": params}, *inputs)

    from_tokens = apply(params, tokens, deterministic=True)
    features = apply({"bert": params["bert"]}, tokens, method="features")
    assert (features.shape, features.dtype) == ((3, 9, 12), np.float32)
    bilstm = {"bilstm": params["bilstm"]}
    tagged = apply(bilstm, features, tokens, deterministic=True, method="tag")
    np.testing.assert_allclose(tagged, from_tokens, atol=1e-6)
    scanned = BertWithBiLstm(BERT, LABELS, SMALL, ComputeConfig(scan_layers=True))
    bert = params["bert"] | {"encoder": stack_layers(params["bert"]["encoder"])}
    stacked = apply(params | {"bert": bert}, tokens, model=scanned, deterministic=True)
    np.testing.assert_allclose(stacked, from_tokens, atol=1e-5)


def test_the_form_of_dropout_masks_is_the_setting_of_the_run(tagger):
    """The frozen encoder has no dropout, so only the masks of the BiLSTM differ."""
    _, params, tokens = tagger
    logits = []
    for name in ("plain", "bytes"):
        model = BertWithBiLstm(BERT, LABELS, SMALL, ComputeConfig(dropout_impl=name))
        apply = jax.jit(partial(model.apply, deterministic=False))
        rngs = {"dropout": jax.random.key(1)}
        logits.append(apply({"params": params}, tokens, rngs=rngs))
    assert not np.allclose(*logits)


@pytest.mark.parametrize("frozen", [True, False])
def test_an_encoder_is_frozen_and_has_no_dropout_or_is_fine_tuned(tagger, frozen):
    model, params, tokens = tagger
    if not frozen:
        features = dataclasses.replace(SMALL, layers=(), bilstm=True)
        model = make_model(BERT, "token", LABELS, features)
        params = jax.jit(partial(model.init, deterministic=True))(
            jax.random.key(0), tokens
        )["params"]

    @jax.jit
    def gradients(params):
        def loss(params):
            logits = model.apply(
                {"params": params},
                tokens,
                deterministic=False,
                rngs={"dropout": jax.random.key(1)},
            )
            return jnp.sum(jnp.square(logits) * tokens.segment_ids[..., None])

        return jax.grad(loss)(params)

    grads = gradients(params)
    moved = [np.any(leaf) for leaf in jax.tree.leaves(grads["bert"])]
    assert not any(moved) if frozen else np.mean(moved) > 0.9
    assert all(np.any(leaf) for leaf in jax.tree.leaves(grads["bilstm"]))
