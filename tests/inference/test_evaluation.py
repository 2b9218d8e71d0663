import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.data.batching import Features
from bert_jax.errors import UserError
from bert_jax.inference.evaluation import row_texts, rows_of, run_model
from bert_jax.objectives import heads
from bert_jax.objectives.heads import jit_forward
from bert_jax.parallel import programs
from bert_jax.parallel.mesh import MeshConfig, make_mesh
from bert_jax.parallel.sharding import tree_shardings

# Heads with outputs for a sequence, and for its tokens.
HEADS = ["choice", "span"]
HEADS += [pytest.param(head, marks=pytest.mark.long) for head in ("sequence", "token")]
BATCH = 8
COUNTS = (1, BATCH - 1, BATCH, BATCH + 1)


def make_features(units, choices=1, seed=0, longest=16):
    random = np.random.default_rng(seed)
    lengths = random.integers(4, longest + 1, units * choices)
    return Features(
        [random.integers(5, 50, n).astype(np.int32) for n in lengths],
        [np.int32(np.arange(n) > n // 2) for n in lengths],
        np.repeat(np.arange(units, dtype=np.int32), choices),
        choices=choices,
    )


@pytest.fixture(scope="module")
def setting(make_head, init_params):
    """A function of (head, devices) that returns forward, parameters and mesh."""

    @functools.cache
    def make(head, devices):
        _, model = make_head(head)
        mesh = make_mesh(MeshConfig(), jax.devices()[:devices])
        params = init_params(model)
        params = jax.device_put(params, tree_shardings(params, mesh))
        return jit_forward(mesh, model), params, mesh

    return make


@pytest.fixture(scope="module")
def expected(setting):
    """The outputs of the model for each sequence alone, with more padding."""

    @functools.cache
    def outputs(head):
        features = make_features(max(COUNTS), 3 if head == "choice" else 1)
        forward, params, _ = setting(head, 1)
        right = []
        for ids, types in zip(features.input_ids, features.token_type_ids, strict=True):
            arrays = {
                "input_ids": ids,
                "token_type_ids": types,
                "attention_mask": np.ones_like(ids),
            }
            arrays = {k: np.pad(v, (0, 24 - len(v)))[None] for k, v in arrays.items()}
            (logits,) = np.asarray(forward(params, arrays))
            by_token = head in ("token", "span")
            right.append(logits[: len(ids)] if by_token else logits[0])
        return features, right

    return outputs


def first(features, units):
    n = units * features.choices
    return Features(
        features.input_ids[:n],
        features.token_type_ids[:n],
        features.example[:n],
        choices=features.choices,
    )


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("head", HEADS)
def test_every_sequence_once_and_in_order(head, devices, setting, expected):
    """Even if a batch is not full, or all devices but one have only padding."""
    forward, params, mesh = setting(head, devices)
    features, right = expected(head)
    for count in COUNTS:
        part = first(features, count)
        outputs = run_model(
            forward, params, part, batch_size=BATCH, limit=32, pad_id=0, mesh=mesh
        )
        assert len(outputs) == len(part.input_ids)
        for output, wanted in zip(outputs, right, strict=False):
            assert np.shape(output) == np.shape(wanted)
            assert np.asarray(output).dtype == np.float32
            np.testing.assert_allclose(output, wanted, atol=1e-5)
    different = {np.asarray(output).tobytes() for output in outputs}
    assert len(different) == len(outputs)


def test_labels_cause_no_new_compilation(setting):
    _, params, mesh = setting("span", 1)
    traced = []

    def forward(params, batch):
        traced.append(batch["input_ids"].shape)
        return jnp.zeros(batch["input_ids"].shape)

    program = programs.jit_whole(mesh, forward)
    features = make_features(BATCH)
    counts = []
    for targets in ({}, {"start": np.zeros(BATCH, np.int32)}):
        labelled = Features(*features_parts(features), targets)
        run_model(
            program, params, labelled, batch_size=BATCH, limit=64, pad_id=0, mesh=mesh
        )
        counts.append(len(traced))
    assert counts[0] == counts[1] > 0


def test_products_of_few_float32_tokens_have_a_program_of_their_own(
    setting, make_head, monkeypatch
):
    """The programs of 16 tokens and of 32 compute the same numbers by other libraries."""
    _, params, mesh = setting("span", 1)
    _, model = make_head("span")
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    ids = np.random.default_rng(3).integers(5, 50, (8, 4)).astype(np.int32)
    many = {"input_ids": ids, "token_type_ids": 0 * ids, "attention_mask": 0 * ids + 1}
    few = {name: rows[:4] for name, rows in many.items()}
    forward = functools.partial(heads.forward, model)
    program = programs.jit_whole(mesh, forward)
    np.testing.assert_allclose(
        program(params, few), program(params, many)[:4], atol=2e-6, rtol=0
    )
    monkeypatch.setattr(programs, "eigen_options", lambda: {"no_such_option": ""})
    program = programs.jit_whole(mesh, forward)
    program(params, many)
    program(half, few)
    with pytest.raises(Exception, match="no_such_option"):
        program(params, few)


def features_parts(features):
    return features.input_ids, features.token_type_ids, features.example


def texts(data, *columns, most=2):
    return [row.texts for row in row_texts(rows_of(data, columns), most=most)]


def test_texts_of_rows_are_found_by_column():
    assert texts(["a", ("b", "c")]) == [("a",), ("b", "c")]
    assert texts([{"text": "a", "title": "t"}]) == [("a",)]
    assert texts([{"text_a": "a", "text_b": "b"}]) == [("a", "b")]
    assert texts([{"text": "a", "text_b": "b"}]) == [("a", "b")]
    assert texts([{"text": "c", "text_a": "a", "text_b": "b"}]) == [("a", "b")]
    assert texts([{"title": "t", "review": "a"}], "review") == [("a",)]
    assert texts([{"title": "t", "review": "a"}], "title", "review") == [("t", "a")]
    assert texts([{"text": "t", "text_b": "a"}], "text_b") == [("a",)]
    assert texts([{"text": "t", "text_b": "a"}], "text_b", most=1) == [("a",)]
    rows = [{"text": "a", "id": 7}, {"text": "b", "id": None}, {"text": "c"}]
    assert [row.id for row in row_texts(rows_of(rows))] == [7, None, None]


@pytest.mark.parametrize(
    "data, most, message",
    [
        (
            [{"review": "a"}],
            2,
            "row 0: no column 'text_a' or 'text'; the columns are re",
        ),
        ([{"text": "a"}, {"text": None}], 2, 'row 1: "text" is missing'),
        (
            [{"text": "a"}, {"title": "b"}],
            2,
            "row 1: column text_a or text is missing here and text in earlier rows",
        ),
        (
            [{"text": "a"}, {"text_a": "b"}],
            2,
            "is text_a here and text in earlier rows",
        ),
        (
            [{"text": "a"}, {"text": "b", "text_b": "c"}],
            2,
            "text_b is text_b here and m",
        ),
        (
            [{"text": "b", "text_b": "c"}, {"text": "a"}],
            2,
            "text_b is missing here and",
        ),
        ([{"text": ["a"]}], 2, 'row 0: "text" is of type list; expected text'),
        ([("a", "b", "c")], 2, "row 0 has 3 values; expected text_a, text_b"),
        ([("a", None)], 2, 'row 0: "text_b" is missing'),
        ([("a", 1)], 2, 'row 0: "text_b" is of type int'),
        ([("a", "b")], 1, r"row 0 has 2 values; expected text$"),
        (
            [{"text_a": "a", "text_b": "b"}],
            1,
            "row 0: no column 'text'; the columns are",
        ),
    ],
)
def test_rows_without_texts_are_refused(data, most, message):
    with pytest.raises(UserError, match=message):
        texts(data, most=most)


def test_the_message_for_a_missing_column_names_the_columns():
    message = r"row 0: no column '7'; the columns are 0, 1; .* set columns to its name$"
    with pytest.raises(UserError, match=message):
        texts([{"0": "a", "1": 1}], "7")
    with pytest.raises(
        UserError, match=r"columns=\('a', 'b'\), expected at most text$"
    ):
        texts(["a"], "a", "b", most=1)


@pytest.mark.parametrize("header", ["Customer review", "a;b", "a film of a year"])
def test_a_file_without_a_header_loses_no_text(tmp_path, header):
    path = tmp_path / "texts.csv"
    path.write_text(f"{header}\nfirst\nsecond\n")
    with pytest.raises(UserError, match=r"texts\.csv:2: no column .* needs a header"):
        texts(path)
    assert texts(path, header) == [("first",), ("second",)]
