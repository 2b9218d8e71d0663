"""Folders of sentence-transformers; tests/golden/sentence_transformers has its vectors."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import bert_jax
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.interop.load import load

NAMES = ["mean", "cls", "dense", "two_dense"]


@pytest.fixture(scope="module")
def theirs(golden):
    with np.load(golden / "sentence_transformers/golden.npz") as file:
        return dict(file)


@pytest.fixture
def folder(golden, tmp_path):
    """A function that assembles a model of sentence-transformers from an encoder."""

    def make(name, encoder="none"):
        path = tmp_path / f"{name}_{encoder}"
        for part in (f"huggingface/{encoder}", "huggingface/tokenizer"):
            shutil.copytree(golden / part, path, dirs_exist_ok=True)
        shutil.copytree(
            golden / "sentence_transformers" / name, path, dirs_exist_ok=True
        )
        return path

    return make


def change(path, **settings):
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


@pytest.mark.parametrize("name", NAMES)
def test_vectors_equal_sentence_transformers(folder, theirs, tmp_path, name):
    """As loaded, and as saved."""
    texts = theirs["texts"].tolist()
    model = bert_jax.load(folder(name))
    vectors = model.encode(texts)
    np.testing.assert_allclose(vectors, theirs[name], rtol=0, atol=1e-5, strict=True)
    if "dense" in name:
        with pytest.raises(UserError, match="Dense modules cannot be saved; copy"):
            model.save(tmp_path / "saved")
        return
    model.save(tmp_path / "saved")
    again = bert_jax.load(tmp_path / "saved")
    assert (again.head, again.extra) == (model.head, model.extra)
    assert again.unexpected == ()
    np.testing.assert_array_equal(again.encode(texts), vectors)


@pytest.fixture(scope="module")
def prompted(golden):
    with np.load(golden / "sentence_transformers/prompts.npz") as file:
        return dict(file)


ROLES = {"query": "see a bee ", "document": "the cat's ", "plain": "b "}


@pytest.fixture
def with_prompts(folder):
    """A function that returns the folder of a model of prompts.npz."""

    def make(pooling, pooled=True, prompts=ROLES, default="plain"):
        path = folder("mean")
        change(path / POOLING, pooling_mode=pooling, include_prompt=pooled)
        change(path / CONFIG, prompts=prompts, default_prompt_name=default)
        change(path / LENGTH, max_seq_length=14)
        return path

    return make


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_prompts_equal_sentence_transformers(with_prompts, prompted, pooling, pooled):
    """One prompt of each call is longer than the 14 tokens of a text."""
    model = bert_jax.load(with_prompts(pooling, pooled))
    texts, long = prompted["texts"].tolist(), "the cat the cat the cat bee bee a the "
    long += "cat's see be a cat "
    for name, options in {
        "default": {},
        "none": {"prompt": ""},
        "own": {"prompt": "bee see "},
        "long": {"prompt": long},
        "query": {"prompt_name": "query"},
        "document": {"prompt_name": "document"},
    }.items():
        theirs = prompted[f"{pooling}_{pooled}_{name}"]
        vectors = model.encode(texts, **options)
        np.testing.assert_allclose(vectors, theirs, rtol=0, atol=1e-5, err_msg=name)
        if name not in ("default", "long"):
            assert abs(vectors - model.encode(texts)).max() > 0.01


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_search_has_their_prompts_and_scores(with_prompts, prompted, pooling, pooled):
    model = bert_jax.load(with_prompts(pooling, pooled))
    queries, documents = prompted["queries"].tolist(), prompted["documents"].tolist()
    scores = model.evaluate_search(queries, documents, prompted["relevant"])
    assert len(scores) == 10
    for name, score in scores.items():
        theirs = 100 * prompted[f"{pooling}_{pooled}_cosine_{name}"]
        assert score == pytest.approx(theirs, abs=1e-9), name
    vectors = [
        model.encode(queries, prompt_name="query"),
        model.encode(documents, prompt_name="document"),
    ]
    found = model.search(queries, documents, top=3)
    expected = model.search(*vectors, top=3)
    for ours, theirs in zip(found, expected, strict=True):
        assert [x["row"] for x in ours] == [x["row"] for x in theirs]
        assert [x["text"] for x in ours] == [documents[x["row"]] for x in theirs]
    assert model.evaluate_search(*vectors, prompted["relevant"]) == scores


def test_prompts_of_a_search_may_be_given(with_prompts):
    model = bert_jax.load(with_prompts("cls"))
    query, texts = "the cat", ["a bee", "see a cat", "the bee"]
    found = model.search(query, texts, query_prompt="be ", document_prompt="")
    expected = model.search(
        model.encode(query, prompt="be "), model.encode(texts, prompt="")
    )
    assert [x["cosine"] for x in found] == [x["cosine"] for x in expected]
    with pytest.raises(UserError, match="query_prompt has no effect on vectors"):
        model.search(model.encode(query), texts, query_prompt="be ")
    with pytest.raises(UserError, match="document_prompt has no effect on vectors"):
        model.search(query, model.encode(texts), document_prompt="be ")


@pytest.mark.parametrize(
    ("prompts", "query", "document"),
    [
        ({"plain": "b ", "passage": "the ", "corpus": "a "}, "", "the "),
        ({"plain": "b ", "corpus": "a ", "document": ""}, "", "a "),
        ({"plain": "b "}, "", ""),
    ],
)
def test_a_search_never_has_the_default_prompt(with_prompts, prompts, query, document):
    model = bert_jax.load(with_prompts("mean", prompts=prompts))
    texts = ["a bee", "see a cat", "the bee"]
    found = model.search("the cat", texts)
    expected = model.search(
        model.encode("the cat", prompt=query), model.encode(texts, prompt=document)
    )
    assert [x["cosine"] for x in found] == [x["cosine"] for x in expected]


def test_an_unknown_prompt_is_refused_with_the_names(with_prompts, folder):
    model = bert_jax.load(with_prompts("mean"))
    message = "prompt_name='passage', expected one of the model's prompts ['query', "
    message += "'document', 'plain']; prompt accepts any text"
    with pytest.raises(UserError, match=re.escape(message)):
        model.encode("a bee", prompt_name="passage")
    with pytest.raises(UserError, match="are both given; give only one"):
        model.encode("a bee", prompt_name="query", prompt="see ")
    plain = bert_jax.load(with_prompts("mean", prompts={}, default=None))
    with pytest.raises(
        UserError, match=r"the model's prompts \[\]; prompt accepts any text$"
    ):
        plain.encode("a bee", prompt_name="query")


def test_other_options_give_the_encoder_s_own_vectors(folder, theirs):
    """Dense modules, the prompt and the length belong to the model's own pooling."""
    texts = theirs["texts"].tolist()
    model, plain = bert_jax.load(folder("dense")), bert_jax.load(folder("mean"))
    np.testing.assert_array_equal(
        model.encode(texts, pooling="mean"), plain.encode(texts)
    )
    assert model.encode(texts, layers=(-2,)).shape == (4, 24)
    lengths = np.linalg.norm(model.encode(texts, normalize=False), axis=1)
    assert (lengths < 2.9).all() and lengths.std() > 0.01
    assert bert_jax.load(folder("cls")).encode(texts, normalize=False).std() > 0.3


