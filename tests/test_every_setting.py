"""Every setting of pretraining, studies and inference reaches its place.

Each setting has a row with a value that is not its default, and what the value must change
in a run. The long form has a run for each setting.
"""

import dataclasses
import functools
import importlib
import inspect
import itertools
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import bert_jax
from bert_jax.commands.config_file import parse
from bert_jax.data.batching import inference_batches
from bert_jax.data.examples import ExampleConfig
from bert_jax.data.phases import Phase
from bert_jax.data.preparation import prepare
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.data.vocabulary_training import train_vocabulary
from bert_jax.errors import UserError
from bert_jax.inference import evaluation
from bert_jax.inference.evaluation import Options
from bert_jax.inference.model import Bert
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.config_json import exported_config
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.interop.train_state import CheckpointStore
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import BertConfig, ComputeConfig
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.objectives.objective import unmasked_ids
from bert_jax.progress import Progress
from bert_jax.settings import all_settings, from_settings
from bert_jax.tasks.families import FAMILIES
from bert_jax.training import from_python
from bert_jax.training.config import (
    FineTuneConfig,
    StudyConfig,
    TrainConfig,
    Variant,
    train_config,
)
from tests.settings_probe import (
    SHARED_KINDS,
    SHARED_ROWS,
    Row,
    Table,
    among_others_and_alone,
    config_of,
    has_number,
    nested,
    pretrained,
    saves,
    steps_of,
    studied,
    traced_as,
    trains_as,
    values_of,
)

# Sizes of a tiny model, and settings without a default. No setting of a row is among them
# with the value of its row.
SMALL = {
    "model.hidden_size": 16,
    "model.num_layers": 1,
    "model.num_heads": 2,
    "model.intermediate_size": 32,
    "model.max_positions": 96,
    "data.holdout": 0.2,
    "optimizer.learning_rate": 0.05,
    "phases[0].steps": 6,
    "phases[0].batch_size": 8,
    "phases[0].sequence_length": 64,
    "phases[0].max_predictions": 30,
    "checkpoint_every": 1,
    "eval_batches": 2,
}
PROBE = {"objective": "tests.settings_probe"}


def masked(seen, of):
    """The share of the masked tokens that are ``of``: "mask", "random" or "same"."""
    rows, mask_id = seen.all, seen.job.batches.vocabulary.mask_id
    used = rows["mlm_weights"] > 0
    ids = np.take_along_axis(rows["input_ids"], rows["mlm_positions"], 1)[used]
    same, mask = ids == rows["mlm_ids"][used], ids == mask_id
    return {"mask": mask, "random": ~same & ~mask, "same": same}[of].mean()


def masks_share(seen, share):
    """Whether the masks of each row are this share of its tokens, rounded."""
    counts, tokens = seen.all["mlm_weights"].sum(1), seen.all["attention_mask"].sum(1)
    return bool((np.abs(counts - share * tokens) <= 0.5).all())


def masks_from(seen, first, last):
    """Whether the mask rate changes linearly between these rates."""
    rates = np.linspace(first, last, len(seen.batches))
    for rate, batch in zip(rates, seen.batches, strict=True):
        counts, tokens = batch["mlm_weights"].sum(1), batch["attention_mask"].sum(1)
        if (np.abs(counts - rate * tokens) > 0.5).any():
            return False
    return True


def draws_mask_rates(seen, least, most):
    """Whether the mask rates of the rows are spread over this range."""
    rates = seen.all["mlm_weights"].sum(1) / seen.all["attention_mask"].sum(1)
    tenth, rounding = (most - least) / 10, 0.02
    lowest, highest = rates.min(), rates.max()
    return (
        least - rounding <= lowest < least + tenth
        and most - tenth < highest <= most + rounding
    )


def masks_whole_words(seen):
    """Whether no word of several tokens is masked in part."""
    tokenizer, ids = seen.job.batches.vocabulary, np.asarray(unmasked_ids(seen.all))
    special = np.isin(ids, (tokenizer.cls_id, tokenizer.sep_id))
    starts = ~tokenizer.continuation[ids]
    starts[:, 1:] |= special[:, :-1]  # a cut text may start within a word
    for row, words in enumerate(np.cumsum(starts, axis=1)):
        used = seen.all["mlm_weights"][row] > 0
        masked = np.zeros(ids.shape[1], bool)
        masked[seen.all["mlm_positions"][row, used]] = True
        if np.isin(words[masked], words[~masked]).any():
            return False
    return True


