"""Makes this folder with bert_jax 0.1.0 (29cf390). Later versions read its files.

All paths are relative to this folder, so commands must run in this folder.
  text/         a prepared store, and its source text.txt
  tasks/        a data set of two classes, and minimal pairs
  exported/     a Hugging Face folder of every objective, and of every kind of head
  runs/         pretrainings that stopped at step 5 of 6 after a checkpoint at step 4, one
                for each objective; a fine-tuning that stopped; a finished one; a sweep
  study/        a finished study
  expected.json calls of the models in exported/ with the answers of 0.1.0, and a digest of
                their parameters
  expected.npz  embeddings of the models in exported/, and the first batch of text/

    python tests/golden/v0_1_0/make.py     (in a checkout of 29cf390, with this file)
"""

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import jax
import numpy as np

import bert_jax
from bert_jax import tasks
from bert_jax.data.pipeline import TrainingBatches, split_documents
from bert_jax.data.preparation import prepare
from bert_jax.data.store import TokenStore
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.data.vocabulary_training import train_vocabulary
from bert_jax.settings import from_settings
from bert_jax.training.config import StudyConfig, finetune_config, train_config
from bert_jax.training.pretrain import pretrain
from bert_jax.training.study import run_study
from bert_jax.training.sweep import run_one, run_sweep

FOLDER = Path(__file__).parent
VOCABULARY = 256
SIZES = dict(
    vocab_size=VOCABULARY,
    hidden_size=8,
    num_layers=1,
    num_heads=2,
    intermediate_size=16,
    max_positions=32,
    initializer_range=0.3,  # so that every layer matters
)
ALONE = dict(next_sentence=False)
# Settings of model and examples that each objective changes.
OBJECTIVES = {
    "mlm_nsp": ({}, {}),
    "causal": (dict(causal=True), ALONE),
    "two_way": (dict(encoder="lstm", positions="none"), ALONE),
    "electra": ({}, ALONE | dict(mask_share=1.0, random_share=0.0)),
}
ROWS = {
    "classification": [
        ("the whale is good", "yes"),
        ("a bad sea", "no"),
        ("good men at sea", "yes"),
        ("the old ship is bad", "no"),
        ("it was a good long voyage of the old ship", "yes"),
        ("bad men", "no"),
        ("all is good", "yes"),
        ("it was bad", "no"),
    ]
    * 2
}
TEXTS = ["The whale is good.", "It was a bad sea, and a long voyage of the old ship."]
LABELS = [label for _, label in ROWS["classification"]]
ROWS |= {
    "pairs": [(text, "it is so", label) for text, label in ROWS["classification"]],
    "regression": [
        (text, 4.0 if label == "yes" else 1.5) for text, label in ROWS["classification"]
    ],
    "multi_label": [
        (text, [label, "sea"] if "sea" in text else [label])
        for text, label in ROWS["classification"]
    ],
    "sentence_vectors": [
        (text, "all is good", 5.0 if label == "yes" else 1.0)
        for text, label in ROWS["classification"]
    ],
    "tagging": [
        (text.split(), ["B-SEA" if word == "sea" else "O" for word in text.split()])
        for text, _ in ROWS["classification"]
    ],
    "choices": [
        (text, ["it is good", "it is bad"], int(label == "no"))
        for text, label in ROWS["classification"]
    ],
    "squad": [
        ("how is it ?", text, ["good" if label == "yes" else "bad"])
        for text, label in ROWS["classification"]
    ],
}
PREDICTED = {
    "pairs": (TEXTS[0], TEXTS[1]),
    "sentence_vectors": (TEXTS[0], TEXTS[1]),
    "choices": (TEXTS[0], "it is good", "it is bad"),
    "squad": ("how is it ?", TEXTS[1]),
}
BILSTM = dict(width=4, lstm_layers=1)
SHORT = dict(max_length=16)
# By name: the task, settings, and the objective of the checkpoint.
HEADS = {
    "classification": (tasks.classification(**SHORT), {}, "mlm_nsp"),
    "pairs": (tasks.pairs(**SHORT), {}, "mlm_nsp"),
    "regression": (tasks.classification(regression=True, **SHORT), {}, "mlm_nsp"),
    "multi_label": (tasks.multi_label(label="labels", **SHORT), {}, "mlm_nsp"),
    "sentence_vectors": (tasks.sentence_vectors(**SHORT), {}, "mlm_nsp"),
    "tagging": (tasks.tagging(**SHORT), {}, "mlm_nsp"),
    "choices": (tasks.choices(**SHORT), {}, "mlm_nsp"),
    "squad": (
        tasks.squad(max_question_length=8, stride=8, max_length=32),
        {},
        "mlm_nsp",
    ),
    "features": (
        tasks.tagging(**SHORT),
        dict(features=BILSTM | dict(layers=(0, -1))),
        "mlm_nsp",
    ),
    "bilstm": (
        tasks.classification(**SHORT),
        dict(features=BILSTM | dict(bilstm=True)),
        "mlm_nsp",
    ),
    "causal_classification": (tasks.classification(**SHORT), {}, "causal"),
    "two_way_classification": (tasks.classification(**SHORT), {}, "two_way"),
    "electra_classification": (tasks.classification(**SHORT), {}, "electra"),
}


