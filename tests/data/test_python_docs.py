import ast
import collections

import pytest

from bert_jax.data import python_docs
from bert_jax.data.corpus import read_documents


@pytest.fixture(scope="module")
def documents():
    return list(read_documents(["python-docs"]))


def test_size_is_what_a_small_model_needs(documents):
    sentences = [s for document in documents for s in document]
    assert len(documents) > 700
    assert len(sentences) > 14_000
    assert sum(len(s.split()) for s in sentences) > 190_000
    assert min(map(len, documents)) >= 2
    assert len(set(sentences)) == len(sentences)
    size = sum(map(len, sentences))
    assert size == pytest.approx(python_docs.SIZE, rel=0.2)


def test_reads_as_english(documents):
    sentences = [s for document in documents for s in document]
    words = [word for s in sentences for word in s.split()]
    plain = sum(word.strip(".,;:()'\"").isalpha() for word in words)
    assert plain > 0.85 * len(words)
    assert not [s for s in sentences if ">>>" in s or "::=" in s or "``" in s]
    assert all(s[-1] in ".!?\"')" for s in sentences)
    common = collections.Counter(word.lower() for word in words)
    assert common.most_common(1)[0][0] == "the"


def test_prose_without_code_grammar_tables_and_marks():
    text = """Title of this
*************

The ``assert`` statement is a *convenient* way to insert debugging
assertions into a program, see :ref:`here <there>` [1]:

   assert_stmt ::= "assert" expression ["," expression]

   if __debug__:
       if not expression: raise AssertionError

* The first item of the list is here
* The second one is wrapped in a quote-
  delimited line.

New in version 3.5: The built-in "breakpoint()" can be used instead.

>>> print("no")
no
+------+------+
| a is | to b |
+------+------+

The simple form of this is equivalent to

   x = 1
"""
    assert python_docs.prose_sentences(text) == [
        "The assert statement is a convenient way to insert debugging assertions into a "
        "program, see here.",
        "The first item of the list is here.",
        "The second one is wrapped in a quote-delimited line.",
        "The built-in breakpoint() can be used instead.",
    ]


def test_docstrings_are_in_the_order_of_the_source():
    source = '"""Doc."""\nif 1:\n  def f():\n    "In."\nclass C:\n  "Cls."\n'
    assert [*python_docs._docstrings(ast.parse(source))] == ["Doc.", "In.", "Cls."]
