"""Model options outside the paper: positions, pre-LN layers, pooling."""

import dataclasses
import math
import shutil

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.interop.load import load
from bert_jax.model.bert import BertForPreTraining, BertModel
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.layers import SINUSOID_SCALE, sinusoids
from bert_jax.model.parameters import stack_layers
from bert_jax.model.tokens import Tokens

OPTIONS = {
    "sinusoidal": dict(positions="sinusoidal"),
    "none": dict(positions="none"),
    "pre_norm": dict(pre_norm=True),
    "pre_norm_sinusoidal": dict(pre_norm=True, positions="sinusoidal"),
    "lstm": dict(encoder="lstm"),
    "mean": dict(pooling="mean"),
}


@pytest.fixture(scope="module")
def theirs(golden):
    folder = golden / "huggingface"
    return dict(np.load(folder / "golden.npz")) | dict(np.load(folder / "pre_norm.npz"))


def tokens(theirs):
    return [theirs[n] for n in ("input_ids", "token_type_ids", "attention_mask")]


def apply(checkpoint, theirs, compute=ComputeConfig(), params=None, **settings):
    """BertForPreTraining's encoder and heads on the golden batch."""
    model = BertForPreTraining(checkpoint.config, compute)

    def everything(model):
        encoded = model.bert(*tokens(theirs), deterministic=True, **settings)
        logits = model.mlm(encoded.sequence_BLD, model.bert.embeddings.word)
        return encoded, logits, model.nsp(encoded.pooled_BD)

    params = params or checkpoint.params
    run = jax.jit(lambda params: model.apply({"params": params}, method=everything))
    return jax.device_get(run(params))


def test_pre_norm_equals_transformers_megatron_bert(golden, theirs, tmp_path):
    folder = golden / "huggingface" / "pre_norm"
    checkpoint = load(folder)
    assert checkpoint.config.pre_norm
    assert (checkpoint.missing, checkpoint.unexpected) == ((), ())
    encoded, logits, nsp = apply(checkpoint, theirs, hidden_states=True)
    real = theirs["attention_mask"] > 0
    close = dict(rtol=0, atol=2e-5)
    for ours, expected in zip(
        encoded.hidden_states, theirs["hidden_states"], strict=True
    ):
        np.testing.assert_allclose(ours[real], expected[real], **close)
    V = checkpoint.config.vocab_size
    expected = theirs["prediction_logits"][real]
    np.testing.assert_allclose(logits[real][:, :V], expected, **close)
    np.testing.assert_allclose(nsp, theirs["seq_relationship_logits"], **close)
    # Selected positions and scanned layers have the same outputs.
    places = np.array([[3, 1]] * 3)
    some, _, _ = apply(checkpoint, theirs, positions_BQ=places)
    expected = np.take_along_axis(encoded.sequence_BLD, places[..., None], 1)
    np.testing.assert_allclose(some.sequence_BLD, expected, **close)
    bert = checkpoint.params["bert"]
    bert = bert | {"encoder": stack_layers(bert["encoder"])}
    scanned, _, _ = apply(
        checkpoint, theirs, ComputeConfig(scan_layers=True),
        checkpoint.params | {"bert": bert}, hidden_states=True,
    )  # fmt: skip
    np.testing.assert_allclose(
        np.stack(scanned.hidden_states), np.stack(encoded.hidden_states), **close
    )
    # Saved again, the folder is the same for transformers.
    save_huggingface(tmp_path / "again", checkpoint)
    again = load(tmp_path / "again")
    jax.tree.map(np.testing.assert_array_equal, again.params, checkpoint.params)
    text = (tmp_path / "again" / "config.json").read_text()
    assert '"MegatronBertForPreTraining"' in text and '"megatron-bert"' in text


def test_sinusoids_follow_the_formula():
    config = BertConfig(50, 6, 1, 1, 8, max_positions=30, positions="sinusoidal")
    for p, row in enumerate(sinusoids(config) / SINUSOID_SCALE):
        for i in range(3):
            angle = p / 10_000 ** (2 * i / 6)
            assert row[2 * i] == pytest.approx(math.sin(angle), abs=1e-6)
            assert row[2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6)


