"""Models of other families, whose outputs are in tests/golden/families."""

import ast
import dataclasses
import functools
import json
import re
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from safetensors.numpy import load_file, save_file

import bert_jax
from bert_jax.data.class_rules import WITHOUT_CLASS
from bert_jax.errors import UserError
from bert_jax.interop.config_json import config_from_dict, exported_config
from bert_jax.interop.families import FAMILIES
from bert_jax.interop.huggingface import read_huggingface, save_huggingface
from bert_jax.model.bert import BertForPreTraining, BertModel
from bert_jax.model.config import BertConfig, ComputeConfig, FeatureConfig
from bert_jax.model.parameters import with_scan
from bert_jax.model.tokens import Tokens
from bert_jax.objectives.heads import HEADS
from bert_jax.objectives.networks import make_model
from bert_jax.parallel.mesh import MeshConfig, make_mesh, put_batch, traced_on
from bert_jax.training.config import OptimizerConfig
from bert_jax.training.optimizer import bert_optimizer
from bert_jax.training.state import abstract_state, init_state
from bert_jax.training.step import gradients

PACKAGE = Path(bert_jax.__file__).parent
# Class, number of tensors that are not read, and whether the model has a pooler.
FOLDERS = {
    "roberta_mlm": ("RobertaForMaskedLM", 0, False),
    "roberta_sequence": ("RobertaForSequenceClassification", 0, True),
    "roberta_choice": ("RobertaForMultipleChoice", 0, True),
    "roberta_span": ("RobertaForQuestionAnswering", 0, False),
    "xlm_roberta_none": ("XLMRobertaModel", 0, True),
    "xlm_roberta_token": ("XLMRobertaForTokenClassification", 0, False),
    "distilbert_mlm": ("DistilBertForMaskedLM", 0, False),
    "distilbert_none": ("DistilBertModel", 0, False),
    "distilbert_sequence": ("DistilBertForSequenceClassification", 0, True),
    "distilbert_choice": ("DistilBertForMultipleChoice", 0, True),
    "distilbert_token": ("DistilBertForTokenClassification", 0, False),
    "distilbert_span": ("DistilBertForQuestionAnswering", 0, False),
    "electra_none": ("ElectraModel", 4, False),
    "electra_sequence": ("ElectraForSequenceClassification", 0, True),
    "electra_choice": ("ElectraForMultipleChoice", 0, True),
    "modernbert_mlm": ("ModernBertForMaskedLM", 0, False),
    "modernbert_none": ("ModernBertModel", 0, False),
    "modernbert_sequence": ("ModernBertForSequenceClassification", 0, True),
    "modernbert_choice": ("ModernBertForMultipleChoice", 0, True),
    "modernbert_token": ("ModernBertForTokenClassification", 0, True),
    "modernbert_span": ("ModernBertForQuestionAnswering", 0, True),
    "nomic_mlm": ("NomicBertForMaskedLM", 0, False),
    "nomic_none": ("NomicBertModel", 0, False),
    "nomic_sequence": ("NomicBertForSequenceClassification", 0, True),
    "nomic_token": ("NomicBertForTokenClassification", 0, False),
    "gte_mlm": ("GteForMaskedLM", 0, False),
    "gte_none": ("GteModel", 0, False),
    "gte_sequence": ("GteForSequenceClassification", 0, True),
    "gte_token": ("GteForTokenClassification", 0, False),
    "gte_scaled_none": ("GteModel", 0, False),
}
# Models with every option and head, and models with the same parts as an earlier one.
SHORT = (
    *("roberta_mlm", "roberta_sequence", "roberta_choice", "xlm_roberta_none"),
    *("distilbert_mlm", "distilbert_sequence", "electra_choice", "electra_none"),
    *("modernbert_mlm", "modernbert_sequence", "modernbert_span"),
    *("nomic_mlm", "gte_sequence", "gte_scaled_none"),
)
OTHERS = sorted({*FOLDERS} - {*SHORT})
# Values that transformers does not read for these classes, that are implied, or that only
# transformers 4 reads.
LOST = {
    "distilbert_none": {"sinusoidal_pos_embds"},
    "nomic": {"rope_theta"},
    "gte": {"rope_theta"},
    "modernbert": {
        *("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta"),
        "pad_token_id",  # without a tokenizer
    },
}


