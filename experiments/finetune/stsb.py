"""STS-B, of GLUE. How similar are two sentences, from 0 to 5? Regression, 5,749 rows.

Data: the folder of GLUE's own TSV files, or --config.data.dir=tfds:glue/stsb.
Result: Spearman correlation on dev; the paper's BASE / LARGE: 85.8 / 86.5 (test).
Run:
  python -m bert_jax.finetune --config experiments/finetune/stsb.py \\
      --config.init_from=CHECKPOINT --config.data.dir=glue/STS-B
"""

from defaults import defaults
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The paper's settings; add --sweep for its whole grid."""
    return defaults(
        "classification",
        task="stsb",
        dir="glue/STS-B",
        max_length=128,  # tokens; longer pairs lose tokens at the end
    )
