"""The tokenizer files of a Hugging Face folder."""

import json
from pathlib import Path

import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bert_jax.data.sentencepiece_tokenizer import SentencePieceTokenizer
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.tokenizer_base import (
    CLS,
    SEP,
    SPECIAL_TOKENS,
    SPECIAL_TOKENS_MAP,
    UNK,
)
from bert_jax.data.wordpiece import LONGEST_WORD
from bert_jax.model.config import BertConfig


def write_tokenizer(folder: Path, tokenizer: Tokenizer, config: BertConfig) -> None:
    """Writes the vocabulary and its settings as AutoTokenizer and bert_jax read them."""
    tokenizer.save(folder)
    settings = tokenizer.config() | {"model_max_length": config.max_positions}
    if isinstance(tokenizer, SentencePieceTokenizer):
        fast = _sentencepiece(tokenizer)
        # transformers has no BERT tokenizer of this kind, but takes any tokenizer.json.
        settings |= SPECIAL_TOKENS_MAP | {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        }
    else:
        fast = _wordpiece(tokenizer)
        settings |= {"strip_accents": None, "tokenize_chinese_chars": True}
    fast.add_special_tokens(list(SPECIAL_TOKENS))
    fast.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}",
        pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
        special_tokens=[(CLS, tokenizer.cls_id), (SEP, tokenizer.sep_id)],
    )
    fast.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def _wordpiece(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    result = tokenizers.Tokenizer(
        models.WordPiece(
            tokenizer.ids, unk_token=UNK, max_input_chars_per_word=LONGEST_WORD
        )
    )
    result.normalizer = normalizers.BertNormalizer(lowercase=tokenizer.lower_case)
    result.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    result.decoder = decoders.WordPiece()
    return result


def _sentencepiece(tokenizer: SentencePieceTokenizer) -> tokenizers.Tokenizer:
    """The model's tokens, scores and table of normal forms in the library's own form."""
    model = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.vocabulary_bytes())
    table = model.normalizer_spec.precompiled_charsmap
    result = tokenizers.Tokenizer(
        models.Unigram(
            list(zip(tokenizer.tokens, tokenizer.scores(), strict=True)),
            unk_id=tokenizer.unk_id,
        )
    )
    steps = [normalizers.Lowercase()] if tokenizer.lower_case else []
    steps += [normalizers.Precompiled(table)] if table else []
    steps += [normalizers.Replace(tokenizers.Regex(" {2,}"), " "), normalizers.Strip()]
    result.normalizer = normalizers.Sequence(steps)
    result.pre_tokenizer = pre_tokenizers.Metaspace()
    result.decoder = decoders.Metaspace()
    return result
