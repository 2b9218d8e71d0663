r"""CODAH: choose one of four endings, which were written to fool models. 2,776 rows.

Data: full_data.tsv (or codah.tsv), which is split into five folds.
Result: accuracy on dev and test of a fold.
Run:
  bert_jax finetune --config codah --init_from=google-bert/bert-base-uncased \
    --data.dir=multiple_choice
"""


def get_config() -> dict:
    """The paper's batch size for SWAG (section 4.4), and a higher learning rate."""
    return dict(
        family="multiple_choice",
        data=dict(task="codah", dir="multiple_choice"),
        batch_size=16,  # examples, each of all its choices
    )
