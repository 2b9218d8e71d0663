import dataclasses
import functools

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interop.checkpoint import Checkpoint, initial_shapes
from bert_jax.interop.surgery import head_params
from bert_jax.model.config import FeatureConfig
from bert_jax.objectives.heads import HEADS, FrozenTagging
from bert_jax.objectives.networks import make_model

LABELS = ("no", "yes", "perhaps")
FULL = FeatureConfig()  # the whole model is fine-tuned
KEY = jax.random.key(7)


@pytest.fixture(scope="module")
def make_checkpoint(model_config, init_params):
    """A function of (head, labels, outputs) that makes a checkpoint with this head."""

    @functools.cache
    def make(head, labels=(), outputs=3):
        params = init_params(make_model(model_config(), head, outputs, FULL))
        return Checkpoint(model_config(), params, None, head, labels)

    return make


@functools.cache
def init(model, head):
    return jax.jit(HEADS[head](model).init)


def initial(checkpoint, head, labels=(), outputs=3, key=KEY, **options):
    """A run's initial parameters, and the names of the randomly initialised parts."""
    model = make_model(checkpoint.config, head, outputs, FULL)
    loaded, new = head_params(checkpoint, model, head, labels, **options)
    random = init(model, head)(key)
    return {name: loaded.get(name, part) for name, part in random.items()} | {
        "bert": random["bert"] | loaded["bert"]
    }, new


def same(a, b):
    return jax.tree.all(jax.tree.map(np.array_equal, a, b))


def test_equal_models_are_traced_once_for_their_shapes(model_config):
    """Each load and prediction needs them, and tracing takes as long as a load."""
    three, same, two = (
        make_model(model_config(), "sequence", outputs, FULL) for outputs in (3, 3, 2)
    )
    assert initial_shapes(three) is initial_shapes(same)
    assert initial_shapes(three)["classifier"]["kernel"].shape == (32, 3)
    assert initial_shapes(two)["classifier"]["kernel"].shape == (32, 2)


def test_the_encoder_is_the_checkpoints_and_the_head_is_new(make_checkpoint):
    checkpoint = make_checkpoint("sequence")
    bare = dataclasses.replace(
        checkpoint, params={"bert": checkpoint.params["bert"]}, head="none"
    )
    params, fresh = initial(bare, "sequence", LABELS)
    assert fresh == ["classifier"]
    assert same(params["bert"], checkpoint.params["bert"])
    kernel = np.asarray(params["classifier"]["kernel"])
    assert kernel.shape == (32, 3)
    # A normal distribution of deviation 0.1, cut at two deviations, has 0.088.
    assert np.abs(kernel).max() < 0.2
    assert kernel.std() == pytest.approx(0.088, abs=0.02)
    assert not params["classifier"]["bias"].any()
    again, _ = initial(bare, "sequence", LABELS)
    other, _ = initial(bare, "sequence", LABELS, key=jax.random.key(8))
    assert same(params, again)
    assert not np.array_equal(kernel, other["classifier"]["kernel"])


@pytest.mark.parametrize(
    ("head", "labels", "outputs"),
    [
        ("sequence", LABELS, 3),
        ("sequence", (), 1),  # regression
        ("token", LABELS, 3),
        ("choice", (), 1),
        ("span", (), 2),
    ],
)
def test_a_head_for_the_same_labels_is_kept_unless_reset(
    head, labels, outputs, make_checkpoint
):
    checkpoint = make_checkpoint(head, labels, outputs)
    params, fresh = initial(checkpoint, head, labels, outputs)
    assert fresh == []
    assert same(params, checkpoint.params)
    params, fresh = initial(checkpoint, head, labels, outputs, fresh_head=True)
    name = "qa_outputs" if head == "span" else "classifier"
    assert fresh == [name]
    kernels = (tree[name]["kernel"] for tree in (params, checkpoint.params))
    assert not np.array_equal(*kernels)


def test_a_head_of_another_kind_is_dropped(make_checkpoint):
    """A sequence classifier is not a token classifier, even if the shapes match."""
    params, fresh = initial(make_checkpoint("sequence", LABELS), "token", LABELS)
    assert fresh == ["classifier"]
    assert set(params) == {"bert", "classifier"}
    params, fresh = initial(make_checkpoint("sequence", (), 1), "choice", (), 1)
    assert fresh == ["classifier"]
    params, fresh = initial(make_checkpoint("token", LABELS), "span", (), 2)
    assert fresh == ["qa_outputs"]
    assert set(params) == {"bert", "qa_outputs"}


def test_a_head_for_a_number_is_refused_for_a_task_with_labels(make_checkpoint):
    """Even for one label of multi_label, whose head has the same shape."""
    for found, labels, kinds in (
        ((), ("x",), "a number, the task has x"),
        (("x",), (), "x, the task has a number"),
    ):
        checkpoint = make_checkpoint("sequence", found, 1)
        with pytest.raises(UserError, match=f"head was trained for {kinds}; "):
            initial(checkpoint, "sequence", labels, 1)
        _, fresh = initial(checkpoint, "sequence", labels, 1, fresh_head=True)
        assert fresh == ["classifier"]


def test_a_missing_pooler_is_initialised_if_needed(make_checkpoint):
    checkpoint = make_checkpoint("token", LABELS)
    assert "pooler" not in checkpoint.params["bert"]
    params, fresh = initial(checkpoint, "sequence", LABELS)
    assert fresh == ["bert/pooler", "classifier"]
    assert params["bert"]["pooler"]["kernel"].shape == (32, 32)
    assert np.asarray(params["bert"]["pooler"]["kernel"]).std() > 0.05
    assert (
        "pooler" not in checkpoint.params["bert"]
    )  # the checkpoint itself is unchanged


