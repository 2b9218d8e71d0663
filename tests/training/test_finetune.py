"""Whole runs on tiny data sets, in this process."""

import functools
import json
import math

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.inference.evaluation import (
    Split,
    evaluate,
    run_model,
)
from bert_jax.interop.initial import FeatureConfig, make_model
from bert_jax.interop.load import load
from bert_jax.objectives.heads import jit_forward
from bert_jax.parallel.mesh import MeshConfig, make_mesh
from bert_jax.parallel.sharding import tree_shardings
from bert_jax.settings import from_settings
from bert_jax.tasks.families import FAMILIES
from bert_jax.training import finetune as run
from bert_jax.training import sweep
from bert_jax.training.finetune import evaluation_stops, learning_rate
from bert_jax.training.finetune_config import finetune_config
from bert_jax.training.sweep import run_one

pytestmark = pytest.mark.usefixtures("quick_compiles")

WHATS = (
    "classification",
    "regression",
    "tagging",
    "multiple_choice",
    "question_answering",
)
HEADS = {
    "classification": "sequence",
    "regression": "sequence",
    "tagging": "token",
    "multiple_choice": "choice",
    "question_answering": "span",
}
DROPOUT = dict(hidden_dropout=0.1, attention_dropout=0.1)


@pytest.fixture(autouse=True)
def _on_one_device(one_device):
    with one_device():
        yield


@pytest.fixture(scope="module")
def finished(settings, tmp_path_factory, one_device):
    """A function of what: config, workdir, results, and what was said."""

    @functools.cache
    def make(what):
        config = finetune_config(settings(what))
        workdir, said = tmp_path_factory.mktemp(what) / "run", []
        with one_device():
            results = run_one(config, workdir, said.append)
        return config, workdir, results, said

    return make


def metrics(workdir, split="train"):
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["split"] == split]


def without_times(results):
    return {k: v for k, v in results.items() if not k.endswith("_seconds")}


@pytest.mark.parametrize("what", WHATS)
def test_a_run_learns_a_small_data_set(what, finished):
    _, workdir, results, _ = finished(what)
    losses = [line["loss"] for line in metrics(workdir)]
    assert losses[-1] < losses[0] / 2
    assert results["scores"]["dev"][results["main_metric"]] > 95
    if what != "regression":
        assert results["scores"]["dev"][results["main_metric"]] == 100


@pytest.mark.parametrize("what", WHATS)
def test_the_folder_of_the_best_model_predicts_what_the_run_did(
    what, finished, tmp_path
):
    """Config, labels and thresholds come from the folder; the data from the config."""
    config, workdir, results, _ = finished(what)
    checkpoint = load(workdir)
    assert checkpoint.head == HEADS[what]
    assert checkpoint.extra["family"] == config.family
    dev = results["scores"]["dev"]
    assert checkpoint.extra["scores"] == dev
    assert dev[results["main_metric"]] == max(
        line[results["main_metric"]] for line in metrics(workdir, "dev")
    )
    family = FAMILIES[config.family]
    data = from_settings(family.config_class, checkpoint.extra["data"], "data")
    task = family(data)
    assert checkpoint.labels == tuple(task.labels)
    assert (checkpoint.problem_type == "regression") == (what == "regression")
    splits = []
    for name in (*task.eval_splits, *task.predict_splits):
        rows = task.read(name)
        features = task.features(rows, checkpoint.tokenizer, training=False)
        splits.append(Split(name, rows, features))
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    model = make_model(checkpoint.config, task.head, task.outputs, FeatureConfig())
    forward = jit_forward(mesh, model)
    for split in splits:
        outputs = run_model(
            forward,
            jax.device_put(checkpoint.params, tree_shardings(checkpoint.params, mesh)),
            split.features,
            batch_size=8,
            limit=32,
            pad_id=checkpoint.tokenizer.pad_id,
            mesh=mesh,
        )
        evaluation = evaluate(task, split, outputs)
        assert evaluation.scores == results["scores"].get(split.name, {})
        paths = task.write(split.rows, evaluation.predictions, split.name, tmp_path)
        for path in paths:
            old = workdir / "predictions" / path.relative_to(tmp_path)
            assert path.read_bytes() == old.read_bytes()


