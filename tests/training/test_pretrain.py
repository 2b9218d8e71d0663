"""The initial parameters of pretraining, and errors before its first step."""

import dataclasses
import functools
import json
import os
import re
import shutil
import sys
import threading
import types
from pathlib import Path

import jax
import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file, save_file

import bert_jax
from bert_jax.commands.config_file import parse
from bert_jax.data import examples
from bert_jax.data.checksums import check_now
from bert_jax.data.phases import Phase
from bert_jax.data.store import TokenStore, write_info
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.data.wordpiece import WordPieceTokenizer
from bert_jax.errors import DivergenceError, StalledError, UserError
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.interop.train_state import read_step
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import BertConfig
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.parallel.mesh import make_mesh
from bert_jax.runs import read_metrics
from bert_jax.training import from_python, pretrain_data, pretrain_evaluation
from bert_jax.training import pretrain as pretraining
from bert_jax.training.config import train_config, with_architecture
from bert_jax.training.pretrain import pretrain


@pytest.fixture(scope="module")
def configure(config_file):
    """A function of flags that returns the config of the small run with them."""

    def make(*flags):
        line = ["--config", str(config_file), *flags]
        return parse(line, "usage", train_config).config

    return make


@pytest.fixture(scope="module")
def one_step(configure):
    """A function of flags that returns a config of one step without evaluations."""

    def make(*flags):
        none = "--eval_every=0", "--prompts=()"
        config = configure("--phases[0].steps=1", *none, *flags)
        return dataclasses.replace(config, phases=config.phases[:1])

    return make


@pytest.fixture(scope="module")
def start(configure, small_store, tmp_path_factory):
    """A config, its tokenizer, and a checkpoint's folder and parameters."""
    config = configure("--model.num_layers=2")
    tokenizer = load_tokenizer(small_store[0])
    objective = MlmNsp(BertForPreTraining(config.model))
    params = jax.device_get(jax.jit(objective.init)(jax.random.key(1)))
    random = np.random.default_rng(2)  # new biases are zeros, which could be lost

    def moved(path, x):
        is_bias = path[-1].key in ("bias", "output_bias")
        return x + np.float32(random.normal(size=x.shape)) if is_bias else x

    params = jax.tree.map_with_path(moved, params)
    path = tmp_path_factory.mktemp("checkpoints") / "whole"
    save_huggingface(path, Checkpoint(config.model, params, tokenizer, "pretraining"))
    return dataclasses.replace(config, init_from=str(path)), tokenizer, path, params


@pytest.mark.parametrize("scan_layers", [False, True])
def test_every_parameter_comes_from_the_checkpoint(start, scan_layers):
    config, tokenizer, _, params = start
    compute = dataclasses.replace(config.compute, scan_layers=scan_layers)
    config = dataclasses.replace(config, compute=compute)
    initial = pretrain_data.initial_params(config, tokenizer, print)
    shapes = jax.eval_shape(
        MlmNsp(BertForPreTraining(config.model, compute)).init, jax.random.key(0)
    )
    assert jax.tree.map(np.shape, initial) == jax.tree.map(lambda x: x.shape, shapes)
    query = initial["bert"]["encoder"]
    query = (
        query["layers"]["attention"]["query"]["kernel"][1]
        if scan_layers
        else query["layer_1"]["attention"]["query"]["kernel"]
    )
    expected = params["bert"]["encoder"]["layer_1"]["attention"]["query"]["kernel"]
    assert np.array_equal(query, expected)
    assert np.array_equal(initial["nsp"]["kernel"], params["nsp"]["kernel"])


def test_other_sizes_and_other_vocabularies_are_refused(start, tmp_path):
    config, tokenizer, path, _ = start
    model = dataclasses.replace(config.model, num_heads=4)
    other = dataclasses.replace(config, model=model)
    with pytest.raises(UserError, match=r"model.num_heads=4, but .* has 10"):
        pretrain_data.initial_params(other, tokenizer, print)
    model = dataclasses.replace(config.model, activation="relu")
    other = dataclasses.replace(config, model=model)
    with pytest.raises(UserError, match=r"model.activation='relu', but .* has 'gelu'"):
        pretrain_data.initial_params(other, tokenizer, print)
    model = dataclasses.replace(
        model, activation="gelu_tanh"
    )  # the meaning of Google's "gelu"
    other = dataclasses.replace(config, model=model)
    assert "mlm" in pretrain_data.initial_params(other, tokenizer, print)
    folder = shutil.copytree(path, tmp_path / "relu")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"hidden_act": "relu"}))
    other = dataclasses.replace(other, init_from=str(folder))
    with pytest.raises(UserError, match=r"activation='gelu_tanh', but .* has 'relu'"):
        pretrain_data.initial_params(other, tokenizer, print)
    # The direction is free: a causal checkpoint may start masked LM, and conversely.
    other = dataclasses.replace(
        config, model=dataclasses.replace(config.model, causal=True)
    )
    assert "mlm" in pretrain_data.initial_params(other, tokenizer, print)
    tokens = tokenizer.tokens.copy()
    tokens[-1], tokens[-2] = tokens[-2], tokens[-1]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens) + "\n")
    swapped = load_tokenizer(tmp_path / "vocab.txt")
    with pytest.raises(UserError, match="vocabulary"):
        pretrain_data.initial_params(config, swapped, print)


