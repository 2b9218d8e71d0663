import bisect
import functools
import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_jax import embed
from bert_jax.data.tokenizer import WordPieceTokenizer
from bert_jax.errors import UserError
from bert_jax.inference.embed import Embedder, write_vectors
from bert_jax.inference.lines import given_rows
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.model.bert import BertModel
from bert_jax.model.config import BertConfig
from bert_jax.tasks.rows import placed_rows, texts_line

WORDS = "the a man dog cat eats sees paris rome big small good bad film who where"
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TOKENIZER = WordPieceTokenizer([*SPECIALS, *WORDS.split(), *".,?"], True)
CONFIG = BertConfig(
    vocab_size=TOKENIZER.vocab_size,
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    intermediate_size=32,
    max_positions=48,
    initializer_range=0.5,
)
PAIR = ("the man", "sees rome")


@pytest.fixture(scope="module")
def params():
    ids = jnp.zeros((1, 8), jnp.int32)
    init = jax.jit(functools.partial(BertModel(CONFIG).init, deterministic=True))
    return init(jax.random.key(1), ids, ids, ids + 1)["params"]


@pytest.fixture(scope="module")
def checkpoint(params, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    save_huggingface(folder, Checkpoint(CONFIG, {"bert": params}, TOKENIZER, "none"))
    return str(folder)


@pytest.fixture(scope="module")
def by_hand(params):
    """A function of texts: layers (3, L, D), pooled (D,) and ids of their sequence."""
    apply = functools.partial(
        BertModel(CONFIG).apply, deterministic=True, hidden_states=True
    )
    run = jax.jit(lambda params, *arrays: apply({"params": params}, *arrays))

    def states(*parts):
        ids, segments = [TOKENIZER.cls_id], [0]
        for segment, part in enumerate(parts):
            added = [*TOKENIZER.encode(part), TOKENIZER.sep_id]
            ids += added
            segments += [segment] * len(added)
        arrays = np.zeros((3, 1, CONFIG.max_positions), np.int32)
        arrays[:, 0, : len(ids)] = [ids, segments, [1] * len(ids)]
        output = run(params, *arrays)
        layers = np.array(output.hidden_states)[:, 0, : len(ids)]
        return layers, np.array(output.pooled_BD)[0], ids

    return states


@pytest.fixture
def run(checkpoint, tmp_path, monkeypatch):
    """A function of lines and arguments: the arrays of the file that it wrote."""

    def run(lines, *arguments, name="out.npz", stdin=False):
        text = "".join(f"{line}\n" for line in lines)
        (tmp_path / "in.txt").write_text(text)
        if stdin:
            given = io.TextIOWrapper(io.BytesIO(text.encode()))
            monkeypatch.setattr("sys.stdin", given)
        path = tmp_path / "new" / name
        source = "-" if stdin else str(tmp_path / "in.txt")
        files = ["--input", source, "--output", str(path)]
        embed.main(["--checkpoint", checkpoint, *files, *arguments])
        if path.suffix == ".safetensors":
            return load_file(path)
        with np.load(path) as file:
            return dict(file)

    return run


def sentences(count, seed=0):
    random = np.random.default_rng(seed)
    return [
        " ".join(random.choice(WORDS.split(), random.integers(1, 30)))
        for _ in range(count)
    ]


def test_the_mean_is_over_all_tokens_with_cls_and_sep(run, by_hand):
    texts = [*sentences(4), "a"]
    arrays = run(texts)
    assert list(arrays) == ["embeddings"]
    expected = [by_hand(text)[0][-1].mean(axis=0) for text in texts]
    assert arrays["embeddings"].dtype == np.float32
    np.testing.assert_allclose(arrays["embeddings"], expected, atol=1e-5)


def test_another_dtype_rounds_and_gives_float32(run):
    texts = sentences(8)
    exact, rounded = (
        run(texts, "--normalize", "--dtype", dtype)["embeddings"]
        for dtype in ("float32", "bfloat16")
    )
    assert rounded.dtype == np.float32
    cosines = np.sum(exact * rounded, axis=1)
    assert cosines.min() > 0.999
    assert np.abs(exact - rounded).max() > 1e-4


def test_a_pair_has_two_segments(run, by_hand):
    (vector,) = run(["\t".join(PAIR)])["embeddings"]
    np.testing.assert_allclose(vector, by_hand(*PAIR)[0][-1].mean(axis=0), atol=1e-5)
    assert not np.allclose(
        vector, by_hand(" ".join(PAIR))[0][-1].mean(axis=0), atol=1e-2
    )


@pytest.mark.parametrize("layers", [(0,), (-3, 1, -1)])
def test_cls_of_layers_side_by_side(layers, run, by_hand):
    texts = sentences(3)
    names = ",".join(map(str, layers))
    vectors = run(texts, f"--layers={names}", "--pooling", "cls")["embeddings"]
    for vector, text in zip(vectors, texts, strict=True):
        states, _, _ = by_hand(text)
        expected = np.concatenate([states[i][0] for i in layers])
        np.testing.assert_allclose(vector, expected, atol=1e-5)


def test_the_pooler(run, by_hand):
    texts = sentences(3)
    vectors = run(texts, "--pooling", "pooler")["embeddings"]
    np.testing.assert_allclose(vectors, [by_hand(text)[1] for text in texts], atol=1e-5)


@pytest.mark.parametrize("name", ["out.npz", "out.safetensors"])
def test_every_token_of_every_line(name, run, by_hand):
    texts = sentences(5)
    arguments = ["--pooling", "none", "--layers=-2,-1"]
    arrays = run(texts, *arguments, name=name, stdin=True)
    types = {name: array.dtype for name, array in arrays.items()}
    assert types == {"values": "float32", "input_ids": "int32", "offsets": "int64"}
    offsets = arrays["offsets"]
    assert offsets[0] == 0
    assert offsets[-1] == len(arrays["values"]) == len(arrays["input_ids"])
    for text, start, stop in zip(texts, offsets, offsets[1:], strict=False):
        states, _, ids = by_hand(text)
        assert arrays["input_ids"][start:stop].tolist() == ids
        expected = np.concatenate(states[-2:], axis=-1)
        np.testing.assert_allclose(arrays["values"][start:stop], expected, atol=1e-5)


def test_normalized_vectors_have_length_one(run):
    texts = sentences(3)
    plain = run(texts)["embeddings"]
    scaled = run(texts, "--normalize")["embeddings"]
    norms = np.linalg.norm(plain, axis=1, keepdims=True)
    np.testing.assert_allclose(scaled, plain / norms, atol=1e-6)
    tokens = run(texts, "--normalize", "--pooling", "none")["values"]
    np.testing.assert_allclose(np.linalg.norm(tokens, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "none"])
def test_chunks_and_batches_change_nothing(pooling, checkpoint, tmp_path, monkeypatch):
    (tmp_path / "in.txt").write_text("\n".join(sentences(23)))
    embedder = Embedder(checkpoint, pooling=pooling, batch_size=4)
    given = given_rows(None, str(tmp_path / "in.txt"), texts_line)
    whole = write_vectors(embedder, given, tmp_path / "a.npz")
    monkeypatch.setattr("bert_jax.inference.embed.TOKENS", 40)
    given = given_rows(None, str(tmp_path / "in.txt"), texts_line)
    parts = write_vectors(embedder, given, tmp_path / "b.npz", 5)
    assert whole == parts
    assert whole.lines == 23
    with np.load(tmp_path / "a.npz") as a, np.load(tmp_path / "b.npz") as b:
        assert list(a) == list(b)
        for name in a:
            np.testing.assert_allclose(a[name], b[name], atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls", "pooler", "none"])
def test_rows_of_several_lengths(pooling, checkpoint, by_hand, monkeypatch):
    monkeypatch.setattr("bert_jax.data.batching.LENGTHS", (8, 20))
    texts = sentences(23)
    sizes = {bisect.bisect((8, 20), len(by_hand(text)[2]) - 1) for text in texts}
    assert sizes == {0, 1, 2}
    vectors = Embedder(checkpoint, pooling=pooling)(texts)
    for vector, text in zip(vectors, texts, strict=True):
        layers, pooled, _ = by_hand(text)
        last = {"mean": layers[-1].mean(axis=0), "cls": layers[-1][0], "pooler": pooled}
        expected = last.get(pooling, layers[-1])
        np.testing.assert_allclose(vector, expected, atol=1e-5)


def test_what_is_in_memory_is_bounded_by_tokens(checkpoint, monkeypatch):
    monkeypatch.setattr("bert_jax.inference.embed.TOKENS", 40)
    embedder = Embedder(checkpoint, pooling="none")
    parts = list(embedder.stream(placed_rows(sentences(23))))
    assert sum(len(part.lengths) for part in parts) == 23
    assert len(parts) > 5
    assert max(len(part.values) for part in parts) <= 40


def test_from_python(checkpoint, by_hand):
    texts = sentences(3)
    vectors = Embedder(checkpoint)(texts)
    assert vectors.shape == (3, 16)
    tokens = Embedder(checkpoint, pooling="none")(texts)
    for vector, values, text in zip(vectors, tokens, texts, strict=True):
        np.testing.assert_allclose(values, by_hand(text)[0][-1], atol=1e-5)
        np.testing.assert_allclose(vector, values.mean(axis=0), atol=1e-5)


def test_an_empty_text_is_cls_and_sep(run, by_hand, checkpoint):
    vectors = run(["a man", "", " ", "the cat\t"])["embeddings"]
    expected = [("a man",), ("",), ("",), ("the cat", "")]
    expected = [by_hand(*texts)[0][-1].mean(axis=0) for texts in expected]
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    found = Embedder(checkpoint)(["a man", "", " ", ("the cat", "")])
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_table_has_a_column_of_texts(checkpoint, tmp_path, by_hand):
    def embed_file(name, content, *arguments):
        (tmp_path / name).write_text(content)
        files = ["--input", str(tmp_path / name), "--output", str(tmp_path / "x.npz")]
        embed.main(["--checkpoint", checkpoint, *files, *arguments])
        with np.load(tmp_path / "x.npz") as file:
            return file["embeddings"]

    expected = [by_hand(t)[0][-1].mean(axis=0) for t in ("a man", "the cat , big")]
    table = 'id,review\n1,a man\n2,"the cat , big"\n'
    np.testing.assert_allclose(embed_file("a.csv", table), expected, atol=1e-5)
    table = "title\treview\nx\ta man\ny\tthe cat , big\n"
    with pytest.raises(UserError, match="the columns are title, review; expected one"):
        embed_file("a.tsv", table)
    found = embed_file("a.tsv", table, "--columns", "review")
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_texts_that_are_cut_are_warned_about(checkpoint, caplog):
    embedder = Embedder(checkpoint, max_length=6)
    with caplog.at_level("WARNING", "bert_jax"):
        embedder(["a man eats"])
        assert not caplog.messages
        embedder(["a man eats a big dog", "a man eats"])
    assert caplog.messages == ["1 of 2 texts is truncated to max_length=6"]


def test_texts_that_are_cut_are_counted(run, by_hand, capsys):
    texts = ["a man eats a big dog", "a man eats", "the cat\tsees a film"]
    vectors = run(texts, "--max_length", "6")["embeddings"]
    err = capsys.readouterr().err
    assert "3 lines, 17 tokens, width 16\n" in err
    assert "2 of 3 lines are truncated to max_length=6" in err
    kept = [("a man eats a",), ("a man eats",), ("the cat", "sees")]
    kept = [by_hand(*texts)[0][-1].mean(axis=0) for texts in kept]
    np.testing.assert_allclose(vectors, kept, atol=1e-5)


def test_a_model_without_a_pooler(params, tmp_path):
    bare = {name: part for name, part in params.items() if name != "pooler"}
    bare = Checkpoint(CONFIG, {"bert": bare}, TOKENIZER, "none")
    save_huggingface(tmp_path / "m", bare)
    assert Embedder(tmp_path / "m")(["a man"]).shape == (1, 16)
    with pytest.raises(UserError, match="has no pooler; set pooling to mean"):
        Embedder(tmp_path / "m", pooling="pooler")


@pytest.mark.parametrize(
    ("lines", "arguments", "message"),
    [
        (["a\tb\tc"], [], "in.txt:1 has 3 values; expected a text, or a tuple of two"),
        ([], [], "in.txt is empty"),
        (["a"], ["--layers=3"], "layer 3 is not there.*has 2 layers"),
        (["a"], ["--layers=-4,-1"], "layer -4 is not there"),
        (["a"], ["--max_length", "49"], "over the position table of 48"),
        (["a"], ["--max_length", "3"], "max_length=3 leaves no room"),
        (["a"], ["--batch_size", "0"], "batch_size=0"),
        (["a"], ["--pooling", "pooler", "--layers=0"], "reads the last layer alone"),
    ],
)
def test_bad_input_is_one_clear_line(lines, arguments, message, run, tmp_path):
    with pytest.raises(UserError, match=message) as caught:
        run(lines, *arguments)
    assert "\n" not in str(caught.value)
    assert not any(path.is_file() for path in (tmp_path / "new").glob("*"))


def test_a_name_of_neither_form(run):
    with pytest.raises(UserError, match=r"out.npy, expected a name in .npz or"):
        run(["a"], name="out.npy")
