"""Text and token embeddings from a frozen encoder, and files with embeddings."""

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.files import ending, new_file
from bert_jax.inference.evaluation import (
    Arrays,
    Done,
    OnDevices,
    Options,
    Part,
    Rows,
    Texts,
    collected,
    in_parts,
    row_texts,
    rows_of,
    text_features,
)
from bert_jax.interop.modules import DENSE_ACTIVATIONS, vector_settings
from bert_jax.model.bert import BertModel
from bert_jax.model.heads import normalized, pool_tokens, side_by_side
from bert_jax.model.tokens import Tokens
from bert_jax.objectives.networks import encoder_class
from bert_jax.settings import setting

POOLINGS = ("none", "mean", "cls", "pooler")
# Number of tokens whose vectors take as much memory as an ordinary row. The vectors of BERT
# LARGE's last four layers for 4,096 rows take 512 MiB if each character is a token. English
# has a fifth as many tokens.
ROW = 8


@dataclasses.dataclass(frozen=True)
class VectorOptions(Options):
    """How texts become vectors: the options of all methods that encode texts."""

    layers: tuple[int, ...] = setting(
        (-1,),
        "indices of the hidden states that are concatenated: 0 is the embeddings, -1 the "
        "last layer. (-4, -3, -2, -1) is the paper's best choice (section 5.3)",
    )
    pooling: str = setting(
        "",
        '"mean" of all tokens with [CLS] and [SEP]; "cls", the vector of [CLS]; "pooler", '
        'tanh of the pretrained dense layer at [CLS] of the last layer; "none": a list '
        'of the vectors of each text\'s tokens, (tokens, W); "": as the model was '
        'trained, otherwise "mean"',
        one_of=(*POOLINGS, ""),
    )
    normalize: bool | None = setting(
        None, "whether to scale every vector to length 1; None: as the model does"
    )
    dimensions: int = setting(
        0,
        "keep only this many leading numbers of each vector, for a model that was trained "
        "with ``matryoshka``; 0: all. Vectors are cut before they are scaled",
        least=0,
    )

    def __post_init__(self):
        super().__post_init__()
        if not self.layers:
            raise UserError("layers=(), expected at least one, such as (-1,)")


@dataclasses.dataclass(frozen=True)
class EncodeOptions(VectorOptions):
    """The options of ``Bert.encode``."""

    prompt: str | None = setting(
        None,
        'text to put before each text; "": none; None: the default prompt of the model',
    )
    prompt_name: str | None = setting(
        None,
        'name of one of the model\'s prompts, such as "query", instead of ``prompt``',
    )


@dataclasses.dataclass(frozen=True)
class _Vectors:
    """How the hidden states of a model become vectors; see EncodeOptions.

    activations: activations of the Dense modules of a sentence embedding model, in order.
    prompt_tokens: number of tokens at the start of a text that are not pooled.
    """

    model: BertModel
    pooling: str
    layers: tuple[int, ...]
    activations: tuple[str, ...]
    normalize: bool
    dimensions: int
    prompt_tokens: int


class _Reading(NamedTuple):
    """How texts become sequences.

    texts: maximum number of texts in a row. prompt: text to put before each text.
    """

    max_length: int
    texts: int
    prompt: str


def encode(model: OnDevices, rows: Rows, options: EncodeOptions) -> Iterator[Part]:
    """A vector of each text, float32 (W,), or without pooling of its tokens, (tokens, W).

    If a sentence embedding model keeps its own pooling, its Dense modules are applied, and
    its default prompt is put before each text. In a pair a prompt is put before the first
    text. A text becomes [CLS] A [SEP], a tuple of two texts [CLS] A [SEP] B [SEP], and an
    empty text [CLS] [SEP]. A text that is too long is cut at the end that the tokenizer's
    ``truncation`` names; in a pair, the longer text is cut.
    """
    vectors, reading = _settings(model, options)
    params = model.checkpoint(options).params
    program = model.program(_vectors, vectors)

    def answer(part: list[Texts], done: Done) -> Part:
        texts = []
        for row in part:
            first, *others = row.texts
            texts.append((reading.prompt + first, *others))
        features = text_features(model.tokenizer, texts, reading.max_length)
        outputs = model.run(program, params, features, options, done)
        return Part(features, outputs)

    def cost(row: Texts) -> float:
        if vectors.pooling != "none":
            return 1
        # A text has at most as many tokens as characters.
        characters = sum(map(len, row.texts))
        return min(3 + characters, reading.max_length) / ROW

    most = reading.texts
    if rows.columns:
        most = 2
    texts = row_texts(rows, most=most)
    return in_parts(
        answer,
        texts,
        options,
        model=model,
        total=rows.total,
        max_length=reading.max_length,
        doing="encoding",
        cost=cost,
    )


def _settings(model: OnDevices, options: EncodeOptions) -> tuple[_Vectors, _Reading]:
    """The settings of vectors and of sequences, for a checkpoint and options."""
    checkpoint = model.checkpoint(options)
    config = checkpoint.config
    positions = config.max_positions
    modules = vector_settings(checkpoint.head, checkpoint.extra, positions) or {}
    prompts = modules.get("prompts", {})
    most = 2
    if modules:
        most = 1  # a sentence embedding belongs to one text
    pooling = options.pooling or modules.get("pooling", "mean")
    is_last = options.layers == (-1,)
    if pooling != modules.get("pooling") or not is_last:
        modules = {}
    max_length = options.max_length or modules.get("max_length", positions)
    if max_length < 5:
        raise UserError(f"max_length={max_length}, expected at least 5")
    config.check_layers(options.layers, "layers")
    if pooling == "pooler" and "pooler" not in checkpoint.params["bert"]:
        raise UserError(f"{model.name} has no pooler; set pooling to mean or cls")
    if pooling == "pooler" and not is_last:
        raise UserError("the pooler needs the last layer; leave layers out")
    normalize = options.normalize
    if normalize is None:
        normalize = modules.get("normalize", False)
    prompt = _prompt(options, prompts, modules.get("default_prompt_name"))
    prompt_tokens = 0
    if prompt and not modules.get("include_prompt", True):
        features = text_features(model.tokenizer, [(prompt,)], max_length)
        prompt_tokens = len(features.input_ids[0]) - 1  # [SEP] is after the text
    vectors = _Vectors(
        encoder_class(config)(config, checkpoint.compute),
        pooling,
        options.layers,
        tuple(modules.get("activations", ())),
        bool(normalize),
        options.dimensions,
        prompt_tokens,
    )
    return vectors, _Reading(max_length, most, prompt)


