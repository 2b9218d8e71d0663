import dataclasses
import threading

import numpy as np
import pytest

from bert_jax.data.examples import ExampleConfig, ExampleSource
from bert_jax.data.mixture import Text
from bert_jax.data.phases import Phase
from bert_jax.data.pipeline import (
    TrainingBatches,
    drawn_ahead,
    eval_batches,
    largest_batch,
    split_documents,
)
from bert_jax.errors import StalledError

PHASES = (
    Phase(steps=6, batch_size=8, sequence_length=32, max_predictions=5),
    Phase(steps=5, batch_size=4, sequence_length=64, max_predictions=10),
)


@pytest.fixture(scope="module")
def make(moby_dick, uncased):
    def make(rows=np.arange, packing=0):
        documents = np.arange(len(moby_dick.documents))
        return TrainingBatches(
            [Text(moby_dick, documents)],
            uncased,
            PHASES,
            ExampleConfig(),
            seed=1,
            rows=rows,
            packing=packing,
        )

    return make


def some_documents(batches, *numbers):
    """The text of batches with only these documents."""
    (text,) = batches.texts
    return [text._replace(documents=np.array(numbers))]


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("packing", [0, 4])
@pytest.mark.parametrize("hosts", [2, 4])
def test_the_hosts_slices_make_up_the_same_global_batches(make, hosts, packing):
    """Each host has two ranges of rows, as on a mesh that does not follow the hosts."""

    def rows(host):
        def runs(batch_size):
            size = batch_size // hosts // 2 or 1
            firsts = range(host * size, batch_size, hosts * size)
            return np.concatenate([np.arange(size) + first for first in firsts])

        return runs

    alone = make(packing=packing)
    for t in (0, 5, 6, 10):
        joined = {k: np.zeros_like(x) for k, x in alone[t].items()}
        for host in range(hosts):
            batch = make(rows(host), packing)[t]
            mine = rows(host)(len(joined["input_ids"]))
            for k, x in batch.items():
                joined[k][mine] = x
        assert same(joined, alone[t])