@pytest.mark.parametrize("head", ["sequence", "token", "span"])
def test_the_transform_of_a_classifier_starts_as_the_mlm_heads(head, model_config):
    """A pooler of the checkpoint is kept. Without both, the transform is new."""
    config = dataclasses.replace(model_config(), pooler="transform", head_bias=False)
    model = make_model(config, head, 3, FULL)
    bert, pooler = (
        {"embeddings": {}, "encoder": {}},
        {"norm": {}, "transform": {"a": 1}},
    )
    mlm = {"norm": {"scale": 2}, "transform": {"kernel": 3}, "output_bias": 4}
    found = []
    for params in (
        {"bert": bert, "mlm": mlm},
        {"bert": bert | {"pooler": pooler}, "mlm": mlm},
        {"bert": bert},
    ):
        checkpoint = Checkpoint(config, params, None, "pretraining")
        loaded, new = head_params(checkpoint, model, head, LABELS)
        found.append((loaded["bert"].get("pooler"), new))
    assert bert.keys() == {"embeddings", "encoder"}  # the checkpoint is unchanged
    name = "qa_outputs" if head == "span" else "classifier"
    assert found == [
        ({"norm": {"scale": 2}, "transform": {"kernel": 3}}, [name]),
        (pooler, [name]),
        (None, ["bert/pooler", name]),
    ]


@pytest.mark.parametrize("head", ["token", "span"])
def test_an_unused_pooler_is_dropped(head, make_checkpoint):
    """Weight decay would change it, and transformers' models have none."""
    checkpoint = make_checkpoint("sequence", LABELS)
    params, fresh = initial(checkpoint, head, LABELS)
    assert set(params["bert"]) == {"embeddings", "encoder"}
    assert fresh == [{"token": "classifier", "span": "qa_outputs"}[head]]
    assert "pooler" in checkpoint.params["bert"]


@pytest.mark.parametrize(
    ("found", "labels", "outputs", "message"),
    [
        (
            ("sequence", LABELS, 3),
            ("a", "b"),
            2,
            "head was trained for",
        ),
        (("sequence", (), 1), LABELS, 3, "bias is (1,), expected (3,)"),
        (("token", LABELS, 3), ("O", "B", "I"), 3, "the task has O, B, I"),
    ],
)
def test_a_head_that_does_not_fit_is_refused(
    found, labels, outputs, message, make_checkpoint
):
    checkpoint = make_checkpoint(*found)
    with pytest.raises(UserError, match=r"fresh_head=True") as error:
        initial(checkpoint, found[0], labels, outputs)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    _, fresh = initial(checkpoint, found[0], labels, outputs, fresh_head=True)
    assert fresh == ["classifier"]


def test_labels_in_another_order_are_refused_with_advice_that_keeps_the_head(
    make_checkpoint,
):
    checkpoint = make_checkpoint("sequence", LABELS)
    with pytest.raises(UserError, match=r"leave data\.labels out") as error:
        initial(checkpoint, "sequence", ("yes", "no", "perhaps"), 3)
    assert "no, yes, perhaps" in str(error.value)
    assert "fresh_head" not in str(error.value)


@pytest.fixture(scope="module")
def tagger(model_config):
    """A function of (outputs, FeatureConfig settings) that makes a feature-based model."""

    def make(outputs=3, layers=(0, -1), width=4, **changes):
        features = FeatureConfig(layers, width=width, **changes)
        return make_model(model_config(), "token", outputs, features)

    return make


def test_a_bilstm_is_initialised_or_kept(make_checkpoint, tagger):
    checkpoint = make_checkpoint("sequence", LABELS)
    loaded, initialised = head_params(checkpoint, tagger(), "token", LABELS)
    assert initialised == ["bilstm"]
    assert set(loaded) == {"bert"}
    assert same(loaded["bert"], checkpoint.params["bert"])
    params = loaded | FrozenTagging(tagger()).init(KEY)
    trained = dataclasses.replace(
        checkpoint,
        params=params,
        head="features",
        extra={"features": {"layers": [0, -1]}, "data": {"labels": list(LABELS)}},
    )
    kept, initialised = head_params(trained, tagger(), "token", LABELS)
    assert initialised == []
    assert same(kept, params)
    new, initialised = head_params(trained, tagger(), "token", LABELS, fresh_head=True)
    assert initialised == ["bilstm"]
    assert set(new) == {"bert"}
    for model, labels, message in (
        (tagger(2), LABELS[:2], "was trained for no, yes, perhaps"),
        (tagger(layers=(-1, 0)), LABELS, "features.layers is [0, -1]"),
        (tagger(layers=(-1,)), LABELS, "features.layers is [0, -1]"),
        (tagger(width=8), LABELS, "expected (8, "),
        (tagger(lstm_layers=1), LABELS, "expected none"),
    ):
        with pytest.raises(UserError, match=r"fresh_head=True") as error:
            head_params(trained, model, "token", labels)
        assert message in str(error.value)
    for head, layers in (("sequence", (-1,)), ("token", (2,))):
        with pytest.raises(UserError, match=r"features\.layers"):
            make_model(checkpoint.config, head, 3, FeatureConfig(layers))
