"""Sharding of each tensor of the train state: a table of rules, the first match wins."""

import math
import re
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bert_jax.errors import UserError
from bert_jax.model.device import ROW_AXES

Rules = tuple[tuple[str, P], ...]

# A pattern is searched in the slash-joined path of the leaf, so that a parameter and
# its optimizer moments match the same rule. A spec is for the last dimensions: the leading
# layer dimension of scanned layers is never split.
RULES: Rules = (
    # Only 'model': splitting the table over 'data' too made XLA warn of an involuntary
    # full rematerialisation in the lookup.
    (r"embeddings/word/embedding$", P("model", None)),
    (r"embeddings/(position|segment)/embedding$", P(None, None)),
    (r"attention/(query|key|value)/kernel$", P(None, "model", None)),
    (r"attention/(query|key|value)/bias$", P("model", None)),
    (r"attention/output/kernel$", P("model", None, None)),
    (r"(intermediate|gate)/kernel$", P(None, "model")),
    (r"(intermediate|gate)/bias$", P("model")),
    (r"feed_forward_output/kernel$", P("model", None)),
    (r"layer_\d+_(forward|backward)\w*/(\w+/)?kernel$", P(None, None)),  # of LSTMs
    (
        r"(pooler|transform|nsp|classifier|qa_outputs|dense)(/\w+)?/kernel$",
        P(None, None),
    ),
)

# The mesh axes that split each dimension of an activation, by its shape letter
# (model/config.py). Dimensions without a rule are not split. Without these constraints the
# compiler would split the activations of scanned layers as it splits their parameters, and
# each device would compute the whole batch.
WITHOUT_ROWS = (
    ("N", "model"),
    ("F", "model"),
    ("W", "model"),
)
ACTIVATIONS = (("B", ROW_AXES), *WITHOUT_ROWS)

# FSDP splits only kernels: to look up rows of a split table, XLA would gather the whole
# table, or copy the row of every position, and vectors are too small.
_SPLIT_OVER_DATA = r"kernel$"


def path_name(path: tuple[Any, ...]) -> str:
    """The slash-joined name of a leaf: params/bert/embeddings/word/embedding."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def partition_spec(
    name: str, shape: tuple[int, ...], split: int = 1, more: Rules = ()
) -> P:
    """The spec of the tensor ``name``; vectors and scalars are replicated by default.

    more: rules that take precedence over RULES. split: number of devices along 'data' that
    share the memory of each matrix (FSDP); 1: matrices are not split.
    """
    for pattern, spec in (*more, *RULES):
        if re.search(pattern, name):
            layers = len(shape) - len(spec)
            if split > 1 and re.search(_SPLIT_OVER_DATA, name):
                spec = _split_over_data(spec, shape[layers:], split)
            return P(*(None,) * layers, *spec)
    return P()


def _split_over_data(spec: P, shape: tuple[int, ...], split: int) -> P:
    """``spec`` that splits one more dimension over data: the longest divisible one."""
    free = [
        i
        for i, (axis, size) in enumerate(zip(spec, shape, strict=True))
        if axis is None and size % split == 0
    ]
    if not free:
        return spec
    longest = max(free, key=lambda i: shape[i])
    return P(*("data" if i == longest else axis for i, axis in enumerate(spec)))


def tree_shardings(
    tree: Any, mesh: Mesh, *, fsdp: bool = False, more: Rules = ()
) -> Any:
    """A NamedSharding for each leaf of a tree of arrays or ShapeDtypeStructs.

    more: see partition_spec. fsdp: whether the devices of a slice share the memory of every
    matrix. Slices do not, so that only gradients cross the network between slices. Raises
    UserError if a tensor of two or more dimensions has no rule, because a large replicated
    tensor can exhaust the memory of a device, or if an axis of the mesh does not divide the
    dimension that it splits.
    """
    split = mesh.shape["data"] if fsdp else 1

    def sharding(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        name = path_name(path)
        spec = partition_spec(name, leaf.shape, split, more)
        dimensions = leaf.ndim
        if "encoder/layers" in name:  # stacked layers
            dimensions -= 1
        if spec == P() and dimensions > 1:
            end = "/".join(name.split("/")[-2:])
            nones = ", ".join(["None"] * leaf.ndim)
            raise UserError(
                f"no sharding rule matches {name} of shape {tuple(leaf.shape)}; add a rule "
                f'to the objective, such as (r"{end}$", PartitionSpec({nones}))'
            )
        for size, axis in zip(leaf.shape, spec, strict=False):
            axes = _axes(axis)
            parts = math.prod(mesh.shape[axis] for axis in axes)
            if size % parts:
                shown = " x ".join(f"mesh.{axis}={mesh.shape[axis]}" for axis in axes)
                names = " x ".join(f"mesh.{axis}" for axis in axes)
                raise UserError(
                    f"{shown} does not divide the {size} of {name}; set {names} to a "
                    "common divisor of the number of heads, the feed-forward width and "
                    "the rows of the word table"
                )
        return NamedSharding(mesh, spec)

    return jax.tree_util.tree_map_with_path(sharding, tree)


def _axes(axis: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The mesh axes that split a dimension, from an entry of a PartitionSpec."""
    if axis is None:
        return ()
    if isinstance(axis, str):
        return (axis,)
    return axis


def arrays_by_path(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by path, such as "bert/pooler/kernel"."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {path_name(path): leaf for path, leaf in leaves}


def array_shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """The shape of each array by path."""
    return {name: tuple(x.shape) for name, x in arrays_by_path(tree).items()}


def shape_differences(
    shapes: dict[str, tuple[int, ...]], expected: dict[str, tuple[int, ...]]
) -> list[str]:
    """The differences as text, such as "a/bias is (3,), expected (2,)"."""
    return [
        f"{name} is {shapes.get(name, 'missing')}, expected {expected.get(name, 'none')}"
        for name in sorted(shapes.keys() | expected.keys())
        if shapes.get(name) != expected.get(name)
    ]
