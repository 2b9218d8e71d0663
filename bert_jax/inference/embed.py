"""Vectors of texts or tokens from a frozen encoder, and files of vectors."""

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.data.batching import Features
from bert_jax.errors import UserError
from bert_jax.files import ending, new_file
from bert_jax.inference import evaluation as base
from bert_jax.inference.evaluation import Columns, Stored
from bert_jax.interop.modules import ACTIVATIONS, vector_settings
from bert_jax.model.bert import BertModel
from bert_jax.model.heads import normalized, pool_tokens, side_by_side
from bert_jax.model.tokens import Tokens
from bert_jax.settings import setting
from bert_jax.tasks.rows import Placed, Texts, row_texts

POOLINGS = ("none", "mean", "cls", "pooler")
# Tokens whose vectors take as much memory as an ordinary row. 4,096 rows are 512 MiB of
# BERT LARGE's last four layers, if each character is a token. English has a fifth as many.
ROW = 8


@dataclasses.dataclass(frozen=True)
class EncodeOptions(base.Options):
    """The options of ``Bert.encode``."""

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
        "number of first numbers of a vector to keep, for a model that was trained with "
        "``matryoshka``; 0: all. Vectors are cut before they are scaled",
        least=0,
    )

    def __post_init__(self):
        super().__post_init__()
        if not self.layers:
            raise UserError("layers=(), expected at least one, such as (-1,)")


class Embedder(base.Inference):
    """Vectors of texts by any checkpoint that ``bert_jax.load`` reads.

    >>> embed = Embedder("all-MiniLM-L6-v2", normalize=True)
    >>> a, b = embed(["A man eats pasta.", "Someone is having a meal."])
    >>> a @ b  # their cosine similarity

    options: see EncodeOptions. max_length=0 is the length of a model of sentence vectors,
      otherwise the size of the position table. A longer text loses its end. In a pair the
      longer text loses its end.

    Vectors are float32. If a model of sentence vectors keeps its pooling, its Dense modules
    are applied, and its default prompt is put before each text. A text becomes
    [CLS] A [SEP], a tuple of two texts [CLS] A [SEP] B [SEP], and an empty text
    [CLS] [SEP].
    """

    options_class = EncodeOptions
    doing = "encoding"

    def __init__(self, checkpoint: Stored, **options: Any):
        """See the class."""
        super().__init__(checkpoint, **options)
        chosen = self.options
        checkpoint = self.checkpoint
        config, params = checkpoint.config, checkpoint.params["bert"]
        sizes = checkpoint.head, checkpoint.extra, config.max_positions
        modules = vector_settings(*sizes) or {}
        self._pairs = not modules  # a sentence vector is of one text
        self.pooling = chosen.pooling or modules.get("pooling", "mean")
        last_layer = chosen.layers == (-1,)
        if self.pooling != modules.get("pooling") or not last_layer:
            modules = {}
        length = modules.get("max_length", config.max_positions)
        self.max_length = self.max_length or length
        if self.max_length < 5:
            raise UserError(f"max_length={self.max_length}, expected at least 5")
        config.check_layers(chosen.layers, "layers")
        if self.pooling != "pooler":
            params = {name: part for name, part in params.items() if name != "pooler"}
        elif "pooler" not in params:
            raise UserError(f"{self._name} has no pooler; set pooling to mean or cls")
        elif not last_layer:
            raise UserError("the pooler needs the last layer; leave layers out")
        prompt = modules.get("default_prompt_name")
        self._prompt = modules.get("prompts", {}).get(prompt, "")
        self._activations = modules.get("activations", [])
        self._dense = jax.device_get(checkpoint.params.get("dense", {}))
        self._normalize = chosen.normalize
        if chosen.normalize is None:
            self._normalize = modules.get("normalize")
        self._model = BertModel(config, checkpoint.compute)
        self._run = self._runner(self._vectors, params)

    def __call__(self, rows: Any, *, columns: Columns = ()) -> base.Arrays:
        """Vectors (texts, W). Without pooling a list of (tokens of the text, W)."""
        vectors = super().__call__(rows, columns=columns)
        if self.pooling == "none":
            return vectors
        return np.stack(vectors) if vectors else self([""])[:0]  # of the same width

    def _rows(self, placed: Iterable[Placed], columns: Columns) -> Iterator[Texts]:
        return row_texts(placed, columns, most=2 if self._pairs or columns else 1)

    def _cost(self, row: Texts) -> float:
        # A text has at most as many tokens as characters.
        tokens = min(3 + sum(map(len, row.texts)), self.max_length)
        return tokens / ROW if self.pooling == "none" else 1

    def _encode(self, rows: list[Texts]) -> Features:
        texts = [(self._prompt + row.texts[0], *row.texts[1:]) for row in rows]
        return base.text_features(self._tokenizer, texts, self.max_length)

    def _vectors(self, params: Any, batch: dict[str, jax.Array]) -> jax.Array:
        """Vectors of texts, float32 (R, S, W), or without pooling of tokens, (R, L, W)."""
        tokens, pool = Tokens.of_batch(batch), self.pooling == "pooler"
        options = {"deterministic": True, "pool": pool, "hidden_states": True}
        inputs = {"params": params}, tokens
        encoded = self._model.apply(*inputs, method="encode", **options)
        if pool:
            vectors = encoded.pooled_BD
        else:
            vectors = side_by_side(encoded.hidden_states, self.options.layers)
        if self.pooling in ("cls", "mean"):
            vectors = pool_tokens(self.pooling, vectors, tokens)
        for i, activation in enumerate(self._activations):
            layer = self._dense[str(i)]
            vectors = jnp.matmul(vectors, layer["kernel"], precision="highest")
            bias = jnp.broadcast_to(layer.get("bias", 0), vectors.shape)
            vectors = ACTIVATIONS[activation](vectors + bias)
        dimensions, width = self.options.dimensions, vectors.shape[-1]
        if dimensions > width:
            actual = f"dimensions={dimensions}, expected at most {width}"
            raise UserError(f"{actual}, the width of the vectors")
        vectors = vectors[..., : dimensions or None]
        return normalized(vectors) if self._normalize else vectors


