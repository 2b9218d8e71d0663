"""A model that was read from disk, and the expected shapes of its parameters."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError, listed
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.parameters import with_scan
from bert_jax.model.tokens import Tokens
from bert_jax.objectives.networks import encoder_class, pretraining_class
from bert_jax.parallel.sharding import array_shapes, shape_differences

Params = dict[str, Any]
# Torch's names of the functions that a cross-encoder applies to its logit.
SIGMOID = "torch.nn.modules.activation.Sigmoid"
IDENTITY = "torch.nn.modules.linear.Identity"
Head = Literal[
    *("pretraining", "none", "sequence", "token", "choice", "span", "features"),
    *("mean", "cls"),
]


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A model read from disk.

    params: float32 numpy tree with the keys "bert", and "mlm" and "nsp", or "classifier",
      "qa_outputs" or "bilstm", and "dense" (see modules.py). Layers are stacked if
      compute.scan_layers. The pooler and the parts of a head may be missing.
    head: one of Head. "features": a BiLSTM on the encoder. "mean", "cls": the pooling of
      sentence embeddings.
    compute: how to compute the model. For a workdir, the setting of its run.
    labels: names of a classifier's outputs. Empty for regression and other heads.
    problem_type: transformers' setting: "regression", "single_label_classification",
      "multi_label_classification" or None.
    activation_fn: for a cross-encoder of sentence-transformers, the name of the function
      that it applies to its logit, such as SIGMOID. "" if its folder does not name one.
    extra: settings that bert_jax saves with the model ("bert_jax" in config.json), and
      "modules": settings of sentence-transformers (see modules.py).
    kept: values of config.json that only transformers uses; see Family.kept.
    source: "huggingface", "tensorflow" or "bert_jax".
    path: folder, file or name that was read. "" for a model that was not read.
    init_from: the checkpoint with which the run that trained the model started. "" if the
      run started with random parameters, or if the checkpoint is not known.
    missing: tensors of the architecture that the files do not contain. unexpected: tensors
      of the files that are not read. Google's tensors have Hugging Face's names.
    """

    config: BertConfig
    params: dict[str, Any]
    tokenizer: Tokenizer | None
    head: str
    labels: tuple[str, ...] = ()
    problem_type: str | None = None
    activation_fn: str = ""
    compute: ComputeConfig = ComputeConfig()
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    kept: dict[str, Any] = dataclasses.field(default_factory=dict)
    source: str = "huggingface"
    path: str = ""
    init_from: str = ""
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        """The origin of the parameters, for the model card. "" if it is not known."""
        start = self.extra.get("init_from")
        if start:
            scores = self.extra.get("scores", {})
            shown = ", ".join(f"{name} {score:.2f}" for name, score in scores.items())
            return f"a fine-tuning of {start} (dev: {shown or 'no scores'})"
        if self.path and self.init_from:
            return f"{self.path}, which bert_jax trained from {self.init_from}"
        return self.path


def class_names(
    params: Mapping[str, Any],
    head: str,
    id2label: Mapping[str, str] | None = None,
    problem_type: str | None = None,
) -> tuple[str, ...]:
    """The names of a classifier's outputs. Empty for regression and other heads.

    id2label: names by number, such as "0". Without it the names are LABEL_0, LABEL_1, ...,
    as in transformers. problem_type: see Checkpoint. A classifier of texts with one output
    is a regression, unless problem_type is "multi_label_classification". Raises UserError
    unless each output has its own name.
    """
    if head not in ("sequence", "token") or "classifier" not in params:
        return ()
    outputs = len(params["classifier"]["bias"])
    has_labels = head == "token" or problem_type == "multi_label_classification"
    if outputs == 1 and not has_labels:
        return ()
    names = default_names(outputs)
    if id2label:
        names = [str(id2label.get(str(i))) for i in range(outputs)]
        other_outputs = {*id2label} != {*map(str, range(outputs))}
        if other_outputs or len({*names}) < outputs:
            raise UserError(
                f"id2label is {id2label!s:.200}; expected a different name for each output "
                f"from '0' to '{outputs - 1}'"
            )
    return tuple(names)


