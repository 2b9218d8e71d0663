"""Studies: run, interrupted, gone on with, added up, in one process and in several."""

import dataclasses
import json
import os
import select
import statistics
import subprocess
import sys

import jax
import pytest

from bert_jax import figures
from bert_jax.commands import experiment
from bert_jax.errors import DivergenceError, Preempted, UserError
from bert_jax.locks import locked
from bert_jax.parallel.mesh import make_mesh
from bert_jax.runs import read_runs
from bert_jax.settings import from_settings
from bert_jax.training import pretrain
from bert_jax.training import study as studies
from bert_jax.training.config import DataConfig, StudyConfig
from bert_jax.training.study import flops, plan_study, run_part, run_study
from bert_jax.training.study_table import summarise, write_table

FILE = """
def pretraining(objective="mlm_nsp", causal=False):
    return dict(
        model=dict(vocab_size=600, hidden_size=16, num_layers=1, num_heads=2,
                   intermediate_size=32, max_positions=16, causal=causal),
        objective=f"bert_jax.objectives.{objective}",
        data=dict(corpus=("{text}",), vocabulary_size=600, holdout=0.2, threads=1,
                  examples=dict(next_sentence=not causal)),
        optimizer=dict(learning_rate=1e-3),
        phases=(dict(steps=4, sequence_length=16, batch_size=8, max_predictions=3),),
        log_every=2, eval_every=4, eval_batches=1,
    )

def get_study(task):
    causal = pretraining("causal", causal=True)
    task = dict(family="classification", batch_size=8, epochs=1,
                data=dict(task="table", dir=task, max_length=16),
                optimizer=dict(learning_rate=1e-3))
    return dict(
        variants=dict(
            both=dict(pretrain=pretraining()),
            left=dict(pretrain=causal),
            left_slow=dict(pretrain=causal,
                           finetune=dict(optimizer=dict(learning_rate=1e-5))),
        ),
        tasks=dict(topic=task),
        seeds=(0, 1),
        pairs=("{pairs}",),
        pairs_per_set=2,
    )
"""


PHASE = dict(steps=4, sequence_length=16, batch_size=8, max_predictions=3)


@pytest.fixture(scope="module")
def file(small_store, settings, tmp_path_factory):
    """FILE:ARGUMENT of the study; its text, its pairs and its task lie beside it."""
    folder = tmp_path_factory.mktemp("study")
    pair = {"sentence_good": "the sea is here", "sentence_bad": "sea the here is"}
    (folder / "order.jsonl").write_text(f"{json.dumps(pair)}\n" * 3)
    path = folder / "small.py"
    text = FILE.replace("{text}", str(small_store[0].parent / "text.txt"))
    path.write_text(text.replace("{pairs}", str(folder / "order.jsonl")))
    return f"{path}:{settings('classification')['data']['dir']}"


@pytest.fixture(scope="module")
def study(file):
    return experiment._open(file)[0]


def ran(log):
    return [line.removeprefix("== ") for line in log if line.startswith("== ")]


