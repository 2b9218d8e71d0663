"""The Python interface: the object that bert_jax.load returns."""

import copy
import dataclasses
import inspect
import multiprocessing
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bert_jax
from bert_jax.errors import UserError
from bert_jax.inference import evaluation
from bert_jax.inference.embed import EncodeOptions
from bert_jax.inference.evaluation import Options
from bert_jax.inference.model import Bert, DuplicateOptions, SearchOptions
from bert_jax.inference.outputs import CallOptions
from bert_jax.inference.predict import PredictOptions
from bert_jax.inference.pretrained import FillMaskOptions, ScoreOptions
from bert_jax.model.bert import BertForPreTraining
from bert_jax.parallel.sharding import arrays_by_path
from bert_jax.training.from_python import Trained
from tests.word_tokenizer import PARTS_CONFIG as CONFIG
from tests.word_tokenizer import PARTS_TOKENIZER as TOKENIZER

TEXTS = ["the sailors see ships .", "ship", ("the sailor sees", "the ship .")]


@pytest.fixture(scope="module")
def folder(pretrained, tmp_path_factory):
    path = tmp_path_factory.mktemp("bert") / "model"
    pretrained.save(path)
    return path


@pytest.fixture(scope="module")
def model(folder):
    return bert_jax.load(folder)


@jax.jit
def by_hand(params, *arrays):
    """The outputs of a plain call of the model."""
    model = BertForPreTraining(CONFIG)
    return model.apply({"params": params}, *arrays, deterministic=True)


def test_fill_mask_returns_the_most_likely_tokens(model):
    """Compared with a plain call, for one text and together with another text."""
    text = "the [MASK] sees [MASK] ."
    ids = np.array([TOKENIZER.cls_id, *TOKENIZER.encode(text, allow_mask=True), 3])
    places = np.flatnonzero(ids == TOKENIZER.mask_id)
    inputs = jnp.array([ids, 0 * ids, 0 * ids + 1])[:, None]
    output = by_hand(model.params, *inputs, jnp.array([places]))
    logits = np.asarray(output.mlm_logits_BMW[0])[:, : TOKENIZER.vocab_size]
    expected = np.asarray(jax.nn.softmax(logits))
    blanks = model.fill_mask(text, top=3)
    assert len(blanks) == 2
    several = model.fill_mask(["ship [MASK]", text], top=3)
    assert [len(blanks_of_text) for blanks_of_text in several] == [1, 2]
    for predicted in (blanks, several[1]):
        for blank, right in zip(predicted, expected, strict=True):
            top = np.argsort(-right)[:3]
            assert [t for t, _ in blank] == [TOKENIZER.tokens[t] for t in top]
            np.testing.assert_allclose([p for _, p in blank], right[top], atol=1e-5)


def test_next_sentence_is_the_nsp_heads_first_class(model):
    one = model.next_sentence("the sailor sees", "the ship .")
    ids = TOKENIZER("the sailor sees", "the ship .")
    arrays = [jnp.array([ids[name]]) for name in ids]
    output = by_hand(model.params, *arrays, jnp.zeros((1, 1), jnp.int32))
    assert one == pytest.approx(float(jax.nn.softmax(output.nsp_logits_B2)[0, 0]), 1e-5)
    alone = {name: model.params[name] for name in ("bert", "nsp")}
    bare = dataclasses.replace(model, params=alone)
    assert bare.next_sentence("the sailor sees", "the ship .") == pytest.approx(one)
    both = model.next_sentence(["the sailor sees", "ship"], ["the ship .", "."])
    assert both.shape == (2,)
    assert both[0] == pytest.approx(one, abs=1e-5)
    of_tuples = model.next_sentence(("the sailor sees", "ship"), ("the ship .", "."))
    np.testing.assert_array_equal(of_tuples, both)
    pairs = [("the sailor sees", "the ship ."), ("ship", ".")]
    frame = [{"a": a, "b": b} for a, b in pairs]
    np.testing.assert_array_equal(model.next_sentence(iter(pairs)), both)
    np.testing.assert_array_equal(model.next_sentence(np.array(pairs)), both)
    np.testing.assert_array_equal(model.next_sentence(*np.array(pairs).T), both)
    of_frame = model.next_sentence(frame, columns=("a", "b"))
    np.testing.assert_array_equal(of_frame, both)
    assert model.next_sentence(pairs[0]) == pytest.approx(one)


