"""Every function works with every family, with the exceptions in docs/weights.md.

The models are small and random. Equality with transformers is in test_encoder_families.py.
"""

import dataclasses
import functools
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import bert_jax
from bert_jax.commands import convert
from bert_jax.commands import inspect as inspect_command
from bert_jax.data.phases import Phase
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.data.wordpiece import WordPieceTokenizer
from bert_jax.errors import UserError
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.families import FAMILIES, find_family
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.interop.modules import write_modules
from bert_jax.model.bert import BertForPreTraining, BertModel
from bert_jax.model.config import BertConfig
from bert_jax.model.parameters import with_scan
from bert_jax.model.tokens import Tokens
from bert_jax.parallel.mesh import make_mesh
from bert_jax.training.config import train_config
from bert_jax.training.estimate import lower_step
from tests.conftest import MODERNBERT, xlm_r_tokenizer

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests/golden"
WORDS = ["the", "cat", "bee", "sat", "on", "mat", "a", "good", "bad", "day"]
WORDPIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS]
PLAIN = WordPieceTokenizer(WORDPIECES)
NO_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
SIZES = {
    "hidden_size": 24,
    "num_heads": 4,
    "intermediate_size": 40,
    "max_positions": 40,
    **NO_DROPOUT,
}
FROM_2 = {"position_offset": 2, "type_vocab_size": 1}
# Options of a model of each family, and the kind of its tokenizer.
COLUMNS = {
    "BERT": ({}, "WordPiece"),
    "MegatronBert": ({"model_type": "megatron-bert", "pre_norm": True}, "WordPiece"),
    "RoBERTa": ({"model_type": "roberta", **FROM_2}, "byte-level BPE"),
    "XLM-R": ({"model_type": "xlm-roberta", **FROM_2}, "Unigram"),
    "CamemBERT": ({"model_type": "camembert", **FROM_2}, "Unigram"),
    "DistilBERT": (
        {"model_type": "distilbert", "type_vocab_size": 0, "pooler": "relu"},
        "WordPiece",
    ),
    "ELECTRA": ({"model_type": "electra", "pooler": "gelu"}, "WordPiece"),
    "ModernBERT": (
        {
            "model_type": "modernbert",
            "window": 4,
            "global_every": 2,
            **MODERNBERT,
        },
        "byte-level BPE with [MASK]",
    ),
    "Nomic BERT": (
        {
            "model_type": "nomic_bert",
            "positions": "rotary",
            "rope_theta": 1000.0,
            "gated": True,
            "activation": "silu",
            "attention_bias": False,
            "feed_forward_bias": "none",
        },
        "WordPiece",
    ),
    "GTE": (
        {
            "model_type": "gte",
            "positions": "rotary",
            "rope_theta": 160_000.0,
            "gated": True,
            "feed_forward_bias": "down",
            "type_vocab_size": 1,
        },
        "Unigram",
    ),
    "multilingual BERT": ({}, "Unigram"),
}
PAIRS = ("BERT", "MegatronBert")  # models that were trained with sentence pairs
TEXTS = ["the cat sat on the mat", "a bee", "a good day", "the bad bee sat on a cat"]


def page():
    return (ROOT / "docs/weights.md").read_text()


def table(title):
    """The cells of the first table below a heading of the page, row by row."""
    lines = page().partition(f"# {title}\n")[2].splitlines()
    rows = []
    for line in lines:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            break
    return [rows[0], *rows[2:]]


def works(function, column):
    """Whether a function works with a family, as docs/weights.md describes it."""
    if function == NEXT_SENTENCE:
        return column in PAIRS
    if function == PRETRAIN_PAIRS:
        return column in (*PAIRS, "multilingual BERT")
    return (function, column) != (FILL_MASK, "ELECTRA")


