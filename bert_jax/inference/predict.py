"""Answers of a checkpoint, whatever it was trained for."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bert_jax.errors import UserError
from bert_jax.inference.answering import Answers, TaskAnswers
from bert_jax.inference.blanks import BlankAnswers
from bert_jax.inference.lines import CHUNK
from bert_jax.interop.load import load


class Predictor:
    """Labels, tags, spans or choices with probabilities, for lines of text.

    >>> predict = Predictor("runs/sst2")
    >>> predict(["a gripping film", "two hours of my life that I want back"])
    [{'label': '1', 'probability': 0.998, 'probabilities': {'0': 0.002, '1': 0.998}},
     {'label': '0', 'probability': 0.991, 'probabilities': {'0': 0.991, '1': 0.009}}]

    path: a workdir of python -m bert_jax.finetune, or any checkpoint with a head that
      ``bert_jax.load`` reads. Of others' folders the task is made from the head: classes
      or a number for a text (for two, where the first line has two), tags of words, spans
      of SQuAD 1.1, the best of several choices. A checkpoint of pretraining names the
      likeliest tokens for each [MASK].
    batch_size: sequences (rows, of several choices), rounded up to a multiple of the
      devices. max_length: tokens of a sequence instead of what the checkpoint was
      trained with. top: tokens named for a [MASK].

    A line is a text, JSON, or texts with tabs between them, as the family's Task.parse
    says. family: a key of FAMILIES, or "fill_mask". max_length: as it is used.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        batch_size: int = 32,
        max_length: int = 0,
        top: int = 5,
    ):
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size}, expected at least 1")
        checkpoint = load(path)
        settings = dict(batch_size=batch_size, max_length=max_length)
        if checkpoint.head == "none" or (
            checkpoint.head == "pretraining" and "mlm" not in checkpoint.params
        ):
            raise UserError(
                f"{path} is an encoder without a head that predicts; fine-tune it with "
                "python -m bert_jax.finetune, or get its vectors with python -m "
                "bert_jax.embed"
            )
        if checkpoint.tokenizer is None:
            raise UserError(
                f"{path} has no vocabulary; put the vocab.txt that belongs to the "
                "checkpoint beside its config.json"
            )
        self._answers: TaskAnswers | BlankAnswers
        if checkpoint.head == "pretraining":
            self._answers = BlankAnswers(checkpoint, top=top, **settings)
        else:
            self._answers = TaskAnswers(checkpoint, path, **settings)
        self.family = self._answers.family
        self.max_length = self._answers.max_length

    def __call__(self, lines: Iterable[str]) -> list[dict[str, Any]]:
        """A JSON-able answer for each row, in order."""
        return [
            answer for part in self.stream(lines, "input") for answer in part.answers
        ]

    def stream(
        self, lines: Iterable[str], name: str, size: int = CHUNK
    ) -> Iterator[Answers]:
        """Rows and answers of ``size`` rows at a time; ``name`` is what errors call them.

        Memory holds the rows and outputs of one part (questions: all questions).
        """
        return self._answers.stream(lines, name, size)
