import numpy as np
import pytest

from bert_jax.tasks.row_shapes import Shape, packed_shapes


@pytest.mark.parametrize(
    ("lengths", "fits"),
    [
        ([], True),
        ([10], True),
        ([11], False),  # longer than a row
        ([10, 10], True),
        ([10, 10, 1], False),  # more tokens than the rows have
        ([7, 7, 6], False),  # as many, but they do not add up
        ([5, 5, 4, 3, 3], True),
        ([1] * 7, False),  # more than there are slots
    ],
)
def test_what_fits(lengths, fits):
    assert Shape(rows=2, length=10, slots=3).fits(np.array(lengths, int)) is fits


def test_a_longer_row_costs_more_than_its_tokens():
    costs = [Shape(512 // length, length, 8).cost for length in (32, 64, 128, 256)]
    assert costs == sorted(costs)
    assert costs[-1] < 2 * costs[0]


def test_the_commonest_shape_comes_first_and_one_holds_everything():
    """A hundredth of the sequences is long."""
    random = np.random.default_rng(0)
    lengths = random.triangular(3, 8, 40, 4000).astype(int)
    lengths[random.permutation(4000)[:40]] = 120
    shapes = packed_shapes(lengths[:, None], 16, 4, 512, 1)
    assert 2 <= len(shapes) <= 4
    assert shapes[0].length < 120
    assert max(shape.length for shape in shapes) >= 120
    # Hardly more room than 16 sequences need: batches are even, with the long ones.
    room = shapes[0].rows * shapes[0].length
    assert room < 1.05 * 16 * lengths.mean()
