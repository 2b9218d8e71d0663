"""The likeliest tokens for each [MASK] of a text, by a pretrained model."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.data.batching import Features
from bert_jax.data.tokenizer import MASK, Tokenizer
from bert_jax.errors import UserError
from bert_jax.inference.evaluation import single_text
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.model.bert import PADDING_LOGIT, BertForPreTraining
from bert_jax.model.tokens import Tokens
from bert_jax.tasks.rows import text_of
from bert_jax.tasks.task import Answer, Outputs, Task, with_id


class MaskedText(NamedTuple):
    """A text with [MASK] in it. input_ids: int32 (L,), with [CLS] and [SEP]."""

    text: str
    input_ids: np.ndarray
    id: Any = None


@dataclasses.dataclass(frozen=True)
class FillMaskConfig:
    """max_length: maximum number of tokens of a text. top: number of tokens of a [MASK]."""

    max_length: int
    top: int


class FillMask(Task):
    """Fills in blanks with the MLM head. The task needs no training and has no files."""

    family = "fill_mask"
    head = "pretraining"
    columns: ClassVar = {"text": ("text",), "label": ("label",)}
    any_columns, tabs = True, False

    def __init__(self, config: FillMaskConfig, tokenizer: Tokenizer):
        super().__init__(config)
        self._tokenizer = tokenizer
        if not 1 <= config.top <= tokenizer.vocab_size:
            raise UserError(
                f"top={config.top}, expected 1 to {tokenizer.vocab_size}, the size of the "
                "vocabulary"
            )

    def row(
        self, where: str, values: Mapping[str, Any], labelled: bool = False
    ) -> MaskedText:
        """A text and its tokens. Raises UserError for a text without [MASK]."""
        del labelled
        text, tokenizer = text_of(where, values, ["text"]), self._tokenizer
        if MASK not in text:
            raise UserError(
                f"{where}: no {MASK} in {text[:60]!r}; this checkpoint is not fine-tuned "
                f"and only fills in {MASK}: put it where a token is missing, or fine-tune "
                "the checkpoint with bert_jax.finetune"
            )
        limit = self.config.max_length
        ids = single_text(tokenizer, where, text, limit, allow_mask=True)
        return MaskedText(text, ids, values.get("id"))

    def encode(self, rows: list[MaskedText], tokenizer: Tokenizer) -> Features:
        """A copy of a text for each of its blanks. "place": the position of the blank."""
        places = [np.flatnonzero(row.input_ids == tokenizer.mask_id) for row in rows]
        numbers = np.repeat(np.arange(len(rows), dtype=np.int32), [*map(len, places)])
        ids = [rows[i].input_ids for i in numbers]
        types = [np.zeros_like(own) for own in ids]
        return Features(ids, types, numbers, inputs={"place": np.concatenate(places)})

    def decode(
        self, rows: list[MaskedText], features: Features, outputs: Outputs
    ) -> list[Answer]:
        """{"text", "blanks": for each [MASK] a list of {"token", "probability"}}.

        outputs: see :func:`top_tokens`.
        """
        answers = [with_id(row, {"text": row.text, "blanks": []}) for row in rows]
        for i, (probabilities, ids) in zip(features.row, outputs, strict=True):
            answers[i]["blanks"].append(
                [
                    {"token": self._tokenizer.tokens[int(t)], "probability": float(p)}
                    for t, p in zip(ids, probabilities, strict=True)
                ]
            )
        return answers

    def cells(self, row: MaskedText, answer: Answer) -> list[dict[str, str]]:
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


def top_tokens(
    model: BertForPreTraining, top: int, params: Any, batch: dict[str, jax.Array]
) -> jax.Array:
    """Probabilities and ids of the likeliest tokens, float32 (R, S, 2, top)."""
    logits_RSW = mlm_logits(model, params, batch, batch["starts"] + batch["place"])
    probabilities, ids = jax.lax.top_k(jax.nn.softmax(logits_RSW), top)
    return jnp.stack([probabilities, ids.astype(jnp.float32)], axis=2)


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
            found = model.lm_logits(tokens, positions_BQ, deterministic=True)
            return sum(jax.nn.log_softmax(own_BQW) for own_BQW in found)
        encoded = model.bert.encode(
            tokens, deterministic=True, positions_BQ=positions_BQ, pool=False
        )
        return model.mlm(encoded.sequence_BLD, model.bert.embeddings.word)

    return model.apply({"params": params}, method=logits)
