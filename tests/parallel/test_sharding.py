from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.errors import UserError
from bert_jax.model.layers import split
from bert_jax.parallel.mesh import MeshConfig, make_mesh, traced_on
from bert_jax.parallel.sharding import (
    partition_spec,
    path_name,
    tree_shardings,
)


def test_the_error_has_the_tensor_without_a_rule_and_the_rule_to_add():
    params = {"head": {"kernel": jnp.ones((2, 3, 4)), "bias": jnp.ones(4)}}
    tree = {"params": params, "opt_state": {"mu": params}, "step": jnp.ones(())}
    rule = r'no sharding rule .*\(r"head/kernel\$", PartitionSpec\(None, None, None\)\)'
    with pytest.raises(UserError, match=rule):
        tree_shardings(tree, make_mesh(MeshConfig()))
    rules = ((r"head/kernel$", P(None, None, None)),)
    for leaf in jax.tree.leaves(
        tree_shardings(tree, make_mesh(MeshConfig()), more=rules)
    ):
        assert leaf.is_fully_replicated


def test_moments_are_sharded_like_parameters_and_layers_are_not_split():
    kernel = "bert/encoder/layer_0/attention/query/kernel"
    expected = P(None, "model", None)
    assert partition_spec(f"params/{kernel}", (8, 2, 4)) == expected
    assert partition_spec(f"opt_state/1/mu/{kernel}", (8, 2, 4)) == expected
    assert partition_spec(f"params/{kernel}", (3, 8, 2, 4)) == P(None, *expected)


def test_a_stack_of_vectors_needs_no_rule():
    layers = {"norm": {"scale": jnp.ones((3, 8))}}
    tree_shardings({"encoder": {"layers": layers}}, make_mesh(MeshConfig()))
    layers["new"] = {"table": jnp.ones((3, 8, 8))}
    with pytest.raises(UserError, match="no sharding rule"):
        tree_shardings({"encoder": {"layers": layers}}, make_mesh(MeshConfig()))


def test_names_join_dicts_fields_and_positions():
    tree = {"a": ({"b": jnp.ones(1)},)}
    ((path, _),) = jax.tree_util.tree_leaves_with_path(tree)
    assert path_name(path) == "a/0/b"


def test_the_word_table_is_split_only_over_model():
    mesh = make_mesh(MeshConfig(data=4, model=2))
    table = {"embeddings": {"word": {"embedding": jnp.ones((8, 4))}}}
    sharding = jax.tree.leaves(tree_shardings(table, mesh))[0]
    assert sharding.shard_shape((8, 4)) == (4, 4)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("layer_0/attention/query/kernel", (8, 2, 4), P("data", "model", None)),
        ("layer_0/intermediate/kernel", (8, 32), P("data", "model")),
        (
            "layer_0/intermediate/kernel",
            (6, 32),
            P(None, "model"),
        ),  # 6 is not divisible by 4
        ("layers/intermediate/kernel", (3, 8, 32), P(None, "data", "model")),
        ("pooler/kernel", (8, 16), P(None, "data")),  # the longest dimension
    ],
)
def test_fsdp_splits_one_dimension_over_data(name, shape, expected):
    assert partition_spec(f"params/bert/encoder/{name}", shape, split=4) == expected


def test_only_fsdp_splits_kernels_over_data():
    mesh = make_mesh(MeshConfig(data=4, model=2))
    tree = {"intermediate": {"kernel": jnp.ones((8, 32))}}
    for fsdp, shard in ((False, (8, 16)), (True, (2, 16))):
        (sharding,) = jax.tree.leaves(tree_shardings(tree, mesh, fsdp=fsdp))
        assert sharding.shard_shape((8, 32)) == shard


def test_fsdp_does_not_split_lookup_tables():
    name = "params/bert/embeddings/word/embedding"
    assert partition_spec(name, (96, 8), split=4) == partition_spec(name, (96, 8))


@pytest.mark.parametrize(
    ("name", "shape", "size"),
    [
        ("layers_0/attention/query/kernel", (768, 12, 64), 12),
        ("layers_0/intermediate/bias", (3076,), 3076),
        ("embeddings/word/embedding", (300, 768), 300),
    ],
)
def test_an_axis_that_does_not_divide_a_dimension_is_a_one_line_error(
    name, shape, size
):
    mesh = make_mesh(MeshConfig(data=1, model=8))
    tree = {name: jax.ShapeDtypeStruct(shape, jnp.float32)}
    with pytest.raises(UserError) as error:
        tree_shardings(tree, mesh)
    message = str(error.value)
    assert message.startswith(f"mesh.model=8 does not divide the {size} of {name}")
    assert "set mesh.model" in message and "\n" not in message


def test_a_rule_may_split_a_dimension_over_several_axes():
    mesh = make_mesh(MeshConfig(data=4, model=2))
    rules = (("extra/kernel$", P(("data", "model"), None)),)
    tree = {"extra/kernel": jax.ShapeDtypeStruct((16, 3), jnp.float32)}
    (place,) = tree_shardings(tree, mesh, more=rules).values()
    assert place.shard_shape((16, 3)) == (2, 3)
    tree = {"extra/kernel": jax.ShapeDtypeStruct((12, 3), jnp.float32)}
    with pytest.raises(
        UserError, match=r"^mesh.data=4 x mesh.model=2 does not divide the 12"
    ):
        tree_shardings(tree, mesh, more=rules)


@pytest.mark.parametrize(
    ("letters", "shard"),
    [("BLD", (2, 8, 8)), ("BLF", (2, 8, 4)), ("BLNH", (2, 8, 4, 8))],
)
def test_activations_are_split_over_all_devices_by_their_letters(letters, shard):
    mesh = make_mesh(MeshConfig(replica=2, data=2, model=2))
    x = jnp.zeros((8,) * len(letters), device=NamedSharding(mesh, P()))
    y = jax.jit(traced_on(mesh, partial(split, letters=letters)))(x)
    assert y.sharding.shard_shape(y.shape) == shard
