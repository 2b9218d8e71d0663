"""Folders of versions 0.1.0 and 0.2.0 in golden/, written by their make.py.

Exported folders load the same parameters bit for bit. Workdirs, prepared text, sweeps and
studies are read, and their missing parts are computed. Unfinished runs keep the order of
their classes.
"""

import hashlib
import json
import runpy
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy

import bert_jax
from bert_jax.commands import study as command
from bert_jax.data.mixture import Text
from bert_jax.data.pipeline import TrainingBatches, split_documents
from bert_jax.data.preparation import prepare
from bert_jax.data.store import UNFINISHED, TokenStore
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.training import pretrain
from bert_jax.training.config import DataConfig, finetune_config, train_config
from bert_jax.training.pretrain_data import open_text
from bert_jax.training.study import Study
from bert_jax.training.sweep import run_one, run_sweep
from bert_jax.training.workdir import RunFolder

OBJECTIVES = ("mlm_nsp", "causal", "two_way", "electra")
FOLDER = Path(__file__).parent / "golden/v0_1_0"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
ARRAYS = np.load(FOLDER / "expected.npz")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of the folder as the current folder, since its paths are relative."""
    copy = tmp_path / "v0_1_0"
    shutil.copytree(FOLDER, copy)
    monkeypatch.chdir(copy)
    return copy


def digest(params):
    """The digest of make.py, which ignores names and shapes."""
    values = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])
    return hashlib.sha256(np.sort(values[values != 0]).tobytes()).hexdigest()


def same_when_saved(model, name, folder, untrained=("nsp/bias", "nsp/kernel")):
    """Asserts that the saved model has the tensors of an exported folder.

    untrained: tensors that 0.1.0 also saved, although the run did not train them. It saved
    the NSP head of two_way.
    """
    model.save(folder)
    before, after = (
        safetensors.numpy.load_file(place / "model.safetensors")
        for place in (FOLDER / "exported" / name, folder)
    )
    assert before.keys() - after.keys() <= {*untrained}
    for tensor, value in after.items():
        np.testing.assert_array_equal(value, before[tensor], tensor, strict=True)


def close(actual, expected):
    """Whether two JSON values are equal, numbers within 1e-5."""
    if isinstance(expected, dict):
        return actual.keys() == expected.keys() and all(
            close(actual[key], value) for key, value in expected.items()
        )
    if isinstance(expected, list):
        return len(actual) == len(expected) and all(map(close, actual, expected))
    if isinstance(expected, float):
        return abs(actual - expected) < 1e-5 * max(1, abs(expected))
    return actual == expected


def settings(workdir):
    """The settings of a run from its config.json."""
    content = json.loads((Path(workdir) / "config.json").read_text())
    return {name: value for name, value in content.items() if name != "text"}


def steps(workdir, split):
    """The steps in metrics.jsonl, and whether all losses are finite."""
    lines = map(json.loads, (Path(workdir) / "metrics.jsonl").read_text().splitlines())
    rows = [line for line in lines if line["split"] == split]
    finite = all(np.isfinite(row["loss"]) for row in rows if "loss" in row)
    return [row["step"] for row in rows], finite


@pytest.mark.parametrize("name", EXPECTED["calls"])
def test_an_exported_folder_loads_bit_for_bit(name, tmp_path):
    model = bert_jax.load(FOLDER / "exported" / name)
    assert digest(model.params) == EXPECTED["parameters"][name]
    output = model(ARRAYS["texts"].tolist())
    tokens = ...
    if model.config.encoder == "lstm":  # 0.1.0 had other vectors at padding
        tokens = output.attention_mask == 1
    vectors, expected = output.last_hidden_state, ARRAYS[f"{name}/vectors"]
    np.testing.assert_allclose(vectors[tokens], expected[tokens], 1e-5, 1e-6)
    for call in EXPECTED["calls"][name]:
        arguments = [tuple(a) if isinstance(a, list) else a for a in call["of"]]
        answer = getattr(model, call["call"])(*arguments)
        answer = json.loads(json.dumps(answer, default=np.ndarray.tolist))
        expected = call["answer"]
        if name == "squad" and call["call"] == "predict":
            # Before 0.3 a question without an id had its number from 1, not from 0.
            expected = expected | {"id": "0"}
        assert close(answer, expected), (call, answer)
    same_when_saved(model, name, tmp_path / "saved")


def test_prepared_text_gives_the_same_first_batch():
    config = train_config(settings(FOLDER / "runs/mlm_nsp"))
    store = TokenStore(FOLDER / "text")
    documents, _ = split_documents(store.info.documents, config.data.holdout)
    batch = TrainingBatches(
        [Text(store, documents)],
        load_tokenizer(FOLDER / "text"),
        config.phases,
        config.data.examples,
        seed=config.seed,
    )[0]
    for name, array in batch.items():
        np.testing.assert_array_equal(array, ARRAYS[f"text/{name}"], name)


@pytest.mark.parametrize(
    "objective",
    [pytest.param(n, marks=[pytest.mark.long] * (n != "mlm_nsp")) for n in OBJECTIVES],
)
def test_an_unfinished_pretraining_is_resumed(objective, folder):
    workdir = f"runs/{objective}"
    # The exported folder was also saved at step 4. A run without pairs trains no pooler.
    untrained = ["nsp/bias", "nsp/kernel"]
    if objective in ("causal", "two_way"):
        for leaf in ("bias", "kernel", "weight"):
            untrained += [f"bert.pooler.dense.{leaf}", f"bert/pooler/{leaf}"]
    model = bert_jax.load(workdir)
    same_when_saved(model, objective, folder / "saved", untrained)
    assert ("pooler" in model.params["bert"]) == (objective == "mlm_nsp")
    log = []
    pretrain.pretrain(train_config(settings(workdir)), workdir, log.append)
    assert "resuming at step 4" in log
    assert steps(workdir, "train") == ([1, 2, 3, 4, 5, 6], True)
    assert steps(workdir, "eval") == ([0, 6], True)


def test_an_unfinished_fine_tuning_is_resumed(folder):
    workdir = "runs/finetune_unfinished"
    log = []
    results = run_one(finetune_config(settings(workdir)), workdir, log.append)
    assert "resuming at step 6" in log
    assert steps(workdir, "train") == (list(range(1, 9)), True)
    assert 0 <= results["scores"]["dev"]["accuracy"] <= 100
    assert bert_jax.load(workdir).predict("all is good")["label"] in ("yes", "no")


def test_a_finished_fine_tuning_does_not_run_again(folder):
    workdir = "runs/finetune_finished"
    log = []
    results = run_one(finetune_config(settings(workdir)), workdir, log.append)
    expected = json.loads(Path(workdir, "results.json").read_text())
    assert results["scores"] == expected["scores"]
    assert not [line for line in log if line.startswith("step ")]
    model = bert_jax.load(workdir)
    scores = model.evaluate([("all is good", "yes"), ("bad men", "no")])
    assert set(scores) == {"accuracy", "f1_macro"}


def test_a_sweep_runs_only_unfinished_runs(folder):
    workdir = Path("runs/sweep")
    runs = sorted(path.name for path in (workdir / "sweep").iterdir() if path.is_dir())
    run_settings = settings(workdir / "sweep" / runs[0])
    log = []
    before = json.loads((workdir / "sweep.json").read_text())
    table = run_sweep(finetune_config(run_settings), workdir, log.append)
    assert (table["best_run"], table["metric"]) == (
        before["best_run"],
        before["metric"],
    )
    (variant,), (point,) = table["variants"].values(), before["points"]
    assert variant["scores"]["accuracy"]["scores"] == point["scores"]
    assert not [line for line in log if line.startswith("== ")]
    (workdir / "sweep" / runs[1] / "results.json").unlink()
    run_sweep(finetune_config(run_settings), workdir, log.append)
    assert [line for line in log if line.startswith("== ")] == [f"== {runs[1]}"]


def test_a_study_runs_only_unfinished_runs(folder):
    """0.1.0 prepared one text for all pretraining runs, at data.path=study/text."""
    log = []
    config, place = command._open("study")
    with pytest.raises(
        UserError,
        match=r"plain-seed0 contains a run with other settings \(.*data.corpus",
    ):
        Study(config, place).table()
    data = config.variants["plain"].pretrain["data"]
    data |= {"path": "study/text", "corpus": ()}
    study = Study(config, place, log.append)
    table = study.table()
    assert table["finished"] == table["parts"] == 3
    study.run()
    assert not [line for line in log if line.startswith("== ")]
    (study.folder / "pairs/plain-seed0/part.json").unlink()
    study.run()
    ran = [line for line in log if line.startswith("== ")]
    assert ran == ["== pairs/plain-seed0"]
    scores = study.table()["variants"]["plain"]["scores"]
    assert scores == table["variants"]["plain"]["scores"]


FOLDER_2 = FOLDER.parent / "v0_2_0"


def test_text_that_0_2_prepared_with_sentencepiece_keeps_its_ids(tmp_path):
    """0.2.0 encoded with the sentencepiece package, which breaks ties differently."""
    shutil.copytree(FOLDER_2 / "sentencepiece", tmp_path, dirs_exist_ok=True)
    directory, text = tmp_path / "store", str(tmp_path / "text.txt")
    config = DataConfig(path=str(directory))
    (store,), tokenizer = open_text(config, RunFolder(tmp_path / "w"), print)
    (sentence,) = store.read_sentences(np.array([[0, 1]]))
    stored = [tokenizer.tokens[i] for i in sentence[:3]]
    assert stored == ["\u2581s", "e", "at"]
    assert tokenizer.tokenize("seat") == ["\u2581s", "ea", "t"]
    # prepare finds the finished text, and does not complete unfinished text.
    files = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    report = prepare([text], tokenizer, directory, workers=1, format="lines")
    assert (report.info, report.counts) == (store.info, {})
    assert {path: path.read_bytes() for path in files} == files
    identity = {
        name: vars(store.info)[name] for name in ("vocabulary_fingerprint", "settings")
    }
    (directory / "index.json").unlink()
    (directory / "index/part-00000-of-00001.npz").touch()
    (directory / UNFINISHED).write_text(json.dumps(identity))
    with pytest.raises(
        UserError, match=r"vocabulary_fingerprint was 7a98fa.*, now 0bd742"
    ):
        prepare([text], tokenizer, directory, workers=1, format="lines")


EXPECTED_2 = json.loads((FOLDER_2 / "expected.json").read_text())
NUMBERS = [str(number) for number in range(12)]


@pytest.fixture
def make_2(tmp_path, monkeypatch):
    """The functions of 0.2.0's make.py, in a copy of its folder."""
    shutil.copytree(FOLDER_2, tmp_path / "v0_2_0")
    checkpoint = "exported/mlm_nsp"
    shutil.copytree(FOLDER / checkpoint, tmp_path / "v0_1_0" / checkpoint)
    monkeypatch.chdir(tmp_path / "v0_2_0")
    return runpy.run_path("make.py")


