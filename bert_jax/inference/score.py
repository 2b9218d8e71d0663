"""How likely a pretrained model finds texts, and which of two it prefers.

The pseudo-log-likelihood of a text is the sum of log p(token | all others), each token
masked in turn (Salazar et al. 2020, "Masked Language Model Scoring"). It favours tokens
that the rest of their own word gives away; the form that masks the rest of the word too
does not (Kauf and Ivanova 2023, "A Better Way to Do Masked Language Model Scoring"). A
left-to-right model gives the log-likelihood: the sum of log p(token | those before it). A
two-way LSTM gives the mean of those of its directions.

A minimal pair is right where its good sentence has the higher score; accuracy is the share
of right pairs (Warstadt et al. 2020, "BLiMP").
"""

import functools
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.data.batching import Features
from bert_jax.errors import UserError, counted
from bert_jax.files import decode_lines, ending, parse_json, reading
from bert_jax.inference.evaluation import runner
from bert_jax.inference.fill_mask import mlm_logits, mlm_params
from bert_jax.interop.checkpoint import Checkpoint, check_length, check_vocabulary
from bert_jax.interop.load import opened
from bert_jax.model.bert import BertForPreTraining
from bert_jax.objectives.heads import model_inputs
from bert_jax.objectives.mlm_nsp import cross_entropy
from bert_jax.progress import Progress
from bert_jax.tasks import tables
from bert_jax.tasks.rows import (
    Placed,
    Texts,
    count_rows,
    given_columns,
    placed_rows,
    row_texts,
    text_line,
)

# Tokens of masked copies that are in memory together.
TOKENS = 1 << 18

Pair = tuple[str, str]  # the good sentence and the bad one
FIELDS = ("sentence_good", "sentence_bad")
_LINES = ".txt"


class Score(NamedTuple):
    """The natural log probability of a text, summed over its tokens.

    tokens: their number; an empty text has 0 tokens and the log probability 0.
    id: None for a row without one.
    """

    text: str
    log_probability: float
    tokens: int
    id: Any = None


