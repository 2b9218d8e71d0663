"""SQuAD: the answer to a question is a part of a paragraph, or (2.0) not in it.

Data: train-v1.1.json and dev-v1.1.json, 87,599 questions, or train-v2.0.json and
  dev-v2.0.json, 130,319. One file can be split by article (data.train_articles=0:36).
Result: exact match / F1 on dev; the paper's BASE: 80.8 / 88.5 on 1.1; its LARGE, with the
  tuned threshold: 78.7 / 81.9 on 2.0.
Run:
  bert_jax finetune --config squad \\
      --init_from=CHECKPOINT --data.dir=squad
  bert_jax finetune --config squad2 \\
      --init_from=CHECKPOINT --data.dir=squad
"""


def get_config(version: str = "v1") -> dict:
    """The paper's settings (4.2 and 4.3) with run_squad.py's windows; "v1" or "v2"."""
    if version not in ("v1", "v2"):
        raise ValueError(f"version {version!r}, expected v1 or v2")
    config = dict(
        family="question_answering", data=dict(dir="squad", version_2=version == "v2")
    )
    return config | (dict(epochs=2, batch_size=48) if version == "v2" else {})
