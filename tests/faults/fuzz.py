"""Mutated files through every reader: any bytes give a result or one clear error.

A case has a second of the processor's time and 256 MiB of memory beyond what its process
had. Anything but a result or a UserError of one line is a finding: its bytes and its
traceback are kept in a folder, one for each place that raised.

usage:
  python tests/faults/fuzz.py [READER ...] [--cases 200000] [--seed 0] [--keep build/fuzz]
"""

import argparse
import collections
import contextlib
import dataclasses
import functools
import gzip
import hashlib
import io
import json
import logging
import mmap
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import threading
import time
import traceback
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import google_crc32c
import jax
import numpy as np
from flax import traverse_util
from safetensors.numpy import save

from bert_jax import locks, tasks
from bert_jax.data import store
from bert_jax.data.corpus import read_documents
from bert_jax.data.store import TokenStore
from bert_jax.data.token_offsets import encode_with_offsets
from bert_jax.data.tokenizer import SPECIAL_TOKENS, WordPieceTokenizer
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.data.vocabulary_training import train_vocabulary
from bert_jax.errors import UserError
from bert_jax.files import read_json
from bert_jax.inference.score import read_sets
from bert_jax.interop import load as loading
from bert_jax.interop.checkpoint import parameter_shapes
from bert_jax.interop.config_json import read_config
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.interop.load import Checkpoint, load, save_workdir
from bert_jax.interop.tensorflow import read_checkpoint
from bert_jax.interop.weights import read_safetensors, read_torch, read_weights
from bert_jax.model.config import BertConfig
from bert_jax.progress import show_progress
from bert_jax.settings import from_settings, to_dict
from bert_jax.tasks.families import FAMILIES
from bert_jax.training import study_table, sweep
from bert_jax.training.checkpoints import read_params, write_params
from bert_jax.training.config import StudyConfig, resume_differences, train_config
from bert_jax.training.run import check_owner
from bert_jax.training.study import Part, finished

GOLDEN = Path(__file__).parent.parent / "golden"
SECONDS, MEMORY = 1.0, 256 << 20
_DEAD = 20  # seconds after which a process that answers no signal is killed
LONGEST = 1 << 14  # bytes of a case, except where its seed is longer


@dataclasses.dataclass(frozen=True)
class Reader:
    """file: what a case is called in a folder of its own. seeds: contents to begin with.

    read: reads the folder. beside: other files of the folder. sealed: a case with its
    checksums put right, as who means harm would; half of the cases are given to it.
    """

    file: str
    seeds: Callable[[], list[bytes]]
    read: Callable[[Path], object]
    beside: Callable[[], dict[str, bytes]] = dict
    sealed: Callable[[bytes], bytes] | None = None


@functools.cache
def tokenizer() -> WordPieceTokenizer:
    tokens = [*SPECIAL_TOKENS, *"abcdefghijklmnopqrstuvwxyz.,!?", "the", "##e", "##s"]
    return WordPieceTokenizer(tokens, lower_case=True)


@functools.cache
def sentencepiece():
    text = (GOLDEN / "pretraining_data/moby_dick_sentences.txt").read_text()
    return train_vocabulary(text.split("\n")[:400], 200, kind="sentencepiece")


def golden(*names: str) -> Callable[[], list[bytes]]:
    return lambda: [(GOLDEN / name).read_bytes() for name in names]


def texts(*contents: str) -> Callable[[], list[bytes]]:
    return lambda: [content.encode() for content in contents]


def corpus(form: str) -> Callable[[Path], object]:
    return lambda folder: sum(1 for _ in read_documents([str(folder)], format=form))


def encode(folder: Path) -> None:
    text = next(folder.iterdir()).read_bytes().decode("utf-8", "surrogateescape")
    for kind in (tokenizer(), sentencepiece()):
        kind.encode_batch([text])
        encode_with_offsets([text], kind)


def rows(task) -> Callable[[Path], object]:
    """The training rows of a task, their sequences, and its files of made-up answers."""

    def read(folder: Path) -> None:
        own = type(task)(dataclasses.replace(task.config, dir=str(folder)))
        found = own.read("train")
        features = own.features(found, tokenizer())
        shape = {"choice": (), "sequence": (own.outputs,), "mean": (4,)}
        random = np.random.default_rng(0)
        outputs = [
            random.normal(size=shape.get(own.head, (len(ids), own.outputs)))
            for ids in features.input_ids
        ]
        predictions = own.predictions(found, features, outputs)
        split = "test" if "test" in own.source.splits else "train"
        for text in own.files(found, predictions, split).values():
            text.encode()
        json.dumps(predictions, allow_nan=False, ensure_ascii=False).encode()

    return read


def lines(family: str, **settings) -> Callable[[Path], object]:
    """What predict reads."""
    kind = FAMILIES[family]
    task = kind(kind.config_class(**settings))

    def read(folder: Path) -> None:
        given = [
            task.row(where, task.values(where, row, labelled=False), labelled=False)
            for where, row in task.given_rows(next(folder.iterdir()))
        ]
        if given:
            task.features(given, tokenizer())

    return read


