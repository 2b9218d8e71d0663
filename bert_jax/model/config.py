"""Configs of a model: BertConfig for its checkpoint, ComputeConfig for a run.

Names of arrays end in letters for their shape, in the whole project:
B batch, L sequence length, D width (hidden size), N heads, H head size (D / N),
F feed-forward width, V vocabulary, W rows of the word table, M masked positions of a
sequence, S packed sequences of a row, Q positions of the queries (L or fewer).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from bert_jax.errors import UserError
from bert_jax.settings import check_ranges, setting

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu")
POOLINGS = ("token", "mean")
POOLERS = ("tanh", "relu", "gelu", "transform", "none")
DTYPES = ("float32", "bfloat16", "auto")

# Added to the score of a key that a query does not attend to, as in modeling.py. It is
# finite, so that the output of a row without tokens is a mean and not NaN.
MASKED_SCORE = -10000.0

_TILE = 128  # rows and columns of a matrix unit's tile
_SHARE = {"least": 0, "below": 1}


class LayerPattern(NamedTuple):
    """The options in which the layers of a model differ; see BertConfig.pattern.

    window: number of tokens on either side to which a token attends. 0: all tokens.
    rope_theta: base of the wavelengths of rotary positions. attention_norm: whether
    attention has its LayerNorm.
    """

    window: int = 0
    rope_theta: float = 10_000.0
    attention_norm: bool = True


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Sizes and options of the model. Defaults are the paper's (section 3, A.2)."""

    vocab_size: int = setting(doc="number of tokens of the vocabulary", least=1)
    hidden_size: int = setting(doc="width of a token's vector", least=1)
    num_layers: int = setting(doc="number of layers", least=1, below=1 << 10)
    num_heads: int = setting(doc="number of attention heads of a layer", least=1)
    intermediate_size: int = setting(doc="width of the feed-forward layer", least=1)
    max_positions: int = setting(
        512, "maximum length of a sequence, in tokens", least=1
    )
    type_vocab_size: int = setting(
        2,
        "number of token types. 2: A and B. 1: all tokens have one vector. 0: none",
        least=0,
    )
    causal: bool = setting(False, "tokens do not attend to later tokens, as in GPT")
    window: int = setting(
        0,
        "number of tokens on either side to which a token attends. 0: it attends to all "
        "tokens of its sequence",
        least=0,
    )
    global_every: int = setting(
        1,
        "with a window, layer 0 and every n-th layer attend to all tokens. 0: no layer "
        "does",
        least=0,
    )
    encoder: str = setting(
        "transformer",
        "transformer, or lstm: an LSTM for each direction, as in ELMo. Its layers have "
        "intermediate_size cells and outputs of hidden_size",
        one_of=("transformer", "lstm"),
    )
    positions: str = setting(
        "learned",
        "position vectors: learned, sinusoidal (Vaswani et al., 2017) or none. rotary: "
        "none, but queries and keys are rotated by their position (Su et al., 2021)",
        one_of=("learned", "sinusoidal", "rotary", "none"),
    )
    rope_theta: float = setting(
        10_000.0,
        "base of the wavelengths of rotary positions. Larger for longer texts",
        above=0,
    )
    rope_factor: float = setting(
        1.0,
        "number by which rotary positions are divided, such as 2 for texts of twice the "
        "length (linear scaling)",
        above=0,
    )
    local_rope_theta: float = setting(
        0.0, "rope_theta of layers with a window. 0: rope_theta", least=0
    )
    position_offset: int = setting(
        0,
        "row of the position table for the first token. In RoBERTa it is 2, and the table "
        "has max_positions + 2 rows",
        least=0,
    )
    pre_norm: bool = setting(
        False,
        "LayerNorm before attention and feed-forward instead of after, and one more after "
        "the last layer (MegatronBert in transformers)",
    )
    embedding_norm: bool = setting(
        False,
        "with pre_norm: LayerNorm of the embeddings, which replaces the LayerNorm before "
        "the first attention",
    )
    norm_bias: bool = setting(True, "bias of every LayerNorm")
    attention_bias: bool = setting(
        True, "biases of queries, keys, values and outputs of attention"
    )
    gated: bool = setting(
        False,
        "gated feed-forward layer: the activated vector is multiplied by another product "
        "of the input (GeGLU with gelu, SwiGLU with silu; Shazeer, 2020)",
    )
    feed_forward_bias: str = setting(
        "all",
        "biases of the feed-forward layer. all; down: only of its last product; none",
        one_of=("all", "down", "none"),
    )
    pooling: str = setting(
        "token",
        "input of a classifier. token: [CLS], the last token if causal, or the last state "
        "of each direction of an lstm. mean: the mean of all tokens",
        one_of=POOLINGS,
    )
    pooler: str = setting(
        "tanh",
        "activation of the pooler, the dense layer below a classifier of texts. transform: "
        "a dense layer, activation and LayerNorm as in the MLM head, which is also below "
        "classifiers of tokens and answers (ModernBERT). none: no pooler",
        one_of=POOLERS,
    )
    head_bias: bool = setting(
        True,
        "biases of the pooler and of the MLM head's dense layer. All outputs have biases",
    )
    model_type: str = setting(
        "bert",
        "model_type of an exported config.json. If the family in transformers lacks one of "
        "the other options, the model is exported as a family that has them",
    )
    hidden_dropout: float = setting(
        0.1, "dropout rate of the embeddings and of each layer's outputs", **_SHARE
    )
    attention_dropout: float = setting(0.1, "dropout rate of attention", **_SHARE)
    activation: str = setting(
        "gelu",
        "activation of the feed-forward layer: gelu (with erf), gelu_tanh, relu or silu",
        one_of=ACTIVATIONS,
    )
    layer_norm_epsilon: float = setting(
        1e-12, "added to the variance in LayerNorm", above=0, below=1
    )
    initializer_range: float = setting(
        0.02,
        "standard deviation of the normal distribution of new weights and embeddings, "
        "which is cut at two deviations",
        least=0,
        below=1e3,
    )
    scaled_init: bool = setting(
        False,
        "divide the standard deviation of new kernels by the root of 2 num_layers at the "
        "end of attention and feed-forward, and in the MLM head and the pooler transform",
    )

    def __post_init__(self):
        check_ranges(self, "model.")
        if self.hidden_size % self.num_heads:
            raise UserError(
                f"hidden_size={self.hidden_size} is not a multiple of "
                f"num_heads={self.num_heads}; change either"
            )
        self._check_options()

    def _check_options(self) -> None:
        """Raises UserError for options that have no effect or contradict each other."""
        rotary = self.positions == "rotary"
        if rotary and self.head_size % 2:
            raise UserError(
                "positions=rotary needs heads of an even size, but hidden_size / num_heads "
                f"is {self.head_size}; change either"
            )
        if rotary and self.position_offset:
            raise UserError(
                f"position_offset={self.position_offset} has no effect with "
                "positions=rotary; leave it out"
            )
        for name in ("rope_theta", "rope_factor"):
            value = getattr(self, name)
            if value != getattr(BertConfig, name) and not rotary:
                raise UserError(
                    f"{name}={value:g} needs positions=rotary, not {self.positions}; set "
                    f"positions=rotary or leave {name} out"
                )
        if self.window and self.global_every == 1:
            raise UserError(
                f"window={self.window} has no effect, because all layers attend to "
                "all tokens; set global_every=3, or 0 for a window in all layers"
            )
        if not self.window and self.global_every != 1:
            raise UserError(
                f"global_every={self.global_every} needs window, which is 0; set window "
                "or leave global_every out"
            )
        if self.local_rope_theta and not (rotary and self.window):
            raise UserError(
                f"local_rope_theta={self.local_rope_theta:g} needs positions=rotary and a "
                "window; set them or leave local_rope_theta out"
            )
        if self.embedding_norm and not self.pre_norm:
            raise UserError(
                "embedding_norm=True needs pre_norm=True, because without pre_norm a model "
                "always has this LayerNorm; leave embedding_norm out"
            )
        if self.encoder == "lstm":
            self._check_lstm()

    def _check_lstm(self) -> None:
        """Raises UserError for options that only layers with attention have."""
        for name in (
            *("causal", "pre_norm", "attention_bias", "gated", "feed_forward_bias"),
            *("scaled_init", "window"),
        ):
            value, default = getattr(self, name), getattr(BertConfig, name)
            if value != default:
                raise UserError(
                    f"encoder=lstm needs {name}={default}, not {value}; leave {name} out"
                )
        for name, value in (("positions", "rotary"), ("pooler", "transform")):
            if getattr(self, name) == value:
                raise UserError(
                    f"encoder=lstm does not support {name}={value}; change either"
                )

    @property
    def reads_both_sides(self) -> bool:
        """Whether the MLM head predicts a token from the tokens on both sides of it."""
        return self.encoder == "transformer" and not self.causal

    def pattern(self, layer: int) -> LayerPattern:
        """The options of a layer. layer: its number, from 0."""
        attention_norm = layer > 0 or not self.embedding_norm
        is_global = self.global_every and layer % self.global_every == 0
        if is_global:
            return LayerPattern(0, self.rope_theta, attention_norm)
        theta = self.local_rope_theta or self.rope_theta
        return LayerPattern(self.window, theta, attention_norm)

    @property
    def scanned(self) -> tuple[int, int]:
        """The first layer of a scan over periods of the pattern, and a period's length.

        The layers from this one on are whole periods. A first layer without attention norm
        is not scanned.
        """
        period = max(self.global_every, 1)
        first = self.num_layers % period
        if self.embedding_norm and first == 0:
            first = period
        return first, period

    @property
    def word_rows(self) -> int:
        """W: rows of the word table, vocab_size rounded up to a multiple of 128.

        The table is padded so that the tiles of a matrix unit are full, and so that 2, 4,
        ..., 128 devices can split it. The padding rows stay zero.
        """
        return -(-self.vocab_size // _TILE) * _TILE

    @property
    def position_rows(self) -> int:
        """Number of rows of the position table."""
        return self.max_positions + self.position_offset

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
                f"the encoder has no layer {wrong[0]}; expected 0 (the embeddings) to "
                f"{most}, or {-most - 1} to -1; set {setting}"
            )


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """The mesh, a grid of devices. Each number is the size of an axis.

    The product of the sizes is the number of devices. One size may be -1, which means the
    rest.
    """

    replica: int = setting(
        1, "groups of devices, such as TPU slices, which split the batch"
    )
    data: int = setting(-1, "devices that split the batch (data parallelism)")
    model: int = setting(1, "devices that split each layer (tensor parallelism)")
    fsdp: bool = setting(
        False, "split parameters and optimizer state over the devices of data"
    )