@pytest.fixture(scope="module")
def folder(golden):
    return golden / "families"


@pytest.fixture(scope="module")
def theirs(folder):
    arrays = {}
    for path in folder.glob("outputs_*.npz"):
        with np.load(path) as file:
            arrays |= file
    return arrays


def tokens_of(pad=1):
    """The batch of make.py."""
    rng = np.random.default_rng(0)
    lengths = np.array([12, 9, 5, 2])
    ids = rng.integers(5, 41, (4, 12))
    mask = np.int32(np.arange(12)[None] < lengths[:, None])
    types = np.zeros_like(ids)
    types[1, 4:9] = 1
    ids = np.where(mask, ids, pad)
    return Tokens.of_mask(*map(np.int32, (ids, types)), mask)


def output_of(checkpoint, params, tokens):
    """Logits of the head, (B, L, W), (B, outputs) or (1, B), or the last states."""
    config, head = checkpoint.config, checkpoint.head
    options = {"deterministic": True}
    if head == "none":
        model = BertModel(config)
        variables = {"params": params["bert"]}
        encode = functools.partial(model.apply, method=model.encode)
        return encode(variables, tokens, pool=False, **options).sequence_BLD
    if head == "pretraining":
        model = BertForPreTraining(config)
        places_BQ = np.repeat(np.arange(12)[None], 4, axis=0)
        logits = functools.partial(model.apply, method=model.lm_logits)
        return logits({"params": params}, tokens, places_BQ, **options)[..., :41]
    outputs = len(params.get("classifier", {"bias": "12"})["bias"])
    model = make_model(config, head, outputs, FeatureConfig())
    logits = model.apply({"params": params}, tokens, **options)
    if head in ("sequence", "choice"):
        logits = logits[:, 0]
    if head == "choice":
        logits = logits.T
    return logits


def close(ours, golden, share):
    assert ours.shape == golden.shape
    limit = share * np.abs(golden).max()
    np.testing.assert_allclose(ours, golden, rtol=0, atol=limit)


@pytest.mark.parametrize(
    "name", [*SHORT, *(pytest.param(n, marks=pytest.mark.long) for n in OTHERS)]
)
def test_outputs_and_gradients_equal_transformers(folder, theirs, name):
    checkpoint = read_huggingface(folder / name)
    _, unread, pooler = FOLDERS[name]
    assert checkpoint.missing == ()
    assert len(checkpoint.unexpected) == unread
    assert ("pooler" in checkpoint.params["bert"]) == pooler
    golden = {
        key.partition("/")[2]: array
        for key, array in theirs.items()
        if key.startswith(f"{name}/")
    }
    tokens = tokens_of()
    mask_BL = np.asarray(tokens.segment_ids)

    def loss(params):
        output = output_of(checkpoint, params, tokens)
        values = jnp.sin(output)
        if values.ndim == 3:
            values = values * mask_BL[..., None]
        return values.sum(), output

    with jax.default_matmul_precision("highest"):
        bert = {"params": checkpoint.params["bert"]}
        encoded = BertModel(checkpoint.config).apply(
            bert,
            tokens,
            deterministic=True,
            hidden_states=True,
            pool="pooled" in golden,
            method=BertModel.encode,
        )
        grads, output = jax.grad(loss, has_aux=True)(checkpoint.params)
    for ours, state in zip(encoded.hidden_states, golden["hidden_states"], strict=True):
        real = mask_BL[..., None]
        close(ours * real, state.reshape(ours.shape) * real, 1e-5)
    if "pooled" in golden:
        close(encoded.pooled_BD[:, 0], golden["pooled"], 1e-5)
    if "logits" in golden:
        real = np.ones(())
        if output.ndim == 3:
            real = mask_BL[..., None]
        close(output * real, golden["logits"] * real, 1e-5)
    norm = grads["bert"]["embeddings"]["norm"]
    norm = norm["scale" if name.startswith("modernbert") else "bias"]
    layer = grads["bert"]["encoder"]["layer_0"]
    query = layer["attention"]["query"]["kernel"]
    close(norm, golden["gradient_norm"], 1e-4)
    close(query.reshape(24, 24).T, golden["gradient_query"], 1e-4)
    if "gradient_intermediate" in golden:
        halves = [layer[part]["kernel"].T for part in ("intermediate", "gate")]
        close(jnp.concatenate(halves), golden["gradient_intermediate"], 1e-4)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_is_read_and_written_without_a_change(folder, tmp_path, name):
    checkpoint = read_huggingface(folder / name)
    save_huggingface(tmp_path / "out", checkpoint)
    before = load_file(folder / name / "model.safetensors")
    after = load_file(tmp_path / "out/model.safetensors")
    prefix = ""
    if name == "electra_none":  # read as the bare encoder
        prefix = "electra."
        before = {key: x for key, x in before.items() if key.startswith(prefix)}
    assert {key.removeprefix(prefix) for key in before} == {*after}
    for key, tensor in before.items():
        ours = after[key.removeprefix(prefix)]
        np.testing.assert_array_equal(ours, tensor, strict=True)
    theirs = json.loads((folder / name / "config.json").read_text())
    ours = json.loads((tmp_path / "out/config.json").read_text())
    assert ours.pop("architectures") == [FOLDERS[name][0]]
    for start, keys in LOST.items():
        for key in keys:
            if name.startswith(start):
                ours.pop(key, None)
    assert {key: theirs[key] for key in ours} == ours
    again = read_huggingface(tmp_path / "out")
    assert (again.config, again.head) == (checkpoint.config, checkpoint.head)
    jax.tree.map(np.testing.assert_array_equal, again.params, checkpoint.params)