class Scorer:
    """Pseudo-log-likelihoods by any checkpoint with an MLM head, or log-likelihoods.

    >>> score = Scorer("runs/base")
    >>> score(["The cats sleep.", "The cats sleeps."])
    array([-17.2, -24.9])

    rest_of_word: whether the tokens that follow a masked token in its word are masked
      too. batch_size: rows of 32 tokens that are computed at a time, or fewer longer rows.
      max_length: tokens of a text, [CLS] and [SEP] included; 0 for all that the model has
      positions for. A longer text is an error, because its score would be another text's.
      dtype: of ComputeConfig, instead of the checkpoint's own.
      show_progress: whether it is shown how far a call is; None: on a terminal and in a
      notebook.
    """

    def __init__(
        self,
        checkpoint: Checkpoint | Path | str,
        *,
        rest_of_word: bool = False,
        batch_size: int = 64,
        max_length: int = 0,
        dtype: str | None = None,
        show_progress: bool | None = None,
    ):
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size}, expected at least 1")
        checkpoint, name = opened(checkpoint, dtype)
        if "mlm" not in checkpoint.params:
            raise UserError(
                f"{name} has no MLM head, so it gives no probabilities of tokens; expected "
                "one of pretraining"
            )
        check_vocabulary(checkpoint, name)
        self.max_length = max_length or checkpoint.config.max_positions
        check_length(self.max_length, checkpoint, "max_length")
        self._tokenizer = checkpoint.tokenizer
        self._rest_of_word, self._show = rest_of_word, show_progress
        reads = checkpoint.config.reads
        self._directed = reads != "both sides"
        if self._directed and rest_of_word:
            raise UserError(
                f"{name} reads {reads} and never sees the rest of a word; leave "
                "rest_of_word out"
            )
        model = BertForPreTraining(checkpoint.config, checkpoint.compute)
        function = _directed_log_probabilities if self._directed else _log_probabilities
        forward = functools.partial(function, model=model)
        self._run = runner(
            forward, mlm_params(checkpoint), checkpoint, batch_size=batch_size
        )

    def __call__(self, rows: Any, *, columns: str | Sequence[str] = ()) -> np.ndarray:
        """float64 (texts,): the natural log of each text's pseudo-likelihood.

        rows: see :func:`bert_jax.tasks.rows.placed_rows`. columns: see :meth:`stream`.
        """
        placed = placed_rows(rows, parse_line=text_line)
        scores = self.stream(placed, count_rows(rows), columns)
        return np.array([score.log_probability for score in scores])

    def stream(
        self,
        placed: Iterable[Placed],
        total: int | None = None,
        columns: str | Sequence[str] = (),
    ) -> Iterator[Score]:
        """The scores in order, for inputs of any length.

        total: the number of rows, where it is known. columns: of dictionaries, the column
        of the text; empty: see :func:`bert_jax.tasks.rows.text_columns`.
        """
        waiting: list[tuple[Texts, np.ndarray]] = []
        tokens = 0
        with Progress(
            "scoring", total=total, unit="texts", show=self._show
        ) as progress:
            for row in row_texts(placed, given_columns(columns), most=1):
                ids = self._encode(row.texts[0], row.where)
                waiting.append((row, ids))
                tokens += len(ids) ** 2
                if tokens > TOKENS:
                    yield from self._score(waiting, progress)
                    waiting, tokens = [], 0
            if waiting:
                yield from self._score(waiting, progress)

    def _encode(self, text: str, where: str) -> np.ndarray:
        tokenizer = self._tokenizer
        ids = tokenizer.encode(text)
        if len(ids) + 2 > self.max_length:
            raise UserError(
                f"{where} has {len(ids) + 2} tokens, at most {self.max_length} fit; "
                "shorten it"
            )
        return np.array([tokenizer.cls_id, *ids, tokenizer.sep_id], np.int32)

    def _score(
        self, rows: Sequence[tuple[Texts, np.ndarray]], progress: Progress
    ) -> Iterator[Score]:
        done = progress.part(len(rows))
        every_ids = [ids for _, ids in rows]
        if self._directed:
            parts = [part[1:-1] for part in self._run(_features(every_ids), done=done)]
        else:
            copies = [copy for ids in every_ids for copy in self._masked(ids)]
            sizes = [len(ids) - 2 for ids in every_ids]
            values = self._run(
                _features(copies),
                per_sequence={
                    "place": np.concatenate([1 + np.arange(size) for size in sizes]),
                    "target": np.concatenate([ids[1:-1] for ids in every_ids]),
                },
                done=done,
            )
            parts = np.split(np.array(values), np.cumsum(sizes)[:-1])
        for (row, _), part in zip(rows, parts, strict=True):
            total = float(part.sum(dtype=np.float64))
            yield Score(row.texts[0], total, len(part), row.id)

    def _masked(self, ids: np.ndarray) -> np.ndarray:
        """A copy of a text for each of its n tokens, (n, n + 2), that token masked."""
        places = 1 + np.arange(len(ids) - 2)
        ends = places + 1
        if self._rest_of_word:
            # A word ends before the next token that does not continue one.
            starts = np.flatnonzero(~self._tokenizer.continuation[ids])
            ends = starts[np.searchsorted(starts, places, side="right")]
        column = np.arange(len(ids))
        masked = (column >= places[:, None]) & (column < ends[:, None])
        return np.where(masked, np.int32(self._tokenizer.mask_id), ids)


def _features(ids: list[np.ndarray]) -> Features:
    return Features(ids, [np.zeros_like(own) for own in ids], np.arange(len(ids)))


def _directed_log_probabilities(
    params: Any, batch: dict[str, jax.Array], *, model: BertForPreTraining
) -> jax.Array:
    """float32 (R, L): of each token given those before it, or after it; the mean of both.

    Of the first and the last token of a sequence they mean nothing.
    """
    ids_RL = batch["input_ids"]
    places_RL = jnp.broadcast_to(jnp.arange(ids_RL.shape[1]), ids_RL.shape)
    tokens_RL, packed = model_inputs(batch)
    every = model.apply(
        {"params": params},
        *tokens_RL,
        positions_BQ=places_RL,
        deterministic=True,
        **packed,
        method="lm_logits",
    )
    losses = [cross_entropy(logits_RLW, ids_RL)[0] for logits_RLW in every]
    return -sum(losses) / len(losses)


def _log_probabilities(
    params: Any, batch: dict[str, jax.Array], *, model: BertForPreTraining
) -> jax.Array:
    """float32 (R, S): the log probability of each sequence's target at its place."""
    positions_RS = batch["starts"] + batch["place"]
    logits_RSW = mlm_logits(model, params, batch, positions_RS)
    target_RS1 = batch["target"][..., None]
    chosen_RS = jnp.take_along_axis(logits_RSW, target_RS1, axis=-1)[..., 0]
    return chosen_RS - jax.nn.logsumexp(logits_RSW, axis=-1)


class Accuracy(NamedTuple):
    """The share of right pairs, over all pairs and in each set."""

    accuracy: float
    by_set: dict[str, float]
    pairs: int


