"""Further pretraining on film reviews, with the vocabulary kept or extended.

What: a checkpoint of 2 layers of width 128 (one step of 0 for the baseline; 2,000 steps of
  16 x 64 on the sentences of SST-2's training rows, masked LM alone), with its own
  vocabulary and with 500 words of the reviews; each fine-tuned on 8,000 rows of SST-2.
On: two CPU cores, about 3 minutes for a variant and a seed.
Result: docs/results.md: the held-out accuracy rises; SST-2 gains less than a point.
Before: DATA with glue/SST-2; general, a checkpoint of that size such as a workdir of
  table5.py's; kept and longer, the reviews as JSONL prepared with the vocabulary of general
  and with the one that bert_jax vocabulary --extend general --words 500 makes.
Run:
  bert_jax study domain:DATA --workdir runs/domain
"""

from table5 import ALONE, SMALL, tasks


def pretraining(data: str, text: str, vocab_size: int, steps: int = 2000) -> dict:
    """Going on from DATA/general on the prepared ``text``; one step learns nothing."""
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
    """The checkpoint as it was, and two ways to go on. ``data``: where all files are."""
    variants = dict(
        as_it_was=pretraining(data, "kept", 4096, steps=1),
        kept=pretraining(data, "kept", 4096),
        new_words=pretraining(data, "longer", 4596),
    )
    return dict(
        variants={name: dict(pretrain=own) for name, own in variants.items()},
        tasks=dict(sst2=tasks(data)["sst2"]),
    )
