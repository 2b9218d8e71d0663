import json

import jax

from bert_jax.runs import read_metrics
from bert_jax.training.metrics import MetricWriter, peak_flops


def test_lines_hold_step_split_and_metrics(tmp_path):
    writer = MetricWriter(tmp_path, 0)
    writer.write(1, "train", {"loss": 2.5, "mfu": None})
    writer.write(1, "eval", {"loss": float("inf")})
    writer.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {
        "step": 1,
        "split": "train",
        "loss": 2.5,
        "mfu": None,
    }
    assert len(lines) == 2
    assert any((tmp_path / "tensorboard").iterdir())


def test_resuming_drops_later_and_torn_lines_and_keeps_the_rest_as_it_was(tmp_path):
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


def test_the_longest_device_name_wins(monkeypatch):
    class Device:
        platform = "tpu"

        def __init__(self, kind):
            self.device_kind = kind

    peaks = {}
    for kind in ("TPU v5 lite", "TPU v5p", "TPU v4", "TPU v9"):
        monkeypatch.setattr(jax, "devices", lambda kind=kind: [Device(kind)] * 2)
        peaks[kind] = peak_flops()
    assert peaks == {
        "TPU v5 lite": 2 * 197e12,
        "TPU v5p": 2 * 459e12,
        "TPU v4": 2 * 275e12,
        "TPU v9": None,
    }


def test_a_cpus_peak_is_measured():
    assert 1e9 < peak_flops() < 1e14
