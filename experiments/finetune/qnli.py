"""QNLI, of GLUE. Does a sentence answer a question? 104,743 rows.

Data: the folder of GLUE's own TSV files, or --config.data.dir=tfds:glue/qnli.
Result: accuracy on dev; the paper's BASE / LARGE: 90.5 / 92.7 (test).
Run:
  python -m bert_jax.finetune --config experiments/finetune/qnli.py \\
      --config.init_from=CHECKPOINT --config.data.dir=glue/QNLI
"""

from defaults import defaults
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The paper's settings; add --sweep for its whole grid."""
    return defaults(
        "classification",
        task="qnli",
        dir="glue/QNLI",
        max_length=128,  # tokens; longer pairs lose tokens at the end
    )
