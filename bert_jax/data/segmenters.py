"""Which tokens continue a word, in text that is written without spaces between words.

A segmenter is any function from a text to its words. What it says is stored with the
tokens, so that whole-word masks and runs of words mask words there too (Cui et al., 2019,
"Pre-Training with Whole Word Masking for Chinese BERT").
"""

import importlib
import logging
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from bert_jax.data.token_offsets import encode_with_offsets
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.errors import UserError

Segmenter = Callable[[str], Iterable[str]]
_NAMED = {"jieba": "jieba:lcut"}  # Chinese


def open_segmenter(name: str) -> Segmenter:
    """The segmenter "jieba" (Chinese), or the function of "MODULE:FUNCTION"."""
    module, _, function = _NAMED.get(name, name).partition(":")
    try:
        library = importlib.import_module(module)
        segmenter = getattr(library, function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"the segmenter {name} is not there ({error}); expected jieba, which needs pip "
            "install 'bert_jax[chinese]', or MODULE:FUNCTION"
        ) from error
    if name == "jieba":
        library.setLogLevel(logging.WARNING)
    return segmenter


def encode_words(
    sentences: Sequence[str], tokenizer: Tokenizer, segmenter: Segmenter
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The ids of each sentence, and which of them continue a word: bool (T,).

    A token continues a word where no word of the segmenter begins in it that did not begin
    in the token before, and where the vocabulary says so, as of "##s".
    """
    every_ids, every_continues = [], []
    tokens = encode_with_offsets(sentences, tokenizer)
    for sentence, (ids, starts, ends) in zip(sentences, tokens, strict=True):
        # How many words begin before each character.
        before = np.append(0, np.cumsum(_begins(sentence, segmenter)))
        continues = before[ends] == before[starts]
        # Such as what follows the mark of a space, which has no character of its own.
        continues[1:] |= starts[1:] == starts[:-1]
        every_ids.append(ids)
        every_continues.append(continues | tokenizer.continuation[ids])
    return every_ids, every_continues


def _begins(text: str, segmenter: Segmenter) -> np.ndarray:
    """Whether a word begins at each character, bool (characters,).

    What lies between two words is a word of its own.
    """
    begins = np.zeros(len(text) + 1, bool)
    begins[0] = True
    place = 0
    for word in segmenter(text):
        start = text.find(word, place)
        if start < 0:
            raise UserError(
                f"the segmenter gave {word!r}, which is not in the rest of {text!r}; "
                "expected the parts of a text in their order, unchanged"
            )
        place = start + len(word)
        begins[[start, place]] = True
    return begins[:-1]
