"""The answers of a fine-tuned checkpoint to rows."""

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit

from bert_jax.data.batching import Features
from bert_jax.errors import UserError, naming
from bert_jax.files import reading
from bert_jax.inference.evaluation import (
    Arrays,
    Columns,
    Done,
    OnDevices,
    Options,
    Part,
    Rows,
    collected,
    in_parts,
    stacked,
)
from bert_jax.inference.lines import PREFIX, flat
from bert_jax.interop.checkpoint import SIGMOID, Checkpoint, check_length
from bert_jax.interop.modules import EXTRA as MODULES
from bert_jax.interop.surgery import head_params
from bert_jax.model.config import FeatureConfig
from bert_jax.objectives.heads import jit_forward
from bert_jax.objectives.networks import make_model
from bert_jax.settings import from_settings, setting
from bert_jax.tasks.families import saved_task, task_of_head
from bert_jax.tasks.rows import count_rows, is_single
from bert_jax.tasks.splits import (
    Form,
    positioned,
    raw_rows,
    with_lists,
)
from bert_jax.tasks.task import (
    VECTOR_HEADS,
    Answer,
    Outputs,
    Task,
    objects_of,
    with_columns,
)


@dataclasses.dataclass(frozen=True)
class PredictOptions(Options):
    """The options of ``Bert.predict``."""

    top: int | None = setting(
        None,
        "number of the most likely labels, choices or spans. An answer has them in "
        '"top", the most likely first, instead of "probabilities" or "nbest"; None: all. '
        "Models for tagging, regression and sentence embeddings have no top",
        least=1,
    )


class FineTuned(NamedTuple):
    """A model with a head, the task of the head, and the model's compiled program.

    sigmoid: whether a cross-encoder applies a sigmoid to its logit, for answers and scores.
    """

    task: Task
    program: Callable
    params: Any
    sigmoid: bool

    def activated(self, outputs: Outputs) -> Outputs:
        """The outputs with the activation of a cross-encoder, for answers and scores."""
        if not self.sigmoid:
            return outputs
        return [expit(logits) for logits in outputs]


def fine_tuned(model: OnDevices, options: Options) -> FineTuned:
    """The model and the task of a checkpoint with a head.

    A fine-tuning run saves its task. If the checkpoint was fine-tuned elsewhere, the task
    follows from the head: classes or a number for a text or a pair, tags of words, spans of
    SQuAD 1.1, or the best of several choices. Raises UserError without a head.
    """
    checkpoint = model.checkpoint(options)
    key = "fine-trained", checkpoint.compute.dtype, options.max_length

    def make() -> FineTuned:
        return _fine_tuned(checkpoint, model, options.max_length)

    return model.keep(key, make)


def _fine_tuned(checkpoint: Checkpoint, model: OnDevices, max_length: int) -> FineTuned:
    path = model.name
    if checkpoint.head == "none":
        needed = "fine-tune it with finetune, or compute embeddings with embed"
        raise UserError(f"{path} is an encoder without a head; {needed}")
    if checkpoint.head == "pretraining":
        needed = "fine-tune it with finetune, or use embed, fill_mask or score"
        raise UserError(f"{path} is only pretrained; {needed}")
    task = _task(checkpoint, path, max_length)
    features = checkpoint.extra.get("features", {})
    features = from_settings(FeatureConfig, features, "features")
    sizes = task.head, task.outputs, features, checkpoint.compute
    module = make_model(checkpoint.config, *sizes)
    params, missing = head_params(checkpoint, module, task.head, task.labels)
    if missing:
        actual = f"{path} lacks {', '.join(missing)}, which a {task.head} head needs"
        raise UserError(f"{actual}; fine-tune it with bert_jax finetune")
    check_length(task.config.max_length, checkpoint, "max_length")
    gives_value = task.problem_type == "regression"
    sigmoid = gives_value and checkpoint.activation_fn == SIGMOID
    program = jit_forward(model.mesh, module)
    return FineTuned(task, program, params, sigmoid)


# Rows


def task_rows(task: Task, data: Any, columns: Columns = ()) -> Rows:
    """The rows of any data to predict.

    A row is a text, a tuple (two texts of a pair, question and context, context and
    choices, words to tag) or a dictionary with the columns that the checkpoint was trained
    with.
    """
    total = count_rows(data)
    if is_one_row(task, data) and not is_single(data):
        data, total = [data], 1  # lists of words, not columns
    return Rows(raw_rows(data, task.form), columns, total)


