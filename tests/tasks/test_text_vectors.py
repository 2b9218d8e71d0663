"""Text embeddings, trained on pairs: losses, rows, and runs."""

import copy
import csv
import dataclasses
import json

import jax
import numpy as np
import pytest

import bert_jax
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.interop.load import load
from bert_jax.model.config import FeatureConfig
from bert_jax.objectives.heads import PADDED_SCORE, Vectors
from bert_jax.objectives.networks import make_model
from bert_jax.tasks.task import fitted, objects_of, warnings
from bert_jax.tasks.text_vectors import SentenceVectors, SentenceVectorsConfig
from bert_jax.training.config import finetune_config
from bert_jax.training.sweep import run_one

PAIRS = [("it is good", "good", 5.0), ("it is", "bad", 1.0), ("red", "blue", 2.0)]


def task(**settings):
    return SentenceVectors(SentenceVectorsConfig(**settings))


@pytest.fixture(scope="module")
def theirs(golden):
    """Vectors, labels and losses of sentence-transformers; tests/golden/torch/make.py."""
    return np.load(golden / "torch" / "losses.npz")


def vectors_of(theirs, negatives):
    """Vectors of length 1 for the texts of seven rows, and one padding row."""
    pair = np.stack([theirs["u"], theirs["v"]], axis=1)
    vectors = np.concatenate([pair, theirs["negatives"][:, :negatives]], axis=1)
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.concatenate([vectors, vectors[:1]])


@pytest.mark.parametrize("widths", [(), (8, 5, 2)])
@pytest.mark.parametrize(
    ("name", "loss", "negatives"),
    [
        ("cosine", "cosine", 0),
        ("contrastive", "contrastive", 0),
        ("hard", "contrastive", 2),
        ("triplet", "triplet", 1),
    ],
)
def test_losses_equal_sentence_transformers(name, loss, negatives, widths, theirs):
    """A padding row and its negatives are not used by other rows."""
    losses = jax.jit(Vectors(None, loss=loss, matryoshka=widths).losses)
    batch = {"weights": np.array([1] * 7 + [0], np.float32)}
    if loss == "cosine":
        batch["label"] = np.append(theirs["scores"], 0)
    actual = losses(vectors_of(theirs, negatives), batch)[:7].mean()
    expected = theirs[name + "_matryoshka" * bool(widths)]
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    assert PADDED_SCORE < -1e9


def test_losses_with_negatives_equal_a_computation_by_hand(theirs):
    """Softmax over the texts of all rows; margin to the mean of two negatives."""
    vectors = vectors_of(theirs, 2)[:7].astype(np.float64)
    cosines = np.einsum("uw,vnw->uvn", vectors[:, 0], vectors[:, 1:])
    positives = cosines[range(7), range(7)]
    exponents = np.exp(20 * cosines).sum(axis=(1, 2))
    batch = {"weights": np.ones(7, np.float32)}
    actual = Vectors(None, loss="contrastive").losses(np.float32(vectors), batch)
    expected = np.log(exponents) - 20 * positives[:, 0]
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    actual = Vectors(None, loss="triplet", margin=0.2).losses(
        np.float32(vectors), batch
    )
    above = np.maximum(positives[:, 1:] - positives[:, :1] + 0.2, 0)
    np.testing.assert_allclose(actual, above.mean(axis=1), rtol=1e-5, atol=1e-7)
    with pytest.raises(UserError, match="triplet needs negatives"):
        Vectors(None, loss="triplet").losses(vectors[:, :2], batch)
    with pytest.raises(UserError, match=r"matryoshka=\(9,\), expected at most 8"):
        Vectors(None, matryoshka=(9,)).losses(vectors[:, :2], batch)


