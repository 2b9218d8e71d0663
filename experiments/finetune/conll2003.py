"""CoNLL-2003 names: persons, places, organisations, others. 14,041 sentences.

Data: eng.train, eng.testa, eng.testb (or train.txt, valid.txt, test.txt), cased.
Result: entity F1; the paper's BASE / LARGE: 96.4 / 96.6 dev, 92.4 / 92.8 test; 96.1 dev
  of a BiLSTM on the frozen BASE, whose vectors take about 1 GB of disk for each layer.
Before: a cased checkpoint.
Run:
  python -m bert_jax.finetune --config experiments/finetune/conll2003.py \\
      --config.init_from=CHECKPOINT --config.data.dir=conll2003
  python -m bert_jax.finetune --config experiments/finetune/conll2003.py:features ...
      (a frozen encoder with a BiLSTM on its last four layers, section 5.3)
"""

from defaults import defaults, with_approach
from ml_collections import ConfigDict


def get_config(approach: str = "") -> ConfigDict:
    """With document context, without which the paper's numbers are out of reach."""
    config = defaults(
        "tagging",
        task="conll2003",
        dir="conll2003",
        max_length=384,
        document_context=True,
    )
    config.optimizer.learning_rate = 5e-5
    return with_approach(config, approach, epochs=20)
