"""Words of vocabularies that mark spaces, even if a character has several tokens."""

import pytest
from tokenizers import pre_tokenizers

from bert_jax.data.word_marks import _byte_letters, without_mark

SPLIT = pre_tokenizers.ByteLevel(add_prefix_space=False)


def letters(text, start=0, stop=None):
    """The byte-level token of some bytes of a text."""
    (token, _), *_ = SPLIT.pre_tokenize_str(text)
    return token[start:stop]


def test_each_byte_has_the_letter_of_the_library():
    assert sorted(_byte_letters()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    for char in "aZ09~\u00e9\u4e2d\u0e01\U0001f642":
        token = "".join(_byte_letters()[byte] for byte in char.encode())
        assert token == letters(char)


@pytest.mark.parametrize(
    ("token", "starts"),
    [
        ("\u0120the", True),
        ("the", False),
        (letters("\u4e2d\u6587"), True),  # whole characters
        (letters("\u4e2d", 0, 1), True),  # their first byte, first two, and others
        (letters("\u4e2d", 0, 2), True),
        (letters("\u4e2d", 1), False),
        (letters("\u4e2d", 2), False),
        (letters("\u4e2d\u6587", 2), False),  # the end of a character, then another
        (letters("\u3042", 0, 1), True),  # Japanese
        (letters("\u30a2", 0, 2), True),
        (letters("\u0e01", 0, 2), True),  # Thai
        (letters("\u1780", 0, 2), True),  # Khmer
        (letters("\U00020000", 0, 2), True),  # a rare ideograph
        (letters("\u3002", 0, 2), False),  # the full stop of Chinese
        (letters("\uac00", 0, 1), False),  # Korean has spaces
        (letters("\u0915", 0, 2), False),  # and so has Hindi
        (letters("\U0001f642", 0, 2), False),  # emoji
        (letters("\u00e9", 0, 1), False),
        ("", False),
        ("\u4e2d", True),  # an added token, whose name is its text
    ],
)
def test_a_part_of_a_character_starts_the_word_that_it_belongs_to(token, starts):
    assert without_mark(["\u0120a", token]) == [False, not starts]
    # Without marks of spaces each token is a word.
    assert without_mark(["a", token.replace("\u0120", "")]) == [False, False]
