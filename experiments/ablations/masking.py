"""How much is masked, what is masked as one, and packing, at a size for two CPU cores.

What: MLM + NSP with 15% of the tokens masked, 30% and 40% (Wettig et al., 2022), whole
  words, runs of words (ALBERT, section 4.2), and 15% with packed rows; the model and tasks
  of table5.py, and 8 million tokens. Evaluations mask 15% of the tokens each on its own in
  all of them but whole words and runs of words, whose held-out accuracies compare with no
  other.
On: two CPU cores, two seeds at a time.
Result: see docs/results.md. Packed should equal unpacked within its error, because it
  learns from the same examples. Elsewhere whole words (the paper's repository) and 40% for
  LARGE (Wettig et al.) are better than 15% of tokens.
Before: DATA as for table5.py.
Run:
  bert_jax study masking:DATA \\
      --workdir runs/masking
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
