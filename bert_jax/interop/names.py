"""Google's variable names and shapes <-> our parameter tree: one table for both ways."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import traverse_util

from bert_jax.errors import UserError
from bert_jax.model.config import BertConfig
from bert_jax.model.encoder import stack_layers, unstack_layers


class Parameter(NamedTuple):
    """A parameter's path in our tree and its name in Google's checkpoints.

    The dimensions are letters (see model/config.py; E is a second hidden size, C the
    two NSP classes), separated by spaces where Google joins several of ours into one.
    """

    ours: str
    our_dims: str
    google: str
    google_dims: str


def _dense(ours: str, our_dims: str, google: str, google_dims: str) -> list[Parameter]:
    """A kernel, and a bias over the dimensions that the kernel gives."""
    given, made = google_dims.split()
    bias = "".join(letter for letter in our_dims if letter in made)
    return [
        Parameter(f"{ours}/kernel", our_dims, f"{google}/kernel", f"{given} {made}"),
        Parameter(f"{ours}/bias", bias, f"{google}/bias", made),
    ]


def _norm(ours: str, google: str) -> list[Parameter]:
    return [
        Parameter(f"{ours}/scale", "D", f"{google}/gamma", "D"),
        Parameter(f"{ours}/bias", "D", f"{google}/beta", "D"),
    ]


_EMBEDDINGS = [
    Parameter(
        f"bert/embeddings/{ours}/embedding",
        f"{rows}D",
        f"bert/embeddings/{google}_embeddings",
        f"{rows} D",
    )
    for ours, google, rows in (
        ("word", "word", "V"),
        ("position", "position", "P"),
        ("segment", "token_type", "S"),
    )
] + _norm("bert/embeddings/norm", "bert/embeddings/LayerNorm")

# Under bert/encoder/layer_0/, bert/encoder/layer_1/, ...
_LAYER = [
    *_dense("attention/query", "DNH", "attention/self/query", "D NH"),
    *_dense("attention/key", "DNH", "attention/self/key", "D NH"),
    *_dense("attention/value", "DNH", "attention/self/value", "D NH"),
    *_dense("attention/output", "NHD", "attention/output/dense", "NH D"),
    *_norm("attention_norm", "attention/output/LayerNorm"),
    *_dense("intermediate", "DF", "intermediate/dense", "D F"),
    *_dense("feed_forward_output", "FD", "output/dense", "F D"),
    *_norm("feed_forward_norm", "output/LayerNorm"),
]

_HEADS = [
    *_dense("bert/pooler", "DE", "bert/pooler/dense", "D E"),
    *_dense("mlm/transform", "DE", "cls/predictions/transform/dense", "D E"),
    *_norm("mlm/norm", "cls/predictions/transform/LayerNorm"),
    Parameter("mlm/output_bias", "V", "cls/predictions/output_bias", "V"),
    # The one kernel that Google keeps as (outputs, inputs).
    Parameter("nsp/kernel", "DC", "cls/seq_relationship/output_weights", "C D"),
    Parameter("nsp/bias", "C", "cls/seq_relationship/output_bias", "C"),
]


def parameters(num_layers: int) -> list[Parameter]:
    """The whole table for a BertForPreTraining whose layers are not scanned."""
    layers = []
    for i in range(num_layers):
        prefix = f"bert/encoder/layer_{i}/"
        layers += [
            row._replace(ours=prefix + row.ours, google=prefix + row.google)
            for row in _LAYER
        ]
    return [*_EMBEDDINGS, *layers, *_HEADS]


def from_tensorflow(
    variables: Mapping[str, np.ndarray], config: BertConfig
) -> dict[str, Any]:
    """Google's variables as float32 parameters of ``BertForPreTraining(config)``.

    The optimizer's slots and the step are ignored. Raises UserError that lists missing
    names, unexpected names and shapes that ``config`` does not give.
    """
    table = parameters(config.num_layers)
    sizes = _sizes(config)
    given = {name for name in variables if not _is_optimizer_state(name)}
    needed = {row.google for row in table}
    problems = _listed("missing", needed - given)
    problems += _listed("unexpected", given - needed)
    wrong = []
    for row in table:
        expected = _shape(row.google_dims, sizes)
        if row.google in given and variables[row.google].shape != expected:
            shape = variables[row.google].shape
            wrong.append(f"{row.google} is {shape}, the config gives {expected}")
    problems += _listed("shapes", wrong)
    if problems:
        raise UserError(
            f"the variables are not those of this BERT config: {'; '.join(problems)}; "
            "use the config file that came with the checkpoint"
        )
    flat = {row.ours: _to_ours(variables[row.google], row, sizes) for row in table}
    params = traverse_util.unflatten_dict(flat, sep="/")
    if config.scan_layers:
        stacked = stack_layers(params["bert"]["encoder"])
        params["bert"]["encoder"] = jax.tree.map(np.asarray, stacked)
    return params


def to_tensorflow(params: Mapping[str, Any], config: BertConfig) -> dict[str, Any]:
    """The inverse of :func:`from_tensorflow`: Google's names and shapes, in float32.

    ``params`` is the tree of ``BertForPreTraining(config)``, as ``model.init`` gives it.
    """
    bert = dict(params["bert"])
    if config.scan_layers:
        bert["encoder"] = unstack_layers(bert["encoder"])
    flat = traverse_util.flatten_dict({**params, "bert": bert}, sep="/")
    table = parameters(config.num_layers)
    sizes = _sizes(config)
    return {row.google: _to_google(flat[row.ours], row, sizes) for row in table}


def _is_optimizer_state(name: str) -> bool:
    return name == "global_step" or name.endswith(("/adam_m", "/adam_v"))


def _listed(what: str, items: Any, most: int = 5) -> list[str]:
    """One text, such as "missing: a, b and 4 more"; none when there is nothing."""
    items = sorted(items)
    if not items:
        return []
    rest = f" and {len(items) - most} more" if len(items) > most else ""
    return [f"{what}: {', '.join(items[:most])}{rest}"]


def _sizes(config: BertConfig) -> dict[str, int]:
    return {
        "V": config.vocab_size,
        "P": config.max_positions,
        "S": config.type_vocab_size,
        "D": config.hidden_size,
        "E": config.hidden_size,
        "N": config.num_heads,
        "H": config.head_size,
        "F": config.intermediate_size,
        "C": 2,
    }


def _shape(dims: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of "D NH": D by N * H."""
    return tuple(math.prod(sizes[d] for d in group) for group in dims.split())


def _to_ours(array: Any, row: Parameter, sizes: Mapping[str, int]) -> np.ndarray:
    letters = row.google_dims.replace(" ", "")
    apart = np.asarray(array, np.float32).reshape([sizes[d] for d in letters])
    return apart.transpose([letters.index(d) for d in row.our_dims])


def _to_google(array: Any, row: Parameter, sizes: Mapping[str, int]) -> np.ndarray:
    letters = row.google_dims.replace(" ", "")
    order = [row.our_dims.index(d) for d in letters]
    return (
        np.asarray(array, np.float32)
        .transpose(order)
        .reshape(_shape(row.google_dims, sizes))
    )
