"""Where each tensor of the train state lies: one table of rules, first match wins."""

import re
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

# A pattern is searched in the slash-joined path of the leaf, so that a parameter and
# its optimizer moments match the same rule. A spec speaks of the last dimensions: the
# leading layer dimension of scanned layers is never split.
RULES: tuple[tuple[str, P], ...] = (
    # Only 'model': splitting the table over 'data' too made XLA warn of an involuntary
    # full rematerialisation in the lookup.
    (r"embeddings/word/embedding$", P("model", None)),
    (r"embeddings/(position|segment)/embedding$", P(None, None)),
    (r"attention/(query|key|value)/kernel$", P(None, "model", None)),
    (r"attention/(query|key|value)/bias$", P("model", None)),
    (r"attention/output/kernel$", P("model", None, None)),
    (r"intermediate/kernel$", P(None, "model")),
    (r"intermediate/bias$", P("model")),
    (r"feed_forward_output/kernel$", P("model", None)),
    (r"layer_\d+_(forward|backward)\w*/(state/)?kernel$", P(None, None)),  # a BiLSTM's
    (r"(pooler|transform|nsp|classifier|qa_outputs)(/\w+)?/kernel$", P(None, None)),
)


def path_name(path: tuple[Any, ...]) -> str:
    """The slash-joined name of a leaf: params/bert/embeddings/word/embedding."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def partition_spec(name: str, shape: tuple[int, ...]) -> P:
    """The spec of the tensor ``name``; vectors and scalars are replicated by default.

    Raises ValueError for a tensor of two or more dimensions that no rule names: a big
    tensor that is silently replicated is how a pod runs out of memory.
    """
    for pattern, spec in RULES:
        if re.search(pattern, name):
            return P(*(None,) * (len(shape) - len(spec)), *spec)
    if len(shape) - ("encoder/layers/" in name) > 1:  # scanned layers are stacked
        raise ValueError(f"no sharding rule matches {name} of shape {shape}")
    return P()


def tree_shardings(tree: Any, mesh: Mesh) -> Any:
    """A NamedSharding for each leaf of a tree of arrays or ShapeDtypeStructs."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: NamedSharding(
            mesh, partition_spec(path_name(path), leaf.shape)
        ),
        tree,
    )
