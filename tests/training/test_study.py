"""Studies: complete, interrupted and repeated."""

import dataclasses
import json
import os
import shutil
import statistics
from pathlib import Path

import pytest

from bert_jax.commands import study as command
from bert_jax.data.store import read_info, write_info
from bert_jax.errors import DivergenceError, UserError
from bert_jax.files import locked, write_json
from bert_jax.runs import read_runs
from bert_jax.settings import from_settings, to_dict
from bert_jax.tasks.families import FAMILIES
from bert_jax.training import study as study_module
from bert_jax.training.config import StudyConfig
from bert_jax.training.pretrain_data import recorded_text
from bert_jax.training.results import scores_of
from bert_jax.training.study import Study, flops


def ran(log):
    return [line.removeprefix("== ") for line in log if line.startswith("== ")]


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
    task = dict(family="classification", batch_size=8, epochs=1, checkpoint_every=1000,
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


@pytest.fixture(scope="module")
def file(small_store, settings, tmp_path_factory):
    """The study as FILE:ARGUMENT."""
    folder = tmp_path_factory.mktemp("study")
    pair = {"sentence_good": "the sea is here", "sentence_bad": "sea the here is"}
    (folder / "order.jsonl").write_text(f"{json.dumps(pair)}\n" * 3)
    path = folder / "small.py"
    text = FILE.replace("{text}", str(small_store[0].parent / "text.txt"))
    path.write_text(text.replace("{pairs}", str(folder / "order.jsonl")))
    return f"{path}:{settings('classification')['data']['dir']}"


@pytest.fixture(scope="module")
def study(file):
    return command._open(file)[0]


def one_variant(study, name="left", **changes):
    """The study with one variant and seed, and changed pretraining settings."""
    settings = study.variants[name].pretrain
    for group, value in changes.items():
        group_of = settings.get(group)
        value = group_of | value if isinstance(value, dict) else value
        settings = settings | {group: value}
    variant = dataclasses.replace(study.variants[name], pretrain=settings)
    return dataclasses.replace(study, variants={name: variant}, seeds=(3,))


@pytest.fixture(scope="module")
def resumed(study, tmp_path_factory):
    """The folder of an interrupted and resumed study, and the parts of both calls."""
    folder, first, second = tmp_path_factory.mktemp("resumed"), [], []

    def interrupt(line):
        first.append(line)
        if line.startswith("step 2/4"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Study(one_variant(study), folder, interrupt).run()
    Study(one_variant(study), folder, second.append).run()
    return folder, ran(first), ran(second)


def test_an_interrupted_study_resumes_and_its_table_has_the_runs_scores(study, resumed):
    folder, first, second = resumed
    names = ["pretrain/left-seed3", "finetune/left-topic-seed3", "pairs/left-seed3"]
    done = Study(one_variant(study), folder)
    assert list(done.configs) == names
    assert (first, second) == (names[:1], names)
    table = done.table()
    assert (table["finished"], table["parts"]) == (3, 3)
    variant = table["variants"]["left"]
    assert (variant["tokens"], variant["flops"]) == (
        4 * 8 * 16,
        flops(done.configs[names[0]]),
    )
    run, tuned = read_runs([folder / name for name in names[:2]])
    first_line, last_line = run.series("train", "seconds")[1]
    assert first_line < last_line == variant["seconds"]
    lm = 100 * run.series("eval", "lm_accuracy")[1][-1]
    assert variant["scores"]["held-out lm_accuracy"]["scores"] == [lm]
    accuracy = tuned.results["scores"]["dev"]["accuracy"]
    assert variant["scores"]["topic accuracy"]["scores"] == [accuracy]
    assert variant["scores"]["minimal pairs"]["mean"] in (0, 50, 100)  # two pairs
    assert run.config["seed"] == tuned.config["seed"] == 3
    assert not list(folder.rglob("*.safetensors"))


PHASE = dict(steps=5, sequence_length=16, batch_size=8, max_predictions=3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"log_every": 1}, ""),  # has no influence on scores
        (
            {"phases": (PHASE,)},
            r"left-seed3 contains a run with other settings .*steps: 4 -> 5",
        ),
        ({"optimizer": {"learning_rate": 2e-3}}, "learning_rate: 0.001 -> 0.002"),
        ({"eval_batches": 2}, "eval_batches: 1 -> 2"),
        (
            {"init_from": "other"},
            "left-seed3 contains a run with other settings .*init_from: '' -> 'ot",
        ),
        (
            {"data": {"lower_case": False}},
            "left-seed3 contains a run with other settings .*lower_case",
        ),
    ],
)
def test_finished_parts_with_other_settings_are_refused(
    study, resumed, changes, message
):
    log = []
    other = Study(one_variant(study, **changes), resumed[0], log.append)
    if message:
        with pytest.raises(UserError, match=message):
            other.run()
    else:
        other.run()
    assert ran(log) == []


