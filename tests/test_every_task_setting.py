"""Every setting of fine-tuning and of the tasks reaches its place.

See test_every_setting.py. No row needs a program of its model.
"""

import functools
import json
import re

import numpy as np
import pytest

import bert_jax
from bert_jax.commands.config_file import parse
from bert_jax.errors import UserError
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.model.config import FeatureConfig
from bert_jax.objectives.heads import FrozenTagging, Tagging
from bert_jax.objectives.networks import make_model
from bert_jax.settings import all_settings
from bert_jax.tasks.families import FAMILIES
from bert_jax.training import from_python
from bert_jax.training.config import FineTuneConfig, finetune_config
from tests.conftest import WRITERS
from tests.settings_probe import (
    SHARED_KINDS,
    SHARED_ROWS,
    Row,
    Table,
    among_others_and_alone,
    config_of,
    has_number,
    nested,
    random_logits,
    saves,
    traced_as,
    trains_as,
    tuned,
    values_of,
)

# Settings of all runs, which replace the settings of the fixture.
SMALL = {
    "epochs": 2,
    "optimizer.learning_rate": 0.05,
    "optimizer.bias_correction": False,
}
BILSTM = {"family": "tagging", "features.bilstm": True}


def inputs(seen, split="train"):
    """The token ids of each sequence of a split."""
    return features_of(seen, split).input_ids


def features_of(seen, split="train"):
    return split_of(seen, split).features


def split_of(seen, name):
    splits = seen.prepared.train, *seen.prepared.splits
    return next((split for split in splits if split.name == name), None)


def count(seen, split="train"):
    """The number of rows of a split; 0 without it."""
    found = split_of(seen, split)
    return len(found.rows) if found else 0


def longest(seen):
    return max(map(len, inputs(seen)))


def prompted(seen, prompt, place):
    """Whether the first (0) or the second (1) text of each row starts with a prompt."""
    ids = tuple(seen.prepared.checkpoint.tokenizer.encode(prompt))
    starts = [tuple(row[1 : len(ids) + 1]) == ids for row in inputs(seen)]
    return all(starts[place::2]) and not any(starts[1 - place :: 2])


def units(seen):
    """The numbers of rows of the batches of an epoch."""
    steps = seen.job.batches.steps_per_epoch
    return sorted(int((b["weights"] > 0).sum()) for b in seen.batches[:steps])


def ordered_by(seen, seed):
    """Whether batches and new parameters follow from ``seed``."""
    same = type(seen.job.batches)(
        seen.job.batches.features,
        **{n: getattr(seen.job.batches, n) for n in BATCH_SETTINGS} | {"seed": seed},
    )
    ((_, _, _, given, _), _), *_ = seen.calls["init_state"]
    is_same = np.array_equal(same[0]["input_ids"], seen.batches[0]["input_ids"])
    return is_same and given == seed


BATCH_SETTINGS = (
    *("batch_size", "epochs", "seed", "pad_id", "buckets", "limit", "multiple"),
    *("accumulation", "rows"),
)


def freezes(seen, *names):
    """Whether exactly these parts are frozen."""
    pattern, places = (
        seen.job.objective.frozen,
        {
            "embeddings": "bert/embeddings/word/embedding",
            "layer_0": "bert/encoder/layer_0/intermediate/kernel",
            "layer_1": "bert/encoder/layer_1/intermediate/kernel",
            "pooler": "bert/pooler/kernel",
            "classifier": "classifier/kernel",
        },
    )
    frozen = [n for n, x in places.items() if pattern and re.search(pattern, x)]
    return frozen == [*names]


def runs_with(name, *values):
    """Whether a sweep has runs with these values."""

    def arrives(seen):
        configs = seen.calls["runs"].values()
        return {functools.reduce(getattr, name.split("."), x) for x in configs} == {
            *values
        }

    return arrives


def dev_steps(seen):
    return [step for step, split, _ in seen.calls["write"] if split == "dev"]