def test_a_long_text_loses_the_end_that_the_tokenizer_names(vocabulary):
    pairs = [("red it is good", "good", 5.0), ("it is", "bad", 1.0)]
    cosine = task(max_length=5).with_rows(train=pairs, dev=pairs)
    for truncation, kept in (("head", "red it is"), ("tail", "it is good")):
        tokenizer = copy.copy(vocabulary)
        tokenizer.truncation = truncation
        features = cosine.encode(cosine.read("train"), tokenizer)
        ids = features.input_ids[0].tolist()
        assert ids[1:-1] == vocabulary.encode(kept).tolist()
        assert features.truncated == 1


TRIPLETS = [("it is good", "good", "bad"), ("it is", "red", "a good ship")]


@pytest.mark.parametrize(
    "rows",
    [
        [(*pair, more, more) for *pair, more in TRIPLETS],
        [(*pair, [more, more]) for *pair, more in TRIPLETS],
        [dict(text_a=a, text_b=b, negatives=[n, n]) for a, b, n in TRIPLETS],
        [
            dict(text_a=a, text_b=b, negative_1=n, negative_2=n, other=3)
            for a, b, n in TRIPLETS
        ],
    ],
)
def test_negatives_are_further_texts_of_a_row(rows, vocabulary):
    triplets = task(loss="triplet").with_rows(train=rows, dev=rows)
    read = triplets.read("train")
    assert [row.negatives for row in read] == [(n, n) for _, _, n in TRIPLETS]
    features = triplets.encode(read, vocabulary)
    assert features.choices == 4 and features.targets == {}
    assert features.example.tolist() == [0] * 4 + [1] * 4
    for ids, text in zip(features.input_ids, [*TRIPLETS[0], "bad"], strict=False):
        assert ids.tolist()[1:-1] == vocabulary.encode(text).tolist()
    # Without labels, the dev score counts rows whose second text is the closest.
    assert triplets.main_metric == "accuracy" and triplets.read("dev") == [
        dataclasses.replace(row, where=row.where.replace("train", "dev"))
        for row in read
    ]
    outputs = np.eye(2)[[0, 0, 1, 1, 0, 1, 1, 0]]
    answers = triplets.decode(read, features, list(outputs))
    assert answers == [
        {"value": 1, "negatives": [0, 0]},
        {"value": 0, "negatives": [0, 1]},
    ]
    assert triplets.score(read, answers) == {"accuracy": 50}
    # A negative as close as the second text is wrong: equal vectors have no accuracy.
    answers.append({"value": 1, "negatives": [1, 0]})
    scores = triplets.score([*read, read[0]], answers)
    assert scores == {"accuracy": pytest.approx(100 / 3)}


def test_labels_and_negatives_cannot_be_mixed(vocabulary):
    vectors = task(loss="contrastive").with_rows(train=TRIPLETS, dev=PAIRS)
    assert vectors.main_metric == "pearson"
    assert [row.label for row in vectors.read("dev")] == [5, 1, 2]
    uneven = [TRIPLETS[0], TRIPLETS[1][:2]]
    read = vectors.with_rows(train=uneven, dev=PAIRS).read("train")
    with pytest.raises(
        UserError, match=r"have 1 \(train, row 0\) and 0 \(train, row 1\) negatives"
    ):
        vectors.encode(read, vocabulary)
    ignored = task().with_rows(train=[*PAIRS], dev=PAIRS).read("train")
    assert not any(row.negatives for row in ignored)


@pytest.mark.parametrize("loss", ["contrastive", "triplet"])
def test_a_negative_that_looks_like_a_number_is_refused(loss):
    task_of_loss, row = task(loss=loss), ("when did it sink?", "in 1912", "1913")
    with pytest.raises(UserError, match=r"^train, row 1: the text '1913' may be a lab"):
        task_of_loss.with_rows(train=[TRIPLETS[0], row])
    rows = [(*row[:2], [row[2]]), (*row, "never")]
    read = task_of_loss.with_rows(train=rows).read("train")
    assert [row.negatives for row in read] == [("1913",), ("1913", "never")]
    assert not any(row.label for row in read)
    (parsed,) = objects_of(
        task_of_loss, [("row 0", row)]
    )  # a row to predict has no label
    assert parsed.negatives == ("1913",)