def squad_json() -> list[bytes]:
    answers = [{"text": "sea", "answer_start": 4}]
    qas = [
        {"id": "1", "question": "What?", "answers": answers},
        {"id": "2", "question": "Who?", "answers": [], "is_impossible": True},
    ]
    article = {
        "title": "a",
        "paragraphs": [{"context": "The sea. A ship.", "qas": qas}],
    }
    row = {"id": "3", "question": "What?", "context": "The sea.", "answers": ["sea"]}
    return [json.dumps({"version": "1", "data": [article]}).encode()] + [
        json.dumps(row | {"answers": given}).encode()
        for given in (["sea"], {"text": ["sea"], "answer_start": [4]}, answers)
    ]


def files(folder: Path, *names: str) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names}


def small_torch(form: str) -> Callable[[], list[bytes]]:
    """The golden file, and its pickle with a tensor of six numbers."""
    from zipfile import ZipFile

    def seeds() -> list[bytes]:
        storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000"
        storage += b"X\x03\x00\x00\x00cpuK\x06"
        storage += b"NtQ" if form == "stream" else b"tQ"
        pickled = (
            b"\x80\x02}q\x00X\x01\x00\x00\x00actorch._utils\n_rebuild_tensor_v2\n("
        )
        pickled += storage + b"K\x00K\x02K\x03\x86K\x03K\x01\x86"
        pickled += b"\x89ccollections\nOrderedDict\n)RtRs."
        if form == "stream":
            content = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
            content += b"\x80\x02M\xe9\x03.\x80\x02}X\r\x00\x00\x00little_endian\x88s."
            content += pickled + b"\x80\x02]X\x01\x00\x00\x000a."
            return [content + struct.pack("<q6f", 6, *range(6))]
        buffer = io.BytesIO()
        with ZipFile(buffer, "w") as file:
            file.writestr("archive/data.pkl", pickled)
            file.writestr("archive/data/0", struct.pack("<6f", *range(6)))
        return [buffer.getvalue()]

    return seeds


@functools.cache
def small_store() -> dict[str, bytes]:
    from bert_jax.data.preparation import prepare

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "a.txt").write_text("The sea. A ship.\n\n\nThe sea is the sea.\n")
        prepare([str(folder / "a.txt")], tokenizer(), folder / "store", workers=1)
        paths = [path for path in (folder / "store").rglob("*") if path.is_file()]
        return {str(p.relative_to(folder / "store")): p.read_bytes() for p in paths}


def in_store(name: str, sealed: Callable[[bytes], bytes] | None = None) -> Reader:
    def read(folder: Path) -> None:
        store = TokenStore(folder)
        store.verify()
        store.read_sentences(np.array([[0, 1], [1, store.info.sentences]]))

    def others() -> dict[str, bytes]:
        return {n: content for n, content in small_store().items() if n != name}

    return Reader(name, lambda: [small_store()[name]], read, others, sealed)


def sealed_index(content: bytes) -> bytes:
    """A store's index.json with the checksum of what it says."""
    values = json.loads(content)
    values.pop("checksum", None)
    checksum = zlib.crc32(json.dumps(values, sort_keys=True).encode())
    return json.dumps(values | {"checksum": checksum}).encode()


def store_part() -> list[bytes]:
    """Sizes of a part of a store that is not finished."""
    sizes = {name: np.arange(1, 4) for name in store._ARRAYS.values()}
    buffer = io.BytesIO()
    np.savez(buffer, checksum=np.array(7), **sizes)
    return [buffer.getvalue()]


def pairs_zip() -> list[bytes]:
    from zipfile import ZIP_DEFLATED, ZipFile

    buffer = io.BytesIO()
    with ZipFile(buffer, "w", ZIP_DEFLATED) as file:
        row = {"sentence_good": "A sea.", "sentence_bad": "Sea a."}
        file.writestr("data/a.jsonl", f"{json.dumps(row)}\n" * 3)
        file.writestr("data/b.jsonl", f"{json.dumps(row)}\n")
    return [buffer.getvalue()]


def varint(number: int) -> bytes:
    """7 bits a byte, the last ones first."""
    parts = []
    while number >= 128:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def masked_crc(content: bytes) -> bytes:
    """A checksum as LevelDB and TensorFlow write it."""
    crc = google_crc32c.value(content)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def table_block(pairs: list[tuple[bytes, bytes]]) -> bytes:
    """Of a LevelDB table, with its trailer."""
    content = b"".join(
        b"\0" + varint(len(key)) + varint(len(value)) + key + value
        for key, value in pairs
    )
    content += struct.pack("<IIB", 0, 1, 0)
    return content + masked_crc(content)


