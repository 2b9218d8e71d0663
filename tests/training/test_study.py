"""Studies: run, interrupted, resumed and summarised."""

import dataclasses
import json
import statistics

import jax
import pytest

from bert_jax import figures
from bert_jax.commands import study as command
from bert_jax.errors import DivergenceError, UserError
from bert_jax.parallel.mesh import make_mesh
from bert_jax.runs import read_runs
from bert_jax.settings import from_settings
from bert_jax.training import pretrain
from bert_jax.training import study as studies
from bert_jax.training.config import DataConfig, StudyConfig
from bert_jax.training.study import Study, flops

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
    """FILE:ARGUMENT of the study."""
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
    """The study of one variant and seed, whose pretraining has some settings changed."""
    settings = study.variants[name].pretrain
    for group, value in changes.items():
        group_of = settings.get(group)
        value = group_of | value if isinstance(value, dict) else value
        settings = settings | {group: value}
    variant = dataclasses.replace(study.variants[name], pretrain=settings)
    return dataclasses.replace(study, variants={name: variant}, seeds=(3,))


def ran(log):
    return [line.removeprefix("== ") for line in log if line.startswith("== ")]


@pytest.fixture(scope="module")
def resumed(study, tmp_path_factory, one_device):
    """A study that was interrupted and resumed: its folder, and the parts of both calls."""
    folder, first, second = tmp_path_factory.mktemp("resumed"), [], []

    def interrupt(line):
        first.append(line)
        if line.startswith("step 2/4"):
            raise KeyboardInterrupt

    with one_device(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            pretrain, "make_mesh", lambda config: make_mesh(config, jax.devices()[:1])
        )
        with pytest.raises(KeyboardInterrupt):
            Study(one_variant(study), folder, interrupt).run()
        Study(one_variant(study), folder, second.append).run()
    return folder, ran(first), ran(second)


def test_an_interrupted_study_resumes_and_its_table_has_the_runs_scores(study, resumed):
    folder, first, second = resumed
    names = ["text", "pretrain/left-seed3", "finetune/left-topic-seed3"]
    names.append("pairs/left-seed3")
    done = Study(one_variant(study), folder)
    assert list(done.parts) == names
    assert (first, second) == (names[:2], names[1:])
    table = done.table()
    assert (table["finished"], table["parts"]) == (4, 4)
    own = table["variants"]["left"]
    assert (own["steps"], own["tokens"]) == (4, 4 * 8 * 16)
    run, tuned = read_runs([folder / name for name in names[1:3]])
    lm = 100 * run.series("eval", "lm_accuracy")[1][-1]
    assert own["scores"]["held-out lm_accuracy"]["scores"] == [lm]
    accuracy = tuned.results["scores"]["dev"]["accuracy"]
    assert own["scores"]["topic accuracy"]["scores"] == [accuracy]
    assert own["scores"]["minimal pairs"]["mean"] in (0, 50, 100)  # of two pairs
    assert run.config["seed"] == tuned.config["seed"] == 3
    assert not list(folder.rglob("*.safetensors"))


PHASE = dict(steps=5, sequence_length=16, batch_size=8, max_predictions=3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"log_every": 1}, ""),  # does not change scores
        ({"phases": (PHASE,)}, r"left-seed3 holds another run .*steps: 4 -> 5"),
        ({"optimizer": {"learning_rate": 2e-3}}, "learning_rate: 0.001 -> 0.002"),
        ({"eval_batches": 2}, "eval_batches: 1 -> 2"),
        ({"data": {"lower_case": False}}, "text holds another run .*lower_case"),
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


def test_a_text_of_an_older_version_had_the_defaults(study, resumed):
    path = resumed[0] / "text/config.json"
    text = path.read_text()
    older = ("corpus", "vocabulary_size", "lower_case")
    path.write_text(json.dumps({name: json.loads(text)[name] for name in older}))
    assert Study(one_variant(study), resumed[0]).result("text") is not None
    path.write_text(text)


@pytest.fixture(scope="module")
def done(study, tmp_path_factory):
    """The whole study with made-up results: the study and its log."""
    folder, log = tmp_path_factory.mktemp("runs") / "small", []

    def run(self, config, directory, before):
        directory.mkdir(parents=True, exist_ok=True)
        identity = json.dumps(studies._identity(config))
        (directory / "config.json").write_text(identity)
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
        patch.setattr(Study, "_run", run)
        done = Study(study, folder, log.append)
        done.run()
        done.write_table()
        return done, log


