"""Batches of fine-tuning: every example once, few shapes and little padding. The examples
of a step do not depend on the layout of its rows."""

import collections
import concurrent.futures
import dataclasses
import itertools

import numpy as np
import pytest

from bert_jax.data.batching import (
    IGNORED,
    LENGTHS,
    MULTIPLE,
    EpochBatches,
    Features,
    inference_batches,
    length_classes,
)

BATCH = 8


def make_features(lengths, choices=1, targets=None):
    """Sequences with the given lengths. Each id encodes its sequence and position."""
    ids = [100 * (i + 1) + np.arange(n, dtype=np.int32) for i, n in enumerate(lengths)]
    types = [np.int32(np.arange(n) >= n // 2) for n in lengths]
    rows = np.repeat(np.arange(len(lengths) // choices, dtype=np.int32), choices)
    return Features(ids, types, rows, targets or {}, choices)


def labelled(lengths, choices=1):
    """The label of each unit is its number."""
    units = len(lengths) // choices
    targets = {"label": np.arange(units, dtype=np.int32)}
    if choices > 1:
        targets["choice_mask"] = np.random.default_rng(0).random((units, choices))
    return make_features(lengths, choices, targets)


def make_batches(features, **settings):
    defaults = dict(batch_size=BATCH, epochs=2, seed=1, pad_id=7, buckets=2, limit=512)
    return EpochBatches(features, **defaults | settings)


def random_lengths(count, seed=0, longest=60):
    """Many short lengths and a few long ones."""
    return np.random.default_rng(seed).triangular(3, 5, longest, count).astype(int)


def units_of(arrays):
    """The units of a step, by their labels."""
    return sorted(arrays["label"][arrays["weights"] > 0].tolist())


@pytest.mark.parametrize("units", [1, 7, 8, 9, 103, 1003])
@pytest.mark.parametrize("buckets", [1, 3])
def test_an_epoch_has_every_unit_once_in_full_batches_but_one(units, buckets):
    batches = make_batches(labelled(random_lengths(units)), buckets=buckets)
    steps = -(-units // BATCH)
    assert (batches.steps_per_epoch, len(batches)) == (steps, 2 * steps)
    for epoch in range(2):
        units_of_steps = [units_of(batches[epoch * steps + i]) for i in range(steps)]
        assert sorted(itertools.chain(*units_of_steps)) == list(range(units))
        sizes = sorted(map(len, units_of_steps), reverse=True)
        assert sizes == [BATCH] * (units // BATCH) + [units % BATCH] * (
            units % BATCH > 0
        )
    with pytest.raises(IndexError):
        batches[2 * steps]


@pytest.mark.parametrize("choices", [1, 3])
def test_the_examples_of_a_step_do_not_depend_on_the_layout(choices):
    """For any number of devices and parts."""
    features = labelled(random_lengths(300 * choices), choices)
    expected = [units_of(batch) for batch in make_batches(features)]
    layouts = [dict(multiple=m, accumulation=a) for m in (1, 8, 16) for a in (1, 2, 4)]
    layouts += [dict(limit=64), dict(pad_id=0)]
    for layout in layouts:
        batches = make_batches(features, **layout)
        for step in (0, 5, len(batches) - 1):
            assert units_of(batches[step]) == expected[step], layout
    hidden = [np.zeros((n, 2), np.float32) for n in features.lengths_UC.ravel()]
    if choices == 1:
        features = dataclasses.replace(features, hidden=hidden)
        batches = make_batches(features)
        assert [units_of(batch) for batch in batches] == expected


def test_the_order_is_a_pure_function_of_seed_and_epoch():
    """100 units are 12 batches of eight and one batch of four at any place."""
    features, epochs = labelled(random_lengths(100)), 6

    def order(seed):
        batches = make_batches(features, seed=seed, epochs=epochs)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            return list(
                pool.map(lambda step: tuple(units_of(batches[step])), range(78))
            )

    first = order(1)
    assert order(1) == first
    assert len({*first, *order(0)}) > 0.9 * 2 * len(first)
    places = {step % 13 for step, units in enumerate(first) if len(units) < BATCH}
    assert len(places) > epochs / 2


def test_the_smaller_batch_of_an_epoch_has_random_units():
    """100 units leave four for one batch, whose units have a larger weight in its loss."""
    lengths, epochs = random_lengths(100), 40
    batches = make_batches(labelled(lengths), epochs=epochs)
    units = [units_of(batches[step]) for step in range(13 * epochs)]
    small = [tuple(step) for step in units if len(step) == 4]
    assert len(small) == len({*small}) == epochs
    chosen = np.concatenate(small)
    assert len({*chosen.tolist()}) > 60  # of 160 draws, 80 of 100 are expected
    error = lengths.std() / len(chosen) ** 0.5
    assert abs(lengths[chosen].mean() - lengths.mean()) < 4 * error


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("choices", [1, 3])
@pytest.mark.parametrize("multiple", [1, 4])
def test_the_arrays_contain_every_sequence_exactly_once(choices, multiple, parts):
    """Each sequence is in the slot of its unit, in its own part."""
    lengths = random_lengths(44 * choices, seed=choices)
    features = labelled(lengths, choices)
    multiple *= parts
    batches = make_batches(
        features, multiple=multiple, accumulation=parts, epochs=1, limit=64
    )
    for arrays in batches:
        rows, length = arrays["input_ids"].shape
        slots = arrays["starts"].shape[1]
        assert rows % multiple == 0
        assert length % MULTIPLE == 0
        assert length <= 64
        for name in ("input_ids", "token_type_ids", "attention_mask"):
            assert arrays[name].shape == (rows, length)
            assert arrays[name].dtype == np.int32
        if choices == 1:
            assert arrays["weights"].shape == (rows, slots)
            arrays["slots"] = np.arange(rows * slots)[:, None]
            for name in ("label", "weights"):
                arrays[name] = arrays[name].reshape(rows * slots)
        assert arrays["weights"].dtype == np.float32
        assert len(arrays["slots"]) == len(arrays["weights"])
        assert len(arrays["slots"]) % multiple == 0
        claimed = np.zeros((rows, length), bool)
        for u in np.flatnonzero(arrays["weights"]):
            unit = arrays["label"][u]
            if choices > 1:
                mask = features.targets["choice_mask"][unit]
                assert np.array_equal(arrays["choice_mask"][u], mask)
            for c in range(choices):
                sequence = unit * choices + c
                r, s = divmod(int(arrays["slots"][u, c]), slots)
                if choices > 1:  # the row's number within its part
                    r = r * parts + u % parts
                first = arrays["starts"][r, s]
                in_segment = arrays["segment_ids"][r] == s + 1
                tokens = slice(first, first + lengths[sequence])
                assert in_segment.sum() == in_segment[tokens].sum() == lengths[sequence]
                assert not np.any(claimed[r] & in_segment)
                claimed[r] |= in_segment
                for name, values in (
                    ("input_ids", features.input_ids),
                    ("token_type_ids", features.token_type_ids),
                ):
                    assert np.array_equal(arrays[name][r, tokens], values[sequence])
        assert np.array_equal(arrays["attention_mask"] > 0, claimed)
        assert np.all(arrays["input_ids"][~claimed] == 7)
        assert np.all(arrays["token_type_ids"][~claimed] == 0)


def test_labels_of_tokens_have_the_positions_of_the_tokens():
    ids = [np.full(n, 10 + i, np.int32) for i, n in enumerate(random_lengths(24))]
    features = Features(ids, ids, np.arange(24), {"labels": ids})
    for arrays in make_batches(features):
        real = arrays["attention_mask"] > 0
        assert np.array_equal(arrays["labels"][real], arrays["input_ids"][real])
        assert np.all(arrays["labels"][~real] == IGNORED)


def test_regression_labels_are_floats():
    features = make_features([3, 4], targets={"label": np.array([0.5, 2], np.float32)})
    arrays = make_batches(features)[0]
    assert arrays["label"].dtype == np.float32
    assert sorted(arrays["label"][arrays["weights"] > 0].tolist()) == [0.5, 2]


def test_hidden_states_stand_where_their_tokens_stand():
    """Two sequences share a row of eight tokens, and the other rows are padding."""
    features = labelled([3, 5])
    hidden = [np.full((n, 4), n, np.float32) for n in (3, 5)]
    features = dataclasses.replace(features, hidden=hidden)
    arrays = make_batches(features, multiple=4)[0]
    assert arrays["hidden"].shape == (4, 8, 4)
    assert arrays["hidden"].dtype == np.float32
    assert sorted(arrays["hidden"][:, :, 0].sum(axis=1)) == [0, 0, 0, 9 + 25]
    (row,) = np.flatnonzero(arrays["attention_mask"].any(axis=1))
    for slot, label in enumerate(arrays["label"][row, :2]):
        tokens = arrays["segment_ids"][row] == slot + 1
        assert np.all(arrays["hidden"][row, tokens] == hidden[label][0])


@pytest.mark.parametrize("hosts", [2, 4])
@pytest.mark.parametrize("choices", [1, 3])
def test_each_process_has_its_rows_of_the_global_batch(choices, hosts):
    features = labelled(random_lengths(100 * choices), choices)

    def rows_of(host):
        """The host's rows in two ranges, as if devices of different hosts alternate."""

        def rows(count):
            half = count // hosts // 2
            first = host * half
            rest = range(count // 2 + first, count // 2 + first + count // hosts - half)
            return np.array([*range(first, first + half), *rest])

        return rows

    batches_of_hosts = [
        make_batches(features, multiple=2 * hosts, rows=rows_of(host))
        for host in range(hosts)
    ]
    global_batches = make_batches(features, multiple=2 * hosts)
    for step in (0, 7, len(global_batches) - 1):
        parts = [batches[step] for batches in batches_of_hosts]
        for name, array in global_batches[step].items():
            half = len(array) // hosts // 2
            halves = [p[name][:half] for p in parts] + [p[name][half:] for p in parts]
            assert np.array_equal(np.concatenate(halves), array), name


@pytest.mark.parametrize(("buckets", "devices"), [(1, 1), (2, 1), (4, 1), (8, 8)])
def test_few_shapes_suffice_with_little_padding(buckets, devices):
    features = labelled(random_lengths(2000, longest=100))
    settings = {"buckets": buckets, "multiple": devices}
    batches = make_batches(features, epochs=1, seed=3, **settings)
    assert len(batches.shapes) <= buckets
    assert batches.shapes == make_batches(features, seed=4, **settings).shapes
    masks = [arrays["attention_mask"] for arrays in batches]
    known = {shape[:2] for shape in batches.shapes}
    assert np.mean([mask.shape in known for mask in masks]) > 0.99
    real = sum(np.count_nonzero(mask) for mask in masks)
    # Random batches padded to their longest sequence would have 49% padding.
    assert 1 - real / sum(mask.size for mask in masks) < (0.15 if devices == 1 else 0.2)


def test_parts_of_a_step_have_similar_numbers_of_tokens():
    batches = make_batches(labelled(random_lengths(2000)), accumulation=2)
    masks = [arrays["attention_mask"] for arrays in batches]
    tokens = [[mask[part::2].sum() for part in range(2)] for mask in masks]
    more, fewer = np.sort(tokens, axis=1).mean(axis=0)[::-1]
    assert more < 1.3 * fewer


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_batch_too_large_for_every_shape_gets_more_rows(parts):
    features = labelled(random_lengths(400))
    batches = make_batches(features, batch_size=64, accumulation=parts)
    expected = [units_of(arrays) for arrays in batches]
    batches.shapes = tuple(
        shape._replace(rows=shape.rows // parts // 2 * parts)
        for shape in batches.shapes
    )
    assert [units_of(arrays) for arrays in batches] == expected


def test_the_part_of_a_step_that_needs_most_rows_decides():
    """Only the smaller batch of an epoch may have long sequences in its second part."""
    features = labelled([60] * 7 + [3] * 32)
    batches = make_batches(features, epochs=40, buckets=1, accumulation=2)
    (shape,) = batches.shapes
    counts = []
    for epoch in range(40):
        arrays = [batches[5 * epoch + step] for step in range(5)]
        units = sorted(itertools.chain(*map(units_of, arrays)))
        assert units == list(range(39))
        counts += [len(step["input_ids"]) for step in arrays]
    assert {shape.rows, shape.rows + 2} <= {*counts}


def test_buckets_have_the_least_padding(monkeypatch):
    """Compared with all ways to cut the sorted batches into at most ``most`` buckets."""
    monkeypatch.setattr("bert_jax.data.batching.WORTH", 0)
    random = np.random.default_rng(0)
    for _ in range(30):
        sizes = random.integers(3, 90, random.integers(4, 40))
        most = int(random.integers(1, 4))
        full = len(sizes) // 4
        longest = np.sort(sizes)[::-1][: full * 4 : 4]
        padded = -(-longest // MULTIPLE) * MULTIPLE

        def cost(classes, padded=padded, full=full):
            starts = np.cumsum([0, *classes])
            assert starts[-1] == full
            return sum(padded[starts[i]] * n for i, n in enumerate(classes))

        best = min(
            cost(np.diff([0, *cuts, full]).tolist())
            for count in range(most)
            for cuts in itertools.combinations(range(1, full), count)
        )
        classes = length_classes(sizes, 4, most)
        assert len(classes) <= most
        assert cost(classes) <= (1 if most < 3 else 1.1) * best


def test_another_bucket_must_save_enough_steps():
    """20 batches of 8 tokens and 20 of 32: a second bucket saves 15 of 40 steps at 32."""
    sizes = np.repeat([8, 32], 20 * BATCH)
    assert length_classes(sizes, BATCH, 4) == [20, 20]
    assert length_classes(sizes[::3], BATCH, 4) == [13]


def test_each_batch_of_a_bucket_has_all_its_lengths():
    """So all batches of a bucket have similar numbers of tokens."""
    lengths = random_lengths(1600, longest=100)
    features = labelled(lengths)
    batches = make_batches(features, buckets=1, epochs=1)
    tokens = [lengths[units_of(arrays)].sum() for arrays in batches]
    assert np.std(tokens) < 0.05 * np.mean(tokens)  # 0.22 in random batches


def test_a_sequence_that_no_sampled_batch_has_fits():
    """The longest of 1,041 sequences is left over in the epoch that chooses the shapes."""
    lengths = np.full(130 * BATCH + 1, 5)
    lengths[np.random.default_rng((0, 0)).permutation(len(lengths))[-1]] = 60
    batches = make_batches(labelled(lengths), buckets=1, epochs=1)
    assert sum(len(units_of(arrays)) for arrays in batches) == len(lengths)


def test_rows_do_not_exceed_the_position_table():
    features = labelled([61, *random_lengths(100, longest=30)])
    for arrays in make_batches(features, limit=61, buckets=1):
        assert arrays["input_ids"].shape[1] == 61


def batches_of(lengths, batch_size=32, limit=512, **settings):
    return list(
        inference_batches(
            make_features(lengths),
            batch_size=batch_size,
            limit=limit,
            pad_id=7,
            **settings,
        )
    )


def test_a_long_sequence_gets_a_row_of_about_its_length():
    """With all 8,192 positions, a row of 600 tokens would take 20 times as long."""
    for longest, length in ((513, 768), (900, 1024), (3000, 3072), (7000, 8192)):
        ((_, arrays),) = batches_of([longest, 40], limit=8192)
        assert arrays["input_ids"].shape == (1, length)


def sentence_lengths(count):
    lengths = np.random.default_rng(0).lognormal(3.3, 0.8, count)
    return np.clip(lengths.astype(int), 3, 512).tolist()


@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize(
    "lengths", [[3], [16], [17, 3], [512] * 3, [3] * 100, sentence_lengths(700)]
)
def test_inference_has_every_complete_sequence_once(lengths, multiple):
    features, seen = make_features(lengths), []
    for rows, arrays in batches_of(lengths, multiple=multiple):
        covered = np.zeros(arrays["input_ids"].shape, bool)
        for r, row in enumerate(rows):
            start = 0
            for s, sequence in enumerate(row):
                place = np.s_[r, start : start + lengths[sequence]]
                ids, types = features.input_ids, features.token_type_ids
                assert np.array_equal(arrays["input_ids"][place], ids[sequence])
                assert np.array_equal(arrays["token_type_ids"][place], types[sequence])
                assert (arrays["segment_ids"][place] == s + 1).all()
                assert arrays["starts"][r, s] == start
                covered[place] = True
                start += lengths[sequence]
                seen.append(sequence)
        assert np.array_equal(arrays["attention_mask"], covered)
        assert (arrays["input_ids"][~covered] == 7).all()
        assert len(arrays["input_ids"]) % multiple == 0
        assert not arrays["segment_ids"][~covered].any()
    assert sorted(seen) == list(range(len(lengths)))


def test_inference_has_little_padding_and_few_shapes():
    lengths = sentence_lengths(4000)
    shapes = [arrays["input_ids"].shape for _, arrays in batches_of(lengths)]
    computed = sum(rows * length for rows, length in shapes)
    assert sum(lengths) <= computed <= 1.03 * sum(lengths)
    assert len(set(shapes)) <= len(LENGTHS)  # one shape of each length
    assert max(rows * length for rows, length in shapes) <= 32 * LENGTHS[0]


def test_short_sequences_cause_no_extra_long_rows():
    rows = collections.Counter()
    for members, arrays in batches_of([20] * 50 + [100] + [3] * 50):
        rows[arrays["input_ids"].shape[1]] += len(members)
    # One sequence of 20 and two of 3 share the row of 100. The other 49 and 48 have
    # their own rows.
    assert rows == {128: 1, 32: 49}


@pytest.mark.parametrize(
    ("lengths", "settings", "shape"),
    [
        ([9], {}, (1, 16)),
        ([8, 8], {}, (1, 16)),
        ([8, 9], {}, (1, 32)),
        ([64], {}, (1, 64)),
        ([300], {}, (1, 384)),
        ([300], {"limit": 300}, (1, 300)),
        ([5], {"limit": 6}, (1, 6)),
        ([30] * 5, {}, (8, 32)),
        ([30] * 31, {"batch_size": 24}, (24, 32)),
        ([30] * 1000, {}, (32, 32)),
        ([30], {"multiple": 8}, (8, 32)),
        ([30] * 9, {"batch_size": 12, "multiple": 8}, (16, 32)),
    ],
)
def test_small_inputs_have_small_batches(lengths, settings, shape):
    for _, arrays in batches_of(lengths, **settings):
        assert arrays["input_ids"].shape == shape


@pytest.mark.parametrize("choices", [1, 3])
def test_a_step_may_have_fewer_examples_than_parts(choices):
    features = labelled(random_lengths(3 * choices), choices)
    (arrays,) = make_batches(features, accumulation=4, multiple=4, epochs=1)
    assert units_of(arrays) == [0, 1, 2]
