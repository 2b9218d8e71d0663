"""Features of a frozen encoder, of every token or one vector a text, and their files."""

import contextlib
import functools
import json
import struct
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.data import sequences
from bert_jax.data.batching import Features
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError
from bert_jax.files import new_file
from bert_jax.inference.evaluation import encode, hidden_vectors, run_model
from bert_jax.inference.lines import CHUNK, chunks, input_name, read_lines
from bert_jax.interop.load import check_length, load
from bert_jax.model.bert import BertModel
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.encoder import take_positions
from bert_jax.parallel.mesh import MeshConfig, make_mesh, traced_on
from bert_jax.parallel.sharding import tree_shardings

Pooling = Literal["none", "mean", "cls", "pooler"]
POOLINGS: tuple[str, ...] = get_args(Pooling)
# Of which the vectors are in memory together: 256 MiB of BERT LARGE's last four layers.
TOKENS = 1 << 14
ENDINGS = (".npz", ".safetensors")
_SAFETENSORS_TYPES = {"float32": "F32", "int32": "I32", "int64": "I64"}


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
      the pretrained dense layer on the last layer's [CLS]; "none", every token's.
    normalize: scale every vector to length 1.
    batch_size: rows of 32 tokens, in which texts lie side by side, or fewer longer rows
      with about as many; accelerators want more than the default.
    max_length: tokens of a sequence, [CLS] and [SEP] included; 0 for all that the model
      has positions for. A text loses its end, of a pair the longer one does.

    A text is [CLS] A [SEP], a pair (a tab between the two) [CLS] A [SEP] B [SEP].
    """

    def __init__(
        self,
        path: Path | str,
        *,
        layers: Sequence[int] = (-1,),
        pooling: Pooling = "mean",
        normalize: bool = False,
        batch_size: int = 32,
        max_length: int = 0,
    ):
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size}, expected at least 1")
        checkpoint = load(path)
        config, params = checkpoint.config, checkpoint.params["bert"]
        if checkpoint.tokenizer is None:
            raise UserError(
                f"{path} has no vocabulary; put the vocab.txt that belongs to the "
                "checkpoint beside its config.json"
            )
        self.tokenizer: Tokenizer = checkpoint.tokenizer
        self.pooling = pooling
        self.max_length = max_length or config.max_positions
        check_length(self.max_length, checkpoint, "--max_length")
        if self.max_length < 5:
            raise UserError(
                f"max_length={max_length} leaves no room for text; set it to 5 at least"
            )
        _check(config, params, layers, pooling, path)
        self._batch_size, self._limit = batch_size, config.max_positions
        self._mesh = make_mesh(MeshConfig())
        if pooling != "pooler":
            params = {name: part for name, part in params.items() if name != "pooler"}
        self._params = jax.device_put(params, tree_shardings(params, self._mesh))
        vectors = functools.partial(
            _vectors,
            config=config,
            compute=checkpoint.compute,
            layers=tuple(layers),
            pooling=pooling,
            normalize=normalize,
        )
        self._forward = jax.jit(traced_on(self._mesh, vectors))

    def __call__(self, texts: Iterable[str]) -> np.ndarray | list[np.ndarray]:
        """(texts, W); without pooling a list of (tokens of the text, W)."""
        parts = list(self.stream(texts, "input"))
        if not parts:
            raise UserError("there are no texts; expected at least one")
        values = np.concatenate([part.values for part in parts])
        if self.pooling != "none":
            return values
        lengths = np.concatenate([part.lengths for part in parts])
        return np.split(values, np.cumsum(lengths)[:-1])

    def stream(
        self, texts: Iterable[str], name: str, chunk: int = CHUNK
    ) -> Iterator[Embedded]:
        """As the call, for inputs of any length; ``name`` is what errors call them.

        chunk: texts that are sorted by length together.
        """
        first = 1
        for lines in chunks(texts, chunk):
            features = self._features(lines, name, first)
            first += len(lines)
            for part in self._parts(features):
                yield Embedded(
                    self._run(part),
                    np.array([len(ids) for ids in part.input_ids], np.int64),
                    np.concatenate(part.input_ids),
                    part.truncated,
                )

    def _features(self, lines: Sequence[str], name: str, first: int) -> Features:
        pairs = [
            _texts(line, f"{name}:{number}") for number, line in enumerate(lines, first)
        ]
        tokens = iter(
            self.tokenizer.encode_batch([t for texts in pairs for t in texts])
        )
        input_ids, token_type_ids, truncated = [], [], 0
        for texts in pairs:
            parts = [next(tokens) for _ in texts]
            given = [len(part) for part in parts]
            room = self.max_length - 1 - len(parts)
            kept = [min(given[0], room)]
            if len(parts) == 2:
                kept = list(sequences.pair_lengths(*given, room))
            truncated += kept != given
            cut = [part[:length] for part, length in zip(parts, kept, strict=True)]
            ids, segments = sequences.join(self.tokenizer, *cut)
            input_ids.append(ids)
            token_type_ids.append(segments)
        rows = np.arange(len(lines), dtype=np.int32)
        return Features(input_ids, token_type_ids, rows, truncated=truncated)

    def _parts(self, features: Features) -> Iterator[Features]:
        """All at once, or where every token has a vector, TOKENS of them at a time."""
        if self.pooling != "none":
            yield features
            return
        ends = np.cumsum([len(ids) for ids in features.input_ids])
        first, truncated = 0, features.truncated
        while first < len(ends):
            seen = ends[first - 1] if first else 0
            last = max(
                first + 1, int(np.searchsorted(ends, seen + TOKENS, side="right"))
            )
            yield Features(
                features.input_ids[first:last],
                features.token_type_ids[first:last],
                np.arange(last - first, dtype=np.int32),
                truncated=truncated,
            )
            first, truncated = last, 0

    def _run(self, features: Features) -> np.ndarray:
        """(texts, W); without pooling (tokens of all texts, W)."""
        vectors = run_model(
            self._forward,
            self._params,
            features,
            batch_size=self._batch_size,
            limit=self._limit,
            pad_id=self.tokenizer.pad_id,
            mesh=self._mesh,
        )
        return np.concatenate(vectors) if self.pooling == "none" else np.stack(vectors)


def _texts(line: str, where: str) -> list[str]:
    texts = line.removeprefix("\ufeff").split("\t")
    if len(texts) > 2:
        raise UserError(
            f"{where} has {len(texts)} columns; expected a text, or two with a tab "
            "between them"
        )
    if not all(text.strip() for text in texts):
        raise UserError(f"{where}: empty text; expected words, mend or drop the line")
    return texts


def _check(
    config: BertConfig,
    params: dict[str, Any],
    layers: Sequence[int],
    pooling: str,
    path: Path | str,
) -> None:
    states = config.num_layers + 1
    for layer in layers:
        if not -states <= layer < states:
            raise UserError(
                f"layer {layer} is not there: {path} has {config.num_layers} layers; "
                f"expected 0 (the embeddings) to {states - 1}, or {-states} to -1"
            )
    if not layers:
        raise UserError("no layers are named; expected such as -1, the last")
    if pooling not in POOLINGS:
        raise UserError(f"pooling={pooling!r}, expected one of {', '.join(POOLINGS)}")
    if pooling == "pooler" and "pooler" not in params:
        raise UserError(f"{path} has no pooler; set --pooling to mean, cls or none")
    if pooling == "pooler" and tuple(layers) != (-1,):
        raise UserError("the pooler reads the last layer alone; leave --layers out")


def _vectors(
    params: Any,
    batch: dict[str, jax.Array],
    *,
    config: BertConfig,
    compute: ComputeConfig,
    layers: tuple[int, ...],
    pooling: str,
    normalize: bool,
) -> jax.Array:
    """float32 (B, S, W) of rows of texts, or (B, L, W) without pooling."""
    segment_ids_BL, starts_BS = batch["segment_ids"], batch["starts"]
    model = BertModel(config, compute)
    encoded = encode(model, params, batch, pool=pooling == "pooler")
    if pooling == "pooler":
        vectors = encoded.pooled_BD.astype(jnp.float32)
    else:
        x_BLW = hidden_vectors(encoded, layers)
        if pooling == "mean":
            # Padding has segment 0 and belongs to no text.
            own_BLS = jax.nn.one_hot(segment_ids_BL - 1, starts_BS.shape[1])
            sums_BSW = jnp.einsum(
                "BLW,BLS->BSW", x_BLW, own_BLS, precision=jax.lax.Precision.HIGHEST
            )
            # A row may hold fewer texts than it has room for; the others have no tokens.
            vectors = sums_BSW / jnp.maximum(own_BLS.sum(axis=1), 1)[..., None]
        elif pooling == "cls":
            vectors = take_positions(x_BLW, starts_BS)
        else:
            vectors = x_BLW
    if normalize:
        norms = jnp.linalg.norm(vectors, axis=-1, keepdims=True)
        vectors = vectors / jnp.maximum(norms, 1e-12)
    return vectors


def check_ending(path: Path) -> None:
    """Raises UserError for a name that says neither npz nor safetensors."""
    if path.suffix not in ENDINGS:
        raise UserError(f"--output={path}, expected a name in {' or '.join(ENDINGS)}")


class GrowingArrays:
    """Arrays by name, kept on disk; each ``append`` adds rows to one of them."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack):
        self._folder, self._stack = folder, stack
        self._files: dict[str, IO[bytes]] = {}
        self._kinds: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        self._rows: dict[str, int] = {}

    def append(self, name: str, rows: np.ndarray) -> None:
        """Adds (n, ...) rows; the first call settles dtype and what follows n."""
        if name not in self._files:
            # It has no name: nothing is left of it, however the process ends.
            file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
            self._files[name] = self._stack.enter_context(file)
            self._kinds[name], self._rows[name] = (rows.dtype, rows.shape[1:]), 0
        if (rows.dtype, rows.shape[1:]) != self._kinds[name]:
            raise ValueError(f"{name}: {rows.dtype} {rows.shape}, {self._kinds[name]}")
        self._files[name].write(np.ascontiguousarray(rows).data)
        self._rows[name] += len(rows)

    def save(self, path: Path) -> None:
        """Copies all arrays to one file."""
        arrays = {name: self._mapped(name) for name in self._files}
        with new_file(path) as file:
            if path.suffix == ".npz":
                np.savez(file, **arrays)  # a few MB of a mapped array at a time
            else:
                _write_safetensors(file, arrays)

    def _mapped(self, name: str) -> np.ndarray:
        dtype, rest = self._kinds[name]
        shape = (self._rows[name], *rest)
        if not self._rows[name]:  # nothing cannot be mapped
            return np.zeros(shape, dtype)
        self._files[name].flush()
        return np.memmap(self._files[name], dtype, "r", shape=shape)


