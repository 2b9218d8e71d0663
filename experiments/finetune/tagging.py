"""Your own tags: names, parts of speech, any file with a word and its tag a line.

Data: train, dev and test files as data.train, data.dev and data.test name them.
Result: entity F1, or accuracy for plain tags.
Run:
  python -m bert_jax.finetune --config experiments/finetune/tagging.py \\
      --config.init_from=CHECKPOINT --config.data.dir=tags
"""

from defaults import defaults
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The paper's settings for names."""
    config = defaults("tagging", task="columns", dir="tags")
    config.optimizer.learning_rate = 5e-5
    return config