def masks_as(seen, **settings):
    """Whether the batches equal batches with other mask settings."""
    config = dataclasses.replace(seen.config.data.examples, **settings)
    batch = dataclasses.replace(seen.job.batches, config=config)[0]
    return all(np.array_equal(batch[name], seen.batches[0][name]) for name in batch)


def has_single_sentences(rows, tokenizer):
    """Whether each row is [CLS], a text of up to one full stop, and [SEP]."""
    ids, lengths = np.asarray(unmasked_ids(rows)), rows["attention_mask"].sum(1)
    one_text = (ids == tokenizer.sep_id).sum(1) == 1
    stops = np.isin(ids, tokenizer.encode(".")).sum(1)
    return bool(one_text.all()) and stops.max() == 1 and len(np.unique(lengths)) > 3


def swaps_texts(seen):
    """Whether many texts with the label 1 are neighbours in the wrong order.

    Other second texts are from anywhere. A chunk of a single sentence gets a text from
    anywhere, even with sentence_order.
    """
    batches, rows = seen.job.batches, seen.all
    ((store, *_),) = batches.texts
    (every,) = store.read_sentences(np.array([[0, store.info.sentences]]))
    every = np.int32(every).tobytes()
    special = batches.vocabulary.cls_id, batches.vocabulary.sep_id
    ids, types = np.asarray(unmasked_ids(rows)), rows["token_type_ids"]
    in_text = (rows["attention_mask"] > 0) & ~np.isin(ids, special)
    before = []
    for row in np.flatnonzero(rows["nsp_labels"] == 1):
        first, second = (
            every.find(ids[row][in_text[row] & (types[row] == side)].tobytes()) // 4
            for side in (0, 1)
        )
        before.append(0 < first - second < 200)
    return np.mean(before) > 0.2


def kept(seen):
    """The steps of the checkpoints that are left."""
    return sorted(int(path.name) for path in (seen.workdir / "checkpoints").iterdir())


def reading(seen, option):
    """The values of an option with which training and evaluations read batches."""
    training = [options for _, options in seen.calls["drawn_ahead"]]
    return {options[option] for options in training + seen.calls["eval_ahead"]}


def holds_out(seen, share):
    """Whether evaluations have this share of the documents, and training the others."""
    (text,) = seen.job.batches.texts
    count = text.store.info.documents
    training = {*text.documents.tolist()}
    ((_, _, (text,), _), _), *_ = seen.calls["eval_batches"]
    held_out = {*text.documents.tolist()}
    parts = training | held_out, training & held_out
    return len(held_out) == round(share * count) and parts == ({*range(count)}, set())


def mixes(seen, names, share):
    """Whether a run mixes stores with these names, and the share of the second one."""
    batches = seen.job.batches
    stores = [text.store.directory.name for text in batches.texts]
    (source,) = batches.sources
    sources, _ = source.places(np.arange(10_000))
    return stores == names and abs(sources.mean() - share) < 0.015


def seeds(seen, seed):
    """Whether order, masks and new parameters follow from ``seed``."""
    batch = dataclasses.replace(seen.job.batches, seed=seed)[0]
    same = [np.array_equal(batch[name], seen.batches[0][name]) for name in batch]
    key, _ = jax.random.split(jax.random.key(seed))
    drawn = jax.random.normal(key, (3,))
    return all(same) and np.array_equal(seen.params["drawn/bias"], drawn)


def tokenizer_of(seen):
    return seen.job.tokenizer


NO_PAIRS = {"data.examples.next_sentence": False}
LEFT = {"objective": "bert_jax.objectives.causal"} | NO_PAIRS
BOTH = {"objective": "bert_jax.objectives.two_way"} | NO_PAIRS
NORMS = 4  # two in the layer, one in the embeddings and one in the MLM head