def small_tensorflow() -> dict[str, bytes]:
    """A checkpoint of two variables: its index and its data."""
    arrays = {b"a": np.arange(6, dtype="<f4").reshape(2, 3), b"b/c": np.ones(3, "<i8")}
    data, pairs = b"", [(b"", b"\x08\x01\x1a\x02\x08\x01")]
    for name, array in arrays.items():
        raw = array.tobytes()
        dims = b"".join(b"\x12\x02\x08" + varint(n) for n in array.shape)
        entry = b"\x08" + varint(1 if array.dtype == np.float32 else 9)
        entry += b"\x12" + varint(len(dims)) + dims
        entry += b"\x20" + varint(len(data)) + b"\x28" + varint(len(raw))
        pairs.append((name, entry + b"\x35" + masked_crc(raw)))
        data += raw
    block = table_block(pairs)
    places = table_block([(b"c", varint(0) + varint(len(block) - 5))])
    footer = varint(0) * 2 + varint(len(block)) + varint(len(places) - 5)
    footer = footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)
    return {"index": block + places + footer, DATA: data}


def sealed_table(content: bytes) -> bytes:
    """The table with the checksums of its blocks, if they are where they were."""
    content = bytearray(content)
    lengths = [len(small_tensorflow()["index"]), len(content)]
    end = content.find(b"\0\x01c")
    for start, stop in ((0, end), (end, lengths[1] - 48)):
        if stop - start > 9:
            content[stop - 4 : stop] = masked_crc(bytes(content[start : stop - 4]))
    return bytes(content)


@functools.cache
def own_model(encoder: str) -> Checkpoint:
    """A model that transformers has no class for."""
    sizes = dict(hidden_size=4, num_layers=1, num_heads=1, intermediate_size=4)
    own = dict(pooling="mean") if encoder == "transformer" else {}
    config = BertConfig(vocab_size=8, max_positions=8, encoder=encoder, **own, **sizes)
    shapes = parameter_shapes(config, 2)
    wanted = {n: s for n, s in shapes.items() if n.startswith(("bert", "classifier"))}
    flat = {name: np.zeros(shape, np.float32) for name, shape in wanted.items()}
    params = traverse_util.unflatten_dict(flat, sep="/")
    return Checkpoint(config, params, None, "sequence", labels=("x", "y"))


@functools.cache
def own_folder(encoder: str = "transformer") -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as name:
        save_huggingface(Path(name) / "m", own_model(encoder), own=True)
        return files(Path(name) / "m", "config.json", "model.safetensors")


@functools.cache
def run_config() -> list[bytes]:
    """That of a workdir."""
    with tempfile.TemporaryDirectory() as name:
        save_workdir(Path(name) / "m", own_model("transformer"))
        return [(Path(name) / "m/config.json").read_bytes()]


def load_run(folder: Path) -> None:
    """A workdir's config, with parameters that are read already."""
    params = own_model("transformer").params
    with mock.patch.object(loading, "read_params", lambda checkpoints: params):
        load(folder)


@functools.cache
def small_checkpoint() -> dict[str, bytes]:
    """The files of a checkpoint of ours of six numbers."""
    with tempfile.TemporaryDirectory() as name:
        write_params(Path(name), {"a": {"b": np.arange(6, dtype=np.float32)}})
        paths = [path for path in Path(name).rglob("*") if path.is_file()]
        return {str(p.relative_to(name)): p.read_bytes() for p in paths}


def checkpoint_cases() -> list[bytes]:
    """Each file of a checkpoint, after a line with its name."""
    return [
        f"{name}\n".encode() + content
        for name, content in small_checkpoint().items()
        if content
    ]


def read_checkpoint_of(folder: Path) -> None:
    """Reads a checkpoint of which one file is the case."""
    line, _, content = (folder / "case").read_bytes().partition(b"\n")
    name = line.decode("latin-1")
    if name not in small_checkpoint():
        return
    (folder / name).write_bytes(content)
    try:
        read_params(folder)
    finally:
        (folder / name).write_bytes(small_checkpoint()[name])


def sealed_notes(content: bytes) -> bytes:
    """A checkpoint's metadata with the checksum of its notes."""
    name, _, rest = content.partition(b"\n")
    values = json.loads(rest)
    notes = values["custom_metadata"]
    notes["checksum"] = zlib.crc32(notes["content"].encode())
    return name + b"\n" + json.dumps(values).encode()


def read_lock(folder: Path) -> None:
    """The owner of a folder, as its lock file names it."""
    locks._owner((folder / ".lock").read_bytes()).encode()


def read_study(folder: Path) -> None:
    from_settings(StudyConfig, read_json(folder / "study.json", "x"), "")


def read_part(folder: Path) -> None:
    """What is finished of a study, and its table."""
    config = {"files": [], "first": 0}
    result = finished(folder, "a", {"a": Part(config)})
    variant = study_table._variant([("", result)])
    content = {"variants": {"b": variant}, "seeds": [0], "parts": 1, "finished": 1}
    list(study_table.table_lines(content))


