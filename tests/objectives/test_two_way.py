"""Two LSTMs as a language model: torch's numbers, the context of each, and a run."""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

from bert_jax.commands.config_file import parse
from bert_jax.data.examples import ExampleConfig
from bert_jax.errors import UserError
from bert_jax.inference.model import Bert
from bert_jax.inference.pretrained import mlm_logits
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.interop.load import load
from bert_jax.model.bert import BertModel
from bert_jax.model.bilstm import DIRECTIONS
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.model.tokens import Tokens
from bert_jax.objectives.objective import cross_entropy
from bert_jax.objectives.two_way import (
    LayerMix,
    TwoWayForPreTraining,
    TwoWayLstm,
    TwoWayModel,
    pretraining,
)
from bert_jax.training.config import finetune_config, train_config
from bert_jax.training.pretrain import pretrain
from bert_jax.training.sweep import run_one

ALONE = ExampleConfig(next_sentence=False)
LENGTHS = np.array([7, 4, 5])


@pytest.fixture(scope="module")
def config(small_model_config):
    return dataclasses.replace(
        small_model_config,
        encoder="lstm",
        positions="none",
        hidden_dropout=0.0,
        initializer_range=0.3,
    )


@pytest.fixture(scope="module")
def objective(config):
    return pretraining(config, ComputeConfig(), ALONE)


@pytest.fixture(scope="module")
def params(objective):
    return jax.jit(objective.init)(jax.random.key(0))


@pytest.fixture(scope="module")
def batch():
    """Three rows of one sequence each, padded on the right, without masks."""
    mask = np.int32(np.arange(9) < LENGTHS[:, None])
    zeros = np.zeros((3, 1), np.int32)
    return {
        "input_ids": np.random.default_rng(0).integers(5, 96, (3, 9), np.int32) * mask,
        "token_type_ids": np.zeros_like(mask),
        "attention_mask": mask,
        **{"mlm_positions": zeros, "mlm_ids": zeros, "mlm_weights": np.float32(zeros)},
    }


def test_layers_their_mix_and_the_loss_equal_torch(golden):
    """Torch's numbers are from tests/golden/torch/make.py."""
    theirs = dict(np.load(golden / "torch" / "two_way.npz"))
    V, D = theirs["words"].shape
    config = BertConfig(V, D, 3, 4, 40, encoder="lstm", hidden_dropout=0.0)
    kernels = {k: x for k, x in theirs.items() if k.startswith("layer_")}
    lstms = unflatten_dict(kernels, sep="/")
    mix = {"weights": theirs["weights"], "gamma": theirs["gamma"]}

    @jax.jit
    def encode(x, mask):
        tokens = Tokens.of_mask(mask, mask, mask)
        encoder = TwoWayLstm(config, ComputeConfig())
        states = encoder.apply({"params": lstms}, x, tokens, deterministic=True)
        return LayerMix().apply({"params": mix}, states), states

    total = count = 0
    for number in range(3):
        ids = theirs[f"ids_{number}"]
        x_BLD = theirs["words"][ids][None]
        mask_BL = np.ones((1, len(ids)), np.int32)
        mixed, states = jax.device_get(encode(x_BLD, mask_BL))
        expected = theirs[f"states_{number}"]
        np.testing.assert_allclose(np.stack(states)[:, 0], expected, rtol=0, atol=2e-6)
        expected = theirs[f"mixed_{number}"]
        np.testing.assert_allclose(mixed[0], expected, rtol=0, atol=5e-6)
        forward, backward = np.split(states[-1][0], 2, axis=-1)
        for top, targets in ((forward[:-1], ids[1:]), (backward[1:], ids[:-1])):
            logits = top @ theirs["output"].T + theirs["bias"]
            total += float(cross_entropy(logits, targets)[0].sum())
            count += len(targets)
    assert total / count == pytest.approx(float(theirs["loss"]), rel=2e-6)


