# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # Question answering
#
# Given a text and a question, BERT marks the part of the text that is the answer. It
# computes two numbers for each token: how likely the answer starts there, and how likely
# it ends there.
#
# SQuAD, the data set of the paper, has 87,599 questions about Wikipedia. This notebook
# generates its own data, so that it runs in minutes: short lives of people who never
# lived, with questions about them. We then know exactly what the model has seen, and can
# test it on what it has not seen: new people, other words, and texts that a person wrote.
# With `DATA = "squad"` it learns from 2,000 questions of SQuAD instead (5 MB).
#
# The pretrained model is all-MiniLM-L6-v2 (90 MB). Without a network, run
# `pretrain.ipynb` first and set `CHECKPOINT` to its model, `runs/notebook/my_bert`.

# %%
import os
from pathlib import Path

SHORT = bool(os.environ.get("NOTEBOOK_SHORT"))  # the test suite runs a short form

DATA = "lives"  # or "squad"
# A name on the Hugging Face Hub, a folder of Hugging Face or Google, or a run of bert_jax.
CHECKPOINT = os.environ.get("CHECKPOINT", "sentence-transformers/all-MiniLM-L6-v2")
FOLDER = Path("runs/question_answering")  # another name starts a new run

import random
import shutil
import urllib.request

import jax
import matplotlib.pyplot as plt
import numpy as np

import bert_jax
from bert_jax import figures

jax.devices()

# %% [markdown]
# ## 1. Texts and questions
#
# There are several sentences and several questions for each fact of a life. The last
# question for each fact is only for the test.

# %%
FIRST = """Mira Tomas Ines Olaf Petra Hugo Lena Marek Sofia Anton Greta Pavel Nora Elias
Vera Jonas Alma Felix Irina Oskar Tilda Bruno Klara Viktor""".split()
LAST = """Solberg Kovac Lindqvist Moreau Haller Varga Petrov Brandt Okafor Silva Novak
Rossi Keller Dahl Fischer Marin Toth Weiss Lund Costa""".split()
TOWNS = """Torvik Belmar Ostrava Linden Corva Halden Marsk Pelago Vintra Ruhla Estmere
Savona Kelso Brava Norden Almira Tarnow Felsen Ulmo Grenna""".split()
CRAFTS = """clockmaker printer glassblower carpenter chemist painter surveyor weaver
botanist engraver bookbinder locksmith""".split()
WORKS = """bridge observatory library theatre canal lighthouse orchestra museum railway
garden""".split()

SAID = {
    "born": ["{p} was born in {born}.", "In {born} {p} was born."],
    "home": ["{p} grew up in {home}.", "As a child {p} lived in {home}."],
    "craft": ["{p} was trained as a {craft}.", "At first {p} worked as a {craft}."],
    "teacher": ["{p} was taught by {teacher}.", "{p} learned from {teacher}."],
    "work": [
        "Later {p} built a {work} in {town}.",
        "{p} planned the {work} of {town}.",
    ],
    "ended": ["{p} retired in {ended}.", "In {ended} {p} stopped working."],
}
ASKED = {
    "born": [
        "When was {p} born?",
        "What year was {p} born in?",
        "How early was {p} born?",
    ],
    "home": ["Where did {p} grow up?", "In which town was {p} a child?"],
    "craft": ["What was {p} trained as?", "What did {p} work as?", "{p} was what?"],
    "teacher": [
        "Who taught {p}?",
        "From whom did {p} learn?",
        "Who was {p}'s teacher?",
    ],
    "work": ["What did {p} build?", "What did {p} plan?", "What did {p} leave behind?"],
    "ended": ["When did {p} retire?", "In which year did the work of {p} end?"],
}
PEOPLE = [f"{first} {last}" for first in FIRST for last in LAST]


