import dataclasses
import gc
import json
import shutil

import jax
import numpy as np
import pytest
import safetensors.numpy
from etils import epath

import bert_jax
from bert_jax.data.library import LibraryTokenizer
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.inference.evaluation import text_features
from bert_jax.interop import tensorflow
from bert_jax.interop.find import check_checkpoint
from bert_jax.interop.huggingface import read_huggingface, save_huggingface
from bert_jax.interop.surgery import head_params, with_new_words
from bert_jax.interop.train_state import CheckpointStore, read_step
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.heads import BertForSequence
from bert_jax.model.parameters import stack_layers
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.parallel.mesh import MeshConfig, make_mesh
from bert_jax.tasks.families import task_of_head
from bert_jax.training.optimizer import OptimizerConfig, bert_optimizer
from bert_jax.training.state import abstract_state, init_state

EVAL = "deterministic"


@pytest.fixture(scope="module")
def folders(golden):
    return golden / "huggingface"


def write_params(folder, params):
    """Writes a run's only checkpoint, which contains only parameters."""
    with CheckpointStore(folder, keep=1) as store:
        store.save(0, {"params": params}, {})


def write_run(folder, checkpoint):
    """Writes a checkpoint as the workdir of a pretraining run."""
    write_params(folder / "checkpoints", checkpoint.params)
    groups = {"model": checkpoint.config, "compute": checkpoint.compute}
    settings = {name: dataclasses.asdict(group) for name, group in groups.items()}
    (folder / "config.json").write_text(json.dumps(settings))
    if checkpoint.tokenizer is not None:
        checkpoint.tokenizer.save(folder)


@pytest.fixture
def workdir(folders, tmp_path):
    """A workdir of the tiny pretraining model, with a vocabulary."""
    checkpoint = bert_jax.load(folders / "pretraining")
    tokenizer = load_tokenizer(folders / "tokenizer")
    write_run(tmp_path / "run", dataclasses.replace(checkpoint, tokenizer=tokenizer))
    return tmp_path / "run"


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y, strict=True)


def without_pairs(workdir):
    """Changes the config of a run, as if it had no sentence pairs."""
    settings = json.loads((workdir / "config.json").read_text())
    settings["data"] = {"examples": {"next_sentence": False}}
    (workdir / "config.json").write_text(json.dumps(settings))


def test_a_run_without_pairs_has_no_nsp_head_and_no_pooler(workdir, tmp_path):
    """The run trained neither. Weight decay shrank the pooler, which would be worse than a
    new one. Fine-tuning initialises a new pooler and logs it."""
    paired = bert_jax.load(workdir)
    assert "nsp" in paired.params and "pooler" in paired.params["bert"]
    without_pairs(workdir)
    model = bert_jax.load(workdir)
    assert "nsp" not in model.params and "pooler" not in model.params["bert"]
    assert model.missing == ()  # the model of this run has neither
    task_model = BertForSequence(model.config, 3)
    _, new = head_params(model, task_model, "sequence", ("a", "b", "c"))
    assert new == ["bert/pooler", "classifier"]
    with pytest.raises(UserError, match="has no pooler; set pooling to mean or cls"):
        model.encode("a bee", pooling="pooler")
    with pytest.raises(UserError, match="no NSP head"):
        model.next_sentence("a bee", "see")
    model.save(tmp_path / "saved")
    config = json.loads((tmp_path / "saved/config.json").read_text())
    assert config["architectures"] == ["BertForMaskedLM"]
    saved = safetensors.numpy.load_file(tmp_path / "saved/model.safetensors")
    assert not [
        name for name in saved if "pooler" in name or "seq_relationship" in name
    ]


def test_the_card_of_a_saved_model_names_its_origin(workdir, tmp_path):
    settings = json.loads((workdir / "config.json").read_text())
    settings["init_from"] = "org/start"
    (workdir / "config.json").write_text(json.dumps(settings))
    model = bert_jax.load(workdir)
    unknown = dataclasses.replace(model, path="")
    trained = f"{workdir}, which bert_jax trained from org/start"
    for saved, source in (
        (model, f"Saved by bert_jax from {trained}."),
        (unknown, "Not stated."),
    ):
        saved.save(tmp_path / "saved", overwrite=True)
        assert f"\n\n{source}\n\n" in (tmp_path / "saved/README.md").read_text()


