"""Whole runs on tiny data sets, in this process."""

import contextlib
import dataclasses
import functools
import json
import os
import re
import shutil
import types
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy
from sklearn.utils.class_weight import compute_class_weight

from bert_jax import progress, tasks
from bert_jax.errors import DivergenceError, UserError
from bert_jax.inference import evaluation
from bert_jax.inference.evaluation import Split, evaluate_split, run_model
from bert_jax.interop.load import load
from bert_jax.model.config import FeatureConfig
from bert_jax.objectives.heads import jit_forward
from bert_jax.objectives.networks import make_model
from bert_jax.parallel.mesh import MeshConfig, make_mesh
from bert_jax.parallel.sharding import tree_shardings
from bert_jax.settings import from_settings
from bert_jax.tasks.families import FAMILIES
from bert_jax.tasks.task import golds, write_answers
from bert_jax.training import finetune, finetune_data
from bert_jax.training import run as engine
from bert_jax.training.config import finetune_config
from bert_jax.training.finetune import is_evaluated
from bert_jax.training.finetune_loss import balanced
from bert_jax.training.finetune_outputs import majority, show
from bert_jax.training.sweep import run_one

# test_from_python.py tests multiple choice and questions.
HEADS = {"classification": "sequence", "regression": "sequence", "tagging": "token"}
DROPOUT = dict(hidden_dropout=0.1, attention_dropout=0.1)


@pytest.fixture(scope="module")
def finished(settings, tmp_path_factory):
    """A function of a family that returns config, workdir, results and log lines."""

    @functools.cache
    def make(what):
        # The head of tagging also has I- of both types, which no row has. With it the run
        # with seed 0 ends before it has learned every row.
        seed = 1 if what == "tagging" else 0
        config = finetune_config(settings(what, seed=seed))
        workdir, logged = tmp_path_factory.mktemp(what) / "run", []
        results = run_one(config, workdir, logged.append)
        return config, workdir, results, logged

    return make


def metrics(workdir, split="train"):
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["split"] == split]


def without_times(results):
    return {k: v for k, v in results.items() if not k.endswith("_seconds")}


@pytest.mark.parametrize(
    "what",
    [pytest.param(n, marks=[pytest.mark.long] * (n == "regression")) for n in HEADS],
)
def test_a_run_learns_and_its_best_model_predicts_like_the_run(
    what, finished, tmp_path
):
    """The folder has config, labels and thresholds. The config names the data."""
    config, workdir, results, _ = finished(what)
    losses = [line["loss"] for line in metrics(workdir)]
    assert losses[-1] < losses[0] / 2
    main = results["main_metric"]
    dev = results["scores"]["dev"]
    assert dev[main] == 100 or (what == "regression" and dev[main] > 95)
    assert dev[main] == max(line[main] for line in metrics(workdir, "dev"))
    checkpoint = load(workdir)
    assert checkpoint.head == HEADS[what]
    assert checkpoint.extra["family"] == config.family
    assert checkpoint.extra["scores"] == dev
    shown = ", ".join(f"{name} {score:.2f}" for name, score in dev.items())
    origin = f"a fine-tuning of {config.init_from} (dev: {shown})"
    assert checkpoint.origin == origin
    family = FAMILIES[config.family]
    task = family(from_settings(family.config_class, checkpoint.extra["data"], "data"))
    assert checkpoint.labels == tuple(task.labels)
    assert (checkpoint.problem_type == "regression") == (what == "regression")
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    model = make_model(checkpoint.config, task.head, task.outputs, FeatureConfig())
    forward = jit_forward(mesh, model)
    params = jax.device_put(checkpoint.params, tree_shardings(checkpoint.params, mesh))
    for name in (*task.splits.scored, *task.splits.predicted):
        rows = task.read(name)
        split = Split(name, rows, task.encode(rows, checkpoint.tokenizer))
        outputs = run_model(
            forward,
            params,
            split.features,
            batch_size=8,
            limit=32,
            pad_id=checkpoint.tokenizer.pad_id,
            mesh=mesh,
        )
        evaluation = evaluate_split(task, split, outputs)
        assert evaluation.scores == results["scores"].get(name, {})
        for path in write_answers(
            task, split.rows, evaluation.predictions, name, tmp_path
        ):
            old = workdir / "predictions" / path.relative_to(tmp_path)
            assert path.read_bytes() == old.read_bytes()