def test_a_text_alone_has_the_vector_and_score_that_it_has_among_others(model):
    vectors = model.encode(TEXTS, normalize=True)
    single = model.encode(TEXTS[1], normalize=True)
    np.testing.assert_allclose(single, vectors[1], rtol=0, atol=1e-6)
    scores = model.score(TEXTS[:2])
    assert model.score(TEXTS[0]) == pytest.approx(scores[0])


@pytest.mark.parametrize(
    "scan_layers", [pytest.param(False, marks=pytest.mark.long), True]
)
def test_a_call_returns_hidden_states_and_attentions(folder, scan_layers):
    model = bert_jax.load(folder, scan_layers=scan_layers)
    out = model(TEXTS, hidden_states=True, attentions=True)
    B, L = out.input_ids.shape
    assert [len(tokens) for tokens in out.tokens] == out.attention_mask.sum(1).tolist()
    assert out.tokens[1] == ["[CLS]", "ship", "[SEP]"]
    assert out.hidden_states.shape == (3, B, L, 32)
    np.testing.assert_array_equal(out.hidden_states[-1], out.last_hidden_state)
    assert out.pooled.shape == (B, 32)
    assert out.attentions.shape == (2, B, 2, L, L)
    real = out.attention_mask[None, :, None, None, :]
    np.testing.assert_allclose(out.attentions.sum(-1), 1, rtol=0, atol=1e-6)
    assert np.max(out.attentions * (1 - real)) == 0
    alone = model(TEXTS[1], attentions=True)
    np.testing.assert_allclose(
        alone.attentions[:, 0], out.attentions[:, 1, :, :3, :3], rtol=0, atol=1e-5
    )
    plain = model(TEXTS)
    assert plain.attentions is plain.hidden_states is None
    ids = f"input_ids int32 {B, L}, token_type_ids int32 {B, L}, "
    ids += f"attention_mask int32 {B, L}"
    last = f"last_hidden_state float32 {B, L, 32}, pooled float32 {B, 32}"
    assert repr(plain) == f"Output(3 texts: {ids}, {last})"


def test_attentions_are_the_probabilities_of_the_layers(model):
    """Computes the first layer's output from its probabilities by hand."""
    out = model("the sailors see ships .", hidden_states=True, attentions=True)
    layer = model.params["bert"]["encoder"]["layer_0"]["attention"]
    x_LD = out.hidden_states[0, 0]
    value = layer["value"]
    v_LNH = np.einsum("LD,DNH->LNH", x_LD, value["kernel"]) + value["bias"]
    context_LNH = np.einsum("NLM,MNH->LNH", out.attentions[0, 0], v_LNH)
    attn_LD = np.einsum("LNH,NHD->LD", context_LNH, layer["output"]["kernel"])
    y_LD = x_LD + attn_LD + layer["output"]["bias"]
    norm = model.params["bert"]["encoder"]["layer_0"]["attention_norm"]
    y_LD = (y_LD - y_LD.mean(-1, keepdims=True)) / y_LD.std(-1, keepdims=True)
    y_LD = y_LD * norm["scale"] + norm["bias"]
    params = model.params["bert"]["encoder"]["layer_0"]
    inner = params["intermediate"]
    h_LF = y_LD @ inner["kernel"] + inner["bias"]
    h_LF = np.asarray(jax.nn.gelu(h_LF, approximate=False))
    outer = params["feed_forward_output"]
    z_LD = y_LD + h_LF @ outer["kernel"] + outer["bias"]
    z_LD = (z_LD - z_LD.mean(-1, keepdims=True)) / z_LD.std(-1, keepdims=True)
    norm = params["feed_forward_norm"]
    z_LD = z_LD * norm["scale"] + norm["bias"]
    np.testing.assert_allclose(out.hidden_states[1, 0], z_LD, rtol=0, atol=1e-4)


