"""Your own texts: classes or numbers for one text or two, from CSV, TSV or JSONL.

Data: train, dev and (optional) test files with named columns in --data.dir; a test
file without the label column is predicted, one with it is scored.
Result: accuracy and macro F1 on dev, or Pearson and Spearman with data.regression=True.
Run:
  bert_jax finetune --config table \\
      --init_from=CHECKPOINT --data.dir=reviews --data.text_a=review
"""


def get_config() -> dict:
    """The paper's settings for GLUE."""
    return dict(family="classification", data=dict(task="table"))