def test_each_direction_sees_only_its_side(config, params):
    ids = np.random.default_rng(1).integers(5, 96, (1, 12), np.int32)
    tokens = np.zeros_like(ids), np.ones_like(ids)
    model = TwoWayForPreTraining(config)
    places = np.arange(12)[None]
    apply = jax.jit(
        lambda ids: model.apply(
            {"params": params}, Tokens.of_mask(ids, *tokens), places,
            deterministic=True, method="lm_logits",
        )
    )  # fmt: skip
    changed = ids.copy()
    changed[0, 6] = 5 + ids[0, 6] % 90
    moved = np.abs(apply(ids) - apply(changed)).max(axis=(0, 2)).reshape(2, 12)
    assert moved[0][:7].max() == 0 and moved[0][7:].min() > 1e-4
    assert moved[1][6:].max() == 0 and moved[1][:6].min() > 1e-4
    # Both directions predict a masked token: the product of their probabilities.
    batch = dict(
        zip(
            ("input_ids", "token_type_ids", "attention_mask"),
            (ids, *tokens),
            strict=True,
        )
    )
    actual = jax.jit(functools.partial(mlm_logits, model))(params, batch, places)
    both = sum(map(jax.nn.log_softmax, np.split(apply(ids), 2, axis=1)))
    np.testing.assert_allclose(actual, both, rtol=0, atol=2e-5)


def test_a_text_has_the_same_outputs_alone_and_in_a_batch(
    config, objective, params, batch
):
    model = TwoWayModel(config)
    apply = jax.jit(functools.partial(model.apply, deterministic=True))
    sums = jax.jit(objective.sums, static_argnums=2)
    names = ("input_ids", "token_type_ids", "attention_mask")
    bert = {"params": params["bert"]}
    together = apply(bert, *(batch[name] for name in names))
    losses = []
    for row, length in enumerate(LENGTHS):
        text = {name: x[row : row + 1] for name, x in batch.items()}
        text |= {name: text[name][:, :length] for name in names}
        alone = apply(bert, *(text[name] for name in names))
        for actual, expected in (
            (together.sequence_BLD[row, :length], alone.sequence_BLD[0]),
            (together.pooled_BD[row], alone.pooled_BD[0]),
        ):
            np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6)
        losses.append(sums(params, text, None)["lm_loss"])
    actual = sums(params, batch, None)
    assert actual["lm_weight"] == objective.weights(batch)["lm_loss"]
    assert actual["lm_weight"] == 2 * sum(LENGTHS - 1)
    rows = [ids[:n] for ids, n in zip(batch["input_ids"], LENGTHS, strict=True)]
    predicted = np.concatenate([part for ids in rows for part in (ids[1:], ids[:-1])])
    counts = jax.jit(objective.eval_sums)(params, batch)["lm_counts"]
    assert np.array_equal(counts, np.bincount(predicted, minlength=96))
    np.testing.assert_allclose(actual["lm_loss"], np.sum(losses), rtol=2e-6)
    # The pooler reads the last states of both directions.
    forward, backward = np.split(np.asarray(together.sequence_BLD), 2, axis=-1)
    last = np.concatenate([forward[range(3), LENGTHS - 1], backward[:, 0]], axis=-1)
    pooler = jax.device_get(params["bert"]["pooler"])
    expected = np.tanh(last @ pooler["kernel"] + pooler["bias"])
    np.testing.assert_allclose(together.pooled_BD, expected, rtol=0, atol=2e-6)


