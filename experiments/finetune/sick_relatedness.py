"""SICK. How related are two sentences, from 1 to 5? Regression, 4,500 rows.

Data: the folder of SICK_train.txt, SICK_trial.txt (dev) and SICK_test_annotated.txt.
Result: Pearson correlation, on dev and on test.
Run:
  python -m bert_jax.finetune --config experiments/finetune/sick_relatedness.py \\
      --config.init_from=CHECKPOINT --config.data.dir=sick
"""

from defaults import defaults
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The paper's settings for GLUE."""
    return defaults(
        "classification",
        task="sick_relatedness",
        dir="sick",
        max_length=128,  # tokens; longer pairs lose tokens at the end
    )
