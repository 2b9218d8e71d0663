"""Answers of a pretrained model: tokens for [MASK], next sentences, scores of texts.

The pseudo-log-likelihood of a text is the sum of log p(token | all other tokens), with
each token masked in turn (Salazar et al. 2020, "Masked Language Model Scoring"). It favours
words of several tokens, because the other tokens of a word reveal the masked one. With
``rest_of_word`` the later tokens of the word are masked too (Kauf and Ivanova 2023, "A
Better Way to Do Masked Language Model Scoring"). The score of a left-to-right model is the
log-likelihood: the sum of log p(token | tokens before it). The score of a model of
objectives/two_way.py is the mean of the log-likelihoods of its two directions.

A minimal pair is right if its good sentence has the higher score (Warstadt et al. 2020,
"BLiMP"). A tie is wrong.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from scipy.special import softmax

from bert_jax.data.batching import Features
from bert_jax.data.tokenizer import BERT_TOKENS, Tokenizer
from bert_jax.errors import UserError, counted
from bert_jax.inference.evaluation import (
    Columns,
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
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.model.bert import PADDING_LOGIT, BertForPreTraining
from bert_jax.model.tokens import Tokens
from bert_jax.objectives.networks import pretraining_class
from bert_jax.objectives.objective import cross_entropy
from bert_jax.settings import setting
from bert_jax.tasks.rows import check_texts, placed_rows, slice_of
from bert_jax.tasks.task import with_id

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


class _MlmHead(NamedTuple):
    """A model with an MLM head, its parameters, and its maximum number of tokens."""

    model: BertForPreTraining
    params: Any
    max_length: int


def _mlm_head(model: OnDevices, options: Options) -> _MlmHead:
    """Raises UserError if the checkpoint has no MLM head."""
    checkpoint = model.checkpoint(options)
    if "mlm" not in checkpoint.params:
        needed = "pretrain it further with masked tokens, or load another checkpoint"
        raise UserError(f"{model.name} has no MLM head for tokens; {needed}")
    config = checkpoint.config
    max_length = options.max_length or config.max_positions
    module = pretraining_class(config)(config, checkpoint.compute)
    return _MlmHead(module, checkpoint.params, max_length)


def _tokenized(
    tokenizer: Tokenizer,
    rows: Rows,
    max_length: int,
    *,
    mask: bool,
    is_needed: bool = True,
) -> Iterator[TokenizedText]:
    """Yields the texts of rows. A text that is too long is an error.

    mask: whether [MASK] in a text is the token. is_needed: whether each text must then
    contain it.
    """
    for where, (text,), row_id in row_texts(rows, most=1):
        token = tokenizer.special.mask
        masked = text
        if mask and token not in text:
            # [MASK] is understood if the mask token has another name.
            masked = text.replace(BERT_TOKENS.mask, token)
        if mask and is_needed and token not in masked:
            raise UserError(
                f"{where}: no {token} in {text[:60]!r}; this checkpoint is not "
                f"fine-tuned and only fills in {token}: add it, or fine-tune first"
            )
        ids, _ = tokenizer.build(tokenizer.encode(masked, allow_mask=mask))
        if len(ids) > max_length:
            actual = f"{where} has {len(ids)} tokens, at most {max_length} fit"
            raise UserError(f"{actual}; shorten it")
        yield TokenizedText(text, ids, row_id)


# Tokens for [MASK]


@dataclasses.dataclass(frozen=True)
class FillMaskOptions(Options):
    """The options of ``Bert.fill_mask``."""

    top: int = setting(5, "number of tokens for a [MASK]", least=1)


def fills_masks(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint is only pretrained, and has an MLM head."""
    return checkpoint.head == "pretraining" and "mlm" in checkpoint.params


