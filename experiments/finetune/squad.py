r"""SQuAD: the answer to a question is a part of a paragraph. In 2.0 it may be missing.

Data: train-v1.1.json and dev-v1.1.json, 87,599 questions, or train-v2.0.json and
  dev-v2.0.json, 130,319 questions. One file can be split by article: for example
  --data.train_articles=0:36.
On: one TPU chip for at most an hour, or one GPU for a few hours (paper, section 3.2).
Result: exact match and F1 on dev. The paper's BASE reaches 80.8 and 88.5 on 1.1. Its LARGE
  reaches 78.7 and 81.9 on 2.0 with the tuned threshold.
Run:
  bert_jax finetune --config squad --init_from=google-bert/bert-base-uncased \
    --data.dir=squad
  bert_jax finetune --config squad2 --init_from=google-bert/bert-base-uncased \
    --data.dir=squad
"""


def get_config(version: str = "v1") -> dict:
    """The paper's settings (4.2 and 4.3) with run_squad.py's windows; "v1" or "v2"."""
    if version not in ("v1", "v2"):
        raise ValueError(f"version {version!r}, expected v1 or v2")
    config = dict(
        family="question_answering", data=dict(dir="squad", version_2=version == "v2")
    )
    return config | (dict(epochs=2, batch_size=48) if version == "v2" else {})