def test_sizes_are_compared_before_the_text_is_prepared(start, tmp_path, monkeypatch):
    def prepared(*_):
        raise AssertionError("the text is prepared before the sizes are compared")

    monkeypatch.setattr(pretraining, "open_text", prepared)
    message = (
        r"model.hidden_size=80, but .* has \d+; leave out model.hidden_size, or set"
    )
    with pytest.raises(UserError, match=message):
        bert_jax.pretrain(
            text="notes.txt",
            init_from=start[2],
            model=dict(hidden_size=80),
            steps=2,
            workdir=tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()  # no empty folder


def test_rows_without_a_token_are_dropped(start, tmp_path):
    """transformers may pad a word table to a multiple of 64 rows."""
    config, tokenizer, path, params = start
    folder = shutil.copytree(path, tmp_path / "padded")
    tensors = load_file(folder / "model.safetensors")
    size = tokenizer.vocab_size + 64
    for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"):
        rows = tensors[name]
        padding = [(0, size - len(rows)), *[(0, 0)] * (rows.ndim - 1)]
        tensors[name] = np.pad(rows, padding, constant_values=7)
    save_file(tensors, folder / "model.safetensors")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"vocab_size": size}))
    initial = pretrain_data.initial_params(
        dataclasses.replace(config, init_from=str(folder)), tokenizer, print
    )
    word = initial["bert"]["embeddings"]["word"]["embedding"]
    assert np.array_equal(word, params["bert"]["embeddings"]["word"]["embedding"])
    assert np.array_equal(initial["mlm"]["output_bias"], params["mlm"]["output_bias"])


def test_a_prompt_may_have_the_length_of_the_last_phase(start):
    config, tokenizer, _, params = start
    first, last = (phase.sequence_length for phase in config.phases)
    prompt = "the [MASK] of the sea " * 6
    tokens = 2 + len(tokenizer.encode(prompt, allow_mask=True))
    assert first < tokens < last
    config = dataclasses.replace(config, prompts=(prompt,))
    objective = pretraining.pretraining_objective(config)
    lines = []
    run = types.SimpleNamespace(
        config=config,
        objective=objective,
        tokenizer=tokenizer,
        mesh=make_mesh(config.mesh),
        log=lines.append,
    )
    pretraining._Pretraining.fill_prompts(run, params)
    (line,) = lines
    assert line.count("%") == 6 * 3


@pytest.mark.parametrize("with_head", [True, False])
def test_new_words_start_as_the_mean_of_their_tokens(start, tmp_path, with_head):
    config, tokenizer, path, params = start
    if not with_head:
        path = tmp_path / "bare"
        bare = Checkpoint(config.model, {"bert": params["bert"]}, tokenizer, "none")
        save_huggingface(path, bare)
    words = ["harpooneers", "whaleships", "##oneers"]
    longer = WordPieceTokenizer([*tokenizer.tokens, *words], tokenizer.lower_case)
    model = dataclasses.replace(config.model, vocab_size=longer.vocab_size)
    lines = []
    config = dataclasses.replace(config, model=model, init_from=str(path))
    initial = pretrain_data.initial_params(config, longer, lines.append)
    assert lines[0] == "3 new words start as the mean of their former tokens"
    old, V = params["bert"]["embeddings"]["word"]["embedding"], tokenizer.vocab_size
    new = initial["bert"]["embeddings"]["word"]["embedding"]
    assert new.shape == (model.word_rows, model.hidden_size)
    assert np.array_equal(new[:V], old[:V])
    ids = [tokenizer.encode(word.removeprefix("##")) for word in words]
    assert all(len(old_ids) > 1 for old_ids in ids)
    for row, old_ids in zip(new[V : V + 3], ids, strict=True):
        assert np.array_equal(row, old[old_ids].mean(axis=0))
    assert not new[V + 3 :].any()
    if with_head:
        bias = initial["mlm"]["output_bias"]
        assert bias.shape == (V + 3,)
        assert bias[V] == params["mlm"]["output_bias"][ids[0]].mean()
    else:
        assert "mlm" not in initial
    # The old tokens in another order or with other rules are refused.
    for other in (
        WordPieceTokenizer(longer.tokens, False),
        longer.with_tokens([*longer.tokens[-3:], *tokenizer.tokens]),
        WordPieceTokenizer(longer.tokens, longer.lower_case, longest_word=100),
        WordPieceTokenizer(tokenizer.tokens, longer.lower_case, longest_word=100),
    ):
        with pytest.raises(
            UserError, match=r"prepare it with .* extension by bert_jax\.vocabulary"
        ):
            pretrain_data.initial_params(config, other, print)


def open_ports():
    """The ports on which this process listens."""
    connections = psutil.Process().net_connections(kind="inet")
    return {x.laddr.port for x in connections if x.status == psutil.CONN_LISTEN}


def test_a_missing_head_is_initialised_and_logged(start, one_step, tmp_path):
    _, tokenizer, _, params = start
    first = {"layer_0": params["bert"]["encoder"]["layer_0"]}
    bare = {"bert": params["bert"] | {"encoder": first}}
    bare = Checkpoint(one_step().model, bare, tokenizer, "none")
    save_huggingface(tmp_path / "bare", bare)
    config = dataclasses.replace(one_step(), init_from=str(tmp_path / "bare"))
    lines, before = [], open_ports()
    pretrain(config, tmp_path / "run", lines.append)
    assert "initialised at random: mlm, nsp" in lines
    assert open_ports() <= before  # a single process opens no port
    # A resumed run does not read the initial checkpoint again.
    shutil.rmtree(tmp_path / "bare")
    phases = (dataclasses.replace(config.phases[0], steps=2),)
    resumed = []
    config = dataclasses.replace(config, phases=phases)
    pretrain(config, tmp_path / "run", resumed.append, change_settings=True)
    assert "resuming at step 1" in resumed
    with pytest.raises(UserError, match="bare does not exist"):
        pretrain(config, tmp_path / "other", resumed.append)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("init_from", "nowhere does not exist"),
        ("--model.vocab_size=77", "vocab_size=77, expected"),
        ("--accumulation=3", "=8 is not a multiple of 3, "),
    ],
)
def test_a_workdir_can_be_reused_after_a_failure_before_the_first_step(
    configure, tmp_path, flag, message
):
    """The corrected command is not refused as another run."""
    if flag == "init_from":
        config = dataclasses.replace(configure(), init_from="nowhere")
    else:
        config = configure(flag)
    with pytest.raises(UserError, match=message):
        pretrain(config, tmp_path, lambda line: None)
    assert not (tmp_path / "config.json").exists()


