import itertools

import jax
import pytest

from bert_jax.inference.batching import batch_rows, lengths_up_to
from bert_jax.parallel.mesh import MeshConfig, make_mesh

pytestmark = pytest.mark.usefixtures("quick_compiles")


@pytest.mark.parametrize("most", [5, 16, 100, 384, 512, 2048])
def test_lengths_are_few_and_pad_little(most):
    lengths = lengths_up_to(most)
    assert lengths[-1] == most
    assert list(lengths) == sorted(set(lengths))
    assert len(lengths) <= 12
    for shorter, longer in itertools.pairwise(lengths):
        if longer <= 512:
            assert longer <= 1.5 * shorter


@pytest.mark.parametrize(
    ("units", "batch_size", "devices", "rows"),
    [
        (1, 32, 1, 1),
        (5, 32, 1, 8),
        (31, 24, 1, 24),
        (1000, 32, 1, 32),
        (1, 32, 8, 8),
        (9, 12, 8, 16),
    ],
)
def test_small_inputs_have_small_batches(units, batch_size, devices, rows):
    mesh = make_mesh(MeshConfig(), jax.devices()[:devices])
    assert batch_rows(units, batch_size, mesh) == rows