@pytest.mark.parametrize("name", FOLDERS)
def test_tensor_names_decide_the_head_of_an_unknown_class(folder, tmp_path, name):
    """Such as the class of a user's own code."""
    copy = shutil.copytree(folder / name, tmp_path / "copy")
    settings = json.loads((copy / "config.json").read_text())
    settings["architectures"] = ["Own"]
    (copy / "config.json").write_text(json.dumps(settings))
    known, guessed = read_huggingface(folder / name), read_huggingface(copy)
    same_names = {
        "roberta_choice": "token",
        "distilbert_choice": "sequence",
        "electra_choice": "token",
        "modernbert_choice": "sequence",
        "modernbert_token": "sequence",
        "modernbert_span": "sequence",
    }
    assert guessed.head == same_names.get(name, known.head)
    part = {"classifier", "qa_outputs", "mlm"} & {*known.params}
    if name == "modernbert_span":  # its output has a classifier's name
        part = {"classifier"}
    assert part <= {*guessed.params}


def test_tied_copies_and_bare_encoders_are_read(folder, tmp_path):
    """Files of older versions have the decoder, and buffers."""
    for name, copies in (
        ("roberta_mlm", {"weight": "roberta.embeddings.word_embeddings.weight"}),
        ("distilbert_mlm", {"weight": "distilbert.embeddings.word_embeddings.weight"}),
    ):
        copy = shutil.copytree(folder / name, tmp_path / name)
        decoder = {"roberta_mlm": "lm_head.decoder"}.get(name, "vocab_projector")
        tensors = load_file(copy / "model.safetensors")
        more = {f"{decoder}.{leaf}": tensors[tied] for leaf, tied in copies.items()}
        if name == "roberta_mlm":
            more["lm_head.decoder.bias"] = tensors["lm_head.bias"]
            more["roberta.embeddings.position_ids"] = np.arange(17)[None]
        save_file(tensors | more, copy / "model.safetensors")
        expected, read = read_huggingface(folder / name), read_huggingface(copy)
        assert (read.missing, read.unexpected) == ((), ())
        jax.tree.map(np.testing.assert_array_equal, read.params, expected.params)
        save_file(
            tensors | {f"{decoder}.weight": more[f"{decoder}.weight"] + 1},
            copy / "model.safetensors",
        )
        with pytest.raises(UserError, match=rf"{decoder}.weight differs from \S+word_"):
            read_huggingface(copy)
        bare = {}
        for key, tensor in tensors.items():
            bare[key.partition(".")[2]] = tensor
            if key.startswith(("lm_head", "vocab")):
                del bare[key.partition(".")[2]]
        save_file(bare, copy / "model.safetensors")
        settings = json.loads((copy / "config.json").read_text())
        settings["architectures"] = None
        (copy / "config.json").write_text(json.dumps(settings))
        read = read_huggingface(copy)
        assert (read.head, read.missing[2:], read.unexpected) == ("none", (), ())
        jax.tree.map(
            np.testing.assert_array_equal, read.params["bert"], expected.params["bert"]
        )