def test_a_study_goes_on_where_it_was_interrupted(study, tmp_path, one_device):
    """With its runs as they are, though only of one variant and seed."""
    left = {"left": study.variants["left"]}
    study = dataclasses.replace(study, variants=left, seeds=(3,))
    names = ["text", "pretrain/left-seed3", "finetune/left-topic-seed3"]
    names.append("pairs/left-seed3")
    first, second = [], []

    def interrupt(line):
        first.append(line)
        if line.startswith("step 2/4"):
            raise KeyboardInterrupt

    with one_device(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            pretrain, "make_mesh", lambda config: make_mesh(config, jax.devices()[:1])
        )
        with pytest.raises(KeyboardInterrupt):
            run_study(study, tmp_path, log=interrupt)
        run_study(study, tmp_path, log=second.append)
    table = summarise(study, tmp_path)
    assert list(plan_study(study, tmp_path).parts) == names
    assert (ran(first), ran(second)) == (names[:2], names[1:])
    assert (table["finished"], table["parts"]) == (4, 4)
    own = table["variants"]["left"]
    assert (own["steps"], own["tokens"]) == (4, 4 * 8 * 16)
    run, tuned = read_runs([tmp_path / name for name in names[1:3]])
    lm = 100 * run.series("eval", "lm_accuracy")[1][-1]
    assert own["scores"]["held-out lm_accuracy"]["scores"] == [lm]
    accuracy = tuned.results["scores"]["dev"]["accuracy"]
    assert own["scores"]["topic accuracy"]["scores"] == [accuracy]
    assert own["scores"]["minimal pairs"]["mean"] in (0, 50, 100)  # of two pairs
    assert run.config["seed"] == tuned.config["seed"] == 3
    assert not list(tmp_path.rglob("*.safetensors"))
    # A text of an older version lacks settings; they had their defaults.
    path = tmp_path / "text" / "config.json"
    text = json.loads(path.read_text())
    older = ("corpus", "vocabulary_size", "lower_case")
    assert set(text) == {*older, "language", "keep_accents"}
    path.write_text(json.dumps({name: text[name] for name in older}))
    third = []
    run_study(study, tmp_path, log=third.append)
    assert ran(third) == []
    assert summarise(study, tmp_path) == table
    longer = studies._merged(
        left["left"].pretrain, {"phases": ({**PHASE, "steps": 5},)}
    )
    longer = {"left": dataclasses.replace(left["left"], pretrain=longer)}
    with pytest.raises(UserError, match="trained for 4 steps, and the study says 5"):
        run_study(dataclasses.replace(study, variants=longer), tmp_path)
    for changes, said in (
        ({"optimizer": {"learning_rate": 2e-3}}, r"learning_rate: 0.001 -> 0.002"),
        ({"eval_batches": 2}, "eval_batches: 1 -> 2"),
    ):
        other = studies._merged(left["left"].pretrain, changes)
        other = {"left": dataclasses.replace(left["left"], pretrain=other)}
        with pytest.raises(UserError, match=rf"left-seed3 holds another run .*{said}"):
            run_study(dataclasses.replace(study, variants=other), tmp_path)
    # How often a run logs does not change its scores.
    other = studies._merged(left["left"].pretrain, {"log_every": 1})
    other = {"left": dataclasses.replace(left["left"], pretrain=other)}
    run_study(dataclasses.replace(study, variants=other), tmp_path, log=third.append)
    assert ran(third) == []
    # A part that has the wrong settings is told before anything runs.
    task = studies._merged(study.tasks["topic"], {"epochs": 2})
    other = dataclasses.replace(study, tasks={"topic": task}, seeds=(3, 4))
    with pytest.raises(UserError, match=r"left-topic-seed3 holds another run \(epochs"):
        run_study(other, tmp_path, log=third.append)
    assert ran(third) == []


@pytest.fixture(scope="module")
def done(study, tmp_path_factory):
    """The whole study with made-up results: its folder, its table and its log."""
    folder, log = tmp_path_factory.mktemp("runs") / "small", []

    def run(part, directory, before, log, change_settings):
        config = part.config
        directory.mkdir(parents=True, exist_ok=True)  # as every run does
        if isinstance(config, dict):
            (directory / "config.json").write_text(json.dumps(config))
        number = sum(map(ord, f"{directory.name}{before.name}")) % 97
        if isinstance(config, DataConfig):
            return {}
        kind = directory.parent.name
        scores = {kind: float(number)}
        if "left" in directory.name and kind == "pairs":
            scores = {}
        counts = (
            {"steps": 4, "tokens": 512, "flops": 1e15} if kind == "pretrain" else {}
        )
        return {"scores": scores, "seconds": 7.0, **counts}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(studies, "_run", run)
        run_study(study, folder, log=log.append)
        return folder, write_table(study, folder, log=log.append), log