def fill_mask(model: OnDevices, rows: Rows, options: FillMaskOptions) -> Iterator[Part]:
    """The most likely tokens for each [MASK] of a text, by the MLM head.

    An answer is {"text", "blanks": for each [MASK] a list of {"token", "probability"}},
    with the "id" of the row if the row has one. "token" is the text of the token, as in
    transformers' pipeline, which in byte-level BPE includes the space before a word.
    """
    tokenizer = model.tokenizer
    head = _mlm_head(model, options)
    # The word table may have rows without a token.
    top = min(options.top, tokenizer.vocab_size)
    program = model.program(_top_tokens, head.model, tokenizer.vocab_size, top)

    def answer(part: list[TokenizedText], done: Done) -> Part:
        features = _at_masks(part, tokenizer.mask_id)
        outputs = model.run(program, head.params, features, options, done)
        answers = [with_id(row, {"text": row.text, "blanks": []}) for row in part]
        for i, (probabilities, ids) in zip(features.example, outputs, strict=True):
            blank = []
            for token, share in zip(ids.astype(int), probabilities, strict=True):
                name = tokenizer.decode([token])
                blank.append({"token": name, "probability": float(share)})
            answers[i]["blanks"].append(blank)
        return Part(features, answers)

    texts = _tokenized(tokenizer, rows, head.max_length, mask=True)
    return in_parts(
        answer,
        texts,
        options,
        model=model,
        total=rows.total,
        max_length=head.max_length,
    )


def filled_prompts(
    checkpoint: Checkpoint, prompts: Sequence[str], max_length: int, mesh: Mesh
) -> Iterator[str]:
    """Yields a line for each prompt: the text, and three tokens for each [MASK]."""
    model = OnDevices(checkpoint, mesh=mesh)
    options = FillMaskOptions(max_length=max_length, top=3, show_progress=False)
    rows = rows_of([*prompts], tabs=False)
    for answer in collected(fill_mask(model, rows, options)):
        blanks = []
        for blank in answer["blanks"]:
            guesses = [f"{x['token'].strip()} {x['probability']:.0%}" for x in blank]
            blanks.append(", ".join(guesses))
        yield f"{answer['text']}  ->  {' | '.join(blanks)}"


def _at_masks(rows: list[TokenizedText], mask_id: int) -> Features:
    """A copy of a text for each [MASK]. "place": position of the [MASK]."""
    copies, numbers, places = [], [], []
    for number, row in enumerate(rows):
        for place in np.flatnonzero(row.input_ids == mask_id):
            copies.append(row.input_ids)
            numbers.append(number)
            places.append(place)
    return single_texts(copies, np.array(numbers), place=np.array(places))


def _top_tokens(
    model: BertForPreTraining,
    tokens: int,
    top: int,
    params: Any,
    batch: dict[str, jax.Array],
) -> jax.Array:
    """Probabilities and ids of the most likely tokens, float32 (R, S, 2, top).

    tokens: number of tokens of the vocabulary.
    """
    places_RS = batch["starts"] + batch["place"]
    logits_RSW = mlm_logits(model, mlm_params(params, tokens), batch, places_RS)
    probabilities, ids = jax.lax.top_k(jax.nn.softmax(logits_RSW), top)
    return jnp.stack([probabilities, ids.astype(jnp.float32)], axis=2)


def mlm_params(params: Any, tokens: int) -> Any:
    """The parameters, with a bias that excludes rows of the word table without a token.

    The word table may have more rows than the vocabulary has ``tokens``.
    """
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
    """Logits of the MLM head at ``positions_BQ``, float32 (B, Q, W).

    A causal model predicts a token from the tokens before it. For a model with two
    directions the predictions are multiplied. The pooler and the NSP head may be absent.
    """
    B, Q = positions_BQ.shape
    inputs = {"params": params}, Tokens.of_batch(batch), positions_BQ
    logits = model.apply(*inputs, deterministic=True, method="lm_logits")
    if model.config.encoder == "transformer":
        return logits
    directions = jax.nn.log_softmax(logits).reshape(B, -1, Q, logits.shape[-1])
    return jnp.sum(directions, axis=1)