def test_a_packed_row_equals_its_sequences_alone(config, objective, params, batch):
    """The loss, the vectors, and the gradient of each parameter."""
    ids = [row[:n] for row, n in zip(batch["input_ids"], LENGTHS, strict=True)]
    starts = np.cumsum((0, *LENGTHS[:-1]))
    row = np.pad(np.concatenate(ids), (0, 2))[None]
    segments = np.pad(np.repeat((1, 2, 3), LENGTHS), (0, 2))[None]
    packed = {
        "input_ids": np.int32(row),
        "token_type_ids": np.zeros_like(row, np.int32),
        "attention_mask": np.int32(segments > 0),
        "segment_ids": np.int32(segments),
        "starts": np.int32(starts)[None],
        **{name: batch[name][:1] for name in ("mlm_positions", "mlm_ids")},
        "mlm_weights": batch["mlm_weights"][:1],
    }

    @jax.jit
    def run(params, batch):
        def loss(params):
            return objective.sums(params, batch, None)["lm_loss"]

        encode = functools.partial(TwoWayModel(config).apply, method="encode")
        tokens = Tokens.of_batch(batch)
        encoded = encode({"params": params["bert"]}, tokens, deterministic=True)
        value, gradients = jax.value_and_grad(loss)(params)
        return value, gradients, encoded.sequence_BLD, encoded.pooled_BD

    loss, gradients, vectors, pooled = jax.device_get(run(params, packed))
    loss3, gradients3, vectors3, pooled3 = jax.device_get(run(params, batch))
    np.testing.assert_allclose(loss, loss3, rtol=2e-6)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=2e-5),
        gradients,
        gradients3,
    )
    np.testing.assert_allclose(pooled[0], pooled3[:, 0], rtol=0, atol=2e-6)
    for i, (start, length) in enumerate(zip(starts, LENGTHS, strict=True)):
        here = vectors[0, start : start + length]
        np.testing.assert_allclose(here, vectors3[i, :length], rtol=0, atol=2e-6)


def test_the_forget_gates_of_the_encoder_start_with_a_bias_of_1():
    """The gates are i, f, g and o. All other biases start at 0."""
    config = BertConfig(96, 8, 2, 2, 6, encoder="lstm")
    ones = np.ones((1, 2), np.int32)
    inputs = np.zeros((1, 2, 8), np.float32), Tokens.of_mask(ones, ones, ones)
    encoder = TwoWayLstm(config, ComputeConfig())
    init = jax.jit(functools.partial(encoder.init, deterministic=True))
    params = init(jax.random.key(0), *inputs)["params"]
    for i, way in itertools.product(range(2), DIRECTIONS):
        bias = params[f"layer_{i}_{way}_inputs"]["bias"].reshape(4, 6)
        assert np.array_equal(bias, np.repeat([[0], [1], [0], [0]], 6, axis=1))


def test_flops_and_parameters_are_counted(objective, params, batch):
    config = objective.model.config
    D, F, V, L = 16, 40, 96, 9
    # By hand: gates of inputs and states, and projections; then the head twice.
    lstms = config.num_layers * 2 * L * (D * 4 * F + D * 4 * F + F * D)
    head = 2 * L * (D * D + D * V)
    assert objective.flops(batch) == 3 * 2 * 3 * (lstms + head)


def test_unsupported_settings_are_refused(config):
    with pytest.raises(UserError, match=r"set model\.causal=False and model\.enc"):
        pretraining(dataclasses.replace(config, encoder="transformer"), None, ALONE)
    with pytest.raises(UserError, match=r"next_sentence=False"):
        pretraining(config, None, ExampleConfig())
    with pytest.raises(UserError, match=r"^compute.remat=full has no effect on LSTMs"):
        pretraining(config, ComputeConfig(remat="full"), ALONE)
    with pytest.raises(UserError, match=r"encoder=lstm needs pre_norm=False, not True"):
        dataclasses.replace(config, pre_norm=True)
    with pytest.raises(UserError, match=r"encoder=lstm has another class"):
        BertModel(config).init(jax.random.key(0), *[np.ones((1, 2), np.int32)] * 3)


