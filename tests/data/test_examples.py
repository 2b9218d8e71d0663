from types import SimpleNamespace

import numpy as np
import pytest

from bert_jax.data import examples
from bert_jax.data.examples import ExampleConfig, ExampleSource, binomial_half
from bert_jax.data.masking import prediction_counts
from bert_jax.data.vocabulary_training import train_vocabulary
from bert_jax.errors import UserError

FIRST = 30_000  # 500 ids from here on are in the vocabulary


@pytest.fixture(scope="module")
def source(uncased):
    def source(store, tokenizer=uncased, *, length=64, predictions=10, **settings):
        return ExampleSource(
            store,
            tokenizer,
            ExampleConfig(**settings),
            sequence_length=length,
            max_predictions=predictions,
            seed=5,
        )

    return source


@pytest.fixture(scope="module")
def draw(source):
    def draw(store, count=64, **settings):
        return source(store, **settings).draw(range(count))

    return draw


def unmasked(batch):
    ids = batch["input_ids"].copy()
    rows, columns = np.nonzero(batch["mlm_weights"])
    ids[rows, batch["mlm_positions"][rows, columns]] = batch["mlm_ids"][rows, columns]
    return ids


def segments(batch, tokenizer):
    """The ids of A and B of each row, as they were before masking."""
    result = []
    for ids, kinds, mask in zip(
        unmasked(batch), batch["token_type_ids"], batch["attention_mask"], strict=True
    ):
        real = ids[mask == 1]
        kinds = kinds[mask == 1]
        assert real[0] == tokenizer.cls_id
        assert real[-1] == tokenizer.sep_id
        a, b = real[1:][kinds[1:] == 0][:-1], real[kinds == 1][:-1]
        assert tokenizer.sep_id not in [*a, *b]
        assert np.all(ids[mask == 0] == tokenizer.pad_id)
        result.append((a, b))
    return result


def numbered(array_store, documents, size):
    """Sentence n contains only the id FIRST + n, which identifies it in a segment."""
    sentences = FIRST + np.arange(documents * size).reshape(documents, size)
    return array_store([[np.full(4, n) for n in document] for document in sentences])


@pytest.mark.parametrize("documents", [1, 20])
def test_label_0_means_that_b_follows_a_in_the_text(
    array_store, uncased, draw, documents
):
    """Even for a single document, which then contains the random B."""
    batch = draw(numbered(array_store, documents, 25), 1024)
    labels, uncut, begins = batch["nsp_labels"], 0, set()
    assert 0.4 < labels.mean() < 0.8
    for (a, b), label in zip(segments(batch, uncased), labels, strict=True):
        assert set(np.diff(a)) | set(np.diff(b)) <= {0, 1}
        same_document = (a[0] - FIRST) // 25 == (b[0] - FIRST) // 25
        assert documents == 1 or same_document == (label == 0)
        # If nothing was cut, B starts with the next sentence.
        if len(a) % 4 == len(b) % 4 == 0 and len(a) + len(b) < 61:
            assert (b[0] == a[-1] + 1) == (label == 0)
            uncut += label == 0
        if label:
            begins.add((b[0] - FIRST) % 25)
    assert uncut > 50
    # A random B can start with any sentence of its document, even the last one.
    assert begins == set(range(25))


def test_sentence_order_swaps_half_of_the_pairs(array_store, uncased, draw):
    """As in ALBERT's create_pretraining_data.py."""
    batch = draw(numbered(array_store, 20, 25), 1024, sentence_order=True)
    labels, elsewhere = batch["nsp_labels"], 0
    for (a, b), label in zip(segments(batch, uncased), labels, strict=True):
        # Text cut off at the start or end leaves a gap.
        follows, precedes = 0 < b[0] - a[-1] < 12, 0 < a[0] - b[-1] < 12
        if label and not precedes:
            elsewhere += 1  # a chunk of one sentence at the end of a document
        else:
            assert (follows, precedes) == (label == 0, label == 1)
    assert elsewhere < 0.1 * len(labels)
    assert labels.sum() - elsewhere == pytest.approx(0.5 * len(labels), abs=64)


