"""The words of text without spaces, which a segmenter finds.

A segmenter is a function from a text to its words. A store records these words, so that
whole-word and span masking can mask words in text without spaces between words (Cui et al.,
2019, "Pre-Training with Whole Word Masking for Chinese BERT").
"""

import importlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from bert_jax.data.token_offsets import encode_with_offsets
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError

Segmenter = Callable[[str], Iterable[str]]


def open_segmenter(name: str) -> Segmenter:
    """The segmenter "jieba" (Chinese), or the function of "MODULE:FUNCTION"."""
    module, _, function = name.partition(":")
    try:
        segmenter = getattr(importlib.import_module(module), function or "lcut")
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"segmenter={name} cannot be imported ({error}); expected MODULE:FUNCTION, or "
            "jieba (pip install -e '.[chinese]' in the folder of bert_jax)"
        ) from error
    logging.getLogger("jieba").setLevel(logging.WARNING)
    return segmenter


def encode_words(
    sentences: Sequence[str], tokenizer: Tokenizer, segmenter: Segmenter
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Token ids of each sentence, and whether each token continues a word: bool (T,).

    A token continues a word if no new word of the segmenter starts in it, or if it has the
    mark of a continuation, such as "##s".
    """
    tokens = encode_with_offsets(sentences, tokenizer)
    for sentence, (ids, starts, ends) in zip(sentences, tokens, strict=True):
        # Number of words that start before each character.
        before = np.append(0, np.cumsum(_word_starts(sentence, segmenter)))
        continues = before[ends] == before[starts]
        # A token after the mark of a space, which covers no character, also continues.
        continues[1:] |= starts[1:] == starts[:-1]
        if tokenizer.continuation_mark:
            continues |= tokenizer.continuation[ids]
        yield ids, continues


def _word_starts(text: str, segmenter: Segmenter) -> np.ndarray:
    """Whether a word starts at each character, bool (characters,).

    Characters between two words count as a word.
    """
    starts_word = np.zeros(len(text) + 1, bool)
    starts_word[0] = True
    place = 0
    for word in segmenter(text):
        start = text.find(word, place)
        if start < 0:
            raise UserError(
                f"the segmenter returned {word!r}, expected the next part of {text!r}"
            )
        place = start + len(word)
        starts_word[[start, place]] = True
    return starts_word[:-1]