def pretraining(objective: str, **changes) -> dict:
    """Settings of a pretraining of six steps."""
    model, examples = OBJECTIVES[objective]
    return (
        dict(
            objective=f"bert_jax.objectives.{objective}",
            model=SIZES | model,
            data=dict(path="text", holdout=0.2, threads=1, examples=examples),
            optimizer=dict(learning_rate=1e-3, warmup_steps=2),
            phases=(
                dict(steps=6, sequence_length=16, batch_size=8, max_predictions=3),
            ),
            log_every=1,
            eval_every=6,
            eval_batches=1,
            checkpoint_every=4,
            keep_checkpoints=1,
        )
        | changes
    )


def fine_tuning(**changes) -> dict:
    """Settings of a fine-tuning on tasks/, with eight steps."""
    return (
        dict(
            family="classification",
            init_from="exported/mlm_nsp",
            data=dict(task="table", dir="tasks", max_length=16),
            optimizer=dict(learning_rate=1e-2),
            batch_size=4,
            epochs=2,
            log_every=1,
            checkpoint_every=3,
            buckets=1,
        )
        | changes
    )


def interrupted(run, config, workdir: str, line: str) -> None:
    """Starts a run, and interrupts it at a log line that starts with ``line``."""

    def log(text: str) -> None:
        print(text)
        if text.startswith(line):
            raise KeyboardInterrupt

    try:
        run(config, workdir, log)
    except KeyboardInterrupt:
        return
    raise AssertionError(f"{workdir} was not interrupted")


def make_data() -> None:
    """Writes text/ and tasks/."""
    text = FOLDER.parent / "pretraining_data/moby_dick_sentences.txt"
    documents = text.read_text().split("\n\n")[20:28]
    documents = ["\n".join(text.split("\n")[:30]) for text in documents]
    Path("text").mkdir()
    Path("text/text.txt").write_text("\n\n".join(documents))
    sentences = [s for document in documents for s in document.split("\n")]
    tokenizer = train_vocabulary(sentences, VOCABULARY)
    assert tokenizer.vocab_size == VOCABULARY
    prepare(["text/text.txt"], tokenizer, Path("text"), workers=1)
    Path("tasks").mkdir()
    lines = [f"{text},{label}\n" for text, label in ROWS["classification"]]
    for split in ("train", "dev"):
        Path(f"tasks/{split}.csv").write_text("".join(["text,label\n", *lines]))
    pair = {"sentence_good": "the sea is here", "sentence_bad": "sea the here is"}
    Path("tasks/order.jsonl").write_text(f"{json.dumps(pair)}\n" * 3)


