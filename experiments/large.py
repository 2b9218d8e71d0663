"""BERT LARGE as in the paper: 24 layers, width 1024, 16 heads, 340M parameters.

What: MLM + NSP on English Wikipedia and books, 1,000,000 steps of 256 x 512.
On: 64 TPU chips in the paper, 4 days; any number of accelerators that divides 256.
Result: MLM perplexity 3.23 held out (paper, appendix C); GLUE test average 82.1 after
  fine-tuning (paper, table 1).
Before: your text, or the output of bert_jax prepare; see docs/guides/pretrain.md.
Run:
  bert_jax train --config large --data.path=DIR   (or --data.corpus=TEXT)
Or large:two_phase, or large:lamb (batches of 32,768).
"""

from base import get_config as get_base_config


def get_config(schedule: str = "paper") -> dict:
    """BASE's settings with LARGE's sizes; ``schedule``: "paper", "two_phase" or "lamb"."""
    config = get_base_config(schedule)
    config["model"].update(
        hidden_size=1024, num_layers=24, num_heads=16, intermediate_size=4096
    )
    return config
