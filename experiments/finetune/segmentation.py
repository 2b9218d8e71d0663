r"""Chinese word segmentation: texts with spaces between the words.

Data: train, dev and test files, which data.train, data.dev and data.test can name.
Result: F1 of words on dev and test.
Run:
  bert_jax finetune --config segmentation --init_from=google-bert/bert-base-chinese \
    --data.dir=segmentation
"""


def get_config() -> dict:
    """A tag for each character: begin, middle, end or single."""
    return dict(
        family="tagging",
        data=dict(task="segmented", dir="segmentation", max_length=256),
    )
