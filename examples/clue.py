"""An example family of tasks in one file: find the word that decides a text's label.

A row needs no label: its clue is the last "good" or "bad" of the text. See
docs/guides/own_task.md.
"""

import dataclasses
import json

import numpy as np

from bert_jax.errors import UserError
from bert_jax.settings import setting
from bert_jax.tasks.splits import DataConfig, Form
from bert_jax.tasks.task import Features, Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClueConfig(DataConfig):
    """The files of the family."""

    max_length: int = setting(32, "maximum number of tokens of a sequence", least=3)


class Clue(Task):
    """The head marks the token of the clue.

    The place of a word is the place of its token, so the vocabulary has all words.
    """

    family = "clue"
    config_class = ClueConfig
    form = Form(columns={"text": ("text",), "label": ("label",)})
    head = "token"
    labels = ("other", "clue")
    main_metric = "found"

    def row(self, where, values, labelled):
        """(words, place of the clue), or (words, None) for a row to predict."""
        words = values["text"].split()
        if not words:
            raise UserError(f"{where} is empty; expected words")
        if not labelled:
            return words, None
        return words, max(i for i, word in enumerate(words) if word in ("good", "bad"))

    def encode(self, rows, tokenizer):
        """The tokens of each row, and the label of each token."""
        ids, types, labels = [], [], []
        for words, clue in rows:
            tokens = tokenizer.encode(" ".join(words))
            if len(tokens) != len(words):
                text = " ".join(words)
                raise UserError(f"{text!r:.80}: the vocabulary must have every word")
            input_ids, token_type_ids = tokenizer.build(tokens)
            ids.append(input_ids)
            types.append(token_type_ids)
            if clue is not None:
                marks = np.zeros(len(input_ids), np.int32)
                marks[1 + clue] = 1  # after [CLS]
                labels.append(marks)
        targets = {"labels": labels} if len(labels) == len(rows) else {}
        return Features(ids, types, np.arange(len(rows), dtype=np.int32), targets)

    def decode(self, rows, features, outputs):
        """The word whose token is most likely a clue."""
        answers = []
        for (words, _), logits in zip(rows, outputs, strict=True):
            scores = logits[1:-1, 1] - logits[1:-1, 0]  # without [CLS] and [SEP]
            best = int(scores.argmax())
            answers.append({"word": best, "clue": words[best]})
        return answers

    def score(self, rows, answers):
        """How many clues were found, in percent."""
        right = [a["word"] == clue for a, (_, clue) in zip(answers, rows, strict=True)]
        return {"found": 100 * float(np.mean(right))}

    def export(self, rows, answers, split):
        """One file of all answers."""
        return {f"{split}.json": json.dumps(answers)}