def is_one_row(task: Task, data: Any) -> bool:
    """Whether the data is one row.

    In tagging a dictionary with a list of words is one row, with or without their tags. A
    dictionary with other lists is a table, and so is a list of texts in the column "text".
    """
    is_tagging = task.head == "token" and isinstance(data, Mapping)
    if not is_tagging or is_single(data):
        return is_single(data)
    form = task.form
    names = []
    for key, own in form.columns.items():
        names.append((*own, *form.usual.get(key, ())))
    words, tags = names
    name = next((name for name in words if name in data), "text")
    if name == "text" or data.keys() - {name, *tags}:
        return False
    return all(isinstance(word, str) for word in data[name])


# Answers


def predict(model: OnDevices, rows: Rows, options: PredictOptions) -> Iterator[Part]:
    """Labels, tags, spans or choices with probabilities; see ``Bert.predict``."""
    trained = fine_tuned(model, options)
    task = trained.task
    ranked = {"sequence": bool(task.labels), "choice": True, "span": True}
    if options.top is not None and not ranked.get(task.head):
        kind = task.family
        if task.head == "sequence":
            kind = "numbers"
        actual = f"top={options.top}, but a model for {kind} does not rank answers"
        raise UserError(f"{actual}; leave top out")

    def decode(part: list, features: Features, outputs: Outputs) -> Sequence[Answer]:
        decoded = task.decode(part, features, trained.activated(outputs))
        if options.top is None:
            return decoded
        return [_likeliest(answer, options.top) for answer in decoded]

    return _decoded(model, rows, options, decode)


def answers(model: OnDevices, rows: Rows, options: PredictOptions) -> list[Answer]:
    """The answers of :func:`predict` to all rows."""
    return collected(predict(model, rows, options))


def logits(model: OnDevices, rows: Rows, options: Options) -> Iterator[Part]:
    """The outputs of a fine-tuned model's head for rows; see ``Bert.logits``."""
    task = fine_tuned(model, options).task
    if task.head in VECTOR_HEADS:
        raise UserError("a model for sentence embeddings has no logits; use encode")

    def decode(part: list, features: Features, outputs: Outputs) -> Sequence:
        edges = np.searchsorted(features.example, np.arange(len(part) + 1))
        values = []
        for row, (start, end) in zip(part, itertools.pairwise(edges), strict=True):
            windows = outputs[start:end]
            if task.head == "sequence":
                values.append(np.mean(windows, axis=0))
            elif task.head == "choice":  # rows with fewer choices are padded
                values.append(np.concatenate(windows[: len(row.choices)]))
            else:
                none = np.zeros((0, task.outputs), np.float32)  # a text without words
                values.append(np.concatenate([none, *windows]))
        return values

    return _decoded(model, rows, options, decode)


def _decoded(
    model: OnDevices, rows: Rows, options: Options, decode: Callable
) -> Iterator[Part]:
    """The answers that ``decode`` makes from rows, their features and their outputs."""
    trained = fine_tuned(model, options)
    task = trained.task

    def answer(part: list[Any], done: Done) -> Part:
        features = task.encode(part, model.tokenizer)
        outputs = model.run(trained.program, trained.params, features, options, done)
        return Part(features, decode(part, features, outputs))

    def document(row: Any) -> Any:
        if getattr(task.config, "document_context", False):
            return row.document
        return None

    return in_parts(
        answer,
        objects_of(with_columns(task, rows.columns), rows.placed),
        options,
        model=model,
        total=rows.total,
        max_length=task.config.max_length,
        noun="row",
        document=document,
    )


def _likeliest(answer: Answer, top: int) -> Answer:
    """An answer with the list "top" of the most likely labels, choices or spans."""
    shares = answer.pop("probabilities", None)
    likely = answer.pop("nbest", None)
    if shares is not None:
        kind, pairs = "choice", enumerate(shares)
        if isinstance(shares, dict):
            kind, pairs = "label", shares.items()
        likely = [{kind: x, "probability": p} for x, p in pairs]
    return answer | {"top": sorted(likely, key=lambda x: -x["probability"])[:top]}


