import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax.errors import UserError
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import ComputeConfig, MeshConfig
from bert_jax.model.parameters import with_scan
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.parallel.mesh import make_mesh, traced_on
from bert_jax.settings import from_settings, to_dict
from bert_jax.training.config import FineTuneOptimizer
from bert_jax.training.finetune_loss import first_layers
from bert_jax.training.optimizer import (
    OptimizerConfig,
    bert_optimizer,
    decay_mask,
    learning_rate,
    make_schedule,
    scale_by_muon,
    scale_by_trust_ratio,
    stop_frozen,
)

PAPER = OptimizerConfig(learning_rate=1e-4, warmup_steps=10_000)
PAPER_SCHEDULE = make_schedule(PAPER, 1_000_000)
TOTAL = 12
# No value is a default. Epsilon is a third of the smallest gradients of the tests.
SHORT = OptimizerConfig(
    learning_rate=0.01,
    warmup_steps=3,
    beta1=0.8,
    beta2=0.99,
    epsilon=3e-6,
    weight_decay=0.03,
    clip_norm=0.7,
)


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (0, 0.0),
        (1, 1e-8),
        (5_000, 0.5e-4),
        (9_999, 0.9999e-4),
        (10_000, 0.99e-4),  # the decay starts at step 0
        (500_000, 0.5e-4),
        (999_999, 1e-10),
        (1_000_000, 0.0),
        (1_200_000, 0.0),
    ],
)
def test_the_learning_rate_follows_the_paper(step, rate):
    # 1 - step / total is computed in float32 near 1: exact to 1e-7 of the peak.
    assert float(learning_rate(PAPER_SCHEDULE, step)) == pytest.approx(
        rate, rel=1e-6, abs=1e-11
    )


def test_warmup_may_be_a_share_of_the_steps():
    share = dataclasses.replace(PAPER, warmup_steps=0, warmup=0.1)
    assert make_schedule(share, 99).warmup_steps == 9
    steps = dataclasses.replace(share, warmup_steps=5)
    assert make_schedule(steps, 99).warmup_steps == 5
    none = make_schedule(dataclasses.replace(share, warmup=0.0), 4)
    rates = [float(learning_rate(none, step)) for step in range(5)]
    assert rates == pytest.approx([1e-4, 0.75e-4, 0.5e-4, 0.25e-4, 0])


WSD = OptimizerConfig(
    learning_rate=2e-3,
    warmup_steps=4,
    schedule="wsd_linear",
    decay_steps=16,
    final_rate=0.02,
)


@pytest.mark.parametrize(
    ("step", "linear", "root"),
    [
        (0, 0.0, 0.0),
        (3, 0.75, 0.75),
        (4, 1.0, 1.0),
        (84, 1.0, 1.0),
        (85, 1 - 0.98 / 16, 1 - 0.98 / 4),
        (88, 1 - 0.98 / 4, 1 - 0.98 / 2),
        (99, 1 - 0.98 * 15 / 16, 1 - 0.98 * math.sqrt(15 / 16)),
        (100, 0.02, 0.02),
    ],
)
def test_the_learning_rate_is_constant_until_its_decay(step, linear, root):
    """A tail that is linear, or 1 - sqrt (Hägele et al., 2024)."""
    tails = {"wsd_linear": linear, "wsd_sqrt": root}
    for shape, share in tails.items():
        schedule = make_schedule(dataclasses.replace(WSD, schedule=shape), 100)
        rate = float(learning_rate(schedule, step))
        assert rate == pytest.approx(2e-3 * share, rel=1e-6)
    stable = make_schedule(dataclasses.replace(WSD, decay_steps=0), 100)
    rate = float(learning_rate(stable, step))
    assert rate == pytest.approx(2e-3 * min(step / 4, 1))


def test_a_decay_needs_a_schedule_with_a_stable_part_and_fits_into_the_run():
    for name, value in {"decay_steps": 16, "final_rate": 0.02}.items():
        message = f"optimizer.{name}={value} needs optimizer.schedule=wsd_linear"
        with pytest.raises(UserError, match=message):
            OptimizerConfig(learning_rate=1e-3, **{name: value})
    make_schedule(WSD, 20)
    with pytest.raises(
        UserError, match=r"4 steps of warmup and .*=16 together exceed the 19 steps"
    ):
        make_schedule(WSD, 19)


