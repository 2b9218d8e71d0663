"""Parameters under Hugging Face's names, which interop/families/ lists, and under ours."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from bert_jax.errors import UserError, listed
from bert_jax.interop.checkpoint import parameter_shapes, part_of
from bert_jax.interop.families import find_family
from bert_jax.model.config import BertConfig
from bert_jax.model.parameters import with_scan


class Converted(NamedTuple):
    """params: our tree, float32 numpy. missing, unexpected: Hugging Face's names."""

    params: dict[str, Any]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


# The parts of a model with each head, besides encoder and pooler.
HEADS = {
    "none": (),
    "pretraining": ("mlm", "nsp"),
    "sequence": ("classifier",),
    "token": ("classifier",),
    "choice": ("classifier",),
    "span": ("qa_outputs",),
}
# Parameters that only models with a head have, in the order in which heads are guessed.
_SIGNS = (
    ("sequence", ("classifier/kernel", "bert/pooler/kernel")),
    ("sequence", ("classifier/kernel", "bert/pooler/transform/kernel")),
    ("token", ("classifier/kernel",)),
    ("span", ("qa_outputs/kernel",)),
    ("pretraining", ("nsp/kernel",)),
    ("pretraining", ("mlm/output_bias",)),
)
_WORDS = "bert/embeddings/word/embedding"


def guess_head(names: Collection[str], model_type: str = BertConfig.model_type) -> str:
    """Guesses the head, a key of HEADS, from the names of tensors.

    A classifier counts as a classifier of sequences if there is a pooler, and otherwise as
    a classifier of tokens, because both may have the same names.
    """
    family = find_family(model_type)
    for head, paths in _SIGNS:
        signs = [family.name_of(path, head) for path in paths]
        if {*signs} <= {*names} and all(signs):
            return head
    return "none"


def to_params(
    tensors: Mapping[str, np.ndarray],
    config: BertConfig,
    *,
    head: str,
    expected: Iterable[str] | None = None,
) -> Converted:
    """Tensors under Hugging Face's names as our parameters, with unstacked layers.

    head: selects the parts that are read besides encoder and pooler. Tensors of other heads
    are unexpected. expected: parts that are listed as missing if they are absent. Default:
    the parts of the head and, unless it reads each token, the pooler. A part is read
    completely or not at all. Raises UserError if a tensor of the encoder is missing, if the
    encoder has tensors that ``config`` does not have, or if a shape does not fit.
    """
    family = find_family(config.model_type)
    parts = ("bert", "pooler", *HEADS[head])
    if expected is None:
        expected = HEADS[head]
        if head not in ("token", "span"):
            expected = ("pooler", *expected)
    outputs = 0
    bias_C = tensors.get(family.name_of("classifier/bias", head))
    if bias_C is not None and bias_C.ndim == 1:
        outputs = len(bias_C)
    flat: dict[str, np.ndarray] = {}
    missing: list[str] = []
    wrong: list[str] = []
    unexpected = set(tensors)
    shapes = parameter_shapes(config, outputs)
    for part in parts:
        names = {n: family.name_of(n, head) for n in shapes if part_of(n) == part}
        nameless = [ours for ours, name in names.items() if not name]
        if nameless and part == "bert":
            raise UserError(
                f"the config needs {listed(nameless)}, and a {config.model_type} has no "
                "such tensor; leave out the change of the config"
            )
        if nameless:
            continue  # the family does not have this part
        absent = [name for name in names.values() if name not in tensors]
        if absent and part == "bert":
            raise UserError(
                f"the weights lack {len(absent)} of {len(names)} tensors of the encoder "
                f"({listed(absent)}); expected a {config.model_type} (model_type of "
                "config.json, bert if it has none), found "
                f"{listed(sorted(tensors), 2)}"
            )
        if absent:
            if part in expected or len(absent) < len(names):
                missing += absent
            continue
        if part == "mlm" and config.activation not in family.mlm_activations:
            raise UserError(
                f"activation={config.activation}, but the MLM head of {config.model_type} "
                f"has {listed(family.mlm_activations)}; expected the same, or only the "
                "encoder, saved as transformers' Model class"
            )
        unexpected.difference_update(names.values())
        for ours, name in names.items():
            array, shape = tensors[name], _shape_there(ours, shapes[ours], config)
            if array.shape != shape:
                wrong.append(f"{name} is {array.shape}, expected {shape}")
            elif not jnp.issubdtype(array.dtype, jnp.floating):
                wrong.append(f"{name} is of {array.dtype}, expected floats")
            else:
                flat[ours] = _our_array(array, ours, shapes[ours])
    # More layers, cross attention or relative positions would change the results.
    layers = family.layer.partition("layer")[0]
    unknown = [name for name in unexpected if name.startswith(layers)]
    wrong += [f"{name} is unknown" for name in sorted(unknown)]
    if wrong:
        raise UserError(f"the weights do not fit the config: {listed(wrong)}")
    params = traverse_util.unflatten_dict(flat, sep="/")
    return Converted(params, tuple(missing), tuple(sorted(unexpected)))


def _our_array(array: np.ndarray, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Hugging Face's array as our parameter ``name``, float32 of a shape."""
    array = np.asarray(array, np.float32)
    if name.endswith("/kernel"):
        array = array.T
    if name == _WORDS:
        array = np.pad(array, ((0, shape[0] - len(array)), (0, 0)))
    return array.reshape(shape)


def from_params(
    params: Mapping[str, Any], config: BertConfig, *, head: str = "none"
) -> dict[str, np.ndarray]:
    """The inverse of :func:`to_params`: parameters under Hugging Face's names.

    A pooler is left out if models of this family and head have none.
    """
    family = find_family(config.model_type)
    result = {}
    flat = traverse_util.flatten_dict(with_scan(params, scan=False), sep="/")
    for ours, array in flat.items():
        name = family.name_of(ours, head)
        if not name:
            continue
        array = np.asarray(array, np.float32)
        shape = _shape_there(ours, array.shape, config)
        if ours == _WORDS:
            array = array[: config.vocab_size]
        if ours.endswith("/kernel"):
            array = array.reshape(shape[::-1]).T
        result[name] = np.ascontiguousarray(array.reshape(shape))
    return result


def _shape_there(
    name: str, shape: tuple[int, ...], config: BertConfig
) -> tuple[int, ...]:
    """Hugging Face's shape of a parameter.

    Attention heads are joined: (D, N * H) for (D, N, H). A kernel is (outputs, inputs).
    """
    if name == _WORDS:  # our table has rows of zeros after the vocabulary
        shape = config.vocab_size, shape[1]
    elif name.endswith("/attention/output/kernel"):
        shape = shape[0] * shape[1], shape[2]
    elif re.search("/attention/(query|key|value)/", name):
        shape = *shape[:-2], shape[-2] * shape[-1]
    if name.endswith("/kernel"):
        return shape[::-1]
    return shape
