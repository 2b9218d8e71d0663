"""The tokenizer files of a Hugging Face folder."""

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.tokenizer_base import CLS, SEP, SPECIAL_PIECES, UNK
from bert_jax.data.wordpiece import LONGEST_WORD
from bert_jax.model.config import BertConfig


def write_tokenizer(folder: Path, tokenizer: Tokenizer, config: BertConfig) -> None:
    """Writes the vocabulary and its settings as AutoTokenizer and bert_jax read them.

    A SentencePiece vocabulary is for bert_jax alone: transformers has no BERT with one.
    """
    tokenizer.save(folder)
    if tokenizer.kind != "wordpiece":
        return
    settings = tokenizer.config() | {
        "model_max_length": config.max_positions,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    # The older of transformers make this file of the other two; the newer want it.
    _tokenizer_json(tokenizer).save(str(folder / "tokenizer.json"))


def _tokenizer_json(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    result = tokenizers.Tokenizer(
        models.WordPiece(
            tokenizer.ids, unk_token=UNK, max_input_chars_per_word=LONGEST_WORD
        )
    )
    result.add_special_tokens(list(SPECIAL_PIECES))
    result.normalizer = normalizers.BertNormalizer(lowercase=tokenizer.lower_case)
    result.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    result.decoder = decoders.WordPiece()
    result.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}",
        pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
        special_tokens=[(CLS, tokenizer.cls_id), (SEP, tokenizer.sep_id)],
    )
    return result
