"""Parts of a tokenizer.json, in the form of Hugging Face's `tokenizers` library.

The JSON of a new tokenizer is written here and not by the library, because its hash is the
fingerprint of the vocabulary, and another version of the library may write other fields.
"""

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any

from bert_jax.data.tokenizer import SpecialTokens, check_special

# Space in the tokens of SentencePiece, and in the tokens of byte-level BPE, which has a
# letter for each byte.
SPACE = "\u2581"
BYTE_SPACE = "\u0120"

Part = dict[str, Any]


def new_json(model: Part, rules: Part, special: SpecialTokens) -> bytes:
    """A tokenizer.json with RoBERTa's template, whose mask token includes spaces before it.

    model: a BPE or a Unigram model. rules: see :func:`byte_level_rules`. Raises UserError
    if the vocabulary lacks a special token.
    """
    ids = token_ids(model)
    check_special(special, ids)
    added = []
    for token in special:
        flags = {"lstrip": token == special.mask, "rstrip": False, "normalized": False}
        added.append(
            {"id": ids[token], "content": token, "single_word": False, **flags}
            | {"special": True}
        )
    added.sort(key=lambda token: token["id"])
    parts = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": rules["normalizer"],
        "pre_tokenizer": rules["pre_tokenizer"],
        "post_processor": roberta_template(special, ids),
        "decoder": rules["decoder"],
        "model": model,
    }
    return json.dumps(parts, indent=2, ensure_ascii=False).encode()


def token_ids(model: Part) -> dict[str, int]:
    """The ids of the tokens of a model, without added tokens."""
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        return vocab
    return {token: i for i, (token, _) in enumerate(vocab)}  # Unigram, with scores


def bpe_model(vocab: Mapping[str, int], merges: Iterable[tuple[str, str]]) -> Part:
    """A BPE model. vocab: tokens to ids. merges: pairs of tokens, in order."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": dict(sorted(vocab.items(), key=lambda item: item[1])),
        "merges": [list(pair) for pair in merges],
    }


def unigram_model(pieces: Iterable[tuple[str, float]], unk_id: int) -> Part:
    """A Unigram model. pieces: tokens and their scores, by id."""
    vocab = [list(piece) for piece in pieces]
    return {"type": "Unigram", "unk_id": unk_id, "vocab": vocab, "byte_fallback": False}


def byte_level_rules(*, add_prefix_space: bool) -> Part:
    """The rules of GPT-2's and RoBERTa's byte-level BPE: how it splits and joins text.

    add_prefix_space: whether a text gets a space before its first word.
    """
    rules = {"type": "ByteLevel", "add_prefix_space": True}
    rules |= {"trim_offsets": True, "use_regex": True}
    words = rules | {"add_prefix_space": add_prefix_space}
    return {"normalizer": None, "pre_tokenizer": words, "decoder": rules}


def unigram_rules(normalizer: Part | None, *, add_prefix_space: bool) -> Part:
    """The rules of XLM-R's and CamemBERT's Unigram models.

    normalizer: see :func:`precompiled`. add_prefix_space: whether each word gets the mark
    of a space.
    """
    scheme = "never"
    if add_prefix_space:
        scheme = "always"
    mark = {"type": "Metaspace", "replacement": SPACE}
    mark |= {"prepend_scheme": scheme, "split": True}
    splits = [{"type": "WhitespaceSplit"}, mark]
    words = {"type": "Sequence", "pretokenizers": splits}
    return {"normalizer": normalizer, "pre_tokenizer": words, "decoder": mark}


def wordpiece_rules(normalizer: Part) -> Part:
    """The rules of BERT's WordPiece. normalizer: a BertNormalizer."""
    decoder = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    words = {"type": "BertPreTokenizer"}
    return {"normalizer": normalizer, "pre_tokenizer": words, "decoder": decoder}


def precompiled(table: bytes) -> Part | None:
    """The normalizer of a SentencePiece model's table of characters; None for b""."""
    if not table:
        return None
    content = base64.b64encode(table).decode()
    return {"type": "Precompiled", "precompiled_charsmap": content}


def roberta_template(special: SpecialTokens, ids: Mapping[str, int]) -> Part:
    """The post_processor of <s> A </s></s> B </s> with type 0."""
    part = _tokens_of("RobertaProcessing", special, ids)
    return part | {"trim_offsets": True, "add_prefix_space": True}


def bert_template(special: SpecialTokens, ids: Mapping[str, int]) -> Part:
    """The post_processor of [CLS] A [SEP] B [SEP], with type 1 for B [SEP]."""
    return _tokens_of("BertProcessing", special, ids)


def _tokens_of(name: str, special: SpecialTokens, ids: Mapping[str, int]) -> Part:
    sep, cls = [special.sep, ids[special.sep]], [special.cls, ids[special.cls]]
    return {"type": name, "sep": sep, "cls": cls}
