"""Folders of transformers, whose outputs are in tests/golden/huggingface."""

import dataclasses
import json
import os
import re
import runpy
import shutil
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece
import tokenizers
from safetensors.numpy import load_file, save_file

import bert_jax
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.data.vocabulary_training import train_vocabulary
from bert_jax.errors import UserError
from bert_jax.interop import huggingface
from bert_jax.interop.huggingface import (
    read_huggingface,
    save_huggingface,
    write_tokenizer,
)
from bert_jax.interop.load import load
from bert_jax.model.bert import BertForPreTraining, BertModel
from bert_jax.model.config import BertConfig

FOLDERS = {
    "pretraining": ("pretraining", ["bert", "mlm", "nsp"], "BertForPreTraining"),
    "none": ("none", ["bert"], "BertModel"),
    "masked_lm": ("pretraining", ["bert", "mlm"], "BertForMaskedLM"),
    "sequence": (
        "sequence",
        ["bert", "classifier"],
        "BertForSequenceClassification",
    ),
    "token": ("token", ["bert", "classifier"], "BertForTokenClassification"),
    "choice": ("choice", ["bert", "classifier"], "BertForMultipleChoice"),
    "span": ("span", ["bert", "qa_outputs"], "BertForQuestionAnswering"),
}
LABELS = ("O", "B-person", "I-person", "B-place", "I-place")


@pytest.fixture(scope="module")
def folder(golden):
    return golden / "huggingface"


@pytest.fixture(scope="module")
def theirs(folder):
    with np.load(folder / "golden.npz") as file:
        return dict(file)


@pytest.fixture
def copy(folder, tmp_path):
    """A copy of the pretraining model's folder."""
    return shutil.copytree(folder / "pretraining", tmp_path / "copy")


def encode(checkpoint, theirs):
    """Hidden states (3, B, L, D), and the pooled output if the model has a pooler."""
    with_pooler = "pooler" in checkpoint.params["bert"]
    bert = checkpoint.params["bert"]
    if not with_pooler:  # the layers below do not depend on it
        zeros = {"kernel": jnp.zeros((24, 24)), "bias": jnp.zeros(24)}
        bert = {**bert, "pooler": zeros}
    with jax.default_matmul_precision("highest"):
        output, inside = jax.jit(
            partial(
                BertModel(checkpoint.config).apply,
                deterministic=True,
                capture_intermediates=True,
            )
        )(
            {"params": bert},
            theirs["input_ids"],
            theirs["token_type_ids"],
            theirs["attention_mask"],
        )
    inside = inside["intermediates"]
    layers = [inside["encoder"][f"layer_{i}"]["__call__"][0] for i in range(2)]
    states = np.stack([inside["embeddings"]["__call__"][0], *layers])
    return states, np.asarray(output.pooled_BD) if with_pooler else None


def close(ours, golden):
    np.testing.assert_allclose(ours, golden, rtol=0, atol=1e-5, strict=True)


@pytest.mark.parametrize("name", FOLDERS)
def test_hidden_states_and_logits_equal_transformers(folder, theirs, name):
    checkpoint = read_huggingface(folder / name)
    head, keys, _ = FOLDERS[name]
    assert (checkpoint.head, sorted(checkpoint.params)) == (head, keys)
    assert (checkpoint.missing, checkpoint.unexpected) == ((), ())
    assert checkpoint.labels == (LABELS if name in ("sequence", "token") else ())
    states, pooled_BD = encode(checkpoint, theirs)
    close(states, theirs[f"{name}/hidden_states"].reshape(states.shape))
    # A head is one product, which numpy computes without model/heads.py.
    part = checkpoint.params.get("classifier", checkpoint.params.get("qa_outputs"))
    if name in ("sequence", "choice"):
        logits = pooled_BD @ part["kernel"] + part["bias"]
        close(logits.reshape(theirs[f"{name}/logits"].shape), theirs[f"{name}/logits"])
    elif name == "token":
        close(states[-1] @ part["kernel"] + part["bias"], theirs["token/logits"])
    elif name == "span":
        start, end = np.moveaxis(states[-1] @ part["kernel"] + part["bias"], -1, 0)
        close(start, theirs["span/start_logits"])
        close(end, theirs["span/end_logits"])
    elif name == "none":
        close(pooled_BD, theirs["none/pooler_output"])