@functools.cache
def checkpoint_of(column, layers=1):
    """A random model. It has the MLM and NSP heads that models of the column have."""
    options, kind = COLUMNS[column]
    tokenizer = PLAIN
    if kind == "byte-level BPE":
        tokenizer = load_tokenizer(GOLDEN / "templates/byte_level")
    if kind == "byte-level BPE with [MASK]":
        tokenizer = load_tokenizer(GOLDEN / "tokenizers/modernbert")
    if kind == "Unigram":
        tokenizer = xlm_r_tokenizer()
    sizes = {"vocab_size": tokenizer.vocab_size, "num_layers": layers, **SIZES}
    config = BertConfig(**sizes, **options)
    ids = jax.ShapeDtypeStruct((1, 8), np.int32)
    init = functools.partial(BertForPreTraining(config).init, deterministic=True)
    shapes = jax.eval_shape(init, jax.random.key(0), *[ids] * 4)["params"]
    random = np.random.default_rng(0)

    def draw(path, shape):
        return np.float32(random.normal("scale" in str(path[-1]), 0.3, shape.shape))

    params = jax.tree_util.tree_map_with_path(draw, shapes)
    head = "pretraining"
    if column not in PAIRS:
        del params["nsp"], params["bert"]["pooler"]
    if column == "ELECTRA":
        del params["mlm"]
        head = "none"
    return Checkpoint(config, params, tokenizer, head)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A function that returns the folder of the model of a column."""

    @functools.cache
    def save(column, layers):
        folder = tmp_path_factory.mktemp("model") / "m"
        save_huggingface(folder, checkpoint_of(column, layers))
        return folder

    return save


def class_of(folder):
    """The class of a folder of transformers, without the name of its family.

    "" if only bert_jax loads it.
    """
    settings = json.loads((folder / "config.json").read_text())
    if settings["model_type"] == "bert_jax":
        return ""
    start = find_family(settings["model_type"]).model_types[settings["model_type"]]
    (name,) = settings["architectures"]
    assert name.startswith(start)
    return name.removeprefix(start)


def equal_params(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


ONE_DEVICE = {"data": 1}


def check_load(folder, tmp_path, column, capsys):
    expected = checkpoint_of(column)
    model = bert_jax.load(folder)
    assert model.config == expected.config
    encoder = model.params["bert"]["encoder"]
    equal_params(encoder, expected.params["bert"]["encoder"])
    model.save(tmp_path / "saved")
    arguments = ["--checkpoint", str(folder), "--output", str(tmp_path / "converted")]
    convert.main(arguments)
    model_type = expected.config.model_type
    assert f"model_type: {model_type};" in capsys.readouterr().out
    for name in ("saved", "converted"):
        equal_params(bert_jax.load(tmp_path / name).params, model.params)
        assert class_of(tmp_path / name) == class_of(folder)
    inspect_command.main([str(folder)])
    lines = capsys.readouterr().out.splitlines()
    assert ["config.model_type", model_type] in [line.split() for line in lines]


def check_encode(folder, tmp_path, column, capsys):
    model = bert_jax.load(folder)
    vectors = model.encode(TEXTS)
    for text, vector in zip(TEXTS, vectors, strict=True):
        np.testing.assert_allclose(model.encode(text), vector, rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.diag(model.similarity(TEXTS, TEXTS)), 1, atol=1e-6)
    relevant = [(i, i) for i in range(len(TEXTS))]
    assert [found[0]["row"] for found in model.search(TEXTS, TEXTS)] == [0, 1, 2, 3]
    assert model.evaluate_search(TEXTS, TEXTS, relevant)["mrr@10"] == 100
    pairs = model.duplicates([*TEXTS, TEXTS[0]], 0.99999)
    assert [pair[:2] for pair in pairs] == [(0, 4)]


def check_fill_mask(folder, tmp_path, column, capsys):
    model = bert_jax.load(folder)
    mask = model.tokenizer.special.mask
    whole = model.config.vocab_size
    (answers,) = model.fill_mask(f"the {mask} sat", top=whole)
    assert sum(probability for _, probability in answers) == pytest.approx(1, abs=1e-4)
    (again,) = model.fill_mask("the [MASK] sat", top=whole)
    assert again == answers
    scores = model.score(TEXTS)
    single = [model.score(text) for text in TEXTS]
    np.testing.assert_allclose(scores, single, rtol=1e-5)
    assert (scores < 0).all() and np.ptp(scores) > 1


def check_next_sentence(folder, tmp_path, column, capsys):
    model = bert_jax.load(folder)
    same, other = (model.next_sentence("a good day", b) for b in ("the cat", "a bee"))
    assert 0 < same < 1 and abs(same - other) > 1e-4


def tune(folder, task, rows, mesh=ONE_DEVICE, **settings):
    return bert_jax.finetune(
        task,
        init_from=folder,
        train=rows * 4,
        dev=rows,
        epochs=1,
        batch_size=8,
        checkpoint_every=1000,
        # With a large epsilon, an update is proportional to its gradient.
        learning_rate=1.0,
        epsilon=1.0,
        warmup=0.0,
        model=NO_DROPOUT,
        mesh=mesh,
        **settings,
    )


def trained(function, rows, inputs, class_name, problem_type=None, **settings):
    """A check that a task is trained, predicted, saved for transformers, and loaded.

    problem_type: in the saved config.json, on which the outputs in transformers depend.
    settings: settings of the task.
    """

    def check(folder, tmp_path, column, capsys):
        task = getattr(bert_jax.tasks, function)(max_length=24, **settings)
        model = tune(folder, task, rows)
        before = bert_jax.load(folder).params["bert"]["embeddings"]["word"]
        after = model.params["bert"]["embeddings"]["word"]
        assert abs(after["embedding"] - before["embedding"]).max() > 1e-4
        model.save(tmp_path / "tuned")
        family = find_family(checkpoint_of(column).config.model_type)
        expected = ""  # transformers has no class for the task
        if class_name in family.classes:
            expected = class_name
        assert class_of(tmp_path / "tuned") == expected
        saved = json.loads((tmp_path / "tuned/config.json").read_text())
        if problem_type:
            assert saved["problem_type"] == problem_type
        again = bert_jax.load(tmp_path / "tuned")
        assert again.config.model_type == checkpoint_of(column).config.model_type
        answers = model.predict(inputs)
        assert len(answers) == len(inputs)
        assert again.predict(inputs) == answers

    return check


SEQUENCE = "ForSequenceClassification"
CLASSES = [("a good day", "good"), ("the bad bee", "bad")]
NUMBERS = [("a good day", 4.5), ("the bad bee", 1.0)]
SEVERAL = [("a good day", ["good", "day"]), ("the bad bee", ["bad"])]
LABELLED_PAIRS = [("a day", "good", "yes"), ("the bee", "on a mat", "no")]
ANSWERS = [
    {"question": "a cat", "context": "the cat sat on the mat", "answers": ["the mat"]},
    {"question": "a day", "context": "a good day", "answers": ["good"]},
]
CHOICES = [("the cat", ["sat", "a bee"], 0), ("a good", ["on", "day"], 1)]
TAGS = [(["the", "cat", "sat"], ["O", "B", "O"]), (["a", "bee"], ["O", "B"])]
VECTORS = [("a day", "a good day", 1.0), ("a cat", "a bee", 0.0)]


def pretrained(pairs, class_name):
    """A check that a model is trained further on text, and saved for transformers."""

    def check(folder, tmp_path, column, capsys):
        text = tmp_path / "text.txt"
        text.write_text("\n\n".join(["\n".join(f"{x} ." for x in TEXTS)] * 12))
        model = bert_jax.pretrain(
            workdir=tmp_path / "run",
            text=text,
            init_from=folder,
            data={"examples": {"next_sentence": pairs}},
            steps=2,
            sequence_length=16,
            batch_size=8,
            mesh=ONE_DEVICE,
        )
        assert ("nsp" in model.params) == pairs
        save_huggingface(tmp_path / "out", model)
        assert class_of(tmp_path / "out") == class_name
        again = bert_jax.load(tmp_path / "out")
        model_type = checkpoint_of(column).config.model_type
        if class_name not in find_family(model_type).classes:
            model_type = "bert"
        assert again.config.model_type == model_type
        equal_params(again.params, model.params)
        before = checkpoint_of(column).params["bert"]["embeddings"]["word"]
        after = model.params["bert"]["embeddings"]["word"]
        rows = len(before["embedding"])
        assert abs(after["embedding"][:rows] - before["embedding"]).max() > 1e-6

    return check


def check_modules(folder, tmp_path, column, capsys):
    settings = {
        "pooling": "cls",
        "activations": [],
        "normalize": True,
        "max_length": 8,
        "prompts": {"query": "a good "},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
        "include_prompt": True,
    }
    source = checkpoint_of(column)
    bert = {"bert": source.params["bert"]}
    encoder = dataclasses.replace(source, params=bert, head="none")
    save_huggingface(tmp_path / "given", encoder)
    write_modules(tmp_path / "given", settings, encoder.config.hidden_size)
    model = bert_jax.load(tmp_path / "given")
    vectors = model.encode(TEXTS, prompt_name="query")
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    plain = bert_jax.load(folder).encode(
        [f"a good {text}" for text in TEXTS],
        pooling="cls",
        normalize=True,
        max_length=8,
    )
    np.testing.assert_allclose(vectors, plain, rtol=0, atol=1e-6)
    model.save(tmp_path / "saved")
    assert class_of(tmp_path / "saved") == "Model"
    again = bert_jax.load(tmp_path / "saved")
    assert again.extra["modules"] == settings
    np.testing.assert_array_equal(again.encode(TEXTS, prompt_name="query"), vectors)


def check_estimate(folder, tmp_path, column, capsys):
    phase = Phase(steps=1, sequence_length=16, batch_size=8, max_predictions=4)
    settings = {
        "model": dataclasses.asdict(checkpoint_of(column).config),
        "data": {
            "corpus": ("text.txt",),
            "examples": {"next_sentence": column in PAIRS},
        },
        "optimizer": {"learning_rate": 1e-3},
        "phases": [dataclasses.asdict(phase)],
    }
    config = train_config(settings)
    lowered, state, _ = lower_step(config, phase, make_mesh(config.mesh))
    shapes = jax.tree.map(np.shape, state.params["bert"]["encoder"])
    assert shapes == jax.tree.map(
        np.shape, checkpoint_of(column).params["bert"]["encoder"]
    )
    assert "stablehlo.dot_general" in lowered.as_text()


def updates(folder, **settings):
    """How training changes each parameter of the encoder, in one vector."""
    task = bert_jax.tasks.pairs(max_length=16)
    model = tune(folder, task, LABELLED_PAIRS, **settings)
    found = with_scan(model.params["bert"], scan=False)["encoder"]
    start = bert_jax.load(folder).params["bert"]["encoder"]
    changes = jax.tree.map(lambda a, b: np.ravel(a - b), found, start)
    return np.concatenate(jax.tree.leaves(changes))


def equal_training(**settings):
    """A check that settings of the computation do not change what is learned."""

    def check(folder, tmp_path, column, capsys):
        expected = updates(folder)
        size = np.linalg.norm(expected)
        assert size > 0.01
        assert np.linalg.norm(updates(folder, **settings) - expected) < 1e-4 * size

    return check


def check_packed(folder, tmp_path, column, capsys):
    model = bert_jax.load(folder)
    ids = [model.tokenizer(text)["input_ids"] for text in TEXTS[1:3]]
    lengths = [len(row) for row in ids]
    row = np.concatenate([*ids, [model.tokenizer.pad_id]])[None].astype(np.int32)
    numbers = np.int32([[1] * lengths[0] + [2] * lengths[1] + [0]])
    packed = Tokens(row, numbers * 0, numbers, np.int32([[0, lengths[0]]]))
    encode = functools.partial(
        BertModel(model.config).apply,
        {"params": model.params["bert"]},
        deterministic=True,
        method="encode",
        pool=False,
    )
    found = encode(packed).sequence_BLD[0]
    for number, tokens in enumerate(ids, start=1):
        mask = np.ones((1, len(tokens)), np.int32)
        alone = Tokens.of_mask(np.int32([tokens]), mask * 0, mask)
        expected = encode(alone).sequence_BLD[0]
        np.testing.assert_allclose(
            found[numbers[0] == number], expected, rtol=0, atol=1e-5
        )


LOAD = "`load`, `save`, `inspect`, `convert`"
FILL_MASK = "`fill_mask`, `score`"
NEXT_SENTENCE = "`next_sentence`"
PRETRAIN_PAIRS = "`pretrain` with sentence pairs, and export"
CHECKS = {
    LOAD: check_load,
    "`encode`, `similarity`, `search`, `evaluate_search`, `duplicates`": check_encode,
    FILL_MASK: check_fill_mask,
    NEXT_SENTENCE: check_next_sentence,
    "`finetune`, `predict`: `classification`": trained(
        "classification", CLASSES, TEXTS, SEQUENCE
    ),
    "the same: `pairs`": trained("pairs", LABELLED_PAIRS, [("a", "cat")], SEQUENCE),
    "the same: `classification(regression=True)`": trained(
        "classification", NUMBERS, TEXTS, SEQUENCE, "regression", regression=True
    ),
    "the same: `multi_label`": trained(
        "multi_label", SEVERAL, TEXTS, SEQUENCE, "multi_label_classification"
    ),
    "the same: `choices`": trained(
        "choices", CHOICES, [("a bee", ["sat", "day"])], "ForMultipleChoice"
    ),
    "the same: `tagging`": trained(
        "tagging", TAGS, [("the", "bee")], "ForTokenClassification"
    ),
    "the same: `squad`": trained(
        "squad", ANSWERS, [("a cat", TEXTS[0])], "ForQuestionAnswering"
    ),
    "the same: `sentence_vectors`": trained(
        "sentence_vectors", VECTORS, [("a cat", "a day")], "Model"
    ),
    "`pretrain` with masked tokens, and export": pretrained(False, "ForMaskedLM"),
    PRETRAIN_PAIRS: pretrained(True, "ForPreTraining"),
    "folders of sentence-transformers, both ways": check_modules,
    "`estimate`": check_estimate,
    "`mesh.fsdp`, `mesh.model`": equal_training(
        mesh={"data": 4, "model": 2, "fsdp": True}
    ),
    "`compute.scan_layers`, `compute.remat`": equal_training(
        compute={"scan_layers": True, "remat": "full"}
    ),
    "packed rows that equal single rows": check_packed,
}


def cases():
    for function in CHECKS:
        marks = [pytest.mark.long] * (function != LOAD)
        for column in COLUMNS:
            name = f"{column}-{function}"
            yield pytest.param(function, column, marks=marks, id=name)


@pytest.mark.parametrize(("function", "column"), [*cases()])
def test_a_function_works_with_a_family(function, column, folders, tmp_path, capsys):
    layers = 1
    if function.startswith("`compute.scan_layers`"):
        layers = 3
    folder = folders(column, layers)
    if works(function, column):
        CHECKS[function](folder, tmp_path, column, capsys)
    else:
        with pytest.raises(UserError, match=r"head|no class|type_vocab_size="):
            CHECKS[function](folder, tmp_path, column, capsys)


def test_the_page_names_the_exceptions():
    assert "`next_sentence` works with BERT and MegatronBert only" in page()
    assert "`fill_mask` and `score` do not work with ELECTRA" in page()


def test_the_table_has_every_family():
    families, kinds = {row[0] for row in table("Families")[1:]}, set()
    for row in table("Families")[1:]:
        kinds |= set(re.findall(r"`([\w-]+)`", row[1]))
    assert kinds == {*FAMILIES}
    assert families == {*COLUMNS} - {"multilingual BERT"}
    assert kinds == {checkpoint_of(column).config.model_type for column in COLUMNS}


def test_other_pages_name_the_same_families():
    families = [row[0] for row in table("Families")[1:]]
    help_text = inspect_command.__doc__.partition("model_types load:")[2]
    (listed,) = re.findall(r"[\w\s,-]+", help_text.partition(".")[0])
    assert [name.strip() for name in listed.split(",")] == [*FAMILIES]
    for name, start in (
        ("README.md", "| other architectures |"),
        ("docs/limits.md", "| Only BERT, "),
        ("docs/names_in_other_libraries.md", "| `RobertaModel`"),
    ):
        lines = (ROOT / name).read_text().splitlines()
        (line,) = [line for line in lines if line.startswith(start)]
        cell = line.split("|")[2 if name == "README.md" else 1]
        for family in families[1:]:
            short = family.replace("XLM-R", "XLM").removesuffix(" BERT").lower()
            assert short in cell.lower(), (name, family)