def test_the_feature_based_approach_trains_only_the_bilstm(settings, tmp_path):
    features = dict(layers=(0, -1), width=32, lstm_layers=2, dropout=0.0)
    config = finetune_config(settings("tagging", features=features, epochs=24, seed=2))
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


def test_a_finished_run_leaves_its_files(finished):
    _, workdir, results, log = finished("classification")
    names = {"config.json", "metrics.jsonl", "tensorboard", "best", "predictions"}
    assert {path.name for path in workdir.iterdir()} == names | {"results.json"}
    assert json.loads((workdir / "results.json").read_text()) == results
    assert (results["steps"], results["train_sequences"]) == (30, 24)
    assert 1 <= len(results["shapes"]) <= 2  # the last batch of an epoch is smaller
    assert 0 < results["padding_share"] < 0.5
    assert results["train_seconds"] > 0 < results["evaluation_seconds"]
    assert set(results["scores"]) == {"dev"}
    assert {path.name for path in (workdir / "predictions").iterdir()} == {
        "dev_predictions.tsv",
        "dev.errors.jsonl",
        "dev.errors.html",
        "dev.confusion.json",
        "test_predictions.tsv",
    }
    confusion = json.loads((workdir / "predictions/dev.confusion.json").read_text())
    assert confusion["counts"] == [[4, 0], [0, 5]]  # all nine are right
    answers = (workdir / "predictions/test_predictions.tsv").read_text().splitlines()
    assert len(answers) == 1 + 5
    assert [line["step"] for line in metrics(workdir, "dev")] == list(range(3, 31, 3))
    assert any("initialised at random: classifier" in s for s in log)
    assert "step 30/30  loss" in "\n".join(log)


@pytest.mark.parametrize("what", ["classification", "tagging"])
def test_each_evaluation_has_the_share_of_the_most_frequent_label(finished, what):
    config, workdir, _, _ = finished(what)
    task = FAMILIES[config.family](config.data)
    labels = [label for row in task.read("dev") for label in golds(task, row)]
    most = max(labels.count(label) for label in labels)
    assert 0 < most < len(labels)
    lines = metrics(workdir, "dev")
    assert {line["majority"] for line in lines} == {100 * most / len(labels)}
    if what == "classification":
        assert (most, len(labels)) == (5, 9)


def test_numbers_and_several_labels_have_no_most_frequent_label(settings):
    for family in ("regression", "multi_label"):
        config = finetune_config(settings(family))
        task = FAMILIES[config.family](config.data)
        rows = task.read("dev")
        assert rows and majority(task, rows) == {}


@pytest.fixture(scope="module")
def short(settings, tmp_path_factory):
    """The workdir and the results of a short run with dropout."""
    workdir = tmp_path_factory.mktemp("short") / "run"
    return workdir, run_one(short_config(settings), workdir, [].append)


def short_config(settings, **changes):
    return finetune_config(
        settings(
            "classification",
            **{"model": DROPOUT, "epochs": 2, "log_every": 1, **changes},
        )
    )