ROWS = {
    # Batches
    "data.examples.mask_rate": Row(0.3, lambda x: masks_share(x, 0.3), "batches"),
    "data.examples.mask_share": Row(
        0.5, lambda x: 0.46 < masked(x, "mask") < 0.54, "batches"
    ),
    "data.examples.random_share": Row(
        0.2, lambda x: 0.17 < masked(x, "random") < 0.23, "batches"
    ),
    "data.examples.short_sequence_rate": Row(
        0.9,
        lambda x: (x.all["attention_mask"].mean(1) < 0.8).mean() > 0.12,
        "batches",
        {"phases[0].sequence_length": 80},
    ),
    "phases[0].steps": Row(40, lambda x: len(x.job.batches) == 40, "batches"),
    "phases[0].batch_size": Row(
        24, lambda x: {len(b["input_ids"]) for b in x.batches} == {24}, "batches"
    ),
    "phases[0].sequence_length": Row(
        80, lambda x: x.all["input_ids"].shape[1] == 80, "batches"
    ),
    "phases[0].max_predictions": Row(
        33, lambda x: x.all["mlm_ids"].shape[1] == 33, "batches"
    ),
    "phases[0].mask_rate": Row(0.25, lambda x: masks_share(x, 0.25), "rate"),
    "phases[0].last_mask_rate": Row(
        0.2, lambda x: masks_from(x, 0.15, 0.2), "falling rate"
    ),
    "phases[0].mask_rate_spread": Row(
        0.1,
        lambda x: draws_mask_rates(x, 0.05, 0.25),
        "drawn rates",
        {"data.examples.short_sequence_rate": 0.0},
    ),
    "phases[0].causal": Row(
        True,
        lambda x: "mlm_ids" not in x.batches[0] and x.job.objective.model.config.causal,
        "left to right",
        NO_PAIRS,
    ),
    "data.examples.masking": Row("whole_word", masks_whole_words, "words"),
    "data.examples.max_ngram": Row(
        1,
        lambda x: masks_as(x, masking="whole_word"),
        "ngrams",
        {"data.examples.masking": "ngram"},
    ),
    "data.examples.next_sentence": Row(
        False,
        lambda x: not x.all["nsp_labels"].any() and x.job.objective.parts == ("mlm",),
        "single texts",
    ),
    "data.examples.sentence_order": Row(
        True,
        lambda x: swaps_texts(x) and x.job.objective.parts == ("mlm", "sop"),
        "order",
    ),
    "data.examples.single_sentences": Row(
        True,
        lambda x: has_single_sentences(x.all, x.job.batches.vocabulary),
        "sentences",
        NO_PAIRS,
    ),
    "data.packing": Row(
        True,
        lambda x: any(batch["nsp_labels"].ndim == 2 for batch in x.batches),
        "packed",
        {"data.examples.short_sequence_rate": 0.9},
    ),
    # The text
    "data.path": Row(
        "{other}",
        lambda x: x.job.batches.texts[0].store.info.documents == 7,
        "other text",
        {"model.vocab_size": "{other_size}"},
    ),
    "data.mixture": Row(
        ("{store}", "{part}"),
        lambda x: mixes(x, ["store", "part"], 1 / 4),
        "mixture",
        {"data.path": "", "data.weights": (3.0, 1.0)},
    ),
    "data.weights": Row(
        (1.0, 4.0),
        lambda x: mixes(x, ["part", "store"], 4 / 5),
        "other weights",
        {"data.path": "", "data.mixture": ("{part}", "{store}")},
    ),
    "model.vocab_size": Row(
        "{other_size}",
        lambda x: x.shapes["mlm/output_bias"] == (tokenizer_of(x).vocab_size,),
        "other text",
        {"data.path": "{other}"},
    ),
    "data.corpus": Row(
        ("{french}",),
        lambda x: x.job.batches.texts[0].store.info.documents == 9,
        "corpus",
    ),
    "data.language": Row(
        "fr",
        lambda x: x.job.batches.texts[0].store.info.settings["language"] == "fr",
        "corpus",
    ),
    "data.vocabulary_size": Row(
        45,
        lambda x: tokenizer_of(x).vocab_size == 45,
        "corpus",
        {"data.corpus": ("{french}",)},
    ),
    "data.keep_accents": Row(
        True,
        lambda x: "é" in tokenizer_of(x).tokens,
        "corpus",
        {"data.corpus": ("{french}",)},
    ),
    "data.lower_case": Row(
        False,
        lambda x: any(t != t.lower() for t in tokenizer_of(x).tokens if t[0] != "["),
        "capitals",
        {"data.corpus": ("{french}",)},
    ),
    # The model
    "model.hidden_size": Row(
        24, lambda x: x.shapes["bert/pooler/kernel"] == (24, 24), "alone"
    ),
    "model.num_layers": Row(
        2, lambda x: "bert/encoder/layer_1/intermediate/bias" in x.shapes, "alone"
    ),
    "model.num_heads": Row(
        4,
        lambda x: x.shapes["bert/encoder/layer_0/attention/query/kernel"] == (16, 4, 4),
        "alone",
    ),
    "model.intermediate_size": Row(
        40,
        lambda x: x.shapes["bert/encoder/layer_0/intermediate/kernel"] == (16, 40),
        "alone",
    ),
    "model.max_positions": Row(
        112,
        lambda x: x.shapes["bert/embeddings/position/embedding"] == (112, 16),
        "alone",
    ),
    "model.type_vocab_size": Row(
        3, lambda x: x.shapes["bert/embeddings/segment/embedding"] == (3, 16), "alone"
    ),
    "model.position_offset": Row(
        3,
        lambda x: x.shapes["bert/embeddings/position/embedding"] == (99, 16),
        "alone",
    ),
    "model.pooler": Row(
        "relu", lambda x: traced_as(x, "model", pooler="relu"), "alone"
    ),
    "model.model_type": Row(
        "camembert",
        lambda x: (
            exported_config(x.job.config.model, "none", ()).model_type == "camembert"
        ),
        "alone",
        {"model.position_offset": 2},
    ),
    # The objective of the left side refuses the default.
    "model.causal": Row(
        True, lambda x: not traced_as(x, "model", causal=False), "alone", LEFT
    ),
    "model.encoder": Row(
        "lstm",
        lambda x: not any("attention" in path for path in x.shapes),
        "alone",
        BOTH,
    ),
    "model.positions": Row(
        "sinusoidal",
        lambda x: "bert/embeddings/position/embedding" not in x.shapes,
        "alone",
    ),
    "model.pre_norm": Row(
        True,
        lambda x: (
            "bert/encoder/final_norm/scale" in x.shapes
            and "bert/embeddings/norm/scale" not in x.shapes
        ),
        "alone",
    ),
    "model.rope_theta": Row(
        300.0,
        lambda x: traced_as(x, "model", rope_theta=300.0),
        "alone",
        {"model.positions": "rotary"},
    ),
    "model.rope_factor": Row(
        3.0,
        lambda x: traced_as(x, "model", rope_factor=3.0),
        "alone",
        {"model.positions": "rotary"},
    ),
    "model.local_rope_theta": Row(
        300.0,
        lambda x: traced_as(x, "model", local_rope_theta=300.0),
        "alone",
        {"model.positions": "rotary", "model.window": 8, "model.global_every": 0},
    ),
    # Neither is possible without the other.
    "model.window": Row(
        8,
        lambda x: (
            traced_as(x, "model", window=8) and not traced_as(x, "model", window=7)
        ),
        "alone",
        {"model.global_every": 0},
    ),
    "model.global_every": Row(
        2,
        lambda x: (
            traced_as(x, "model", global_every=2)
            and not traced_as(x, "model", global_every=0)
        ),
        "alone",
        {"model.window": 8, "model.num_layers": 2},
    ),
    "model.embedding_norm": Row(
        True,
        lambda x: (
            "bert/embeddings/norm/scale" in x.shapes
            and "bert/encoder/layer_0/attention_norm/scale" not in x.shapes
        ),
        "alone",
        {"model.pre_norm": True},
    ),
    "model.norm_bias": Row(
        False, lambda x: "bert/embeddings/norm/bias" not in x.shapes, "alone"
    ),
    "model.attention_bias": Row(
        False,
        lambda x: "bert/encoder/layer_0/attention/output/bias" not in x.shapes,
        "alone",
    ),
    "model.gated": Row(
        True,
        lambda x: x.shapes.get("bert/encoder/layer_0/gate/kernel") == (16, 32),
        "alone",
    ),
    "model.feed_forward_bias": Row(
        "down",
        lambda x: (
            "bert/encoder/layer_0/intermediate/bias" not in x.shapes
            and "bert/encoder/layer_0/feed_forward_output/bias" in x.shapes
        ),
        "alone",
    ),
    "model.head_bias": Row(
        False, lambda x: "mlm/transform/bias" not in x.shapes, "alone"
    ),
    "model.pooling": Row(
        "mean", lambda x: traced_as(x, "model", pooling="mean"), "alone"
    ),
    "model.hidden_dropout": Row(0.37, lambda x: has_number(x.text, 0.63, 3), "alone"),
    "model.attention_dropout": Row(0.27, lambda x: has_number(x.text, 0.73), "alone"),
    "model.activation": Row("relu", lambda x: "erf" not in x.text, "alone"),
    "model.layer_norm_epsilon": Row(
        1e-3, lambda x: has_number(x.text, 1e-3, NORMS), "alone"
    ),
    "model.initializer_range": Row(
        0.07, lambda x: has_number(x.init_text, 0.07, 9), "alone"
    ),
    "model.scaled_init": Row(
        True,
        lambda x: has_number(x.init_text, 0.02 / 2**0.5, 3),
        "alone",
    ),
    # How it is computed
    "compute.dropout_impl": Row(
        "plain", lambda x: traced_as(x, "compute", dropout_impl="plain"), "alone"
    ),
    "compute.scan_layers": Row(
        True,
        lambda x: "bert/encoder/layers/intermediate/bias" in x.shapes,
        "alone",
    ),
    # The start
    "init_from": Row(
        "{checkpoint}",
        lambda x: (
            x.job.initial_params is not None
            and x.job.initial_params["mlm"]["output_bias"][:3].tolist() == [1, 2, 3]
        ),
        "alone",
    ),
    "init_state": Row(
        True,
        lambda x: x.job.start_state is not None and x.job.initial_params is None,
        "alone",
        {"init_from": "{run}"},
    ),
    "z_loss": Row(
        2e-4, lambda x: "mlm_z_loss" in x.job.objective.sum_names, "alone", NO_PAIRS
    ),
    "objective": Row(
        "bert_jax.objectives.electra",
        lambda x: "generator/mlm/output_bias" in x.shapes,
        "alone",
        NO_PAIRS,
    ),
    # The engine
    "seed": Row(5, lambda x: seeds(x, 5), "engine"),
    "accumulation": Row(2, lambda x: {*x.job.objective.traced} == {(4, 64)}, "engine"),
    "data_timeout": Row(
        77,
        lambda x: reading(x, "timeout") == {77},
        "engine",
    ),
    "data.threads": Row(3, lambda x: reading(x, "threads") == {3}, "engine"),
    "data.prefetch": Row(5, lambda x: reading(x, "prefetch") == {5}, "engine"),
    "data.holdout": Row(0.4, lambda x: holds_out(x, 0.4), "engine"),
    # With keep_checkpoints_every=3, step 3 is also saved.
    "checkpoint_every": Row(2, lambda x: {*saves(x)} - {3} == {2, 4, 6}, "engine"),
    "average": Row(0.7, lambda x: x.averages_as(0.7), "engine"),
    "eval_average": Row(
        True,
        lambda x: len(steps_of(x, "eval_average")) == len(steps_of(x, "eval")),
        "engine",
        {"average": 0.7},
    ),
    "keep_checkpoints": Row(2, lambda x: len({*kept(x)} - {3}) == 2, "engine"),
    "keep_checkpoints_every": Row(3, lambda x: 3 in kept(x), "engine"),
    "eval_every": Row(4, lambda x: steps_of(x, "eval") == [0, 4, 6], "engine"),
    "eval_batches": Row(
        3, lambda x: {line["rows"] for line in x.lines("eval")} == {24}, "engine"
    ),
    "eval_mask_rate": Row(
        0.3,
        lambda x: all(
            0.27 < line["masked"] / line["tokens_seen"] < 0.33
            for line in x.lines("eval")
        ),
        "engine",
    ),
    "prompts": Row(
        ("a [MASK]",), lambda x: x.calls.get("prompts") == ["a [MASK]"], "engine"
    ),
    # The optimizer
    "optimizer.clip_norm": Row(15.0, trains_as("clip_norm", 15.0), "engine"),
    "optimizer.spike_norm": Row(
        15.0,
        lambda x: "over the spike_norm" in f"{x.error}{x.log}",
        "spikes",
    ),
    "optimizer.skip_spikes": Row(
        True,
        lambda x: x.error is None and x.trains_as(skip_spikes=True),
        "spikes",
        {"optimizer.spike_norm": 15.0},
    ),
    **SHARED_ROWS,
}
# The runs that go beyond the start of the engine, or start from other text.
KINDS = {
    **SHARED_KINDS,
    "spikes": "end",
    "corpus": "corpus",
    "capitals": "corpus",
}


