import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.commands import embed
from bert_jax.errors import UserError
from bert_jax.inference.embed import EncodeOptions, encode, write_arrays, write_vectors
from bert_jax.inference.evaluation import OnDevices, Rows
from bert_jax.inference.model import Bert
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.model.bert import BertModel
from bert_jax.model.config import BertConfig
from bert_jax.tasks.rows import placed_rows
from tests.word_tokenizer import TOKENIZER, WORDS

CONFIG = BertConfig(
    vocab_size=TOKENIZER.vocab_size,
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    intermediate_size=32,
    max_positions=48,
    initializer_range=0.5,
)


@pytest.fixture(scope="module")
def params():
    ids = jnp.zeros((1, 8), jnp.int32)
    init = jax.jit(functools.partial(BertModel(CONFIG).init, deterministic=True))
    return init(jax.random.key(1), ids, ids, ids + 1)["params"]


@pytest.fixture(scope="module")
def checkpoint(params):
    return Checkpoint(CONFIG, {"bert": params}, TOKENIZER, "none")


@pytest.fixture(scope="module")
def model(checkpoint):
    return Bert(**vars(checkpoint))


@pytest.fixture
def parts(checkpoint, monkeypatch):
    """A function of rows, a size and options that yields vectors in parts."""

    def parts(rows, size, **options):
        monkeypatch.setattr("bert_jax.inference.evaluation.CHUNK", size)
        return encode(OnDevices(checkpoint), Rows(rows), EncodeOptions(**options))

    return parts


@pytest.fixture(scope="module")
def by_hand(params):
    """A function of texts that returns layers (3, L, D), pooled (D,) and input ids."""
    apply = functools.partial(
        BertModel(CONFIG).apply, deterministic=True, hidden_states=True
    )
    run = jax.jit(lambda params, *arrays: apply({"params": params}, *arrays))

    def states(*parts):
        ids, types = [TOKENIZER.cls_id], [0]
        for kind, part in enumerate(parts):
            added = [*TOKENIZER.encode(part), TOKENIZER.sep_id]
            ids += added
            types += [kind] * len(added)
        arrays = np.zeros((3, 1, CONFIG.max_positions), np.int32)
        arrays[:, 0, : len(ids)] = [ids, types, [1] * len(ids)]
        output = run(params, *arrays)
        layers = np.array(output.hidden_states)[:, 0, : len(ids)]
        return layers, np.array(output.pooled_BD)[0], ids

    return states


def sentences(count):
    random = np.random.default_rng(0)
    return [
        " ".join(random.choice(WORDS, random.integers(1, 30))) for _ in range(count)
    ]


TEXTS = [*sentences(23), "", " ", ("the man", "sees rome"), ("the cat", "")]


@pytest.mark.parametrize("pooling", ["mean", "cls", "pooler", "none"])
def test_vectors_equal_the_vectors_of_each_text_alone(
    pooling, model, by_hand, monkeypatch
):
    monkeypatch.setattr("bert_jax.data.batching.LENGTHS", (8, 20))
    vectors = model.encode(TEXTS, pooling=pooling)
    for vector, text in zip(vectors, TEXTS, strict=True):
        layers, pooled, _ = by_hand(*([text] if isinstance(text, str) else text))
        last = {"mean": layers[-1].mean(axis=0), "cls": layers[-1][0], "pooler": pooled}
        assert vector.dtype == np.float32
        np.testing.assert_allclose(vector, last.get(pooling, layers[-1]), atol=1e-5)


def test_layers_are_concatenated(model, by_hand):
    layers = (-3, 1, -1)
    texts = sentences(3)
    vectors = model.encode(texts, layers=layers)
    for vector, text in zip(vectors, texts, strict=True):
        states, _, _ = by_hand(text)
        expected = np.concatenate([states[i].mean(axis=0) for i in layers])
        np.testing.assert_allclose(vector, expected, atol=1e-5)


