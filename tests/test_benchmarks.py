"""Every benchmark runs at its smallest size, in this process and without peers."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bert_jax.commands import cli, doctor

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]

# Records its arguments instead of running a benchmark.
RECORDER = """#!/bin/sh
[ "$1" = - ] && exec {python} "$@"
printf '%s\\n' "$*" >> {commands}
"""


@pytest.fixture
def start(monkeypatch):
    """A function that runs ``benchmarks/NAME.py FLAGS``, with workers in this process."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr(cli, "start", lambda *arguments: None)
    before = set(sys.modules)
    common = importlib.import_module("common")

    def run_worker(worker):
        module = importlib.import_module(worker.script.removesuffix(".py"))
        options = json.loads(json.dumps(worker.options, default=str))
        return module.measure(SimpleNamespace(**options))

    monkeypatch.setattr(common, "run_worker", run_worker)

    def start(name, *flags):
        monkeypatch.setattr(sys, "argv", [name, *map(str, flags)])
        importlib.import_module(name).main()

    yield start
    for name in set(sys.modules) - before:
        path = getattr(sys.modules[name], "__file__", None) or ""
        if path.startswith(str(ROOT / "benchmarks")):
            del sys.modules[name]


def test_all_commands_of_gpu_sh_run(start, tmp_path):
    """gpu.sh runs doctor and its benchmarks with their flags."""
    recorder, commands = tmp_path / "python", tmp_path / "commands"
    recorder.write_text(RECORDER.format(python=sys.executable, commands=commands))
    recorder.chmod(0o755)
    small = {
        "SIZE": "mini",
        "CASES": "mini:8x32",
        "KERNELS": "plain,xla",
        "WINDOW_ROWS": "1",
        "WINDOW_LENGTH": "384",
        "DROPOUTS": "0.1/0.0",
        "STEPS": "1",
        "COUNT": "20",
        "ROWS": "100",
    }
    subprocess.run(
        ["bash", ROOT / "benchmarks" / "gpu.sh", tmp_path / "gpu.json", "none"],
        env=os.environ | small | {"PYTHON": str(recorder), "TMPDIR": str(tmp_path)},
        check=True,
        capture_output=True,
    )
    content = json.loads((tmp_path / "gpu.json").read_text())
    missing = content["missing"]
    assert missing == ["windows", "pretraining", "embedding", "finetune"]
    assert content["incomplete"] == [] and "== doctor, at" in content["doctor"][0]
    first, *scripts = map(str.split, commands.read_text().splitlines())
    assert first[:3] == ["-m", "bert_jax", "doctor"]
    for flag in first[3::2]:
        assert f"  {flag} " in doctor.__doc__
    reports = {}
    for script, *flags in scripts:
        name = Path(script).stem
        start(name, *flags)
        output = Path(flags[flags.index("--output") + 1])
        if output.is_file():
            reports[name] = json.loads(output.read_text())
    assert sorted(reports) == sorted(missing)
    step, other = reports["pretraining"]["rows"]
    assert step["case"] == "mini:8x32" and step["system"] == "bert_jax (plain)"
    assert 8 * 32 / step["s"] == step["tokens/s"]
    assert other["system"] == "bert_jax (xla)"
    assert other["its time / ours"] == other["s"] / step["s"]
    runs = reports["pretraining"]["runs"]
    (run,) = runs["mini:8x32 0.1/0.0 bert_jax (plain) bfloat16"]
    assert len(run["seconds_per_step"]) == 3 and run["model_flops"] > 0
    kernels = [row["kernel"] for row in reports["windows"]["rows"]]
    assert kernels == ["plain", "plain", "xla", "xla"]
    (epoch,) = reports["finetune"]["runs"]["sst2 bert_jax"]
    assert epoch["steps"] == 3  # 90 rows in batches of 32
    (vectors,) = reports["embedding"]["rows"]
    assert vectors["sentences/s"] == 20 / vectors["s"]