def token_logits(model: OnDevices, rows: Rows, options: Options) -> Iterator[Part]:
    """Logits of the MLM head at each token of a text, float32 (tokens, vocab_size)."""
    head = _mlm_head(model, options)
    program = model.program(_all_logits, head.model)

    def answer(part: list[TokenizedText], done: Done) -> Part:
        ids = [row.input_ids for row in part]
        features = single_texts(ids, np.arange(len(part)))
        outputs = model.run(program, head.params, features, options, done)
        return Part(features, outputs)

    lengths = head.max_length
    texts = _tokenized(model.tokenizer, rows, lengths, mask=True, is_needed=False)
    return in_parts(
        answer, texts, options, model=model, total=rows.total, max_length=lengths
    )


def _all_logits(
    model: BertForPreTraining, params: Any, batch: dict[str, jax.Array]
) -> jax.Array:
    """Logits of the MLM head at all positions, float32 (R, L, V)."""
    ids_RL = batch["input_ids"]
    places_RL = jnp.broadcast_to(jnp.arange(ids_RL.shape[1]), ids_RL.shape)
    logits_RLW = mlm_logits(model, params, batch, places_RL)
    return logits_RLW[..., : model.config.vocab_size]


# Next sentences


def next_sentence(model: OnDevices, rows: Rows, options: Options) -> Iterator[Part]:
    """The probability that the second of two texts follows the first, by the NSP head.

    An answer is {"first", "second", "probability"}, with the "id" of the row if the row has
    one. In a pair that is too long the longer text is cut.
    """
    checkpoint = model.checkpoint(options)
    config = checkpoint.config
    # Models that read one side are trained without pairs, so their NSP head is untrained.
    if "nsp" not in checkpoint.params or not config.reads_both_sides:
        needed = "load a checkpoint that was pretrained with next sentence prediction"
        raise UserError(f"{model.name} has no NSP head; {needed}")
    max_length = options.max_length or config.max_positions
    module = BertForPreTraining(config, checkpoint.compute)
    program = model.program(_nsp_logits, module)

    def answer(part: list[Texts], done: Done) -> Part:
        texts = [row.texts for row in part]
        features = text_features(model.tokenizer, texts, max_length)
        outputs = model.run(program, checkpoint.params, features, options, done)
        answers = []
        for row, logits_2 in zip(part, outputs, strict=True):
            first, second = row.texts
            probability = float(softmax(logits_2)[0])
            values = {"first": first, "second": second, "probability": probability}
            answers.append(with_id(row, values))
        return Part(features, answers)

    return in_parts(
        answer,
        _pairs(rows),
        options,
        model=model,
        total=rows.total,
        max_length=max_length,
    )


def _pairs(rows: Rows) -> Iterator[Texts]:
    """Yields rows of two texts. Raises UserError for a row of one text."""
    for row in row_texts(rows):
        if len(row.texts) != 2:
            raise UserError(f"{row.where} has 1 text; expected a pair of texts")
        yield row


def _nsp_logits(
    model: BertForPreTraining, params: Any, batch: dict[str, jax.Array]
) -> jax.Array:
    """Logits of the NSP head, float32 (R, S, 2). The MLM head may be absent."""

    def logits(model: BertForPreTraining) -> jax.Array:
        encoded = model.bert.encode(Tokens.of_batch(batch), deterministic=True)
        return model.nsp(encoded.pooled_BD)

    return model.apply({"params": params}, method=logits)


# Scores of texts


@dataclasses.dataclass(frozen=True)
class ScoreOptions(Options):
    """The options of ``Bert.score``."""

    rest_of_word: bool = setting(
        False, "whether the later tokens of a masked token's word are also masked"
    )


