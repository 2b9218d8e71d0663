"""The options of later encoders, against formulas in numpy with float64."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from bert_jax.errors import UserError
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.interop.load import load
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.flops import step
from bert_jax.model.heads import BertForSequence, BertForSpans, BertForTokens
from bert_jax.model.layers import rotary_rates, rotated
from bert_jax.model.parameters import with_scan
from bert_jax.model.tokens import Tokens
from bert_jax.objectives.objective import new_params
from bert_jax.parallel.mesh import MeshConfig, batch_sharding, make_mesh, traced_on
from bert_jax.parallel.sharding import arrays_by_path, tree_shardings
from bert_jax.training.optimizer import decay_mask
from tests.conftest import MODERNBERT

SIZES = BertConfig(
    vocab_size=50,
    hidden_size=24,
    num_layers=3,
    num_heads=2,
    intermediate_size=20,
    max_positions=16,
    layer_norm_epsilon=1e-3,
)
MODELS = {
    "bert": {},
    # ModernBERT, Nomic and GTE
    "pre_norm": {**MODERNBERT, "rope_theta": 50.0},
    "post_norm": dict(
        positions="rotary",
        rope_theta=20.0,
        rope_factor=3.0,
        attention_bias=False,
        gated=True,
        activation="silu",
        feed_forward_bias="none",
    ),
    "down": dict(
        positions="rotary", gated=True, feed_forward_bias="down", type_vocab_size=1
    ),
}
# A row of two sequences and padding, a row of one sequence, and the positions of the head.
SEGMENTS = np.int32([[1] * 7 + [2] * 5 + [0] * 4, [1] * 16])
STARTS = np.int32([[0, 7], [0, 0]])
PLACES = np.int32([[1, 6, 9], [15, 0, 3]])


def tokens():
    random = np.random.default_rng(3)
    ids = random.integers(1, 50, SEGMENTS.shape, np.int32)
    types = random.integers(0, 2, SEGMENTS.shape, np.int32)
    return Tokens(ids, types, SEGMENTS, STARTS)


def config_of(name, **changes):
    return dataclasses.replace(SIZES, **MODELS[name] | changes)


@functools.cache
def params_of(model):
    """Random parameters, so that every scale and bias matters."""
    arguments = [tokens()]
    if isinstance(model, BertForPreTraining):
        arguments = [tokens().input_ids] * 4
    init = functools.partial(model.init, deterministic=True)
    shapes = jax.eval_shape(init, jax.random.key(0), *arguments)["params"]
    random = np.random.default_rng(5)
    return jax.tree.map(
        lambda leaf: np.float32(0.4 * random.normal(size=leaf.shape)), shapes
    )


# The formulas, for one sequence without padding


def norm(x, params, config):
    x = x - x.mean(-1, keepdims=True)
    x /= np.sqrt((x**2).mean(-1, keepdims=True) + config.layer_norm_epsilon)
    assert ("bias" in params) == config.norm_bias
    return x * params["scale"] + params.get("bias", 0)


def dense(x, params, has_bias):
    assert ("bias" in params) == has_bias
    kernel = np.float64(params["kernel"]).reshape(x.shape[-1], -1)
    return x @ kernel + np.ravel(params.get("bias", 0))


def activated(x, config):
    if config.activation == "silu":
        return x / (1 + np.exp(-x))
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def turned(x, theta, factor):
    """Each number of each head of each token, one by one: (length, size of a head)."""
    result, H = np.zeros_like(x), x.shape[1]
    for p in range(len(x)):
        for i in range(H // 2):
            angle = p / factor * theta ** (-2 * i / H)
            a, b = x[p, i], x[p, i + H // 2]
            result[p, i] = a * math.cos(angle) - b * math.sin(angle)
            result[p, i + H // 2] = a * math.sin(angle) + b * math.cos(angle)
    return result


def attention(x, params, config):
    H, has_bias = config.head_size, config.attention_bias
    parts = [dense(x, params[name], has_bias) for name in ("query", "key", "value")]
    contexts = []
    for head in range(config.num_heads):
        q, k, v = (part[:, head * H : (head + 1) * H] for part in parts)
        if config.positions == "rotary":
            scale = config.rope_theta, config.rope_factor
            q, k = turned(q, *scale), turned(k, *scale)
        scores = q @ k.T / math.sqrt(H)
        if config.causal:
            scores[np.triu_indices(len(x), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        contexts.append(weights / weights.sum(-1, keepdims=True) @ v)
    joined = np.concatenate(contexts, axis=1)
    output = params["output"]
    kernel = np.reshape(output["kernel"], (config.hidden_size, -1))
    return dense(joined, output | {"kernel": kernel}, has_bias)


def feed_forward(x, params, config):
    biases = config.feed_forward_bias
    h = activated(dense(x, params["intermediate"], biases == "all"), config)
    assert ("gate" in params) == config.gated
    if config.gated:
        h *= dense(x, params["gate"], biases == "all")
    return dense(h, params["feed_forward_output"], biases != "none")


def encoder(ids, types, bert, config):
    """The embeddings and the output of each layer."""
    tables = bert["embeddings"]
    x = np.float64(tables["word"]["embedding"])[ids]
    if config.type_vocab_size:
        types = np.minimum(types, config.type_vocab_size - 1)
        x += tables["segment"]["embedding"][types]
    if config.positions == "learned":
        x += tables["position"]["embedding"][: len(ids)]
    if config.embedding_norm or not config.pre_norm:
        x = norm(x, tables["norm"], config)
    states = [x]
    for i in range(config.num_layers):
        layer = bert["encoder"][f"layer_{i}"]
        if config.pre_norm:
            y = x
            if i or not config.embedding_norm:
                y = norm(x, layer["attention_norm"], config)
            assert ("attention_norm" in layer) == bool(i or not config.embedding_norm)
            x = x + attention(y, layer["attention"], config)
            y = norm(x, layer["feed_forward_norm"], config)
            x = x + feed_forward(y, layer, config)
        else:
            x = x + attention(x, layer["attention"], config)
            x = norm(x, layer["attention_norm"], config)
            x = norm(
                x + feed_forward(x, layer, config), layer["feed_forward_norm"], config
            )
        states.append(x)
    if config.pre_norm:
        states[-1] = norm(x, bert["encoder"]["final_norm"], config)
    return states


def transform(x, params, config):
    x = activated(dense(x, params["transform"], config.head_bias), config)
    return norm(x, params["norm"], config)


def sequences(bert, config):
    """For each sequence its row, its slice and its states by hand."""
    batch = tokens()
    for row, count in ((0, 2), (1, 1)):
        for number in range(1, count + 1):
            (places,) = np.nonzero(SEGMENTS[row] == number)
            place = np.s_[row, places[0] : places[-1] + 1]
            ids, types = batch.input_ids[place], batch.token_type_ids[place]
            yield row, number - 1, places, encoder(ids, types, bert, config)


def apply(model, params, method=None, **settings):
    settings = dict(deterministic=True) | settings
    run = jax.jit(
        lambda params: model.apply(
            {"params": params}, tokens(), method=method, **settings
        )
    )
    return jax.device_get(run(params))


close = functools.partial(np.testing.assert_allclose, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("name", "causal"),
    [
        *[("bert", False), ("post_norm", False), ("down", False)],
        *[("pre_norm", False), ("pre_norm", True)],
    ],
)
def test_each_packed_sequence_follows_the_formulas(name, causal):
    """All hidden states, at all positions and at a few."""
    config = config_of(name, causal=causal)
    model = BertForPreTraining(config)
    params = params_of(model)

    def everything(model, batch, deterministic):
        run = functools.partial(model.bert.encode, batch, deterministic=deterministic)
        logits = model.logits(batch, PLACES, deterministic=deterministic)
        return run(hidden_states=True), run(positions_BQ=PLACES, pool=False), logits

    every, some, logits = apply(model, params, everything)
    mlm = params["mlm"]
    for row, number, places, states in sequences(params["bert"], config):
        for ours, expected in zip(every.hidden_states, states, strict=True):
            close(ours[row, places], expected)
        for i, place in enumerate(PLACES[row]):
            if place in places:
                x = states[-1][place - places[0]]
                close(some.sequence_BLD[row, i], x)
                words = params["bert"]["embeddings"]["word"]["embedding"][:50]
                expected = transform(x, mlm, config) @ words.T + mlm["output_bias"]
                close(logits.mlm_logits_BMW[row, i, :50], expected, atol=1e-4)
        pooled = states[-1][-1 if causal else 0]
        pooler = params["bert"]["pooler"]
        if config.pooler == "transform":
            expected = transform(pooled, pooler, config)
        else:
            expected = np.tanh(dense(pooled, pooler, config.head_bias))
        close(every.pooled_BD[row, number], expected)


@pytest.mark.parametrize("pooling", ["token", "mean"])
def test_a_classifier_of_texts_pools_before_the_transform(pooling):
    config = config_of("pre_norm", pooling=pooling)
    model = BertForSequence(config, 4)
    params = params_of(model)
    logits = apply(model, params)
    for row, number, _, states in sequences(params["bert"], config):
        pooled = states[-1][0]
        if pooling == "mean":
            pooled = states[-1].mean(0)
        x = transform(pooled, params["bert"]["pooler"], config)
        close(logits[row, number], dense(x, params["classifier"], True))


@pytest.mark.parametrize(
    ("make", "output"),
    [
        (lambda config: BertForTokens(config, 5), "classifier"),
        (BertForSpans, "qa_outputs"),
    ],
)
def test_a_classifier_of_tokens_has_the_transform_on_every_token(make, output):
    config = config_of("pre_norm")
    model = make(config)
    params = params_of(model)
    logits = apply(model, params)
    for row, _, places, states in sequences(params["bert"], config):
        x = transform(states[-1], params["bert"]["pooler"], config)
        close(logits[row, places], dense(x, params[output], True))


@pytest.mark.parametrize("make", [BertForTokens, BertForSequence])
def test_a_classifier_is_saved_in_our_form_with_its_transform(make, tmp_path):
    # No family has biases only at the end of its feed-forward layers and such norms.
    config = dataclasses.replace(config_of("pre_norm"), feed_forward_bias="down")
    params = params_of(make(config, 3))
    head = "token" if make is BertForTokens else "sequence"
    checkpoint = Checkpoint(config, params, None, head)
    save_huggingface(tmp_path / "folder", checkpoint, own=True)
    again = load(tmp_path / "folder")
    assert (again.config, again.head) == (config, head)
    jax.tree.map(np.testing.assert_array_equal, again.params, params)


def test_a_pooler_of_texts_is_not_in_a_model_of_tokens():
    assert "pooler" not in params_of(BertForTokens(config_of("down"), 5))["bert"]


def test_positions_change_the_scores_of_rotary_models_only_by_their_distance():
    """In float32, at the end of a long text as well as at its start."""
    random = np.random.default_rng(0)
    q, k = random.normal(size=(2, 1, 1, 1, 64)).astype(np.float32)

    def score(query, key):
        places = np.int32([[query]]), np.int32([[key]])
        x, y = rotated(q, places[0], 1e4), rotated(k, places[1], 1e4)
        return float(jnp.vdot(x, y))

    assert score(5, 9) == pytest.approx(score(8005, 8009), abs=2e-3)
    assert abs(score(5, 9) - score(5, 12)) > 0.1


def test_angles_are_float32_with_bfloat16_activations():
    x = np.random.default_rng(0).normal(size=(1, 3, 1, 8)).astype(np.float32)
    x = np.float32(jnp.asarray(x, jnp.bfloat16))
    places = [0, 1001, 8191]  # bfloat16 has no 1001
    ours = rotated(jnp.asarray(x, jnp.bfloat16), np.int32([places]), 160.0)
    assert ours.dtype == jnp.bfloat16
    whole = np.zeros((8192, 8))
    whole[places] = x[0, :, 0]
    expected = turned(whole, 160.0, 1.0)[places]
    np.testing.assert_allclose(
        np.float32(ours[0, :, 0]), expected, rtol=2**-8, atol=2e-3
    )


def loss(config, compute):
    model = BertForPreTraining(config, compute)

    def value(params, batch):
        logits = model.apply(
            {"params": params}, batch, PLACES, deterministic=True, method="logits"
        )
        return jnp.sum(jnp.square(logits.nsp_logits_B2)) + jnp.sum(
            jax.nn.logsumexp(logits.mlm_logits_BMW, axis=-1)
        )

    return value


def gradients(params, compute=ComputeConfig(), mesh=None):
    value = loss(config_of("pre_norm"), compute)
    if mesh is None:
        return jax.device_get(jax.jit(jax.value_and_grad(value))(params, tokens()))
    shardings = tree_shardings(params, mesh, fsdp=True)
    function = traced_on(mesh, jax.value_and_grad(value))
    run = jax.jit(function, in_shardings=(shardings, batch_sharding(mesh)))
    return jax.device_get(run(params, tokens()))


@pytest.fixture(scope="module")
def expected():
    return gradients(params_of(BertForPreTraining(config_of("pre_norm"))))


def same_gradients(ours, expected):
    assert ours[0] == pytest.approx(expected[0], rel=1e-5)
    theirs = arrays_by_path(expected[1])
    for name, array in arrays_by_path(ours[1]).items():
        scale = np.abs(theirs[name]).max()
        close(array, theirs[name], atol=1e-4 * scale, err_msg=name)


def test_devices_split_gates_and_heads(expected):
    """Parameters that are split over data, and heads and feed-forward over model."""
    mesh = make_mesh(MeshConfig(data=2, model=2, fsdp=True), jax.devices()[:4])
    params = params_of(BertForPreTraining(config_of("pre_norm")))
    layer = tree_shardings(params, mesh, fsdp=True)["bert"]["encoder"]["layer_1"]
    assert layer["gate"]["kernel"].spec == layer["intermediate"]["kernel"].spec
    assert layer["gate"]["kernel"].spec == PartitionSpec("data", "model")
    same_gradients(gradients(params, mesh=mesh), expected)


def test_recomputed_layers_have_the_same_gradients(expected):
    params = params_of(BertForPreTraining(config_of("pre_norm")))
    same_gradients(gradients(params, ComputeConfig(remat="dots")), expected)


def test_a_step_in_bfloat16_stays_close(expected):
    params = params_of(BertForPreTraining(config_of("pre_norm")))
    value, grads = gradients(params, ComputeConfig(dtype="bfloat16"))
    assert value == pytest.approx(expected[0], rel=0.02)
    assert {leaf.dtype for leaf in jax.tree.leaves(grads)} == {np.dtype("float32")}


@pytest.mark.parametrize("name", ["pre_norm", "down"])
def test_pooled_vectors_are_float32_in_bfloat16(name):
    """They are normalised and returned to users."""
    model = BertForPreTraining(config_of(name), ComputeConfig(dtype="bfloat16"))

    def encode(params):
        return model.apply(
            {"params": params},
            tokens(),
            deterministic=True,
            method=lambda model, *args, **options: model.bert.encode(*args, **options),
        )

    encoded = jax.eval_shape(encode, params_of(model))
    assert encoded.sequence_BLD.dtype == jnp.bfloat16
    assert encoded.pooled_BD.dtype == jnp.float32


def test_only_scaled_init_changes_the_deviation_of_outputs():
    """As in ModernBERT: initializer_range, for outputs over the root of 2 layers."""
    sizes = dict(hidden_size=64, intermediate_size=96, initializer_range=0.3)
    cut = 0.8796  # standard deviation of a normal distribution that is cut at 2
    for scaled in (False, True):
        config = config_of("pre_norm", scaled_init=scaled, **sizes)
        init = BertForPreTraining(config).init
        ids = tokens().input_ids
        run = jax.jit(functools.partial(init, deterministic=True))
        params = jax.device_get(run(jax.random.key(0), *[ids] * 4))["params"]
        small = 0.3 * cut / math.sqrt(2 * 3) if scaled else 0.3 * cut
        for name, array in arrays_by_path(params).items():
            if name.endswith("kernel") and array.size > 1000:
                last = name.split("/")[-2]
                is_small = last in ("output", "feed_forward_output", "transform")
                deviation = small if is_small else 0.3 * cut
                assert array.std() == pytest.approx(deviation, rel=0.05), name
            if name.endswith("scale"):
                assert np.array_equal(array, np.ones_like(array)), name


def test_a_gate_costs_one_more_product():
    plain, gated = (
        step(config_of("pre_norm", gated=x), ComputeConfig(), 3, 16, whole=True)
        for x in (False, True)
    )
    assert gated - plain == 6 * 3 * 16 * 3 * 24 * 20


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(positions="rotary", num_heads=8),
            r"heads of an even size.* is 3; change",
        ),
        (
            dict(positions="rotary", position_offset=2),
            "position_offset=2 has no effect",
        ),
        (dict(rope_theta=160_000.0), "rope_theta=160000 needs positions=rotary"),
        (dict(rope_factor=2.5), "rope_factor=2.5 needs positions=rotary, not learned"),
        (dict(embedding_norm=True), "embedding_norm=True needs pre_norm=True"),
        (dict(encoder="lstm", gated=True), "lstm needs gated=False, not True"),
        (
            dict(encoder="lstm", positions="rotary"),
            "lstm does not support positions=rot",
        ),
        (
            dict(encoder="lstm", pooler="transform"),
            "lstm does not support pooler=transf",
        ),
        (dict(feed_forward_bias="up"), "feed_forward_bias='up', expected one of"),
    ],
)
def test_options_without_meaning_together_are_refused(changes, message):
    with pytest.raises(UserError, match=message) as error:
        dataclasses.replace(SIZES, **changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("layers", "changes"),
    [(3, {}), (1, {}), (2, dict(window=2, global_every=3)), (4, dict(remat="full"))],
)
def test_scanned_layers_equal_the_loop(layers, changes):
    """Even if the first layer, without attention norm, or all layers are not scanned."""
    changes = dict(changes)
    settings = {"remat": changes.pop("remat", "none")}
    config = config_of("pre_norm", num_layers=layers, **changes)
    loop = BertForPreTraining(config, ComputeConfig(**settings))
    scan = BertForPreTraining(config, ComputeConfig(scan_layers=True, **settings))
    ids = tokens().input_ids
    inputs = functools.partial(new_params, deterministic=True)
    shapes = jax.eval_shape(
        lambda key: inputs(scan, key, *[ids] * 4), jax.random.key(0)
    )
    params = params_of(loop)
    stacked = with_scan(params, True, *config.scanned)
    assert jax.tree.map(np.shape, stacked) == jax.tree.map(np.shape, shapes)
    jax.tree.map(np.testing.assert_array_equal, with_scan(stacked, False), params)
    options = dict(hidden_states=True)

    def states(model, batch, deterministic):
        encoded = model.bert.encode(batch, deterministic=deterministic, **options)
        return jnp.stack(encoded.hidden_states)

    close(apply(scan, stacked, states), apply(loop, params, states))


def test_weight_decay_is_for_kernels_and_tables():
    """Even without biases a norm does not decay."""
    params = params_of(BertForPreTraining(config_of("pre_norm")))
    decays = arrays_by_path(decay_mask(params))
    assert decays["bert/encoder/layer_1/gate/kernel"] is True
    assert {name.split("/")[-1] for name in decays if not decays[name]} == {
        *("scale", "bias", "output_bias")
    }
    last = {name.split("/")[-1] for name in decays if decays[name]}
    assert last == {"kernel", "embedding"}


def test_rates_are_torchs_bit_for_bit():
    """1 / 10000 ** (torch.arange(0, 64, 2, dtype=torch.float) / 64), from float32."""
    rates = rotary_rates(64, 10_000.0, 1.0)
    assert rates.dtype == np.float32 and rates.shape == (32,)
    expected = {
        5: 0.23713736236095428,
        9: 0.07498941570520401,
        28: 0.0003162277862429619,
    }
    assert {i: float(rates[i]) for i in expected} == expected


def test_options_keep_the_names_of_other_parameters():
    """Only the parameters of an option are more or less than in BERT."""
    names = {}
    for name in MODELS:
        names[name] = {*arrays_by_path(params_of(BertForPreTraining(config_of(name))))}
    more = names["down"] - names["bert"]
    assert {x.split("/")[-2] for x in more} == {"gate"}
    less = names["bert"] - names["down"]
    assert {"/".join(x.split("/")[-2:]) for x in less} == {
        *("position/embedding", "intermediate/bias")
    }