def test_a_peer_is_compared_with_bert_jax(start, monkeypatch, tmp_path):
    common = importlib.import_module("common")
    times = {
        "pretraining_ours.py": dict(seconds_per_step=[1.0, 1.0], peak_flops=200),
        "pretraining_peer.py": dict(seconds_per_step=[2.0, 3.0]),
    }
    rest = dict(first_seconds=9.0, peak_bytes=2**30, batch=4, length=32, model_flops=50)

    def run_worker(worker):
        if worker.options.get("compile"):
            return {"error": "no compiler"}
        return (
            times[worker.script] | rest | {"sources": [f"benchmarks/{worker.script}"]}
        )

    monkeypatch.setattr(common, "run_worker", run_worker)
    monkeypatch.setattr(common, "RESULTS", tmp_path / "results")
    old = {"what": "A step", "table": "steps", "sources": ["bert_jax"], "value": 9}
    path = tmp_path / "results/step_autocast_transformers.json"
    path.parent.mkdir()
    path.write_text(json.dumps(old))
    start(
        *("pretraining", "--peer_python=/a/python", "--peer_modes=eager,compile"),
        *("--peer_dtypes=autocast", "--dtypes=bfloat16", f"--output={tmp_path}/report"),
        "--result=step",
    )
    result = json.loads(path.read_text())
    assert [*tmp_path.glob("results/*")] == [path]
    assert (result["what"], result["table"]) == ("A step", "steps")
    assert result.items() >= dict(value=1.0, spread="0%", unit="s").items()
    # The files of both workers and of this process.
    expected = [*times, "common.py", "pretraining.py"]
    assert {f"benchmarks/{name}" for name in expected} <= set(result["sources"])
    assert (
        "bert_jax/errors.py" in result["sources"]
        and "bert_jax" not in result["sources"]
    )
    assert (result["peer"], result["peer_value"]) == ("transformers", 2.5)
    assert result["ratio"] == 2.5 and result["commit"] and result["machine"]
    assert " --peer_python=python --peer_modes=eager,compile " in result["command"]
    ours, peer, failed = json.loads((tmp_path / "report").read_text())["rows"]
    assert (ours["s"], ours["MFU"], ours["its time / ours"]) == (1.0, "25.0%", None)
    assert (peer["s"], peer["spread"], peer["MFU"]) == (2.5, "40%", "10.0%")
    assert peer["its time / ours"] == 2.5 and failed["s"] == "no compiler"


def test_the_data_benchmark_runs(start, monkeypatch, tmp_path):
    text = tmp_path / "text.txt"
    sentences = [f"The whale number {i} was seen from the ship ." for i in range(400)]
    text.write_text("\n\n".join("\n".join(sentences[i::8]) for i in range(8)))
    output = tmp_path / "report"
    common = importlib.import_module("common")
    monkeypatch.setattr(common, "RESULTS", tmp_path / "results")
    start(
        *(
            "data",
            "--result=data",
            f"--text={text}",
            "--format=lines",
            "--repeats=1",
            "--batch=8",
        ),
        *("--batches=2", f"--output={output}"),
    )
    report = json.loads(output.read_text())
    assert [row["what"] for row in report["text"]] == [
        "prepare text.txt: bert_jax",
        "tokenise: bert_jax",
        "tokenise: tokenizers",
    ]
    published = sorted(path.stem for path in tmp_path.glob("results/*"))
    assert "data_draw_512_token_packed" in published and len(published) == 8
    packed = [row for row in report["draw"] if row["packed"] == "yes"]
    assert len(packed) == 3 and all(row["pairs"] == 8 for row in packed)


def test_scores_beside_the_trainer_are_published(start, monkeypatch, tmp_path):
    common, finetune = map(importlib.import_module, ("common", "finetune"))
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    run = dict(process_seconds=9.0, cpu_seconds=9.0, padding_share=0.1)
    ours = [run | dict(train_seconds=2.0, score=score) for score in (80.0, 82.0)]
    peer = [run | dict(train_seconds=5.0, score=score) for score in (81.0, 81.0)]
    failed = [{"error": "no"}]
    grouped = [run | dict(train_seconds=4.0, score=score) for score in (79.0, 80.0)]
    random, by_length = finetune.PEERS
    systems = ("bert_jax", random, by_length)
    results = {}
    for task, runs in ("sst2", (ours, peer, grouped)), ("mrpc", (ours, peer, failed)):
        for system, of_system in zip(systems, runs, strict=True):
            results[task, system] = of_system
    options = SimpleNamespace(result="tune", dtype="float32")
    ours[0]["sources"] = ours[1]["sources"] = ["experiments/finetune/glue.py"]
    finetune.publish_rows(finetune.summary(results), results, options)
    paths = sorted(tmp_path.iterdir())
    names = ["tune_sst2_float32", "tune_sst2_float32_grouped"]
    assert [path.stem for path in paths] == ["tune_mrpc_float32", *names]
    _, of_random, result = (json.loads(path.read_text()) for path in paths)
    assert (of_random["peer"], of_random["ratio"]) == (random, 2.5)
    assert result["metric"] == "accuracy"
    assert "experiments/finetune/glue.py" in result["sources"]
    assert (result["score"], result["peer_score"]) == ("81.0 ± 1.4", "79.5 ± 0.7")
    assert (result["value"], result["peer_value"], result["ratio"]) == (2.0, 4.0, 2.0)
    assert result["peer"] == by_length


