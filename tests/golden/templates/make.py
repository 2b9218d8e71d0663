"""Makes this folder with transformers, which the project does not need.

Vocabularies of RoBERTa's, XLM-R's and CamemBERT's kinds, and AutoTokenizer's ids of some
texts, pairs and words (golden.json). transformers 5 leaves out the lstrip of <mask> where a
folder has no tokenizer.json, so it is given here, as the files of the hub have it.

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
    """AutoTokenizer's ids. Words need the space before the first word."""
    mask = AddedToken("<mask>", lstrip=True, normalized=False, special=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, mask_token=mask, **settings)
    pairs = []
    for second in TEXTS[:-2]:
        pair = tokenizer("a cat's", second, return_token_type_ids=True)
        pairs.append([second, pair.input_ids, pair.token_type_ids])
    words = TEXTS[4].split()
    result = {"texts": {text: tokenizer(text).input_ids for text in TEXTS}}
    result |= {"pairs": pairs, "size": len(tokenizer)}
    return result | {"words": tokenizer(words, is_split_into_words=True).input_ids}


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


if __name__ == "__main__":
    main()
