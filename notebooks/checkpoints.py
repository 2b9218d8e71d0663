# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # Weights from Google or Hugging Face: features, neighbours, and back
#
# A BERT that somebody else trained is useful without more training. It turns a text into
# a vector, and texts with the same meaning get similar vectors. This notebook loads a
# model, finds neighbours with it, groups texts by topic, and saves the model as a folder
# that `transformers` loads.
#
# The texts are the docstrings of Python's standard library, which are on every machine
# that has Python. The weights are all-MiniLM-L6-v2, a small BERT for sentences (90 MB).
# Without a network, set `CHECKPOINT` to `../models/english` of bert_jax. Its search is
# worse, because it was not trained to compare sentences.

# %%
import os
import shutil
from pathlib import Path

SHORT = bool(os.environ.get("NOTEBOOK_SHORT"))  # the test suite runs a short form

# A name on the Hugging Face Hub, a folder with config.json and weights, the folder of
# Google's bert_model.ckpt, or a run of bert_jax.
CHECKPOINT = os.environ.get("CHECKPOINT", "sentence-transformers/all-MiniLM-L6-v2")
FOLDER = Path("runs/checkpoints")

import ast
import sysconfig

import jax
import matplotlib.pyplot as plt
import numpy as np

import bert_jax
from bert_jax.data.python_docs import prose_sentences

# %% [markdown]
# ## 1. Texts: the docstrings of each module


# %%
def sentences_of(package):
    """The first sentence of every docstring of a module or package, each once."""
    library = Path(sysconfig.get_path("stdlib"))
    paths = sorted((library / package).rglob("*.py")) or [library / f"{package}.py"]
    found = {}
    for path in paths:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                sentences = prose_sentences(ast.get_docstring(node) or "")
                found |= dict.fromkeys(sentences[:1])
    return list(found)


PACKAGES = ["email", "asyncio", "unittest", "logging", "xml", "calendar", "random"]
texts, package_of = [], []
for package in PACKAGES[:2] if SHORT else PACKAGES:
    found = sentences_of(package)[: 40 if SHORT else 250]
    texts += found
    package_of += [package] * len(found)
    print(f"{package:10} {len(found):4} sentences, such as: {found[0]}")

# %% [markdown]
# ## 2. Load
#
# One function loads every kind of checkpoint. The model shows its head, layers, width,
# vocabulary and number of parameters.


# %%
model = bert_jax.load(CHECKPOINT)
model

# %%
model.config

# %% [markdown]
# `model.params` is a plain dictionary of arrays. These are the arrays of the first layer:

# %%
for path, array in jax.tree_util.tree_leaves_with_path(
    model.params["bert"]["encoder"]["layer_0"]
):
    print(f"{jax.tree_util.keystr(path, simple=True, separator='/'):40} {array.shape}")

# %% [markdown]
# ## 3. Features: a vector for each text
#
# `encode` accepts any number of texts. It puts several short texts into one row, so that
# little time is wasted on padding. With `normalize=True` every vector has length 1, and
# the product of two vectors is the cosine of their angle: 1 for the same direction, 0 for
# nothing in common.

# %%
vectors = model.encode(texts, normalize=True)
vectors.shape

# %%
EXAMPLES = [
    "Return a random integer.",
    "Pick a number by chance.",
    "Draw one card from a deck.",
    "Send an e-mail with an attachment.",
    "A message may have several parts.",
    "The test fails if two values differ.",
    "Assert that both are the same.",
]
own = model.encode(EXAMPLES, normalize=True)
fig, ax = plt.subplots(figsize=(7.2, 4), layout="constrained")
image = ax.imshow(own @ own.T, cmap="Blues", vmin=0, vmax=1)
ax.set_xticks(range(len(EXAMPLES)), [f"{i + 1}" for i in range(len(EXAMPLES))])
ax.set_yticks(
    range(len(EXAMPLES)), [f"{text}  {i + 1}" for i, text in enumerate(EXAMPLES)]
)
for (i, j), cosine in np.ndenumerate(own @ own.T):
    color = "white" if cosine > 0.55 else "black"
    ax.text(j, i, f"{cosine:.2f}", ha="center", va="center", fontsize=8, color=color)
fig.colorbar(image, label="cosine")
plt.show()

# %% [markdown]
# *How similar seven sentences are. Sentences about the same thing are similar even if they
# share no word: compare 1 and 2.*
#
# ## 4. Neighbours: search by meaning
#
# `search` compares the vector of a question with the vectors of all texts, and returns the
# nearest texts. They do not have to contain a word of the question.