def test_an_lstm_has_no_attentions(folder):
    config = dataclasses.replace(CONFIG, encoder="lstm")
    model = dataclasses.replace(bert_jax.load(folder), config=config)
    with pytest.raises(UserError, match="this encoder has no attentions; leave"):
        model("ship", attentions=True)


def test_options_share_one_copy_of_the_parameters(folder):
    def live_sizes():  # sizes by address of each array on each device
        arrays = [x for x in jax.live_arrays() if not x.is_deleted()]
        parts = [part.data for x in arrays for part in x.addressable_shards]
        # Other tests may have left arrays with donated buffers.
        parts = [part for part in parts if not part.is_deleted()]
        return {part.unsafe_buffer_pointer(): part.nbytes for part in parts}

    model = bert_jax.load(folder)
    others = jax.live_arrays(), live_sizes()  # kept alive, so that no address is reused
    model.encode("the ship .")
    several = {"layers": (0,)}, {"layers": (-2, -1)}, {"normalize": True}
    vectors = [model.encode("the ship .", **options) for options in several]
    assert [vector.shape for vector in vectors] == [(32,), (64,), (32,)]
    model.score("the ship .")
    model.fill_mask("the [MASK] .")
    model("the ship .")
    parameters = sum(x.nbytes for x in jax.tree.leaves(model.params))
    added = sum(size for place, size in live_sizes().items() if place not in others[1])
    assert added / jax.device_count() < 1.5 * parameters


def test_each_method_reads_each_form_of_rows(model, tmp_path):
    texts, blanks = ["the ship sees", "ships ."], ["the [MASK]", "[MASK] ."]
    expected = model.encode(texts), model.score(texts), model.fill_mask(blanks)
    for columns, make in {
        "": lambda texts: (text for text in texts),
        "review": lambda texts: [{"review": text, "title": "the"} for text in texts],
        "text": lambda texts: [{"text": text, "title": "the"} for text in texts],
    }.items():
        columns = "" if columns == "text" else columns
        outputs = (
            model.encode(make(texts), columns=columns),
            model.score(make(texts), columns=columns),
            model.fill_mask(make(blanks), columns=columns),
        )
        np.testing.assert_array_equal(outputs[0], expected[0])
        np.testing.assert_array_equal(outputs[1], expected[1])
        assert outputs[2] == expected[2]
    np.testing.assert_array_equal(model.encode({"text": texts[0]}), expected[0][0])
    (tmp_path / "texts.csv").write_text("id,text\n1,the ship sees\n2,ships .\n")
    np.testing.assert_array_equal(model.encode(tmp_path / "texts.csv"), expected[0])
    np.testing.assert_array_equal(
        model(texts).input_ids, model([{"text": text} for text in texts]).input_ids
    )


def test_two_texts_are_refused_if_a_method_reads_one(model):
    pair = {"text_a": "the ship", "text_b": "[MASK] sees"}
    message = "no column 'text'; the columns are text_a, text_b"
    for method in (model.score, model.fill_mask):
        with pytest.raises(UserError, match=message):
            method([pair])
    assert model.score([pair], columns="text_a") == [model.score("the ship")]
    with pytest.raises(UserError, match="columns=0, expected a name, or a list of"):
        model.score([{"text": "the ship"}], columns=0)
    # A sentence embedding model encodes each text. Other models encode the pair.
    vectors = dataclasses.replace(model, head="mean")
    with pytest.raises(UserError, match=message):
        vectors.encode([pair])
    both = vectors.encode([pair], columns=("text_a", "text_b"))
    np.testing.assert_allclose(both, model.encode([pair]), rtol=0, atol=1e-6)
    with pytest.raises(UserError, match="row 0 has 2 values; expected text"):
        vectors.encode([tuple(pair.values())])
    one = vectors.encode([pair], columns="text_a")
    np.testing.assert_allclose(one[0], model.encode("the ship"), rtol=0, atol=1e-6)


