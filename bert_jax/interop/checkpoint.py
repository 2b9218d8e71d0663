"""A model read from disk, and the shapes that its parameters must have."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError, listed
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.layers import with_scan
from bert_jax.model.tokens import Tokens
from bert_jax.parallel.sharding import array_shapes, shape_differences

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A model read from disk.

    params: float32 numpy tree with the keys "bert", and "mlm" and "nsp", or
      "classifier", or "qa_outputs", or "bilstm", and "dense" (see modules.py); the
      layers are stacked where compute.scan_layers. The pooler and the parts of a head may
      be absent.
    head: "pretraining", "none", "sequence", "token", "choice", "span", "features" (a
      BiLSTM on the encoder), or "mean" or "cls" (vectors of texts, by their pooling).
    compute: how to compute it, by default as in the config of the workdir.
    labels: names of a classifier's outputs; empty for regression and other heads.
    problem_type: as transformers has it: "regression", "single_label_classification",
      "multi_label_classification" or None.
    extra: what bert_jax itself kept with the model ("bert_jax" in config.json), and
      "modules": settings of sentence-transformers (see modules.py).
    source: "huggingface", "tensorflow" or "bert_jax".
    missing: tensors that the architecture has and the files do not. unexpected: tensors
      of the files that are not read. Google's are under Hugging Face's names.
    """

    config: BertConfig
    params: dict[str, Any]
    tokenizer: Tokenizer | None
    head: str
    labels: tuple[str, ...] = ()
    problem_type: str | None = None
    compute: ComputeConfig = ComputeConfig()
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    source: str = "huggingface"
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()


def class_names(
    params: Mapping[str, Any], head: str, given: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """The names of a classifier's outputs; none for one number, and for other heads.

    given: names by number, such as "0"; empty: LABEL_0, LABEL_1, ..., as transformers has.
    Raises UserError unless each output has one name, and no two have the same.
    """
    if head not in ("sequence", "token") or "classifier" not in params:
        return ()
    numbers = [str(i) for i in range(params["classifier"]["bias"].shape[0])]
    if len(numbers) == 1:
        return ()
    given = given or {number: f"LABEL_{number}" for number in numbers}
    if {*given} != {*numbers} or len({*map(str, given.values())}) < len(numbers):
        raise UserError(
            f"id2label is {given!s:.200}; expected a name of its own for each output of "
            f"the head, '0' to '{len(numbers) - 1}'"
        )
    return tuple(str(given[number]) for number in numbers)


def check_params(
    params: dict[str, Any], config: BertConfig, head: str
) -> tuple[str, ...]:
    """Compares the parameters with the shapes that the model initialises, by name.

    Returns the names of the parts of pretraining that are missing. Raises UserError for
    other shapes and for incomplete parts. The sizes of a BiLSTM and of Dense modules are
    compared where they are used.
    """
    if "encoder" not in params.get("bert", {}):
        raise UserError("there is no encoder among the parameters; expected a BERT")
    found = array_shapes(with_scan(params, False))
    found = {n: s for n, s in found.items() if part_of(n) not in ("bilstm", "dense")}
    outputs = (0, *found.get("classifier/bias", ()))[-1]
    expected = parameter_shapes(config, outputs, pooled=head != "token")
    parts = {part_of(name) for name in found}
    wrong = shape_differences(
        found, {n: shape for n, shape in expected.items() if part_of(n) in parts}
    )
    if wrong:
        raise UserError(
            f"the checkpoint does not fit its config: {listed(wrong)}; use the "
            "config.json of the run"
        )
    absent = {"pooler", "mlm", "nsp"} - parts
    return tuple(name for name in expected if part_of(name) in absent)


@functools.cache
def parameter_shapes(
    config: BertConfig, outputs: int, *, pooled: bool = True
) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter of a BERT with every head, the layers not stacked.

    outputs: of the classifier. pooled: whether that reads a sequence, not each token, which
    is as wide as the encoder's output.
    """
    one = dataclasses.replace(config, num_layers=1)  # all layers have the same shapes
    tree = initial_shapes(BertForPreTraining(one))
    shapes = {
        name.replace("layer_0", f"layer_{i}"): shape
        for name, shape in array_shapes(tree).items()
        for i in range(config.num_layers if "layer_0" in name else 1)
    }
    D, width = config.hidden_size, config.output_size
    if "bert/mix/weights" in shapes:
        shapes["bert/mix/weights"] = (config.num_layers + 1,)
    heads = {"classifier": (D if pooled else width, outputs), "qa_outputs": (width, 2)}
    for name, size in heads.items():
        shapes |= {f"{name}/bias": size[1:], f"{name}/kernel": size}
    return shapes


def initial_shapes(model: nn.Module) -> dict[str, Any]:
    """The parameters of BertForPreTraining or of a head, not initialised."""
    ids_BL = jax.ShapeDtypeStruct((1, 8), jnp.int32)
    inputs = [ids_BL] * 4
    if not isinstance(model, BertForPreTraining):
        inputs = [jax.eval_shape(Tokens.of_mask, *inputs[:3])]
    init = functools.partial(model.init, deterministic=True)
    return jax.eval_shape(init, jax.random.key(0), *inputs)["params"]


def part_of(name: str) -> str:
    """The part of the model that a parameter belongs to. A part is complete or absent."""
    return "pooler" if name.startswith("bert/pooler") else name.split("/")[0]


def check_types(token_type_ids: Iterable[np.ndarray], config: BertConfig) -> None:
    """Raises UserError if the model has no type for the second text of a pair."""
    types = config.type_vocab_size
    if any(ids.max(initial=0) >= types for ids in token_type_ids):
        raise UserError(
            f"the model has type_vocab_size={types}, and pairs of texts need 2; take "
            "another checkpoint, or join the texts of a pair"
        )


def check_vocabulary(checkpoint: Checkpoint, path: object) -> None:
    """Raises UserError if the checkpoint at ``path`` cannot read text."""
    if checkpoint.tokenizer is None:
        raise UserError(
            f"{path} has no vocabulary; put the vocab.txt that belongs to the checkpoint "
            "beside its config.json"
        )


def check_length(max_length: int, checkpoint: Checkpoint, setting: str) -> None:
    """Raises UserError if sequences would be longer than the position table."""
    positions = checkpoint.config.max_positions
    if max_length > positions:
        raise UserError(
            f"max_length={max_length} is over the position table of {positions}; set "
            f"{setting} to {positions} or less"
        )
