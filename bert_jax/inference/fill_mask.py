"""What a pretrained model predicts in the place of [MASK]."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.data.batching import Features, inference_batches
from bert_jax.data.tokenizer import MASK, Tokenizer
from bert_jax.errors import UserError
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.model.bert import PADDING_LOGIT, BertForPreTraining
from bert_jax.objectives.heads import model_inputs
from bert_jax.tasks import tables
from bert_jax.tasks.task import Task, with_id


class MaskedText(NamedTuple):
    """A text with [MASK] in it. input_ids: int32 (L,), with [CLS] and [SEP]."""

    text: str
    input_ids: np.ndarray
    id: Any = None


class FillMask(Task):
    """The likeliest tokens for each [MASK] of a text, on one device.

    max_length: the most tokens of a text, [CLS] and [SEP] counted. batch_size: see
    inference_batches(). top: how many tokens an answer has for a [MASK].
    """

    family = "fill_mask"
    columns: ClassVar = {"text": ("text",), "label": ("label",)}
    head = "pretraining"
    any_columns, tabs = True, False

    def __init__(
        self,
        model: BertForPreTraining,
        params: Any,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        batch_size: int = 32,
        top: int = 3,
    ):
        if not 1 <= top <= tokenizer.vocab_size:
            raise UserError(
                f"top={top}, expected 1 to {tokenizer.vocab_size}, the vocabulary"
            )
        super().__init__(None)
        self._params, self._tokenizer = jax.device_put(params), tokenizer
        self.max_length, self._batch_size = max_length, batch_size
        self._top_tokens = jax.jit(functools.partial(_top_tokens, model, top))

    def row(
        self, where: str, values: Mapping[str, Any], labelled: bool = False
    ) -> MaskedText:
        """A text with its tokens. Raises UserError for one without [MASK]."""
        del labelled
        text, tokenizer = tables.text(where, values, ["text"]), self._tokenizer
        if MASK not in text:
            raise UserError(
                f"{where}: no {MASK} in {text[:60]!r}; this checkpoint is not fine-tuned "
                f"and only fills in {MASK}: put it where a token is missing, or fine-tune "
                "the checkpoint with bert_jax finetune"
            )
        ids = tokenizer.encode(text, allow_mask=True)
        ids = np.array([tokenizer.cls_id, *ids, tokenizer.sep_id], np.int32)
        if len(ids) > self.max_length:
            raise UserError(
                f"{where} has {len(ids)} tokens, at most {self.max_length} fit; "
                "shorten it"
            )
        return MaskedText(text, ids, values.get("id"))

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

    def encode(self, *_: Any) -> Features:
        raise NotImplementedError

    decode = encode

    def answers(self, rows: Sequence[MaskedText]) -> list[dict[str, Any]]:
        """One JSON-able answer a row."""
        ids = [row.input_ids for row in rows]
        types = [np.zeros_like(row) for row in ids]
        answers = [with_id(row, {"text": row.text}) for row in rows]
        for batch in inference_batches(
            Features(ids, types, np.arange(len(ids))),
            batch_size=self._batch_size,
            limit=self.max_length,
            pad_id=self._tokenizer.pad_id,
            packed=False,
        ):
            blank_BL = batch.arrays["input_ids"] == self._tokenizer.mask_id
            counts = blank_BL.sum(axis=1)
            blanks_first_BL = np.argsort(~blank_BL, axis=1, kind="stable")
            probabilities, tokens = jax.device_get(
                self._top_tokens(
                    self._params, batch.arrays, blanks_first_BL[:, : counts.max()]
                )
            )
            for b, (row,) in enumerate(batch.rows):
                answers[row]["blanks"] = [
                    [
                        {
                            "token": self._tokenizer.tokens[token],
                            "probability": float(p),
                        }
                        for token, p in zip(
                            tokens[b, m], probabilities[b, m], strict=True
                        )
                    ]
                    for m in range(counts[b])
                ]
        return answers


def _top_tokens(
    model: BertForPreTraining,
    top: int,
    params: Any,
    batch: dict[str, jax.Array],
    positions_BM: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Probabilities and ids of the likeliest tokens at some positions, (B, M, top)."""
    logits_BMW = mlm_logits(model, params, batch, positions_BM)
    return jax.lax.top_k(jax.nn.softmax(logits_BMW), top)


def mlm_params(checkpoint: Checkpoint) -> Any:
    """The parameters of a checkpoint that never predicts a word row without a token.

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
    """float32 (B, Q, W) of the tokens at some positions, by the MLM head alone.

    A causal model predicts each from the tokens before it; of a two-way LSTM they are the
    product of what both directions predict. A checkpoint may lack the pooler and the NSP
    head.
    """
    tokens_BL, packed = model_inputs(batch)
    settings = dict(deterministic=True, positions_BQ=positions_BQ)

    def logits(model: BertForPreTraining) -> jax.Array:
        if model.config.reads != "both sides":
            found = model.lm_logits(*tokens_BL, **packed, **settings)
            return sum(jax.nn.log_softmax(own_BQW) for own_BQW in found)
        encoded = model.bert(*tokens_BL, **packed, **settings, pool=False)
        return model.mlm(encoded.sequence_BLD, model.bert.embeddings.word)

    return model.apply({"params": params}, method=logits)
