"""Files of tags, schemes, words of a text, spans and scores."""

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.tasks import tagging_formats as formats

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
LABELS = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")


def read(tmp_path, text, column=-1):
    """Places, words, tags and documents."""
    path = tmp_path / "train.txt"
    path.write_bytes(text.encode())
    rows = [*formats.read_columns(path, column)]
    places = [where.removeprefix(str(path)) for where, _ in rows]
    names = ("words", "tags", "document")
    return [places, *([row[name] for _, row in rows] for name in names)]


def test_conll_2003_is_read(tmp_path):
    places, words, tags, documents = read(tmp_path, CONLL)
    assert words == [
        ["EU", "rejects", "German"],
        ["Peter", "Blackburn"],
        ["Arafat", "Netanyahu"],
    ]
    assert tags == [["I-ORG", "O", "I-MISC"], ["I-PER", "I-PER"], ["I-PER", "B-PER"]]
    assert documents == [1, 1, 2]
    assert places == [":3", ":7", ":12"]
    assert formats.recognise({tag for row in tags for tag in row}) == "iob2"
    assert [formats.spelled(row, "iob1", "iob2") for row in tags] == [
        ["B-ORG", "O", "B-MISC"],
        ["B-PER", "I-PER"],
        ["B-PER", "B-PER"],
    ]
    assert read(tmp_path, CONLL, 1)[2][2] == ["NNP", "NNP"]


CONLL_U = """# sent_id = 1
# text = Vámonos al mar # a
# O
1-2	Vámonos	_	_	_	_	_	_	_	_
1	Vamos	ir	VERB	_	_	0	root	_	_
2	nos	nosotros	PRON	_	_	1	obj	_	_
2.1	x	x	X	_	_	_	_	_	_

# newpar
1	#	#	SYM	_	_	0	root	_	_

"""


def test_conll_u_is_read(tmp_path):
    words = [["Vamos", "nos"], ["#"]]
    for name, word_column in (("a.conllu", -1), ("a.txt", 1)):
        path = tmp_path / name
        path.write_text(CONLL_U)
        rows = [row for _, row in formats.read_columns(path, 3, word_column)]
        assert [row["words"] for row in rows] == words
        assert [row["tags"] for row in rows] == [["VERB", "PRON"], ["SYM"]]
    rows = [row for _, row in formats.read_columns(path, 7, 2)]
    assert rows[0]["words"] == ["ir", "nosotros"]
    with pytest.raises(
        UserError, match=r"a\.txt:5: the words in column 0 are numbers, 1"
    ):
        formats.read_columns(path, 3)


