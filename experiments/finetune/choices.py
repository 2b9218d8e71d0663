"""Your own multiple choice: JSONL with context, choices (any number) and label.

Data: train, dev and test files as data.train, data.dev and data.test name them.
Result: accuracy.
Run:
  python -m bert_jax.finetune --config experiments/finetune/choices.py \\
      --config.init_from=CHECKPOINT --config.data.dir=choices
"""

from defaults import defaults
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The paper's settings for SWAG (section 4.4)."""
    config = defaults("multiple_choice", task="table", dir="choices")
    config.batch_size = 16  # rows, each of all its choices
    config.eval_batch_size = 32
    config.optimizer.learning_rate = 2e-5
    return config
