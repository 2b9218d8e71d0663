"""Vectors of texts, trained on pairs with a number that says how close they are.

Data: STS-B's or SICK's folder; or (table) train, dev and test files with the columns
text_a, text_b and label. With data.loss=contrastive training pairs need no label.
Result: Pearson's and Spearman's correlation of the cosine with the label, on dev and test.
  SICK from all-MiniLM-L6-v2, 2 epochs with optimizer.bias_correction=True: test 88.8 and
  83.4; before 83.6 and 77.1.
Run:
  bert_jax finetune --config sentence_vectors:sick \\
      --init_from=CHECKPOINT --data.dir=sick   (or stsb, or table)
"""

TASKS = {"sick": "sick_relatedness", "stsb": "stsb", "table": "table"}


def get_config(task: str = "table") -> dict:
    """``task``: "sick", "stsb" or "table"."""
    if task not in TASKS:
        raise ValueError(f"task {task!r}, expected one of {sorted(TASKS)}")
    return dict(
        family="sentence_vectors",
        data=dict(task=TASKS[task]),
    )
