import dataclasses
import json
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import bert_jax
from bert_jax.commands.convert import main
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.interop import huggingface
from bert_jax.interop.train_state import CheckpointStore

NAMES = ("pretraining", "none", "masked_lm", "sequence", "token", "choice", "span")


def convert(source, target, to="hf", *more):
    main(["--checkpoint", str(source), "--output", str(target), "--to", to, *more])
    return target


def files(folder):
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.name != "README.md"  # README.md names the converted checkpoint
    }


@pytest.fixture
def source(golden, tmp_path):
    """The tiny models, each with a vocabulary."""
    source = shutil.copytree(golden / "huggingface", tmp_path / "source")
    for name in NAMES:
        load_tokenizer(source / "tokenizer").save(source / name)
    return source


@pytest.mark.parametrize("name", NAMES)
def test_converting_there_and_back_is_equal_bit_for_bit(source, tmp_path, name):
    first = convert(source / name, tmp_path / "first")
    second = convert(first, tmp_path / "second", "bert_jax")
    assert files(first) == files(second)
    assert "vocab.txt" in files(first)
    card = (first / "README.md").read_text()
    assert f"Converted by `bert_jax convert` from {source / name}." in card
    a, b = bert_jax.load(source / name), bert_jax.load(second)
    assert (a.config, a.head, a.labels) == (b.config, b.head, b.labels)
    jax.tree.map(np.testing.assert_array_equal, a.params, b.params)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["encoder", "lstm", "bilstm"])
def test_rounded_parameters_are_loaded_as_float32(golden, tmp_path, dtype, kind):
    """Also of models without a class in transformers. Training needs float32."""
    run = golden / "v0_1_0/runs/two_way"
    checkpoint = bert_jax.load(run if kind == "lstm" else golden / "huggingface/none")
    if kind == "bilstm":
        bilstm = {"bilstm": {"kernel": np.full((3, 4), 1 / 3, np.float32)}}
        params = dict(checkpoint.params) | bilstm
        checkpoint = dataclasses.replace(checkpoint, params=params)
    folder = tmp_path / "half"
    huggingface.save_huggingface(folder, checkpoint, own=True, dtype=dtype)
    loaded = bert_jax.load(folder).params
    assert ("bilstm" in loaded) == (kind == "bilstm")
    assert {str(x.dtype) for x in jax.tree.leaves(loaded)} == {"float32"}
    first, *_ = jax.tree.leaves(loaded)
    np.testing.assert_array_equal(first, first.astype(dtype).astype("f4"))


@pytest.mark.parametrize(("dtype", "bits"), [("float16", 11), ("bfloat16", 8)])
def test_the_file_has_half_the_size_and_the_nearest_numbers(
    source, tmp_path, dtype, bits
):
    """bits: significant bits of a number. Both libraries compute in float32."""
    whole = convert(source / "pretraining", tmp_path / "whole")
    half = convert(source / "pretraining", tmp_path / "half", "hf", "--dtype", dtype)
    sizes = [(f / "model.safetensors").stat().st_size for f in (whole, half)]
    assert sizes[1] < 0.6 * sizes[0]
    assert json.loads((half / "config.json").read_text())["dtype"] == "float32"
    a, b = load_file(whole / "model.safetensors"), load_file(half / "model.safetensors")
    assert {str(array.dtype) for array in b.values()} == {dtype}
    for name, array in a.items():
        np.testing.assert_allclose(
            b[name].astype("f4"), array, rtol=2.0**-bits, atol=1e-7
        )
    loaded = bert_jax.load(half)
    assert {str(x.dtype) for x in jax.tree.leaves(loaded.params)} == {"float32"}
    assert f"rounded to {dtype}" in (half / "README.md").read_text()


def test_a_number_that_is_too_large_for_the_dtype_is_refused(source, tmp_path):
    checkpoint = bert_jax.load(source / "none")
    params = jax.tree.map(np.array, checkpoint.params)
    bias = params["bert"]["embeddings"]["norm"]["bias"]
    checkpoint = dataclasses.replace(checkpoint, params=params)
    for number, message in (
        (-65520, "the number 65520; numbers in float16 must be at most 65504; use "),
        (np.nan, "the number nan; train the model again$"),
        (np.inf, "the number inf; train the model again$"),
    ):
        bias[0] = number
        with pytest.raises(UserError, match=message):
            huggingface.save_huggingface(tmp_path / "half", checkpoint, dtype="float16")
    assert not (tmp_path / "half").exists()


