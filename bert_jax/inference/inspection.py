"""Summaries of a checkpoint, of prepared text and of a vocabulary.

:func:`inspect` returns plain values, as in JSON, and :func:`describe` formats them as
lines. Prepared text and vocabularies are read without JAX.
"""

import collections
import dataclasses
import itertools
import math
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.data.corpus import read_documents
from bert_jax.data.examples import ExampleConfig, ExampleSource
from bert_jax.data.store import TokenStore
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.tokenizer_files import find_vocabulary, load_tokenizer
from bert_jax.errors import UserError
from bert_jax.files import ending
from bert_jax.interop.find import find_files
from bert_jax.progress import aligned

Values = dict[str, Any]

_DOCUMENTS = 1024  # of a store, that are in memory together
_SENTENCES = 20_000  # of the sample for a vocabulary, at most
_QUANTILES = {"median": 0.5, "90%": 0.9, "99%": 0.99, "longest": 1.0}
_ENDINGS = (".txt", ".model", ".json")  # of the file of a vocabulary


def inspect(
    path: os.PathLike | str,
    *,
    sample: Sequence[str] = ("python-docs",),
    text_field: str = "text",
    examples: int = 3,
    sequence_length: int = 128,
    seed: int = 0,
    masking: str = "token",
) -> Values:
    """A summary of the checkpoint, the text or the vocabulary at ``path``.

    The value of "what" is "checkpoint" for a path that ``bert_jax.load`` reads, "text" for
    a folder of prepared text, or "vocabulary" for a vocab.txt, a SentencePiece .model, a
    tokenizer.json, or a folder with one of these files and without weights.

    sample, text_field: inputs as for prepare; a vocabulary is tried on their words.
    examples: number of training examples that are drawn from prepared text with
    ``sequence_length``, ``masking`` and ``seed``. Raises UserError for any other path.
    """
    place = Path(path)
    if (place / "index.json").is_file():
        found = {"what": "text"}
        found |= _text(_source(place, sequence_length, seed, masking), examples)
    elif _is_vocabulary(place):
        tokenizer = load_tokenizer(place)
        found = {"what": "vocabulary"} | _summary(tokenizer)
        found["sample"] = _words(tokenizer, sample, text_field)
    else:
        found = {"what": "checkpoint"} | _checkpoint(path)
    return {"path": str(path)} | found


def _is_vocabulary(path: Path) -> bool:
    if path.is_file():
        return ending(path) in _ENDINGS
    try:
        find_files(path)
    except UserError:
        return find_vocabulary(path) is not None
    return False


def _checkpoint(path: os.PathLike | str) -> Values:
    # Imported late: prepared text and vocabularies need no JAX.
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


def _source(path: Path, length: int, seed: int, masking: str) -> ExampleSource:
    config = ExampleConfig(masking=masking)
    return ExampleSource(
        TokenStore(path),
        load_tokenizer(path),
        config,
        sequence_length=length,
        max_predictions=math.ceil(config.mask_rate * length),
        seed=seed,
    )


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


def _words(tokenizer: Tokenizer, sample: Sequence[str], text_field: str) -> Values:
    """Numbers of tokens in the words of a text; a word is a run of letters and digits."""
    documents = read_documents(sample, text_field=text_field)
    sentences = itertools.chain.from_iterable(documents)
    counts: collections.Counter[str] = collections.Counter()
    for sentence in itertools.islice(sentences, _SENTENCES):
        counts.update(re.findall(r"\w+", sentence))
    if not counts:
        raise UserError(f"{', '.join(sample)} has no words; name another sample")
    sizes = np.zeros(len(counts))
    unknown = np.zeros(len(counts), bool)
    for i, ids in enumerate(tokenizer.encode_batch(list(counts))):
        sizes[i], unknown[i] = len(ids), tokenizer.unk_id in ids
    weights = np.array([*counts.values()]) / counts.total()
    return {
        "inputs": list(sample),
        "words": counts.total(),
        "tokens of a word": float(weights @ sizes),
        "words of one token": float(weights @ (sizes == 1)),
        "unknown words": float(weights @ unknown),
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