def test_a_pooler_of_another_objective_is_kept(folders, tmp_path):
    """A model without an NSP head may train its pooler in another way."""
    checkpoint = bert_jax.load(folders / "pretraining")
    params = {name: checkpoint.params[name] for name in ("bert", "mlm")}
    folder = tmp_path / "run"
    folder.mkdir()
    write_run(folder, dataclasses.replace(checkpoint, params=params))
    without_pairs(folder)
    same(bert_jax.load(folder).params, params)


def test_a_tokenizer_has_the_length_of_the_position_table(workdir):
    assert bert_jax.load(workdir).tokenizer.model_max_length == 19
    longer = bert_jax.load(workdir, max_positions=50)
    assert longer.tokenizer(["a " * 99])["input_ids"].shape == (1, 50)


def test_a_hugging_face_folder_is_loaded(folders):
    checkpoint = bert_jax.load(str(folders / "sequence"), dtype="bfloat16")
    assert (checkpoint.source, checkpoint.head) == ("huggingface", "sequence")
    assert checkpoint.compute.dtype == "bfloat16"
    assert checkpoint.tokenizer is None
    assert {leaf.dtype for leaf in jax.tree.leaves(checkpoint.params)} == {
        np.dtype(np.float32)
    }
    assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves(checkpoint.params))


def test_a_stretched_table_of_positions_leaves_short_texts_as_they_were(
    folders, tmp_path
):
    """The table grows from 19 to 50 positions; the first 19 are bit for bit equal."""
    original = bert_jax.load(folders / "pretraining")
    longer = bert_jax.load(folders / "pretraining", max_positions=50)
    old = original.params["bert"]["embeddings"]["position"]["embedding"]
    new = longer.params["bert"]["embeddings"]["position"]["embedding"]
    assert (longer.config.max_positions, new.shape) == (50, (50, 24))
    np.testing.assert_array_equal(new[:19], old)
    for column in (0, 23):  # numpy interpolates in the same way
        expected = np.interp(np.arange(50) * 18 / 49, np.arange(19), old[:, column])
        np.testing.assert_allclose(new[19:, column], expected[19:], atol=1e-6)

    def apply(checkpoint, ids):
        zeros = np.zeros_like(ids)
        run = jax.jit(BertForPreTraining(checkpoint.config).apply, static_argnames=EVAL)
        arrays = ids, zeros, zeros + 1, zeros
        output = run({"params": checkpoint.params}, *arrays, deterministic=True)
        return output.mlm_logits_BMW

    ids = np.random.default_rng(0).integers(5, 61, (2, 19), np.int32)
    np.testing.assert_array_equal(apply(longer, ids), apply(original, ids))
    assert np.isfinite(apply(longer, np.tile(ids, 2))).all()
    save_huggingface(tmp_path / "longer", longer)
    same(bert_jax.load(tmp_path / "longer").params, longer.params)
    with pytest.raises(UserError, match=r"max_positions=18, but .* has 19; raise it"):
        bert_jax.load(folders / "pretraining", max_positions=18)


@pytest.mark.parametrize("name", ["", "bert_model.ckpt"])
def test_googles_checkpoint_is_loaded_by_folder_or_prefix(golden, name):
    checkpoint = bert_jax.load(golden / "google_bert" / name, activation="gelu_tanh")
    assert (checkpoint.source, checkpoint.head) == ("tensorflow", "pretraining")
    assert checkpoint.config.activation == "gelu_tanh"
    assert (checkpoint.missing, checkpoint.unexpected) == ((), ())
    assert sorted(checkpoint.params) == ["bert", "mlm", "nsp"]


