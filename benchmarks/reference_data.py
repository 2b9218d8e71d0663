"""A stand-in for google-research/bert's create_pretraining_data.py, to measure against.

The original needs TensorFlow 1. This does the same work in the same way, one character,
token and instance at a time in pure Python: tokenise, draw sentence pairs dupe_factor
times, mask, and serialise as tf.train.Example, for which it borrows the classes inside
tensorflow-datasets. It leaves out TFRecord's checksums and the log, which flatters it.
"""

import random
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

from tensorflow_datasets.proto import tf_example_generated_pb2 as tf_example_pb2
from tensorflow_datasets.proto import tf_feature_generated_pb2 as tf_feature_pb2

SPECIAL = {"[CLS]", "[SEP]"}


class ReferenceTokenizer:
    """Basic and WordPiece tokenisation of lower-cased text, character by character."""

    def __init__(self, vocabulary: Path):
        tokens = vocabulary.read_text(encoding="utf-8").splitlines()
        self.ids = {token: i for i, token in enumerate(tokens)}
        self.tokens = tokens

    def tokenize(self, text: str) -> list[str]:
        """The tokens of one line."""
        return [token for word in self._words(text) for token in self._tokens(word)]

    def _words(self, text: str) -> Iterator[str]:
        for token in self._clean(text).split():
            token = unicodedata.normalize("NFD", token.lower())
            token = "".join([c for c in token if unicodedata.category(c) != "Mn"])
            words: list[list[str]] = []
            new = True
            for char in token:
                if _is_punctuation(char):
                    words.append([char])
                    new = True
                else:
                    if new:
                        words.append([])
                    new = False
                    words[-1].append(char)
            yield from ("".join(word) for word in words)

    def _clean(self, text: str) -> str:
        output = []
        for char in text:
            code = ord(char)
            if code in (0, 0xFFFD) or _is_control(char):
                continue
            if _is_ideograph(code):
                output += [" ", char, " "]
            else:
                output.append(" " if _is_space(char) else char)
        return "".join(output)

    def _tokens(self, word: str) -> list[str]:
        found, start = [], 0
        while start < len(word):
            for end in range(len(word), start, -1):
                token = ("##" if start else "") + word[start:end]
                if token in self.ids:
                    break
            else:
                return ["[UNK]"]
            found.append(token)
            start = end
        return found


def _is_space(char: str) -> bool:
    return char in " \t\n\r" or unicodedata.category(char) == "Zs"


def _is_control(char: str) -> bool:
    return char not in "\t\n\r" and unicodedata.category(char) in ("Cc", "Cf")


def _is_punctuation(char: str) -> bool:
    code = ord(char)
    if 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126:
        return True
    return unicodedata.category(char).startswith("P")


def _is_ideograph(code: int) -> bool:
    return (
        0x4E00 <= code <= 0x9FFF
        or 0x3400 <= code <= 0x4DBF
        or 0x20000 <= code <= 0x2A6DF
        or 0x2A700 <= code <= 0x2CEAF
        or 0xF900 <= code <= 0xFAFF
        or 0x2F800 <= code <= 0x2FA1F
    )


def create_pretraining_data(
    lines: Iterable[str],
    tokenizer: ReferenceTokenizer,
    output: Path,
    *,
    max_length: int = 128,
    max_predictions: int = 20,
    dupe_factor: int = 5,
) -> int:
    """Writes the instances of a text of one sentence a line; returns their number."""
    rng = random.Random(12345)
    documents: list[list[list[str]]] = [[]]
    for line in lines:
        if line.strip():
            documents[-1].append(tokenizer.tokenize(line.strip()))
        else:
            documents.append([])
    documents = [document for document in documents if document]
    rng.shuffle(documents)
    drawn = [
        instance
        for _ in range(dupe_factor)
        for number in range(len(documents))
        for instance in instances(
            documents, number, tokenizer, rng, max_length, max_predictions
        )
    ]
    rng.shuffle(drawn)
    with output.open("wb") as file:
        for instance in drawn:
            file.write(_serialise(instance, tokenizer, max_length, max_predictions))
    return len(drawn)


def instances(documents, number, tokenizer, rng, max_length, max_predictions):
    """Yields the masked pairs that one pass over document ``number`` gives."""
    document = documents[number]
    most = max_length - 3
    target = rng.randint(2, most) if rng.random() < 0.1 else most
    chunk, size, i = [], 0, 0
    while i < len(document):
        chunk.append(document[i])
        size += len(document[i])
        if i == len(document) - 1 or size >= target:
            a_end = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            a = [token for sentence in chunk[:a_end] for token in sentence]
            b = []
            is_random = len(chunk) == 1 or rng.random() < 0.5
            if is_random:
                other = number
                while other == number and len(documents) > 1:
                    other = rng.randint(0, len(documents) - 1)
                start = rng.randint(0, len(documents[other]) - 1)
                for sentence in documents[other][start:]:
                    b.extend(sentence)
                    if len(b) >= target - len(a):
                        break
                i -= len(chunk) - a_end
            else:
                b = [token for sentence in chunk[a_end:] for token in sentence]
            while len(a) + len(b) > most:
                longer = a if len(a) > len(b) else b
                if rng.random() < 0.5:
                    del longer[0]
                else:
                    longer.pop()
            tokens = ["[CLS]", *a, "[SEP]", *b, "[SEP]"]
            segments = [0] * (len(a) + 2) + [1] * (len(b) + 1)
            masked = _mask(tokens, tokenizer, rng, max_predictions)
            yield *masked, segments, is_random
            chunk, size = [], 0
        i += 1


def _mask(tokens, tokenizer, rng, max_predictions):
    candidates = [[i] for i, token in enumerate(tokens) if token not in SPECIAL]
    rng.shuffle(candidates)
    output = list(tokens)
    wanted = min(max_predictions, max(1, round(len(tokens) * 0.15)))
    masked = []
    for (i,) in candidates[:wanted]:
        if rng.random() < 0.8:
            output[i] = "[MASK]"
        elif rng.random() < 0.5:
            output[i] = tokens[i]
        else:
            output[i] = tokenizer.tokens[rng.randint(0, len(tokenizer.tokens) - 1)]
        masked.append((i, tokens[i]))
    masked.sort()
    return output, masked


def _serialise(instance, tokenizer, max_length, max_predictions):
    tokens, masked, segments, is_random = instance
    ids = [tokenizer.ids[token] for token in tokens]
    mask = [1] * len(ids)
    for feature in (ids, mask, segments):
        while len(feature) < max_length:
            feature.append(0)
    positions = [i for i, _ in masked]
    labels = [tokenizer.ids[label] for _, label in masked]
    weights = [1.0] * len(labels)
    while len(positions) < max_predictions:
        positions.append(0)
        labels.append(0)
        weights.append(0.0)
    # Built as the original builds them: lists of features in a dict.
    features = {
        "input_ids": _int_feature(ids),
        "input_mask": _int_feature(mask),
        "token_type_ids": _int_feature(segments),
        "masked_lm_positions": _int_feature(positions),
        "masked_lm_ids": _int_feature(labels),
        "masked_lm_weights": tf_feature_pb2.Feature(
            float_list=tf_feature_pb2.FloatList(value=list(weights))
        ),
        "next_sentence_labels": _int_feature([int(is_random)]),
    }
    example = tf_example_pb2.Example(features=tf_feature_pb2.Features(feature=features))
    return example.SerializeToString()


def _int_feature(values):
    return tf_feature_pb2.Feature(
        int64_list=tf_feature_pb2.Int64List(value=list(values))
    )
