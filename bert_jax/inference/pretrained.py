"""Answers of a pretrained model: tokens for [MASK], next sentences, scores of texts.

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

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import softmax

from bert_jax.data.batching import Features
from bert_jax.data.tokenizer import MASK
from bert_jax.errors import UserError
from bert_jax.inference import evaluation as base
from bert_jax.inference.evaluation import Columns, Stored
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.model.bert import PADDING_LOGIT, BertForPreTraining
from bert_jax.model.tokens import Tokens
from bert_jax.objectives.objective import cross_entropy
from bert_jax.settings import setting
from bert_jax.tasks.rows import Placed, Texts, check_texts, placed_rows, row_texts
from bert_jax.tasks.task import Answer, Outputs, with_id

ROW = 64  # tokens of masked copies that take as much memory as an ordinary row
COLUMNS = ("sentence_good", "sentence_bad")  # of BLiMP
_EXPECTED = "pairs as .jsonl, .csv, .tsv, .txt, or a folder of .jsonl"

MinimalPair = tuple[str, str]  # the good sentence and the bad one


class TokenizedText(NamedTuple):
    """A text. input_ids: int32 (L,), with [CLS] and [SEP]."""

    text: str
    input_ids: np.ndarray
    id: Any


def single_texts(ids: list[np.ndarray], row: Any, **inputs: np.ndarray) -> Features:
    """Features of sequences of one text. row: row number of each sequence."""
    return Features(ids, [*map(np.zeros_like, ids)], row, inputs=inputs)


class _TokenInference(base.Inference):
    """Answers texts with the MLM head. A text that is too long is an error.

    mask: whether [MASK] in a text is the token. Then each text must contain it.
    """

    tabs, mask = False, False

    def __init__(self, checkpoint: Stored, **options: Any):
        super().__init__(checkpoint, **options)
        if "mlm" not in self.checkpoint.params:
            needed = "expected a pretrained checkpoint"
            raise UserError(f"{self._name} has no MLM head for tokens; {needed}")
        config = self.checkpoint.config
        self.max_length = self.max_length or config.max_positions
        self._model = BertForPreTraining(config, self.checkpoint.compute)

    def _rows(self, placed: Iterable[Placed], columns: Columns) -> Iterator:
        tokenizer = self._tokenizer
        for where, (text,), row_id in row_texts(placed, columns, most=1):
            if self.mask and MASK not in text:
                raise UserError(
                    f"{where}: no {MASK} in {text[:60]!r}; this checkpoint is not "
                    f"fine-tuned and only fills in {MASK}: add it, or fine-tune first"
                )
            ids = tokenizer.encode(text, allow_mask=self.mask)
            ids = np.array([tokenizer.cls_id, *ids, tokenizer.sep_id], np.int32)
            if len(ids) > self.max_length:
                actual = f"{where} has {len(ids)} tokens, at most {self.max_length} fit"
                raise UserError(f"{actual}; shorten it")
            yield TokenizedText(text, ids, row_id)


@dataclasses.dataclass(frozen=True)
class FillMaskOptions(base.Options):
    """The options of ``Bert.fill_mask``."""

    top: int = setting(5, "number of tokens for a [MASK]", least=1)


class FillMask(_TokenInference):
    """The likeliest tokens for each [MASK] of a text, by the MLM head.

    An answer is {"text", "blanks": for each [MASK] a list of {"token", "probability"}},
    with the "id" of the row if the row has one.

    options: see FillMaskOptions.
    """

    options_class = FillMaskOptions
    mask = True

    def __init__(self, checkpoint: Stored, **options: Any):
        super().__init__(checkpoint, **options)
        # The word table may have rows without a token.
        self._top = min(self.options.top, self._tokenizer.vocab_size)
        self._run = self._runner(self._top_tokens, mlm_params(self.checkpoint))

    def _encode(self, rows: list[TokenizedText]) -> Features:
        """A copy of a text for each [MASK]. "place": position of the [MASK]."""
        mask_id = self._tokenizer.mask_id
        places = [np.flatnonzero(row.input_ids == mask_id) for row in rows]
        numbers = np.repeat(np.arange(len(rows)), [*map(len, places)])
        copies = [rows[i].input_ids for i in numbers]
        return single_texts(copies, numbers, place=np.concatenate(places))

    def _top_tokens(self, params: Any, batch: dict[str, jax.Array]) -> jax.Array:
        """Probabilities and ids of the likeliest tokens, float32 (R, S, 2, top)."""
        places_RS = batch["starts"] + batch["place"]
        logits_RSW = mlm_logits(self._model, params, batch, places_RS)
        probabilities, ids = jax.lax.top_k(jax.nn.softmax(logits_RSW), self._top)
        return jnp.stack([probabilities, ids.astype(jnp.float32)], axis=2)

    def _decode(self, rows: list, features: Features, outputs: Outputs) -> list[Answer]:
        answers = [with_id(row, {"text": row.text, "blanks": []}) for row in rows]
        for i, (probabilities, ids) in zip(features.row, outputs, strict=True):
            pairs = zip(ids.astype(int), probabilities.tolist(), strict=True)
            tokens = self._tokenizer.tokens
            blank = [{"token": tokens[t], "probability": p} for t, p in pairs]
            answers[i]["blanks"].append(blank)
        return answers


class NextSentence(base.Inference):
    """The probability that the second of two texts follows the first, by the NSP head.

    An answer is {"first", "second", "probability"}, with the "id" of the row if the row has
    one. In a pair that is too long the longer text loses its end.

    options: see Options.
    """

    def __init__(self, checkpoint: Stored, **options: Any):
        super().__init__(checkpoint, **options)
        config, params = self.checkpoint.config, self.checkpoint.params
        # Models that read one side are trained without pairs, so their NSP head is not.
        if "nsp" not in params or config.reads != "both sides":
            raise UserError(f"{self._name} has no NSP head; load a pretrained one")
        self.max_length = self.max_length or config.max_positions
        self._model = BertForPreTraining(config, self.checkpoint.compute)
        self._run = self._runner(self._logits, params)

    def _rows(self, placed: Iterable[Placed], columns: Columns) -> Iterator:
        for row in row_texts(placed, columns):
            if len(row.texts) != 2:
                raise UserError(f"{row.where} has 1 text; expected the two of a pair")
            yield row

    def _encode(self, rows: list[Texts]) -> Features:
        texts = [row.texts for row in rows]
        return base.text_features(self._tokenizer, texts, self.max_length)

    def _logits(self, params: Any, batch: dict[str, jax.Array]) -> jax.Array:
        """Logits of the NSP head, float32 (R, S, 2). The MLM head may be absent."""

        def logits(model: BertForPreTraining) -> jax.Array:
            encoded = model.bert.encode(Tokens.of_batch(batch), deterministic=True)
            return model.nsp(encoded.pooled_BD)

        return self._model.apply({"params": params}, method=logits)

    def _decode(self, rows: list, features: Features, outputs: Outputs) -> list[Answer]:
        answers = []
        for row, logits_2 in zip(rows, outputs, strict=True):
            answer = dict(zip(("first", "second"), row.texts, strict=True))
            answer["probability"] = float(softmax(logits_2)[0])
            answers.append(with_id(row, answer))
        return answers


def mlm_params(checkpoint: Checkpoint) -> Any:
    """The parameters, with a bias that excludes rows of the word table without a token.

    The word table may have more rows than the vocabulary has tokens.
    """
    params, tokens = checkpoint.params, checkpoint.tokenizer.vocab_size
    bias_V = params["mlm"]["output_bias"]
    if tokens == len(bias_V):
        return params
    bias_V = jnp.asarray(bias_V).at[tokens:].set(PADDING_LOGIT)
    return params | {"mlm": params["mlm"] | {"output_bias": bias_V}}


def mlm_logits(
    model: BertForPreTraining,
    params: Any,
    batch: dict[str, jax.Array],
    positions_BQ: jax.Array,
) -> jax.Array:
    """Logits of the MLM head at some positions, float32 (B, Q, W).

    A causal model predicts a token from the tokens before it. A two-way LSTM gives the
    product of the predictions of both directions. The pooler and the NSP head may be
    absent.
    """
    tokens = Tokens.of_batch(batch)

    def logits(model: BertForPreTraining) -> jax.Array:
        if model.config.reads != "both sides":
            directions = model.lm_logits(tokens, positions_BQ, deterministic=True)
            return sum(map(jax.nn.log_softmax, directions))
        encoded = model.bert.encode(
            tokens, deterministic=True, positions_BQ=positions_BQ, pool=False
        )
        return model.mlm(encoded.sequence_BLD, model.bert.embeddings.word)

    return model.apply({"params": params}, method=logits)


@dataclasses.dataclass(frozen=True)
class ScoreOptions(base.Options):
    """The options of ``Bert.score``."""

    rest_of_word: bool = setting(
        False, "whether the later tokens of a masked token's word are also masked"
    )


class Scorer(_TokenInference):
    """Pseudo-log-likelihoods by a checkpoint with an MLM head, or log-likelihoods.

    >>> score = Scorer("runs/base")
    >>> score(["The cats sleep.", "The cats sleeps."])
    array([-17.2, -24.9])

    options: see ScoreOptions.

    An answer of ``stream`` has the "text", its "log_probability" (natural, summed over its
    tokens), the number of its "tokens", and the "id" of the row if the row has one. An
    empty text has 0 tokens and the log probability 0.
    """

    options_class = ScoreOptions
    doing = "scoring"

    def __init__(self, checkpoint: Stored, **options: Any):
        super().__init__(checkpoint, **options)
        reads = self.checkpoint.config.reads
        self._directed = reads != "both sides"
        if self._directed and self.options.rest_of_word:
            actual = f"{self._name} reads {reads} and never sees the rest of a word"
            raise UserError(f"{actual}; leave rest_of_word out")
        function = self._given_one_side if self._directed else self._given_all_others
        self._run = self._runner(function, mlm_params(self.checkpoint))

    def __call__(self, rows: Any, *, columns: Columns = ()) -> np.ndarray:
        """The log probability of each text, float64 (texts,)."""
        answers = super().__call__(rows, columns=columns)
        return np.array([answer["log_probability"] for answer in answers], float)

    def _cost(self, row: TokenizedText) -> float:
        return len(row.input_ids) ** 2 / ROW

    def _encode(self, rows: list[TokenizedText]) -> Features:
        numbers, texts = np.arange(len(rows)), [row.input_ids for row in rows]
        if self._directed:
            return single_texts(texts, numbers)
        sizes = [len(ids) - 2 for ids in texts]
        return single_texts(
            [copy for ids in texts for copy in self._masked(ids)],
            np.repeat(numbers, sizes),
            place=np.concatenate([1 + np.arange(size) for size in sizes]),
            target=np.concatenate([ids[1:-1] for ids in texts]),
        )

    def _decode(self, rows: list, features: Features, outputs: Outputs) -> list[Answer]:
        if self._directed:
            sums = np.array([logs[1:-1].sum(dtype=np.float64) for logs in outputs])
        else:
            sums = np.bincount(features.row, np.array(outputs), len(rows))
        answers = []
        for row, log in zip(rows, sums.tolist(), strict=True):
            answer = {"text": row.text, "log_probability": log}
            answers.append(with_id(row, answer | {"tokens": len(row.input_ids) - 2}))
        return answers

    def _masked(self, ids: np.ndarray) -> np.ndarray:
        """A copy of a text for each of its n tokens, with this token masked, (n, n + 2)."""
        places = 1 + np.arange(len(ids) - 2)
        ends = places + 1
        if self.options.rest_of_word:
            # A word ends before the next token that does not continue a word.
            starts = np.flatnonzero(~self._tokenizer.continuation[ids])
            ends = starts[np.searchsorted(starts, places, side="right")]
        column = np.arange(len(ids))
        masked = (column >= places[:, None]) & (column < ends[:, None])
        return np.where(masked, np.int32(self._tokenizer.mask_id), ids)

    def _given_one_side(self, params: Any, batch: dict[str, jax.Array]) -> jax.Array:
        """The log probability of each token given the tokens before it, float32 (R, L).

        A two-way LSTM gives the mean of both directions. The values of the first and the
        last token of a sequence have no meaning.
        """
        ids_RL = batch["input_ids"]
        places_RL = jnp.broadcast_to(jnp.arange(ids_RL.shape[1]), ids_RL.shape)
        inputs = {"params": params}, Tokens.of_batch(batch), places_RL
        directions = self._model.apply(*inputs, deterministic=True, method="lm_logits")
        losses = [cross_entropy(logits_RLW, ids_RL)[0] for logits_RLW in directions]
        return -sum(losses) / len(losses)

    def _given_all_others(self, params: Any, batch: dict[str, jax.Array]) -> jax.Array:
        """float32 (R, S): log probability of each sequence's target at its place."""
        positions_RS = batch["starts"] + batch["place"]
        logits_RSW = mlm_logits(self._model, params, batch, positions_RS)
        return -cross_entropy(logits_RSW, batch["target"])[0]