def test_a_workdir_returns_the_saved_parameters(workdir, folders):
    before = bert_jax.load(folders / "pretraining")
    after = bert_jax.load(workdir)
    assert (after.source, after.head) == ("bert_jax", "pretraining")
    assert after.config == before.config
    assert after.tokenizer.tokens[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    same(before.params, after.params)


@pytest.mark.parametrize("scanned", [False, True])
def test_layers_are_stacked_as_requested(folders, tmp_path, scanned):
    """Saved layers may be stacked or separate."""
    plain = bert_jax.load(folders / "pretraining")
    saved = bert_jax.load(folders / "pretraining", scan_layers=scanned)
    write_run(tmp_path / "run", saved)
    same(bert_jax.load(tmp_path / "run").params, saved.params)
    again = bert_jax.load(tmp_path / "run", scan_layers=False)
    same(again.params, plain.params)
    stacked = bert_jax.load(tmp_path / "run", scan_layers=True).params
    expected = stack_layers(plain.params["bert"]["encoder"])
    jax.tree.map(np.testing.assert_array_equal, stacked["bert"]["encoder"], expected)


def test_the_best_model_of_a_fine_tuning_run_is_loaded_first(workdir, folders):
    best = read_huggingface(folders / "sequence")
    best = dataclasses.replace(best, extra={"task": "x"})
    save_huggingface(workdir / "best", best)
    checkpoint = bert_jax.load(workdir)
    assert (checkpoint.head, checkpoint.extra) == ("sequence", {"task": "x"})


def test_params_are_read_from_the_newest_checkpoint(workdir):
    checkpoints = workdir / "checkpoints"
    shutil.copytree(checkpoints / "0", checkpoints / "12")
    old = read_step(checkpoints)[1]
    shutil.rmtree(checkpoints / "0")
    same(old, read_step(checkpoints)[1])
    # An interrupted copy has no commit mark.
    shutil.copytree(checkpoints / "12", checkpoints / "13.orbax-checkpoint-tmp")
    same(old, read_step(checkpoints)[1])


def test_a_damaged_run_is_one_error_without_a_traceback(golden, tmp_path, caplog):
    shutil.copytree(golden / "v0_1_0/runs/mlm_nsp", tmp_path / "run")
    for path in (tmp_path / "run/checkpoints/4/state/d").iterdir():
        path.write_bytes(bytes(byte ^ 255 for byte in path.read_bytes()))
    with pytest.raises(UserError, match="run/checkpoints/4 is damaged"):
        bert_jax.load(tmp_path / "run")
    gc.collect()  # asyncio logs the errors of its tasks when they are deleted
    assert [record for record in caplog.records if record.name == "asyncio"] == []


def test_a_path_without_a_checkpoint_is_a_one_line_error(tmp_path, workdir):
    expected = "expected a Hugging Face folder .*Google's .*a workdir of bert_jax"
    with pytest.raises(UserError, match=rf"nowhere does not exist; {expected}"):
        bert_jax.load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=rf"empty contains no weights; {expected}"):
        bert_jax.load(tmp_path / "empty")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match=rf"file is a file; {expected}"):
        bert_jax.load(tmp_path / "file")
    (tmp_path / "config").mkdir()
    shutil.copy(workdir / "config.json", tmp_path / "config")
    with pytest.raises(UserError, match=rf"config contains no weights; {expected}"):
        bert_jax.load(tmp_path / "config")
    shutil.rmtree(workdir / "checkpoints" / "0")
    with pytest.raises(UserError, match="contains no complete checkpoint"):
        bert_jax.load(workdir)


@pytest.mark.parametrize("path", [None, 3, b"folder"])
def test_a_checkpoint_that_is_not_a_path_is_refused(path):
    kind = type(path).__name__
    with pytest.raises(UserError, match=f"is of type {kind}; expected the path"):
        bert_jax.load(path)


def test_the_newest_checkpoint_of_a_trainer_is_read(folders, tmp_path, caplog):
    """The output_dir of transformers' Trainer, without weights of its own."""
    for step, name in ((500, "token"), (1500, "sequence"), (90, "span")):
        shutil.copytree(folders / name, tmp_path / f"checkpoint-{step}")
    (tmp_path / "checkpoint-2000").mkdir()  # without weights
    (tmp_path / "checkpoint-best").mkdir()
    assert bert_jax.load(tmp_path).head == "sequence"
    assert [r.message for r in caplog.records] == [
        f"{tmp_path} has no weights; reading its newest, checkpoint-1500"
    ]
    shutil.copytree(folders / "span", tmp_path, dirs_exist_ok=True)
    caplog.clear()
    assert bert_jax.load(tmp_path).head == "span"
    assert not caplog.records