def test_a_study_notices_task_files_that_were_changed_in_place(study, resumed):
    place = resumed[0] / "finetune/left-topic-seed3/config.json"
    written = place.read_text()
    write_json(place, json.loads(written) | {"content": "other rows"})
    try:
        with pytest.raises(
            UserError, match="topic-seed3 contains a run whose rows differ"
        ):
            Study(one_variant(study), resumed[0]).run()
    finally:
        place.write_text(written)


def test_a_finished_run_needs_its_pretraining(study, done, tmp_path):
    folder = tmp_path / "study"
    shutil.copytree(done[0].folder, folder)
    shutil.rmtree(folder / "pretrain")
    message = "^the pretraining of .*/finetune/.* is missing; put it back, or delete"
    with pytest.raises(UserError, match=message):
        Study(study, folder).run()


def test_a_finished_pretraining_is_compared_by_the_content_of_its_text(
    study, small_store, tmp_path
):
    """Its text may be moved. Another text is another run."""
    moved, other, plain = tmp_path / "moved", tmp_path / "other", tmp_path / "plain"
    for folder in (moved, other, plain):
        shutil.copytree(small_store[0], folder)
    info = read_info(moved)
    checksums = dict.fromkeys(info.checksums, 7)
    write_info(other, dataclasses.replace(info, checksums=checksums))
    write_info(plain, dataclasses.replace(info, checksums={}))

    def study_of(text):
        data = {"corpus": (), "path": str(text)}
        variant = one_variant(study, data=data)
        return Study(
            dataclasses.replace(variant, pairs=(), tasks={}), tmp_path / "runs"
        )

    first = study_of(small_store[0])
    ((name, config),) = first.configs.items()
    run, results = first.folder / name, {"scores": {"held-out lm_accuracy": 3.0}}
    content = to_dict(config) | {"text": recorded_text([info])}
    write_json(run / "config.json", content)
    write_json(run / "part.json", results)
    assert first.result(name) == study_of(moved).result(name) == results
    for text in (other, plain):
        with pytest.raises(UserError, match=r"other settings \(.*data\.path: "):
            study_of(text).missing()
    write_json(run / "part.json", {"scores": {}, "flops": 1.0})
    with pytest.raises(UserError, match=r"part.json.*tokens"):
        first.result(name)
    write_json(run / "part.json", results)
    # The text at the same place was prepared again.
    shutil.rmtree(moved)
    shutil.copytree(other, moved)
    write_json(
        run / "config.json",
        content | {"data": to_dict(config.data) | {"path": str(moved)}},
    )
    with pytest.raises(UserError, match=r"text\.content: "):
        study_of(moved).table()


@pytest.fixture(scope="module")
def done(study, tmp_path_factory):
    """The complete study with simulated results, and its log."""
    folder, log = tmp_path_factory.mktemp("runs") / "small", []

    def run(self, name):
        config, kind = self.configs[name], name.partition("/")[0]
        settings_of_run = config if isinstance(config, dict) else to_dict(config)
        write_json(self.folder / name / "config.json", settings_of_run)
        number = float(sum(map(ord, name)) % 97)
        if kind == "finetune":
            return {"main_metric": kind, "scores": {"dev": {kind: number}}}
        scores = {} if name.startswith("pairs/left") else {kind: number}
        counts = {"tokens": 512, "flops": 1e15, "seconds": 7.0}
        return {"scores": scores} | (counts if kind == "pretrain" else {})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Study, "_run", run)
        done = Study(study, folder, log.append)
        done.run()
        done.write_table()
        return done, log


