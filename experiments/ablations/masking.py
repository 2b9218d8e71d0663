"""Masking: mask rates, masks of whole words and runs of words, and packing.

What: MLM and NSP with 15%, 30% and 40% of the tokens masked (Wettig et al., 2022), with
  whole words, with runs of words (ALBERT, section 4.2), and with 15% in packed rows. The
  study table5 has the same model and tasks. Each variant sees 8 million tokens. Evaluations
  mask 15% of the tokens. The variants of whole words and of runs of words are evaluated
  with their own masks, so their held-out accuracies are not comparable.
On: two CPU cores, two seeds at a time.
Result: see docs/results.md. Packed and unpacked rows should be equal within the error,
  because both learn from the same examples. In the literature whole words (the paper's
  repository) and 40% for LARGE (Wettig et al.) are better than 15% of tokens.
Before: a folder DATA as for the study table5.
Run:
  bert_jax study masking:DATA --workdir runs/masking
"""

from table5 import pretraining, tasks


def get_study(data: str = "data") -> dict:
    """Six ways to mask. ``data``: the folder of all files."""
    variants = dict(
        mask15=pretraining(data, steps=4000, mask_rate=0.15),
        mask30=pretraining(data, steps=4000, mask_rate=0.30),
        mask40=pretraining(data, steps=4000, mask_rate=0.40),
        whole_word=pretraining(data, steps=4000, mask_rate=0.15, masking="whole_word"),
        ngram=pretraining(data, steps=4000, mask_rate=0.15, masking="ngram"),
        packed=pretraining(data, steps=4000, mask_rate=0.15, packing=True),
    )
    return dict(
        variants={name: dict(pretrain=own) for name, own in variants.items()},
        tasks=tasks(data),
        pairs=(f"{data}/blimp/data",),
        pairs_per_set=40,
    )