def make_runs() -> None:
    """Writes exported/ and runs/."""
    for objective in OBJECTIVES:
        config = train_config(pretraining(objective))
        interrupted(pretrain, config, f"runs/{objective}", "step 5/6")
        bert_jax.load(f"runs/{objective}").save(f"exported/{objective}")
    for name, (task, settings, objective) in HEADS.items():
        with tempfile.TemporaryDirectory() as workdir:
            bert_jax.finetune(
                task,
                init_from=f"exported/{objective}",
                train=ROWS[task_of(name)],
                dev=ROWS[task_of(name)],
                workdir=workdir,
                epochs=2,
                batch_size=4,
                learning_rate=1e-2,
                **settings,
            )
            shutil.copytree(f"{workdir}/best", f"exported/{name}")
    run_one(finetune_config(fine_tuning()), "runs/finetune_finished")
    config = finetune_config(fine_tuning())
    interrupted(run_one, config, "runs/finetune_unfinished", "step 7/8")
    grid = dict(batch_size=(4,), learning_rate=(1e-2,), epochs=(1,), seeds=(0, 1))
    run_sweep(finetune_config(fine_tuning(sweep=grid)), "runs/sweep")


def make_study() -> None:
    """Writes study/: a pretraining on a corpus, a fine-tuning, and minimal pairs."""
    data = dict(
        corpus=("text/text.txt",),
        vocabulary_size=VOCABULARY,
        holdout=0.2,
        threads=1,
    )
    task = fine_tuning()
    del task["init_from"]
    study = dict(
        variants=dict(plain=dict(pretrain=pretraining("mlm_nsp", data=data))),
        tasks=dict(clues=task),
        seeds=(0,),
        pairs=("tasks/order.jsonl",),
    )
    run_study(from_settings(StudyConfig, study, ""), Path("study"))


def make_expected() -> None:
    """Writes expected.json and expected.npz."""
    calls: dict[str, list] = {}
    digests: dict[str, str] = {}
    arrays = {f"text/{name}": array for name, array in first_batch().items()}
    for name in (*OBJECTIVES, *HEADS):
        model = bert_jax.load(f"exported/{name}")
        arrays[f"{name}/vectors"] = model(TEXTS).last_hidden_state
        if name in HEADS:
            wanted = {"predict": [PREDICTED.get(name, TEXTS[1])]}
        else:
            wanted = {"encode": [TEXTS[1]]}
            if "mlm" in model.params:
                wanted |= {"fill_mask": ["the [MASK] is old"], "score": [TEXTS[1]]}
            if "nsp" in model.params and model.config.reads == "both sides":
                wanted["next_sentence"] = TEXTS
        calls[name] = []
        digests[name] = digest(model.params)
        for method, arguments in wanted.items():
            answer = getattr(model, method)(*arguments)
            answer = np.asarray(answer).tolist() if method == "encode" else answer
            calls[name].append({"call": method, "of": arguments, "answer": answer})
    np.savez_compressed("expected.npz", texts=TEXTS, **arrays)
    expected = {"parameters": digests, "calls": calls}
    Path("expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def first_batch() -> dict[str, np.ndarray]:
    """The first batch of the pretraining with MLM and NSP."""
    config = train_config(pretraining("mlm_nsp"))
    store = TokenStore(Path("text"))
    training, _ = split_documents(store.info.documents, config.data.holdout)
    batches = TrainingBatches(
        store,
        load_tokenizer(Path("text")),
        config.phases,
        config.data.examples,
        seed=config.seed,
        documents=training,
    )
    return batches[0]


def digest(params: dict) -> str:
    """SHA-256 of all sorted values other than 0. Names and shapes have no effect."""
    values = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])
    return hashlib.sha256(np.sort(values[values != 0]).tobytes()).hexdigest()


def task_of(name: str) -> str:
    """The key of ROWS for a head."""
    if name == "features":
        return "tagging"
    return name if name in ROWS else "classification"


def main() -> None:
    """Writes all files again."""
    os.chdir(FOLDER)
    for name in ("text", "tasks", "exported", "runs", "study"):
        shutil.rmtree(name, ignore_errors=True)
    make_data()
    make_runs()
    make_study()
    make_expected()
    for path in sorted(Path().rglob("*")):
        if path.name in ("tensorboard", ".lock") or path.suffix in (".png", ".html"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


if __name__ == "__main__":
    main()