def eval_batch_sizes(seen):
    return {options["batch_size"] for options in seen.calls["run_model"]}


def eval_batch_sizes_of_features(seen):
    """The batch sizes with which the frozen encoder reads the splits."""
    return {options["batch_size"] for _, options in seen.calls["with_hidden"]}


ROWS = {
    "family": Row("tagging", lambda x: isinstance(x.job.objective, Tagging), "alone"),
    "init_from": Row(
        "{head}",
        lambda x: x.job.initial_params["bert"]["pooler"]["bias"][0] == 7,
        "alone",
    ),
    "fresh_head": Row(
        True,
        lambda x: "classifier" not in x.job.initial_params,
        "alone",
        {"init_from": "{head}"},
    ),
    "freeze": Row(
        True, lambda x: freezes(x, "embeddings", "layer_0", "layer_1"), "alone"
    ),
    "freeze_layers": Row(1, lambda x: freezes(x, "embeddings", "layer_0"), "batches"),
    "class_weights": Row(
        {"yes": 3.0}, lambda x: x.job.objective.class_weights == (1.0, 3.0), "batches"
    ),
    "label_smoothing": Row(0.2, lambda x: has_number(x.text, 0.8), "batches"),
    "batch_size": Row(7, lambda x: max(units(x)) == 7, "batches"),
    "epochs": Row(
        3,
        lambda x: len(x.job.batches) == 3 * x.job.batches.steps_per_epoch,
        "batches",
    ),
    "buckets": Row(3, lambda x: x.job.batches.buckets == 3, "batches"),
    "train_rows": Row(11, lambda x: count(x) == 11, "batches"),
    # The model
    "model.hidden_dropout": Row(0.37, lambda x: has_number(x.text, 0.63), "model"),
    "model.attention_dropout": Row(0.27, lambda x: has_number(x.text, 0.73), "model"),
    "model.activation": Row("relu", lambda x: "erf" not in x.text, "model"),
    "model.pooling": Row(
        "mean", lambda x: traced_as(x, "model", pooling="mean"), "model"
    ),
    "model.max_positions": Row(
        40,
        lambda x: (
            x.job.initial_params["bert"]["embeddings"]["position"]["embedding"].shape
            == (40, 32)
        ),
        "model",
    ),
    "model.initializer_range": Row(
        0.07, lambda x: has_number(x.init_text, 0.07), "model"
    ),
    "compute.dropout_impl": Row(
        "plain",
        lambda x: traced_as(x, "compute", dropout_impl="plain"),
        "alone",
        {"model.hidden_dropout": 0.37},
    ),
    "compute.scan_layers": Row(
        True,
        lambda x: (
            "layers" in x.job.initial_params["bert"]["encoder"]
            and "bert/encoder/layers/intermediate/bias" in x.shapes
        ),
        "alone",
    ),
    "features.layers": Row(
        (0, -1),
        lambda x: (
            isinstance(x.job.objective, FrozenTagging)
            and x.job.objective.model.feature_config.layers == (0, -1)
            and eval_batch_sizes_of_features(x) == {12}
        ),
        "frozen",
        {"family": "tagging"},
    ),
    "features.bilstm": Row(
        True,
        lambda x: any("bilstm" in path for path in x.shapes),
        "bilstm",
        {"family": "tagging"},
    ),
    "features.lstm_layers": Row(
        3, lambda x: any("layer_2" in path for path in x.shapes), "bilstm", BILSTM
    ),
    "features.width": Row(
        24, lambda x: any(24 in shape for shape in x.shapes.values()), "bilstm", BILSTM
    ),
    "features.dropout": Row(0.37, lambda x: has_number(x.text, 0.63), "bilstm", BILSTM),
    # Evaluations
    "eval_batch_size": Row(16, lambda x: eval_batch_sizes(x) == {16}, "evaluations"),
    "evaluations": Row(3, lambda x: {1, 2} <= {*dev_steps(x)}, "evaluations"),
    "main_metric": Row(
        "f1_macro", lambda x: x.results["main_metric"] == "f1_macro", "evaluations"
    ),
    "patience": Row(
        2, lambda x: x.results.get("stopped_at", 0) > 0, "patience", {"epochs": 4}
    ),
    # Sweeps
    "sweep.batch_size": Row((4, 6), runs_with("batch_size", 4, 6), "sweep"),
    "sweep.learning_rate": Row(
        (3e-3,), runs_with("optimizer.learning_rate", 3e-3), "sweep"
    ),
    "sweep.epochs": Row((1, 5), runs_with("epochs", 1, 5), "sweep"),
    "sweep.seeds": Row((7, 8), runs_with("seed", 7, 8), "sweep"),
    "sweep.folds": Row(
        3,
        lambda x: (
            {name.rpartition("-")[2] for name in x.calls["runs"]}
            == {"fold0", "fold1", "fold2"}
        ),
        "sweep",
    ),
    # The engine
    "seed": Row(5, lambda x: ordered_by(x, 5), "engine"),
    "accumulation": Row(
        2,
        lambda x: (
            {rows for rows, _ in x.probe.traced} == {len(x.batches[0]["input_ids"]) / 2}
        ),
        "engine",
    ),
    "data_timeout": Row(
        77, lambda x: x.calls["drawn_ahead"][0][1]["timeout"] == 77, "engine"
    ),
    "checkpoint_every": Row(2, lambda x: saves(x) == [2, 4, 6], "engine"),
    "optimizer.clip_norm": Row(2.5, trains_as("clip_norm", 2.5), "engine"),
    "optimizer.layer_decay": Row(0.6, trains_as("layer_decay", 0.6), "engine"),
    "optimizer.spike_norm": Row(
        4.0, lambda x: "over the spike_norm" in f"{x.error}{x.log}", "spikes"
    ),
    "optimizer.skip_spikes": Row(
        True,
        lambda x: x.error is None and x.trains_as(skip_spikes=True),
        "spikes",
        {"optimizer.spike_norm": 4.0},
    ),
    **SHARED_ROWS,
}
KINDS = {
    **SHARED_KINDS,
    "spikes": "end",
    "sweep": "sweep",
    "evaluations": "results",
    "patience": "results",
}


