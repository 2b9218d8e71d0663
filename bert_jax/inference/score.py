"""Scores of texts by a pretrained model, and its accuracy on minimal pairs.

The pseudo-log-likelihood of a text is the sum of log p(token | all other tokens), with
each token masked in turn (Salazar et al. 2020, "Masked Language Model Scoring"). It favours
words of several tokens, because the other tokens of a word reveal the masked one. With
``rest_of_word`` the later tokens of the word are masked too (Kauf and Ivanova 2023, "A
Better Way to Do Masked Language Model Scoring"). A left-to-right model gives the
log-likelihood: the sum of log p(token | tokens before it). A two-way LSTM gives the mean of
the log-likelihoods of its two directions.

A minimal pair is right if its good sentence has the higher score (Warstadt et al. 2020,
"BLiMP").
"""

import functools
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.data.batching import Features
from bert_jax.errors import UserError
from bert_jax.files import ending, parse_json, reading
from bert_jax.inference.evaluation import opened, runner, single_text
from bert_jax.inference.fill_mask import mlm_logits, mlm_params
from bert_jax.inference.lines import chunks
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.tokens import Tokens
from bert_jax.objectives.objective import cross_entropy
from bert_jax.progress import Progress
from bert_jax.tasks.rows import (
    Placed,
    Row,
    by_position,
    check_texts,
    count_rows,
    given_columns,
    placed_rows,
    row_texts,
    text_of,
)

TOKENS = 1 << 18  # tokens of masked copies that are in memory together
FIELDS = ("sentence_good", "sentence_bad")
_EXPECTED = "pairs as .jsonl, .csv, .tsv, .txt, or a zip of .jsonl"

Pair = tuple[str, str]  # the good sentence and the bad one


class Score(NamedTuple):
    """The natural log probability of a text, summed over its tokens.

    tokens: number of tokens; an empty text has 0 tokens and the log probability 0.
    id: the id of the row; None if it has none.
    """

    text: str
    log_probability: float
    tokens: int
    id: Any = None


