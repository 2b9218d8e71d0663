"""Makes this folder with bert_jax 0.2.0 (0d29e5c5). Later versions resume its runs.

All paths are relative to this folder. The runs start with ../v0_1_0/exported/mlm_nsp.
  tasks/        train.csv and dev.csv with the classes 0 to 11
  runs/files    an unfinished fine-tuning on tasks/
  runs/rows     an unfinished fine-tuning on rows of Python, with a tenth as dev
  runs/tagging  an unfinished tagging of rows of Python; its labels lack I-SHIP, I-TRIP
  runs/finished a finished fine-tuning on rows of Python
  expected.json labels, step of the checkpoint, and the scores that 0.2.0 had at the end

The classes of 0.2.0 are sorted as texts: 0, 1, 10, 11, 2.

    python tests/golden/v0_2_0/make.py     (in a checkout of 0d29e5c5, with this file)
"""

import json
import os
import shutil
from pathlib import Path

import bert_jax
from bert_jax import tasks
from bert_jax.training.config import finetune_config
from bert_jax.training.sweep import run_one

FOLDER = Path(__file__).parent
INIT = "../v0_1_0/exported/mlm_nsp"
WORDS = [
    "the",
    "whale",
    "sea",
    "ship",
    "good",
    "bad",
    "old",
    "men",
    "long",
    "voyage",
    "it",
    "was",
]
# Four rows of each class. The word of a text gives its class.
ROWS = [(f"{word} {word} {word}", number) for number, word in enumerate(WORDS)] * 4
SENTENCES = [
    (["the", "ship", "is", "here"], ["O", "I-SHIP", "O", "O"]),
    (["old", "men", "of", "the", "sea"], ["B-MEN", "I-MEN", "O", "O", "O"]),
    (["it", "was", "a", "long", "voyage"], ["O", "O", "O", "O", "B-TRIP"]),
] * 4
SETTINGS = dict(
    init_from=INIT,
    learning_rate=1e-2,
    batch_size=4,
    epochs=10,
    bias_correction=True,
    seed=3,
    checkpoint_every=70,
    log_every=10,
    buckets=1,
    model=dict(hidden_dropout=0.0, attention_dropout=0.0),
)


def call(name: str) -> dict:
    """The arguments of bert_jax.finetune for a run on rows of Python."""
    task, changes = tasks.classification(max_length=16), {}
    if name == "tagging":
        task, changes = (
            tasks.tagging(max_length=16),
            {"checkpoint_every": 20, "learning_rate": 3e-2},
        )
    rows = SENTENCES if name == "tagging" else ROWS
    changes["epochs"] = 2 if name == "finished" else SETTINGS["epochs"]
    return dict(task=task, train=rows, workdir=f"runs/{name}") | SETTINGS | changes


def file_settings() -> dict:
    """The settings of the run on tasks/."""
    settings = dict(SETTINGS)
    names = ("learning_rate", "bias_correction")
    optimizer = {name: settings.pop(name) for name in names}
    data = dict(task="table", dir="tasks", max_length=16)
    family = dict(family="classification", data=data, optimizer=optimizer)
    return settings | family


def interrupted(run, line: str) -> None:
    """Starts a run, and interrupts it at a log line that starts with ``line``."""

    def log(text: str) -> None:
        print(text)
        if text.startswith(line):
            raise KeyboardInterrupt

    try:
        run(log)
    except KeyboardInterrupt:
        return
    raise AssertionError(f"there was no line {line}")


def finish_copy(workdir: str, run) -> dict:
    """Resumes a copy of a run to its end. Returns what a test expects."""
    copy = Path("copies") / workdir
    steps = [int(path.name) for path in Path(workdir, "checkpoints").iterdir()]
    shutil.copytree(workdir, copy)
    log = []
    run(str(copy), log.append)
    assert f"resuming at step {steps[0]}" in log
    scores = json.loads((copy / "results.json").read_text())["scores"]
    labels = list(bert_jax.load(copy).labels)
    return {"step": steps[0], "labels": labels, "scores": scores}


def main() -> None:
    """Writes all files again."""
    os.chdir(FOLDER)
    for name in ("tasks", "runs", "copies"):
        shutil.rmtree(name, ignore_errors=True)
    Path("tasks").mkdir()
    lines = [f"{text},{label}\n" for text, label in ROWS]
    Path("tasks/train.csv").write_text("".join(["text,label\n", *lines]))
    Path("tasks/dev.csv").write_text("".join(["text,label\n", *lines[:12]]))
    config = finetune_config(file_settings())
    interrupted(lambda log: run_one(config, "runs/files", log), "step 80/")
    expected = {
        "files": finish_copy("runs/files", lambda at, log: run_one(config, at, log))
    }
    for name, line in (("rows", "step 80/"), ("tagging", "step 30/")):
        arguments = call(name)
        interrupted(
            lambda log, arguments=arguments: bert_jax.finetune(**arguments, log=log),
            line,
        )

        def resume(at: str, log, arguments=arguments) -> None:
            bert_jax.finetune(**arguments | {"workdir": at, "log": log})

        expected[name] = finish_copy(f"runs/{name}", resume)
    model = bert_jax.finetune(**call("finished"))
    expected["finished"] = {"labels": list(model.labels), "scores": model.scores}
    Path("expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    shutil.rmtree("copies")
    for path in sorted(Path().rglob("*")):
        if path.name in ("tensorboard", ".lock") or path.suffix in (".png", ".html"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


if __name__ == "__main__":
    main()
