import grain
import numpy as np
import pytest
from orbax.checkpoint.experimental import v1 as ocp

from bert_jax.data.examples import ExampleConfig
from bert_jax.data.pipeline import (
    Phase,
    TrainingBatches,
    eval_batches,
    split_documents,
    training_iterator,
)
from bert_jax.errors import UserError

PHASES = (
    Phase(steps=6, batch_size=8, sequence_length=32, max_predictions=5),
    Phase(steps=5, batch_size=4, sequence_length=64, max_predictions=10),
)


@pytest.fixture(scope="module")
def make(moby_dick, uncased):
    def make(index=0, count=1, phases=PHASES):
        return TrainingBatches(
            moby_dick,
            uncased,
            phases,
            ExampleConfig(),
            seed=1,
            documents=np.arange(len(moby_dick.documents)),
            process_index=index,
            process_count=count,
        )

    return make


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def test_one_iterator_runs_through_the_phases(make):
    batches = list(training_iterator(make(), threads=2, prefetch=3))
    shapes = [b["input_ids"].shape for b in batches]
    assert shapes == [(8, 32)] * 6 + [(4, 64)] * 5
    assert all(same(b, make()[i]) for i, b in enumerate(batches))


@pytest.mark.parametrize("hosts", [2, 4])
def test_the_hosts_slices_make_up_the_same_global_batches(make, hosts):
    alone = make()
    slices = [make(index, hosts) for index in range(hosts)]
    for t in (0, 5, 6, 10):
        parts = [s[t] for s in slices]
        joined = {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}
        assert same(joined, alone[t])


def test_a_batch_that_the_hosts_do_not_divide_is_refused(make):
    with pytest.raises(
        UserError, match="batch_size=8 is not a multiple of the 3 hosts"
    ):
        make(0, 3)


def test_the_position_is_exact_in_the_middle_of_prefetching(make, tmp_path):
    """Saved and loaded as the checkpoints do it, in another iterator."""
    iterator = training_iterator(make(), threads=3, prefetch=4)
    for _ in range(4):
        next(iterator)
    with ocp.training.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save_checkpointables(4, {"data": iterator})
        rest = list(iterator)
        other = training_iterator(make(), threads=1, prefetch=1)
        next(other)
        checkpointer.load_checkpointables(4, {"data": other})
    assert isinstance(other, grain.DatasetIterator)
    resumed = list(other)
    assert len(resumed) == len(rest) == 7
    assert all(map(same, resumed, rest))


def test_held_out_documents_are_fixed_and_never_trained_on():
    train, held = split_documents(1000, 0.05)
    assert len(held) == 50
    assert np.array_equal(np.sort(np.concatenate([train, held])), np.arange(1000))
    assert np.array_equal(held, split_documents(1000, 0.05)[1])


@pytest.mark.parametrize(
    ("documents", "holdout", "held"),
    [(1, 0.5, 0), (2, 0.01, 1), (2, 0.99, 1), (10, 0.0, 0), (10, 0.06, 1)],
)
def test_small_corpora_keep_a_document_on_each_side(documents, holdout, held):
    train, eval_ = split_documents(documents, holdout)
    assert (len(train), len(eval_)) == (documents - held, held)


def test_a_share_of_one_is_refused():
    with pytest.raises(UserError, match=r"--config\.data\.holdout"):
        split_documents(10, 1.0)


def test_evaluation_draws_the_same_batches_each_time(moby_dick, uncased):
    arguments = (moby_dick, uncased, PHASES[1], ExampleConfig())
    settings = dict(documents=np.array([3]), process_index=0, process_count=1)
    first = list(eval_batches(*arguments, **settings))
    assert len(first) == 5
    assert all(map(same, first, eval_batches(*arguments, **settings)))
