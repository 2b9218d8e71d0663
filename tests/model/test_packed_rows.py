"""Several sequences in a row give what each gives alone."""

import jax
import numpy as np
import pytest

from bert_jax.model.bert import BertModel
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.encoder import stack_layers

LENGTHS = ((5, 7, 3), (9, 6), (2,))
PLAIN = BertConfig(
    vocab_size=50,
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    intermediate_size=32,
    max_positions=16,
    initializer_range=0.2,
)


def encode(params, *inputs, compute=ComputeConfig(), **settings):
    model = BertModel(PLAIN, compute)
    run = jax.jit(
        lambda *arrays: model.apply(
            {"params": params}, *arrays, deterministic=True, **settings
        )
    )
    return jax.device_get(run(*inputs))


@pytest.fixture(scope="module")
def sequences():
    """Ids and segments of each sequence, by row."""
    random = np.random.default_rng(0)
    return [
        [(random.integers(1, 50, n), random.integers(0, 2, n)) for n in row]
        for row in LENGTHS
    ]


@pytest.fixture(scope="module")
def packed(sequences):
    """input_ids, token_type_ids, segment_ids of rows of 16, and starts; 0 is unused."""
    ids, segments, numbers = np.zeros((3, len(LENGTHS), 16), np.int32)
    starts = np.zeros((len(LENGTHS), 3), np.int32)
    for r, row in enumerate(sequences):
        first = 0
        for s, (tokens, types) in enumerate(row):
            place = np.s_[r, first : first + len(tokens)]
            ids[place], segments[place], numbers[place] = tokens, types, s + 1
            starts[r, s] = first
            first += len(tokens)
    return (ids, segments, numbers), starts


@pytest.fixture(scope="module")
def params(packed):
    inputs, _ = packed
    return BertModel(PLAIN).init(jax.random.key(0), *inputs, deterministic=True)[
        "params"
    ]


@pytest.fixture(scope="module")
def alone(sequences, params):
    """What each sequence gives on its own, padded: (n, 16, D), and pooled (n, D)."""
    flat = [pair for row in sequences for pair in row]
    ids, segments, mask = np.zeros((3, len(flat), 16), np.int32)
    for i, (tokens, types) in enumerate(flat):
        n = len(tokens)
        ids[i, :n], segments[i, :n], mask[i, :n] = tokens, types, 1
    output = encode(params, ids, segments, mask)
    return output.sequence_BLD, output.pooled_BD


@pytest.mark.parametrize("changes", [{}, {"remat": True}, {"scan_layers": True}])
def test_each_sequence_is_encoded_as_if_alone(changes, packed, params, alone):
    inputs, starts = packed
    places = dict(segment_ids_BL=inputs[2], starts_BS=starts)
    expected, pooled = alone
    if "scan_layers" in changes:
        params = params | {"encoder": stack_layers(params["encoder"])}
    compute = ComputeConfig(**changes)
    whole = encode(
        params,
        *inputs,
        compute=compute,
        **places,
        pool=False,
    )
    first = encode(
        params,
        *inputs,
        compute=compute,
        **places,
        positions_BQ=starts,
    )
    number = 0
    for r, row in enumerate(LENGTHS):
        for s, n in enumerate(row):
            begin = starts[r, s]
            got = whole.sequence_BLD[r, begin : begin + n]
            np.testing.assert_allclose(got, expected[number, :n], atol=2e-6)
            np.testing.assert_allclose(
                first.sequence_BLD[r, s], expected[number, 0], atol=2e-6
            )
            np.testing.assert_allclose(first.pooled_BD[r, s], pooled[number], atol=2e-6)
            number += 1


def test_without_starts_the_sequences_of_a_row_would_see_each_other(
    packed, params, alone
):
    """The test above could fail."""
    (ids, types, segment_ids), _ = packed
    expected, _ = alone
    mask = np.sign(segment_ids)
    mixed = encode(params, ids, types, mask, pool=False).sequence_BLD
    assert np.abs(mixed[0, :5] - expected[0, :5]).max() > 1e-2
