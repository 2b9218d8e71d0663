import collections

import pytest

from bert_jax.data import python_docs
from bert_jax.data.corpus import read_documents


@pytest.mark.long
def test_the_text_of_python_is_english_prose():
    documents = list(read_documents(["python-docs"]))
    sentences = [s for document in documents for s in document]
    words = [word for s in sentences for word in s.split()]
    assert len(documents) > 700
    assert len(sentences) > 14_000
    assert len(words) > 190_000
    assert len(set(sentences)) == len(sentences)
    size = sum(map(len, sentences))
    assert size == pytest.approx(python_docs.SIZE, rel=0.2)
    plain = sum(word.strip(".,;:()'\"").isalpha() for word in words)
    assert plain > 0.85 * len(words)
    assert not [s for s in sentences if ">>>" in s or "::=" in s or "``" in s]
    assert all(s[-1] in ".!?\"')" for s in sentences)
    common = collections.Counter(word.lower() for word in words)
    assert common.most_common(1)[0][0] == "the"


def test_documents_are_topics_and_docstrings_without_repetitions(tmp_path, monkeypatch):
    """A long docstring is a document. The short docstrings of a module are joined."""
    sentences = [f"This is the sentence with number {i} of all." for i in range(20)]
    monkeypatch.setattr(
        python_docs.topics, "topics", {"b": sentences[0], "a": sentences[1]}
    )
    monkeypatch.setattr(python_docs.sysconfig, "get_path", lambda name: str(tmp_path))
    names = ["b.py", "a.py", "tests/c.py", "site-packages/d.py", "e/f.py"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
    long = " ".join(sentences[2:8])
    (tmp_path / "b.py").write_text(
        f'"""{sentences[8]} {sentences[2]}"""\ndef f():\n "{sentences[9]}"'
    )
    (tmp_path / "a.py").write_text(
        f'"{sentences[10]}"\nclass A:\n "{long}"\n x = "{sentences[19]}"'
    )
    (tmp_path / "e/f.py").write_text(f'"{sentences[11]}"\ndef g():\n "{sentences[12]}"')
    for name in names[2:4]:
        (tmp_path / name).write_text(f'"{sentences[13]} {sentences[14]}"')
    documents = python_docs.read_documents.__wrapped__()
    # Topics of a single sentence and the rest of a.py are dropped.
    assert documents == [sentences[2:8], sentences[8:10], sentences[11:13]]


def test_prose_contains_no_code_grammar_tables_or_marks():
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