def test_negatives_in_a_cell(tmp_path):
    """A list of texts, or one text, which may start with a bracket."""
    path, contrastive = tmp_path / "train.csv", task(loss="contrastive")
    cells = ['["bad", "cold"]', "['bad' 'cold']", "('bad', 'cold')", "(CNN) bad", "bad"]
    cells += ["[laughs]", "(no, he left)", "[1]"]
    with path.open("w") as file:
        writer = csv.writer(file)
        writer.writerow(["text_a", "text_b", "negative"])
        writer.writerows([["[a] film", "(b)", cell] for cell in cells])
    rows = contrastive.with_rows(train=path).read("train")
    expected = [("bad", "cold")] * 3 + [(cell,) for cell in cells[3:]]
    assert [row.negatives for row in rows] == expected
    assert rows[0].texts == ("[a] film", "(b)")
    tuples = contrastive.with_rows(train=[("a", "b", cells[1])]).read("train")
    assert tuples[0].negatives == ("bad", "cold")
    for text in ("[laughs]", "[1, 2]"):  # numbers are not negatives
        (row,) = contrastive.with_rows(train=[("a", "b", text)]).read("train")
        assert row.negatives == (text,)
    for cell in ("[bad, cold]", "['bad', 'co"):
        with pytest.raises(
            UserError, match="row 0: column 'negative' starts like a list"
        ):
            contrastive.with_rows(train=[dict(text_a="a", text_b="b", negative=cell)])


def test_a_single_text_is_refused():
    task = bert_jax.tasks.sentence_vectors()
    with pytest.raises(UserError, match=r"row 0 is one text, .* use model\.encode"):
        [*objects_of(task, [("row 0", "a man")])]


def test_a_pair_is_two_sequences(vocabulary):
    pairs = task().with_rows(train=PAIRS, dev=PAIRS)
    rows = pairs.read("train")
    features = pairs.encode(rows, vocabulary)
    assert features.choices == 2 and len(features.input_ids) == 6
    assert features.example.tolist() == [0, 0, 1, 1, 2, 2]
    np.testing.assert_allclose(features.targets["label"], [1, 0, 0.25])
    assert not any(types.any() for types in features.token_type_ids)
    outputs = np.eye(6, 4)[[0, 0, 0, 1, 2, 2]]
    answers = pairs.decode(rows, features, list(outputs))
    assert [answer["value"] for answer in answers] == [1, 0, 1]
    assert pairs.score(rows, answers)["pearson"] == pytest.approx(
        100 * np.corrcoef([5, 1, 2], [1, 0, 1])[0, 1]
    )


def test_pairs_that_lose_text_are_counted(vocabulary):
    pairs = [("good good good", "bad", 1), ("good good good good", "bad", 2)]
    short = task(max_length=5).with_rows(train=pairs)
    assert short.encode(short.read("train"), vocabulary).truncated == 1


def test_contrastive_pairs_need_no_label_or_a_high_label(vocabulary):
    vectors = task(loss="contrastive")
    without = vectors.with_rows(train=[pair[:2] for pair in PAIRS], dev=PAIRS)
    assert [row.label for row in without.read("train")] == [None] * 3
    rows = without.read("train")
    features = vectors.encode(rows, vocabulary)
    assert features.targets == {} and warnings(vectors, rows, features) == []
    high = task(loss="contrastive", positive_from=2.0).with_rows(train=PAIRS)
    assert [row.label for row in high.read("train")] == [5, 2]
    with pytest.raises(UserError, match=r"^dev, row 0: no label and no neg"):
        vectors.with_rows(train=PAIRS, dev=[PAIRS[0][:2]]).read("dev")
    with pytest.raises(UserError, match="all training pairs have the same label"):
        task().with_rows(train=PAIRS[:1]).read("train")