def test_the_last_of_the_best_models_is_kept_if_a_later_one_is_worse(
    settings, monkeypatch, tmp_path
):
    """Dev scores of 50, 90, 90 and 70: the model of the third epoch."""
    scores, params_of_epochs = iter((50.0, 90.0, 90.0, 70.0)), []
    evaluate_tuned, evaluates = finetune.evaluate_tuned, finetune._FineTuning._evaluate

    def scored(task, split, outputs):
        task, evaluation = evaluate_tuned(task, split, outputs)
        scores_of_split = {task.main_metric: next(scores)}
        return task, evaluation._replace(scores=scores_of_split)

    def recorded(self, step, params, reporter):
        params_of_epochs.append(jax.device_get(params))
        evaluates(self, step, params, reporter)

    monkeypatch.setattr(finetune, "evaluate_tuned", scored)
    monkeypatch.setattr(finetune._FineTuning, "_evaluate", recorded)
    results = run_one(short_config(settings, epochs=4), tmp_path, [].append)
    assert len(params_of_epochs) == 4
    assert results["best_epoch"] == 3
    kernels = [params["classifier"]["kernel"] for params in params_of_epochs]
    kept = load(tmp_path).params["classifier"]["kernel"]
    assert [np.array_equal(kept, kernel) for kernel in kernels] == [
        *(False, False, True, False)
    ]


def test_a_run_whose_scores_are_all_nan_keeps_a_model(settings, given_scores, tmp_path):
    given_scores([np.nan, np.nan])
    results = run_one(short_config(settings, epochs=2), tmp_path, [].append)
    assert results["best_epoch"] == 1