def _write_safetensors(file: IO[bytes], arrays: dict[str, np.ndarray]) -> None:
    """As https://github.com/huggingface/safetensors#format says.

    The library's own writer would hold all arrays in memory.
    """
    header: dict[str, Any] = {}
    start = 0
    # The widest numbers come first, so that every array is aligned.
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    for name in names:
        stop = start + arrays[name].nbytes
        header[name] = {
            "dtype": _SAFETENSORS_TYPES[arrays[name].dtype.name],
            "shape": arrays[name].shape,
            "data_offsets": [start, stop],
        }
        start = stop
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for name in names:
        file.write(np.ascontiguousarray(arrays[name]).data)


@contextlib.contextmanager
def array_file(path: Path) -> Iterator[GrowingArrays]:
    """Arrays that become the file ``path`` at the end, and nothing after an exception.

    Rows wait on the file's own disk, so that memory holds only what is appended.
    """
    check_ending(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        arrays = GrowingArrays(path.parent, stack)
        yield arrays
        arrays.save(path)


class Counts(NamedTuple):
    """What a file of vectors came to."""

    lines: int
    tokens: int
    width: int
    truncated: int


def write_vectors(
    embedder: Embedder, source: str, path: Path, chunk: int = CHUNK
) -> Counts:
    """Embeds the lines of a file, or of stdin for "-", into an npz or safetensors file.

    Pooled: "embeddings" (lines, W). Otherwise "values" (tokens, W), "input_ids" (tokens,)
    and "offsets" (lines + 1,), where the tokens of each line begin.
    """
    counts = Counts(0, 0, 0, 0)
    with array_file(path) as arrays:
        if embedder.pooling == "none":
            arrays.append("offsets", np.zeros(1, np.int64))
        for part in embedder.stream(read_lines(source), input_name(source), chunk):
            if embedder.pooling == "none":
                arrays.append("values", part.values)
                arrays.append("input_ids", part.input_ids)
                arrays.append("offsets", counts.tokens + np.cumsum(part.lengths))
            else:
                arrays.append("embeddings", part.values)
            counts = Counts(
                counts.lines + len(part.lengths),
                counts.tokens + len(part.input_ids),
                part.values.shape[1],
                counts.truncated + part.truncated,
            )
        if not counts.lines:
            raise UserError(f"{input_name(source)} is empty; expected a text a line")
    return counts