def test_missing_keys_have_the_class_defaults_of_transformers():
    """Released models have all keys, with other values."""
    sizes = {
        "vocab_size": 41,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 40,
    }
    roberta = config_from_dict(sizes | {"model_type": "roberta"})
    assert (roberta.layer_norm_epsilon, roberta.type_vocab_size) == (1e-12, 2)
    assert (roberta.max_positions, roberta.position_offset) == (510, 2)
    released = {
        "layer_norm_eps": 1e-5,
        "type_vocab_size": 1,
        "max_position_embeddings": 514,
    }
    read = config_from_dict(sizes | released | {"model_type": "xlm-roberta"})
    assert (read.layer_norm_epsilon, read.type_vocab_size) == (1e-5, 1)
    assert (read.max_positions, read.position_rows) == (512, 514)
    for changes, message in (
        (
            {"model_type": "roberta", "pad_token_id": None},
            "pad_token_id=None, expected",
        ),
        ({"model_type": "electra"}, "embedding_size=128, but hidden_size=24; both mu"),
        ({"model_type": "distilbert"}, "a distilbert config must have dim, n_la"),
        ({"model_type": "deberta-v2"}, "model_type='deberta-v2' cannot be read"),
    ):
        values = {
            key: sizes[key] for key in sizes if changes["model_type"] != "distilbert"
        }
        with pytest.raises(UserError, match=message) as error:
            config_from_dict({"vocab_size": 41} | values | changes)
        assert "\n" not in str(error.value)


def changed_copy(folder, copy, **settings):
    """A copy of a folder with other values in its config.json. None removes a value."""
    shutil.copytree(folder, copy)
    path = copy / "config.json"
    values = json.loads(path.read_text()) | settings
    kept = {key: value for key, value in values.items() if value is not None}
    path.write_text(json.dumps(kept))
    return copy


def test_a_classifier_of_a_decoder_is_refused(folder, tmp_path):
    """transformers reads its first token, which attends to no other token."""
    for name in ("roberta_choice", "roberta_sequence"):
        copy = changed_copy(folder / name, tmp_path / name, is_decoder=True)
        with pytest.raises(UserError, match="is_decoder=true in a classifier of te"):
            read_huggingface(copy)
        assert not read_huggingface(copy, causal=False).config.causal
        # In bert_jax the classifier of a causal model reads the last token.
        assert read_huggingface(folder / name, causal=True).config.causal
    tokens = changed_copy(folder / "roberta_span", tmp_path / "span", is_decoder=True)
    assert read_huggingface(tokens).config.causal


@pytest.mark.parametrize("activation", ["tanh", "gelu", "relu"])
def test_the_pooler_of_an_electra_for_choices_is_read_and_written(
    folder, theirs, tmp_path, activation
):
    """The expected logits start at transformers' last hidden state of the first token."""
    source = folder / "electra_choice"
    copy = changed_copy(source, tmp_path / "m", summary_activation=activation)
    checkpoint = read_huggingface(copy)
    assert checkpoint.config.pooler == activation
    tensors = load_file(copy / "model.safetensors")
    first_BD = theirs["electra_choice/hidden_states"][-1][:, 0]
    weight_DD = tensors["sequence_summary.summary.weight"]
    x_BD = first_BD @ weight_DD.T + tensors["sequence_summary.summary.bias"]
    functions = {
        "tanh": np.tanh,
        "gelu": lambda x: np.asarray(jax.nn.gelu(x, approximate=False)),
        "relu": lambda x: np.maximum(x, 0),
    }
    pooled_BD = functions[activation](x_BD)
    expected = pooled_BD @ tensors["classifier.weight"].T + tensors["classifier.bias"]
    close(output_of(checkpoint, checkpoint.params, tokens_of()), expected.T, 1e-5)
    save_huggingface(tmp_path / "out", checkpoint)
    settings = json.loads((tmp_path / "out/config.json").read_text())
    assert settings["architectures"] == ["ElectraForMultipleChoice"]
    assert settings["summary_activation"] == activation
    assert "pooler" not in settings
    assert read_huggingface(tmp_path / "out").config == checkpoint.config


