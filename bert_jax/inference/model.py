"""The model that ``bert_jax.load`` returns, for scripts and notebooks."""

import dataclasses
import functools
import logging
import os
import tempfile
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import numpy as np

from bert_jax.arguments import accepts
from bert_jax.data.text_arrays import paired_texts
from bert_jax.errors import UserError, counted, listed
from bert_jax.inference import predict
from bert_jax.inference import search as retrieval
from bert_jax.inference.embed import EncodeOptions, stacked
from bert_jax.inference.evaluation import (
    Arrays,
    Columns,
    OnDevices,
    Options,
    collected,
    rows_of,
)
from bert_jax.inference.outputs import CallOptions, Output, encoder_output
from bert_jax.inference.predict import PredictOptions
from bert_jax.inference.pretrained import (
    FillMaskOptions,
    ScoreOptions,
    fill_mask,
    fills_masks,
    log_probabilities,
    next_sentence,
    token_logits,
)
from bert_jax.inference.scores import evaluate
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.find import check_save
from bert_jax.interop.load import load as load_checkpoint
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.settings import from_settings, setting
from bert_jax.tasks.rows import is_single
from bert_jax.tasks.task import Metrics, Task

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class SearchOptions(retrieval.RetrievalOptions):
    """The options of ``Bert.search``."""

    top: int = setting(10, "number of texts for a query", least=1)


@dataclasses.dataclass(frozen=True)
class DuplicateOptions(EncodeOptions):
    """The options of ``Bert.duplicates``."""

    threshold: float = setting(0.9, "minimum cosine of a pair", least=-1)