def test_normalized_vectors_have_length_one(model):
    texts = sentences(3)
    plain, scaled = model.encode(texts), model.encode(texts, normalize=True)
    norms = np.linalg.norm(plain, axis=1, keepdims=True)
    np.testing.assert_allclose(scaled, plain / norms, atol=1e-6)
    for tokens in model.encode(texts, normalize=True, pooling="none"):
        np.testing.assert_allclose(np.linalg.norm(tokens, axis=1), 1, atol=1e-5)
    rounded = model.encode(texts, normalize=True, dtype="bfloat16")
    assert rounded.dtype == np.float32
    assert np.sum(scaled * rounded, axis=1).min() > 0.999
    assert np.abs(scaled - rounded).max() > 1e-4


def test_memory_is_bounded_by_tokens(parts):
    rows = placed_rows([*sentences(23), *[""] * 50])
    in_parts = list(parts(rows, 5, pooling="none"))
    assert sum(len(part.answers) for part in in_parts) == 73
    most = 5 * 8 + CONFIG.max_positions
    assert max(len(np.concatenate(part.answers)) for part in in_parts) <= most
    in_parts = parts(placed_rows(sentences(12)), 5, pooling="mean")
    assert [len(part.answers) for part in in_parts] == [5, 5, 2]


def test_truncated_texts_are_counted(model, by_hand, caplog):
    texts = ["a man eats a big dog", "a man eats", ("the cat", "sees a film")]
    kept = [("a man eats a",), ("a man eats",), ("the cat", "sees")]
    with caplog.at_level("WARNING", "bert_jax"):
        model.encode(texts[1:2], max_length=6)
        assert not caplog.messages
        vectors = model.encode(texts, max_length=6)
    assert caplog.messages == ["2 of 3 texts truncated to max_length=6"]
    expected = [by_hand(*texts)[0][-1].mean(axis=0) for texts in kept]
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_a_model_without_a_pooler_needs_another_pooling(checkpoint, params):
    params = {"bert": {n: part for n, part in params.items() if n != "pooler"}}
    bare = Bert(CONFIG, params, TOKENIZER, "none")
    assert bare.encode(["a man"]).shape == (1, 16)
    with pytest.raises(UserError, match="has no pooler; set pooling to mean"):
        bare.encode(["a man"], pooling="pooler")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": (3,)}, "the encoder has no layer 3; expected 0"),
        ({"layers": (-4, -1)}, "the encoder has no layer -4"),
        ({"max_length": 49}, "exceeds the model's 48 positions"),
        ({"max_length": 3}, "max_length=3, expected at least 5"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"pooling": "max"}, "pooling='max', expected one of none, mean"),
        ({"pooling": "pooler", "layers": (0,)}, "the pooler needs the last layer"),
    ],
)
def test_options_out_of_range_are_refused(options, message, model):
    with pytest.raises(UserError, match=message):
        model.encode(["a man"], **options)


@pytest.fixture(scope="module")
def run(checkpoint, tmp_path_factory):
    """A function of an input, its name and flags that returns the written arrays."""
    folder = tmp_path_factory.mktemp("command")
    save_huggingface(folder / "model", checkpoint)

    def run(content, *flags, source="in.txt", output="out.npz"):
        (folder / source).write_text(content)
        path = folder / "new" / output
        files = ["--input", str(folder / source), "--output", str(path)]
        embed.main(["--checkpoint", str(folder / "model"), *files, *flags])
        with path.open("rb") as file:
            return dict(np.load(file))

    return run


def test_the_command_writes_every_token_of_every_line(run, by_hand, capsys):
    texts = [*sentences(5), "", "the cat\tsees"]
    lines = "".join(f"{text}\n" for text in texts)
    arrays = run(lines, "--pooling", "none", "--layers=-2,-1")
    types = {name: array.dtype for name, array in arrays.items()}
    assert types == {"values": "float32", "input_ids": "int32", "offsets": "int64"}
    offsets = arrays["offsets"]
    tokens = len(arrays["input_ids"])
    assert [*offsets[[0, -1]], len(offsets)] == [0, len(arrays["values"]), 8]
    shapes = f"offsets (8,), values ({tokens}, 32), input_ids ({tokens},)\n"
    assert capsys.readouterr().err.endswith(shapes)
    for text, start, stop in zip(texts, offsets, offsets[1:], strict=False):
        states, _, ids = by_hand(*text.split("\t"))
        assert arrays["input_ids"][start:stop].tolist() == ids
        expected = np.concatenate(states[-2:], axis=-1)
        np.testing.assert_allclose(arrays["values"][start:stop], expected, atol=1e-5)


