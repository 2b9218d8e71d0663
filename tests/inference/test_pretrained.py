import copy
import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

from bert_jax.data.library import LibraryTokenizer
from bert_jax.data.tokenizer import FAIRSEQ_TOKENS
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.inference import evaluation
from bert_jax.inference.evaluation import OnDevices, rows_of
from bert_jax.inference.model import Bert
from bert_jax.inference.pretrained import (
    ScoreOptions,
    TokenizedText,
    _masked_copies,
    _tokenized,
    accuracy,
    filled_prompts,
    read_sets,
    score,
)
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import MeshConfig
from bert_jax.objectives.causal import Causal
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.parallel.mesh import make_mesh
from tests.word_tokenizer import PARTS_CONFIG as CONFIG
from tests.word_tokenizer import PARTS_TOKENIZER as TOKENIZER

TEXTS = [
    "the sailors see unknown ships .",
    "ship",
    "the sailor sees the ship. " * 5,
    "unknown sailors.",
]


@jax.jit
def _logits(params, ids_BL, length, position):
    output = BertForPreTraining(CONFIG).apply(
        {"params": params},
        ids_BL,
        jnp.zeros_like(ids_BL),
        jnp.int32(jnp.arange(CONFIG.max_positions) < length)[None],
        jnp.full((1, 1), position),
        deterministic=True,
    )
    return output.mlm_logits_BMW[0, 0]


def one_by_one(pretrained, text, *, rest_of_word):
    """The score as a sum over masked copies, one by one and without packing."""
    tokens = TOKENIZER.tokenize(text)
    ids = [TOKENIZER.cls_id, *(TOKENIZER.ids[t] for t in tokens), TOKENIZER.sep_id]
    total = 0.0
    for i in range(1, len(ids) - 1):
        masked = list(ids)
        masked[i] = TOKENIZER.mask_id
        after = i + 1
        while rest_of_word and after < len(ids) - 1 and tokens[after - 1][:2] == "##":
            masked[after] = TOKENIZER.mask_id
            after += 1
        padding = [TOKENIZER.pad_id] * (CONFIG.max_positions - len(ids))
        logits_V = _logits(
            pretrained.params, jnp.array([masked + padding]), len(ids), i
        )
        total += jax.nn.log_softmax(logits_V)[ids[i]]
    return float(total)


@pytest.mark.parametrize("rest_of_word", [False, True])
def test_scores_equal_the_sum_over_single_masked_copies(
    pretrained, rest_of_word, caplog
):
    scores = pretrained.score(TEXTS, rest_of_word=rest_of_word, batch_size=8)
    expected = [one_by_one(pretrained, t, rest_of_word=rest_of_word) for t in TEXTS]
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-4)
    assert not caplog.messages  # no text is truncated


def test_another_dtype_rounds_the_scores(pretrained):
    exact, rounded = (pretrained.score(TEXTS, dtype=d) for d in (None, "bfloat16"))
    np.testing.assert_allclose(exact, rounded, rtol=0.02)
    assert np.abs(exact - rounded).max() > 1e-4


def test_kernels_are_cast_once_with_equal_scores(pretrained, monkeypatch):
    cast_params = evaluation.cast_kernels(pretrained.params, "bfloat16")
    dtypes = jax.tree.map_with_path(
        lambda path, leaf: (path[1].key, path[-1].key, leaf.dtype.name), cast_params
    )
    for part, name, dtype in jax.tree.leaves(
        dtypes, is_leaf=lambda x: type(x) is tuple
    ):
        cast = part == "encoder" and name == "kernel"
        assert dtype == ("bfloat16" if cast else "float32")
    once = pretrained.score(TEXTS, dtype="bfloat16")
    monkeypatch.setattr(evaluation, "cast_kernels", lambda params, *_: params)
    at_each_call = copy.copy(pretrained).score(TEXTS, dtype="bfloat16")
    np.testing.assert_array_equal(once, at_each_call)


@pytest.mark.parametrize("causal", [False, True])
def test_an_empty_text_has_no_tokens_and_the_score_0(pretrained, causal):
    config = dataclasses.replace(CONFIG, causal=causal)
    model = dataclasses.replace(pretrained, config=config)
    alone = model.score(["ship"])
    np.testing.assert_array_equal(model.score(["", " "]), [0, 0])
    rows = rows_of(["", "ship", ""], tabs=False)
    (part,) = score(OnDevices(model), rows, ScoreOptions(batch_size=8))
    part_answers = part.answers
    assert [(x["text"], x["tokens"]) for x in part_answers] == [
        ("", 0),
        ("ship", 1),
        ("", 0),
    ]
    assert [x["log_probability"] for x in part_answers] == [
        0,
        pytest.approx(alone[0]),
        0,
    ]
    assert model.score([]).shape == (0,)