def read_swept(folder: Path) -> None:
    """The score of a run of a sweep, as the sweep that goes on reads it."""
    results = sweep._results(folder)
    if sweep.DIVERGED not in results:
        float(sweep._dev_score(results))


@functools.cache
def training_config() -> list[bytes]:
    """That of a run that pretrains."""
    phase = dict(steps=2, sequence_length=16, batch_size=8, max_predictions=3)
    sizes = dict(hidden_size=4, num_layers=1, num_heads=1, intermediate_size=4)
    sizes |= dict(vocab_size=8, max_positions=16)
    settings = dict(
        model=sizes,
        data=dict(path="a"),
        optimizer=dict(learning_rate=1e-3),
        phases=[phase],
    )
    config = train_config(settings)
    return [json.dumps(to_dict(config)).encode()]


def read_owner(folder: Path) -> None:
    """Compares a run's config with that of one that would go on with it."""
    check_owner(folder, json.loads(training_config()[0]), resume_differences)


DATA = "data-00000-of-00001"
HF = GOLDEN / "huggingface/sequence"
TABLE = tasks.classification(labels=("x", "y"))
CONLL = """The DT B-NP O
sea NN I-NP B-LOC
. . O O

-DOCSTART- -X- -X- O

It PRP B-NP O
"""
READERS = {
    "text": Reader("a.txt", texts("The Sea's caf\u00e9, \u6d77!", "a\u0301b"), encode),
    "corpus-auto": Reader(
        "a.txt",
        texts("The sea. A ship.\n\nIt is.\n", '{"text": "A."}\n'),
        corpus("auto"),
    ),
    "corpus-lines": Reader(
        "a.txt", texts("The sea.\nA ship.\n\nIt.\n"), corpus("lines")
    ),
    "corpus-paragraphs": Reader(
        "a.txt",
        texts('The sea. "A ship!" he\nsaid.\n\n\nIt is so.'),
        corpus("paragraphs"),
    ),
    "corpus-wikiextractor": Reader(
        "a.txt",
        texts(
            '<doc id="1" url="u" title="T">\nT\n\nThe <b>sea</b> (, ) &amp; a ship are '
            "what this is about, and it is long.\n</doc>\n"
        ),
        corpus("wikiextractor"),
    ),
    "corpus-markdown": Reader(
        "a.md",
        texts(
            "---\na: b\n---\n# Head\n\nThe *sea* [a](b) ![c](d) `e` **f**\n> q\n- item\n"
            "1. two\n\n```\ncode\n```\n\n| a | b |\n***\n&amp; \\* [a][b] <i>x</i>"
        ),
        corpus("auto"),
    ),
    "corpus-jsonl": Reader(
        "a.jsonl",
        texts('{"text": "The sea. A ship.\\nIt.", "id": 1}\n' * 2),
        corpus("auto"),
    ),
    "corpus-gzip": Reader(
        "a.gz", lambda: [gzip.compress(b"The sea. A ship.\n\nIt is.\n")], corpus("auto")
    ),
    "glue-cola": Reader(
        "train.tsv",
        texts("a\t1\t\tThe sea.\nb\t0\t*\tSea the.\n"),
        rows(tasks.glue("cola")),
    ),
    "glue-mrpc": Reader(
        "train.tsv",
        texts("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\tThe sea.\tSea.\n"),
        rows(tasks.glue("mrpc")),
    ),
    "glue-stsb": Reader(
        "train.tsv",
        texts("index\tsentence1\tsentence2\tscore\n0\tThe sea.\tA sea.\t4.5\n"),
        rows(tasks.glue("stsb")),
    ),
    "glue-qqp": Reader(
        "train.tsv",
        texts(
            "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\tThe?\tA?\t1\n"
        ),
        rows(tasks.glue("qqp")),
    ),
    "glue-mnli": Reader(
        "train.tsv",
        texts("index\tsentence1\tsentence2\tgold_label\n0\tThe sea.\tA.\tneutral\n"),
        rows(tasks.glue("mnli")),
    ),
    "sick": Reader(
        "SICK_train.txt",
        texts(
            "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
            "1\tThe sea.\tA sea.\t4.5\tNEUTRAL\n"
        ),
        rows(tasks.sick("entailment")),
    ),
    "vectors-csv": Reader(
        "train.csv",
        texts("text_a,text_b,label\nThe sea.,A sea.,4.5\nThe ship.,It.,1\n"),
        rows(tasks.sentence_vectors()),
    ),
    "labels-jsonl": Reader(
        "train.jsonl",
        texts(
            '{"text": "The", "label": ["x", "y"]}\n{"text": "A", "label": "[\\"y\\"]"}\n'
        ),
        rows(tasks.multi_label(labels=("x", "y"))),
    ),
    "table-csv": Reader(
        "train.csv",
        texts('text,label,id\nThe sea.,x,1\n"A, ""b"" ship",y,2\n'),
        rows(TABLE),
    ),
    "table-tsv": Reader(
        "train.tsv", texts("text\tlabel\nThe.\tx\nA\ty\n"), rows(TABLE)
    ),
    "table-jsonl": Reader(
        "train.jsonl",
        texts(
            '{"text": "The", "label": "x", "id": 1}\n{"text": "A", "label": "y", "id": 2}\n'
        ),
        rows(TABLE),
    ),
    "conll": Reader("train.txt", texts(CONLL), rows(tasks.tagging(task="conll2003"))),
    "tags-jsonl": Reader(
        "train.jsonl",
        texts('{"words": ["The", "sea"], "tags": ["O", "B-LOC"]}\n'),
        rows(tasks.tagging(train="train.jsonl")),
    ),
    "segmented": Reader(
        "train.txt",
        texts("\u6d77 \u5927\u6d77\n\n\u6d77\n"),
        rows(tasks.tagging(task="segmented")),
    ),
    "squad-json": Reader(
        "train-v2.0.json",
        lambda: squad_json()[:1],
        rows(tasks.squad(version_2=True, bad_answers="skip")),
    ),
    "squad-jsonl": Reader(
        "train.jsonl",
        lambda: squad_json()[1:],
        rows(tasks.squad(train="train.jsonl", version_2=True, bad_answers="skip")),
    ),
    "swag-csv": Reader(
        "train.csv",
        texts(
            ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,"
            "ending3,label\n0,v,1,s,The sea.,It,gold,is.,was.,has.,had.,0\n"
        ),
        rows(tasks.choices(task="swag")),
    ),
    "choices-jsonl": Reader(
        "train.jsonl",
        texts('{"context": "The", "choices": ["sea", "ship"], "label": 1}\n'),
        rows(tasks.choices()),
    ),
    "predict-lines": Reader(
        "a.txt",
        texts('The sea.\n{"text": "A"}\n'),
        lines("classification", task="table", labels=("x", "y")),
    ),
    "predict-squad": Reader(
        "a.jsonl",
        lambda: squad_json()[1:],
        lines("question_answering"),
    ),
    "predict-words": Reader(
        "a.txt",
        texts('It\'s the U.S. (sea)...\n{"words": ["The"]}\n'),
        lines("tagging", task="columns", labels=("O", "B-X")),
    ),
    "config.json": Reader(
        "config.json",
        golden("huggingface/sequence/config.json", "google_bert/bert_config.json"),
        lambda folder: read_config(folder / "config.json"),
    ),
    "folder": Reader(
        "config.json",
        golden("huggingface/sequence/config.json"),
        lambda folder: load(folder),
        lambda: files(HF, "model.safetensors"),
    ),
    "own-folder": Reader(
        "config.json",
        lambda: [own_folder()["config.json"]],
        load,
        lambda: {"model.safetensors": own_folder()["model.safetensors"]},
    ),
    "own-lstm": Reader(
        "config.json",
        lambda: [own_folder("lstm")["config.json"]],
        load,
        lambda: {"model.safetensors": own_folder("lstm")["model.safetensors"]},
    ),
    "own-weights": Reader(
        "model.safetensors",
        lambda: [own_folder()["model.safetensors"]],
        load,
        lambda: {"config.json": own_folder()["config.json"]},
    ),
    "run-config": Reader(
        "config.json", run_config, load_run, lambda: {"checkpoints/0/a": b""}
    ),
    "run-owner": Reader("config.json", training_config, read_owner),
    "run-checkpoint": Reader(
        "case", checkpoint_cases, read_checkpoint_of, small_checkpoint, sealed_notes
    ),
    "vocab.txt": Reader(
        "vocab.txt",
        lambda: [tokenizer().vocabulary_bytes()],
        lambda folder: load_tokenizer(folder).encode("The sea's caf\u00e9."),
    ),
    "tokenizer.json": Reader(
        "tokenizer.json",
        golden("huggingface/tokenizer/tokenizer.json"),
        lambda folder: load_tokenizer(folder).encode("The sea's caf\u00e9."),
    ),
    "tokenizer_config.json": Reader(
        "tokenizer_config.json",
        golden("huggingface/tokenizer/tokenizer_config.json"),
        load_tokenizer,
        lambda: {"vocab.txt": tokenizer().vocabulary_bytes()},
    ),
    "spiece.model": Reader(
        "spiece.model",
        lambda: [sentencepiece().vocabulary_bytes()],
        lambda folder: load_tokenizer(folder).encode("The sea's caf\u00e9."),
    ),
    "safetensors": Reader(
        "model.safetensors",
        lambda: [
            save({"a": np.ones((2, 3), np.float32), "b": np.zeros(2, np.float16)})
        ],
        lambda folder: read_safetensors(folder / "model.safetensors"),
    ),
    "safetensors-index": Reader(
        "model.safetensors.index.json",
        lambda: [
            json.dumps(
                {"weight_map": {"a": "x.safetensors", "b": "y.safetensors"}}
            ).encode()
        ],
        lambda folder: read_weights(folder),
        lambda: {
            f"{x}.safetensors": save({y: np.ones(2, np.float32)})
            for x, y in ("xa", "yb")
        },
    ),
    "torch-zip": Reader(
        "a.bin", small_torch("zip"), lambda folder: read_torch(folder / "a.bin")
    ),
    "torch-stream": Reader(
        "a.bin", small_torch("stream"), lambda folder: read_torch(folder / "a.bin")
    ),
    "tensorflow-index": Reader(
        "a.index",
        lambda: [small_tensorflow()["index"]],
        lambda folder: read_checkpoint(folder / "a"),
        lambda: {f"a.{DATA}": small_tensorflow()[DATA]},
        sealed_table,
    ),
    "tensorflow-data": Reader(
        f"a.{DATA}",
        lambda: [small_tensorflow()[DATA]],
        lambda folder: read_checkpoint(folder / "a"),
        lambda: {"a.index": small_tensorflow()["index"]},
    ),
    "pairs-zip": Reader("a.zip", pairs_zip, lambda f: list(read_sets([f / "a.zip"]))),
    "pairs-jsonl": Reader(
        "a.jsonl",
        texts('{"sentence_good": "A sea.", "sentence_bad": "Sea a."}\n'),
        lambda folder: list(read_sets([folder / "a.jsonl"])),
    ),
    "pairs-text": Reader(
        "a.txt",
        texts("A sea.\nSea a.\n", "A sea.\tSea a.\n"),
        lambda folder: list(read_sets([folder / "a.txt"])),
    ),
    "store-index.json": in_store("index.json", sealed_index),
    "store-part": Reader(
        "part.npz", store_part, lambda f: store._read_part(f / "part.npz")
    ),
    "store-sentences": in_store("index/sentence_offsets.npy"),
    "store-documents": in_store("index/document_sentences.npy"),
    "store-shard": in_store("shard-00000-of-00001.tokens"),
    "part.json": Reader(
        "a/part.json",
        texts(
            '{"scores": {"f1": 1.5}, "steps": 2, "tokens": 3, "flops": 4, "seconds": 1.5}'
        ),
        read_part,
        lambda: {"a/config.json": b'{"files": [], "first": 0}'},
    ),
    "sweep-results": Reader(
        "results.json",
        texts('{"scores": {"dev": {"f1": 1.5}}, "main_metric": "f1", "steps": 3}'),
        read_swept,
    ),
    "study.json": Reader(
        "study.json",
        texts('{"variants": {"base": {"pretrain": {"seed": 1}}}, "seeds": [0]}'),
        read_study,
    ),
    "lock": Reader(
        ".lock",
        lambda: [
            b'{"host": "a", "process": 1, "machine": "", "born": "1", "token": "b"}',
            json.dumps(locks._this_process()).encode(),
        ],
        read_lock,
    ),
    "any-json": Reader(
        "a.json",
        texts('{"a": [1, {"b": null}]}'),
        lambda f: read_json(f / "a.json", "x"),
    ),
}


