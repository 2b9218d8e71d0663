"""Models of other families are fine-tuned, trained further, searched and exported."""

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest

import bert_jax
from bert_jax.data.wordpiece import WordPieceTokenizer
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import BertConfig

pytestmark = pytest.mark.long
WORDS = [f"w{i}" for i in range(30)]
# The padding token has the id 1, as in RoBERTa.
TOKENS = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]", "good", "bad", ".", *WORDS]
SIZES = BertConfig(len(TOKENS), 24, 2, 4, 40, 32, initializer_range=0.1)
OPTIONS = {
    "xlm-roberta": {"position_offset": 2, "type_vocab_size": 1},
    "distilbert": {"type_vocab_size": 0, "pooler": "relu"},
    # Layers 0 and 2 attend to all tokens. Texts are longer than the window of layer 1.
    "modernbert": {
        "num_layers": 3,
        "type_vocab_size": 0,
        "positions": "rotary",
        "rope_theta": 160_000.0,
        "local_rope_theta": 20_000.0,
        "window": 2,
        "global_every": 2,
        "pre_norm": True,
        "embedding_norm": True,
        "gated": True,
        "norm_bias": False,
        "attention_bias": False,
        "feed_forward_bias": "none",
        "pooler": "transform",
        "head_bias": False,
        "pooling": "mean",
    },
}
CLASSES = {
    "xlm-roberta": "XLMRoberta",
    "distilbert": "DistilBert",
    "modernbert": "ModernBert",
}


@pytest.fixture(scope="module", params=OPTIONS)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def folder(family, tmp_path_factory):
    """A random model with an MLM head and without a pooler."""
    config = dataclasses.replace(SIZES, model_type=family, **OPTIONS[family])
    ids = jax.ShapeDtypeStruct((1, 8), np.int32)
    init = functools.partial(BertForPreTraining(config).init, deterministic=True)
    shapes = jax.eval_shape(init, jax.random.key(0), *[ids] * 4)["params"]
    random = np.random.default_rng(0)

    def draw(path, shape):
        return np.float32(random.normal("scale" in str(path[-1]), 0.3, shape.shape))

    params = jax.tree_util.tree_map_with_path(draw, shapes)
    del params["nsp"], params["bert"]["pooler"]
    path = tmp_path_factory.mktemp("families") / "m"
    checkpoint = Checkpoint(config, params, WordPieceTokenizer(TOKENS), "pretraining")
    save_huggingface(path, checkpoint)
    return path


def sentences(count=24):
    """Texts of one to eight words with one of two clues, and the clue."""
    random = np.random.default_rng(0)
    for i in range(count):
        clue = ("bad", "good")[i % 2]
        words = random.choice(WORDS, random.integers(1, 8)).tolist()
        yield " ".join([*words, clue]), clue


def architecture(path):
    return json.loads((path / "config.json").read_text())["architectures"][0]


def test_a_classifier_is_trained_on_every_mesh_and_exported(family, folder, tmp_path):
    """Data parallelism, and fsdp with split layers, a scan and rematerialisation."""
    rows = [(*text.rsplit(" ", 2)[-2:], clue) for text, clue in sentences()]
    pairs = [(a, b) for a, b, _ in rows[:6]]
    scores = []
    for settings in (
        {"mesh": {"data": 8}},
        {
            "mesh": {"data": 4, "model": 2, "fsdp": True},
            "compute": {"scan_layers": True, "remat": "full"},
        },
    ):
        model = bert_jax.finetune(
            bert_jax.tasks.pairs(max_length=16),
            init_from=folder,
            train=rows,
            epochs=2,
            batch_size=8,
            checkpoint_every=1000,
            learning_rate=1e-2,
            bias_correction=True,
            model={"hidden_dropout": 0.0, "attention_dropout": 0.0},
            **settings,
        )
        assert (model.config.model_type, model.head) == (family, "sequence")
        found = [answer["probabilities"]["good"] for answer in model.predict(pairs)]
        scores.append(np.array(found))
    np.testing.assert_allclose(*scores, rtol=0, atol=1e-3)
    assert np.ptp(scores[0]) > 0.02
    model.save(tmp_path / "out")
    assert architecture(tmp_path / "out") == (
        f"{CLASSES[family]}ForSequenceClassification"
    )
    again = bert_jax.load(tmp_path / "out")
    assert again.config.model_type == family
    assert again.predict(pairs) == bert_jax.load(tmp_path / "out").predict(pairs)
    found = [answer["probabilities"]["good"] for answer in again.predict(pairs)]
    np.testing.assert_allclose(found, scores[1], rtol=0, atol=1e-5)


