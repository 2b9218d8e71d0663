"""How much of an epoch's batches is padding, in the fine-tuning runs of finetune.py.

usage:
  python benchmarks/padding_finetuning.py --model all-MiniLM-L6-v2 --data DATA
    [--tasks sst2,mrpc] [--buckets 1,2,6] [--output FILE.json]

Model, data and tasks: see finetune.py. Nothing is trained, and no device is needed: rows
are laid out as for 1, 4, 8 and 16 of them. Each column: padding, number of shapes.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from finetune import TASKS, our_settings
from measure import markdown, write_report

from bert_jax.config_file import parse
from bert_jax.data.batching import EpochBatches
from bert_jax.interop.load import load
from bert_jax.tasks.families import FAMILIES
from bert_jax.training.config import (
    FineTuneConfig,
    finetune_config,
)


def config_of(task: str, options: argparse.Namespace, *more: str) -> FineTuneConfig:
    """The config of finetune.py's run of ``task``."""
    line = [*our_settings(task, options), *more]
    return parse(line, __doc__, finetune_config).config


def measure(config: FineTuneConfig, devices: int, buckets: int) -> tuple[float, int]:
    """Share of padding and shapes of the first epoch, on so many devices."""
    checkpoint = load(config.init_from, **config.model.changes())
    task = FAMILIES[config.family](config.data)
    rows = task.read("train")[: config.train_rows or None]
    features = task.features(rows, checkpoint.tokenizer)
    batches = EpochBatches(
        features,
        batch_size=config.batch_size,
        epochs=1,
        seed=config.seed,
        pad_id=checkpoint.tokenizer.pad_id,
        buckets=buckets,
        limit=checkpoint.config.max_positions,
        multiple=devices * config.accumulation,
        accumulation=config.accumulation,
    )
    masks = [arrays["attention_mask"] for arrays in batches]
    computed = sum(mask.size for mask in masks)
    padding = 1 - sum(map(np.count_nonzero, masks)) / computed
    return padding, len({mask.shape for mask in masks})


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--buckets", default="1,2,6")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows = []
    for task in options.tasks.split(","):
        for buckets in map(int, options.buckets.split(",")):
            row: dict[str, Any] = {"task": task, "buckets": buckets}
            config = config_of(task, options)
            for devices in (1, 4, 8, 16):
                padding, shapes = measure(config, devices, buckets)
                row[f"{devices} devices"] = f"{padding:.1%}, {shapes}"
            rows.append(row)
    print(markdown(rows))
    write_report(options.output, {"rows": rows})


if __name__ == "__main__":
    main()