def test_single_sentences_are_each_sentence_of_some_documents_once(
    array_store, uncased
):
    """An epoch of documents 1 and 3, whose sentences have 2 to 6 tokens."""
    lengths = [[3, 4], [5, 2, 6], [4], [2, 3]]
    sentences = iter(range(FIRST, FIRST + 8))
    store = array_store([[np.full(n, next(sentences)) for n in d] for d in lengths])
    example_source = ExampleSource(
        store,
        uncased,
        ExampleConfig(next_sentence=False, single_sentences=True),
        sequence_length=7,  # [CLS], 5 tokens and [SEP]
        max_predictions=2,
        seed=5,
        documents=np.array([1, 3]),
    )
    assert example_source.epoch_size == 5
    for epoch in range(2):
        batch = example_source.draw(range(5 * epoch, 5 * epoch + 5))
        found = [[*a] for a, _ in segments(batch, uncased)]
        wanted = [
            [FIRST + n] * size for n, size in ((2, 5), (3, 2), (4, 5), (6, 2), (7, 3))
        ]
        assert sorted(found) == wanted
        assert not batch["token_type_ids"].any()
        assert not batch["nsp_labels"].any()


def test_words_of_languages_without_spaces_are_masked(array_store, source):
    """whole_word and token mask equally many Japanese tokens, up to rounding."""
    text = ["吾輩は猫である。名前はまだ無い。", "どこで生れたか頓と見当がつかぬ。"]
    tokenizer = train_vocabulary(text * 20, 60, kind="sentencepiece")
    store = array_store([tokenizer.encode_batch(text * 5) for _ in range(8)])
    batch = source(store, tokenizer, masking="whole_word").draw(range(128))
    wanted = prediction_counts(batch["attention_mask"].sum(1), 0.15, 10)
    assert batch["mlm_weights"].sum() > 0.98 * wanted.sum() > 500


