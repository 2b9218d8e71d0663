"""WNLI, of GLUE. Is a pronoun replaced rightly? 635 rows.

Data: the folder of GLUE's own TSV files, or --config.data.dir=tfds:glue/wnli.
Result: accuracy on dev; the paper leaves this task out.
Dev contradicts training, so the paper predicts the majority class.
Run:
  python -m bert_jax.finetune --config experiments/finetune/wnli.py \\
      --config.init_from=CHECKPOINT --config.data.dir=glue/WNLI
"""

from defaults import defaults
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The paper's settings; add --sweep for its whole grid."""
    return defaults(
        "classification",
        task="wnli",
        dir="glue/WNLI",
        max_length=128,  # tokens; longer pairs lose tokens at the end
    )
