import json
import re
import shutil
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import polars
import pytest
import scipy.special
from safetensors.numpy import load_file, save_file

import bert_jax
from bert_jax.errors import UserError
from bert_jax.inference import predict, scores
from bert_jax.inference.evaluation import OnDevices, Options, Rows
from bert_jax.inference.lines import write_answers
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.model.config import BertConfig, FeatureConfig
from bert_jax.model.tokens import Tokens
from bert_jax.objectives import heads
from bert_jax.objectives.networks import make_model
from bert_jax.tasks.rows import line_rows, placed_rows
from bert_jax.tasks.tagging_formats import spelled
from bert_jax.training.config import finetune_config
from bert_jax.training.finetune import finetune
from bert_jax.training.finetune_data import prepare
from bert_jax.training.workdir import RunFolder
from tests.word_tokenizer import TOKENIZER, WORDS

CONFIG = BertConfig(
    vocab_size=TOKENIZER.vocab_size,
    hidden_size=32,
    num_layers=1,
    num_heads=2,
    intermediate_size=32,
    max_positions=96,
    initializer_range=0.5,
)
EVAL = {"deterministic": True}
TAGS = ("B-LOC", "B-PER", "I-PER", "O")


def tiny(folder, head, outputs, **settings):
    """Writes a random checkpoint with this head; returns a function of its logits."""
    model = make_model(CONFIG, head, outputs, FeatureConfig())
    ids = jnp.zeros((1, 8), jnp.int32)
    tokens = Tokens.of_mask(ids, ids, ids + 1)
    init = jax.jit(lambda key: model.init(key, tokens, **EVAL))
    params = init(jax.random.key(outputs))["params"]
    checkpoint = Checkpoint(CONFIG, params, TOKENIZER, head, **settings)
    save_huggingface(folder, checkpoint)
    apply = jax.jit(lambda tokens: model.apply({"params": params}, tokens, **EVAL))

    def logits(*parts):
        ids, segments = [TOKENIZER.cls_id], [0]
        for segment, part in enumerate(parts):
            added = [*TOKENIZER.encode(part), TOKENIZER.sep_id]
            ids += added
            segments += [segment] * len(added)
        arrays = np.zeros((3, 1, CONFIG.max_positions), np.int32)
        arrays[:, 0, : len(ids)] = [ids, segments, [1] * len(ids)]
        output = np.asarray(apply(Tokens.of_mask(*arrays))[0], np.float64)
        return output[: len(ids)] if head in ("token", "span") else output[0]

    return logits


def sentences(count, seed=0):
    random = np.random.default_rng(seed)
    return [
        " ".join(random.choice(WORDS, random.integers(1, 30))) for _ in range(count)
    ]


def placed(model, lines):
    """Rows parsed from lines of a file, as in the command."""
    return line_rows(lines, "texts.txt", tabs=task_of(model).form.tabs)


def task_of(model, **options):
    return predict.fine_tuned(OnDevices(model), Options(**options)).task


def evaluated(model, data=None, **more):
    """The task, the split and the evaluation of each split."""
    return [*scores.evaluate(OnDevices(model), data, Options(), **more)]


@pytest.fixture
def parts(monkeypatch):
    """A function of a model, rows and a size that yields the answers in parts."""

    def parts(model, rows, size):
        monkeypatch.setattr("bert_jax.inference.evaluation.CHUNK", size)
        options = predict.PredictOptions(batch_size=8)
        return predict.predict(OnDevices(model), Rows(rows), options)

    return parts


def saved(family, **data):
    return {"extra": {"family": family, "data": data, "scores": {}}}


def assert_classes(answers, *logits):
    """Compares answers to the classes of logits computed by hand."""
    for answer, row_logits in zip(answers, logits, strict=True):
        expected = scipy.special.softmax(row_logits)
        by_label = answer["probabilities"]
        np.testing.assert_allclose(list(by_label.values()), expected, atol=1e-5)
        assert answer["label"] == list(by_label)[expected.argmax()]
        assert answer["probability"] == max(by_label.values())


@pytest.fixture(scope="module")
def sentiment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sentiment")
    logits = tiny(folder, "sequence", 3, labels=("bad", "fair", "good"))
    return bert_jax.load(folder), logits