@pytest.mark.parametrize(
    "settings",
    [
        {"masking": "word"},
        {"mask_rate": 0.0},
        {"mask_share": 0.95},
        {"next_sentence": False, "sentence_order": True},
        {"single_sentences": True},
    ],
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(UserError, match=r"data\.examples"):
        ExampleConfig(**settings)


def test_every_predicted_token_may_be_replaced():
    assert ExampleConfig(mask_share=0.0, random_share=1.0).random_share == 1
    assert ExampleConfig(mask_share=0.9, random_share=0.1).mask_share == 0.9


@pytest.mark.parametrize("word_bit", [0, 1 << 30])
@pytest.mark.parametrize("damage", [40_000, 1 << 31, (1 << 31) + FIRST])
def test_an_id_outside_the_vocabulary_is_damage(
    array_store, uncased, draw, damage, word_bit
):
    """Even an id of four bytes with bit 31, which is the sign of an int32."""
    store = numbered(array_store, 4, 25)
    store._ids = store._ids.astype(np.uint32) | word_bit
    store.word_bit = word_bit

    def check_ids(ranges, limit):
        raise UserError(f"expected ids below {limit}")

    store.check_ids = check_ids
    draw(store)
    store._ids[:] = damage | word_bit
    message = f"expected ids below {uncased.vocab_size}"
    with pytest.raises(UserError, match=message):
        draw(store)


@pytest.mark.parametrize("kind", ["token", "whole_word", "ngram"])
def test_a_high_mask_rate_masks_all_tokens_but_no_special_ones(
    kind, moby_dick, uncased, draw
):
    """0.98 of all tokens, [CLS] and [SEP] included, may be more than all others."""
    settings = dict(masking=kind, mask_rate=0.98, short_sequence_rate=1.0)
    batch = draw(moby_dick, 200, length=40, predictions=37, **settings)
    rows, places = np.nonzero(batch["mlm_weights"])
    masked = np.zeros_like(batch["input_ids"])
    masked[rows, batch["mlm_positions"][rows, places]] = 1
    ids = unmasked(batch)
    special = np.isin(ids, [uncased.cls_id, uncased.sep_id])
    candidates = (batch["attention_mask"] == 1) & ~special
    assert not masked[~candidates].any()
    counts = prediction_counts(batch["attention_mask"].sum(1), 0.98, 37)
    assert (counts > candidates.sum(1)).sum() > 20
    most = np.minimum(counts, candidates.sum(1))
    # A word or run that does not fit is skipped.
    assert np.all(masked.sum(1) <= most)
    assert kind != "token" or np.array_equal(masked.sum(1), most)


def test_each_epoch_has_its_own_plan_order_and_pairs(moby_dick, source):
    example_source = source(moby_dick, length=128)
    N = example_source.epoch_size
    first, second = (
        example_source.draw(range(32)),
        example_source.draw(range(N, N + 32)),
    )
    assert not np.array_equal(first["input_ids"], second["input_ids"])
    (plan, order), (other_plan, other_order) = (
        example_source.plan(0),
        example_source.plan(1),
    )
    sizes = len(order), len(other_order)
    assert max(sizes) / min(sizes) < 1.2
    count = min(sizes)
    assert np.mean(plan.a_count[:count] == other_plan.a_count[:count]) < 0.5
    assert np.mean(order[:count] == other_order[:count]) < 0.1


def test_each_epoch_masks_other_tokens_of_a_text(array_store, draw):
    """40 epochs of a text of one sentence, whose only example masks 8 of 50 tokens."""
    store = array_store([[np.arange(2000, 2050)]])
    positions = draw(store, count=40, next_sentence=False)["mlm_positions"]
    assert len(np.unique(positions, axis=0)) == 40


@pytest.mark.parametrize(
    "lengths",
    [
        [[30, 30, 30]],  # one document
        [[5]],  # one document of one sentence
        [[5], [7], [3]],  # documents of one sentence
        [[500], [400, 300]],  # sentences over the limit
        [[1], [1]],
        [[70_000 // 2, 1], [2]],  # more tokens are cut than there are random bits
    ],
)
def test_unusual_corpora_give_complete_examples(lengths, array_store, uncased, draw):
    rng = np.random.default_rng(0)
    store = array_store(
        [[rng.integers(1000, 2000, n) for n in document] for document in lengths]
    )
    batch = draw(store, 64)
    assert np.all(batch["attention_mask"].sum(1) <= 64)
    for a, b in segments(batch, uncased):
        assert len(a) >= 1
        assert len(b) >= 1


@pytest.mark.parametrize("length", [32, 128])
@pytest.mark.parametrize(
    ("next_sentence", "single"), [(True, False), (False, False), (False, True)]
)
def test_samples_and_their_lengths_depend_only_on_their_numbers(
    moby_dick, source, length, next_sentence, single
):
    """Single samples of two epochs equal rows of the batch. Lengths need no tokens."""
    settings = {"next_sentence": next_sentence, "single_sentences": single}
    settings |= {"short_sequence_rate": 0.3}
    example_source = source(moby_dick, length=length, **settings)
    first = example_source.epoch_size - 150
    batch = example_source.draw(range(first, first + 300))
    assert next_sentence or not batch["nsp_labels"].any()
    lengths = example_source.lengths(range(first, first + 300))
    assert np.array_equal(lengths, batch["attention_mask"].sum(axis=1))
    assert len(np.unique(lengths)) > 5
    second = batch["token_type_ids"].sum(axis=1)  # tokens of B and its [SEP], or none
    assert not (second == 1).any() and (second == 0).any() != next_sentence
    assert not single or not second.any()
    some = np.sort(np.random.default_rng(0).choice(300, 80, replace=False))
    for name, array in example_source.draw(first + some).items():
        assert np.array_equal(array, batch[name][some])
    for name, array in example_source.draw(some[:0]).items():
        assert array.shape == (0, *batch[name].shape[1:])


@pytest.mark.parametrize("predictions", [0, 62])
def test_impossible_lengths_are_refused(predictions, moby_dick, source):
    with pytest.raises(
        UserError, match="of a phase with sequence_length=64, expected 1 to 61"
    ):
        source(moby_dick, predictions=predictions)


def test_a_long_text_loses_tokens_at_both_ends(array_store, draw):
    """The end is random for each of 139 tokens, as in the original's truncate_seq_pair."""
    store = array_store([[np.arange(2000, 2200)]])
    batch = draw(store, 256, next_sentence=False, short_sequence_rate=0)
    fronts = unmasked(batch)[:, 1] - 2000
    deviation = 139**0.5 / 2
    assert fronts.mean() == pytest.approx(139 / 2, abs=4 * deviation / 256**0.5)
    assert fronts.std() == pytest.approx(deviation, rel=4 / (2 * 256) ** 0.5)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 200, 512, 3000])
def test_front_cuts_are_binomial(size):
    n = 4000
    words = np.random.default_rng(size).integers(0, 2**64, (n, 8), np.uint64)
    counts = binomial_half(np.full(n, size), words)
    assert counts.min() >= 0
    assert counts.max() <= size
    deviation = size**0.5 / 2
    assert abs(counts.mean() - size / 2) <= 4 * deviation / n**0.5
    assert counts.std() == pytest.approx(deviation, rel=4 / (2 * n) ** 0.5, abs=1e-9)


def make_corpus(seed=0, documents=50):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 40, documents)
    lengths = rng.integers(1, 60, sizes.sum()).astype(np.uint16)
    return lengths, np.concatenate([[0], np.cumsum(sizes)])


