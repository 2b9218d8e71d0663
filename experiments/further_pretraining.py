r"""Further pretraining: a checkpoint learns from texts of your own domain.

What: MLM and NSP from a checkpoint, 10,000 steps of 32 x 128 tokens (fewer, if the
  checkpoint has fewer positions) with Google's learning rate for this; four passes over
  50 MB of text. The checkpoint gives the sizes of the model and the vocabulary. The
  checkpoint is evaluated before the first step, and then every 1,000 steps.
On: one GPU for about an hour for BASE (an estimate). Two CPU cores need four to nine
  seconds a step.
Result: the loss on held-out documents of the domain falls from the first evaluation on. The
  gain on a task depends on how much the domain differs from the checkpoint's text.
Run:
  bert_jax train --config further_pretraining --init_from=google-bert/bert-base-uncased \
    --data.corpus=my_text
  or with --data.path=DIR, the output of bert_jax prepare with the vocabulary of the
  checkpoint; see docs/guides/further_pretraining.md.
"""


def get_config() -> dict:
    """A fifth of BASE's learning rate."""
    return dict(
        compute=dict(dtype="auto"),
        data=dict(holdout=0.02, packing=True),
        optimizer=dict(learning_rate=2e-5, warmup_steps=500),
        phases=(dict(steps=10_000, batch_size=32),),  # of 128 tokens, if it has as many
        eval_every=1000,
        eval_batches=40,
        checkpoint_every=1000,
    )
