import json
import shutil
import subprocess
import sys

import pytest
from safetensors.numpy import load_file

from bert_jax import inspect as command
from bert_jax.data.examples import ExampleConfig, ExampleSource
from bert_jax.data.preparation import prepare
from bert_jax.data.store import TokenStore
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.data.vocabulary_training import train_vocabulary
from bert_jax.errors import UserError
from bert_jax.inference import inspection
from bert_jax.inference.inspection import describe, inspect


@pytest.fixture(scope="module")
def store(small_store):
    return small_store[0]


@pytest.fixture(scope="module")
def uncased(golden):
    return golden / "tokenizer/uncased_vocab.txt"


@pytest.fixture(scope="module")
def text(store):
    return inspect(store, examples=40, sequence_length=32, seed=7)


def test_text_is_counted(store, text):
    info = TokenStore(store).info
    assert text["what"] == "text"
    assert [text[k] for k in ("documents", "sentences", "tokens")] == [
        *(info.documents, info.sentences, info.tokens)
    ]
    lengths = text["lengths"]
    sentence, document = (
        lengths[f"tokens of a {kind}"] for kind in ("sentence", "document")
    )
    assert sentence["mean"] == pytest.approx(info.tokens / info.sentences)
    assert document["mean"] == pytest.approx(info.tokens / info.documents)
    assert sentence["median"] < sentence["90%"] < sentence["99%"] < sentence["longest"]


def test_inspect_verifies_prepared_text(tmp_path, small_store):
    shutil.copytree(small_store[0], tmp_path / "store")
    (shard,) = (tmp_path / "store").glob("shard-*")
    content = shard.read_bytes()
    shard.write_bytes(bytes([content[0] ^ 1, *content[1:]]))
    with pytest.raises(UserError, match=f"{shard.name} is missing or damaged"):
        inspect(tmp_path / "store")


def test_language_and_accents_are_shown(tmp_path):
    text, directory = tmp_path / "text.txt", tmp_path / "store"
    text.write_text("Der Wal ist schön.\nEr schwimmt.\n" * 9)
    vocabulary = train_vocabulary(["der wal ist schön ."] * 9, 90, keep_accents=True)
    prepare([str(text)], vocabulary, directory, workers=1, language="de")
    lines = " ".join(" ".join(describe(inspect(directory, examples=0))).split())
    assert "language de" in lines
    assert f"wordpiece, uncased with accents, {vocabulary.vocab_size} tokens" in lines


