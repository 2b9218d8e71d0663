"""A small BERT on the English inside Python itself: the first thing to run.

What: a vocabulary of 4,096 tokens and a 2-layer BERT, MLM + NSP, on the language
  reference and the standard library's docstrings. Nothing is downloaded. Short
  sequences first, longer ones at the end, as the paper does. Two fifths of the tokens
  are masked, because a run of two minutes learns more from more of them (Wettig et al.,
  2022); evaluation masks the paper's 15%.
On: two CPU cores, in under 4 minutes.
Result: MLM accuracy 26 to 28% on the eval documents (baseline: always the most frequent
  token, 6%). NSP accuracy 55 to 63% by the seed (baseline: always the more frequent label,
  55%): next sentences are learned late, and two minutes do not suffice for every seed.
  small.py learns them.
Run: make train, or
  bert_jax train --config tiny
"""


def get_config() -> dict:
    """Two layers of width 128, for 2,500 steps of 32 x 32 and 1,000 of 16 x 64."""
    return dict(
        model=dict(
            vocab_size=4096,
            hidden_size=128,
            num_layers=2,
            num_heads=2,
            intermediate_size=512,
            max_positions=64,
            hidden_dropout=0.0,  # a run this short underfits
            attention_dropout=0.0,
            initializer_range=0.05,  # 0.02 suits a width of 768
        ),
        compute=dict(dtype="auto"),
        data=dict(
            corpus=("python-docs",),  # the English inside Python itself
            vocabulary_size=4096,
            holdout=0.05,
            examples=dict(mask_rate=0.4),
            threads=1,
        ),
        optimizer=dict(learning_rate=1.5e-3, warmup_steps=200, beta2=0.98),
        phases=(
            dict(steps=2500, sequence_length=32, batch_size=32, max_predictions=13),
            dict(steps=1000, sequence_length=64, batch_size=16, max_predictions=26),
        ),
        seed=1,
        log_every=250,
        eval_every=1000,
        eval_batches=200,
        checkpoint_every=500,
        keep_checkpoints=2,
        prompts=(  # none of them is in the corpus
            "Return [MASK] if the thread is still waiting for a job.",
            "If the file does not [MASK], an exception is raised.",
            "Returns [MASK] when the two names do not differ.",
            "This method must be overridden by the [MASK] class.",
        ),
    )
