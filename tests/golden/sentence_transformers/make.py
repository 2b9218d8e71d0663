"""Makes this folder with sentence-transformers, which the project does not need.

The files of sentence-transformers for a tiny random model (../huggingface/none, with
../huggingface/tokenizer), and the embeddings of a few texts (golden.npz). prompts.npz
has embeddings with prompts, and the scores of InformationRetrievalEvaluator. The encoder's
own files are not copied; a test assembles the folder.

    HF_HUB_OFFLINE=1 python tests/golden/sentence_transformers/make.py     (6.2)
"""

import shutil
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.evaluation import InformationRetrievalEvaluator
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
# Prompts whose default is neither the query's nor the document's.
ROLES = {"query": "see a bee ", "document": "the cat's ", "plain": "b "}
LONG = "the cat the cat the cat bee bee a the cat's see be a cat "
QUERIES = ["bee", "the cat's bee", "see", "a cat be", "beast", "a"]
DOCUMENTS = [
    *("cat see", "bee bee", "the cat the", "a", "be a cat's", "see the bee", "the the"),
    *("cat's cat's", "a b", "sea", "a cat", "see be", "bee the cat", "b e a s t"),
]
# (query, document). Query 4 has no relevant document.
RELEVANT = [(0, 1), (0, 5), (0, 12), (1, 2), (2, 0), (2, 11), (3, 10), (5, 3), (5, 8)]
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
    with_prompts(whole)
    shutil.rmtree(whole)
    np.savez(FOLDER / "golden.npz", texts=TEXTS, **golden)


def with_prompts(whole: Path) -> None:
    """Writes vectors with prompts, whose tokens are pooled or not, and search scores."""
    golden = {"queries": QUERIES, "documents": DOCUMENTS, "relevant": RELEVANT}
    for pooling in ("mean", "cls"):
        for pooled in (True, False):
            last = Pooling(24, pooling_mode=pooling, include_prompt=pooled)
            model = SentenceTransformer(
                modules=[Transformer(str(whole)), last],
                device="cpu",
                prompts=ROLES,
                default_prompt_name="plain",
            )
            model.max_seq_length = 14
            name = f"{pooling}_{pooled}"
            golden[f"{name}_default"] = model.encode(TEXTS)
            golden[f"{name}_none"] = model.encode(TEXTS, prompt="")
            golden[f"{name}_own"] = model.encode(TEXTS, prompt="bee see ")
            golden[f"{name}_long"] = model.encode(TEXTS, prompt=LONG)
            golden[f"{name}_query"] = model.encode_query(TEXTS)
            golden[f"{name}_document"] = model.encode_document(TEXTS)
            scores = evaluator()(model)
            for metric, score in scores.items():
                golden[f"{name}_{metric}"] = score
    np.savez_compressed(FOLDER / "prompts.npz", texts=TEXTS, **golden)


def evaluator() -> InformationRetrievalEvaluator:
    """The scores of cosines. Numbers have two digits, since they are sorted as texts."""
    relevant = {}
    for query, document in RELEVANT:
        relevant.setdefault(f"{query:02}", set()).add(f"{document:02}")
    queries = {f"{i:02}": text for i, text in enumerate(QUERIES)}
    documents = {f"{i:02}": text for i, text in enumerate(DOCUMENTS)}
    return InformationRetrievalEvaluator(queries, documents, relevant)


if __name__ == "__main__":
    main()