def test_the_feature_based_approach_trains_the_bilstm_alone(settings, tmp_path):
    features = dict(layers=(0, -1), width=32, lstm_layers=2, dropout=0.0)
    config = finetune_config(settings("tagging", features=features, epochs=16))
    results = run_one(config, tmp_path, [].append)
    losses = [line["loss"] for line in metrics(tmp_path)]
    assert losses[-1] < losses[0] / 2
    assert results["scores"]["dev"]["f1"] > 90
    before, after = load(config.init_from), load(tmp_path)
    assert after.head == "features"
    assert set(after.params) == {"bert", "bilstm"}
    same = jax.tree.map(np.array_equal, before.params["bert"], after.params["bert"])
    assert jax.tree.all(same)
    assert not (tmp_path / "features").exists()


def test_what_a_run_leaves(finished):
    _, workdir, results, said = finished("classification")
    assert {path.name for path in workdir.iterdir()} == {
        "config.json",
        "metrics.jsonl",
        "tensorboard",
        "best",
        "predictions",
        "results.json",
    }
    assert json.loads((workdir / "results.json").read_text()) == results
    assert set(results) == {
        "main_metric",
        "best_epoch",
        "updates",
        "padding_share",
        "train_sequences",
        "shapes",
        "scores",
        "train_seconds",
        "evaluation_seconds",
    }
    assert results["main_metric"] == "accuracy"
    assert results["updates"] == 30
    assert results["train_sequences"] == 24
    assert 1 <= len(results["shapes"]) <= 2  # the last batch of an epoch is smaller
    assert 0 < results["padding_share"] < 0.5
    assert set(results["scores"]) == {"dev"}
    assert {path.name for path in (workdir / "predictions").iterdir()} == {
        "dev_predictions.tsv",
        "test_predictions.tsv",
    }
    answers = (workdir / "predictions/test_predictions.tsv").read_text().splitlines()
    assert len(answers) == 1 + 5
    steps = [line["step"] for line in metrics(workdir)]
    assert steps == sorted({*range(2, 31, 2), *range(3, 31, 3)})
    assert [line["step"] for line in metrics(workdir, "dev")] == list(range(3, 31, 3))
    for line in metrics(workdir):
        assert set(line) == {"step", "split", "loss", "grad_norm", "learning_rate"}
    assert any("made anew: classifier" in s for s in said)
    assert "step 30/30  epoch 10.00" in "\n".join(said)


@pytest.fixture(scope="module")
def short(settings, tmp_path_factory, one_device):
    """A function of (seed, number): the workdir and results of a run with dropout."""

    @functools.cache
    def make(seed, number):
        workdir = tmp_path_factory.mktemp("short") / "run"
        config = short_config(settings, seed=seed)
        with one_device():
            return workdir, run_one(config, workdir, [].append)

    return make


def short_config(settings, **changes):
    return finetune_config(
        settings("classification", **{"model": DROPOUT, "epochs": 2, **changes})
    )


