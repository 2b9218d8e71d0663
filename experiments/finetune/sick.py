r"""SICK: does a sentence entail another, and how related are the two? 4,500 rows.

Data: the folder of SICK_train.txt, SICK_trial.txt (dev) and SICK_test_annotated.txt.
Result: on dev and test the accuracy of entailment, neutral or contradiction, or Pearson's
  correlation of relatedness, a number from 1 to 5.
Run:
  bert_jax finetune --config sick:entailment --init_from=google-bert/bert-base-uncased \
    --data.dir=sick
  bert_jax finetune --config sick:relatedness --init_from=google-bert/bert-base-uncased \
    --data.dir=sick
"""


def get_config(task: str = "entailment") -> dict:
    """The paper's settings for GLUE; ``task``: "entailment" or "relatedness"."""
    if task not in ("entailment", "relatedness"):
        raise ValueError(f"task {task!r}, expected entailment or relatedness")
    return dict(family="classification", data=dict(task=f"sick_{task}", dir="sick"))