@pytest.mark.parametrize("option", ["sinusoidal", "none"])
def test_transformers_reads_a_table_of_positions(option, golden, theirs, tmp_path):
    """The saved table, used as a learned table, gives the same numbers."""
    learned = load(golden / "huggingface" / "pretraining")
    config = dataclasses.replace(learned.config, **OPTIONS[option])
    embeddings = dict(learned.params["bert"]["embeddings"])
    del embeddings["position"]
    bert = learned.params["bert"] | {"embeddings": embeddings}
    checkpoint = dataclasses.replace(
        learned, config=config, params=learned.params | {"bert": bert}
    )
    _, expected, _ = apply(checkpoint, theirs)
    save_huggingface(tmp_path / "folder", checkpoint)
    again = load(tmp_path / "folder")
    assert (again.config, again.unexpected) == (config, ())
    _, logits, _ = apply(again, theirs)
    np.testing.assert_array_equal(logits, expected)
    as_bert = load(tmp_path / "folder", positions="learned")
    assert "position" in as_bert.params["bert"]["embeddings"]
    _, logits, _ = apply(as_bert, theirs)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-6)


def test_the_mean_of_all_tokens_is_pooled(golden, theirs):
    checkpoint = load(golden / "huggingface" / "pretraining", pooling="mean")
    encoded, _, _ = apply(checkpoint, theirs)
    mask = theirs["attention_mask"][..., None]
    mean = (encoded.sequence_BLD * mask).sum(1) / mask.sum(1)
    pooler = checkpoint.params["bert"]["pooler"]
    expected = np.tanh(mean @ pooler["kernel"] + pooler["bias"])
    np.testing.assert_allclose(encoded.pooled_BD, expected, rtol=0, atol=2e-6)
    # The mean is the same in a packed row and for any read positions.
    ids, types, _ = tokens(theirs)
    row = np.concatenate([ids[1, :8], ids[2, :3]])[None]
    numbers = np.array([[1] * 8 + [2] * 3])
    packed = jax.jit(
        lambda params: BertModel(checkpoint.config).apply(
            {"params": params},
            Tokens(
                row, np.concatenate([types[1, :8], types[2, :3]])[None], numbers,
                np.array([[0, 8]]),
            ),
            deterministic=True, positions_BQ=row[:, :0], method="encode",
        )
    )(checkpoint.params["bert"])  # fmt: skip
    np.testing.assert_allclose(packed.pooled_BD[0], expected[1:], rtol=0, atol=2e-6)


def test_models_without_a_form_in_transformers_are_refused(golden, tmp_path):
    folder = golden / "huggingface" / "sequence"
    for option, reason in (
        (dict(causal=True), "a classifier on the last token"),
        (dict(pooling="mean"), "a classifier on the mean of all tokens"),
    ):
        checkpoint = load(folder, **option)
        with pytest.raises(UserError, match=f"no class with {reason}; use"):
            save_huggingface(tmp_path / "folder", checkpoint)
        save_huggingface(tmp_path / reason, checkpoint, own=True)
        again = load(tmp_path / reason)
        assert (again.config, again.head) == (checkpoint.config, "sequence")
        assert (again.labels, again.source) == (checkpoint.labels, "bert_jax")
        jax.tree.map(np.testing.assert_array_equal, again.params, checkpoint.params)
    # A file of weights under other names is refused.
    shutil.copy(folder / "model.safetensors", tmp_path / reason)
    with pytest.raises(UserError, match="the parameters contain no encoder"):
        load(tmp_path / reason)


def test_next_sentences_from_the_mean_have_no_form_in_transformers(golden, tmp_path):
    """Its class reads [CLS]. Without this head the model has a class."""
    checkpoint = load(golden / "huggingface" / "pretraining", pooling="mean")
    message = "no class with next sentence prediction from the mean of all tokens; use"
    with pytest.raises(UserError, match=message):
        save_huggingface(tmp_path / "pairs", checkpoint)
    params = {name: x for name, x in checkpoint.params.items() if name != "nsp"}
    save_huggingface(tmp_path / "alone", dataclasses.replace(checkpoint, params=params))
    assert load(tmp_path / "alone").config.pooling == "mean"