def test_the_file_of_the_weights_is_a_path_of_its_folder(golden, folders, tmp_path):
    sharded = golden / "huggingface/sharded"
    shard = next(sharded.glob("model-00002*"))
    for path, head in (
        (folders / "sequence/model.safetensors", "sequence"),
        (shard, "pretraining"),
        (sharded / "model.safetensors.index.json", "pretraining"),
    ):
        assert bert_jax.load(path).head == head
    for end in ("index", "data-00000-of-00001"):
        path = golden / "google_bert" / f"bert_model.ckpt.{end}"
        assert bert_jax.load(path, activation="gelu_tanh").source == "tensorflow"
    shutil.copytree(folders / "sequence", tmp_path / "two")
    (tmp_path / "two/pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UserError, match=r"\.bin is in the same folder as model\.safe"):
        bert_jax.load(tmp_path / "two/pytorch_model.bin")
    (tmp_path / "weights.bin").write_bytes(b"")
    with pytest.raises(
        UserError, match=r"must be named model.safetensors or .*; rename"
    ):
        bert_jax.load(tmp_path / "weights.bin")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tf_model.h5", r"contains only tf_model\.h5; .*from_tf=True\)\.save_pretr"),
        ("flax_model.msgpack", r"only flax_model\.msgpack; .*from_flax=True\)\.save"),
        ("adapter_config.json", r"is an adapter \(peft\), .*merge_and_unload\(\)"),
    ],
)
def test_weights_of_other_libraries_are_refused_by_name(
    folders, tmp_path, name, message
):
    folder = shutil.copytree(folders / "sequence", tmp_path / "m")
    (folder / name).write_text("{}")
    if not name.startswith("adapter"):
        # The folder has weights that are read.
        assert bert_jax.load(folder).head == "sequence"
        (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=message) as error:
        bert_jax.load(folder)
    assert "\n" not in str(error.value)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n"
PAGE = "\n<!DOCTYPE html>\n<html><body>Sign in</body></html>\n"


@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "tokenizer.json", "vocab.txt"]
)
@pytest.mark.parametrize(
    ("content", "message"),
    [(POINTER, "Git LFS pointer, .*git lfs pull"), (PAGE, "web page, .*download it")],
)
def test_what_a_download_left_instead_is_named(
    golden, folders, tmp_path, name, content, message
):
    folder = shutil.copytree(folders / "sequence", tmp_path / "m")
    if name == "tokenizer.json":
        shutil.copytree(golden / "huggingface/tokenizer", folder, dirs_exist_ok=True)
    (folder / name).write_text(content)
    with pytest.raises(UserError, match=f"{name} is a {message}"):
        bert_jax.load(folder)


def test_two_tensorflow_checkpoints_in_a_folder_must_be_named(golden, tmp_path):
    for file in (golden / "google_bert").glob("bert*"):
        shutil.copy(file, tmp_path)
        if "ckpt" in file.name:
            shutil.copy(file, tmp_path / file.name.replace("bert_model", "other"))
    with pytest.raises(UserError, match=r"contains .*bert_model.ckpt, "):
        bert_jax.load(tmp_path)
    assert bert_jax.load(tmp_path / "other.ckpt").source == "tensorflow"


