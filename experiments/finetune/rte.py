"""RTE, of GLUE. Does a text entail a sentence? 2,490 rows.

Data: the folder of GLUE's own TSV files, or --config.data.dir=tfds:glue/rte.
Result: accuracy on dev; the paper's BASE / LARGE: 66.4 / 70.1 (test).
Small: several seeds (--sweep), and bias_correction=True where runs collapse.
Run:
  python -m bert_jax.finetune --config experiments/finetune/rte.py \\
      --config.init_from=CHECKPOINT --config.data.dir=glue/RTE
"""

from defaults import defaults
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The paper's settings; add --sweep for its whole grid."""
    return defaults(
        "classification",
        task="rte",
        dir="glue/RTE",
        max_length=128,  # tokens; longer pairs lose tokens at the end
    )