@pytest.mark.long
def test_a_run_resumes_scores_and_is_saved_in_our_form(
    one_phase_of, eight_devices, tmp_path
):
    """On eight devices. It is saved in our form, because transformers has no LSTM model."""
    flags = (
        "--objective=bert_jax.objectives.two_way",
        "--model.encoder=lstm",
        "--model.positions=none",
        "--data.examples.next_sentence=False",
        "--optimizer.learning_rate=0.02",
        "--checkpoint_every=1000",
        "--data.packing=True",
    )
    config = parse(
        ["--config", str(one_phase_of(0)), *flags], "usage", train_config
    ).config
    assert config.data.packing
    metrics = pretrain(config, tmp_path / "run", [].append)
    assert metrics["perplexity"] < 0.6 * config.model.vocab_size
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    again = pretrain(config, tmp_path / "run", [].append)  # the run is finished
    assert again == pytest.approx(metrics)
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before
    checkpoint = load(tmp_path / "run")
    ids = checkpoint.tokenizer.encode("the cat")
    ids = np.array([[checkpoint.tokenizer.cls_id, *ids, checkpoint.tokenizer.sep_id]])
    every = TwoWayForPreTraining(checkpoint.config).apply(
        {"params": checkpoint.params}, Tokens.of_mask(ids, 0 * ids, 1 + 0 * ids),
        np.arange(ids.shape[1])[None], deterministic=True, method="lm_logits",
    )  # fmt: skip
    expected = -sum(
        cross_entropy(logits, ids)[0][0, 1:-1].sum()
        for logits in np.split(every, 2, axis=1)
    )
    model = Bert(**vars(checkpoint))
    np.testing.assert_allclose(model.score(["the cat"]), expected / 2, rtol=1e-5)
    with pytest.raises(UserError, match="reads only one side, so it never sees"):
        model.score(["the cat"], rest_of_word=True)
    with pytest.raises(
        UserError, match="transformers has no class with encoder=lstm"
    ) as error:
        save_huggingface(tmp_path / "hf", checkpoint)
    assert "\n" not in str(error.value) and not (tmp_path / "hf").exists()
    save_huggingface(tmp_path / "own", checkpoint, own=True)
    again = load(tmp_path / "own", scan_layers=True)
    assert (again.config, again.head) == (checkpoint.config, "pretraining")
    jax.tree.map(np.testing.assert_array_equal, again.params, checkpoint.params)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory, model_config, vocabulary, init_params):
    """A folder with untrained LSTMs in our form."""
    config = model_config(encoder="lstm", positions="none")
    params = {"bert": init_params(TwoWayModel(config))}
    folder = tmp_path_factory.mktemp("encoder")
    checkpoint = Checkpoint(config, params, vocabulary, "none")
    save_huggingface(folder, checkpoint, own=True)
    return folder


def test_a_text_has_the_same_vector_alone_and_with_other_texts(encoder):
    """Inference packs texts into rows."""
    texts = ["the cat", "the cat sat on the mat", "mat"]
    model = Bert(**vars(load(encoder)))
    encode = functools.partial(model.encode, pooling="pooler")
    together = encode(texts)
    alone = np.concatenate([encode([text]) for text in texts])
    np.testing.assert_allclose(together, alone, rtol=0, atol=2e-6)
    assert np.abs(together[0] - together[1]).max() > 1e-3


@pytest.mark.long
@pytest.mark.parametrize(
    "family, freeze", [("classification", True), ("tagging", False)]
)
def test_two_way_lstms_are_fine_tuned(family, freeze, settings, encoder, tmp_path):
    """With a frozen encoder the head, the pooler and the layer weights are trained."""
    config = finetune_config(
        settings(family, init_from=str(encoder), freeze=freeze, epochs=12)
    )
    results = run_one(config, tmp_path, [].append)
    assert results["scores"]["dev"][results["main_metric"]] > 70
    before, after = load(encoder).params["bert"], load(tmp_path).params["bert"]
    moved = {
        part: max(
            np.abs(a - b).max()
            for a, b in zip(
                jax.tree.leaves(before[part]), jax.tree.leaves(after[part]), strict=True
            )
        )
        for part in after
    }
    assert moved["mix"] > 1e-4
    for part in ("embeddings", "encoder"):
        assert (moved[part] == 0) == freeze, part