def test_rows_of_the_word_table_without_a_token_are_never_answers(pretrained):
    """If top exceeds the number of tokens, each token is returned once."""
    tokens = TOKENIZER.tokens[:-2]
    padded = dataclasses.replace(pretrained, tokenizer=TOKENIZER.with_tokens(tokens))
    (blank,) = padded.fill_mask("the [MASK] sail", top=100)
    assert sorted(token for token, _ in blank) == sorted(tokens)
    assert sum(probability for _, probability in blank) == pytest.approx(1, abs=1e-5)


@pytest.fixture(scope="module")
def byte_level(golden):
    """A random model with a byte-level BPE."""
    bpe = load_tokenizer(golden / "templates/byte_level")
    config = dataclasses.replace(CONFIG, vocab_size=len(bpe))
    params = jax.jit(MlmNsp(BertForPreTraining(config)).init)(jax.random.key(0))
    return Bert(config, jax.device_get(params), bpe, "pretraining")


def test_answers_are_the_text_of_their_tokens(byte_level, pretrained):
    """As in transformers' pipeline. ``tokenize`` gives the names of the vocabulary."""
    bpe = byte_level.tokenizer
    (blank,) = byte_level.fill_mask("the <mask> sat", top=len(bpe))
    found = [token for token, _ in blank]
    assert {" the", "the", " ", "<pad>"} <= {*found}
    assert "\u0120the" not in found
    assert found.count("\ufffd") > 100  # a byte that is not a character
    assert bpe.tokenize(" the \u00e9")[0] == "\u0120the"
    (line,) = filled_prompts(
        byte_level, ["the <mask> sat"], 48, make_mesh(MeshConfig())
    )
    assert "  " not in line.split("->")[1].strip()
    (blank,) = pretrained.fill_mask("the [MASK] sail", top=100)
    assert sorted(token for token, _ in blank) == sorted(TOKENIZER.tokens)


def test_only_the_word_of_a_chinese_token_is_masked_with_it(byte_level):
    """A sentence without spaces is not one word."""
    bpe = byte_level.tokenizer
    text = "\u81ea\u7136\u8bed\u8a00 cats"
    rows = rows_of([text], tabs=False)
    (row,) = _tokenized(bpe, rows, 48, mask=False)
    features = _masked_copies([row], bpe, True)
    widths = [int((ids == bpe.mask_id).sum()) for ids in features.input_ids]
    # Each character has three bytes, which are tokens.
    assert widths[:12] == [3, 2, 1] * 4
    assert bpe.tokenize(text)[12].startswith("\u0120")
    assert widths[12:] == [*range(len(bpe.tokenize(" cats")), 0, -1)]


def test_the_name_of_the_mask_is_the_tokenizers_or_berts(golden):
    """[MASK] counts only in a text without the tokenizer's own mask token."""
    bpe = load_tokenizer(golden / "templates/byte_level")
    texts = ["a <mask> cat", "a [MASK] cat", "a [MASK]<mask> cat"]
    rows = rows_of(texts, tabs=False)
    own, berts, both = _tokenized(bpe, rows, 48, mask=True)
    assert own.input_ids.tolist() == berts.input_ids.tolist()
    assert berts.text == texts[1]
    assert own.input_ids.tolist() == bpe(texts[0])["input_ids"].tolist()
    assert (own.input_ids == bpe.mask_id).sum() == (both.input_ids == bpe.mask_id).sum()
    rows = rows_of(["a cat"], tabs=False)
    with pytest.raises(UserError, match=r"no <mask> in 'a cat'"):
        next(_tokenized(bpe, rows, 48, mask=True))


@pytest.mark.parametrize("rest_of_word", [False, True])
def test_every_token_of_another_template_is_masked_once(golden, rest_of_word):
    parts = json.loads(load_tokenizer(golden / "templates/byte_level").to_json())
    special = {"id": "<s>", "ids": [0, 3], "tokens": ["<s>", "<unk>"]}
    after = {"id": "</s>", "ids": [2, 1, 2], "tokens": ["</s>", "<pad>", "</s>"]}
    first = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    last = {"SpecialToken": {"id": "</s>", "type_id": 0}}
    text = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    parts["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [first, text[0], last],
        "pair": [first, text[0], last, text[1], last],
        "special_tokens": {"<s>": special, "</s>": after},
    }
    bpe = LibraryTokenizer(json.dumps(parts).encode(), FAIRSEQ_TOKENS)
    ids, _ = bpe.build(bpe.encode("bees sat on"))
    features = _masked_copies([TokenizedText("", ids, None)], bpe, rest_of_word)
    places = np.arange(2, len(ids) - 3)
    assert features.inputs["place"].tolist() == places.tolist()
    assert features.inputs["target"].tolist() == ids[places].tolist()
    starts = bpe.word_starts(ids)
    for place, copy_L in zip(places, features.input_ids, strict=True):
        end = place + 1
        while rest_of_word and not starts[end]:
            end += 1
        changed = np.flatnonzero(copy_L != ids)
        assert changed.tolist() == [*range(place, end)]
        assert (copy_L[changed] == bpe.mask_id).all()