@pytest.fixture(scope="module")
def tagger(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tagger")
    logits = tiny(folder, "token", 4, labels=TAGS)
    return bert_jax.load(folder), logits


def test_a_head_of_another_tool_reads_texts_and_pairs(sentiment):
    model, logits = sentiment
    rows = [("a man", "the dog eats"), {"text_a": "a cat", "text_b": "rome", "id": "7"}]
    expected = [logits("a man", "the dog eats"), logits("a cat", "rome")]
    answers = model.predict(rows)
    assert_classes(answers, *expected)
    assert answers[1]["id"] == "7"
    assert_classes(model.predict(["the film", *rows]), logits("the film"), *expected)
    mixed = [{"text": "the film"}, {"text": "a man", "text_b": "the dog eats"}]
    for bad in (mixed, mixed[::-1]):
        with pytest.raises(UserError, match="row 1: column text_b is"):
            model.predict(bad)


@pytest.mark.parametrize("first", ["text", "text_a"])
def test_predict_and_evaluate_read_the_same_pairs(sentiment, first):
    model, logits = sentiment
    pairs = [("a man", "the dog"), ("a cat", "rome"), ("the film", "bad")]
    rows = [{first: a, "text_b": b, "label": "good"} for a, b in pairs]
    ((_, _, evaluation),) = evaluated(model, rows)
    for answers in (model.predict(rows), evaluation.predictions):
        assert_classes(answers, *(logits(*pair) for pair in pairs))
    for place in (0, 3):
        missing, absent = [*rows], [*rows]
        missing.insert(place, rows[0] | {"text_b": None})
        absent.insert(place, {first: "a man", "label": "good"})
        with pytest.raises(UserError, match=f'row {place}: "text_b" is missing'):
            list(evaluated(model, missing))
        with pytest.raises(UserError, match=r"row .: column text_b is"):
            list(evaluated(model, absent))


def test_rows_keep_their_order_and_their_lines_in_parts(sentiment, parts):
    model, logits = sentiment
    texts = sentences(13)
    in_parts = list(parts(model, placed_rows(iter(texts)), 5))
    assert [len(part.answers) for part in in_parts] == [5, 5, 3]
    answers = [answer for part in in_parts for answer in part.answers]
    assert list(answers[0]["probabilities"]) == ["bad", "fair", "good"]
    assert_classes(answers, *map(logits, texts))
    stream = parts(model, placed(model, [*["a man"] * 7, "a\ta\ta", "a"]), 3)
    assert len(next(stream).answers) == 3
    with pytest.raises(UserError, match=r"^texts.txt:8 has 3 values"):
        list(stream)


def test_an_empty_text_is_cls_and_sep(sentiment):
    model, logits = sentiment
    texts = ["the film", "", " ", "\x00"]
    assert_classes(model.predict(texts), *map(logits, texts))
    assert_classes(model.predict([("", "the film")]), logits("", "the film"))


@pytest.mark.parametrize("rows", [["the man", "", "a cat"], [{"words": []}]])
def test_an_empty_text_has_no_tags(tagger, rows):
    answers = tagger[0].predict(rows)
    sizes = [len(row.split()) if isinstance(row, str) else 0 for row in rows]
    assert [len(answer["tags"]) for answer in answers] == sizes
    empty = answers[sizes.index(0)]
    assert empty.pop("offsets", []) == []
    assert empty == dict(words=[], tags=[], probabilities=[], entities=[])


def test_a_regression_head_predicts_a_number(tmp_path):
    logits = tiny(tmp_path / "m", "sequence", 1, problem_type="regression")
    texts = sentences(3)
    values = [
        answer["value"] for answer in bert_jax.load(tmp_path / "m").predict(texts)
    ]
    expected = [logits(text)[0] for text in texts]
    np.testing.assert_allclose(values, expected, atol=1e-5)


def test_a_saved_task_keeps_its_columns_and_length(tmp_path):
    labels = ("no", "yes")
    data = dict(task="table", text_a="premise", text_b="claim", labels=labels)
    notes = saved("classification", **data, max_length=9)
    logits = tiny(tmp_path / "m", "sequence", 2, labels=labels, **notes)
    model = bert_jax.load(tmp_path / "m")
    assert (task_of(model).family, task_of(model).config.max_length) == (
        "classification",
        9,
    )
    row = {"premise": "a man", "claim": "a man " * 9}
    assert_classes(model.predict([row]), logits("a man", "a man a man"))
    longer = model.predict([tuple(row.values())], max_length=96)
    assert_classes(longer, logits("a man", "a man " * 9))
    for pair, message in (
        ("a man", "row 0 has 1 value; expected"),
        ({"claim": "a man"}, "row 0: no column 'premise'"),
        ({"text": "a man"}, "row 0: no column 'claim'"),
    ):
        with pytest.raises(UserError, match=message):
            model.predict([pair])


def test_evaluate_counts_truncated_texts_and_takes_metrics(sentiment, caplog):
    model, _ = sentiment
    rows = [("the man " * 60, "good"), ("the man", "bad"), ("the dog " * 60, "bad")]

    def metrics(gold, predicted):
        assert gold == [label for _, label in rows] and len(predicted) == 3
        return {"own": len({*predicted})}

    ((_, _, evaluation),) = evaluated(model, rows, metrics=metrics)
    assert evaluation.scores["own"] >= 1 and "accuracy" in evaluation.scores
    assert caplog.messages == ["2 of 3 rows truncated to max_length=96"]
    ((_, _, evaluation),) = evaluated(model, rows[1:2])
    assert "own" not in evaluation.scores and len(caplog.messages) == 1


def test_one_label_that_a_text_has_or_not(tmp_path):
    """A folder of transformers with problem_type multi_label and one output."""
    several = {"problem_type": "multi_label_classification"}
    logits = tiny(tmp_path / "m", "sequence", 1, labels=("toxic",), **several)
    model = bert_jax.load(tmp_path / "m")
    assert model.labels == ("toxic",) and "of 'toxic'" in repr(model)
    model.save(tmp_path / "again")
    config = json.loads((tmp_path / "again/config.json").read_text())
    assert config["id2label"] == {"0": "toxic"}
    texts = ["the man", "a dog sees the man"]
    expected = scipy.special.expit([logits(text)[0] for text in texts])
    for loaded in (model, bert_jax.load(tmp_path / "again")):
        answers = loaded.predict(texts)
        actual = [answer["probabilities"]["toxic"] for answer in answers]
        np.testing.assert_allclose(actual, expected, atol=1e-5)
        assert [len(x["labels"]) for x in answers] == [p >= 0.5 for p in expected]
        np.testing.assert_allclose(
            scipy.special.expit(loaded.logits(texts)[:, 0]), expected, atol=1e-5
        )
        np.testing.assert_array_equal(loaded.predict_proba(texts)[:, 0], actual)
        rows = []
        for text, p in zip(texts, expected, strict=True):
            rows.append((text, ["toxic"] if p >= 0.5 else []))
        assert loaded.evaluate(rows)["exact_match"] == 100


def test_a_task_with_files_has_the_labels_of_the_head(tmp_path):
    """Neither the head nor the files have I-PER."""
    tiny(tmp_path / "m", "token", 2, labels=("O", "B-PER"))
    for split in ("train", "dev"):
        (tmp_path / f"{split}.txt").write_text("the O\nman B-PER\n\nparis O\n")
    task = bert_jax.tasks.tagging(dir=str(tmp_path), max_length=32)
    model = bert_jax.load(tmp_path / "m")
    ((same, split, _),) = evaluated(model, task=task)
    assert same.labels == ("O", "B-PER") and len(split.rows) == 2
    (tmp_path / "train.txt").write_text("the B-LOC\n")
    task = bert_jax.tasks.tagging(dir=str(tmp_path), max_length=32)
    with pytest.raises(
        UserError, match=r"with 2 outputs, but the task needs a \w+ head with 5"
    ):
        [*evaluated(model, task=task)]


def test_a_dictionary_of_columns_is_a_table(sentiment, tagger):
    model, _ = sentiment
    texts = ["the man", "a dog"]
    expected = model.predict(texts)
    assert model.predict({"text": texts}) == expected
    assert not predict.is_one_row(
        task_of(model), {"text": texts}
    ) and predict.is_one_row(task_of(model), {"text": "the man"})
    assert model.predict({"text": np.array(texts), "id": [4, 5]}) == [
        {"id": 4 + i} | answer for i, answer in enumerate(expected)
    ]
    labels = [answer["label"] for answer in expected]
    ((_, _, evaluation),) = evaluated(model, {"text": texts, "label": labels})
    assert evaluation.scores["accuracy"] == 100
    with pytest.raises(UserError, match=r"different lengths \(text has 2, id has 1\)"):
        model.predict({"text": texts, "id": [4]})
    # A list of words is one row, and lists of words are several.
    tags, _ = tagger
    words = [["the", "man"], ["paris"]]
    assert [tags.predict({"words": words[0]})] == tags.predict([words[0]])
    assert tags.predict({"words": words}) == tags.predict(words)
    assert predict.is_one_row(
        task_of(tags), {"words": words[0]}
    ) and not predict.is_one_row(task_of(tags), {"words": words})


def test_files_of_pairs_are_evaluated_by_a_head_of_another_tool(tmp_path):
    labels = ("no", "yes")
    logits = tiny(tmp_path / "m", "sequence", 2, labels=labels)
    folder = tmp_path / "pairs"
    folder.mkdir()
    row = {"text_a": "a man", "text_b": "the dog eats", "label": "yes"}
    (folder / "dev.jsonl").write_text(json.dumps(row))
    model = bert_jax.load(tmp_path / "m")
    ((task, split, evaluation),) = evaluated(model, directory=str(folder))
    assert split.rows[0].texts == ("a man", "the dog eats")
    assert_classes(evaluation.predictions, logits("a man", "the dog eats"))
    assert task.config.dir == str(folder)


def test_a_pair_is_refused_by_a_model_of_one_text(tmp_path):
    data = dict(task="table", text_a="review", labels=["no", "yes"], max_length=32)
    notes = saved("classification", **data)
    tiny(tmp_path / "m", "sequence", 2, labels=("no", "yes"), **notes)
    model = bert_jax.load(tmp_path / "m")
    row = {"text_a": "a man", "text_b": "the dog", "id": 7}
    for columns, message in (
        ((), "row 0: no column 'review' or 'text'; the columns are text_a, text_b"),
        (("text_a", "text_b"), "columns=.*text_a.*text_b.*, expected at most text_a"),
    ):
        with pytest.raises(UserError, match=message):
            model.predict([row], columns=columns)
    (expected,) = model.predict(["a man"])
    for answers in (
        model.predict([row], columns="text_a"),
        model.predict([{"review": "a man", "text_a": "a", "text_b": "b", "id": 7}]),
    ):
        assert answers == [{"id": 7} | expected]
    rows = [{"text": "a cat", "review": "a man"}, {"text": "a cat"}]
    for same in (rows, rows[::-1]):
        with pytest.raises(UserError, match=r"row 1: column review or text is"):
            model.predict(same)
    with pytest.raises(UserError, match='row 0: "review" is missing'):
        model.predict([rows[0] | {"review": None}])


def test_tags_equal_a_computation_by_hand(tagger):
    model, logits = tagger
    texts = ["the man sees rome .", "a", "paris , paris , big paris"]
    for text, answer in zip(texts, model.predict(texts), strict=True):
        expected = scipy.special.softmax(logits(text)[1:-1], axis=-1)
        assert answer["words"] == text.split()
        assert answer["tags"] == [TAGS[i] for i in expected.argmax(axis=-1)]
        np.testing.assert_allclose(
            answer["probabilities"], expected.max(axis=-1), atol=1e-5
        )
        spans = {(e["start"], e["end"]) for e in answer["entities"]}
        covered = {i for start, end in spans for i in range(start, end)}
        assert covered == {i for i, tag in enumerate(answer["tags"]) if tag != "O"}


@pytest.mark.parametrize(
    "name, first",
    [("a.conll", ""), ("a.conll", "the X\n"), ("b.conll", "-DOCSTART- O\n\n")],
)
def test_predict_and_evaluate_read_the_same_tagged_words(name, first, tagger, tmp_path):
    model, _ = tagger
    file = tmp_path / name
    file.write_text(f"{first}the O\nman O\n\nparis B-LOC\n")
    words = [answer["words"] for answer in model.predict(file)]
    first_words = ["the"] * first.startswith("the") + ["the", "man"]
    assert words == [first_words, ["paris"]]
    if not first.startswith("the"):
        assert [
            [*row.words] for _, split, _ in evaluated(model, file) for row in split.rows
        ] == words
    file = tmp_path / "texts.txt"
    for lines in (["the man", "paris"], ["see the man O", "the O sees"]):
        file.write_text("\n".join(lines))
        assert [" ".join(answer["words"]) for answer in model.predict(file)] == lines


def test_a_document_keeps_the_context_of_its_sentences(tmp_path, parts):
    data = dict(task="columns", labels=TAGS, document_context=True, max_length=32)
    tiny(tmp_path / "m", "token", 4, labels=TAGS, **saved("tagging", **data))
    model = bert_jax.load(tmp_path / "m")
    documents = [sentences(count, seed) for seed, count in enumerate((4, 3, 1))]
    lines = [line for document in documents for line in (*document, "")]
    in_parts = list(parts(model, placed(model, lines), 2))
    # An empty line ends a document.
    assert [len(part.answers) for part in in_parts] == [5, 4, 2]
    alone = [
        answer for document in documents for answer in model.predict([*document, ""])
    ]
    together = [answer for part in in_parts for answer in part.answers]
    assert [a["words"] for a in together] == [a["words"] for a in alone]
    for answer, other in zip(together, alone, strict=True):
        assert answer["tags"] == other["tags"]
        np.testing.assert_allclose(
            answer["probabilities"], other["probabilities"], atol=1e-5
        )


def test_choices_equal_a_computation_by_hand(tmp_path):
    logits = tiny(tmp_path / "m", "choice", 1)
    rows = [
        ("the man", ["eats", "sees rome", "a dog"]),
        ("a cat", ["a big film", "paris"]),
        ("where ?", ["rome", "paris", "the film", "who"]),
    ]
    rows.append(("", ["", "a cat"]))
    inputs = [{"context": rows[0][0], "choices": rows[0][1]}, *rows[1:]]
    inputs[1] = ("a cat", "a big film", "paris")
    answers = bert_jax.load(tmp_path / "m").predict(inputs)
    for (context, choices), answer in zip(rows, answers, strict=True):
        scores = [logits(context, choice)[0] for choice in choices]
        expected = scipy.special.softmax(scores)
        np.testing.assert_allclose(answer["probabilities"], expected, atol=1e-5)
        assert answer["text"] == choices[expected.argmax()]


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reader")
    logits = tiny(folder, "span", 2)
    return bert_jax.load(folder), logits


def test_an_answer_is_the_best_span_of_a_computation_by_hand(reader):
    model, logits = reader
    question, context = "who eats ?", "the big man sees a film . a dog eats"
    (answer,) = model.predict([(question, context)])
    words = context.split()
    scores = logits(question, context)[5:-1]
    best, first, last = max(
        (scores[i, 0] + scores[j, 1], i, j)
        for i in range(len(words))
        for j in range(i, len(words))
    )
    assert answer["answer"] == " ".join(words[first : last + 1])
    assert context[answer["start"] : answer["end"]] == answer["answer"]
    top = answer["nbest"][0]
    assert top["start_logit"] + top["end_logit"] == pytest.approx(best, abs=1e-4)


def test_questions_keep_their_numbers_and_squad_files_are_read(reader, parts, tmp_path):
    model = reader[0]
    lines = [f"who ?\t{text}" for text in sentences(7)]
    in_parts = list(parts(model, placed(model, lines), 3))
    assert [len(part.answers) for part in in_parts] == [3, 3, 1]
    ids = [answer["id"] for part in in_parts for answer in part.answers]
    assert ids == [str(n) for n in range(7)]
    questions = [{"id": f"q{i}", "question": "who ?", "answers": []} for i in range(5)]
    paragraph = {"context": "the man eats", "qas": questions}
    document = {"data": [{"title": "t", "paragraphs": [paragraph]}]}
    (tmp_path / "questions.json").write_text(json.dumps(document, indent=1))
    answers = model.predict(tmp_path / "questions.json")
    assert [answer["id"] for answer in answers] == ["q0", "q1", "q2", "q3", "q4"]
    assert len({json.dumps(answer["nbest"][0]["text"]) for answer in answers}) == 1


def test_a_task_of_another_kind_is_refused(tmp_path):
    tiny(tmp_path / "m", "span", 2, **saved("translation"))
    with pytest.raises(
        UserError, match="family 'translation', expected one of classif"
    ):
        bert_jax.load(tmp_path / "m").predict(["a"])


def test_a_head_without_its_pooler_is_refused(tmp_path):
    tiny(tmp_path / "m", "sequence", 2, labels=("x", "y"))
    weights = tmp_path / "m/model.safetensors"
    kept = {k: v for k, v in load_file(weights).items() if "pooler" not in k}
    save_file(kept, weights, metadata={"format": "pt"})
    with pytest.raises(
        UserError, match="lacks bert/pooler, which a sequence head needs"
    ):
        bert_jax.load(tmp_path / "m").predict(["a"])


def test_a_folder_without_a_vocabulary_is_refused(tmp_path):
    tiny(tmp_path / "m", "sequence", 2, labels=("x", "y"))
    (tmp_path / "m/vocab.txt").unlink()
    (tmp_path / "m/tokenizer.json").unlink()
    with pytest.raises(UserError, match="has no vocabulary"):
        bert_jax.load(tmp_path / "m").predict(["a"])


@pytest.mark.long
def test_a_model_on_frozen_features_predicts_like_its_run(settings, tmp_path):
    features = {"layers": (-2, -1), "width": 8}
    changes = {"epochs": 1, "log_every": 100, "features": features}
    config = finetune_config(settings("tagging", **changes))
    prepared = prepare(config, tmp_path, lambda line: None)
    finetune(config, prepared, RunFolder(tmp_path), lambda line: None)
    model = bert_jax.load(tmp_path)
    assert (task_of(model).family, task_of(model).config.max_length) == (
        config.family,
        24,
    )
    written = (tmp_path / "predictions/dev.conll").read_text().split()
    answers = model.predict([" ".join(row.words) for row in prepared.splits[0].rows])
    assert [tag for a in answers for tag in a["tags"]] == written[2::3]


def test_a_run_uses_the_tuned_threshold_for_dev_and_test(
    settings, tmp_path, eight_devices
):
    """SQuAD 2.0: predict gives the predictions in the run's files of dev and test.

    The threshold equals the score of a row, so both need the same program.
    """
    files = dict(train="train-v1.1.json", dev="dev-v1.1.json", test="dev-v1.1.json")
    data = dict(version_2=True, null_threshold=-1000.0, **files)
    config = finetune_config(settings("question_answering", epochs=1, data=data))
    prepared = prepare(config, tmp_path, lambda line: None)
    results = finetune(config, prepared, RunFolder(tmp_path), lambda line: None)
    dev = results["scores"]["dev"]
    assert dev["f1"] == pytest.approx(dev["tuned_f1"])
    rows = prepared.splits[0].rows
    answers = bert_jax.load(tmp_path).predict(
        [(row.question, row.context) for row in rows]
    )
    # With the untuned threshold of the config every answer would be empty.
    assert all(answer["answer"] for answer in answers)
    for split in ("dev", "test"):
        path = tmp_path / "predictions" / split / "predictions.json"
        written = json.loads(path.read_text())
        assert [a["answer"] for a in answers] == list(written.values())


def test_a_model_of_one_token_type_gives_it_to_both_texts_of_a_pair(tmp_path):
    tiny(tmp_path / "m", "sequence", 2, labels=("x", "y"))
    weights, path = tmp_path / "m/model.safetensors", tmp_path / "m/config.json"
    tensors, name = load_file(weights), "bert.embeddings.token_type_embeddings.weight"
    save_file(tensors | {name: tensors[name][:1]}, weights, metadata={"format": "pt"})
    path.write_text(json.dumps(json.loads(path.read_text()) | {"type_vocab_size": 1}))
    one = bert_jax.load(tmp_path / "m").predict([("the film", "the film")])
    tensors[name][1] = tensors[name][0]
    save_file(tensors, weights, metadata={"format": "pt"})
    path.write_text(json.dumps(json.loads(path.read_text()) | {"type_vocab_size": 2}))
    two = bert_jax.load(tmp_path / "m").predict([("the film", "the film")])
    assert one == two


def test_outputs_that_are_not_finite_are_an_error(tmp_path):
    """Products of large parameters overflow. JSON has no NaN."""
    tiny(tmp_path / "m", "sequence", 2, labels=("x", "y"))
    weights = tmp_path / "m/model.safetensors"
    tensors = load_file(weights)
    tensors["classifier.weight"] += np.float32(3e38)
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(UserError, match="the model's outputs are not finite numbers"):
        bert_jax.load(tmp_path / "m").predict(["the film"])


# Most likely labels, and logits


@pytest.mark.parametrize(
    "kind",
    ["classes", pytest.param("labels", marks=pytest.mark.long), "choices", "spans"],
)
def test_top_labels_are_the_first_of_all_labels(kind, tmp_path):
    head, rows, settings = (
        "sequence",
        ["the film", "a man"],
        {"labels": ("x", "y", "z")},
    )
    name, names = "label", ["x", "y", "z"]
    if kind == "labels":
        settings |= {"problem_type": "multi_label_classification"}
    elif kind == "choices":
        head, rows, settings = "choice", [("a man", "a cat", "rome", "the dog")] * 2, {}
        name, names = "choice", [0, 1, 2]
    elif kind == "spans":
        head, rows, settings = "span", [("who ?", "the big man eats")] * 2, {}
    tiny(tmp_path / "m", head, {"span": 2, "choice": 1}.get(head, 3), **settings)
    every = bert_jax.load(tmp_path / "m").predict(rows)
    for answer, other in zip(
        every, bert_jax.load(tmp_path / "m").predict(rows, top=2), strict=True
    ):
        top, rest = other.pop("top"), {"probabilities", "nbest"} & {*answer}
        if kind == "spans":
            assert top == answer["nbest"][:2]
        else:
            p = answer["probabilities"]
            p = p if kind == "choices" else [p[name] for name in names]
            order = np.argsort(-np.array(p), kind="stable")[:2]
            assert top == [{name: names[i], "probability": p[i]} for i in order]
        assert other == {key: x for key, x in answer.items() if key not in rest}


def test_top_needs_labels(tagger):
    message = "top=3, but a model for tagging does not rank answers; leave top"
    with pytest.raises(UserError, match=message):
        tagger[0].predict(["the man"], top=3)


def test_logits_of_labels_and_tags_equal_a_computation_by_hand(sentiment, tagger):
    texts = ["the film", "a man sees the dog eats", ""]
    _, logits = sentiment
    actual = sentiment[0].logits(texts)
    np.testing.assert_allclose(actual, [*map(logits, texts)], rtol=0, atol=1e-5)
    assert sentiment[0].logits([]).shape == (0, 3)
    *actual, empty = tagger[0].logits(texts)
    for row_logits, text in zip(actual, texts, strict=False):
        np.testing.assert_allclose(row_logits, tagger[1](text), rtol=0, atol=1e-5)
    assert empty.shape == (0, 4)  # no words, so no tags
    windows = tagger[0].logits(["the man " * 4], max_length=6)
    assert windows[0].shape[1] == 4 and len(windows[0]) > 6
    np.testing.assert_allclose(
        windows[0][:6], tagger[1]("the man the man"), rtol=0, atol=1e-5
    )


def test_logits_of_choices_and_spans_equal_a_computation_by_hand(reader, tmp_path):
    logits = tiny(tmp_path / "m", "choice", 1)
    rows = [
        ("a man", "a cat", "rome"),
        ("who", "the dog", "eats"),
        ("a", "a", "b", "c"),
    ]
    by_hand = [[logits(context, x)[0] for x in choices] for context, *choices in rows]
    actual = bert_jax.load(tmp_path / "m").logits(rows)
    for row_logits, expected in zip(actual, by_hand, strict=True):
        np.testing.assert_allclose(row_logits, expected, rtol=0, atol=1e-5)
    equal = bert_jax.load(tmp_path / "m").logits(rows[:2])
    np.testing.assert_allclose(equal, by_hand[:2], rtol=0, atol=1e-5)
    pair = ("who eats ?", "the big man sees a film")
    (actual,) = reader[0].logits([pair])
    np.testing.assert_allclose(actual, reader[1](*pair), rtol=0, atol=1e-5)


def test_logits_of_a_text_are_the_mean_of_its_windows(tmp_path):
    data = dict(task="table", labels=("no", "yes"), max_length=6)
    notes = saved("classification", **data, truncation="windows", stride=3)
    logits = tiny(tmp_path / "m", "sequence", 2, labels=("no", "yes"), **notes)
    actual = bert_jax.load(tmp_path / "m").logits(["the man sees a film", "rome"])
    windows = [logits("the man sees a"), logits("sees a film")]
    assert actual.shape == (2, 2)
    np.testing.assert_allclose(actual[1], logits("rome"), rtol=0, atol=1e-5)
    answer = bert_jax.load(tmp_path / "m").predict(["the man sees a film"])[0][
        "probabilities"
    ]
    expected = scipy.special.softmax(actual[0])
    np.testing.assert_allclose([*answer.values()], expected, rtol=0, atol=1e-6)
    assert np.abs(actual[0] - windows[0]).max() > 1e-3


def test_probabilities_are_an_array_in_the_order_of_the_labels(
    sentiment, tagger, tmp_path
):
    model, logits = sentiment
    texts = ["the film", "a man sees the dog eats"]
    actual = model.predict_proba(texts)
    assert (actual.dtype, actual.shape) == (np.float64, (2, 3))
    expected = scipy.special.softmax([logits(text) for text in texts], axis=1)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)
    for row, answer in zip(actual, model.predict(texts), strict=True):
        assert dict(zip(model.labels, row, strict=True)) == answer["probabilities"]
    np.testing.assert_allclose(model.predict_proba(texts[0]), actual[0], atol=1e-6)
    assert model.predict_proba([]).shape == (0, 3)
    with pytest.raises(UserError, match="a model for tagging has no probability for"):
        tagger[0].predict_proba(texts)
    tiny(tmp_path / "m", "choice", 1)
    choices = bert_jax.load(tmp_path / "m")
    rows = [("a man", "a cat", "rome"), ("a", "a", "b", "c")]
    two, three = choices.predict_proba(rows)
    assert (two.shape, three.shape) == ((2,), (3,))
    assert choices.predict_proba(rows[1:]).shape == (1, 3)
    answer, _ = choices.predict(rows)  # a batch of one row may round differently
    assert two.tolist() == answer["probabilities"]