@pytest.fixture(scope="module")
def places(tmp_path_factory, checkpoint_dir, model_config, vocabulary, init_params):
    """Folders by the names that rows give them."""
    folder = tmp_path_factory.mktemp("places")
    model = make_model(model_config(num_layers=2), "sequence", 2, FeatureConfig())
    params = init_params(model, seed=3)
    params["bert"]["pooler"]["bias"] = params["bert"]["pooler"]["bias"] + np.float32(7)
    whole = Checkpoint(
        model.config, params, vocabulary, "sequence", labels=("no", "yes")
    )
    save_huggingface(folder / "head", whole)
    for name, make in FOLDERS.items():
        (folder / name).mkdir()
        make(folder / name)
    for family, writer in WRITERS.items():
        (folder / family).mkdir()
        writer(folder / family, rows=16, seed=1)
    return {f"{{{path.name}}}": str(path) for path in folder.iterdir()}


def both_splits(name, lines):
    """A function that writes the same lines for train and dev."""

    def write(folder):
        for split in ("train", "dev"):
            path = folder / name.format(split=split)
            path.write_text("\n".join([*lines, ""]))

    return write


def write_squad_2(folder):
    for split in ("train", "dev"):
        questions = [
            {"id": "a", "question": "color", "answers": [], "is_impossible": True},
            {
                "id": "b",
                "question": "color is",
                "answers": [{"text": "red", "answer_start": 3}],
                "is_impossible": False,
            },
        ]
        paragraphs = [{"context": "w1 red w2 w3", "qas": questions}]
        data = [{"title": "t", "paragraphs": paragraphs}]
        text = json.dumps({"version": "v2.0", "data": data})
        (folder / f"{split}-v2.0.json").write_text(text)


