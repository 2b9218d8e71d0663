import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.data.examples import ExampleConfig
from bert_jax.model import bert, layers, parameters
from bert_jax.model.bert import BertForPreTraining, BertModel
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.heads import BertForSequence
from bert_jax.objectives.electra import Electra, ReplacedTokens
from bert_jax.objectives.heads import Classification
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.objectives.objective import (
    PretrainingObjective,
    cached_by_objective,
    cross_entropy,
    cross_entropy_sums,
    few_rows,
)
from bert_jax.objectives.two_way import pretraining


@pytest.mark.parametrize(
    ("logits", "label", "right"),
    [
        ([0.25, 3.5, -1.0], 1, True),
        ([0.25, 3.5, -1.0], 0, False),
        ([3.5, 3.5, -1.0], 0, False),  # a tie
        ([3.5, 3.5, -1.0], 1, False),
        ([0.5, 0.5, 0.5], 2, False),
        ([3.5, np.nextafter(np.float32(3.5), 0), -1.0], 0, True),
        ([np.nan, 3.5, -1.0], 0, False),
    ],
)
def test_an_answer_is_right_if_its_logit_is_above_all_others(logits, label, right):
    assert bool(cross_entropy(jnp.array(logits), jnp.array(label))[1]) == right


def test_equal_logits_have_no_right_answer():
    """Sums are over the weights, and the loss is the logarithm of the classes."""
    labels = jnp.array([[0, 3], [2, 6]])
    weights = jnp.array([[1.0, 0.5], [2.0, 0.0]])
    sums = cross_entropy_sums("x", jnp.full((2, 2, 7), 0.75), labels, weights)
    assert sums["x_correct"] == 0
    assert sums["x_weight"] == 3.5
    assert float(sums["x_loss"]) == pytest.approx(3.5 * np.log(7))


@pytest.mark.parametrize(
    "make",
    [
        lambda *of: MlmNsp(BertForPreTraining(*of)),
        lambda *of: ReplacedTokens(Electra(*of)),
        lambda config, *of: Classification(BertForSequence(config, 3, *of)),
    ],
    ids=["mlm_nsp", "electra", "classification"],
)
def test_scanned_layers_start_with_the_parameters_of_the_loop(
    make, small_model_config, monkeypatch
):
    """How a model is computed does not change what is trained.

    The numbers are uniform, because a normal distribution takes longer to compile.
    """
    for module in (layers, parameters):
        monkeypatch.setattr(module, "kernel_init", lambda *_, **__: jax.random.uniform)
    loop, scanned = (
        jax.jit(make(small_model_config, ComputeConfig(scan_layers=scan)).init)(
            jax.random.key(7)
        )
        for scan in (False, True)
    )
    for name in loop.keys() & {"bert", "generator"}:
        assert "layer_1" in loop[name]["encoder"]
        assert set(scanned[name]["encoder"]) == {"layers"}
    stacked = parameters.with_scan(loop, True)
    keys = {float(x.ravel()[0]) for x in jax.tree.leaves(loop) if x.any()}
    assert len(keys) > 12
    assert jax.tree.structure(stacked) == jax.tree.structure(scanned)
    jax.tree.map(np.testing.assert_array_equal, stacked, scanned)


def test_layers_of_a_pattern_start_with_the_parameters_of_the_loop(
    small_model_config, monkeypatch
):
    """The first layer has no attention norm. Each other place of a period has a stack."""
    for module in (layers, parameters):  # compiles faster than a normal distribution
        monkeypatch.setattr(module, "kernel_init", lambda *_, **__: jax.random.uniform)
    options = {"num_layers": 5, "pre_norm": True, "embedding_norm": True}
    options |= {"window": 3, "global_every": 2}
    config = dataclasses.replace(small_model_config, **options)
    loop, scanned = (
        jax.jit(MlmNsp(BertForPreTraining(config, compute)).init)(jax.random.key(7))
        for compute in (ComputeConfig(), ComputeConfig(scan_layers=True))
    )
    names = {"layer_0", "layers_1_2", "layers_2_2", "final_norm"}
    assert scanned["bert"]["encoder"].keys() == names
    stacked = parameters.with_scan(loop, True, *config.scanned)
    jax.tree.map(np.testing.assert_array_equal, stacked, scanned)


