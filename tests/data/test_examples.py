import numpy as np
import pytest

from bert_jax.data.examples import ExampleConfig, ExampleSource, binomial_half
from bert_jax.data.masking import prediction_counts
from bert_jax.data.vocabulary_training import train_vocabulary
from bert_jax.errors import UserError
from bert_jax.settings import check_ranges


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


def test_label_0_means_that_b_follows_a_in_the_text(array_store, uncased, draw):
    """Sentence n consists of the id 1000 + n, so every segment tells its sentences."""
    documents = np.arange(1000, 1500).reshape(20, 25)
    store = array_store([[np.full(4, n) for n in document] for document in documents])
    batch = draw(store, 1024)
    labels = batch["nsp_labels"]
    assert 0.4 < labels.mean() < 0.7
    uncut = 0
    for (a, b), label in zip(segments(batch, uncased), labels, strict=True):
        assert set(np.diff(a)) | set(np.diff(b)) <= {0, 1}
        same_document = (a[0] - 1000) // 25 == (b[0] - 1000) // 25
        assert same_document == (label == 0)
        # Where nothing was cut, B begins with the very next sentence.
        if label == 0 and len(a) % 4 == len(b) % 4 == 0 and len(a) + len(b) < 61:
            assert b[0] == a[-1] + 1
            uncut += 1
    assert uncut > 50


def test_words_are_masked_where_no_spaces_are_written(array_store, source):
    """With whole_word as many of Japanese tokens as with token, up to rounding."""
    text = ["吾輩は猫である。名前はまだ無い。", "どこで生れたか頓と見当がつかぬ。"]
    tokenizer = train_vocabulary(text * 20, 60, kind="sentencepiece")
    store = array_store([tokenizer.encode_batch(text * 5) for _ in range(8)])
    batch = source(store, tokenizer, masking="whole_word").draw(range(128))
    wanted = prediction_counts(batch["attention_mask"].sum(1), 0.15, 10)
    assert batch["mlm_weights"].sum() > 0.98 * wanted.sum() > 500


def test_masks_never_fall_on_special_tokens_or_padding(moby_dick, uncased, draw):
    for kind in ("token", "whole_word", "ngram"):
        batch = draw(moby_dick, 256, masking=kind)
        labels = batch["mlm_ids"][batch["mlm_weights"] > 0]
        assert not np.isin(labels, [uncased.cls_id, uncased.sep_id]).any()
        real = np.take_along_axis(batch["attention_mask"], batch["mlm_positions"], 1)
        assert np.all(real[batch["mlm_weights"] > 0] == 1)
        assert np.all(batch["mlm_weights"].sum(1) >= 1)


def test_each_epoch_has_its_own_plan_order_and_pairs(moby_dick, source):
    examples = source(moby_dick, length=128)
    N = examples.epoch_size
    first, second = examples.draw(range(32)), examples.draw(range(N, N + 32))
    assert not np.array_equal(first["input_ids"], second["input_ids"])
    (plan, order), (other_plan, other_order) = examples.plan(0), examples.plan(1)
    assert max(len(plan), len(other_plan)) / min(len(plan), len(other_plan)) < 1.2
    count = min(len(plan), len(other_plan))
    assert np.mean(plan.a_count[:count] == other_plan.a_count[:count]) < 0.5
    assert np.mean(order[:count] == other_order[:count]) < 0.1


def test_each_epoch_masks_the_same_text_elsewhere(array_store, draw):
    """The only example of a text of one sentence, in 40 epochs: 8 of 50 tokens."""
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
        [[70_000 // 2, 1], [2]],  # a cut of more tokens than random bits
    ],
)
def test_odd_corpora_give_whole_examples(lengths, array_store, uncased, draw):
    rng = np.random.default_rng(0)
    store = array_store(
        [[rng.integers(1000, 2000, n) for n in document] for document in lengths]
    )
    batch = draw(store, 64)
    assert np.all(batch["attention_mask"].sum(1) <= 64)
    for a, b in segments(batch, uncased):
        assert len(a) >= 1
        assert len(b) >= 1


def test_a_single_document_never_calls_its_own_continuation_not_next(
    array_store, uncased, draw
):
    """Sentence n consists of the id 1000 + n, so every segment tells its sentences."""
    store = array_store([[np.full(8, 1000 + n) for n in range(30)]])
    batch = draw(store, 512)
    labels = batch["nsp_labels"]
    assert 0.4 < labels.mean() < 0.8
    for (a, b), label in zip(segments(batch, uncased), labels, strict=True):
        assert (b[0] == a[-1] + 1) == (label == 0)


def test_sentence_order_swaps_half_of_the_pairs(array_store, uncased, draw):
    """As ALBERT's create_pretraining_data.py; sentence n consists of the id 1000 + n."""
    documents = np.arange(1000, 1500).reshape(20, 25)
    store = array_store([[np.full(4, n) for n in document] for document in documents])
    batch = draw(store, 1024, sentence_order=True)
    labels, elsewhere = batch["nsp_labels"], 0
    for (a, b), label in zip(segments(batch, uncased), labels, strict=True):
        # What is cut off one text, at its beginning or end, leaves a gap.
        follows, precedes = 0 < b[0] - a[-1] < 12, 0 < a[0] - b[-1] < 12
        if label and not precedes:
            elsewhere += 1  # of a chunk of one sentence, at the end of a document
        else:
            assert (follows, precedes) == (label == 0, label == 1)
    assert elsewhere < 0.1 * len(labels)
    assert labels.sum() - elsewhere == pytest.approx(0.5 * len(labels), abs=64)
    same = draw(store, 1024)["nsp_labels"]  # of pairs that a chunk makes alike
    assert 0.4 < same.mean() < 0.7
    with pytest.raises(UserError, match=r"sentence_order=True, but next_sentence=F"):
        ExampleConfig(next_sentence=False, sentence_order=True)


@pytest.mark.parametrize("length", [32, 128])
@pytest.mark.parametrize("next_sentence", [True, False])
def test_samples_and_their_lengths_depend_on_their_numbers_alone(
    moby_dick, source, length, next_sentence
):
    """Some samples, also of two epochs, are rows of the batch; lengths need no tokens."""
    settings = {"next_sentence": next_sentence, "short_sequence_rate": 0.3}
    examples = source(moby_dick, length=length, **settings)
    first = examples.epoch_size - 150
    batch = examples.draw(range(first, first + 300))
    assert next_sentence or not batch["nsp_labels"].any()
    lengths = examples.lengths(range(first, first + 300))
    assert np.array_equal(lengths, batch["attention_mask"].sum(axis=1))
    assert len(np.unique(lengths)) > 5
    some = np.sort(np.random.default_rng(0).choice(300, 80, replace=False))
    for name, array in examples.draw(first + some).items():
        assert np.array_equal(array, batch[name][some])
    for name, array in examples.draw(some[:0]).items():
        assert array.shape == (0, *batch[name].shape[1:])


@pytest.mark.parametrize("predictions", [0, 62])
def test_impossible_lengths_are_named(predictions, moby_dick, source):
    with pytest.raises(UserError, match="expected 1 to sequence_length - 3 = 61"):
        source(moby_dick, predictions=predictions)


@pytest.mark.parametrize(
    "settings",
    [{"masking": "word"}, {"mask_rate": 0.0}, {"mask_share": 0.95}],
)
def test_impossible_settings_are_named(settings):
    with pytest.raises(UserError, match=r"data\.examples"):
        check_ranges(ExampleConfig(**settings), "data.examples.")


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
