"""A random BERT and a random task, for benchmarks where there are no weights and no data.

Writes FOLDER/model, a Hugging Face folder of random weights with the vocabulary of the
released uncased models, and FOLDER/glue/SST-2 with the sentences of Moby Dick and labels
drawn at random. Scores on it mean nothing; seconds do.

usage:
  python benchmarks/synthetic.py --output FOLDER [--size base] [--rows 8000]
"""

import argparse
import random
from pathlib import Path

import jax
import jax.numpy as jnp
from workers import SIZES

from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.interop.config_json import config_from_dict, config_to_dict
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.interop.load import Checkpoint
from bert_jax.model.bert import BertModel
from bert_jax.model.config import BertConfig

GOLDEN = Path(__file__).parent.parent / "tests" / "golden"
SENTENCES = GOLDEN / "pretraining_data" / "moby_dick_sentences.txt"
VOCABULARY = GOLDEN / "tokenizer" / "uncased_vocab.txt"


def write_model(folder: Path, size: str) -> None:
    """Random weights of a size: "base", "large" or "mini"."""
    config = config_from_dict(config_to_dict(BertConfig.base()) | SIZES[size])
    ids = jnp.zeros((1, 8), jnp.int32)

    def init(key: jax.Array):
        model = BertModel(config)
        return model.init(key, ids, ids, ids, deterministic=True)["params"]

    params = {"bert": jax.device_get(jax.jit(init)(jax.random.key(0)))}
    checkpoint = Checkpoint(config, params, load_tokenizer(VOCABULARY), "none")
    save_huggingface(folder, checkpoint, card="Random weights, for benchmarks.")


def write_task(folder: Path, rows: int) -> None:
    """train.tsv, dev.tsv and test.tsv in GLUE's form; a tenth of the rows for dev."""
    lines = [line for line in SENTENCES.read_text().splitlines() if line.strip()]
    lines = [line.replace("\t", " ").replace('"', "'") for line in lines[:rows]]
    draw = random.Random(0)
    labelled = [f"{line}\t{draw.randint(0, 1)}" for line in lines]
    dev = len(lines) // 10
    numbered = [f"{i}\t{line}" for i, line in enumerate(lines[:dev])]
    folder.mkdir(parents=True)
    for name, header, content in (
        ("train", "sentence\tlabel", labelled[dev:]),
        ("dev", "sentence\tlabel", labelled[:dev]),
        ("test", "index\tsentence", numbered),
    ):
        (folder / f"{name}.tsv").write_text("\n".join([header, *content]) + "\n")


def main() -> None:
    """Writes both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--rows", type=int, default=8000)
    options = parser.parse_args()
    write_model(options.output / "model", options.size)
    write_task(options.output / "glue" / "SST-2", options.rows)


if __name__ == "__main__":
    main()