def lives(draw, new_words):
    """Rows (question, context, answer) about a text on two people."""
    sentences, asked = [], []
    names = draw.sample(PEOPLE, 4)
    for name, teacher in zip(names[:2], names[2:], strict=True):
        born = draw.randrange(1700, 1890)
        home, town = draw.sample(TOWNS, 2)
        facts = dict(p=name, teacher=teacher, home=home, town=town, born=str(born))
        facts |= dict(craft=draw.choice(CRAFTS), work=draw.choice(WORKS))
        facts |= dict(ended=str(born + draw.randrange(30, 60)))
        told = sorted(draw.sample(list(SAID), 4), key=list(SAID).index)
        sentences += [draw.choice(SAID[key]).format(**facts) for key in told]
        for key in draw.sample(told, 2):
            *known, new = ASKED[key]
            question = new if new_words else draw.choice(known)
            asked.append((question.format(**facts), facts[key]))
    context = " ".join(sentences)
    return [(q, context, answer) for q, answer in asked if context.count(answer) == 1]


def questions(count, seed, new_words=False):
    """As many rows."""
    draw, rows = random.Random(seed), []
    while len(rows) < count:
        rows += lives(draw, new_words)
    return rows[:count]


question, context, answer = questions(1, seed=9)[0]
print(context, question, answer, sep="\n\n")

# %% [markdown]
# There are three tests, each harder than the one before: new people in the words of the
# training, questions in new words, and texts that a person wrote.

# %%
BY_HAND = [
    (
        "The old mill stands two miles north of Harlow. It was rebuilt in 1832, "
        "after a fire, by a widow named Agnes Thorne. She ground flour there "
        "for eleven years.",
        [
            ("Who rebuilt the mill?", "Agnes Thorne"),
            ("When was the mill rebuilt?", "1832"),
            ("What did she grind?", "flour"),
            ("How long did she grind flour?", "eleven years"),
        ],
    ),
    (
        "Captain Reyes left Lisbon in May with two ships. Storms drove him "
        "south, and in August he reached an island without a name. He called it "
        "Espera.",
        [
            ("Who left Lisbon?", "Captain Reyes"),
            ("How many ships did he have?", "two"),
            ("What did he call the island?", "Espera"),
            ("When did he reach the island?", "August"),
        ],
    ),
    (
        "Copper melts at 1085 degrees. Tin melts at 232 degrees, which is why "
        "the two were mixed: bronze is easier to cast than copper, and harder "
        "than either.",
        [
            ("At how many degrees does tin melt?", "232"),
            ("What is easier to cast than copper?", "bronze"),
        ],
    ),
]
by_hand = [(q, text, answer) for text, asked in BY_HAND for q, answer in asked]
size = 24 if SHORT else 2000
count = size // 12  # of each split that is only evaluated
train, dev = questions(size, seed=0), questions(count, seed=1)
tests = {
    "new people": questions(count, seed=2),
    "new words": questions(count, seed=3, new_words=True),
    "by hand": by_hand,
}

# %% [markdown]
# The dev file of SQuAD has 48 articles. Here the first 12 are for training, and two of the
# last four for each of the other splits.

# %%
SQUAD = "https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v1.1.json"


def squad(path, articles, count):
    """Rows of some articles of a SQuAD file."""
    import json

    data = json.loads(path.read_text(encoding="utf-8"))["data"][articles]
    paragraphs = [p for article in data for p in article["paragraphs"]]
    return [
        {"question": q["question"], "context": p["context"], "answers": q["answers"]}
        for p in paragraphs
        for q in p["qas"]
    ][:count]


if DATA == "squad":
    FOLDER.parent.mkdir(exist_ok=True)
    path, _ = urllib.request.urlretrieve(SQUAD, FOLDER.parent / "squad.json")
    train, dev = squad(path, slice(12), 2000), squad(path, slice(44, 46), 300)
    tests |= {"articles of SQuAD": squad(path, slice(46, 48), 300)}

# %% [markdown]
# ## 2. Fine-tune
#
# A text that is longer than `max_length` is read in overlapping windows. SQuAD has two
# scores: exact match means that the answer is right to the letter, and F1 measures how many
# of its words are right.

# %%
length = min(160, bert_jax.load(CHECKPOINT).config.max_positions)
if SHORT:
    shutil.rmtree(FOLDER, ignore_errors=True)
