"""Left-to-right models: transformers' numbers, and no token sees a later one."""

import dataclasses
import functools
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.commands.config_file import parse
from bert_jax.data.examples import ExampleConfig
from bert_jax.data.packing import lay_out
from bert_jax.errors import UserError
from bert_jax.inference.evaluation import OnDevices, Options
from bert_jax.inference.scores import evaluate
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.interop.load import load
from bert_jax.model.bert import BertForPreTraining, BertModel
from bert_jax.model.config import ComputeConfig
from bert_jax.model.tokens import Tokens
from bert_jax.objectives import objective, two_way
from bert_jax.objectives.causal import Causal, pretraining
from bert_jax.objectives.objective import unmasked_ids
from bert_jax.training.config import finetune_config, train_config
from bert_jax.training.pretrain import pretrain
from bert_jax.training.sweep import run_one

GOLDEN = Path(__file__).parent.parent / "golden" / "huggingface"
LENGTHS = np.array([7, 4, 5])  # of the sequences of a packed row


@pytest.fixture(scope="module")
def config(small_model_config):
    return dataclasses.replace(
        small_model_config,
        causal=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        initializer_range=0.3,
    )


@pytest.fixture(scope="module")
def model(config):
    return BertForPreTraining(config)


@pytest.fixture(scope="module")
def params(model):
    return jax.jit(Causal(model).init)(jax.random.key(0))


@pytest.fixture(scope="module")
def sequences():
    random = np.random.default_rng(0)
    return [random.integers(5, 96, length, np.int32) for length in LENGTHS]


@pytest.fixture(scope="module")
def packed(sequences):
    """One row of data/pipeline.py with all sequences and some masked tokens."""
    arrays, places = lay_out(LENGTHS, [range(3)], (1, 16, 4))
    ids = np.concatenate(sequences)
    positions = np.array([[2, places.starts[1] + 1, 0, 0]], np.int32)
    weights = np.array([[1, 1, 0, 0]], np.float32)
    masked = ids.copy()
    masked[positions[0, :2]] = 4
    return arrays | {
        "input_ids": masked[None],
        "token_type_ids": np.zeros((1, 16), np.int32),
        "mlm_positions": positions,
        "mlm_ids": np.where(weights > 0, ids[positions], 0),
        "mlm_weights": weights,
    }


@pytest.fixture(scope="module")
def alone(config, params, sequences):
    """Each sequence in its own padded row."""
    ids = np.stack([np.pad(one, (0, 8 - len(one))) for one in sequences])
    mask = np.int32(np.arange(8) < LENGTHS[:, None])

    @jax.jit
    def outputs(params):
        def every(model):
            encoded = model.bert(ids, np.zeros_like(ids), mask, deterministic=True)
            logits = model.mlm(encoded.sequence_BLD, model.bert.embeddings.word)
            return {
                "sequence": encoded.sequence_BLD,
                "pooled": encoded.pooled_BD,
                "logits": logits[..., : config.vocab_size],
            }

        model = BertForPreTraining(config)
        return model.apply({"params": params}, method=every)

    return jax.device_get(outputs(params))


def test_logits_equal_transformers():
    """BertLMHeadModel; tests/golden/huggingface/make.py."""
    checkpoint = load(GOLDEN / "masked_lm", causal=True)
    golden = np.load(GOLDEN / "golden.npz")
    expected = np.load(GOLDEN / "causal.npz")["logits"]
    arrays = [golden[n] for n in ("input_ids", "token_type_ids", "attention_mask")]
    model = BertForPreTraining(checkpoint.config)

    def logits(model, *tokens):
        encoded = model.bert(*tokens, deterministic=True, pool=False)
        return model.mlm(encoded.sequence_BLD, model.bert.embeddings.word)

    apply = jax.jit(functools.partial(model.apply, method=logits))
    actual = np.asarray(apply({"params": checkpoint.params}, *arrays))[
        ..., : checkpoint.config.vocab_size
    ]
    real = golden["attention_mask"] > 0
    np.testing.assert_allclose(actual[real], expected[real], rtol=0, atol=2e-5)


@pytest.mark.parametrize("compute", [{}, {"scan_layers": True}, {"remat": "full"}])
def test_a_token_sees_no_later_token(config, compute):
    model = BertModel(config, ComputeConfig(**compute))
    ids = np.random.default_rng(1).integers(5, 96, (2, 12), np.int32)
    ones, zeros = np.ones_like(ids), np.zeros_like(ids)
    params = jax.jit(model.init, static_argnames="deterministic")(
        jax.random.key(0), ids, zeros, ones, deterministic=True
    )
    apply = jax.jit(
        lambda ids: model.apply(params, ids, zeros, ones, deterministic=True)
    )
    changed = ids.copy()
    changed[:, 7:] = 6
    before, after = apply(ids), apply(changed)
    difference = np.abs(before.sequence_BLD - after.sequence_BLD).max(axis=(0, 2))
    assert difference[:7].max() == 0
    assert difference[7:].min() > 1e-3
    # The pooled token is the last token, which sees all tokens.
    assert np.abs(before.pooled_BD - after.pooled_BD).max() > 1e-3