class Accuracy(NamedTuple):
    """The share of right pairs: accuracy over all pairs, by_set in each set."""

    accuracy: float
    by_set: dict[str, float]
    pairs: int


def read_sets(
    paths: Iterable[Path], columns: Sequence[str] = COLUMNS
) -> Iterator[tuple[str, list[MinimalPair]]]:
    """Yields the path and the pairs of each set.

    A set is a file. Each .jsonl file of a folder is a set. A row of a table has the good
    and the bad sentence in the two ``columns``. A line of text has both with a tab
    between them, the good sentence first.

    Raises UserError with the file and line of a row that is not a pair.
    """
    if len(columns) != 2:
        expected = "expected the good and the bad sentence, two names"
        raise UserError(f"columns={columns}, {expected}")
    for path in map(Path, paths):
        files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not files:
            raise UserError(f"{path} has no .jsonl file; expected {_EXPECTED}")
        for file in files:
            rows, pairs = (placed for placed in placed_rows(file) if placed[1]), []
            for row in row_texts(rows, columns):
                check_texts(row.where, row.texts)
                pairs.append(row.texts)
            if not pairs:
                raise UserError(f"{file} has no pairs; expected {_EXPECTED}")
            yield str(file), pairs


def accuracy(
    score: Callable[[list[str]], np.ndarray],
    sets: Iterable[tuple[str, Sequence[MinimalPair]]],
    report: Callable[[str, np.ndarray], None] = lambda name, right: None,
) -> Accuracy:
    """The share of pairs whose good sentence has the higher score.

    score: function of texts that returns their log probabilities. A pair of equal scores is
    wrong. sets: results of :func:`read_sets`. If a path occurs twice, its pairs count
    twice. report: function of the name of each set and of the results of its pairs, bool.
    """
    by_set: dict[str, np.ndarray] = {}
    for name, pairs in sets:
        scores = score([text for pair in pairs for text in pair]).reshape(-1, 2)
        right = scores[:, 0] > scores[:, 1]
        report(name, right)
        by_set[name] = np.append(by_set.get(name, []), right)
    every = np.concatenate([*by_set.values()])
    means = {name: float(right.mean()) for name, right in by_set.items()}
    return Accuracy(float(every.mean()), means, len(every))