@pytest.mark.parametrize("name", ["files", "rows", "tagging"])
def test_an_unfinished_run_of_0_2_keeps_the_order_of_its_classes(name, make_2):
    """0.2.0 sorted whole numbers as texts. Another order would permute the head."""
    expected, log, workdir = EXPECTED_2[name], [], f"runs/{name}"
    if name == "files":
        config = finetune_config(make_2["file_settings"]())
        run_one(config, workdir, log.append)
    else:
        bert_jax.finetune(**make_2["call"](name), log=log.append)
    assert f"resuming at step {expected['step']}" in log
    assert list(bert_jax.load(workdir).labels) == expected["labels"]
    results = json.loads(Path(workdir, "results.json").read_text())
    assert close(results["scores"], expected["scores"])
    assert (
        json.loads(Path(workdir, "config.json").read_text())["labels"]
        == (expected["labels"])
    )


def test_a_new_run_on_the_same_rows_has_the_new_order(make_2, tmp_path):
    arguments = make_2["call"]("rows") | {"epochs": 1, "workdir": tmp_path / "new"}
    model = bert_jax.finetune(**arguments, log=[].append)
    assert list(model.labels) == NUMBERS
    config = json.loads((tmp_path / "new/config.json").read_text())
    assert config["labels"] == NUMBERS


def test_a_finished_run_of_0_2_on_rows_of_python_does_not_run_again(make_2):
    arguments, log = make_2["call"]("finished"), []
    model = bert_jax.finetune(**arguments, log=log.append)
    assert model.scores == EXPECTED_2["finished"]["scores"]
    assert any(line.startswith("already finished") for line in log)
    other = [(text, 11 - label) for text, label in arguments["train"]]
    with pytest.raises(
        UserError,
        match=r"runs/finished contains a run with other settings \(.*data\.dir",
    ):
        bert_jax.finetune(**arguments | {"train": other}, log=log.append)