def test_the_loss_is_the_sum_over_each_sequence_alone(
    model, params, packed, alone, sequences
):
    objective = Causal(model)
    assert np.array_equal(unmasked_ids(packed)[0], np.concatenate(sequences))
    sums = jax.jit(objective.sums, static_argnums=2)(params, packed, None)
    total = right = 0
    for ids, logits in zip(sequences, alone["logits"], strict=True):
        log_p = np.asarray(jax.nn.log_softmax(logits[: len(ids) - 1]))
        total -= sum(float(log_p[i, token]) for i, token in enumerate(ids[1:]))
        right += int(np.sum(np.argmax(log_p, -1) == ids[1:]))
    assert float(sums["lm_weight"]) == sum(LENGTHS - 1)
    assert float(objective.weights(packed)["lm_loss"]) == sum(LENGTHS - 1)
    np.testing.assert_allclose(sums["lm_loss"], total, rtol=2e-6)
    assert int(sums["lm_correct"]) == right
    config, (rows, L) = model.config, packed["input_ids"].shape
    D, F, V = config.hidden_size, config.intermediate_size, config.vocab_size
    # By hand: every position is read and predicted; attention computes all pairs.
    layer = L * (4 * D * D + 2 * D * F) + 2 * L * L * D
    expected = 6 * rows * (config.num_layers * layer + L * (D * D + D * V))
    assert objective.flops(packed) == expected


@pytest.mark.parametrize("positions", [5, 8])
def test_parts_of_the_positions_change_nothing(
    model, params, packed, positions, max_difference, monkeypatch
):
    """Loss and gradients of 16 positions, even if the last part is padded."""

    def gradients():
        def loss(params):
            sums = Causal(model).sums(params, packed, None)
            return sums["lm_loss"], sums

        return jax.jit(jax.grad(loss, has_aux=True))(params)

    expected_grads, expected = gradients()
    monkeypatch.setattr(objective, "POSITIONS", positions)
    grads, sums = gradients()
    assert sums["lm_weight"] == expected["lm_weight"] == sum(LENGTHS - 1)
    assert sums["lm_correct"] == expected["lm_correct"]
    assert sums["lm_loss"] == pytest.approx(float(expected["lm_loss"]), rel=1e-6)
    largest = max(float(abs(grad).max()) for grad in jax.tree.leaves(expected_grads))
    assert max_difference(grads, expected_grads) < 1e-6 * largest


def test_the_logits_of_a_whole_sequence_are_never_stored(
    config, optimized, monkeypatch
):
    """Not even in the gradient, whose parts save more memory than the logits need."""
    rows, length, tokens = 2, 512, 4096
    small = dataclasses.replace(
        config, vocab_size=tokens, num_layers=1, max_positions=length
    )
    causal = Causal(BertForPreTraining(small))
    params = jax.eval_shape(causal.init, jax.random.key(0))
    numbers = jax.ShapeDtypeStruct((rows, length), np.int32)
    few = jax.ShapeDtypeStruct((rows, 1), np.int32)
    batch = dict.fromkeys(("input_ids", "token_type_ids", "attention_mask"), numbers)
    batch |= dict.fromkeys(("mlm_positions", "mlm_ids", "mlm_weights"), few)

    def temporaries():
        def loss(params, batch):
            return causal.sums(params, batch, None)["lm_loss"]

        program = jax.jit(jax.grad(loss)).lower(params, batch).compile()
        return program.memory_analysis().temp_size_in_bytes

    in_parts = temporaries()
    monkeypatch.setattr(objective, "POSITIONS", length)
    whole = temporaries()
    logits = 4 * rows * length * tokens
    assert in_parts < whole - logits


def test_a_classifier_reads_the_last_token_of_each_sequence(
    config, packed, params, alone, sequences
):
    ids = np.concatenate(sequences)[None]
    tokens = Tokens(ids, 0 * ids, packed["segment_ids"], packed["starts"])
    encode = functools.partial(
        BertModel(config).apply, deterministic=True, method="encode"
    )
    together = jax.jit(encode)({"params": params["bert"]}, tokens).pooled_BD[0]
    pooler = jax.device_get(params["bert"]["pooler"])
    last = alone["sequence"][np.arange(3), LENGTHS - 1]
    expected = np.tanh(last @ pooler["kernel"] + pooler["bias"])
    np.testing.assert_allclose(alone["pooled"], expected, rtol=0, atol=2e-6)
    np.testing.assert_allclose(together[:3], expected, rtol=0, atol=2e-6)


