"""Further pretraining on film reviews, with the vocabulary kept or extended.

What: a checkpoint of 2 layers and width 128 learns from the sentences of SST-2's training
  rows, with masked LM only, for 2,000 steps of 16 x 64 tokens. One variant keeps its
  vocabulary, and the other gets 500 words of the reviews. The baseline is the checkpoint
  after one step with a learning rate of 1e-12, which changes nothing. Each is fine-tuned on
  8,000 rows of SST-2.
On: two CPU cores, about 3 minutes for a variant and a seed.
Result: the held-out accuracy rises, and SST-2 gains less than a point; see docs/results.md.
Before: a folder DATA with glue/SST-2; general, a checkpoint of that size, such as a workdir
  of the study table5; kept and longer, the reviews as JSONL, prepared with the vocabulary
  of general, and with that vocabulary extended by bert_jax vocabulary --words 500.
Run:
  bert_jax study domain:DATA --workdir runs/domain
"""

from table5 import ALONE, SMALL, tasks


def pretraining(data: str, text: str, vocab_size: int, steps: int = 2000) -> dict:
    """DATA/general is trained further on ``text``. A single step learns nothing."""
    rate = 5e-4 if steps > 1 else 1e-12
    return SMALL | dict(
        model=SMALL["model"] | dict(vocab_size=vocab_size),
        init_from=f"{data}/general",
        optimizer=dict(learning_rate=rate, warmup=0.1, beta2=0.98),
        phases=(
            dict(steps=steps, batch_size=16, sequence_length=64, max_predictions=10),
        ),
        data=dict(path=f"{data}/{text}", holdout=0.02, threads=1, examples=ALONE),
        eval_every=500,
        eval_batches=50,
    )


def get_study(data: str = "data") -> dict:
    """The unchanged checkpoint and two ways to train it. ``data``: folder of the files."""
    variants = dict(
        as_it_was=pretraining(data, "kept", 4096, steps=1),
        kept=pretraining(data, "kept", 4096),
        new_words=pretraining(data, "longer", 4596),
    )
    return dict(
        variants={name: dict(pretrain=own) for name, own in variants.items()},
        tasks=dict(sst2=tasks(data)["sst2"]),
    )
