"""Chinese word segmentation: texts with spaces between the words.

Data: train, dev and test files as data.train, data.dev and data.test name them.
Result: F1 of words.
Run:
  python -m bert_jax.finetune --config experiments/finetune/segmentation.py \\
      --config.init_from=CHECKPOINT --config.data.dir=segmentation
"""

from defaults import defaults
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """A tag for each character: begin, middle, end or single."""
    return defaults(
        "tagging",
        task="segmented",
        dir="segmentation",
        train="",  # file names; empty: the data set's own
        dev="",
        test="",
        max_length=256,  # tokens; longer sentences are cut into windows
        stride=0,  # tokens from window to window; 0: half a window
        document_context=False,  # fill up with the sentences around
    )