def test_impossible_settings_are_refused(settings, model_config, tmp_path):
    config = settings("sentence_vectors", data=dict(loss="contrastive"), accumulation=2)
    with pytest.raises(UserError, match=r"accumulation=2, expected 1, because"):
        run_one(finetune_config(config), tmp_path, [].append)
    with pytest.raises(UserError, match=r"\[CLS\] needs .* both sides; set .*=mean"):
        make_model(model_config(causal=True), "cls", 1, FeatureConfig())
    with pytest.raises(UserError, match=r"leave features out"):
        make_model(model_config(), "mean", 1, FeatureConfig(bilstm=True))


@pytest.mark.parametrize(
    "data",
    [
        dict(pooling="cls", loss="contrastive", positive_from=4.0),
        pytest.param({}, marks=pytest.mark.long),
    ],
)
def test_a_run_learns_and_encode_returns_its_vectors(data, settings, tmp_path):
    config = finetune_config(settings("sentence_vectors", data=data, epochs=8))
    results = run_one(config, tmp_path, [].append)
    assert results["main_metric"] == "pearson"
    assert results["scores"]["dev"]["pearson"] > 85
    pooling = data.get("pooling", "mean")
    checkpoint = load(tmp_path)
    assert (checkpoint.head, set(checkpoint.params)) == (pooling, {"bert"})
    model = bert_jax.load(tmp_path)
    texts = ["sea good ship", "a good ship", "sea bad ship"]
    vectors = model.encode(texts, normalize=True)
    same = model.encode(texts, normalize=True, pooling=pooling)
    np.testing.assert_array_equal(vectors, same)
    near, far = vectors[0] @ vectors[1], vectors[0] @ vectors[2]
    assert near > far + 0.2
    answers = model.predict([tuple(texts[:2]), tuple(texts[::2])])
    np.testing.assert_allclose([a["value"] for a in answers], [near, far], atol=1e-6)
    assert model.evaluate([(*texts[:2], 1), (*texts[::2], 0)])[
        "spearman"
    ] == pytest.approx(100)
    # sentence-transformers reads the same pooling from the folder's modules.
    text = (tmp_path / "best" / "1_Pooling" / "config.json").read_text()
    assert (
        f'"pooling_mode_{"cls_token" if pooling == "cls" else "mean_tokens"}": true'
        in text
    )


def test_triplets_train_a_model_without_labels(checkpoint_dir, tmp_path):
    """On one of two folds, with its own task. Shortened vectors also work."""
    words, random = ["sea", "ship", "blue", "it", "is"], np.random.default_rng(0)
    rows = []
    for i in range(24):
        a, b, c = (" ".join(random.permutation(words)[:3]) for _ in range(3))
        clue, other = ("good", "bad")[:: 1 if i % 2 else -1]
        rows.append((f"{clue} {a}", f"{b} {clue}", f"{other} {c}"))
    triplets = task(loss="triplet", margin=0.3, matryoshka=(16, 4), max_length=16)
    model = bert_jax.finetune(
        # One evaluation, after all steps: the best model is the last.
        triplets.with_rows(train=rows * 8).folds(2)[0],
        init_from=checkpoint_dir,
        workdir=tmp_path,
        epochs=1,
        batch_size=8,
        learning_rate=1e-2,
        accumulation=2,
        buckets=1,
        checkpoint_every=1000,
        log=[].append,
    )
    assert model.scores["dev"] == {"accuracy": pytest.approx(100)}
    assert model.evaluate(rows)["accuracy"] > 95
    assert load(tmp_path).extra["data"]["matryoshka"] == [16, 4]
    a, b, c = model.encode([*rows[0]], dimensions=4)
    assert model.similarity(a, b) > model.similarity(a, c) + 0.3
    answer = model.predict(rows[0])
    assert answer["value"] > answer["negatives"][0] + 0.3
    assert [*model.predict(rows[0][:2])] == ["value"]


