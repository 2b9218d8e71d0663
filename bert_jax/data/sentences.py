"""Text to sentences.

The boundaries come from sentencex (Wikimedia; rules and abbreviation lists compiled
into the wheel, nothing is downloaded); docs/data.md has the comparison with others.
Two of its habits are wrong for prose with much direct speech, so they are put right
here: it never splits between two quotation marks, and it splits after every "!" and
"?", also in '"Stop!" cried the captain'.
"""

import sentencex

RULES = "rules 1"  # of this file; stores record it beside sentencex's version

# Blanked before sentencex sees the text. The apostrophe is among them because many
# books quote with it; "don t" has the same boundaries as "don't".
_QUOTES = "\"'“”„‘’«»"
_TRAILING = frozenset(_QUOTES + " \t\u00a0")
_CLOSING = frozenset("\"'”’»)]*")
_DASHES = "—–-… "


def split_sentences(paragraph: str) -> list[str]:
    """The sentences of one paragraph (no line breaks inside), stripped, none empty.

    Joining them again gives the paragraph up to white space. A small letter after "!"
    or "?" means that the sentence goes on, as in '"Where?" he asked.'; after a full stop
    it does not, so that lower-cased text is split too.
    """
    blanked = paragraph
    for quote in _QUOTES:
        if quote in blanked:
            blanked = blanked.replace(quote, " ")
    pieces = sentencex.segment("en", blanked)
    if len(pieces) <= 1:
        sentence = paragraph.strip()
        return [sentence] if sentence else []

    sentences: list[str] = []
    start = end = 0
    for piece in pieces:
        end += len(piece)
        cut = end
        while cut > start and paragraph[cut - 1] in _TRAILING:
            cut -= 1
        while cut < len(paragraph) and paragraph[cut] in _CLOSING:
            cut += 1
        sentence = paragraph[start:cut].strip()
        if not sentence:
            continue
        goes_on = sentence.lstrip(_DASHES)[:1].islower()
        if goes_on and sentences and sentences[-1][-1] != ".":
            gap = " " if paragraph[start].isspace() else ""
            sentences[-1] += gap + sentence
        else:
            sentences.append(sentence)
        start = cut
    return sentences
