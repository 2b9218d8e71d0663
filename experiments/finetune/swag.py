r"""SWAG: choose the right one of four continuations of a text. 73,546 rows.

Data: train.csv, val.csv and (optional) test.csv.
On: one TPU chip for at most an hour, or one GPU for a few hours (paper, section 3.2).
Result: accuracy. The paper's BASE and LARGE reach 81.6 and 86.6 on dev.
Run:
  bert_jax finetune --config swag --init_from=google-bert/bert-base-uncased \
    --data.dir=swag
"""


def get_config() -> dict:
    """The paper's settings (section 4.4)."""
    return dict(
        family="multiple_choice",
        data=dict(task="swag", dir="swag"),
        batch_size=16,  # examples, each of all its choices
        optimizer=dict(learning_rate=2e-5),
    )
