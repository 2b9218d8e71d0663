"""Making a vocabulary: WordPiece in Google's layout, or SentencePiece."""

import collections
import io
import itertools
import logging
import random
import sys
from collections.abc import Iterable, Iterator, Sequence

import sentencepiece
import tokenizers

from bert_jax.data.tokenizer import (
    CLS,
    MASK,
    PAD,
    SEP,
    SPECIAL_TOKENS,
    UNK,
    SentencePieceTokenizer,
    Tokenizer,
    WordPieceTokenizer,
)
from bert_jax.data.wordpiece import LONGEST_WORD, PREFIX, Splitter
from bert_jax.errors import UserError

KINDS = ("wordpiece", "sentencepiece")
# Google's vocabularies keep 994 slots for tokens of one's own: 99 after [PAD], the rest
# after [MASK] (uncased_L-12_H-768_A-12/vocab.txt). A small vocabulary has none.
UNUSED = 994
_UNUSED_FIRST = 99
_SMALLEST_WITH_UNUSED = 8000
# Different words counted at a time, about 400 MB; beyond it the rarest are forgotten.
_COUNTED_WORDS = 3_000_000
# The trainer reads the words of a corpus of this many words; a larger one is scaled down.
_TRAINED_WORDS = 20_000_000
# SentencePiece learns from at most this many sentences, since its memory grows with them,
# and so does a vocabulary of several languages.
_SAMPLED = 200_000
# The alphabet covers this share of the characters; a word with a rarer one is [UNK].
_ALPHABET_COVERAGE = 0.99999
_NO_WORDS = "the input holds no words; expected text to make tokens of"

logger = logging.getLogger(__name__)


def train_vocabulary(
    sentences: Iterable[str],
    size: int,
    *,
    kind: str = "wordpiece",
    lower_case: bool = True,
    keep_accents: bool = False,
    min_frequency: int = 2,
) -> Tokenizer:
    """Trains a tokenizer of ``size`` tokens, special and unused ones counted.

    keep_accents: whether lower-cased text keeps its accents, and scripts such as
    Devanagari their vowel signs. Google's tokenizer removes both. Cased text and
    SentencePiece always keep them.
    The different words are in memory, or for SentencePiece a sample of the sentences. The
    same sentences give the same vocabulary. A small text gives fewer tokens: WordPiece
    joins only tokens that are neighbours at least ``min_frequency`` times.
    """
    if kind not in KINDS:
        raise UserError(f"kind {kind!r}, expected one of {', '.join(KINDS)}")
    if min_frequency < 0:
        raise UserError(f"min_frequency={min_frequency}, expected 0 or more")
    if size <= len(SPECIAL_TOKENS):
        raise UserError(
            f"size {size}, expected more than the {len(SPECIAL_TOKENS)} special tokens; "
            "30522 is Google's"
        )
    if kind == "sentencepiece":
        return _train_sentencepiece(sentences, size, lower_case)
    splitter = Splitter(lower_case, lower_case and not keep_accents)
    return _train_wordpiece(sentences, size, splitter, min_frequency)


def balanced(
    languages: Sequence[Iterable[str]], smoothing: float, limit: int = _SAMPLED
) -> list[str]:
    """A sample of sentences in which small languages have more than their share.

    A language with n sentences gets a share of n ** ``smoothing``: 1 keeps the shares, 0
    makes them equal, and multilingual BERT has 0.7 (multilingual.md of the original). If a
    language has fewer sentences than its share, they are repeated.
    """
    if not 0 <= smoothing <= 1:
        raise UserError(f"--smoothing={smoothing}, expected 0 to 1; 0.7 is Google's")
    samples = [_sample(own, limit) for own in languages]
    total = sum(count for count, _ in samples)
    size = min(limit, total)
    weights = [count**smoothing if count else 0.0 for count, _ in samples]
    chosen: list[str] = []
    for (count, sample), weight in zip(samples, weights, strict=True):
        wanted = round(size * weight / max(sum(weights), 1))
        random.Random(0).shuffle(sample)
        chosen += itertools.islice(itertools.cycle(sample), wanted)
        shares = f"{count / max(total, 1):.1%} to {wanted / max(size, 1):.1%}"
        logger.info(f"{count:,} sentences: from {shares} of all")
    return chosen


def extend_vocabulary(
    tokenizer: Tokenizer,
    sentences: Iterable[str],
    count: int,
    *,
    min_frequency: int = 2,
) -> Tokenizer:
    """A WordPiece vocabulary with up to ``count`` words of a text after its own tokens.

    The added words are those that save most tokens of the text. The old tokens keep their
    ids, so a checkpoint can use the new vocabulary.
    """
    if not isinstance(tokenizer, WordPieceTokenizer):
        raise UserError(
            f"a vocabulary of kind {tokenizer.kind} cannot be extended; expected wordpiece"
        )
    if count < 1:
        raise UserError(f"{count} new words, expected 1 or more")
    splitter = Splitter(tokenizer.lower_case, tokenizer.strip_accents)
    words = count_words(sentences, splitter)
    saved = {
        word: number * (len(tokenizer.encode(word)) - 1)
        for word, number in words.items()
        if number >= min_frequency and any(map(str.isalpha, word))
    }
    gaining = [word for word in saved if saved[word] and word not in tokenizer.ids]
    if not gaining:
        raise UserError(
            "the text has no words of several tokens that occur often enough; expected "
            "text of another kind, or a smaller --min_frequency"
        )
    new = sorted(gaining, key=lambda word: (-saved[word], word))[:count]
    share = sum(saved[word] for word in new) / sum(saved.values())
    logger.info(
        f"{len(new):,} new words; words of several tokens need {share:.1%} fewer tokens "
        "beyond their first"
    )
    return tokenizer.with_tokens([*tokenizer.tokens, *new])


