# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # See inside: attention, senses, layers
#
# What happens between the words that go into a BERT and the vectors that come out? This
# notebook opens a model and looks: at which words each word looks, where a word with
# two meanings gets the one that fits, and how the meaning of a word changes from layer
# to layer.
#
# The model is all-MiniLM-L6-v2 (90 MB), a small BERT that was trained to compare
# sentences. Without a network run `pretrain.ipynb` first, and set `CHECKPOINT` to the
# model that it makes, `runs/notebook/my_bert`.

# %%
import os

# A name on the Hugging Face Hub, a Hugging Face folder, Google's files, a run of bert_jax.
CHECKPOINT = os.environ.get("CHECKPOINT", "sentence-transformers/all-MiniLM-L6-v2")

import matplotlib.pyplot as plt
import numpy as np

import bert_jax
from bert_jax import figures

SENSES = {
    "money": [
        "She opened an account at the bank in town.",
        "The bank raised the interest on its loans.",
        "He had to ask the bank for more money.",
        "Our bank closes its counters at noon.",
    ],
    "river": [
        "They sat on the bank and watched the river.",
        "Willows grew along the muddy bank of the stream.",
        "The boat ran onto the bank in the flood.",
        "A heron stood on the grassy bank beside the water.",
    ],
}
OTHERS = [
    "We sat on the shore and watched the waves.",
    "The path along the edge of the stream was muddy.",
    "Reeds grew at the side of the pond.",
    "The water of the brook ran over the stones.",
    "He paid the loan back to the lender in town.",
    "She keeps her savings at an insurance company.",
    "The office of the firm closes at noon.",
    "The clerk counted the coins and wrote the sum down.",
]

model = bert_jax.load(CHECKPOINT)
model

# %% [markdown]
# ## 1. Everything that a model computes
#
# A call gives it all, as numpy arrays: a vector for each token after every layer, and
# for each head how much every token attends to every other one.

# %%
TEXT = "She opened an account at the bank because it was near."
out = model(TEXT, hidden_states=True, attentions=True)
print(out.tokens[0])
print("hidden states (embeddings and layers, texts, tokens, width):", end=" ")
print(out.hidden_states.shape)
print("attentions (layers, texts, heads, from token, to token):", end=" ")
print(out.attentions.shape)

# %% [markdown]
# ## 2. Where each head looks
#
# A head is one way of looking at a sentence. Each row of a heat map is a token, and
# tells which tokens it reads: its numbers add up to 1. These are all heads of the first
# layer.

# %%
figures.attention_heads(model, TEXT, layer=0)

# %% [markdown]
# *Some heads of a first layer look at what is near: the token itself, the one before,
# the one after. These show as diagonals.*
#
# In later layers many heads look at `[CLS]`, `[SEP]` or the full stop. That is how a
# head says that it has found nothing.

# %%
figures.attention_heads(model, TEXT, layer=-1)

# %% [markdown]
# *The heads of the last layer. A dark column is a token that every other one looks at.*
#
# How far does a head look? The mean distance between a token and those that it attends
# to, for every head:

# %%
attention_KNLL = out.attentions[:, 0]
tokens = len(out.tokens[0])
distance = np.abs(np.subtract.outer(np.arange(tokens), np.arange(tokens)))
far_KN = (attention_KNLL * distance).sum(axis=-1).mean(axis=-1)
fig, ax = plt.subplots(figsize=(6, 2.8), layout="constrained")
image = ax.imshow(far_KN, cmap="Blues", vmin=0)
ax.set(xlabel="head", ylabel="layer")
fig.colorbar(image, label="mean distance, tokens")
plt.show()

# %% [markdown]
# *Pale heads look at their neighbours, dark ones across the sentence.*
#
# ## 3. One head as lines
#
# Of all heads take the one that looks most at the token before, and draw it. A line
# goes from each word at the left to the words that it reads at the right. The wider,
# the more.

# %%
to_previous_KN = np.diagonal(attention_KNLL, offset=-1, axis1=2, axis2=3).mean(axis=-1)
layer, head = np.unravel_index(to_previous_KN.argmax(), to_previous_KN.shape)
print(f"layer {layer}, head {head}: {to_previous_KN.max():.0%} to the token before")
figures.attention_lines(model, TEXT, layer=int(layer), head=int(head))

# %% [markdown]
# *Clark et al. (2019) found heads like this one in BERT BASE, and others that look from
# a verb to its object or from "it" to its noun. A head that looks at one thing is a
# find, not a proof: what it reads may still be ignored later.*
#
# ## 4. One word, two senses
#
# A bank is a house for money or the edge of a river. The embeddings of both words differ
# only by position. Do the layers separate the two senses? `word_vectors` averages the
# tokens of each word. The cosine of two vectors measures how similar they are.


