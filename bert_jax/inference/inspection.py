"""Summaries of a checkpoint and of prepared text.

:func:`inspect` returns plain values, as in JSON, and :func:`describe` formats them as
lines. Prepared text is read without JAX.
"""

import dataclasses
import math
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.examples import ExampleConfig, ExampleSource
from bert_jax.data.store import TokenStore
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.interop.find import check_checkpoint
from bert_jax.progress import aligned

Values = dict[str, Any]

_DOCUMENTS = 1024  # of a store, that are in memory together
_QUANTILES = {"median": 0.5, "90%": 0.9, "99%": 0.99, "longest": 1.0}


def inspect(
    path: os.PathLike | str,
    *,
    examples: int = 3,
    sequence_length: int = 128,
    seed: int = 0,
    masking: str = "token",
) -> Values:
    """A summary of the checkpoint or the prepared text at ``path``.

    The value of "what" is "text" for a folder of prepared text, otherwise "checkpoint".

    examples: number of training examples that are drawn from prepared text with
    ``sequence_length``, ``masking`` and ``seed``. Raises UserError for any other path.
    """
    if not Path(path, "index.json").is_file():
        return {"path": str(path), "what": "checkpoint"} | _checkpoint(path)
    config = ExampleConfig(masking=masking)
    source = ExampleSource(
        TokenStore(path),
        load_tokenizer(path),
        config,
        sequence_length=sequence_length,
        max_predictions=math.ceil(config.mask_rate * sequence_length),
        seed=seed,
    )
    return {"path": str(path), "what": "text"} | _text(source, examples)


def _checkpoint(path: os.PathLike | str) -> Values:
    check_checkpoint(path)
    # Imported late: prepared text and a wrong path need no JAX.
    from flax.traverse_util import flatten_dict

    from bert_jax.interop.load import load

    checkpoint = load(path, scan_layers=False)
    config, tokenizer = checkpoint.config, checkpoint.tokenizer
    parameters = []
    arrays = flatten_dict(checkpoint.params, sep="/")
    for name in sorted(arrays, key=_by_number):
        array = arrays[name]
        if "/word/" in name and len(array) == config.word_rows:
            array = array[: config.vocab_size]  # the other rows are padding
        parameters.append(
            {
                "name": name,
                "shape": list(array.shape),
                "dtype": checkpoint.dtypes.get(name, "float32"),
                "count": array.size,
                "mean": float(array.mean(dtype=np.float64)),
                "deviation": float(array.std(dtype=np.float64)),
            }
        )
    names = ("source", "head", "labels", "missing", "unexpected")
    return {name: getattr(checkpoint, name) for name in names} | {
        "config": dataclasses.asdict(config),
        "vocabulary": tokenizer and _summary(tokenizer),
        "count": sum(parameter["count"] for parameter in parameters),
        "parameters": parameters,
    }


def _by_number(name: str) -> list[str]:
    """Sorts layer_2 before layer_10."""
    return [part.zfill(4) for part in re.split(r"(\d+)", name)]


def _text(source: ExampleSource, examples: int) -> Values:
    store, info = source.store, source.store.info
    offsets, bounds = store.sentence_offsets, store.document_sentences
    unknown = 0
    for ranges in np.array_split(
        np.stack([bounds[:-1], bounds[1:]], axis=1), -(-info.documents // _DOCUMENTS)
    ):
        ids = np.concatenate(store.read_sentences(ranges)) & ~np.int64(store.word_bit)
        unknown += int(np.count_nonzero(ids == source.vocabulary.unk_id))
    return {
        "documents": info.documents,
        "sentences": info.sentences,
        "tokens": info.tokens,
        "unknown": unknown / info.tokens,
        "vocabulary": _summary(source.vocabulary),
        "lengths": {
            "tokens of a sentence": _lengths(np.diff(offsets)),
            "sentences of a document": _lengths(np.diff(bounds)),
            "tokens of a document": _lengths(np.diff(offsets[bounds])),
        },
        "settings": info.settings,
        "examples": drawn_examples(source, np.arange(examples)),
    }


def _lengths(lengths: np.ndarray) -> dict[str, float]:
    quantiles = np.quantile(lengths, list(_QUANTILES.values()), method="higher")
    values = dict(zip(_QUANTILES, quantiles.tolist(), strict=True))
    return {"mean": float(lengths.mean()), **values}


def drawn_examples(source: ExampleSource, samples: Sequence[int]) -> list[Values]:
    """The training examples with these numbers, in ascending order, as tokens.

    "a" and "b" are the tokens that the model reads; "b" is empty if there is no second
    text. "masked" has for each prediction "position" (0 is [CLS]), "shown" (the token at
    this position) and "token" (the right token). "is_next" is whether B follows A; None
    without next sentence prediction.
    """
    batch, tokens = source.draw(samples), source.vocabulary.tokens
    examples = []
    for i, length in enumerate(batch["attention_mask"].sum(axis=1)):
        ids, types = batch["input_ids"][i, :length], batch["token_type_ids"][i, :length]
        used = batch["mlm_weights"][i] > 0
        positions = batch["mlm_positions"][i][used].tolist()
        right = batch["mlm_ids"][i][used].tolist()
        has_label = source.config.next_sentence
        examples.append(
            {
                "a": [tokens[t] for t in ids[types == 0]],
                "b": [tokens[t] for t in ids[types == 1]],
                "masked": [
                    {"position": p, "shown": tokens[ids[p]], "token": tokens[t]}
                    for p, t in zip(positions, right, strict=True)
                ],
                "is_next": not batch["nsp_labels"][i] if has_label else None,
            }
        )
    return examples


def marked(example: Values) -> list[str]:
    """The tokens of an example, with {the right token} after each predicted token."""
    tokens = [*example["a"], *example["b"]]
    for masked in example["masked"]:
        tokens[masked["position"]] += f"{{{masked['token']}}}"
    return tokens


def _summary(tokenizer: Tokenizer) -> Values:
    return {
        "kind": tokenizer.kind,
        "cased": not tokenizer.lower_case,
        "accents": not tokenizer.strip_accents,
        "size": tokenizer.vocab_size,
    }


def describe(found: Values) -> Iterator[str]:
    """The result of :func:`inspect` in lines: single values, tables, examples."""
    single, tables = {}, []
    for name, value in found.items():
        if name == "lengths":
            tables.append([{"": n, **lengths} for n, lengths in value.items()])
        elif name == "parameters":
            tables.append(value)
        elif isinstance(value, dict):
            single |= {f"{name}.{key}": inner for key, inner in value.items()}
        elif name != "examples":
            single[name] = value
    yield from aligned([name, _cell(value)] for name, value in single.items())
    for rows in tables:
        yield ""
        kinds = [*map(type, rows[0].values())]
        numbers = next(i for i, kind in enumerate(kinds) if kind in (int, float))
        cells = [[_cell(value) for value in row.values()] for row in rows]
        yield from aligned([[*rows[0]], *cells], right=numbers)
    for number, example in enumerate(found.get("examples", ())):
        label = {True: ", B follows A", False: ", B is from elsewhere", None: ""}
        tokens, cut = marked(example), len(example["a"])
        yield f"\nexample {number}: {len(tokens)} tokens{label[example['is_next']]}"
        for name, part in (("A", tokens[:cut]), ("B", tokens[cut:])):
            if part:
                yield f"  {name}: {' '.join(part)}"


def _cell(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
