"""A family of encoders in transformers: keys of config.json, tensor names and classes."""

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from bert_jax.model.config import ACTIVATIONS, BertConfig

# Ends of the names of the classes that predict the next token.
CAUSAL = ("LMHeadModel", "ForCausalLM")
_LAYER = re.compile(r"bert/encoder/layer_(\d+)/(.*)")


@dataclasses.dataclass(frozen=True)
class Family:
    """A family. Paths are our names of modules, such as "bert/pooler".

    model_types: the prefix of class names by model_type of config.json, such as
      {"bert": "Bert"}.
    classes: head and parts, besides the encoder, by the rest of a class's name, such as
      {"ForMaskedLM": ("pretraining", ("mlm",))}. The first class that fits is written.
    prefix: start of the encoder's tensor names in a model with a head. old_prefix: another
      start in files on the Hub. "": none.
    layer: start of the names of layer {}.
    names: transformers' names by path. Paths in a layer are relative to the layer. A part
      without a name is neither read nor written.
    head_names: names that are different in models with a head, by head and path.
    split: tensors of a layer that contain several tensors of ``names``, such as
      {"attn.Wqkv": ("attn.query", "attn.key", "attn.value")}. The parts have equal sizes
      and follow each other along the outputs.
    mlm_activations: values of BertConfig.activation for which the MLM head has the same
      activation. In some families this head's activation does not depend on config.json.
    decoder: the product with the word table in the MLM head, whose weight is the table and
      whose bias is the bias of "mlm".
    keys: keys of config.json by field of BertConfig. A missing key means BertConfig's
      default, which must be transformers' default, or an error for a field without one.
    options: fields of BertConfig without a key, which are the same in all models of the
      family, and defaults of missing keys that differ from BertConfig's.
    needs_types: whether a model with the name of a table of token types must have one.
    read: further fields of BertConfig from the values of config.json. It raises UserError
      for a model that cannot be computed.
    write: the inverse of read, which returns further values of config.json.
    kept: keys of config.json that only transformers uses, such as the dropout rates of its
      heads. A saved model has the values that were read.
    """

    model_types: Mapping[str, str]
    classes: Mapping[str, tuple[str, tuple[str, ...]]]
    prefix: str
    layer: str
    names: Mapping[str, str]
    keys: Mapping[str, str]
    head_names: Mapping[str, Mapping[str, str]] = dataclasses.field(
        default_factory=dict
    )
    split: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    decoder: str = ""
    mlm_activations: Collection[str] = ACTIVATIONS
    old_prefix: str = ""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    needs_types: bool = True
    read: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda values: {}
    write: Callable[[BertConfig], dict[str, Any]] = lambda config: {}
    kept: tuple[str, ...] = ()

    def class_of(self, head: str, parts: Collection[str], causal: bool) -> str:
        """The rest of the name of the class of a model, such as "ForMaskedLM", or "".

        parts: parts of the model besides the encoder. A class and the model may differ in
        the pooler, unless its vectors are the input of a classifier of tokens or answers.
        """
        free = {"pooler"}
        if head in ("token", "span"):
            free = set()
        for rest, (its_head, its_parts) in self.classes.items():
            if head != its_head or {*parts} - free != {*its_parts} - free:
                continue
            if head != "pretraining" or causal == (rest in CAUSAL):
                return rest
        return ""

    def name_of(self, name: str, head: str = "none") -> str:
        """Transformers' name of our parameter ``name``. "" if it has none."""
        path, _, leaf = name.rpartition("/")
        start = ""
        layer = _LAYER.fullmatch(path)
        if layer:
            start = self.layer.format(layer[1])
            path = layer[2]
        names = {**self.names, **self.head_names.get(head, {})}
        if path not in names:
            return ""
        kind = "weight"
        if leaf.endswith("bias"):
            kind = "bias"
        return f"{start}{names[path]}.{kind}"
