"""Vectors of texts, trained on pairs with a number for their similarity.

Data: sentence_vectors:stsb and sentence_vectors:sick read the folder of STS-B or SICK.
  Without an argument: train, dev and test files with the columns text_a, text_b and label.
  With --data.loss=contrastive training pairs need no label.
Result: Pearson's and Spearman's correlation of the cosine with the label, on dev and test.
  all-MiniLM-L6-v2 on SICK reaches 88.8 and 83.4 on test after 2 epochs with
  --optimizer.bias_correction=True, and 83.6 and 77.1 before them.
Run:
  bert_jax finetune --config sentence_vectors:sick --init_from=CHECKPOINT --data.dir=sick
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
