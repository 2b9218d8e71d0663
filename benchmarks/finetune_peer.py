"""The worker of finetune.py that runs Hugging Face's Trainer on a GPU or the CPU.

Each batch is padded to its longest sequence. Batches are random or of similar lengths.
AdamW, 10% warmup, linear decay, weight decay 0.01 except on biases and LayerNorm, gradients
clipped at 1. bfloat16: products only. The dev set is scored after each epoch, and nothing
is saved.

It needs an environment of its own:
  pip install torch==2.13.0 transformers==5.24.0 accelerate seqeval
"""

import collections
import functools
import importlib
import json
import re
import string
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from common import answer
from transformers.trainer_callback import PrinterCallback

NOT_SCORED = -100  # torch's cross entropy ignores this label
COLLATORS = {
    "MultipleChoice": transformers.DataCollatorForMultipleChoice,
    "TokenClassification": transformers.DataCollatorForTokenClassification,
}


class Job(NamedTuple):
    """Examples of train and dev, head of the model, and dev score in percent."""

    train: list[dict[str, Any]]
    dev: list[dict[str, Any]]
    head: str
    score: Callable[[Any], float]
    labels: int | None = None


class TimedTrainer(transformers.Trainer):
    """A Trainer that times its evaluations and counts the tokens of its batches."""

    def __init__(self, job, **kwargs):
        super().__init__(train_dataset=job.train, eval_dataset=job.dev, **kwargs)
        self.job, self.scores, self.evaluation_seconds = job, [], 0.0
        self.tokens = self.padded_tokens = 0

    def training_step(self, model, inputs, *args, **kwargs):
        self.padded_tokens += inputs["attention_mask"].numel()
        self.tokens += int(inputs["attention_mask"].sum())
        return super().training_step(model, inputs, *args, **kwargs)

    def _get_eval_sampler(self, eval_dataset):
        """Dev in its order, because the Trainer would also sort it by length."""
        return torch.utils.data.SequentialSampler(eval_dataset)

    def evaluate(self, *args, **kwargs):
        """Scores the dev set."""
        start = time.perf_counter()
        self.scores.append(
            float(self.job.score(self.predict(self.job.dev).predictions))
        )
        self.evaluation_seconds += time.perf_counter() - start
        return {"eval_score": self.scores[-1]}


