# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # See inside: attention, senses, layers
#
# This notebook shows which words each word attends to, in which layer the two senses of a
# word separate, and how much each layer changes a token.
#
# The model is `models/english` of bert_jax, a small model that learned English from 46 MB
# of text.

# %%
import os

# A name on the Hugging Face Hub, a folder of Hugging Face or Google, or a run of bert_jax.
CHECKPOINT = os.environ.get("ENGLISH", "../models/english")

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
# ## 1. Hidden states and attention
#
# A call returns numpy arrays: a vector for each token after every layer, and for each
# head the attention of every token to every token.

# %%
TEXT = "She opened an account at the bank because it was near."
out = model(TEXT, hidden_states=True, attentions=True)
print(out.tokens[0])
print("hidden states (embeddings and layers, texts, tokens, width):", end=" ")
print(out.hidden_states.shape)
print("attentions (layers, texts, heads, from token, to token):", end=" ")
print(out.attentions.shape)

# %% [markdown]
# ## 2. All heads of a layer
#
# Each heat map is a head of the first layer. A row is a token, and its columns show how
# much it attends to each token. A row adds up to 1.

# %%
figures.attention_heads(model, TEXT, layer=0)

# %% [markdown]
# *A diagonal is a head that attends to near tokens: the token itself, the token before or
# the token after. A dark column is a token to which many tokens attend.*
#
# In the later layers of a large BERT, many heads attend to `[CLS]`, `[SEP]` or the full
# stop if they find nothing else. This small model has only four layers of four heads.

# %%
figures.attention_heads(model, TEXT, layer=-1)

# %% [markdown]
# *The heads of the last layer.*
#
# The next picture shows the reach of every head: the mean distance between a token and
# the tokens that it attends to.

# %%
attention_KNLL = out.attentions[:, 0]
tokens = len(out.tokens[0])
distance = np.abs(np.subtract.outer(np.arange(tokens), np.arange(tokens)))
far_KN = (attention_KNLL * distance).sum(axis=-1).mean(axis=-1)
fig, ax = plt.subplots(figsize=(6, 2.8), layout="constrained")
image = ax.imshow(far_KN, cmap="Blues", vmin=0)
ax.set(xlabel="head", ylabel="layer")
ax.set(xticks=range(far_KN.shape[1]), yticks=range(len(far_KN)))
fig.colorbar(image, label="mean distance, tokens")
plt.show()

# %% [markdown]
# *Pale heads attend to near tokens, dark heads to distant tokens.*
#
# ## 3. One head as lines
#
# This is the head that attends most to the token before. A line connects a word on the
# left with a word on the right to which it attends. A wide line is a high probability.

# %%
to_previous_KN = np.diagonal(attention_KNLL, offset=-1, axis1=2, axis2=3).mean(axis=-1)
layer, head = np.unravel_index(to_previous_KN.argmax(), to_previous_KN.shape)
print(f"layer {layer}, head {head}: {to_previous_KN.max():.0%} to the token before")
figures.attention_lines(model, TEXT, layer=int(layer), head=int(head))

# %% [markdown]
# *Clark et al. (2019) found heads like this one in BERT BASE, and others that attend from
# a verb to its object or from "it" to its noun. Attention alone does not prove that later
# layers use what the head reads.*
#
# ## 4. One word, two senses
#
# A bank is a house for money or the edge of a river. The embedding of the word is the same
# in every sentence, because this model adds positions only to its attention. Do the layers
# separate the two senses? `word_vectors` adds up the token vectors of each word. The cosine
# of two vectors measures how similar they are.


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


def around_bank(text):
    """The word "bank" with two words before it and after it."""
    words = text.strip(".").split()
    place = words.index("bank")
    return " ".join(words[max(place - 2, 0) : place + 3])


texts = [text for group in SENSES.values() for text in group]
sense_T = np.repeat(list(SENSES), [len(group) for group in SENSES.values()])
bank_KTD = np.stack([v[:, w.index("bank")] for w, v in word_vectors(texts)], axis=1)
cosine_KTT = np.einsum("ktd,kud->ktu", bank_KTD, bank_KTD)
same_TT = sense_T[:, None] == sense_T
different_K = cosine_KTT[:, ~same_TT].mean(axis=1)
same_K = cosine_KTT[:, same_TT & ~np.eye(len(texts), dtype=bool)].mean(axis=1)
best = int((same_K - different_K).argmax())

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
left.plot(same_K, "o-", label="the same sense")
left.plot(different_K, "s--", label="different senses")
left.set(xlabel="layer (0: the embeddings)", ylabel="mean cosine of two vectors")
left.legend()
image = right.imshow(cosine_KTT[best], cmap="Blues")
right.set_title(f"layer {best}")
right.set_yticks(range(len(texts)), [around_bank(text) for text in texts], fontsize=8)
right.set_xticks([1.5, 5.5], list(SENSES))  # the middle of each sense's four columns
fig.colorbar(image, label="cosine")
plt.show()

# %% [markdown]
# *Left: if the line of different senses is below the other line, the model distinguishes
# the two banks. Right: all pairs of the eight sentences, at the layer that separates the
# senses best. The first four sentences are about money and the last four about a river.
# If the senses were separate, only the two squares along the diagonal would be dark. They
# are partly separate: most river banks are similar to each other, and "our bank", which
# closes at noon, is unlike all of them.*
#
# ## 5. Nearest words, layer by layer
#
# Which words of other sentences are most similar to the bank of a stream, and which to the
# bank in town?


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
# The picture shows the cosine between a token's vector before and after each layer. A low
# cosine means that the layer changed the vector a lot.

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
# *In dark cells the layer changed the token a lot.*
#
# ## Next steps
#
# - Use another word, such as "spring", "match", "bat" or "light", with sentences for each
#   sense.
# - Set `CHECKPOINT = "google-bert/bert-base-uncased"` to find the heads of Clark et al.
#   in 12 layers of 12 heads.
# - Call `model((question, text), attentions=True)` and see whether the question attends
#   to the answer.
# - Compare a model before and after fine-tuning: which layers changed?