def test_pretraining_heads_equal_transformers(folder, theirs):
    checkpoint = bert_jax.load(folder / "pretraining", scan_layers=True)
    positions_BM = np.repeat(np.arange(11)[None], 3, 0)
    with jax.default_matmul_precision("highest"):
        model = BertForPreTraining(checkpoint.config, checkpoint.compute)
        output = jax.jit(partial(model.apply, deterministic=True))(
            {"params": checkpoint.params},
            theirs["input_ids"],
            theirs["token_type_ids"],
            theirs["attention_mask"],
            positions_BM,
        )
    close(
        output.mlm_logits_BMW[..., : checkpoint.config.vocab_size],
        theirs["pretraining/prediction_logits"],
    )
    close(output.nsp_logits_B2, theirs["pretraining/seq_relationship_logits"])


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_is_written_as_transformers_writes_it(folder, tmp_path, name):
    """The same tensors under the same names, bit for bit, and equal model settings."""
    checkpoint = read_huggingface(folder / name)
    save_huggingface(tmp_path / "out", checkpoint)
    before = load_file(folder / name / "model.safetensors")
    after = load_file(tmp_path / "out" / "model.safetensors")
    assert before.keys() == after.keys()
    for tensor in before:
        np.testing.assert_array_equal(after[tensor], before[tensor], strict=True)
    theirs = json.loads((folder / name / "config.json").read_text())
    ours = json.loads((tmp_path / "out" / "config.json").read_text())
    assert ours["architectures"] == [FOLDERS[name][2]]
    assert {key: theirs[key] for key in ours} == ours
    kept = {"classifier_dropout", "bos_token_id", "eos_token_id"}
    assert kept & {*theirs} <= {*ours}


def test_old_tensor_names_are_read(copy, folder):
    """gamma and beta, a decoder tied to the word table, the buffer of positions."""
    tensors = load_file(copy / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): array
        for name, array in tensors.items()
    }
    old["bert.embeddings.position_ids"] = np.arange(19)[None]
    old["cls.predictions.decoder.weight"] = old[
        "bert.embeddings.word_embeddings.weight"
    ]
    # Some checkpoints have the bias only under this name.
    old["cls.predictions.decoder.bias"] = old.pop("cls.predictions.bias")
    save_file(old, copy / "model.safetensors")
    read, expected = read_huggingface(copy), read_huggingface(folder / "pretraining")
    jax.tree.map(np.testing.assert_array_equal, read.params, expected.params)
    assert (read.missing, read.unexpected) == ((), ())


@pytest.mark.parametrize("leaf", ["weight", "bias"])
def test_an_untied_decoder_is_refused_with_its_tensor(copy, leaf):
    tensors = load_file(copy / "model.safetensors")
    tied = {
        "weight": "bert.embeddings.word_embeddings.weight",
        "bias": "cls.predictions.bias",
    }[leaf]
    tensors[f"cls.predictions.decoder.{leaf}"] = tensors[tied] + 1
    save_file(tensors, copy / "model.safetensors")
    message = (
        rf"copy: cls.predictions.decoder.{leaf} differs from {tied} \(tie_word_emb"
    )
    with pytest.raises(UserError, match=message):
        bert_jax.load(copy)


def test_shards_of_bfloat16_become_float32(folder):
    unsharded = read_huggingface(folder / "pretraining").params
    half = read_huggingface(folder / "sharded").params

    def check(a, b):
        assert b.dtype == np.float32
        np.testing.assert_array_equal(a.astype(jnp.bfloat16).astype(np.float32), b)

    jax.tree.map(check, unsharded, half)


@pytest.mark.parametrize("form", ["zip", "stream"])
def test_pickles_contain_the_same_tensors(folder, copy, form):
    (copy / "model.safetensors").unlink()
    shutil.copy(folder / "pickle" / f"{form}.bin", copy / "pytorch_model.bin")
    pickled, safe = read_huggingface(copy), read_huggingface(folder / "pretraining")
    jax.tree.map(np.testing.assert_array_equal, pickled.params, safe.params)
    assert (pickled.missing, pickled.unexpected) == ((), ())