def adam_by_hand(config, params, all_grads):
    """optimization.py in float64 for {path: array}."""
    params = {name: np.float64(array) for name, array in params.items()}
    m = {name: np.zeros_like(array) for name, array in params.items()}
    v = {name: np.zeros_like(array) for name, array in params.items()}
    for t, grads in enumerate(all_grads):
        if t < config.warmup_steps:
            rate = config.learning_rate * t / config.warmup_steps
        else:
            rate = config.learning_rate * (1 - t / TOTAL)
        norm = np.sqrt(sum(np.sum(np.float64(g) ** 2) for g in grads.values()))
        for name, grad in grads.items():
            g = np.float64(grad) * min(1.0, config.clip_norm / norm)
            m[name] = config.beta1 * m[name] + (1 - config.beta1) * g
            v[name] = config.beta2 * v[name] + (1 - config.beta2) * g**2
            m_hat, v_hat = m[name], v[name]
            is_stable = config.name == "stable_adamw"
            if config.bias_correction or is_stable:
                m_hat = m_hat / (1 - config.beta1 ** (t + 1))
                v_hat = v_hat / (1 - config.beta2 ** (t + 1))
            update = m_hat / (np.sqrt(v_hat) + config.epsilon)
            if name.endswith(("kernel", "embedding")):
                update = update + config.weight_decay * params[name]
                if config.name == "lamb":  # You et al. (2020), algorithm 2
                    ratio = np.linalg.norm(params[name]) / np.linalg.norm(update)
                    update = ratio * update
            if is_stable:  # Wortsman et al. (2023), algorithm 2
                ratio = g**2 / np.maximum(v_hat, config.epsilon**2)
                update = update / max(1.0, np.sqrt(np.mean(ratio)))
            params[name] = params[name] - rate * update
    return params


# Norms of the gradients: the first list is always clipped, the last never.
@pytest.mark.parametrize("scale", [1.0, 0.1, 1e-5])
@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize("name", ["adam", "lamb", "stable_adamw"])
def test_updates_equal_a_computation_by_hand(scale, bias_correction, name):
    config = dataclasses.replace(SHORT, bias_correction=bias_correction, name=name)
    shapes = {
        "word/embedding": (5, 3),
        "dense/kernel": (3, 4),
        "dense/bias": (4,),
        "norm/scale": (3,),
        "norm/bias": (3,),
        "output_bias": (5,),
    }
    rng = np.random.default_rng(0)

    def draw(scale):
        return {
            name: (scale * rng.normal(size=shape)).astype(np.float32)
            for name, shape in shapes.items()
        }

    start = draw(1.0)
    all_grads = [draw(scale * (1 + t)) for t in range(12)]
    optimizer = bert_optimizer(config)
    params = traverse_util.unflatten_dict(start, sep="/")
    state = optimizer.init(params)

    schedule = make_schedule(config, TOTAL)

    @jax.jit
    def update(grads, state, params, step):
        updates, state = optimizer.update(grads, state, params)
        rate = learning_rate(schedule, step)
        return jax.tree.map(lambda p, u: p - rate * u, params, updates), state

    for t, grads in enumerate(all_grads):
        params, state = update(
            traverse_util.unflatten_dict(grads, sep="/"), state, params, t
        )
        flat = traverse_util.flatten_dict(params, sep="/")
        expected = adam_by_hand(config, start, all_grads[: t + 1])
        for name, array in flat.items():
            np.testing.assert_allclose(array, expected[name], rtol=0, atol=2e-6)
    assert np.max(np.abs(flat["dense/kernel"] - start["dense/kernel"])) > 1e-2


def layered(random):
    """Arrays by path, of a model with three layers."""
    shapes = {f"bert/encoder/layer_{i}/dense/kernel": (3, 4) for i in range(3)}
    shapes |= {"bert/embeddings/word/embedding": (5, 3), "bert/pooler/kernel": (3, 3)}
    shapes |= {"classifier/bias": (2,)}
    return {k: np.float32(random.normal(size=shape)) for k, shape in shapes.items()}


def stacked(arrays, scan, *scanned):
    """Arrays by path with other stacks of layers; see with_scan."""
    tree = traverse_util.unflatten_dict(arrays, sep="/")
    return traverse_util.flatten_dict(with_scan(tree, scan, *scanned), sep="/")


