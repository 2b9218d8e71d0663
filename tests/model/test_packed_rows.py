"""Sequences packed into a row have the same outputs as in rows of their own."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from bert_jax.model.bert import BertModel
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.parameters import stack_layers
from bert_jax.model.tokens import Tokens

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


def encode(params, tokens, compute=ComputeConfig(), config=PLAIN, **settings):
    apply = functools.partial(
        BertModel(config, compute).apply,
        deterministic=True,
        method="encode",
        **settings,
    )
    run = jax.jit(lambda params, tokens: apply({"params": params}, tokens))
    return jax.device_get(run(params, tokens))


@pytest.fixture(scope="module")
def packed():
    """Rows of 16 tokens with up to three sequences."""
    random = np.random.default_rng(0)
    ids, types, numbers = np.zeros((3, len(LENGTHS), 16), np.int32)
    starts = np.zeros((len(LENGTHS), 3), np.int32)
    for r, row in enumerate(LENGTHS):
        first = 0
        for s, n in enumerate(row):
            place = np.s_[r, first : first + n]
            ids[place], types[place] = random.integers([[1], [0]], [[50], [2]], (2, n))
            numbers[place], starts[r, s] = s + 1, first
            first += n
    return Tokens(ids, types, numbers, starts)


@pytest.fixture(scope="module")
def alone(packed):
    """Each sequence of ``packed`` in its own row."""
    rows = []
    for r, row in enumerate(LENGTHS):
        for s, n in enumerate(row):
            place = np.s_[r, packed.starts[r, s] : packed.starts[r, s] + n]
            parts = packed.input_ids[place], packed.token_type_ids[place], np.ones(n)
            rows.append([np.pad(x, (0, 16 - n)) for x in parts])
    return Tokens.of_mask(*np.int32(rows).swapaxes(0, 1))


@pytest.fixture(scope="module")
def params(packed):
    init = functools.partial(BertModel(PLAIN).init, deterministic=True, method="encode")
    return jax.jit(init)(jax.random.key(0), packed)["params"]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("changes", [{}, {"remat": "full"}, {"scan_layers": True}])
def test_each_sequence_is_encoded_as_if_alone(changes, causal, packed, params, alone):
    """All layers, only the second token of each sequence, and the pooled vectors."""
    config = dataclasses.replace(PLAIN, causal=causal)
    expected = encode(params, alone, config=config, hidden_states=True)
    if "scan_layers" in changes:
        params = params | {"encoder": stack_layers(params["encoder"])}
    run = functools.partial(encode, params, packed, ComputeConfig(**changes), config)
    all_layers = run(pool=False, hidden_states=True)
    second = run(positions_BQ=packed.starts + 1)
    number = 0
    for r, row in enumerate(LENGTHS):
        for s, n in enumerate(row):
            begin = packed.starts[r, s]
            pairs = [
                (second.sequence_BLD[r, s], expected.sequence_BLD[number, 1]),
                (second.pooled_BD[r, s], expected.pooled_BD[number, 0]),
            ]
            states = zip(all_layers.hidden_states, expected.hidden_states, strict=True)
            pairs += [(x[r, begin : begin + n], y[number, :n]) for x, y in states]
            for ours, single in pairs:
                np.testing.assert_allclose(ours, single, rtol=0, atol=5e-6)
            number += 1


def test_sequences_with_one_segment_id_see_each_other(packed, params, alone):
    """This shows that the test above can fail."""
    together = packed.replace(segment_ids=np.sign(packed.segment_ids))
    mixed = encode(params, together, pool=False).sequence_BLD
    expected = encode(params, alone, pool=False).sequence_BLD
    assert np.abs(mixed[0, :5] - expected[0, :5]).max() > 1e-2


def test_padding_attends_to_the_tokens_of_the_first_sequence(packed):
    attends = np.asarray(packed.attends())
    assert np.array_equal(attends[2, 5], packed.segment_ids[2] == 1)
    causal = np.asarray(packed.attends(np.array([[6], [0], [1]]), causal=True))
    assert np.nonzero(causal[0, 0])[0].tolist() == [5, 6]