@pytest.fixture(scope="module")
def places(small_store, tmp_path_factory):
    """Texts, stores and a checkpoint by the names that rows give them."""
    folder = tmp_path_factory.mktemp("places")
    directory, size = small_store
    text = (directory.parent / "text.txt").read_text()
    french = folder / "french.txt"
    french.write_text("La mer était très calme.\nElle dormait.\n\n" * 9)
    few = folder / "few.txt"
    few.write_text("\n\n".join(text.split("\n\n")[:7]))
    tokenizer = train_vocabulary(few.read_text().split("\n"), 300)
    prepare([str(few)], tokenizer, folder / "other", workers=1)
    prepare([str(few)], load_tokenizer(directory), folder / "part", workers=1)
    model = train_config(
        nested(SMALL | {"model.vocab_size": size, "data.path": str(directory)})
    ).model
    shapes = jax.eval_shape(MlmNsp(BertForPreTraining(model)).init, jax.random.key(0))
    random = np.random.default_rng(0)
    params = jax.tree.map(lambda x: np.float32(random.normal(size=x.shape)), shapes)
    params["mlm"]["output_bias"][:3] = 1, 2, 3
    checkpoint = Checkpoint(model, params, load_tokenizer(directory), "pretraining")
    save_huggingface(folder / "checkpoint", checkpoint)
    with CheckpointStore(folder / "run/checkpoints", keep=1) as store:
        store.save(3, {"params": params}, {})
    checkpoint.tokenizer.save(folder / "run")
    config = {"model": dataclasses.asdict(model)}
    (folder / "run/config.json").write_text(json.dumps(config))
    head = {"kernel": np.ones((16, 2), np.float32), "bias": np.ones(2, np.float32)}
    classifier = dataclasses.replace(
        checkpoint,
        params={"bert": params["bert"], "classifier": head},
        head="sequence",
        labels=("no", "yes"),
    )
    save_huggingface(folder / "head", classifier)
    return {
        "{store}": str(directory),
        "{size}": size,
        "{other}": str(folder / "other"),
        "{other_size}": tokenizer.vocab_size,
        "{part}": str(folder / "part"),
        "{text}": str(directory.parent / "text.txt"),
        "{french}": str(french),
        "{checkpoint}": str(folder / "checkpoint"),
        "{head}": str(folder / "head"),
        "{run}": str(folder / "run"),
    }