def check_ending(path: Path) -> None:
    """Raises UserError unless the name ends in .npz."""
    if ending(path) != ".npz":
        raise UserError(f"--output={path}, expected a name in .npz")


def write_arrays(path: Path, parts: Iterable[dict[str, np.ndarray]]) -> dict[str, Any]:
    """Writes an npz file of arrays whose rows come in parts. Returns the shapes by name.

    Memory holds one part: the rows are first written to files without a name on the disk of
    ``path``. After an exception or a kill ``path`` is unchanged, and no other file is left.
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


def write_vectors(embedder: Embedder, parts: Iterable[base.Answers], path: Path) -> str:
    """Writes the vectors of a stream of ``embedder`` as an npz file.

    With pooling the file has "embeddings" (texts, W). Without, it has "values" (tokens, W),
    "input_ids" (tokens,) and "offsets" (texts + 1,): text i has the tokens offsets[i] to
    offsets[i + 1]. Returns a line with the names and shapes of the arrays.
    """

    def arrays() -> Iterator[dict[str, np.ndarray]]:
        end = 0
        if embedder.pooling == "none":
            yield {"offsets": np.zeros(1, np.int64)}
        for part in parts:
            if embedder.pooling != "none":
                yield {"embeddings": np.stack(part.answers)}
                continue
            ids, lengths = part.features.input_ids, part.features.lengths_UC.ravel()
            offsets = end + np.cumsum(lengths)
            yield {"values": np.concatenate(part.answers), "offsets": offsets}
            yield {"input_ids": np.concatenate(ids)}
            end = offsets[-1]

    shapes = write_arrays(path, arrays())
    return f"{path}: " + ", ".join(f"{name} {shape}" for name, shape in shapes.items())
