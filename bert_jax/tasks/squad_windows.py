"""From questions to windows of tokens, and from the windows' logits to answers.

After the original run_squad.py. Three steps: which characters each token stands for, as
the tokenizers' libraries say; windows over a context; the n best spans of all windows.
"""

import dataclasses
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
import sentencepiece
import tokenizers
from scipy.special import softmax
from tokenizers import models, normalizers, pre_tokenizers

from bert_jax.data.sequences import join, owners, token_windows
from bert_jax.data.tokenizer import UNK, Tokenizer
from bert_jax.data.wordpiece import LONGEST_WORD
from bert_jax.tasks.squad_format import Question
from bert_jax.tasks.task import Features

# What Google's tokenizer takes for a space.
_SPACES = "\t\n\r \u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
_find_words = re.compile(f"[^{_SPACES}]+").finditer


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The tokens of a text.

    ids: int32 (T,). starts, ends: int32 (T,), the characters [start, end) of each token,
    both ascending; tokens overlap where one character gives several.
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


def encode_with_offsets(texts: Sequence[str], tokenizer: Tokenizer) -> list[Tokens]:
    """The tokens of each text, with the ids of ``tokenizer``, and their characters."""
    if tokenizer.kind == "sentencepiece":
        return _sentencepiece(texts, tokenizer)
    wordpiece = _WordPiece(tokenizer)
    rows = zip(texts, tokenizer.encode_batch(texts), strict=True)
    return [wordpiece.tokens(text, ids) for text, ids in rows]


class _WordPiece:
    """The offsets of the library tokenizers, whose ids are nearly always ours.

    On Moby-Dick and SQuAD they always are; where Google's tokenizer differs (a sigma at
    the end of a word), the text is encoded word by word, and each token of a word whose
    ids differ stands for the whole word.
    """

    def __init__(self, tokenizer: Tokenizer):
        self.ours = tokenizer
        lower_case = tokenizer.lower_case
        self.library = tokenizers.Tokenizer(
            models.WordPiece(
                tokenizer.ids, unk_token=UNK, max_input_chars_per_word=LONGEST_WORD
            )
        )
        self.library.normalizer = normalizers.BertNormalizer(
            lowercase=lower_case, strip_accents=lower_case
        )
        self.library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def tokens(self, text: str, ids: np.ndarray) -> Tokens:
        """The tokens of a text that has these ids."""
        # The library takes no lone surrogates: they become "?".
        valid = text.encode("utf-8", "replace").decode()
        encoding = self.library.encode(valid, add_special_tokens=False)
        if encoding.ids == ids.tolist():
            offsets = [self._with_accents(text, *pair) for pair in encoding.offsets]
            return _tokens(ids, *np.array(offsets, np.int32).reshape(-1, 2).T)
        words = list(_find_words(text))
        if len(words) == 1:
            start, end = words[0].span()
            return _tokens(ids, np.full(len(ids), start), np.full(len(ids), end))
        rows = [
            (word.start(), self.tokens(word[0], self.ours.encode(word[0])))
            for word in words
        ]
        return _tokens(
            ids,
            np.concatenate([row.starts + shift for shift, row in rows]),
            np.concatenate([row.ends + shift for shift, row in rows]),
        )

    def _with_accents(self, text: str, start: int, end: int) -> tuple[int, int]:
        """A dropped accent belongs to the letter before it."""
        while (
            self.ours.lower_case
            and end < len(text)
            and unicodedata.category(text[end]) == "Mn"
        ):
            end += 1
        return start, end


def _sentencepiece(texts: Sequence[str], tokenizer: Tokenizer) -> list[Tokens]:
    """Tokens begin after the spaces that are marked in them."""
    processor = sentencepiece.SentencePieceProcessor(
        model_proto=tokenizer.vocabulary_bytes()
    )
    rows = []
    for text in texts:
        # Lower-casing may change how many bytes a character has.
        chars = [char.lower() if tokenizer.lower_case else char for char in text]
        lengths = [len(char.encode("utf-8", "replace")) for char in chars]
        character = np.append(np.repeat(np.arange(len(text)), lengths), len(text))
        cased = text.lower() if tokenizer.lower_case else text
        tokens = processor.encode(
            cased.encode("utf-8", "replace"), return_type="proto"
        ).pieces
        starts = character[[token.begin for token in tokens]]
        ends = character[[max(token.end - 1, token.begin) for token in tokens]] + 1
        words = [i for i, char in enumerate(text) if not char.isspace()]
        starts = np.append(words, len(text))[np.searchsorted(words, starts)]
        starts = np.minimum(starts, len(text) - 1)
        ends = np.minimum(np.maximum(ends, starts + 1), len(text))
        rows.append(_tokens([token.id for token in tokens], starts, ends))
    return rows