@pytest.fixture(scope="module")
def table(places, tmp_path_factory):
    def place(value):
        if isinstance(value, tuple):
            return tuple(map(place, value))
        return places.get(value, value) if isinstance(value, str) else value

    def observe(kind, settings):
        base = SMALL | {"data.path": "{store}", "model.vocab_size": "{size}"}
        if kind == "corpus":
            base = SMALL | {"data.corpus": ("{text}",)}
        if kind in ("end", "step"):
            base |= {"objective": "tests.settings_probe"}
        settings = {name: place(value) for name, value in (base | settings).items()}
        workdir = tmp_path_factory.mktemp("run") / "workdir"
        until = kind if kind in ("end", "step") else "job"
        return pretrained(settings, workdir, until, all_devices=kind == "step")

    return Table(ROWS, KINDS, observe)


@among_others_and_alone
@pytest.mark.parametrize("name", ROWS)
def test_a_setting_of_pretraining_arrives(table, name, alone):
    table.check(name, alone=alone)


def test_every_setting_of_pretraining_has_a_row():
    assert {setting.full for setting in all_settings(TrainConfig)} == {*ROWS}


def test_packed_rows_can_be_divided_into_the_parts_of_a_step(table):
    settings = {"data.packing": True, "data.examples.short_sequence_rate": 0.9}
    settings |= {"accumulation": 3, "phases[0].batch_size": 48, "phases[0].steps": 20}
    settings |= {"phases[0].sequence_length": 96}
    seen = table.seen("packed", settings)
    counts = {len(batch["input_ids"]) for batch in seen.batches}
    assert all(count % 3 == 0 for count in counts)