def test_texts_that_cannot_be_scored_are_refused(pretrained):
    with pytest.raises(UserError, match="row 0 has 102 tokens, at most 48 fit"):
        pretrained.score(["ship " * 100])
    with pytest.raises(UserError, match="batch_size=0, expected at least 1"):
        pretrained.score(["ship"], batch_size=0)
    params = {"bert": pretrained.params["bert"]}
    bare = Bert(CONFIG, params, TOKENIZER, head="none")
    with pytest.raises(UserError, match="no MLM head for tokens; pretrain it further"):
        bare.score(["ship"])
    # The message names only what works without a head.
    with pytest.raises(UserError, match=r"without a head; .* with embed$"):
        bare.predict("ship")
    assert bare.encode("ship").shape == (CONFIG.hidden_size,)


PAIRS = [("a good one .", "a bad"), ("it is", "it are here")]
ROWS = [dict(sentence_good=good, sentence_bad=bad, UID=1) for good, bad in PAIRS]
LINES = "".join(f"{json.dumps(row)}\n" for row in ROWS)
FILES = {
    "a.jsonl": LINES,
    "a.csv": "sentence_good,sentence_bad,more\n"
    + "".join(f"{good},{bad},x\n" for good, bad in PAIRS),
    "a.txt": "".join(f"{good}\t{bad}\n" for good, bad in PAIRS),
}


@pytest.mark.parametrize("name", FILES)
def test_each_form_gives_the_same_pairs(name, tmp_path):
    path = tmp_path / name
    path.write_text(FILES[name])
    assert list(read_sets([path])) == [(str(path), PAIRS)]


def test_each_jsonl_file_of_a_folder_is_a_set(tmp_path):
    for name in ("b.jsonl", "a.jsonl", "README"):
        (tmp_path / name).write_text(LINES)
    a, b = str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")
    assert list(read_sets([tmp_path])) == [(a, PAIRS), (b, PAIRS)]


def test_a_range_selects_pairs_of_each_set(tmp_path):
    rows = [{"yes": f"good {i}", "no": f"bad {i}"} for i in range(5)]
    for name, count in (("a", 5), ("b", 3)):
        lines = [json.dumps(row) for row in rows[:count]]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))

    def selected(text):
        sets = read_sets([tmp_path], ("yes", "no"), text)
        return [[int(good[-1]) for good, _ in pairs] for _, pairs in sets]

    assert selected("1:4") == [[1, 2, 3], [1, 2]]
    assert selected("2:") == [[2, 3, 4], [2]]
    assert selected(":2") == [[0, 1], [0, 1]]
    assert selected("") == [[0, 1, 2, 3, 4], [0, 1, 2]]
    message = r"b\.jsonl has 3 pairs, and pairs_range=3:9 selects none"
    with pytest.raises(UserError, match=message):
        selected("3:9")
    with pytest.raises(UserError, match=r"pairs_range='3-9', expected a slice such as"):
        selected("3-9")


def test_a_pair_of_equal_sentences_is_wrong():
    """BLiMP has seven such pairs. Copies in two batches may differ by rounding."""

    def score(texts):
        return -np.arange(len(texts))  # the first of two copies would score higher

    result = accuracy(score, [("a", [("x", "x"), ("y", "z")])])
    assert result == (0.5, {"a": 0.5}, 2)


def test_a_pair_needs_two_columns(tmp_path):
    with pytest.raises(
        UserError, match=r"columns=.'a',., expected two names, of the good"
    ):
        list(read_sets([tmp_path], ("a",)))