model = bert_jax.finetune(
    bert_jax.tasks.squad(max_length=length, stride=length // 3, max_question_length=32),
    init_from=CHECKPOINT,
    train=train,
    dev=dev,
    workdir=FOLDER,
    compute=dict(dtype="auto"),  # bfloat16 if the processor is faster with it
    epochs=1 if SHORT else 2,
    evaluations=1 if SHORT else 3,
    batch_size=16,
    learning_rate=2e-4,
    bias_correction=True,
    log_every=1 if SHORT else 25,
)
model

# %%
figures.curves(FOLDER)

# %% [markdown]
# *The training loss, and the scores on questions about people who are not in the training
# texts.*
#
# ## 3. Score
#
# `evaluate` computes the scores of any labelled rows.

# %%
found = {name: model.evaluate(rows) for name, rows in tests.items()}
fig, ax = plt.subplots(figsize=(6, 2.4), layout="constrained")
for shift, (metric, label) in enumerate({"exact_match": "exact", "f1": "F1"}.items()):
    y = np.arange(len(found)) + 0.35 * shift
    bars = ax.barh(y, [scores[metric] for scores in found.values()], 0.33, label=label)
    ax.bar_label(bars, fmt=" %.0f")
ax.set_yticks(
    np.arange(len(found)) + 0.17, [f"{n}, {len(tests[n])} questions" for n in tests]
)
ax.set(xlim=(0, 110), xlabel="% of the questions")
ax.invert_yaxis()
ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# *The model on three tests. It answers questions about new people well, and is worse at
# new words and at texts about other topics. A good score on data like the training data
# does not promise a good score on other data.*
#
# ## 4. Look at answers
#
# Every answer has a probability and a list of the next best answers.

# %%
rows = tests["by hand"]
answers = model.predict([(question, context) for question, context, _ in rows])
for (question, _, right), answer in zip(rows, answers, strict=True):
    mark = "  " if answer["answer"] == right else "x "
    print(f"{mark}{question:38} {answer['answer']:28} ", end="")
    print(f"{answer['probability']:4.0%}   (right: {right})")

# %% [markdown]
# ## 5. Which words belong to the answer
#
# The model gives a probability to each part of the text that could be the answer. The sum
# over all parts that contain a word is the probability that the word belongs to the answer.

# %%
question, context, right = rows[1]
answer = model.predict((question, context))
weight = np.zeros(len(context))
for guess in answer["nbest"]:
    start = context.find(guess["text"])
    weight[start : start + len(guess["text"])] += guess["probability"]
words, place, shares = context.split(), 0, []
for word in words:
    place = context.index(word, place)
    shares.append(weight[place : place + len(word)].max())
fig, ax = plt.subplots(figsize=(9, 2.4), layout="constrained")
ax.bar(range(len(words)), shares)
ax.set_xticks(range(len(words)), words, rotation=60, ha="right", fontsize=8)
ax.set(ylim=(0, 1), ylabel="in the answer", title=question)
plt.show()

# %% [markdown]
# *The probability that each word is a part of the answer.*
#
# ## 6. Ask your own

# %%
TEXT = "The lighthouse of Skarn was lit in 1871. Its first keeper was Ada Moen."
for question in ["Who was the first keeper?", "When was it lit?", "Where is it?"]:
    answer = model.predict((question, TEXT))
    print(f"{question:28} {answer['answer']:20} {answer['probability']:.0%}")

# %% [markdown]
# The text answers the last question only by a part of a name, but the model must always
# mark something. With `bert_jax.tasks.squad(version_2=True)` it learns from SQuAD 2.0,
# which has questions without an answer, when to give none.
#
# ## Next steps
#
# - Train on real questions with `DATA = "squad"`: 2,000 questions give an F1 of about 48,
#   in five minutes on two cores.
# - Train on all of SQuAD from `google-bert/bert-base-uncased`, on a TPU or GPU:
#   `bert_jax finetune --config squad`. The paper has an F1 of 88.5.
# - Try a long text, which is read in overlapping windows.
# - `see_inside.ipynb` draws where the question looks.
