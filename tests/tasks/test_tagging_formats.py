"""Files of tags, schemes, what tags spell and scores."""

from pathlib import Path

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.tasks import tagging_formats as formats
from bert_jax.tasks.tagging_formats import TaggedSentence

CONLL = """-DOCSTART- -X- -X- O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER

-DOCSTART- -X- -X- O

Arafat NNP I-NP I-PER
Netanyahu NNP I-NP B-PER
"""


def write(tmp_path, text, name="train.txt"):
    path = tmp_path / name
    path.write_bytes(text.encode())
    return path


def sentence(tags, words=None):
    tags = tuple(tags.split())
    return TaggedSentence(words or tags, tags, 0, "file.txt:7")


def test_conll_2003(tmp_path):
    path = write(tmp_path, CONLL)
    rows = formats.read_columns(path, -1, 4)
    assert [row.words for row in rows] == [
        ("EU", "rejects", "German"),
        ("Peter", "Blackburn"),
        ("Arafat", "Netanyahu"),
    ]
    assert rows[0].tags == ("I-ORG", "O", "I-MISC")
    assert [row.document for row in rows] == [1, 1, 2]
    assert [row.where for row in rows] == [f"{path}:{n}" for n in (3, 7, 12)]
    assert rows[1].place(1) == f"{path}:8"
    scheme = formats.recognise(row.tags for row in rows)
    assert scheme == "iob1"
    assert [formats.normalise(row, scheme).tags for row in rows] == [
        ("B-ORG", "O", "B-MISC"),
        ("B-PER", "I-PER"),
        ("B-PER", "B-PER"),
    ]
    assert formats.read_columns(path, 1)[2].tags == ("NNP", "NNP")


def test_wnuts_separator_lines_hold_tabs(tmp_path):
    # A word may hold a no-break space or be an odd line separator.
    text = "@paul\tO\nNew\xa0York\tB-location\n\u2028\tO\n\t\nbye\tO\n \t \r\n\n"
    rows = formats.read_columns(write(tmp_path, text), -1, 2)
    assert [row.words for row in rows] == [("@paul", "New\xa0York", "\u2028"), ("bye",)]
    assert [row.document for row in rows] == [0, 1]


def test_windows_line_ends_and_the_byte_order_mark(tmp_path):
    rows = formats.read_columns(write(tmp_path, "\ufeffa  X\r\nb\tY\r\n\r\nc Z"), -1)
    assert [(row.words, row.tags) for row in rows] == [
        (("a", "b"), ("X", "Y")),
        (("c",), ("Z",)),
    ]


@pytest.mark.parametrize(
    "text, column, columns, message",
    [
        ("a X O\nb O\n", -1, 0, "train.txt:2 has 2 columns, expected 3, as in line 1"),
        (
            "\na X\n",
            -1,
            4,
            "train.txt:2 has 2 columns, expected 4, separated by blanks",
        ),
        ("a\tO\n\tO\n", -1, 0, "train.txt:2 has 1 column, expected 2"),
        (
            "a\tO\nb c\n",
            -1,
            2,
            "train.txt:2 has 1 column, expected 2, separated by tabs",
        ),
        ("a\nb\n", -1, 0, "train.txt:1 has 1 column; expected a word and its tag"),
        ("a X\n", 2, 0, "train.txt:1 has 2 columns, the tag was to be in column 2"),
        ("a X\n", 0, 0, "data.column to 1 to 1"),
        ("\n-DOCSTART- O\n\n", -1, 0, "train.txt holds no words"),
    ],
)
def test_refuses_columns(tmp_path, text, column, columns, message):
    with pytest.raises(UserError, match=message):
        formats.read_columns(write(tmp_path, text), column, columns)


def test_refuses_files(tmp_path):
    with pytest.raises(UserError, match=r"none.txt does not exist"):
        formats.read_columns(tmp_path / "none.txt", -1)
    with pytest.raises(UserError, match=r"is a folder"):
        formats.read_columns(tmp_path, -1)
    (tmp_path / "latin.txt").write_bytes(b"a O\nb O\n\xe9t\xe9 O\n")
    with pytest.raises(UserError, match=r"latin.txt:3 is not UTF-8"):
        formats.read_columns(tmp_path / "latin.txt", -1)
    with pytest.raises(UserError, match=r"holds no words"):
        formats.read_segmented(write(tmp_path, " \n\n"))