# The task of a model by its head, if it has no family of tasks.
_TASKS = {"none": "encoder without a head", "sequence": "classification"}
_TASKS |= {"token": "tagging", "choice": "multiple choice"}
_TASKS |= {"span": "question answering"}
_TASKS |= {"mean": "sentence embeddings", "cls": "sentence embeddings"}


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Bert(Checkpoint):
    """A checkpoint with methods to predict, encode, score and save.

    >>> model = bert_jax.load("models/english")
    >>> model.fill_mask("She [MASK] the door.", top=2)
    [[('opened', 0.3), ('reached', 0.06)]]
    >>> model.encode(["A man eats.", "Someone has a meal."], normalize=True).shape
    (2, 256)

    Methods take one text, or rows: a list, generator or array of texts; a pandas or polars
    data frame, a data set of Hugging Face, dictionaries; or the Path of a file. A pair is a
    tuple of two texts. ``columns`` names the column with the text, or the columns with the
    two texts, of a frame. Compiled programs are kept for the next call.
    """

    _metrics: ClassVar[Metrics | None] = None  # of the run that trained the model

    def __repr__(self) -> str:
        c = self.config
        labels = self.labels or self.extra.get("data", {}).get("labels", ())
        about = self.extra.get("family", self.head)
        about = _TASKS.get(about, about.replace("_", " "))
        if labels:
            about = f"{about} of {listed([*map(repr, labels)])}"
        elif self.head == "sequence":
            about = "regression"
        if c.model_type != BertConfig.model_type:
            about = f"{c.model_type}, {about}"
        parameters = sum(x.size for x in jax.tree.leaves(self.params["bert"]))
        parameters -= (c.word_rows - c.vocab_size) * c.hidden_size
        layers, heads = counted(c.num_layers, "layer"), counted(c.num_heads, "head")
        tokens = counted(c.vocab_size, "token")
        positions = counted(c.max_positions, "position")
        return (
            f"Bert({about}; {layers}, width {c.hidden_size}, {heads}, {tokens}, "
            f"{positions}, {parameters:,} parameters in the encoder)"
        )

    @accepts(FillMaskOptions)
    def fill_mask(
        self, texts: Any, *, columns: Columns = (), **options: Any
    ) -> list[list[Any]]:
        """The most likely tokens and their probabilities for each [MASK] of a text.

        For several texts the result is a list with one entry for each text.

        texts: a text, or rows of one text. A text that is too long is an error.
        columns: name of the column of the text; (): "text".
        """
        chosen = from_settings(FillMaskOptions, options, "")
        rows = rows_of(texts, columns, tabs=False)
        answers = []
        for answer in collected(fill_mask(self._devices, rows, chosen)):
            blanks = []
            for blank in answer["blanks"]:
                guesses = [(guess["token"], guess["probability"]) for guess in blank]
                blanks.append(guesses)
            answers.append(blanks)
        return _one_or_all(answers, is_single(texts))

    @accepts(Options)
    def next_sentence(
        self, first: Any, second: Any = None, *, columns: Columns = (), **options: Any
    ) -> float | np.ndarray:
        """The probability that the second text follows the first; an array for rows.

        >>> model.next_sentence("It was late.", "The door was shut.")
        0.99
        >>> model.next_sentence([("It was late.", "He ran."), ("He ran.", "It was late.")])
        array([0.98, 0.21])

        first, second: two texts, or two lists of the same length. Without ``second``, first
          is a pair, or rows of pairs. In a pair that is too long the longer text is cut.
        columns: names of the columns of the two texts; (): "text_a" or "text", "text_b".
        """
        rows = first
        if second is not None:
            rows = first, second
            if not any(isinstance(x, str) for x in rows):
                rows = paired_texts(first=first, second=second)
        chosen = from_settings(Options, options, "")
        answers = collected(
            next_sentence(self._devices, rows_of(rows, columns), chosen)
        )
        probabilities = np.array([x["probability"] for x in answers], float)
        return _number_or_array(probabilities, is_single(rows))

    @accepts(EncodeOptions)
    def encode(self, texts: Any, *, columns: Columns = (), **options: Any) -> Arrays:
        """Text embeddings, float32 (texts, W), or (W,) for a single text.

        texts: a text or a pair, or rows of texts and pairs.
        columns: names of the columns of the text or texts; (): "text_a" or "text", and
          "text_b" if rows have it. A sentence embedding model reads "text".
        """
        chosen = from_settings(EncodeOptions, options, "")
        vectors = stacked(self._devices, rows_of(texts, columns), chosen)
        return _one_or_all(vectors, is_single(texts))

    @accepts(EncodeOptions)
    def similarity(
        self, a: Any, b: Any, *, columns: Columns = (), **options: Any
    ) -> float | np.ndarray:
        """The cosine of each text of a with each text of b, float32 (len(a), len(b)).

        A single text has no axis: a text and a list give (len(b),), two texts a number.

        a, b: texts as for ``encode``, or vectors from ``encode``.
        columns: name of the column of the text in a frame; (): "text".
        """
        from_settings(EncodeOptions, options, "")
        retrieval.check_options(options, a, b)
        encode = functools.partial(self.encode, columns=columns, **options)
        values = retrieval.similarity(encode, a, b)
        return _number_or_array(values, values.ndim == 0)

    @accepts(SearchOptions)
    def search(
        self,
        queries: Any,
        corpus: Any,
        top: int = SearchOptions.top,
        *,
        columns: Columns = (),
        **options: Any,
    ) -> list[Any]:
        """The texts of a corpus with the largest cosines to a query, the largest first.

        >>> model.search("a meal", ["It rains.", "A man eats pasta."], top=1)
        [{'row': 1, 'cosine': 0.51, 'text': 'A man eats pasta.'}]

        For several queries the result is a list with one entry for each query. The search
        is exact.

        The model's prompt for queries is put before each query, and its prompt for
        documents before each text of the corpus. Its default prompt is not used.

        queries, corpus: texts as for ``encode``, or vectors from ``encode``. Vectors of the
          corpus save time in later searches, and the answers then have no "text". If
          the model has prompts, encode the corpus with ``prompt_name="document"``.
        top: number of texts for a query.
        columns: name of the column of the text in a frame; (): "text".
        """
        top = from_settings(SearchOptions, {"top": top, **options}, "").top
        functions = retrieval.encoders(
            self.encode, self.extra, options, queries, corpus
        )
        return retrieval.search(functions, queries, corpus, top, columns)

    @accepts(retrieval.RetrievalOptions)
    def evaluate_search(
        self,
        queries: Any,
        corpus: Any,
        relevant: Any,
        *,
        excluded: Any = (),
        columns: Columns = (),
        **options: Any,
    ) -> dict[str, float]:
        """Scores in percent of ``search``: accuracy@k, recall@k, mrr@10 and ndcg@10.

        >>> model.evaluate_search(questions, answers, [(0, 4), (0, 7), (1, 2)])["ndcg@10"]
        71.3

        accuracy@k: how often at least one relevant text is among the first k. recall@k:
        the share of the relevant texts that are among the first k; k is 1, 3, 5 and 10. A
        query without relevant texts is not counted.

        queries, corpus: several texts as for ``encode``, or vectors from ``encode``.
        relevant: pairs (row of the query, row of a relevant text), from 0, int (N, 2).
        excluded: pairs (row of the query, row of a text that the query must not find), such
          as the query itself.
        columns: name of the column of the text in a frame; (): "text".
        """
        from_settings(retrieval.RetrievalOptions, options, "")
        encode = functools.partial(self.encode, columns=columns)
        functions = retrieval.encoders(encode, self.extra, options, queries, corpus)
        texts = queries, corpus
        return retrieval.evaluate_search(functions, *texts, relevant, excluded)

    @accepts(DuplicateOptions)
    def duplicates(
        self,
        texts: Any,
        threshold: float = DuplicateOptions.threshold,
        *,
        columns: Columns = (),
        **options: Any,
    ) -> list[tuple[int, int, float]]:
        """Pairs (i, j, cosine) with a cosine of at least ``threshold``, largest first.

        texts: texts as for ``encode``, or vectors from ``encode``. All pairs are compared.
        threshold: minimum cosine of a pair.
        columns: name of the column of the text in a frame; (): "text".
        """
        given = {"threshold": threshold, **options}
        threshold = from_settings(DuplicateOptions, given, "").threshold
        retrieval.check_options(options, texts)
        encode = functools.partial(self.encode, columns=columns, **options)
        return retrieval.duplicates(encode, texts, threshold)

    @accepts(ScoreOptions)
    def score(
        self, texts: Any, *, columns: Columns = (), **options: Any
    ) -> float | np.ndarray:
        """Pseudo-log-likelihoods, float64 (texts,), or a number for a single text.

        texts: a text, or rows of one text. A text that is too long is an error.
        columns: name of the column of the text; (): "text".
        """
        chosen = from_settings(ScoreOptions, options, "")
        scores = log_probabilities(self._devices, chosen, texts, columns)
        return _number_or_array(scores, is_single(texts))

    @accepts(PredictOptions)
    def predict(
        self,
        rows: Any,
        *,
        columns: Columns = (),
        as_frame: bool = False,
        **options: Any,
    ) -> Any:
        """The answers of a fine-tuned model: a dictionary for each row.

        >>> model.predict(["a gripping film", "two lost hours"])
        [{'label': 'good', 'probability': 0.98, 'probabilities': {...}}, ...]
        >>> model.predict(reviews, as_frame=True)  # a frame with the column "text"
                      text predicted_label  predicted_probability  ...
        0  a gripping film            good                   0.98  ...

        rows: a row, or rows. A tuple is one row: the two texts of a pair, question and
          context, context and choices, or the words of a sentence. A dictionary or a frame
          has the columns that the model was trained with.
        columns: names of the columns of the text or texts; (): as trained.
        as_frame: whether to return a pandas data frame with the columns and the index of
          the rows, and the answers in columns such as "predicted_label", which replace
          columns of that prefix. Texts and tuples get the column names of the task.
        """
        chosen = from_settings(PredictOptions, options, "")
        if from_settings(bool, as_frame, "as_frame"):
            return predict.frame(self._devices, rows, columns, chosen)
        return self._of_task(predict.answers, rows, columns, chosen)

    @accepts(Options)
    def predict_proba(
        self, rows: Any, *, columns: Columns = (), **options: Any
    ) -> Arrays:
        """The probabilities of :meth:`predict` as an array, as in scikit-learn.

        >>> model.predict_proba(["a gripping film", "two lost hours"])
        array([[0.02, 0.98],
               [0.93, 0.07]])

        Labels of texts: float64 (rows, labels), in the order of ``model.labels``. The
        probabilities of classes add up to 1. With several labels for each text, each label
        has its own probability. Choices: (rows, choices), or a list of arrays if rows have
        different numbers of choices. A single row has no axis of rows. Raises UserError for
        other models.

        rows, columns: see :meth:`predict`.
        """
        chosen = from_settings(Options, options, "")
        return self._of_task(predict.probabilities, rows, columns, chosen)

    @accepts(Options)
    def logits(self, rows: Any, *, columns: Columns = (), **options: Any) -> Arrays:
        """The outputs of the model's head before softmax, float32.

        A model with an MLM head that is only pretrained: (tokens, vocabulary) for a text,
        or a list with an array for each text. A text may contain [MASK]. The logits at a
        token predict this token. A causal model predicts it from the tokens before it.

        Labels of texts and numbers: (rows, outputs), in the order of ``model.labels``.
        Choices: (rows, choices). Otherwise a list with an array for each row: tags and
        spans (tokens, outputs), with [CLS] and [SEP], and choices if rows have different
        numbers of choices. A single row has no axis of rows.

        If a row has several windows, labels have the mean of their logits, and tags and
        spans have the tokens of all windows, one window after the other.

        rows, columns: see :meth:`predict`.
        """
        chosen = from_settings(Options, options, "")
        if fills_masks(self):
            texts = rows_of(rows, columns, tabs=False)
            answers = collected(token_logits(self._devices, texts, chosen))
            return _one_or_all(answers, is_single(rows))
        return self._of_task(predict.stacked_logits, rows, columns, chosen)

    def _of_task(
        self, function: Callable, rows: Any, columns: Columns, options: Options
    ) -> Any:
        """The result of a function of inference/predict.py for rows, or a single row."""
        task = predict.fine_tuned(self._devices, options).task
        given = predict.task_rows(task, rows, columns)
        values = function(self._devices, given, options)
        return _one_or_all(values, predict.is_one_row(task, rows))

    @accepts(Options)
    def evaluate(
        self,
        data: Any,
        *,
        task: Task | None = None,
        columns: Columns = (),
        metrics: Metrics | None = None,
        **options: Any,
    ) -> dict[str, float]:
        """Scores in percent of a fine-tuned model on rows with labels, or a file of rows.

        data: rows as in ``bert_jax.tasks``, or the Path of a file that the task reads.
        task: the task of the data, for a model that was trained elsewhere; None: the
          model's own task. Its classes are matched with the model's by name.
        columns: names of the columns of the text or texts; (): as trained.
        metrics: function for more scores; see ``bert_jax.finetune``. None: the metrics of
          the run, if ``bert_jax.finetune`` returned this model.
        """
        if not (task is None or isinstance(task, Task)):
            expected = "one of bert_jax.tasks, such as bert_jax.tasks.classification()"
            raise UserError(f"task={task!r:.80}, expected {expected}")
        chosen = from_settings(Options, options, "")
        more = {"task": task, "metrics": metrics or self._metrics}
        (scored,) = evaluate(self._devices, data, chosen, columns=columns, **more)
        return scored.evaluation.scores

    @accepts(CallOptions)
    def __call__(self, texts: Any, **options: Any) -> Output:
        """The encoder's output for texts or pairs, all in one batch.

        texts: a text or a pair, or rows of texts and pairs. A text that is too long is an
          error.
        """
        chosen = from_settings(CallOptions, options, "")
        return encoder_output(self._devices, texts, chosen)

    def save(self, folder: os.PathLike | str, *, overwrite: bool = False) -> None:
        """Writes a Hugging Face folder, which transformers and ``load`` read.

        If transformers has no class for the model, only ``load`` reads the folder, and a
        warning gives the reason.

        folder: a new or an empty folder.
        overwrite: whether a saved model in the folder is replaced. Raises UserError if the
          folder contains anything else.
        """
        from bert_jax.interop.huggingface import misfit, save_huggingface

        overwrite = from_settings(bool, overwrite, "overwrite")
        check_save(folder, overwrite=overwrite, argument="overwrite=True")
        save_huggingface(folder, self, own=True, overwrite=overwrite)
        reason = misfit(self)
        if reason:
            _logger.warning(
                "only bert_jax can load the saved model, because transformers has no "
                f"class with {reason}"
            )

    def push_to_hub(
        self, name: str, *, private: bool | None = None, token: str | None = None
    ) -> str:
        """Uploads the folder that ``save`` writes to the Hugging Face Hub.

        Returns the address of the model. name: "org/name", or "name" for a model of your
        own. private: whether only you, or the organisation, can read a new model; None: the
        default of the account. token: access token that may write there; None: the token
        that ``hf auth login`` saved.
        """
        from bert_jax.interop.hub import push

        with tempfile.TemporaryDirectory() as folder:
            self.save(folder)
            return push(folder, name, private, token)

    def __getstate__(self) -> dict[str, Any]:
        """The fields, for pickle and copy. Devices and compiled programs are not stored."""
        names = [field.name for field in dataclasses.fields(self)]
        return {name: getattr(self, name) for name in names}

    @functools.cached_property
    def _devices(self) -> OnDevices:
        """Parameters on the devices and programs, kept for the next call.

        They have no reference to this object, so both are freed together.
        """
        names = [field.name for field in dataclasses.fields(Checkpoint)]
        return OnDevices(Checkpoint(**{name: getattr(self, name) for name in names}))