def test_values_that_only_transformers_uses_are_kept(folder, tmp_path, caplog):
    """Dropout rates of its heads, and the tokens at which it starts and stops."""
    common = {"bos_token_id": 7, "eos_token_id": [2, 8]}
    for name, values in (
        ("roberta_sequence", {"classifier_dropout": 0.4}),
        ("xlm_roberta_token", {"classifier_dropout": 0.4}),
        ("electra_choice", {"classifier_dropout": 0.4, "summary_last_dropout": 0.3}),
        ("distilbert_span", {"seq_classif_dropout": 0.5, "qa_dropout": 0.3}),
    ):
        copy = changed_copy(folder / name, tmp_path / name, **values, **common)
        checkpoint = read_huggingface(copy)
        save_huggingface(tmp_path / f"{name}_out", checkpoint)
        written = json.loads((tmp_path / f"{name}_out/config.json").read_text())
        assert {
            key: written.get(key) for key in {**values, **common}
        } == values | common
        assert read_huggingface(tmp_path / f"{name}_out").kept == checkpoint.kept
    assert not caplog.messages
    read_huggingface(folder / "electra_none")
    (line,) = caplog.messages
    assert re.search("4 tensors not read: discriminator_predictions.dense", line)


def test_a_model_for_bert_jax_only_is_saved_with_a_reason(folder, tmp_path, caplog):
    bert_jax.load(folder / "roberta_choice").save(tmp_path / "theirs")
    assert not caplog.messages
    bert_jax.load(folder / "roberta_choice", pooling="mean").save(tmp_path / "ours")
    (line,) = caplog.messages
    assert line == (
        "only bert_jax can load the saved model, because transformers has no class with a "
        "classifier on the mean of all tokens"
    )
    with pytest.raises(
        UserError, match="model_type='robberta' cannot be read; expected"
    ):
        bert_jax.load(folder / "roberta_choice", model_type="robberta")


def test_the_summary_of_an_electra_counts_for_choices_only(folder, tmp_path):
    for key, value, message in (
        (
            "summary_activation",
            "silu",
            r"summary_activation='silu', expected one of \['gelu', 'tanh', 'relu'\]",
        ),
        ("summary_activation", "", "summary_activation='', expected one of"),
        ("summary_type", "mean", r"summary_type='mean', expected one of \['first'\]"),
        (
            "summary_use_proj",
            False,
            r"summary_use_proj=False, expected one of \[True\]",
        ),
    ):
        copies = {}
        for name in ("electra_choice", "electra_sequence"):
            copy = tmp_path / f"{name}_{key}_{value}"
            copies[name] = changed_copy(folder / name, copy, **{key: value})
        with pytest.raises(UserError, match=message) as error:
            read_huggingface(copies["electra_choice"])
        assert "\n" not in str(error.value)
        assert read_huggingface(copies["electra_sequence"]).config.pooler == "gelu"


def test_positions_and_padding_need_the_same_id(folder, tmp_path):
    """transformers counts the tokens that are not pad_token_id."""
    tokens = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]
    tokens += [f"w{i}" for i in range(36)]
    for padding, fits in ((1, True), (0, False), (7, False)):
        copy = changed_copy(
            folder / "roberta_mlm", tmp_path / f"m{padding}", pad_token_id=padding
        )
        (copy / "vocab.txt").write_text("\n".join(tokens))
        if fits:
            assert bert_jax.load(copy).config.position_offset == 2
            continue
        message = (
            f"config.json: pad_token_id={padding}, from which a roberta counts positions, "
            "but the tokenizer's padding token has the id 1; expected"
        )
        for load in (bert_jax.load, bert_jax.tokenizer, read_huggingface):
            with pytest.raises(UserError, match=message) as error:
                load(copy)
            assert "\n" not in str(error.value)


def test_a_roberta_needs_rows_after_its_padding(folder, tmp_path):
    for rows, padding in ((2, 1), (17, 16), (17, -1)):
        copy = changed_copy(
            folder / "roberta_mlm",
            tmp_path / f"m{rows}{padding}",
            max_position_embeddings=rows,
            pad_token_id=padding,
        )
        message = f"pad_token_id={padding} and max_position_embeddings={rows}; the p"
        with pytest.raises(UserError, match=message):
            read_huggingface(copy)


