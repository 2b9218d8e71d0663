"""Names and stacks of the parameters of encoders."""

import jax
import numpy as np
import pytest

from bert_jax.model.parameters import encoder_names, with_scan


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
    assert encoder_names({"bert": params["bert"]}) == ["bert"]


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
