"""Outputs of the encoder for a few texts: hidden states and attentions."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.data.batching import Shape, packed_rows
from bert_jax.errors import UserError, counted
from bert_jax.inference.evaluation import (
    OnDevices,
    Options,
    row_texts,
    rows_of,
    text_features,
)
from bert_jax.model.bert import BertModel
from bert_jax.model.parameters import with_scan
from bert_jax.objectives.networks import encoder_class
from bert_jax.settings import setting


@dataclasses.dataclass(frozen=True)
class Output:
    """The encoder's output for a few texts, as numpy arrays, padded to the longest text.

    tokens: the tokens of each text, with [CLS] and [SEP]. input_ids, token_type_ids,
      attention_mask: int32 (B, L). last_hidden_state: float32 (B, L, D). pooled: float32
      (B, D); None for a model without a pooler. hidden_states: the embeddings and the
      output of each layer, float32 (layers + 1, B, L, D). attentions: float32
      (layers, B, N, L, L); the last two axes are the token that attends and the token that
      is attended to. hidden_states and attentions are None unless the call asks for them.
    """

    tokens: list[list[str]]
    input_ids: np.ndarray
    token_type_ids: np.ndarray
    attention_mask: np.ndarray
    last_hidden_state: np.ndarray
    pooled: np.ndarray | None
    hidden_states: np.ndarray | None
    attentions: np.ndarray | None

    def __repr__(self) -> str:
        shown = []
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                shown.append(f"{name} {value.dtype} {value.shape}")
        return f"Output({counted(len(self.tokens), 'text')}: {', '.join(shown)})"


@dataclasses.dataclass(frozen=True)
class CallOptions:
    """The options of a call to a ``Bert``."""

    hidden_states: bool = setting(False, "whether the Output has the hidden states")
    attentions: bool = setting(False, "whether the Output has the attentions")


def encoder_output(model: OnDevices, texts: Any, options: CallOptions) -> Output:
    """The encoder's output for texts or pairs, all in one batch; see ``Bert.__call__``."""
    tokenizer, config = model.tokenizer, model.loaded.config
    encoder = encoder_class(config)
    if options.attentions and encoder is not BertModel:
        raise UserError("this encoder has no attentions; leave attentions=True out")
    rows = [row.texts for row in row_texts(rows_of(texts))]
    if not rows:
        raise UserError("no text is given; expected at least one")
    limit = config.max_positions
    features = text_features(tokenizer, rows, limit)
    if features.truncated:
        raise UserError(f"a text has more than {limit} tokens; shorten it")
    alone = [[i] for i in range(len(rows))]
    shape = Shape(len(rows), int(features.lengths_UC.max()), 1)
    arrays = packed_rows(features, alone, shape, tokenizer.pad_id)
    names = "input_ids", "token_type_ids", "attention_mask"
    inputs = {name: arrays[name] for name in names}
    compute = dataclasses.replace(model.loaded.compute, scan_layers=False)
    module = encoder(config, compute)
    params = model.keep("unstacked", functools.partial(_unstacked, model))
    chosen = options.hidden_states, options.attentions
    values = _computed(module, *chosen, params, *inputs.values())
    tokens = []
    for ids in features.input_ids:
        names = [tokenizer.tokens[token] for token in ids]
        tokens.append(names)
    return Output(tokens, **inputs, **jax.device_get(values))


def _unstacked(model: OnDevices) -> Any:
    """The encoder's parameters on the devices, with a name for each layer."""
    params = model.checkpoint(Options()).params
    return with_scan(params, False)["bert"]


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _computed(
    model: BertModel, hidden_states: bool, attentions: bool, params: Any, *inputs: Any
) -> dict[str, jax.Array | None]:
    """The arrays of an Output that the model computes."""
    collections = []
    if attentions:
        collections.append("attention")
    output, kept = model.apply(
        {"params": params},
        *inputs,
        deterministic=True,
        pool="pooler" in params,
        hidden_states=hidden_states,
        mutable=collections,
    )
    arrays = {"last_hidden_state": output.sequence_BLD, "pooled": output.pooled_BD}
    arrays |= {"hidden_states": None, "attentions": None}
    if hidden_states:
        arrays["hidden_states"] = jnp.stack(output.hidden_states)
    if attentions:
        parts = kept["attention"]["encoder"]
        layers = []
        for i in range(len(parts)):
            layer = parts[f"layer_{i}"]["attention"]
            layers.append(layer["probabilities"][0])
        arrays["attentions"] = jnp.stack(layers)
    return jax.tree.map(lambda x: x.astype(jnp.float32), arrays)
