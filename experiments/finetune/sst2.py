"""SST-2, of GLUE. Is a film review positive? 67,349 rows.

Data: the folder of GLUE's own TSV files, or --config.data.dir=tfds:glue/sst2.
Result: accuracy on dev; the paper's BASE / LARGE: 93.5 / 94.9 (test).
Run:
  python -m bert_jax.finetune --config experiments/finetune/sst2.py \\
      --config.init_from=CHECKPOINT --config.data.dir=glue/SST-2
"""

from defaults import defaults
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The paper's settings; add --sweep for its whole grid."""
    return defaults(
        "classification",
        task="sst2",
        dir="glue/SST-2",
        max_length=128,  # tokens; longer pairs lose tokens at the end
    )