@pytest.mark.long
def test_a_single_host_reads_the_weights_of_a_sharded_run(small_model_config, tmp_path):
    """The checkpoint was saved from eight devices, with its optimizer state."""
    mesh = make_mesh(MeshConfig(data=2, model=2, replica=2))
    optimizer = bert_optimizer(OptimizerConfig(learning_rate=1e-3))
    objective = MlmNsp(BertForPreTraining(small_model_config))
    abstract = abstract_state(objective, optimizer, mesh)
    state = init_state(objective, optimizer, abstract, seed=1)
    with CheckpointStore(tmp_path / "checkpoints", keep=1) as store:
        store.save(3, state, {})
    config = {"model": dataclasses.asdict(small_model_config)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    checkpoint = bert_jax.load(tmp_path)
    assert (checkpoint.head, checkpoint.tokenizer) == ("pretraining", None)
    same(checkpoint.params, jax.device_get(state.params))


def test_one_of_the_checkpoints_of_a_run_is_read(workdir):
    first = bert_jax.load(workdir)
    ones = jax.tree.map(np.ones_like, first.params)
    with CheckpointStore(workdir / "checkpoints", keep=2) as store:
        store.save(7, {"params": ones}, {})
    same(bert_jax.load(workdir).params, ones)
    same(bert_jax.load(workdir / "checkpoints/7").params, ones)
    old = workdir / "checkpoints/0"
    check_checkpoint(old)
    checkpoint = bert_jax.load(f"{old}/")
    same(checkpoint.params, first.params)
    assert checkpoint.tokenizer.tokens == first.tokenizer.tokens
    assert bert_jax.tokenizer(old).tokens == first.tokenizer.tokens
    message = r"checkpoints has no checkpoint of step 5; its checkpoints: 0, 7$"
    with pytest.raises(UserError, match=message):
        bert_jax.load(workdir / "checkpoints/5")


def test_an_average_of_parameters_is_read_on_request(workdir):
    """The moving average of a run, and the mean of its checkpoints, by hand in float64."""
    first = bert_jax.load(workdir).params
    random = np.random.default_rng(5)
    trees = [
        jax.tree.map(lambda x: np.float32(random.normal(size=x.shape)), first)
        for _ in range(3)
    ]
    with CheckpointStore(workdir / "checkpoints", keep=4) as store:
        store.save(7, {"params": trees[0]}, {})
        store.save(9, {"params": trees[1], "average": trees[2]}, {})
    same(bert_jax.load(workdir, average="ema").params, trees[2])
    same(bert_jax.load(workdir, average=1).params, trees[1])

    def check_mean(path, *of):
        mean = jax.tree.map(lambda *x: np.float32(np.mean(x, 0, np.float64)), *of)
        same(bert_jax.load(path, average=len(of)).params, mean)

    check_mean(workdir, *trees[:2])
    check_mean(workdir, first, *trees[:2])
    check_mean(workdir / "checkpoints/7", first, trees[0])
    refused = {
        (
            workdir,
            4,
        ): r"average=4, but there are only the checkpoints of steps 0, 7, 9;",
        (workdir / "checkpoints/7", "ema"): "has no moving average .* average=0.999$",
        (workdir, "mean"): "average='mean', expected ema, or a number of checkpoints",
        (workdir, 0): "average=0, expected ema",
        (workdir, -1): "average=-1, expected ema",
    }
    for (path, average), message in refused.items():
        with pytest.raises(UserError, match=message):
            bert_jax.load(path, average=average)


def test_a_model_that_is_not_a_run_has_no_average(folders):
    for average in ("ema", 2):
        with pytest.raises(UserError, match=r"average=.* needs the workdir"):
            bert_jax.load(folders / "none", average=average)


def test_googles_checkpoint_has_no_head_or_that_of_run_classifier(golden, monkeypatch):
    """run_classifier.py names its head output_weights and output_bias, without a scope."""
    kernel = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)
    head = {"output_weights": kernel, "output_bias": np.zeros(3, np.float32)}
    encoder = {
        name: array
        for name, array in tensorflow.read_checkpoint(
            golden / "google_bert/bert_model.ckpt"
        ).items()
        if not name.startswith("cls/")
    }
    variables = dict(encoder)
    monkeypatch.setattr(tensorflow, "read_checkpoint", lambda prefix: variables)
    checkpoint = bert_jax.load(golden / "google_bert")
    assert (checkpoint.head, list(checkpoint.params)) == ("none", ["bert"])
    assert (checkpoint.missing, checkpoint.unexpected) == ((), ())
    variables |= head | {"output_weights/adam_m": kernel}
    checkpoint = bert_jax.load(golden / "google_bert")
    assert checkpoint.head == "sequence"
    assert checkpoint.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    np.testing.assert_array_equal(checkpoint.params["classifier"]["kernel"], kernel.T)
    assert (checkpoint.missing, checkpoint.unexpected) == ((), ())


def test_a_vocabulary_of_another_size_is_refused(folders, workdir, tmp_path):
    copy = shutil.copytree(folders / "none", tmp_path / "copy")
    load_tokenizer(folders / "tokenizer").save(copy)
    assert bert_jax.load(copy).tokenizer.vocab_size == 61
    with (copy / "vocab.txt").open("a") as file:
        file.write("more\n")
    with pytest.raises(
        UserError, match="copy: the vocabulary has 62 tokens, the word table 61 rows"
    ):
        bert_jax.load(copy)