INTERESTING = [
    *(None, True, False, 0, 1, -1, 2, 255, 1 << 31, 1 << 32, 1 << 63, 10**30, 10**400),
    *(0.5, -0.0, 1e-300, 1e308, float("nan"), float("inf"), -float("inf")),
    *("", " ", "a", "\ud800", "\udfff\ud800", "\n", "\t", "\r\n", "\0", "..", ".", "/"),
    *(
        "../../etc/passwd",
        "/etc/passwd",
        "\u2028",
        "\ufeff",
        "[MASK]",
        "O",
        "\U0010ffff",
    ),
    *([], {}, [[]], [None], [1, "a"], {"a": None}, {"": 1}, {"text": 1}),
]
TOKENS = [
    *(
        b"\0",
        b"\xff",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
        b"\r",
        b"\n\n",
        b"\t",
        b"\f",
        b'"',
    ),
    *(b"[", b"]", b"{", b"}", b"(", b")", b"\\", b"*", b"_", b"`", b"<doc ", b"</doc>"),
    *(
        b"![",
        b"](",
        b"&#",
        b"&#9999999999;",
        b"---\n",
        b"```",
        b"-1",
        b"1e999",
        b"null",
    ),
    *(
        b"NaN",
        b"\\ud800",
        b"99999999999999999999",
        b"PK\x03\x04",
        b"\x1f\x8b",
        b"\x80\x02",
    ),
    *(
        b"\xe2\x80\xa8",
        b"\xcc\x81\xcc\xa3",
        b"\xf0\x9f\x98\x80",
        b"-DOCSTART-",
        b"\xc2\x85",
    ),
    *(
        b"..",
        b"2" * 40,
        b"7" * 5000,
        b"\xff" * 8,
        b"\x00" * 8,
        b"\x7f" + b"\xff" * 7,
        b"q\x00h\x00",
    ),
    *(
        b"h\x00h\x00\x86q\x00" * 30,
        b"(",
        b"t",
        b"\x85",
        b"\x86",
        b"R",
        b"b",
        b"s",
        b"Q",
    ),
]


