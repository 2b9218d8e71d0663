"""The model that ``bert_jax.load`` returns, for scripts and notebooks."""

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.data.batching import Shape, packed_rows
from bert_jax.errors import UserError
from bert_jax.inference.embed import Embedder
from bert_jax.inference.evaluation import Columns, on_devices, text_features
from bert_jax.inference.predict import Predictor
from bert_jax.inference.pretrained import FillMask, NextSentence, Scorer
from bert_jax.interop.checkpoint import Checkpoint, check_types, check_vocabulary
from bert_jax.interop.load import load as load_checkpoint
from bert_jax.model.bert import BertModel
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.layers import with_scan
from bert_jax.settings import with_arguments
from bert_jax.tasks.rows import is_single, placed_rows, row_texts
from bert_jax.tasks.task import Task


@dataclasses.dataclass(frozen=True)
class Output:
    """The encoder's output for some texts, as numpy arrays, padded to the longest text.

    tokens: the tokens of each text, with [CLS] and [SEP]. input_ids, token_type_ids,
      attention_mask: int32 (B, L). last_hidden_state: float32 (B, L, D). pooled: float32
      (B, D); None for a model without a pooler. hidden_states: the embeddings and the
      output of each layer, float32 (layers + 1, B, L, D). attentions: float32
      (layers, B, N, L, L); the last two axes are the token that attends and the token that
      is attended to. hidden_states and attentions are None unless the call asks for them.
    """

    tokens: list[list[str]]
    input_ids: np.ndarray
    token_type_ids: np.ndarray
    attention_mask: np.ndarray
    last_hidden_state: np.ndarray
    pooled: np.ndarray | None
    hidden_states: np.ndarray | None
    attentions: np.ndarray | None


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Bert(Checkpoint):
    """A checkpoint with methods to predict, encode, score and save.

    >>> model = bert_jax.load("runs/tiny")
    >>> model.fill_mask("The [MASK] is called once.", top=2)
    [[('function', 0.31), ('method', 0.17)]]
    >>> model.encode(["A man eats.", "Someone has a meal."], normalize=True).shape
    (2, 768)

    Methods take one text, or rows: a list, generator or array of texts; a pandas or polars
    data frame, a data set of Hugging Face, dictionaries; or the Path of a file. A pair is a
    tuple of two texts. ``columns`` names the column of the text, or of the two texts, of a
    frame. Compiled programs are kept for the next call.
    """

    def __repr__(self) -> str:
        c = self.config
        parameters = sum(x.size for x in jax.tree.leaves(self.params["bert"]))
        parameters -= (c.word_rows - c.vocab_size) * c.hidden_size
        return (
            f"Bert({self.head}: {c.num_layers} layers, width {c.hidden_size}, "
            f"{c.num_heads} heads, {c.vocab_size:,} tokens, {c.max_positions} positions, "
            f"{parameters:,} parameters in the encoder)"
        )

    def fill_mask(
        self, texts: Any, *, columns: Columns = (), **options: Any
    ) -> list[list[Any]]:
        """The likeliest tokens and their probabilities for each [MASK] of a text.

        Several texts give a list with one entry for each text. options: see FillMask, such
        as top=5.
        """
        rows = self._kept(FillMask, options)(texts, columns=columns)
        answers = [
            [[(t["token"], t["probability"]) for t in blank] for blank in row["blanks"]]
            for row in rows
        ]
        return answers[0] if is_single(texts) else answers

    def next_sentence(
        self, first: str | Sequence[str], second: str | Sequence[str], **options: Any
    ) -> float | np.ndarray:
        """The probability that the second text follows the first; an array for lists.

        In a pair that is too long the longer text loses its end. options: see Inference.
        """
        single = isinstance(first, str)
        pairs = [(first, second)] if single else [*zip(first, second, strict=True)]
        predict = self._kept(NextSentence, options)
        found = np.array([answer["probability"] for answer in predict(pairs)], float)
        return float(found[0]) if single else found

    def encode(
        self, texts: Any, *, columns: Columns = (), **options: Any
    ) -> np.ndarray:
        """Vectors of texts, float32 (texts, W), or (W,) of a single text.

        options: the options of Embedder: layers, pooling, normalize, batch_size,
          max_length, dtype.
        """
        vectors = self._kept(Embedder, options)(texts, columns=columns)
        return vectors[0] if is_single(texts) else vectors

    def score(
        self, texts: Any, *, columns: Columns = (), **options: Any
    ) -> float | np.ndarray:
        """Pseudo-log-likelihoods, float64 (texts,), or a number for a single text.

        options: see Scorer, such as rest_of_word=True.
        """
        scores = self._kept(Scorer, options)(texts, columns=columns)
        return float(scores[0]) if is_single(texts) else scores

    def predict(
        self, rows: Any, *, columns: Columns = (), **options: Any
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """The answers of a fine-tuned model. options: see Predictor.

        A tuple is one row: the two texts of a pair, question and context, context and
        choices, or the words of a sentence. A dictionary or a frame has the columns that
        the model was trained with.
        """
        answers = self._kept(Predictor, options)(rows, columns=columns)
        return answers[0] if is_single(rows) else answers

    def evaluate(
        self,
        data: Any,
        *,
        task: Task | None = None,
        columns: Columns = (),
        **options: Any,
    ) -> dict[str, float]:
        """Scores in percent of a fine-tuned model on rows with labels, or a file of rows.

        data: rows as in ``bert_jax.tasks``, or the Path of a file that the task reads.
        task, columns: see Predictor.evaluate. options: see Predictor.
        """
        predictor = self._kept(Predictor, options)
        ((_, _, evaluation),) = predictor.evaluate(data, task=task, columns=columns)
        return evaluation.scores

    def __call__(
        self,
        texts: Any,
        *,
        hidden_states: bool = False,
        attentions: bool = False,
    ) -> Output:
        """The encoder's output for texts or pairs, all in one batch."""
        check_vocabulary(self, "the checkpoint")
        rows = [row.texts for row in row_texts(placed_rows(texts))]
        limit, pad_id = self.config.max_positions, self.tokenizer.pad_id
        features = text_features(self.tokenizer, rows, limit)
        if features.truncated:
            raise UserError(
                f"a text is too long, at most {limit} tokens fit; shorten it"
            )
        check_types(features.token_type_ids, self.config)
        shape = Shape(len(rows), int(features.lengths_UC.max()), 1)
        arrays = packed_rows(features, [[i] for i in range(len(rows))], shape, pad_id)
        inputs = ("input_ids", "token_type_ids", "attention_mask")
        arrays = {name: arrays[name] for name in inputs}
        compute = dataclasses.replace(self.compute, scan_layers=False)
        model = BertModel(self.config, compute)
        found = _encode(model, hidden_states, attentions, self._bert, *arrays.values())
        tokens = [[self.tokenizer.tokens[t] for t in ids] for ids in features.input_ids]
        return Output(tokens, **arrays, **jax.device_get(found))

    def save(self, folder: os.PathLike | str) -> None:
        """Writes a Hugging Face folder, which transformers and ``load`` read.

        If transformers has no class for the model, only ``load`` reads the folder.
        """
        # Imported late: our own workdirs load without the table of foreign names.
        from bert_jax.interop.huggingface import save_huggingface

        save_huggingface(folder, self, own=True)

    @functools.cached_property
    def _cache(self) -> dict[Any, Any]:
        return {}

    def _kept(self, kind: type, options: dict[str, Any]) -> Any:
        """``kind(checkpoint, **options)``, made once for each set of options."""
        key = kind, repr(sorted(options.items()))
        if key not in self._cache:
            self._cache[key] = kind(self._on_devices(options.get("dtype")), **options)
        return self._cache[key]

    def _on_devices(self, dtype: str | None = None) -> Checkpoint:
        """The checkpoint with its parameters on the devices, once for each dtype."""
        compute = dataclasses.replace(self.compute, dtype=dtype or self.compute.dtype)
        if compute.dtype not in self._cache:
            params = on_devices(self.params, compute)
            found = dataclasses.replace(self, params=params, compute=compute)
            self._cache[compute.dtype] = found
        return self._cache[compute.dtype]

    @functools.cached_property
    def _bert(self) -> Any:
        """The encoder's parameters on the devices, with a name for each layer."""
        return with_scan(self._on_devices().params, False)["bert"]


@with_arguments(BertConfig, ComputeConfig, given=False)
def load(path: os.PathLike | str, **changes: Any) -> Bert:
    """Loads a BERT and its tokenizer. ``Bert`` has methods to predict, encode, score, save.

    >>> model = bert_jax.load("runs/tiny", dtype="float32")
    >>> model.fill_mask("The [MASK] is called once.", top=2)
    [[('function', 0.31), ('method', 0.17)]]

    path: a workdir of pretraining (its newest checkpoint) or of fine-tuning (its best
      model), a Hugging Face folder, a folder or prefix of Google's bert_model.ckpt, a URL
      such as gs://bucket/folder, or the name of a model on the Hugging Face Hub, such as
      google-bert/bert-base-uncased, with @REVISION or without.
    changes: settings that replace values of the files, such as dtype="bfloat16",
      activation="gelu_tanh" or max_positions=1024. None changes nothing.

    Raises UserError if there is no checkpoint, or if it cannot be read.
    """
    changes = {name: value for name, value in changes.items() if value is not None}
    return Bert(**vars(load_checkpoint(path, **changes)))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _encode(
    model: BertModel, hidden_states: bool, attentions: bool, params: Any, *arrays: Any
) -> dict[str, jax.Array | None]:
    """The arrays of an Output that the model computes."""
    output, kept = model.apply(
        {"params": params},
        *arrays,
        deterministic=True,
        pool="pooler" in params,
        hidden_states=hidden_states,
        mutable=["attention"] if attentions else [],
    )
    found = {"last_hidden_state": output.sequence_BLD, "pooled": output.pooled_BD}
    found |= {"hidden_states": None, "attentions": None}
    if hidden_states:
        found["hidden_states"] = jnp.stack(output.hidden_states)
    if attentions:
        layers = kept["attention"]["encoder"]
        own = (layers[f"layer_{i}"]["attention"] for i in range(len(layers)))
        found["attentions"] = jnp.stack([each["probabilities"][0] for each in own])
    return jax.tree.map(lambda x: x.astype(jnp.float32), found)
