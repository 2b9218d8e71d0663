"""Tagging for the Trainer: WNUT-17's named entities."""

from pathlib import Path

import transformers
from seqeval.metrics import accuracy_score, f1_score
from tasks import Job, as_examples, cut, load_model, tab_rows

NOT_SCORED = -100  # the label that torch's cross entropy leaves out


def conll_sentences(path):
    """Words and tags of a two-column file, a sentence at a time.

    A separator line holds nothing, or blanks.
    """
    sentences, words, tags = [], [], []
    for fields in [*tab_rows(path, header=False), [""]]:
        if fields[0].strip():
            words.append(fields[0])
            tags.append(fields[1].strip())
        elif words:
            sentences.append((words, tags))
            words, tags = [], []
    return sentences


def wnut17(options, tokenizer):
    """WNUT-17: named entities; a word's tag is at its first token."""
    folder = Path(options.data) / "ner" / "wnut17"
    sentences = conll_sentences(folder / "wnut17train.conll")[: options.train_rows]
    held_out = conll_sentences(folder / "emerging.dev.conll")[: options.dev_rows]
    names = sorted({tag for _, tags in sentences for tag in tags})
    # A tag that only the dev set has is never predicted, and counts as missed.
    number = {name: i for i, name in enumerate(names)}

    def encode(split):
        encoding = tokenizer(
            [words for words, _ in split],
            is_split_into_words=True,
            truncation=True,
            max_length=options.max_length,
        )
        labels, first_tokens = [], []
        for i, (_, tags) in enumerate(split):
            words = encoding.word_ids(i)
            first = [
                w if w is not None and (j == 0 or w != words[j - 1]) else None
                for j, w in enumerate(words)
            ]
            first_tokens.append(first)
            labels.append(
                [
                    NOT_SCORED if w is None else number.get(tags[w], NOT_SCORED)
                    for w in first
                ]
            )
        return (
            as_examples(encoding, labels),
            first_tokens,
            cut(encoding),
        )

    train, _, cut_train = encode(sentences)
    dev, first_tokens, cut_dev = encode(held_out)
    expected = [tags for _, tags in held_out]

    def score(logits):
        answers = []
        for tags, first, outputs in zip(expected, first_tokens, logits, strict=True):
            # Words without a token (cut, or of unknown characters only) get no entity.
            answer = ["O"] * len(tags)
            for j, w in enumerate(first):
                if w is not None:
                    answer[w] = names[int(outputs[j].argmax())]
            answers.append(answer)
        return {
            "f1": 100 * float(f1_score(expected, answers, zero_division=0)),
            "accuracy": 100 * float(accuracy_score(expected, answers)),
        }

    return Job(
        train=train,
        dev=dev,
        model=load_model(
            transformers.AutoModelForTokenClassification, options, num_labels=len(names)
        ),
        collator=transformers.DataCollatorForTokenClassification(tokenizer),
        score=score,
        main_metric="f1",
        truncated=cut_train + cut_dev,
    )
