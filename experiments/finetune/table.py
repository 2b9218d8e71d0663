"""Your own texts: classes or numbers for one text or two, from CSV, TSV or JSONL.

Data: train, dev and (optional) test files with named columns in --config.data.dir; a test
file without the label column is predicted, one with it is scored.
Result: accuracy and macro F1 on dev, or Pearson and Spearman with data.regression=True.
Run:
  python -m bert_jax.finetune --config experiments/finetune/table.py \\
      --config.init_from=CHECKPOINT --config.data.dir=reviews --config.data.text_a=review
"""

from defaults import defaults
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The paper's settings for GLUE."""
    return defaults(
        "classification",
        task="table",
        dir="",
        train="",  # file names; empty: train.csv, train.tsv, train.jsonl, ...
        dev="",
        test="",
        text_a="text",  # column names
        text_b="",  # of the second text, for tasks on pairs
        label="label",
        id="id",
        labels=(),  # in the order of the outputs; empty: those of the training rows
        regression=False,  # whether labels are numbers
        max_length=128,  # tokens
        truncation="head",  # of longer texts keep: head, tail, head_tail, or all in windows
        head_tokens=128,  # tokens kept of the start with head_tail
        stride=64,  # tokens from window to window
    )
