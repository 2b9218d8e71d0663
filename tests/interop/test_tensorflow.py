import shutil

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interop import tensorflow
from bert_jax.interop.tensorflow import read_checkpoint

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


def test_the_error_has_the_missing_file(copy):
    (copy / DATA).unlink()
    with pytest.raises(UserError, match=f"{DATA} does not exist; expected the num"):
        read_checkpoint(copy / "bert_model.ckpt")
    (copy / INDEX).unlink()
    with pytest.raises(UserError, match=f"{INDEX} does not exist; expected the whole"):
        read_checkpoint(copy / "bert_model.ckpt")


@pytest.mark.parametrize("size", [0, 1, 1_000_000, 2_339_935])
def test_truncated_data_is_refused(copy, size):
    with (copy / DATA).open("r+b") as file:
        file.truncate(size)
    with pytest.raises(UserError, match=f"{DATA} is damaged.*expected the ") as e:
        read_checkpoint(copy / "bert_model.ckpt")
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("size", [0, 10, 47, 48, 1000, 4855])
def test_a_truncated_index_is_refused(copy, size):
    with (copy / INDEX).open("r+b") as file:
        file.truncate(size)
    with pytest.raises(UserError, match="expected the whole index") as e:
        read_checkpoint(copy / "bert_model.ckpt")
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("position", [0, 700, 4600, 4790, 4811, 4850])
def test_a_changed_byte_of_the_index_is_refused(copy, position):
    flip(copy / INDEX, position)
    with pytest.raises(UserError, match="expected the whole index"):
        read_checkpoint(copy / "bert_model.ckpt")


def test_big_endian_numbers_are_refused(copy, monkeypatch):
    """The header has 1 shard and the byte order 1."""
    header = [(b"", b"\x08\x01\x10\x01")]
    monkeypatch.setattr(tensorflow, "_read_table", lambda _: header)
    with pytest.raises(UserError, match=f"{INDEX} is damaged.*big-endian"):
        read_checkpoint(copy / "bert_model.ckpt")


def test_a_changed_byte_of_the_data_is_refused(copy):
    flip(copy / DATA, 123_457)
    with pytest.raises(UserError, match=r"not match their checksum.*embeddings of num"):
        read_checkpoint(copy / "bert_model.ckpt")


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 16
    path.write_bytes(data)