def write_bad_answer(folder):
    WRITERS["question_answering"](folder)
    path = folder / "train-v1.1.json"
    content = json.loads(path.read_text())
    question = content["data"][0]["paragraphs"][0]["qas"][0]
    question["answers"][0]["answer_start"] += 1
    path.write_text(json.dumps(content))


# Both columns of each pair could be the column of a setting.
_WIDE = ["text,title,text_a,text_b,second,label,kind,id,key"]
_WIDE += [
    f"w0 text,w1 title,w0 a,w0 b,w2 second,{n % 2 + 1},{'ab'[n % 2]},i{n},k{n}"
    for n in range(8)
]
_CODAH = [f"kind\tc{n}\tso\tas\tis\tit\t{n % 4}" for n in range(10)]
_NAMED = json.dumps(
    {
        **{"words": ["w1", "w4"], "tags": ["O", "B-LOC"]},
        **{"pieces": ["w2", "w3"], "marks": ["B-PER", "O"]},
        **{"choices": ["w5", "w6"], "label": 0},
        **{"story": "w7", "ends": ["w8", "w9"], "right": 1},
        **{"question": "w4", "context": "w3 red w1", "answers": ["red"]},
        **{"asked": "w5", "passage": "w1 red w1", "found": ["w1"]},
    }
)
FOLDERS = {
    "named": both_splits("{split}.jsonl", [_NAMED] * 4),
    "wide": both_splits("{split}.csv", _WIDE),
    "numbered": both_splits(
        "{split}.csv",
        [line.replace(",a,", ",3,").replace(",b,", ",4,") for line in _WIDE],
    ),
    "cola": both_splits("{split}.tsv", ["x\t1\t\tw1 good", "x\t0\t\tw2 bad"] * 4),
    "numbers": both_splits("{split}.csv", ["text,label", "w1,4.0", "w2,1.0"]),
    "separated": both_splits("{split}.csv", ["text,label", "w1,a;b", "w2,b", "w3,a"]),
    "swag": lambda folder: [
        (folder / f"{name}.csv").write_text(
            "sent1,sent2,ending0,ending1,ending2,ending3,label\nw1,so,a,b,c,d,2\n"
        )
        for name in ("train", "val")
    ],
    "codah": lambda folder: (folder / "full_data.tsv").write_text(
        "\n".join([*_CODAH, ""])
    ),
    "squad2": write_squad_2,
    "bad": write_bad_answer,
    "stsb": both_splits(
        "{split}.tsv",
        ["index\tsentence1\tsentence2\tscore", "0\tw1 a\tw2 b\t3", "1\tw1\tw2\t1"],
    ),
    "segmented": both_splits("{split}.txt", ["w1 w2w3", "w4 w5"]),
    "three": both_splits("{split}.txt", ["w1 X B-PER", "w2 X O", "", "w3 Y O", ""]),
}


def merged(first, second):
    """Nested dictionaries of settings, the second over the first."""
    both = {**first}
    for name, value in second.items():
        is_group = isinstance(value, dict) and isinstance(both.get(name), dict)
        both[name] = merged(both[name], value) if is_group else value
    return both


@pytest.fixture(scope="module")
def observe(places, settings, tmp_path_factory):
    """A function of (kind, settings) that returns what a fine-tuning shows."""

    def run(kind, flat, what="classification"):
        given = {
            n: places.get(x, x) if isinstance(x, str) else x for n, x in flat.items()
        }
        base = merged(settings(given.get("family", what)), nested(SMALL))
        workdir = tmp_path_factory.mktemp("run") / "workdir"
        return tuned(
            merged(base, nested(given)), workdir, kind, all_devices=kind == "step"
        )

    return run


@pytest.fixture(scope="module")
def table(observe):
    return Table(ROWS, KINDS, observe)


@among_others_and_alone
@pytest.mark.parametrize("name", ROWS)
def test_a_setting_of_fine_tuning_arrives(table, name, alone):
    table.check(name, alone=alone)


