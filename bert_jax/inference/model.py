"""A BERT and what it can be asked, as a script or a notebook uses it."""

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.data import sequences
from bert_jax.errors import UserError
from bert_jax.inference.embed import Embedder
from bert_jax.inference.fill_mask import FillMask
from bert_jax.inference.predict import Predictor
from bert_jax.inference.score import Scorer
from bert_jax.interop.load import Checkpoint, check_vocabulary
from bert_jax.interop.load import load as load_checkpoint
from bert_jax.model.bert import BertForPreTraining, BertModel
from bert_jax.model.encoder import with_scan

Text = str | tuple[str, str]  # a text, or the two texts of a pair


@dataclasses.dataclass(frozen=True)
class Output:
    """What the encoder gives for some texts, as numpy arrays, padded to the longest.

    tokens: of each text, with [CLS] and [SEP]. input_ids, token_type_ids, attention_mask:
      int32 (B, L). last_hidden_state: float32 (B, L, D). pooled: float32 (B, D); None for a
      model without a pooler. hidden_states: of the embeddings and of each layer, float32
      (layers + 1, B, L, D). attentions: of each layer and head, float32
      (layers, B, N, L, L): how much the token of a row attends to that of a column. Both
      are None unless asked for.
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
    """A checkpoint with its tokenizer, ready to be asked; ``bert_jax.load`` returns one.

    >>> model = bert_jax.load("runs/tiny")
    >>> model.fill_mask("The [MASK] is called once.", top=2)
    [[('function', 0.31), ('method', 0.17)]]
    >>> model.encode(["A man eats.", "Someone has a meal."], normalize=True).shape
    (2, 768)

    Texts are strings; where a model reads pairs, a pair is a tuple of two. What is compiled
    for a question is kept for the next one of its kind.
    """

    def __repr__(self) -> str:
        c = self.config
        return (
            f"Bert({self.head}: {c.num_layers} layers, width {c.hidden_size}, "
            f"{c.num_heads} heads, {c.vocab_size:,} tokens, {c.max_positions} positions, "
            f"{c.parameter_count(heads=False):,} parameters in the encoder)"
        )

    def fill_mask(self, texts: str | Sequence[str], *, top: int = 5) -> list[list[Any]]:
        """For each [MASK] of a text its likeliest tokens and their probabilities.

        Of several texts a list of that for each.
        """
        if "mlm" not in self.params:
            raise UserError("this checkpoint has no MLM head; load a pretrained one")
        fill = self._kept(
            FillMask,
            BertForPreTraining(self.config, self.compute),
            self.params,
            self.tokenizer,
            max_length=self.config.max_positions,
            top=top,
        )
        rows = fill.parse(_as_list(texts), "text")
        answers = [
            [[(t["token"], t["probability"]) for t in blank] for blank in row["blanks"]]
            for row in fill.answers(rows)
        ]
        return answers[0] if isinstance(texts, str) else answers

    def next_sentence(
        self, first: str | Sequence[str], second: str | Sequence[str]
    ) -> float | np.ndarray:
        """The probability that the second text follows the first; of lists an array."""
        if "nsp" not in self.params:
            raise UserError("this checkpoint has no NSP head; load a pretrained one")
        pairs = list(zip(_as_list(first), _as_list(second), strict=True))
        arrays, _ = self._batch(pairs)
        probabilities = self._apply("next_sentence", arrays)
        return float(probabilities[0]) if isinstance(first, str) else probabilities

    def encode(self, texts: Text | Sequence[Text], **options: Any) -> np.ndarray:
        """Vectors of texts, float32 (texts, W), or (W,) of a single one.

        options: those of Embedder: layers, pooling, normalize, batch_size, max_length.
        """
        single = isinstance(texts, str | tuple)
        lines = [
            # A tab within a text is a blank, between the two of a pair it parts them.
            "\t".join(part.replace("\t", " ") for part in _parts(text))
            for text in ([texts] if single else texts)
        ]
        vectors = self._kept(Embedder, self, **options)(lines)
        return vectors[0] if single else vectors

    def score(
        self, texts: str | Sequence[str], *, rest_of_word: bool = False
    ) -> float | np.ndarray:
        """Pseudo-log-likelihoods, float64 (texts,), or of a single text; see Scorer."""
        scores = self._kept(Scorer, self, rest_of_word=rest_of_word)(_as_list(texts))
        return float(scores[0]) if isinstance(texts, str) else scores

    def predict(
        self, texts: Text | Sequence[Text], **options: Any
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """The answers of a fine-tuned model; see Predictor, which has the options too."""
        single = isinstance(texts, str | tuple)
        lines = ["\t".join(_parts(text)) for text in ([texts] if single else texts)]
        answers = self._kept(Predictor, self, **options)(lines)
        return answers[0] if single else answers

    def __call__(
        self,
        texts: Text | Sequence[Text],
        *,
        hidden_states: bool = False,
        attentions: bool = False,
    ) -> Output:
        """The encoder's output for texts or pairs, all in one batch."""
        single = isinstance(texts, str | tuple)
        arrays, tokens = self._batch([texts] if single else list(texts))
        last, pooled, states, probabilities = self._apply("encoder", arrays)
        return Output(
            tokens=tokens,
            **arrays,
            last_hidden_state=last,
            pooled=pooled,
            hidden_states=states if hidden_states else None,
            attentions=probabilities if attentions else None,
        )

    def save(self, folder: os.PathLike | str) -> None:
        """Writes a Hugging Face folder, which transformers and ``load`` read."""
        # Imported late: our own workdirs load without the table of foreign names.
        from bert_jax.interop.huggingface import save_huggingface

        save_huggingface(folder, self)

    @functools.cached_property
    def _cache(self) -> dict[Any, Any]:
        return {}

    def _kept(self, kind: type, *arguments: Any, **options: Any) -> Any:
        """``kind(*arguments, **options)``, made once for each set of options."""
        key = kind, repr(sorted(options.items()))
        if key not in self._cache:
            self._cache[key] = kind(*arguments, **options)
        return self._cache[key]

    def _batch(
        self, texts: Sequence[Text]
    ) -> tuple[dict[str, np.ndarray], list[list[str]]]:
        """Arrays of texts, as long as the longest, and their tokens."""
        check_vocabulary(self, "the checkpoint")
        if not texts:
            raise UserError("there are no texts; expected at least one")
        rows = []
        for text in texts:
            parts = self.tokenizer.encode_batch(_parts(text))
            rows.append(sequences.join(self.tokenizer, *parts))
        longest = max(len(ids) for ids, _ in rows)
        if longest > self.config.max_positions:
            raise UserError(
                f"a text has {longest} tokens, at most {self.config.max_positions} fit; "
                "shorten it"
            )
        shape = len(rows), longest
        arrays = {
            "input_ids": np.full(shape, self.tokenizer.pad_id, np.int32),
            "token_type_ids": np.zeros(shape, np.int32),
            "attention_mask": np.zeros(shape, np.int32),
        }
        for i, (ids, types) in enumerate(rows):
            for name, values in zip(arrays, (ids, types, 1), strict=True):
                arrays[name][i, : len(ids)] = values
        return arrays, [[self.tokenizer.tokens[t] for t in ids] for ids, _ in rows]

    def _apply(self, what: str, arrays: dict[str, np.ndarray]) -> Any:
        """Numpy arrays of a function of the model, which is compiled once a shape."""
        if what not in self._cache:
            function = {"encoder": _encode, "next_sentence": _next_sentence}[what]
            params = with_scan(self.params, False)
            compute = dataclasses.replace(self.compute, scan_layers=False)
            self._cache[what] = (
                jax.jit(functools.partial(function, self.config, compute)),
                jax.device_put(params),
            )
        function, params = self._cache[what]
        return jax.device_get(function(params, *arrays.values()))