@dataclasses.dataclass(frozen=True)
class ComputeConfig:
    """How a run computes a model: speed, memory and rounding.

    Every checkpoint can be computed with any of these settings. Parameters, the softmax,
    LayerNorm statistics and the loss are always float32.
    """

    dtype: str = setting(
        "float32",
        "dtype of the activations: float32, bfloat16 or auto. auto is bfloat16 on TPUs, "
        "NVIDIA GPUs since Ampere, CPUs with AMX and AMD CPUs since Zen 4",
        one_of=DTYPES,
    )
    attention_impl: str = setting(
        "auto",
        "implementation of attention: plain (the formula), xla (with its own gradient), "
        "splash (TPU) or cudnn (GPU). auto: xla on CPUs, plain on other devices. Only "
        "plain and xla support dropout",
        one_of=("auto", "plain", "xla", "splash", "cudnn"),
    )
    dropout_impl: str = setting(
        "auto",
        "random bits of a dropout mask: plain (32 bits a value, from JAX's generator rbg) "
        "or bytes (8 bits a value). auto: bytes on CPUs, plain on other devices",
        one_of=("auto", "plain", "bytes"),
    )
    remat: str = setting(
        "none",
        "gradient checkpointing: the part that the backward pass computes again. full: "
        "each layer, with a third more operations. dots: all but the products with "
        "kernels. none: nothing, which needs the most memory",
        one_of=("none", "dots", "full"),
    )
    scan_layers: bool = setting(
        False,
        "stack the parameters of layers and loop over one layer, or over global_every "
        "layers, which compiles faster. New parameters are the same, dropout masks differ",
    )
    float32_gradients: bool = setting(
        False,
        "with bfloat16, sum gradients over rows and devices in float32, which sends twice "
        "as many bytes between devices",
    )

    def __post_init__(self):
        check_ranges(self, "compute.")

    def check_lstm(self) -> None:
        """Raises UserError for a setting that an LSTM does not have."""
        if self.remat != "none":
            actual = f"compute.remat={self.remat} has no effect on LSTMs"
            raise UserError(f"{actual}; leave it out")


@dataclasses.dataclass(frozen=True)
class FeatureConfig:
    """A BiLSTM on the encoder, frozen or not (paper, section 5.3 and table 5)."""

    layers: tuple[int, ...] = setting(
        (),
        "for tagging: freeze the encoder and train a BiLSTM on these layers' outputs. 0: "
        "the embeddings, -1: the last layer. Empty: fine-tune the encoder",
    )
    bilstm: bool = setting(
        False, "fine-tune the encoder with a BiLSTM on top. Not used with layers"
    )
    lstm_layers: int = setting(2, "number of layers of the BiLSTM", least=1)
    # The paper's "768-dimensional" may mean both directions together. Its BiLSTM has no
    # dropout.
    width: int = setting(768, "units of each direction of the BiLSTM", least=1)
    dropout: float = setting(
        0.1, "dropout rate of the features and of each LSTM layer's outputs", **_SHARE
    )

    def __post_init__(self):
        check_ranges(self, "features.")
