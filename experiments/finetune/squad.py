"""SQuAD 1.1: the answer to a question is a token of a paragraph. 87,599 questions.

Data: train-v1.1.json, dev-v1.1.json. One file can be split by article.
Result: exact match / F1; the paper's BASE: 80.8 / 88.5 on dev.
Run:
  python -m bert_jax.finetune --config experiments/finetune/squad.py \\
      --config.init_from=CHECKPOINT --config.data.dir=squad
"""

from defaults import defaults
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The paper's settings for SQuAD (section 4.2) with run_squad.py's windows."""
    config = defaults(
        "question_answering",
        version_2=False,
        dir="squad",
        train="",  # file names; empty: the official ones
        dev="",
        test="",
        train_articles="",  # a slice such as 0:36 of the file's articles
        dev_articles="",
        max_length=384,  # tokens of question and context
        stride=128,  # tokens from window to window
        max_question_length=64,  # tokens
        max_answer_length=30,  # tokens
        n_best=20,  # spans kept a question
        bad_answers="refuse",  # or skip those that do not stand where the file says
    )
    # A row would have to hold the longest window, more than twice the mean: attention over
    # such rows costs more than padding does.
    config.packing = False
    config.epochs = 3
    config.batch_size = 32
    config.eval_batch_size = 32
    config.optimizer.learning_rate = 5e-5
    return config
