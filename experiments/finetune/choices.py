r"""Your own multiple choice: JSONL with a context, any number of choices and a label.

Data: train, dev and test files, which data.train, data.dev and data.test can name.
Result: accuracy on dev and test.
Run:
  bert_jax finetune --config choices --init_from=google-bert/bert-base-uncased \
    --data.dir=choices
"""


def get_config() -> dict:
    """The paper's settings for SWAG (section 4.4)."""
    return dict(
        family="multiple_choice",
        data=dict(task="table", dir="choices"),
        batch_size=16,  # examples, each of all its choices
        optimizer=dict(learning_rate=2e-5),
    )
