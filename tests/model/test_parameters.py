"""Names and stacks of the parameters of encoders."""

import jax
import numpy as np
import pytest

from bert_jax.model.parameters import encoder_names, stacked_layers, with_scan


@pytest.fixture
def params():
    """Two encoders of three layers each, and a part without an encoder."""
    random = np.random.default_rng(0)

    def encoder(width):
        layers = {
            f"layer_{i}": {"kernel": random.normal(size=(width, 2))} for i in range(3)
        }
        return {"encoder": layers | {"final_norm": {"scale": np.ones(width)}}}

    return {"mlm": {"bias": np.ones(4)}, "generator": encoder(5), "bert": encoder(7)}


def test_the_order_of_encoders_is_fixed(params):
    """All processes of a job must trace the same program. Sets have a random order."""
    assert encoder_names(params) == ["bert", "generator"]
    assert encoder_names({"mine": params["bert"], "mlm": params["mlm"]}) == ["mine"]
    array = np.ones(3)
    others = {"head": {"encoder": array}, "more": {"encoder": {"kernel": array}}}
    assert encoder_names(others) == []


def test_layers_are_stacked_and_unstacked_without_a_change(params):
    stacked = with_scan(params, True)
    kernel = stacked["generator"]["encoder"]["layers"]["kernel"]
    assert kernel.shape == (3, 5, 2) and isinstance(kernel, np.ndarray)
    layer = params["generator"]["encoder"]["layer_2"]
    np.testing.assert_array_equal(kernel[2], layer["kernel"])
    assert with_scan(stacked, True)["bert"]["encoder"].keys() == {
        *("layers", "final_norm")
    }
    again = with_scan(stacked, False)
    assert jax.tree.structure(again) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, again, params)


@pytest.mark.parametrize(
    ("first", "period", "stacks"),
    [
        (1, 2, {"layers_1_2": [1], "layers_2_2": [2]}),
        (1, 1, {"layers_1_1": [1, 2]}),
        (0, 3, {"layers_0_3": [0], "layers_1_3": [1], "layers_2_3": [2]}),
        (3, 4, {}),
    ],
)
def test_layers_of_a_pattern_have_a_stack_for_each_place(params, first, period, stacks):
    """Layers before the first whole period are not stacked."""
    stacked = with_scan(params, True, first, period)
    encoder, original = stacked["bert"]["encoder"], params["bert"]["encoder"]
    alone = [f"layer_{i}" for i in range(first)]
    assert encoder.keys() == {*stacks, *alone, "final_norm"}
    for name, numbers in stacks.items():
        assert [*stacked_layers(name, len(numbers))] == numbers
        expected = np.stack([original[f"layer_{i}"]["kernel"] for i in numbers])
        np.testing.assert_array_equal(encoder[name]["kernel"], expected)
    again = with_scan(stacked, False)
    assert jax.tree.structure(again) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, again, params)
    # A checkpoint with other stacks gets the stacks of the model.
    other = with_scan(stacked, True)
    jax.tree.map(np.testing.assert_array_equal, other, with_scan(params, True))
