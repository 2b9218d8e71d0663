"""SQuAD 2.0: as 1.1, but a paragraph may hold no answer. 130,319 questions.

Data: train-v2.0.json, dev-v2.0.json. One file can be split by article.
Result: exact match / F1 with the tuned threshold; the paper's LARGE: 78.7 / 81.9 on dev.
Run:
  python -m bert_jax.finetune --config experiments/finetune/squad2.py \\
      --config.init_from=CHECKPOINT --config.data.dir=squad
"""

from defaults import defaults
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The paper's settings for SQuAD (section 4.3) with run_squad.py's windows."""
    config = defaults(
        "question_answering",
        version_2=True,
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
    config.epochs = 2
    config.batch_size = 48
    config.eval_batch_size = 32
    config.optimizer.learning_rate = 5e-5
    return config