SMALL = BertConfig(41, 24, 2, 3, 40, 15, initializer_range=0.2)


@pytest.mark.parametrize(
    ("changes", "model_type"),
    [
        ({}, "bert"),
        ({"model_type": "electra", "pooler": "gelu"}, "electra"),
        ({"model_type": "roberta"}, "bert"),
        ({"pre_norm": True}, "megatron-bert"),
        ({"position_offset": 2}, "roberta"),
        ({"position_offset": 2, "type_vocab_size": 1}, "roberta"),
        ({"position_offset": 2, "model_type": "camembert"}, "camembert"),
        ({"type_vocab_size": 0, "pooler": "relu"}, "distilbert"),
        ({"pooler": "gelu", "positions": "none"}, "electra"),
        ({"type_vocab_size": 0}, None),
        ({"pooler": "none"}, None),
        ({"window": 4, "global_every": 2}, None),
        ({"pooler": "none", "max_positions": 1}, None),
        ({"pooler": "relu", "position_offset": 2}, None),
        ({"pre_norm": True, "position_offset": 2}, None),
        ({"type_vocab_size": 0, "pooler": "relu", "layer_norm_epsilon": 1e-5}, None),
    ],
)
def test_a_classifier_is_exported_as_a_family_with_its_options(changes, model_type):
    config = dataclasses.replace(SMALL, **changes)
    exported = exported_config(config, "sequence", {"pooler", "classifier"})
    assert (exported and exported.model_type) == model_type


@pytest.mark.parametrize(
    ("changes", "model_type"),
    [
        ({"pooler": "none"}, "bert"),
        ({"type_vocab_size": 0}, "distilbert"),
        ({"type_vocab_size": 0, "pooler": "gelu"}, "distilbert"),
        ({"pooler": "relu", "position_offset": 2}, "roberta"),
        ({"pooler": "none", "model_type": "electra"}, "bert"),
        ({"pre_norm": True, "position_offset": 2}, None),
    ],
)
def test_the_pooler_does_not_decide_the_family_of_a_model_without_one(
    changes, model_type
):
    config = dataclasses.replace(SMALL, **changes)
    exported = exported_config(config, "pretraining", {"mlm"})
    assert (exported and exported.model_type) == model_type
    # The NSP head reads the pooler's output.
    with_nsp = exported_config(config, "pretraining", {"mlm", "nsp"})
    assert with_nsp is None


def test_an_mlm_head_has_the_activation_of_its_family(folder, tmp_path):
    """In RoBERTa and GTE always gelu, in BERT hidden_act."""
    for name, model_type in (("roberta_mlm", "roberta"), ("gte_mlm", "gte")):
        copy = changed_copy(folder / name, tmp_path / name, hidden_act="relu")
        message = (
            f"activation=relu, but the MLM head of {model_type} has gelu; expected"
        )
        with pytest.raises(UserError, match=message):
            read_huggingface(copy)
        for activation, expected in (("gelu", model_type), ("gelu_tanh", None)):
            config = read_huggingface(folder / name).config
            config = dataclasses.replace(config, activation=activation)
            exported = exported_config(config, "pretraining", {"mlm"})
            assert (exported and exported.model_type) == expected
            exported = exported_config(config, "none", set())  # without the head
            assert exported.model_type == model_type
    config = dataclasses.replace(SMALL, activation="relu", model_type="roberta")
    assert exported_config(config, "pretraining", {"mlm"}).model_type == "bert"


def test_a_model_type_is_kept_if_it_has_a_class_with_the_head():
    """Without a pooler these models differ only in the names of their classes."""
    for model_type, head, parts, expected in (
        ("electra", "token", {"classifier"}, "electra"),
        ("electra", "none", set(), "electra"),
        ("electra", "pretraining", {"mlm"}, "bert"),
        ("bert", "span", {"qa_outputs"}, "bert"),
    ):
        config = dataclasses.replace(SMALL, model_type=model_type, pooler="none")
        assert exported_config(config, head, parts).model_type == expected


