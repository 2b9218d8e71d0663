"""The model in models/english: its numbers in transformers, its size and its card."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import bert_jax
from bert_jax.errors import UserError

pytestmark = pytest.mark.usefixtures("optimized")

FOLDER = Path(__file__).parents[2] / "models/english"


@pytest.fixture(scope="module")
def theirs(golden):
    """What tests/golden/huggingface/make_english.py computed with transformers."""
    with np.load(golden / "huggingface/english.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def model():
    return bert_jax.load(FOLDER)


def test_hidden_states_are_those_of_transformers(model, theirs):
    out = model(theirs["sentences"].tolist())
    mask = out.attention_mask
    np.testing.assert_array_equal(out.input_ids * mask, theirs["input_ids"])
    states = out.last_hidden_state * mask[..., None]
    np.testing.assert_allclose(states, theirs["last_hidden_state"], rtol=0, atol=2e-5)


def test_blanks_get_the_words_and_probabilities_of_transformers(model, theirs):
    filled = model.fill_mask(theirs["blanks"].tolist(), top=5)
    assert len(filled) == 3
    for [blank], tokens, probabilities in zip(
        filled, theirs["tokens"], theirs["probabilities"], strict=True
    ):
        words, ours = zip(*blank, strict=True)
        assert [*words] == [*tokens]
        np.testing.assert_allclose(ours, probabilities, rtol=1e-4)


def test_the_folder_is_small_and_its_numbers_have_two_bytes():
    """Clones contain each version of the file, so it must not grow."""
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 20e6
    weights = load_file(FOLDER / "model.safetensors")
    assert {str(array.dtype) for array in weights.values()} == {"float16"}


def test_the_model_knows_grammar(model):
    """Pairs of sentences, of which only the first one is correct."""
    pairs = [
        ("The dogs bark at the man.", "The dogs barks at the man."),
        ("She has never been there.", "She has never be there."),
        ("The boys hurt themselves.", "The boys hurt himself."),
        ("He gave it to them.", "He gave it to they."),
    ]
    for good, bad in pairs:
        better, worse = model.score([good, bad])
        assert better > worse, bad


def test_a_part_that_the_family_lacks_is_one_line():
    with pytest.raises(UserError, match="needs bert/embeddings/segment/embedding, and"):
        bert_jax.load(FOLDER, type_vocab_size=2)


def test_a_file_that_is_not_a_vocabulary_is_one_line():
    message = "has no model of tokens; expected the tokenizer"
    with pytest.raises(UserError, match=message):
        bert_jax.tokenizer(FOLDER / "config.json")
