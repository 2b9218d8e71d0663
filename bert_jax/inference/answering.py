"""A fine-tuned model on inputs without labels: rows in, answers out."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from bert_jax.errors import UserError
from bert_jax.inference.batching import batch_rows, lengths_up_to
from bert_jax.inference.evaluation import Split, run_model
from bert_jax.inference.lines import chunks
from bert_jax.inference.saved_task import saved_task
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.initial import FeatureConfig, initial_params, make_model
from bert_jax.interop.load import check_length
from bert_jax.objectives.heads import jit_forward
from bert_jax.parallel.mesh import MeshConfig, make_mesh
from bert_jax.parallel.sharding import tree_shardings
from bert_jax.settings import from_settings
from bert_jax.tasks.task import Task


class Answers(NamedTuple):
    """Some rows, in order, with an answer each; truncated: how many are seen in part."""

    rows: list[Any]
    answers: list[dict[str, Any]]
    truncated: int


class TaskAnswers:
    """Answers of the task that a checkpoint was fine-tuned for."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        path: Path | str,
        *,
        batch_size: int,
        max_length: int,
    ):
        self._saved = saved_task(checkpoint, path, max_length)
        self.family = self._saved.family
        task = self._saved.single
        self.max_length: int = task.config.max_length
        check_length(self.max_length, checkpoint, "--max_length")
        self._tokenizer = checkpoint.tokenizer
        self._batch_size = batch_size
        features = from_settings(
            FeatureConfig, checkpoint.extra.get("features", {}), "features"
        )
        model = make_model(
            checkpoint.config, task.head, task.outputs, features, checkpoint.compute
        )
        params, fresh = initial_params(
            checkpoint, model, task.head, task.labels, jax.random.key(0)
        )
        if fresh:
            raise UserError(
                f"{path} lacks {', '.join(fresh)}, which a {task.head} head needs; "
                "fine-tune it with python -m bert_jax.finetune"
            )
        self._mesh = make_mesh(MeshConfig())
        self._params = jax.device_put(params, tree_shardings(params, self._mesh))
        self._forward = jit_forward(self._mesh, model)

    def stream(self, lines: Iterable[str], name: str, size: int) -> Iterator[Answers]:
        """Answers of ``size`` rows at a time, or more where a document is not to be cut."""
        task, first = None, 1
        for part in self._parts(lines, size):
            task = task or self._saved.reading(part[0])
            rows = _parse(task, part, name, first)
            first += len(part)
            step = len(rows) if self._by_document else size
            for start in range(0, len(rows), max(step, 1)):
                yield self._answer(task, rows[start : start + step])

    @property
    def _by_document(self) -> bool:
        """Whether a sentence is seen among those around it."""
        return getattr(self._saved.single.config, "document_context", False)

    def _parts(self, lines: Iterable[str], size: int) -> Iterable[list[str]]:
        """Lines that are parsed together."""
        if self.family == "question_answering":
            # A SQuAD file is one JSON value, and ids count from the file's first line.
            return filter(None, [list(lines)])
        if self._by_document:
            return chunks(lines, size, lambda line: not line.strip())
        return chunks(lines, size)

    def _answer(self, task: Task, rows: list[Any]) -> Answers:
        features = task.features(rows, self._tokenizer, training=False)
        units = len(features.input_ids) // features.choices
        outputs = run_model(
            self._forward,
            self._params,
            Split("predict", rows, features),
            batch_size=batch_rows(units, self._batch_size, self._mesh),
            buckets=lengths_up_to(self.max_length),
            pad_id=self._tokenizer.pad_id,
            mesh=self._mesh,
        )
        answers = task.predictions(rows, features, outputs)
        return Answers(rows, answers, features.truncated)


def _parse(task: Task, lines: Sequence[str], name: str, first: int) -> list[Any]:
    """The rows of lines ``first`` and on; errors say the line of the whole input."""
    try:
        return task.parse(lines, name)
    except UserError as error:

        def renumber(match: re.Match) -> str:
            return f"{name}:{int(match[1]) + first - 1}"

        raise UserError(
            re.sub(rf"^{re.escape(name)}:(\d+)", renumber, str(error))
        ) from error
