# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # From text to blanks filled in
#
# BERT learns language by filling in blanks. This needs no labels: hide some words of a
# text, let the model guess them, and compare. In a few minutes on two processor cores,
# this notebook goes from plain text to a model that fills in
# `Return [MASK] if the file is open.`
#
# The text is the documentation inside Python: the language reference and the docstrings
# of the standard library. Nothing is downloaded. To use your own text, change `TEXT`.

# %%
import itertools
import os
import shutil
from pathlib import Path

SHORT = bool(os.environ.get("NOTEBOOK_SHORT"))  # the test suite runs a short form

TEXT = ["python-docs"]  # or files and folders of your own: ["book.txt", "articles/"]
FOLDER = Path("runs/notebook")  # for all files; another name starts a new run
STEPS = 14 if SHORT else 3500
VOCABULARY_SIZE = 1000 if SHORT else 4096

import jax
import matplotlib.pyplot as plt
import numpy as np

import bert_jax
from bert_jax import figures
from bert_jax.data.corpus import read_documents
from bert_jax.data.examples import ExampleConfig, ExampleSource
from bert_jax.data.pipeline import split_documents
from bert_jax.data.preparation import prepare
from bert_jax.data.store import TokenStore
from bert_jax.data.vocabulary_training import train_vocabulary

jax.devices()

# %% [markdown]
# ## 1. Text
#
# A document is a list of sentences. They must be in order, because BERT also learns
# whether one sentence follows another.

# %%
documents = list(read_documents(TEXT))[: 120 if SHORT else None]
sentences = [sentence for document in documents for sentence in document]
print(f"{len(documents):,} documents, {len(sentences):,} sentences")
for sentence in documents[7][:5]:
    print("-", sentence)

# %% [markdown]
# ## 2. A vocabulary
#
# BERT reads tokens, not words. A frequent word is one token, and a rare word is put
# together from several tokens. A token that continues a word starts with `##`. In this way
# a small vocabulary can write every word.

# %%
tokenizer = train_vocabulary(sentences, VOCABULARY_SIZE)
for word in ["file", "iterator", "uninterruptible", "zebra"]:
    print(f"{word:16}", *tokenizer.tokenize(word))

# %% [markdown]
# How often is each token used? Most of the text is made of a few hundred tokens. Most
# tokens are rare, so the model learns little about them: this is why BERT needs a lot of
# text.

# %%
ids = np.concatenate(tokenizer.encode_batch(sentences))
counts = np.sort(np.bincount(ids, minlength=tokenizer.vocab_size))[::-1]
share = np.cumsum(counts) / counts.sum()
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
left.loglog(1 + np.arange(len(counts)), np.maximum(counts, 0.5))
left.set(xlabel="rank of the token", ylabel="times in the text", title="How often")
right.plot(1 + np.arange(len(counts)), 100 * share)
right.set(xlabel="most frequent tokens", ylabel="% of the text", title="How much")
for ax in (left, right):
    ax.grid(color="0.9")
plt.show()

# %% [markdown]
# *Left: tokens from the most to the least frequent, both axes logarithmic. The line is
# almost straight, as in every language (Zipf's law). Right: how much of the text the
# most frequent tokens make up.*
#
# ## 3. Tokens on disk
#
# `prepare` converts text to token ids once, so that training does not tokenise again. It
# reads files in which each line is a sentence and an empty line ends a document.

# %%
FOLDER.mkdir(parents=True, exist_ok=True)
text = "\n\n".join("\n".join(document) for document in documents)
(FOLDER / "text.txt").write_text(text + "\n", encoding="utf-8")
print(prepare([str(FOLDER / "text.txt")], tokenizer, FOLDER / "tokens", workers=1))
store = TokenStore(FOLDER / "tokens")

# %% [markdown]
# ## 4. An example
#
# An example has two texts, A and B. In half of the examples B follows A in its document,
# and in the other half B is from another document. The model must predict 15% of the
# tokens. Most are replaced by `[MASK]`, but one in ten becomes a random token and one in
# ten stays, so that any token may be one to predict.

# %%
source = ExampleSource(
    store, tokenizer, ExampleConfig(), sequence_length=64, max_predictions=10, seed=0
)
example = {name: array[0] for name, array in source.draw([1]).items()}
tokens = [tokenizer.tokens[i] for i in example["input_ids"] if i != tokenizer.pad_id]
print("B follows A:", "yes" if example["nsp_labels"] == 0 else "no")
print(" ".join(tokens).replace(" ##", ""), "\n")
for position, token, weight in zip(
    example["mlm_positions"], example["mlm_ids"], example["mlm_weights"], strict=True
):
    if weight:
        print(f"at {position:2}: sees {tokens[position]:12} must predict", end=" ")
        print(tokenizer.tokens[token])

# %% [markdown]
# ## 5. Training
#
# This BERT has 2 layers of width 128, and BERT BASE has 12 of width 768. Every line below
# is a setting, which `docs/settings.md` explains. Five percent of the documents are only
# for evaluation. As in the paper, short sequences come first, because they cost less. Two
# fifths of the tokens are masked here instead of 15%, because a short run learns more from
# more masks.
#
# A score means nothing without a baseline, so each accuracy is printed beside the accuracy
# of always giving the most frequent answer. The baseline depends on the length: many short
# pairs have no room for two sentences that follow each other, so at 32 tokens "it does not
# follow" is right more often than at 64.

