"""QQP, of GLUE. Do two questions ask the same? 363,846 rows.

Data: the folder of GLUE's own TSV files, or --config.data.dir=tfds:glue/qqp.
Result: F1 on dev; the paper's BASE / LARGE: 71.2 / 72.1 (test).
Run:
  python -m bert_jax.finetune --config experiments/finetune/qqp.py \\
      --config.init_from=CHECKPOINT --config.data.dir=glue/QQP
"""

from defaults import defaults
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The paper's settings; add --sweep for its whole grid."""
    return defaults(
        "classification",
        task="qqp",
        dir="glue/QQP",
        max_length=128,  # tokens; longer pairs lose tokens at the end
    )
