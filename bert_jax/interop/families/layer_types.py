"""The layers with a window, in config.json of transformers 4 and 5."""

from collections.abc import Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.interop.families.rope import FULL, SLIDING
from bert_jax.schema import check

EVERY = "global_attn_every_n_layers"


def layer_types(layers: int, every: int) -> list[str]:
    """The kind of attention of each layer. every: BertConfig.global_every."""
    types = [SLIDING] * layers
    if every > 0:
        for i in range(0, layers, every):
            types[i] = FULL
    return types


def global_every(values: Mapping[str, Any]) -> int:
    """BertConfig.global_every. layer_types takes precedence over the older key."""
    every, types = values.get(EVERY, 3), values.get("layer_types")
    check(every, int, EVERY)
    if types is None:
        return every
    layers = values["num_hidden_layers"]
    for n in (every, *range(layers + 1)):
        if types == layer_types(layers, n):
            return n
    raise UserError(
        f"layer_types={types!s:.200}; expected {layers} layers: {FULL} in layer 0 and in "
        f"every n-th layer, or in no layer, and {SLIDING} in the others"
    )