def test_the_same_seed_gives_the_same_bits_and_another_does_not(short):
    (first, results), (second, again), (other, _) = (
        short(0, 0),
        short(0, 1),
        short(1, 0),
    )
    assert without_times(results) == without_times(again)
    weights = "best/model.safetensors"
    for name in ("metrics.jsonl", weights, "predictions/test_predictions.tsv"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
        assert (first / name).read_bytes() != (other / name).read_bytes(), name


def test_a_finished_run_is_not_run_again(short, settings, monkeypatch):
    workdir, results = short(0, 0)
    monkeypatch.setattr(sweep, "prepare", lambda *_: pytest.fail("runs again"))
    said = []
    assert run_one(short_config(settings, log_every=7), workdir, said.append) == results
    assert len(said) == 1
    assert said[0].startswith("finished before: dev: accuracy ")


def test_a_workdir_of_another_run_is_refused(short, settings):
    workdir, _ = short(0, 0)
    changes = {"epochs": 3, "optimizer": {"warmup": 0.2}}
    with pytest.raises(UserError) as error:
        run_one(short_config(settings, **changes), workdir)
    message = str(error.value)
    assert "\n" not in message
    assert "holds another run (" in message
    assert "epochs: 2 -> 3" in message
    assert "optimizer.warmup: 0.1 -> 0.2" in message


def test_an_interrupted_run_begins_again_and_ends_the_same(short, settings, tmp_path):
    whole, results = short(0, 0)
    workdir = tmp_path / "run"

    def interrupt(line):
        if line.startswith("epoch 2"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_one(short_config(settings), workdir, interrupt)
    assert not (workdir / "results.json").exists()
    assert load(workdir).extra["scores"]  # the best so far is whole
    with pytest.raises(UserError, match="holds another run"):
        run_one(short_config(settings, seed=1), workdir, print)
    again = run_one(short_config(settings), workdir, [].append)
    assert without_times(again) == without_times(results)
    for name in ("metrics.jsonl", "best/model.safetensors"):
        assert (workdir / name).read_bytes() == (whole / name).read_bytes()


def test_a_loss_that_is_not_finite_stops_before_a_model_is_saved(settings, tmp_path):
    workdir = tmp_path / "run"
    wild = short_config(settings, optimizer={"learning_rate": 1e30})
    with pytest.raises(UserError, match="lower --config") as error:
        run_one(wild, workdir, [].append)
    assert "\n" not in str(error.value)
    assert not [path for path in workdir.iterdir() if "best" in path.name]
    assert not (workdir / "results.json").exists()
    # It left nothing to lose, so the user can do as told.
    run_one(short_config(settings), workdir, [].append)
    assert all(math.isfinite(line["loss"]) for line in metrics(workdir))


def test_a_loss_that_is_not_finite_keeps_the_best_model_so_far(
    settings, tmp_path, monkeypatch
):
    workdir = tmp_path / "run"
    real = run.learning_rate

    def late(config, updates):
        rate = real(config, updates)
        return lambda step: rate(step) if step < 3 else 1e30

    monkeypatch.setattr(run, "learning_rate", late)
    with pytest.raises(UserError, match=r"became (nan|inf)"):
        run_one(short_config(settings), workdir, [].append)
    assert [line["step"] for line in metrics(workdir, "dev")] == [3]
    params = load(workdir).params
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))


def test_eight_devices_train_as_one(short, settings, tmp_path, monkeypatch):
    workdir, results = short(0, 0)
    monkeypatch.setattr(run, "make_mesh", make_mesh)
    mesh = dict(mesh=dict(data=4, model=2))
    eight = run_one(short_config(settings, **mesh), tmp_path / "run", [].append)
    for a, b in zip(metrics(workdir), metrics(tmp_path / "run"), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-3)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-3)
    assert eight["scores"] == results["scores"]


def test_scanned_layers_train_as_others_and_are_saved_as_others(
    finished, settings, tmp_path
):
    _, workdir, _, _ = finished("classification")
    model = dict(hidden_dropout=0.0, attention_dropout=0.0)
    compute = dict(scan_layers=True)
    config = finetune_config(settings("classification", model=model, compute=compute))
    run_one(config, tmp_path, [].append)
    for a, b in zip(metrics(workdir)[:5], metrics(tmp_path)[:5], strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-3)
    trees = (load(path).params for path in (workdir, tmp_path))
    shapes = (jax.tree.map(np.shape, tree) for tree in trees)
    assert next(shapes) == next(shapes)


