"""CoNLL-2003 with a frozen encoder and a BiLSTM on its last four layers (section 5.3).

Data: eng.train, eng.testa, eng.testb (or train.txt, valid.txt, test.txt), cased.
Result: entity F1; the paper's BASE: 96.1 on dev.
On: the vectors take about 1 GB of disk for each layer of BASE.
Run:
  python -m bert_jax.finetune --config experiments/finetune/conll2003_features.py \\
      --config.init_from=CHECKPOINT --config.data.dir=conll2003
"""

from defaults import defaults
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The paper's feature-based tagger."""
    config = defaults(
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
    config.packing = False  # the BiLSTM reads one sentence a row
    config.features.layers = (-4, -3, -2, -1)  # hidden states, concatenated
    config.optimizer.learning_rate = 1e-3  # of a BiLSTM that begins from nothing
    config.optimizer.bias_correction = True
    config.epochs = 20
    return config
