"""SICK: does a sentence entail another, and how related are the two? 4,500 rows.

Data: the folder of SICK_train.txt, SICK_trial.txt (dev) and SICK_test_annotated.txt.
Result: on dev and test, accuracy of entailment, neutral or contradiction; or Pearson's
  correlation of relatedness, from 1 to 5 (regression).
Run:
  python -m bert_jax.finetune --config experiments/finetune/sick.py:entailment \\
      --config.init_from=CHECKPOINT --config.data.dir=sick
  python -m bert_jax.finetune --config experiments/finetune/sick.py:relatedness \\
      --config.init_from=CHECKPOINT --config.data.dir=sick
"""

from defaults import defaults
from ml_collections import ConfigDict


def get_config(task: str = "entailment") -> ConfigDict:
    """The paper's settings for GLUE; ``task``: "entailment" or "relatedness"."""
    config = defaults("classification", task=f"sick_{task}", dir="sick")
    config.optimizer.learning_rate = 5e-5
    return config