def test_a_workdir_without_a_checkpoint_can_be_reused(one_step, tmp_path, monkeypatch):
    """Even if a run failed just before its first step."""
    run = functools.partial(pretrain, workdir=tmp_path, log=lambda line: None)

    def fail(*args, **kwargs):
        with pytest.raises(UserError, match="is in use by process"):
            run(one_step())
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr("bert_jax.training.run.drawn_ahead", fail)
        with pytest.raises(RuntimeError, match="no memory"):
            run(one_step())
    assert (tmp_path / "config.json").exists()
    run(one_step("--seed=5"))
    with pytest.raises(
        UserError, match=r"contains a run with other settings \(seed: 5 -> 6"
    ):
        run(one_step("--seed=6"))


def test_the_folder_of_a_checkpoint_is_refused_as_a_workdir(configure, tmp_path):
    """The config.json and the vocabulary of the checkpoint would be replaced."""
    files = {
        "config.json": '{"model_type": "bert", "hidden_size": 32}',
        "vocab.txt": "[PAD]\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=r"config\.json is the config of a checkpoint"):
        pretrain(configure(), tmp_path, lambda line: None)
    assert {name: (tmp_path / name).read_text() for name in files} == files


def test_an_evaluation_whose_text_cannot_be_read_ends_the_run(
    configure, tmp_path, monkeypatch
):
    go_on = threading.Event()

    class Hanging(list):
        def __getitem__(self, step):
            go_on.wait()

    monkeypatch.setattr(pretrain_evaluation, "eval_batches", lambda *args: Hanging([0]))
    config = configure("--eval_every=1", "--data_timeout=1")
    with pytest.raises(StalledError, match="no batch for 1 s"):
        pretrain(config, tmp_path, log=lambda line: None)
    go_on.set()


def test_evaluations_of_a_phase_share_a_plan(
    one_step, small_store, random_params, monkeypatch
):
    """Each plan reads the lengths of all held-out documents."""
    config, place = one_step("--eval_batches=3"), small_store[0]
    mesh = make_mesh(config.mesh, jax.devices()[:1])
    text = [TokenStore(place)], load_tokenizer(place)
    run = pretraining._Pretraining(config, mesh, *text, print)
    params = random_params(jax.eval_shape(run.objective.init, jax.random.key(0)))
    phase = dataclasses.replace(config.phases[0], steps=3)
    first = run.evaluations.metrics(phase, params)
    monkeypatch.setattr(examples, "plan_epoch", lambda *_: pytest.fail("a new plan"))
    assert run.evaluations.metrics(phase, params) == first
    with pytest.raises(pytest.fail.Exception, match="a new plan"):
        run.evaluations.metrics(dataclasses.replace(phase, batch_size=4), params)


def test_an_evaluation_needs_the_memory_of_a_microbatch(one_step, small_store):
    """The sums are the same, and a forward pass gets a share of the rows."""
    found, temporaries = [], []
    for flags in ([], ["--accumulation=4"]):
        config = one_step("--eval_batches=2", "--phases[0].batch_size=64", *flags)
        mesh = make_mesh(config.mesh, jax.devices()[:1])
        text = [TokenStore(small_store[0])], load_tokenizer(small_store[0])
        run = pretraining._Pretraining(config, mesh, *text, print)
        params = jax.jit(run.objective.init)(jax.random.key(0))
        phase = dataclasses.replace(config.phases[0], steps=2)
        found.append(run.evaluations.metrics(phase, params))
        batch = run.evaluations._batches_of[phase][0]
        compiled = jax.jit(run.evaluations._batch_sums).lower(params, batch).compile()
        temporaries.append(compiled.memory_analysis().temp_size_in_bytes)
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert temporaries[1] < 0.5 * temporaries[0]


def test_an_evaluation_whose_loss_is_not_finite_ends_the_run(
    one_step, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        pretrain_evaluation, "eval_metrics", lambda *_: {"loss": np.nan}
    )
    message = "the loss of eval after step 0 is nan; no checkpoint was saved: lower"
    with pytest.raises(DivergenceError, match=message):
        pretrain(one_step("--eval_every=5"), tmp_path, log=lambda line: None)
    message = "the loss of eval_average after step 0 is nan"
    average = "--average=0.5", "--eval_average=True"
    with pytest.raises(DivergenceError, match=message):
        pretrain(one_step("--eval_every=5", *average), tmp_path, log=lambda line: None)


@pytest.mark.parametrize(
    "name, message",
    [
        ("sides.py", r"No module .*bert_jax\.objectives\.mlm_nsp, \.causal"),
        ("bert_jax.objectives.lost", "No module named 'bert_jax.objectives.lost'"),
        ("", "is not the name of a module; expected"),
        (".causal", "is not the name of a module; expected"),
        ("bert_jax.objectives.objective", "has no function pretraining; expected"),
    ],
)
def test_a_wrong_objective_is_found_before_the_text_is_prepared(
    name, message, configure, tmp_path
):
    config = dataclasses.replace(configure(), objective=name)
    with pytest.raises(UserError, match=f"^objective='{re.escape(name)}'.*{message}"):
        pretrain(config, tmp_path / "run", log=lambda line: None)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "code, message",
    [
        ("import lost_package", "imports lost_package: No module .*; install it or"),
        ("pretraining = 3", "has no function pretraining; expected"),
        (
            "def pretraining(model, compute): pass",
            r"other arguments \(too many .*\); expected pretraining\(model, compute, ex",
        ),
        (
            "def pretraining(model, compute, examples): pass",
            "returned NoneType without init; expected a PretrainingObjective",
        ),
    ],
)
def test_a_module_without_an_objective_is_found_before_the_text_is_prepared(
    code, message, configure, monkeypatch, tmp_path
):
    (tmp_path / "wrong_objective.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wrong_objective", raising=False)
    config = dataclasses.replace(configure(), objective="wrong_objective")
    with pytest.raises(UserError, match=f"^objective='wrong_objective'.*{message}"):
        pretrain(config, tmp_path / "run", log=lambda line: None)
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_a_config_can_name_a_users_objective(configure, monkeypatch, tmp_path):
    """The objective needs one file (examples/sides.py) and one setting."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    config, lines = configure("--objective=sides", "--prompts=()"), []
    phase = dataclasses.replace(config.phases[0], steps=14)
    config = dataclasses.replace(config, phases=(phase,))
    metrics = pretrain(config, tmp_path, lines.append)
    _, params = read_step(tmp_path / "checkpoints")
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert f" {count:,} parameters" in lines[0] and "mlm" not in params
    assert set(metrics) == {"loss", "side_loss", "side_accuracy"}
    assert metrics["side_accuracy"] > 0.6  # half of the tokens are of each text


@pytest.mark.long
@pytest.mark.parametrize("implementation", ["xla", "splash"])
def test_every_attention_trains_evaluates_and_predicts(
    configure, tmp_path, implementation
):
    """Prompts, texts and fine-tuning rows are shorter than the 128 tokens of a row."""
    config = configure(
        f"--compute.attention_impl={implementation}",
        "--model.attention_dropout=0",
        "--model.max_positions=128",
        "--phases[0].sequence_length=128",
        *(f"--phases[{phase}].steps=1" for phase in (0, 1)),
        *("--eval_every=1", "--eval_batches=1"),
    )
    pretrain(config, tmp_path / "run", log=lambda line: None)
    (answers,) = bert_jax.load(tmp_path / "run").fill_mask("the [MASK] of the sea")
    assert len(answers) == 5
    rows = [("the sea", "a"), ("the whale of the sea", "b")] * 4
    model = bert_jax.finetune(
        bert_jax.tasks.classification(max_length=24),
        init_from=tmp_path / "run",
        train=rows,
        dev=rows,
        workdir=tmp_path / "tuned",
        compute={"attention_impl": implementation},
        model={"attention_dropout": 0.0},
        epochs=1,
        log=lambda line: None,
    )
    assert 0 <= model.evaluate(rows)["accuracy"] <= 100
    assert len(model.predict(["the whale"])) == 1


def test_a_finished_run_continues_with_more_steps_on_request(one_phase_of, tmp_path):
    def config(*flags):
        line = ["--config", str(one_phase_of(0)), "--prompts=()", *flags]
        return parse(line, "usage", train_config).config

    pretrain(config(), tmp_path, print)
    before = (tmp_path / "config.json").read_text()
    more, lines = "--phases[0].steps=12", []
    with pytest.raises(
        UserError, match=r"other settings \(phases\[0\].steps: 9 -> 12\)"
    ):
        pretrain(config(more), tmp_path, print)
    assert (tmp_path / "config.json").read_text() == before
    pretrain(config(more), tmp_path, lines.append, change_settings=True)
    assert (
        "settings change after step 9: phases[0].steps: 9 -> 12; the learning rate "
        "follows the schedule of 12 steps"
    ) in lines
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["phases"][0]["steps"] == 12
    assert written["changes"] == [
        {"step": 9, "settings": {"phases[0].steps": {"from": 9, "to": 12}}}
    ]
    lines.clear()
    pretrain(config(more), tmp_path, lines.append)
    assert "already finished (12 steps)" in lines
    rate, written = "--optimizer.learning_rate=0.5", tmp_path / "config.json"
    before = written.read_text()
    pretrain(config(more, rate), tmp_path, lines.append, change_settings=True)
    assert lines[-1] == "already finished (12 steps)"
    assert written.read_text() == before
    written.unlink()
    with pytest.raises(
        UserError, match=r"config\.json does not exist; .* another work"
    ):
        pretrain(config(more), tmp_path, lines.append)


def test_a_decay_starts_from_a_checkpoint_of_the_stable_part(one_phase_of, tmp_path):
    """In its own workdir, and equal bit for bit to a run that decays there."""

    def config(decay_steps, *flags):
        line = ["--config", str(one_phase_of(0)), "--objective=tests.settings_probe"]
        line += ["--prompts=()", "--average=0.7", "--eval_average=True"]
        line += ["--optimizer.schedule=wsd_linear"]
        line += ["--phases[0].steps=6", "--eval_every=6", "--checkpoint_every=3"]
        line += [f"--optimizer.decay_steps={decay_steps}", "--optimizer.warmup_steps=2"]
        return parse([*line, *flags], "usage", train_config).config

    whole, stable, decayed = (
        tmp_path / name for name in ("whole", "stable", "decayed")
    )
    pretrain(config(3), whole, print)
    pretrain(config(0), stable, print)
    start, lines = f"--init_from={stable}/checkpoints/3", []
    pretrain(config(3, start, "--init_state=True"), decayed, lines.append)
    assert "resuming at step 3" in lines
    (change,) = json.loads((decayed / "config.json").read_text())["changes"]
    assert change["step"] == 3
    assert change["settings"]["optimizer.decay_steps"] == {"from": 0, "to": 3}
    for average in ("", "ema"):
        params, expected = (
            read_step(run / "checkpoints", average=average)[1]
            for run in (decayed, whole)
        )
        jax.tree.map(np.testing.assert_array_equal, params, expected)
    # The evaluations of the average and of the parameters. The run returns the second.
    metrics = read_metrics(decayed / "metrics.jsonl")
    losses = {x["split"]: x["loss"] for x in metrics if x["step"] == 6}
    assert losses["eval_average"] != losses["eval"]
    shutil.rmtree(stable)  # a resumed run does not need it
    pretrain(config(3, start, "--init_state=True"), decayed, lines.append)
    assert lines[-1] == "already finished (6 steps)"


def test_a_decay_may_start_and_stop_the_average_and_the_z_loss(
    one_phase_of, monkeypatch, tmp_path
):
    """With init_state in a new workdir as with change_settings, bit for bit."""
    monkeypatch.setattr(pretraining, "draw_run", lambda *arguments: None)

    def config(steps, *flags):
        line = ["--config", str(one_phase_of(0)), "--prompts=()", "--eval_every=0"]
        line += [f"--phases[0].steps={steps}", "--log_every=2"]
        line += ["--checkpoint_every=1", "--keep_checkpoints=4"]
        return parse([*line, *flags], "usage", train_config).config

    used = "--average=0.7", "--z_loss=0.001"
    names = "average, mlm_z_loss, mlm_z_weight"
    ends = {}
    for before, after, event in (
        (used, (), "left out"),
        ((), used, "new after this checkpoint"),
    ):
        stable, decayed = tmp_path / f"{event} stable", tmp_path / event
        pretrain(config(3, *before), stable, print)
        start, lines = f"--init_from={stable}", []
        decay = config(6, *after, start, "--init_state=True")
        pretrain(decay, decayed, lines.append)
        assert f"{stable}/checkpoints/3: {event}: {names}" in lines
        lines.clear()
        pretrain(config(6, *after), stable, lines.append, change_settings=True)
        assert f"{stable}/checkpoints/3: {event}: {names}" in lines
        ends[event] = [
            read_step(run / "checkpoints", average="ema" if after else "")[1]
            for run in (decayed, stable)
        ]
        jax.tree.map(np.testing.assert_array_equal, *ends[event])
    with pytest.raises(UserError, match=r"after step 3, but .* step 3; add steps, bec"):
        start = f"--init_from={stable}/checkpoints/3"
        pretrain(config(3, start, "--init_state=True"), tmp_path / "short", print)
    with pytest.raises(UserError, match="has no moving average"):
        read_step(tmp_path / "left out/checkpoints", average="ema")
    run = tmp_path / "new after this checkpoint"
    _, average = read_step(tmp_path / "new after this checkpoint stable/checkpoints", 3)
    for step in (4, 5, 6):
        _, params = read_step(run / "checkpoints", step)
        average = jax.tree.map(lambda a, x: 0.7 * a + 0.3 * x, average, params)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7),
        ends["new after this checkpoint"][0],
        average,
    )
    # The report of steps 3 and 4 has the mean z-loss of step 4, the only one that has it.
    lines = read_metrics(run / "metrics.jsonl")
    first, second = (x["mlm_z_loss"] for x in lines if x["step"] in (4, 6))
    assert 0.8 < first / second < 1.25


@pytest.mark.parametrize(("goes_on", "rates"), [(True, (0.3, 0)), (False, (0.1, 0.1))])
def test_only_a_run_that_goes_on_keeps_its_dropout(goes_on, rates, tmp_path):
    tokens = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]", "a", "b", "c"]
    sizes = BertConfig(
        *(len(tokens), 8, 1, 2, 8, 16), hidden_dropout=0.3, attention_dropout=0.0
    )
    run = tmp_path / "stable"
    (run / "checkpoints" / "4").mkdir(parents=True)
    (run / "checkpoints" / "4" / "file").touch()
    WordPieceTokenizer(tokens).save(run)
    settings = {
        "model": dataclasses.asdict(sizes),
        "phases": [{"steps": 6}],
        "optimizer": {"learning_rate": 1e-3},
        "data": {"path": "text"},
    }
    (run / "config.json").write_text(json.dumps(settings))
    del settings["model"]
    start = {"init_from": f"{run}/checkpoints/4", "init_state": goes_on}
    model = train_config(settings | start).model
    assert (model.hidden_dropout, model.attention_dropout) == rates
    given = {"model": {"hidden_dropout": 0.2}}
    assert train_config(settings | start | given).model.hidden_dropout == 0.2


def test_only_a_run_gives_its_state(configure, start, tmp_path):
    _, _, path, _ = start
    with pytest.raises(UserError, match="init_state=True needs init_from"):
        configure("--init_state=True")
    with pytest.raises(UserError, match="eval_average=True needs average"):
        configure("--eval_average=True")
    config = configure(
        "--model.num_layers=2", f"--init_from={path}", "--init_state=True"
    )
    with pytest.raises(
        UserError, match=r"whole has no checkpoints; expected the workd"
    ):
        pretrain(config, tmp_path, print)
    config = configure("--z_loss=1e-4", "--objective=bert_jax.objectives.electra")
    with pytest.raises(
        UserError, match=r"z_loss needs pretraining\(model, compute, ex"
    ):
        pretrain(config, tmp_path, print)


@pytest.fixture
def copied(one_step, small_store, tmp_path):
    """A copy of the store, and a config of one step on it."""
    store = shutil.copytree(small_store[0], tmp_path / "store")
    config = one_step()
    data = dataclasses.replace(config.data, path=str(store))
    return store, dataclasses.replace(config, data=data)


def change_ids(store, every):
    (shard,) = store.glob("shard-*")
    ids = np.fromfile(shard, "<u2")
    ids[::every] = 7
    ids.tofile(shard)


def test_changed_token_ids_end_the_run_before_its_first_save(copied, tmp_path):
    store, config = copied
    change_ids(store, every=3)
    with pytest.raises(
        UserError, match=r"store/shard-.*\.tokens is damaged .*checksum"
    ):
        pretrain(config, tmp_path / "run", lambda line: None)
    assert list((tmp_path / "run/checkpoints").iterdir()) == []
    # A batch with an id that is not in the vocabulary also names the file.
    (shard,) = store.glob("shard-*")
    ids = np.fromfile(shard, "<u2")
    np.full_like(ids, 60_000).tofile(shard)
    with pytest.raises(UserError, match=r"\.tokens is damaged \(a token .* id 60,000"):
        pretrain(config, tmp_path / "run", lambda line: None)


def test_the_content_of_the_text_belongs_to_a_run(copied, tmp_path):
    """A run of 0.2.0, which has no fingerprint of it, is accepted."""
    store, config = copied
    pretrain(config, tmp_path / "run", lambda line: None)
    written = json.loads((tmp_path / "run/config.json").read_text())
    assert written["text"]["content"] == TokenStore(store).info.fingerprint()
    change_ids(store, every=5)
    info = dataclasses.replace(TokenStore(store).info, checksums={})
    write_info(store, info)
    lines = []
    pretrain(config, tmp_path / "run", lines.append)
    (line,) = [line for line in lines if line.startswith("warning")]
    assert line.endswith(f"bert_jax inspect {store} --checksums adds them")
    check_now(TokenStore(store))
    with pytest.raises(
        UserError, match=r"other settings \(text.content: '\w+' -> '\w+'\)"
    ):
        pretrain(config, tmp_path / "run", print)
    del written["text"]["content"]
    (tmp_path / "run/config.json").write_text(json.dumps(written))
    lines.clear()
    pretrain(config, tmp_path / "run", lines.append)
    assert "already finished (1 step)" in lines
    assert not any(line.startswith("warning") for line in lines)


def test_processes_start_to_check_the_text_at_different_places(
    start, tmp_path, monkeypatch
):
    def check(stores, share):
        raise KeyboardInterrupt(share)

    places = {"process_index": lambda: 1, "process_count": lambda: 4}
    second = types.SimpleNamespace(**vars(jax) | places)
    monkeypatch.setattr(pretrain_data, "jax", second)
    monkeypatch.setattr(pretrain_data, "Check", check)
    with pytest.raises(KeyboardInterrupt, match=r"^0\.25$"):
        pretrain(start[0], tmp_path / "run", [].append)


@pytest.mark.parametrize("finder", [0, 1])
def test_damage_that_one_process_finds_ends_all(monkeypatch, finder):
    """The processes exchange what they know until all have read all files."""
    error, calls = UserError("a.tokens is damaged"), []

    class Checked:
        def __init__(self, process):
            self.process = process

        def finished(self, wait=False):
            calls.append(wait)
            if len(calls) == 4 and self.process == finder:
                raise error
            return len(calls) > 1

    lines = []
    looks = pretrain_data._in_all_processes(Checked(0), lines.append)
    states = iter([[0, 0], [1, 0], [1, 2] if finder else [2, 1]])
    sent = []

    def from_all(value):
        sent.append(value)
        return np.array(next(states))

    monkeypatch.setattr(pretrain_data, "from_all", from_all)
    assert not looks(wait=False)
    assert not looks(wait=False)
    message = "process 1 found a damaged" if finder else "a.tokens is damaged"
    with pytest.raises(UserError, match=message):
        looks(wait=True)
    assert sent == [0, 1, 1 if finder else 2]
    assert calls == [False, False, False, True]
    assert lines == []
    # Nothing is exchanged after all have read all files.
    calls.clear()
    looks, states = (
        pretrain_data._in_all_processes(Checked(2), lines.append),
        iter([[1, 1]]),
    )
    assert looks(wait=True)
    assert not looks(wait=True)
    assert len(sent) == 4
    assert lines == ["the first save waits until the text is checked"]


def test_a_run_killed_before_its_picture_draws_it_at_the_next_start(
    one_step, tmp_path, monkeypatch
):
    picture, draws = tmp_path / "curves.png", []

    def draw(folder, log):
        draws.append(1)
        picture.write_text("curves")

    monkeypatch.setattr(pretraining, "draw_run", draw)
    pretrain(one_step(), tmp_path, lambda line: None)
    picture.unlink()
    lines = []
    for _ in range(2):
        pretrain(one_step(), tmp_path, lines.append)
    assert lines.count("already finished (1 step)") == 2
    assert picture.exists() and len(draws) == 2
    # A picture of the same run with fewer steps is older than the metrics.
    os.utime(picture, (1, 1))
    pretrain(one_step(), tmp_path, lambda line: None)
    assert len(draws) == 3


def test_a_run_whose_last_checkpoint_is_damaged_is_not_finished(
    one_phase_of, tmp_path, monkeypatch
):
    """The run repeats the last steps, and shows curves and predicted tokens."""
    flags = ["--prompts=('a [MASK] of .',)", "--checkpoint_every=4"]
    line = ["--config", str(one_phase_of(0)), *flags]
    config = parse(line, "usage", train_config).config
    pretrain(config, tmp_path, print)
    (tmp_path / "curves.png").write_text("old")
    newest = tmp_path / "checkpoints" / str(config.total_steps)
    data = max(newest.rglob("*"), key=lambda path: path.stat().st_size)
    data.write_bytes(bytes(data.stat().st_size))
    plots, lines = [], []
    monkeypatch.setattr(pretraining, "draw_run", lambda *args: plots.append(args))
    pretrain(config, tmp_path, lines.append)
    assert "resuming at step 8" in lines
    assert not any("already finished" in line for line in lines)
    assert any("[MASK] of .  ->  " in line for line in lines)
    assert len(plots) == 1


def test_a_run_needs_only_text_and_a_checkpoint(start, small_store, tmp_path, capsys):
    """The checkpoint gives sizes and vocabulary, which are kept if it is deleted."""
    config, tokenizer, path, _ = start
    text = small_store[0].parent / "text.txt"
    few = dict(steps=2, batch_size=8, eval_batches=1, holdout=0.2)
    few["data"] = {"holdout": few.pop("holdout"), "threads": 1}
    few["model"] = {"hidden_dropout": 0.0}
    checkpoint = shutil.copytree(path, tmp_path / "checkpoint")
    workdir = tmp_path / "run"
    arguments = dict(text=text, init_from=checkpoint, workdir=workdir, verbose=0, **few)
    model = bert_jax.pretrain(**arguments)
    written = json.loads((workdir / "config.json").read_text())
    assert written["data"]["corpus"] == [str(text)]
    assert model.tokenizer.fingerprint() == tokenizer.fingerprint()
    # attention_dropout has its default, not the checkpoint's value.
    rates = {"hidden_dropout": 0.0, "attention_dropout": 0.1}
    sizes = dataclasses.replace(config.model, **rates)
    assert model.config == BertConfig(**written["model"]) == sizes
    # max_predictions stays 0, which means that it follows from the mask rate.
    phase = {"steps": 2, "batch_size": 8, "sequence_length": 64}
    assert written["phases"] == [dataclasses.asdict(Phase(**phase))]
    rates = {name: written["optimizer"][name] for name in ("learning_rate", "warmup")}
    assert rates == {"learning_rate": 2e-5, "warmup": 0.1}
    # The same run with explicit sizes and prepared text.
    del written["text"]
    prepared = written["data"] | {"corpus": [], "path": str(small_store[0])}
    named = train_config(written | {"data": prepared})
    metrics = pretrain(named, tmp_path / "named", lambda line: None)
    assert model.scores == metrics
    for name in ("bert", "mlm", "nsp"):
        expected = read_step(tmp_path / "named/checkpoints")[1][name]
        jax.tree.map(np.testing.assert_array_equal, model.params[name], expected)
    assert capsys.readouterr() == ("", "")
    # A setting that only the run has is a change, and is not taken over without a message.
    (tmp_path / "mean").mkdir()
    model_of_run = written["model"] | {"pooling": "mean"}
    run = written | {"init_from": str(checkpoint), "model": model_of_run}
    (tmp_path / "mean" / "config.json").write_text(json.dumps(run))
    few = {"phases": (), "optimizer": {}, "init_from": str(checkpoint)}
    assert with_architecture(few, tmp_path / "mean")["model"]["pooling"] == "token"
    # A model in memory is copied into the workdir.
    arguments_of_model = arguments | {
        "init_from": bert_jax.load(checkpoint),
        "workdir": tmp_path / "memory",
    }
    same = bert_jax.pretrain(**arguments_of_model)
    assert same.scores == model.scores
    jax.tree.map(np.testing.assert_array_equal, same.params, model.params)
    shutil.rmtree(checkpoint)
    assert with_architecture(few, tmp_path / "mean")["model"]["pooling"] == "mean"
    lines = []
    again = bert_jax.pretrain(**arguments | {"verbose": 1}, log=lines.append)
    assert again.scores == model.scores and "mlm accuracy" in repr(again)
    assert lines[-2] == "already finished (2 steps)"
    assert lines[-1].startswith("next: model.fill_mask('The [MASK] is here.'), or ")
    with pytest.raises(UserError, match=r"checkpoint does not exist; expected"):
        bert_jax.pretrain(**arguments | {"workdir": tmp_path / "other"})


def test_several_prepared_texts_are_refused_with_the_settings_of_a_mixture(small_store):
    store = small_store[0]
    message = rf"^text has several items, and {store} is prepared; data=dict\(mixture="
    for text in ([store, store.parent / "text.txt"], [store, store]):
        with pytest.raises(UserError, match=message):
            bert_jax.pretrain(text=text, steps=1)


def families_of(pairs):
    """Options of models that are pretrained with pairs, or without."""
    if pairs:
        return {"bert": {}, "megatron-bert": {"pre_norm": True}}
    return {
        "roberta": {"position_offset": 2, "type_vocab_size": 1},
        "xlm-roberta": {"position_offset": 2},  # with two types, which it does not use
        "distilbert": {"type_vocab_size": 0, "pooler": "relu"},
        "electra": {"pooler": "gelu"},
        "bert": {"type_vocab_size": 1},
    }


@pytest.mark.parametrize("pairs", [True, False])
def test_the_checkpoint_decides_whether_a_run_has_pairs(pairs, tmp_path):
    tokens = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]", "a", "b", "c"]
    tokenizer = WordPieceTokenizer(tokens)
    sizes = BertConfig(len(tokens), 8, 1, 2, 8, 16)
    for model_type, options in families_of(pairs).items():
        model = dataclasses.replace(sizes, model_type=model_type, **options)
        init = MlmNsp(BertForPreTraining(model)).init
        shapes = jax.eval_shape(init, jax.random.key(0))
        bert = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes["bert"])
        del bert["pooler"]
        folder = tmp_path / model_type
        save_huggingface(folder, Checkpoint(model, {"bert": bert}, tokenizer, "none"))
        of_run = {
            "init_from": str(folder),
            "phases": ({"steps": 1, "batch_size": 8},),
            "optimizer": {"learning_rate": 1e-3},
            "data": {"corpus": (str(tmp_path / "text"),)},
        }
        config = train_config(of_run)
        assert config.model.model_type == model_type
        assert config.data.examples.next_sentence == pairs
        # Requested settings are kept, or refused before any text is read.
        for asked in ("next_sentence", "sentence_order"):
            examples = {"examples": {asked: True}}
            given = of_run | {"data": of_run["data"] | examples}
            if model.type_vocab_size > 1:
                assert train_config(given).data.examples.next_sentence
                continue
            with pytest.raises(
                UserError, match=r"model.type_vocab_size=\d must be 2 f"
            ):
                train_config(given)
        # A resumed run has the values of the run if the checkpoint was deleted.
        workdir = tmp_path / f"{model_type}_run"
        workdir.mkdir()
        written = json.loads(json.dumps(dataclasses.asdict(config)))
        (workdir / "config.json").write_text(json.dumps(written))
        shutil.rmtree(folder)
        assert train_config(of_run, workdir) == config


def test_a_wrong_model_type_is_refused_at_the_start():
    sizes = dict(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32)
    settings = {
        "model": sizes | {"vocab_size": 50, "model_type": "robberta"},
        "data": {"path": "text"},
        "phases": ({"steps": 1, "batch_size": 8},),
        "optimizer": {"learning_rate": 1e-3},
    }
    with pytest.raises(
        UserError, match=r"model\.model_type=.robberta., expected one of be"
    ):
        train_config(settings)


def test_a_small_text_has_a_small_vocabulary(tmp_path):
    """The model has the number of tokens of the trained vocabulary."""
    text = tmp_path / "notes.txt"
    text.write_text("The sea was calm.\nThe whale slept.\n\n" * 9)
    sizes = dict(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32)
    settings = {"model": sizes, "data": {"threads": 1}, "eval_every": 0}
    settings["prompts"] = ["the sea was [MASK].", "no blank"]
    lines = []
    model = bert_jax.pretrain(
        settings, tmp_path / "run", text=[text], steps=1, log=lines.append,
        batch_size=8, sequence_length=16,
    )  # fmt: skip
    assert model.config.vocab_size == model.tokenizer.vocab_size < 2000
    assert f"a vocabulary of only {model.config.vocab_size:,} tokens (" in lines[2]
    assert model.scores == {}
    assert any(line.startswith("prompts: row 1: no [MASK] in") for line in lines)
    written = json.loads((tmp_path / "run/config.json").read_text())["optimizer"]
    assert (written["learning_rate"], written["warmup"]) == (1e-4, 0.1)


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            dict(steps=2),
            r"^missing: model\.hidden_size, model\.num_layers, .*init_from",
        ),
        # The unknown name is the cause of the missing sizes.
        (
            dict(steps=2, model=dict(hidden=32)),
            r"^model\.hidden is not a setting; did you mean model\.hidden_size\?",
        ),
        (dict(phases=[]), "steps is missing; give the number of steps"),
        (dict(phases=[], batch_size=8), "steps is missing; give the number of steps"),
        (dict(stepz=3), r"^stepz is not an argument of pretrain; did you mean steps\?"),
        (
            dict(mask_rate=0.3),
            r"^mask_rate is not .*: data=dict\(examples=dict\(mask_rate=\.\.\.\)\)",
        ),
        (dict(config="notes.txt"), "^config='notes.txt', .*; pass files as text="),
        (dict(lr=1), "did you mean learning_rate"),
    ],
)
def test_the_error_names_missing_settings_of_pretraining(
    settings, message, start, tmp_path
):
    if "phases" in settings:
        settings = settings | {"init_from": start[2]}
    with pytest.raises(UserError, match=message):
        bert_jax.pretrain(text="notes.txt", workdir=tmp_path, **settings)


def test_a_missing_tracker_is_an_error_before_the_text_is_prepared(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "trackio", None)
    (tmp_path / "notes.txt").write_text("One sentence.\nAnother sentence.\n")
    sizes = dict(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32)
    settings = dict(model=sizes, steps=2, tracker="trackio")
    with pytest.raises(UserError, match="tracker='trackio' needs"):
        bert_jax.pretrain(
            text=tmp_path / "notes.txt", workdir=tmp_path / "run", **settings
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("length", "rate", "most"),
    [(128, 0.15, 20), (512, 0.15, 77), (64, 0.4, 26), (100, 0.15, 15), (5, 0.9, 2)],
)
def test_the_number_of_masked_tokens_follows_from_the_length(
    configure, length, rate, most
):
    """The first two cases are the original's."""
    flags = f"--data.examples.mask_rate={rate}", "--model.max_positions=512"
    config = dataclasses.replace(configure(*flags), phases=(Phase(1, 8, length),))
    (phase,) = config.phases
    assert phase == Phase(1, 8, length)
    assert phase.places(config.data.examples.mask_rate) == most


def test_a_phase_without_length_has_128_tokens_or_all_positions(configure):
    config = configure("--data.examples.mask_rate=0.15")
    for positions, length, most in ((512, 128, 20), (40, 40, 6)):
        model = dataclasses.replace(config.model, max_positions=positions)
        config = dataclasses.replace(config, model=model, phases=(Phase(2),))
        (phase,) = config.phases
        assert phase == Phase(2, 32, length)
        assert phase.places(0.15) == most
    with pytest.raises(UserError, match=r"phases\[0\]\.sequence_length=4, .* least 5"):
        dataclasses.replace(config, phases=(Phase(2, 32, 4),))


def test_missing_arguments_come_from_the_first_phase_of_the_config():
    first = dict(steps=9, batch_size=6, sequence_length=64, max_predictions=7)
    phases = [first, first | {"steps": 2}]
    changed = from_python._only_phase({"steps": 3}, phases)
    assert changed == first | {"steps": 3}
    changed = from_python._only_phase({"sequence_length": 128}, phases)
    assert changed == dict(steps=9, batch_size=6, sequence_length=128)
    with pytest.raises(UserError, match=r"phases\[0\]=3, expected a group"):
        from_python._only_phase({"steps": 3}, [3])
