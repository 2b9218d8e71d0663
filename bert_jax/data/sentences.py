"""Text to sentences.

sentencex (Wikimedia) finds the boundaries. Its wheel contains its rules and lists of
abbreviations. Two of its rules are wrong for text with much direct speech and are corrected
here: it never splits between two quotation marks, and it splits after every "!" and "?",
even in '"Stop!" cried the captain'.
"""

import locale
import logging
import re

import sentencex

from bert_jax.errors import UserError

# Version of the rules by which text is read and split. Stores record it.
RULES = "rules 2"
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z0-9]+)*")
# Languages that have a locale, because sentencex does not list its languages.
_LANGUAGES = {re.split("[_.@]", name)[0] for name in locale.locale_alias}

# Replaced by spaces before sentencex reads the text. Many books quote with apostrophes, and
# "don t" has the same sentence boundaries as "don't".
_QUOTES = "\"'“”„‘’«»"
# sentencex 1.0.32 panics on spaces of more than one byte, such as in "word\u00a0.".
_WIDE_SPACES = "\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_BLANKED = re.compile(f"[{_QUOTES}{_WIDE_SPACES}]")
_TRAILING = frozenset(_QUOTES + " \t\u00a0\u202f\u3000")
_CLOSING = frozenset("\"'”’»)]*")
_DASHES = "—–-… "


def check_language(language: str) -> None:
    """Raises UserError for text that is not a language code. Warns of an unknown code."""
    if not _LANGUAGE.fullmatch(language):
        raise UserError(f"language={language!r}, expected a code such as en or de")
    if language.partition("-")[0] not in _LANGUAGES:
        warn = logging.getLogger(__name__).warning
        warn(
            f"sentencex may have no rules for language={language!r}; it then uses English"
        )


def split_sentences(paragraph: str, language: str = "en") -> list[str]:
    """The sentences of one paragraph without line breaks, stripped, none empty.

    language: code of the language, such as "de", whose abbreviations do not end a sentence.
    sentencex uses English for an unknown language.
    The joined sentences equal the paragraph up to white space. A lower-case letter after
    "!" or "?" continues the sentence, as in '"Where?" he asked.'. After a full stop it
    starts a new sentence, so that lower-cased text is split.
    """
    parts = _segment(_BLANKED.sub(" ", paragraph), language)
    sentences: list[list[str]] = []  # the pieces of each sentence
    start = end = 0
    for part in parts:
        end += len(part)
        cut = end
        if end < len(paragraph):  # the next sentence gets spaces and an opening quote
            while cut > start and paragraph[cut - 1] in _TRAILING:
                cut -= 1
        while cut < len(paragraph) and paragraph[cut] in _CLOSING:
            cut += 1
        sentence = paragraph[start:cut].strip()
        if not sentence:
            continue
        if sentences and _continues(sentences[-1][-1], sentence):
            if paragraph[start].isspace():
                sentence = f" {sentence}"
            sentences[-1].append(sentence)
        else:
            sentences.append([sentence])
        start = cut
    return list(map("".join, sentences))


# Maximum number of characters in one call of sentencex. For each unpaired bracket or
# quotation mark it searches the rest of the text, which takes hours for a megabyte.
_AT_ONCE = 1 << 13


def _segment(text: str, language: str) -> list[str]:
    """The sentences that sentencex finds. Long text is segmented in pieces."""
    parts, rest = [], ""
    for start in range(0, len(text), _AT_ONCE):
        piece = rest + text[start : start + _AT_ONCE]
        try:
            *done, rest = sentencex.segment(language, piece)
        except BaseException as error:
            # A panic of its Rust code is not an Exception. It would end a run of hours at
            # the same paragraph each time, so this paragraph is not split.
            if type(error).__name__ != "PanicException":
                raise
            done, rest = [], piece
        parts += done
        if len(rest) >= _AT_ONCE:  # too long for a sentence
            parts.append(rest)
            rest = ""
    if rest:
        parts.append(rest)
    return parts


def _continues(before: str, sentence: str) -> bool:
    """Whether ``sentence`` continues the sentence before, or is a mark without words."""
    if len(sentence) <= 5 and not any(char.isalnum() for char in sentence):
        return True
    return before[-1] != "." and sentence.lstrip(_DASHES)[:1].islower()