@pytest.fixture
def given_scores(monkeypatch):
    """A function that sets the dev scores of a run, one for each evaluation."""
    evaluate_tuned = finetune.evaluate_tuned

    def set_scores(scores):
        evaluates = finetune._FineTuning._evaluate

        def scored(self, step, params, reporter):
            value = scores[step // self.batches.steps_per_epoch - 1]

            def evaluated(task, split, outputs):
                task, evaluation = evaluate_tuned(task, split, outputs)
                return task, evaluation._replace(scores={task.main_metric: value})

            monkeypatch.setattr(finetune, "evaluate_tuned", evaluated)
            return evaluates(self, step, params, reporter)

        monkeypatch.setattr(finetune._FineTuning, "_evaluate", scored)

    return set_scores


def test_a_run_stops_without_better_scores_and_stays_stopped(
    settings, given_scores, tmp_path
):
    """The run is killed between the best score and the stop, and after it. NaN loses.

    An equal score is no better score, but its model is kept.
    """
    given_scores([np.nan, 90.0, 70.0, 90.0, 95.0, 95.0])
    patient = dict(epochs=6, patience=2, log_every=5, checkpoint_every=5)
    config = short_config(settings, **patient)
    undisturbed = run_one(config, tmp_path / "whole", [].append)
    assert (
        undisturbed["stopped_at"],
        undisturbed["steps"],
        undisturbed["best_epoch"],
    ) == (12, 18, 4)
    # The tokens of all steps are reported, and the schedule has 18 steps.
    lines = metrics(tmp_path / "whole")
    assert [line["step"] for line in lines] == [5, 10, 12]
    assert lines[-1]["learning_rate"] == pytest.approx(1e-2 * (1 - 11 / 18))
    log, workdir = [], tmp_path / "run"

    def interrupt(start, line):
        log.append(line)
        if line.startswith(start):
            raise KeyboardInterrupt

    for start in ("epoch 4.00", "dev: accuracy"):
        with pytest.raises(KeyboardInterrupt):
            run_one(config, workdir, functools.partial(interrupt, start))
    last = "stopped early after step 12 of 18: 2 evaluations without a better accuracy"
    assert log.count(last) == 1
    del log[:]
    results = run_one(config, workdir, log.append)
    assert not any(line.startswith(("step", "epoch")) for line in log)
    assert without_times(results) == without_times(undisturbed)
    weights = "best/model.safetensors"
    whole_bytes = (tmp_path / "whole" / weights).read_bytes()
    assert (workdir / weights).read_bytes() == whole_bytes
    del log[:]
    run_one(config, workdir, log.append)
    assert [line.partition(":")[0] for line in log] == ["already finished"]


def test_class_weights_are_in_the_order_of_the_labels(settings, tmp_path):
    """Balanced like scikit-learn over rows or words, by name, and with a wrong name."""

    def weights(prepared, given):
        changed = dataclasses.replace(config, class_weights=given)
        run = finetune._FineTuning(changed, prepared, None, [].append)
        return run.objective.class_weights

    for what in ("classification", "tagging"):
        config = finetune_config(settings(what, train_rows=9))
        prepared = finetune_data.prepare(config, tmp_path, [].append)
        task, rows = prepared.task, prepared.train.rows
        names = [gold for row in rows for gold in golds(task, row)]
        classes = np.array(task.labels)
        there = np.isin(classes, names)  # a weight of 0 for a label without examples
        expected = np.zeros(len(classes))
        expected[there] = compute_class_weight(
            "balanced", classes=classes[there], y=names
        )
        assert weights(prepared, "balanced") == pytest.approx(expected)
        assert len({*expected}) > 1
        first, *others = task.labels
        assert weights(prepared, {first: 3.0}) == (3.0, *(1.0 for _ in others))
        assert weights(prepared, {}) == ()
        for wrong in ({first: 2.0, "neg": 3.0}, dict.fromkeys(task.labels, 0.0)):
            with pytest.raises(
                UserError, match=rf"^class_weights=.*\({first}, .* the we"
            ):
                weights(prepared, wrong)
    assert balanced(np.array([6, 0, 2])).tolist() == [8 / 12, 0, 8 / 4]


def test_a_finished_run_does_not_run_again(short, settings, monkeypatch):
    workdir, results = short
    monkeypatch.setattr(finetune_data, "prepare", lambda *_: pytest.fail("runs again"))
    log = []
    assert run_one(short_config(settings, log_every=7), workdir, log.append) == results
    assert len(log) == 1
    assert log[0].startswith("already finished: dev: accuracy ")


@pytest.mark.parametrize("split", ["train", "dev"])
def test_a_finished_run_notices_files_that_were_changed_in_place(
    split, short, settings, tmp_path
):
    made, results = short
    workdir, config = tmp_path / "run", short_config(settings)
    shutil.copytree(made, workdir)
    folder = shutil.copytree(config.data.dir, tmp_path / "data")
    place = workdir / "config.json"
    written = json.loads(place.read_text())
    written["data"]["dir"] = str(folder)
    place.write_text(json.dumps(written))
    data = dataclasses.replace(config.data, dir=str(folder))
    config = dataclasses.replace(config, data=data)
    assert run_one(config, workdir, [].append) == results
    (path,) = folder.glob(f"{split}*")
    header, row, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header, f"x{row}", *rows]))
    with pytest.raises(
        UserError, match="run contains a run whose rows differ from its files"
    ):
        run_one(config, workdir, [].append)
    path.unlink()  # the results do not need the files
    assert run_one(config, workdir, [].append) == results
    shutil.rmtree(folder)
    assert run_one(config, workdir, [].append) == results


