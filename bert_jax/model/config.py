"""Configs of a model: BertConfig for its checkpoint, ComputeConfig for a run.

Shape letters, used as suffixes of array names all over the project:
B batch, L sequence length, D width (hidden size), N heads, H head size (D / N),
F feed-forward width, V vocabulary, W rows of the word table, M masked positions of a
sequence, S packed sequences of a row, Q positions of the queries (L or fewer).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from bert_jax.errors import UserError
from bert_jax.settings import check_ranges, setting

ACTIVATIONS = ("gelu", "gelu_tanh", "relu")
POSITIONS = ("learned", "sinusoidal", "none")
POOLINGS = ("token", "mean")
ATTENTION_IMPLS = ("auto", "plain", "xla", "splash", "cudnn")
DTYPES = ("float32", "bfloat16", "auto")

# Added to the score of a key that a query does not attend to, as in modeling.py. It is
# finite, so that a row without any token gives a mean instead of NaN.
MASKED_SCORE = -10000.0

_TILE = 128  # rows and columns of a matrix unit's tile


class EncoderKind(NamedTuple):
    """Properties of an encoder; BertModel.setup chooses its module.

    attends: whether the layers have attention. Several sequences in one row, a causal mask
      and attention probabilities need it.
    directions: number of vectors of a token, each hidden_size wide. With two, one vector
      reads the tokens before and the other one reads the tokens after.
    products: multiply-adds of all layers on a row: (config, row length, positions at which
      the last layer is computed).
    """

    attends: bool
    directions: int
    products: Callable[["BertConfig", int, int], int]


def _transformer_products(config: "BertConfig", length: int, last: int) -> int:
    D, F = config.hidden_size, config.intermediate_size
    queries = (config.num_layers - 1) * length + last
    keys = config.num_layers * length * 2 * D * D
    return keys + queries * (2 * D * D + 2 * D * F + 2 * length * D)


def _lstm_products(config: "BertConfig", length: int, last: int) -> int:
    """Inputs (4 D F), state (4 D F) and projection (D F), in both directions."""
    del last
    D, F = config.hidden_size, config.intermediate_size
    return config.num_layers * length * 18 * D * F


ENCODERS = {
    "transformer": EncoderKind(True, 1, _transformer_products),
    "lstm": EncoderKind(False, 2, _lstm_products),
}


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Sizes and options of a checkpoint; the paper's by default (section 3, A.2)."""

    vocab_size: int = setting(
        doc="rows of the word table, one for each token of the text's vocabulary",
        least=1,
    )
    hidden_size: int = setting(doc="width of a token's vector", least=1)
    num_layers: int = setting(doc="Transformer layers", least=1, below=1 << 10)
    num_heads: int = setting(
        doc="attention heads of a layer; divides hidden_size", least=1
    )
    intermediate_size: int = setting(doc="width of the feed-forward layer", least=1)
    max_positions: int = setting(512, "longest sequence, in tokens", least=1)
    type_vocab_size: int = setting(2, "token types: sentence A and sentence B", least=1)
    causal: bool = setting(
        False,
        "a token attends to itself and the tokens before it only: a left-to-right model "
        "(GPT)",
    )
    encoder: str = setting(
        "transformer",
        'transformer, or "lstm": one LSTM from left to right and one from right to left, '
        "which do not see each other (ELMo), each with num_layers of intermediate_size "
        "cells, projected to hidden_size",
        one_of=tuple(ENCODERS),
    )
    positions: str = setting(
        "learned",
        "position vectors: learned, sinusoidal (Vaswani et al., 2017) or none",
        one_of=POSITIONS,
    )
    pre_norm: bool = setting(
        False,
        "LayerNorm before attention and feed-forward and after the last layer, instead of "
        "after each (transformers' MegatronBert)",
    )
    pooling: str = setting(
        "token",
        "input of a classifier: the token [CLS] (the last token of a left-to-right "
        "model, both last states of an LSTM), or the mean of all tokens",
        one_of=POOLINGS,
    )
    hidden_dropout: float = setting(
        0.1,
        "probability of dropping a value of the embeddings or of a layer's branch",
        least=0,
        below=1,
    )
    attention_dropout: float = setting(
        0.1, "probability of dropping an attention probability", least=0, below=1
    )
    activation: str = setting(
        "gelu",
        'of the feed-forward layer: "gelu" (exact, erf), "gelu_tanh" or "relu"',
        one_of=ACTIVATIONS,
    )
    layer_norm_epsilon: float = setting(
        1e-12, "added to the variance by LayerNorm", above=0, below=1
    )
    initializer_range: float = setting(
        0.02,
        "standard deviation of new kernels and embeddings, cut at two of them",
        least=0,
        below=1e3,
    )

    def __post_init__(self):
        check_ranges(self, "model.")
        if self.hidden_size % self.num_heads:
            raise UserError(
                f"hidden_size={self.hidden_size} is not a multiple of "
                f"num_heads={self.num_heads}; change one of them"
            )
        if not self.kind.attends and (self.causal or self.pre_norm):
            raise UserError(
                f"model.encoder={self.encoder!r} has neither attention nor LayerNorm; set "
                "model.causal=False and model.pre_norm=False"
            )

    @property
    def kind(self) -> EncoderKind:
        """Properties of the encoder."""
        return ENCODERS[self.encoder]

    @property
    def output_size(self) -> int:
        """Width of a token's vector after the encoder."""
        return self.kind.directions * self.hidden_size

    @property
    def reads(self) -> str:
        """The tokens that a token's vector is computed from, on its left, right or both."""
        if self.kind.directions > 1:
            return "each side alone"
        return "the left side" if self.causal else "both sides"

    @property
    def word_rows(self) -> int:
        """W: rows of the word table, vocab_size rounded up to a multiple of 128.

        The vocabulary is padded so that the tiles of a matrix unit are full, and so that
        any power of two of devices up to 128 can split the table. The padding rows are
        zero and stay zero.
        """
        return -(-self.vocab_size // _TILE) * _TILE

    @property
    def head_size(self) -> int:
        """H: the width of one attention head."""
        return self.hidden_size // self.num_heads

    @classmethod
    def base(cls, **changes: Any) -> "BertConfig":
        """BERT BASE, 110M parameters (paper, section 3)."""
        return dataclasses.replace(cls(30522, 768, 12, 12, 3072), **changes)

    @classmethod
    def large(cls, **changes: Any) -> "BertConfig":
        """BERT LARGE, 340M parameters (paper, section 3)."""
        return dataclasses.replace(cls(30522, 1024, 24, 16, 4096), **changes)

    def check_layers(self, layers: Sequence[int], setting: str) -> None:
        """Raises UserError for hidden states that the encoder does not have."""
        most = self.num_layers
        wrong = [layer for layer in layers if not -most - 1 <= layer <= most]
        if wrong:
            raise UserError(
                f"layer {wrong[0]} is not there: the encoder has {most} layers; expected "
                f"0 (the embeddings) to {most}, or {-most - 1} to -1; set {setting}"
            )

    def step_flops(
        self,
        length: int,
        predictions: int,
        rows: int,
        sequences: int = 1,
        *,
        scan_layers: bool = False,
    ) -> int:
        """Multiply-adds, as two operations each, of a step on rows of ``length`` tokens.

        Counted are the matrices of the layers, both attention products over all pairs of
        positions, the pooler, the MLM head at ``predictions`` positions of a row, and the
        NSP head on its ``sequences``. Without scan_layers the last Transformer layer is
        computed, and counted, at these positions and at [CLS] only. XLA's cost analysis is
        not used, because it counts the body of a scan once.
        """
        D, V = self.hidden_size, self.vocab_size
        last = length if scan_layers else predictions + sequences
        layers = self.kind.products(self, length, last)
        heads = predictions * (D * D + D * V) + sequences * (self.output_size + 2) * D
        # The backward pass costs twice the forward pass.
        return 3 * 2 * rows * (layers + heads)


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Number of devices along each axis. One axis may be -1: all other devices."""

    replica: int = setting(1, "slices joined by the data-center network")
    data: int = setting(
        -1, "devices of a slice that split the batch; -1: all that are left"
    )
    model: int = setting(
        1, "devices that split attention heads, feed-forward width and vocabulary"
    )
    fsdp: bool = setting(
        False, "split parameters and optimizer state over the devices along data too"
    )


@dataclasses.dataclass(frozen=True)
class ComputeConfig:
    """How a run computes a model: its speed, its memory and its rounding.

    Every checkpoint can be computed with any of these settings. Parameters, the softmax,
    LayerNorm statistics and the loss are always float32.
    """

    dtype: str = setting(
        "float32",
        '"float32" or "bfloat16", of the activations; "auto" for bfloat16 where the device '
        "is fast at it (TPU, NVIDIA GPUs from Ampere on, CPUs with AMX, AMD from Zen 4)",
        one_of=DTYPES,
    )
    attention_impl: str = setting(
        "auto",
        '"plain" (the formula), "xla" (all devices), "splash" (TPU), "cudnn" (GPU), or '
        '"auto" for the fastest that fits; only plain and xla have dropout',
        one_of=ATTENTION_IMPLS,
    )
    remat: bool = setting(
        False,
        "recompute each layer in the backward pass instead of keeping its activations: "
        "less memory, a third more work",
    )
    scan_layers: bool = setting(
        False,
        "compile one layer and apply it num_layers times: compiles faster, and stacks "
        "the layers' parameters",
    )
    float32_gradients: bool = setting(
        False,
        "sum the gradients of parameters over rows and devices in float32 where dtype is "
        "bfloat16; twice the bytes between devices",
    )

    def __post_init__(self):
        check_ranges(self, "compute.")


@dataclasses.dataclass(frozen=True)
class FeatureConfig:
    """A BiLSTM on the encoder, frozen or not (paper, section 5.3 and table 5)."""

    layers: tuple[int, ...] = setting(
        (),
        "tagging: hidden states of the frozen encoder that are concatenated for the "
        "BiLSTM: 0 the embeddings, -1 the last layer's; empty: everything is fine-tuned",
    )
    bilstm: bool = setting(
        False,
        "a BiLSTM between the encoder and the output of any head, fine-tuned together; "
        "with layers there is one anyway",
    )
    lstm_layers: int = setting(2, "layers of the BiLSTM", least=1)
    # The paper's "768-dimensional" leaves open whether it means both directions together;
    # it names no dropout.
    width: int = setting(768, "units of the LSTM, in each direction", least=1)
    dropout: float = setting(
        0.1,
        "probability of dropping a feature or an output of an LSTM layer",
        least=0,
        below=1,
    )

    def products(self, inputs: int) -> int:
        """Multiply-adds of the BiLSTM on a token of ``inputs`` features."""
        first = 2 * 4 * self.width * (inputs + self.width)
        return first + (self.lstm_layers - 1) * 2 * 4 * self.width * 3 * self.width