@pytest.mark.parametrize("architectures", [["BertForNER"], None])
def test_a_classifier_without_a_pooler_reads_tokens(folder, tmp_path, architectures):
    """A class of another name, such as a class in a user's own code."""
    copy = shutil.copytree(folder / "token", tmp_path / "token")
    settings = json.loads((copy / "config.json").read_text())
    settings["architectures"] = architectures
    (copy / "config.json").write_text(json.dumps(settings))
    read = read_huggingface(copy)
    assert (read.head, read.missing) == ("token", ())
    assert read.labels == read_huggingface(folder / "token").labels


def test_bert_config_json_is_read_without_a_config_json(folder, copy):
    """pytorch-pretrained-bert saved such folders, for example the first BioBERT."""
    before = read_huggingface(copy)
    (copy / "config.json").rename(copy / "bert_config.json")
    after = read_huggingface(copy)
    assert (after.config, after.head) == (before.config, before.head)
    assert load(copy, weights=False).config == before.config


def test_a_head_without_tensors_is_missing(folder, copy):
    shutil.copy(folder / "none" / "model.safetensors", copy)
    read = read_huggingface(copy)
    assert (read.head, sorted(read.params)) == ("none", ["bert"])
    assert len(read.missing) == 7
    assert "cls.predictions.bias" in read.missing


def test_labels_without_names_are_numbered(folder, copy):
    shutil.copy(folder / "token" / "model.safetensors", copy)
    settings = json.loads((folder / "token" / "config.json").read_text())
    del settings["id2label"]
    (copy / "config.json").write_text(json.dumps(settings))
    assert read_huggingface(copy).labels == tuple(f"LABEL_{i}" for i in range(5))


def test_a_card_encodes_a_text_only_with_a_vocabulary(folder, tmp_path):
    checkpoint = read_huggingface(folder / "none")
    tokenizer = load_tokenizer(folder / "tokenizer")
    for name, vocabulary in (("with", tokenizer), ("without", None)):
        changed = dataclasses.replace(checkpoint, tokenizer=vocabulary)
        save_huggingface(tmp_path / name, changed)
        card = (tmp_path / name / "README.md").read_text()
        assert ("model.encode(" in card) == (name == "with")
        assert ("model.config" in card) == (name == "without")


def test_files_beside_the_weights_survive(folder, tmp_path, golden):
    checkpoint = read_huggingface(folder / "sequence")
    config = dataclasses.replace(checkpoint.config, activation="gelu_tanh")
    tokenizer = load_tokenizer(folder / "tokenizer")
    labels = ("yes", "no", "a|b", "d", "e")
    changed = dataclasses.replace(
        checkpoint,
        config=config,
        tokenizer=tokenizer,
        labels=labels,
        problem_type="single_label_classification",
        extra={"task": {"max_length": 128}},
    )
    save_huggingface(tmp_path / "out", changed, card="Trained on nothing.")
    read = read_huggingface(tmp_path / "out")
    assert read.config == config
    assert read.labels == labels
    assert read.problem_type == "single_label_classification"
    assert read.extra == {"task": {"max_length": 128}}
    assert read.tokenizer.fingerprint() == tokenizer.fingerprint()
    settings = json.loads((tmp_path / "out/config.json").read_text())
    assert settings["label2id"] == {label: i for i, label in enumerate(labels)}
    assert settings["hidden_act"] == "gelu_new"
    card = (tmp_path / "out/README.md").read_text()
    assert "library_name: transformers" in card
    assert "Trained on nothing." in card
    assert "license:" not in card.split("---")[1]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert json.loads((tmp_path / "out" / name).read_text())
    (tmp_path / "out/vocab.txt").unlink()
    again = read_huggingface(tmp_path / "out").tokenizer
    assert again.fingerprint() == tokenizer.fingerprint()