def test_google_to_hugging_face_and_back_is_equal(golden, tmp_path):
    activation = ("--activation", "gelu_tanh")
    first = convert(golden / "google_bert", tmp_path / "first", "hf", *activation)
    second = convert(first, tmp_path / "second")
    assert files(first) == files(second)
    google = bert_jax.load(golden / "google_bert", activation="gelu_tanh")
    back = bert_jax.load(second)
    assert back.config == google.config
    jax.tree.map(np.testing.assert_array_equal, back.params, google.params)
    config = json.loads((second / "config.json").read_text())
    assert config["architectures"] == ["BertForPreTraining"]
    assert config["hidden_act"] == "gelu_new"


def test_the_command_lists_unconverted_tensors(source, tmp_path, capsys):
    shutil.copy(source / "none" / "model.safetensors", source / "sequence")
    convert(source / "sequence", tmp_path / "out", "bert_jax")
    out = capsys.readouterr().out
    assert (
        "model_type: bert; 2 layers, width 24, 3 heads, 61 tokens; head: none\n" in out
    )
    assert "missing: classifier.bias, classifier.weight\n" in out
    assert "unexpected, not converted: none\n" in out
    assert "no vocabulary" not in out
    with pytest.raises(UserError, match="out is not empty"):
        convert(source / "token", tmp_path / "out")


@pytest.mark.parametrize("name", ["file", "file/model"])
def test_a_model_is_not_saved_into_a_file(source, tmp_path, name):
    (tmp_path / "file").write_text("kept")
    message = r"file is a file; expected a folder for the model$"
    with pytest.raises(UserError, match=message):
        convert(source / "token", tmp_path / name, "hf", "--overwrite")
    with pytest.raises(UserError, match=message):
        bert_jax.load(source / "token").save(tmp_path / name, overwrite=True)
    assert (tmp_path / "file").read_text() == "kept"


def test_a_saved_model_is_replaced_on_request(source, tmp_path):
    out = convert(source / "sequence", tmp_path / "out")
    (out / "special_tokens_map.json").write_text("{}")  # of transformers
    message = "out is not empty; expected a new folder, or --overwrite to replace"
    with pytest.raises(UserError, match=message):
        convert(source / "token", out)
    convert(source / "token", out, "hf", "--overwrite")
    assert files(out) == files(convert(source / "token", tmp_path / "new"))
    model = bert_jax.load(out)
    with pytest.raises(UserError, match=r"out is not empty; .* or overwrite=True to"):
        model.save(out)
    model.save(out, overwrite=True)
    assert f"Saved by bert_jax from {out}." in (out / "README.md").read_text()
    model.save(tmp_path / "empty", overwrite=True)
    assert files(out) == files(tmp_path / "empty")
    before = files(out)
    for name in ("notes.txt", ".git", "checkpoints"):
        (out / name).mkdir()
        with pytest.raises(
            UserError,
            match=rf"it contains {name}.*overwrite=True replaces only a saved",
        ):
            model.save(out, overwrite=True)
        (out / name).rmdir()
    (out / "config.json").rename(out / "README.md")
    with pytest.raises(UserError, match=r"it has no config\.json"):
        model.save(out, overwrite=True)
    (out / "README.md").rename(out / "config.json")
    assert files(out) == before


def test_the_average_of_a_run_is_converted_on_request(golden, tmp_path):
    model = bert_jax.load(golden / "huggingface/pretraining")
    run = tmp_path / "run"
    ones = jax.tree.map(np.ones_like, model.params)
    with CheckpointStore(run / "checkpoints", keep=2) as store:
        store.save(3, {"params": ones}, {})
        average = jax.tree.map(lambda x: 7 * x, ones)
        store.save(5, {"params": model.params, "average": average}, {})
    config = {"model": dataclasses.asdict(model.config)}
    (run / "config.json").write_text(json.dumps(config))
    expected = {"ema": 7.0, "2": (model.params["mlm"]["output_bias"] + 1) / 2}
    for chosen, bias in expected.items():
        out = convert(run, tmp_path / chosen, "hf", "--average", chosen)
        tensors = load_file(out / "model.safetensors")
        np.testing.assert_allclose(tensors["cls.predictions.bias"], bias, rtol=1e-6)
        assert (
            f"from {run} with `--average {chosen}`." in (out / "README.md").read_text()
        )


def test_importing_the_package_is_cheap():
    code = "import bert_jax, sys; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_form_of_the_folder_is_the_flag_to(checkpoint_dir, tmp_path, monkeypatch):
    forms = []
    monkeypatch.setattr(
        huggingface, "save_huggingface", lambda *_, own, **__: forms.append(own)
    )
    flags = ["--checkpoint", str(checkpoint_dir), "--output", str(tmp_path / "new")]
    for more in ([], ["--to", "hf"], ["--to", "bert_jax"]):
        main([*flags, *more])
    assert forms == [False, False, True]
