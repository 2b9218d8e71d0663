import numpy as np
import pytest
from safetensors import safe_open

from bert_jax.inference.embed import array_file

PARTS = {
    "a": [np.arange(3, dtype=np.int32), np.arange(4, dtype=np.int32)],
    "values": [np.ones((2, 5), np.float32), np.zeros((0, 5), np.float32)],
    "offsets": [np.arange(1, dtype=np.int64), np.arange(2, dtype=np.int64)],
}


@pytest.mark.parametrize("name", ["x.npz", "x.safetensors"])
def test_rows_come_out_as_they_went_in(name, tmp_path):
    with array_file(tmp_path / name) as append:
        for i in range(2):
            for key, parts in PARTS.items():
                append(key, parts[i])
        assert list(tmp_path.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == [name]
    (tmp_path / "new").touch()
    assert (tmp_path / name).stat().st_mode == (tmp_path / "new").stat().st_mode
    if name == "x.npz":
        file = np.load(tmp_path / name)
        read = {key: file[key] for key in file}
    else:
        with safe_open(tmp_path / name, "numpy") as file:
            read = {key: file.get_tensor(key) for key in PARTS}
    for key, parts in PARTS.items():
        np.testing.assert_array_equal(read[key], np.concatenate(parts), strict=True)


def test_nothing_is_left_of_a_file_that_failed(tmp_path):
    with (
        pytest.raises(ZeroDivisionError),
        array_file(tmp_path / "x.npz") as append,
    ):
        append("a", np.arange(3))
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_rows_of_another_shape_are_a_bug(tmp_path):
    with (
        pytest.raises(ValueError, match="a: "),
        array_file(tmp_path / "x.npz") as append,
    ):
        append("a", np.zeros((3, 2)))
        append("a", np.zeros((3, 1)))
