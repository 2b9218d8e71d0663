import random
import re
from pathlib import Path

import pytest

from bert_jax.data.sentences import check_language, split_sentences
from bert_jax.errors import UserError

GOLDEN = Path(__file__).parents[1] / "golden" / "pretraining_data"

# Checked by hand: each list is a paragraph, split into its sentences.
HARD = [
    ["Dr. Smith arrived at 3 p.m. on Monday.", "He left at once."],
    ["Mr. and Mrs. Dursley lived at No. 4 Privet Drive.", "They were proud of it."],
    ["J. R. R. Tolkien wrote it.", "C. S. Lewis did not."],
    ["The U.S. Senate met on Jan. 5, 1999.", "It passed the bill."],
    ["Pi is about 3.14159.", "It is irrational."],
    ["Visit https://www.example.com/a.html?b=1 for more.", "It is free."],
    ['"Where are you going?" he asked.', '"Home!" she said.'],
    ['"I am tired.', 'So are you."', '"Am I?"'],
    ["“Stop!” cried the captain.", "The ship did not stop."],
    ["'What's that?' said he.", "'Don't you know?'", "Nobody did."],
    ["He paused... and then went on.", "Nobody spoke."],
    ["The company (Apple Inc.) was founded in 1976.", "It is large."],
    ["Is it true?", "Yes!", "No one knew."],
    ["St. Paul's Cathedral is in London.", "Gen. Grant visited it in 1877."],
    ["Columbus, e.g., sailed west, i.e. toward Asia.", "He found land."],
    ["Smith et al. reported a rise of 2.5%.", "Others disagreed."],
    ["John F. Kennedy was born in 1917.", "He died in 1963."],
    ["What?!", "You can't be serious."],
    ["The file is named setup.py.", "Run it with Python 3.11."],
    ["Lt. Col. James Smith commanded.", "Maj. Brown followed."],
    ["His lance! aye, the keenest of all.", "He took it."],
    ["the cat sat down.", "the dog ran away."],
    ["He stopped. ...", "Then he went on."],
    ["我爱北京。", "你呢？"],
]


@pytest.mark.parametrize("sentences", HARD, ids=lambda s: s[0][:30])
def test_hard_cases_are_split_correctly(sentences):
    space = "" if sentences[0].endswith("。") else " "
    assert split_sentences(space.join(sentences)) == sentences


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("de", ["Prof. Dr. Müller kam bzw. ging.", "Am 3. Oktober war er weg."]),
        ("de", ["Vgl. Abs. 3 Nr. 2 der Satzung.", "Das gilt auch hier."]),
        ("es", ["El Sr. Pérez vive en la Av. Central.", "Es médico."]),
    ],
)
def test_abbreviations_of_a_language_end_no_sentence(language, sentences):
    text = " ".join(sentences)
    assert split_sentences(text, language) == sentences
    assert len(split_sentences(text)) > len(sentences)


@pytest.mark.parametrize("language", ["", "German", "DE", "e", "de_AT", "de "])
def test_a_wrong_language_code_is_refused(language):
    with pytest.raises(UserError, match="expected a code such as en or de"):
        check_language(language)


def test_an_unknown_language_is_logged(caplog):
    for language in ("en", "de", "zh-hans", "sw"):
        check_language(language)
    assert not caplog.messages
    check_language("xx")
    (line,) = caplog.messages
    assert "may have no rules for language='xx'" in line


def test_no_character_is_lost():
    rng = random.Random(0)
    marks = "aB.!?\"'“”’«»()[]*—… \u00a0\u3000。é1"
    parts = [*marks, "Mr.", "e.g.", "No.", ". ", '." "']
    for _ in range(2000):
        text = "".join(rng.choices(parts, k=rng.randrange(30)))
        sentences = split_sentences(text)
        assert re.sub(r"\s", "", "".join(sentences)) == re.sub(r"\s", "", text)
        assert all(s and s == s.strip() for s in sentences), text


def test_a_multibyte_space_before_a_mark_is_kept():
    # sentencex 1.0.32 panics on a multibyte space, as French puts before "!" and "?".
    assert split_sentences("Vraiment\u202f? Oui\u00a0! Bien.") == [
        "Vraiment\u202f?",
        "Oui\u00a0!",
        "Bien.",
    ]


def test_a_long_text_is_split_like_its_parts():
    sentences = [f"The ship with number {i} is at sea." for i in range(1000)]
    assert split_sentences(" ".join(sentences)) == sentences


def test_a_paragraph_is_not_split_if_the_library_panics(monkeypatch):
    class PanicException(BaseException):
        pass

    def panic(language, text):
        raise PanicException("byte index 2 is not a char boundary")

    monkeypatch.setattr("sentencex.segment", panic)
    assert split_sentences(" One. Two. ") == ["One. Two."]


def _ends(sentences):
    """The ends of sentences, counted in characters without white space."""
    end, ends = 0, set()
    for sentence in sentences[:-1]:
        end += len(re.sub(r"\s", "", sentence))
        ends.add(end)
    return ends


def test_boundaries_of_a_novel_agree_with_the_golden_segmentation():
    # The golden text contains its segmenter's errors ("Mr." ends a sentence).
    text = (GOLDEN / "moby_dick_sentences.txt").read_text()
    documents = [document.split("\n") for document in text.strip().split("\n\n")]
    both = ours_only = theirs_only = 0
    for document in documents:
        for start in range(0, len(document), 8):
            golden = document[start : start + 8]
            paragraph = " ".join(golden)
            ours = split_sentences(paragraph)
            assert re.sub(r"\s", "", "".join(ours)) == re.sub(r"\s", "", paragraph)
            theirs, our_ends = _ends(golden), _ends(ours)
            both += len(theirs & our_ends)
            ours_only += len(our_ends - theirs)
            theirs_only += len(theirs - our_ends)
    f1 = 2 * both / (2 * both + ours_only + theirs_only)
    assert both > 7000
    assert f1 > 0.96