# Settings that exclude others of the table, or need files.
ALONE = (
    *("data.examples.sentence_order", "model.encoder", "init_from", "init_state"),
    *("model.rope_theta", "model.rope_factor", "model.local_rope_theta"),
)
GIVEN = {name: row.value for name, row in ROWS.items() if name not in ALONE}
GIVEN |= {"model.vocab_size": 77}


def test_bert_jax_pretrain_passes_every_argument(tmp_path):
    groups = nested(GIVEN)
    arguments = groups | groups["optimizer"] | {"workdir": tmp_path}
    del arguments["optimizer"]
    call = functools.partial(bert_jax.pretrain, **arguments)
    config = config_of(call, from_python.pretraining, "pretrain")
    values = values_of(config)
    assert {name: values[name] for name in GIVEN} == GIVEN


def test_the_arguments_of_a_phase_replace_its_settings(tmp_path):
    small = nested(SMALL | {"model.vocab_size": 77, "data.path": "text"})
    sizes = {"steps": 7, "batch_size": 24, "sequence_length": 40}
    call = functools.partial(bert_jax.pretrain, small, tmp_path, **sizes)
    config = config_of(call, from_python.pretraining, "pretrain")
    assert config.phases == (Phase(**sizes),)


def test_the_command_passes_every_flag(config_file):
    line = ["--config", str(config_file), *(f"--{n}={x}" for n, x in GIVEN.items())]
    values = values_of(parse(line, "usage", train_config).config)
    assert {name: values[name] for name in GIVEN} == GIVEN