FAMILIES = {
    "classification": dict(model=dict(pooling="mean", hidden_dropout=0.0)),
    "question_answering": dict(features=dict(bilstm=True, width=16, lstm_layers=1)),
}


@pytest.mark.long
@pytest.mark.parametrize("what", FAMILIES)
def test_a_causal_model_is_fine_tuned_on_every_family(
    what, settings, checkpoint_dir, tmp_path
):
    """With or without a BiLSTM on top. The saved model makes the predictions."""
    config = json.loads((checkpoint_dir / "config.json").read_text())
    shutil.copytree(checkpoint_dir, tmp_path / "decoder")
    path = tmp_path / "decoder" / "config.json"
    path.write_text(json.dumps(config | {"is_decoder": True}))
    config = finetune_config(
        settings(what, init_from=str(tmp_path / "decoder"), **FAMILIES[what])
    )
    results = run_one(config, tmp_path / "run", [].append)
    best = load(tmp_path / "run")
    assert best.config.causal
    scores = results["scores"]["dev"]
    assert scores[results["main_metric"]] > 80
    by_family = {task.family: evaluation.scores for task, _, evaluation in (
        evaluate(OnDevices(best), None, Options())
    )}  # fmt: skip
    assert by_family[config.family] == pytest.approx(scores)


def test_a_causal_model_without_its_settings_is_refused(config):
    causal = dataclasses.replace(config, causal=False)
    alone, pairs = ExampleConfig(next_sentence=False), ExampleConfig()
    with pytest.raises(UserError, match=r"set model\.causal=True"):
        pretraining(causal, ComputeConfig(), alone)
    with pytest.raises(UserError, match=r"next_sentence=False"):
        pretraining(config, ComputeConfig(), pairs)


def test_a_run_learns_and_its_checkpoint_is_a_decoder(
    one_phase_of, eight_devices, tmp_path
):
    """On eight devices. Its perplexity becomes lower than the unigram perplexity."""
    flags = (
        "--objective=bert_jax.objectives.causal",
        "--model.causal=True",
        "--data.examples.next_sentence=False",
        "--optimizer.learning_rate=0.02",
        "--checkpoint_every=1000",
    )
    config = parse(
        ["--config", str(one_phase_of(0)), *flags], "usage", train_config
    ).config
    lines = []
    metrics = pretrain(config, tmp_path / "run", lines.append)
    assert metrics["perplexity"] == pytest.approx(np.exp(metrics["loss"]))
    assert metrics["perplexity"] < 0.6 * config.model.vocab_size
    checkpoint = load(tmp_path / "run")
    assert checkpoint.config.causal
    folder = tmp_path / "folder"
    save_huggingface(folder, checkpoint)
    again = load(folder)
    assert again.config == checkpoint.config
    assert '"BertLMHeadModel"' in (folder / "config.json").read_text()
    assert set(again.params) == {"bert", "mlm"}


@pytest.mark.parametrize("encoder", ["transformer", "lstm"])
def test_padding_has_no_part_in_the_loss(config, encoder):
    """In rows of 16 positions with 9 and 5 tokens, 8 and 4 have a token before them."""
    config = dataclasses.replace(config, causal=encoder != "lstm", encoder=encoder)
    make = two_way.pretraining if encoder == "lstm" else pretraining
    objective = make(config, ComputeConfig(), ExampleConfig(next_sentence=False))
    mask = np.int32(np.arange(16) < [[9], [5]])
    ids = np.random.default_rng(0).integers(5, 96, (2, 16), np.int32)
    none = np.zeros((2, 1), np.int32)
    batch = {
        "attention_mask": mask,
        "token_type_ids": 0 * ids,
        "mlm_positions": none,
        "mlm_ids": none,
        "mlm_weights": np.zeros((2, 1), np.float32),
    }

    @jax.jit
    def sums(ids):
        params = objective.init(jax.random.key(0))
        full_batch = batch | {"input_ids": ids}
        return objective.sums(params, full_batch, None), objective.weights(full_batch)

    actual, weights = sums(ids * mask)
    directions = 2 if encoder == "lstm" else 1
    predicted = directions * (8 + 4)
    assert actual["lm_weight"] == weights["lm_loss"] == predicted
    other, _ = sums(np.where(mask, ids, 7))
    np.testing.assert_allclose(actual["lm_loss"], other["lm_loss"], rtol=1e-6)
    assert actual["lm_loss"] > predicted  # 4.6 for each token of a new model