def test_rows_without_a_token_are_kept_and_never_predicted(folders, tmp_path, caplog):
    """As after transformers' resize_token_embeddings(..., pad_to_multiple_of=64)."""
    original, padded = tmp_path / "whole", tmp_path / "padded"
    for folder in (original, padded):
        shutil.copytree(folders / "pretraining", folder)
        load_tokenizer(folders / "tokenizer").save(folder)
    tokens = (padded / "vocab.txt").read_text().splitlines()[:57]
    (padded / "vocab.txt").write_text("\n".join(tokens))
    every, few = bert_jax.load(original), bert_jax.load(padded)
    assert "padded: the word table has 61 rows for 57 tokens; the other" in caplog.text
    assert few.config == every.config
    same(few.params, every.params)
    text = "the [MASK] bee"
    (expected,), (answers,) = every.fill_mask(text, top=61), few.fill_mask(text, top=57)
    expected = {token: p for token, p in expected if token in tokens}
    share = sum(expected.values())
    assert share < 0.99
    assert {token for token, _ in answers} == set(tokens)
    for token, p in answers:
        assert p == pytest.approx(expected[token] / share, abs=1e-6)
    assert few.score("the bee") > every.score("the bee") + 0.01
    few.save(tmp_path / "saved")
    write_run(tmp_path / "run", few)
    for name in ("saved", "run"):
        again = bert_jax.load(tmp_path / name)
        assert again.config == few.config
        same(again.params, every.params)


def test_a_tokenizer_with_other_rules_is_no_extension(folders, golden):
    """Two tokenizer.json files with equal tokens and different flags of an added token."""
    tokenizer = load_tokenizer(golden / "tokenizers/added")
    content = tokenizer.content.decode()
    assert '"lstrip": true' in content
    other = LibraryTokenizer(
        content.replace('"lstrip": true', '"lstrip": false').encode()
    )
    assert other.tokens == tokenizer.tokens
    checkpoint = bert_jax.load(folders / "none")
    checkpoint = dataclasses.replace(checkpoint, tokenizer=tokenizer)
    with pytest.raises(UserError, match="prepare it with the checkpoint's vocabulary"):
        with_new_words(checkpoint, other)


def test_a_new_word_without_old_tokens_starts_as_the_unknown_token(folders):
    checkpoint = bert_jax.load(folders / "pretraining")
    old = load_tokenizer(folders / "tokenizer")
    checkpoint = dataclasses.replace(checkpoint, tokenizer=old)
    longer = old.with_tokens((*old.tokens, "\u200b", "queen"))
    table = with_new_words(checkpoint, longer).params["bert"]["embeddings"]["word"]
    rows = np.asarray(table["embedding"])
    np.testing.assert_array_equal(rows[old.vocab_size], rows[old.unk_id])
    assert np.isfinite(rows).all()


def test_a_changed_vocabulary_of_a_run_is_refused(workdir):
    config = json.loads((workdir / "config.json").read_text())
    fingerprint = load_tokenizer(workdir).fingerprint()
    config["text"] = {"vocabulary": fingerprint}
    (workdir / "config.json").write_text(json.dumps(config))
    assert bert_jax.load(workdir).tokenizer.fingerprint() == fingerprint
    tokens = (workdir / "vocab.txt").read_text().replace("bee", "bea")
    (workdir / "vocab.txt").write_text(tokens)
    with pytest.raises(UserError, match="a different vocabulary from its run"):
        bert_jax.load(workdir)


def test_the_error_of_a_wrong_config_has_the_tensor(workdir):
    config = json.loads((workdir / "config.json").read_text())
    config["model"]["intermediate_size"] = 48
    (workdir / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        UserError,
        match=r"run: .*layer_0/intermediate/kernel is \(24, 40\), expected \(24, 48\)",
    ):
        bert_jax.load(workdir)
    (workdir / "config.json").write_text("{}")
    with pytest.raises(
        UserError, match=r"config.json: model is missing, expected an object$"
    ):
        bert_jax.load(workdir)


def test_a_workdir_from_before_0_1_0_is_refused(workdir):
    """Its group "model" also contains the settings of "compute"."""
    config = json.loads((workdir / "config.json").read_text())
    config["model"]["scan_layers"] = True
    (workdir / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"config\.json: .*model\.scan_layers"):
        bert_jax.load(workdir)


def test_a_workdir_that_convert_of_0_1_0_wrote_has_its_head(folders, tmp_path):
    checkpoint = bert_jax.load(folders / "token")
    write_run(tmp_path / "run", checkpoint)
    path = tmp_path / "run/config.json"
    settings = {"head": "token", "labels": checkpoint.labels, "extra": {"family": "x"}}
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    again = bert_jax.load(tmp_path / "run")
    assert (again.head, again.labels) == ("token", checkpoint.labels)
    assert again.extra == {"family": "x"}
    same(again.params, checkpoint.params)
    assert {name.split("/")[0] for name in again.missing} <= {"bert", "mlm", "nsp"}