@pytest.mark.parametrize(("count", "layers"), [(2, [0, 1]), (11, [*range(11)])])
def test_the_first_layers_of_a_large_model_are_those_with_a_lower_number(count, layers):
    """Layer 1 is not layer 10 of the 24 layers of LARGE."""
    names = [f"bert/encoder/layer_{i}/attention/query/kernel" for i in range(24)]
    frozen = [i for i in range(24) if re.search(first_layers(count), names[i])]
    assert frozen == layers
    assert re.search(first_layers(count), "bert/embeddings/word/embedding")
    assert not re.search(first_layers(count), "bert/pooler/kernel")


@pytest.mark.parametrize("scanned", [(), (0, 1), (1, 2), (1, 1)])
@pytest.mark.parametrize("name", ["adam", "lamb"])
def test_layer_decay_and_freezing_scale_whole_updates(name, scanned):
    """Weight decay is included. Each layer has its factor, even in a stack."""
    random = np.random.default_rng(0)
    params, grads = layered(random), layered(random)

    def updates(decay, frozen, grads):
        trees = ({**params}, {**grads})
        trees = (stacked(tree, bool(scanned), *scanned) for tree in trees)
        model_params, all_grads = (
            traverse_util.unflatten_dict(x, sep="/") for x in trees
        )
        products = jax.vjp(lambda x: stop_frozen(frozen, x), model_params)[1]
        config = FineTuneOptimizer(weight_decay=0.5, name=name, layer_decay=decay)
        optimizer = bert_optimizer(config, frozen)
        new_updates = optimizer.update(
            *products(all_grads), optimizer.init(model_params), model_params
        )[0]
        flat = traverse_util.flatten_dict(jax.device_get(new_updates), sep="/")
        return stacked(flat, False)

    powers = {"embeddings": 4, "layer_0": 3, "layer_1": 2, "layer_2": 1}
    for frozen in ("", "embeddings", "embeddings|layer_[01]"):
        # The norm that clips the gradients is the norm of the trained parameters.
        stays = {path for path in params if frozen and re.search(frozen, path)}
        trained = {k: grad * (k not in stays) for k, grad in grads.items()}
        count = {"": -1, "embeddings": 0}.get(frozen, 2)
        plain = updates(1.0, "", trained)
        for path, update in updates(0.5, first_layers(count), grads).items():
            if path in stays:  # -0.0 would change a parameter of -0.0
                assert not np.any(update) and not np.any(np.signbit(update)), path
                continue
            power = sum(n for part, n in powers.items() if part in path)
            expected = plain[path] * 0.5**power
            np.testing.assert_allclose(update, expected, rtol=1e-5, err_msg=path)


@pytest.mark.parametrize("name", ["layers", "layers_1_3"])
def test_each_layer_of_a_stack_has_its_own_trust_ratio(name):
    rng = np.random.default_rng(1)
    params, grads = (
        [{"dense": {"kernel": scale * rng.normal(size=(3, 4))}} for scale in scales]
        for scales in ([1.0, 8.0, 0.0], [1.0, 0.1, 2.0])
    )

    def update(params, grads):
        ratio = scale_by_trust_ratio()
        return ratio.update(grads, ratio.init(params), params)[0]

    def stack(trees):
        return {"encoder": {name: jax.tree.map(lambda *x: np.stack(x), *trees)}}

    together = update(stack(params), stack(grads))
    alone = [update(p, g) for p, g in zip(params, grads, strict=True)]
    jax.tree.map(np.testing.assert_allclose, together, stack(alone))
    sizes = [np.linalg.norm(x["dense"]["kernel"]) for x in alone]
    expected = [np.linalg.norm(x["dense"]["kernel"]) for x in params]
    # A layer of zeros gets Adam's update.
    expected[2] = np.linalg.norm(grads[2]["dense"]["kernel"])
    np.testing.assert_allclose(sizes, expected, rtol=1e-6)


def test_stable_adamw_clips_each_layer_of_a_stack_by_itself():
    """Only the update of the layer whose gradient has grown a thousandfold is smaller."""
    config = OptimizerConfig(1.0, name="stable_adamw", clip_norm=math.inf, beta2=0.99)
    plain = dataclasses.replace(config, name="adam", bias_correction=True)
    rng = np.random.default_rng(3)
    params = {"encoder": {"layers": {"dense": {"kernel": rng.normal(size=(2, 3, 4))}}}}
    grads = jax.tree.map(np.ones_like, params)
    grown = jax.tree.map(lambda x: x * [[[1.0]], [[1000.0]]], grads)

    def last_update(config):
        optimizer = bert_optimizer(config)
        state = optimizer.init(params)
        _, state = optimizer.update(grads, state, params)
        return optimizer.update(grown, state, params)[0]["encoder"]["layers"]

    kernel = last_update(config)["dense"]["kernel"]
    expected = np.array(last_update(plain)["dense"]["kernel"])
    v = (0.99 * 0.01 + 0.01 * 1e6) / (1 - 0.99**2)
    assert 1000 / math.sqrt(v) == pytest.approx(1.41, abs=0.01)
    expected[1] /= 1000 / math.sqrt(v)
    np.testing.assert_allclose(kernel, expected, rtol=1e-5)