def _tokens(ids: Sequence[int], starts: np.ndarray, ends: np.ndarray) -> Tokens:
    return Tokens(*(np.asarray(array, np.int32) for array in (ids, starts, ends)))


@dataclasses.dataclass(frozen=True)
class Window:
    """What decoding needs of one window of a context.

    offset: where the context starts within the sequence. starts, ends: int32 (T,), the
    characters [start, end) of the window's context tokens. best: bool (T,), whether no
    other window of the question has more context around the token.
    """

    offset: int
    starts: np.ndarray
    ends: np.ndarray
    best: np.ndarray


def answer_tokens(tokens: Tokens, text: str, start: int) -> tuple[int, int] | None:
    """First and last token of the answer at a character; None where it has no tokens.

    The tokens that hold a character of the answer: what the original looks for by
    comparing tokens of the answer with those around its place.
    """
    first = int(np.searchsorted(tokens.ends, start, side="right"))
    last = int(np.searchsorted(tokens.starts, start + len(text), side="left")) - 1
    return (first, last) if first <= last else None


def build_windows(
    rows: Sequence[Question],
    tokenizer: Tokenizer,
    *,
    max_length: int,
    stride: int,
    max_question_length: int,
    training: bool,
) -> Features:
    """The windows of all questions, in order: [CLS] question [SEP] context [SEP].

    Targets, where every row is labelled: the first answer's first and last token, or
    [CLS] (0) for both where the window does not hold all of it. extra: a Window each,
    unless ``training``. truncated: questions of more than ``max_question_length`` tokens.
    """
    contexts = list(dict.fromkeys(row.context for row in rows))
    encoded = encode_with_offsets(contexts, tokenizer)
    encoded = dict(zip(contexts, encoded, strict=True))
    questions = tokenizer.encode_batch([row.question for row in rows])
    features = Features(
        input_ids=[],
        token_type_ids=[],
        row=np.zeros(0, np.int32),
        truncated=sum(len(ids) > max_question_length for ids in questions),
    )
    labelled = all(row.labelled for row in rows)
    row_of, labels = [], []
    for i, (row, ids) in enumerate(zip(rows, questions, strict=True)):
        question = ids[:max_question_length]
        tokens = encoded[row.context]
        offset = len(question) + 2
        room = max_length - offset - 1
        count = len(tokens.ids)
        ranges = token_windows(count, room, stride)
        answer = None
        if labelled and row.answers:
            answer = answer_tokens(tokens, *row.answers[0])
        best = None
        if not training:
            best = owners(np.arange(count + 1), (0, count), ranges)
        for k, (first, stop) in enumerate(ranges):
            sequence, types = join(tokenizer, question, tokens.ids[first:stop])
            features.input_ids.append(sequence)
            features.token_type_ids.append(types)
            row_of.append(i)
            inside = answer is not None and first <= answer[0] and answer[1] < stop
            shift = offset - first
            labels.append((answer[0] + shift, answer[1] + shift) if inside else (0, 0))
            if best is not None:
                features.extra.append(
                    Window(
                        offset=offset,
                        starts=tokens.starts[first:stop],
                        ends=tokens.ends[first:stop],
                        best=best[first:stop] == k,
                    )
                )
    targets = {}
    if labelled:
        start, end = np.array(labels, np.int32).reshape(-1, 2).T
        targets = {"start": start, "end": end}
    return dataclasses.replace(
        features, row=np.array(row_of, np.int32), targets=targets
    )


# Spans of one window that compete, for each that is wanted: some have the same text.
_SPARE = 4