# %%
settings = dict(
    model=dict(
        vocab_size=tokenizer.vocab_size,
        hidden_size=128,
        num_layers=2,
        num_heads=2,
        intermediate_size=512,
        max_positions=64,
        hidden_dropout=0.0,  # a run this short does not overfit
        attention_dropout=0.0,
        initializer_range=0.05,
    ),
    compute=dict(dtype="auto"),  # bfloat16 if the processor is faster with it
    data=dict(path=str(FOLDER / "tokens"), holdout=0.05, examples=dict(mask_rate=0.4)),
    optimizer=dict(learning_rate=1.5e-3, warmup_steps=STEPS // 17, beta2=0.98),
    phases=[
        dict(
            steps=STEPS * 5 // 7,
            batch_size=32,
            sequence_length=32,
            max_predictions=13,
        ),
        dict(
            steps=STEPS * 2 // 7,
            batch_size=16,
            sequence_length=64,
            max_predictions=26,
        ),
    ],
    log_every=max(STEPS // 14, 1),
    eval_every=max(STEPS // 7, 1),
    eval_batches=2 if SHORT else 50,
    checkpoint_every=STEPS,
)
model = bert_jax.pretrain(settings, FOLDER / "run")
scores = model.scores
model

# %% [markdown]
# `pretrain` returns the model with the scores of the last evaluation. All numbers are in
# `metrics.jsonl` in the folder of the run, and `curves` draws them.

# %%
figures.curves(FOLDER / "run")

# %% [markdown]
# *Thin lines: training. Lines with markers: documents that the model never saw. Dotted:
# the baselines. The model is better than the baseline on masked tokens from the first
# evaluation on. Sentence pairs are harder: at 32 tokens their accuracy stays near its
# baseline. At the vertical line longer sequences start, and the model is evaluated at both
# lengths. The scores drop, because half of the positions are new to the model.*
#
# ## 6. Fill in blanks
#
# The text does not contain these sentences. In another session,
# `bert_jax.load(FOLDER / "run")` loads the model.

# %%
PROMPTS = [
    "Return [MASK] if the file is open.",
    "If the file does not [MASK], an exception is raised.",
    "This method must be overridden by the [MASK] class.",
    "The [MASK] is called once for each line.",
    "Returns a [MASK] of all names.",
]
for prompt, blanks in zip(PROMPTS, model.fill_mask(PROMPTS, top=4), strict=True):
    guesses = ", ".join(f"{token} {p:.0%}" for token, p in blanks[0])
    print(f"{prompt:52}  {guesses}")

# %% [markdown]
# The model has one million parameters and a few minutes of school. It often finds the right
# kind of word, and then names a frequent word of this kind.
#
# ## 7. Does B follow A?
#
# These texts are from the documents that were kept for evaluation. Is the model more
# certain that B follows A if this is true?


# %%
def neighbours(document):
    """Pairs of texts with two sentences each. The second text follows the first."""
    twos = [" ".join(two) for two in itertools.pairwise(document)]
    return zip(twos, twos[2:], strict=False)


_, held_out = split_documents(len(documents), 0.05)
pairs = [
    pair
    for number in held_out
    for pair in neighbours(documents[number])
    if max(map(len, tokenizer.encode_batch(pair))) <= 30
]
first, after = zip(*pairs[:400], strict=True)
others = np.random.default_rng(0).permutation(len(after))
follows = model.next_sentence(first, after)
random = model.next_sentence(first, [after[i] for i in others])

fig, ax = plt.subplots(figsize=(6, 2.8), layout="constrained")
bins = np.linspace(0, 1, 21)
ax.hist([follows, random], bins, label=["it follows", "it is from elsewhere"])
ax.set(xlabel="probability that B follows A", ylabel="pairs")
ax.legend()
plt.show()
right = ((follows > 0.5).mean() + (random < 0.5).mean()) / 2
print(f"{right:.1%} of {2 * len(follows)} pairs judged right")

# %% [markdown]
# *Pairs from held-out documents. The further the two colours are apart, the better the
# model recognises the text that follows. This takes more text and more time.*
#
# ## 8. Keep it
#
# `save` writes a Hugging Face folder, which `transformers` and `bert_jax.load` read.

# %%
shutil.rmtree(FOLDER / "my_bert", ignore_errors=True)  # from an earlier run
model.save(FOLDER / "my_bert")
for path in sorted((FOLDER / "my_bert").iterdir()):
    print(f"{path.stat().st_size / 1e3:8,.0f} kB  {path.name}")

# %% [markdown]
# ## Next steps
#
# - Train longer, with `STEPS = 20_000`: the blanks get better.
# - Train on your own text with `TEXT`. A few megabytes are enough to see a difference.
# - Double the width: `hidden_size=256`, `num_heads=4`, `intermediate_size=1024`.
# - Run a similar training from a shell: `bert_jax train --config tiny`.
# - `finetune.ipynb` teaches a model to classify texts, and `see_inside.ipynb` looks
#   inside a model.