def load(path: os.PathLike | str, **changes: Any) -> Bert:
    """A BERT from any checkpoint that ``bert_jax.interop.load.load`` reads; see there."""
    checkpoint = load_checkpoint(path, **changes)
    return Bert(
        **{f.name: getattr(checkpoint, f.name) for f in dataclasses.fields(Bert)}
    )


def _encode(config, compute, params, ids_BL, types_BL, mask_BL):
    output, kept = BertModel(config, compute).apply(
        {"params": params["bert"]},
        ids_BL,
        types_BL,
        mask_BL,
        deterministic=True,
        pool="pooler" in params["bert"],
        hidden_states=True,
        mutable=["attention"],
    )
    layers = kept["attention"]["encoder"]
    attentions = [
        layers[f"layer_{i}"]["attention"]["probabilities"][0]
        for i in range(config.num_layers)
    ]
    return jax.tree.map(
        lambda x: x.astype(jnp.float32),
        (
            output.sequence_BLD,
            output.pooled_BD,
            jnp.stack(output.hidden_states),
            jnp.stack(attentions),
        ),
    )


def _next_sentence(config, compute, params, ids_BL, types_BL, mask_BL):
    output = BertForPreTraining(config, compute).apply(
        {"params": params},
        ids_BL,
        types_BL,
        mask_BL,
        jnp.zeros_like(ids_BL[:, :1]),
        deterministic=True,
    )
    return jax.nn.softmax(output.nsp_logits_B2)[:, 0]


def _as_list(texts: str | Sequence[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)


def _parts(text: Text) -> list[str]:
    return [text] if isinstance(text, str) else list(text)
