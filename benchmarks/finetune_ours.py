"""The worker of finetune.py that fine-tunes with bert_jax."""

import json
from pathlib import Path
from types import SimpleNamespace

from common import answer

from bert_jax.__main__ import main


def measure(options: SimpleNamespace) -> dict:
    """Seconds of training, padding, steps and dev score of ``bert_jax finetune FLAGS``."""
    main(["finetune", *options.flags])
    results = json.loads(Path(options.workdir, "results.json").read_text())
    return {
        "train_seconds": results["train_seconds"],
        "padding_share": results["padding_share"],
        "steps": results["steps"],
        "score": results["scores"]["dev"][options.metric],
        "sources": [options.config],
    }


if __name__ == "__main__":
    answer(measure)