def score(model: OnDevices, rows: Rows, options: ScoreOptions) -> Iterator[Part]:
    """Pseudo-log-likelihoods by an MLM head, or log-likelihoods.

    An answer has the "text", its "log_probability" (natural, summed over its tokens), the
    number of its "tokens", and the "id" of the row if the row has one. An empty text has 0
    tokens and the log probability 0.
    """
    tokenizer = model.tokenizer
    head = _mlm_head(model, options)
    one_sided = not head.model.config.reads_both_sides
    if one_sided and options.rest_of_word:
        actual = (
            f"{model.name} reads only one side, so it never sees the rest of a word"
        )
        raise UserError(f"{actual}; leave rest_of_word out")
    function = _given_all_others
    if one_sided:
        function = _given_one_side
    program = model.program(function, head.model, tokenizer.vocab_size)

    def answer(part: list[TokenizedText], done: Done) -> Part:
        if one_sided:
            ids = [row.input_ids for row in part]
            features = single_texts(ids, np.arange(len(part)))
        else:
            features = _masked_copies(part, tokenizer, options.rest_of_word)
        outputs = model.run(program, head.params, features, options, done)
        if one_sided:
            sums = []
            for row, logs in zip(part, outputs, strict=True):
                places = _text_places(row.input_ids, tokenizer)
                sums.append(logs[places].sum(dtype=np.float64))
        else:
            sums = np.bincount(features.example, np.array(outputs), len(part))
        answers = []
        for row, log in zip(part, sums, strict=True):
            values = {"text": row.text, "log_probability": float(log)}
            values["tokens"] = len(_text_places(row.input_ids, tokenizer))
            answers.append(with_id(row, values))
        return Part(features, answers)

    texts = _tokenized(tokenizer, rows, head.max_length, mask=False)
    return in_parts(
        answer,
        texts,
        options,
        model=model,
        total=rows.total,
        max_length=head.max_length,
        doing="scoring",
        cost=lambda row: len(row.input_ids) ** 2 / ROW,
    )


def log_probabilities(
    model: OnDevices, options: ScoreOptions, texts: Any, columns: Columns = ()
) -> np.ndarray:
    """The log probability of each text, float64 (texts,); see :func:`score`.

    texts, columns: see ``Bert.score``.
    """
    rows = rows_of(texts, columns, tabs=False)
    answers = collected(score(model, rows, options))
    return np.array([answer["log_probability"] for answer in answers], float)


