"""Changes to a checkpoint: more words, more positions, another head."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from flax import linen as nn

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.wordpiece import PREFIX, WordPieceTokenizer
from bert_jax.errors import UserError, listed
from bert_jax.interop.checkpoint import Checkpoint, Params, initial_shapes
from bert_jax.interop.modules import EXTRA
from bert_jax.model.bilstm import BertWithBiLstm
from bert_jax.parallel.sharding import array_shapes, shape_differences

_NEW_HEAD = "set fresh_head=True to start with a new head"


def with_new_words(checkpoint: Checkpoint, tokenizer: Tokenizer) -> Checkpoint:
    """The checkpoint with a tokenizer that adds tokens to the checkpoint's vocabulary.

    A new word's row of the word table is the mean of the rows of its old tokens, and its
    bias in the MLM head is the mean of their biases. Rows without a token are left out.
    Raises UserError for a tokenizer with another vocabulary.
    """
    old, config = checkpoint.tokenizer, checkpoint.config
    longer = (
        isinstance(tokenizer, WordPieceTokenizer)
        and tokenizer.tokens[: old.vocab_size] == old.tokens
        and tokenizer.with_tokens(old.tokens).fingerprint() == old.fingerprint()
    )
    if not longer and tokenizer.fingerprint() != old.fingerprint():
        raise UserError(
            "the text was prepared with another vocabulary; prepare it with the "
            "checkpoint's vocabulary, or with its extension by bert_jax.vocabulary"
        )
    config = dataclasses.replace(config, vocab_size=tokenizer.vocab_size)
    words = [token.removeprefix(PREFIX) for token in tokenizer.tokens[old.vocab_size :]]

    def extended(rows: np.ndarray, size: int) -> np.ndarray:
        table = list(rows[: old.vocab_size])
        for ids in old.encode_batch(words):
            if not len(ids):  # a word of only accents or control characters
                ids = [old.unk_id]
            table.append(rows[ids].mean(axis=0))
        table = np.stack(table).astype(rows.dtype)
        padding = [(0, size - len(table)), *[(0, 0)] * (rows.ndim - 1)]
        return np.pad(table, padding)

    params = jax.tree.map(np.asarray, checkpoint.params)
    word = params["bert"]["embeddings"]["word"]
    word["embedding"] = extended(word["embedding"], config.word_rows)
    if "mlm" in params:
        bias = params["mlm"]["output_bias"]
        params["mlm"]["output_bias"] = extended(bias, config.vocab_size)
    return dataclasses.replace(
        checkpoint, config=config, params=params, tokenizer=tokenizer
    )


def stretched(checkpoint: Checkpoint, positions: int, path: object) -> Checkpoint:
    """The checkpoint at ``path`` with a longer position table.

    The old positions are kept, so texts up to the old length give the same results. New
    positions are interpolated, as if the table were stretched over all positions, and need
    training. Raises UserError for fewer positions than the table has.
    """
    config = checkpoint.config
    if positions < config.max_positions:
        raise UserError(
            f"max_positions={positions}, but {path} has {config.max_positions}; raise it"
        )
    config = dataclasses.replace(config, max_positions=positions)
    bert = checkpoint.params["bert"]
    embeddings = dict(bert["embeddings"])
    if "position" in embeddings:
        rows_PD = embeddings["position"]["embedding"]
        first_PD, old_PD = np.split(rows_PD, [config.position_offset])
        places_P = np.linspace(0, len(old_PD) - 1, positions)[len(old_PD) :]
        low_P = np.floor(places_P).astype(int)
        high_P = np.minimum(low_P + 1, len(old_PD) - 1)
        share_P1 = (places_P - low_P)[:, None]
        new_PD = old_PD[low_P] * (1 - share_P1) + old_PD[high_P] * share_P1
        new_PD = new_PD.astype(np.float32)
        table_PD = np.concatenate([first_PD, old_PD, new_PD])
        embeddings["position"] = {"embedding": table_PD}
    params = checkpoint.params | {"bert": bert | {"embeddings": embeddings}}
    return dataclasses.replace(checkpoint, config=config, params=params)


def head_params(
    checkpoint: Checkpoint,
    model: nn.Module,
    head: str,
    labels: Sequence[str],
    *,
    fresh_head: bool = False,
) -> tuple[Params, list[str]]:
    """Parameters for a model with this head, and the names of the missing parts.

    A head of the same kind with the same labels is kept, for example from a run on another
    data set, unless ``fresh_head``. Raises UserError for a head of the same kind that does
    not fit.
    """
    bilstm = isinstance(model, BertWithBiLstm)
    if bilstm:
        head = "features"
    shapes = initial_shapes(model)
    bert = checkpoint.params["bert"]
    if not (bilstm and model.feature_config.layers):  # needs the whole encoder
        # A pooler is left out if this head does not use it.
        bert = {name: part for name, part in bert.items() if name in shapes["bert"]}
    is_transform = "transform" in shapes["bert"].get("pooler", {})
    if is_transform and "pooler" not in bert and "mlm" in checkpoint.params:
        # As in transformers: the MLM head and the classifiers share the name "head".
        mlm = checkpoint.params["mlm"]
        bert["pooler"] = {name: mlm[name] for name in shapes["bert"]["pooler"]}
    params = {"bert": bert}
    new = [f"bert/{part}" for part in shapes["bert"] if part not in bert]
    name = next(iter(shapes.keys() - {"bert"}), None)
    if name is None:  # text embeddings
        modules = checkpoint.extra.get(EXTRA, {})
        prompt = modules.get("prompts", {}).get(modules.get("default_prompt_name"))
        if "dense" in checkpoint.params or prompt:
            raise UserError("only encode applies modules.json; remove this file")
        return params, new
    same_kind = checkpoint.head == head
    if not same_kind or fresh_head or name not in checkpoint.params:
        return params, [*new, name]
    trained = checkpoint.labels
    if bilstm:
        trained = tuple(checkpoint.extra.get("data", {}).get("labels", ()))
    if labels and {*labels} == {*trained} and tuple(labels) != trained:
        actual = f"the head has the labels {', '.join(trained)}, the task has them in"
        needed = "leave data.labels out to keep the order of the head"
        raise UserError(f"{actual} the order {', '.join(labels)}; {needed}")
    if labels and trained and tuple(labels) != trained:
        raise UserError(
            f"the checkpoint's head was trained for {', '.join(trained)}, the task has "
            f"{', '.join(labels)}; {_NEW_HEAD}"
        )
    params[name] = checkpoint.params[name]
    wrong = shape_differences(*map(array_shapes, (params[name], shapes[name])))
    if bilstm:
        layers = model.feature_config.layers
        trained_layers = checkpoint.extra.get("features", {}).get("layers", layers)
        if tuple(trained_layers) != layers:
            wrong.append(f"features.layers is {trained_layers}, not {layers}")
    if wrong:
        raise UserError(
            f"the checkpoint's head does not fit the task: {listed(wrong)}; {_NEW_HEAD}"
        )
    if head == "sequence" and bool(labels) != bool(trained):
        learned = ", ".join(trained) or "a number"
        needed = ", ".join(labels) or "a number"
        raise UserError(
            f"the checkpoint's head was trained for {learned}, the task has {needed}; "
            f"{_NEW_HEAD}"
        )
    return params, new
