"""CoNLL-2003 names: persons, places, organisations, others. 14,041 sentences.

Data: eng.train, eng.testa, eng.testb (or train.txt, valid.txt, test.txt), cased.
Result: entity F1; the paper's BASE / LARGE: 96.4 / 96.6 dev, 92.4 / 92.8 test; 96.1 dev
  of a BiLSTM on the frozen BASE, whose vectors take about 1 GB of disk for each layer.
Before: a cased checkpoint.
Run:
  bert_jax finetune --config conll2003 \\
      --init_from=CHECKPOINT --data.dir=conll2003
  bert_jax finetune --config conll2003:features ...
      (a frozen encoder with a BiLSTM on its last four layers, section 5.3)
"""

# The paper's feature-based tagger (section 5.3).
FEATURES = dict(
    features=dict(layers=(-4, -3, -2, -1)),
    buckets=6,  # the BiLSTM reads one sentence a row
    # A BiLSTM begins with random parameters.
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