def _text_places(ids: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """The positions of the tokens of a single text, without special tokens: int (T,)."""
    length = len(ids) - tokenizer.overhead(1)
    (first,) = tokenizer.starts(length)
    return first + np.arange(length)


def _masked_copies(
    rows: list[TokenizedText], tokenizer: Tokenizer, rest_of_word: bool
) -> Features:
    """A copy of a text for each of its tokens, with this token masked.

    "place", "target": position and id of the masked token. rest_of_word: see ScoreOptions.
    """
    copies, numbers, places, targets = [], [], [], []
    for number, row in enumerate(rows):
        ids = row.input_ids
        place = _text_places(ids, tokenizer)
        end = place + 1
        if rest_of_word:
            # A word ends before the next token that does not continue a word.
            starts = np.flatnonzero(tokenizer.word_starts(ids))
            end = starts[np.searchsorted(starts, place, side="right")]
        column = np.arange(len(ids))
        masked = (column >= place[:, None]) & (column < end[:, None])
        copies.extend(np.where(masked, np.int32(tokenizer.mask_id), ids))
        numbers.append(np.full(len(place), number))
        places.append(place)
        targets.append(ids[place])
    return single_texts(
        copies,
        np.concatenate(numbers),
        place=np.concatenate(places),
        target=np.concatenate(targets),
    )


def _given_one_side(
    model: BertForPreTraining, tokens: int, params: Any, batch: dict[str, jax.Array]
) -> jax.Array:
    """The log probability of each token given the tokens before it, float32 (R, L).

    For a model with two directions it is their mean. The values of the first and the last
    token of a sequence have no meaning. tokens: number of tokens of the vocabulary.
    """
    ids_RL = batch["input_ids"]
    R, L = ids_RL.shape
    places_RL = jnp.broadcast_to(jnp.arange(L), (R, L))
    logits = model.apply(
        {"params": mlm_params(params, tokens)},
        Tokens.of_batch(batch),
        places_RL,
        deterministic=True,
        method="lm_logits",
    )
    directions = logits.shape[1] // L
    losses = cross_entropy(logits, jnp.tile(ids_RL, (1, directions)))[0]
    return -jnp.mean(losses.reshape(R, directions, L), axis=1)


def _given_all_others(
    model: BertForPreTraining, tokens: int, params: Any, batch: dict[str, jax.Array]
) -> jax.Array:
    """float32 (R, S): log probability of each sequence's target at its place.

    tokens: number of tokens of the vocabulary.
    """
    positions_RS = batch["starts"] + batch["place"]
    logits_RSW = mlm_logits(model, mlm_params(params, tokens), batch, positions_RS)
    return -cross_entropy(logits_RSW, batch["target"])[0]


# Minimal pairs


class Accuracy(NamedTuple):
    """The share of right pairs: accuracy over all pairs, by_set in each set."""

    accuracy: float
    by_set: dict[str, float]
    pairs: int


def read_sets(
    paths: Iterable[Path], columns: Sequence[str] = COLUMNS, pairs_range: str = ""
) -> Iterator[tuple[str, list[MinimalPair]]]:
    """Yields the path and the pairs of each set.

    A set is a file. Each .jsonl file of a folder is a set. A row of a table has the good
    and the bad sentence in the two ``columns``. A line of text has both with a tab
    between them, the good sentence first.

    pairs_range: slice of the pairs of each set, such as "500:1000"; empty: all.

    Raises UserError with the file and line of a row that is not a pair, and if a set has no
    pairs in the range.
    """
    part = slice_of("pairs_range", pairs_range)
    if len(columns) != 2:
        expected = "expected two names, of the good and of the bad sentence"
        raise UserError(f"columns={columns}, {expected}")
    for path in map(Path, paths):
        files = [path]
        if path.is_dir():
            files = sorted(path.glob("*.jsonl"))
        if not files:
            raise UserError(f"{path} has no .jsonl file; expected {_EXPECTED}")
        for file in files:
            pairs = []
            rows = (placed for placed in placed_rows(file) if placed[1])
            for row in row_texts(Rows(rows, columns)):
                check_texts(row.where, row.texts)
                pairs.append(row.texts)
            if not pairs:
                raise UserError(f"{file} has no pairs; expected {_EXPECTED}")
            if not pairs[part]:
                actual = f"{file} has {counted(len(pairs), 'pair')}"
                raise UserError(
                    f"{actual}, and pairs_range={pairs_range} selects none; change it"
                )
            yield str(file), pairs[part]


def accuracy(
    score: Callable[[list[str]], np.ndarray],
    sets: Iterable[tuple[str, Sequence[MinimalPair]]],
    report: Callable[[str, np.ndarray], None] = lambda name, right: None,
) -> Accuracy:
    """The share of pairs whose good sentence has the higher score.

    score: function of texts that returns their log probabilities. It gets each text of a
    set once. A pair with equal scores is wrong, and so is a pair of equal sentences. sets:
    results of :func:`read_sets`. If a path occurs twice, its pairs count twice. report:
    function that is called with the name of each set and whether each pair is right.
    """
    by_set: dict[str, np.ndarray] = {}
    for name, pairs in sets:
        # Two copies of a text could get different scores by rounding in different batches.
        texts = [*dict.fromkeys(itertools.chain.from_iterable(pairs))]
        scores = dict(zip(texts, score(texts), strict=True))
        right = np.array([scores[good] > scores[bad] for good, bad in pairs])
        report(name, right)
        by_set[name] = np.append(by_set.get(name, []), right)
    every = np.concatenate([*by_set.values()])
    means = {name: float(right.mean()) for name, right in by_set.items()}
    return Accuracy(float(every.mean()), means, len(every))