def test_vectors_have_no_logits(tmp_path):
    tiny(tmp_path / "m", "mean", 1)
    with pytest.raises(UserError, match="no logits; use encode"):
        bert_jax.load(tmp_path / "m").logits([("a", "b")])


def test_methods_and_options_share_a_program(tmp_path, monkeypatch, capsys):
    tiny(tmp_path / "m", "sequence", 3, labels=("x", "y", "z"))
    traced, forward = [], heads.forward

    def counted(*args):
        traced.append(args)
        return forward(*args)

    monkeypatch.setattr(heads, "forward", counted)
    heads.jit_forward.cache_clear()
    rows, model = ["the film", "a man"], bert_jax.load(tmp_path / "m")
    assert len(model.predict(rows)) == len(model.predict(rows, top=2)) == 2
    for show in (True, False):  # the same program with and without a bar
        capsys.readouterr()
        model.predict(rows, show_progress=show)
        assert ("predicting" in capsys.readouterr().err) is show
    model.logits(rows)
    model.evaluate([*zip(rows, "xy", strict=True)])
    bert_jax.load(tmp_path / "m").predict(rows)
    assert len(traced) == 1


# Data frames


def test_a_frame_keeps_its_index_and_columns(sentiment):
    model, _ = sentiment
    texts = sentences(5)
    frame = pandas.DataFrame(
        {
            "label": pandas.Categorical(["good", "bad"] * 2 + ["bad"]),
            "text": texts,
            3: [1.5, None, 2.0, 3.0, 4.0],
        },
        index=[7, 3, 3, 1, 0],
    )
    kept = frame.copy()
    answered = model.predict(frame, as_frame=True)
    pandas.testing.assert_frame_equal(frame, kept)
    pandas.testing.assert_frame_equal(answered[[*kept]], kept)
    answers = model.predict(texts)
    for name in ("label", "probability"):
        column = answered[f"predicted_{name}"].tolist()
        assert column == [answer[name] for answer in answers]
    for label in ("bad", "fair", "good"):
        column = answered[f"predicted_probabilities.{label}"].tolist()
        assert column == [answer["probabilities"][label] for answer in answers]
    assert len({*answered}) == len(answered.columns) == 3 + 2 + 3
    pandas.testing.assert_frame_equal(model.predict(answered, as_frame=True), answered)
    pandas.testing.assert_frame_equal(
        model.predict(frame[:0], as_frame=True), answered[:0]
    )
    # Columns of an earlier prediction by another model are replaced.
    earlier = frame.assign(predicted_label="x", predicted_value=0.5)
    pandas.testing.assert_frame_equal(model.predict(earlier, as_frame=True), answered)
    rows = [{"text": "a man", "predicted_value": 0.5}]
    assert "predicted_value" not in model.predict(rows, as_frame=True)
    series = model.predict(frame["text"], as_frame=True)
    assert (series.index == frame.index).all()
    assert [*series][:2] == ["text_a", "predicted_label"]
    # Texts in a column of another name than in training.
    named = frame.rename(columns={"text": "review"})
    of_review = model.predict(named, columns="review", as_frame=True)
    new = [name for name in answered if str(name).startswith("predicted_")]
    pandas.testing.assert_frame_equal(of_review[new], answered[new])
    assert model.predict(named, columns="review") == answers
    for method in (model.predict_proba, model.logits):
        values = method(named, columns="review")
        np.testing.assert_array_equal(values, method(texts))


