# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # Fine-tune, score, look at errors
#
# A pretrained BERT has learned a language. Fine-tuning teaches it a task from a few
# hundred examples. Here the task is: from which package of Python's standard library is
# this sentence? After the score we look at the errors, and ask whether the model's
# probabilities can be trusted.
#
# The texts are docstrings, which are on every machine that has Python, and the package
# is the label. For your own task, replace them by your own rows.
#
# The pretrained model is `models/english` of bert_jax, which learned English from 46 MB
# of text.

# %%
import os
from pathlib import Path

SHORT = bool(os.environ.get("NOTEBOOK_SHORT"))  # the test suite runs a short form

# A name on the Hugging Face Hub, a folder of Hugging Face or Google, or a run of bert_jax.
CHECKPOINT = os.environ.get("ENGLISH", "../models/english")
FOLDER = Path("runs/packages")  # another name starts a new run

import ast
import collections
import json
import random
import shutil
import sysconfig

import jax
import matplotlib.pyplot as plt
import numpy as np

import bert_jax
from bert_jax import figures
from bert_jax.data.python_docs import prose_sentences

jax.devices()

# %% [markdown]
# ## 1. Rows
#
# A row is a text and its label. Rows may be tuples, dictionaries, a pandas DataFrame, or
# files in CSV, TSV or JSONL.


# %%
def sentences_of(package):
    """The sentences of a package's docstrings, each once."""
    folder = Path(sysconfig.get_path("stdlib")) / package
    found = {}
    for path in sorted(folder.rglob("*.py")):
        if "test" in path.relative_to(folder).parts:
            continue
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found |= dict.fromkeys(prose_sentences(ast.get_docstring(node) or ""))
    return list(found)


PACKAGES = ["asyncio", "email", "importlib", "logging", "unittest", "xml"]
rows = [
    (sentence, package)
    for package in PACKAGES[: 3 if SHORT else None]
    for sentence in sentences_of(package)[: 30 if SHORT else 350]
]
random.Random(0).shuffle(rows)
cut = len(rows) // 5
test, dev, train = rows[:cut], rows[cut : 2 * cut], rows[2 * cut :]
counts = collections.Counter(label for _, label in rows)
print(f"{len(train)} rows to learn from, {len(dev)} to choose the best model, ", end="")
print(f"{len(test)} to score it;", dict(counts))
for text, label in train[:5]:
    print(f"{label:16} {text}")

# %% [markdown]
# A score means nothing without a baseline: the accuracy of always naming the largest
# package.

# %%
labels = sorted(counts)
majority = collections.Counter(label for _, label in train).most_common(1)[0][0]
baseline = np.mean([label == majority for _, label in test])
print(f"always {majority!r}: {baseline:.1%}")

# %% [markdown]
# ## 2. Without fine-tuning
#
# How good are the model's text embeddings without fine-tuning? Each package gets the mean
# vector of its training rows, and a text gets the package whose vector is nearest.

# %%
model = bert_jax.load(CHECKPOINT)
vectors = model.encode([text for text, _ in train], normalize=True)
of = np.array([label for _, label in train])
centres = np.stack([vectors[of == label].mean(axis=0) for label in labels])
nearest = model.encode([text for text, _ in test], normalize=True) @ centres.T
frozen = np.mean(
    [labels[i] == label for i, (_, label) in zip(nearest.argmax(1), test, strict=True)]
)
print(f"nearest mean vector: {frozen:.1%}")

# %% [markdown]
# ## 3. Fine-tune
#
# A new layer on top of BERT predicts the package, and all parameters are trained. The rows
# of `dev` choose the best evaluation. Every setting in `docs/settings.md` is an argument,
# such as `learning_rate`, `batch_size` and `seed`. `bias_correction` prevents a run as
# small as this one from always predicting the same label.

# %%
if SHORT:
    shutil.rmtree(FOLDER, ignore_errors=True)
tuned = bert_jax.finetune(
    bert_jax.tasks.classification(max_length=64),
    init_from=CHECKPOINT,
    train=train,
    dev=dev,
    test=test,
    workdir=FOLDER,
    epochs=1 if SHORT else 6,
    batch_size=16,
    learning_rate=5e-4,
    bias_correction=True,
    evaluations=1 if SHORT else 2,
    log_every=1 if SHORT else 10,
)
tuned

# %%
figures.curves(FOLDER)