def test_the_table_has_means_deviations_and_differences(study, done):
    folder, table, log = done
    names = list(plan_study(study, folder).parts)
    assert ran(log) == names
    assert len(names) == table["parts"] == table["finished"] == 15
    # Variants that learn the same before fine-tuning share it.
    assert sum(name.startswith("pretrain") for name in names) == 4
    assert json.loads((folder / "table.json").read_text()) == table
    both, left, slow = table["variants"].values()

    def scores(part):
        result = json.loads((folder / part / "part.json").read_text())
        return result["scores"][part.partition("/")[0]]

    assert both["scores"]["pairs"]["scores"] == [
        scores(f"pairs/both-seed{seed}") for seed in (0, 1)
    ]
    assert "pairs" not in left["scores"]
    assert left["scores"]["pretrain"] == slow["scores"]["pretrain"]
    assert (both["flops"], both["tokens"], both["seconds"]) == (1e15, 512, 7)
    own = [scores(f"finetune/left_slow-topic-seed{seed}") for seed in (0, 1)]
    first = [scores(f"finetune/both-topic-seed{seed}") for seed in (0, 1)]
    error = (statistics.variance(own) / 2 + statistics.variance(first) / 2) ** 0.5
    mean = statistics.mean(own) - statistics.mean(first)
    assert slow["scores"]["topic finetune"] == {
        "mean": statistics.mean(own),
        "deviation": statistics.stdev(own),
        "scores": own,
        "difference": {"mean": mean, "standard_error": pytest.approx(error)},
    }
    assert "difference" not in both["scores"]["topic finetune"]
    lines = (folder / "table.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["both", "left", "left_slow"]
    assert "15 of 15 parts are finished" in lines[-1]
    assert log[-len(lines) - 1 : -1] == lines
    rows = (folder / "table.md").read_text().splitlines()
    assert rows[3].startswith("| left | ")
    cell = f"{statistics.mean(own):.1f} ± {statistics.stdev(own):.1f}"
    assert f"| {cell} ({mean:+.1f} ± {error:.1f}) |" in rows[4]
    assert len({row.count("|") for row in rows[:5]}) == 1
    assert (folder / "table.png").read_bytes().startswith(b"\x89PNG")
    panels = figures.study(table).axes
    assert {axes.get_title("left") for axes in panels} == {
        m for v in table["variants"].values() for m in v["scores"]
    }


def test_a_study_s_folder_is_enough_to_run_it_again(study, done, capsys):
    folder = done[0]
    again, where = experiment._open(str(folder))
    assert (again, where) == (from_settings(StudyConfig, vars(again), ""), folder)
    parts, expected = (plan_study(s, folder).parts for s in (again, study))
    assert parts == expected
    experiment.main([str(folder), "--table"])
    assert (folder / "table.txt").read_text() in capsys.readouterr().out


def test_a_seed_may_be_added_and_other_pairs_are_another_study(study, done):
    folder = done[0]
    more = dataclasses.replace(study, seeds=(0, 1, 2))
    table = summarise(more, folder)
    assert (table["finished"], table["parts"]) == (15, 22)
    other = dataclasses.replace(study, pairs_per_set=1)
    with pytest.raises(UserError, match=r"another run \(first: 2 -> 1"):
        run_study(other, folder)


def test_a_run_that_diverges_is_counted_and_so_is_what_begins_with_it(
    study, tmp_path, monkeypatch
):
    def diverge(*_, **__):
        raise DivergenceError("the loss became nan")

    monkeypatch.setattr(studies, "pretrain", diverge)
    monkeypatch.setattr(studies, "prepare_corpus", lambda *_: None)
    (tmp_path / "text").mkdir()
    one = dataclasses.replace(
        study, seeds=(0,), variants={"both": study.variants["both"]}
    )
    run_study(one, tmp_path, log=[].append)
    table = summarise(one, tmp_path)
    assert table["variants"]["both"]["diverged"] == 3
    assert table["finished"] == table["parts"] == 4
    assert table["variants"]["both"]["scores"] == {}


def test_equal_compute_is_equal_to_a_step(study, tmp_path):
    variants = {
        name: dataclasses.replace(
            variant,
            pretrain=studies._merged(
                variant.pretrain,
                {"phases": ({**variant.pretrain["phases"][0], "steps": 1000},)},
            ),
        )
        for name, variant in study.variants.items()
    }
    equal = dataclasses.replace(study, variants=variants, equal_compute=True)
    parts = plan_study(equal, tmp_path).parts
    both, left = (parts[f"pretrain/{name}-seed0"].config for name in ("both", "left"))
    assert both.total_steps == 1000
    assert left.total_steps < 700  # it predicts every token
    assert abs(flops(left) / flops(both) - 1) < 1 / left.total_steps


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": ()}, "seeds are empty"),
        ({"epochs": 2}, r"epochs is not a setting"),
        ({"variants": {"a": {"pretrain": {"modle": {}}}}}, "^a: modle is not"),
        ({"tasks": {"x": {"family": "sorting"}}}, "^both, x: family='sorting'"),
    ],
)
def test_a_wrong_study_is_one_line(study, change, message, tmp_path):
    with pytest.raises(UserError, match=message):
        plan_study(from_settings(StudyConfig, vars(study) | change, ""), tmp_path)


@pytest.mark.parametrize("group", ["tasks", "variants", "pairs"])
def test_files_that_are_not_there_are_told_before_anything_runs(study, group, tmp_path):
    gone = {
        "tasks": {
            "topic": studies._merged(study.tasks["topic"], {"data": {"dir": "nowhere"}})
        },
        "variants": {
            name: dataclasses.replace(
                variant,
                pretrain=studies._merged(
                    variant.pretrain, {"data": {"corpus": ("nowhere",)}}
                ),
            )
            for name, variant in study.variants.items()
        },
        "pairs": ("nowhere",),
    }
    other, said = dataclasses.replace(study, **{group: gone[group]}), []
    with pytest.raises(UserError, match="nowhere"):
        run_study(other, tmp_path / "runs", log=said.append)
    assert (said, list((tmp_path / "runs").iterdir())) == ([], [])


def test_seeds_are_numbers():
    with pytest.raises(UserError, match="--seeds=a, expected numbers such as 0,1,2"):
        experiment.main(["x.py", "--seeds", "a"])