def test_the_table_of_a_study_has_means_deviations_and_differences(done):
    study, log = done
    names, table, folder = list(study.configs), study.table(), study.folder
    assert ran(log) == names
    assert len(names) == table["parts"] == table["finished"] == 14
    tuned = study.configs["finetune/left_slow-topic-seed1"]
    assert tuned.seed == study.configs["pretrain/left-seed1"].seed == 1
    assert tuned.init_from == str(folder / "pretrain/left-seed1")
    # The variant changes one setting of a group.
    assert tuned.optimizer.learning_rate == 1e-5
    assert (tuned.data.max_length, tuned.batch_size) == (16, 8)
    # Variants with the same pretraining share it.
    assert sum(name.startswith("pretrain") for name in names) == 4
    assert json.loads((folder / "table.json").read_text()) == table
    both, left, slow = table["variants"].values()

    def scores(part):
        return scores_of(study.result(part))[part.partition("/")[0]]

    assert both["scores"]["pairs"]["scores"] == [
        scores(f"pairs/both-seed{seed}") for seed in (0, 1)
    ]
    assert "pairs" not in left["scores"]
    assert left["scores"]["pretrain"] == slow["scores"]["pretrain"]
    assert (both["flops"], both["tokens"], both["seconds"]) == (1e15, 512, 7)
    slow_scores = [scores(f"finetune/left_slow-topic-seed{seed}") for seed in (0, 1)]
    first = [scores(f"finetune/both-topic-seed{seed}") for seed in (0, 1)]
    error = (
        statistics.variance(slow_scores) / 2 + statistics.variance(first) / 2
    ) ** 0.5
    mean = statistics.mean(slow_scores) - statistics.mean(first)
    assert slow["scores"]["topic finetune"] == {
        "mean": statistics.mean(slow_scores),
        "deviation": statistics.stdev(slow_scores),
        "standard_error": statistics.stdev(slow_scores) / 2**0.5,
        "scores": slow_scores,
        "difference": {"mean": mean, "standard_error": pytest.approx(error)},
    }
    assert "difference" not in both["scores"]["topic finetune"]
    lines = (folder / "table.md").read_text().splitlines()
    assert [line.split()[1] for line in lines[2:5]] == ["both", "left", "left_slow"]
    assert "14 of 14 runs finished" in lines[-1]
    assert "\n".join(lines) in log
    cell = f"{statistics.mean(slow_scores):.1f} ± {statistics.stdev(slow_scores):.1f}"
    assert f"| {cell} ({mean:+.1f} ± {error:.1f})  |" in lines[4]
    assert len({(len(line), line.count("|")) for line in lines[:5]}) == 1


def test_a_corpus_may_have_fewer_tokens_than_a_study_requests(study, done, tmp_path):
    """The run's config.json then has the size of the trained vocabulary."""
    shutil.copytree(done[0].folder, tmp_path / "copy")
    again = Study(study, tmp_path / "copy")
    for name, changes in (("both", {"vocab_size": 500}), ("left", {"num_heads": 4})):
        path = again.folder / f"pretrain/{name}-seed0/config.json"
        config = json.loads(path.read_text())
        write_json(path, config | {"model": config["model"] | changes})
    assert again.result("pretrain/both-seed0") == done[0].result("pretrain/both-seed0")
    with pytest.raises(UserError, match=r"model\.num_heads: 4 -> 2"):
        again.missing()