@pytest.mark.parametrize(
    "scheme, sentences",
    [
        ("iob2", ["O B-PER I-PER O B-LOC", "O"]),
        ("iob2", ["B-creative-work B-creative-work"]),
        ("iob2", ["O O"]),
        ("iob1", ["I-PER I-PER B-PER O", "O"]),
        ("iob1", ["B-PER I-PER", "O I-PER"]),
        ("iobes", ["S-PER O B-LOC E-LOC", "B-A I-A E-A"]),
        ("bilou", ["U-PER O B-PER L-PER O"]),
        ("bilou", ["B-PER I-PER L-PER", "O"]),
        ("bmeso", ["B-PER M-PER E-PER", "O S-LOC"]),
        ("bmes", ["B M E S", "S"]),
        ("bmes", ["S"]),
        ("plain", ["DT NN VBZ ."]),
        ("plain", ["NOUN X PUNCT", "INTJ"]),
        # One odd tag among entities is for `normalise` to find, and so is one
        # without a type.
        ("iob2", ["B-PER I-PER X-PER O"]),
        ("iob2", ["B I O"]),
    ],
)
def test_recognises_schemes(scheme, sentences):
    assert formats.recognise(s.split() for s in sentences) == scheme


@pytest.mark.parametrize(
    "scheme, tags, message",
    [
        ("iob2", "O X-PER", "file.txt:8 has the tag 'X-PER'; the scheme iob2 expects"),
        ("iob2", "O B", "file.txt:8 has the tag 'B'"),
        ("iob1", "I- O", "file.txt:7 has the tag 'I-'"),
        ("iob1", "S-PER", "file.txt:7 has the tag 'S-PER'"),
        ("iobes", "PER", "file.txt:7 has the tag 'PER'"),
        ("bmes", "S O", "file.txt:8 has the tag 'O'; .* B, M, E or S"),
        (
            "iob2",
            "O I-PER",
            "file.txt:8 has 'I-PER' after 'O'.* data.scheme=iob1",
        ),
        ("iob2", "B-LOC I-PER", "file.txt:8 has 'I-PER' after 'B-LOC'"),
        ("iob2", "I-PER", "file.txt:7 has 'I-PER' after 'nothing'"),
        ("iobes", "B-PER O", "file.txt:8 has 'O' after 'B-PER'"),
        ("iobes", "B-PER E-LOC", "file.txt:8 has 'E-LOC' after 'B-PER'"),
        ("iobes", "S-PER B-PER", "file.txt:8 has the end after 'B-PER'"),
        ("iobes", "S-PER E-PER", "file.txt:8 has 'E-PER' after 'S-PER'"),
        ("bilou", "B-PER U-PER", "file.txt:8 has 'U-PER' after 'B-PER'"),
        ("bilou", "B-PER S-PER", "file.txt:8 has the tag 'S-PER'; the scheme bilou"),
        ("bmeso", "B-PER M-LOC", "file.txt:8 has 'M-LOC' after 'B-PER'"),
        ("bmes", "B M S", "file.txt:9 has 'S' after 'M'"),
        ("bmes", "S M E", "file.txt:8 has 'M' after 'S'"),
        ("bmes", "B E E", "file.txt:9 has 'E' after 'E'"),
    ],
)
def test_refuses_tags(scheme, tags, message):
    with pytest.raises(UserError, match=message):
        formats.normalise(sentence(tags), scheme)


@pytest.mark.parametrize(
    "scheme, tags",
    [
        ("iob2", "O B-PER I-PER B-PER B-LOC O"),
        ("iobes", "B-X I-X E-X S-X O B-Y E-Y"),
        ("bilou", "B-X I-X L-X U-X O B-Y L-Y"),
        ("bmeso", "B-X M-X E-X S-X O B-Y E-Y"),
        ("bmes", "B M M E S B E"),
        ("plain", "NN O B-PER X"),
    ],
)
def test_leaves_well_formed_tags(scheme, tags):
    assert formats.normalise(sentence(tags), scheme) == sentence(tags)


def to_iob1(tags):
    """I- but where an entity follows one of its type."""
    return tuple(
        f"I{tag[1:]}" if tag[0] == "B" and before[1:] != tag[1:] else tag
        for before, tag in zip(("O", *tags), tags, strict=False)
    )


def test_iob1_and_back():
    rng = np.random.default_rng(0)
    tags = np.array(["O", "B-A", "I-A", "B-B", "I-B"])
    seen = set()
    for _ in range(300):
        drawn = tuple(map(str, rng.choice(tags, rng.integers(1, 9))))
        iob2 = formats.iob1_to_iob2(drawn)  # repairs what is not well-formed
        assert formats.iob1_to_iob2(iob2) == iob2
        assert formats.iob1_to_iob2(to_iob1(iob2)) == iob2
        assert formats.normalise(sentence(" ".join(iob2)), "iob2").tags == iob2
        seen.add(iob2 == drawn)
    assert seen == {True, False}


