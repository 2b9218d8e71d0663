r"""CoNLL-2003: names of persons, places, organisations and others. 14,041 sentences.

What: tags each word, with the words around the sentence in its document. The argument
  features trains a BiLSTM on the last four layers of a frozen encoder (paper, section 5.3).
  The vectors of BASE need about 1 GB of disk for each layer.
Data: eng.train, eng.testa, eng.testb (or train.txt, valid.txt, test.txt), cased.
On: one TPU chip for at most an hour, or one GPU for a few hours (paper, section 3.2).
Result: entity F1. The paper's BASE and LARGE reach 96.4 and 96.6 on dev, 92.4 and 92.8 on
  test. The BiLSTM on BASE reaches 96.1 on dev.
Before: a cased checkpoint.
Run:
  bert_jax finetune --config conll2003 --init_from=google-bert/bert-base-cased \
    --data.dir=conll2003
  bert_jax finetune --config conll2003:features --init_from=google-bert/bert-base-cased \
    --data.dir=conll2003
"""

# The paper's feature-based tagger (section 5.3).
FEATURES = dict(
    features=dict(layers=(-4, -3, -2, -1)),
    buckets=6,
    # A BiLSTM starts with random parameters.
    optimizer=dict(learning_rate=1e-3, bias_correction=True),
)


def get_config(approach: str = "") -> dict:
    """With document context, without which the paper's numbers are out of reach."""
    if approach not in ("", "features"):
        raise ValueError(f"approach {approach!r}, expected features, or nothing")
    config = dict(
        family="tagging",
        data=dict(
            task="conll2003", dir="conll2003", max_length=384, document_context=True
        ),
    )
    return config | FEATURES | dict(epochs=20) if approach else config
