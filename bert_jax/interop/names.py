"""Names and shapes of every parameter: ours, Google's and Hugging Face's, in one table."""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from bert_jax.errors import UserError, listed
from bert_jax.model.config import BertConfig
from bert_jax.model.encoder import with_scan

Layout = Literal["google", "huggingface"]


class Tensor(NamedTuple):
    """A name and the dimensions of what it names.

    The dimensions are letters (see model/config.py; E is a second hidden size, C the
    outputs of a head), separated by spaces: "D NH" has two, the second of size N * H.
    Ours has W rows where the others have V; the rows beyond V are zero.
    """

    name: str
    dims: str


class Parameter(NamedTuple):
    """One parameter: its path and shape in our tree, and in each layout of others."""

    ours: Tensor
    google: Tensor
    huggingface: Tensor


class Converted(NamedTuple):
    """params: our tree, float32 numpy. missing, unexpected: the layout's own names."""

    params: dict[str, Any]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


# The names of a layer's kernel and bias: ours, Google's, Hugging Face's.
_LEAVES = {
    "dense": (("kernel", "/kernel", ".weight"), ("bias", "/bias", ".bias")),
    "output": (
        ("kernel", "/output_weights", ".weight"),
        ("bias", "/output_bias", ".bias"),
    ),
    "norm": (("scale", "/gamma", ".weight"), ("bias", "/beta", ".bias")),
    "table": (("embedding", "", ".weight"),),
    "bias": (("output_bias", "/output_bias", ".bias"),),
}


def _layer(
    kind: str, dims: str, ours: str, google: str, huggingface: str = ""
) -> list[Parameter]:
    """The parameters of one layer.

    kind: see _LEAVES; "output" is a last layer, which Google keeps as (outputs, inputs).
    dims: of our kernel. huggingface: where it is not Google's name with dots.
    """
    huggingface = huggingface or google.replace("/", ".").replace("layer_", "layer.")
    theirs = dims.replace("N H", "NH").replace("W", "V")
    turned = " ".join(reversed(theirs.split()))  # torch keeps (outputs, inputs)
    made = theirs.split()[-1]  # what the kernel gives, the dimensions of the bias
    kernel_dims = {"dense": (dims, theirs, turned), "output": (dims, turned, turned)}
    bias_dims = (made.replace("NH", "N H"), made, made)
    leaf_dims = (kernel_dims.get(kind, (dims, theirs, theirs)), bias_dims)
    names = [
        (
            f"{ours}/{leaf}",
            f"{google}{google_leaf}".lstrip("/"),
            huggingface + torch_leaf,
        )
        for leaf, google_leaf, torch_leaf in _LEAVES[kind]
    ]
    # Without a bias its dimensions are of no use.
    pairs = zip(names, leaf_dims, strict=False)
    return [Parameter(*map(Tensor, name, dims)) for name, dims in pairs]


# The table: kind, dimensions, our name, Google's, Hugging Face's where it is another.
_EMBEDDINGS = (
    ("table", "W D", "word", "word_embeddings"),
    ("table", "P D", "position", "position_embeddings"),
    ("table", "S D", "segment", "token_type_embeddings"),
    ("norm", "D", "norm", "LayerNorm"),
)
_ENCODER_LAYER = (
    ("dense", "D N H", "attention/query", "attention/self/query"),
    ("dense", "D N H", "attention/key", "attention/self/key"),
    ("dense", "D N H", "attention/value", "attention/self/value"),
    ("dense", "N H D", "attention/output", "attention/output/dense"),
    ("norm", "D", "attention_norm", "attention/output/LayerNorm"),
    ("dense", "D F", "intermediate", "intermediate/dense"),
    ("dense", "F D", "feed_forward_output", "output/dense"),
    ("norm", "D", "feed_forward_norm", "output/LayerNorm"),
)
# What may be missing, part by part.
PARTS = {
    "pooler": _layer("dense", "D E", "bert/pooler", "bert/pooler/dense"),
    "mlm": [
        *_layer("dense", "D E", "mlm/transform", "cls/predictions/transform/dense"),
        *_layer("norm", "D", "mlm/norm", "cls/predictions/transform/LayerNorm"),
        *_layer("bias", "V", "mlm", "cls/predictions"),
    ],
    "nsp": _layer("output", "D C", "nsp", "cls/seq_relationship"),
    "classifier": _layer("output", "D C", "classifier", "", "classifier"),
    "qa_outputs": _layer("output", "D C", "qa_outputs", "cls/squad", "qa_outputs"),
}
# The parts of a model with this head, beside encoder and pooler.
HEADS = {
    "none": (),
    "pretraining": ("mlm", "nsp"),
    "sequence": ("classifier",),
    "token": ("classifier",),
    "choice": ("classifier",),
    "span": ("qa_outputs",),
}
_OUTPUTS = {"nsp": 2, "qa_outputs": 2}  # C, where it is always the same


def encoder_parameters(num_layers: int) -> list[Parameter]:
    """The table of embeddings and layers, the layers not stacked."""
    places = [("bert/embeddings", _EMBEDDINGS)]
    places += [(f"bert/encoder/layer_{i}", _ENCODER_LAYER) for i in range(num_layers)]
    return [
        parameter
        for place, layers in places
        for kind, dims, ours, google in layers
        for parameter in _layer(kind, dims, f"{place}/{ours}", f"{place}/{google}")
    ]


