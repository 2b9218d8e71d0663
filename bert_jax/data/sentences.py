"""Text to sentences.

The boundaries come from sentencex (Wikimedia; rules and abbreviation lists compiled
into the wheel, nothing is downloaded); docs/data.md has the comparison with others.
Two of its rules are wrong for text with much direct speech, and are corrected here: it
never splits between two quotation marks, and it splits after every "!" and "?", also in
'"Stop!" cried the captain'.
"""

import re

import sentencex

from bert_jax.errors import UserError

# Version of the rules by which text is read and split. Stores record it.
RULES = "rules 2"
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z0-9]+)*")

# Blanked before sentencex sees the text. The apostrophe is among them because many
# books quote with it; "don t" has the same boundaries as "don't".
_QUOTES = "\"'“”„‘’«»"
# sentencex 1.0.32 panics on "word\u00a0." and its like: spaces of more than one byte.
_WIDE_SPACES = "\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_BLANKED = re.compile(f"[{_QUOTES}{_WIDE_SPACES}]")
_TRAILING = frozenset(_QUOTES + " \t\u00a0\u202f\u3000")
_CLOSING = frozenset("\"'”’»)]*")
_DASHES = "—–-… "


def check_language(language: str) -> None:
    """Raises UserError for a text that is not the code of a language."""
    if not _LANGUAGE.fullmatch(language):
        raise UserError(
            f"language {language!r}, expected a code such as en, de or zh-hans; set "
            "--language (data.language in a config)"
        )


def split_sentences(paragraph: str, language: str = "en") -> list[str]:
    """The sentences of one paragraph (no line breaks inside), stripped, none empty.

    language: code of the language whose abbreviations count, such as "de". sentencex uses
    English for a language that it does not know.
    The joined sentences give the paragraph up to white space. A lower-case letter after "!"
    or "?" continues the sentence, as in '"Where?" he asked.'. After a full stop it starts a
    new sentence, so lower-cased text is split.
    """
    parts = _segment(_BLANKED.sub(" ", paragraph), language)
    sentences: list[list[str]] = []  # each of pieces that belong together
    start = end = 0
    for part in parts:
        end += len(part)
        cut = end
        if end < len(paragraph):  # white space and an opening quote belong to the next
            while cut > start and paragraph[cut - 1] in _TRAILING:
                cut -= 1
        while cut < len(paragraph) and paragraph[cut] in _CLOSING:
            cut += 1
        sentence = paragraph[start:cut].strip()
        if not sentence:
            continue
        if sentences and _goes_on(sentences[-1][-1], sentence):
            gap = " " if paragraph[start].isspace() else ""
            sentences[-1].append(gap + sentence)
        else:
            sentences.append([sentence])
        start = cut
    return ["".join(pieces) for pieces in sentences]


# Characters that sentencex gets in one call. For each unpaired bracket or quotation mark it
# searches the rest of the text, which takes hours for a megabyte.
_AT_ONCE = 1 << 13


def _segment(text: str, language: str) -> list[str]:
    """The parts of a text. Long text is passed on in pieces."""
    parts, rest = [], ""
    for start in range(0, len(text), _AT_ONCE):
        piece = rest + text[start : start + _AT_ONCE]
        try:
            *done, rest = sentencex.segment(language, piece)
        except BaseException as error:
            # A panic of its Rust code, which is no Exception, would end a run of hours at
            # the same paragraph each time: that paragraph stays whole.
            if type(error).__name__ != "PanicException":
                raise
            done, rest = [], piece
        parts += done
        if len(rest) >= _AT_ONCE:  # too long for a sentence
            parts.append(rest)
            rest = ""
    return [*parts, rest] if rest else parts


def _goes_on(before: str, sentence: str) -> bool:
    """Whether ``sentence`` is the rest of the one before, or a mark without words."""
    if len(sentence) <= 5 and not any(char.isalnum() for char in sentence):
        return True
    return before[-1] != "." and sentence.lstrip(_DASHES)[:1].islower()
