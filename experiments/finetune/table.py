r"""Your own texts: a class or a number for one text or two, from CSV, TSV or JSONL.

Data: train, dev and (optional) test files with named columns in --data.dir. A test file
  with labels is scored, and one without labels is predicted.
Result: accuracy and macro F1 on dev, or Pearson's and Spearman's correlation with
  --data.regression=True.
Run:
  bert_jax finetune --config table --init_from=google-bert/bert-base-uncased \
    --data.dir=reviews
  --data.text_a=review and --data.label=stars name the columns of the text and the label.
"""


def get_config() -> dict:
    """The paper's settings for GLUE."""
    return dict(family="classification", data=dict(task="table"))
