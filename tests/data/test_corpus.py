import bz2
import contextlib
import gzip
import itertools
import json
import lzma
import random
import tracemalloc

import pytest

from bert_jax.data import corpus
from bert_jax.data.corpus import FORMATS, find_sources, read_documents, read_source
from bert_jax.data.corpus_formats import (
    HEADING,
    PASSAGES,
    Reading,
    detect_format,
    text_sentences,
)
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
Five.



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
        "Five.",  # the eighth
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

# Name and text of a file; its documents; the numbers of dropped headings, list items,
# tables, ...
SAMPLES = {
    "lines": ("a.txt", LINES, LINES_DOCUMENTS, 0),
    "paragraphs": ("b.txt", PARAGRAPHS, PARAGRAPHS_DOCUMENTS, 2),
    "wikiextractor": ("wiki_00", WIKI, WIKI_DOCUMENTS, 5),
    "markdown": ("c.md", MARKDOWN, MARKDOWN_DOCUMENTS, 9),
    "jsonl": ("d.jsonl", JSONL, JSONL_DOCUMENTS, 1),
}


def flat(documents):
    return list(itertools.chain.from_iterable(documents))


def read(*inputs, **settings):
    return list(read_documents([str(i) for i in inputs], Reading(**settings)))


def sources_of(path, **settings):
    return find_sources([str(path)], Reading(**settings))


def read_range(source, start=0, stop=None):
    stop = source.size if stop is None else stop
    return [d for _, d in read_source(source, start, stop, Reading())]


