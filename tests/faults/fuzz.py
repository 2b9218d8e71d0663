"""Gives mutated files to the readers. Each must return a result or a one-line error.

Half of the mutations of a JSON file change bytes, which mostly breaks the JSON. The other
half change its values: their types, keys and nesting.

usage: python tests/faults/fuzz.py [READER ...] [--cases 1000] [--seed 0]
"""

import argparse
import dataclasses
import functools
import json
import logging
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save

from bert_jax import figures, tasks
from bert_jax.commands import study
from bert_jax.data.corpus import read_documents
from bert_jax.data.store import TokenStore
from bert_jax.data.token_offsets import encode_with_offsets
from bert_jax.data.tokenizer import BERT_TOKENS
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.data.wordpiece import WordPieceTokenizer
from bert_jax.errors import UserError
from bert_jax.files import read_json
from bert_jax.inference.embed import EncodeOptions, encode
from bert_jax.inference.evaluation import OnDevices, Options, Rows
from bert_jax.inference.predict import fine_tuned
from bert_jax.inference.pretrained import read_sets
from bert_jax.interop.config_json import read_config
from bert_jax.interop.load import load
from bert_jax.interop.tensorflow import read_checkpoint
from bert_jax.interop.weights import read_torch, read_weights
from bert_jax.runs import compare, read_runs
from bert_jax.settings import to_dict
from bert_jax.training.config import finetune_config, train_config
from bert_jax.training.metrics import MetricWriter
from bert_jax.training.owner import check_owner
from bert_jax.training.results import finished, scores_of

GOLDEN = Path(__file__).parent.parent / "golden"
HF, GOOGLE = "huggingface/sequence", "google_bert/bert_model.ckpt"
DATA = f"{GOOGLE}.data-00000-of-00001"
SAVED, RUNS = "v0_1_0/exported", "v0_1_0/runs"
VECTORS = ("huggingface/none", "huggingface/tokenizer", "sentence_transformers/dense")
# Values of all JSON types, to replace others.
ODD = (None, True, 0, -1, 2.5, 1e30, 10**30, "", "x", "\ud800", [], ["x"], [None], {})
ODD += ({"x": 1}, float("nan"), float("inf"))


@dataclasses.dataclass(frozen=True)
class Reader:
    """file: the name of the mutated file. seed: its content, or a golden file.

    read: reads the folder of the file. beside: other golden files that the folder needs;
    of a golden folder all files.
    """

    file: str
    seed: str | Path
    read: Callable[[Path], object]
    beside: tuple[str, ...] = ()


@functools.cache
def tokenizer() -> WordPieceTokenizer:
    tokens = [*BERT_TOKENS, *"abcdefghijklmnopqrstuvwxyz.,!?", "the", "##e", "##s"]
    return WordPieceTokenizer(tokens, lower_case=True)


def corpus(folder: Path) -> None:
    for document in read_documents([str(folder)]):
        tokenizer().encode_batch(document)


def rows(task) -> Callable[[Path], object]:
    def read(folder: Path) -> None:
        task_of_folder = type(task)(dataclasses.replace(task.config, dir=str(folder)))
        task_of_folder.encode(task_of_folder.read("train"), tokenizer())

    return read


def shards(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / "x.safetensors").write_bytes(save(tensors))
    read_weights(folder)


def store(folder: Path) -> None:
    text = TokenStore(folder)
    text.read_sentences(text.document_sentences[:2][None])


def run(folder: Path) -> None:
    """Compares and draws a run, and resumes its metrics."""
    compare(read_runs([folder]))
    figures.curves(folder, references=[folder])
    MetricWriter(folder, 2).close()


def resumed(folder: Path) -> None:
    """Reads the config of a run as a checkpoint, and as a run to resume."""
    load(folder, weights=False)
    settings = read_json(GOLDEN / RUNS / "mlm_nsp/config.json", "a config")
    settings.pop("text")
    check_owner(folder, to_dict(train_config(settings)))


def results(folder: Path) -> None:
    settings = read_json(folder / "config.json", "a config")
    config = finetune_config(
        {name: settings[name] for name in settings if name != "rows"}
    )
    scores_of(finished(folder, config))


def vocabulary(folder: Path) -> None:
    text = "The sea's caf\u00e9."
    tokenizer = load_tokenizer(folder)
    tokenizer.encode(text, allow_mask=True)
    encode_with_offsets([text], tokenizer)
    tokenizer.decode([0, 1, 2])


def vectors(folder: Path) -> None:
    encode(OnDevices(load(folder)), Rows(()), EncodeOptions())


def predictor(folder: Path) -> None:
    fine_tuned(OnDevices(load(folder)), Options())