def test_accuracy_is_the_share_of_pairs_whose_good_sentence_scores_higher(tmp_path):
    def score(texts):  # the shorter text has the higher score
        return np.array([-len(text) for text in texts], float)

    pairs = [("long", "x"), ("x", "y"), ("x", "long"), ("longer", "y")]
    sets = [("a", PAIRS), ("b", pairs)]
    reported = {}
    result = accuracy(score, [*sets, sets[1]], reported.__setitem__)
    assert reported["a"].tolist() == [False, True]
    assert reported["b"].tolist() == [
        False,
        False,
        True,
        False,
    ]  # a tie counts as wrong
    assert result.by_set == {"a": 0.5, "b": 0.25}  # a name may occur twice
    # The mean over pairs, not over sets: 1 + 1 + 1 of 2 + 4 + 4 pairs.
    assert (result.accuracy, result.pairs) == (3 / 10, 10)
    for name in ("y", "x"):
        (tmp_path / f"{name}.jsonl").write_text('{"yes": "a", "no": "bb"}\n')
    paths = [tmp_path / "x.jsonl", tmp_path / "y.jsonl"]
    result = accuracy(score, read_sets(paths, ("yes", "no")))
    assert result == (1.0, dict.fromkeys(map(str, paths), 1.0), 2)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.txt",
            "one\ttwo\n\nthree\n",
            "a.txt:3 has 1 value; expected sentence_good, sentence_bad",
        ),
        ("a.txt", "one\ttwo\tthree\n", "a.txt:1 has 3 values"),
        ("a.txt", "\n", r"a\.txt has no pairs"),
        ("a.jsonl", '{"sentence_good": "a"}\n', "a.jsonl:1.*sentence_bad"),
        ("a.csv", "a,b\nx,y\n", "a.csv:2: no column 'sentence_good'.*set columns to"),
        ("a.jsonl", '{"sentence_good": "a", "sentence_bad": ""}\n', "a.jsonl:1"),
        ("none.txt", None, "does not exist"),
        ("", None, "has no .jsonl file"),
    ],
)
def test_lines_that_are_no_pair_are_refused(name, content, message, tmp_path):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        list(accuracy(lambda texts: np.zeros(len(texts)), read_sets([tmp_path / name])))


def test_a_left_to_right_model_scores_the_log_likelihood():
    """Packed scores equal the sum over tokens, each predicted from the tokens before."""
    config = dataclasses.replace(CONFIG, causal=True)
    model = BertForPreTraining(config)
    params = jax.device_get(jax.jit(Causal(model).init)(jax.random.key(0)))
    one_sided = Bert(config, params, TOKENIZER, head="pretraining")
    scores = one_sided.score(TEXTS)

    @jax.jit
    def logits(ids_BL, length):
        mask_BL = jnp.int32(jnp.arange(config.max_positions) < length)[None]
        places = jnp.arange(config.max_positions)[None]
        output = model.apply(
            {"params": params},
            ids_BL,
            jnp.zeros_like(ids_BL),
            mask_BL,
            places,
            deterministic=True,
        )
        return output.mlm_logits_BMW[0, :, : config.vocab_size]

    for text, actual in zip(TEXTS, scores, strict=True):
        ids = [TOKENIZER.cls_id, *TOKENIZER.encode(text)]
        total = 0.0
        at_tokens = one_sided.logits(text)
        for i, token in enumerate(ids[1:], 1):
            row = np.zeros((1, config.max_positions), np.int32)
            row[0, :i] = ids[:i]  # later tokens are absent
            before = logits(row, i)[i - 1]
            np.testing.assert_allclose(at_tokens[i], before, rtol=0, atol=1e-4)
            total += float(jax.nn.log_softmax(before)[token])
        assert actual == pytest.approx(total, abs=1e-4)
    with pytest.raises(UserError, match="never sees the rest of a word"):
        one_sided.score(TEXTS, rest_of_word=True)


def test_logits_of_a_pretrained_model_predict_each_token(pretrained):
    texts = ["the [MASK] see ships .", "ship"]
    found = pretrained.logits(texts)
    assert [x.shape[1] for x in found] == [CONFIG.vocab_size] * 2
    for text, logits in zip(texts, found, strict=True):
        ids = TOKENIZER(text)["input_ids"]
        assert len(ids) == len(logits) and logits.dtype == np.float32
        row = np.zeros((1, CONFIG.max_positions), np.int32)
        row[0, : len(ids)] = ids
        for place in (0, 2, len(ids) - 1):
            expected = _logits(pretrained.params, row, len(ids), place)
            expected = expected[: CONFIG.vocab_size]
            np.testing.assert_allclose(logits[place], expected, rtol=0, atol=1e-4)
    (word, share), *_ = pretrained.fill_mask(texts[0])[0]
    shares = softmax(found[0][2])
    assert (TOKENIZER.tokens[shares.argmax()], shares.max()) == (
        word,
        pytest.approx(share, rel=1e-4),
    )
    np.testing.assert_allclose(pretrained.logits(texts[1]), found[1], rtol=0, atol=1e-4)
