import collections
import io
import os
import pickle
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import load_file

from bert_jax.errors import UserError
from bert_jax.interop import weights
from bert_jax.interop.weights import read_torch

# The storage in a pickle of a tensor: ("storage", type, key, device, count).
STORAGE = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000"
STORAGE += b"X\x03\x00\x00\x00cpuK\x06tQ"


@pytest.fixture(scope="module")
def folder(golden):
    return golden / "huggingface/pickle"


@pytest.fixture(scope="module")
def state(golden):
    return load_file(golden / "huggingface/pretraining/model.safetensors")


def tensor(offset: int, shape: tuple, stride: tuple) -> bytes:
    """The pickle of {"a": a view of six floats}."""

    def numbers(values):
        packed = b"".join(b"J" + struct.pack("<i", value) for value in values)
        return b"(" + packed + b"t"

    return (
        b"\x80\x02}X\x01\x00\x00\x00actorch._utils\n_rebuild_tensor_v2\n("
        + STORAGE
        + b"J"
        + struct.pack("<i", offset)
        + numbers(shape)
        + numbers(stride)
        + b"\x89ccollections\nOrderedDict\n)RtRs."
    )


def archive(path, content: bytes, data: bytes | None = None):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", content)
        if data is not None:
            file.writestr("archive/data/0", data)
    return path


@pytest.mark.parametrize("form", ["zip", "stream"])
def test_tensors_equal_torch(folder, state, form):
    tensors = read_torch(folder / f"{form}.bin")
    decoder = tensors.pop("cls.predictions.decoder.weight")
    word_table = tensors["bert.embeddings.word_embeddings.weight"]
    assert np.shares_memory(decoder, word_table)  # tied, as torch stored it
    tensors.pop("cls.predictions.decoder.bias")
    assert tensors.keys() == state.keys()
    for name in state:
        np.testing.assert_array_equal(tensors[name], state[name], strict=True)


def test_views_follow_their_strides(tmp_path):
    data = np.arange(6, dtype=np.float32).tobytes()
    path = archive(tmp_path / "a.bin", tensor(0, (3, 2), (1, 3)), data)
    (array,) = read_torch(path).values()
    assert array.tolist() == [[0, 3], [1, 4], [2, 5]]
    path = archive(tmp_path / "b.bin", tensor(4, (2,), (1,)), data)
    assert read_torch(path)["a"].tolist() == [4, 5]
    path = archive(tmp_path / "c.bin", tensor(6, (0, 3), (3, 1)), data)
    assert read_torch(path)["a"].shape == (0, 3)


@pytest.mark.parametrize(
    ("offset", "shape", "stride"),
    [
        (1, (6,), (1,)),
        (0, (2,), (6,)),
        (-1, (2,), (1,)),
        (0, (2,), (-1,)),
        (0, (2**30,), (1,)),
        (0, (2, 2), (1,)),
        (7, (), ()),
    ],
)
def test_a_view_beyond_its_storage_is_refused(tmp_path, offset, shape, stride):
    path = archive(tmp_path / "a.bin", tensor(offset, shape, stride), bytes(24))
    with pytest.raises(UserError, match="is damaged"):
        read_torch(path)


class Evil:
    """Pickles as a call."""

    def __init__(self, call, *arguments):
        self.reduced = call, arguments

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda marker: Evil(os.mkdir, str(marker)), "mkdir"),
        (lambda marker: Evil(eval, f"open({str(marker)!r}, 'w')"), "eval"),
        (lambda marker: Evil(pickle.loads, pickle.dumps(1)), "loads"),
        (lambda marker: np.zeros(3), "_reconstruct"),
    ],
    ids=["mkdir", "eval", "nested pickle", "numpy"],
)
@pytest.mark.parametrize("form", ["zip", "stream"])
def test_code_is_refused_before_it_runs(tmp_path, make, named, form):
    marker = tmp_path / "marker"
    content = pickle.dumps({"weight": make(marker)}, 2)
    path = tmp_path / "pytorch_model.bin"
    if form == "zip":
        archive(path, content)
    else:
        path.write_bytes(content)
    with pytest.raises(
        UserError,
        match=rf"calls \w+(\.\w+)*\.{named}, which may run any code; .*safetensors",
    ) as e:
        read_torch(path)
    assert "\n" not in str(e.value)
    assert not marker.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"ccollections\nOrderedDict.update\n.",  # other names of allowed modules
        b"ctorch\nload\n.",
        b"ctorch._utils\n__builtins__\n.",
        b"(X\x04\x00\x00\x00trueios\nsystem\n.",  # INST
        b"(cos\nsystem\nX\x04\x00\x00\x00trueo.",  # OBJ
        b"cos\nsystem\n)\x81.",  # NEWOBJ
        b"cos\nsystem\n)}\x92.",  # NEWOBJ_EX
        b"X\x02\x00\x00\x00osX\x06\x00\x00\x00system\x93.",  # STACK_GLOBAL
        b"\x82\x01.",  # EXT1
    ],
)
def test_every_instruction_that_names_a_function_is_refused(tmp_path, content):
    path = archive(tmp_path / "a.bin", b"\x80\x04" + content)
    with pytest.raises(UserError, match=r"may run any code|unregistered extension"):
        read_torch(path)


