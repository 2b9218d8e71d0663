"""How much of an epoch's batches is padding, in the fine-tuning runs of finetune.py.

usage:
  python benchmarks/padding_finetuning.py --model all-MiniLM-L6-v2 --data DATA
    [--tasks sst2,mrpc] [--output FILE.json]

Model, data and tasks: see finetune.py. The rows, batches and shapes are those of its runs;
nothing is trained. "sorted": the same with --config.packing=False.
"""

import argparse
import collections
import math
from pathlib import Path

import numpy as np
from finetune import TASKS, our_settings
from measure import markdown, write_report

from bert_jax.config_file import parse
from bert_jax.inference.evaluation import Split
from bert_jax.interop.load import load
from bert_jax.parallel.mesh import make_mesh
from bert_jax.tasks.families import FAMILIES
from bert_jax.training.finetune import training_batches
from bert_jax.training.finetune_config import FineTuneConfig, finetune_config
from bert_jax.training.finetune_data import Prepared


def config_of(task: str, options: argparse.Namespace, *more: str) -> FineTuneConfig:
    """The config of finetune.py's run of ``task``."""
    return finetune_config(parse([*our_settings(task, options), *more], __doc__, {})[0])


def measure(config: FineTuneConfig) -> dict:
    """Batches, shapes and padding of the first epoch."""
    checkpoint = load(config.init_from, **config.model.changes())
    task = FAMILIES[config.family](config.data)
    rows = task.read("train")[: config.train_rows or None]
    features = task.features(rows, checkpoint.tokenizer, training=True)
    prepared = Prepared(checkpoint, task, Split("train", rows, features), ())
    batches = training_batches(config, prepared, make_mesh(config.mesh))
    order = batches.epoch(config.seed, 0)
    real, shapes = 0, collections.Counter()
    for units in order:
        mask = batches.arrays(units)["attention_mask"]
        real += np.count_nonzero(mask)
        shapes[mask.shape] += 1
    computed = sum(math.prod(shape) * count for shape, count in shapes.items())
    return {
        "batches": len(order),
        "tokens a sequence": np.mean([len(ids) for ids in features.input_ids]),
        "padding": f"{1 - real / computed:.1%}",
        "shapes": len(shapes),
    }


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows = []
    for task in options.tasks.split(","):
        config = config_of(task, options)
        row = {"task": task, "batches are": "packed" if config.packing else "sorted"}
        rows.append(row | measure(config))
        if config.packing:
            config = config_of(task, options, "--config.packing=False")
            rows.append({"task": task, "batches are": "sorted"} | measure(config))
    print(markdown(rows))
    write_report(options.output, {"rows": rows})


if __name__ == "__main__":
    main()
