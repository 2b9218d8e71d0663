"""What every layer of the encoder gives, for features (paper, section 5.3)."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.model.bert import BertModel
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.encoder import take_positions


class HiddenStates(NamedTuple):
    """layers: num_layers + 1 arrays, float32 (B, L, D). pooled: float32, or None.

    layers[0] is what the embeddings give, after their LayerNorm; layers[-1] is the
    encoder's output. pooled is (B, D), of packed rows (B, S, D), and None where the
    parameters have no pooler.
    """

    layers: list[jax.Array]
    pooled: jax.Array | None


def hidden_states(
    config: BertConfig,
    compute: ComputeConfig,
    params: dict[str, Any],
    input_ids_BL: jax.Array,
    token_type_ids_BL: jax.Array,
    attention_mask_BL: jax.Array,
    segment_ids_BL: jax.Array | None = None,
    starts_BS: jax.Array | None = None,
) -> HiddenStates:
    """Runs the encoder without dropout and keeps what lies between its layers.

    params: of BertModel ("bert" in a checkpoint), scanned as ``compute`` says.
    segment_ids_BL, starts_BS: of packed rows, as BertModel takes them. Compiled, only
    what the caller looks at is computed.
    """
    # Nothing is differentiated, so nothing is worth computing twice.
    model = BertModel(config, dataclasses.replace(compute, remat=False))
    output, kept = model.apply(
        {"params": params},
        input_ids_BL,
        token_type_ids_BL,
        attention_mask_BL,
        deterministic=True,
        pool=False,
        segment_ids_BL=segment_ids_BL,
        starts_BS=starts_BS,
        capture_intermediates=_is_whole_layer,
    )
    inside = kept["intermediates"]
    layers = [inside["embeddings"]["__call__"][0]]
    encoder = inside["encoder"]
    if compute.scan_layers:
        # A scanned layer is kept twice: as Layer's output, and as scan's pair of it.
        layers += list(encoder["layers"]["__call__"][0])
    else:
        layers += [
            encoder[f"layer_{i}"]["__call__"][0] for i in range(config.num_layers)
        ]
    pooled = None
    if "pooler" in params:
        x_BLD = output.sequence_BLD
        cls = x_BLD[:, 0] if starts_BS is None else take_positions(x_BLD, starts_BS)
        pooled = model.apply({"params": params}, cls, method=BertModel.pooled)
        pooled = pooled.astype(jnp.float32)
    return HiddenStates([x.astype(jnp.float32) for x in layers], pooled)


def _is_whole_layer(module: nn.Module, method: str) -> bool:
    name = module.name or ""
    return method == "__call__" and name.startswith(("layer_", "layers", "embeddings"))