def mutated(draw: random.Random, seeds: list[bytes]) -> bytes:
    """A seed changed in one to a few places, or as the JSON that it is."""
    content = draw.choice(seeds)
    if draw.random() < 0.5 and (changed := mutated_json(draw, content)) is not None:
        return changed
    content = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 6))):
        at = draw.randrange(len(content) + 1)
        size = min(draw.choice((1, 1, 2, 4, 8, 50)), len(content) - at)
        kind = draw.randrange(9)
        if kind == 0 and size:
            content[at] ^= 1 << draw.randrange(8)
        elif kind == 1 and size:
            content[at : at + size] = draw.randbytes(size)
        elif kind == 2:
            del content[at : at + size]
        elif kind == 3:
            content[at:at] = draw.choice(TOKENS)
        elif kind == 4:
            content[at : at + size] = draw.choice(TOKENS)
        elif kind == 5:  # many times the same
            some = bytes(content[at : at + size]) or draw.choice(TOKENS)
            content[at:at] = some * draw.choice((2, 10, 100, LONGEST // len(some)))
        elif kind == 6:
            other = draw.choice(seeds)
            begin = draw.randrange(len(other) + 1)
            content[at:] = other[begin:]
        elif kind == 7:
            number = draw.choice((0, 1, 127, 128, 255, 1 << 16, (1 << 31) - 1, 1 << 31))
            content[at : at + 4] = struct.pack("<I", number)
        elif kind == 8:
            del content[at:]
    return bytes(content[: max(LONGEST, *map(len, seeds))])


def mutated_json(draw: random.Random, content: bytes) -> bytes | None:
    """JSON, or one of its lines, with a value that is another; None for other text."""
    lines = content.split(b"\n")
    whole = content.lstrip()[:1] == b"{" and not lines[0].rstrip().endswith(b"}")
    at = draw.randrange(len(lines))
    try:
        value = json.loads(content if whole else lines[at])
    except ValueError:
        return None
    if not isinstance(value, dict):
        return None
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        value = _changed(draw, value)
    depth = draw.choice((70, 3000, 100_000)) if draw.random() < 0.02 else 0
    text = json.dumps(value, ensure_ascii=draw.random() < 0.9)
    if depth:
        text = text.replace("null", "[" * depth + "]" * depth).replace("1", "[" * depth)
    new = text.encode("utf-8", "surrogatepass")
    if whole:
        return new
    return b"\n".join([*lines[:at], new, *lines[at + 1 :]])


def _changed(draw: random.Random, value: object) -> object:
    """The value, or one somewhere in it, replaced, removed, doubled or renamed."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(list(value))
        kind = draw.random()
        if kind < 0.6:
            return value | {key: _changed(draw, value[key])}
        if kind < 0.8:
            return {k: v for k, v in value.items() if k != key}
        name = draw.choice(["", "a", "\ud800", key * 2, *value])
        return {name if k == key else k: v for k, v in value.items()}
    if isinstance(value, list) and value and draw.random() < 0.8:
        at = draw.randrange(len(value))
        kind = draw.random()
        if kind < 0.7:
            return [*value[:at], _changed(draw, value[at]), *value[at + 1 :]]
        return value[:at] + value[at + 1 :] if kind < 0.85 else value + value[at:]
    if isinstance(value, str) and draw.random() < 0.3:
        at = draw.randrange(len(value) + 1)
        return value[:at] + str(draw.choice(INTERESTING)) + value[at:]
    small = isinstance(value, int | float) and abs(value) < 1e300
    if small and draw.random() < 0.4:
        return value * draw.choice((2, -1, 1.5, 1000)) + draw.choice((0, 1, -1))
    return draw.choice(INTERESTING)


class TooLongError(BaseException):
    """A case that had its time."""


def _too_long(*_: object) -> None:
    raise TooLongError


def a_case(reader: Reader, seed: str, seeds: list[bytes]) -> bytes:
    """The case that belongs to a seed."""
    draw = random.Random(seed)
    content = mutated(draw, seeds)
    if reader.sealed and draw.random() < 0.5:
        with contextlib.suppress(Exception):  # it is no longer what has checksums
            content = reader.sealed(content)
    return content


# What no file may have a reader do, as Python's audit events name it; and what it did.
FORBIDDEN = (
    *("subprocess.Popen", "os.system", "os.exec", "os.spawn", "os.posix_spawn"),
    *("os.fork", "pickle.find_class", "socket.connect", "socket.bind"),
)
_done: list[str] = []
_inside = ""  # the folder of the case that is read


def _audit(event: str, args: tuple) -> None:
    if not _inside:
        return
    if event in FORBIDDEN:
        _done.append(f"{event} {args!r:.200}")
    elif event == "open" and isinstance(args[0], str | bytes):
        path = str(Path(os.fsdecode(args[0])).absolute())
        writes = args[2] & (os.O_WRONLY | os.O_RDWR)
        cached = path.startswith(jax.config.jax_compilation_cache_dir or _inside)
        outside = not (cached or path.startswith(_inside))
        if outside and (writes or "passwd" in path):
            _done.append(f"open {path}")


sys.addaudithook(_audit)


def check(reader: Reader, folder: Path, content: bytes) -> str:
    """ "result" or "error"; anything else raises."""
    global _inside
    (folder / reader.file).write_bytes(content)
    _inside = str(folder)
    try:
        reader.read(folder)
    except UserError as error:
        if "\n" in str(error) or len(str(error)) > 2000:
            raise AssertionError("not one short line") from error
        str(error).encode()
        return "error"
    finally:
        _inside = ""
        done = list(_done)
        _done.clear()
        assert not done, done
    return "result"


def prepared(reader: Reader, folder: Path) -> list[bytes]:
    """The seeds of a reader, after the other files of its folder are written."""
    for name, content in reader.beside().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / reader.file).parent.mkdir(exist_ok=True)
    seeds = reader.seeds()
    for seed in seeds:  # which also fills caches
        assert check(reader, folder, seed) == "result"
    return seeds


def _place(error: BaseException) -> str:
    """What was raised, and where in this package."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "/bert_jax/" in frame.filename
    ]
    at = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__} at {at}"


