"""Makes this folder with transformers, which the project does not need.

Vocabularies of RoBERTa's, XLM-R's and CamemBERT's kinds, and AutoTokenizer's ids of a few
texts, pairs and words (golden.json). classes.json has the ids of its classes for
tokenizer.json files with other rules and templates than the class. transformers 5 leaves
out the lstrip of <mask> if a folder has no tokenizer.json, so it is set here, as in the
files of the hub.

    HF_HUB_OFFLINE=1 python tests/golden/templates/make.py     (transformers 5.24)
"""

import json
import shutil
import tempfile
from pathlib import Path

import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AddedToken, AutoTokenizer

FOLDER = Path(__file__).parent
TEXTS = [
    "The cat's bee sat on the mat.",
    " The cat, a cat  and a bee",
    "a <mask> cat",
    "the<mask>, a  <mask> .",
    "Caf\u00e9 e\u0301 \u4e2d\u6587 \U0001f642 don't (see) it's 12,5",
    "a\ttab\nline\u00a0space ",
    "\u2581bee \u0120cat",
    "",
    "   ",
]
MASK = AddedToken("<mask>", lstrip=True, normalized=False, special=True)
MODELS = {"byte_level": "roberta", "fairseq": "xlm-roberta", "notused": "camembert"}


def byte_level(folder: Path) -> None:
    """vocab.json and merges.txt in RoBERTa's order."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    tokenizer.model.save(str(folder))
    vocabulary = json.loads((folder / "vocab.json").read_text())
    vocabulary["<mask>"] = len(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))


def fairseq(folder: Path) -> None:
    """A SentencePiece model with <unk>, <s> and </s>."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 3),
        model_prefix=str(folder / "sentencepiece.bpe"),
        vocab_size=60,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        minloglevel=2,
    )
    (folder / "sentencepiece.bpe.vocab").unlink()


def answers(folder: Path, **settings) -> dict:
    """AutoTokenizer's ids. Words need a space before the first word."""
    tokenizer = AutoTokenizer.from_pretrained(folder, mask_token=MASK, **settings)
    pairs = []
    for second in TEXTS[:-2]:
        pair = tokenizer("a cat's", second, return_token_type_ids=True)
        pairs.append([second, pair.input_ids, pair.token_type_ids])
    words = TEXTS[4].split()
    result = {"texts": {text: tokenizer(text).input_ids for text in TEXTS}}
    result |= {"pairs": pairs, "size": len(tokenizer)}
    return result | {"words": tokenizer(words, is_split_into_words=True).input_ids}


# Changed parts of a tokenizer.json, by its folder. CLS and SEP are tokens with their ids.
TYPES = {"type": "TemplateProcessing", "special_tokens": {}}
TYPES["single"] = [{"Sequence": {"id": "A", "type_id": 0}}]
TYPES["pair"] = [*TYPES["single"], {"Sequence": {"id": "B", "type_id": 1}}]
BERT = {"type": "BertProcessing", "sep": "SEP", "cls": "CLS"}
ROBERTA = {"type": "RobertaProcessing", "sep": "SEP", "cls": "CLS"}
ROBERTA |= {"trim_offsets": False, "add_prefix_space": False}
BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False}
PARTS = {
    "byte_level": {
        "none": {"post_processor": None},
        "bert": {"post_processor": BERT},
        "sequence": {
            "post_processor": {"type": "Sequence", "processors": [BYTES, BERT]}
        },
        "no special tokens": {"post_processor": TYPES},
        "lower": {"normalizer": {"type": "Lowercase"}},
        "space": {"pre_tokenizer": BYTES},
        "digits": {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTES],
            }
        },
    },
    "fairseq": {
        "none": {"post_processor": None},
        "bert": {"post_processor": BERT},
        "lower": {"normalizer": {"type": "Lowercase"}},
        "words": {"pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581"}},
    },
    "../huggingface/tokenizer": {
        "none": {"post_processor": None},
        "roberta": {"post_processor": ROBERTA},
        "no special tokens": {"post_processor": TYPES},
        "lower": {"normalizer": {"type": "Lowercase"}},
        "words": {"pre_tokenizer": {"type": "WhitespaceSplit"}},
    },
}
CLASSES = {
    "byte_level": [("RobertaTokenizer", None), ("RobertaTokenizerFast", True)],
    "fairseq": [("XLMRobertaTokenizer", None), ("XLMRobertaTokenizer", False)],
    "../huggingface/tokenizer": [
        ("BertTokenizer", None),
        ("DistilBertTokenizer", None),
    ],
}
BASES = {
    "byte_level": {"model_type": "roberta"},
    "fairseq": {"model_type": "xlm-roberta"},
    "../huggingface/tokenizer": {},
}


def classes() -> list[dict]:
    """The ids of each class for each file with changed parts."""
    rows = []
    for folder, changes in PARTS.items():
        base = with_config(FOLDER / folder, BASES[folder])
        with tempfile.TemporaryDirectory() as place:
            base.save_pretrained(place)
            content = json.loads((Path(place) / "tokenizer.json").read_text())
            old = json.loads((Path(place) / "tokenizer_config.json").read_text())
            tokens = {name: old[name] for name in old if name.endswith("_token")}
            names = json.dumps([base.cls_token, base.cls_token_id])
            ends = json.dumps([base.sep_token, base.sep_token_id])
            for parts in changes.values():
                text = json.dumps(parts).replace('"CLS"', names).replace('"SEP"', ends)
                parts = json.loads(text)
                file = Path(place) / "tokenizer.json"
                file.write_text(json.dumps(content | parts))
                for name, space in CLASSES[folder]:
                    settings = {"tokenizer_class": name, **tokens}
                    settings |= {"do_lower_case": True}
                    if space is not None:
                        settings["add_prefix_space"] = space
                    file.with_name("tokenizer_config.json").write_text(
                        json.dumps(settings)
                    )
                    tokenizer = AutoTokenizer.from_pretrained(place)
                    pair = tokenizer("A cat's", "12 bees", return_token_type_ids=True)
                    row = {"folder": folder, "parts": parts, "settings": settings}
                    row["texts"] = [tokenizer(text).input_ids for text in TEXTS[:6]]
                    rows.append(
                        row | {"ids": pair.input_ids, "types": pair.token_type_ids}
                    )
    return rows


def with_config(folder: Path, config: dict):
    """The tokenizer of a folder as AutoTokenizer reads it for a model."""
    if not config:
        return AutoTokenizer.from_pretrained(folder)
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        (Path(copy) / "config.json").write_text(json.dumps(config))
        return AutoTokenizer.from_pretrained(copy, mask_token=MASK)


def main() -> None:
    """Writes all files again."""
    for name, make in {"byte_level": byte_level, "fairseq": fairseq}.items():
        folder = FOLDER / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        make(folder)
    golden = {}
    for name, model_type in MODELS.items():
        with tempfile.TemporaryDirectory() as copy:
            source = FOLDER / ("byte_level" if name == "byte_level" else "fairseq")
            shutil.copytree(source, copy, dirs_exist_ok=True)
            config = {"model_type": model_type}
            (Path(copy) / "config.json").write_text(json.dumps(config))
            golden[name] = answers(Path(copy))
            if name == "byte_level":
                golden["add_prefix_space"] = answers(Path(copy), add_prefix_space=True)
    (FOLDER / "golden.json").write_text(json.dumps(golden) + "\n")
    rows = ",\n".join(json.dumps(row) for row in classes())
    (FOLDER / "classes.json").write_text(f"[{rows}]\n")


if __name__ == "__main__":
    main()
