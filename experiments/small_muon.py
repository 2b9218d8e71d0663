"""The small BERT again: Muon, pre-LN, masks alone, short rows first.

What: the model and text of experiments/small.py; 64 million tokens in batches of 8,192:
  2,700 steps of 256 x 32, 2,400 of 128 x 64, 2,700 of 64 x 128. With Muon, and LayerNorm
  before attention and feed-forward, a model leaves the first flat parts of the loss sooner
  (docs/log.md). Every chosen token becomes a [MASK]: none is left to be copied.
On: two CPU cores, 74 minutes in bfloat16.
Result: 35.9% of the masks right on held-out text (perplexity 31.0), NSP 90.4%, 59.9% of
  BLiMP; see docs/results.md.
Before: DATA with wikipedia/ and books/, as for experiments/small.py.
Run:
  bert_jax train --config small_muon:DATA --workdir runs/small_muon
"""

from small import get_config as get_small_config


def get_config(data: str = "data") -> dict:
    """``data``: the folder of wikipedia/ and books/."""
    config = get_small_config(data)
    config["model"]["pre_norm"] = True
    config["data"]["examples"] |= dict(mask_share=1.0, random_share=0.0)
    return config | dict(
        optimizer=dict(name="muon", learning_rate=2e-3, warmup=0.05, beta2=0.98),
        phases=(
            dict(steps=2700, batch_size=256, sequence_length=32, max_predictions=10),
            dict(steps=2400, batch_size=128, sequence_length=64, max_predictions=20),
            dict(steps=2700, batch_size=64, sequence_length=128, max_predictions=39),
        ),
    )
