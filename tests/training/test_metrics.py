import json
import sys
import types

import jax
import jax.numpy as jnp
import pytest

from bert_jax.runs import read_metrics
from bert_jax.training import metrics
from bert_jax.training.config import OptimizerConfig
from bert_jax.training.metrics import (
    PEAK_FLOPS,
    MetricWriter,
    RunProgress,
    open_tracker,
    peak_flops,
)
from bert_jax.training.optimizer import make_schedule


def test_resuming_drops_later_and_partial_lines_and_keeps_the_rest(tmp_path):
    writer = MetricWriter(tmp_path, 0)
    for step in range(1, 6):
        writer.write(step, "train", {"loss": 1 / 3 / step})
    writer.close()
    path = tmp_path / "metrics.jsonl"
    before = path.read_text().splitlines()
    path.write_text("\n".join(before) + '\n{"step": 6, "spl')
    writer = MetricWriter(tmp_path, 3)
    assert path.read_text().splitlines() == before[:3]
    writer.write(4, "train", {"loss": 1 / 3 / 4})
    writer.close()
    assert path.read_text().splitlines() == before[:4]
    assert [line["step"] for line in read_metrics(path)] == [1, 2, 3, 4]


@pytest.mark.parametrize("damage", [b"{", b"\xff\xfe", b"7", b'{"split": "a"}'])
def test_only_the_damaged_line_is_dropped(damage, tmp_path, caplog):
    lines = [
        json.dumps({"step": n, "split": "train", "loss": 1 / n}) for n in range(1, 9)
    ]
    path = tmp_path / "metrics.jsonl"
    content = [line.encode() for line in lines]
    content[2] = damage
    path.write_bytes(b"\n".join([*content, b""]))
    MetricWriter(tmp_path, 6).close()
    assert path.read_text().splitlines() == [*lines[:2], *lines[3:6]]
    (record,) = caplog.records
    assert record.message.startswith(f"{path}:3 is damaged and left out; expected")


@pytest.fixture
def clock(monkeypatch):
    """A list with the time in seconds, which a test sets."""
    seconds = [0.0]
    monkeypatch.setattr(metrics.time, "perf_counter", lambda: seconds[0])
    return seconds


@pytest.fixture
def run_steps(clock):
    """A function of a number of steps: the log of a run of 100 steps of 3 seconds."""
    optimizer = OptimizerConfig(learning_rate=1e-3)
    config = types.SimpleNamespace(optimizer=optimizer)
    objective = types.SimpleNamespace(flops=lambda batch: 1.0)
    schedule = make_schedule(optimizer, 100)

    def run(steps):
        log = []
        arguments = config, objective, schedule, None, log.append, RunProgress(), 0
        reporter = metrics.Reporter(*arguments)
        batch = {"input_ids": jnp.zeros((8, 16), jnp.int32)}
        for step in range(2, steps + 2):  # the first step compiles
            clock[0] += 3
            reporter.add_step(step, batch, 0.0, {})
        reporter.bar.close()
        return log

    return run


def test_the_time_left_is_logged_after_ten_steps(run_steps):
    assert run_steps(9) == []
    assert run_steps(10) == run_steps(25) == ["step 11/100  about 04:27 left"]


def test_the_rates_of_a_line_are_of_its_window(clock, monkeypatch):
    """Compilations, evaluations and other windows are not counted."""
    monkeypatch.setattr(metrics, "peak_flops", lambda devices: 1e6)
    optimizer = OptimizerConfig(learning_rate=1e-3)
    config = types.SimpleNamespace(optimizer=optimizer, mesh=None, accumulation=1)
    objective = types.SimpleNamespace(
        flops=lambda batch: 3e5, metrics=lambda sums: {}, summary=lambda metrics: ""
    )
    lines = []
    writer = types.SimpleNamespace(write=lambda *line: lines.append(line))
    log, schedule = lambda line: None, make_schedule(optimizer, 100)
    progress = RunProgress(seconds=40.0)
    reporter = metrics.Reporter(
        config, objective, schedule, writer, log, progress, first=6
    )
    batch = {"input_ids": jnp.zeros((8, 16), jnp.int32)}
    names = ("steps", "step_loss", "grad_norm", "skipped", "tokens", "computed_tokens")
    sums = dict.fromkeys(names, 1.0) | {"skipped": 0.0}
    clock[0] += 9
    reporter.start_window()
    for step, count, wait in ((8, 2, 0.6), (12, 4, 1.2)):
        for _ in range(count):
            clock[0] += 3
            reporter.add_step(step, batch, wait, {})
        reporter.report(step, sums)
    reporter.bar.close()
    both = {"tokens_per_second": 128 / 3, "mfu": 0.1}
    first = both | {"data_wait": 0.2, "seconds_left": 92 * 3, "seconds": 55}
    second = both | {"data_wait": 0.4, "seconds_left": 88 * 3, "seconds": 67}
    assert [line["computed_tokens"] for _, _, line in lines] == [1, 2]
    for (_, _, line), rates in zip(lines, (first, second), strict=True):
        assert {name: line[name] for name in rates} == pytest.approx(rates)