def test_windows_are_compared_with_attention_to_all_tokens(
    start, monkeypatch, tmp_path
):
    common = importlib.import_module("common")
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    flags = ("--rows=1", "--length=384", "--repeats=1", "--result=windows")
    start("windows", *flags, "--kernels=plain", f"--output={tmp_path / 'report'}")
    rows = json.loads((tmp_path / "report").read_text())["rows"]
    assert [row["what"] for row in rows] == ["attention", "layer"]
    published = json.loads((tmp_path / "windows_attention_plain.json").read_text())
    assert published["ratio"] == pytest.approx(1 / rows[0]["ratio"], rel=0.01)


def test_a_step_of_ettin_learns_from_masked_tokens_alone(start, tmp_path):
    flags = ("--cases=ettin_17m:8x16", "--dropouts=0.0", "--dtypes=float32")
    few = ("--runs=1", "--repeats=1", "--steps=1")
    start("pretraining", *flags, *few, f"--output={tmp_path / 'report'}")
    ((run,),) = json.loads((tmp_path / "report").read_text())["runs"].values()
    # The loss of random parameters is near ln(50,368).
    assert 10.5 < run["loss"] < 11.5


def test_a_worker_returns_the_files_that_it_ran(monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    common = importlib.import_module("common")
    monkeypatch.setattr(sys, "argv", ["worker", '{"steps": 3}'])
    common.answer(lambda options: {"steps": options.steps, "sources": ["a/config.py"]})
    results = json.loads(capsys.readouterr().out)
    assert results["steps"] == 3
    expected = {"a/config.py", "benchmarks/common.py", "bert_jax/commands/cli.py"}
    assert expected <= set(results["sources"])
    assert all((ROOT / file).is_file() for file in results["sources"][1:])
    # Neither tests nor installed packages.
    rooms = {file.split("/")[0] for file in results["sources"]}
    assert rooms == {"a", "benchmarks", "bert_jax"}


def test_scores_of_pairs_are_compared_set_by_set(start, monkeypatch, tmp_path, capsys):
    pairs = {
        "a": [("x", "bad"), ("left", "x"), ("out", "x"), ("yy", "yy")],
        "b": [("left", "x"), ("bad", "near"), ("x", "bad"), ("out", "x")],
    }
    for name, rows in pairs.items():
        lines = [dict(sentence_good=good, sentence_bad=bad) for good, bad in rows]
        (tmp_path / name).write_text("\n".join(map(json.dumps, lines)))
    scores = {"x": -1.0, "bad": -9.0, "near": -9.0001, "left": -2.0, "yy": -3.0}
    common, module = map(importlib.import_module, ("common", "blimp_peer"))
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    monkeypatch.setattr(module, "make_scorer", lambda folder: scores.__getitem__)

    def compare(a, b):
        shares = {str(tmp_path / "a"): a / 2, str(tmp_path / "b"): b / 2}
        ours = {"accuracy": (a + b) / 4, "by_set": shares, "pairs": 4}
        (tmp_path / "ours").write_text(json.dumps(ours))
        flags = f"--output={tmp_path}/report", "--pairs_range=1:3", "--result=same"
        start("blimp_peer", f"--ours={tmp_path}/ours", "--model=m", *flags)
        return json.loads((tmp_path / "report").read_text())["rows"]

    scores["out"] = 0.0
    first, second = compare(1, 2)  # right: "out" of a, and both of b
    assert [first[k] for k in ("pairs", "right, transformers")] == [2, 1]
    assert (second["right, transformers"], second["nearly equal scores"]) == (2, 1)
    compare(1, 1)  # rounding may decide one pair of b
    result = json.loads((tmp_path / "same_pairs.json").read_text())
    assert (result["value"], result["unit"], result["table"]) == (1, "pairs", "same")
    assert {"bert_jax/inference", "benchmarks/blimp_peer.py"} < {*result["sources"]}
    assert "bert_jax 50.00%" in capsys.readouterr().out
    for a, b in ((2, 2), (0, 2), (1, 0)):
        with pytest.raises(SystemExit, match="right, transformers"):
            compare(a, b)
