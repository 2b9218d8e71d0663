"""Left-to-right phases before, between or after phases of masked LM."""

import dataclasses
import re

import jax
import numpy as np
import pytest

import bert_jax
from bert_jax.data.preparation import prepare
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.objectives.objective import unmasked_ids
from bert_jax.runs import read_metrics
from bert_jax.training import pretrain as pretraining
from bert_jax.training import study
from bert_jax.training.config import train_config
from bert_jax.training.pretrain import pretrain, pretraining_objective

MODEL = {
    "hidden_size": 16,
    "num_layers": 1,
    "num_heads": 2,
    "intermediate_size": 32,
    "max_positions": 32,
}
SIZES = {"batch_size": 8, "sequence_length": 32}


@pytest.fixture(scope="module")
def configure(small_store, tmp_path_factory):
    """A function of phases and other settings that returns a config.

    The run mixes two texts.
    """
    path, vocab_size = small_store
    text = (path.parent / "text.txt").read_text()
    few = tmp_path_factory.mktemp("other") / "few.txt"
    few.write_text("\n\n".join(text.split("\n\n")[:7]))
    other = few.parent / "store"
    prepare([str(few)], load_tokenizer(path), other, workers=1)

    def make(*phases, next_sentence=False, objective="mlm_nsp", **model):
        settings = {
            "model": MODEL | {"vocab_size": vocab_size} | model,
            "data": {
                "mixture": (str(path), str(other)),
                "weights": (3, 1),
                "holdout": 0.2,
                "examples": {"next_sentence": next_sentence},
            },
            "optimizer": {"learning_rate": 1e-2},
            "objective": f"bert_jax.objectives.{objective}",
            "phases": [SIZES | phase for phase in phases],
            "eval_batches": 2,
            "log_every": 2,
            "checkpoint_every": 1,
            "keep_checkpoints": 9,
        }
        return train_config(settings)

    return make


CAUSAL = {"steps": 3, "causal": True}
MASKED = {"steps": 4, "mask_rate": 0.4, "last_mask_rate": 0.2, "mask_rate_spread": 0.1}


def trained(config, workdir, stop=None):
    """The log and the final state of a run. stop: step after which it is interrupted."""
    lines = []

    def run(job, folder, log):
        def interrupt(training):
            if training.step == stop:
                raise KeyboardInterrupt

        job = dataclasses.replace(job, hooks=[(1, interrupt), *job.hooks])
        result = trained.engine(job, folder, log)
        trained.state = result[0]
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretraining, "run", run)
        pretrain(config, workdir, lines.append)
    return lines, trained.state


trained.engine = pretraining.run


