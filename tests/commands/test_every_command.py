"""Every command on a checkpoint of every objective and every kind of output.

The checkpoints are in golden/v0_1_0. A command works or ends with a one-line error.
tests/test_compatibility.py loads all checkpoints.
"""

import importlib
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from bert_jax.__main__ import COMMANDS as NAMES
from bert_jax.commands import cli, inspect
from bert_jax.data.store import TokenStore
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.inference import lines
from bert_jax.inference.evaluation import Options, Rows

GOLDEN = Path(__file__).parent.parent / "golden/v0_1_0"
TEXT = "the whale is good"
# For each head: a row for predict, and the label of this row for evaluate.
ROWS = {
    "classification": ({"text": TEXT}, {"label": "yes"}),
    "sentence_vectors": ({"text_a": TEXT, "text_b": "it is so"}, {"label": 5.0}),
    "tagging": ({"words": TEXT.split()}, {"tags": ["O", "B-SEA", "O", "O"]}),
    "choices": ({"context": TEXT, "choices": ["it is good", "bad"]}, {"label": 0}),
    "squad": ({"question": "how ?", "context": TEXT}, {"answers": ["good"]}),
}
HEAD_OF = {"features": "tagging"}
COMMANDS = {
    "inspect": "inspect {checkpoint}",
    "inspect --json": "inspect {checkpoint} --json",
    "convert": "convert --checkpoint {checkpoint} --output {new}/folder",
    "convert back": "convert --checkpoint {checkpoint} --output {new}/own --to bert_jax",
    "predict": "predict --checkpoint {checkpoint} --input {rows}",
    "evaluate": "evaluate --checkpoint {checkpoint} --input {labelled}",
    "embed": "embed --checkpoint {checkpoint} --input {texts} --output {new}/mean.npz",
    "embed tokens": "embed --checkpoint {checkpoint} --input {texts} --pooling none "
    "--output {new}/tokens.npz",
    "embed pooler": "embed --checkpoint {checkpoint} --input {texts} --pooling pooler "
    "--output {new}/pooler.npz",
    "score": "score --checkpoint {checkpoint} --input {texts}",
    "next_sentence": "predict --checkpoint {checkpoint} --next_sentence "
    "--input {pairs}",
    "minimal_pairs": "score --checkpoint {checkpoint} --pairs {minimal}",
    "plot": "plot {checkpoint} --output {new}/curves.svg",
}
# These commands read no checkpoint, or only as init_from: see the tests of objectives.
OTHERS = {"estimate", "doctor", "study", "finetune", "prepare", "train", "vocabulary"}
# Errors of the commands that do not work.
NO_RUN = "has no metrics.jsonl"
NO_MLM = "has no MLM head"
REFUSALS = {
    "convert": "transformers has no class with encoder=lstm",
    "predict": "an encoder without a head",
    "evaluate": "only pretrained|an encoder without a head",
    "embed pooler": "has no pooler",
    "score": NO_MLM,
    "minimal_pairs": NO_MLM,
    "next_sentence": "has no NSP head",
    "plot": NO_RUN,
}
# The commands that work on all checkpoints, and on the checkpoints of ...
ALL = {"inspect", "inspect --json", "convert back", "embed", "embed tokens"}
LM = {"convert", "predict", "score", "minimal_pairs", "embed pooler"}
HEAD = {"convert", "predict", "evaluate"}
RUN = {"plot"}
WORKS = {
    "exported/mlm_nsp": LM | {"next_sentence"},
    "exported/causal": LM,
    "exported/two_way": LM - {"convert"},
    "exported/electra": {"convert"},
    "exported/classification": HEAD | {"embed pooler"},
    "exported/sentence_vectors": HEAD,
    "exported/tagging": HEAD,
    "exported/choices": HEAD | {"embed pooler"},
    "exported/squad": HEAD,
    "exported/features": HEAD | {"embed pooler"},
    "exported/two_way_classification": HEAD - {"convert"} | {"embed pooler"},
    "runs/mlm_nsp": LM | RUN | {"next_sentence"},
    "runs/electra": {"convert"} | RUN,
    "runs/finetune_finished": HEAD | RUN | {"embed pooler"},
    "runs/finetune_unfinished": HEAD | RUN | {"embed pooler"},
    "runs/sweep": HEAD | RUN | {"embed pooler"},
}

