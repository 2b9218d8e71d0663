import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model.bert import BertForPreTraining, BertModel
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.heads import BertForSequence, BertForSpans, BertForTokens
from bert_jax.model.tokens import Tokens

B, L, D = 4, 10, 32
CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=D,
    num_layers=1,
    num_heads=2,
    intermediate_size=64,
    max_positions=12,
    hidden_dropout=0.25,
    attention_dropout=0.0,
    initializer_range=0.2,
)
HEADS = {
    "sequence": BertForSequence(CONFIG, D),
    "token": BertForTokens(CONFIG, D),
    "span": BertForSpans(CONFIG),
}


@pytest.fixture(scope="module")
def inputs():
    random = np.random.default_rng(0)
    mask = np.ones((B, L), np.int32)
    mask[1, 6:] = 0
    segments = np.zeros((B, L), np.int32)
    segments[:, 4:] = 1
    return Tokens.of_mask(random.integers(0, 50, (B, L), np.int32), segments, mask)


@pytest.fixture(scope="module")
def results(inputs):
    """A function of head that returns the parameters, and {deterministic: (logits,
    encoder outputs)} with and without dropout."""

    @functools.cache
    def compute(head):
        model = HEADS[head]
        init = jax.jit(functools.partial(model.init, deterministic=True))
        params = init(jax.random.key(1), inputs)["params"]
        # The identity shows the encoder's outputs after dropout.
        if head != "span":
            params["classifier"]["kernel"] = jnp.eye(D)

        @functools.partial(jax.jit, static_argnums=0)
        def apply(deterministic):
            logits, seen = model.apply(
                {"params": params},
                inputs,
                deterministic=deterministic,
                rngs={"dropout": jax.random.key(2)},
                capture_intermediates=lambda module, name: (
                    isinstance(module, BertModel) and name == "encode"
                ),
            )
            (encoded,) = seen["intermediates"]["bert"]["encode"]
            return logits, encoded.pooled_BD, encoded.sequence_BLD

        return params, {flag: apply(flag) for flag in (True, False)}

    return compute


def test_a_head_is_one_dense_layer_on_the_encoder(results):
    for head in HEADS:
        params, outputs = results(head)
        logits, pooled, sequence = outputs[True]
        assert ("pooler" in params["bert"]) == (head == "sequence")
        dense = params["qa_outputs" if head == "span" else "classifier"]
        seen = pooled if head == "sequence" else sequence
        np.testing.assert_allclose(logits, seen @ dense["kernel"], atol=1e-6)
        assert not dense["bias"].any()


def test_the_pooled_output_depends_on_the_first_token(results, inputs):
    params, outputs = results("sequence")
    _, pooled, _ = outputs[True]
    apply = functools.partial(BertModel(CONFIG).apply, method="encode")
    bert = jax.jit(functools.partial(apply, deterministic=True))
    sequence = bert({"params": params["bert"]}, inputs).sequence_BLD
    pooler = params["bert"]["pooler"]
    expected = np.tanh(sequence[:, 0] @ pooler["kernel"] + pooler["bias"][None])
    np.testing.assert_allclose(pooled[:, 0], expected, atol=1e-6)


@pytest.mark.parametrize("head", ["sequence", "token"])
def test_training_drops_a_share_of_the_heads_inputs(head, results):
    """As in run_classifier.py: keep_prob=0.9, and kept values are scaled up."""
    logits, pooled, sequence = results(head)[1][False]
    seen = pooled if head == "sequence" else sequence
    dropped = np.asarray(logits == 0)
    size = dropped.size
    deviation = np.sqrt(0.25 * 0.75 / size)
    assert dropped.mean() == pytest.approx(0.25, abs=4 * deviation)
    np.testing.assert_allclose(logits[~dropped], seen[~dropped] / 0.75, rtol=1e-4)


def test_the_span_head_has_no_dropout(results):
    """As in run_squad.py. The encoder has dropout."""
    params, outputs = results("span")
    logits, _, sequence = outputs[False]
    expected = sequence @ params["qa_outputs"]["kernel"]
    np.testing.assert_allclose(logits, expected, atol=1e-6)
    assert np.abs(logits - outputs[True][0]).max() > 0.1


def rounded(x):
    """``x`` rounded to bfloat16, as a factor of a product."""
    return np.float32(jnp.asarray(x, jnp.bfloat16))


@pytest.mark.parametrize("head", ["sequence", "token", "span", "next sentence"])
def test_a_bfloat16_model_has_float32_logits(head):
    """Only the factors of the last product are rounded. The results do not tie.

    With results in bfloat16, 300 regression scores around 3 have about 60 values, and the
    best positions of some rows tie.
    """
    compute = ComputeConfig(dtype="bfloat16")
    model = {
        "sequence": BertForSequence(CONFIG, 1, compute),
        "token": BertForTokens(CONFIG, 3, compute),
        "span": BertForSpans(CONFIG, compute),
        "next sentence": BertForPreTraining(CONFIG, compute),
    }[head]
    random = np.random.default_rng(1)
    ids = random.integers(0, 50, (300, L), np.int32)
    tokens = Tokens.of_mask(ids, ids % 2, np.ones_like(ids))
    inputs, options = (tokens,), {"deterministic": True}
    if head == "next sentence":
        inputs, options = (tokens, ids[:, :2] % L), options | {"method": "logits"}
    init = jax.jit(functools.partial(model.init, **options))
    params = jax.device_get(init(jax.random.key(3), *inputs)["params"])
    name = {"span": "qa_outputs", "next sentence": "nsp"}.get(head, "classifier")
    params[name] = {
        "kernel": params[name]["kernel"],
        "bias": np.float32(3.3 + np.arange(params[name]["bias"].size)),
    }

    @jax.jit
    def apply(params):
        return model.apply(
            {"params": params},
            *inputs,
            **options,
            capture_intermediates=lambda module, name: (
                isinstance(module, BertModel) and name == "encode"
            ),
        )

    output, seen = apply(params)
    (encoded,) = seen["intermediates"]["bert"]["encode"]
    logits = output.nsp_logits_B2 if head == "next sentence" else output
    assert logits.dtype == jnp.float32
    x = encoded.sequence_BLD
    if head in ("sequence", "next sentence"):
        x = encoded.pooled_BD
        assert x.dtype == jnp.float32
        assert not np.array_equal(x, rounded(x))
    expected = rounded(x) @ rounded(params[name]["kernel"]) + params[name]["bias"]
    np.testing.assert_allclose(logits, expected, atol=2e-6)
    scores = np.asarray(logits)[..., 0].reshape(300, -1)
    if head in ("sequence", "next sentence"):
        assert len(np.unique(scores)) == 300
    else:
        best = np.sort(scores, axis=1)[:, -2:]
        assert np.all(best[:, 0] < best[:, 1])