# Studies


def names_of(seen):
    return {*seen.study.configs}


STUDY = {
    "variants": Row(
        {"first": {"pretrain": "{small}"}, "third": {"pretrain": "{deep}"}},
        lambda x: "pretrain/third-seed0" in names_of(x),
        "other variants",
    ),
    "tasks": Row(
        {"topic": "{task}"},
        lambda x: "finetune/first-topic-seed0" in names_of(x),
        "parts",
    ),
    "seeds": Row(
        (4,),
        lambda x: (
            {name.rpartition("-")[2] for name in names_of(x)} == {"seed4"}
            and x.calls["pretrain"][0].seed == 4
        ),
        "seeds",
    ),
    "pairs": Row(("{pairs}",), lambda x: x.calls.get("sets", [])[:1] == [5], "parts"),
    "pairs_per_set": Row(
        2, lambda x: x.calls["sets"][:1] == [2], "few pairs", {"pairs": ("{pairs}",)}
    ),
    "equal_compute": Row(
        True, lambda x: x.calls["pretrain"][-1].phases[0].steps < 6, "compute"
    ),
    "pretrain": Row(
        {"eval_batches": 7}, lambda x: x.calls["pretrain"][0].eval_batches == 7, "parts"
    ),
    "finetune": Row(
        {"epochs": 5},
        lambda x: x.calls["run_one"][0].epochs == 5,
        "parts",
        {"tasks": {"topic": "{task}"}},
    ),
}