def test_a_finished_run_notices_that_its_start_changed(short, settings, tmp_path):
    made, results = short
    workdir, config = tmp_path / "run", short_config(settings)
    shutil.copytree(made, workdir)
    start = Path(shutil.copytree(config.init_from, tmp_path / "start"))
    place = workdir / "config.json"
    written = json.loads(place.read_text())
    place.write_text(json.dumps(written | {"init_from": str(start)}))
    config = dataclasses.replace(config, init_from=str(start))
    assert run_one(config, workdir, [].append) == results
    tensors = safetensors.numpy.load_file(start / "model.safetensors")
    name = next(name for name in tensors if name.endswith("query.weight"))
    changed = tensors | {name: tensors[name] + 1}
    safetensors.numpy.save_file(changed, start / "model.safetensors")
    with pytest.raises(UserError, match="weights of init_from changed after the run"):
        run_one(config, workdir, [].append)
    (start / "model.safetensors").unlink()  # the results do not need it
    assert run_one(config, workdir, [].append) == results
    shutil.rmtree(start)
    assert run_one(config, workdir, [].append) == results


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, "config.json does not exist; .*; put it back, or use"),
        (
            "config.json",
            b'{"batch_size": {}, "data": 7}',
            "config.json: family=None, expe",
        ),
        ("results.json", b'{"scores": [', "is not JSON"),
    ],
)
def test_the_error_names_a_damaged_file_of_a_finished_run(
    name, content, message, short, settings, tmp_path
):
    for file in {"config.json", "results.json"} - {name}:
        shutil.copy(short[0] / file, tmp_path)
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        run_one(short_config(settings), tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("step 1/", marks=pytest.mark.long),
        "step 5/",
        pytest.param("epoch 1", marks=pytest.mark.long),
        "dev: acc",
    ],
)
def test_an_interrupted_run_resumes_bit_for_bit(
    line, short, settings, metric_lines, tmp_path
):
    """Before the first checkpoint, between two, in an evaluation, and at the end."""
    undisturbed, results = short
    every_step = dict(checkpoint_every=2)

    def interrupt(logged):
        if logged.startswith(line):
            # A second run at the same time is refused and changes nothing.
            with pytest.raises(UserError, match=f"in use by process {os.getpid()} on"):
                run_one(short_config(settings, **every_step), tmp_path, print)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_one(short_config(settings, **every_step), tmp_path, interrupt)
    assert not (tmp_path / "results.json").exists()
    logged = []
    again = run_one(short_config(settings, **every_step), tmp_path, logged.append)
    resumed = [text for text in logged if text.startswith("resuming at step")]
    assert len(resumed) == (line != "step 1/")
    assert without_times(again) == without_times(results)
    weights = "best/model.safetensors"
    assert (tmp_path / weights).read_bytes() == (undisturbed / weights).read_bytes()
    dev = metrics(undisturbed, "dev")
    assert metrics(tmp_path, "dev") == dev
    assert [x["step"] for x in metric_lines(tmp_path) if x["split"] == "train"] == [
        *range(1, 7)
    ]
    assert not (tmp_path / "checkpoints").exists()


def test_an_interrupted_run_refuses_other_rows_or_settings(settings, tmp_path):
    """A file has the same name and length, but one label differs."""
    data, workdir = tmp_path / "data", tmp_path / "run"
    config = settings("classification", epochs=2, model=DROPOUT, log_every=1)
    shutil.copytree(config["data"]["dir"], data)
    config = finetune_config(config | {"data": config["data"] | {"dir": str(data)}})

    def interrupt(logged):
        if logged.startswith("epoch 2"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_one(config, workdir, interrupt)
    assert load(workdir).extra["scores"]  # the best model so far is complete
    with pytest.raises(UserError, match="contains a run with other settings"):
        run_one(dataclasses.replace(config, seed=1), workdir, print)
    for split in ("train", "dev"):
        path = data / f"{split}.csv"
        content = path.read_text()
        path.write_text(re.sub(",(yes|no)", swapped, content, count=1))
        with pytest.raises(UserError, match=r"other settings \(rows: \d+ -> \d+"):
            run_one(config, workdir, print)
        path.write_text(content)
    run_one(config, workdir, print)


def swapped(match):
    return {",yes": ",no", ",no": ",yes"}[match[0]]


def test_a_loss_that_is_not_finite_keeps_the_best_model_so_far(
    settings, tmp_path, monkeypatch
):
    workdir = tmp_path / "run"
    real = engine.compile_step

    def compile_diverging(*args, **kwargs):
        step = real(*args, **kwargs)

        def diverging_step(state, batch, schedule):
            number = int(state.step)
            state, sums = step(state, batch, schedule)
            if number >= 3:
                with jax.transfer_guard("allow"):
                    params = jax.tree.map(lambda x: x * np.nan, state.params)
                state = state.replace(params=params)
            return state, sums

        return diverging_step

    monkeypatch.setattr(engine, "compile_step", compile_diverging)
    with pytest.raises(UserError, match=r"became (nan|inf)"):
        run_one(short_config(settings), workdir, [].append)
    assert [line["step"] for line in metrics(workdir, "dev")] == [3]
    params = load(workdir).params
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))