def _limit_memory() -> None:
    status = Path("/proc/self/status").read_text()
    used = int(status.split("VmData:")[1].split()[0]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, resource.RLIM_INFINITY))


def _work(
    name: str,
    first: int,
    cases: int,
    seed: int,
    folder: Path,
    keep: Path,
    done: mmap.mmap,
) -> None:
    """Runs cases in this process. done: how many, and how many gave results."""
    reader = READERS[name]
    seeds = prepared(reader, folder)
    signal.signal(signal.SIGVTALRM, _too_long)
    threading.stack_size(1 << 20)  # of Orbax's threads: each has its stack
    results = struct.unpack("<q", done[8:16])[0]
    for case in range(first, cases):
        if case % 500 == first % 500:
            _limit_memory()
        content = a_case(reader, f"{seed} {name} {case}", seeds)
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
            try:
                results += check(reader, folder, content) == "result"
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            _keep(keep, name, _place(error), content, traceback.format_exc())
        done[:16] = struct.pack("<qq", case + 1, results)


def _keep(keep: Path, name: str, place: str, content: bytes, why: str) -> None:
    digest = hashlib.sha256(f"{name} {place}".encode()).hexdigest()[:8]
    path = keep / f"{name}-{digest}"
    if path.exists() and path.stat().st_size <= len(content):
        return
    path.write_bytes(content)
    path.with_name(f"{path.name}.why").write_text(f"{place}\n{why}")


