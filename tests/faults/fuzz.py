"""Gives mutated files to the readers. Each must return a result or a one-line error.

usage: python tests/faults/fuzz.py [READER ...] [--cases 1000] [--seed 0]
"""

import argparse
import dataclasses
import functools
import random
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from safetensors.numpy import load_file, save

from bert_jax import tasks
from bert_jax.data.corpus import read_documents
from bert_jax.data.tokenizer import SPECIAL_TOKENS, WordPieceTokenizer
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.inference.pretrained import read_sets
from bert_jax.interop.config_json import read_config
from bert_jax.interop.load import load
from bert_jax.interop.tensorflow import read_checkpoint
from bert_jax.interop.weights import read_torch, read_weights

GOLDEN = Path(__file__).parent.parent / "golden"
HF, GOOGLE = "huggingface/sequence", "google_bert/bert_model.ckpt"
DATA = f"{GOOGLE}.data-00000-of-00001"


@dataclasses.dataclass(frozen=True)
class Reader:
    """file: the name of the mutated file. seed: its content, or a golden file.

    read: reads the folder of the file. beside: other golden files that the folder needs.
    """

    file: str
    seed: str | Path
    read: Callable[[Path], object]
    beside: tuple[str, ...] = ()


@functools.cache
def tokenizer() -> WordPieceTokenizer:
    tokens = [*SPECIAL_TOKENS, *"abcdefghijklmnopqrstuvwxyz.,!?", "the", "##e", "##s"]
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
        lambda folder: load_tokenizer(folder).encode("The sea's café."),
    ),
}


def check(reader: Reader, folder: Path, content: bytes) -> str:
    """Returns "result" or "error" (a UserError of one line). Anything else raises."""
    for name in reader.beside:
        (folder / Path(name).name).write_bytes((GOLDEN / name).read_bytes())
    (folder / reader.file).write_bytes(content)
    try:
        reader.read(folder)
    except UserError as error:
        assert str(error).isprintable()
        return "error"
    return "result"


def mutated(draw: random.Random, content: bytes) -> bytes:
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
    findings = 0
    for name in args.readers or READERS:
        reader, draw = READERS[name], random.Random(f"{args.seed} {name}")
        seed = reader.seed
        seed = seed.read_bytes() if isinstance(seed, Path) else seed.encode()
        for case in range(args.cases):
            content = mutated(draw, seed) if case else seed
            with tempfile.TemporaryDirectory() as folder:
                try:
                    check(reader, Path(folder), content)
                except Exception:
                    findings += 1
                    print(f"{name}, case {case}: {content[:200]!r}", file=sys.stderr)
                    traceback.print_exc()
        print(f"{name}: {args.cases} cases", flush=True)
    sys.exit(bool(findings))


if __name__ == "__main__":
    main()
