"""Names of every parameter: ours, Google's and Hugging Face's, in one table."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from bert_jax.errors import UserError, listed
from bert_jax.interop.checkpoint import parameter_shapes, part_of
from bert_jax.model.config import BertConfig
from bert_jax.model.layers import with_scan

Layout = Literal["google", "huggingface"]


class Converted(NamedTuple):
    """params: our tree, float32 numpy. missing, unexpected: the layout's own names.

    dtypes: see Checkpoint.
    """

    params: dict[str, Any]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    dtypes: dict[str, str]


# The table: a layer of ours, its name in Google's checkpoints and, with dots, in Hugging
# Face's.
_LAYERS = {
    "bert/embeddings/word": "bert/embeddings/word_embeddings",
    "bert/embeddings/position": "bert/embeddings/position_embeddings",
    "bert/embeddings/segment": "bert/embeddings/token_type_embeddings",
    "bert/embeddings/norm": "bert/embeddings/LayerNorm",
    # Below bert/encoder/layer_0, layer_1, ...
    "attention/query": "attention/self/query",
    "attention/key": "attention/self/key",
    "attention/value": "attention/self/value",
    "attention/output": "attention/output/dense",
    "attention_norm": "attention/output/LayerNorm",
    "intermediate": "intermediate/dense",
    "feed_forward_output": "output/dense",
    "feed_forward_norm": "output/LayerNorm",
    "bert/encoder/final_norm": "bert/encoder/ln",  # of pre-LN layers
    "bert/pooler": "bert/pooler/dense",
    "mlm/transform": "cls/predictions/transform/dense",
    "mlm/norm": "cls/predictions/transform/LayerNorm",
    "mlm": "cls/predictions",
    "nsp": "cls/seq_relationship",
    "classifier": "classifier",
    "qa_outputs": "qa_outputs",
}
# Layers with another name in Google's checkpoints.
_GOOGLE_LAYERS = {"classifier": "", "qa_outputs": "cls/squad"}
# Google's parameters of a norm, of a last layer (transposed: outputs, inputs), and of other
# layers.
_GOOGLE_NORM = {"scale": "/gamma", "bias": "/beta"}
_GOOGLE_LAST = {"kernel": "/output_weights", "bias": "/output_bias"}
_GOOGLE_LEAVES = {
    "kernel": "/kernel",
    "bias": "/bias",
    "embedding": "",
    "output_bias": "/output_bias",
}
_LAST = ("nsp", "classifier", "qa_outputs")
# The parts of a model with this head, beside encoder and pooler.
HEADS = {
    "none": (),
    "pretraining": ("mlm", "nsp"),
    "sequence": ("classifier",),
    "token": ("classifier",),
    "choice": ("classifier",),
    "span": ("qa_outputs",),
}
_WORDS = "bert/embeddings/word/embedding"


def name_in(layout: Layout, name: str) -> str | None:
    """The layout's name of our parameter ``name``; None if the layout has none."""
    path, leaf = name.rsplit("/", 1)
    place, layer = re.fullmatch(r"(bert/encoder/layer_\d+/)?(.*)", path).groups("")
    leaves = _GOOGLE_LAST if layer in _LAST else _GOOGLE_LEAVES
    leaves = _GOOGLE_NORM if layer.endswith("norm") else leaves
    if layer not in _LAYERS or leaf not in leaves:
        return None
    if layout == "google":
        theirs = place + _GOOGLE_LAYERS.get(layer, _LAYERS[layer])
        return f"{theirs}{leaves[leaf]}".lstrip("/")
    theirs = f"{place}{_LAYERS[layer]}".replace("/", ".").replace("layer_", "layer.")
    return f"{theirs}.{'bias' if leaf.endswith('bias') else 'weight'}"


def guess_head(names: Collection[str], layout: Layout) -> str:
    """Guesses the head from the ``names`` of its tensors; see HEADS.

    A classifier counts as a classifier of sequences: both kinds have the same names.
    """
    marks = (
        ("span", "qa_outputs/kernel"),
        ("sequence", "classifier/kernel"),
        ("pretraining", "nsp/kernel"),
        ("pretraining", "mlm/output_bias"),
    )
    return next((h for h, mark in marks if name_in(layout, mark) in names), "none")