def test_the_share_of_unknown_tokens_is_exact(uncased, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The whale \u13a0\u13a0.\nThe sea.\n")
    prepare([str(text)], load_tokenizer(uncased), tmp_path / "store", workers=1)
    assert inspect(tmp_path / "store", examples=0)["unknown"] == 1 / 7


def test_examples_are_those_that_training_draws(store, text):
    tokenizer = load_tokenizer(store)
    source = ExampleSource(
        TokenStore(store),
        tokenizer,
        ExampleConfig(),
        sequence_length=32,
        max_predictions=5,
        seed=7,
    )
    batch = source.draw(range(40))
    assert len(text["examples"]) == 40
    masked = 0
    for i, example in enumerate(text["examples"]):
        tokens = [*example["a"], *example["b"]]
        ids = [tokenizer.ids[token] for token in tokens]
        assert ids == batch["input_ids"][i, : len(ids)].tolist()
        assert len(ids) == batch["attention_mask"][i].sum()
        assert len(example["b"]) == batch["token_type_ids"][i].sum()
        assert example["is_next"] is (batch["nsp_labels"][i] == 0).item()
        for j, mask in enumerate(example["masked"]):
            assert tokens[mask["position"]] == mask["shown"]
            assert tokenizer.ids[mask["token"]] == batch["mlm_ids"][i, j]
            masked += mask["shown"] == "[MASK]"
        assert len(example["masked"]) == batch["mlm_weights"][i].sum()
    assert 0.7 < masked / batch["mlm_weights"].sum() < 0.9


def test_an_example_is_shown_with_its_masks_and_its_label(text):
    shown = "\n".join(describe(text))
    example = text["examples"][0]
    mask = example["masked"][0]
    assert f" {mask['shown']}{{{mask['token']}}} " in shown
    follows = "B follows A" if example["is_next"] else "B is from elsewhere"
    assert f"example 0: {len(example['a'] + example['b'])} tokens, {follows}\n" in shown


@pytest.mark.parametrize("masking", ["whole_word", "ngram"])
def test_masks_are_drawn_as_asked_for(store, masking):
    found = inspect(store, examples=40, sequence_length=32, masking=masking)
    words = 0
    for example in found["examples"]:
        positions = [mask["position"] for mask in example["masked"]]
        tokens = [*example["a"], *example["b"]]
        for mask in example["masked"]:
            tokens[mask["position"]] = mask["token"]
        for position in positions:
            after = tokens[position + 1]
            assert position + 1 in positions or not after.startswith("##")
            words += after.startswith("##")
    assert words > 20


def test_a_vocabulary_is_counted_by_kind(uncased, tmp_path):
    sample = tmp_path / "sample.txt"
    sample.write_text("The unaffable whales, the whales!\nA \u13a0\u13a0.\n")
    found = inspect(uncased, sample=[str(sample)])
    assert (found["what"], found["kind"], found["cased"]) == (
        *("vocabulary", "wordpiece"),
        False,
    )
    kinds = {name: kind["count"] for name, kind in found["kinds"].items()}
    assert (
        found["size"] == sum(kinds.values()) == len(uncased.read_text().split("\n")) - 1
    )
    assert kinds["special"] == 5 and kinds["unused"] == 994
    assert kinds["parts of words"] + kinds["single characters"] > 5828
    tokenizer = load_tokenizer(uncased)
    words = ["The", "unaffable", "whales", "the", "whales", "A", "\u13a0\u13a0"]
    cut = [tokenizer.tokenize(word) for word in words]
    assert found["sample"]["words"] == 7
    assert found["sample"]["tokens of a word"] == sum(map(len, cut)) / 7
    assert found["sample"]["words of one token"] == sum(len(c) == 1 for c in cut) / 7
    assert found["sample"]["unknown words"] == 1 / 7
    assert found["sample"]["commonest of several"] == {
        "unaffable": ["una", "##ffa", "##ble"]
    }
    assert "a vocabulary, wordpiece, uncased, 30,522 tokens" in next(describe(found))


def test_a_checkpoint_is_a_table_of_its_parameters(golden):
    folder = golden / "huggingface/pretraining"
    found = inspect(folder)
    assert (found["what"], found["source"], found["head"]) == (
        *("checkpoint", "huggingface"),
        "pretraining",
    )
    tensors = load_file(folder / "model.safetensors")
    words = tensors["bert.embeddings.word_embeddings.weight"]
    rows = {row["name"]: row for row in found["parameters"]}
    row = rows["bert/embeddings/word/embedding"]
    assert row["shape"] == list(words.shape) and row["count"] == words.size
    assert row["mean"] == pytest.approx(words.mean(), abs=1e-7)
    assert row["deviation"] == pytest.approx(words.std(), rel=1e-5)
    assert {row["dtype"] for row in rows.values()} == {"float32"}
    # Tied copies and buffers are not parameters.
    own = {n: a for n, a in tensors.items() if "decoder" not in n and "_ids" not in n}
    assert found["count"] == sum(array.size for array in own.values())
    assert found["config"]["hidden_size"] == words.shape[1]
    lines = list(describe(found))
    assert lines[0].endswith("a Hugging Face folder")
    assert sum(" float32 " in line for line in lines) == len(rows)


def test_layers_are_in_their_order():
    names = [f"bert/encoder/layer_{i}/norm/bias" for i in range(12)]
    assert sorted(sorted(names), key=inspection._by_number) == names
    assert sorted(names) != names


def test_types_are_those_of_the_files(golden):
    found = inspect(golden / "huggingface/sharded")
    assert {row["dtype"] for row in found["parameters"]} == {"bfloat16"}


def test_a_folder_of_a_vocabulary_alone_is_one(uncased, tmp_path):
    (tmp_path / "vocab.txt").write_bytes(uncased.read_bytes())
    sample = tmp_path / "sample.md"
    sample.write_text("A text of a few words, which are all known.\n")
    assert inspect(tmp_path, sample=[str(sample)])["what"] == "vocabulary"


def test_the_sample_of_a_vocabulary_has_a_field_of_any_name(uncased, tmp_path, capsys):
    sample = tmp_path / "sample.jsonl"
    sample.write_text('{"body": "three short words"}\n')
    with pytest.raises(UserError, match="found body; set --text_field"):
        command.main([str(uncased), "--input", str(sample)])
    command.main([str(uncased), "--input", str(sample), "--text_field", "body"])
    assert "3 words of " in capsys.readouterr().out


@pytest.mark.parametrize("name", ["", "none"])
def test_anything_else_is_one_line(tmp_path, name):
    (tmp_path / "x.bin").write_bytes(b"x")
    with pytest.raises(UserError, match="expected a Hugging Face folder"):
        inspect(tmp_path / name)


def test_the_command_prints_one_object_without_jax(store, text):
    """A table of text must not wait for JAX."""
    program = (
        "import sys; from bert_jax import inspect; inspect.main(sys.argv[1:]);"
        "assert not {'jax', 'flax', 'grain'} & set(sys.modules)"
    )
    flags = ["--json", "--examples=40", "--sequence_length=32", "--seed=7"]
    done = subprocess.run(
        [sys.executable, "-c", program, store, *flags], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(json.dumps(text))


def test_the_command_prints_lines(store, capsys):
    command.main([str(store), "--examples=1"])
    assert "prepared text" in capsys.readouterr().out
