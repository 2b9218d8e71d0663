"""What a pretrained model predicts in the place of [MASK]."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bert_jax.data.batching import row_length
from bert_jax.data.tokenizer import MASK, Tokenizer
from bert_jax.errors import UserError
from bert_jax.inference.lines import Answers, chunks
from bert_jax.interop.load import Checkpoint, check_length
from bert_jax.model.bert import BertForPreTraining

# (token, probability) for each [MASK] of a text.
Guesses = list[list[tuple[str, float]]]


def fill_mask(
    model: nn.Module,
    params: Any,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    length: int,
    top: int = 3,
) -> list[Guesses]:
    """The ``top`` likeliest tokens for each [MASK] of each text.

    ``length``: tokens that a text is padded to, [CLS] and [SEP] counted. Raises
    UserError for a text without [MASK], or too long.
    """
    rows = [MaskedText.of(text, repr(text[:60]), tokenizer, length) for text in texts]
    return _guesses(model, params, tokenizer, rows, length, top)


@dataclasses.dataclass(frozen=True, slots=True)
class MaskedText:
    """A text with [MASK] in it. input_ids: int32 (L,), with [CLS] and [SEP]."""

    text: str
    input_ids: np.ndarray

    @classmethod
    def of(
        cls, text: str, name: str, tokenizer: Tokenizer, longest: int
    ) -> "MaskedText":
        """Encodes a text. name: what errors call it. longest: the tokens that fit."""
        if MASK not in text:
            raise UserError(
                f"{name}: no {MASK} in {text[:60]!r}; put {MASK} where a token is missing"
            )
        ids = tokenizer.encode(text, allow_mask=True)
        ids = np.array([tokenizer.cls_id, *ids, tokenizer.sep_id], np.int32)
        if len(ids) > longest:
            raise UserError(
                f"{name} has {len(ids)} tokens, at most {longest} fit; shorten it"
            )
        return cls(text, ids)


class FillMask:
    """The likeliest tokens for each [MASK] of a text, on one device."""

    family = "fill_mask"
    column_widths: ClassVar[dict[str, int]] = {"text": 60}

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        batch_size: int,
        max_length: int,
        top: int,
    ):
        tokens = checkpoint.tokenizer.vocab_size
        if not 1 <= top <= tokens:
            raise UserError(f"--top={top}, expected 1 to {tokens}, the vocabulary")
        self.max_length = max_length or checkpoint.config.max_positions
        check_length(self.max_length, checkpoint, "--max_length")
        self._tokenizer = checkpoint.tokenizer
        self._batch_size, self._top = batch_size, top
        self._model = BertForPreTraining(checkpoint.config, checkpoint.compute)
        self._params = jax.device_put(_complete(self._model, checkpoint.params))

    def stream(self, lines: Iterable[str], name: str, size: int) -> Iterator[Answers]:
        """Answers of ``size`` texts at a time."""
        first = 1
        for part in chunks(lines, size):
            rows = [
                MaskedText.of(
                    line.removeprefix("\ufeff"),
                    f"{name}:{number}",
                    self._tokenizer,
                    self.max_length,
                )
                for number, line in enumerate(part, first)
            ]
            first += len(part)
            yield Answers(rows, self._answers(rows), self, 0)

    def cells(self, row: MaskedText, answer: dict[str, Any]) -> list[dict[str, str]]:
        """A line of the table for each [MASK]."""
        del row
        return [
            {
                "text": answer["text"],
                "blank": str(number),
                "tokens": ", ".join(
                    f"{entry['token']} {entry['probability']:.3f}" for entry in blank
                ),
            }
            for number, blank in enumerate(answer["blanks"], 1)
        ]

    def _answers(self, rows: Sequence[MaskedText]) -> list[dict[str, Any]]:
        lengths = np.array([len(row.input_ids) for row in rows])
        order = np.argsort(lengths, kind="stable")
        answers: list[Any] = [None] * len(rows)
        for start in range(0, len(order), self._batch_size):
            numbers = order[start : start + self._batch_size]
            batch = [rows[i] for i in numbers]
            # Repeated up to a power of two, so that few shapes are compiled.
            full = min(1 << (len(batch) - 1).bit_length(), self._batch_size)
            guesses = _guesses(
                self._model,
                self._params,
                self._tokenizer,
                batch + batch[:1] * (full - len(batch)),
                row_length(lengths[numbers].max(), self.max_length),
                self._top,
            )
            for i, blanks in zip(numbers, guesses, strict=False):
                answers[i] = {
                    "text": rows[i].text,
                    "blanks": [
                        [{"token": token, "probability": p} for token, p in blank]
                        for blank in blanks
                    ],
                }
        return answers


def _guesses(
    model: nn.Module,
    params: Any,
    tokenizer: Tokenizer,
    rows: Sequence[MaskedText],
    length: int,
    top: int,
) -> list[Guesses]:
    B = len(rows)
    masks = [np.flatnonzero(row.input_ids == tokenizer.mask_id) for row in rows]
    input_ids_BL = np.full((B, length), tokenizer.pad_id, np.int32)
    attention_mask_BL = np.zeros((B, length), np.int32)
    positions_BM = np.zeros((B, max(map(len, masks))), np.int32)
    for i, (row, positions) in enumerate(zip(rows, masks, strict=True)):
        input_ids_BL[i, : len(row.input_ids)] = row.input_ids
        attention_mask_BL[i, : len(row.input_ids)] = 1
        positions_BM[i, : len(positions)] = positions
    probabilities, ids = jax.device_get(
        _compiled(model, top)(params, input_ids_BL, attention_mask_BL, positions_BM)
    )
    return [
        [
            [
                (tokenizer.tokens[token], float(p))
                for token, p in zip(ids[i, m], probabilities[i, m], strict=True)
            ]
            for m in range(len(masks[i]))
        ]
        for i in range(B)
    ]


@functools.cache
def _compiled(model: nn.Module, top: int) -> Callable:
    """One function for all calls, so that each shape compiles once."""

    def top_tokens(params, input_ids_BL, attention_mask_BL, positions_BM):
        output = model.apply(
            {"params": params},
            input_ids_BL,
            jnp.zeros_like(input_ids_BL),
            attention_mask_BL,
            positions_BM,
            deterministic=True,
        )
        return jax.lax.top_k(jax.nn.softmax(output.mlm_logits_BMV), top)

    return jax.jit(top_tokens)


def _complete(model: BertForPreTraining, params: dict[str, Any]) -> dict[str, Any]:
    """Zeros for a pooler and an NSP head that are missing: no token depends on them."""
    ids = jnp.zeros((1, 8), jnp.int32)
    shapes = jax.eval_shape(
        lambda key: model.init(key, ids, ids, ids, ids, deterministic=True)["params"],
        jax.random.key(0),
    )
    heads = {"nsp": shapes["nsp"], "pooler": shapes["bert"]["pooler"]}
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), heads)
    bert = {"pooler": zeros["pooler"]} | params["bert"]
    return {"nsp": zeros["nsp"]} | params | {"bert": bert}