def test_other_rows_become_a_frame_with_the_names_of_the_task(sentiment, tagger):
    model, _ = sentiment
    expected = [answer["label"] for answer in model.predict(["a man", "the film"])]
    rows = [{"id": i, "text": x} for i, x in enumerate(["a man", "the film"])]
    for data in (iter(rows), polars.DataFrame(rows), pandas.DataFrame(rows)):
        answered = model.predict(data, as_frame=True)
        assert [*answered][:3] == ["id", "text", "predicted_label"]
        assert answered["predicted_label"].tolist() == expected
        assert answered["id"].tolist() == [0, 1]
    pair = model.predict(("a man", "the film"), as_frame=True)
    assert pair[["text_a", "text_b"]].values.tolist() == [["a man", "the film"]]
    tagged = tagger[0].predict(["the man", "rome"], as_frame=True)
    assert tagged.columns[0] == "text"  # which is not yet split into words
    assert tagged["text"].tolist() == ["the man", "rome"]
    assert tagger[0].predict([("the", "man")], as_frame=True).columns[0] == "words"
    assert tagged["predicted_words"].tolist() == [["the", "man"], ["rome"]]
    answers = tagger[0].predict(["the man", "rome"])
    assert tagged["predicted_tags"].tolist() == [answer["tags"] for answer in answers]


