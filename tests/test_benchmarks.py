"""The benchmarks run, at the smallest size and without their peers."""

import json
import os
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent


def test_everything_for_a_gpu_runs_on_a_cpu(python, tmp_path):
    """gpu.sh: pretraining steps, fine-tuning, embedding, into one JSON."""
    output = tmp_path / "gpu.json"
    done = subprocess.run(
        ["bash", "benchmarks/gpu.sh", output, "none"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        env=os.environ
        | {
            "PYTHON": python,
            "SECONDS_IN_ALL": "3600",
            "SIZE": "mini",
            "CASES": "mini:4x32",
            "DROPOUTS": "0.1/0.0",
            "STEPS": "1",
            "COUNT": "40",
            "ROWS": "200",
        },
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(output.read_text())
    assert report["missing"] == [], done.stdout + done.stderr
    (step,) = report["pretraining"]["rows"]
    assert step["case"] == "mini:4x32" and step["system"] == "bert_jax auto"
    assert 4 * 32 / step["s/step"] == step["tokens/s"]
    (run,) = report["pretraining"]["details"][0]["runs"]["bert_jax auto bfloat16"]
    assert len(run["seconds_per_step"]) == 3 and run["model_flops"] > 0
    (epoch,) = report["finetuning"]["sst2 bert_jax"]
    assert epoch["steps"] == 6  # 180 rows in batches of 32
    (vectors,) = report["embedding"]["rows"]
    assert vectors["sentences/s"] == 40 / vectors["s"]
