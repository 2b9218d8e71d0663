"""Features of a frozen encoder, of every token or one vector a text, and their files."""

import contextlib
import functools
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.data import sequences
from bert_jax.data.batching import Features
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.files import ending, new_file
from bert_jax.inference.evaluation import runner
from bert_jax.inference.lines import CHUNK, Given, chunks, truncation
from bert_jax.interop.checkpoint import Checkpoint, check_length, check_vocabulary
from bert_jax.interop.load import opened
from bert_jax.interop.modules import ACTIVATIONS, vector_settings
from bert_jax.interop.weights import write_safetensors
from bert_jax.model.bert import BertModel
from bert_jax.model.pooling import normalized, pool_tokens
from bert_jax.objectives.heads import model_inputs
from bert_jax.progress import Progress
from bert_jax.tasks.rows import (
    Placed,
    count_rows,
    given_columns,
    placed_rows,
    row_texts,
    texts_line,
)

logger = logging.getLogger(__name__)

Pooling = Literal["none", "mean", "cls", "pooler"]
POOLINGS: tuple[str, ...] = get_args(Pooling)
# Of which the vectors are in memory together: 256 MiB of BERT LARGE's last four layers.
TOKENS = 1 << 14
ENDINGS = (".npz", ".safetensors")


class Embedded(NamedTuple):
    """Some texts, in order.

    values: float32, (texts, W), or without pooling (tokens, W). lengths: int64 (texts,),
    tokens of each text. input_ids: int32 (tokens,), [CLS] and [SEP] included.
    truncated: texts of which not all is seen.
    """

    values: np.ndarray
    lengths: np.ndarray
    input_ids: np.ndarray
    truncated: int