@pytest.mark.parametrize("data", [5, b"x", [None], {"text": None}])
def test_values_that_are_no_text_are_refused(model, data):
    with pytest.raises(UserError, match=r"(of type|missing).*(expected|fill it in)"):
        model.encode(data)


def test_empty_input_gives_empty_output(model):
    for options, width in (
        ({}, 32),
        ({"layers": (-2, -1)}, 64),
        ({"pooling": "pooler"}, 32),
    ):
        vectors = model.encode([], **options)
        assert vectors.shape == (0, width)
        assert vectors.dtype == np.float32
        together = np.concatenate([vectors, model.encode(["ship"], **options)])
        assert together.shape == (1, width)
    assert model.encode([], pooling="none") == []
    assert model.fill_mask([]) == []
    assert model.score([]).shape == model.next_sentence([], []).shape == (0,)


def test_an_empty_text_is_encoded_as_cls_and_sep(model):
    out = model("")
    assert out.tokens == [["[CLS]", "[SEP]"]]
    mean = out.last_hidden_state[0].mean(axis=0)
    np.testing.assert_allclose(model.encode(""), mean, rtol=0, atol=1e-5)
    assert model.score("") == 0
    assert 0 < model.next_sentence("", "") < 1


def test_errors_name_the_arguments_of_python(model):
    with pytest.raises(UserError, match=r"^max_length=99 .*48"):
        model.encode("ship", max_length=99)
    with pytest.raises(UserError, match=r"^top_k is not a setting; did you mean top"):
        model.predict(["ship"], top_k=3)


OF_ALL = {
    "device": ("cpu", "JAX chooses devices by the environment variable JAX_PLATFORMS"),
    "batch_size": ("3", "batch_size='3', expected a value of type int"),
    "max_length": (-1, "max_length=-1, expected at least 0"),
    "dtype": ("float64", "dtype='float64', expected one of"),
    "show_progress": (1, r"show_progress=1, expected a value of type bool \| None"),
}


@pytest.mark.parametrize(
    ("method", "name", "value", "message"),
    [
        *(
            (method, name, *case)
            for method in ("encode", "fill_mask", "score", "next_sentence", "predict")
            for name, case in OF_ALL.items()
        ),
        ("encode", "batch_size", 2.5, "batch_size=2.5, expected a value of type int"),
        ("encode", "batch_size", True, "batch_size=True, expected a value of type int"),
        ("encode", "batch_size", None, "batch_size=None, expected a value of type int"),
        ("encode", "batch_size", 0, "batch_size=0, expected at least 1"),
        ("encode", "dimensions", -1, "dimensions=-1, expected at least 0"),
        ("encode", "layers", (), r"layers=\(\), expected at least one"),
        ("encode", "layers", -1, "layers=-1, expected a tuple"),
        ("encode", "layers", ("a",), r"layers\[0\]='a', expected a value of type int"),
        (
            "encode",
            "normalize",
            "yes",
            r"normalize='yes', expected a value of type bool",
        ),
        ("encode", "pooling", "max", "pooling='max', expected one of none, mean, cls"),
        ("encode", "normalize_embeddings", True, "did you mean normalize"),
        ("encode", "show_progress_bar", True, "did you mean show_progress"),
        ("encode", "truncate_dim", 4, "did you mean dimensions"),
        ("encode", "prompt", 3, "prompt=3, expected a value of type str . None"),
        ("search", "prompt", "query: ", "did you mean query_prompt"),
        ("search", "corpus_prompt", "text: ", "did you mean document_prompt"),
        ("encode", "convert_to_tensor", True, "numpy's; jax.numpy.asarray and torch"),
        ("encode", "columns", 0, "columns=0, expected a name, or a list of names"),
        ("encode", "wings", 2, "wings is not a setting; expected one of .'batch_size'"),
        ("fill_mask", "top", 0, "top=0, expected at least 1"),
        ("fill_mask", "top_k", 3, "did you mean top"),
        ("score", "rest_of_word", "no", "rest_of_word='no', expected a value of type"),
        ("predict", "top", "2", "top='2', expected a value of type int"),
        ("predict", "top", 0, "top=0, expected at least 1"),
        ("predict", "as_frame", "yes", "as_frame='yes', expected a value of type bool"),
        ("evaluate", "top", 3, "top is not a setting; expected one of"),
        ("evaluate", "task", "cola", "task='cola', expected one of bert_jax.tasks"),
        ("logits", "top", 3, "top is not a setting; expected one of"),
        ("predict_proba", "top", 3, "top is not a setting; expected one of"),
        ("search", "top_k", 3, "did you mean top"),
        ("similarity", "device", "cpu", "JAX chooses devices"),
        ("duplicates", "batch_size", "3", "batch_size='3', expected a value of type"),
        ("__call__", "output_attentions", True, "did you mean attentions"),
        ("__call__", "attentions", 1, "attentions=1, expected a value of type bool"),
    ],
)
def test_wrong_options_are_errors_that_name_them(model, method, name, value, message):
    rows = [["the [MASK]", "ships"]]
    if method == "next_sentence":
        rows = [("the ship", "ships")]
    elif method in ("similarity", "search"):
        rows = ["the ship", ["ships"]]
    classifier = dataclasses.replace(
        model,
        head="sequence",
        labels=("bad", "good"),
        params=model.params | {"classifier": {"kernel": np.ones((32, 2), np.float32)}},
    )
    classifier.params["classifier"]["bias"] = np.zeros(2, np.float32)
    of_head = method in ("predict", "predict_proba", "evaluate", "logits")
    with pytest.raises(UserError, match=message):
        getattr(classifier if of_head else model, method)(*rows, **{name: value})


