import json
import shutil

import pytest
from safetensors.numpy import load_file

from bert_jax.commands import inspect as command
from bert_jax.data.examples import ExampleConfig, ExampleSource
from bert_jax.data.preparation import prepare
from bert_jax.data.store import TokenStore
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.data.vocabulary_training import train_vocabulary
from bert_jax.errors import UserError
from bert_jax.inference.inspection import by_number, describe, inspect


@pytest.fixture(scope="module")
def store(small_store):
    return small_store[0]


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


def test_settings_are_shown(tmp_path):
    text, directory = tmp_path / "text.txt", tmp_path / "store"
    text.write_text("Der Wal ist schön.\nEr schwimmt.\n\n" * 9 + "\u13a0 \u13a0\n")
    vocabulary = train_vocabulary(["der wal ist schön ."] * 9, 90, keep_accents=True)
    prepare([str(text)], vocabulary, directory, workers=1, language="de")
    report = inspect(directory, examples=0)
    assert report["documents"] == 10
    lines = [line.split(maxsplit=1) for line in describe(report)]
    assert ["settings.language", "de"] in lines
    assert ["vocabulary.cased", "False"] in lines
    assert ["vocabulary.accents", "True"] in lines
    assert ["vocabulary.size", str(vocabulary.vocab_size)] in lines


def test_files_are_checked_and_missing_checksums_added_on_request(store, tmp_path):
    folder = shutil.copytree(store, tmp_path / "store")
    index = (folder / "index.json").read_text()
    old = json.loads(index) | {"checksums": {}}  # as in version 0.2.0
    (folder / "index.json").write_text(json.dumps(old))
    command.main([str(folder), "--examples=1"])
    assert json.loads((folder / "index.json").read_text()) == old
    command.main([str(folder), "--examples=1", "--checksums"])
    assert (folder / "index.json").read_text() == index
    (shard,) = folder.glob("shard-*")
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.write_bytes(content)
    inspect(folder, examples=1)
    with pytest.raises(UserError, match=f"{shard.name} is damaged .*its checksum is"):
        inspect(folder, examples=1, checksums=True)


def test_examples_equal_the_examples_of_training(store, text):
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
        parts = [example["a"].split(), example["b"].split()]
        assert (
            example["tokens"]
            == batch["attention_mask"][i].sum()
            == len([*parts[0], *parts[1]])
        )
        assert len(parts[1]) == batch["token_type_ids"][i].sum()
        assert example["is_next"] is (batch["nsp_labels"][i] == 0).item()
        weights = batch["mlm_weights"][i] > 0
        places = batch["mlm_positions"][i][weights].tolist()
        right = batch["mlm_ids"][i][weights].tolist()
        right = dict(zip(places, (tokenizer.tokens[t] for t in right), strict=True))
        for place, shown in enumerate((*parts[0], *parts[1])):
            token = tokenizer.tokens[batch["input_ids"][i, place]]
            label = f"{{{right[place]}}}" if place in right else ""
            assert shown == token + label
            masked += bool(label) and token == "[MASK]"
    assert 0.7 < masked / batch["mlm_weights"].sum() < 0.9


def test_examples_of_another_template_are_split_at_the_second_text(tmp_path):
    """All token types are 0 in a pair of RoBERTa's kind."""
    lines = [f"the cat {i} sat. a bee sat on it." for i in range(40)]
    (tmp_path / "text.txt").write_text("\n\n".join("\n".join(lines) for _ in "abc"))
    bpe = train_vocabulary(lines, 300, kind="bpe")
    store = tmp_path / "store"
    prepare([str(tmp_path / "text.txt")], bpe, store, workers=1)
    examples = inspect(store, examples=30, sequence_length=40)["examples"]
    assert {example["is_next"] for example in examples} == {True, False}
    for example in examples:
        a, b = example["a"].split(" "), example["b"].split(" ")
        assert (a[0], a[-2:], b[-1]) == ("<s>", ["</s>", "</s>"], "</s>")
        assert example["tokens"] == len(a) + len(b)
        assert "</s>" not in (*a[1:-2], *b[:-1])


def test_an_example_is_shown_with_its_masks_and_its_label(text):
    shown = "\n".join(describe(text))
    example = text["examples"][0]
    follows = "B follows A" if example["is_next"] else "B is from elsewhere"
    expected = f"example 0: {example['tokens']} tokens, {follows}\n"
    assert f"{expected}  A: {example['a']}\n  B: {example['b']}\n" in shown


def test_a_checkpoint_is_a_table_of_its_parameters(golden):
    folder = golden / "huggingface/pretraining"
    table = inspect(folder)
    assert (table["what"], table["source"], table["head"]) == (
        *("checkpoint", "huggingface"),
        "pretraining",
    )
    tensors = load_file(folder / "model.safetensors")
    words = tensors["bert.embeddings.word_embeddings.weight"]
    rows = {row["name"]: row for row in table["parameters"]}
    row = rows["bert/embeddings/word/embedding"]
    assert row["shape"] == list(words.shape) and row["count"] == words.size
    assert row["mean"] == pytest.approx(words.mean(), abs=1e-7)
    assert row["deviation"] == pytest.approx(words.std(), rel=1e-5)
    # Tied copies and buffers do not count as parameters.
    without_copies = {
        n: a for n, a in tensors.items() if "decoder" not in n and "_ids" not in n
    }
    assert table["count"] == sum(array.size for array in without_copies.values())
    assert table["config"]["hidden_size"] == words.shape[1]
    lines = list(describe(table))
    assert any(line.split() == ["source", "huggingface"] for line in lines)
    assert sum("kernel " in line for line in lines) == sum("kernel" in n for n in rows)
    names = ["layer_2/b", "layer_10/a", "layer_2/a"]
    assert sorted(names, key=by_number) == ["layer_2/a", "layer_2/b", "layer_10/a"]


@pytest.mark.parametrize("name", ["", "none"])
def test_any_other_path_is_a_one_line_error(tmp_path, name):
    (tmp_path / "x.bin").write_bytes(b"x")
    with pytest.raises(UserError, match="expected a Hugging Face folder"):
        inspect(tmp_path / name)


def test_the_command_prints_an_object_or_lines(store, text, capsys):
    flags = ["--examples=40", "--sequence_length=32", "--seed=7"]
    command.main([str(store), "--json", *flags])
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(text))
    command.main([str(store), *flags])
    assert capsys.readouterr().out.splitlines() == "\n".join(describe(text)).split("\n")


def test_a_vocabulary_that_was_replaced_is_named(store, tmp_path):
    folder = shutil.copytree(store, tmp_path / "store")
    path = folder / "vocab.txt"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:-2], lines[-1], lines[-2]]) + "\n")
    with pytest.raises(UserError, match="was prepared with another vocabulary than"):
        inspect(folder)


def test_flags_of_prepared_text_are_refused_for_a_checkpoint(golden):
    checkpoint = str(golden / "v0_1_0/exported/mlm_nsp")
    with pytest.raises(UserError, match="--checksums has no effect with the other"):
        command.main([checkpoint, "--checksums"])
