"""MNLI, of GLUE. Does a sentence entail, contradict, or neither? 392,702 rows, and AX.

Data: the folder of GLUE's own TSV files, or --config.data.dir=tfds:glue/mnli.
Result: accuracy, matched on dev; the paper's BASE / LARGE: 84.6 / 86.7 (test).
The data folder may hold diagnostic.tsv: predictions/AX.tsv is made of it.
Run:
  python -m bert_jax.finetune --config experiments/finetune/mnli.py \\
      --config.init_from=CHECKPOINT --config.data.dir=glue/MNLI
"""

from defaults import defaults
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The paper's settings; add --sweep for its whole grid."""
    return defaults(
        "classification",
        task="mnli",
        dir="glue/MNLI",
        max_length=128,  # tokens; longer pairs lose tokens at the end
    )
