"""Single runs, sweeps and studies: complete, interrupted and repeated."""

import dataclasses
import json
import os
import shutil
import statistics
from pathlib import Path

import pytest

from bert_jax.commands import study as command
from bert_jax.errors import DivergenceError, UserError
from bert_jax.files import locked, write_json
from bert_jax.interop.load import load
from bert_jax.runs import read_runs
from bert_jax.settings import from_settings, to_dict
from bert_jax.training import finetune as tuning
from bert_jax.training import run as engine
from bert_jax.training import sweep
from bert_jax.training.config import StudyConfig, SweepConfig, finetune_config
from bert_jax.training.sweep import Study, flops, run_one, run_sweep

GRID = dict(batch_size=(8,), learning_rate=(1e-5, 1e-2), epochs=(2,), seeds=(0, 1))
NAMES = [
    f"batch8-rate{rate}-epochs2-seed{seed}"
    for seed in (0, 1)
    for rate in ("1e-05", "0.01")
]


@pytest.fixture(scope="module")
def config(settings):
    model = dict(hidden_dropout=0.1, attention_dropout=0.1)
    return finetune_config(settings("regression", model=model, sweep=GRID))


def ran(log):
    return [line.removeprefix("== ") for line in log if line.startswith("== ")]


@pytest.fixture(scope="module")
def uninterrupted(config, tmp_path_factory):
    """An undisturbed sweep: workdir, result, log, and the compiled steps."""
    workdir, log, steps = tmp_path_factory.mktemp("sweep") / "runs", [], []
    real, checksum = engine.compile_step, tuning.params_checksum
    checksums = []

    def counted(*arguments, **settings):
        steps.append(real(*arguments, **settings))
        return steps[-1]

    def counted_checksum(params):
        checksums.append(checksum(params))
        return checksums[-1]

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(engine, "compile_step", counted)
        monkeypatch.setattr(tuning, "params_checksum", counted_checksum)
        content = run_sweep(config, workdir, log.append)
    assert len(checksums) == 1  # of all runs, which start with the same parameters
    return workdir, content, log, steps


def score_of(workdir, name):
    results = json.loads((workdir / "sweep" / name / "results.json").read_text())
    return results["scores"]["dev"]["pearson"]


def check_end(workdir, expected):
    """Checks that both workdirs have equal best models and tables, and no other weights."""
    for name in ("best/model.safetensors", "sweep.json", "sweep.md"):
        assert (workdir / name).read_bytes() == (expected / name).read_bytes()
    assert [p.parent for p in workdir.rglob("model.safetensors")] == [workdir / "best"]
    answers = "predictions/dev_predictions.tsv"
    best = json.loads((workdir / "sweep.json").read_text())["best_run"]
    source = workdir / "sweep" / best / answers
    assert (workdir / answers).read_bytes() == source.read_bytes()


def test_every_point_runs_with_every_seed_and_the_best_model_is_kept(uninterrupted):
    workdir, content, log, steps = uninterrupted
    assert ran(log) == NAMES
    assert (
        sum(line.startswith("train: ") for line in log) == 1
    )  # the rows are read once
    assert len(steps) == 4 and len({id(step) for step in steps}) == 1
    scores = {name: score_of(workdir, name) for name in NAMES}
    assert len(set(scores.values())) == len(NAMES)
    points = {
        "batch8-rate1e-05-epochs2": NAMES[::2],
        "batch8-rate0.01-epochs2": NAMES[1::2],
    }
    assert list(content["variants"]) == list(points)
    for point, names in points.items():
        point_scores, variant = (
            [scores[name] for name in names],
            content["variants"][point],
        )
        assert variant["scores"]["pearson"]["scores"] == point_scores
        mean, deviation = statistics.mean(point_scores), statistics.stdev(point_scores)
        assert variant["scores"]["pearson"]["mean"] == mean
        assert variant["scores"]["pearson"]["deviation"] == deviation
        assert f"| {point.ljust(24)}  | {mean:.1f} ± {deviation:.1f}" in log[-2]
    best = max(scores, key=scores.get)
    assert (content["best_run"], content["metric"]) == (best, "pearson")
    assert log[-1].startswith(f"best: {best}, pearson {scores[best]:.2f}; ")
    assert load(workdir).extra["scores"]["pearson"] == scores[best]
    assert {p.name for p in (workdir / "sweep" / best).iterdir()} == {
        *("config.json", "metrics.jsonl", "predictions", "results.json", "tensorboard")
    }
    check_end(workdir, workdir)