def test_masked_words_are_learned_and_the_run_is_exported(family, folder, tmp_path):
    text = tmp_path / "text.txt"
    documents = ["\n".join(f"{line} ." for line, _ in sentences(9))] * 4
    text.write_text("\n\n".join(documents))
    lines = []
    model = bert_jax.pretrain(
        workdir=tmp_path / "run",
        text=text,
        init_from=folder,
        steps=3,
        sequence_length=16,
        batch_size=8,
        log=lines.append,
    )
    # The run has no pairs, and so neither a head for pairs nor a pooler.
    assert not [line for line in lines if "initialised at random" in line]
    assert model.missing == ()
    assert (model.config.model_type, model.head) == (family, "pretraining")
    assert {*model.params} == {"bert", "mlm"}
    settings = json.loads((tmp_path / "run/config.json").read_text())
    assert OPTIONS[family].items() <= settings["model"].items()
    assert settings["data"]["examples"]["next_sentence"] is False
    model.save(tmp_path / "out")
    assert architecture(tmp_path / "out") == f"{CLASSES[family]}ForMaskedLM"
    again = bert_jax.load(tmp_path / "out")
    assert again.fill_mask("w1 [MASK] w2 .") == model.fill_mask("w1 [MASK] w2 .")
    assert again.score(["w1 w2 ."]) == model.score(["w1 w2 ."])


def test_sentence_vectors_are_saved_with_their_pooling(family, folder, tmp_path):
    rows = [
        (text, f"{text} .", float(i % 2)) for i, (text, _) in enumerate(sentences())
    ]
    model = bert_jax.finetune(
        bert_jax.tasks.sentence_vectors(max_length=16),
        init_from=folder,
        train=rows[:8],
        epochs=1,
        batch_size=8,
    )
    model.save(tmp_path / "out")
    assert architecture(tmp_path / "out") == f"{CLASSES[family]}Model"
    assert (tmp_path / "out/modules.json").is_file()
    again = bert_jax.load(tmp_path / "out")
    texts = [text for text, _, _ in rows]
    np.testing.assert_allclose(
        again.encode(texts), model.encode(texts), rtol=0, atol=1e-6
    )
    assert len(again.search(texts[:1], texts, top=2)[0]) == 2


def rows_of(task):
    """Training rows of a task, and inputs of predict."""
    texts = [(text.split(), clue) for text, clue in sentences()]
    if task == "tagging":
        tags = [["B-X" if w in ("good", "bad") else "O" for w in t] for t, _ in texts]
        rows = [(words, labels) for (words, _), labels in zip(texts, tags, strict=True)]
        return rows, [words for words, _ in texts]
    joined = [(" ".join(words), clue) for words, clue in texts]
    if task == "choices":
        rows = [
            ("w1 w2", [f"{text} .", text], i % 2) for i, (text, _) in enumerate(joined)
        ]
        return rows, [row[:2] for row in rows]
    rows = [("w1 w2", text, clue) for text, clue in joined]
    return rows, [row[:2] for row in rows]


@pytest.mark.parametrize("family", ["modernbert"], indirect=True)
@pytest.mark.parametrize(
    ("task", "rest"),
    [
        ("tagging", "ForTokenClassification"),
        ("choices", "ForMultipleChoice"),
        ("squad", "ForQuestionAnswering"),
    ],
)
def test_the_head_above_every_token_or_text_is_exported(folder, tmp_path, task, rest):
    """The dense layer and LayerNorm below it start with the MLM head's."""
    rows, inputs = rows_of(task)
    model = bert_jax.finetune(
        getattr(bert_jax.tasks, task)(max_length=16),
        init_from=folder,
        train=rows,
        epochs=1,
        batch_size=8,
        learning_rate=1e-9,
    )
    pooler = model.params["bert"]["pooler"]
    masked = bert_jax.load(folder).params["mlm"]
    for part, leaf in (("transform", "kernel"), ("norm", "scale")):
        np.testing.assert_allclose(
            pooler[part][leaf], masked[part][leaf], rtol=0, atol=1e-6
        )
    model.save(tmp_path / "out")
    assert architecture(tmp_path / "out") == f"ModernBert{rest}"
    again = bert_jax.load(tmp_path / "out")
    assert again.config == model.config
    assert again.predict(inputs) == model.predict(inputs)
