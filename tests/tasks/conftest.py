"""A vocabulary in which every letter is a token, and some words are."""

import string

import pytest

from bert_jax.data.tokenizer import load_tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "cat", "dog", "sat", "ran", "good", "bad", ".", ",", "?", "'"]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    letters = list(string.ascii_lowercase + string.digits)
    tokens = SPECIAL + WORDS + letters + ["##" + letter for letter in letters]
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(tokens) + "\n")
    return load_tokenizer(path)
