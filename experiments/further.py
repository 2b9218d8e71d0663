"""Further pretraining: a checkpoint on texts of your own domain.

What: MLM + NSP from a checkpoint, 10,000 steps of 32 x 128 with Google's own learning rate
  for this; 41 million tokens, four passes over 50 MB of text. The checkpoint gives the
  sizes of the model and the vocabulary. Evaluates the checkpoint as it is, and every 1,000
  steps.
On: one GPU, an hour or less for BASE (estimated); two CPU cores take four to nine seconds
  a step.
Result: the loss on held-out documents of the domain falls from step 0 on; what a task
  gains depends on how far the domain is from the checkpoint's text.
Run:
  bert_jax train --config further \\
      --init_from=CHECKPOINT --data.corpus=TEXT
  (or --data.path=DIR, a text that bert_jax prepare has prepared with the
  vocabulary of the checkpoint; see docs/guides/further_pretraining.md)
"""

from base import phase


def get_config() -> dict:
    """A fifth of BASE's learning rate."""
    return dict(
        compute=dict(dtype="auto"),
        data=dict(holdout=0.02, packing=True),
        optimizer=dict(learning_rate=2e-5, warmup_steps=500),
        phases=(phase(10_000, 128, 20, batch_size=32),),
        eval_every=1000,
        eval_batches=40,
        checkpoint_every=1000,
    )
