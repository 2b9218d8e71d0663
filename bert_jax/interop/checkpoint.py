"""What a checkpoint of any origin comes to."""

import dataclasses
from typing import Any

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.model.config import BertConfig, ComputeConfig


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A model read from disk.

    params: float32 numpy tree with the keys "bert", and "mlm" and "nsp", or
      "classifier", or "qa_outputs", or "bilstm"; the layers are stacked where
      compute.scan_layers. The pooler and the parts of a head may be absent.
    head: "pretraining", "none", "sequence", "token", "choice", "span" or
      "features" (a BiLSTM on the frozen encoder).
    compute: how it is computed, which the caller of ``load`` may choose.
    labels: names of a classifier's outputs; empty for regression and other heads.
    problem_type: as transformers has it: "regression", "single_label_classification",
      "multi_label_classification" or None.
    extra: what bert_jax itself kept with the model ("bert_jax" in config.json).
    source: "huggingface", "tensorflow" or "bert_jax".
    missing: tensors that the architecture has and the files have not. unexpected:
      tensors of the files that are not read. Both in the source's own names.
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