def guess_head(names: Collection[str], layout: Layout) -> str:
    """The head that has tensors of these ``names``; see HEADS.

    A classifier is taken for one of sequences, since the names do not tell.
    """
    for head in ("span", "sequence", "pretraining"):
        rows = [row for part in HEADS[head] for row in PARTS[part]]
        if any(getattr(row, layout).name in names for row in rows):
            return head
    return "none"


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
    are unexpected. expected: the parts that are listed as missing if they are not there,
    by default those of the head and the pooler. A part is read whole or not at all.
    Raises UserError if the encoder lacks a tensor, or if a shape does not fit ``config``.
    """
    wanted = ("pooler", *HEADS[head])
    expected = wanted if expected is None else tuple(expected)
    encoder = encoder_parameters(config.num_layers)
    _check_complete([getattr(row, layout).name for row in encoder], tensors, config)
    rows, missing = list(encoder), []
    sizes = {row.ours.name: _sizes(config) for row in encoder}
    for part in wanted:
        names = [getattr(row, layout).name for row in PARTS[part]]
        absent = [name for name in names if name not in tensors]
        if not absent:
            rows += PARTS[part]
            part_sizes = _sizes(config) | {
                "C": _OUTPUTS.get(part) or _outputs_of(tensors[names[-1]])
            }
            sizes |= {row.ours.name: part_sizes for row in PARTS[part]}
        elif part in expected or len(absent) < len(names):
            missing += absent
    wrong = []
    for row in rows:
        name, dims = getattr(row, layout)
        gives = _shape(dims, sizes[row.ours.name])
        array = tensors[name]
        if array.shape != gives:
            wrong.append(f"{name} is {array.shape}, expected {gives}")
        elif not jnp.issubdtype(array.dtype, jnp.floating):
            wrong.append(f"{name} is of {array.dtype}, expected floats")
    if wrong:
        raise UserError(
            f"the weights are not those of this BERT config: {listed(wrong)}; use the "
            "config file that came with them"
        )
    flat = {
        row.ours.name: _to_ours(
            tensors[getattr(row, layout).name],
            getattr(row, layout).dims,
            row.ours.dims,
            sizes[row.ours.name],
        )
        for row in rows
    }
    params = traverse_util.unflatten_dict(flat, sep="/")
    used = {getattr(row, layout).name for row in rows}
    unexpected = tuple(sorted(set(tensors) - used))
    return Converted(params, tuple(missing), unexpected)


def from_params(
    params: Mapping[str, Any], config: BertConfig, layout: Layout
) -> dict[str, np.ndarray]:
    """The inverse of :func:`to_params`: every parameter under the layout's name."""
    params = with_scan(params, scan=False)
    flat = traverse_util.flatten_dict(params, sep="/")
    table = [
        *encoder_parameters(config.num_layers),
        *(row for part in PARTS.values() for row in part),
    ]
    unknown = sorted(set(flat) - {row.ours.name for row in table})
    if unknown:
        raise UserError(
            f"the parameters {listed(unknown)} have no name in other code's checkpoints; "
            f"expected the tree of a BERT with one of the heads {', '.join(HEADS)}"
        )
    result = {}
    for row in table:
        if row.ours.name in flat:
            name, dims = getattr(row, layout)
            array = np.asarray(flat[row.ours.name], np.float32)
            result[name] = _from_ours(array, row.ours.dims, dims, config.vocab_size)
    return result


def _check_complete(
    names: list[str], tensors: Mapping[str, Any], config: BertConfig
) -> None:
    missing = [name for name in names if name not in tensors]
    if missing:
        raise UserError(
            f"the weights lack {len(missing)} of the {len(names)} tensors of an encoder "
            f"of {config.num_layers} layers ({listed(missing)}); expected a BERT and the "
            "config file that came with it"
        )


def _outputs_of(bias_C: np.ndarray) -> int:
    return bias_C.shape[0] if bias_C.ndim == 1 else 0


def _sizes(config: BertConfig) -> dict[str, int]:
    return {
        "V": config.vocab_size,
        "W": config.word_rows,
        "P": config.max_positions,
        "S": config.type_vocab_size,
        "D": config.hidden_size,
        "E": config.hidden_size,
        "N": config.num_heads,
        "H": config.head_size,
        "F": config.intermediate_size,
    }


def _shape(dims: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of "D NH": D by N * H."""
    return tuple(math.prod(sizes[d] for d in group) for group in dims.split())


def _to_ours(
    array: Any, dims: str, our_dims: str, sizes: Mapping[str, int]
) -> np.ndarray:
    letters = dims.replace(" ", "")
    apart = np.asarray(array, np.float32).reshape([sizes[d] for d in letters])
    if "V" in letters and "W" in our_dims:
        apart = np.pad(apart, ((0, sizes["W"] - sizes["V"]), (0, 0)))
        letters = letters.replace("V", "W")
    return apart.transpose([letters.index(d) for d in our_dims.split()])


def _from_ours(
    array: np.ndarray, our_dims: str, dims: str, vocabulary: int
) -> np.ndarray:
    if "V" in dims and "W" in our_dims:
        array, our_dims = array[:vocabulary], our_dims.replace("W", "V")
    letters = dims.replace(" ", "")
    ours = our_dims.split()
    sizes = dict(zip(ours, array.shape, strict=True))
    order = [ours.index(d) for d in letters]
    return np.ascontiguousarray(array.transpose(order).reshape(_shape(dims, sizes)))
