import gzip
import io
import itertools
import json
import random
import re
import sys
import tracemalloc

import numpy as np
import pytest
from tqdm import std

from bert_jax import progress
from bert_jax.data import corpus, corpus_formats
from bert_jax.data.corpus import FORMATS, find_sources, read_documents, read_source
from bert_jax.data.corpus_formats import HEADING, detect_format, text_sentences
from bert_jax.data.preparation import prepare
from bert_jax.errors import UserError

LINES = """The first sentence.
The second sentence, with an é.

  A second document.\x20
It goes on.


The third.
And it ends.
"""
LINES_DOCUMENTS = [
    ["The first sentence.", "The second sentence, with an é."],
    ["A second document.", "It goes on."],
    ["The third.", "And it ends."],
]

WIKI = """<doc id="1" url="http://x.org/?curid=1" title="Burgundians">
Burgundians

The Burgundians (Latin: "Burgundi"; ) were a tribe, said e.g. by St. Jerome. They moved \
to the Rhine<br> in A.D. 406 &amp; stayed there.
Etymology and terminology.
The name of the tribe () has since remained connected to that area of France.
- a list item that is long enough to be a sentence but does not end like one
A formula for the variance of all of that population of size "N" is:

</doc>
<doc id="2" url="http://x.org/?curid=2" title="Empty">
Empty


</doc>
<doc id="3" url="http://x.org/?curid=3" title="Amateur">
An amateur is a person who does something for the love of it. Nobody pays them.
</doc>
"""
WIKI_DOCUMENTS = [
    [
        'The Burgundians (Latin: "Burgundi"; ) were a tribe, said e.g. by St. Jerome.',
        "They moved to the Rhine in A.D. 406 & stayed there.",
        "The name of the tribe has since remained connected to that area of France.",
    ],
    [
        "An amateur is a person who does something for the love of it.",
        "Nobody pays them.",
    ],
]

MARKDOWN = """---
title: A Book
---
# Title: A Book

## Author: A. Writer

-------

## CHAPTER I. IN WHICH IT BEGINS

_It was the best of times,_
_it was the worst of times,_ said the __Korosko__ man. He *knew* it.

**DUKE.**
If music be the food of love, play on,
Give me excess of it. See [the page](http://x.org/a_b) and `code_name`\\.

> "Is that so?" Yes it is &amp; was.

- One item ends here.
- Another one, snake_case and 2 * 3 * 4, ends there.

* * *

```python
# not a header
x = 1
```

| a | table |
|---|-------|

Seven. Eight.

## CHAPTER II.

One. Two.

### A SHORT SECTION

Three. Four. Five. Six. Seven. Eight. Nine.
"""
MARKDOWN_DOCUMENTS = [
    [
        "It was the best of times, it was the worst of times, said the Korosko man.",
        "He knew it.",
        "If music be the food of love, play on, Give me excess of it.",
        "See the page and code_name.",
        '"Is that so?"',
        "Yes it is & was.",
        "One item ends here.",
        "Another one, snake_case and 2 * 3 * 4, ends there.",
        "Seven.",
        "Eight.",
    ],
    ["One.", "Two.", "Three.", "Four.", "Five.", "Six.", "Seven.", "Eight.", "Nine."],
]

PARAGRAPHS = """CHAPTER I

This paragraph of the text was wrapped by hand at about sixty
characters, as Mr. Smith does. It has two sentences.

"This is the second one," he said. One. Two. Three. Four.
Five. Six.



CHAPTER II

The next document begins here. It is short.
"""
PARAGRAPHS_DOCUMENTS = [
    [
        "This paragraph of the text was wrapped by hand at about sixty characters, as Mr. "
        "Smith does.",
        "It has two sentences.",
        '"This is the second one," he said.',
        "One.",
        "Two.",
        "Three.",
        "Four.",
        "Five.",
        "Six.",
    ],
    ["The next document begins here.", "It is short."],
]

JSONL = (
    json.dumps({"id": 1, "text": "A title\n\nOne sentence. And another.\nA third."})
    + "\n\n"
    + json.dumps({"text": "Das ist schön. Ja."}, ensure_ascii=False)
    + "\n"
)
JSONL_DOCUMENTS = [
    ["One sentence.", "And another.", "A third."],
    ["Das ist schön.", "Ja."],
]

SAMPLES = {
    "lines": ("a.txt", LINES, LINES_DOCUMENTS),
    "paragraphs": ("b.txt", PARAGRAPHS, PARAGRAPHS_DOCUMENTS),
    "wikiextractor": ("wiki_00", WIKI, WIKI_DOCUMENTS),
    "markdown": ("c.md", MARKDOWN, MARKDOWN_DOCUMENTS),
    "jsonl": ("d.jsonl", JSONL, JSONL_DOCUMENTS),
}