CHANGES = {
    "none": ("", str.encode),
    "gzip": (".gz", lambda text: gzip.compress(text.encode())),
    "bzip2": (".bz2", lambda text: bz2.compress(text.encode())),
    "xz": (".xz", lambda text: lzma.compress(text.encode())),
    "windows": ("", lambda text: ("\ufeff" + text.replace("\n", "\r\n")).encode()),
    "no line end": ("", lambda text: text.rstrip("\n").encode()),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("format", FORMATS)
def test_format_is_detected_and_read(tmp_path, format, change):
    name, text, documents, count = SAMPLES[format]
    suffix, encode = CHANGES[change]
    path = tmp_path / f"{name}{suffix}"
    path.write_bytes(encode(text))
    (source,) = sources_of(path)
    assert source.format == format
    # Only Markdown files are read as a whole.
    assert source.splittable == (not suffix and format != "markdown")
    reading = Reading()
    assert list(read_documents([str(path)], reading)) == documents
    assert reading.dropped[PASSAGES] == reading.dropped.total() == count
    assert read(path, format=format) == documents


@pytest.mark.parametrize(
    "name, head, format",
    [
        ("x.txt", "One.\nTwo.\nThree!", "lines"),
        ("x.txt.gz", "One sentence.\n", "lines"),
        ("x.txt", "One sentence.", "lines"),
        ("x.txt", "One.\nTwo.\nThe head ends in th", "lines"),
        ("a.txt", "یہ ایک شہر ہے۔\nیہ دریا ہے۔\n\nیہ گھر ہے۔\nوہ گیا؟\n", "lines"),
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


def test_folders_and_globs_are_sorted_and_skip_empty_and_hidden_files(tmp_path):
    tmp_path /= ".cache"  # a hidden root folder is still read
    for name in ("b/2.txt", "a/1.txt", "c.txt", "b/10.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(f"This is {name}.\nSo.\n")
    (tmp_path / "empty.txt").write_text(" \n")
    for name in (".hidden", "b/.hidden.txt"):
        (tmp_path / name).write_bytes(b"\xff\0")
    names = ["a/1.txt", "b/10.txt", "b/2.txt", "c.txt"]
    assert read(tmp_path) == [[f"This is {name}.", "So."] for name in names]
    assert read(tmp_path / "b" / "*.txt") == [
        ["This is b/10.txt.", "So."],
        ["This is b/2.txt.", "So."],
    ]
    assert len(read(tmp_path / "**" / "*.txt")) == 4
    assert len(read(tmp_path / "[ac].txt")) == 1
    assert len(read(tmp_path / "a", tmp_path / "c.txt")) == 2


@pytest.mark.parametrize("format", ["lines", "wikiextractor", "jsonl", "paragraphs"])
def test_ranges_give_every_document_once(tmp_path, format):
    name, text, documents, _ = SAMPLES[format]
    path = tmp_path / name
    text += "\n"  # a blank line between the copies
    path.write_text(text * 3)
    (source,) = sources_of(path, format=format)
    size = len(text.encode()) * 3
    assert source.size == size
    all_documents = read_range(source)
    if format != "paragraphs":  # paragraphs merge across the copies, as expected
        assert all_documents == documents * 3
    rng = random.Random(0)
    for cuts in [[i] for i in range(1, size, 7)] + [
        sorted(rng.sample(range(1, size), 5)) for _ in range(30)
    ]:
        ranges = itertools.pairwise([0, *cuts, size])
        parts = [d for start, stop in ranges for d in read_range(source, start, stop)]
        if format == "paragraphs":  # documents may be cut between paragraphs
            # A heading without other text in its range cannot be recognised as a heading.
            sentences = [s for s in flat(parts) if not s.startswith("CHAPTER ")]
            assert sentences == flat(all_documents)
        else:
            assert parts == all_documents


def test_hard_wrapped_lines_of_web_text_are_joined():
    wrapped = (
        "This line was wrapped at about sixty characters by Mr.\n"
        "Smith, and then it ends. The next sentence is in the same\n"
        "paragraph.\n\nHome | About\n\nThe last one"
    )
    assert text_sentences(wrapped, Reading()) == [
        "This line was wrapped at about sixty characters by Mr. Smith, and then it ends.",
        "The next sentence is in the same paragraph.",
    ]
    long_line = "word " * 30 + "without an end"
    assert text_sentences(f"{long_line}\nNext one.", Reading()) == [
        long_line,
        "Next one.",
    ]


def test_a_very_long_document_is_cut(tmp_path, monkeypatch):
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
    for copies in (20, 150):  # 0.02 and 0.16 MB
        path = tmp_path / f"{copies}.txt"
        path.write_text(document * copies)
        tracemalloc.start()
        assert sum(1 for _ in read_documents([str(path)])) == copies
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 50_000


# Mistakes of users: (files, inputs, settings, part of the message).
BAD = {
    "missing": ({}, ["no.txt"], "no.txt does not exist; expected the path of a file"),
    "glob": ({"a.txt": b"A."}, ["*.md"], "*.md is a pattern that matches no"),
    "text": (
        {},
        ["Call me Ishmael. " * 30],
        "the path of a file or a folder, or a pattern, ",
    ),
    "empty file": ({"a.txt": b""}, ["a.txt"], "a.txt is an empty file; expected text"),
    "no name": ({"a.txt": b"A."}, [""], "name of an input is empty"),
    "empty": (
        {"d/a.txt": b""},
        ["d"],
        "d is a folder without text: its files are empty",
    ),
    "utf-16": ({"a.txt": "Hi.".encode("utf-16")}, ["a.txt"], "UTF-16"),
    "latin-1": (
        {"a.txt": b"Good.\nAh.\n\nCaf\xe9.\n"},
        ["a.txt"],
        "a.txt is not UTF-8 at byte 14 (0xe9)",
    ),
    "latin-1 behind the head": (
        {"a.txt": b"Good one.\n" * 10_000 + b"Caf\xe9.\n"},
        ["a.txt"],
        "a.txt:10001: the line is not UTF-8 at byte 3 (0xe9)",
    ),
    "field": (
        {"a.jsonl": b'{"text": "A."}\n{"body": "A.", "id": 1}\n'},
        ["a.jsonl"],
        'a.jsonl:2: expected a JSON object with text in "text", found body, id',
    ),
    "not text": ({"a.jsonl": b'{"text": 5}\n'}, ["a.jsonl"], "a.jsonl:1: expected"),
    "not JSON": (
        {"a.jsonl": b'{"text": "A."}\n\n{"text": \n'},
        ["a.jsonl"],
        "a.jsonl:3: the line is not JSON",
    ),
    "short gzip": (
        {"a.gz": gzip.compress(random.Random(0).randbytes(90_000))[:-9000]},
        ["a.gz"],
        "a.gz is damaged",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_a_one_line_error(tmp_path, monkeypatch, case):
    files, inputs, message = BAD[case]
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        list(read_documents(inputs))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_too_long_lines_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "LONGEST_LINE", 1000)
    path = tmp_path / "a.txt"
    path.write_text("Fine.\n" + "word " * 1000)
    with pytest.raises(UserError, match=r"a\.txt:2: the line is over"):
        read(path)


def test_a_character_cut_by_the_head_is_accepted(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "_HEAD", 11)
    (tmp_path / "a.txt").write_text("Abcdefghi€.\nB.\n")
    assert read(tmp_path / "a.txt") == [["Abcdefghi€.", "B."]]


def test_headings_are_short_and_have_no_end_mark(tmp_path):
    path = tmp_path / "a.txt"
    texts = ["x" * (HEADING - 1), "y" * HEADING, "Short.", "z" * HEADING + "."]
    path.write_text("\n\n".join(texts))
    assert read(path, format="paragraphs") == [texts[1:]]


# Paragraphs that end with their language's sentence marks, or with a closing mark.
LANGUAGES = {
    "Urdu": "لاہور پاکستان کا ایک پرانا شہر ہے اور دریائے راوی کے کنارے آباد ہے۔",
    "Arabic": "هل تعرف متى بنيت المدينة القديمة ومن الذي بنى أسوارها العالية؟",
    "Hindi": "दिल्ली भारत की राजधानी है और यमुना के किनारे बसी है॥",
    "Burmese": "ရန်ကုန်မြို့သည် မြန်မာနိုင်ငံ၏ အကြီးဆုံးမြို့ ဖြစ်သည်။",
    "Khmer": "ភ្នំពេញជារាជធានីនិងជាទីក្រុងធំជាងគេនៃប្រទេសកម្ពុជា។",
    "Thai": "กรุงเทพมหานครเป็นเมืองหลวงและนครที่มีประชากรมากที่สุดของประเทศ",
    "Amharic": "አዲስ አበባ የኢትዮጵያ ዋና ከተማ ስትሆን በሀገሪቱ መሃል ትገኛለች።",
    "Armenian": "Երևանը Հայաստանի մայրաքաղաքն է և երկրի ամենամեծ քաղաքը։",
    "Tibetan": "ལྷ་ས་ནི་བོད་ཀྱི་རྒྱལ་ས་ཡིན་ཞིང་གྲོང་ཁྱེར་ཆེན་པོ་ཞིག་རེད།",
    "German": "Nach dem Weg zur Brücke gefragt, sagte er: „Geht immer geradeaus.“",
    "English": "When he was asked for the bridge, he said: ‘Walk straight ahead.’",
    "Chinese": "老人回答说：「那是很久以前的事了，谁也记不清。」",
    "Japanese": "東京は世界でも有数の大都市である（出典は百科事典。）",
    "Korean": "서울은 대한민국의 수도이며 한강을 끼고 있는 아주 큰 도시이다.",
}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("format", ["wikiextractor", "jsonl", "paragraphs", "markdown"])
def test_text_of_every_language_is_read(tmp_path, format, language):
    """Titles and headings are dropped, even in a language without sentence marks."""
    text = LANGUAGES[language]
    bodies = {
        "wikiextractor": f'<doc id="1" title="A">\nA\n\n{text}\nB.\n{text}\n</doc>\n',
        "jsonl": json.dumps({"text": f"{text}\n{text}\n{text}"}),
        "paragraphs": f"{text}\n\n{text}\n",
        "markdown": f"# A\n\n{text}\n\n{text}\n",
    }
    path = tmp_path / "a"
    path.write_text(bodies[format])
    (document,) = read(path, format=format)
    copies = 3 if format == "jsonl" else 2
    assert "".join("".join(document).split()) == "".join(text.split()) * copies


@pytest.mark.parametrize(
    "text", ["یہ ایک پرانا شہر ہے۔", "เมืองเก่าริมแม่น้ำ", "這是一座古老的城市"]
)
@pytest.mark.parametrize("format", ["jsonl", "paragraphs"])
def test_short_paragraphs_of_a_text_without_marks_are_kept(tmp_path, format, text):
    path = tmp_path / "a"
    content = "\n\n".join([text] * 9)
    path.write_text(json.dumps({"text": content}) if format == "jsonl" else content)
    assert read(path, format=format) == [[text] * 9]


def test_short_records_of_jsonl_are_kept(tmp_path):
    texts = [f"just landed in paris {i}" for i in range(150)] + ["Home at last."] * 50
    path = tmp_path / "posts.jsonl"
    path.write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    assert read(path, text_field="body") == [[text] for text in texts]


@pytest.mark.parametrize(
    "row, found",
    [
        ({"body": None}, r"found a value of type NoneType there; drop the row$"),
        ({"body": ["a"]}, r"found a value of type list there; drop the row$"),
        ({"text": "a"}, r"found text; set text_field$"),
    ],
)
def test_error_of_a_jsonl_row_without_text(tmp_path, row, found):
    path = tmp_path / "posts.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(UserError, match=found):
        read(path, text_field="body")


def test_tables_and_files_with_tags_give_one_warning(tmp_path, caplog):
    names = ("a.csv", "b.TSV.gz", "c.html", "d.txt", "e.csv.md", "f")
    for name in names:
        write = gzip.open if name.endswith(".gz") else open
        with write(tmp_path / name, "wt") as file:
            file.write("text,label\nA long day. It ended.,7\n")
    find_sources([str(tmp_path)], Reading())
    (warning,) = [x.message for x in caplog.records if x.levelname == "WARNING"]
    assert "a.csv is read as plain text" in warning
    assert "(3 such files)" in warning
    caplog.clear()
    find_sources([str(tmp_path)], Reading(format="lines"))
    assert not [x for x in caplog.records if x.levelname == "WARNING"]


def test_each_document_of_a_dump_has_its_own_language_rules(tmp_path):
    """The list of the English article is dropped, and the Thai article keeps its text."""
    english, thai = LANGUAGES["English"], LANGUAGES["Thai"]
    items = ["a list item that is long enough to be a sentence but has no end mark"] * 2
    lines = ['<doc title="A">', "A", english, *items, "Head.", english, "</doc>"]
    lines += [
        '<doc title="เมือง &amp; ค">',
        "เมือง &amp; ค",
        thai,
        "หัวข้อ.",
        thai,
        "</doc>",
    ]
    path = tmp_path / "wiki_00"
    path.write_text("\n".join(lines))
    reading = Reading()
    documents = list(read_documents([str(path)], reading))
    assert documents == [[english] * 2, [thai] * 2]
    assert reading.dropped == {PASSAGES: 6}


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\v", "\f", "\x1c", "\r"])
def test_only_a_line_feed_ends_a_line(tmp_path, separator):
    text = f"The old bridge{separator}over the river was built by workers from the town"
    contents = {
        "a.jsonl": json.dumps({"text": f"{text}."}),
        "b.jsonl": json.dumps({"text": f"{text}."}, ensure_ascii=False),
        "lines.txt": f"{text}.\nAnother one.",
        "paragraphs.txt": f"{text}. Another one.",
        "a.md": f"{text}.",
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content, newline="")
        words = " ".join(flat(read(tmp_path / name))).split()
        assert words[:13] == f"{text}.".split(), name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("In C++ a vector&lt;int&gt; is an array", "In C++ a vector<int> is an array"),
        ("The rule 1 <n and n> 2 holds", "The rule 1 <n and n> 2 holds"),
        ("AT&amp;T and &lt;br&gt; stay", "AT&T and <br> stay"),
        ('A <a href="x.html">link</a> here', "A link here"),
        ("A <ref name =x>note</ref> and <br/> here", "A note and here"),
        ("See <https://x.org/a> or <me@x.org> for it", "See or for it"),
    ],
)
@pytest.mark.parametrize("format", ["wikiextractor", "markdown"])
def test_tags_are_removed_and_escaped_characters_are_text(
    tmp_path, format, text, expected
):
    more = "; this is a sentence of the text which is long enough to be read."
    path = tmp_path / "a"
    doc = {"wikiextractor": "<doc id='1'>\n", "markdown": ""}[format]
    path.write_text(f"{doc}{text}{more}\n")
    ((sentence,),) = read(path, format=format)
    assert " ".join(sentence.split()) == (expected + more).replace(" ;", ";")


def test_a_document_is_split_by_the_rules_of_its_language(tmp_path):
    text = "Prof. Dr. Müller kam bzw. ging. Am 3. Oktober war er weg."
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": text}))
    assert len(flat(read(path))) == 4
    assert read(path, language="de") == [
        ["Prof. Dr. Müller kam bzw. ging.", "Am 3. Oktober war er weg."]
    ]
    with pytest.raises(
        UserError, match="language='German', expected a code such as en or de"
    ):
        read(path, language="German")
    # Only German rules find that each line is one sentence.
    head = "Prof. Dr. Abel kam bzw. ging am 3. Oktober.\n" * 9
    assert detect_format("b.txt", head, "de") == "lines"
    assert detect_format("b.txt", head) == "paragraphs"


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_progress_counts_the_bytes_that_are_read(tmp_path, monkeypatch, suffix):
    """The total of a compressed file is an estimate, which is reached at the end."""
    path, seen = tmp_path / f"text.txt{suffix}", []
    content = b"A sentence of some words.\nAnother sentence of words.\n\n" * 40
    path.write_bytes(gzip.compress(content) if suffix else content)

    class Bar(contextlib.nullcontext):
        n = 0

        def __enter__(self):
            return self

        def update(self, size):
            self.n += size
            seen.append(self.n)

    monkeypatch.setattr(corpus, "Progress", lambda doing, **options: Bar())
    assert sum(1 for _ in read_documents([str(path)])) == 40
    (source,) = sources_of(path)
    assert seen[-1] == source.size and seen == sorted(seen)
    assert suffix or len(set(seen)) == 41


@pytest.mark.parametrize(
    "text", ["[", "![", "![a](", "*", "_", "`", "\u201c ", "a! ", "<a ", "<a:", "<a b="]
)
def test_unclosed_marks_need_linear_time(text):
    """A line of 20,000 characters once needed minutes."""
    for name in ("markdown", "paragraphs"):
        documents = FORMATS[name].read(iter([text * (20_000 // len(text))]), Reading())
        assert len(list(documents)) <= 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "See [the [sea](https://x.org/Sea_(water)) and ![a](b(c).png) a_b **c** d.",
            "See [the sea and a_b c d.",
        ),
        ("A `vector<int>` and ``a<b>c`` are <b>in</b> it.", None),
    ],
)
def test_links_and_code_of_markdown_are_read_as_text(text, expected):
    (document,) = FORMATS["markdown"].read(iter([text]), Reading())
    assert document == [expected or "A vector<int> and a<b>c are in it."]


def test_text_whose_lines_end_in_cr_is_refused(tmp_path):
    """It would be one document, or one sentence."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"The sea is here.\rIt is good.\r\rA ship.\r")
    with pytest.raises(UserError, match="lines end in CR, as on old Macs"):
        read(path)


def test_objects_with_a_blank_after_the_brace_are_read(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text('{ "text": "The sea is here. It is good."}\n')
    assert flat(read(path)) == ["The sea is here.", "It is good."]
    for text in ('{ "a" } is a set.', '{\n  "name": 3\n}'):
        path.write_text(f"{text}\n\nThe sea is here.\n")
        assert flat(read(path))[-1] == "The sea is here."