def test_a_part_that_is_not_there_or_too_early_is_refused(study, tmp_path):
    parts = plan_study(study, tmp_path).parts
    with pytest.raises(UserError, match="no part of the study; expected one of text, "):
        run_part("pretrain/all-seed0", parts, tmp_path)
    with pytest.raises(UserError, match="needs text, which is not finished"):
        run_part("pretrain/both-seed0", parts, tmp_path)


@pytest.fixture
def processes(monkeypatch):
    """Parts as processes that only note their turn: by name what each is to do."""
    turns, code = [], {}

    def start(name, folder, gpus, stdin, flags):
        turns.append((name, gpus))
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "log.txt").write_text("begun\nerror: no room\n")
        return subprocess.Popen([sys.executable, "-c", code.get(name, "")])

    monkeypatch.setattr(studies, "_start", start)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3,5")
    return turns, code


def test_parts_run_at_a_time_after_what_they_need(study, tmp_path, processes):
    turns, _ = processes
    parts = plan_study(study, tmp_path).parts
    ended = list(studies._in_processes(list(parts), parts, tmp_path, 2))
    assert sorted(ended) == sorted(parts)
    for name, part in parts.items():
        if part.after:
            assert ended.index(part.after) < [n for n, _ in turns].index(name)
    assert {gpus for _, gpus in turns} == {"2,5", "3"}
    with pytest.raises(UserError, match="--jobs=4, but there are 3 GPUs"):
        list(studies._in_processes(list(parts), parts, tmp_path, 4))


def test_a_part_that_fails_ends_the_others(study, tmp_path, processes):
    _, code = processes
    parts = plan_study(study, tmp_path).parts
    missing = ["pretrain/both-seed0", "pretrain/left-seed0"]
    code[missing[0]] = "raise SystemExit(2)"
    code[missing[1]] = "import time; time.sleep(600)"
    with pytest.raises(
        UserError, match=r"both-seed0: error: no room \(the whole log: "
    ):
        list(studies._in_processes(missing, parts, tmp_path, 2))
    # As SIGTERM to this process does.
    code[missing[0]] = "import os, signal; os.kill(os.getppid(), signal.SIGTERM)"
    with pytest.raises(Preempted, match="the same command goes on"):
        list(studies._in_processes(missing, parts, tmp_path, 2))


# The second is a study of other parts: no part is read before the folder is locked.
@pytest.mark.parametrize("changes", [{"seeds": (7,)}, {"pairs_per_set": 1}])
def test_a_study_s_folder_is_locked_while_it_runs(study, done, changes):
    folder = done[0]
    settings = (folder / studies.STUDY).read_text()
    with (
        locked(folder),
        pytest.raises(UserError, match=f"process {os.getpid()}"),
    ):
        run_study(dataclasses.replace(study, **changes), folder)
    assert (folder / studies.STUDY).read_text() == settings


def test_parts_are_resumed_with_changed_settings_on_request(
    file, tmp_path, monkeypatch
):
    found = []

    def pretrain(config, directory, log, *, change_settings):
        found.append(change_settings)
        raise DivergenceError("the loss became nan")

    def in_processes(*arguments):
        found.append(arguments[-1])
        return []

    monkeypatch.setattr(experiment.cli, "start", lambda: None)
    monkeypatch.setattr(studies, "pretrain", pretrain)
    monkeypatch.setattr(studies, "prepare_corpus", lambda *_: None)
    monkeypatch.setattr(studies, "_in_processes", in_processes)
    (tmp_path / "text").mkdir()
    command = [file, "--workdir", str(tmp_path)]
    experiment.main([*command, "--part", "text"])
    experiment.main([*command, "--part", "pretrain/both-seed0", "--change_settings"])
    experiment.main([*command, "--part", "pretrain/left-seed0"])
    experiment.main([*command, "--jobs", "2", "--change_settings"])
    experiment.main([*command, "--jobs", "2"])
    assert found == [True, False, ["--change_settings"], []]


def test_a_part_ends_with_its_parent(python, tmp_path):
    settings = tmp_path / studies.STUDY
    os.mkfifo(settings)  # the part waits here until somebody writes
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "log.txt").write_text("of another process\n")
    code = f"""
import sys
from pathlib import Path
from bert_jax.training import study
sys.executable = {python!r}
parts = {{"text": study.Part({{}})}}
next(study._in_processes(["text"], parts, Path({str(tmp_path)!r}), 1))
"""
    with (
        (tmp_path / "text" / "log.txt").open() as old,
        subprocess.Popen([python, "-c", code]) as parent,
        settings.open("wb", buffering=0) as file,  # once the part reads it
    ):
        parent.kill()
        poll = select.poll()
        poll.register(file, 0)  # an error event: nobody reads it any more
        assert poll.poll(60_000)
        assert old.read() == "of another process\n"
        assert (tmp_path / "text" / "log.txt").read_text() == ""