def answer_question(
    row: Question,
    windows: Sequence[Window],
    logits: Sequence[np.ndarray],
    *,
    max_answer_length: int,
    n_best: int,
    null_threshold: float | None,
) -> dict[str, Any]:
    """The answer to a question, and those that come next.

    logits: float (L, 2) of each window, start and end. Every span of at most
    ``max_answer_length`` tokens whose first token is in its best window competes, with
    the sum of its two logits. (The original looks at pairs of the ``n_best`` starts and
    ends of each window, of which none may be a span.)
    null_threshold: that no answer exists competes too, with the sum at [CLS] in the
    window where it is smallest; it wins where that sum exceeds the best span's by more
    than this. None where every question has an answer.

    Returns "id"; "answer", the context's characters from "start" to "end", or "" and
    None; its "probability" among "nbest", a list of texts that differ with "text",
    "probability", "start_logit" and "end_logit", best first, the empty one among them
    where it competes; and "null_odds", by how much its sum exceeds the best span's.
    """
    spans = _best_spans(row.context, windows, logits, max_answer_length, n_best)
    entries = spans
    result = {
        "id": row.id,
        "answer": "",
        "probability": 0.0,
        "start": None,
        "end": None,
    }
    answer = spans[0] if spans else None
    if null_threshold is not None:
        at_cls = np.array([window_logits[0] for window_logits in logits], np.float64)
        start_logit, end_logit = at_cls[at_cls.sum(axis=1).argmin()].tolist()
        null = ("", start_logit, end_logit, None, None)
        odds = start_logit + end_logit - (sum(answer[1:3]) if answer else 0.0)
        result["null_odds"] = odds
        if answer is None or odds > null_threshold:
            answer = null
        # It stays in sight, behind the others if need be.
        better = sum(sum(span[1:3]) >= start_logit + end_logit for span in spans)
        better = min(better, n_best)
        entries = [*spans[:better], null, *spans[better : max(n_best - 1, 1)]]
    sums = [sum(entry[1:3]) for entry in entries]
    probabilities = softmax(sums).tolist() if sums else []
    result["nbest"] = [
        {"text": text, "probability": p, "start_logit": start, "end_logit": end}
        for (text, start, end, _, _), p in zip(entries, probabilities, strict=True)
    ]
    if answer is not None:
        result["answer"], _, _, result["start"], result["end"] = answer
        result["probability"] = probabilities[entries.index(answer)]
    return result


def _best_spans(
    context: str,
    windows: Sequence[Window],
    logits: Sequence[np.ndarray],
    longest: int,
    count: int,
) -> list[tuple[str, float, float, int | None, int | None]]:
    """(text, start logit, end logit, first character, stop) of the best spans."""
    found = []
    for k, (window, window_logits) in enumerate(zip(windows, logits, strict=True)):
        found.append((k, *_window_spans(window, window_logits, longest, count)))
    owner = np.concatenate([np.full(len(sums), k) for k, sums, *_ in found])
    sums, first, last = (
        np.concatenate([spans[i] for spans in found]) for i in (1, 2, 3)
    )
    spans: list[tuple[str, float, float, int | None, int | None]] = []
    seen = set()
    for i in np.argsort(-sums, kind="stable").tolist():
        window, window_logits = windows[owner[i]], logits[owner[i]]
        start, stop = int(window.starts[first[i]]), int(window.ends[last[i]])
        text = context[start:stop]
        if text in seen:
            continue
        seen.add(text)
        start_logit = float(window_logits[window.offset + first[i], 0])
        end_logit = float(window_logits[window.offset + last[i], 1])
        spans.append((text, start_logit, end_logit, start, stop))
        if len(spans) == count:
            break
    return spans


def _window_spans(
    window: Window, logits: np.ndarray, longest: int, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums of logits, first and last context token of a window's best spans."""
    length = len(window.starts)
    context = logits[window.offset : window.offset + length].astype(np.float64)
    starts = np.flatnonzero(window.best)
    ends = np.concatenate([context[:, 1], np.full(longest - 1, -np.inf)])
    # Row i, column j: the span from token starts[i] on that has j + 1 tokens.
    places = starts[:, None] + np.arange(longest)[None]
    sums = (context[starts, 0][:, None] + ends[places]).ravel()
    chosen = np.arange(len(sums))
    if len(sums) > _SPARE * count:
        chosen = np.sort(np.argpartition(-sums, _SPARE * count)[: _SPARE * count])
    # Not past the window's end, and not what a diverged model says.
    chosen = chosen[np.isfinite(sums[chosen])]
    first = starts[chosen // longest]
    return sums[chosen], first, first + chosen % longest