def test_options_may_be_values_of_numpy(model):
    texts = ["the ship sees", "ships ."]
    expected = model.encode(texts, layers=(0, -1), batch_size=1, normalize=True)
    options = {"layers": np.array([0, -1]), "batch_size": np.int64(1)}
    vectors = model.encode(texts, normalize=np.bool_(True), **options)
    np.testing.assert_array_equal(vectors, expected)


def test_one_row_has_no_progress_bar(model, monkeypatch):
    shown = []

    class Recorded(evaluation.Progress):
        def __init__(self, *args, show, **options):
            shown.append(show)
            super().__init__(*args, show=False, **options)

    monkeypatch.setattr(evaluation, "Progress", Recorded)
    model.score("the ship")
    model.score(["the ship", "ships"])
    model.score("the ship", show_progress=True)
    assert shown == [False, None, True]


def test_two_lists_need_as_many_texts(model):
    message = "first has 2 texts and second has 1 text; both must have the same number"
    with pytest.raises(UserError, match=message):
        model.next_sentence(["the ship", "ships"], ["."])
    with pytest.raises(UserError, match="first=5, expected a text, or several texts"):
        model.next_sentence(5, ["."])


def blank_of(model):
    return model.fill_mask("the [MASK] sees .", top=2)[0]


def test_a_model_is_pickled_and_copied_before_and_after_its_use(folder):
    """Only its fields are stored, so hashes of the bytes are the same."""
    model = bert_jax.load(folder)
    before = pickle.dumps(model)
    expected = blank_of(model)
    assert model._devices
    after = pickle.dumps(model)
    assert after == before
    for other in (pickle.loads(after), copy.deepcopy(model)):
        assert {*vars(other)} == {field.name for field in dataclasses.fields(other)}
        assert blank_of(other) == expected
    trained = Trained(**vars(pickle.loads(after)), scores={"dev": {"f1": 3.5}})
    assert pickle.loads(pickle.dumps(trained)).scores == {"dev": {"f1": 3.5}}