def test_a_run_keeps_the_modules_of_its_checkpoint(settings, tmp_path):
    values = settings("sentence_vectors", epochs=1)
    encoder = load(values["init_from"])
    modules = {
        "pooling": "cls",
        "activations": [],
        "normalize": True,
        "max_length": 16,
        "prompts": {"query": "query: ", "passage": "text: ", "plain": ""},
        "default_prompt_name": "plain",
        "similarity_fn_name": "dot",
        "include_prompt": False,
    }
    params = {"bert": encoder.params["bert"]}
    extra = {"modules": modules}
    checkpoint = dataclasses.replace(encoder, head="cls", params=params, extra=extra)
    checkpoint.tokenizer.truncation = "tail"
    save_huggingface(tmp_path / "given", checkpoint)
    config = finetune_config(values | {"init_from": str(tmp_path / "given")})
    run_one(config, tmp_path / "run", [].append)
    trained = load(tmp_path / "run")
    assert (trained.head, trained.extra["data"]["pooling"]) == ("cls", "cls")
    assert trained.tokenizer.truncation == "tail"
    changed = {"max_length": config.data.max_length}
    assert modules | changed == {n: trained.extra["modules"][n] for n in modules}
    best = tmp_path / "run/best"
    written = json.loads((best / "config_sentence_transformers.json").read_text())
    for name in ("prompts", "default_prompt_name", "similarity_fn_name"):
        assert written[name] == modules[name]
    pooling = json.loads((best / "1_Pooling/config.json").read_text())
    assert pooling["include_prompt"] is False
    model, texts = bert_jax.load(tmp_path / "run"), ["sea good ship", "sea bad ship"]
    vectors = model.encode(texts)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    task = bert_jax.tasks.sentence_vectors()
    rows = [(*texts, 0), (texts[0], texts[0], 1)]
    assert model.evaluate(rows, task=task)["spearman"] == pytest.approx(100)
    named = model.encode(texts, prompt_name="passage")
    np.testing.assert_array_equal(named, model.encode(texts, prompt="text: "))
    assert abs(named - vectors).max() > 1e-3


PROMPTS = {"query_prompt": "good red ", "document_prompt": "ship "}


def test_prompts_are_put_before_the_texts_of_a_row(vocabulary):
    """The negatives of a row are also documents."""
    rows = [("it is", "good", "bad"), ("red", "blue", "it")]
    plain = task(loss="contrastive").with_rows(train=rows)
    prompted = task(loss="contrastive", **PROMPTS).with_rows(train=rows)
    written = [
        ("good red it is", "ship good", "ship bad"),
        ("good red red", "ship blue", "ship it"),
    ]
    expected = task(loss="contrastive").with_rows(train=written)
    ids = [
        x.encode(x.read("train"), vocabulary).input_ids
        for x in (plain, prompted, expected)
    ]
    for ours, whole in zip(ids[1], ids[2], strict=True):
        np.testing.assert_array_equal(ours, whole)
    assert len(ids[0][0]) == len(ids[1][0]) - 2


def vectors_folder(settings, folder, **modules):
    """Saves the encoder of a run's init_from with modules of sentence-transformers."""
    encoder = load(settings["init_from"])
    extra = {"modules": {"pooling": "mean", "activations": [], **modules}}
    params = {"bert": encoder.params["bert"]}
    checkpoint = dataclasses.replace(encoder, head="mean", params=params, extra=extra)
    save_huggingface(folder, checkpoint)
    return str(folder)


