"""MRPC, of GLUE. Do two sentences say the same? 3,668 rows.

Data: the folder of GLUE's own TSV files, or --config.data.dir=tfds:glue/mrpc.
Result: F1 on dev; the paper's BASE / LARGE: 88.9 / 89.3 (test).
Run:
  python -m bert_jax.finetune --config experiments/finetune/mrpc.py \\
      --config.init_from=CHECKPOINT --config.data.dir=glue/MRPC
"""

from defaults import defaults
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The paper's settings; add --sweep for its whole grid."""
    return defaults(
        "classification",
        task="mrpc",
        dir="glue/MRPC",
        max_length=128,  # tokens; longer pairs lose tokens at the end
    )