@pytest.mark.parametrize("kind", ["wordpiece", "keep_accents", "sentencepiece"])
def test_tokenizer_json_gives_our_ids(folder, tmp_path, golden, kind):
    """AutoTokenizer runs this file with the tokenizers library, as the test does."""
    text = golden / "pretraining_data/moby_dick_sentences.txt"
    sentences = [line for line in text.read_text().split("\n") if line][:500]
    sentences += ["a", " a  b ", "Na\u00efve caf\u00e9\u2014\ufb01ne", "\u4e2d\u6587!"]
    sentences += ["में मे म ज़रा"] * 3
    keep = kind == "keep_accents"
    kind = "wordpiece" if keep else kind
    tokenizer = train_vocabulary(sentences, 500, kind=kind, keep_accents=keep)
    config = BertConfig(tokenizer.vocab_size, 8, 1, 2, 8, max_positions=48)
    write_tokenizer(tmp_path, tokenizer, config)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    rows = theirs.encode_batch(sentences, add_special_tokens=False)
    for sentence, ours, row in zip(
        sentences, tokenizer.encode_batch(sentences), rows, strict=True
    ):
        assert row.ids == ours.tolist(), sentence
    pair = theirs.encode("the sea", "the whale")
    assert (pair.ids[0], pair.ids[-1]) == (tokenizer.cls_id, tokenizer.sep_id)
    assert pair.ids.index(tokenizer.sep_id) == pair.type_ids.index(1) - 1
    assert load_tokenizer(tmp_path).fingerprint() == tokenizer.fingerprint()
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings["mask_token"] == "[MASK]"
    assert settings["model_max_length"] == 48


@pytest.mark.parametrize("name", ["token", "sequence"])
def test_the_tokenizer_of_a_tagging_model_reads_lists_of_words(
    folder, tmp_path, golden, name
):
    """Each word of a list has the space before it, with which the model is trained."""
    bpe = load_tokenizer(golden / "templates/byte_level")
    checkpoint = dataclasses.replace(read_huggingface(folder / name), tokenizer=bpe)
    save_huggingface(tmp_path / "saved", checkpoint)
    saved = load_tokenizer(tmp_path / "saved")
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "saved/tokenizer.json"))
    words = ["the", "cat", "."]
    ids = library.encode(words, is_pretokenized=True).ids
    spaced = bpe(" the cat .")["input_ids"].tolist()
    assert (ids == spaced) is (name == "token")
    for text in ("the cat.", " a bee"):
        same = saved.encode(text).tolist() == bpe.encode(text).tolist()
        assert same is (name != "token" or text.startswith(" "))


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece", "bpe"])
def test_a_model_with_one_token_type_or_none_gets_no_types(tmp_path, kind):
    """transformers' table has no row for the type 1 of a second text."""
    tokenizer = train_vocabulary(["a b c ab bc"] * 9, 300, kind=kind)
    for types in (0, 1, 2, 3):
        config = BertConfig(
            tokenizer.vocab_size, 8, 1, 2, 8, max_positions=48, type_vocab_size=types
        )
        folder = tmp_path / f"{types}"
        folder.mkdir()
        write_tokenizer(folder, tokenizer, config)
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        names = settings.get("model_input_names", ["token_type_ids"])
        has_types = types > 1 and kind != "bpe"  # in RoBERTa's template all are 0
        assert ("token_type_ids" in names) == has_types
        assert load_tokenizer(folder).fingerprint() == tokenizer.fingerprint()


def test_the_config_has_the_id_of_the_padding(folder, tmp_path):
    checkpoint = read_huggingface(folder / "none")
    known = load_tokenizer(folder / "tokenizer")
    first, *others = known.tokens
    moved = known.with_tokens([*others, first])
    for tokenizer, expected in ((moved, len(others)), (None, None)):
        changed = dataclasses.replace(checkpoint, tokenizer=tokenizer)
        save_huggingface(tmp_path / f"{expected}", changed)
        written = json.loads((tmp_path / f"{expected}/config.json").read_text())
        assert written.get("pad_token_id") == expected


def test_a_folder_that_is_not_a_path_is_refused(folder):
    with pytest.raises(
        UserError, match="the folder is of type NoneType; expected a path"
    ):
        bert_jax.load(folder / "none").save(None)