def test_a_trained_model_keeps_its_prompts_for_a_search(settings, tmp_path):
    """Prompts of the run replace the checkpoint's; others are kept."""
    values = settings("sentence_vectors", epochs=1, data=PROMPTS)
    run_one(finetune_config(values), tmp_path / "run", [].append)
    old = {"query": "old ", "passage": "it is ", "plain": "sea "}
    values["init_from"] = vectors_folder(
        values,
        tmp_path / "given",
        prompts=old,
        normalize=True,
        max_length=24,
        default_prompt_name=None,
    )
    run_one(finetune_config(values), tmp_path / "again", [].append)
    named = {"query": "good red ", "document": "ship "}
    for folder, expected in (("run", named), ("again", old | named)):
        path = tmp_path / folder / "best/config_sentence_transformers.json"
        assert json.loads(path.read_text())["prompts"] == expected
        model = bert_jax.load(tmp_path / folder)
        queries, texts = ["sea good", "it bad"], ["sea good ship", "bad", "red it is"]
        cosines = model.similarity(
            model.encode([f"good red {text}" for text in queries]),
            model.encode([f"ship {text}" for text in texts]),
        )
        for i, query in enumerate(queries):
            values_of_rows = [cosines[i, x["row"]] for x in model.search(query, texts)]
            assert values_of_rows == pytest.approx(sorted(cosines[i], reverse=True))
            answers = model.predict([(query, text) for text in texts])
            found = [answer["value"] for answer in answers]
            np.testing.assert_allclose(found, cosines[i], rtol=0, atol=1e-6)
        assert abs(cosines - model.similarity(queries, texts)).max() > 1e-3


def test_prompts_of_a_checkpoint_that_a_run_does_not_use_are_logged(settings, tmp_path):
    values = settings("sentence_vectors", epochs=1, data={"query_prompt": "red "})
    given = {"query": "good ", "passage": "it is "}
    values["init_from"] = vectors_folder(
        values, tmp_path / "given", prompts=given, normalize=False, max_length=24
    )
    lines = []
    run_one(finetune_config(values), tmp_path / "run", lines.append)
    message = (
        "data.document_prompt is empty, but a search puts 'it is ' before its texts"
    )
    assert [x for x in lines if "a search puts" in x] == [message]
    values["init_from"] = vectors_folder(
        values,
        tmp_path / "skipped",
        prompts={},
        normalize=False,
        max_length=24,
        include_prompt=False,
    )
    with pytest.raises(
        UserError,
        match=r"skipped: the tokens of prompts are not pooled .*; leave data.query_prompt",
    ):
        run_one(finetune_config(values), tmp_path / "refused", [].append)


def test_an_explicit_pooling_is_kept():
    named, unnamed = task(pooling="mean"), task()
    kept = fitted(named, 512, "cls")
    assert (kept.head, kept.config.max_length) == ("mean", 128)
    changed = fitted(unnamed, 64, "cls")
    assert (changed.head, changed.config.pooling) == ("cls", "cls")
    assert (changed.config.max_length, unnamed.config.max_length) == (64, 128)


def test_low_labels_that_count_as_the_same_meaning_give_a_warning(caplog):
    rows = [("a man eats", "he has a meal", 1), ("a man eats", "a rocket", 0)]
    for settings, lines in (({}, 1), ({"positive_from": 0.5}, 0)):
        caplog.clear()
        task(loss="contrastive", **settings).with_rows(train=rows).read("train")
        assert len(caplog.records) == lines
    task(loss="contrastive").with_rows(train=rows[:1]).read("train")
    assert not caplog.records


@pytest.mark.parametrize(
    ("loss", "column"),
    [
        *(("cosine", "text_a"), ("cosine", "text_b"), ("contrastive", "text_a")),
        *(
            ("contrastive", "text_b"),
            ("contrastive", "negative"),
            ("triplet", "negative"),
        ),
    ],
)
def test_an_empty_text_is_not_learned(loss, column):
    """An embedding model would learn that nothing means the same as a text."""
    row = {"text_a": "a", "text_b": "b", "negative": "c"}
    if loss == "cosine":
        row = {"text_a": "a", "text_b": "b", "label": 1}
    rows = [row, row | {column: " "}]
    filled = task(loss=loss).with_rows(train=rows[:1] * 2, dev=rows)
    with pytest.raises(UserError, match="dev, row 1: the text is empty"):
        filled.read("dev")
    filled = task(loss=loss).with_rows(train=rows, dev=rows[:1])
    with pytest.raises(UserError, match="train, row 1: the text is empty"):
        filled.read("train")