def test_every_setting_of_fine_tuning_has_a_row():
    names = {setting.full for setting in all_settings(FineTuneConfig)} - {"data"}
    assert names == {*ROWS}


def test_of_equal_scores_the_last_model_is_kept(table):
    """In these runs the model gives the same answers after every epoch."""
    seen = table.seen("evaluations", {"epochs": 3})
    assert dev_steps(seen) == [3, 6, 9]
    assert seen.results["best_epoch"] == 3


def test_bert_jax_finetune_passes_every_argument(checkpoint_dir):
    """Settings of sweeps are not arguments, and settings of the data belong to the task."""
    others = ("family", "init_from")
    given = {n: row.value for n, row in ROWS.items() if n not in others}
    given = {n: value for n, value in given.items() if not n.startswith("sweep.")}
    groups = nested(given)
    arguments = groups | groups["optimizer"]
    del arguments["optimizer"]
    call = functools.partial(
        bert_jax.finetune,
        bert_jax.tasks.classification(max_length=20),
        init_from=checkpoint_dir,
        train=[("w1 good", "yes"), ("w2 bad", "no")] * 4,
        **arguments,
    )
    config = config_of(call, from_python, "run_one")
    values = values_of(config)
    assert {name: values[name] for name in given} == given
    assert (config.data.max_length, config.init_from) == (20, str(checkpoint_dir))


def test_the_seed_chooses_the_rows_of_dev(checkpoint_dir, monkeypatch):
    """Dev is a share of the training rows. Another seed takes other rows."""
    chosen = []

    def run(config, workdir, log, task, **options):
        chosen.append({row.text_a for row in task.read("dev")})
        raise UserError("enough")

    monkeypatch.setattr(from_python, "run_one", run)
    rows = [(f"w{n} {word}", word) for n in range(20) for word in ("good", "bad")]
    for seed in (1, 1, 2):
        with pytest.raises(UserError, match="enough"):
            bert_jax.finetune(
                bert_jax.tasks.classification(),
                init_from=checkpoint_dir,
                train=rows,
                seed=seed,
            )
    first, same, other = chosen
    assert len(first) == len(other) == 4
    assert first == same != other


def test_the_command_passes_every_flag(tmp_path, settings):
    flags = [f"--{n}={row.value}" for n, row in ROWS.items() if n != "family"]
    path = tmp_path / "config.py"
    path.write_text(f"def get_config():\n    return {settings('classification')!r}\n")
    line = ["--config", str(path), *flags]
    values = values_of(parse(line, "usage", finetune_config).config)
    expected = {name: ROWS[name].value for name in ROWS if name != "family"}
    assert {name: values[name] for name in expected} == expected


# The settings of each task


def first_row(seen, split="train"):
    return split_of(seen, split).rows[0]


def ids_of(seen, text):
    return seen.prepared.checkpoint.tokenizer.encode(text)


def keeps(seen, tail, head=0):
    """Whether long texts keep this many tokens of their end and of their start."""
    rows, long = split_of(seen, "train").rows, 0
    for row, actual in zip(rows, inputs(seen), strict=True):
        ids = ids_of(seen, row.text_a)
        if len(ids) > head + tail:
            long += 1
            kept = [*ids[:head], *ids[len(ids) - tail :]]
            if actual[1:-1].tolist() != kept:
                return False
    return long > 3


