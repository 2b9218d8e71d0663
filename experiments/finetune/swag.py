"""SWAG: which of four endings goes on? 73,546 rows.

Data: train.csv, val.csv and (optional) test.csv.
Result: accuracy; the paper's BASE / LARGE: 81.6 / 86.6 on dev.
Run:
  bert_jax finetune --config swag \\
      --init_from=CHECKPOINT --data.dir=swag
"""


def get_config() -> dict:
    """The paper's settings (section 4.4)."""
    return dict(
        family="multiple_choice",
        data=dict(task="swag", dir="swag"),
        batch_size=16,  # examples, each of all its choices
        optimizer=dict(learning_rate=2e-5),
    )