def test_an_incomplete_part_is_refused(workdir):
    checkpoint = bert_jax.load(workdir)
    shutil.rmtree(workdir / "checkpoints")
    params = {name: checkpoint.params[name] for name in ("bert", "mlm")}
    write_params(workdir / "checkpoints", params)
    again = bert_jax.load(workdir)
    assert sorted(again.missing) == ["nsp/bias", "nsp/kernel"]
    shutil.rmtree(workdir / "checkpoints")
    half = {"kernel": checkpoint.params["nsp"]["kernel"], "odd": np.zeros(3)}
    write_params(workdir / "checkpoints", params | {"nsp": half})
    with pytest.raises(
        UserError,
        match=r"run: .*: nsp/bias is missing, expected \(2,\), nsp/odd is \(3,\), "
        r"expected none$",
    ):
        bert_jax.load(workdir)


@pytest.mark.parametrize("name", ["pretraining", "sequence", "workdir"])
def test_a_url_is_read_like_a_folder(bucket, folders, workdir, name):
    source = workdir if name == "workdir" else folders / name
    for file in source.iterdir():
        if file.is_file():
            target = epath.Path(bucket) / name / file.name
            target.write_bytes(file.read_bytes())
    if (
        name == "workdir"
    ):  # in an object store, Orbax uses another mark for complete checkpoints
        params = bert_jax.load(source).params
        write_params(epath.Path(bucket) / name / "checkpoints", params)
    checkpoint, expected = bert_jax.load(f"{bucket}/{name}"), bert_jax.load(source)
    assert (checkpoint.head, checkpoint.source) == (expected.head, expected.source)
    same(checkpoint.params, expected.params)


def test_a_tokenizer_is_read_without_weights(workdir, folders, golden, tmp_path):
    expected = load_tokenizer(folders / "tokenizer")
    model = bert_jax.load(workdir)
    google = golden / "google_bert"
    for path, length in (
        (workdir, model.config.max_positions),
        (folders / "tokenizer", None),
        (folders / "tokenizer/tokenizer.json", None),
    ):
        tokenizer = bert_jax.tokenizer(path)
        assert tokenizer.fingerprint() == expected.fingerprint()
        assert tokenizer.model_max_length == length
    with pytest.raises(UserError, match="none/x does not exist"):
        bert_jax.tokenizer(tmp_path / "none/x")
    with pytest.raises(UserError, match=r"has no vocabulary; add its vocab\.txt"):
        bert_jax.tokenizer(google)
    with pytest.raises(UserError, match=r"bert_jax\.tokenizer reads only a tokenizer"):
        bert_jax.load(workdir, weights=False)


def test_a_fine_tuning_without_a_best_model_is_named(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.json").write_text('{"family": "tagging", "model": {}}')
    message = "is a fine-tuning run without a best model"
    with pytest.raises(UserError, match=message):
        bert_jax.load(tmp_path)
    step = tmp_path / "checkpoints/20"
    step.mkdir()
    with pytest.raises(UserError, match=message):
        bert_jax.load(step)
    (tmp_path / "best").mkdir()
    (tmp_path / "best/config.json").write_text("{}")
    message = f"20 is a checkpoint of a fine-tuning run, .*; load {tmp_path}, which"
    with pytest.raises(UserError, match=message):
        bert_jax.load(step)


def test_a_shorter_length_of_the_tokenizer_is_the_limit_of_a_head(folders, tmp_path):
    folder = shutil.copytree(folders / "sequence", tmp_path / "sequence")
    for path in (folders / "tokenizer").iterdir():
        shutil.copy(path, folder)
    settings = {"model_max_length": 7, "truncation_side": "left"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    model = bert_jax.load(folder)
    task = task_of_head(model)
    assert (task.config.max_length, task.config.truncation) == (7, "tail")
    features = text_features(model.tokenizer, [("the sea the whale",)], 4)
    kept = model.tokenizer.encode("the sea the whale")[-2:]
    assert features.input_ids[0][1:-1].tolist() == kept.tolist()
    assert bert_jax.load(folder, max_positions=50).tokenizer.model_max_length == 50