def random_checkpoint(config, folder):
    """The parameters of roberta_none for other options of the model."""
    checkpoint = read_huggingface(folder / "xlm_roberta_none")
    model = BertForPreTraining(config)
    arrays = tokens_of()
    places = np.zeros((4, 1), np.int32)
    shapes = jax.eval_shape(
        functools.partial(model.init, deterministic=True),
        jax.random.key(0),
        *(arrays.input_ids, arrays.token_type_ids, arrays.segment_ids, places),
    )["params"]
    random = np.random.default_rng(1)
    params = jax.tree.map(
        lambda x: np.float32(random.normal(0, 0.2, x.shape)), {"bert": shapes["bert"]}
    )
    return dataclasses.replace(checkpoint, config=config, params=params)


@pytest.mark.parametrize(
    "changes",
    [
        {"type_vocab_size": 0},
        {"pooler": "relu", "position_offset": 3, "model_type": "xlm-roberta"},
        {"window": 4, "global_every": 2},
    ],
)
def test_options_without_a_class_are_kept_under_our_names(folder, tmp_path, changes):
    checkpoint = random_checkpoint(dataclasses.replace(SMALL, **changes), folder)
    with pytest.raises(
        UserError, match="transformers has no class with head 'none', par"
    ):
        save_huggingface(tmp_path / "out", checkpoint)
    save_huggingface(tmp_path / "out", checkpoint, own=True)
    read = read_huggingface(tmp_path / "out")
    assert read.config == checkpoint.config
    jax.tree.map(np.testing.assert_array_equal, read.params, checkpoint.params)


def test_a_head_that_a_family_does_not_have_is_kept_under_our_names(folder, tmp_path):
    """A discriminator that was trained to fill in blanks."""
    mlm = read_huggingface(folder / "roberta_mlm")
    config = dataclasses.replace(SMALL, model_type="electra", pooler="gelu")
    encoder = random_checkpoint(config, folder)
    params = encoder.params | {"mlm": mlm.params["mlm"]}
    changed = dataclasses.replace(encoder, params=params, head="pretraining")
    message = "has no class with head 'pretraining', parameters bert, mlm and these opt"
    with pytest.raises(UserError, match=message):
        save_huggingface(tmp_path / "out", changed)
    save_huggingface(tmp_path / "out", changed, own=True)
    read = read_huggingface(tmp_path / "out")
    assert (read.config, read.head) == (config, "pretraining")
    jax.tree.map(np.testing.assert_array_equal, read.params, params)


def test_sinusoids_start_at_the_first_row(folder, tmp_path):
    config = dataclasses.replace(SMALL, positions="sinusoidal", position_offset=2)
    checkpoint = random_checkpoint(config, folder)
    save_huggingface(tmp_path / "out", checkpoint)
    name = "embeddings.position_embeddings.weight"
    table_PD = load_file(tmp_path / "out/model.safetensors")[name]
    assert table_PD.shape == (17, 24)
    read = read_huggingface(tmp_path / "out")
    assert read.config == dataclasses.replace(config, model_type="roberta")
    learned = dataclasses.replace(config, positions="learned")
    embeddings = {**read.params["bert"]["embeddings"]}
    embeddings["position"] = {"embedding": table_PD}
    bert = read.params["bert"] | {"embeddings": embeddings}
    outputs = []
    for kind, params in ((config, read.params["bert"]), (learned, bert)):
        output = BertModel(kind).apply(
            {"params": params}, tokens_of(), deterministic=True, method="encode"
        )
        outputs.append(output.pooled_BD)
    np.testing.assert_array_equal(*outputs)