def test_peaks_are_those_of_dense_bfloat16_products():
    """NVIDIA's data sheets list them with sparsity, which doubles them, since A100."""
    with_sparsity = {"A100": 624, "L4": 242, "H100": 1979, "H200": 1979, "B200": 4500}
    with_sparsity |= {"A10": 250, "L40": 362.1, "GB200": 5000}
    for name, teraflops in with_sparsity.items():
        assert 2 * PEAK_FLOPS[f"NVIDIA {name}"] == pytest.approx(teraflops * 1e12, 1e-3)
    # Google's pages list TPU v4 and later by chip, and v2 and v3 by chip of two devices.
    by_chip = {"v4": 275, "v5 lite": 197, "v5e": 197, "v5": 459, "v6": 918, "v6e": 918}
    for name, teraflops in by_chip.items():
        assert PEAK_FLOPS[f"TPU {name}"] == teraflops * 1e12
    for name, teraflops in {" v2": 45, " v3": 123, "7x": 2307}.items():
        assert PEAK_FLOPS[f"TPU{name}"] == teraflops * 1e12 / 2


def test_the_longest_matching_device_name_is_used():
    def peak(kind):
        return peak_flops([types.SimpleNamespace(device_kind=kind)] * 2)

    assert peak("TPU v5 lite") == 2 * 197e12
    assert peak("TPU v5p") == peak("TPU v5") == 2 * 459e12
    assert peak("TPU v6 lite") == 2 * 918e12
    assert peak("TPU v9") is peak_flops(jax.devices()) is None
    # Variants of a GPU, and GPUs whose names start with the name of another GPU.
    assert peak("NVIDIA H100 80GB HBM3") == peak("NVIDIA H200") == 2 * 989.4e12
    assert peak("NVIDIA H100 PCIe") == 2 * 756e12
    assert peak("NVIDIA H100 NVL") == peak("NVIDIA H200 NVL") == 2 * 835e12
    assert peak("NVIDIA A100-SXM4-40GB") == peak("NVIDIA A100 80GB PCIe") == 2 * 312e12
    assert peak("NVIDIA A10") == 2 * 125e12
    assert peak("NVIDIA L4") == 2 * 121e12
    assert peak("NVIDIA L40S") == 2 * 362e12
    assert peak("Tesla V100-PCIE-16GB") is None  # without products of bfloat16
    assert peak("NVIDIA A10G") is peak("NVIDIA H20") is None
    assert peak("NVIDIA H100 80GB HBM3 MIG 1g.10gb") is None


@pytest.fixture
def tracker(monkeypatch):
    """A module that replaces wandb and records its calls."""
    calls = []
    library = types.ModuleType("wandb")
    for name in ("init", "log", "finish"):

        def call(*arguments, called=name, **settings):
            calls.append((called, *arguments, settings))

        setattr(library, name, call)
    monkeypatch.setitem(sys.modules, "wandb", library)
    return calls


def test_a_report_is_written_as_a_line_and_sent_to_trackers(tracker, tmp_path):
    library = sys.modules["wandb"]
    open_tracker(library, "tiny", "5f3a", {"seed": 3})
    writer = MetricWriter(tmp_path, 0, library)
    writer.write(5, "train", {"loss": 2.5, "mfu": None})
    writer.write(5, "eval", {"loss": float("inf"), "accuracy": 0.5})
    writer.close()
    first, last = (tmp_path / "metrics.jsonl").read_text().splitlines()
    expected = {"step": 5, "split": "train", "loss": 2.5, "mfu": None}
    assert json.loads(first) == expected
    assert json.loads(last)["loss"] == float("inf")
    assert tracker == [
        (
            "init",
            dict(
                project="bert_jax",
                name="tiny",
                id="5f3a",
                config={"seed": 3},
                resume="allow",
            ),
        ),
        ("log", {"train/loss": 2.5}, {"step": 5}),
        ("log", {"eval/accuracy": 0.5}, {"step": 5}),
        ("finish", {}),
    ]


@pytest.mark.parametrize("step", [0, 1])
def test_metrics_are_not_written_through_a_link(tmp_path, step):
    target, workdir = tmp_path / "precious.jsonl", tmp_path / "run"
    line = '{"step": 1, "split": "train", "loss": 2.0}\n'
    target.write_text(line)
    workdir.mkdir()
    (workdir / "metrics.jsonl").symlink_to(target)
    writer = MetricWriter(workdir, step)
    writer.write(2, "train", {"loss": 1.0})
    writer.close()
    assert target.read_text() == line
    assert not (workdir / "metrics.jsonl").is_symlink()
