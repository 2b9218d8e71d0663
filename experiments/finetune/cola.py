"""CoLA, of GLUE. Is a sentence grammatical? 8,551 rows.

Data: the folder of GLUE's own TSV files, or --config.data.dir=tfds:glue/cola.
Result: Matthews correlation on dev; the paper's BASE / LARGE: 52.1 / 60.5 (test).
Run:
  python -m bert_jax.finetune --config experiments/finetune/cola.py \\
      --config.init_from=CHECKPOINT --config.data.dir=glue/CoLA
"""

from defaults import defaults
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The paper's settings; add --sweep for its whole grid."""
    return defaults(
        "classification",
        task="cola",
        dir="glue/CoLA",
        max_length=128,  # tokens; longer pairs lose tokens at the end
    )
