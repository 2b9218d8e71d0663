r"""Several labels at once for a text or a pair of texts, from CSV, TSV or JSONL.

Data: train, dev and (optional) test files with named columns in --data.dir. Commas separate
  the labels of a cell (data.separator). JSONL may have lists.
Result: micro and macro F1 on dev, and the share of rows with every label right.
Run:
  bert_jax finetune --config multi_label --init_from=google-bert/bert-base-uncased \
    --data.dir=emotions
"""


def get_config() -> dict:
    """The paper's settings for GLUE."""
    return dict(family="multi_label", data={})
