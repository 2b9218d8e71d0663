"""What is at a path: a checkpoint, prepared text or a vocabulary.

:func:`inspect` answers in plain values, as JSON has them, and :func:`describe` in lines for
people. Text and vocabularies are looked at without JAX.
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
from bert_jax.data.tokenizer import SPECIAL_TOKENS, Tokenizer
from bert_jax.data.tokenizer_files import find_vocabulary, load_tokenizer
from bert_jax.data.wordpiece import PREFIX
from bert_jax.errors import UserError
from bert_jax.files import ending
from bert_jax.inference.lines import aligned
from bert_jax.interop.find import ORIGINS, check_checkpoint, find_files
from bert_jax.progress import Progress

Values = dict[str, Any]

_DOCUMENTS = 1024  # of a store, read at a time
_SENTENCES = 20_000  # of the sample whose words are counted, at most
_SHOWN = 6  # tokens, or words, that stand for others
_QUANTILES = {"median": 0.5, "90%": 0.9, "99%": 0.99, "longest": 1.0}
_UNUSED = re.compile(r"\[unused\d+\]")
_WORD = re.compile(r"\w+")
_FILES = (".txt", ".model", ".json")  # of a vocabulary


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
    """What is at ``path``; "what" says which of three it is.

    "checkpoint": what ``bert_jax.load`` reads. "text": a folder that prepare wrote.
    "vocabulary": a vocab.txt, a SentencePiece .model, a tokenizer.json, or a folder with
    one of them and no weights.

    sample, text_field: inputs as prepare takes them, on whose words a vocabulary is tried.
    examples: how many are drawn from text, as training draws them with
    ``sequence_length``, ``masking`` and ``seed``. Raises UserError where there is none of
    the three.
    """
    place = Path(path)
    if (place / "index.json").is_file():
        config = ExampleConfig(masking=masking)
        source = ExampleSource(
            TokenStore(place),
            load_tokenizer(place),
            config,
            sequence_length=sequence_length,
            max_predictions=math.ceil(config.mask_rate * sequence_length),
            seed=seed,
        )
        found = {"what": "text", **_text(source, examples)}
    elif _is_vocabulary(place):
        found = {
            "what": "vocabulary",
            **_vocabulary(load_tokenizer(place), sample, text_field),
        }
    else:
        found = {"what": "checkpoint", **_checkpoint(path)}
    return {"path": str(path), **found}


def _is_vocabulary(path: Path) -> bool:
    if path.is_file():
        return ending(path) in _FILES
    try:
        find_files(path)
    except UserError:
        return find_vocabulary(path) is not None
    return False


def _checkpoint(path: os.PathLike | str) -> Values:
    try:
        check_checkpoint(path, "PATH")
    except UserError as error:
        raise UserError(f"{error} (or prepared text, or a vocabulary)") from error
    # Imported late: a wrong path, text and vocabularies need no JAX.
    from flax.traverse_util import flatten_dict

    from bert_jax.interop.load import load

    checkpoint = load(path, scan_layers=False)
    config, tokenizer = checkpoint.config, checkpoint.tokenizer
    parameters = []
    arrays = flatten_dict(checkpoint.params, sep="/")
    for name in sorted(arrays, key=_by_number):
        array = arrays[name]
        if "/word/" in name and len(array) == config.word_rows:
            array = array[: config.vocab_size]  # the rest pads the table
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
    return {
        "source": checkpoint.source,
        "head": checkpoint.head,
        "labels": list(checkpoint.labels),
        "config": dataclasses.asdict(config),
        "vocabulary": tokenizer and _summary(tokenizer),
        "missing": list(checkpoint.missing),
        "unexpected": list(checkpoint.unexpected),
        "count": sum(parameter["count"] for parameter in parameters),
        "parameters": parameters,
    }


def _by_number(name: str) -> list[str]:
    """Sorts layer_2 before layer_10."""
    return [part.zfill(4) for part in re.split(r"(\d+)", name)]


def _text(source: ExampleSource, examples: int) -> Values:
    store, info = source.store, source.store.info
    store.verify()
    offsets, bounds = store.sentence_offsets, store.document_sentences
    return {
        "documents": info.documents,
        "sentences": info.sentences,
        "tokens": info.tokens,
        "token_dtype": np.dtype(info.token_dtype).name,
        "shards": len(info.shards),
        "unknown": _unknown(store, source.vocabulary.unk_id) / info.tokens,
        "vocabulary": _summary(source.vocabulary),
        "lengths": {
            "tokens of a sentence": _lengths(np.diff(offsets)),
            "sentences of a document": _lengths(np.diff(bounds)),
            "tokens of a document": _lengths(np.diff(offsets[bounds])),
        },
        "settings": info.settings,
        "examples": drawn_examples(source, np.arange(examples)),
    }


def _unknown(store: TokenStore, unk_id: int) -> int:
    """Number of [UNK] tokens in a store. Reads every shard."""
    found = 0
    bounds = store.document_sentences
    ranges = np.stack([bounds[:-1], bounds[1:]], axis=1)
    with Progress(
        "reading", total=store.info.tokens, unit="tokens", scale=True
    ) as progress:
        for first in range(0, len(ranges), _DOCUMENTS):
            documents = store.read_sentences(ranges[first : first + _DOCUMENTS])
            ids = np.concatenate(documents) & ~np.int64(store.word_bit)
            found += int(np.count_nonzero(ids == unk_id))
            progress.update(len(ids))
    return found


def _lengths(lengths: np.ndarray) -> dict[str, float]:
    quantiles = np.quantile(lengths, list(_QUANTILES.values()), method="higher")
    values = dict(zip(_QUANTILES, quantiles.tolist(), strict=True))
    return {"mean": float(lengths.mean()), **values}


def drawn_examples(source: ExampleSource, samples: Sequence[int]) -> list[Values]:
    """What the examples with these numbers, ascending, teach, in tokens.

    Of each: "a" and "b", the tokens as the model sees them, "b" empty where there is none;
    "masked", with "position" (0 is [CLS]), "shown" (the token there) and "token" (the
    right one); and "is_next", whether B follows A, None where nobody asks.
    """
    batch, tokens = source.draw(samples), source.vocabulary.tokens
    shown = []
    for i, length in enumerate(batch["attention_mask"].sum(axis=1)):
        ids, types = batch["input_ids"][i, :length], batch["token_type_ids"][i, :length]
        used = batch["mlm_weights"][i] > 0
        positions = batch["mlm_positions"][i][used].tolist()
        right = batch["mlm_ids"][i][used].tolist()
        asked = source.config.next_sentence
        shown.append(
            {
                "a": [tokens[t] for t in ids[types == 0]],
                "b": [tokens[t] for t in ids[types == 1]],
                "masked": [
                    {"position": p, "shown": tokens[ids[p]], "token": tokens[t]}
                    for p, t in zip(positions, right, strict=True)
                ],
                "is_next": not batch["nsp_labels"][i] if asked else None,
            }
        )
    return shown


def marked(example: Values) -> list[str]:
    """The tokens of a drawn example, {the right one} behind each that is predicted."""
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


def _vocabulary(tokenizer: Tokenizer, sample: Sequence[str], text_field: str) -> Values:
    kinds: dict[str, list[str]] = collections.defaultdict(list)
    for token, continues in zip(tokenizer.tokens, tokenizer.continuation, strict=True):
        kinds[_kind(token, continues)].append(token)
    return {
        **_summary(tokenizer),
        "kinds": {
            kind: {"count": len(tokens), "such as": tokens[:_SHOWN]}
            for kind, tokens in kinds.items()
        },
        "sample": {"inputs": list(sample), **_words(tokenizer, sample, text_field)},
    }


def _kind(token: str, continues: bool) -> str:
    if token in SPECIAL_TOKENS:
        return "special"
    if _UNUSED.fullmatch(token):
        return "unused"
    text = token.removeprefix(PREFIX if continues else "\u2581")
    if len(text) <= 1:
        return "single characters"
    if text.isdigit():
        return "numbers"
    return "parts of words" if continues else "words and their beginnings"


def _words(tokenizer: Tokenizer, sample: Sequence[str], text_field: str) -> Values:
    """How many tokens the words of a text take; words are runs of letters and digits."""
    documents = read_documents(sample, text_field=text_field)
    sentences = itertools.chain.from_iterable(documents)
    counts: collections.Counter[str] = collections.Counter()
    for sentence in itertools.islice(sentences, _SENTENCES):
        counts.update(_WORD.findall(sentence))
    if not counts:
        raise UserError(f"{', '.join(sample)} holds no words; name another sample")
    ids = dict(zip(counts, tokenizer.encode_batch(list(counts)), strict=True))
    total = counts.total()

    def share(words: Iterator[str]) -> float:
        return sum(counts[word] for word in words) / total

    several = (word for word, _ in counts.most_common() if len(ids[word]) > 1)
    return {
        "words": total,
        "tokens of a word": sum(len(ids[w]) * n for w, n in counts.items()) / total,
        "words of one token": share(w for w in counts if len(ids[w]) == 1),
        "unknown words": share(w for w in counts if tokenizer.unk_id in ids[w]),
        "commonest of several": {
            word: tokenizer.tokenize(word) for word in itertools.islice(several, _SHOWN)
        },
    }


def describe(found: Values) -> Iterator[str]:
    """The answer of :func:`inspect` in lines."""
    describers = {
        "checkpoint": _describe_checkpoint,
        "text": _describe_text,
        "vocabulary": _describe_vocabulary,
    }
    yield from describers[found["what"]](found)


def _describe_checkpoint(found: Values) -> Iterator[str]:
    labels = f" ({', '.join(found['labels'])})" if found["labels"] else ""
    yield f"{found['path']}: {ORIGINS[found['source']]}"
    facts = {
        "head": found["head"] + labels,
        "vocabulary": _named(found["vocabulary"]),
        "missing": ", ".join(found["missing"]) or "none",
        "unexpected": ", ".join(found["unexpected"]) or "none",
        "parameters": f"{found['count']:,}",
    }
    yield from aligned([[*fact] for fact in (facts | found["config"]).items()])
    yield ""
    rows = [["parameter", "shape", "dtype", "count", "mean", "deviation"]]
    for p in found["parameters"]:
        shape = " x ".join(map(str, p["shape"]))
        numbers = f"{p['count']:,}", f"{p['mean']:.4f}", f"{p['deviation']:.4f}"
        rows.append([p["name"], shape, p["dtype"], *numbers])
    yield from aligned(rows, right=3)


def _describe_text(found: Values) -> Iterator[str]:
    yield f"{found['path']}: prepared text"
    facts = {
        "documents": f"{found['documents']:,}",
        "sentences": f"{found['sentences']:,}",
        "tokens": f"{found['tokens']:,}",
        "[UNK]": f"{found['unknown']:.2%} of them",
        "vocabulary": _named(found["vocabulary"]),
        "shards": f"{found['shards']} of {found['token_dtype']}",
        "inputs": ", ".join(found["settings"].get("inputs", ())),
        "language": found["settings"].get("language", "en"),
    }
    yield from aligned([[*fact] for fact in facts.items()])
    yield ""
    rows = [["", "mean", *_QUANTILES]]
    for name, lengths in found["lengths"].items():
        rows.append([name, *(f"{n:,.1f}".removesuffix(".0") for n in lengths.values())])
    yield from aligned(rows, right=1)
    for number, example in enumerate(found["examples"]):
        yield ""
        yield from _describe_example(number, example)


def _describe_example(number: int, example: Values) -> Iterator[str]:
    label = {True: ", B follows A", False: ", B is from elsewhere", None: ""}
    tokens = marked(example)
    yield f"example {number}: {len(tokens)} tokens{label[example['is_next']]}"
    cut = len(example["a"])
    for name, part in (("A", tokens[:cut]), ("B", tokens[cut:])):
        if part:
            yield f"  {name}: {' '.join(part)}"


def _describe_vocabulary(found: Values) -> Iterator[str]:
    yield f"{found['path']}: a vocabulary, {_named(found)}"
    rows = [["kind of token", "such as", "count"]]
    for name, kind in found["kinds"].items():
        rows.append([name, " ".join(kind["such as"]), f"{kind['count']:,}"])
    yield from aligned(rows, right=2)
    sample = found["sample"]
    yield ""
    yield (
        f"{sample['words']:,} words of {', '.join(sample['inputs'])}: "
        f"{sample['tokens of a word']:.2f} tokens a word, "
        f"{sample['words of one token']:.1%} are one token, "
        f"{sample['unknown words']:.2%} have an [UNK]"
    )
    for word, tokens in sample["commonest of several"].items():
        yield f"  {word}: {' '.join(tokens)}"


def _named(vocabulary: Values | None) -> str:
    if vocabulary is None:
        return "none"
    case = "cased" if vocabulary["cased"] else "uncased"
    if vocabulary["accents"] and not vocabulary["cased"]:
        case += " with accents"
    return f"{vocabulary['kind']}, {case}, {vocabulary['size']:,} tokens"
