r"""Sentence embeddings, trained on pairs with a number for their similarity.

Data: sentence_vectors:stsb and sentence_vectors:sick read the folder of STS-B or SICK.
  Without an argument: train, dev and test files with the columns text_a, text_b and label.
  With --data.loss=contrastive training pairs need no label.
Result: Pearson's and Spearman's correlation of the cosine with the label, on dev and test.
  On SICK's test split all-MiniLM-L6-v2 reaches 83.6 and 77.1 before training, and 88.8 and
  83.4 after 2 epochs with --optimizer.bias_correction=True.
Run:
  bert_jax finetune --config sentence_vectors:sick --data.dir=sick \
    --init_from=sentence-transformers/all-MiniLM-L6-v2
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
