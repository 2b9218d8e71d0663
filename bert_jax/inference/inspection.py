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

from bert_jax.data.checksums import check_now
from bert_jax.data.examples import ExampleConfig, ExampleSource
from bert_jax.data.store import open_store
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.interop.find import check_checkpoint
from bert_jax.progress import aligned
from bert_jax.settings import flat

Values = dict[str, Any]

_QUANTILES = {"median": 0.5, "90%": 0.9, "99%": 0.99, "longest": 1.0}


def inspect(
    path: os.PathLike | str,
    *,
    examples: int = 3,
    sequence_length: int = 128,
    seed: int = 0,
    masking: str = "token",
    checksums: bool = False,
) -> Values:
    """A summary of the checkpoint or the prepared text at ``path``.

    The value of "what" is "text" for a folder of prepared text, otherwise "checkpoint".

    examples: number of training examples of prepared text, which depend on
    ``sequence_length``, ``masking`` and ``seed``. checksums: whether to read all files of
    prepared text and compare their checksums, which are added to text that has none.

    Raises UserError for any other path and for a damaged file.
    """
    if not Path(path, "index.json").is_file():
        return {"path": str(path), "what": "checkpoint"} | _checkpoint(path)
    store, tokenizer = open_store(Path(path))
    if checksums:
        check_now(store)
    config = ExampleConfig(masking=masking)
    source = ExampleSource(
        store,
        tokenizer,
        config,
        sequence_length=sequence_length,
        max_predictions=math.ceil(config.mask_rate * sequence_length),
        seed=seed,
    )
    summary = {"path": str(path), "what": "text"} | _text(source)
    return summary | {"examples": _examples(source, np.arange(examples))}


def _checkpoint(path: os.PathLike | str) -> Values:
    check_checkpoint(path)
    # Imported late: prepared text and a wrong path need no JAX.
    from flax.traverse_util import flatten_dict

    from bert_jax.interop.load import load

    checkpoint = load(path, scan_layers=False)
    config, tokenizer = checkpoint.config, checkpoint.tokenizer
    count, parameters = 0, []
    for name, array in flatten_dict(checkpoint.params, sep="/").items():
        if "/word/" in name and len(array) == config.word_rows:
            array = array[: config.vocab_size]  # the other rows are padding
        row = {"name": name, "shape": [*array.shape], "count": array.size}
        row["mean"] = float(array.mean(dtype=np.float64))
        row["deviation"] = float(array.std(dtype=np.float64))
        parameters.append(row)
        count += array.size
    parameters.sort(key=lambda row: by_number(row["name"]))
    vocabulary = None
    if tokenizer is not None:
        vocabulary = _summary(tokenizer)
    return {
        "source": checkpoint.source,
        "head": checkpoint.head,
        "labels": checkpoint.labels,
        "missing": checkpoint.missing,
        "unexpected": checkpoint.unexpected,
        "config": dataclasses.asdict(config),
        "vocabulary": vocabulary,
        "count": count,
        "parameters": parameters,
    }


def by_number(name: str) -> list[str]:
    """A sort key that puts layer_2 before layer_10."""
    return [part.zfill(4) for part in re.split(r"(\d+)", name)]


def _text(source: ExampleSource) -> Values:
    store, info = source.store, source.store.info
    offsets, bounds = store.sentence_offsets, store.document_sentences
    return {
        "documents": info.documents,
        "sentences": info.sentences,
        "tokens": info.tokens,
        "vocabulary": _summary(source.vocabulary),
        "lengths": {
            "tokens of a sentence": _lengths(np.diff(offsets)),
            "sentences of a document": _lengths(np.diff(bounds)),
            "tokens of a document": _lengths(np.diff(offsets[bounds])),
        },
        "settings": info.settings,
    }


def _lengths(lengths: np.ndarray) -> dict[str, float]:
    quantiles = np.quantile(lengths, [*_QUANTILES.values()], method="higher").tolist()
    mean = {"mean": float(lengths.mean())}
    return mean | dict(zip(_QUANTILES, quantiles, strict=True))


def _summary(tokenizer: Tokenizer) -> Values:
    return {
        "kind": tokenizer.kind,
        "cased": not tokenizer.lower_case,
        "accents": not tokenizer.strip_accents,
        "size": tokenizer.vocab_size,
    }


def _examples(source: ExampleSource, samples: Sequence[int]) -> list[Values]:
    """The training examples with these numbers, in ascending order, as texts of tokens.

    "tokens": number of tokens. "a" and "b": the two texts as the model reads them. A token
    that the model must predict is written input{correct}. "b" is empty if there is no
    second text. "is_next": whether B follows A; None without next sentence prediction.
    """
    batch, tokens = source.draw(samples), source.vocabulary.tokens
    lengths = source.text_lengths(samples).tolist()
    examples = []
    for i, ids in enumerate(batch["input_ids"]):
        length = int(batch["attention_mask"][i].sum())
        _, cut = source.vocabulary.starts(*lengths[i])
        if not lengths[i][1]:
            cut = length
        shown = [tokens[t] for t in ids[:length]]
        used = batch["mlm_weights"][i] > 0
        right = batch["mlm_ids"][i][used]
        for place, token in zip(batch["mlm_positions"][i][used], right, strict=True):
            shown[place] += f"{{{tokens[token]}}}"
        a, b = " ".join(shown[:cut]), " ".join(shown[cut:])
        is_next = None
        if source.config.next_sentence:
            is_next = not batch["nsp_labels"][i]
        examples.append({"tokens": length, "a": a, "b": b, "is_next": is_next})
    return examples


def describe(summary: Values) -> Iterator[str]:
    """Yields the result of :func:`inspect` as lines: single values, tables, examples."""
    lengths = [{"": name} | row for name, row in summary.get("lengths", {}).items()]
    tables = {"lengths", "parameters", "examples"}
    single = {name: x for name, x in summary.items() if name not in tables}
    yield from aligned([[name, _cell(value)] for name, value in flat(single)])
    for rows, right in ((lengths, 1), (summary.get("parameters"), 3)):
        if rows:
            yield ""
            cells = [[*map(_cell, row.values())] for row in rows]
            yield from aligned([[*rows[0]], *cells], right=right)
    labels = {True: ", B follows A", False: ", B is from elsewhere", None: ""}
    for number, example in enumerate(summary.get("examples", ())):
        label = labels[example["is_next"]]
        yield f"\nexample {number}: {example['tokens']} tokens{label}"
        for text in ("a", "b"):
            if example[text]:
                yield f"  {text.upper()}: {example[text]}"


def _cell(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