def test_muon_updates_have_singular_values_near_one():
    """Kernels with heads are included. All other parameters get Adam's updates.

    At the first step the average is the gradient, u diag(s) v, and Muon's update is u v.
    After its five iterations even the smallest singular value is between 0.7 and 1.2.
    """
    rng = np.random.default_rng(3)
    shapes = {
        ("encoder", "layer_0", "attention", "query", "kernel"): (16, 4, 4),
        ("encoder", "layer_0", "attention", "output", "kernel"): (4, 4, 16),
        ("encoder", "layer_0", "intermediate", "kernel"): (16, 64),
        ("encoder", "layer_0", "intermediate", "bias"): (64,),
        ("embeddings", "word", "embedding"): (40, 16),
        ("pooler", "kernel"): (16, 16),
    }
    grads = traverse_util.unflatten_dict(
        {path: np.float32(rng.normal(size=shape)) for path, shape in shapes.items()}
    )

    def update(name):
        config = dataclasses.replace(SHORT, name=name, weight_decay=0.0)
        optimizer = bert_optimizer(config)
        got = jax.jit(optimizer.update)(grads, optimizer.init(grads), grads)[0]
        return traverse_util.flatten_dict(got)

    muon, adam, flat = update("muon"), update("adam"), traverse_util.flatten_dict(grads)
    for path, grad in flat.items():
        if path[0] != "encoder" or path[-1] != "kernel":
            np.testing.assert_array_equal(muon[path], adam[path])
            continue
        got = np.asarray(muon[path]).reshape(16, -1)
        u, _, v = np.linalg.svd(grad.reshape(16, -1), full_matrices=False)
        turned = u.T @ got @ v.T / (0.2 * np.sqrt(got.shape[1]))
        values = np.diag(turned)
        assert 0.65 < values.min() < values.max() < 1.25, path
        assert np.abs(turned - np.diag(values)).max() < 1e-3, path


def test_muon_looks_one_step_ahead_of_its_average():
    """Nesterov's momentum of 0.95 (Jordan, 2024), at the second step by hand.

    The average after two steps and the new gradient are both divided by the sum of their
    weights, as in Adam. Muon's update has the singular vectors of 0.95 times the average
    plus 0.05 times the gradient.
    """
    rng = np.random.default_rng(5)
    first, second = (rng.normal(size=(8, 12)) for _ in range(2))
    muon = scale_by_muon()
    state = muon.init({"encoder": {"kernel_of": {"kernel": first}}})
    for grad in (first, second):
        grads = {"encoder": {"kernel_of": {"kernel": jnp.float32(grad)}}}
        updates, state = jax.jit(muon.update)(grads, state)
    average = 0.95 * 0.05 * first + 0.05 * second
    ahead = 0.95 * average / (1 - 0.95**3) + 0.05 * second / (1 - 0.95**2)
    u, _, v = np.linalg.svd(ahead, full_matrices=False)
    turned = u.T @ np.float64(updates["encoder"]["kernel_of"]["kernel"]) @ v.T
    values = np.diag(turned) / (0.2 * 12**0.5)
    assert 0.65 < values.min() < values.max() < 1.25
    off = turned - np.diag(np.diag(turned))
    assert np.abs(off).max() < 1e-3


@pytest.mark.parametrize("name", ["layers", "layers_2_3"])
def test_muon_updates_each_stacked_layer_separately(name):
    rng = np.random.default_rng(4)
    shapes = {
        ("attention", "key", "kernel"): (8, 2, 4),
        ("attention", "output", "kernel"): (2, 4, 8),
        ("intermediate", "kernel"): (8, 16),
    }
    layers = [
        traverse_util.unflatten_dict(
            {path: scale * rng.normal(size=shape) for path, shape in shapes.items()}
        )
        for scale in (1.0, 100.0)
    ]

    def update(encoder):
        muon = scale_by_muon()
        grads = {"encoder": encoder}
        return jax.jit(muon.update)(grads, muon.init(grads), grads)[0]["encoder"]

    stack = jax.tree.map(lambda *leaves: np.stack(leaves), *layers)
    together = update({name: stack})[name]
    alone = update({f"layer_{i}": layer for i, layer in enumerate(layers)})
    expected = jax.tree.map(lambda *leaves: np.stack(leaves), *alone.values())
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-5),
        together,
        expected,
    )


