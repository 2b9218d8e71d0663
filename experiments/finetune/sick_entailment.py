"""SICK. Does a sentence entail, contradict, or neither? 4,500 rows.

Data: the folder of SICK_train.txt, SICK_trial.txt (dev) and SICK_test_annotated.txt.
Result: accuracy, on dev and on test.
Run:
  python -m bert_jax.finetune --config experiments/finetune/sick_entailment.py \\
      --config.init_from=CHECKPOINT --config.data.dir=sick
"""

from defaults import defaults
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The paper's settings for GLUE."""
    return defaults(
        "classification",
        task="sick_entailment",
        dir="sick",
        max_length=128,  # tokens; longer pairs lose tokens at the end
    )