def test_a_folder_with_files_is_replaced_only_on_demand(folder, tmp_path):
    checkpoint = read_huggingface(folder / "none")

    def save(params, **options):
        changed = dataclasses.replace(checkpoint, params=params)
        save_huggingface(tmp_path / "out", changed, **options)

    save(checkpoint.params)
    (tmp_path / "out/mine.txt").write_text("mine")
    with pytest.raises(UserError, match="out is not empty; expected"):
        save(checkpoint.params)
    assert (tmp_path / "out/mine.txt").is_file()
    save(jax.tree.map(lambda x: x + 1, checkpoint.params), overwrite=True)
    assert not (tmp_path / "out/mine.txt").exists()
    read = read_huggingface(tmp_path / "out")
    bias = ("bert", "pooler", "bias")
    assert read.params["bert"]["pooler"]["bias"][0] == (
        checkpoint.params[bias[0]][bias[1]][bias[2]][0] + np.float32(1)
    )
    # A failed save does not change the old folder.
    with pytest.raises(
        UserError, match="no class with head 'none', parameters bert, odd"
    ):
        save({**checkpoint.params, "odd": {"kernel": np.ones(2)}}, overwrite=True)
    assert read_huggingface(tmp_path / "out").head == "none"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_model_without_a_class_in_transformers_is_refused(folder, tmp_path):
    checkpoint = read_huggingface(folder / "sequence")
    with pytest.raises(UserError, match="head 'span', parameters bert, classifier"):
        save_huggingface(tmp_path / "out", dataclasses.replace(checkpoint, head="span"))
    assert not list(tmp_path.iterdir())


def test_a_causal_model_is_saved_without_the_nsp_head(folder, tmp_path):
    """The NSP head is untrained, and transformers' class for these models has none."""
    pretrained = read_huggingface(folder / "pretraining")
    config = dataclasses.replace(pretrained.config, causal=True)
    save_huggingface(tmp_path / "out", dataclasses.replace(pretrained, config=config))
    settings = json.loads((tmp_path / "out/config.json").read_text())
    assert settings["architectures"] == ["BertLMHeadModel"]
    assert {*read_huggingface(tmp_path / "out").params} == {"bert", "mlm"}


def test_damaged_files_are_one_line_errors(folder, tmp_path, copy):
    weights = copy / "model.safetensors"
    content = weights.read_bytes()
    for damaged in (b"", content[:4], content[:5000], content[:-1], b"x" * 5000):
        weights.write_bytes(damaged)
        with pytest.raises(UserError, match="expected a whole safetensors file") as e:
            read_huggingface(copy)
        assert "\n" not in str(e.value)
    weights.unlink()
    with pytest.raises(UserError, match=r"has no weights; expected model.safetens"):
        read_huggingface(copy)

    shards = shutil.copytree(folder / "sharded", tmp_path / "shards")
    shard = next(shards.glob("model-00002*"))
    shutil.copy(next(shards.glob("model-00001*")), shard)
    with pytest.raises(UserError, match=r"the weights lack \d+ of 37 tensors"):
        read_huggingface(shards)
    shard.unlink()
    with pytest.raises(
        UserError, match=r"model-00002\S+ does not exist; expected a whole"
    ):
        read_huggingface(shards)
    for text in ("{", "[]", "{}", '{"weight_map": {"a": 1}}'):
        (shards / "model.safetensors.index.json").write_text(text)
        message = r"expected an index of shards|weight_map is missing|weight_map\.a=1, "
        with pytest.raises(UserError, match=message):
            read_huggingface(shards)


def test_the_error_of_a_wrong_size_has_tensor_and_folder(copy):
    settings = json.loads((copy / "config.json").read_text())
    settings["vocab_size"] = 60
    (copy / "config.json").write_text(json.dumps(settings))
    with pytest.raises(
        UserError,
        match=r"copy: .*bert.embeddings.word_embeddings.weight is \(61, 24\), expected "
        r"\(60, 24\)",
    ):
        read_huggingface(copy)