def test_a_pretraining_head_is_kept(folder, theirs):
    texts = theirs["texts"].tolist()
    model = bert_jax.load(folder("cls", "pretraining"))
    assert model.head == "pretraining"
    assert len(model.fill_mask("a [MASK] bee")) == 1
    vectors = model.encode(texts)
    expected = model.encode(texts, pooling="cls", normalize=True, max_length=12)
    np.testing.assert_array_equal(vectors, expected)


def test_pairs_are_predicted_as_cosines(folder):
    model = bert_jax.load(folder("cls"))
    a, b = model.encode(["the cat", "a bee"])
    assert model.predict(("the cat", "a bee"))["value"] == pytest.approx(
        a @ b, abs=1e-6
    )
    # A Dense module without a prompt, and a prompt without a Dense module.
    layers, prompt = folder("dense"), folder("cls")
    change(layers / CONFIG, default_prompt_name=None)
    change(prompt / CONFIG, default_prompt_name="query", prompts={"query": "see "})
    for path in (layers, prompt):
        with pytest.raises(UserError, match=r"applies modules\.json"):
            bert_jax.load(path).predict(("the cat", "a bee"))


def test_old_settings_are_read(folder, theirs):
    """sentence-transformers wrote them before version 5.4."""
    path = folder("cls")
    modes = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (path / "1_Pooling/config.json").write_text(json.dumps(modes))
    settings = {"max_seq_length": 12, "do_lower_case": False}
    (path / "sentence_bert_config.json").write_text(json.dumps(settings))
    change(path / "tokenizer_config.json", model_max_length=512)
    vectors = bert_jax.load(path).encode(theirs["texts"].tolist())
    np.testing.assert_allclose(vectors, theirs["cls"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["roberta", "distilbert", "camembert", "xlm-roberta"])
def test_old_names_of_the_settings_are_read(folder, name):
    """sentence-transformers reads the first file of this list."""
    path = folder("cls")
    settings = {"max_seq_length": 7, "do_lower_case": False}
    (path / LENGTH).unlink()
    (path / f"sentence_{name}_config.json").write_text(json.dumps(settings))
    assert bert_jax.load(path).extra["modules"]["max_length"] == 7
    (path / LENGTH).write_text(json.dumps(settings | {"max_seq_length": 11}))
    assert bert_jax.load(path).extra["modules"]["max_length"] == 11


@pytest.mark.parametrize(
    "settings",
    [
        {"query_length": 8},
        {"document_length": 12},
        {"processing_kwargs": {"text": {"max_length": 8}}},
    ],
)
def test_lengths_that_are_not_implemented_are_refused(folder, settings):
    path = folder("cls")
    change(path / LENGTH, **settings)
    (name,) = settings
    with pytest.raises(UserError, match=f"{LENGTH}: {name}"):
        bert_jax.load(path)


def test_a_module_of_another_package_is_refused(folder):
    path = folder("cls")
    modules = json.loads((path / "modules.json").read_text())
    modules[0]["type"] = "custom_st.Transformer"
    (path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UserError, match=r"the modules are custom_st\.Transformer,"):
        bert_jax.load(path)


@pytest.mark.parametrize(("length", "expected"), [(9, 9), (1e30, 19)])
def test_a_missing_length_comes_from_the_tokenizer(folder, length, expected):
    """transformers writes 1e30 for no limit. The model has 19 positions."""
    path = folder("cls")
    change(path / "sentence_bert_config.json", max_seq_length=None)
    change(path / "tokenizer_config.json", model_max_length=length)
    assert bert_jax.load(path).extra["modules"]["max_length"] == expected


def test_the_case_of_the_settings_and_of_the_tokenizer_must_fit(folder):
    path = folder("cls")
    change(path / "sentence_bert_config.json", do_lower_case=True)
    assert bert_jax.load(path).tokenizer.lower_case
    change(path / "tokenizer_config.json", do_lower_case=False)
    with pytest.raises(
        UserError, match=r"config\.json: do_lower_case=True, but the tok"
    ):
        bert_jax.load(path)


POOLING, DENSE = "1_Pooling/config.json", "2_Dense/config.json"
CONFIG = "config_sentence_transformers.json"
LENGTH = "sentence_bert_config.json"


@pytest.mark.parametrize(
    ("file", "settings"),
    [
        (CONFIG, {"default_prompt_name": "query", "prompts": {"query": "see the "}}),
        (CONFIG, {"prompts": ROLES, "similarity_fn_name": "dot"}),
        (POOLING, {"include_prompt": False}),
    ],
)
def test_a_saved_model_keeps_its_settings(folder, tmp_path, file, settings):
    path = folder("cls")
    before = bert_jax.load(path).extra["modules"]
    change(path / file, **settings)
    model = bert_jax.load(path)
    assert model.extra["modules"] == before | settings
    model.save(tmp_path / "saved")
    assert bert_jax.load(tmp_path / "saved").extra == model.extra


def test_a_model_without_a_class_in_transformers_keeps_its_modules(
    with_prompts, tmp_path
):
    """Pooling, prompts and length. sentence-transformers cannot read this model."""
    checkpoint = load(with_prompts("cls", pooled=False))
    bert = dict(checkpoint.params["bert"])
    bert["embeddings"] = dict(bert["embeddings"])
    del bert["embeddings"]["segment"]
    config = dataclasses.replace(
        checkpoint.config, type_vocab_size=0, layer_norm_epsilon=1e-5
    )
    changed = dataclasses.replace(checkpoint, config=config, params={"bert": bert})
    save_huggingface(tmp_path / "own", changed, own=True)
    assert not (tmp_path / "own/modules.json").exists()
    again = load(tmp_path / "own")
    assert (again.head, again.extra) == (checkpoint.head, checkpoint.extra)
    model = bert_jax.load(tmp_path / "own")
    named = model.encode("the cat", prompt_name="query")
    np.testing.assert_array_equal(named, model.encode("the cat", prompt="see a bee "))
    assert abs(named - model.encode("the cat", prompt="")).max() > 0.01


def test_absent_settings_have_their_defaults(folder):
    path = folder("dense")
    for file in (POOLING, DENSE, CONFIG, LENGTH, "tokenizer_config.json"):
        (path / file).write_text("{}")
    model = bert_jax.load(path)
    assert model.extra["modules"] == {
        "pooling": "mean",
        "activations": ["Tanh"],
        "normalize": True,
        "max_length": model.config.max_positions,
        "prompts": {},
        "default_prompt_name": None,
        "similarity_fn_name": None,
        "include_prompt": True,
    }


MAX = {"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True}
FIRST_LAST = {"pooling_mode_first_last_avg": True, "pooling_mode_mean_tokens": False}


@pytest.mark.parametrize(
    ("file", "settings", "message"),
    [
        (POOLING, {"pooling_mode": "max"}, "the pooling is 'max'; expected 'mean' or"),
        (POOLING, {"pooling_mode": ["cls", "mean"]}, r"pooling is \['cls', 'mean'\]"),
        (POOLING, {"pooling_mode": "weightedmean"}, "the pooling is 'weightedmean'"),
        (DENSE, {"activation_function": "torch.nn.ReLU"}, "activation_function='torch"),
        (DENSE, {"use_residual": True}, "use_residual=True, expected one of False"),
        (DENSE, {"module_input_name": "token_embeddings"}, "module_input_name='token"),
        ("config_sentence_transformers.json", {"truncate_dim": 4}, "truncate_dim"),
        (
            "config_sentence_transformers.json",
            {"prompts": {}},
            "default_prompt_name='q",
        ),
    ],
)
def test_settings_that_are_not_supported_are_refused(folder, file, settings, message):
    path = folder("dense")
    change(path / file, **settings)
    with pytest.raises(UserError, match=message) as caught:
        bert_jax.load(path)
    assert "\n" not in str(caught.value)
    (path / file).unlink()  # a default could be the wrong pooling or activation
    if file in (POOLING, DENSE):
        with pytest.raises(UserError, match=f"{file} does not exist; expected setti"):
            bert_jax.load(path)


@pytest.mark.parametrize(
    "tensors",
    [
        {"linear.weight": np.ones((8, 23), np.float32)},
        {"linear.weight": np.ones((8, 24)), "linear.bias": np.ones(7)},
        {"linear.weight": np.ones((8, 24)), "residual.weight": np.ones((8, 24))},
    ],
)
def test_tensors_of_another_layer_are_refused(folder, tensors):
    path = folder("dense")
    save_file(tensors, path / "2_Dense/model.safetensors")
    with pytest.raises(
        UserError, match=r"expected a matrix linear.weight of 24 columns"
    ):
        bert_jax.load(path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (MAX, r"the pooling is \['pooling_mode_max_tokens', 'mean'\]; expected"),
        (FIRST_LAST, r"the pooling is \['pooling_mode_first_last_avg'\]; expected"),
        ({"pooling_mode_mean_tokens": False}, r"the pooling is \[\]; expected"),
    ],
)
def test_old_settings_of_other_poolings_are_refused(folder, settings, message):
    path = folder("mean")
    (path / POOLING).write_text(json.dumps(settings))
    with pytest.raises(UserError, match=message):
        bert_jax.load(path)


@pytest.mark.parametrize("kinds", [["LSTM"], ["Normalize", "Dense"], ["Dropout"]])
def test_other_modules_are_refused_with_their_names(folder, kinds):
    path = folder("mean")
    modules = json.loads((path / "modules.json").read_text())
    modules += [
        {"path": f"2_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for kind in kinds
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    message = (
        f"modules are Transformer, Pooling, {', '.join(kinds)}; expected .*remove modul"
    )
    with pytest.raises(UserError, match=message):
        bert_jax.load(path)
    (path / "modules.json").unlink()
    assert bert_jax.load(path).head == "none"


def test_a_cross_encoder_with_a_prompt_is_refused(golden, tmp_path):
    folder = shutil.copytree(golden / "huggingface/sequence", tmp_path / "folder")
    modules = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    bert_jax.load(folder)
    encoder = shutil.copytree(golden / "huggingface/pretraining", tmp_path / "encoder")
    settings = {"prompts": {"q": "find: "}, "default_prompt_name": "q"}
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps(settings))
    with pytest.raises(UserError, match=r"has the prompt 'q', which is not put before"):
        bert_jax.load(folder)
    shutil.copy(path, encoder)
    bert_jax.load(encoder)  # without a head for scores


SIGMOID = "torch.nn.modules.activation.Sigmoid"


@pytest.mark.parametrize(
    ("file", "settings", "name"),
    [
        ("config_sentence_transformers.json", {"activation_fn": SIGMOID}, SIGMOID),
        ("config.json", {"sentence_transformers": {"activation_fn": SIGMOID}}, SIGMOID),
        (
            "config.json",
            {"sbert_ce_default_activation_function": "torch.nn.Sigmoid"},
            SIGMOID,
        ),
        (
            "config.json",
            {"sentence_transformers": {"activation_fn": "torch.nn.Identity"}},
            "torch.nn.modules.linear.Identity",
        ),
        ("config.json", {"sentence_transformers": {"activation_fn": "x.Own"}}, "x.Own"),
        ("config.json", {"sentence_transformers": {"version": "5.0"}}, ""),
    ],
)
def test_the_activation_of_a_cross_encoder_is_applied(
    golden, tmp_path, caplog, file, settings, name
):
    """sentence-transformers 6.2 gives the same values to 1e-7, tried by hand."""
    path = shutil.copytree(golden / "huggingface/sequence", tmp_path / "m")
    shutil.copytree(golden / "huggingface/tokenizer", path, dirs_exist_ok=True)
    tensors = load_file(path / "model.safetensors")
    for tensor in ("classifier.weight", "classifier.bias"):
        tensors[tensor] = tensors[tensor][:1].copy()
    save_file(tensors, path / "model.safetensors")
    if not (path / file).exists():
        (path / file).write_text("{}")
    change(path / file, **settings)
    model = bert_jax.load(path)
    rows = [("the cat", "a bee"), ("a bee", "a cat"), ("a", "the bee")]
    values = [answer["value"] for answer in model.predict(rows)]
    logits = model.logits(rows)[:, 0]
    expected = 1 / (1 + np.exp(-logits)) if name == SIGMOID else logits
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    assert abs(logits).min() > 0.1
    warned = [r.message for r in caplog.records if "activation_fn='x.Own'" in r.message]
    assert len(warned) == (name == "x.Own")
    scores = model.evaluate([(*row, x) for row, x in zip(rows, expected, strict=True)])
    assert scores["pearson"] == pytest.approx(100)
    assert scores["rmse"] == pytest.approx(0, abs=1e-6)
    # A saved folder has it where all versions of sentence-transformers read it.
    model.save(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved/config.json").read_text())
    assert saved.get("sentence_transformers", {}).get("activation_fn", "") == name
    assert (
        bert_jax.load(tmp_path / "saved").activation_fn == model.activation_fn == name
    )


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("modules.json", [{"type": "x.Pooling", "path": ["a"]}], "[0].path=['a'], "),
        ("modules.json", {}, "contains a JSON dict; expected a list of modules"),
        ("modules.json", [3], "[0]=3, expected an object"),
        (POOLING, {"pooling_mode": 3}, "pooling_mode=3, expected a text or a list"),
        (DENSE, {"activation_function": []}, "activation_function=[], expected one of"),
        (
            "tokenizer_config.json",
            {"model_max_length": ""},
            "model_max_length='', expected a number or null",
        ),
        (
            "sentence_bert_config.json",
            {"max_seq_length": 9.5},
            "max_seq_length=9.5, expected a whole number or null",
        ),
        (
            "config_sentence_transformers.json",
            {"prompts": ["a"]},
            "prompts=['a'], expected an object or null",
        ),
    ],
)
def test_values_of_another_type_are_named(folder, file, content, message):
    path = folder("dense")
    (path / file).write_text(json.dumps(content))
    with pytest.raises(UserError, match=re.escape(message)) as error:
        bert_jax.load(path)
    assert str(error.value).startswith(str(path / file))
