"""Chinese word segmentation: texts with spaces between the words.

Data: train, dev and test files as data.train, data.dev and data.test name them.
Result: F1 of words.
Run:
  python -m bert_jax.finetune --config experiments/finetune/segmentation.py \\
      --config.init_from=CHECKPOINT --config.data.dir=segmentation
"""

from defaults import defaults
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """A tag for each character: begin, middle, end or single."""
    config = defaults("tagging", task="segmented", dir="segmentation", max_length=256)
    config.optimizer.learning_rate = 5e-5
    return config