def starts_every(seen, tokens, room):
    """Whether the windows of texts start this many tokens apart."""
    rows, features = split_of(seen, "train").rows, features_of(seen)
    windows = np.bincount(features.example)
    expected = [
        1 + max(0, -(-(len(ids_of(seen, row.text_a)) - room) // tokens)) for row in rows
    ]
    return windows.tolist() == expected


def decoded(seen, split="dev"):
    """Answers of the task of the config to random outputs."""
    part, logits = split_of(seen, split), random_logits(seen.prepared)
    outputs = [logits(i, ids) for i, ids in enumerate(part.features.input_ids)]
    return seen.prepared.task.decode(part.rows, part.features, outputs)


FILES = {
    "classification": ("train.csv", "dev.csv"),
    "multi_label": ("train.jsonl", "dev.jsonl"),
    "multiple_choice": ("train.jsonl", "dev.jsonl"),
    "question_answering": ("train-v1.1.json", "dev-v1.1.json"),
    "sentence_vectors": ("train.tsv", "dev.tsv"),
    "tagging": ("train.txt", "dev.txt"),
}


def files(family):
    """The rows of dir, train, dev and test. {other} has 16 or 32 rows of train."""
    train, dev = FILES[family]
    rows = {"multi_label": (48, 12), "sentence_vectors": (48, 12)}.get(family, (24, 9))
    return {
        "data.dir": Row("{other}", lambda x: count(x) in (16, 32), "folder"),
        "data.train": Row(dev, lambda x: count(x) == rows[1], "files"),
        "data.dev": Row(train, lambda x: count(x, "dev") == rows[0], "files"),
        "data.test": Row(dev, lambda x: count(x, "test") == rows[1], "files"),
    }


def columns(first="title"):
    """The rows of the columns of a table, all in the file {wide}."""
    wide = {"data.dir": "{wide}"}
    return {
        "data.text_a": Row(
            "title", lambda x: first_row(x).text_a == "w1 title", "columns", wide
        ),
        "data.text_b": Row(
            "second", lambda x: first_row(x).text_b == "w2 second", "columns", wide
        ),
        "data.label": Row(
            "kind", lambda x: first_row(x).label in ("a", ("a",), 3.0), "columns", wide
        ),
        "data.id": Row("key", lambda x: first_row(x).id == "k0", "columns", wide),
    }


def cuts():
    """The rows of the settings that cut long texts."""
    windows = {"data.truncation": "windows", "data.max_length": 8}
    ends = {"data.truncation": "head_tail", "data.max_length": 10}
    return {
        "data.max_length": Row(9, lambda x: longest(x) == 9, "tails"),
        "data.truncation": Row(
            "tail", lambda x: keeps(x, 7), "tails", {"data.max_length": 9}
        ),
        "data.head_tokens": Row(3, lambda x: keeps(x, 5, head=3), "ends", ends),
        "data.stride": Row(2, lambda x: starts_every(x, 2, room=6), "windows", windows),
    }


# Files whose columns have the usual names, and other columns of the same form.
NAMED = {"data.dir": "{named}", "data.train": "train.jsonl", "data.dev": "dev.jsonl"}


def listed_answers(seen):
    """The numbers of answers in the n-best lists."""
    return {len(answer["nbest"]) for answer in decoded(seen)}


TASKS = {
    "classification": files("classification")
    | columns()
    | cuts()
    | {
        "data.task": Row(
            "cola",
            lambda x: x.prepared.task.main_metric == "matthews",
            "alone",
            {"data.dir": "{cola}"},
        ),
        "data.labels": Row(
            ("yes", "no"),
            lambda x: (
                x.prepared.task.labels == ("yes", "no")
                and x.job.batches.features.targets["label"][0] == 0
            ),
            "alone",
        ),
        "data.regression": Row(
            True,
            lambda x: (
                x.job.batches.features.targets["label"].tolist()[:2] == [4.0, 1.0]
            ),
            "alone",
            {"data.dir": "{numbers}"},
        ),
    },
    "multi_label": files("multi_label")
    | columns()
    | cuts()
    | {
        "data.labels": Row(
            ("yes", "no"), lambda x: x.prepared.task.labels == ("yes", "no"), "alone"
        ),
        "data.separator": Row(
            ";",
            lambda x: x.prepared.task.labels == ("a", "b"),
            "alone",
            {"data.dir": "{separated}", "data.label": "label"},
        ),
        "data.threshold": Row(
            0.7,
            lambda x: all(
                [n for n, p in answer["probabilities"].items() if p >= 0.7]
                == answer["labels"]
                for answer in decoded(x)
            ),
            "alone",
        ),
    },
    "multiple_choice": files("multiple_choice")
    | {
        "data.task": Row(
            "swag",
            lambda x: first_row(x).choices == ("so a", "so b", "so c", "so d"),
            "alone",
            {"data.dir": "{swag}"},
        ),
        "data.fold": Row(
            2,
            lambda x: first_row(x, "dev").context == "c3",
            "alone",
            {"data.dir": "{codah}", "data.task": "codah"},
        ),
        "data.max_length": Row(7, lambda x: longest(x) == 7, "alone"),
        "data.context": Row(
            "story", lambda x: first_row(x).context == "w7", "columns", NAMED
        ),
        "data.choices": Row(
            "ends", lambda x: first_row(x).choices == ("w8", "w9"), "columns", NAMED
        ),
        "data.label": Row("right", lambda x: first_row(x).label == 1, "columns", NAMED),
    },
    "question_answering": files("question_answering")
    | {
        "data.train_articles": Row("0:5", lambda x: count(x) == 5, "articles"),
        "data.dev_articles": Row("2:", lambda x: count(x, "dev") == 7, "articles"),
        "data.version_2": Row(
            True,
            lambda x: "null_odds" in decoded(x)[0],
            "alone",
            {"data.dir": "{squad2}"},
        ),
        "data.max_length": Row(12, lambda x: longest(x) == 12, "windows"),
        "data.stride": Row(
            2,
            lambda x: (
                {
                    after.first - before.first
                    for before, after in zip(
                        features_of(x).extra, features_of(x).extra[1:], strict=False
                    )
                    if after.first
                }
                == {2}
            ),
            "windows",
            {"data.max_length": 12},
        ),
        "data.max_question_length": Row(
            2, lambda x: {w.offset for w in features_of(x).extra} == {4}, "alone"
        ),
        "data.max_answer_length": Row(
            1,
            lambda x: {len(answer["answer"].split()) for answer in decoded(x)} == {1},
            "answers",
        ),
        "data.n_best": Row(2, lambda x: listed_answers(x) == {2}, "answers"),
        "data.null_threshold": Row(
            -100.0,
            lambda x: not any(answer["answer"] for answer in decoded(x)),
            "alone",
            {"data.dir": "{squad2}", "data.version_2": True},
        ),
        "data.question": Row(
            "asked", lambda x: first_row(x).question == "w5", "columns", NAMED
        ),
        "data.context": Row(
            "passage", lambda x: first_row(x).context == "w1 red w1", "columns", NAMED
        ),
        "data.answers": Row(
            "found", lambda x: first_row(x).answers[0][0] == "w1", "columns", NAMED
        ),
        "data.bad_answers": Row(
            "skip", lambda x: count(x) == 23, "alone", {"data.dir": "{bad}"}
        ),
    },
    "sentence_vectors": files("sentence_vectors")
    | columns()
    | {
        "data.task": Row(
            "stsb",
            lambda x: first_row(x).texts == ("w1 a", "w2 b"),
            "alone",
            {"data.dir": "{stsb}"},
        ),
        "data.max_length": Row(5, lambda x: longest(x) == 5, "vectors"),
        "data.loss": Row(
            "triplet", lambda x: x.job.objective.loss == "triplet", "vectors"
        ),
        "data.margin": Row(0.2, lambda x: x.job.objective.margin == 0.2, "vectors"),
        "data.matryoshka": Row(
            (16, 8), lambda x: x.job.objective.matryoshka == (16, 8), "vectors"
        ),
        "data.pooling": Row("cls", lambda x: x.prepared.task.head == "cls", "vectors"),
        "data.query_prompt": Row(
            "w7 w8 ", lambda x: prompted(x, "w7 w8 ", 0), "vectors"
        ),
        "data.document_prompt": Row(
            "w9 w7 ", lambda x: prompted(x, "w9 w7 ", 1), "vectors"
        ),
        "data.positive_from": Row(
            3.0,
            lambda x: {row.label for row in split_of(x, "train").rows} == {5.0},
            "alone",
            {"data.loss": "contrastive"},
        ),
    },
    "tagging": files("tagging")
    | {
        "data.task": Row(
            "segmented",
            lambda x: x.prepared.task.labels == ("B", "E", "M", "S"),
            "alone",
            {"data.dir": "{segmented}"},
        ),
        "data.scheme": Row(
            "plain", lambda x: x.prepared.task.main_metric == "accuracy", "alone"
        ),
        "data.column": Row(
            1, lambda x: {*first_row(x).tags} == {"X"}, "alone", {"data.dir": "{three}"}
        ),
        "data.word_column": Row(
            1,
            lambda x: first_row(x).words == ("X", "X"),
            "alone",
            {"data.dir": "{three}"},
        ),
        "data.labels": Row(
            ("O", "B-LOC", "B-PER"),
            lambda x: x.prepared.task.labels == ("O", "B-LOC", "B-PER"),
            "alone",
        ),
        "data.max_length": Row(7, lambda x: longest(x) == 7, "windows"),
        "data.stride": Row(
            1,
            lambda x: len(inputs(x)) > 110,
            "windows",
            {"data.max_length": 7},
        ),
        "data.document_context": Row(
            True, lambda x: np.mean([len(ids) for ids in inputs(x)]) > 20, "alone"
        ),
        "data.words": Row(
            "pieces", lambda x: first_row(x).words == ("w2", "w3"), "columns", NAMED
        ),
        "data.tags": Row(
            "marks", lambda x: first_row(x).tags == ("B-PER", "O"), "columns", NAMED
        ),
        "data.splitting": Row(
            "blanks",
            lambda x: (
                x.prepared.task.row("here", {"words": "it's w3"}, False).words
                == ("it's", "w3")
            ),
            "alone",
        ),
    },
}


@pytest.fixture(scope="module")
def task_tables(observe, places):
    def of(family):
        def run(kind, flat):
            flat = {
                name: value.replace("{other}", f"{{{family}}}")
                if isinstance(value, str)
                else value
                for name, value in flat.items()
            }
            if family == "sentence_vectors" and flat.get("data.dir") == "{wide}":
                flat["data.dir"] = "{numbered}"
            return observe(kind, flat, family)

        return Table(TASKS[family], {}, run)

    return {family: of(family) for family in TASKS}


TASK_ROWS = [(family, name) for family, rows in TASKS.items() for name in rows]


@among_others_and_alone
@pytest.mark.parametrize(("family", "name"), TASK_ROWS)
def test_a_setting_of_a_task_arrives(task_tables, family, name, alone):
    task_tables[family].check(name, alone=alone)


def test_each_device_has_rows_of_each_part_of_a_step(observe):
    seen = observe("step", {"accumulation": 2, "batch_size": 6})
    assert seen.job.mesh.size == 8
    assert all(len(batch["input_ids"]) % 16 == 0 for batch in seen.batches)


def test_each_part_of_a_step_has_all_choices_of_its_examples(observe):
    """The slot of a choice is its place within the part, not within the batch."""
    settings = {"accumulation": 2, "batch_size": 6}
    seen = observe("job", settings, "multiple_choice")
    for batch in seen.batches:
        rows, slots = batch["starts"].shape
        assert batch["slots"].max() < rows / 2 * slots


@pytest.mark.parametrize("family", FAMILIES)
def test_every_setting_of_a_task_has_a_row(family):
    """A setting with a single value, such as task of a table of any labels, has none."""
    settings = all_settings(FAMILIES[family].config_class, "data.")
    names = {
        setting.full
        for setting in settings
        if len(setting.field.metadata["limits"].get("one of", "ab")) > 1
    }
    assert names == {*TASKS[family]}