NAMES = {str(i): name for i, name in enumerate("abcde")}


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("span", {"architectures": 3}, "architectures=3, expected a list or null"),
        ("span", {"architectures": [[]]}, "architectures[0]=[], expected a text"),
        ("span", {"model_type": ["bert"]}, "model_type=['bert'], expected a text"),
        ("span", {"hidden_act": {}}, "hidden_act={}, expected a text"),
        ("span", {"num_hidden_layers": 2.0}, "num_hidden_layers=2.0, expected a whole"),
        ("span", {"layer_norm_eps": "1e-12"}, "layer_norm_eps='1e-12', expected a num"),
        ("span", {"is_decoder": 0}, "is_decoder=0, expected true or false"),
        ("token", {"id2label": float("nan")}, "id2label=nan, expected an object or"),
        ("token", {"id2label": {"0": []}}, "id2label.0=[], expected a text, a number"),
        ("token", {"problem_type": 1}, "problem_type=1, expected a text or null"),
        ("span", {"bert_jax": 1}, "bert_jax=1, expected an object or null"),
        (
            "span",
            {"bert_jax": {"family": ["a"]}},
            "bert_jax.family=['a'], expected a t",
        ),
        (
            "token",
            {"bert_jax": {"features": {"width": "9"}}},
            "bert_jax.features.width='9', expected a whole number",
        ),
        (
            "token",
            {"bert_jax": {"data": {"labels": [["O"]]}}},
            "bert_jax.data.labels[0]=['O'], expected a text",
        ),
        (
            "span",
            {"sentence_transformers": {"activation_fn": 3}},
            "sentence_transformers.activation_fn=3, expected a text or null",
        ),
    ],
)
def test_a_value_of_another_type_is_named(folder, tmp_path, name, changes, message):
    copy = shutil.copytree(folder / name, tmp_path / "m")
    settings = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(settings | changes))
    with pytest.raises(UserError, match=re.escape(message)) as error:
        bert_jax.load(copy)
    assert str(error.value).startswith(f"{copy / 'config.json'}: ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id2label": [1]}, "id2label=[1], expected an object or null"),
        ({"id2label": NAMES | {"0": "b"}}, "id2label is {'0': 'b', '1': 'b'"),
        ({"id2label": NAMES | {"5": "f"}}, "expected a different name"),
        ({"id2label": {"0": "a", "4": "e"}}, "each output from '0' to '4'"),
        ({"id2label": {f" {i}": x for i, x in NAMES.items()}}, "id2label is {' 0'"),
    ],
)
def test_bad_settings_are_one_line_errors(folder, tmp_path, changes, message):
    copy = shutil.copytree(folder / "sequence", tmp_path / "m")
    settings = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(settings | changes))
    with pytest.raises(UserError, match=rf"config\.json.*{re.escape(message)}"):
        read_huggingface(copy)


def test_every_file_has_the_permissions_of_a_new_file(folder, tmp_path):
    checkpoint = bert_jax.load(folder / "pretraining")
    tokenizer = load_tokenizer(folder / "tokenizer")
    lstm = {"forward": {"kernel": np.ones((2, 3), np.float32)}}
    params = {"bert": checkpoint.params["bert"], "bilstm": lstm}
    checkpoint = dataclasses.replace(
        checkpoint, tokenizer=tokenizer, params=params, head="features"
    )
    previous = os.umask(0o027)
    try:
        save_huggingface(tmp_path / "out", checkpoint)
    finally:
        os.umask(previous)
    modes = {p.name: oct(p.stat().st_mode)[-3:] for p in (tmp_path / "out").iterdir()}
    assert len(modes) == 7
    assert set(modes.values()) == {"640"}


def test_folders_are_read_without_the_protobuf_file_of_sentencepiece(
    folder, monkeypatch
):
    """sentencepiece's file fails with the protobuf version that Apache Beam needs."""
    name = "sentencepiece_model_pb2"
    monkeypatch.delattr(sentencepiece, name, raising=False)
    monkeypatch.setitem(sys.modules, f"sentencepiece.{name}", None)
    module = runpy.run_path(huggingface.__file__)
    assert module["read_huggingface"](folder / "none").head == "none"
