"""A vocabulary of all letters and some words."""

import string

import pytest

from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.tasks.rows import line_rows
from bert_jax.tasks.task import objects_of

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "cat", "dog", "sat", "ran", "good", "bad", ".", ",", "?", "'"]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    letters = list(string.ascii_lowercase + string.digits)
    tokens = SPECIAL + WORDS + letters + ["##" + letter for letter in letters]
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(tokens) + "\n")
    return load_tokenizer(path)


@pytest.fixture(scope="session")
def parse():
    """A function of a task and rows that parses the rows like predict.

    A row is a line of text, or a dictionary as from a JSONL file.
    """

    def parse(task, rows, name="in"):
        def placed():
            for number, row in enumerate(rows, 1):
                if isinstance(row, str):
                    ((_, row),) = line_rows([row], name, tabs=task.form.tabs)
                yield f"{name}:{number}", row

        return list(objects_of(task, placed()))

    return parse