def read_sets(
    paths: Iterable[Path], fields: Sequence[str] = FIELDS
) -> Iterator[tuple[str, list[Pair]]]:
    """The path and the pairs of each set; a set is a file, or a member of a zip.

    JSONL, CSV and TSV have the pair in two ``fields``. A .txt has a pair in two columns
    with a tab between them, or in two lines that follow each other, the good one first.
    Folders and zips are read file by file, in the order of their names.

    Raises UserError naming file and line of what is no pair.
    """
    for path in map(Path, paths):
        if path.is_dir():
            files = sorted(p for p in path.iterdir() if _is_set(p))
            if not files:
                raise UserError(f"{path} has no file of pairs; expected {_expected()}")
            yield from read_sets(files, fields)
        elif not path.is_file():
            raise UserError(f"{path} does not exist; expected {_expected()}")
        elif ending(path) == ".zip":
            yield from _read_zip(path, fields)
        elif ending(path) == _LINES:
            with path.open("rb") as file:
                yield str(path), list(_pairs_of_lines(file, path))
        else:
            rows = tables.read_table(path, fields)
            good, bad = fields
            yield (
                str(path),
                [_checked(row[good], row[bad], where) for where, row in rows],
            )


def accuracy(
    score: Callable[[list[str]], np.ndarray],
    sets: Iterable[tuple[str, Sequence[Pair]]],
) -> Iterator[tuple[str, np.ndarray]]:
    """Of each set its name and which pairs are right, bool (pairs,).

    score: from texts to their log probabilities. Two equal scores are wrong.
    """
    for name, pairs in sets:
        if not pairs:
            raise UserError(f"{name} has no pairs; expected {_expected()}")
        scores = score([text for pair in pairs for text in pair]).reshape(-1, 2)
        yield name, scores[:, 0] > scores[:, 1]


def summary(right: Iterable[tuple[str, np.ndarray]]) -> Accuracy:
    """The accuracy over all pairs, and the accuracy of each set by its path.

    right: paths of sets, and which of their pairs are right. If a path occurs twice, its
    pairs count twice.
    """
    sets: dict[str, list[np.ndarray]] = {}
    for name, values in right:
        sets.setdefault(name, []).append(values)
    by_set = {name: np.concatenate(parts) for name, parts in sets.items()}
    every = np.concatenate(list(by_set.values()))
    return Accuracy(
        float(every.mean()),
        {name: float(values.mean()) for name, values in by_set.items()},
        len(every),
    )


def _read_zip(path: Path, fields: Sequence[str]) -> Iterator[tuple[str, list[Pair]]]:
    with reading(path, _expected()), zipfile.ZipFile(path) as archive:
        # A Mac's archive has a "._NAME.jsonl" that is no JSON beside every NAME.jsonl.
        members = sorted(
            (member.filename, i, member)
            for i, member in enumerate(archive.infolist())
            if ending(member.filename) == ".jsonl"
            and not Path(member.filename).name.startswith(".")
        )
        if not members:
            raise UserError(f"{path} has no .jsonl file; expected {_expected()}")
        for name, _, member in members:
            with archive.open(member) as file:
                pairs = []
                for number, line in decode_lines(file, f"{path}/{name}"):
                    where = f"{path}/{name}:{number}"
                    row = parse_json(line, where, "one object a line", unique=True)
                    texts = [tables.text(where, row, [field]) for field in fields]
                    pairs.append(_checked(*texts, where))
                yield f"{path}/{name}", pairs


def _pairs_of_lines(file: IO[bytes], path: Path) -> Iterator[Pair]:
    lines = [
        (number, line.rstrip("\r\n"))
        for number, line in decode_lines(file, path)
        if line.strip()
    ]
    if all(line.count("\t") == 1 for _, line in lines):
        for number, line in lines:
            yield _checked(*line.split("\t"), f"{path}:{number}")
        return
    if len(lines) % 2:
        raise UserError(
            f"{path} has {counted(len(lines), 'line')}; expected an even number, a "
            "pair in two lines, or one tab in every line"
        )
    for (number, good), (_, bad) in zip(lines[::2], lines[1::2], strict=True):
        yield _checked(good, bad, f"{path}:{number}")


def _checked(good: str, bad: str, where: str) -> Pair:
    tables.check_texts(where, (good, bad))
    return good, bad


def _is_set(path: Path) -> bool:
    return ending(path) in {".zip", _LINES, *tables.FORMATS} - {".json"}


def _expected() -> str:
    return "pairs as .jsonl, .csv, .tsv, .txt, or a zip of .jsonl"
