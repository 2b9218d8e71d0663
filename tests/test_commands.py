"""Every command on a checkpoint of every objective: an answer, or one line."""

import importlib
import json
import shutil
from pathlib import Path

import pytest

from bert_jax import cli
from bert_jax.__main__ import commands
from bert_jax.errors import UserError

FOLDER = Path(__file__).parent / "golden/v0_1_0"
PRETRAINED = ("mlm_nsp", "causal", "two_way", "electra")
FINE_TUNED = (
    *("bilstm", "causal_classification", "choices", "classification"),
    *("electra_classification", "features", "multi_label", "pairs", "regression"),
    *("sentence_vectors", "squad", "tagging", "two_way_classification"),
)
OBJECTIVES = (*PRETRAINED, "classification", "two_way_classification")

TUNED = ("classification", "two_way_classification")
# Of each command its arguments, and the refusals of objectives that it cannot answer.
TEXT = ("--checkpoint", "{model}", "--text", "the [MASK] is old")
NO_HEAD = {"electra": "is an encoder without a head that predicts"}
NO_TASK = dict.fromkeys(PRETRAINED, "a pretrained checkpoint has no task to be scored")
NO_BLANKS = dict.fromkeys(TUNED, "expected one for fill_mask")
NO_MLM = dict.fromkeys(("electra", *TUNED), "has no MLM head")
NO_NSP = dict.fromkeys(("causal", "electra", *TUNED), "has no NSP head")
LSTM = "transformers has no BERT with LSTMs"
ON_MODELS = {
    "convert": (
        ("--input", "{model}", "--output", "{tmp}/converted"),
        dict.fromkeys(("two_way", "two_way_classification"), LSTM),
    ),
    "convert ": (
        ("--input", "{model}", "--output", "{tmp}/converted", "--to", "bert_jax"),
        {},
    ),
    "embed": (
        ("--checkpoint", "{model}", "--input", "{tmp}/text", "--output", "{tmp}/x.npz"),
        {},
    ),
    "evaluate": (
        ("--checkpoint", "{model}", "--data", "{tasks}/dev.csv"),
        NO_TASK | NO_HEAD,
    ),
    "fill_mask": (TEXT, NO_BLANKS | NO_HEAD),
    "inspect": (("{model}",), {}),
    "minimal_pairs": (
        ("--checkpoint", "{model}", "--pairs", "{tasks}/order.jsonl"),
        NO_MLM,
    ),
    "next_sentence": (("--checkpoint", "{model}", "--text", "a sea", "a ship"), NO_NSP),
    "predict": (TEXT, NO_HEAD),
    "score": (("--checkpoint", "{model}", "--text", "the sea is old"), NO_MLM),
}
ON_RUNS = {
    "compare": ("{run}",),
    "inspect": ("{run}",),
    "plot": ("{run}", "--output", "{tmp}/curves.png"),
}
# These commands read no checkpoint, or as init_from, which the tests of objectives try.
OTHERS = {
    *("aot", "experiment", "finetune", "glue_submission", "prepare", "train"),
    "vocabulary",
}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """A function of a command and its arguments: what it prints."""
    monkeypatch.setattr(cli, "start", lambda *_: None)  # the process has begun
    (tmp_path / "text").write_text("the sea is old\n")
    places = {"tmp": tmp_path, "tasks": FOLDER / "tasks"}

    def call(command, arguments, **more):
        argv = [argument.format(**places, **more) for argument in arguments]
        importlib.import_module(f"bert_jax.{command.strip()}").main(argv)
        printed = capsys.readouterr()
        return printed.out + printed.err

    return call


def test_every_command_is_tested():
    assert {*map(str.strip, ON_MODELS), *ON_RUNS, *OTHERS} == {*commands()}


@pytest.mark.parametrize("command", ON_MODELS)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_command_answers_or_says_why_not(command, objective, run):
    arguments, refused = ON_MODELS[command]
    model = FOLDER / "exported" / objective
    if objective in refused:
        with pytest.raises(UserError, match=refused[objective]):
            run(command, arguments, model=model)
    else:
        assert run(command, arguments, model=model).strip()


@pytest.mark.parametrize("command", ON_RUNS)
@pytest.mark.parametrize("objective", PRETRAINED)
def test_a_command_reads_the_run_of_an_objective(command, objective, run, tmp_path):
    folder = tmp_path / objective
    shutil.copytree(FOLDER / "runs" / objective, folder)
    assert run(command, ON_RUNS[command], run=folder).strip()


@pytest.mark.parametrize("kind", [*PRETRAINED, *FINE_TUNED])
def test_inspect_counts_the_parameters_of_every_kind(kind, run):
    found = json.loads(
        run("inspect", ("{model}", "--json"), model=FOLDER / "exported" / kind)
    )
    assert found["count"] == sum(part["count"] for part in found["parameters"]) > 1000