def to_params(
    tensors: Mapping[str, np.ndarray],
    config: BertConfig,
    layout: Layout,
    *,
    head: str,
    expected: Iterable[str] | None = None,
) -> Converted:
    """Tensors of another layout as our parameters, the layers not stacked.

    head: decides which parts are read beside encoder and pooler; tensors of other heads
    are unexpected. expected: the parts that are listed as missing if they are absent, by
    default the parts of the head and the pooler. A part is read whole or not at all.
    Raises UserError if the encoder lacks a tensor, or if a shape does not fit ``config``.
    """
    _check_layers(tensors, config)
    parts = ("bert", "pooler", *HEADS[head])
    expected = parts if expected is None else tuple(expected)
    bias_C = tensors.get(name_in(layout, "classifier/bias"), np.zeros(0))
    shapes = parameter_shapes(config, bias_C.shape[0] if bias_C.ndim == 1 else 0)
    flat: dict[str, np.ndarray] = {}
    dtypes: dict[str, str] = {}
    used: set[str] = set()
    missing: list[str] = []
    wrong: list[str] = []
    for part in parts:
        names = {n: name_in(layout, n) for n in shapes if part_of(n) == part}
        absent = [name for name in names.values() if name not in tensors]
        if absent and part == "bert":
            raise UserError(
                f"the weights lack {len(absent)} of the {len(names)} tensors of an "
                f"encoder of {config.num_layers} layers ({listed(absent)}), and have "
                f"{listed(sorted(tensors), 2)}; expected a BERT and the config file of "
                "the same model"
            )
        if absent:
            if part in expected or len(absent) < len(names):
                missing += absent
            continue
        used.update(names.values())
        for ours, name in names.items():
            array, shape = tensors[name], _shape_in(layout, ours, shapes[ours], config)
            if array.shape != shape:
                wrong.append(f"{name} is {array.shape}, expected {shape}")
            elif not jnp.issubdtype(array.dtype, jnp.floating):
                wrong.append(f"{name} is of {array.dtype}, expected floats")
            else:
                dtypes[ours] = str(array.dtype)
                array = np.asarray(array, np.float32)
                array = array.T if _is_transposed(layout, ours) else array
                if ours == _WORDS:
                    padding = config.word_rows - config.vocab_size
                    array = np.pad(array, ((0, padding), (0, 0)))
                flat[ours] = array.reshape(shapes[ours])
    if wrong:
        raise UserError(
            f"the weights do not fit this BERT config: {listed(wrong)}; use the "
            "config file of the same model"
        )
    params = traverse_util.unflatten_dict(flat, sep="/")
    unexpected = tuple(sorted(set(tensors) - used))
    return Converted(params, tuple(missing), unexpected, dtypes)


def _check_layers(tensors: Iterable[str], config: BertConfig) -> None:
    """Raises UserError if the weights have more layers than the config."""
    found = (re.match(r"bert[./]encoder[./]layer[._](\d{1,9})[./]", t) for t in tensors)
    layers = 1 + max((int(match[1]) for match in found if match), default=-1)
    if layers > config.num_layers:
        raise UserError(
            f"the weights have {layers} layers, the config num_hidden_layers="
            f"{config.num_layers}; use the config file of the same model"
        )


def from_params(
    params: Mapping[str, Any], config: BertConfig, layout: Layout
) -> dict[str, np.ndarray]:
    """The inverse of :func:`to_params`: every parameter under the layout's name."""
    flat = traverse_util.flatten_dict(with_scan(params, scan=False), sep="/")
    unknown = sorted(name for name in flat if name_in(layout, name) is None)
    if unknown:
        raise UserError(
            f"the parameters {listed(unknown)} have no name in other code's checkpoints; "
            f"expected the tree of a BERT with one of the heads {', '.join(HEADS)}"
        )
    result = {}
    for ours, array in flat.items():
        array = np.asarray(array, np.float32)
        shape = _shape_in(layout, ours, array.shape, config)
        if ours == _WORDS:
            array = array[: config.vocab_size]
        if _is_transposed(layout, ours):
            array = array.reshape(shape[::-1]).T
        result[name_in(layout, ours)] = np.ascontiguousarray(array.reshape(shape))
    return result


def _shape_in(
    layout: Layout, name: str, shape: tuple[int, ...], config: BertConfig
) -> tuple[int, ...]:
    """The shape in a layout, which joins attention heads: (D, N * H) for (D, N, H)."""
    if name == _WORDS:  # ours has rows of zeros beyond the vocabulary
        shape = config.vocab_size, shape[1]
    elif name.endswith("/attention/output/kernel"):
        shape = shape[0] * shape[1], shape[2]
    elif re.search("/attention/(query|key|value)/", name):
        shape = *shape[:-2], shape[-2] * shape[-1]
    return shape[::-1] if _is_transposed(layout, name) else shape


def _is_transposed(layout: Layout, name: str) -> bool:
    """Whether a layout keeps (outputs, inputs), as torch does with every kernel."""
    kept = layout == "google" and part_of(name) not in _LAST
    return name.endswith("/kernel") and not kept