def test_outputs_that_are_not_finite_end_the_run_without_a_save(
    settings, tmp_path, monkeypatch
):
    """An argmax of NaN would be the first label, and a score."""
    evaluations, run_model = [], finetune.run_model

    def outputs(*arguments, **options):
        evaluations.append(1)
        factor = 1 if len(evaluations) == 1 else np.nan
        return [factor * x for x in run_model(*arguments, **options)]

    monkeypatch.setattr(finetune, "run_model", outputs)
    message = (
        r"the model's outputs for dev are not finite numbers after step 6; no check"
    )
    with pytest.raises(DivergenceError, match=message):
        run_one(short_config(settings), tmp_path / "run", [].append)
    assert [line["step"] for line in metrics(tmp_path / "run", "dev")] == [3]
    params = load(tmp_path / "run").params
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))


def test_eight_devices_train_as_one(short, settings, tmp_path, monkeypatch):
    """With fsdp, the best parameters are also split when they are read again."""
    workdir, results = short
    read, best = finetune.best_params, []

    def noted(*arguments):
        best.append(read(*arguments))
        return best[0]

    monkeypatch.setattr(finetune, "best_params", noted)
    mesh = dict(mesh=dict(data=4, model=2, fsdp=True))
    eight = run_one(short_config(settings, **mesh), tmp_path / "run", [].append)
    kernel = best[0]["bert"]["encoder"]["layer_0"]["intermediate"]["kernel"]
    assert kernel.shape == (32, 64)
    assert kernel.sharding.shard_shape(kernel.shape) == (8, 32)
    for a, b in zip(metrics(workdir), metrics(tmp_path / "run"), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-3)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-3)
    assert eight["scores"] == results["scores"]


def test_a_run_starts_from_the_head_of_its_checkpoint(short, settings, tmp_path):
    """With a part of the rows, several evaluations per epoch, and scanned layers."""
    workdir, log = short[0], []
    changes = dict(init_from=str(workdir), train_rows=20, epochs=1, evaluations=2)
    changes |= dict(compute=dict(scan_layers=True))
    config = short_config(settings, **changes)
    results = run_one(config, tmp_path / "run", log.append)
    assert not any("initialised at random" in line for line in log)
    assert (results["train_sequences"], results["steps"]) == (20, 3)
    assert [line["step"] for line in metrics(tmp_path / "run", "dev")] == [2, 3]
    trees = (load(path).params for path in (workdir, tmp_path / "run"))
    shapes = (jax.tree.map(np.shape, tree) for tree in trees)
    assert next(shapes) == next(shapes)  # saved with separate layers
    labels = dict(init_from=str(workdir), data={"labels": ("yes", "no")})
    with pytest.raises(UserError, match=r"leave data\.labels out to keep the order of"):
        run_one(short_config(settings, **labels), tmp_path / "other", [].append)
    labels["data"] = {"labels": ("yes", "no", "perhaps")}
    with pytest.raises(UserError, match="fresh_head"):
        run_one(short_config(settings, **labels), tmp_path / "other", [].append)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"init_from": "nowhere"}, "nowhere does not exist"),
        ({"data": {"dir": "nowhere"}}, "nowhere"),
        (
            {"data": {"max_length": 33}},
            "max_length=33 exceeds the model's 32 positions",
        ),
        ({"accumulation": 99}, "accumulation=99, expected at most batch_size=8"),
        ({"freeze_layers": 9}, "freeze_layers=9, expected at most 1, all layers"),
        ({"freeze": True, "freeze_layers": 0}, "no effect with freeze=True; leave"),
        ({"freeze": True, "optimizer": {"layer_decay": 0.9}}, "with freeze=True"),
        ({"mesh": {"data": 3, "model": 2}}, "does not use exactly the 8 devices"),
        (
            {"data": {"regression": True}, "label_smoothing": 0.1},
            "label_smoothing are for tasks with one class for each text or word",
        ),
    ],
)
def test_impossible_settings_are_one_line_errors_and_leave_nothing(
    changes, message, settings, eight_devices, tmp_path
):
    config = finetune_config(settings("classification", **changes))
    with pytest.raises(UserError) as error:
        run_one(config, tmp_path / "run", [].append)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run" / "best").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": {"width": 8}}, "of features need features.bilstm=True or"),
        ({"features": {"dropout": 0.2}}, "of features need features.bilstm=True or"),
        ({"freeze": True}, "have no effect with features.layers; leave them out"),
        ({"freeze_layers": 1}, "have no effect with features.layers; leave them out"),
        ({"optimizer": {"layer_decay": 0.9}}, "have no effect with features.layers"),
    ],
)
def test_settings_without_an_effect_on_frozen_features_are_refused(
    changes, message, settings, tmp_path
):
    config = settings("tagging", **{"features": {"layers": (-1,)}} | changes)
    with pytest.raises(UserError, match=message):
        run_one(finetune_config(config), tmp_path / "run", [].append)


