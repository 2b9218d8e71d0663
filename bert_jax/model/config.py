"""The size and the behaviour of a BERT, and the JSON forms of both.

Shape letters, used as suffixes of array names all over the project:
B batch, L sequence length, D width (hidden size), N heads, H head size (D / N),
F feed-forward width, V vocabulary, W rows of the word table, M masked positions of a
sequence, S segment types.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError

ACTIVATIONS = ("gelu", "gelu_tanh", "relu")
ATTENTION_IMPLS = ("auto", "xla", "splash", "cudnn")
DTYPES = ("float32", "bfloat16")

# Our name -> the name in bert_config.json and in Hugging Face's config.json.
_JSON_NAMES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "hidden_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "layer_norm_epsilon": "layer_norm_eps",
    "initializer_range": "initializer_range",
}
_WORD_TILE = 128
_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_layers",
    "num_heads",
    "intermediate_size",
    "max_positions",
    "type_vocab_size",
)
# Where Hugging Face's config.json can say that the model is another one.
_ONLY = {"model_type": "bert", "position_embedding_type": "absolute"}
# bert_config.json says "gelu" for both forms; Hugging Face tells them apart.
_FROM_JSON_ACTIVATION = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
_TO_JSON_ACTIVATION = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Sizes and choices of one model; the defaults are the paper's (section 3, A.2).

    activation: "gelu" (exact, erf), "gelu_tanh" (its approximation), "relu".
    initializer_range: standard deviation of kernels and embeddings, cut at two of them.
    dtype: of the computation; parameters, softmax, LayerNorm statistics and the loss are
      float32 whatever it is.
    attention_impl: "auto", "xla", "splash" or "cudnn": see attention.choose_attention.
    remat: recompute each layer in the backward pass instead of keeping its activations.
    scan_layers: one compiled layer applied num_layers times, its parameters stacked.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    max_positions: int = 512
    type_vocab_size: int = 2
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    activation: str = "gelu"
    layer_norm_epsilon: float = 1e-12
    initializer_range: float = 0.02
    dtype: str = "float32"
    attention_impl: str = "auto"
    remat: bool = False
    scan_layers: bool = False

    def __post_init__(self):
        for name in _SIZES:
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UserError(f"{name}={value!r}, expected a positive integer")
        for name in ("hidden_dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(
                    f"{name}={getattr(self, name)}, expected a rate from 0 to below 1"
                )
        if self.hidden_size % self.num_heads:
            raise UserError(
                f"hidden_size={self.hidden_size} is not a multiple of "
                f"num_heads={self.num_heads}; change one of them"
            )
        for name, known in (
            ("activation", ACTIVATIONS),
            ("attention_impl", ATTENTION_IMPLS),
            ("dtype", DTYPES),
        ):
            if getattr(self, name) not in known:
                raise UserError(
                    f"{name}={getattr(self, name)!r}, expected one of {', '.join(known)}"
                )

    @property
    def word_rows(self) -> int:
        """W: rows of the word table, vocab_size filled up to a multiple of 128.

        So that the product with it fits the tiles of matrix units, and any number of
        devices up to 128 that is a power of two may split it. No token has these rows:
        they are zero and stay so.
        """
        return -(-self.vocab_size // _WORD_TILE) * _WORD_TILE

    @property
    def head_size(self) -> int:
        """H: the width of one attention head."""
        return self.hidden_size // self.num_heads

    @classmethod
    def base(cls, **changes: Any) -> "BertConfig":
        """BERT BASE, 110M parameters (paper, section 3)."""
        sizes = dict(
            vocab_size=30522,
            hidden_size=768,
            num_layers=12,
            num_heads=12,
            intermediate_size=3072,
        )
        return cls(**sizes | changes)

    @classmethod
    def large(cls, **changes: Any) -> "BertConfig":
        """BERT LARGE, 340M parameters (paper, section 3)."""
        sizes = dict(
            vocab_size=30522,
            hidden_size=1024,
            num_layers=24,
            num_heads=16,
            intermediate_size=4096,
        )
        return cls(**sizes | changes)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], **changes: Any) -> "BertConfig":
        """Reads the contents of a bert_config.json or a Hugging Face config.json.

        ``changes`` override what the file says, for what it cannot say: the checkpoints
        trained since February 2019 need activation="gelu_tanh" under the same "gelu".
        """
        for name, only in _ONLY.items():
            if values.get(name, only) != only:
                raise UserError(
                    f"the config has {name}={values[name]!r}, expected {only!r}: this "
                    "code runs BERT alone"
                )
        sizes = {}
        for ours, theirs in _JSON_NAMES.items():
            if theirs in values:
                sizes[ours] = values[theirs]
        missing = [
            _JSON_NAMES[field.name]
            for field in dataclasses.fields(cls)
            if field.default is dataclasses.MISSING and field.name not in sizes
        ]
        if missing:
            raise UserError(f"a BERT config needs {', '.join(missing)}; none was given")
        activation = values.get("hidden_act", "gelu")
        if activation not in _FROM_JSON_ACTIVATION:
            raise UserError(
                f"hidden_act={activation!r}, expected one of "
                f"{', '.join(_FROM_JSON_ACTIVATION)}"
            )
        return cls(
            **{"activation": _FROM_JSON_ACTIVATION[activation]} | sizes | changes
        )

    @classmethod
    def from_json(cls, path: Path | str, **changes: Any) -> "BertConfig":
        """Reads a bert_config.json or config.json; see :meth:`from_dict`."""
        try:
            values = json.loads(Path(path).read_text())
        except FileNotFoundError as error:
            raise UserError(f"{path} does not exist; expected a BERT config") from error
        except OSError as error:
            raise UserError(f"cannot read {path} ({error.strerror})") from error
        except ValueError as error:
            raise UserError(f"{path} is not JSON ({error})") from error
        if not isinstance(values, dict):
            raise UserError(f"{path}: expected a JSON object with a BERT config")
        return cls.from_dict(values, **changes)

    def to_dict(self) -> dict[str, Any]:
        """The contents of a Hugging Face config.json, which Google's code reads too."""
        values = {theirs: getattr(self, ours) for ours, theirs in _JSON_NAMES.items()}
        return {
            "architectures": ["BertForPreTraining"],
            "model_type": "bert",
            "hidden_act": _TO_JSON_ACTIVATION[self.activation],
            **values,
        }

    def parameter_count(self, heads: bool = True) -> int:
        """Parameters of BertForPreTraining, or of BertModel without its ``heads``."""
        D, F, V = self.hidden_size, self.intermediate_size, self.vocab_size
        norm = 2 * D
        embeddings = (V + self.max_positions + self.type_vocab_size) * D + norm
        layer = 4 * (D * D + D) + (D * F + F) + (F * D + D) + 2 * norm
        pooler = D * D + D
        mlm = D * D + D + norm + V  # the table itself is the embeddings'
        nsp = 2 * D + 2
        encoder = embeddings + self.num_layers * layer + pooler
        return encoder + (mlm + nsp if heads else 0)