# %% [markdown]
# *The training loss falls until the end. The score on dev, from which the model does not
# learn, levels off: more epochs would not help. The numbers are in `metrics.jsonl` in the
# folder of the run.*

# %%
score = tuned.scores["test"]["accuracy"]
rows_of_chart = {
    "always the largest": 100 * baseline,
    "nearest mean vector": 100 * frozen,
    "fine-tuned": score,
}
fig, ax = plt.subplots(figsize=(6, 1.8), layout="constrained")
ax.bar_label(ax.barh(*zip(*rows_of_chart.items(), strict=True)), fmt=" %.1f")
ax.set(xlim=(0, 100), xlabel="accuracy on test, %")
ax.invert_yaxis()
plt.show()

# %% [markdown]
# *Three ways to predict the package, scored on the test rows.*
#
# ## 4. Which labels are confused
#
# `predict` returns the label, and a probability for each label.

# %%
answers = tuned.predict([text for text, _ in test])
answers[0]

# %%
found = json.loads((FOLDER / "predictions" / "test.confusion.json").read_text())
figures.confusion_matrix(found["labels"], found["counts"], "test rows")

# %% [markdown]
# *Rows: the package that a sentence is from. Columns: the package that the model
# predicted. Counts off the diagonal are errors. Packages about similar topics are
# confused.*
#
# ## 5. The worst errors
#
# The folder of the run has the worst errors of a split in `predictions/`, as JSONL and as
# an HTML page. These are the test errors about which the model is most certain. Read them
# before you try anything else: often the label is wrong, or the text does not contain the
# answer.

# %%
wrong = [
    (answer["probability"], text, gold, answer["label"])
    for (text, gold), answer in zip(test, answers, strict=True)
    if answer["label"] != gold
]
print(f"{len(wrong)} of {len(test)} are wrong; the surest:")
for probability, text, gold, found in sorted(wrong, reverse=True)[:8]:
    print(f"\n{found} ({probability:.0%}), but it is from {gold}:\n  {text}")

# %% [markdown]
# ## 6. Can the probabilities be trusted?
#
# About 90% of the answers with a probability of 90% should be right.

# %%
sure = np.array([answer["probability"] for answer in answers])
right = np.array([a["label"] == g for a, (_, g) in zip(answers, test, strict=True)])
edges = np.linspace(0, 1, 6)
part = np.digitize(sure, edges[1:-1])
fig, ax = plt.subplots(figsize=(4.6, 3.4), layout="constrained")
ax.plot([0, 1], [0, 1], color="0.6", linestyle="--", label="as sure as right")
for i in np.unique(part):
    inside = part == i
    x, y = sure[inside].mean(), right[inside].mean()
    ax.plot(x, y, "o", color="C0")
    ax.annotate(f" {inside.sum()}", (x, y), va="top")
ax.set(xlim=(0, 1), ylim=(0, 1.05))
ax.set(xlabel="probability of the answer", ylabel="share that is right")
ax.legend()
plt.show()

# %% [markdown]
# *Answers in groups of similar probability, with the number of answers in each group.
# Points below the line mean that the model is too certain, as fine-tuned models usually
# are.*
#
# Answers with a high probability are right more often:

# %%
for least in (0.0, 0.5, 0.8, 0.95):
    kept = sure >= least
    if kept.any():
        print(f"at least {least:4.0%} sure: {kept.mean():4.0%} of the texts", end=", ")
        print(f"{right[kept].mean():.1%} of them right")

# %% [markdown]
# ## 7. Use it
#
# The best model is in the folder of the run. `bert_jax.load` loads the run, and
# `transformers` its folder `best`. `as_frame=True` returns the texts and answers as a
# pandas DataFrame.

# %%
model = bert_jax.load(FOLDER)
texts = ["Write the error to a file.", "Wait until all tasks are done."]
model.predict(texts, as_frame=True)

# %% [markdown]
# ## Next steps
#
# - Train on fewer rows, such as `train=train[:100]`. How much does each doubling help?
# - Try three values of `seed`. With few rows, scores differ by a point or two between
#   seeds, so do not believe a smaller gain.
# - Train a task of the paper: `bert_jax.tasks.glue("sst2", dir="glue/SST-2")` without
#   `train` reads GLUE's own files. `docs/weights.md` has the command that downloads them.
# - Predict numbers instead of labels with `bert_jax.tasks.classification(regression=True)`,
#   classify text pairs with `bert_jax.tasks.pairs()`, or tag each word with
#   `bert_jax.tasks.tagging()`.