def test_a_large_memo_index_needs_no_memory(tmp_path):
    """The memo of Python's unpickler is an array up to the largest index."""
    content = b"\x80\x02}r" + struct.pack("<I", 2**32 - 1) + b"."
    tracemalloc.start()
    assert read_torch(archive(tmp_path / "a.bin", content)) == {}
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()


@pytest.mark.parametrize("build", [b"}U", b"N}U\x86"], ids=["dict", "slots"])
@pytest.mark.parametrize(
    "name",
    [
        b"collections\nOrderedDict",
        b"torch\nFloatStorage",
        b"torch._utils\n_rebuild_tensor_v2",
    ],
)
def test_an_allowed_name_cannot_be_changed(golden, tmp_path, name, build):
    """The instruction BUILD can set attributes of classes and functions."""
    path = golden / "huggingface/pickle/zip.bin"
    before = read_torch(path)
    for attribute in (b"keys", b"__call__", b"__code__"):
        state = build.replace(b"U", b"U%c%bK\x01s" % (len(attribute), attribute))
        content = b"\x80\x02c" + name + b"\n" + state + b"b."
        with pytest.raises(UserError, match="is damaged"):
            read_torch(archive(tmp_path / "a.bin", content))
    assert collections.OrderedDict(a=1).keys() == {"a"}
    assert read_torch(path).keys() == before.keys()


@pytest.mark.parametrize("form", ["zip", "stream"])
def test_changed_bytes_cause_at_most_a_one_line_error(folder, tmp_path, form):
    """They cause no crash and use little memory. Changed names or numbers may be read."""
    rng = np.random.default_rng(0)
    complete = (folder / f"{form}.bin").read_bytes()
    path = tmp_path / "pytorch_model.bin"
    refused = 0
    for _ in range(150):
        content = bytearray(complete)
        for position in rng.integers(0, 9000, rng.integers(1, 4)):
            content[position] = rng.integers(256)
        path.write_bytes(content)
        try:
            assert all(array.nbytes < 1e6 for array in read_torch(path).values())
        except UserError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 50


@pytest.mark.parametrize("form", ["zip", "stream"])
@pytest.mark.parametrize("share", [0, 0.001, 0.02, 0.05, 0.5, 0.9999])
def test_a_truncated_file_is_a_one_line_error(folder, tmp_path, form, share):
    content = (folder / f"{form}.bin").read_bytes()
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(UserError, match="is damaged") as e:
        read_torch(path)
    assert "\n" not in str(e.value)


def test_objects_other_than_tensors_are_refused(tmp_path):
    for value, message in (
        ([1, 2], "is damaged"),
        ({"a": 1}, "'a' is not a tens"),
    ):
        path = archive(tmp_path / "a.bin", pickle.dumps(value, 2))
        with pytest.raises(UserError, match=message):
            read_torch(path)


@pytest.mark.parametrize("form", ["zip", "stream"])
def test_big_endian_numbers_are_refused(folder, tmp_path, form):
    path = tmp_path / "pytorch_model.bin"
    content = (folder / f"{form}.bin").read_bytes()
    if form == "stream":  # pickle's True and False
        key = b"little_endian"
        start = content.index(b"\x88", content.index(key) + len(key))
        path.write_bytes(content[:start] + b"\x89" + content[start + 1 :])
    else:
        with (
            zipfile.ZipFile(io.BytesIO(content)) as before,
            zipfile.ZipFile(path, "w") as after,
        ):
            for name in before.namelist():
                same = before.read(name)
                after.writestr(name, b"big" if name.endswith("byteorder") else same)
    with pytest.raises(UserError, match="big-endian"):
        read_torch(path)


def test_a_full_disk_is_a_one_line_error_with_the_file(tmp_path, monkeypatch):
    """The exception of safetensors is not an OSError."""

    def full(*args):
        raise SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        )

    monkeypatch.setattr(weights, "save_file", full)
    with pytest.raises(UserError, match=r"a\.safetensors could not .* No space left"):
        weights.write_safetensors(tmp_path / "a.safetensors", {"a": np.zeros(3)})


def test_a_storage_that_is_a_view_of_another_is_refused():
    unpickler = weights._Unpickler(io.BytesIO(), lambda key, dtype, length: key)
    storage = ("storage", "torch.FloatStorage", "7", "cpu", 3)
    assert unpickler.persistent_load((*storage, None)) == "7"
    with pytest.raises(ValueError, match="an unknown kind of storage"):
        unpickler.persistent_load((*storage, ("8", 0, 3)))