@pytest.fixture(scope="module")
def whole(configure, tmp_path_factory):
    """The workdir, the log and the state of an undisturbed run."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    return workdir, *trained(configure(CAUSAL, MASKED), workdir)


def lines_of(workdir):
    rates = ("tokens_per_second", "data_wait", "seconds_left", "mfu")
    times = (*rates, "seconds", "lost_seconds")
    lines = read_metrics(workdir / "metrics.jsonl")
    return [{k: v for k, v in line.items() if k not in times} for line in lines]


def same(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


# Steps before, at and after the switch.
@pytest.mark.parametrize(
    "stop",
    [
        pytest.param(2, marks=pytest.mark.long),
        4,
        pytest.param(5, marks=pytest.mark.long),
    ],
)
def test_a_run_resumes_bit_for_bit_around_the_switch(configure, whole, tmp_path, stop):
    workdir, _, expected = whole
    config = configure(CAUSAL, MASKED)
    with pytest.raises(KeyboardInterrupt):
        trained(config, tmp_path / "run", stop)
    log, state = trained(config, tmp_path / "run")
    assert f"resuming at step {stop - 1}" in log
    assert same((state.params, state.opt_state), (expected.params, expected.opt_state))
    assert lines_of(tmp_path / "run") == lines_of(workdir)


def test_each_phase_trains_its_objective(configure, whole):
    """The window of steps 3 and 4 has a step of each."""
    workdir, log, _ = whole
    names = {"perplexity", "lm_accuracy"}, {"mlm_loss", "mlm_accuracy"}
    found = []
    for line in lines_of(workdir):
        kinds = [kind <= line.keys() for kind in names]
        found.append((line["split"], line["step"], *kinds))
    assert found == [
        ("eval", 0, True, False),
        ("train", 2, True, False),
        ("eval", 3, True, False),
        ("eval", 3, False, True),
        ("train", 4, True, True),
        ("train", 6, False, True),
        ("train", 7, False, True),
        ("eval", 7, False, True),
    ]
    assert "3 steps of 8 x 32 left to right, 4 steps of 8 x 32;" in log[0]
    for line, share in zip(log[1:3], ("75.0%", "25.0%"), strict=True):
        assert re.search(rf"store: {share} of the sequences, 0\.\d+ passes$", line)


def test_the_objective_of_a_batch_is_that_of_its_phase(configure):
    phases = MASKED, CAUSAL
    objective = pretraining_objective(configure(*phases))
    left = configure(MASKED, objective="causal", causal=True)
    alone = pretraining_objective(configure(MASKED)), pretraining_objective(left)
    # The model of the run is the model of the last phase.
    assert objective.model == alone[1].model != alone[0].model
    batches = batches_of(configure, *phases)
    key = jax.random.key(0)
    params = jax.eval_shape(objective.init, key)
    for step, expected in ((0, alone[0]), (4, alone[1])):
        batch = batches[step]
        assert objective.of_batch(batch) == expected
        assert objective.weights(batch) == expected.weights(batch)
        assert objective.flops(batch) == expected.flops(batch)
        assert jax.eval_shape(expected.init, key) == params  # one tree of parameters
        sums = jax.eval_shape(objective.sums, params, batch, key)
        assert sums.keys() == {*objective.sum_names}


def batches_of(configure, *phases):
    """The batches of a run with the given phases."""
    seen = []

    def run(job, *_):
        seen.append(job.batches)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pretraining, "run", run)
        pretrain(configure(*phases), configure.folder, print)
    return seen[0]


@pytest.fixture(autouse=True)
def folder(configure, tmp_path):
    configure.folder = tmp_path / "batches"


def test_a_batch_without_masks_has_the_tokens_of_the_text(configure):
    masked = batches_of(configure, {"steps": 3})
    plain = batches_of(configure, CAUSAL)
    for step in range(3):
        expected = dict(masked[step])
        expected["input_ids"] = np.asarray(unmasked_ids(masked[step]))
        assert (expected["input_ids"] != masked[step]["input_ids"]).any()
        for name in ("mlm_positions", "mlm_ids", "mlm_weights"):
            del expected[name]
        assert plain[step].keys() == expected.keys()
        assert same(plain[step], expected)


def test_a_loaded_model_is_causal_as_the_phase_of_its_checkpoint(whole):
    workdir = whole[0]
    expected = {2: True, 3: True, 4: False, 7: False}
    for step, causal in expected.items():
        path = workdir / "checkpoints" / str(step)
        assert bert_jax.load(path).config.causal == causal, step
    assert not bert_jax.load(workdir).config.causal
    assert bert_jax.tokenizer(workdir / "checkpoints/3").vocab_size > 100


def test_a_left_to_right_checkpoint_is_exported_as_such(whole, tmp_path):
    model = bert_jax.load(whole[0] / "checkpoints/3")
    model.save(tmp_path / "exported")
    assert bert_jax.load(tmp_path / "exported").config.causal
    text = (tmp_path / "exported" / "config.json").read_text()
    assert '"BertLMHeadModel"' in text and '"is_decoder": true' in text
    # A later token changes nothing before it.
    outputs = model(["the sea", "the whale"]).last_hidden_state
    assert np.allclose(outputs[0, :2], outputs[1, :2], atol=1e-6)
    assert not np.allclose(outputs[0, 2], outputs[1, 2], atol=1e-3)


def test_a_study_has_the_scores_of_the_last_phase(configure, whole):
    results = study._pretrained(configure(CAUSAL, MASKED), whole[0])
    assert results["scores"].keys() == {"held-out mlm_accuracy"}
    assert results["flops"] == study.flops(configure(CAUSAL)) + study.flops(
        configure(MASKED)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"next_sentence": True}, "do not train NSP; set .*next_sentence=False"),
        ({"objective": "electra"}, r"causal=True need objective='bert_jax\.objectives"),
        ({"objective": "causal", "causal": True}, r"need .* and model\.causal=False"),
    ],
)
def test_other_objectives_have_no_causal_phases(configure, options, message):
    with pytest.raises(UserError, match=message) as error:
        pretraining_objective(configure(MASKED, CAUSAL, **options))
    assert "\n" not in str(error.value)


def test_an_attention_without_a_causal_form_is_refused_before_the_first_step(configure):
    config = configure(MASKED, CAUSAL, attention_dropout=0.0)
    compute = dataclasses.replace(config.compute, attention_impl="splash")
    config = dataclasses.replace(config, compute=compute)
    with pytest.raises(UserError, match=r"splash needs model\.causal=False"):
        pretraining_objective(config)