@pytest.mark.parametrize("kind", [bert.PostNormBlock, bert.PreNormBlock])
def test_scanned_layers_keep_the_initialisers_of_a_block(
    kind, small_model_config, monkeypatch
):
    """Even initialisers that depend on the shape, and random biases and scales."""
    blocks = {x for x in bert.Block.__subclasses__() if x.__module__ == bert.__name__}
    assert blocks == {bert.PostNormBlock, bert.PreNormBlock}
    uniform = jax.nn.initializers.uniform(0.5)
    scaled = jax.nn.initializers.variance_scaling(3.0, "fan_in", "uniform")

    def dense(config, compute, features, *arguments, **options):
        module = layers.dense(config, compute, features, *arguments, **options)
        object.__setattr__(module, "bias_init", uniform)
        if features == config.hidden_size:
            object.__setattr__(module, "kernel_init", scaled)
        return module

    def layer_norm(*arguments, **options):
        module = layers.layer_norm(*arguments, **options)
        object.__setattr__(module, "scale_init", uniform)
        object.__setattr__(module, "bias_init", uniform)
        return module

    for module in (layers, parameters):  # compiles faster than a normal distribution
        monkeypatch.setattr(module, "kernel_init", lambda *_, **__: jax.random.uniform)
    monkeypatch.setattr(bert, "dense", dense)
    monkeypatch.setattr(bert, "layer_norm", layer_norm)
    is_pre_norm = kind is bert.PreNormBlock
    config = dataclasses.replace(small_model_config, pre_norm=is_pre_norm)
    loop, scanned = (
        jax.jit(MlmNsp(BertForPreTraining(config, compute)).init)(jax.random.key(7))
        for compute in (ComputeConfig(), ComputeConfig(scan_layers=True))
    )
    loop, scanned = jax.device_get((loop, scanned))
    block = scanned["bert"]["encoder"]["layers"]
    for leaf in jax.tree.leaves(block):
        assert len({float(x.ravel()[0]) for x in leaf}) == config.num_layers > 1
    spread = np.std(block["feed_forward_output"]["kernel"])
    assert spread == pytest.approx((3 / config.intermediate_size) ** 0.5, rel=0.1)
    spread = np.std(block["intermediate"]["kernel"])
    assert spread == pytest.approx(1 / 12**0.5, rel=0.1)
    stacked = parameters.with_scan(loop, True)
    jax.tree.map(np.testing.assert_array_equal, stacked, scanned)


def test_scan_layers_does_not_change_lstms(small_model_config):
    config = dataclasses.replace(small_model_config, encoder="lstm")
    examples = ExampleConfig(next_sentence=False)
    loop, scanned = (
        jax.jit(pretraining(config, ComputeConfig(scan_layers=scan), examples).init)(
            jax.random.key(7)
        )
        for scan in (False, True)
    )
    jax.tree.map(np.testing.assert_array_equal, loop, scanned)


@pytest.mark.long
def test_new_scanned_layers_need_no_copy_of_the_stack(optimized):
    """A copy of all layers would halve the largest model that fits a device."""
    config = BertConfig(
        vocab_size=99, hidden_size=64, num_layers=9, num_heads=2, intermediate_size=256
    )
    compute = ComputeConfig(scan_layers=True)
    init = jax.jit(MlmNsp(BertForPreTraining(config, compute)).init)
    memory = init.lower(jax.random.key(7)).compile().memory_analysis()
    assert memory.temp_size_in_bytes < memory.output_size_in_bytes / 3