class Embedder:
    """Vectors of texts from any checkpoint that ``bert_jax.load`` reads.

    >>> embed = Embedder("all-MiniLM-L6-v2", normalize=True)
    >>> a, b = embed(["A man eats pasta.", "Someone is having a meal."])
    >>> a @ b  # their cosine similarity

    layers: hidden states that are concatenated, as list indices: 0 is the embeddings',
      -1 the last layer's; (-4, -3, -2, -1) is the paper's best (section 5.3).
    pooling: "mean" over all tokens of a sequence, [CLS] and [SEP] included and padding
      not, as sentence-transformers does; "cls", the vector of [CLS]; "pooler", tanh of
      the pretrained dense layer on the last layer's [CLS]; "none", every token's. Empty:
      what a model of sentence vectors was trained with, otherwise "mean".
    normalize: scale every vector to length 1. None: as the model does.
    batch_size: rows of 32 tokens, in which texts lie side by side, or fewer longer rows
      with about as many; accelerators want more than the default.
    max_length: tokens of a sequence, [CLS] and [SEP] included; 0 for the length of a
      model of sentence vectors, otherwise for all positions. A text loses its end, of a
      pair the longer one does.
    dtype: of ComputeConfig, instead of the checkpoint's own; vectors are float32.
    show_progress: whether it is shown how far a call is; None: on a terminal and in a
      notebook.

    A model of sentence vectors with its own pooling applies its Dense modules too, and its
    default prompt is put before each text.

    A text is [CLS] A [SEP], a pair (a tuple of two) [CLS] A [SEP] B [SEP]. An empty text is
    [CLS] [SEP].
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
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size}, expected at least 1")
        checkpoint, path = opened(checkpoint, dtype)
        check_vocabulary(checkpoint, path)
        config, params = checkpoint.config, checkpoint.params["bert"]
        self.tokenizer: Tokenizer = checkpoint.tokenizer
        modules = vector_settings(
            checkpoint.head, checkpoint.extra, config.max_positions
        )
        if not pooling:
            pooling = modules["pooling"] if modules else "mean"
        self._pairs = not modules  # in dictionaries; sentence vectors are of one text
        if not modules or pooling != modules["pooling"] or tuple(layers) != (-1,):
            modules = {}
        self.pooling, self._show = pooling, show_progress
        self.max_length = (
            max_length or modules.get("max_length", 0) or config.max_positions
        )
        self._prompt = modules.get("prompts", {}).get(
            modules.get("default_prompt_name"), ""
        )
        self._activations = modules.get("activations", [])
        self._dense = jax.device_get(checkpoint.params.get("dense", {}))
        if normalize is None:
            normalize = modules.get("normalize", False)
        self._normalize = normalize
        check_length(self.max_length, checkpoint, "max_length")
        if self.max_length < 5:
            raise UserError(
                f"max_length={max_length} leaves no room for text; set it to 5 at least"
            )
        config.check_layers(layers, "layers")
        _check_pooling(pooling, layers, params, path)
        if pooling != "pooler":
            params = {name: part for name, part in params.items() if name != "pooler"}
        vectors = functools.partial(
            _vectors,
            BertModel(config, checkpoint.compute),
            layers=tuple(layers),
            pooling=pooling,
            normalize=normalize and not self._activations,
        )
        self._run = runner(vectors, params, checkpoint, batch_size=batch_size)

    def __call__(
        self, rows: Any, *, columns: str | Sequence[str] = ()
    ) -> np.ndarray | list[np.ndarray]:
        """(texts, W); without pooling a list of (tokens of the text, W).

        rows: see :func:`bert_jax.tasks.rows.placed_rows`. columns: see :meth:`stream`.
        Logs a warning with the number of texts that lose their end.
        """
        placed = placed_rows(rows, parse_line=texts_line)
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
        """As the call, for inputs of any length.

        chunk: number of texts that are sorted by length together. total: the number of
        rows, where it is known. columns: of dictionaries, the columns of the text or texts;
        empty: see :func:`bert_jax.tasks.rows.text_columns`.
        """
        rows = row_texts(placed, given_columns(columns), pairs=self._pairs)
        with Progress(
            "encoding", total=total, unit="texts", show=self._show
        ) as progress:
            for texts in chunks((row.texts for row in rows), chunk):
                for part in self._parts(self._features(texts)):
                    # (W,) each; without pooling (L_i, W).
                    outputs = self._run(part, done=progress.part(len(part.input_ids)))
                    join = np.concatenate if self.pooling == "none" else np.stack
                    yield Embedded(
                        self._projected(join(outputs)),
                        np.array([len(ids) for ids in part.input_ids], np.int64),
                        np.concatenate(part.input_ids),
                        part.truncated,
                    )

    def _projected(self, vectors: np.ndarray) -> np.ndarray:
        """The vectors behind the model's Dense modules."""
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
        tokens = iter(self.tokenizer.encode_batch([t for texts in rows for t in texts]))
        joined, truncated = [], 0
        for texts in rows:
            parts = [next(tokens) for _ in texts]
            given = (*map(len, parts), 0)[:2]
            room = self.max_length - 1 - len(parts)
            kept = sequences.pair_lengths(*given, room)
            truncated += kept != given
            cut = [part[:length] for part, length in zip(parts, kept, strict=False)]
            joined.append(sequences.join(self.tokenizer, *cut))
        input_ids, token_type_ids = map(list, zip(*joined, strict=True))
        numbers = np.arange(len(rows), dtype=np.int32)
        return Features(input_ids, token_type_ids, numbers, truncated=truncated)

    def _parts(self, features: Features) -> Iterator[Features]:
        """All at once, or where every token has a vector, TOKENS of them at a time."""
        if self.pooling != "none":
            yield features
            return
        ends = np.cumsum(features.lengths_UC)
        first, seen, truncated = 0, 0, features.truncated
        while first < len(ends):
            last = max(first + 1, int(np.searchsorted(ends, seen + TOKENS, "right")))
            yield Features(
                features.input_ids[first:last],
                features.token_type_ids[first:last],
                np.arange(last - first, dtype=np.int32),
                truncated=truncated,
            )
            first, seen, truncated = last, ends[last - 1], 0


def _check_pooling(
    pooling: str, layers: Sequence[int], params: dict[str, Any], path: Path | str
) -> None:
    if not layers:
        raise UserError("no layers are named; expected such as -1, the last")
    if pooling not in POOLINGS:
        raise UserError(f"pooling={pooling!r}, expected one of {', '.join(POOLINGS)}")
    if pooling == "pooler" and "pooler" not in params:
        raise UserError(f"{path} has no pooler; set pooling to mean, cls or none")
    if pooling == "pooler" and tuple(layers) != (-1,):
        raise UserError("the pooler reads the last layer alone; leave layers out")