def fuzz(name: str, cases: int, seed: int, keep: Path) -> collections.Counter:
    """Counts of cases, results and findings; processes that die are findings too."""
    keep.mkdir(parents=True, exist_ok=True)
    done = mmap.mmap(-1, 16)
    before = set(keep.glob(f"{name}-*.why"))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        folder = Path(place)
        while (first := struct.unpack("<q", done[:8])[0]) < cases:
            child = os.fork()
            if not child:
                with Path(os.devnull).open("w") as nowhere:  # of libraries in C
                    os.dup2(nowhere.fileno(), 2)
                try:
                    _work(name, first, cases, seed, folder, keep, done)
                except BaseException:
                    (keep / f"{name}-itself.why").write_text(traceback.format_exc())
                    done[:8] = struct.pack("<q", cases)
                os._exit(0)
            status = _wait(child, done)
            at = struct.unpack("<q", done[:8])[0]
            if status and at < cases:
                content = (folder / READERS[name].file).read_bytes()
                _keep(keep, name, f"status {status}", content, f"status {status}")
                done[:8] = struct.pack("<q", at + 1)
    cases, results = struct.unpack("<qq", done[:16])
    found = len(set(keep.glob(f"{name}-*.why")) - before)
    return collections.Counter(cases=cases, results=results, findings=found)


def _wait(child: int, done: mmap.mmap) -> int:
    last, since = b"", time.monotonic()
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        if done[:8] != last:
            last, since = done[:8], time.monotonic()
        if time.monotonic() - since > 3 * _DEAD:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("readers", nargs="*", metavar="READER")
    parser.add_argument("--cases", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"))
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    show_progress(False)
    findings = 0
    for name in args.readers or READERS:
        started = time.monotonic()
        counts = fuzz(name, args.cases, args.seed, args.keep)
        findings += counts["findings"]
        print(
            f"{name:22} {counts['cases']:>9,} cases {counts['results']:>9,} results "
            f"{counts['findings']:>3} findings {time.monotonic() - started:6.0f} s",
            flush=True,
        )
    sys.exit(bool(findings))


if __name__ == "__main__":
    main()