SQUAD = (
    '{"id": "3", "question": "What?", "context": "The sea.", "answers": ["sea"]}\n'
    '{"id": "4", "question": "Who?", "context": "The sea.", "answers": []}\n'
)
TABLE = '{"text": "The", "label": "x", "id": 1}\n{"text": "A", "label": "y", "id": 2}\n'
READERS = {
    "corpus-text": Reader("a.txt", "The sea's café. A ship.\n\nIt is.\n", corpus),
    "corpus-jsonl": Reader("a.jsonl", '{"text": "The sea. A ship."}\n', corpus),
    "corpus-markdown": Reader("a.md", "# Head\n\nThe *sea* [a](b) ![c](d).\n", corpus),
    "table-csv": Reader(
        "train.csv",
        'text,label\nThe sea.,x\n"A, ""b"" ship",y\n',
        rows(tasks.classification(labels=("x", "y"))),
    ),
    "table-jsonl": Reader(
        "train.jsonl", TABLE, rows(tasks.classification(labels=("x", "y")))
    ),
    "labels-jsonl": Reader(
        "train.jsonl",
        '{"text": "The", "label": ["x", "y"]}\n{"text": "A", "label": "[\\"y\\"]"}\n',
        rows(tasks.multi_label(labels=("x", "y"))),
    ),
    "tags-jsonl": Reader(
        "train.jsonl",
        '{"words": ["The", "sea"], "tags": ["O", "B-LOC"]}\n',
        rows(tasks.tagging(train="train.jsonl")),
    ),
    "squad-json": Reader(
        "train-v2.0.json",
        '{"data": [{"paragraphs": [{"context": "The sea.", "qas": [{"id": "1", '
        '"question": "q", "answers": [{"text": "sea", "answer_start": 4}]}]}]}]}',
        rows(tasks.squad(version_2=True)),
    ),
    "squad-jsonl": Reader(
        "train.jsonl", SQUAD, rows(tasks.squad(train="train.jsonl", version_2=True))
    ),
    "choices-jsonl": Reader(
        "train.jsonl",
        '{"context": "The", "choices": ["sea", "ship"], "label": 1}\n',
        rows(tasks.choices()),
    ),
    "pairs-jsonl": Reader(
        "a.jsonl",
        '{"sentence_good": "A sea.", "sentence_bad": "Sea a."}\n',
        lambda folder: list(read_sets([folder / "a.jsonl"])),
    ),
    "config.json": Reader(
        "config.json",
        GOLDEN / HF / "config.json",
        lambda folder: read_config(folder / "config.json"),
    ),
    "folder": Reader(
        "config.json", GOLDEN / HF / "config.json", load, (f"{HF}/model.safetensors",)
    ),
    "safetensors": Reader(
        "model.safetensors", GOLDEN / HF / "model.safetensors", read_weights
    ),
    "safetensors-index": Reader(
        "model.safetensors.index.json",
        '{"weight_map": {"classifier.bias": "x.safetensors"}}',
        shards,
        (f"{HF}/model.safetensors",),
    ),
    "torch-zip": Reader(
        "a.bin",
        GOLDEN / "huggingface/pickle/zip.bin",
        lambda folder: read_torch(folder / "a.bin"),
    ),
    "torch-stream": Reader(
        "a.bin",
        GOLDEN / "huggingface/pickle/stream.bin",
        lambda folder: read_torch(folder / "a.bin"),
    ),
    "tensorflow-index": Reader(
        "bert_model.ckpt.index",
        GOLDEN / f"{GOOGLE}.index",
        lambda folder: read_checkpoint(folder / "bert_model.ckpt"),
        (DATA,),
    ),
    "tokenizer.json": Reader(
        "tokenizer.json",
        GOLDEN / "huggingface/tokenizer/tokenizer.json",
        vocabulary,
    ),
    "tokenizer-bpe": Reader(
        "tokenizer.json", GOLDEN / "tokenizers/bpe/tokenizer.json", vocabulary
    ),
    **{
        f"tokenizer-{name.partition('.')[0]}": Reader(
            name, content, vocabulary, ("huggingface/tokenizer",)
        )
        for name, content in {
            "tokenizer_config.json": json.dumps(
                {
                    "tokenizer_class": "BertTokenizer",
                    "do_lower_case": True,
                    "strip_accents": None,
                    "model_max_length": 512,
                    "mask_token": {"content": "[MASK]", "lstrip": False},
                    "additional_special_tokens": ["[MASK]"],
                    "added_tokens_decoder": {"4": {"content": "[MASK]"}},
                }
            ),
            "special_tokens_map.json": '{"unk_token": "[UNK]", "pad_token": "[PAD]"}',
            "added_tokens.json": '{"[MASK]": 4}',
            "config.json": '{"tokenizer_class": "BertTokenizer"}',
        }.items()
    },
    "config-run": Reader(
        "config.json",
        GOLDEN / RUNS / "mlm_nsp/config.json",
        resumed,
        (f"{RUNS}/mlm_nsp",),
    ),
    **{
        f"config-{name}": Reader(
            "config.json",
            GOLDEN / SAVED / name / "config.json",
            predictor,
            (f"{SAVED}/{name}",),
        )
        for name in ("features", "two_way_classification", "multi_label", "squad")
    },
    **{
        f"vectors-{name.replace('/', '-')}": Reader(
            name, GOLDEN / "sentence_transformers/dense" / name, vectors, VECTORS
        )
        for name in (
            "modules.json",
            "config_sentence_transformers.json",
            "sentence_bert_config.json",
            "tokenizer_config.json",
            "1_Pooling/config.json",
            "2_Dense/config.json",
        )
    },
    "store": Reader(
        "index.json", GOLDEN / "v0_1_0/text/index.json", store, ("v0_1_0/text",)
    ),
    "run-config": Reader(
        "config.json", GOLDEN / RUNS / "mlm_nsp/config.json", run, (f"{RUNS}/mlm_nsp",)
    ),
    "run-metrics": Reader(
        "metrics.jsonl",
        GOLDEN / RUNS / "mlm_nsp/metrics.jsonl",
        run,
        (f"{RUNS}/mlm_nsp",),
    ),
    "run-results": Reader(
        "results.json",
        GOLDEN / RUNS / "finetune_finished/results.json",
        lambda folder: (results(folder), compare(read_runs([folder]))),
        (f"{RUNS}/finetune_finished",),
    ),
    "study": Reader(
        "study.json",
        GOLDEN / "v0_1_0/study/study.json",
        lambda folder: study._open(str(folder)),
    ),
}


