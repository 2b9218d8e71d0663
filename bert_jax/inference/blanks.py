"""What a pretrained model puts in the place of [MASK]."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.data.tokenizer_base import MASK
from bert_jax.errors import UserError
from bert_jax.inference.answering import Answers
from bert_jax.inference.batching import lengths_up_to
from bert_jax.inference.fill_mask import fill_mask
from bert_jax.inference.lines import chunks
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.load import check_length
from bert_jax.model.bert import BertForPreTraining


@dataclasses.dataclass(frozen=True, slots=True)
class Blank:
    """A text with [MASK] in it, and its tokens, [CLS] and [SEP] counted."""

    where: str
    text: str
    length: int


class BlankAnswers:
    """The likeliest tokens for each [MASK] of a text, on one device."""

    family = "fill_mask"

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
        self._params = jax.device_put(_whole(self._model, checkpoint.params))

    def stream(self, lines: Iterable[str], name: str, size: int) -> Iterator[Answers]:
        """Answers of ``size`` texts at a time."""
        first = 1
        for part in chunks(lines, size):
            rows = [
                self._row(line, f"{name}:{number}")
                for number, line in enumerate(part, first)
            ]
            first += len(part)
            yield Answers(rows, self._answer(rows), 0)

    def _row(self, line: str, where: str) -> Blank:
        text = line.removeprefix("\ufeff")
        if MASK not in text:
            raise UserError(
                f"{where}: no {MASK} in {text[:60]!r}; put {MASK} where a token is missing"
            )
        length = 2 + len(self._tokenizer.encode(text, allow_mask=True))
        if length > self.max_length:
            raise UserError(
                f"{where} has {length} tokens, at most {self.max_length} fit; shorten it"
            )
        return Blank(where, text, length)

    def _answer(self, rows: Sequence[Blank]) -> list[dict[str, Any]]:
        lengths = np.array([row.length for row in rows])
        order = np.argsort(lengths, kind="stable")
        answers: list[Any] = [None] * len(rows)
        for start in range(0, len(order), self._batch_size):
            batch = order[start : start + self._batch_size]
            texts = [rows[i].text for i in batch]
            # Repeated up to a power of two, so that few shapes are compiled.
            full = min(1 << (len(texts) - 1).bit_length(), self._batch_size)
            filled = fill_mask(
                self._model,
                self._params,
                self._tokenizer,
                texts + texts[:1] * (full - len(texts)),
                length=next(
                    length
                    for length in lengths_up_to(self.max_length)
                    if length >= lengths[batch].max()
                ),
                top=self._top,
            )
            for i, blanks in zip(batch, filled, strict=False):
                answers[i] = {
                    "text": rows[i].text,
                    "blanks": [
                        [{"token": token, "probability": p} for token, p in blank]
                        for blank in blanks
                    ],
                }
        return answers


def _whole(model: BertForPreTraining, params: dict[str, Any]) -> dict[str, Any]:
    """Zeros for a pooler and an NSP head that are not there: no token depends on them."""
    ids = jnp.zeros((1, 8), jnp.int32)
    shapes = jax.eval_shape(
        lambda key: model.init(key, ids, ids, ids, ids, deterministic=True)["params"],
        jax.random.key(0),
    )

    def zeros(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), tree)

    bert = {"pooler": zeros(shapes["bert"]["pooler"])} | params["bert"]
    return {"nsp": zeros(shapes["nsp"])} | params | {"bert": bert}
