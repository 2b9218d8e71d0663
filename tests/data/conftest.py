"""A token store in memory, and the corpus of the golden statistics."""

import numpy as np
import pytest

from bert_jax.data.tokenizer_files import load_tokenizer


class ArrayStore:
    """The part of TokenStore that examples use, made from documents of id arrays."""

    word_bit = 0

    def __init__(self, documents):
        self.documents = documents
        sentences = [np.asarray(s) for d in documents for s in d]
        self.sentence_offsets = np.cumsum([0, *map(len, sentences)])
        self.document_sentences = np.cumsum([0, *(len(d) for d in documents)])
        self._ids = np.concatenate(sentences)

    def read_sentences(self, ranges):
        return [self._ids[a:b] for a, b in self.sentence_offsets[ranges]]


@pytest.fixture(scope="session")
def array_store():
    return ArrayStore


@pytest.fixture(scope="session")
def uncased(golden):
    return load_tokenizer(golden / "tokenizer" / "uncased_vocab.txt")


@pytest.fixture(scope="session")
def moby_dick(golden, uncased):
    """Documents are chapters and sentences are lines, as the original reads the text."""
    text = (golden / "pretraining_data" / "moby_dick_sentences.txt").read_text()
    chapters = [
        [ids for ids in uncased.encode_batch(chapter.split("\n")) if len(ids)]
        for chapter in text.split("\n\n")
    ]
    return ArrayStore([chapter for chapter in chapters if chapter])