def test_a_study_is_the_same_if_the_files_of_a_task_are_moved(study, done, tmp_path):
    folder = shutil.copytree(done[0].folder, tmp_path / "copy")
    name = "finetune/both-topic-seed1"
    config = done[0].configs[name]
    path = folder / name / "config.json"
    checksum = FAMILIES[config.family](config.data).splits.checksum
    content = {"labels": [], "content": checksum}
    write_json(path, json.loads(path.read_text()) | content)
    place = shutil.copytree(config.data.dir, tmp_path / "moved")
    (topic,) = study.tasks.values()
    topic = topic | {"data": topic["data"] | {"dir": str(place)}}
    moved = Study(dataclasses.replace(study, tasks={"topic": topic}), folder)
    assert moved.result(name) == done[0].result(name)
    (train,) = place.glob("train*")
    train.write_text("".join(train.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(
        UserError, match=r"seed1 contains a run with other settings \(data\.dir: "
    ):
        moved.result(name)


def test_a_studys_folder_is_enough_to_run_it_again(done, capsys):
    folder = done[0].folder
    again, where = command._open(str(folder))
    assert (again, where) == (from_settings(StudyConfig, vars(again), ""), folder)
    assert Study(again, folder).configs == done[0].configs
    command.main([str(folder), "--table"])
    assert (folder / "table.md").read_text() in capsys.readouterr().out


def test_a_seed_may_be_added_but_other_pairs_are_refused(study, done):
    folder = done[0].folder
    table = Study(study, folder, seeds=(0, 1, 2)).table()
    assert (table["finished"], table["parts"]) == (14, 21)
    with pytest.raises(UserError, match=r"other settings \(first: 2 -> 1"):
        Study(dataclasses.replace(study, pairs_per_set=1), folder).run()


def test_changed_minimal_pairs_are_refused(study, resumed):
    """The scores are about these pairs. The table of a study needs no pairs."""
    folder, path, one = resumed[0], Path(study.pairs[0]), one_variant(study)
    before = path.read_text()
    try:
        path.write_text(before.replace("is here", "was here"))
        with pytest.raises(UserError, match=r"other settings .*rows: "):
            Study(one, folder).missing()
        path.unlink()
        assert Study(one, folder).table()["finished"] == 3
    finally:
        path.write_text(before)
    assert not Study(one, folder).missing()


def test_a_study_locks_its_seeds(study, tmp_path):
    """Other seeds may run at the same time, in another process."""
    one = one_variant(study)  # with the seed 3
    folder, ran = tmp_path / "study", []
    with locked(folder, file_name=".lock-seed3"):
        message = f"seed 3 of {folder} is in use by process {os.getpid()} on "
        with pytest.raises(UserError, match=message):
            Study(one, folder).run()
        assert not (folder / "study.json").exists()
        other = Study(one, folder, seeds=(4, 5))
        other.run_all = ran.extend
        other.run()
    assert len(ran) == 6 and (folder / "study.json").exists()
    assert not list(folder.glob(".lock*"))


def test_a_diverged_run_and_its_fine_tuning_runs_are_counted(
    file, study, tmp_path, monkeypatch
):
    def diverge(*_):
        raise DivergenceError("the loss became nan")

    monkeypatch.setattr(study_module, "pretrain", diverge)
    monkeypatch.setattr(command.cli, "start", lambda: None)
    command.main([file, "--workdir", str(tmp_path), "--seeds", "0"])
    table = json.loads((tmp_path / "table.json").read_text())
    assert table["finished"] == table["parts"] == 7
    assert table["variants"]["both"]["diverged"] == 3
    assert table["variants"]["both"]["scores"] == {}
    assert "diverged" in (tmp_path / "table.md").read_text()
    # The folder has all seeds of the study.
    assert to_dict(command._open(str(tmp_path))[0]) == to_dict(study)


def test_equal_compute_is_equal_to_a_step(study, tmp_path):
    phases = ({**PHASE, "steps": 1000},)
    variants = {
        name: dataclasses.replace(
            variant, pretrain=variant.pretrain | {"phases": phases}
        )
        for name, variant in study.variants.items()
    }
    equal = dataclasses.replace(study, variants=variants, equal_compute=True)
    configs = Study(equal, tmp_path).configs
    both, left = (configs[f"pretrain/{name}-seed0"] for name in ("both", "left"))
    assert both.total_steps == 1000
    assert left.total_steps < 700  # the causal model predicts every token
    assert abs(flops(left) / flops(both) - 1) < 1 / left.total_steps


def test_equal_compute_is_refused_if_the_rows_are_unknown(study, tmp_path):
    variant = study.variants["both"]
    data = variant.pretrain["data"] | {"packing": True}
    data["examples"] = {"next_sentence": False, "single_sentences": True}
    changed = dataclasses.replace(variant, pretrain=variant.pretrain | {"data": data})
    variants = study.variants | {"single": changed}
    equal = dataclasses.replace(study, variants=variants, equal_compute=True)
    with pytest.raises(
        UserError, match=r"^single: equal_compute cannot count the rows"
    ):
        Study(equal, tmp_path)
    Study(dataclasses.replace(equal, equal_compute=False), tmp_path)
    data["packing"] = False  # a row is one sentence
    Study(equal, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 2}, r"epochs is not a setting"),
        ({"variants": {"a": {"pretrain": {"modle": {}}}}}, "^a: modle is not"),
        ({"tasks": {"x": {"family": "sorting"}}}, "^both, x: family='sorting'"),
    ],
)
def test_a_wrong_study_is_a_one_line_error(study, change, message, tmp_path):
    with pytest.raises(UserError, match=message):
        Study(from_settings(StudyConfig, vars(study) | change, ""), tmp_path)
    with pytest.raises(UserError, match="--seeds a, expected numbers such as 0,1"):
        command.main(["x.py", "--seeds", "a"])


@pytest.mark.parametrize("group", ["tasks", "pairs"])
def test_a_missing_file_is_an_error_before_a_run_starts(study, group, tmp_path):
    task, log = study.tasks["topic"], []
    gone = {
        "tasks": {"topic": task | {"data": task["data"] | {"dir": "nowhere"}}},
        "pairs": ("nowhere",),
    }
    other = dataclasses.replace(study, **{group: gone[group]})
    with pytest.raises(UserError, match="nowhere"):
        Study(other, tmp_path, log.append).run()
    assert (log, list(tmp_path.iterdir())) == ([], [])


def test_the_command_passes_every_flag(file, monkeypatch, tmp_path):
    studies = []

    class Recorded:
        def __init__(self, config, folder, *, seeds):
            studies.append((folder, seeds))

        def write_table(self):
            pass

    monkeypatch.setattr("bert_jax.training.study.Study", Recorded)
    workdir = tmp_path / "other"
    command.main([file, "--table", "--seeds", "5,3", "--workdir", str(workdir)])
    command.main([file, "--table"])
    name = Path(file.partition(":")[0]).stem
    assert studies == [(workdir, (5, 3)), (Path("runs", name), ())]
