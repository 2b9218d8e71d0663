r"""WNUT-17: new and rare names in tweets, posts and comments. 3,394 sentences.

What: tags each word. The argument features trains a BiLSTM on the last four layers of a
  frozen encoder (paper, section 5.3).
Data: wnut17train.conll, emerging.dev.conll, emerging.test.annotated.
Result: entity F1 on dev and test.
Run:
  bert_jax finetune --config wnut17 --init_from=google-bert/bert-base-cased \
    --data.dir=ner/wnut17
  bert_jax finetune --config wnut17:features --init_from=google-bert/bert-base-cased \
    --data.dir=ner/wnut17
"""

from conll2003 import FEATURES


def get_config(approach: str = "") -> dict:
    """The paper's settings for names; no documents, so no context."""
    if approach not in ("", "features"):
        raise ValueError(f"approach {approach!r}, expected features, or nothing")
    config = dict(family="tagging", data=dict(task="wnut17", dir="ner/wnut17"))
    return config | FEATURES | dict(epochs=10) if approach else config
