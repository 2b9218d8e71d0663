"""Vectors of texts or tokens by a frozen encoder, and the files of vectors."""

import collections
import contextlib
import functools
import logging
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.data import sequences
from bert_jax.data.batching import Features
from bert_jax.errors import UserError
from bert_jax.files import ending, new_file
from bert_jax.inference.evaluation import opened, runner
from bert_jax.inference.lines import CHUNK, Given, chunks, truncation
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.modules import ACTIVATIONS, vector_settings
from bert_jax.interop.weights import write_safetensors
from bert_jax.model.bert import BertModel
from bert_jax.model.heads import normalized, pool_tokens
from bert_jax.model.tokens import Tokens
from bert_jax.progress import Progress
from bert_jax.tasks.rows import (
    Placed,
    count_rows,
    given_columns,
    placed_rows,
    row_texts,
)

logger = logging.getLogger(__name__)

Pooling = Literal["none", "mean", "cls", "pooler"]
POOLINGS: tuple[str, ...] = get_args(Pooling)
# Tokens whose vectors are in memory together, if each character is a token: 512 MiB of BERT
# LARGE's last four layers. English has a fifth as many.
TOKENS = 1 << 15
ENDINGS = (".npz", ".safetensors")


class Embedded(NamedTuple):
    """The vectors of some texts, in their order.

    values: float32 (texts, W), or without pooling (tokens, W). lengths: number of tokens of
    each text, int64 (texts,). input_ids: int32 (tokens,), with [CLS] and [SEP].
    truncated: number of truncated texts.
    """

    values: np.ndarray
    lengths: np.ndarray
    input_ids: np.ndarray
    truncated: int