@accepts(ComputeConfig, BertConfig, optional=True)
def load(path: os.PathLike | str, *, average: str | int = "", **changes: Any) -> Bert:
    """Loads an encoder of BERT's family and its tokenizer, with methods to use them.

    >>> model = bert_jax.load("models/english")  # in the clone
    >>> model.score("They open the door.") > model.score("They opens the door.")
    True

    path: a workdir of pretraining (its newest checkpoint) or of fine-tuning (its best
      model), a Hugging Face folder, a folder or prefix of Google's bert_model.ckpt, a URL
      such as gs://bucket/folder, or the name of a model on the Hugging Face Hub, such as
      google-bert/bert-base-uncased, optionally with @REVISION.
    average: for a workdir of pretraining, "ema" for the moving average of its parameters
      (the setting ``average``), or a number n for the mean of its n newest checkpoints, or
      of a checkpoint such as runs/base/checkpoints/20000 and the n - 1 before it.
    changes: settings that replace values of the files, such as dtype="bfloat16",
      activation="gelu_tanh" or max_positions=1024. None changes nothing.

    Raises UserError if there is no checkpoint, or if it cannot be read.
    """
    if "weights" in changes:
        needed = "bert_jax.tokenizer reads only a tokenizer"
        raise UserError(f"weights is not a setting; {needed}")
    changes = {name: value for name, value in changes.items() if value is not None}
    return Bert(**vars(load_checkpoint(path, average=average, **changes)))


def _one_or_all(answers: Any, is_one: bool) -> Any:
    """The answers to rows, or the answer to a single row."""
    if is_one:
        return answers[0]
    return answers


def _number_or_array(values: np.ndarray, is_one: bool) -> float | np.ndarray:
    """The numbers of rows, or the number of a single row."""
    if is_one:
        return float(values.item())
    return values