def _prompt(
    options: EncodeOptions, prompts: Mapping[str, str], default: str | None
) -> str:
    """The text to put before each text. prompts: the model's, by name. default: a name."""
    name = options.prompt_name
    if options.prompt is not None:
        if name is not None:
            raise UserError("prompt and prompt_name are both given; give only one")
        return options.prompt
    if name is None:
        return prompts.get(default, "")
    if name not in prompts:
        actual = f"prompt_name={name!r}, expected one of the model's prompts"
        raise UserError(f"{actual} {[*prompts]}; prompt accepts any text")
    return prompts[name]


def _vectors(chosen: _Vectors, params: Any, batch: dict[str, jax.Array]) -> jax.Array:
    """The vectors of texts, float32 (R, S, W), or without pooling of tokens, (R, L, W)."""
    tokens = Tokens.of_batch(batch)
    encoded = chosen.model.apply(
        {"params": params["bert"]},
        tokens,
        method="encode",
        deterministic=True,
        pool=chosen.pooling == "pooler",
        hidden_states=True,
    )
    if chosen.pooling == "pooler":
        vectors = encoded.pooled_BD
    else:
        vectors = side_by_side(encoded.hidden_states, chosen.layers)
    if chosen.pooling in ("cls", "mean"):
        pooled = tokens.without_first(chosen.prompt_tokens)
        vectors = pool_tokens(chosen.pooling, vectors, pooled)
    for i, activation in enumerate(chosen.activations):
        layer = params["dense"][str(i)]
        vectors = jnp.matmul(vectors, layer["kernel"], precision="highest")
        bias = jnp.broadcast_to(layer.get("bias", 0), vectors.shape)
        vectors = DENSE_ACTIVATIONS[activation](vectors + bias)
    width = vectors.shape[-1]
    if chosen.dimensions > width:
        actual = f"dimensions={chosen.dimensions}, expected at most {width}"
        raise UserError(f"{actual}, the width of the vectors")
    if chosen.dimensions:
        vectors = vectors[..., : chosen.dimensions]
    if chosen.normalize:
        vectors = normalized(vectors)
    return vectors


def stacked(model: OnDevices, rows: Rows, options: EncodeOptions) -> Arrays:
    """The vectors of texts, (texts, W), or without pooling a list of (tokens, W)."""
    vectors = collected(encode(model, rows, options))
    if _settings(model, options)[0].pooling == "none":
        return vectors
    if vectors:
        return np.stack(vectors)
    one = collected(encode(model, rows_of([""]), options))
    return np.stack(one)[:0]  # of the same width


def check_ending(path: Path) -> None:
    """Raises UserError unless the name ends in .npz."""
    if ending(path) != ".npz":
        raise UserError(f"output={path} must end in .npz")


def write_arrays(path: Path, parts: Iterable[dict[str, np.ndarray]]) -> dict[str, Any]:
    """Writes an npz file of arrays from parts of their rows. Returns the shapes by name.

    Only one part is in memory at a time, because the rows are first written to files
    without a name on the disk of ``path``. After an exception or a kill ``path`` is
    unchanged, and no other file is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    files: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        for part in parts:
            for name, rows in part.items():
                if name not in files:
                    file = tempfile.TemporaryFile(dir=path.parent)  # noqa: SIM115
                    files[name] = stack.enter_context(file), rows[:0]
                files[name][0].write(np.ascontiguousarray(rows).data)
        arrays = {}
        for name, (file, empty) in files.items():
            file.flush()
            rows = np.memmap(file, empty.dtype, "r")
            arrays[name] = rows.reshape(-1, *empty.shape[1:])
        with new_file(path) as file:
            np.savez(file, **arrays)
        return {name: array.shape for name, array in arrays.items()}


def write_vectors(parts: Iterable[Part], path: Path) -> str:
    """Writes the parts of :func:`encode` as an npz file.

    With pooling the file has "embeddings" (texts, W). Without, it has "values" (tokens, W),
    "input_ids" (tokens,) and "offsets" (texts + 1,): text i has the tokens offsets[i] to
    offsets[i + 1]. Returns a line with the names and shapes of the arrays.
    """

    def arrays() -> Iterator[dict[str, np.ndarray]]:
        offsets = np.zeros(1, np.int64)
        for part in parts:
            if part.answers[0].ndim == 1:
                yield {"embeddings": np.stack(part.answers)}
                continue
            if offsets[-1] == 0:
                yield {"offsets": offsets}
            lengths = part.features.lengths_UC.ravel()
            offsets = offsets[-1] + np.cumsum(lengths)
            yield {"values": np.concatenate(part.answers), "offsets": offsets}
            yield {"input_ids": np.concatenate(part.features.input_ids)}

    written = []
    for name, shape in write_arrays(path, arrays()).items():
        written.append(f"{name} {shape}")
    return f"{path}: {', '.join(written)}"
