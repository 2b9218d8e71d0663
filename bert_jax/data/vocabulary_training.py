"""Training of vocabularies: WordPiece in Google's layout, SentencePiece, byte-level BPE."""

import io
import itertools
import json
import logging
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator

import sentencepiece
import tokenizers

from bert_jax.data.library import LibraryTokenizer
from bert_jax.data.spiece import SentencePieceTokenizer
from bert_jax.data.tokenizer import BERT_TOKENS, FAIRSEQ_TOKENS, Tokenizer
from bert_jax.data.tokenizer_json import byte_level_rules, new_json
from bert_jax.data.wordpiece import LONGEST_WORD, PREFIX, Splitter, WordPieceTokenizer
from bert_jax.errors import UserError

KINDS = ("wordpiece", "sentencepiece", "bpe")
# Number of unused tokens in Google's vocabularies: 99 after [PAD], the others after [MASK]
# (uncased_L-12_H-768_A-12/vocab.txt). A small vocabulary has no unused tokens, because the
# model would predict them.
UNUSED = 994
_UNUSED_FIRST = 99
_SMALLEST_WITH_UNUSED = 8000
# WordPiece and BPE join tokens that are adjacent at least this often. extend_vocabulary
# adds words that occur at least this often.
_MIN_FREQUENCY = 2
# Maximum number of different words that are counted, which take about 400 MB. The rarest
# words of larger texts are dropped.
_COUNTED_WORDS = 3_000_000
# Maximum number of words for the trainer. The counts of a larger text are scaled down.
_TRAINED_WORDS = 20_000_000
# Maximum number of sentences for SentencePiece, whose memory grows with them.
_SAMPLED = 200_000
# Share of the characters that the alphabet covers. A word with a rarer character is [UNK].
_ALPHABET_COVERAGE = 0.99999

logger = logging.getLogger(__name__)


def train_vocabulary(
    sentences: Iterable[str],
    size: int,
    *,
    kind: str = "wordpiece",
    lower_case: bool = True,
    keep_accents: bool = False,
) -> Tokenizer:
    """Trains a tokenizer of ``size`` tokens, special and unused tokens included.

    sentences: for BPE with the spaces before them (Tokenizer.spaced), which are a part of
    its tokens.
    keep_accents: whether lower-cased text keeps its accents, and scripts such as
    Devanagari their vowel signs. Google's tokenizer removes both. Cased text,
    SentencePiece and BPE always keep them.
    All different words are in memory, or a sample of the sentences for SentencePiece. The
    same sentences give the same vocabulary. A small text yields fewer tokens, and no unused
    tokens.
    """
    if kind == "sentencepiece":
        return _train_sentencepiece(sentences, size, lower_case)
    if kind == "bpe":
        return _train_bpe(sentences, size, lower_case)
    if kind != "wordpiece":
        raise UserError(f"kind={kind!r}, expected one of {', '.join(KINDS)}")
    splitter = Splitter(lower_case, lower_case and not keep_accents)
    return _train_wordpiece(sentences, size, splitter)


def extend_vocabulary(
    tokenizer: Tokenizer, sentences: Iterable[str], count: int
) -> Tokenizer:
    """A WordPiece vocabulary with up to ``count`` words of a text as additional tokens.

    Adds the words that save the largest number of tokens in the text. A word that was [UNK]
    counts as one saved token each time it occurs. The old tokens keep their ids, so that a
    checkpoint can use the new vocabulary. Raises UserError for a tokenizer of another kind.
    """
    if not isinstance(tokenizer, WordPieceTokenizer):
        raise UserError(
            "extend adds words only to WordPiece vocabularies, and this tokenizer has "
            f"kind={tokenizer.kind}; use it unchanged, or train a new vocabulary"
        )
    if count < 1:
        raise UserError(f"words={count}, expected at least 1")
    words = count_words(
        sentences, Splitter(tokenizer.lower_case, tokenizer.strip_accents)
    )
    saved: dict[str, int] = {}
    for word, number in words.items():
        is_word = any(map(str.isalpha, word)) and len(word) <= tokenizer.longest_word
        if number < _MIN_FREQUENCY or not is_word or word in tokenizer.ids:
            continue
        ids = tokenizer.encode(word).tolist()
        tokens_less = len(ids) - 1
        if tokenizer.unk_id in ids:
            tokens_less = 1
        if tokens_less:
            saved[word] = number * tokens_less
    new = sorted(saved, key=lambda word: (-saved[word], word))[:count]
    if not new:
        raise UserError("the text has no frequent new words; use the old vocabulary")
    logger.info(f"{len(new):,} new words")
    return tokenizer.with_tokens([*tokenizer.tokens, *new])


