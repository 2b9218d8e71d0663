"""Makes this folder with transformers, which the project does not need.

Folders of tokenizers that are not plain BERT WordPiece, and transformers' ids of a few
texts (golden.json).

    HF_HUB_OFFLINE=1 python tests/golden/tokenizers/make.py     (transformers 5.24)
"""

import json
import shutil
from pathlib import Path

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from tokenizers.processors import TemplateProcessing
from transformers import (
    AddedToken,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    XLMRobertaTokenizer,
)

FOLDER = Path(__file__).parent
PLAIN = FOLDER.parent / "huggingface" / "tokenizer"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
NAMES = {f"{token[1:-1].lower()}_token": token for token in SPECIAL}
TEXTS = [
    "The <e1> cat </e1>'s bee",
    "the<e1>cat</e1>bee",
    "The <E1> cat, a [E2] bee [e2] see",
    "a  bee cat  see, abee cats bee cat",
    "the <x>  cat <X>, a<r>  bee<e3>",
    "caf\u00e9 na\u00efve \u4e2d\u6587 CATs \U0001f642?",
    "",
    "   ",
]
MASKED = ["a [MASK] cat", "the [MASK]'s bee", "[MASK][MASK], <e1>[MASK]</e1>"]


def added() -> None:
    """Added tokens with every flag, in a tokenizer.json."""
    tokenizer = AutoTokenizer.from_pretrained(PLAIN)
    tokenizer.add_tokens(["<e1>", "</e1>"])
    tokenizer.add_tokens(["[E2]"], special_tokens=True)
    tokenizer.add_tokens(
        [
            AddedToken("bee cat", single_word=True),
            AddedToken("<x>", lstrip=True, normalized=False),
            AddedToken("<r>", rstrip=True, normalized=False),
        ]
    )
    tokenizer.save_pretrained(FOLDER / "added")


def trained(name: str, model: models.Model, pre_tokenizer, normalizer, **options):
    """A tokenizer of another kind with BERT's special tokens."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    kind = {"bpe": trainers.BpeTrainer, "unigram": trainers.UnigramTrainer}[name]
    trainer = kind(
        vocab_size=400, special_tokens=SPECIAL, show_progress=False, **options
    )
    tokenizer.train_from_iterator(TEXTS * 3 + MASKED, trainer)
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_input_names=inputs, **NAMES
    ).save_pretrained(FOLDER / name)


def modernbert() -> None:
    """ModernBERT's layout: special tokens after the others, and added runs of spaces."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["|||IP_ADDRESS|||", "<|padding|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 3 + MASKED, trainer)
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in (4, 3, 2)])
    last = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", AddedToken("[MASK]", lstrip=True)]
    tokenizer.add_special_tokens(last)
    tokenizer.add_tokens(["[unused0]", "[unused1]"])
    ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=ids
    )
    names = NAMES | {"mask_token": AddedToken("[MASK]", lstrip=True)}
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "attention_mask"],
        **names,
    ).save_pretrained(FOLDER / "modernbert")


def gte() -> None:
    """The layout of XLM-R, which multilingual GTE has."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    entries = json.loads(tokenizer.to_str())["model"]["vocab"]
    vocab = [tuple(entry) for entry in entries]
    XLMRobertaTokenizer(vocab=[*vocab, ("<mask>", 0.0)]).save_pretrained(FOLDER / "gte")


def main() -> None:
    """Writes all files again."""
    for old in FOLDER.iterdir():
        if old.is_dir():
            shutil.rmtree(old)
    added()
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained("bpe", models.BPE(), byte_level, None, initial_alphabet=alphabet)
    unigram, unknown = models.Unigram(), {"unk_token": "[UNK]"}
    lower = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    trained("unigram", unigram, pre_tokenizers.Metaspace(), lower, **unknown)
    modernbert()
    gte()
    golden = {}
    for folder in sorted(path for path in FOLDER.iterdir() if path.is_dir()):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        masked = [text.replace("[MASK]", tokenizer.mask_token) for text in MASKED]
        golden[folder.name] = {
            "masked": {
                t: tokenizer(t, add_special_tokens=False).input_ids for t in masked
            },
            "texts": {
                t: tokenizer(t, add_special_tokens=False).input_ids for t in TEXTS
            },
            "pair": dict(tokenizer("the <e1> cat", "a bee")),
            "size": len(tokenizer),
        }
    (FOLDER / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