def default_names(outputs: int) -> list[str]:
    """The names that transformers gives to the outputs of a classifier without names."""
    return [f"LABEL_{i}" for i in range(outputs)]


def check_params(
    params: dict[str, Any], config: BertConfig, head: str, pretrained: Sequence[str]
) -> tuple[str, ...]:
    """Compares the shapes of parameters with the shapes in a new model, by name.

    pretrained: parts, such as "pooler", whose parameters are returned by name if they are
    missing. Raises UserError for other shapes and for incomplete parts. A BiLSTM and Dense
    modules are compared later.
    """
    if "encoder" not in params.get("bert", {}):
        raise UserError("the parameters contain no encoder; expected bert/encoder")
    params = dict(params)
    for name in ("bilstm", "dense"):
        params.pop(name, None)
    shapes = array_shapes(with_scan(params, False))
    outputs = 0
    if "classifier/bias" in shapes:
        (outputs,) = shapes["classifier/bias"]
    parts = set(map(part_of, shapes))
    needed = {}
    missing = []
    expected = parameter_shapes(config, outputs, pooled=head != "token")
    for name, shape in expected.items():
        part = part_of(name)
        if part in parts:
            needed[name] = shape
        elif part in pretrained:
            missing.append(name)
    wrong = shape_differences(shapes, needed)
    if wrong:
        raise UserError(f"the config does not fit the checkpoint: {listed(wrong)}")
    return tuple(missing)


@functools.cache
def parameter_shapes(
    config: BertConfig, outputs: int, *, pooled: bool = True
) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter of a model with every head and unstacked layers.

    outputs: number of outputs of the classifier. pooled: whether the classifier reads the
    pooler's output. Otherwise it reads each token of the encoder's output.
    """
    # The first layer may have no attention norm. All others have the same shapes.
    two = dataclasses.replace(config, num_layers=min(config.num_layers, 2))
    model = pretraining_class(config)(two)
    tree = initial_shapes(model)
    shapes = {}
    for name, shape in array_shapes(tree).items():
        shapes[name] = shape
        if "layer_1" in name:
            for i in range(2, config.num_layers):
                shapes[name.replace("layer_1", f"layer_{i}")] = shape
    if "bert/mix/weights" in shapes:
        shapes["bert/mix/weights"] = (config.num_layers + 1,)
    width = encoder_class(config).width(config)
    inputs = width
    if pooled and config.pooler != "none":
        inputs = config.hidden_size
    for name, size in (("classifier", (inputs, outputs)), ("qa_outputs", (width, 2))):
        shapes |= {f"{name}/bias": size[1:], f"{name}/kernel": size}
    return shapes


@functools.lru_cache(maxsize=32)
def initial_shapes(model: nn.Module) -> dict[str, Any]:
    """The shapes of the parameters of BertForPreTraining or of a model with a head.

    Cached, because each load and prediction needs the shapes. Callers must not change the
    result.
    """
    ids_BL = jax.ShapeDtypeStruct((1, 8), jnp.int32)
    inputs = [ids_BL] * 4
    if not isinstance(model, BertForPreTraining):
        inputs = [jax.eval_shape(Tokens.of_mask, *inputs[:3])]
    init = functools.partial(model.init, deterministic=True)
    return jax.eval_shape(init, jax.random.key(0), *inputs)["params"]


def part_of(name: str) -> str:
    """The part of the model to which a parameter belongs. A part is complete or absent."""
    if name.startswith("bert/pooler"):
        return "pooler"
    return name.split("/")[0]


def check_vocabulary(checkpoint: Checkpoint, path: object) -> None:
    """Raises UserError if the checkpoint at ``path`` has no tokenizer."""
    if checkpoint.tokenizer is None:
        raise UserError(f"{path} has no vocabulary; add its vocab.txt")


def check_length(max_length: int, checkpoint: Checkpoint, setting: str) -> None:
    """Raises UserError if sequences would be longer than the model's positions."""
    positions = checkpoint.config.max_positions
    if max_length > positions:
        raise UserError(
            f"{setting}={max_length} exceeds the model's {positions} positions; lower it"
        )
