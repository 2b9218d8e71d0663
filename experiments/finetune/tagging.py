"""Your own tags: names, parts of speech, any file with a word and its tag a line.

Data: train, dev and test files as data.train, data.dev and data.test name them.
Result: entity F1, or accuracy for plain tags.
Run:
  python -m bert_jax.finetune --config experiments/finetune/tagging.py \\
      --config.init_from=CHECKPOINT --config.data.dir=tags
"""

from defaults import defaults
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The paper's settings for names."""
    return defaults(
        "tagging",
        task="columns",
        dir="tags",
        train="",  # file names; empty: the data set's own
        dev="",
        test="",
        scheme="auto",  # iob1, iob2, iobes, bmes or plain; auto: as the tags look
        column=-1,  # of the tag; the word is in column 0
        max_length=128,  # tokens; longer sentences are cut into windows
        stride=0,  # tokens from window to window; 0: half a window
        document_context=False,  # fill up with the sentences around
    )
