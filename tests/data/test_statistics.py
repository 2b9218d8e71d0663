"""Our examples compared to create_pretraining_data.py on the same text."""

import json

import numpy as np
import pytest

from bert_jax.data.examples import ExampleConfig, ExampleSource

EPOCHS = 5  # the golden run's dupe_factor
SEEDS = 16
# Largest distance of a statistic of the original's run from our mean, in units of our
# deviation between seeds. The examples of a document share their target length, so the
# sampling error is this deviation and not a binomial one. With 11 statistics of 4 runs,
# 4 deviations are exceeded by chance in 1 of 400 cases.
DEVIATIONS = 4


def statistics(source, tokenizer, length):
    size = sum(len(source.plan(epoch)[1]) for epoch in range(EPOCHS))
    batches = [
        source.draw(range(first, first + 1024)) for first in range(0, size - 1024, 1024)
    ]
    batch = {k: np.concatenate([b[k] for b in batches]) for k in batches[0]}
    totals = batch["attention_mask"].sum(1)
    used = batch["mlm_weights"] > 0
    inputs = np.take_along_axis(batch["input_ids"], batch["mlm_positions"], 1)[used]
    labels = batch["mlm_ids"][used]
    return {
        "instances": size,
        "mean_tokens": totals.mean(),
        "frac_length_below_half": (totals < length / 2).mean(),
        "frac_full": (totals == length).mean(),
        "frac_random_next": batch["nsp_labels"].mean(),
        "mean_masked": used.sum(1).mean(),
        "masked_over_tokens": used.sum() / totals.sum(),
        "frac_mask": (inputs == tokenizer.mask_id).mean(),
        "frac_random": ((inputs != tokenizer.mask_id) & (inputs != labels)).mean(),
        "frac_same": (inputs == labels).mean(),
        "frac_label_continuation": tokenizer.continuation[labels].mean(),
        # [CLS] and the first [SEP] also have token type 0.
        "mean_segment_a_share": 1 - (batch["token_type_ids"].sum(1) / totals).mean(),
    }


@pytest.mark.parametrize(
    ("name", "length", "predictions", "masking"),
    [
        ("L128", 128, 20, "token"),
        pytest.param("L512", 512, 76, "token", marks=pytest.mark.long),
        pytest.param("L128_whole_word", 128, 20, "whole_word", marks=pytest.mark.long),
        pytest.param("L512_whole_word", 512, 76, "whole_word", marks=pytest.mark.long),
    ],
)
def test_statistics_agree_with_the_original(
    name, length, predictions, masking, moby_dick, uncased, golden
):
    path = golden / "pretraining_data" / "google_statistics.json"
    expected = json.loads(path.read_text())[name]
    assert expected["dupe_factor"] == EPOCHS
    runs = [
        statistics(
            ExampleSource(
                moby_dick,
                uncased,
                ExampleConfig(masking=masking),
                sequence_length=length,
                max_predictions=predictions,
                seed=seed,
            ),
            uncased,
            length,
        )
        for seed in range(SEEDS)
    ]
    far = {}
    for key in runs[0]:
        values = np.array([run[key] for run in runs])
        deviation = values.std(ddof=1)
        z = (expected[key] - values.mean()) / deviation
        print(f"{key:24s} {expected[key]:12.5f} {values.mean():12.5f} {z:6.2f}")
        if abs(z) > DEVIATIONS:
            far[key] = (expected[key], values.mean(), deviation)
    assert not far
