"""BERT LARGE as in the paper: 24 layers, width 1024, 16 heads, 340M parameters.

What: MLM and NSP on English Wikipedia and books, 1,000,000 steps of 256 x 512 tokens.
  large:two_phase, large:lamb and large:fast are the variants of base.py.
On: 64 TPU chips for 4 days in the paper. Any number of devices that divides 256 works.
Result: MLM perplexity 3.23 on held-out text (paper, appendix C). GLUE test average 82.1
  after fine-tuning (paper, table 1).
Before: your text, or the output of bert_jax prepare; see docs/guides/pretrain.md.
Run:
  bert_jax train --config large --data.path=DIR   (or --data.corpus=my_text)
"""

from base import get_config as get_base_config


def get_config(schedule: str = "paper") -> dict:
    """BASE's settings with LARGE's sizes; ``schedule``: see base.py."""
    config = get_base_config(schedule)
    config["model"].update(
        hidden_size=1024, num_layers=24, num_heads=16, intermediate_size=4096
    )
    return config