def test_checkpointing_of_layers_is_refused_for_an_lstm(settings, golden, tmp_path):
    start = str(golden / "v0_1_0/exported/two_way")
    changes = {"init_from": start, "compute": {"remat": "full"}}
    config = finetune_config(settings("classification", **changes))
    with pytest.raises(UserError, match="remat=full has no effect on LSTMs"):
        run_one(config, tmp_path / "run", [].append)


def test_a_wrong_main_metric_is_found_before_the_first_step(settings, tmp_path):
    log, config = [], short_config(settings, main_metric="f2")
    message = "main_metric='f2', expected one of accuracy, f1_macro"
    with pytest.raises(UserError, match=message):
        run_one(config, tmp_path / "run", log.append)
    assert not any(line.startswith("step") for line in log)


def test_a_split_without_rows_is_refused(settings, tmp_path):
    (tmp_path / "train.csv").write_text("text,label\na,x\nb,y\n")
    (tmp_path / "dev.csv").write_text("text,label\n")
    data = {"task": "table", "dir": str(tmp_path)}
    config = finetune_config(settings("classification", data=data))
    with pytest.raises(UserError, match=r"dev\.csv has no rows; expected at least"):
        run_one(config, tmp_path / "run", [].append)


def test_the_deadline_pauses_while_rows_are_read_and_tokenised(
    settings, tmp_path, monkeypatch
):
    """This work reports no progress."""
    config, waits = finetune_config(settings("classification")), []
    family = FAMILIES[config.family]

    def recorded(method):
        def call(*arguments):
            waits.append(progress._waits)
            return method(*arguments)

        return call

    for name in ("read", "encode"):
        monkeypatch.setattr(family, name, recorded(getattr(family, name)))
    prepared = finetune_data.prepare(config, tmp_path / "run", [].append)
    splits = 1 + len(prepared.splits)
    assert waits == [1, 1] * splits and progress._waits == 0


def test_dev_is_scored_at_even_intervals_and_at_the_end():
    def evaluated(steps, evaluations):
        return [
            step
            for step in range(2 * steps + 1)
            if is_evaluated(step, steps, evaluations)
        ]

    assert evaluated(10, 1) == [10, 20]
    assert evaluated(10, 2) == [5, 10, 15, 20]
    assert evaluated(10, 3) == [4, 7, 10, 14, 17, 20]
    assert evaluated(3, 10) == [1, 2, 3, 4, 5, 6]