def _train_wordpiece(
    sentences: Iterable[str], size: int, splitter: Splitter, min_frequency: int
) -> Tokenizer:
    words = count_words(sentences, splitter)
    if not words:
        raise UserError(_NO_WORDS)
    first = list(SPECIAL_TOKENS)
    if size >= _SMALLEST_WITH_UNUSED:  # Google's layout: [MASK] is number 103
        unused = [f"[unused{i}]" for i in range(UNUSED)]
        first = [PAD, *unused[:_UNUSED_FIRST], *first[1:], *unused[_UNUSED_FIRST:]]
    alphabet = _alphabet(words, limit=max(size // 3, 100))
    if len(first) + len(alphabet) > size:
        raise UserError(
            f"a vocabulary of {size} tokens has no room for {len(first)} special tokens "
            f"and the {len(alphabet)} characters of the text; set a larger --size"
        )
    logger.info(f"training on {len(words):,} different words")
    known = {token.removeprefix(PREFIX) for token in alphabet}
    words = {word: n for word, n in words.items() if known.issuperset(word)}
    model = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token=UNK))
    model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    # The trainer numbers single characters in the order of a hash table and breaks ties
    # between pairs by these numbers. Given as special they have numbers of their own, and
    # the same text gives the same vocabulary.
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=min_frequency,
        special_tokens=first + alphabet,
        show_progress=sys.stderr.isatty(),
    )
    model.train_from_iterator(_repeat(words), trainer)
    ids = model.get_vocab()
    tokens = sorted(ids, key=ids.__getitem__)
    return WordPieceTokenizer(tokens, splitter.lower_case, splitter.strip_accents)


def count_words(sentences: Iterable[str], splitter: Splitter) -> dict[str, int]:
    """Number of occurrences of each word, as the tokenizer splits text.

    Rough words are counted first, because most words of a text repeat.
    """
    rough: collections.Counter[str] = collections.Counter()
    rarest = 1
    for sentence in sentences:
        rough.update(splitter.rough_words(sentence))
        while len(rough) > _COUNTED_WORDS:
            rough = collections.Counter({w: n for w, n in rough.items() if n > rarest})
            # The counter must shrink well below the limit, or every word would prune it.
            rarest += len(rough) > _COUNTED_WORDS // 2
    words: collections.Counter[str] = collections.Counter()
    for rough_word, count in rough.items():
        for word in splitter.words(rough_word):
            if len(word) <= LONGEST_WORD:
                words[word] += count
    return words


def _alphabet(words: dict[str, int], limit: int) -> list[str]:
    """The single-character tokens, first and continuing, of the commonest characters.

    A third of the vocabulary at most: Chinese needs thousands, English some hundreds.
    """
    counts: collections.Counter[str] = collections.Counter()
    tokens = set()
    for word, count in words.items():
        tokens.update(word[0], (f"{PREFIX}{char}" for char in word[1:]))
        for char in word:
            counts[char] += count
    missing = (1 - _ALPHABET_COVERAGE) * counts.total()
    common = sorted(counts, key=lambda char: (-counts[char], char))
    while len(common) > limit or (common and counts[common[-1]] <= missing):
        missing -= counts[common.pop()]
    kept = set(common)
    return sorted(p for p in tokens if p.removeprefix(PREFIX) in kept)


def _repeat(words: dict[str, int]) -> Iterator[str]:
    """Each word as often as it occurs, many to a line, in sorted order."""
    scale = max(1.0, sum(words.values()) / _TRAINED_WORDS)
    for word in sorted(words):
        count = round(words[word] / scale)
        while count > 0:
            yield " ".join([word] * min(count, 1000))
            count -= 1000


def _train_sentencepiece(
    sentences: Iterable[str], size: int, lower_case: bool
) -> Tokenizer:
    _, sample = _sample(sentences, _SAMPLED)
    if not sample:
        raise UserError(_NO_WORDS)
    logger.info(f"training on {len(sample):,} sentences")
    if lower_case:
        sample = [sentence.lower() for sentence in sample]
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sample),
            model_writer=model,
            vocab_size=size,
            hard_vocab_limit=False,  # a small text gives fewer tokens
            model_type="unigram",
            # Nearly all characters of Chinese or Japanese, all of the others.
            character_coverage=0.9995,
            max_sentence_length=1 << 16,  # bytes; a longer one is left out
            pad_id=0,
            pad_piece=PAD,
            unk_id=1,
            unk_piece=UNK,
            bos_id=-1,
            eos_id=-1,
            control_symbols=[CLS, SEP, MASK],
            num_threads=1,  # several threads add numbers in another order
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise UserError(
            f"SentencePiece cannot make {size} tokens of this text ({reason}); set another "
            "--size"
        ) from error
    return SentencePieceTokenizer(model.getvalue(), lower_case)


def _sample(sentences: Iterable[str], limit: int) -> tuple[int, list[str]]:
    """The number of sentences, and a uniform sample of at most ``limit`` sentences.

    SentencePiece's own sampling differs from run to run.
    """
    rng = random.Random(0)
    sample: list[str] = []
    count = 0
    for sentence in filter(str.strip, sentences):
        if count < limit:
            sample.append(sentence)
        elif (place := rng.randrange(count + 1)) < limit:
            sample[place] = sentence
        count += 1
    return count, sample