def flat(documents):
    return list(itertools.chain.from_iterable(documents))


def read(*inputs, **settings):
    return list(read_documents([str(i) for i in inputs], **settings))


@pytest.mark.parametrize("zipped", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("format", FORMATS)
def test_format_is_detected_and_read(tmp_path, format, zipped):
    name, text, documents = SAMPLES[format]
    content = text.encode()
    # Gzip is known by its content: the name says nothing.
    (tmp_path / name).write_bytes(gzip.compress(content) if zipped else content)
    (source,) = find_sources([str(tmp_path / name)])
    assert (source.format, source.gzipped) == (format, zipped)
    assert read(tmp_path / name) == documents
    assert read(tmp_path / name, format=format) == documents


@pytest.mark.parametrize("format", FORMATS)
def test_windows_line_ends_and_byte_order_mark(tmp_path, format):
    name, text, documents = SAMPLES[format]
    content = "\ufeff" + text.replace("\n", "\r\n")
    (tmp_path / name).write_bytes(content.encode())
    assert read(tmp_path / name) == documents


@pytest.mark.parametrize("format", FORMATS)
def test_no_line_end_at_the_end(tmp_path, format):
    name, text, documents = SAMPLES[format]
    (tmp_path / name).write_text(text.rstrip("\n"))
    assert read(tmp_path / name) == documents


@pytest.mark.parametrize(
    "name, head, format",
    [
        ("x.txt", "One.\nTwo.\nThree!", "lines"),
        ("x.txt.gz", "One sentence.\n", "lines"),
        ("x", "Two. Sentences.\n", "paragraphs"),
        ("x", 'Wrapped at the\nmiddle. "He.\nshe."\n\nAnd so\non', "paragraphs"),
        ("x.txt", "\n\n<doc id='1'>\nA.\n", "wikiextractor"),
        ("x.json", '{"text": "a"}\n', "jsonl"),
        ("x", '{"text": "a"}\n{"te', "jsonl"),
        ("x.txt", "{not json}.\n", "lines"),
        ("README.md", "One.\nTwo.\n", "markdown"),
        ("BOOK.MARKDOWN.GZ", "One.\nTwo.\n", "markdown"),
    ],
)
def test_detect_format(name, head, format):
    assert detect_format(name, head) == format


def test_detect_format_of_the_golden_text():
    path = "tests/golden/pretraining_data/moby_dick_sentences.txt"
    (source,) = find_sources([path])
    assert source.format == "lines"
    assert len(read(path)) == 135


def test_folders_and_globs_are_sorted_and_skip_empty_and_hidden_files(tmp_path):
    for name in ("b/2.txt", "a/1.txt", "c.txt", "b/10.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"This is {name}.\nSo.\n")
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / ".hidden").write_bytes(b"\xff\0")
    names = ["a/1.txt", "b/10.txt", "b/2.txt", "c.txt"]
    assert read(tmp_path) == [[f"This is {name}.", "So."] for name in names]
    assert read(tmp_path / "b" / "*.txt") == [
        ["This is b/10.txt.", "So."],
        ["This is b/2.txt.", "So."],
    ]
    assert len(read(tmp_path / "**" / "*.txt")) == 4
    assert len(read(tmp_path / "a", tmp_path / "c.txt")) == 2


@pytest.mark.parametrize("format", ["lines", "wikiextractor", "jsonl", "paragraphs"])
def test_ranges_give_every_document_once(tmp_path, format):
    name, text, documents = SAMPLES[format]
    path = tmp_path / name
    text += "\n"  # a blank line between the copies
    path.write_text(text * 3)
    (source,) = find_sources([str(path)], format=format)
    size = len(text.encode()) * 3
    assert source.splittable
    assert source.size == size
    whole = list(read_source(source))
    if format != "paragraphs":  # which merges across the copies, as it should
        assert whole == documents * 3
    for cuts in [[i] for i in range(size + 1)] + [
        sorted(random.Random(i).sample(range(size), 5)) for i in range(100)
    ]:
        bounds = [0, *cuts, size]
        parts = [
            document
            for start, stop in itertools.pairwise(bounds)
            for document in read_source(source, start, stop)
        ]
        if format == "paragraphs":  # documents may be cut between paragraphs
            assert flat(parts) == flat(whole)
        else:
            assert parts == whole


def test_hard_wrapped_and_plain_lines_of_web_text():
    wrapped = (
        "This line was wrapped at about sixty characters by Mr.\n"
        "Smith, and then it ends. The next sentence is in the same\n"
        "paragraph.\n\nHome | About\n\nThe last one"
    )
    assert text_sentences(wrapped) == [
        "This line was wrapped at about sixty characters by Mr. Smith, and then it ends.",
        "The next sentence is in the same paragraph.",
    ]
    long_line = "word " * 30 + "without an end"
    assert text_sentences(f"{long_line}\nNext one.") == [long_line, "Next one."]


def test_text_field(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"body": "One. Two."}\n')
    assert read(path, text_field="body") == [["One.", "Two."]]


def test_a_document_without_end_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr("bert_jax.data.corpus_formats.LONGEST_DOCUMENT", 1000)
    sentence = "This sentence is about fifty characters long, or so."
    path = tmp_path / "x.txt"
    for format, text in {
        "lines": f"{sentence}\n" * 500,
        "paragraphs": f"{sentence}\n\n" * 500,
        "markdown": f"{sentence}\n" * 500,  # one paragraph
        "wikiextractor": "<doc id=1>\n" + f"{sentence} {sentence}\n" * 250 + "</doc>\n",
    }.items():
        path.write_text(text)
        documents = read(path, format=format)
        assert flat(documents) == [sentence] * 500, format
        assert 20 <= len(documents) <= 30, format


def test_memory_does_not_grow_with_the_file(tmp_path):
    document = "This is a sentence of the text. This is the next one.\n" * 20 + "\n\n\n"
    peaks = []
    for copies in (200, 1600):  # 0.2 and 1.7 MB
        path = tmp_path / f"{copies}.txt"
        path.write_text(document * copies)
        tracemalloc.start()
        assert sum(1 for _ in read_documents([str(path)])) == copies
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 100_000


# What a user can get wrong: (files, inputs, settings, part of the message).
BAD = {
    "missing": ({}, ["no.txt"], {}, "no.txt: no such file or folder"),
    "glob": ({"a.txt": b"A."}, ["*.md"], {}, "*.md: no file matches"),
    "nothing": ({}, [], {}, "no input"),
    "empty file": ({"a.txt": b""}, ["a.txt"], {}, "a.txt: the file is empty"),
    "blank file": ({"a.txt": b" \n\n"}, ["a.txt"], {}, "a.txt: the file is empty"),
    "empty folder": ({"d/a.txt": b""}, ["d"], {}, "d: the folder is empty"),
    "empty gzip": ({"a.gz": gzip.compress(b"")}, ["a.gz"], {}, "the file is empty"),
    "binary": ({"a.bin": b"\x7fELF\0\0"}, ["a.bin"], {}, "zero byte at byte 4"),
    "utf-16": ({"a.txt": "Hi.".encode("utf-16")}, ["a.txt"], {}, "UTF-16"),
    "latin-1": (
        {"a.txt": b"Good.\nAh.\n\nCaf\xe9.\n"},
        ["a.txt"],
        {},
        "a.txt is not UTF-8 at byte 14 (0xe9)",
    ),
    "latin-1 behind the head": (
        {"a.txt": b"Good one.\n" * 10_000 + b"Caf\xe9.\n"},
        ["a.txt"],
        {},
        "a.txt is not UTF-8 at byte 100003 (0xe9)",
    ),
    "field": (
        {"a.jsonl": b'{"text": "A."}\n{"body": "A.", "id": 1}\n'},
        ["a.jsonl"],
        {},
        'a.jsonl:2: expected a JSON object with text in "text", found body, id',
    ),
    "not text": (
        {"a.jsonl": b'{"text": 5}\n'},
        ["a.jsonl"],
        {},
        "a.jsonl:1: expected",
    ),
    "not object": (
        {"a.jsonl": b"[1]\n"},
        ["a.jsonl"],
        {},
        "a.jsonl:1: the line holds a JSON list",
    ),
    "not JSON": (
        {"a.jsonl": b'{"text": "A."}\n\n{"text": \n'},
        ["a.jsonl"],
        {},
        "a.jsonl:3: the line is not JSON",
    ),
    "short gzip": (
        {
            "a.gz": gzip.compress(random.Random(0).randbytes(90_000).hex().encode())[
                :-9000
            ]
        },
        ["a.gz"],
        {"format": "lines"},
        "a.gz: broken gzip",
    ),
    "gzip head": ({"a.gz": b"\x1f\x8b\x08junk"}, ["a.gz"], {}, "a.gz: broken gzip"),
    "format": (
        {"a.txt": b"A."},
        ["a.txt"],
        {"format": "xml"},
        "format 'xml': expected",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line(tmp_path, monkeypatch, case):
    files, inputs, settings, message = BAD[case]
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        list(read_documents(inputs, **settings))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "LONGEST_LINE", 1000)
    path = tmp_path / "a.txt"
    path.write_text("Fine.\n" + "word " * 1000)
    with pytest.raises(UserError, match="the line at byte 6 is over"):
        read(path)


def test_a_character_cut_by_the_head_is_fine(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "_HEAD", 11)
    path = tmp_path / "a.txt"
    for text in ("Abcdefghié.\nB.\n", "Abcdefghi€.\nB.\n", "Abcdefgh𝄞.\nB.\n"):
        path.write_text(text)
        assert flat(read(path)) == text.split("\n")[:-1]


def test_headings_are_short_and_have_no_end_mark(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("x" * (HEADING - 1) + "\n\n" + "y" * HEADING + "\n\nShort. One.\n")
    assert read(path, format="paragraphs") == [["y" * HEADING, "Short.", "One."]]


def test_a_new_format_is_one_entry_of_the_table(tmp_path, monkeypatch, uncased):
    """Subtitles: found by their suffix, split between processes, prepared."""

    def read(lines, text_field):
        sentences = []
        for line in lines:
            if line.isdigit():
                if sentences:
                    yield sentences
                sentences = []
            elif line and "-->" not in line:
                sentences.append(line)
            elif not line and not sentences:
                raise corpus_formats.BadLineError("no text")
        if sentences:
            yield sentences

    subtitles = corpus_formats.TextFormat(
        read, is_boundary=str.isdigit, suffixes=(".srt",)
    )
    monkeypatch.setitem(corpus_formats.FORMATS, "subtitles", subtitles)
    path = tmp_path / "film.SRT"
    blocks = [f"{i}\n00:01 --> 00:02\nLine {i}.\nGo on.\n\n" for i in range(1, 200)]
    path.write_text("".join(blocks))
    (source,) = find_sources([str(path)])
    assert source.format == "subtitles" and source.splittable
    whole = list(read_source(source))
    assert whole == [[f"Line {i}.", "Go on."] for i in range(1, 200)]
    cuts = [0, 100, 1000, 1001, source.size]
    parts = [read_source(source, *cut) for cut in itertools.pairwise(cuts)]
    assert [document for part in parts for document in part] == whole
    report = prepare([str(path)], uncased, tmp_path / "store", workers=1)
    assert report.info.documents == 199
    path.write_text("1\n\n")
    with pytest.raises(UserError, match=r"film\.SRT:2: no text"):
        list(read_documents([str(path)], format="subtitles"))


@pytest.mark.parametrize("zipped", [False, True])
def test_reading_shows_how_far_it_is(tmp_path, monkeypatch, zipped):
    """By bytes of the file; of a zipped one, whose size is guessed, at most all."""
    document = "A sentence of some words.\nAnother sentence of words.\n\n"
    text = (document * 40).encode()
    path = tmp_path / "text.txt"
    path.write_bytes(gzip.compress(text) if zipped else text)
    now, shown = [0.0], io.StringIO()
    monkeypatch.setattr(std, "time", lambda: now[0])
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(progress, "_show", True)
    for _ in read_documents([str(path)]):
        now[0] += 31
    shares = [int(share) for share in re.findall(r"reading: (\d+)%", shown.getvalue())]
    assert shares == sorted(shares)
    if zipped:
        assert shares[-1] == 100
    else:
        assert shares[:40] == pytest.approx(np.arange(1, 41) * 2.5, abs=1.5)


def test_blank_lines_before_the_text_do_not_hide_it(tmp_path):
    for name, text in (("a.txt", "The sea.\n"), ("b.txt", '{"text": "A ship."}\n')):
        (tmp_path / name).write_text("\n" * (1 << 17) + text)
    assert list(read_documents([str(tmp_path)])) == [["The sea."], ["A ship."]]
    assert [s.format for s in find_sources([str(tmp_path)])] == ["lines", "jsonl"]


@pytest.mark.parametrize("text", ["[", "![", "![a](", "*", "_", "`", "\u201c ", "a! "])
def test_marks_without_end_take_no_longer_than_others(text):
    """A line of 20,000 characters took minutes."""
    for name in ("markdown", "paragraphs"):
        documents = FORMATS[name].read(iter([text * (20_000 // len(text))]), "text")
        assert len(list(documents)) <= 1


def test_an_address_may_have_parentheses():
    text = "See [the [sea](https://x.org/Sea_(water)) and ![a](b(c).png) a_b **c** d."
    (document,) = FORMATS["markdown"].read(iter([text]), "text")
    assert document == ["See [the sea and a_b c d."]