class Scorer:
    """Pseudo-log-likelihoods by a checkpoint with an MLM head, or log-likelihoods.

    >>> score = Scorer("runs/base")
    >>> score(["The cats sleep.", "The cats sleeps."])
    array([-17.2, -24.9])

    rest_of_word: whether the later tokens of a masked token's word are masked too.
    batch_size: number of rows of 32 tokens in a batch; longer rows are fewer.
    max_length: maximum number of tokens of a text, with [CLS] and [SEP]; 0 for the size of
      the position table. A longer text is an error.
    dtype: a value of ComputeConfig.dtype; None for the checkpoint's own.
    show_progress: whether to show a progress bar; None: on a terminal and in a notebook.
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
        checkpoint, name = opened(checkpoint, dtype, batch_size, max_length)
        if "mlm" not in checkpoint.params:
            raise UserError(
                f"{name} has no MLM head, so it gives no probabilities of tokens; expected "
                "a pretrained checkpoint"
            )
        self.max_length = max_length or checkpoint.config.max_positions
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
        self._run = runner(
            functools.partial(function, model=model),
            mlm_params(checkpoint),
            checkpoint,
            batch_size=batch_size,
        )

    def __call__(self, rows: Any, *, columns: str | Sequence[str] = ()) -> np.ndarray:
        """The score of each text, float64 (texts,).

        rows: see :func:`bert_jax.tasks.rows.placed_rows`. columns: see :meth:`stream`.
        """
        placed = placed_rows(rows, tabs=False)
        scores = self.stream(placed, count_rows(rows), columns)
        return np.array([score.log_probability for score in scores])

    def stream(
        self,
        placed: Iterable[Placed],
        total: int | None = None,
        columns: str | Sequence[str] = (),
    ) -> Iterator[Score]:
        """The scores in the order of the rows, for inputs of any length.

        total: number of rows, if known. columns: name of the text's column in dictionaries;
        empty: see :func:`bert_jax.tasks.rows.text_columns`.
        """
        rows = row_texts(placed, given_columns(columns), most=1)
        tokenizer, limit = self._tokenizer, self.max_length
        encoded = (
            (row, single_text(tokenizer, row.where, row.texts[0], limit))
            for row in rows
        )
        with Progress(
            "scoring", total=total, unit="texts", show=self._show
        ) as progress:
            for part in chunks(encoded, TOKENS, lambda item: len(item[1]) ** 2):
                scores = self._score([ids for _, ids in part], progress.part(len(part)))
                for (row, _), logs in zip(part, scores, strict=True):
                    total_log = float(logs.sum(dtype=np.float64))
                    yield Score(row.texts[0], total_log, len(logs), row.id)

    def _score(
        self, texts: list[np.ndarray], done: Callable[[float], None]
    ) -> list[np.ndarray]:
        """The log probability of each token of each text."""
        if self._directed:
            return [logs[1:-1] for logs in self._run(_features(texts), done=done)]
        copies = [copy for ids in texts for copy in self._masked(ids)]
        sizes = [len(ids) - 2 for ids in texts]
        inputs = {
            "place": np.concatenate([1 + np.arange(size) for size in sizes]),
            "target": np.concatenate([ids[1:-1] for ids in texts]),
        }
        values = self._run(_features(copies, inputs), done=done)
        return np.split(np.array(values), np.cumsum(sizes)[:-1])

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


def _features(
    ids: list[np.ndarray], inputs: dict[str, np.ndarray] | None = None
) -> Features:
    types = [np.zeros_like(own) for own in ids]
    return Features(ids, types, np.arange(len(ids)), inputs=inputs or {})


def _directed_log_probabilities(
    params: Any, batch: dict[str, jax.Array], *, model: BertForPreTraining
) -> jax.Array:
    """The log probability of each token given the tokens before it, float32 (R, L).

    A two-way LSTM gives the mean of both directions. The values of the first and the last
    token of a sequence have no meaning.
    """
    ids_RL = batch["input_ids"]
    places_RL = jnp.broadcast_to(jnp.arange(ids_RL.shape[1]), ids_RL.shape)
    directions = model.apply(
        {"params": params},
        Tokens.of_batch(batch),
        places_RL,
        deterministic=True,
        method="lm_logits",
    )
    losses = [cross_entropy(logits_RLW, ids_RL)[0] for logits_RLW in directions]
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
    """The path and the pairs of each set. A set is a file, or a file in a zip.

    The rows of a table have the pair in the two columns ``fields``. Lines of text have it
    in two columns with a tab between them, the good sentence first.

    Raises UserError with the file and line of a row that is not a pair.
    """
    for path in map(Path, paths):
        sets = (
            _zip_rows(path) if ending(path) == ".zip" else [(path, placed_rows(path))]
        )
        for name, rows in sets:
            yield str(name), [_pair(where, row, fields) for where, row in rows if row]


def _zip_rows(path: Path) -> Iterator[tuple[str, Iterator[Placed]]]:
    """The name and the rows of each JSONL file in a zip, such as BLiMP's."""
    with reading(path, _EXPECTED), zipfile.ZipFile(path) as archive:
        # macOS puts a file "._NAME.jsonl", which is not JSON, beside each NAME.jsonl.
        own = re.compile(r"(.*/)?[^./][^/]*\.jsonl")
        # By entry, not by name: a zip may have a name twice.
        members = [m for m in archive.infolist() if own.fullmatch(m.filename)]
        if not members:
            raise UserError(f"{path} has no .jsonl file; expected {_EXPECTED}")
        for member in sorted(members, key=lambda member: member.filename):
            name = f"{path}/{member.filename}"
            with archive.open(member) as file:
                yield name, _objects(name, file)


def _objects(name: str, lines: Iterable[bytes]) -> Iterator[Placed]:
    for number, line in enumerate(lines, 1):
        where = f"{name}:{number}"
        yield where, parse_json(line, where, "one object a line")


def _pair(where: str, row: Row, fields: Sequence[str]) -> Pair:
    values = by_position(where, row, fields)
    good, bad = (text_of(where, values, [name]) for name in fields)
    check_texts(where, (good, bad))
    return good, bad


def accuracy(
    score: Callable[[list[str]], np.ndarray],
    sets: Iterable[tuple[str, Sequence[Pair]]],
) -> Iterator[tuple[str, np.ndarray]]:
    """The name of each set, and whether each of its pairs is right, bool (pairs,).

    score: a function from texts to their log probabilities. A pair of equal scores is
    wrong.
    """
    for name, pairs in sets:
        if not pairs:
            raise UserError(f"{name} has no pairs; expected {_EXPECTED}")
        scores = score([text for pair in pairs for text in pair]).reshape(-1, 2)
        yield name, scores[:, 0] > scores[:, 1]


def summary(right: Iterable[tuple[str, np.ndarray]]) -> Accuracy:
    """The accuracy over all pairs, and the accuracy of each set by its path.

    right: results of :func:`accuracy`. If a path occurs twice, its pairs count twice.
    """
    sets: dict[str, list[bool]] = {}
    for name, values in right:
        sets.setdefault(name, []).extend(values.tolist())
    pairs = sum(map(len, sets.values()))
    by_set = {name: sum(values) / len(values) for name, values in sets.items()}
    return Accuracy(sum(map(sum, sets.values())) / pairs, by_set, pairs)