# %%
QUESTIONS = [
    "How do I shuffle a list?",
    "wait until several things are finished",
    "Which day of the week is it?",
    "make sure that a function fails",
    "put a picture into a letter",
    "write down what went wrong",
]
for question, found in zip(
    QUESTIONS, model.search(QUESTIONS, vectors, top=3), strict=True
):
    print(question)
    for near in found:
        row = near["row"]
        print(f"  {near['cosine']:.2f}  {package_of[row]:9} {texts[row]}")

# %% [markdown]
# ## 5. A map of the library
#
# The vectors have hundreds of dimensions. This map shows the two directions in which they
# differ most (principal components).

# %%
centred = vectors - vectors.mean(axis=0)
_, _, directions = np.linalg.svd(centred, full_matrices=False)
x, y = (centred @ directions[:2].T).T
fig, ax = plt.subplots(figsize=(7, 5), layout="constrained")
for package, marker in zip(dict.fromkeys(package_of), "os^DvX*", strict=False):
    own = np.array(package_of) == package
    ax.plot(x[own], y[own], marker, markersize=4, alpha=0.7, label=package)
ax.set(xticks=[], yticks=[])
ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

nearest = [found[1]["row"] for found in model.search(vectors, vectors, top=2)]
same = np.array(package_of)[nearest] == package_of
print(f"the nearest text is of the same package for {same.mean():.0%} of the texts")
most = max(map(package_of.count, set(package_of))) / len(texts)
print(f"by always naming the largest package: {most:.0%}")

# %% [markdown]
# *Each point is the first sentence of a docstring. The model did not see the packages.*
#
# ## 6. And back
#
# `save` writes a Hugging Face folder with `config.json`, `model.safetensors`, the
# vocabulary and a model card. The saved model computes the same vectors, bit for bit.

# %%
shutil.rmtree(FOLDER / "saved", ignore_errors=True)  # from an earlier run
model.save(FOLDER / "saved")
for path in sorted((FOLDER / "saved").iterdir()):
    print(f"{path.stat().st_size / 1e3:9,.0f} kB  {path.name}")
again = bert_jax.load(FOLDER / "saved").encode(EXAMPLES, normalize=True)
assert np.array_equal(again, model.encode(EXAMPLES, normalize=True))

# %% [markdown]
# If `transformers` and PyTorch are installed, as on Colab, they compute the same hidden
# states from this folder.

# %%
try:
    import torch
    import transformers
except ImportError:
    print(
        "transformers or PyTorch is not installed, so there is nothing to compare with"
    )
else:
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER / "saved")
    theirs = transformers.AutoModel.from_pretrained(FOLDER / "saved")
    with torch.no_grad():
        state = theirs(**tokenizer(EXAMPLES[0], return_tensors="pt")).last_hidden_state
    difference = np.abs(state.numpy() - model(EXAMPLES[0]).last_hidden_state).max()
    print(f"largest difference from transformers: {difference:.1e}")

# %% [markdown]
# ## 7. Google's own files
#
# Google published its checkpoints as TensorFlow files. `load` reads them without
# TensorFlow, and `save` writes a Hugging Face folder. Set `GOOGLE` to `"download"` for the
# smallest checkpoint (17 MB), or to a folder with `bert_model.ckpt` and
# `bert_config.json`. These checkpoints have both heads of pretraining, so they can fill in
# blanks. Checkpoints since February 2019, such as this one, need `activation="gelu_tanh"`.

# %%
GOOGLE = os.environ.get("GOOGLE_CHECKPOINT", "")
ADDRESS = (
    "https://storage.googleapis.com/bert_models/2020_02_20/uncased_L-2_H-128_A-2.zip"
)

if GOOGLE == "download":
    import io
    import urllib.request
    import zipfile

    GOOGLE = FOLDER / "google"
    with urllib.request.urlopen(ADDRESS) as answer:
        zipfile.ZipFile(io.BytesIO(answer.read())).extractall(GOOGLE)
if GOOGLE:
    google = bert_jax.load(GOOGLE, activation="gelu_tanh")
    print(google, google.fill_mask("Paris is the [MASK] of France."), sep="\n")
    shutil.rmtree(FOLDER / "from_google", ignore_errors=True)
    google.save(FOLDER / "from_google")

# %% [markdown]
# ## Next steps
#
# - Use `pooling="cls"` or `layers=(-4, -3, -2, -1)` in `encode`, and look at the map again.
# - Use your own texts, as a list of strings.
# - Use `CHECKPOINT = "google-bert/bert-base-uncased"`. Its search is worse, because it was
#   not trained to compare sentences.
# - From a shell, use `bert_jax embed` and `bert_jax convert`.
# - `finetune.ipynb` teaches a model to predict the package of a sentence.
