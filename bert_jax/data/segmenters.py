"""Tokens that continue a word, for text without spaces between words.

A segmenter is a function from a text to its words. The store contains the words, so that
whole-word masking and span masking mask words of such text (Cui et al., 2019, "Pre-Training
with Whole Word Masking for Chinese BERT").
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
            f"the segmenter {name} is not there ({error}); expected jieba, which needs pip "
            "install 'bert_jax[chinese]', or MODULE:FUNCTION"
        ) from error
    logging.getLogger("jieba").setLevel(logging.WARNING)  # not each dictionary it loads
    return segmenter


def encode_words(
    sentences: Sequence[str], tokenizer: Tokenizer, segmenter: Segmenter
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Token ids of each sentence, and whether each token continues a word: bool (T,).

    A token continues a word if no new word of the segmenter starts in it, or if the
    vocabulary marks it as a continuation, such as "##s".
    """
    tokens = encode_with_offsets(sentences, tokenizer)
    for sentence, (ids, starts, ends) in zip(sentences, tokens, strict=True):
        # Number of words that start before each character.
        before = np.append(0, np.cumsum(_word_starts(sentence, segmenter)))
        continues = before[ends] == before[starts]
        # Also a token after the mark of a space, which covers no character.
        continues[1:] |= starts[1:] == starts[:-1]
        yield ids, continues | tokenizer.continuation[ids]


def _word_starts(text: str, segmenter: Segmenter) -> np.ndarray:
    """Whether a word starts at each character, bool (characters,).

    Characters between two words are a word.
    """
    starts_word = np.zeros(len(text) + 1, bool)
    starts_word[0] = True
    place = 0
    for word in segmenter(text):
        start = text.find(word, place)
        if start < 0:
            raise UserError(
                f"the segmenter gave {word!r}, which is not in the rest of {text!r}; "
                "expected the parts of a text in their order, unchanged"
            )
        place = start + len(word)
        starts_word[[start, place]] = True
    return starts_word[:-1]