def test_a_batch_that_devices_do_not_divide_is_refused_and_leaves_nothing_to_undo(
    settings, tmp_path, monkeypatch
):
    monkeypatch.setattr(run, "make_mesh", make_mesh)
    with pytest.raises(
        UserError, match="eval_batch_size=12 is not a multiple of the 8"
    ):
        run_one(short_config(settings, eval_batch_size=12), tmp_path, [].append)
    with pytest.raises(UserError, match="batch_size=12 is not a multiple of the 8"):
        run_one(short_config(settings, batch_size=12), tmp_path, [].append)


def test_a_checkpoint_goes_on_from_its_own_head(short, settings, tmp_path):
    """Fine-tuned further on the same labels; other labels are refused."""
    workdir, _ = short(0, 0)
    said = []
    config = short_config(settings, init_from=str(workdir), epochs=1)
    run_one(config, tmp_path / "run", said.append)
    assert not any("made anew" in line for line in said)
    labels = dict(init_from=str(workdir), data={"labels": ("yes", "no")})
    with pytest.raises(UserError, match="fresh_head"):
        run_one(short_config(settings, **labels), tmp_path / "other", [].append)


def test_a_part_of_the_training_rows_and_several_evaluations_an_epoch(
    settings, tmp_path
):
    changes = dict(train_rows=20, epochs=1, evaluations=2)
    results = run_one(short_config(settings, **changes), tmp_path, [].append)
    assert results["train_sequences"] == 20
    assert results["updates"] == 3
    assert [line["step"] for line in metrics(tmp_path, "dev")] == [2, 3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"init_from": ""}, "set --config.init_from"),
        ({"init_from": "nowhere"}, "nowhere does not exist"),
        ({"data": {"dir": "nowhere"}}, "nowhere"),
        (
            {"data": {"max_length": 33}},
            "max_length=33 is over the position table of 32",
        ),
        ({"mesh": {"data": 3, "model": 2}}, "does not use exactly the 8 devices"),
    ],
)
def test_what_cannot_run_is_one_line_and_leaves_nothing(
    changes, message, settings, tmp_path, monkeypatch
):
    monkeypatch.setattr(run, "make_mesh", make_mesh)
    config = finetune_config(settings("classification", **changes))
    with pytest.raises(UserError) as error:
        run_one(config, tmp_path / "run", [].append)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run" / "best").exists()


@pytest.mark.parametrize("updates", [1, 5, 10, 99, 1000])
@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.5])
def test_the_rate_warms_up_and_decays_linearly(updates, warmup):
    config = finetune_config(
        dict(
            family="classification",
            data=dict(task="mrpc"),
            optimizer=dict(learning_rate=3e-5, warmup=warmup),
        )
    )
    rates = np.array([learning_rate(config, updates)(i) for i in range(updates)])
    first = int(updates * warmup)
    expected = np.concatenate(
        [
            3e-5 * np.arange(first) / max(first, 1),
            3e-5 * (1 - np.arange(first, updates) / updates),
        ]
    )
    np.testing.assert_allclose(rates, expected, rtol=1e-12)
    assert rates.max() <= 3e-5
    if first:
        assert rates[0] == 0
        assert abs(rates.argmax() - first) <= 1  # the decay has begun at update 0
    assert rates[-1] == pytest.approx(3e-5 / updates if updates > 1 else 3e-5)


def test_dev_is_scored_evenly_and_at_the_end():
    assert evaluation_stops(10, 1) == {10}
    assert evaluation_stops(10, 2) == {5, 10}
    assert evaluation_stops(10, 3) == {4, 7, 10}
    assert evaluation_stops(3, 10) == {1, 2, 3}
    for updates in range(1, 40):
        for count in range(1, 8):
            stops = evaluation_stops(updates, count)
            assert max(stops) == updates
            assert len(stops) == min(updates, count)
            assert min(stops) >= 1