def test_the_command_puts_a_prompt_before_each_text(run, model):
    expected = model.encode(["a man", "the cat"], prompt="the big ")
    plain = model.encode(["the big a man", "the big the cat"])
    np.testing.assert_array_equal(expected, plain)
    (actual,) = run("a man\nthe cat\n", "--prompt", "the big ").values()
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    with pytest.raises(
        UserError,
        match=r"prompt_name='query', expected one of the model's prompts \[\]",
    ):
        run("a man\n", "--prompt_name", "query")


def test_the_command_reads_a_column_of_a_table(run, model):
    expected = model.encode(["a man", "the cat , big"])
    table = 'id,text\n1,a man\n2,"the cat , big"\n'
    (actual,) = run(table, source="a.csv").values()
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    table = "title\treview\nx\ta man\ny\tthe cat , big\n"
    with pytest.raises(UserError, match="; the columns are title, review; "):
        run(table, source="a.tsv")
    (actual,) = run(table, "--columns", "review", source="a.tsv").values()
    np.testing.assert_allclose(actual, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("content", "output", "message"),
    [
        ("a\tb\tc\n", "x.npz", "in.txt:1 has 3 values; expected text_a, text_b"),
        ("", "x.npz", "in.txt is empty"),
        ("a\n", "x.npy", r"x.npy must end in .npz"),
    ],
)
def test_the_error_of_the_command_has_the_mistake(content, output, message, run):
    with pytest.raises(UserError, match=message):
        run(content, output=output)


@pytest.mark.parametrize("pooling", ["mean", "none"])
def test_writing_in_parts_changes_nothing(pooling, parts, tmp_path, caplog):
    written = []
    for size in (4096, 5):
        rows = placed_rows(sentences(23))
        in_parts = parts(rows, size, pooling=pooling, max_length=24)
        path = tmp_path / "x.npz"
        message = write_vectors(in_parts, path)
        with np.load(path) as file:
            written.append((message, dict(file)))
    (message, at_once), (other, of_parts) = written
    assert message == other
    assert "embeddings (23, 16)" in message or "offsets (24,)" in message
    assert caplog.messages == ["6 of 23 texts truncated to max_length=24"] * 2
    assert at_once.keys() == of_parts.keys()
    for name, array in at_once.items():
        np.testing.assert_allclose(of_parts[name], array, atol=1e-5)


PARTS = [
    {"a": np.arange(3, dtype=np.int32), "values": np.ones((2, 5), np.float32)},
    {"a": np.arange(4, dtype=np.int32), "values": np.zeros((0, 5), np.float32)},
]


def test_parts_of_arrays_are_joined_in_a_file(tmp_path):
    def parts():
        for part in PARTS:
            assert list(tmp_path.iterdir()) == []  # a killed process leaves no file
            yield part

    write_arrays(tmp_path / "x.npz", parts())
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]
    (tmp_path / "new").touch()
    assert (tmp_path / "x.npz").stat().st_mode == (tmp_path / "new").stat().st_mode
    read = np.load(tmp_path / "x.npz")
    for key in PARTS[0]:
        joined = np.concatenate([part[key] for part in PARTS])
        np.testing.assert_array_equal(read[key], joined, strict=True)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    def parts():
        yield PARTS[0]
        raise ZeroDivisionError

    (tmp_path / "x.npz").write_bytes(b"before")
    with pytest.raises(ZeroDivisionError):
        write_arrays(tmp_path / "x.npz", parts())
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"before"]
