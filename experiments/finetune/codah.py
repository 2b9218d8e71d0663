"""CODAH: which of four endings, written to fool models? 2,776 rows, five folds.

Data: codah.tsv, or the folder of the authors' folds.
Result: accuracy on dev and test of a fold.
Run:
  python -m bert_jax.finetune --config experiments/finetune/codah.py \\
      --config.init_from=CHECKPOINT --config.data.dir=multiple_choice
"""

from defaults import defaults
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The paper's settings for SWAG (section 4.4)."""
    config = defaults("multiple_choice", task="codah", dir="multiple_choice")
    config.batch_size = 16  # rows, each of all its choices
    config.eval_batch_size = 32
    config.optimizer.learning_rate = 5e-5
    return config