def test_answers_in_a_table_are_read_back(tagger, tmp_path):
    """Predicted tags become training data if their column is renamed."""
    model, _ = tagger
    words = [["the\rman", "it's", "(a)"], ["[1]"], ['rome "b"', "paris,", "é\n"]]
    rows = placed_rows([{"words": x} for x in words])
    path = tmp_path / "answers.csv"
    options = predict.PredictOptions()
    answers = predict.beside(OnDevices(model), Rows(rows), options)
    write_answers(answers, str(path), "csv")
    table = path.read_bytes().decode()
    path.write_bytes(table.replace("predicted_tags", "tags").encode())
    read = task_of(model).with_rows(dev=path).read("dev")
    assert [list(row.words) for row in read] == words
    # An I- at the start of an entity is read as B-.
    expected = [spelled(x["tags"], "iob2", "iob2") for x in model.predict(words)]
    assert [list(row.tags) for row in read] == expected


def test_pandas_may_be_missing(sentiment, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match=r"as_frame=True .*pip install pandas"):
        sentiment[0].predict(["a man"], as_frame=True)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("features", {"bert_jax": {}}, "a features head without 'bert_jax' in config"),
        (
            "features",
            {"bert_jax": None},
            "a features head without 'bert_jax' in config",
        ),
        ("features", {"width": 0}, "features.width=0, expected at least 1"),
        ("features", {"lstm_layers": 0}, "features.lstm_layers=0, expected at least 1"),
        (
            "two_way_classification",
            {"model_type": None},
            "encoder='lstm' and no model_",
        ),
        ("two_way_classification", {"head": 3}, "head=3, expected a text or null"),
        ("two_way_classification", {"head": "x"}, "head='x', expected one of 'pretrai"),
    ],
)
def test_saved_settings_that_do_not_fit_are_one_line(
    golden, tmp_path, name, changes, message
):
    folder = shutil.copytree(golden / "v0_1_0/exported" / name, tmp_path / "m")
    settings = json.loads((folder / "config.json").read_text())
    if "bert_jax" in changes or name != "features":
        settings |= changes
    else:
        settings["bert_jax"]["features"] |= changes
    if settings["model_type"] is None:
        del settings["model_type"]
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match=re.escape(message)) as error:
        bert_jax.load(folder).predict(["a"])
    assert "\n" not in str(error.value)