def test_devices_divide_the_matrices_of_muon():
    """The updates equal the updates of one device, for an eighth of the products.

    Eight matrices have the sides 16 and 64, so each device computes one. Three others have
    the sides 16 and 16, and five devices compute nothing for them.
    """
    rng = np.random.default_rng(6)
    shapes = {
        ("intermediate", "kernel"): (16, 64),
        ("feed_forward_output", "kernel"): (64, 16),
        ("attention", "query", "kernel"): (16, 4, 4),
    }
    layers = ["layer_0", "layer_1", "layer_2", "layer_3"]
    kernels = {
        ("encoder", layer, *path): np.float32(rng.normal(size=shape))
        for layer in layers
        for path, shape in shapes.items()
        if (layer, path[0]) != ("layer_3", "attention")
    }
    grads = traverse_util.unflatten_dict(kernels)
    muon = scale_by_muon()
    state = muon.init(grads)

    def compiled(mesh):
        update = traced_on(mesh, lambda grads, state: muon.update(grads, state)[0])
        whole = NamedSharding(mesh, PartitionSpec())
        jitted = jax.jit(update, in_shardings=whole, out_shardings=whole)
        return jitted.lower(grads, state).compile()

    alone = compiled(make_mesh(MeshConfig(), jax.devices()[:1]))
    divided = compiled(make_mesh(MeshConfig(replica=2, model=2), jax.devices()))
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=5e-5),
        divided(grads, state),
        alone(grads, state),
    )
    # Five steps of x xT, its square and a product with x.
    wide, square = 5 * 2 * (2 * 16 * 16 * 64 + 16**3), 5 * 2 * 3 * 16**3
    # The rest is of momentum, which each device computes for all kernels.
    assert divided.cost_analysis()["flops"] < 1.5 * (wide + square)
    assert alone.cost_analysis()["flops"] > 8 * wide + 3 * square


@pytest.mark.parametrize("scan_layers", [False, True])
def test_weight_decay_applies_to_the_parameters_of_the_original(
    small_model_config, scan_layers
):
    """optimization.py: all parameters except LayerNorm, layer_norm and bias."""
    model = BertForPreTraining(
        small_model_config, ComputeConfig(scan_layers=scan_layers)
    )
    params = jax.eval_shape(MlmNsp(model).init, jax.random.key(0))
    mask = traverse_util.flatten_dict(decay_mask(params), sep="/")
    layers = ["layers"] if scan_layers else ["layer_0", "layer_1"]
    kernels = (
        "attention/query",
        "attention/key",
        "attention/value",
        "attention/output",
        "intermediate",
        "feed_forward_output",
    )
    decayed = {
        "bert/embeddings/word/embedding",
        "bert/embeddings/position/embedding",
        "bert/embeddings/segment/embedding",
        "bert/pooler/kernel",
        "mlm/transform/kernel",
        "nsp/kernel",
        *(f"bert/encoder/{layer}/{k}/kernel" for layer in layers for k in kernels),
    }
    assert {name for name, on in mask.items() if on} == decayed
    # Per layer: 6 biases and two norms; then 2 + 1 + 3 + 1 + 1 outside the layers.
    assert sum(not on for on in mask.values()) == 10 * len(layers) + 2 + 1 + 3 + 1 + 1


@pytest.mark.parametrize("off", [1e30, 1e300, math.inf])
def test_clipping_can_be_disabled(off):
    config = dataclasses.replace(SHORT, clip_norm=off, beta1=0.0)
    assert from_settings(OptimizerConfig, to_dict(config), "optimizer") == config
    optimizer = bert_optimizer(config)
    params = {"dense": {"kernel": jnp.ones((2, 2))}}
    grads = {"dense": {"kernel": jnp.full((2, 2), 3e4)}}
    _, states = optimizer.update(grads, optimizer.init(params), params)
    (adam,) = [s for s in states if hasattr(s, "mu")]
    np.testing.assert_array_equal(adam.mu["dense"]["kernel"], 3e4)