@dataclasses.dataclass(frozen=True)
class TwoLosses(PretrainingObjective):
    """A loss with a name and right answers, and one without both."""

    def init(self, key):
        return {"shift": jnp.ones(3)}

    def weights(self, batch):
        return {"loss": 2.0, "near_loss": 4.0}

    def sums(self, params, batch, key):
        total = jnp.sum(params["shift"]) * jnp.sum(batch["mlm_weights"])
        named = dict.fromkeys(("near_loss", "near_weight", "near_correct"), total)
        return {"loss": total, "weight": total, "seen": total} | named


def test_metrics_follow_from_the_names_of_the_sums():
    objective = TwoLosses()
    names = ("loss", "weight", "seen", "near_loss", "near_weight", "near_correct")
    assert sorted(objective.sum_names) == sorted(names)
    sums = dict(zip(names, (6.0, 4.0, 9.0, 1.0, 0.5, 0.25), strict=True))
    metrics = objective.metrics(sums | {"step_loss": 100.0})
    assert metrics == {"loss": 1.5 + 2.0, "near_loss": 2.0, "near_accuracy": 0.5}
    assert objective.summary(metrics) == "near 2.0000, 50.0%"
    baseline = {"near_majority": 0.25}
    assert (
        objective.summary(metrics | baseline) == "near 2.0000, 50.0% (baseline 25.0%)"
    )
    # Without predictions, such as in a batch without masked tokens, every mean is 0.
    assert set(objective.metrics(dict.fromkeys(names, 0.0)).values()) == {0.0}
    single = {"loss": 3.0, "weight": 2.0, "correct": 1.0}
    assert objective.metrics(single) == {"loss": 1.5, "accuracy": 0.5}
    assert objective.summary({"loss": 1.5, "accuracy": 0.5}) == "accuracy 50.0%"
    batch = few_rows()
    assert objective.eval_sums(objective.init(None), batch)["seen"] == 6


def test_an_objective_needs_three_functions():
    assert PretrainingObjective.__abstractmethods__ == {"init", "weights", "sums"}


class OwnObjective(MlmNsp):
    def __init__(self, model, gamma):
        super().__init__(model)
        object.__setattr__(self, "gamma", gamma)


class OwnModel(BertForPreTraining):
    pass


class OwnEncoder(BertModel):
    pass


@pytest.mark.parametrize(
    ("make", "shared"),
    [
        (lambda c: MlmNsp(BertForPreTraining(c)), True),
        (lambda c: Classification(BertForSequence(c, 3), "", (0.5, 2.0)), True),
        (lambda c: OwnObjective(BertForPreTraining(c), 9.0), False),
        (lambda c: MlmNsp(OwnModel(c)), False),
        (
            lambda c: Classification(
                BertForSequence(c, 3, ComputeConfig(), OwnEncoder)
            ),
            False,
        ),
        (lambda c: MlmNsp(BertForPreTraining(c), lambda: True), False),
        (lambda c: MlmNsp(BertForPreTraining(c), np.ones(2)), False),  # has no hash
    ],
)
def test_only_objectives_of_bert_jax_share_programs(make, shared, small_model_config):
    """Equal objectives of a user may have other losses."""
    compiled = cached_by_objective(lambda objective, *, number: [number])
    first, again = (compiled(make(small_model_config), number=3) for _ in range(2))
    assert first == again == [3]
    assert (first is again) == shared
    assert compiled(make(small_model_config), number=4) == [4]


def test_operations_are_unknown_without_a_model():
    assert TwoLosses().flops(few_rows()) == 0


def test_a_subclass_states_that_it_only_adds_up_rows():
    """Its sums may depend on other rows, which a device with only its own rows lacks."""

    class Centred(MlmNsp):
        pass

    class Weighted(Classification):
        adds_rows = True

    assert MlmNsp.adds_rows and Classification.adds_rows and Weighted.adds_rows
    assert not Centred.adds_rows and not ReplacedTokens.adds_rows
