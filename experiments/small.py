"""A small BERT on Wikipedia and books: what two CPU cores learn in 90 minutes.

What: MLM and NSP with a vocabulary of 8,192 tokens and 4 layers of width 256 (Mini, Turc et
  al., 2019); 7,600 steps of 64 x 64 tokens, then 5,500 of 32 x 128, because the paper
  trains on short sequences first. 30% of the tokens are masked, because a short run learns
  more from more masks (Wettig et al., 2022). Evaluations mask 15%.
On: two CPU cores for 90 minutes, in bfloat16 if it is fast there (dtype "auto").
Result: MLM accuracy 39.0% (perplexity 28.5) and NSP accuracy 88.2% on held-out text, and
  58.8% of BLiMP with seed 1; see docs/results.md.
Before: python experiments/data/download.py DATA, which downloads 76 MB (46 MB of it text).
Run:
  bert_jax train --config small:DATA --workdir runs/small
"""


def get_config(data: str = "data") -> dict:
    """``data``: the folder of wikipedia/ and books/."""
    return dict(
        model=dict(
            vocab_size=8192,
            hidden_size=256,
            num_layers=4,
            num_heads=4,
            intermediate_size=1024,
            max_positions=128,
            hidden_dropout=0.0,  # four passes over the text underfit it
            attention_dropout=0.0,
            initializer_range=0.035,  # 0.02 suits a width of 768
        ),
        compute=dict(dtype="auto"),
        data=dict(
            corpus=(f"{data}/wikipedia", f"{data}/books"),
            vocabulary_size=8192,
            holdout=0.02,
            examples=dict(mask_rate=0.3),
            threads=1,
        ),
        optimizer=dict(learning_rate=1e-3, warmup=0.04, beta2=0.98),
        phases=(
            dict(steps=7600, batch_size=64, sequence_length=64, max_predictions=20),
            dict(steps=5500, batch_size=32, sequence_length=128, max_predictions=39),
        ),
        log_every=20,
        eval_every=1000,
        eval_batches=50,
        checkpoint_every=500,
        keep_checkpoints=2,
        prompts=(
            "The capital of [MASK] is Paris.",
            "He was born in 1854 in the [MASK] of London.",
            "She opened the door and [MASK] into the room.",
        ),
    )
