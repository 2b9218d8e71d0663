"""Makes this folder with sentence-transformers, which the project does not need.

The files of sentence-transformers for a tiny random model (../huggingface/none, with
../huggingface/tokenizer), and the vectors of some texts (golden.npz). The encoder's own
files are not copied; a test assembles the folder.

    HF_HUB_OFFLINE=1 python tests/golden/sentence_transformers/make.py     (6.2)
"""

import shutil
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Normalize, Pooling, Transformer

FOLDER = Path(__file__).parent
BASE = FOLDER.parent / "huggingface"
TEXTS = [
    "The cat's bee",
    "a",
    "the cat the cat the cat bee bee a the cat's see be a cat",
    "b e a s t",
]
TANH, IDENTITY = torch.nn.Tanh(), torch.nn.Identity()
PROMPTS = dict(prompts={"query": "see the bee "}, default_prompt_name="query")
# Pooling, Dense modules, Normalize or not, tokens of a text, prompts.
MODELS = {
    "mean": ("mean", [], False, None, {}),
    "cls": ("cls", [], True, 12, {}),
    "dense": ("cls", [Dense(24, 8, activation_function=TANH)], True, 10, PROMPTS),
    "two_dense": (
        "mean",
        [
            Dense(24, 12, bias=False, activation_function=IDENTITY),
            Dense(12, 6, activation_function=TANH),
        ],
        False,
        None,
        {},
    ),
}


def main() -> None:
    """Writes all files again."""
    torch.manual_seed(1)
    whole = FOLDER / "whole"
    shutil.rmtree(whole, ignore_errors=True)
    shutil.copytree(BASE / "none", whole)
    shutil.copytree(BASE / "tokenizer", whole, dirs_exist_ok=True)
    golden = {}
    for name, (pooling, dense, normalize, length, prompts) in MODELS.items():
        modules = [Transformer(str(whole)), Pooling(24, pooling_mode=pooling), *dense]
        modules += [Normalize()] if normalize else []
        model = SentenceTransformer(modules=modules, device="cpu", **prompts)
        if length:
            model.max_seq_length = length
        folder = FOLDER / name
        shutil.rmtree(folder, ignore_errors=True)
        model.save(str(folder), create_model_card=False)
        for file in ("model.safetensors", "config.json", "tokenizer.json"):
            (folder / file).unlink()
        golden[name] = model.encode(TEXTS)
    shutil.rmtree(whole)
    np.savez(FOLDER / "golden.npz", texts=TEXTS, **golden)


if __name__ == "__main__":
    main()