@pytest.mark.long
def test_a_used_model_works_in_another_process(folder):
    model = bert_jax.load(folder)
    expected = blank_of(model)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(blank_of, (model,))
    assert [token for token, _ in found] == [token for token, _ in expected]
    np.testing.assert_allclose([p for _, p in found], [p for _, p in expected], 1e-5)


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("fill_mask", FillMaskOptions),
        ("next_sentence", Options),
        ("encode", EncodeOptions),
        ("similarity", EncodeOptions),
        ("search", SearchOptions),
        ("duplicates", DuplicateOptions),
        ("score", ScoreOptions),
        ("predict", PredictOptions),
        ("predict_proba", Options),
        ("logits", Options),
        ("evaluate", Options),
        ("__call__", CallOptions),
    ],
)
def test_a_method_lists_its_options_with_their_defaults(method, kind):
    method = getattr(Bert, method)
    arguments = inspect.signature(method).parameters
    assert all(x.kind != x.VAR_KEYWORD for x in arguments.values())
    fields = dataclasses.fields(kind)
    defaults = {field.name: field.default for field in fields}
    assert len(defaults) > 1
    assert {name: arguments[name].default for name in defaults} == defaults
    words = inspect.getdoc(method)
    named = re.findall(r"^([\w, ]+): ", words, flags=re.M)
    assert {*arguments} - {"self"} <= {*", ".join(named).split(", ")}


def test_the_repr_shows_head_sizes_and_labels(model):
    assert repr(model).startswith("Bert(pretraining; 2 layers, width 32, 2 heads, ")
    for head, labels, extra, about in (
        ("none", (), {}, "encoder without a head"),
        ("sequence", ("neg", "pos"), {}, "classification of 'neg', 'pos'"),
        ("sequence", (), {}, "regression"),
        ("sequence", (), {"family": "classification"}, "regression"),
        (
            "token",
            tuple("abcdefg"),
            {},
            "tagging of 'a', 'b', 'c', 'd', 'e' and 2 more",
        ),
        ("mean", (), {}, "sentence embeddings"),
        (
            "features",
            (),
            {"family": "tagging", "data": {"labels": ["O", "B"]}},
            "tagging of 'O', 'B'",
        ),
        ("span", (), {"family": "question_answering"}, "question answering"),
    ):
        other = dataclasses.replace(model, head=head, labels=labels, extra=extra)
        assert repr(other).startswith(f"Bert({about}; 2 layers, ")
    roberta = dataclasses.replace(CONFIG, model_type="roberta")
    other = dataclasses.replace(model, config=roberta)
    assert repr(other).startswith("Bert(roberta, pretraining; 2 layers, ")
    sizes = {name: x.size for name, x in arrays_by_path(model.params["bert"]).items()}
    # Rows of the word table beyond the vocabulary do not count.
    sizes["embeddings/word/embedding"] = CONFIG.vocab_size * CONFIG.hidden_size
    assert f", {sum(sizes.values()):,} parameters in the encoder)" in repr(model)
    one = {"num_layers": 1, "num_heads": 1, "max_positions": 1}
    small = dataclasses.replace(model, config=dataclasses.replace(model.config, **one))
    assert "1 layer, width 32, 1 head, " in repr(small)
    assert ", 1 position, " in repr(small)


def test_unsuitable_texts_are_refused(model):
    bare = dataclasses.replace(model, params={"bert": model.params["bert"]})
    with pytest.raises(UserError, match="no MLM head"):
        bare.fill_mask("[MASK]")
    with pytest.raises(UserError, match="no NSP head"):
        bare.next_sentence("a", "b")
    with pytest.raises(UserError, match="more than 48 tokens"):
        model("ship " * 60)
    with pytest.raises(UserError, match="is of type list; expected text"):
        model.next_sentence(
            ["the ship", "ships"], "it"
        )  # a text is not a list of letters
    with pytest.raises(UserError, match=r"row 1 has 1 text; expected a pair of texts"):
        model.next_sentence([("the ship", "."), "ships"])
    with pytest.raises(UserError, match="no text is given; expected at least one"):
        model([])
    with pytest.raises(UserError, match=r"row 0: no \[MASK\] .* is not fine-tuned"):
        model.fill_mask(["the ship"])
