"""SQuAD 1.1 for the Trainer: windows, spans from their logits, exact match and F1."""

import collections
import json
import re
import string
from pathlib import Path

import numpy as np
import transformers
from tasks import Job, load_model

STRIDE = 128
N_BEST = 20
MAX_ANSWER = 30  # tokens


TRAIN_ARTICLES, DEV_ARTICLES = slice(0, 36), slice(36, 40)  # as finetune.py has them


def read_questions(path, which):
    """The questions of a slice of the articles."""
    articles = json.loads(Path(path).read_text(encoding="utf-8"))["data"]
    return [
        {
            # Blanks before a question would count against its window.
            "question": question["question"].lstrip(),
            "context": paragraph["context"],
            "answers": question["answers"],
        }
        for article in articles[which]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


def windows(questions, tokenizer, max_length):
    """Model inputs, the question of each, and each token's characters.

    A token that is not of the context has no characters: None.
    """
    encoding = tokenizer(
        [question["question"] for question in questions],
        [question["context"] for question in questions],
        truncation="only_second",
        max_length=max_length,
        stride=STRIDE,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    owners = encoding.pop("overflow_to_sample_mapping")
    offsets = [
        [
            span if part == 1 else None
            for span, part in zip(spans, encoding.sequence_ids(i), strict=True)
        ]
        for i, spans in enumerate(encoding.pop("offset_mapping"))
    ]
    inputs = [
        {name: values[i] for name, values in encoding.items()}
        for i in range(len(owners))
    ]
    return inputs, owners, offsets


def target(answer, spans):
    """First and last token of an answer; [CLS] where the window does not hold it all."""
    begin = answer["answer_start"]
    end = begin + len(answer["text"])
    context = [j for j, span in enumerate(spans) if span]
    if spans[context[0]][0] > begin or spans[context[-1]][1] < end:
        return 0, 0
    start = max(j for j in context if spans[j][0] <= begin)
    return start, min(j for j in context if spans[j][1] >= end)


def best_span(context, windows_of_question):
    """The text of the likeliest span.

    windows_of_question: (start logits, end logits, offsets) of each of its windows.
    """
    best, text = -np.inf, ""
    for start_logits, end_logits, spans in windows_of_question:
        inside = np.array([j for j, span in enumerate(spans) if span])
        starts = inside[np.argsort(-start_logits[inside])[:N_BEST]]
        ends = inside[np.argsort(-end_logits[inside])[:N_BEST]]
        scores = start_logits[starts][:, None] + end_logits[ends][None, :]
        lengths = ends[None, :] - starts[:, None] + 1
        scores = np.where((lengths >= 1) & (lengths <= MAX_ANSWER), scores, -np.inf)
        i, j = np.unravel_index(scores.argmax(), scores.shape)
        if scores[i, j] > best:
            best = scores[i, j]
            text = context[spans[starts[i]][0] : spans[ends[j]][1]]
    return text


def normalised(text):
    """Lower case without punctuation, articles and extra blanks (evaluate-v1.1.py)."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def token_f1(answer, truth):
    """F1 of the words of two normalised texts, of bags of words (evaluate-v1.1.py)."""
    answer, truth = answer.split(), truth.split()
    common = sum((collections.Counter(answer) & collections.Counter(truth)).values())
    if not common:
        return 0.0
    precision, recall = common / len(answer), common / len(truth)
    return 2 * precision * recall / (precision + recall)


def question_answering(options, tokenizer):
    """SQuAD 1.1's development file, split by article."""
    path = Path(options.data) / "squad" / "dev-v1.1.json"
    train_questions = read_questions(path, TRAIN_ARTICLES)[: options.train_rows]
    questions = read_questions(path, DEV_ARTICLES)[: options.dev_rows]
    train, owners, offsets = windows(train_questions, tokenizer, options.max_length)
    for example, owner, spans in zip(train, owners, offsets, strict=True):
        answer = train_questions[owner]["answers"][0]
        start, end = target(answer, spans)
        example["start_positions"], example["end_positions"] = start, end
    dev, dev_owners, dev_offsets = windows(questions, tokenizer, options.max_length)

    def score(logits):
        by_question = [[] for _ in questions]
        for owner, *window in zip(dev_owners, *logits, dev_offsets, strict=True):
            by_question[owner].append(window)
        exact, f1 = [], []
        for question, its_windows in zip(questions, by_question, strict=True):
            answer = normalised(best_span(question["context"], its_windows))
            truths = [normalised(truth["text"]) for truth in question["answers"]]
            exact.append(max(answer == truth for truth in truths))
            f1.append(max(token_f1(answer, truth) for truth in truths))
        return {
            "exact_match": 100 * float(np.mean(exact)),
            "f1": 100 * float(np.mean(f1)),
        }

    return Job(
        train=train,
        dev=dev,
        model=load_model(transformers.AutoModelForQuestionAnswering, options),
        collator=transformers.DataCollatorWithPadding(tokenizer),
        score=score,
        main_metric="f1",
        truncated=0,  # windows cover it all
    )