def _vectors(
    model: BertModel,
    params: Any,
    batch: dict[str, jax.Array],
    *,
    layers: tuple[int, ...],
    pooling: str,
    normalize: bool,
) -> jax.Array:
    """float32 (B, S, W) of rows of texts, or (B, L, W) without pooling."""
    tokens_BL, packed = model_inputs(batch)
    encoded = model.apply(
        {"params": params},
        *tokens_BL,
        **packed,
        deterministic=True,
        pool=pooling == "pooler",
        hidden_states=True,
    )
    if pooling == "pooler":
        vectors = encoded.pooled_BD.astype(jnp.float32)
    else:
        vectors = encoded.side_by_side(layers)
    if pooling in ("cls", "mean"):
        vectors = pool_tokens(pooling, vectors, tokens_BL[2], **packed)
    return normalized(vectors) if normalize else vectors


def check_ending(path: Path) -> None:
    """Raises UserError for a name that says neither npz nor safetensors."""
    if ending(path) not in ENDINGS:
        raise UserError(f"--output={path}, expected a name in {' or '.join(ENDINGS)}")


@contextlib.contextmanager
def array_file(path: Path) -> Iterator[Callable[[str, np.ndarray], None]]:
    """Gives append(name, rows), for arrays that are a file at the end.

    ``path`` is what it was after an exception. Rows wait on the file's own disk, so that
    memory holds only what is appended. All of an array are of one dtype and shape.
    """
    check_ending(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    files: dict[str, tuple[IO[bytes], np.dtype, tuple[int, ...]]] = {}
    with contextlib.ExitStack() as stack:

        def append(name: str, rows: np.ndarray) -> None:
            if name not in files:
                # It has no name: nothing is left of it, however the process ends.
                file = tempfile.TemporaryFile(dir=path.parent)  # noqa: SIM115
                kind = rows.dtype, rows.shape[1:]
                files[name] = stack.enter_context(file), *kind
            file, *kind = files[name]
            if [rows.dtype, rows.shape[1:]] != kind:
                raise ValueError(f"{name}: {rows.dtype} {rows.shape}, expected {kind}")
            file.write(np.ascontiguousarray(rows).data)

        yield append
        arrays = {}
        for name, (file, dtype, rest) in files.items():
            file.flush()
            arrays[name] = np.memmap(file, dtype, "r").reshape(-1, *rest)
        with new_file(path) as file:
            # Neither holds an array in memory.
            if ending(path) == ".npz":
                np.savez(file, **arrays)
            else:
                write_safetensors(Path(file.name), arrays)


class Counts(NamedTuple):
    """What a file of vectors came to."""

    lines: int
    tokens: int
    width: int
    truncated: int


def write_vectors(
    embedder: Embedder,
    given: Given,
    path: Path,
    chunk: int = CHUNK,
    columns: str | Sequence[str] = (),
) -> Counts:
    """Embeds rows into an npz or safetensors file.

    Pooled: "embeddings" (lines, W). Otherwise "values" (tokens, W), "input_ids" (tokens,)
    and "offsets" (lines + 1,), where the tokens of each line begin.
    """
    counts = Counts(0, 0, 0, 0)
    with array_file(path) as append:
        if embedder.pooling == "none":
            append("offsets", np.zeros(1, np.int64))
        for part in embedder.stream(given.rows, chunk, given.total, columns):
            if embedder.pooling == "none":
                append("values", part.values)
                append("input_ids", part.input_ids)
                append("offsets", counts.tokens + np.cumsum(part.lengths))
            else:
                append("embeddings", part.values)
            counts = Counts(
                counts.lines + len(part.lengths),
                counts.tokens + len(part.input_ids),
                part.values.shape[1],
                counts.truncated + part.truncated,
            )
        if not counts.lines:
            raise UserError(f"{given.name} is empty; expected a text a line")
    return counts