def _train_wordpiece(
    sentences: Iterable[str], size: int, splitter: Splitter
) -> Tokenizer:
    words = count_words(sentences, splitter)
    if not words:
        raise UserError("the input has no words; expected text")
    pad, *others = BERT_TOKENS
    first, unused = [pad, *others], []
    if size >= _SMALLEST_WITH_UNUSED:  # Google's layout: [MASK] is number 103
        unused = [f"[unused{i}]" for i in range(UNUSED)]
        first = [pad, *unused[:_UNUSED_FIRST], *others, *unused[_UNUSED_FIRST:]]
    alphabet = _alphabet(words, limit=max(size // 3, 100))
    if len(alphabet) > size - len(first):
        raise UserError(
            f"size={size} is too small for {len(first)} special tokens and "
            f"{len(alphabet)} characters; raise it, or check that the input is text"
        )
    logger.info(f"training a vocabulary on {len(words):,} different words")
    known = {token.removeprefix(PREFIX) for token in alphabet}
    words = {word: n for word, n in words.items() if known.issuperset(word)}
    model = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token=BERT_TOKENS.unk))
    model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    # The trainer numbers single characters in the order of a hash table and breaks ties
    # between pairs by these numbers. As special tokens they have fixed numbers, so the same
    # text gives the same vocabulary.
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=_MIN_FREQUENCY,
        special_tokens=first + alphabet,
        show_progress=sys.stderr.isatty(),
    )
    model.train_from_iterator(_repeat(words), trainer)
    ids = model.get_vocab()
    tokens = sorted(ids, key=ids.__getitem__)
    if len(tokens) < size:  # a small text, whose vocabulary needs no unused tokens
        no_use = set(unused)
        tokens = [token for token in tokens if token not in no_use]
    return WordPieceTokenizer(tokens, splitter.lower_case, splitter.strip_accents)


def count_words(sentences: Iterable[str], splitter: Splitter) -> dict[str, int]:
    """Number of occurrences of each word of the tokenizer.

    Counts rough words first, so that each different word is split only once.
    """
    rough: Counter[str] = Counter()
    rarest = 1
    for sentence in sentences:
        rough.update(splitter.rough_words(sentence))
        while len(rough) > _COUNTED_WORDS:
            rough = Counter({w: n for w, n in rough.items() if n > rarest})
            # The counter must shrink far below the limit, or every word would prune it.
            if len(rough) > _COUNTED_WORDS // 2:
                rarest += 1
    words: Counter[str] = Counter()
    for rough_word, count in rough.items():
        for word in splitter.words(rough_word):
            if len(word) <= LONGEST_WORD:
                words[word] += count
    return words


def _alphabet(words: dict[str, int], limit: int) -> list[str]:
    """Tokens of the most frequent single characters, at the start of or inside a word.

    limit: maximum number of characters. Chinese needs thousands, English a few hundred.
    """
    counts: Counter[str] = Counter()
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
    """Lines with each word as often as it occurs, in sorted order."""
    scale = max(1.0, sum(words.values()) / _TRAINED_WORDS)
    for word in sorted(words):
        count = round(words[word] / scale)
        while count > 0:
            yield " ".join([word] * min(count, 1000))
            count -= 1000


def _train_sentencepiece(
    sentences: Iterable[str], size: int, lower_case: bool
) -> Tokenizer:
    sample = _sample(sentences, _SAMPLED)
    if not sample:
        raise UserError("no sentence was found; check input and input_format")
    logger.info(f"training a vocabulary on {len(sample):,} sentences")
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
            # Nearly all characters of Chinese or Japanese, and all of other scripts.
            character_coverage=0.9995,
            max_sentence_length=1 << 16,  # in bytes. Longer sentences are left out
            pad_id=0,
            pad_piece=BERT_TOKENS.pad,
            unk_id=1,
            unk_piece=BERT_TOKENS.unk,
            bos_id=-1,
            eos_id=-1,
            control_symbols=[BERT_TOKENS.cls, BERT_TOKENS.sep, BERT_TOKENS.mask],
            num_threads=1,  # several threads change the order of sums
            minloglevel=2,
        )
    except RuntimeError as error:  # too few tokens for the characters
        raise UserError(f"size={size} is too small ({error}); raise it") from error
    return SentencePieceTokenizer(model.getvalue(), lower_case)


def _train_bpe(sentences: Iterable[str], size: int, lower_case: bool) -> Tokenizer:
    """A byte-level BPE with the special tokens and the template of RoBERTa.

    sentences: see :func:`train_vocabulary`.
    Every text has tokens, because each byte is a token.
    """
    pad, unk, cls, sep, mask = FAIRSEQ_TOKENS
    first = [cls, pad, sep, unk, mask]  # fairseq's order, in which <pad> is number 1
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    least = len(first) + len(alphabet)
    if size < least:
        raise UserError(f"size={size}, expected at least {least} for all bytes")
    texts = filter(str.strip, sentences)
    start = next(texts, None)
    if start is None:
        raise UserError("the input has no words; expected text")
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    if lower_case:
        library.normalizer = tokenizers.normalizers.Lowercase()
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=_MIN_FREQUENCY,
        special_tokens=first,
        initial_alphabet=alphabet,
        show_progress=sys.stderr.isatty(),
    )
    library.train_from_iterator(itertools.chain([start], texts), trainer)
    trained = json.loads(library.to_str())
    rules = byte_level_rules(add_prefix_space=False)
    rules["normalizer"] = trained["normalizer"]
    content = new_json(trained["model"], rules, FAIRSEQ_TOKENS)
    return LibraryTokenizer(content, FAIRSEQ_TOKENS)


def _sample(sentences: Iterable[str], limit: int) -> list[str]:
    """A uniform sample of at most ``limit`` sentences.

    SentencePiece's own sampling differs from run to run.
    """
    rng = random.Random(0)
    sample: list[str] = []
    for count, sentence in enumerate(filter(str.strip, sentences)):
        if count < limit:
            sample.append(sentence)
            continue
        place = rng.randrange(count + 1)
        if place < limit:
            sample[place] = sentence
    return sample
