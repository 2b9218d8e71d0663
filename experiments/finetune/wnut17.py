"""WNUT-17: new and rare names in tweets, posts and comments. 3,394 sentences.

Data: wnut17train.conll, emerging.dev.conll, emerging.test.annotated.
Result: entity F1 and surface F1, on dev and test.
Run:
  python -m bert_jax.finetune --config experiments/finetune/wnut17.py \\
      --config.init_from=CHECKPOINT --config.data.dir=ner/wnut17
"""

from defaults import defaults
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The paper's settings for names; no documents, so no context."""
    return defaults(
        "tagging",
        task="wnut17",
        dir="ner/wnut17",
        train="",  # file names; empty: the data set's own
        dev="",
        test="",
        scheme="auto",  # iob1, iob2, iobes, bmes or plain; auto: as the tags look
        column=-1,  # of the tag; the word is in column 0
        max_length=128,  # tokens; longer sentences are cut into windows
        stride=0,  # tokens from window to window; 0: half a window
        document_context=False,  # fill up with the sentences around
    )
