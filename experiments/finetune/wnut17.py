"""WNUT-17: new and rare names in tweets, posts and comments. 3,394 sentences.

Data: wnut17train.conll, emerging.dev.conll, emerging.test.annotated.
Result: entity F1 and surface F1, on dev and test.
Run:
  python -m bert_jax.finetune --config experiments/finetune/wnut17.py \\
      --config.init_from=CHECKPOINT --config.data.dir=ner/wnut17
  python -m bert_jax.finetune --config experiments/finetune/wnut17.py:features ...
      (a frozen encoder with a BiLSTM on its last four layers, section 5.3)
"""

from defaults import defaults, with_approach
from ml_collections import ConfigDict


def get_config(approach: str = "") -> ConfigDict:
    """The paper's settings for names; no documents, so no context."""
    config = defaults("tagging", task="wnut17", dir="ner/wnut17")
    config.optimizer.learning_rate = 5e-5
    return with_approach(config, approach, epochs=10)