def stacked_logits(model: OnDevices, rows: Rows, options: Options) -> Arrays:
    """Logits (rows, ...), or a list if the shapes of the rows differ."""
    task = fine_tuned(model, options).task
    values = collected(logits(model, rows, options))
    if task.head in ("token", "span"):
        return values
    return stacked(values, np.zeros((0, task.outputs), np.float32))


def probabilities(model: OnDevices, rows: Rows, options: Options) -> Arrays:
    """Probabilities (rows, labels) or (rows, choices); see ``Bert.predict_proba``."""
    task = fine_tuned(model, options).task
    if task.head != "choice" and not (task.head == "sequence" and task.labels):
        kind = task.family
        if task.problem_type == "regression":
            kind = "regression"
        actual = f"a model for {kind} has no probability for each label"
        raise UserError(f"{actual}; use predict or logits")
    every = PredictOptions(**vars(options))
    values = []
    for answer in answers(model, rows, every):
        shares = answer["probabilities"]
        if task.head == "sequence":
            shares = [shares[label] for label in task.labels]
        values.append(np.array(shares, float))
    return stacked(values, np.zeros((0, task.outputs)))


# Tables


def beside(model: OnDevices, rows: Rows, options: PredictOptions) -> Iterator[Part]:
    """:func:`predict` with the values of each row next to its answer.

    The names of the answer get a prefix, as in "predicted_label", and replace all names of
    the row with this prefix. The id of the answer is left out. A text or a tuple gets the
    names of the task's columns.
    """
    task = fine_tuned(model, options).task
    form = task.form.with_columns(rows.columns)
    placed, kept = itertools.tee(rows.placed)
    for part in predict(model, rows._replace(placed=placed), options):
        rows_of_part = []
        for answer, (where, row) in zip(part.answers, kept, strict=False):
            if isinstance(row, dict):
                values = with_lists(where, row, form)
            elif task.head == "token" and isinstance(row, str):
                values = {"text": row}  # not yet split into words
            else:
                values = positioned(where, row, form, labelled=False)
            cells = {x: y for x, y in values.items() if not x.startswith(PREFIX)}
            for name, value in answer.items():
                if name != "id":
                    cells[f"{PREFIX}{name}"] = value
            rows_of_part.append(cells)
        yield part._replace(answers=rows_of_part)


def frame(
    model: OnDevices, data: Any, columns: Columns, options: PredictOptions
) -> Any:
    """The values of :func:`beside` as a pandas data frame.

    A pandas frame keeps its columns and its index, and a series its index. If there are no
    rows, the columns have the names in the answer to an example.
    """
    with reading("as_frame=True", "pandas"):
        import pandas
    task = fine_tuned(model, options).task
    found = collected(beside(model, task_rows(task, data, columns), options))
    is_empty = not found
    if is_empty:
        row = _example(task.form.with_columns(columns), getattr(data, "columns", ()))
        found = collected(beside(model, Rows([("row 0", row)], columns, 1), options))
    table = pandas.DataFrame([flat(answer) for answer in found])
    if is_empty:
        table = table[:0]
    if isinstance(data, pandas.Series):
        return table.set_index(data.index)
    if not isinstance(data, pandas.DataFrame):
        return table
    kept = [name for name in data if not str(name).startswith(PREFIX)]
    new = [name for name in table if name.startswith(PREFIX)]
    return data[kept].assign(**{name: table[name].array for name in new})


def _example(form: Form, names: Collection[str]) -> dict[str, Any]:
    """An example of a row that a form reads. names: columns that the data has."""
    row: dict[str, Any] = {name: "a" for name in names if form.is_other(name)}
    for key in form.texts:
        own = form.columns[key]
        name = next((name for name in own if name in names), own[0])
        if key in form.optional and name not in names:
            continue
        row[name] = "a"
        if key in form.lists and name != "text":
            row[name] = ["a", "a"]
    return row


def _task(checkpoint: Checkpoint, path: str, max_length: int) -> Task:
    """The task for which a checkpoint was fine-tuned, or a task that fits its head.

    max_length: maximum number of tokens of a sequence; 0: as saved.
    """
    with naming(path):
        if checkpoint.extra.keys() - {MODULES}:
            task = saved_task(checkpoint.extra)
        else:
            task = task_of_head(checkpoint)
    if max_length:
        task = task.changed(max_length=max_length)
    return task
