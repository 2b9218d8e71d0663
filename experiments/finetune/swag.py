"""SWAG: which of four endings goes on? 73,546 rows.

Data: train.csv, val.csv and (optional) test.csv.
Result: accuracy; the paper's BASE / LARGE: 81.6 / 86.6 on dev.
Run:
  python -m bert_jax.finetune --config experiments/finetune/swag.py \\
      --config.init_from=CHECKPOINT --config.data.dir=swag
"""

from defaults import defaults
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The paper's settings for SWAG (section 4.4)."""
    config = defaults("multiple_choice", task="swag", dir="swag")
    config.batch_size = 16  # rows, each of all its choices
    config.eval_batch_size = 32
    config.optimizer.learning_rate = 2e-5
    return config
