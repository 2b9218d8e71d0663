"""CoNLL-2003 names: persons, places, organisations, others. 14,041 sentences.

Data: eng.train, eng.testa, eng.testb (or train.txt, valid.txt, test.txt), cased.
Result: entity F1; the paper's BASE / LARGE: 96.4 / 96.6 dev, 92.4 / 92.8 test.
Before: a cased checkpoint.
Run:
  python -m bert_jax.finetune --config experiments/finetune/conll2003.py \\
      --config.init_from=CHECKPOINT --config.data.dir=conll2003
"""

from defaults import defaults
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """With document context, without which the paper's numbers are out of reach."""
    return defaults(
        "tagging",
        task="conll2003",
        dir="conll2003",
        train="",  # file names; empty: the data set's own
        dev="",
        test="",
        scheme="auto",  # iob1, iob2, iobes, bmes or plain; auto: as the tags look
        column=-1,  # of the tag; the word is in column 0
        max_length=384,  # tokens; longer sentences are cut into windows
        stride=0,  # tokens from window to window; 0: half a window
        document_context=True,  # fill up with the sentences around
    )
