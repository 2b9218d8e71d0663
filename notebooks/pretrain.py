# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # From text to blanks filled in
#
# BERT learns language by filling in blanks. Nobody has to label anything: hide some
# words of a text, let the model guess them, and compare. This notebook does all of it
# in a few minutes, also on two processor cores: from plain text to a model that fills
# in `Return [MASK] if the file is open.`
#
# The text is the English inside Python itself: the language reference and the
# docstrings of the standard library. Nothing is downloaded. To use your own text,
# change `TEXT`.

# %%
import itertools
import os
import shutil
from pathlib import Path

SHORT = bool(os.environ.get("NOTEBOOK_SHORT"))  # the test suite runs a short form

TEXT = ["python-docs"]  # or files and folders of your own: ["book.txt", "articles/"]
FOLDER = Path("runs/notebook")  # all that is made here; another name starts a new run
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
# A document is a list of sentences. The second thing that BERT learns, whether one
# sentence follows another, needs documents whose sentences are in order.

# %%
documents = list(read_documents(TEXT))[: 120 if SHORT else None]
sentences = [sentence for document in documents for sentence in document]
print(f"{len(documents):,} documents, {len(sentences):,} sentences")
for sentence in documents[7][:5]:
    print("-", sentence)

# %% [markdown]
# ## 2. A vocabulary
#
# BERT reads tokens, not words. Frequent words are one token. Rare ones are put together
# from parts, and a part that continues a word starts with `##`. So every word can be
# written, and the vocabulary stays small.

# %%
tokenizer = train_vocabulary(sentences, VOCABULARY_SIZE)
for word in ["file", "iterator", "uninterruptible", "zebra"]:
    print(f"{word:16}", *tokenizer.tokenize(word))

# %% [markdown]
# How often is each token used? Most of the text is made of a few hundred tokens, and
# most tokens are rare. A model sees them so seldom that it learns little about them:
# this is why BERT needs much text.

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
# `prepare` turns text into token ids once, so that training does not tokenise again. It
# reads files in which each line is a sentence and an empty line ends a document.

# %%
FOLDER.mkdir(parents=True, exist_ok=True)
text = "\n\n".join("\n".join(document) for document in documents)
(FOLDER / "text.txt").write_text(text + "\n", encoding="utf-8")
print(prepare([str(FOLDER / "text.txt")], tokenizer, FOLDER / "tokens", workers=1))
store = TokenStore(FOLDER / "tokens")

# %% [markdown]
# ## 4. What an example looks like
#
# An example has two texts, A and B. In half of the examples B follows A in its document.
# In the other half B is from another document. The model must predict 15% of the tokens.
# Most of these tokens are replaced by `[MASK]`. One in ten becomes a random token and one
# in ten stays, so that the model must think about every token.

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
# A small BERT: 2 layers of width 128. (BERT BASE has 12 of width 768.) Every line below
# is a setting; `docs/settings.md` lists them all. Five percent of the documents are
# kept for evaluation and never trained on. Short sequences come first and longer ones at
# the end, as in the paper, because they cost less. Two fifths of the tokens are masked
# here instead of 15%: a run of minutes learns more from more of them.
#
# A score means nothing without a baseline. Each accuracy is printed beside the accuracy of
# always giving the most frequent answer. That baseline depends on the length: many short
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
        hidden_dropout=0.0,  # a run this short does not learn by heart
        attention_dropout=0.0,
        initializer_range=0.05,
    ),
    compute=dict(dtype="auto"),  # bfloat16 where the processor is faster with it
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
# `pretrain` returns the model with the scores of the last evaluation. It writes all
# numbers to `metrics.jsonl` in the folder of the run. This draws them.

# %%
figures.curves(FOLDER / "run")

# %% [markdown]
# *Thin lines: training. Lines with markers: documents that the model never saw. Dotted:
# the baselines. The model predicts masked tokens better than the baseline from the first
# evaluation on. Sentence pairs are harder: at 32 tokens their accuracy stays near its
# baseline. At the vertical line longer sequences start. There the model is evaluated at
# both lengths. The score drops because half of the positions are new to the model.*
#
# ## 6. Fill in blanks
#
# None of these sentences is in the text. `bert_jax.load(FOLDER / "run")` opens the same
# model in another session.

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
# The model has one million parameters and three minutes of school. It often knows which
# kind of word fits, and then names a frequent word of this kind.
#
# ## 7. Does B follow A?
#
# These texts are from the documents that were kept for evaluation. How sure is the model
# that two sentences follow, if they do, and if they are from elsewhere?


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
# model knows which text follows. This takes more text and more time than three minutes.*
#
# ## 8. Keep it
#
# A Hugging Face folder: `transformers` loads it, and so does `bert_jax.load`.

# %%
shutil.rmtree(FOLDER / "my_bert", ignore_errors=True)  # of an earlier try
model.save(FOLDER / "my_bert")
for path in sorted((FOLDER / "my_bert").iterdir()):
    print(f"{path.stat().st_size / 1e3:8,.0f} kB  {path.name}")

# %% [markdown]
# ## Next steps
#
# - `STEPS = 20_000`. The blanks get better.
# - Your own text: set `TEXT`. A few megabytes are enough to see a difference.
# - Twice the width: `hidden_size=256`, `num_heads=4`, `intermediate_size=1024`.
# - The same from a shell: `bert_jax train --config tiny`.
# - `finetune.ipynb` teaches a model to sort texts, and `see_inside.ipynb` looks into
#   it.
