import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import bert_jax
from bert_jax.errors import UserError
from bert_jax.interop import tensorflow
from bert_jax.interop.tensorflow import read_checkpoint
from bert_jax.model.config import BertConfig

DATA = "bert_model.ckpt.data-00000-of-00001"
INDEX = "bert_model.ckpt.index"


@pytest.fixture(scope="module")
def variables(golden):
    return read_checkpoint(golden / "google_bert/bert_model.ckpt")


@pytest.fixture
def copy(golden, tmp_path):
    for name in (DATA, INDEX):
        shutil.copy(golden / "google_bert" / name, tmp_path)
    return tmp_path


def test_all_variables_are_read(variables):
    """46 weights, each with two Adam slots, and the step number."""
    assert len(variables) == 46 * 3 + 1
    step = variables["global_step"]
    assert (step.shape, step.dtype, int(step)) == ((), np.int64, 0)
    words = variables["bert/embeddings/word_embeddings"]
    assert (words.shape, words.dtype) == ((1200, 64), np.float32)
    # initializer_range 0.05, cut at two deviations: 0.88 of it is left.
    assert np.std(words) == pytest.approx(0.044, abs=5e-4)
    assert np.max(np.abs(words)) <= 0.1
    for name, array in variables.items():
        if "adam_" in name:
            assert not np.any(array)
            assert array.shape == variables[name.rpartition("/")[0]].shape


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")
def test_each_file_is_opened_once(golden):
    """A process may have 1,024 open files, and LARGE with Adam has 1,174 variables."""
    files = Path("/proc/self/fd")
    before = len([*files.iterdir()])
    variables = read_checkpoint(golden / "google_bert/bert_model.ckpt")
    assert len(variables) > 100
    assert len([*files.iterdir()]) <= before + 1


WHOLE = rf"{INDEX} .*expected the whole index"


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        *[(INDEX, size, WHOLE) for size in (None, 0, 10, 47, 48, 1000, 4855)],
        (DATA, None, f"{DATA} does not exist; expected the whole variable"),
        *[
            (DATA, size, f"{DATA} is damaged.*expected the ")
            for size in (0, 1, 1_000_000, 2_339_935)
        ],
    ],
)
def test_a_missing_or_truncated_file_is_refused(copy, name, size, message):
    if size is None:
        (copy / name).unlink()
    else:
        os.truncate(copy / name, size)
    with pytest.raises(UserError, match=message) as error:
        read_checkpoint(copy / "bert_model.ckpt")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "position", "message"),
    [
        *[(INDEX, position, WHOLE) for position in (0, 700, 4600, 4790, 4811, 4850)],
        (DATA, 123_457, r"not match their checksum.*embeddings of num"),
    ],
)
def test_a_changed_byte_is_refused(copy, name, position, message):
    content = bytearray((copy / name).read_bytes())
    content[position] ^= 16
    (copy / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_checkpoint(copy / "bert_model.ckpt")


def test_big_endian_numbers_are_refused(copy, monkeypatch):
    """The header has 1 shard and the byte order 1."""
    header = [(b"", b"\x08\x01\x10\x01")]
    monkeypatch.setattr(tensorflow, "_read_table", lambda _: header)
    with pytest.raises(UserError, match=f"{INDEX} is damaged.*big-endian"):
        read_checkpoint(copy / "bert_model.ckpt")


def test_an_ambiguous_gelu_is_a_warning_that_names_the_flag(golden, caplog):
    """Google's files have "gelu" for both forms; erf computes the numbers."""
    assert bert_jax.load(golden / "google_bert").config.activation == "gelu"
    (record,) = caplog.records
    assert "bert_config.json may mean either form of GELU" in record.message
    assert 'load(path, activation="gelu_tanh")' in record.message
    assert "convert --activation gelu_tanh" in record.message
    assert "model.activation=gelu_tanh of a run" in record.message
    assert "\n" not in record.message
    caplog.clear()
    for activation in ("gelu", "gelu_tanh"):  # the user chose
        model = bert_jax.load(golden / "google_bert", activation=activation)
        assert model.config.activation == activation
    assert not caplog.records


@pytest.mark.parametrize(
    ("layers", "width", "tokens", "prefix", "known"),
    [
        (12, 768, 28996, "bert_model.ckpt", True),  # BASE cased
        (12, 768, 119547, "bert_model.ckpt", True),  # multilingual cased
        (12, 768, 105879, "bert_model.ckpt", True),  # multilingual uncased
        (12, 768, 21128, "bert_model.ckpt", True),  # Chinese
        (12, 768, 28996, "model.ckpt-1000000", False),  # trained by a user
        (12, 768, 30522, "bert_model.ckpt", False),  # or a file of 2020
        (24, 1024, 30522, "bert_model.ckpt", False),  # or whole-word masking
        (24, 1024, 28996, "bert_model.ckpt", False),
        (2, 128, 30522, "bert_model.ckpt", False),
        (12, 768, 31090, "bert_model.ckpt", False),  # another vocabulary
    ],
)
def test_only_files_that_exist_of_2018_alone_need_no_warning(
    tmp_path, caplog, layers, width, tokens, prefix, known
):
    config = BertConfig(
        vocab_size=tokens,
        hidden_size=width,
        num_layers=layers,
        num_heads=width // 64,
        intermediate_size=4 * width,
    )
    path = tmp_path / "bert_config.json"
    tensorflow._warn_of_gelu(tmp_path / prefix, path, config)
    assert len(caplog.records) == (not known)