class Embedder:
    """Vectors of texts by any checkpoint that ``bert_jax.load`` reads.

    >>> embed = Embedder("all-MiniLM-L6-v2", normalize=True)
    >>> a, b = embed(["A man eats pasta.", "Someone is having a meal."])
    >>> a @ b  # their cosine similarity

    layers: indices of the hidden states that are concatenated: 0 is the embeddings, -1 the
      last layer; (-4, -3, -2, -1) is the paper's best choice (section 5.3).
    pooling: "mean" of all tokens with [CLS] and [SEP], as in sentence-transformers; "cls",
      the vector of [CLS]; "pooler", tanh of the pretrained dense layer on the last layer's
      [CLS]; "none", the vector of each token. Empty: the pooling that a model of sentence
      vectors was trained with, otherwise "mean".
    normalize: whether to scale every vector to length 1; None: as the model does.
    batch_size: number of rows of 32 tokens in a batch, which texts share; longer rows are
      fewer. Accelerators are faster with more rows than the default.
    max_length: maximum number of tokens of a sequence, with [CLS] and [SEP]. 0: the length
      of a model of sentence vectors, otherwise the size of the position table. A longer
      text loses its end; in a pair the longer text loses its end.
    dtype: a value of ComputeConfig.dtype; None for the checkpoint's own. Vectors are
      float32.
    show_progress: whether to show a progress bar; None: on a terminal and in a notebook.

    A model of sentence vectors with its own pooling applies its Dense modules too, and
    puts its default prompt before each text.

    A text becomes [CLS] A [SEP], a tuple of two texts [CLS] A [SEP] B [SEP], and an empty
    text [CLS] [SEP].
    """

    def __init__(
        self,
        checkpoint: Checkpoint | Path | str,
        *,
        layers: Sequence[int] = (-1,),
        pooling: Pooling | Literal[""] = "",
        normalize: bool | None = None,
        batch_size: int = 32,
        max_length: int = 0,
        dtype: str | None = None,
        show_progress: bool | None = None,
    ):
        checkpoint, path = opened(checkpoint, dtype, batch_size, max_length)
        config, params = checkpoint.config, checkpoint.params["bert"]
        head, extra = checkpoint.head, checkpoint.extra
        modules = vector_settings(head, extra, config.max_positions) or {}
        self._pairs = not modules  # a sentence vector is of one text
        self.pooling = pooling or modules.get("pooling", "mean")
        if self.pooling != modules.get("pooling") or tuple(layers) != (-1,):
            modules = {}
        self.max_length = max_length or modules.get("max_length", config.max_positions)
        if self.max_length < 5:
            raise UserError(
                f"max_length={max_length} leaves no room for text; set it to 5 at least"
            )
        config.check_layers(layers, "layers")
        if not layers:
            raise UserError("layers is empty; expected such as -1, the last layer")
        if self.pooling not in POOLINGS:
            expected = ", ".join(POOLINGS)
            raise UserError(f"pooling={pooling!r}, expected one of {expected}")
        if self.pooling == "pooler" and "pooler" not in params:
            raise UserError(f"{path} has no pooler; set pooling to mean, cls or none")
        if self.pooling == "pooler" and tuple(layers) != (-1,):
            raise UserError(
                "the pooler needs layers=(-1,), the last layer; leave layers out"
            )
        self._tokenizer, self._show = checkpoint.tokenizer, show_progress
        prompt = modules.get("default_prompt_name")
        self._prompt = modules.get("prompts", {}).get(prompt, "")
        self._activations = modules.get("activations", [])
        self._dense = jax.device_get(checkpoint.params.get("dense", {}))
        if normalize is None:
            normalize = modules.get("normalize", False)
        self._normalize = normalize
        if self.pooling != "pooler":
            params = {name: part for name, part in params.items() if name != "pooler"}
        vectors = functools.partial(
            _vectors,
            BertModel(config, checkpoint.compute),
            layers=tuple(layers),
            pooling=self.pooling,
            normalize=normalize and not self._activations,
        )
        self._run = runner(vectors, params, checkpoint, batch_size=batch_size)

    def __call__(
        self, rows: Any, *, columns: str | Sequence[str] = ()
    ) -> np.ndarray | list[np.ndarray]:
        """(texts, W); without pooling a list of (tokens of the text, W).

        rows: see :func:`bert_jax.tasks.rows.placed_rows`. columns: see :meth:`stream`.
        Logs a warning with the number of truncated texts.
        """
        placed = placed_rows(rows)
        parts = list(self.stream(placed, columns=columns, total=count_rows(rows)))
        if not parts:
            return self([""])[:0]  # an empty text has the same width
        lengths = np.concatenate([part.lengths for part in parts])
        if truncated := sum(part.truncated for part in parts):
            logger.warning(truncation(truncated, len(lengths), "text", self.max_length))
        values = np.concatenate([part.values for part in parts])
        if self.pooling != "none":
            return values
        return np.split(values, np.cumsum(lengths)[:-1])

    def stream(
        self,
        placed: Iterable[Placed],
        chunk: int = CHUNK,
        total: int | None = None,
        columns: str | Sequence[str] = (),
    ) -> Iterator[Embedded]:
        """The vectors of inputs of any length, in parts.

        chunk: number of texts that are sorted by length together. total: number of rows, if
        known. columns: names of the columns of the text or texts in dictionaries; empty:
        see :func:`bert_jax.tasks.rows.text_columns`.
        """
        rows = row_texts(placed, given_columns(columns), pairs=self._pairs)
        texts = (row.texts for row in rows)
        parts = chunks(texts, chunk)
        if self.pooling == "none":  # a text has at most as many tokens as characters
            most = self.max_length
            parts = chunks(texts, TOKENS, lambda row: min(3 + len("".join(row)), most))
        join = np.concatenate if self.pooling == "none" else np.stack
        with Progress(
            "encoding", total=total, unit="texts", show=self._show
        ) as progress:
            for part in parts:
                features = self._features(part)
                outputs = self._run(features, done=progress.part(len(part)))
                yield Embedded(
                    self._projected(join(outputs)),
                    features.lengths_UC.ravel(),
                    np.concatenate(features.input_ids),
                    features.truncated,
                )

    def _projected(self, vectors: np.ndarray) -> np.ndarray:
        """The vectors after the model's Dense modules."""
        for i, activation in enumerate(self._activations):
            layer = self._dense[str(i)]
            vectors = vectors @ layer["kernel"] + layer.get("bias", 0)
            vectors = ACTIVATIONS[activation](vectors)
        if self._activations and self._normalize:
            lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
            vectors = vectors / np.maximum(lengths, 1e-12)
        return vectors

    def _features(self, rows: Sequence[tuple[str, ...]]) -> Features:
        rows = [(self._prompt + text, *rest) for text, *rest in rows]
        tokens = iter(self._tokenizer.encode_batch([t for row in rows for t in row]))
        joined, truncated = [], 0
        for row in rows:
            parts = [next(tokens) for _ in row]
            given = (*map(len, parts), 0)[:2]
            kept = sequences.pair_lengths(*given, self.max_length - 1 - len(parts))
            truncated += kept != given
            cut = [part[:length] for part, length in zip(parts, kept, strict=False)]
            joined.append(sequences.join(self._tokenizer, *cut))
        input_ids, token_type_ids = map(list, zip(*joined, strict=True))
        numbers = np.arange(len(rows), dtype=np.int32)
        return Features(input_ids, token_type_ids, numbers, truncated=truncated)