@pytest.fixture(scope="module")
def study_table(places, settings, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    pair = json.dumps({"sentence_good": "a b", "sentence_bad": "b a"})
    (folder / "five.jsonl").write_text(f"{pair}\n" * 5)
    known = {"data.path": places["{store}"], "model.vocab_size": places["{size}"]}
    groups = {
        "{small}": nested(SMALL | known),
        "{deep}": nested(SMALL | known | {"model.num_layers": 3}),
        "{task}": {
            n: x for n, x in settings("classification").items() if n != "init_from"
        },
        "{pairs}": str(folder / "five.jsonl"),
    }

    def place(value):
        if isinstance(value, tuple):
            return tuple(map(place, value))
        if isinstance(value, dict):
            return {name: place(x) for name, x in value.items()}
        return groups.get(value, value) if isinstance(value, str) else value

    def observe(kind, flat):
        flat = place(dict(flat))
        pretraining, fine_tuning = flat.pop("pretrain", {}), flat.pop("finetune", {})
        first = {"pretrain": groups["{small}"] | pretraining, "finetune": fine_tuning}
        variants = {"first": first, "second": {"pretrain": groups["{deep}"]}}
        config = from_settings(StudyConfig, {"variants": variants} | flat, "")
        return studied(config, tmp_path_factory.mktemp("study"))

    return Table(STUDY, {}, observe)


@among_others_and_alone
@pytest.mark.parametrize("name", STUDY)
def test_a_setting_of_a_study_arrives(study_table, name, alone):
    study_table.check(name, alone=alone)


def test_every_setting_of_a_study_has_a_row():
    settings = [*all_settings(StudyConfig), *all_settings(Variant)]
    assert {setting.full for setting in settings} == {*STUDY}


# Options of inference

OPTIONS = {"batch_size": 3, "max_length": 9, "dtype": "bfloat16", "show_progress": True}
TEXTS = {
    Bert.encode: ["the sea " * 9],
    Bert.predict: ["the sea " * 9],
    Bert.logits: ["the sea " * 9],
    Bert.score: ["the sea"],
    Bert.fill_mask: ["the [MASK]"],
    Bert.next_sentence: [("the sea " * 4, "the whale " * 4)],
}


@pytest.fixture(scope="module")
def answered(places):
    """A function of a method and options: batching, lengths, text and progress."""

    @functools.cache
    def answer(method, **options):
        seen = {}

        class StoppedError(Exception):
            pass

        def model(forward, params, features, *, mesh, done, **batching):
            seen["batch_size"] = batching["batch_size"]
            seen["length"] = max(map(len, features.input_ids))
            _, arrays = next(inference_batches(features, **batching))
            seen["text"] = str(jax.make_jaxpr(inspect.unwrap(forward))(params, arrays))
            raise StoppedError

        def progress(*arguments, show, **options):
            seen["show"] = show
            return Progress(*arguments, show=False, **options)

        of_head = method in (Bert.predict, Bert.logits)
        name = "{head}" if of_head else "{checkpoint}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(evaluation, "run_model", model)
            patch.setattr(evaluation, "Progress", progress)
            with pytest.raises(StoppedError):
                method(bert_jax.load(places[name]), TEXTS[method], **options)
        return seen

    return answer


@pytest.mark.parametrize("method", TEXTS)
def test_every_option_of_inference_arrives(answered, places, method):
    product = r"bf16\[[^]]*\] = dot_general"
    seen, default = answered(method, **OPTIONS), answered(method)
    assert (seen["batch_size"], default["batch_size"]) == (3, 32)
    assert re.search(product, seen["text"]) and "bf16" not in default["text"]
    assert seen["show"] is True and not default["show"]
    if method not in (Bert.score, Bert.fill_mask):  # they refuse longer texts
        assert seen["length"] == 9 < default["length"]
        return
    long = TEXTS[method][0] + " the sea" * 9
    with pytest.raises(UserError, match="at most 9 fit"):
        method(bert_jax.load(places["{checkpoint}"]), [long], **OPTIONS)


def test_every_option_of_inference_has_a_value():
    assert {setting.full for setting in all_settings(Options)} == {*OPTIONS}


# Objectives, and all configs


@pytest.mark.parametrize("name", ["mlm_nsp", "causal", "electra", "two_way"])
def test_every_objective_gets_model_and_compute(name):
    """The configs of the run, and activations in the dtype of the run."""
    module = importlib.import_module(f"bert_jax.objectives.{name}")
    kinds = {"causal": {"causal": True}, "two_way": {"encoder": "lstm"}}
    model = BertConfig(60, 8, 1, 2, 16, 32, activation="relu", **kinds.get(name, {}))
    compute = ComputeConfig(dtype="bfloat16", attention_impl="plain")
    examples = ExampleConfig(next_sentence=name == "mlm_nsp")
    objective = module.pretraining(model, compute, examples)
    assert (objective.model.config, objective.model.compute) == (model, compute)
    text = str(jax.make_jaxpr(objective.init)(jax.random.key(0)))
    assert "bf16[" in text


def test_every_config_is_in_a_table():
    """Finds the dataclasses with settings in the source.

    The options of a single method of a model have the tests of the method.
    """
    tables = [TrainConfig, FineTuneConfig, StudyConfig, Variant, Options]
    tables += [family.config_class for family in FAMILIES.values()]
    settings = itertools.chain(*map(all_settings, tables))
    owners = {*tables, *(setting.group for setting in settings)}
    parents = {parent for owner in owners for parent in owner.__mro__}
    package = Path(bert_jax.__file__).parent
    found = set()
    for path in package.rglob("*.py"):
        if "= setting" not in path.read_text():
            continue
        name = ".".join(path.relative_to(package.parent).with_suffix("").parts)
        for value in vars(importlib.import_module(name)).values():
            if isinstance(value, type) and dataclasses.is_dataclass(value):
                fields = dataclasses.fields(value)
                has_settings = any("limits" in field.metadata for field in fields)
                if has_settings and not value.__name__.endswith("Options"):
                    found.add(value)
    assert found <= owners | parents