def test_features_are_not_written_through_a_link(settings, tmp_path):
    target, features = tmp_path / "precious.npy", tmp_path / "run/features"
    target.write_text("content")
    features.mkdir(parents=True)
    (features / "train-0.npy").symlink_to(target)
    config = settings("tagging", features={"layers": (-2, -1), "width": 8})
    finetune_data.prepare(finetune_config(config), tmp_path / "run", [].append)
    assert target.read_text() == "content"
    assert not (features / "train-0.npy").is_symlink()


def test_a_failed_write_of_features_is_an_exception(settings, tmp_path, monkeypatch):
    """A mapped file on a full disk would end the process with a signal."""

    @contextlib.contextmanager
    def full(path):
        with Path("/dev/full").open("wb") as file:
            yield file

    monkeypatch.setattr(evaluation, "new_file", full)
    config = settings("tagging", features={"layers": (-1,), "width": 8})
    with pytest.raises(OSError, match="No space left on device"):
        finetune_data.prepare(finetune_config(config), tmp_path / "run", [].append)


def test_an_empty_list_of_labels_means_a_run_of_0_2():
    """Other processes than the first receive a tuple of process 0 as a list."""
    rows = [(f"a film {i}", i) for i in (10, 2, 1)] * 2
    task = tasks.classification().with_rows(train=rows, dev=rows)
    checkpoint = types.SimpleNamespace(head="pretraining", labels=())
    config = finetune_config(dict(family="classification", data=dict(task="mrpc")))
    for recorded in ((), []):
        ordered = finetune_data._with_order(task, checkpoint, config, recorded)
        assert ordered.labels == ("1", "10", "2")
    ordered = finetune_data._with_order(task, checkpoint, config, None)
    assert ordered.labels == ("1", "2", "10")


def test_a_head_keeps_its_order_if_its_labels_differ_in_case():
    """A head of MNLI starts a run on SICK, whose labels are in upper case."""
    rows = [("a", "b", "ENTAILMENT"), ("a", "c", "NEUTRAL")]
    task = tasks.sick("entailment").with_rows(train=rows, dev=rows)
    trained = ("contradiction", "entailment", "neutral")
    checkpoint = types.SimpleNamespace(head="sequence", labels=trained)
    config = finetune_config(dict(family="classification", data=dict(task="mrpc")))
    ordered = finetune_data._with_order(task, checkpoint, config, None)
    assert ordered.labels == trained
    assert [row.label for row in ordered.read("train")] == ["entailment", "neutral"]


def test_the_main_score_is_shown_first():
    scores = {"exact": 50.0, "HasAns_f1": 62.5, "f1": 75.125}
    shown = show(scores, "f1")
    assert shown == "f1 75.12  exact 50.00  HasAns_f1 62.50"
    assert show(scores).startswith("exact 50.00  HasAns")


def test_a_saved_model_cuts_texts_as_in_training_not_as_its_start(settings, tmp_path):
    start = short_config(settings).init_from
    folder = Path(shutil.copytree(start, tmp_path / "start"))
    path = folder / "tokenizer_config.json"
    given = json.loads(path.read_text())
    changes = {"model_max_length": 8, "truncation_side": "left"}
    path.write_text(json.dumps(given | changes))
    positions = load(folder).config.max_positions
    config = short_config(settings, epochs=1, init_from=str(folder))
    for truncation, side in (("head", None), ("tail", "left")):
        data = dataclasses.replace(config.data, truncation=truncation)
        workdir = tmp_path / truncation
        run_one(dataclasses.replace(config, data=data), workdir, [].append)
        saved = json.loads((workdir / "best/tokenizer_config.json").read_text())
        assert saved["model_max_length"] == positions
        assert saved.get("truncation_side") == side