def test_germeval_is_read(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text(
        "#\thttp://a.b [2009]\n1\tAnna\tB-PER\tO\n2\tgeht\tO\tO\n\n"
        "#\thttp://c.d [2010]\n1\t#\tO\tO\n"
    )
    rows = [row for _, row in formats.read_columns(path, 2, 1)]
    assert [row["words"] for row in rows] == [["Anna", "geht"], ["#"]]
    assert [row["tags"] for row in rows] == [["B-PER", "O"], ["O"]]
    with pytest.raises(
        UserError, match=r"a\.tsv:2: the words .*; set data\.word_column"
    ):
        formats.read_columns(path, 2)


def test_comments_are_no_words(tmp_path):
    """A line before a sentence that starts with "# " may be a word with a known tag."""
    text = "# id 5e7c domain=en\nanna _ _ B-PER\n# _ _ O\nwalks _ _ O\n\n"
    text += "# _ _ O\n#paris _ _ B-PER\n\n# id\n"
    _, words, tags, _ = read(tmp_path, text)
    assert words == [["anna", "#", "walks"], ["#", "#paris"]]
    assert tags == [["B-PER", "O", "O"], ["O", "B-PER"]]
    # Numbers may be words of some sentences.
    _, words, _, _ = read(tmp_path, "1 a O\n2 b O\n\n2 c O\n")
    assert words == [["1", "2"], ["2"]]
    for empty in ("", "# a b\n", "\n\n-DOCSTART- O\n"):
        with pytest.raises(
            UserError, match=r"train\.txt has no sentences; expected a w"
        ):
            read(tmp_path, empty)


def test_unusual_blanks_line_ends_and_a_byte_order_mark_are_read(tmp_path):
    # WNUT's separator lines contain tabs. A word may contain a no-break space.
    text = "@paul\tO\nNew\xa0York \tB-location\n\u2028\tO\n\t\nbye\tO\n \t \r\n\n"
    _, words, _, documents = read(tmp_path, text)
    assert words == [["@paul", "New\xa0York", "\u2028"], ["bye"]]
    assert len({*documents}) == 1
    _, words, tags, _ = read(tmp_path, "\ufeffa  X\r\nb\tY \r\n\r\nc Z")
    assert (words, tags) == ([["a", "b"], ["c"]], [["X", "Y"], ["Z"]])


@pytest.mark.parametrize(
    "text, column, message",
    [
        ("a X O\nb O\n", -1, "train.txt:2 has 2 columns; expected 3 separated by bla"),
        ("a\tO\n\tO\n", -1, "train.txt:2 has 1 column; expected 2"),
        ("a\tO\nb c\n", -1, "train.txt:2 has 1 column; expected 2 separated by tabs"),
        ("a\nb\n", -1, "train.txt:1 has 1 column; expected 2"),
        ("a X\n", 2, "train.txt:1 has 2 columns; .* with the tag in column 2"),
        ("a X\n", 0, "the tag in column 0"),
        (
            "a X\n",
            -2,
            r"the tag in column -2 \(data\.column\) and the word in column 0",
        ),
        ("a\tO\rb\tO\r", -1, "train.txt: lines end in CR, as on old Macs"),
    ],
)
def test_wrong_columns_are_refused(tmp_path, text, column, message):
    with pytest.raises(UserError, match=message):
        read(tmp_path, text, column)


@pytest.mark.parametrize(
    "scheme, tags",
    [
        ("iob2", "O B-PER I-PER B-LOC B-creative-work"),
        ("iob2", "O"),
        ("iobes", "S-PER O B-LOC E-LOC I-A"),
        ("bilou", "U-PER O B-PER L-PER I-PER"),
        ("bmeso", "B-PER M-PER E-PER O S-LOC"),
        ("bmes", "B M E S"),
        ("bmes", "S"),
        ("plain", "DT NN VBZ ."),
        ("plain", "NOUN X PUNCT INTJ"),
        # One wrong tag among tags of entities, or a tag without a type, is an error.
        ("iob2", "B-PER I-PER X-PER O"),
        ("iob2", "B I O"),
    ],
)
def test_schemes_are_recognised(scheme, tags):
    assert formats.recognise(tags.split()) == scheme


def test_segmented_text_is_read(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("中国  人民\n我 爱北京城\n\n\n他\n", "utf-8")
    places, rows = zip(*formats.read_segmented(path), strict=True)
    assert ["".join(row["words"]) for row in rows] == ["中国人民", "我爱北京城", "他"]
    assert ["".join(row["tags"]) for row in rows] == ["BEBE", "SBMME", "S"]
    assert places[2] == f"{path}:5"


def segments(tags):
    """The (start, end) of the words of bmes tags."""
    return [span[1:] for span in formats.entities(tags, "bmes")]


def test_segments_cover_all_characters():
    rng = np.random.default_rng(0)
    for _ in range(100):
        sizes = rng.integers(1, 6, rng.integers(1, 7)).tolist()
        tags = [*"".join(formats.shape(size, "bmes") for size in sizes)]
        assert [stop - start for start, stop in segments(tags)] == sizes
        # Any tags give words that cover all characters.
        tags = rng.choice(list("BMES"), rng.integers(1, 9)).tolist()
        edges = [edge for span in segments(tags) for edge in span]
        assert edges[0] == 0 and edges[-1] == len(tags)
        assert edges[1:-1:2] == edges[2::2]
    assert segments(list("MEMBB")) == [(0, 2), (2, 3), (3, 4), (4, 5)]
    assert segments(list("BSE")) == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize(
    "text, words",
    [
        ("Ann saw Rome.", "Ann saw Rome ."),
        ("(Rome, 'the city')...", "( Rome , ' the city ' ) ..."),
        ("Italy's U.S. envoy can't go.", "Italy 's U.S. envoy ca n't go ."),
        ("J. Smith left", "J. Smith left"),
        ("@ann #rome $5 http://a.b/c?", "@ann #rome $ 5 http://a.b/c?"),
        ("state-of-the-art, 3.14% 1,000", "state-of-the-art , 3.14 % 1,000"),
        ("«Où?» O'Brien don’t", "« Où ? » O'Brien do n’t"),
        ("हिन्दी में, e\u0301te\u0301!", "हिन्दी में , e\u0301te\u0301 !"),
        # Comma, colon and full stop join only digits.
        ("Paris,France 1,000 a:b 10:30 2.5", "Paris , France 1,000 a : b 10:30 2.5"),
        ("end.Then 5.Then Paris,2024 v1.2", "end . Then 5 . Then Paris , 2024 v1.2"),
        ("a.b@c.org, www.x.com/a.b.", "a.b@c.org , www.x.com/a.b ."),
        # Abbreviations keep their full stop.
        ("Dr. Ann of Apple Inc. left.", "Dr. Ann of Apple Inc. left ."),
        ("St. Ann, No. 5 etc. He said no.", "St. Ann , No. 5 etc. He said no ."),
        # A mark without a letter before it belongs to the word before.
        ("I ❤\ufe0f Paris", "I ❤\ufe0f Paris"),
        ("(👩\u200d👩\u200d👧 👍🏽)!", "( 👩\u200d👩\u200d👧 👍🏽 ) !"),
        ("1\ufe0f\u20e3 🇫🇷🇩🇪", "1\ufe0f\u20e3 🇫🇷 🇩🇪"),
        ("a\u200b \u200bb (\u200e", "a\u200b \u200bb (\u200e"),
        ("  \n", ""),
    ],
)
def test_a_text_is_split_into_words(text, words):
    def words_of(text, how):
        return [text[a:b] for a, b in formats.find_words(text, how)]

    assert words_of(text, "treebank") == words.split()
    # Split words are not split again.
    assert words_of(" ".join(words.split()), "treebank") == words.split()
    assert words_of(text, "blanks") == text.split()
    assert words_of(text, "characters") == [c for c in text if not c.isspace()]


def test_marks_alone_are_no_words():
    """A sentence has no word that is only a joiner or a selector of an emoji."""
    rng = np.random.default_rng(0)
    marks = "\ufe0f\u200d\u0301\u20e3\u200b\U0001f3fd"
    letters = np.array([*marks, *"aB1 .,(❤👩中_-'"])
    for _ in range(300):
        text = "".join(rng.choice(letters, 12))
        words = [text[a:b] for a, b in formats.find_words(text, "treebank")]
        assert all(word.strip(marks) for word in words), text
        # All other characters are in the words, in order.
        kept = [x for x in "".join(words) if x not in marks]
        assert kept == [x for x in text if x not in marks + " "], text
    assert formats.find_words("\ufe0f \u200b", "treebank") == ()


def conlleval_spans(tags):
    """The (type, start, end) of entities, by an independent implementation."""
    spans, before = [], "O"
    for i, tag in enumerate(tags):
        if tag[0] == "B" or (tag[0] == "I" and before[1:] != tag[1:]):
            spans.append((tag[2:], i, i + 1))
        elif tag[0] == "I":
            spans[-1] = (*spans[-1][:2], i + 1)
        before = tag
    return spans


def f1_of(gold, predicted):
    """(precision, recall, F1) in percent."""
    pairs = [
        [{*map(tuple, conlleval_spans(tags))} for tags in pair]
        for pair in zip(gold, predicted, strict=True)
    ]
    right = sum(len(a & b) for a, b in pairs)
    expected, guessed = (sum(len(pair[i]) for pair in pairs) for i in (0, 1))
    shares = right / max(guessed, 1), right / max(expected, 1)
    return [100 * x for x in (*shares, 2 * right / max(expected + guessed, 1))]


# conlleval (version 2004-01-26) printed these counts: gold, found and right phrases.
CONLLEVAL = [
    ("O B-PER O", "O I-PER O", (1, 1, 1)),  # an I- after O starts an entity
    ("B-PER I-PER", "B-PER I-LOC", (1, 2, 0)),  # and so does an I- of another type
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
def test_entities_are_counted_like_conlleval(gold, predicted, counts):
    found, guessed, right = counts
    gold, predicted = [gold.split()], [predicted.split()]
    assert len(formats.entities(predicted[0], "iob2")) == guessed
    scores = formats.scores(gold, predicted, "iob2")
    expected = [100 * right / max(guessed, 1), 100 * right / max(found, 1)]
    expected.append(200 * right / max(found + guessed, 1))
    assert f1_of(gold, predicted) == pytest.approx(expected)
    assert [scores[x] for x in ("precision", "recall", "f1")] == pytest.approx(expected)


def test_spans_and_scores_of_random_tags_equal_conlleval():
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 12, 200)
    gold, predicted = ([rng.choice(LABELS, n).tolist() for n in sizes] for _ in "ab")
    scores = formats.scores(gold, predicted, "iob2")
    expected = f1_of(gold, predicted)
    assert [scores[x] for x in ("precision", "recall", "f1")] == pytest.approx(expected)
    for name in ("LOC", "PER"):
        # Removing the other type does not change the entities of this type.
        of_type = (
            [[t if t[2:] == name else "O" for t in row] for row in tags]
            for tags in (gold, predicted)
        )
        assert scores[f"f1/{name}"] == pytest.approx(f1_of(*of_type)[2])
        assert scores[f"f1/{name}"] > 10
    for tags in gold:
        spans = conlleval_spans(tags)
        assert formats.entities(tags, "iob1") == spans
        for scheme in ("iob2", "iobes", "bilou", "bmeso"):
            well_formed = formats.spelled(tags, "iob2", scheme)
            assert formats.entities(well_formed, scheme) == spans
            assert formats.spelled(well_formed, scheme, scheme) == well_formed
            # Only the letters of tags are repaired.
            assert [t[1:] for t in well_formed] == [t[1:] for t in tags]


@pytest.mark.parametrize("separator", [" ", "\t"])
def test_the_word_of_a_hash_is_read(separator, tmp_path):
    path = tmp_path / "a.txt"
    text = "# #\n5 CD\nbillion CD\n\nthe DT\n# #\n3 CD\n"
    path.write_text(text.replace(" ", separator))
    sentences = [x["words"] for _, x in formats.read_columns(path, -1)]
    assert sentences == [["#", "5", "billion"], ["the", "#", "3"]]


def test_a_line_in_a_sentence_that_may_be_a_comment_is_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("John NNP\n# text\nlives VBZ\n")
    with pytest.raises(UserError, match=r"a\.txt:2: '# text' is a comment in a sent"):
        formats.read_columns(path, -1)
    path.write_text("John\tNNP\n#\tSYM\nlives\tVBZ\n\n#\tSYM\n5\tCD\n")
    sentences = [x["words"] for _, x in formats.read_columns(path, -1)]
    assert sentences == [["John", "#", "lives"], ["#", "5"]]