@pytest.mark.parametrize("packing", [0, 8])
def test_a_host_reads_only_its_rows(moby_dick, make, monkeypatch, packing):
    read = []

    def count(ranges):
        read.append(len(ranges) // 2)
        return type(moby_dick).read_sentences(moby_dick, ranges)

    monkeypatch.setattr(moby_dick, "read_sentences", count)

    def half(size):
        return np.arange(size // 2, size)

    batches = make(half, packing), make(packing=packing)
    assert read == []
    shares = []
    for t in range(6):
        for some in batches:
            some[t]
        shares.append(read[-2])
        assert read[-1] == 8
    assert all(2 <= share <= 6 for share in shares)
    assert packing or set(shares) == {4}


def test_a_host_whose_rows_are_empty_has_padding(make):
    def last(size):
        return np.array([size - 1])

    # Phase 1 has four pairs, and with packing=8 eight rows.
    batch, global_batch = make(last, packing=8)[7], make(packing=8)[7]
    assert batch["nsp_weights"].sum() == 0 and global_batch["nsp_weights"].sum() == 4
    assert same(batch, {name: array[-1:] for name, array in global_batch.items()})


@pytest.mark.parametrize("packing", [0, 1])
def test_the_largest_batch_has_the_arrays_of_a_batch(make, packing):
    batches = make(packing=packing)
    for t, phase in ((0, PHASES[0]), (6, PHASES[1])):
        batch = batches[t]
        largest = largest_batch(phase, ExampleConfig(), packs=packing > 0)
        assert largest.keys() == batch.keys()
        for name, array in batch.items():
            assert largest[name].dtype == array.dtype, name
            assert largest[name].shape == (phase.batch_size, *array.shape[1:]), name
            assert len(array) <= phase.batch_size


def test_packed_batches_have_the_pairs_of_unpacked_batches(make):
    packed, alone = make(packing=1), make()
    for t in range(11):
        phase = PHASES[t > 5]
        assert packed[t]["nsp_weights"].sum() == phase.batch_size
        tokens = np.count_nonzero(packed[t]["attention_mask"])
        assert tokens == alone[t]["attention_mask"].sum()
        assert len(packed[t]["input_ids"]) <= phase.batch_size


@pytest.mark.parametrize("first", [0, 4, 6, 11])
def test_the_iterator_starts_at_any_batch_and_crosses_phases(make, first):
    resumed = list(drawn_ahead(make(), first=first, threads=2, prefetch=3))
    assert len(resumed) == 11 - first
    for t, batch in enumerate(resumed, first):
        assert batch["input_ids"].shape == ((8, 32) if t < 6 else (4, 64))
        assert same(batch, make()[t])


@pytest.mark.parametrize(
    ("documents", "holdout", "eval_count"),
    [(1, 0.5, 0), (2, 0.01, 1), (2, 0.99, 1), (10, 0.0, 0), (1000, 0.05, 50)],
)
def test_held_out_documents_are_fixed_and_never_trained_on(
    documents, holdout, eval_count
):
    train, eval_ = split_documents(documents, holdout)
    assert (len(train), len(eval_)) == (documents - eval_count, eval_count)
    assert sorted([*train, *eval_]) == list(range(documents))
    assert np.array_equal(eval_, split_documents(documents, holdout)[1])


def test_evaluation_draws_the_same_batches_each_time_with_its_own_mask_rate(make):
    """So runs with other mask rates are comparable. Each of 5 x 4 pairs is rounded."""
    for rate in (0.05, 0.15):
        held_out = some_documents(make(), 3)
        first = list(eval_batches(make(), PHASES[1], held_out, rate))
        again = eval_batches(make(packing=2), PHASES[1], held_out, rate)
        assert all(map(same, first, again))
        masked = sum(batch["mlm_weights"].sum() for batch in first)
        tokens = sum(batch["attention_mask"].sum() for batch in first)
        assert len(first) == 5 and abs(masked - rate * tokens) <= 20 / 2


def test_evaluation_reads_only_held_out_documents(make, array_store):
    """The tokens of a document are its number: 1000, 1001, ..."""
    store = array_store([[[1000 + n] * 20] * 9 for n in range(8)])
    texts = [Text(store, np.arange(6))]
    training = dataclasses.replace(make(), texts=texts)
    held_out = some_documents(training, 6, 7)
    for batch in eval_batches(training, PHASES[0], held_out, 0.15):
        assert {*batch["mlm_ids"][batch["mlm_weights"] > 0]} <= {1006, 1007}
    assert {*training[0]["mlm_ids"][training[0]["mlm_weights"] > 0]} <= {
        *range(1000, 1006)
    }


def test_later_phases_and_evaluations_have_different_examples(make):
    first, second = (
        dataclasses.replace(make(), phases=(PHASES[0], PHASES[0]))[step]
        for step in (0, PHASES[0].steps)
    )
    assert not np.any((first["input_ids"] == second["input_ids"]).all(axis=1))
    training = dataclasses.replace(make(), seed=0)
    evaluation = eval_batches(training, PHASES[0], training.texts, 0.15)
    assert not same(evaluation[0], training[0])


class Reads:
    """Three items. The second item is the result of a call."""

    def __init__(self, call):
        self.call = call

    def __len__(self):
        return 3

    def __getitem__(self, number):
        return self.call() if number == 1 else number


def test_an_error_of_a_thread_is_raised():
    def fail():
        raise OSError("disk")

    items = drawn_ahead(Reads(fail), timeout=5)
    assert next(items) == 0
    with pytest.raises(OSError, match="disk"):
        next(items)


def test_a_thread_that_hangs_is_noticed_and_ends_with_the_iterator():
    before = set(threading.enumerate())  # threads of earlier tests may still run
    go_on = threading.Event()
    items = drawn_ahead(Reads(go_on.wait), first=1, timeout=0.05)
    with pytest.raises(StalledError, match=r"no batch for 0\.05 s: a data thread"):
        next(items)
    started = set(threading.enumerate()) - before
    go_on.set()
    for thread in started:
        thread.join()


@pytest.mark.parametrize(("threads", "prefetch"), [(1, 1), (2, 3), (3, 1)])
def test_no_more_batches_are_drawn_ahead_than_requested(threads, prefetch):
    read = []

    class Counts(list):
        def __getitem__(self, number):
            read.append(number)
            return number

    items = drawn_ahead(Counts(range(20)), threads=threads, prefetch=prefetch)
    for number in range(20):
        assert next(items) == number
        assert number <= max(read) <= number + prefetch
    assert sorted(read) == list(range(20)) and list(items) == []


FALLING = Phase(
    steps=11, batch_size=8, sequence_length=64, mask_rate=0.4, last_mask_rate=0.1
)
DRAWN = dataclasses.replace(FALLING, steps=40, last_mask_rate=0, mask_rate_spread=0.2)


def with_phase(batches, phase):
    return dataclasses.replace(batches, phases=(phase.completed(64),))


def masks(batch):
    """Numbers of masked tokens and of tokens of each row."""
    return batch["mlm_weights"].sum(1), batch["attention_mask"].sum(1)


def test_mask_rates_change_linearly_from_the_first_to_the_last_step(make):
    for phase in (
        FALLING,
        dataclasses.replace(FALLING, mask_rate=0.1, last_mask_rate=0.4),
    ):
        batches = with_phase(make(), phase)
        (completed,) = batches.phases
        assert completed.places(0.15) == 26  # 40% of 64
        for step in range(11):
            counts, tokens = masks(batches[step])
            change = (phase.last_mask_rate - phase.mask_rate) * step / 10
            expected = np.rint(tokens * (phase.mask_rate + change))
            np.testing.assert_array_equal(counts, np.maximum(expected, 1))


def test_each_sequence_draws_its_own_mask_rate(make):
    """The mean of n rates, uniform from 0.2 to 0.6, has a deviation of 0.4 / sqrt(12 n)."""
    batches = with_phase(make(), DRAWN)
    counts, tokens = np.concatenate([masks(batch) for batch in batches], axis=1)
    long = tokens > 50
    rates = counts[long] / tokens[long]
    n = len(rates)
    assert n > 200
    rounding = 0.5 / 50
    assert 0.2 - rounding < rates.min() < 0.22 and 0.58 < rates.max() < 0.6 + rounding
    assert abs(rates.mean() - 0.4) < 3 * 0.4 / np.sqrt(12 * n)
    assert abs(rates.std() - 0.4 / np.sqrt(12)) < 0.02
    # The rates of neighbouring sequences and of successive steps are independent.
    assert abs(np.corrcoef(rates[1:], rates[:-1])[0, 1]) < 3 / np.sqrt(n)


@pytest.mark.parametrize("phase", [FALLING, DRAWN])
def test_drawn_mask_rates_depend_on_neither_hosts_nor_packing(make, phase):
    alone, packed = (with_phase(make(packing=p), phase) for p in (0, 2))
    for step in (0, 7, 10):
        batch = alone[step]
        for rows in (np.arange(2), np.array([5])):
            mine = with_phase(make(lambda size, rows=rows: rows), phase)[step]
            assert same(mine, {name: x[rows] for name, x in batch.items()})
        assert packed[step]["mlm_weights"].sum() == batch["mlm_weights"].sum()


def test_evaluations_have_one_mask_rate_in_all_phases(make):
    """A phase with fewer masks than an evaluation does not reduce its masks."""
    few = dataclasses.replace(FALLING, mask_rate=0.05, last_mask_rate=0.02)
    for phase in (FALLING, DRAWN, few):
        training = with_phase(make(), phase)
        held_out = some_documents(training, 3)
        batches = eval_batches(training, training.phases[0], held_out, 0.15)
        for batch in batches:
            counts, tokens = masks(batch)
            np.testing.assert_array_equal(counts, np.maximum(np.rint(0.15 * tokens), 1))


def test_evaluations_of_other_mask_rates_have_the_same_rows(make):
    """Even for packed phases, and for a phase that sets its number of places for masks."""
    phases = [
        dataclasses.replace(FALLING, mask_rate=rate, last_mask_rate=0)
        for rate in (0.0, 0.1, 0.15, 0.3)
    ]
    named = dataclasses.replace(FALLING, last_mask_rate=0.3, max_predictions=10)
    for phase in (*phases, FALLING, DRAWN, named):
        training = with_phase(make(packing=2), dataclasses.replace(phase, steps=3))
        held_out = some_documents(training, 3)
        batches = list(eval_batches(training, training.phases[0], held_out, 0.15))
        assert batches[0]["mlm_ids"].shape == (8, 10)  # 15% of 64
        if phase is phases[0]:
            expected = batches
        assert all(map(same, batches, expected))
    # A larger number is kept, and so the rows are those of earlier versions.
    named = dataclasses.replace(FALLING, steps=3, max_predictions=26)
    training = with_phase(make(), named)
    held_out = some_documents(training, 3)
    batches = eval_batches(training, named, held_out, 0.15)
    source = training.sources[0]
    earlier = ExampleSource(
        source.store,
        source.vocabulary,
        source.config,
        sequence_length=64,
        max_predictions=26,
        seed=0,
        stream=255,
        documents=held_out[0].documents,
    )
    assert same(batches[0], earlier.draw(np.arange(8)))


@pytest.mark.parametrize("packing", [0, 2])
def test_a_left_to_right_phase_has_the_original_tokens(make, packing):
    masked = make(packing=packing)
    phases = [dataclasses.replace(phase, causal=True) for phase in PHASES]
    plain = dataclasses.replace(masked, phases=phases)
    for t, phase in ((0, phases[0]), (7, phases[1])):
        batch, expected = plain[t], masked[t]
        for row, ids in enumerate(expected["input_ids"]):
            used = expected["mlm_weights"][row] > 0
            ids[expected["mlm_positions"][row, used]] = expected["mlm_ids"][row, used]
        for name in ("mlm_positions", "mlm_ids", "mlm_weights"):
            del expected[name]
        assert same(batch, expected)
        assert not (batch["input_ids"] == plain.vocabulary.mask_id).any()
        largest = largest_batch(phase, ExampleConfig(), packs=packing > 0)
        assert largest.keys() == batch.keys()
