r"""Your own tags: names, parts of speech, or any file with a word and its tag on a line.

Data: train, dev and test files, which data.train, data.dev and data.test can name.
Result: entity F1, or accuracy for plain tags.
Run:
  bert_jax finetune --config tagging --init_from=google-bert/bert-base-cased \
    --data.dir=tags
"""


def get_config() -> dict:
    """The paper's settings for names."""
    return dict(family="tagging", data=dict(task="columns", dir="tags"))