def test_the_table_has_means_deviations_and_differences(done):
    study, log = done
    names, table, folder = list(study.parts), study.table(), study.folder
    assert ran(log) == names
    assert len(names) == table["parts"] == table["finished"] == 15
    # Variants with the same pretraining share it.
    assert sum(name.startswith("pretrain") for name in names) == 4
    assert json.loads((folder / "table.json").read_text()) == table
    both, left, slow = table["variants"].values()

    def scores(part):
        return study.result(part)["scores"][part.partition("/")[0]]

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
    lines = (folder / "table.md").read_text().splitlines()
    assert [line.split()[1] for line in lines[2:5]] == ["both", "left", "left_slow"]
    assert "15 of 15 parts are finished" in lines[-1]
    assert "\n".join(lines) in log
    cell = f"{statistics.mean(own):.1f} ± {statistics.stdev(own):.1f}"
    assert f"| {cell} ({mean:+.1f} ± {error:.1f}) |" in lines[4]
    assert len({(len(line), line.count("|")) for line in lines[:5]}) == 1
    assert (folder / "table.png").read_bytes().startswith(b"\x89PNG")
    assert {axes.get_title("left") for axes in figures.study(table).axes} == {
        m for v in table["variants"].values() for m in v["scores"]
    }


def test_a_study_s_folder_is_enough_to_run_it_again(done, capsys):
    folder = done[0].folder
    again, where = command._open(str(folder))
    assert (again, where) == (from_settings(StudyConfig, vars(again), ""), folder)
    assert Study(again, folder).parts == done[0].parts
    command.main([str(folder), "--table"])
    assert (folder / "table.md").read_text() in capsys.readouterr().out


def test_a_seed_may_be_added_and_other_pairs_are_another_study(study, done):
    folder = done[0].folder
    table = Study(dataclasses.replace(study, seeds=(0, 1, 2)), folder).table()
    assert (table["finished"], table["parts"]) == (15, 22)
    with pytest.raises(UserError, match=r"another run \(first: 2 -> 1"):
        Study(dataclasses.replace(study, pairs_per_set=1), folder).run()


def test_a_run_that_diverges_is_counted_and_so_are_those_that_need_it(
    file, tmp_path, monkeypatch
):
    changes = []

    def diverge(*_, change_settings):
        changes.append(change_settings)
        raise DivergenceError("the loss became nan")

    monkeypatch.setattr(studies, "pretrain", diverge)
    monkeypatch.setattr(studies, "prepare_corpus", lambda *_: None)
    monkeypatch.setattr(command.cli, "start", lambda: None)
    (tmp_path / "text").mkdir()
    words = [file, "--workdir", str(tmp_path), "--seeds", "0"]
    command.main([*words, "--part", "text"])
    command.main([*words, "--part", "pretrain/both-seed0", "--change_settings"])
    command.main(words)
    assert changes == [True, False]
    table = json.loads((tmp_path / "table.json").read_text())
    assert table["finished"] == table["parts"] == 8
    assert table["variants"]["both"]["diverged"] == 3
    assert table["variants"]["both"]["scores"] == {}
    assert "diverged" in (tmp_path / "table.md").read_text()


def test_equal_compute_is_equal_to_a_step(study, tmp_path):
    phases = ({**PHASE, "steps": 1000},)
    variants = {
        name: dataclasses.replace(
            variant, pretrain=variant.pretrain | {"phases": phases}
        )
        for name, variant in study.variants.items()
    }
    equal = dataclasses.replace(study, variants=variants, equal_compute=True)
    parts = Study(equal, tmp_path).parts
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
        Study(from_settings(StudyConfig, vars(study) | change, ""), tmp_path)


@pytest.mark.parametrize("group", ["tasks", "variants", "pairs"])
def test_a_missing_file_is_named_before_anything_runs(study, group, tmp_path):
    left, task, log = study.variants["left"], study.tasks["topic"], []
    data = left.pretrain["data"] | {"corpus": ("nowhere",)}
    gone = {
        "tasks": {"topic": task | {"data": task["data"] | {"dir": "nowhere"}}},
        "variants": {
            "left": dataclasses.replace(left, pretrain=left.pretrain | {"data": data})
        },
        "pairs": ("nowhere",),
    }
    other = dataclasses.replace(study, **{group: gone[group]})
    with pytest.raises(UserError, match="nowhere"):
        Study(other, tmp_path, log.append).run()
    assert (log, list(tmp_path.iterdir())) == ([], [])


def test_a_wrong_part_or_seed_is_refused(study, tmp_path):
    with pytest.raises(UserError, match="--seeds=a, expected numbers such as 0,1,2"):
        command.main(["x.py", "--seeds", "a"])
    parts = Study(study, tmp_path)
    with pytest.raises(UserError, match="no part of the study; expected one of text, "):
        parts.run_part("pretrain/all-seed0")
    with pytest.raises(UserError, match="needs text, which is not finished"):
        parts.run_part("pretrain/both-seed0")
