"""Tensors that contain several parameters, on made-up tensors."""

import numpy as np
import pytest

from bert_jax.interop.families.tensors import join_tensors, split_tensors

WHOLE = "attn.Wqkv"
PARTS = ("attn.query", "attn.key", "attn.value")
TABLE = {WHOLE: PARTS, "mlp.Wi": ("mlp.a", "mlp.b")}


def tensors():
    """Two layers. Each number is in one place."""
    numbers = iter(range(1000))

    def array(*shape):
        size = int(np.prod(shape))
        return np.float32([next(numbers) for _ in range(size)]).reshape(shape)

    result = {"model.embeddings.norm.weight": array(4), "decoder.bias": array(7)}
    for i in range(2):
        layer = f"model.layers.{i}."
        result[f"{layer}attn.Wqkv.weight"] = array(6, 4)
        result[f"{layer}attn.Wqkv.bias"] = array(6)
        result[f"{layer}attn.Wo.weight"] = array(4, 2)
        result[f"{layer}mlp.Wi.weight"] = array(10, 4)
    return result


def test_a_tensor_with_several_parameters_is_split_along_its_outputs():
    before = tensors()
    after = split_tensors(before, TABLE)
    layer = "model.layers.1."
    whole = before[f"{layer}attn.Wqkv.weight"]
    for i, part in enumerate(PARTS):
        rows = slice(2 * i, 2 * i + 2)
        np.testing.assert_array_equal(after[f"{layer}{part}.weight"], whole[rows])
        bias = before[f"{layer}attn.Wqkv.bias"][rows]
        np.testing.assert_array_equal(after[f"{layer}{part}.bias"], bias)
    np.testing.assert_array_equal(
        after[f"{layer}mlp.b.weight"], before[f"{layer}mlp.Wi.weight"][5:]
    )
    kept = {name for name in before if "Wqkv" not in name and "Wi" not in name}
    assert kept == {*before} & {*after}
    assert len(after) == len(kept) + 2 * (3 + 3 + 2)


def test_split_tensors_are_joined_again():
    before = tensors()
    after = join_tensors(split_tensors(before, TABLE), TABLE)
    assert {*after} == {*before}
    for name, tensor in before.items():
        np.testing.assert_array_equal(after[name], tensor, strict=True)


def test_a_family_without_joined_tensors_keeps_all_tensors():
    before = tensors()
    assert split_tensors(before, {}).keys() == before.keys()
    assert join_tensors(before, {}).keys() == before.keys()


@pytest.mark.parametrize("tensor", [np.zeros((7, 4)), np.zeros(())])
def test_a_tensor_of_a_wrong_size_keeps_its_numbers(tensor):
    """The shapes of its parts are checked later."""
    after = split_tensors({f"layers.0.{WHOLE}.weight": tensor}, TABLE)
    assert [*after] == [f"layers.0.{part}.weight" for part in PARTS]
    assert sum(array.size for array in after.values()) == tensor.size
