"""The small BERT again, from fewer tokens: Muon, pre-LN, short rows first.

What: the model, text and masks of experiments/small.py; 16 million tokens in batches of
  8,192: 700 steps of 256 x 32, 600 of 128 x 64, 700 of 64 x 128. With Muon, and LayerNorm
  before attention and feed-forward, a model leaves the first flat parts of the loss sooner
  (docs/log.md).
On: two CPU cores, 79 minutes.
Result: 33.7% of masked tokens right on held-out text, NSP 84.0%. small.py had 35.9% and
  84.4% after 37 million tokens. See docs/experiments.md.
Before: DATA with wikipedia/ and books/, as for experiments/small.py.
Run:
  python -m bert_jax.train --config experiments/small_muon.py:DATA --workdir runs/small_muon
"""

from small import get_config as get_small_config


def get_config(data: str = "data") -> dict:
    """``data``: the folder of wikipedia/ and books/."""
    config = get_small_config(data)
    config["model"]["pre_norm"] = True
    return config | dict(
        optimizer=dict(name="muon", learning_rate=2e-3, warmup=0.05, beta2=0.98),
        phases=(
            dict(steps=700, batch_size=256, sequence_length=32, max_predictions=10),
            dict(steps=600, batch_size=128, sequence_length=64, max_predictions=20),
            dict(steps=700, batch_size=64, sequence_length=128, max_predictions=39),
        ),
        checkpoint_every=250,
        eval_every=500,
    )