def plan(lengths, bounds, **settings):
    documents = np.arange(len(bounds) - 1)
    offsets = np.cumsum([0, *lengths.tolist()])
    store = SimpleNamespace(sentence_offsets=offsets, document_sentences=bounds)
    rng = np.random.default_rng(0)
    return examples.plan_epoch(store, documents, rng, 125, ExampleConfig(**settings))


def test_every_sentence_is_used_once_as_a_or_following_b():
    lengths, bounds = make_corpus()
    always = plan(lengths, bounds, next_sentence=False)
    assert not always.random_next.any() and (always.b_count == 0).mean() < 0.5
    result = plan(lengths, bounds)
    used = np.zeros(len(lengths), int)
    for first, a, b in zip(result.first, result.a_count, result.b_count, strict=True):
        used[first : first + a + b] += 1
    assert np.all(used == 1)


def test_chunks_equal_the_originals_for_the_same_choices():
    """Each chunk starts where the chunk before ended, and stops at its target."""
    lengths, bounds = make_corpus(1)
    result = plan(lengths, bounds)
    for d in range(len(bounds) - 1):
        mine = result.document == d
        order = np.argsort(result.first[mine])
        rows = np.flatnonzero(mine)[order]
        position = bounds[d]
        targets = set(result.target[rows].tolist())
        assert len(targets) == 1
        target = targets.pop()
        assert 2 <= target <= 125
        for row in rows:
            assert result.first[row] == position
            # Sentences accumulate until they reach the target or the document ends.
            sums = np.cumsum(lengths[position : bounds[d + 1]].astype(int))
            count = min(int(np.searchsorted(sums, target)) + 1, len(sums))
            a, b = int(result.a_count[row]), int(result.b_count[row])
            assert 1 <= a <= max(count - 1, 1)
            if result.random_next[row]:
                assert b == 0
                position += a
            else:
                assert a + b == count > 1
                position += count
        assert position == bounds[d + 1]


def test_short_targets_are_uniform_with_the_requested_share():
    lengths = np.full(20_000, 50, np.uint16)
    bounds = np.arange(20_001)
    targets = plan(lengths, bounds, short_sequence_rate=0.1).target
    short = targets < 125
    # 20,000 draws: four binomial deviations of 0.1 * 124 / 125 are 0.0085.
    assert short.mean() == pytest.approx(0.1 * 123 / 124, abs=0.0085)
    assert targets.min() == 2
    assert targets[short].mean() == pytest.approx(63, abs=4 * 36 / 2000**0.5)
    always = plan(lengths, bounds, short_sequence_rate=1.0).target
    assert (always.min(), always.max()) == (2, 125)  # about 160 documents each


def test_groups_of_documents_limit_memory_and_lose_nothing(monkeypatch):
    lengths, bounds = make_corpus(4)
    monkeypatch.setattr(examples, "_GROUP_SENTENCES", 100)
    result = plan(lengths, bounds)
    covered = (result.a_count.astype(int) + result.b_count).sum()
    assert covered == len(lengths)
    assert np.array_equal(np.unique(result.document), np.arange(len(bounds) - 1))
