"""Random weights and a random task, for benchmarks without a checkpoint and data.

Writes FOLDER/model, a Hugging Face folder with the vocabulary of BERT's uncased models, and
FOLDER/glue/SST-2 with sentences of Moby-Dick and random labels. Scores have no meaning.

usage:
  python benchmarks/synthetic.py --output FOLDER [--size base] [--rows 8000]
"""

import random
from pathlib import Path

import jax
import jax.numpy as jnp
from common import SENTENCES, SIZES, VOCABULARY, make_parser

from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.config_json import config_from_dict, config_to_dict
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.model.bert import BertModel
from bert_jax.model.config import BertConfig


def write_model(folder: Path, size: str) -> None:
    """Writes random weights of a size."""
    config = config_from_dict(config_to_dict(BertConfig.base()) | SIZES[size])
    ids = jnp.zeros((1, 8), jnp.int32)

    def init(key: jax.Array) -> dict:
        model = BertModel(config)
        return model.init(key, ids, ids, ids, deterministic=True)["params"]

    params = {"bert": jax.device_get(jax.jit(init)(jax.random.key(0)))}
    checkpoint = Checkpoint(config, params, load_tokenizer(VOCABULARY), "none")
    save_huggingface(folder, checkpoint, card="Random weights, for benchmarks.")


def write_task(folder: Path, rows: int) -> None:
    """Writes GLUE's files. A tenth of the rows is dev and, without labels, test."""
    text = SENTENCES.read_text().replace("\t", " ").replace('"', "'")
    lines = [line for line in text.splitlines() if line.strip()][:rows]
    draw = random.Random(0)
    labelled = [f"{line}\t{draw.randint(0, 1)}" for line in lines]
    dev = len(lines) // 10
    files = {
        "train": ["sentence\tlabel", *labelled[dev:]],
        "dev": ["sentence\tlabel", *labelled[:dev]],
        "test": ["index\tsentence", *(f"{i}\t{s}" for i, s in enumerate(lines[:dev]))],
    }
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / f"{name}.tsv").write_text("\n".join(content) + "\n")


def main() -> None:
    """Writes the model and the task."""
    parser = make_parser(__doc__)
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--rows", type=int, default=8000)
    options = parser.parse_args()
    write_model(options.output / "model", options.size)
    write_task(options.output / "glue" / "SST-2", options.rows)


if __name__ == "__main__":
    main()