def measure(options):
    """Seconds of training without evaluation, padding, steps, best dev score."""
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    transformers.set_seed(options.seed)  # also seeds the new head
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    options.data = Path(options.data)
    job = TASKS[options.task](options, tokenizer)
    model = getattr(transformers, f"AutoModelFor{job.head}").from_pretrained(
        options.model,
        dtype=torch.float32,
        **({"num_labels": job.labels} if job.labels else {}),
    )
    collator = COLLATORS.get(job.head, transformers.DataCollatorWithPadding)
    with tempfile.TemporaryDirectory() as folder:
        settings = transformers.TrainingArguments(
            output_dir=folder,
            use_cpu=not torch.cuda.is_available(),
            bf16=options.dtype == "bfloat16",
            seed=options.seed,
            train_sampling_strategy=options.sampling,
            num_train_epochs=options.epochs,
            per_device_train_batch_size=options.batch,
            per_device_eval_batch_size=options.batch,
            learning_rate=options.rate,
            lr_scheduler_type="linear",
            warmup_steps=0.1,  # below 1: share of all steps
            weight_decay=0.01,
            max_grad_norm=1.0,
            eval_strategy="epoch",
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        trainer = TimedTrainer(
            job, model=model, args=settings, data_collator=collator(tokenizer)
        )
        trainer.remove_callback(PrinterCallback)
        state = trainer.train()
    seconds = state.metrics["train_runtime"] - trainer.evaluation_seconds
    return {
        "train_seconds": seconds,
        "padding_share": 1 - trainer.tokens / trainer.padded_tokens,
        "steps": state.global_step,
        "score": max(trainer.scores),
    }


def read_rows(path, *, header=False):
    """The fields of the lines of a tab-separated file. Quotes have no meaning."""
    text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    rows = [line.split("\t") for line in text.removesuffix("\n").split("\n")]
    return rows[1:] if header else rows


def to_examples(encoding, labels):
    """One dictionary for each example, with its label."""
    return [
        {name: values[i] for name, values in encoding.items()} | {"labels": label}
        for i, label in enumerate(labels)
    ]


def accuracy(labels, logits):
    """Accuracy in percent."""
    return 100 * np.mean(logits.argmax(-1) == np.array(labels))


def pearson(labels, outputs):
    """Pearson's correlation in percent."""
    return 100 * np.corrcoef(labels, outputs[:, 0])[0, 1]


def texts(
    options, tokenizer, *, files, columns, label, kind=int, labels=2, score=accuracy
):
    """Texts or pairs in ``columns``. kind: type of the label in column ``label``."""
    splits = []
    for file, limit in zip(files, (options.rows or None, None), strict=True):
        rows = read_rows(options.data / file, header=True)
        # One line of SICK is published broken in two.
        rows = [row for row in rows if len(row) == len(rows[-1])][:limit]
        parts = [[row[column] for row in rows] for column in columns]
        encoding = tokenizer(*parts, truncation=True, max_length=options.length)
        splits.append(to_examples(encoding, [kind(row[label]) for row in rows]))
    train, dev = splits
    score = functools.partial(score, [example["labels"] for example in dev])
    return Job(train, dev, "SequenceClassification", score, labels)


def codah(options, tokenizer):
    """CODAH: one of four endings of a prompt; the first of its folds."""
    rows = read_rows(options.data / "multiple_choice" / "codah.tsv")

    def encode(split):
        prompts = [row[1] for row in split for _ in range(4)]
        choices = [choice for row in split for choice in row[2:6]]
        encoding = tokenizer(
            prompts, choices, truncation=True, max_length=options.length
        )
        by_row = {
            name: [values[i : i + 4] for i in range(0, len(values), 4)]
            for name, values in encoding.items()
        }
        return to_examples(by_row, [int(row[6]) for row in split])

    train = encode([row for i, row in enumerate(rows) if i % 5 > 1])
    dev = encode(rows[1::5])
    score = functools.partial(accuracy, [example["labels"] for example in dev])
    return Job(train, dev, "MultipleChoice", score)


def read_tagged(path):
    """Sentences of a file of two columns: a list of words and a list of tags each."""
    sentences = [([], [])]
    for fields in [*read_rows(path), [""]]:
        words, tags = sentences[-1]
        if fields[0].strip():
            words.append(fields[0])
            tags.append(fields[1].strip())
        elif words:
            sentences.append(([], []))
    return sentences[:-1]


def wnut17(options, tokenizer):
    """WNUT-17: entity F1. The first token of a word has its tag."""
    metrics = importlib.import_module("seqeval.metrics")
    folder = options.data / "ner" / "wnut17"
    splits = [
        read_tagged(folder / f"{name}.conll")
        for name in ("wnut17train", "emerging.dev")
    ]
    tags = sorted({tag for _, tags in splits[0] for tag in tags})
    numbers = {tag: i for i, tag in enumerate(tags)}

    def encode(split):
        encoding = tokenizer(
            [words for words, _ in split],
            is_split_into_words=True,
            truncation=True,
            max_length=options.length,
        )
        firsts = []
        for i in range(len(split)):
            words = encoding.word_ids(i)
            before = [None, *words]
            firsts.append(
                [w if w != b else None for w, b in zip(words, before, strict=False)]
            )
        labels = [
            # Tags that only the dev set has are never predicted.
            [
                NOT_SCORED if w is None else numbers.get(own[w], NOT_SCORED)
                for w in first
            ]
            for (_, own), first in zip(split, firsts, strict=True)
        ]
        return to_examples(encoding, labels), firsts

    train, _ = encode(splits[0])
    dev, firsts = encode(splits[1])
    expected = [own for _, own in splits[1]]

    def score(logits):
        answers = [["O"] * len(own) for own in expected]  # for truncated words as well
        for own, first, outputs in zip(answers, firsts, logits, strict=True):
            for j, word in enumerate(first):
                if word is not None:
                    own[word] = tags[int(outputs[j].argmax())]
        return 100 * metrics.f1_score(expected, answers, zero_division=0)

    return Job(train, dev, "TokenClassification", score, len(tags))


def read_questions(path, first, end):
    """The questions of articles ``first`` to ``end`` - 1, with their contexts."""
    articles = json.loads(path.read_text(encoding="utf-8"))["data"][first:end]
    return [
        {**question, "context": paragraph["context"]}
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


def windows(questions, tokenizer, length):
    """Model inputs, the question's number of each, and the context span of each token."""
    encoding = tokenizer(
        [question["question"].lstrip() for question in questions],
        [question["context"] for question in questions],
        truncation="only_second",
        max_length=length,
        stride=128,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    owners = encoding.pop("overflow_to_sample_mapping")
    spans = [
        {j: s for j, s in enumerate(row) if encoding.token_to_sequence(i, j) == 1}
        for i, row in enumerate(encoding.pop("offset_mapping"))
    ]
    examples = to_examples(encoding, owners)
    return examples, [example.pop("labels") for example in examples], spans


def target(answer, spans):
    """First and last token of an answer, or [CLS] if the window does not contain it."""
    start = answer["answer_start"]
    end = start + len(answer["text"])
    before = [j for j, span in spans.items() if span[0] <= start]
    after = [j for j, span in spans.items() if span[1] >= end]
    return (before[-1], after[0]) if before and after else (0, 0)


def best_span(context, its_windows):
    """The text of the best span of at most 30 tokens.

    its_windows: start logits, end logits and spans of each window of a question.
    """
    best, text = -np.inf, ""
    for start_logits, end_logits, spans in its_windows:
        inside = np.array(list(spans))
        starts, ends = (
            inside[np.argsort(-logits[inside])[:20]]
            for logits in (start_logits, end_logits)
        )
        scores = start_logits[starts][:, None] + end_logits[ends]
        lengths = ends - starts[:, None] + 1
        scores = np.where((lengths >= 1) & (lengths <= 30), scores, -np.inf)
        i, j = np.unravel_index(scores.argmax(), scores.shape)
        if scores[i, j] > best:
            best = scores[i, j]
            text = context[spans[starts[i]][0] : spans[ends[j]][1]]
    return text


def token_f1(text, truth):
    """F1 of two bags of words without case, punctuation and articles (evaluate-v1.1.py)."""
    bags = []
    for part in (text, truth):
        part = "".join(c for c in part.lower() if c not in string.punctuation)
        words = re.sub(r"\b(a|an|the)\b", " ", part).split()
        bags.append(collections.Counter(words))
    return 2 * (bags[0] & bags[1]).total() / max(1, sum(bag.total() for bag in bags))


def squad(options, tokenizer):
    """SQuAD 1.1's dev file, split by article as in finetune.py. F1."""
    path = options.data / "squad" / "dev-v1.1.json"
    train_questions = read_questions(path, 0, 36)[: options.rows or None]
    questions = read_questions(path, 36, 40)
    train, owners, spans = windows(train_questions, tokenizer, options.length)
    for example, owner, own in zip(train, owners, spans, strict=True):
        found = target(train_questions[owner]["answers"][0], own)
        example["start_positions"], example["end_positions"] = found
    dev, dev_owners, dev_spans = windows(questions, tokenizer, options.length)

    def score(logits):
        by_question = [[] for _ in questions]
        for owner, *window in zip(dev_owners, *logits, dev_spans, strict=True):
            by_question[owner].append(window)
        scores = []
        for question, its_windows in zip(questions, by_question, strict=True):
            text = best_span(question["context"], its_windows)
            scores.append(max(token_f1(text, t["text"]) for t in question["answers"]))
        return 100 * np.mean(scores)

    return Job(train, dev, "QuestionAnswering", score)


TASKS = {
    "sst2": functools.partial(
        texts,
        files=("glue/SST-2/train.tsv", "glue/SST-2/dev.tsv"),
        columns=(0,),
        label=1,
    ),
    "mrpc": functools.partial(
        texts,
        files=("glue/MRPC/train.tsv", "glue/MRPC/dev.tsv"),
        columns=(3, 4),
        label=0,
    ),
    "sick": functools.partial(
        texts,
        files=("sick/SICK_train.txt", "sick/SICK_trial.txt"),
        columns=(1, 2),
        label=3,
        kind=float,
        labels=1,
        score=pearson,
    ),
    "wnut17": wnut17,
    "squad": squad,
    "codah": codah,
}


if __name__ == "__main__":
    answer(measure)