def check(reader: Reader, folder: Path, content: bytes) -> str:
    """Returns "result" or "error" (a UserError of one line). Anything else raises."""
    for name in reader.beside:
        if (GOLDEN / name).is_dir():
            shutil.copytree(GOLDEN / name, folder, dirs_exist_ok=True)
        else:
            shutil.copy(GOLDEN / name, folder)
    (folder / reader.file).write_bytes(content)
    try:
        reader.read(folder)
    except UserError as error:
        assert str(error).isprintable()
        return "error"
    return "result"


def mutated(draw: random.Random, content: bytes, name: str) -> bytes:
    """A copy with one to three changes. name: of the file, which may be JSON."""
    if not name.endswith((".json", ".jsonl")) or draw.random() < 0.5:
        return changed_bytes(draw, content)
    lines = [content]
    if name.endswith(".jsonl"):
        lines = content.splitlines(keepends=True)
    i = draw.randrange(len(lines))
    value = json.loads(lines[i])
    for _ in range(draw.choice((1, 1, 2, 3))):
        value = changed_value(draw, value)
    lines[i] = json.dumps(value).encode() + b"\n"
    return b"".join(lines)


def changed_value(draw: random.Random, value: Any) -> Any:
    """A copy of a JSON value in which one value is replaced, nested, moved or removed."""
    is_container = isinstance(value, dict | list) and len(value) > 0
    if not is_container or draw.random() < 0.1:
        return draw.choice((*ODD, [value], {"x": value}))
    copy = value.copy()
    key = draw.choice(list(copy) if isinstance(copy, dict) else range(len(copy)))
    if draw.random() < 0.15:
        del copy[key]
    elif draw.random() < 0.1:
        copy[key] = draw.choice(list(copy.values() if isinstance(copy, dict) else copy))
    else:
        copy[key] = changed_value(draw, copy[key])
    return copy


def changed_bytes(draw: random.Random, content: bytes) -> bytes:
    """A copy with one to three places flipped, overwritten, removed, repeated or cut."""
    content = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 3))):
        at = draw.randrange(len(content) + 1)
        size = min(draw.choice((1, 4, 50)), len(content) - at)
        some = bytes(content[at : at + size])
        odd = draw.choice((b"\0", b"\xff" * 8, b'"', b"]", b"null", b"\\ud800", b"-1"))
        content[at : at + size] = draw.choice(
            (b"", draw.randbytes(size), odd, some + odd, some * 10)
        )
        if draw.random() < 0.1:
            del content[at:]
    return bytes(content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("readers", nargs="*", metavar="READER")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    logging.disable()  # warnings of the readers
    findings = 0
    for name in args.readers or READERS:
        reader, draw = READERS[name], random.Random(f"{args.seed} {name}")
        seed = reader.seed
        seed = seed.read_bytes() if isinstance(seed, Path) else seed.encode()
        for case in range(args.cases):
            content = mutated(draw, seed, reader.file) if case else seed
            with tempfile.TemporaryDirectory() as folder:
                try:
                    check(reader, Path(folder), content)
                except BaseException as error:  # panics of Rust are not an Exception
                    if isinstance(error, KeyboardInterrupt):
                        raise
                    findings += 1
                    print(f"{name}, case {case}: {content[:200]!r}", file=sys.stderr)
                    traceback.print_exc()
        print(f"{name}: {args.cases} cases", flush=True)
    sys.exit(bool(findings))


if __name__ == "__main__":
    main()