def test_segmented_text(tmp_path):
    path = write(tmp_path, "中国  人民\n我 爱北京城\n\n\n他\n")
    rows = formats.read_segmented(path)
    assert [row.words for row in rows] == [
        tuple("中国人民"),
        tuple("我爱北京城"),
        ("他",),
    ]
    assert ["".join(row.tags) for row in rows] == ["BEBE", "SBMME", "S"]
    assert rows[2].where == f"{path}:5"
    assert rows[0].document == rows[1].document != rows[2].document
    for row in rows:
        assert formats.recognise([row.tags]) == "bmes"
        assert formats.normalise(row, "bmes") == row
    alone = formats.read_segmented(write(tmp_path, "一 二\n三\n\n"))
    assert [row.document for row in alone] == [0, 1]


def segments(tags):
    """The (start, end) of the words that bmes tags spell."""
    spans = formats.entities(formats.word_tags(tags))
    assert {name for name, _, _ in spans} == {"word"}
    return [(start, end) for _, start, end in spans]


def test_segments_and_back():
    rng = np.random.default_rng(0)
    for _ in range(100):
        words = ["字" * n for n in rng.integers(1, 6, rng.integers(1, 7))]
        tags = formats.segment_tags(words)
        spans = segments(tags)
        assert [stop - start for start, stop in spans] == list(map(len, words))
        # Any tags give words that lie side by side over all characters.
        tags = list(map(str, rng.choice(list("BMES"), rng.integers(1, 9))))
        edges = [edge for span in segments(tags) for edge in span]
        assert edges[0] == 0 and edges[-1] == len(tags)
        assert edges[1:-1:2] == edges[2::2]


def test_ill_formed_segments():
    assert segments(list("MEMBB")) == [(0, 2), (2, 3), (3, 4), (4, 5)]
    assert segments(list("BSE")) == [(0, 1), (1, 2), (2, 3)]


def test_words_between_blanks():
    def words(text, how="blanks"):
        return tuple(text[a:b] for a, b in formats.find_words(text, how))

    assert words(" EU  rejects\tit \n") == ("EU", "rejects", "it")
    assert words("中国 人") == ("中国", "人")
    assert words("中国 人", "characters") == ("中", "国", "人")
    assert words("{ braces }") == ("{", "braces", "}")
    assert words("  \n") == ()


@pytest.mark.parametrize(
    "text, words",
    [
        ("Ann saw Rome.", "Ann saw Rome ."),
        ("(Rome, 'the city')...", "( Rome , ' the city ' ) ..."),
        ("Italy's U.S. envoy can't go.", "Italy 's U.S. envoy ca n't go ."),
        ("Mr. J. Smith of Acme Corp. left", "Mr. J. Smith of Acme Corp. left"),
        (
            "@ann #rome -5 $5 C++ :) http://a.b/c?",
            "@ann #rome -5 $5 C++ :) http://a.b/c?",
        ),
        ("state-of-the-art, 3.14% a_b_.", "state-of-the-art , 3.14 % a_b _ ."),
        ("«Où?» don’t", "« Où ? » do n’t"),
    ],
)
def test_words_of_a_text(text, words):
    found = formats.find_words(text, "clitics")
    assert [text[a:b] for a, b in found] == words.split()
    together = words.replace(" 's", "'s").replace(" n't", "n't").replace(" n’t", "n’t")
    together = together.split()
    found = formats.find_words(text, "punctuation")
    assert [text[a:b] for a, b in found] == together
    # What is split once is split no further.
    again = " ".join(words.split())
    for how in ("clitics", "punctuation"):
        found = formats.find_words(again, how)
        assert [again[a:b] for a, b in found] == words.split()
    blanks = [text[a:b] for a, b in formats.find_words(text, "blanks")]
    assert blanks == text.split()


def test_the_style_of_a_files_words():
    assert formats.word_style(["Ann", "'s", "dog", "."]) == "clitics"
    assert formats.word_style(["Ann's", "dog", ",", "a", "cat", "."]) == "punctuation"
    assert formats.word_style(["Ann's", "dog,", "a", "cat."]) == "blanks"


def test_wnut_17_at_hand():
    folder = Path(__file__).parents[3] / "shared" / "data" / "ner" / "wnut17"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    expected = {  # sentences, words, entities
        "wnut17train.conll": (3394, 62730, 1975),
        "emerging.dev.conll": (1009, 15733, 836),
        "emerging.test.annotated": (1287, 23394, 1079),
    }
    for name, counts in expected.items():
        rows = formats.read_columns(folder / name, -1, 2)
        rows = [formats.normalise(row, "iob2") for row in rows]
        tags = [tag for row in rows for tag in row.tags]
        assert counts == (len(rows), len(tags), sum(tag[0] == "B" for tag in tags))