def test_a_run_of_a_sweep_equals_a_single_run_of_its_config(
    uninterrupted, config, metric_lines, tmp_path
):
    optimizer = dataclasses.replace(config.optimizer, learning_rate=1e-2)
    alone = dataclasses.replace(config, epochs=2, seed=1, optimizer=optimizer)
    run_one(alone, tmp_path, [].append)
    assert metric_lines(tmp_path) == metric_lines(
        uninterrupted[0] / "sweep" / NAMES[-1]
    )


def test_an_interrupted_sweep_resumes_bit_for_bit(uninterrupted, config, tmp_path):
    """The interruption is in the third run, after its first saved model."""
    log = []

    def interrupt(line):
        log.append(line)
        if ran(log) == NAMES[:3] and line.startswith("epoch 2"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(config, tmp_path, interrupt)
    assert (tmp_path / "sweep" / NAMES[2] / "best").exists()
    assert load(tmp_path).extra["scores"]["pearson"] == max(
        score_of(tmp_path, name) for name in NAMES[:2]
    )
    log.clear()
    assert run_sweep(config, tmp_path, log.append) == uninterrupted[1]
    assert ran(log) == NAMES[2:]
    check_end(tmp_path, uninterrupted[0])


def score(config):
    """The score of a simulated run. The fourth run is the best."""
    return 9 - abs(config.seed - 100 * config.optimizer.learning_rate)


@pytest.fixture
def run(config, monkeypatch):
    """A function that runs a sweep of simulated runs: returns result and names."""
    monkeypatch.setattr(tuning, "prepare", lambda config, workdir, log, fold, run: fold)

    def run(workdir, diverges=lambda config: False, **changes):
        def finetune(config, prepared, folder, log, change_settings):
            place = folder.local
            assert prepared is None or prepared.config == config.data  # its fold
            for name in ("best/model.safetensors", "predictions/dev_predictions.tsv"):
                write_json(place / name, place.name)
            write_json(place / "config.json", to_dict(config))
            if diverges(config):
                raise DivergenceError("the loss became nan")
            scores = {"dev": {"pearson": score(config)}}
            results = {"main_metric": "pearson", "scores": scores}
            write_json(place / "results.json", results)
            return results

        monkeypatch.setattr(tuning, "finetune", finetune)
        log = []
        own = dataclasses.replace(config, **changes)
        return run_sweep(own, workdir, log.append), ran(log), log

    return run


@pytest.fixture
def made(run, tmp_path):
    """The workdir of a finished sweep of simulated runs, and a copy to damage."""
    assert run(tmp_path / "made")[0]["best_run"] == NAMES[3]
    shutil.copytree(tmp_path / "made", tmp_path / "copy")
    return tmp_path / "made", tmp_path / "copy"


def test_a_finished_sweep_runs_nothing_again(made, run, tmp_path):
    uninterrupted, copy = made
    target = tmp_path / "precious.tsv"
    target.write_text("content")
    answers = copy / "predictions/dev_predictions.tsv"
    answers.unlink()
    answers.symlink_to(target)
    assert run(copy)[1] == []
    check_end(copy, uninterrupted)
    assert target.read_text() == "content"  # the link's target is unchanged


def test_weights_left_by_a_killed_sweep_are_deleted(made, run, tmp_path):
    uninterrupted, copy = made
    for folder in ("best", "checkpoints/8"):
        write_json(copy / "sweep" / NAMES[0] / folder / "model.safetensors", "left")
    disk = tmp_path / "disk"
    for folder in ("best", "checkpoints"):
        write_json(disk / folder / "8/model.safetensors", "left on another disk")
        (copy / "sweep" / NAMES[1] / folder).symlink_to(disk / folder)
    assert run(copy)[1] == []
    check_end(copy, uninterrupted)
    assert list(copy.rglob("checkpoints")) == [
        copy / "sweep" / NAMES[1] / "checkpoints"  # the link
    ]
    assert sorted(disk.rglob("*")) == [disk / "best", disk / "checkpoints"]


def test_of_runs_with_equal_scores_the_first_by_name_is_the_best(made, run):
    _, copy = made
    path = copy / "sweep" / NAMES[1] / "results.json"
    path.write_text((copy / "sweep" / NAMES[3] / "results.json").read_text())
    write_json(copy / "sweep" / NAMES[1] / "best/model.safetensors", NAMES[1])
    content, names, _ = run(copy)
    assert (content["best_run"], names) == (min(NAMES[1], NAMES[3]), [])


@pytest.mark.parametrize("name", NAMES[::3])
def test_only_a_run_without_results_runs_again(name, made, run):
    uninterrupted, copy = made
    (copy / "sweep" / name / "results.json").unlink()
    assert run(copy)[1] == [name]
    check_end(copy, uninterrupted)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
@pytest.mark.parametrize("train", [run_one, run_sweep])
def test_a_link_that_cannot_be_replaced_is_an_error_before_training(
    train, config, monkeypatch, tmp_path
):
    (tmp_path / "best").symlink_to("/proc/1")
    monkeypatch.setattr(tuning, "prepare", lambda *_: pytest.fail("read the data"))
    with pytest.raises(UserError, match="best is a link to /proc/1, which cannot be"):
        train(config, tmp_path)


def test_a_deleted_best_model_is_reported(made, run):
    uninterrupted, copy = made
    shutil.rmtree(copy / "best")
    with pytest.raises(UserError, match=rf"best is missing.*{NAMES[3]}/results.json"):
        run(copy)
    (copy / "sweep" / NAMES[3] / "results.json").unlink()
    assert run(copy)[1] == [NAMES[3]]
    check_end(copy, uninterrupted)


@pytest.mark.parametrize("old_model", ["", "best", ".best.old"])
def test_an_interrupted_move_of_the_best_model_is_repeated(old_model, made, run):
    uninterrupted, copy = made
    (copy / "best").rename(copy / "sweep" / NAMES[3] / "best")
    if old_model:
        write_json(copy / old_model / "model.safetensors", "another model")
    run(copy)
    check_end(copy, uninterrupted)


def test_points_may_be_added_in_any_order(made, run):
    _, copy = made
    grid = SweepConfig(**GRID | {"learning_rate": (1e-6, 1e-5, 1e-2)})
    content, names, _ = run(copy, sweep=grid)
    assert names == [f"batch8-rate1e-06-epochs2-seed{seed}" for seed in (0, 1)]
    assert len(content["variants"]) == 3
    assert content["best_run"] == NAMES[3]
    # The best model of all runs is kept, including runs outside the grid.
    best = (copy / "best/model.safetensors").read_text()
    content, _, _ = run(copy, sweep=SweepConfig(**GRID | {"learning_rate": (1e-6,)}))
    assert (content["best_run"], len(content["variants"])) == (NAMES[3], 1)
    assert (copy / "best/model.safetensors").read_text() == best


def test_each_fold_is_dev_of_a_run_and_the_table_has_the_standard_error(run, tmp_path):
    grid = SweepConfig(**GRID | {"folds": 3})
    content, names, log = run(tmp_path, sweep=grid)
    assert names == [
        f"batch8-rate{rate}-epochs2-seed{seed}-fold{fold}"
        for seed in (0, 1)
        for fold in range(3)
        for rate in ("1e-05", "0.01")
    ]
    dirs = {}
    for name in names:
        saved = json.loads((tmp_path / "sweep" / name / "config.json").read_text())
        dirs.setdefault(saved["data"]["dir"], []).append(name)
    assert [len(runs) for runs in dirs.values()] == [2] * 6  # all points share a fold
    variant = content["variants"]["batch8-rate1e-05-epochs2"]["scores"]["pearson"]
    assert variant["standard_error"] == statistics.stdev(variant["scores"]) / 6**0.5
    assert len(variant["scores"]) == 6
    mean, error = statistics.mean(variant["scores"]), variant["standard_error"]
    assert f"| batch8-rate1e-05-epochs2  | {mean:.1f} ± {error:.1f}" in log[-2]
    assert "Mean ± standard error over 3 folds and the seeds 0, 1; in" in log[-2]
    # The sweep resumes after an interruption.
    (tmp_path / "sweep" / names[4] / "results.json").unlink()
    assert run(tmp_path, sweep=grid)[:2] == (content, [names[4]])
    path = tmp_path / "sweep" / names[0] / "config.json"
    settings = json.loads(path.read_text())
    settings["data"]["dir"] = "rows:ce1e4031631f"  # as version 0.2 wrote it
    for note in ("labels", "content", "start"):
        settings.pop(note, None)
    path.write_text(json.dumps(settings))
    with pytest.raises(
        UserError, match=f"{names[0]} holds a run of version 0.2 on .* a"
    ):
        run(tmp_path, sweep=grid)


def test_a_diverged_run_is_counted_and_does_not_run_again(run, tmp_path):
    def diverges(config):
        return config.seed == 1 or config.optimizer.learning_rate == 1e-2

    content, names, log = run(tmp_path, diverges)
    assert names == NAMES
    assert log.count("diverged: the loss became nan") == 3
    assert content["best_run"] == NAMES[0]
    (model,) = tmp_path.rglob("model.safetensors")
    assert NAMES[0] in model.read_text()
    assert [variant["diverged"] for variant in content["variants"].values()] == [1, 2]
    assert "| batch8-rate0.01-epochs2   | -        | 2         |" in log[-2]
    assert run(tmp_path, diverges)[:2] == (content, [])
    shutil.rmtree(tmp_path)
    with pytest.raises(UserError, match=r"every run in .*sweep diverged; lower"):
        run(tmp_path, lambda config: True)


def test_other_settings_are_refused_before_a_run_starts(made, run, config, tmp_path):
    _, copy = made
    other_points = SweepConfig(**GRID | {"batch_size": (16,)})
    for grid in (config.sweep, other_points):
        with pytest.raises(UserError, match="train_rows: 0 -> 8"):
            run(copy, train_rows=8, sweep=grid)
    with locked(copy), pytest.raises(UserError, match="is in use by process"):
        run(copy)
    with pytest.raises(UserError, match="holds a sweep; use another workdir"):
        run_one(config, copy)
    write_json(tmp_path / "single/config.json", {})
    with pytest.raises(UserError, match="holds a single run"):
        run(tmp_path / "single")


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
        ({"phases": (PHASE,)}, r"left-seed3 holds another run .*steps: 4 -> 5"),
        ({"optimizer": {"learning_rate": 2e-3}}, "learning_rate: 0.001 -> 0.002"),
        ({"eval_batches": 2}, "eval_batches: 1 -> 2"),
        ({"init_from": "other"}, "left-seed3 holds another run .*init_from: '' -> 'ot"),
        ({"data": {"lower_case": False}}, "left-seed3 holds another run .*lower_case"),
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
        done.write_table(folder / "table.json")
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
        return sweep.scores_of(study.result(part))[part.partition("/")[0]]

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
    assert "14 of 14 runs are finished" in lines[-1]
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
    with pytest.raises(UserError, match=r"another run \(first: 2 -> 1"):
        Study(dataclasses.replace(study, pairs_per_set=1), folder).run()


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

    monkeypatch.setattr(sweep, "pretrain", diverge)
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
    with pytest.raises(UserError, match="--seeds: invalid"):
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