def _vectors(
    model: BertModel,
    params: Any,
    batch: dict[str, jax.Array],
    *,
    layers: tuple[int, ...],
    pooling: str,
    normalize: bool,
) -> jax.Array:
    """Vectors of texts, float32 (B, S, W), or without pooling of tokens, (B, L, W)."""
    tokens = Tokens.of_batch(batch)
    encoded = model.apply(
        {"params": params},
        tokens,
        deterministic=True,
        pool=pooling == "pooler",
        hidden_states=True,
        method="encode",
    )
    if pooling == "pooler":
        vectors = encoded.pooled_BD.astype(jnp.float32)
    else:
        vectors = encoded.side_by_side(layers)
    if pooling in ("cls", "mean"):
        vectors = pool_tokens(pooling, vectors, tokens)
    return normalized(vectors) if normalize else vectors


def check_ending(path: Path) -> None:
    """Raises UserError unless the name ends in .npz or .safetensors."""
    if ending(path) not in ENDINGS:
        raise UserError(f"--output={path}, expected a name in {' or '.join(ENDINGS)}")


def write_arrays(path: Path, parts: Iterable[dict[str, np.ndarray]]) -> None:
    """Writes an npz or safetensors file of arrays whose rows come in parts.

    Memory holds one part: the rows are first written to files without a name on the disk of
    ``path``. After an exception or a kill ``path`` is unchanged, and no other file is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    files: dict[str, tuple[Any, np.ndarray]] = {}  # with no rows of the array
    with contextlib.ExitStack() as stack:
        for part in parts:
            for name, rows in part.items():
                if name not in files:
                    file = tempfile.TemporaryFile(dir=path.parent)  # noqa: SIM115
                    files[name] = stack.enter_context(file), rows[:0]
                files[name][0].write(np.ascontiguousarray(rows).data)
        arrays = {}
        for name, (file, like) in files.items():
            file.flush()
            rows = np.memmap(file, like.dtype, "r")
            arrays[name] = rows.reshape(-1, *like.shape[1:])
        with new_file(path) as file:
            if ending(path) == ".npz":
                np.savez(file, **arrays)
            else:
                write_safetensors(Path(file.name), arrays)


def write_vectors(
    embedder: Embedder,
    given: Given,
    path: Path,
    chunk: int = CHUNK,
    columns: str | Sequence[str] = (),
) -> collections.Counter[str]:
    """Writes the vectors of rows as an npz or safetensors file.

    With pooling the file has "embeddings" (texts, W). Without, it has "values" (tokens, W),
    "input_ids" (tokens,) and "offsets" (texts + 1,): text i has the tokens offsets[i] to
    offsets[i + 1].

    Returns the numbers of "lines", "tokens" and "truncated" lines, and the "width".
    """
    counts: collections.Counter[str] = collections.Counter()

    def parts() -> Iterator[dict[str, np.ndarray]]:
        for part in embedder.stream(given.rows, chunk, given.total, columns):
            starts = counts["tokens"] + np.cumsum(part.lengths) - part.lengths
            counts.update(
                lines=len(starts), tokens=len(part.input_ids), truncated=part.truncated
            )
            counts["width"] = part.values.shape[1]
            if embedder.pooling == "none":
                yield {"values": part.values, "input_ids": part.input_ids}
                yield {"offsets": starts}
            else:
                yield {"embeddings": part.values}
        if not counts["lines"]:
            raise UserError(f"{given.name} is empty; expected a text a line")
        if embedder.pooling == "none":
            yield {"offsets": np.array([counts["tokens"]])}

    write_arrays(path, parts())
    return counts