def test_more_positions_keep_the_rows_before_the_first(folder):
    short = bert_jax.load(folder / "roberta_mlm")
    long = bert_jax.load(folder / "roberta_mlm", max_positions=21)
    before = short.params["bert"]["embeddings"]["position"]["embedding"]
    after = long.params["bert"]["embeddings"]["position"]["embedding"]
    assert (before.shape[0], after.shape[0]) == (17, 23)
    np.testing.assert_array_equal(after[:17], before)
    line = before[2:]
    np.testing.assert_allclose(after[-1], line[-1], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "compute"),
    [
        ("roberta_sequence", {"scan_layers": True}),
        ("distilbert_sequence", {}),
        pytest.param("roberta_sequence", {"remat": "full"}, marks=pytest.mark.long),
        pytest.param(
            "distilbert_sequence", {"scan_layers": True}, marks=pytest.mark.long
        ),
    ],
)
def test_packed_rows_equal_single_rows(folder, name, compute):
    checkpoint = bert_jax.load(folder / name, **compute)
    single = tokens_of()
    lengths = np.asarray(single.segment_ids).sum(axis=1)
    row = {"input_ids": [], "segment_ids": []}
    starts = []
    for i in (1, 2):  # 9 and 5 tokens in a row of 15
        starts.append(len(row["input_ids"]))
        row["input_ids"] += single.input_ids[i, : lengths[i]].tolist()
        row["segment_ids"] += [i] * int(lengths[i])
    ids, numbers = (np.int32([[*row[key], 0]]) for key in ("input_ids", "segment_ids"))
    packed = Tokens(ids, numbers * 0, numbers, np.int32([starts]))
    model = make_model(
        checkpoint.config, "sequence", 3, FeatureConfig(), ComputeConfig(**compute)
    )
    apply = jax.jit(functools.partial(model.apply, deterministic=True))
    variables = {"params": checkpoint.params}
    expected = apply(variables, single.replace(token_type_ids=single.input_ids * 0))
    found = apply(variables, packed)
    np.testing.assert_allclose(found[0], expected[1:3, 0], rtol=0, atol=2e-5)


def test_no_name_of_a_family_is_tested_elsewhere():
    """A family is a file in interop/families. Other code knows only its options."""
    names = {*FAMILIES}
    for family in FAMILIES.values():
        names |= {*family.model_types.values(), family.prefix, family.decoder}
    # Parts of the parameters and of a tokenizer, a class of ours, a group of settings.
    names -= {"", "bert", "Bert", "model.", "decoder"}
    assert {"roberta", "XLMRoberta", "distilbert.", "electra"} <= names
    assert {"modernbert", "ModernBert", "nomic_bert.", "Gte"} <= names
    files = {*PACKAGE.rglob("*.py")} - {*PACKAGE.glob("interop/families/*.py")}
    for path in files:
        constants = {
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant)
        }
        if path.name == "class_rules.py":  # a list of transformers, which is not a test
            constants -= {*WITHOUT_CLASS}
        assert names.isdisjoint(constants), path


def test_the_file_of_a_family_is_short():
    for path in (PACKAGE / "interop/families").glob("*.py"):
        limit = 60 if path.name == "electra.py" else 100
        assert len(path.read_text().splitlines()) < limit


def test_eight_devices_have_the_gradients_of_one():
    """With fsdp and split layers, for all options of other families together."""
    config = dataclasses.replace(
        SMALL,
        num_layers=1,
        num_heads=4,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        position_offset=2,
        type_vocab_size=0,
        pooler="gelu",
    )
    batch = {
        "input_ids": np.random.default_rng(0).integers(5, 41, (16, 12), np.int32),
        "token_type_ids": np.ones((16, 12), np.int32),
        "attention_mask": np.ones((16, 12), np.int32),
        "label": np.arange(16, dtype=np.int32)[:, None] % 3,
        "weights": np.ones((16, 1), np.float32),
    }
    results = []
    for sizes, devices in (
        (MeshConfig(data=1), 1),
        (MeshConfig(data=4, model=2, fsdp=True), 8),
    ):
        compute = ComputeConfig(scan_layers=devices > 1, remat="full")
        model = make_model(config, "sequence", 3, FeatureConfig(), compute)
        objective = HEADS["sequence"](model)
        mesh = make_mesh(sizes, jax.devices()[:devices])
        optimizer = bert_optimizer(OptimizerConfig(learning_rate=1e-2))
        abstract = abstract_state(objective, optimizer, mesh, fsdp=sizes.fsdp)
        state = init_state(objective, optimizer, abstract, seed=1)

        def function(state, batch, objective=objective):
            return gradients(
                state, batch, objective=objective, accumulation=1, by_rows=False
            )

        compiled = jax.jit(traced_on(mesh, function))
        grads, _ = compiled(state, put_batch(batch, mesh))
        grads = with_scan(jax.device_get(grads), scan=False)
        results.append(array_by_name(grads))
    one, eight = results
    assert one.keys() == eight.keys()
    for name, grad in one.items():
        if "key/bias" not in name:
            difference = np.linalg.norm(eight[name] - grad)
            assert difference <= 1e-5 * np.linalg.norm(grad), name


def array_by_name(tree):
    return traverse_util.flatten_dict(tree, sep="/")