def test_a_dictionary_of_lists_is_one_row_only_if_it_is_one_sentence(tmp_path):
    def words(rows):
        answers = model.predict(rows)
        if isinstance(answers, dict):  # of one row
            answers = [answers]
        return [answer["words"] for answer in answers]

    data = {"words": "tok", "labels": TAGS, "max_length": 32}
    tiny(tmp_path / "m", "token", 4, labels=TAGS, **saved("tagging", **data))
    model = bert_jax.load(tmp_path / "m")
    sentence = ["the", "man"]
    for row in ({"tok": sentence}, {"words": sentence}):
        assert words(row) == words(row | {"tags": ["O", "O"]}) == [sentence]
    texts = ["the man.", "paris"]
    table = [["the", "man", "."], ["paris"]]
    assert words({"text": texts}) == words({"tok": texts, "id": [1, 2]}) == table
    assert words({"tok": [sentence, ["paris"]]}) == [sentence, ["paris"]]
    with pytest.raises(UserError, match="no column 'tok'"):
        model.predict({"foo": ["a"]})


def test_classes_of_a_data_set_to_predict_have_no_effect(tmp_path):
    class DataSet(list):
        features = {"label": SimpleNamespace(names=["other", "classes"])}  # noqa: RUF012

    tiny(tmp_path / "m", "sequence", 2, labels=("neg", "pos"))
    model = bert_jax.load(tmp_path / "m")
    rows = [{"text": "the man", "label": 1}]
    assert model.predict(DataSet(rows)) == model.predict(["the man"])