# Their commands run the same code as for another checkpoint.
LIKE = {
    *("exported/causal", "exported/two_way_classification"),
    *("runs/finetune_unfinished", "runs/sweep", "runs/electra"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The paths of the inputs of COMMANDS, and a copy of the checkpoints."""
    folder = tmp_path_factory.mktemp("commands")
    shutil.copytree(GOLDEN, folder / "golden")
    inputs = {
        "texts.txt": f"{TEXT}\nall is bad\n",
        "blanks.txt": "the [MASK] is good\n",
        "pairs.txt": f"{TEXT}\tit is so\n",
        "minimal.tsv": f"sentence_good\tsentence_bad\n{TEXT}\tis the good whale\n",
    }
    for name, (row, label) in ROWS.items():
        inputs[f"{name}.jsonl"] = json.dumps(row) + "\n"
        # A correlation needs two rows.
        other = {"label": 1.0} if isinstance(label.get("label"), float) else label
        inputs[f"{name}.labelled.jsonl"] = "".join(
            json.dumps(row | each) + "\n" for each in (label, other)
        )
    for name, text in inputs.items():
        (folder / name).write_text(text)
    return folder


def outcome(line):
    """Runs a command line. Returns "works", or the error message."""
    name, *arguments = line
    try:
        code = importlib.import_module(f"bert_jax.commands.{name}").main(arguments)
    except UserError as error:
        return str(error)
    assert not code
    return "works"


def test_every_command_is_tested():
    tested = {line.split()[0] for line in COMMANDS.values()}
    assert tested | OTHERS == {*NAMES}


@pytest.mark.parametrize(
    "checkpoint",
    [pytest.param(name, marks=[pytest.mark.long] * (name in LIKE)) for name in WORKS],
)
def test_every_command_works_or_ends_with_one_line(
    checkpoint, files, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # plot writes here by default
    monkeypatch.setattr(cli, "start", lambda *arguments: None)
    name = checkpoint.partition("/")[2]
    head = HEAD_OF.get(name, name if name in ROWS else "classification")
    places = {
        "checkpoint": files / "golden" / checkpoint,
        "new": tmp_path,
        "rows": files
        / (f"{head}.jsonl" if "evaluate" in WORKS[checkpoint] else "blanks.txt"),
        "labelled": files / f"{head}.labelled.jsonl",
        "texts": files / "texts.txt",
        "pairs": files / "pairs.txt",
        "minimal": files / "minimal.tsv",
    }
    outcomes = {
        command: outcome([part.format(**places) for part in line.split()])
        for command, line in COMMANDS.items()
    }
    works = {command for command, answer in outcomes.items() if answer == "works"}
    assert works == ALL | WORKS[checkpoint], outcomes
    for command in outcomes.keys() - works:
        line = outcomes[command]
        assert re.search(REFUSALS[command], line) and "\n" not in line, line
        assert len(line) < 300


@pytest.mark.parametrize(
    "path", sorted(GOLDEN.glob("exported/*")), ids=lambda p: p.name
)
def test_inspect_counts_the_parameters_of_every_kind(path, capsys):
    inspect.main([str(path), "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["count"] == sum(part["count"] for part in report["parameters"]) > 1000


EVIL = "\x1b]0;title\x07\x9b31m\u202e"  # sets title and colour, and reverses the line
SHOWN = r"\u001b]0;title\u0007\u009b31m\u202e"


def evil_label(folder):
    shutil.copytree(GOLDEN / "exported" / "classification", folder / "model")
    path = folder / "model" / "config.json"
    names = {"id2label": {"0": EVIL, "1": "b"}, "label2id": {EVIL: 0, "b": 1}}
    path.write_text(json.dumps(json.loads(path.read_text()) | names))
    return "inspect", str(folder / "model")


def evil_member(folder):
    (folder / "sets").mkdir()
    shutil.copy(GOLDEN / "tasks/order.jsonl", folder / "sets" / f"{EVIL}.jsonl")
    model = str(GOLDEN / "exported" / "mlm_nsp")
    return "score", "--checkpoint", model, "--pairs", str(folder / "sets")


def evil_metric(folder):
    shutil.copytree(GOLDEN / "runs" / "mlm_nsp", folder / "run")
    with (folder / "run" / "metrics.jsonl").open("a") as file:
        line = {"step": 99, "split": "eval", f"{EVIL}_accuracy": 0.5}
        file.write(f"{json.dumps(line)}\n")
    return "plot", str(folder / "run")


def evil_json(folder):
    model = str(GOLDEN / "exported" / "mlm_nsp")
    return "score", "--checkpoint", model, "--text", EVIL


@pytest.mark.parametrize("make", [evil_label, evil_member, evil_metric, evil_json])
def test_names_and_texts_of_files_are_printed_without_control_characters(
    make, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(cli, "start", lambda *arguments: None)
    monkeypatch.setattr(lines, "on_screen", lambda path: True)
    assert outcome(make(tmp_path)) == "works"
    printed = "".join(capsys.readouterr())
    assert SHOWN in printed
    assert all(c.isprintable() or c == "\n" for c in printed)


@pytest.mark.parametrize(
    ("line", "bar"),
    [
        ("predict --text a", False),
        ("predict --text a --output {folder}/a.csv", None),
        ("score --text a", False),
        ("score --text a --output {folder}/a.csv", None),
        ("score --pairs {order}", None),
    ],
)
def test_answers_on_a_terminal_have_no_progress_bar(line, bar, tmp_path, monkeypatch):
    """Answers of pairs are printed at the end, so their bar is shown."""

    def stop(*arguments, **more):
        given = [*arguments, *more.values()]
        (options,) = (x for x in given if isinstance(x, Options))
        raise UserError(f"show_progress={options.show_progress}")

    monkeypatch.setattr(cli, "start", lambda *arguments: None)
    monkeypatch.setattr(lines, "on_screen", lambda path: path == "-")
    for name in ("fill_mask", "score", "log_probabilities"):
        monkeypatch.setattr(f"bert_jax.inference.pretrained.{name}", stop)
    line = line.format(folder=tmp_path, order=GOLDEN / "tasks/order.jsonl")
    model = GOLDEN / "exported" / "mlm_nsp"
    arguments = [*line.split(), "--checkpoint", str(model)]
    assert outcome(arguments) == f"show_progress={bar}"


@pytest.fixture
def called(monkeypatch):
    """A function of (line, name of a function): the arguments of its call."""
    monkeypatch.setattr(cli, "start", lambda *arguments: None)

    def arguments(line, name):
        values = []

        def end(*given, **more):
            values.extend([*given, *more.values()])
            raise UserError("called")

        monkeypatch.setattr(f"bert_jax.{name}", end)
        assert outcome(line) == "called"
        return values

    return arguments


@pytest.mark.parametrize(
    ("line", "columns", "model", "name", "more"),
    [
        (
            "embed --layers=-2,-1 --pooling cls --normalize --prompt=see --output x.npz",
            ["body"],
            "mlm_nsp",
            "embed.encode",
            {
                "layers": (-2, -1),
                "pooling": "cls",
                "normalize": True,
                "prompt": "see",
            },
        ),
        ("predict --top 3", ["body"], "mlm_nsp", "pretrained.fill_mask", {"top": 3}),
        ("predict --top 3", ["body"], "classification", "predict.beside", {"top": 3}),
        (
            "predict --next_sentence",
            ["good", "bad"],
            "mlm_nsp",
            "pretrained.next_sentence",
            {},
        ),
        (
            "score --rest_of_word",
            ["body"],
            "mlm_nsp",
            "pretrained.score",
            {"rest_of_word": True},
        ),
        ("evaluate", ["body"], "classification", "scores.evaluate", {}),
    ],
)
def test_an_answering_command_passes_every_flag(
    called, tmp_path, monkeypatch, line, columns, model, name, more
):
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_text(json.dumps({"good": "a", "bad": "b", "body": "c"}))
    sizes = {"batch_size": 7, "max_length": 9, "dtype": "bfloat16"}
    words = [*line.split(), *(f"--{name}={value}" for name, value in sizes.items())]
    words += ["--checkpoint", str(GOLDEN / "exported" / model), "--input", "a.jsonl"]
    values = called([*words, "--columns", *columns], f"inference.{name}")
    (options,) = (x for x in values if isinstance(x, Options))
    given = sizes | more
    assert {name: getattr(options, name) for name in given} == given
    values += [x.columns for x in values if isinstance(x, Rows)]
    assert columns in values or tuple(columns) in values


def test_minimal_pairs_are_scored_with_every_flag(called, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"good": "c", "bad": "d"}, {"good": "a", "bad": "b"}]
    Path("a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    line = "score --pairs a.jsonl --rest_of_word --batch_size 7 --dtype bfloat16"
    line += " --pairs_range 1:2"
    words = [*line.split(), "--columns", "good", "bad"]
    words += ["--checkpoint", str(GOLDEN / "exported/mlm_nsp")]
    _, options, texts = called(words, "inference.pretrained.log_probabilities")
    assert (options.rest_of_word, options.batch_size) == (True, 7)
    assert options.dtype == "bfloat16" and texts == ["a", "b"]


@pytest.mark.parametrize("line", ["predict", "score"])
def test_a_line_with_a_tab_is_one_text(called, tmp_path, line):
    """It is two texts only for a model of pairs."""
    name = {"predict": "fill_mask", "score": "score"}[line]
    model = str(GOLDEN / "exported/mlm_nsp")
    path = tmp_path / "a.txt"
    path.write_text("a\tb\n")
    words = [line, "--checkpoint", model, "--input", str(path)]
    _, rows, _ = called(words, f"inference.pretrained.{name}")
    assert [row for _, row in rows.placed] == ["a\tb"]


TASK = f"--data.dir={GOLDEN}/tasks --init_from={GOLDEN}/exported/mlm_nsp"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("train --config tiny", "training.pretrain.pretrain"),
        (f"finetune --config table {TASK}", "training.sweep.run_one"),
        (f"finetune --config table {TASK} --sweep", "training.sweep.run_sweep"),
    ],
)
def test_a_job_passes_its_flags(called, tmp_path, line, name):
    workdir = str(tmp_path / "run")
    flags = ["--workdir", workdir, "--seed=7", "--change_settings"]
    config, *others = called([*line.split(), *flags], name)
    assert (config.seed, *others) == (7, workdir, True)


def test_each_command_prints_the_next_one(tmp_path, monkeypatch, capsys):
    """The printed commands work as they are, up to a training."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b.txt").write_text(
        "Ein Wal, bzw. ein Fisch.\nDas Meer ist weit.\n" * 9
    )
    line = "vocabulary --input 'a b.txt' --language de --size 60 --output vocab.txt"
    for name in ("prepare", "train"):
        assert outcome(shlex.split(line)) == "works"
        out, err = capsys.readouterr()
        assert "next:" not in out
        start, _, line = err.splitlines()[-1].partition(" bert_jax ")
        assert (start, line.split()[0]) == ("next:", name)
    assert (
        "data/text" in line
        and TokenStore("data/text").info.settings["language"] == "de"
    )
    with pytest.raises(SystemExit):
        outcome([*shlex.split(line), "--print_config"])
    size = load_tokenizer("vocab.txt").vocab_size
    assert f"model.vocab_size = {size}  #" in capsys.readouterr().out