LABELS = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")


def conlleval_counts(gold, predicted):
    """(found in gold, found in predicted, right), counted apart from the code."""

    def spans(tags):
        found, before = [], "O"
        for i, tag in enumerate(tags):
            if tag[0] == "B" or (tag[0] == "I" and before[1:] != tag[1:]):
                found.append([tag[2:], i, i])
            elif tag[0] == "I":
                found[-1][2] = i
            before = tag
        return set(map(tuple, found))

    counts = np.zeros(3, int)
    for a, b in zip(gold, predicted, strict=True):
        a, b = spans(a), spans(b)
        counts += [len(a), len(b), len(a & b)]
    return counts


# What conlleval (version 2004-01-26) printed for these tags: phrases in gold, found, right.
CONLLEVAL = [
    ("O B-PER O", "O I-PER O", (1, 1, 1)),  # an I- after O begins an entity
    ("B-PER I-PER", "B-PER I-LOC", (1, 2, 0)),  # and so does one of another type
    ("B-PER B-LOC", "B-PER I-LOC", (2, 2, 2)),
    ("B-PER I-PER", "I-PER I-PER", (1, 1, 1)),
    ("B-PER I-PER", "I-PER B-PER", (1, 2, 0)),
    ("B-PER I-PER O", "B-PER I-PER I-PER", (1, 1, 0)),
    ("B-PER O B-PER", "B-PER I-PER B-PER", (2, 2, 1)),
    ("O O", "O O", (0, 0, 0)),
    ("O O", "B-LOC O", (0, 1, 0)),
    ("B-LOC O", "O O", (1, 0, 0)),
]


@pytest.mark.parametrize("gold, predicted, counts", CONLLEVAL)
def test_entities_count_as_conlleval_counts_them(gold, predicted, counts):
    found, guessed, right = counts
    gold, predicted = [gold.split()], [predicted.split()]
    assert tuple(conlleval_counts(gold, predicted)) == counts
    assert len(formats.entities(predicted[0])) == guessed
    scores = formats.scores(gold, predicted, "entities")
    assert scores["precision"] == (100 * right / guessed if guessed else 0)
    assert scores["recall"] == (100 * right / found if found else 0)
    assert scores["f1"] == pytest.approx(200 * right / max(found + guessed, 1))


def test_scores_of_random_tags():
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 12, 200)
    gold, predicted = ([rng.choice(LABELS, n).tolist() for n in sizes] for _ in "ab")
    scores = formats.scores(gold, predicted, "entities")
    found, guessed, right = conlleval_counts(gold, predicted)
    assert right > 50
    assert scores["precision"] == pytest.approx(100 * right / guessed)
    assert scores["recall"] == pytest.approx(100 * right / found)
    assert scores["f1"] == pytest.approx(200 * right / (found + guessed))
    for name in ("LOC", "PER"):
        one = [
            [[t if t[2:] == name else "O" for t in row] for row in tags]
            for tags in (gold, predicted)
        ]
        # Taking the others out joins nothing: what is left begins as it did.
        a, b = (
            {(i, s) for i, row in enumerate(tags) for s in formats.entities(row)}
            for tags in one
        )
        expected = 200 * len(a & b) / (len(a) + len(b))
        assert scores[f"f1/{name}"] == pytest.approx(expected)


def test_surface_forms_count_once():
    sentences = [["Paris", "saw", "Paris"], ["paris"], ["New", "York"]]
    gold = [["B-LOC", "O", "B-LOC"], ["B-LOC"], ["B-LOC", "I-LOC"]]
    predicted = [["B-LOC", "O", "B-PER"], ["O"], ["B-LOC", "I-LOC"]]
    # Three forms in gold, three predicted, two in both.
    assert formats.surface_f1(sentences, gold, predicted) == pytest.approx(200 / 3)
    assert formats.surface_f1([["a"]], [["O"]], [["O"]]) == 0


def test_word_scores():
    gold, predicted = [list("BEBE"), list("SSBE")], [list("BMME"), list("SSSS")]
    # Right are two one-character words of the five in gold and the five found.
    scores = formats.scores(gold, predicted, "words")
    assert scores == pytest.approx(dict(accuracy=50, f1=40, precision=40, recall=40))
    assert formats.scores(gold, predicted, "tags") == {"accuracy": 50}


def test_spans_and_back():
    rng = np.random.default_rng(0)
    for _ in range(100):
        tags = rng.choice(LABELS, rng.integers(1, 12)).tolist()
        spans = formats.entities(tags)
        well_formed = formats.as_iob2(tags)
        assert formats.entities(well_formed) == spans
        # Only how an entity begins is repaired.
        assert [t[1:] for t in well_formed] == [t[1:] for t in tags]
