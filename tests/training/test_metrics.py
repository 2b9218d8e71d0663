import json

from bert_jax.training.metrics import MetricWriter, read_metrics


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