# %%
def word_vectors(texts):
    """The words of each text, and their unit vectors (layers + 1, words, width)."""
    out = model(texts, hidden_states=True)
    for row, tokens in enumerate(out.tokens):
        words = " ".join(tokens).replace(" ##", "").split()
        first = [i for i, token in enumerate(tokens) if not token.startswith("##")]
        states_KLD = out.hidden_states[:, row, : len(tokens)]
        vectors_KWD = np.add.reduceat(states_KLD, first, axis=1)
        yield words, vectors_KWD / np.linalg.norm(vectors_KWD, axis=-1, keepdims=True)


texts = [text for group in SENSES.values() for text in group]
sense_T = np.repeat(list(SENSES), [len(group) for group in SENSES.values()])
bank_KTD = np.stack([v[:, w.index("bank")] for w, v in word_vectors(texts)], axis=1)
cosine_KTT = np.einsum("ktd,kud->ktu", bank_KTD, bank_KTD)
same_TT = sense_T[:, None] == sense_T
different_K = cosine_KTT[:, ~same_TT].mean(axis=1)
same_K = cosine_KTT[:, same_TT & ~np.eye(len(texts), dtype=bool)].mean(axis=1)
best = int((same_K - different_K).argmax())

fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
left.plot(same_K, "o-", label="the same sense")
left.plot(different_K, "s--", label="different senses")
left.set(xlabel="layer (0: the embeddings)", ylabel="mean cosine of two vectors")
left.legend()
image = right.imshow(cosine_KTT[best], cmap="Blues")
right.set_title(f"layer {best}")
right.set_yticks(range(len(texts)), [text[:30] for text in texts], fontsize=8)
fig.colorbar(image, label="cosine")
plt.show()

# %% [markdown]
# *Left: if the line of different senses is below the other line, the model knows which
# bank is meant. Right: all pairs of the eight sentences, at the layer that separates the
# senses best. The two senses are the squares along the diagonal.*
#
# ## 5. Nearest words, layer by layer
#
# Which words of other sentences are most similar to the bank of a stream, and which to
# the bank in town?


# %%
def print_nearest(text, top=4):
    """Prints the words of OTHERS that are nearest to "bank" in a text, for each layer."""
    (words, own_KWD), *others = word_vectors([text, *OTHERS])
    bank_KD = own_KWD[:, words.index("bank")]
    names, vectors = [], []
    for other, vectors_KWD in others:
        for i in range(1, len(other) - 1):  # without [CLS] and [SEP]
            names.append(f"{other[i - 1]} *{other[i]}* {other[i + 1]}")
            vectors.append(vectors_KWD[:, i])
    cosine_CK = np.einsum("ckd,kd->ck", vectors, bank_KD)
    print(text)
    for layer, cosine_C in enumerate(cosine_CK.T):
        nearest = np.argsort(-cosine_C)[:top]
        shown = [f"{names[i]} {cosine_C[i]:.2f}" for i in nearest]
        print(f"layer {layer}: {', '.join(shown)}")


print_nearest(SENSES["river"][1])
print()
print_nearest(SENSES["money"][0])

# %% [markdown]
# *Each entry shows a word between its neighbours, and its cosine with "bank". If words
# about money stay near the bank of a stream, the model prefers the sense that was more
# frequent in its training text.*
#
# ## 6. How much a layer changes a token
#
# The cosine between a token's vector before and after each layer. Where it is low, the
# layer has added much.

# %%
states_KLD = out.hidden_states[:, 0]
states_KLD = states_KLD / np.linalg.norm(states_KLD, axis=-1, keepdims=True)
kept_KL = (states_KLD[1:] * states_KLD[:-1]).sum(axis=-1)
fig, ax = plt.subplots(figsize=(7, 2.8), layout="constrained")
image = ax.imshow(kept_KL, cmap="Blues_r", vmax=1)
ax.set_xticks(range(tokens), out.tokens[0], rotation=45, ha="right")
ax.set_yticks(range(len(kept_KL)), [f"layer {i}" for i in range(len(kept_KL))])
fig.colorbar(image, label="cosine of before and after")
plt.show()

# %% [markdown]
# *Dark: the layer changed the token much.*
#
# ## What to try next
#
# - Your own word: `SENSES` with "spring", "match", "bat", "light", and a sentence for
#   each sense.
# - `CHECKPOINT = "google-bert/bert-base-uncased"`: 12 layers of 12 heads, and the heads
#   of Clark et al. can be found again.
# - A pair: `model((question, text), attentions=True)`, and see whether the question
#   looks at the answer.
# - Before and after fine-tuning: which layers changed?
