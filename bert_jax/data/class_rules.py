"""The rules and templates of transformers' tokenizer classes.

transformers 5 takes only the vocabulary and the added tokens of most classes from
tokenizer.json. The class has its own rules to split text, and its own special tokens around
texts. PreTrainedTokenizerFast reads all of tokenizer.json.
"""

import json
from collections.abc import Mapping
from typing import Any

import tokenizers

from bert_jax.data import tokenizer_json
from bert_jax.data.library import call_library
from bert_jax.data.tokenizer import FAIRSEQ_TOKENS, SpecialTokens
from bert_jax.data.tokenizer_json import Part

# Classes of transformers that have no rules of their own.
GENERAL = ("PreTrainedTokenizerFast", "TokenizersBackend")
# Values of model_type in config.json for which transformers ignores the class, because
# files on the Hub name a wrong one (MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS in its
# tokenization_auto.py).
WITHOUT_CLASS = ("modernbert",)
BERT = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")
# The class of byte-level BPEs, and the classes of Unigram models.
_BYTE_LEVEL = "RobertaTokenizer"
_UNIGRAM = ("XLMRobertaTokenizer", "CamembertTokenizer")
# Rules that transformers' BERT tokenizers take from tokenizer_config.json, and their names
# in the normalizer of tokenizer.json.
_NORMALIZER = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
# The rules of BertTokenizer if its files have no others.
_BERT_NORMALIZER = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
    "lowercase": True,
}


def with_class_rules(
    parts: Part, settings: Mapping[str, Any], special: SpecialTokens
) -> Part:
    """A tokenizer.json with the rules and the template that transformers uses.

    parts: the content of the file. settings: the values of tokenizer_config.json, and
    model_type of config.json. If neither the file nor the class has a template, the special
    tokens select RoBERTa's or BERT's.
    """
    if settings.get("model_type") in WITHOUT_CLASS:
        settings = {**settings, "tokenizer_class": GENERAL[0]}
    ids = dict(tokenizer_json.token_ids(parts["model"]))
    for token in parts.get("added_tokens") or ():
        ids[token["content"]] = token["id"]
    if special.cls not in ids or special.sep not in ids:
        return parts  # an error of the tokenizer names the missing tokens
    bert = tokenizer_json.bert_template(special, ids)
    roberta = tokenizer_json.roberta_template(special, ids)
    name = (settings.get("tokenizer_class") or "").removesuffix("Fast")
    rules = _own_rules(name, parts, settings)
    if rules is not None and name in BERT:
        template = bert
    elif rules is not None:
        template = roberta
    elif parts.get("post_processor") is not None:
        template = parts["post_processor"]
    elif special == FAIRSEQ_TOKENS:
        template = roberta
    else:
        template = bert
    if rules is None:
        rules = _settings_rules(parts, settings)
    new = parts | rules
    if _sequences(template) != _sequences(parts.get("post_processor")):
        new["post_processor"] = template
    return new


def unused_rules(parts: Part, new: Part) -> list[str]:
    """The names of rules in a tokenizer.json that its class replaces with another type.

    new: the result of :func:`with_class_rules`.
    """
    names = []
    for name in ("normalizer", "pre_tokenizer"):
        old, now = parts.get(name), new.get(name)
        if not old or now in old.get("normalizers", ()):
            continue
        if now is None or now["type"] != old["type"]:
            names.append(name)
    return names


def _own_rules(name: str, parts: Part, settings: Mapping[str, Any]) -> Part | None:
    """The rules of a class that has its own. None for other classes."""
    model, space = parts["model"], settings.get("add_prefix_space")
    normalizer = parts.get("normalizer") or {}
    is_unigram, is_bpe = isinstance(model["vocab"], list), "merges" in model
    if name == _BYTE_LEVEL and is_bpe:
        return tokenizer_json.byte_level_rules(add_prefix_space=bool(space))
    if name in _UNIGRAM and is_unigram:
        table = None
        for step in normalizer.get("normalizers", [normalizer]):
            if step.get("type") == "Precompiled":
                table = step
        return tokenizer_json.unigram_rules(table, add_prefix_space=space is not False)
    if name in BERT and not is_bpe and not is_unigram:
        if normalizer.get("type") != "BertNormalizer":
            normalizer = _BERT_NORMALIZER
        normalizer = _bert_normalizer(normalizer, settings)
        return tokenizer_json.wordpiece_rules(normalizer)
    return None


def _settings_rules(parts: Part, settings: Mapping[str, Any]) -> Part:
    """Rules of a tokenizer.json that the settings change, if the class has no rules."""
    name, space = settings.get("tokenizer_class"), settings.get("add_prefix_space")
    words, normalizer = parts.get("pre_tokenizer") or {}, parts.get("normalizer") or {}
    if name in GENERAL:
        return {}
    if words.get("type") == "ByteLevel" and space is not None:
        return {"pre_tokenizer": words | {"add_prefix_space": space}}
    if name is None and normalizer.get("type") == "BertNormalizer":
        return {"normalizer": _bert_normalizer(normalizer, settings)}
    return {}


def _bert_normalizer(normalizer: Part, settings: Mapping[str, Any]) -> Part:
    """A BertNormalizer with the rules of tokenizer_config.json."""
    rules = dict(normalizer)
    for name, key in _NORMALIZER.items():
        if settings.get(name) is not None:
            rules[key] = settings[name]
    if "strip_accents" in settings:  # null: accents follow the case
        rules["strip_accents"] = settings["strip_accents"]
    return rules


def _sequences(post_processor: Part | None) -> list[tuple[list[int], list[int]]]:
    """Ids and types of one text and of two texts, with a vocabulary of one letter."""
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    parts = {"version": "1.0", "post_processor": post_processor, "model": model}
    content = json.dumps(parts | {"added_tokens": []})
    library = call_library(tokenizers.Tokenizer.from_str, content)
    sequences = []
    for texts in (("a",), ("a", "a")):
        encoding = call_library(library.encode, *texts)
        sequences.append((encoding.ids, encoding.type_ids))
    return sequences
