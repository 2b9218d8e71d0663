import dataclasses
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from etils import epath

from bert_jax.data.preparation import prepare
from bert_jax.data.spiece import SentencePieceTokenizer
from bert_jax.data.store import TokenStore
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.data.vocabulary_training import train_vocabulary
from bert_jax.errors import UserError
from bert_jax.interop.train_state import CheckpointStore
from bert_jax.training import pretrain_data
from bert_jax.training.config import DataConfig
from bert_jax.training.pretrain_data import open_text
from bert_jax.training.workdir import RunFolder


@pytest.fixture(scope="module")
def corpus(golden, tmp_path_factory):
    text = (golden / "pretraining_data" / "moby_dick_sentences.txt").read_text()
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("\n\n".join(text.split("\n\n")[:6]))
    return DataConfig(corpus=(str(path),), vocabulary_size=400)


def test_a_corpus_is_prepared_once(corpus, tmp_path):
    log = []
    (store,), tokenizer = open_text(corpus, RunFolder(tmp_path), log.append)
    assert tokenizer.vocab_size == store.info.vocab_size == 400
    assert store.info.documents == 6
    assert len(log) == 2
    (again,), same = open_text(corpus, RunFolder(tmp_path), log.append)
    assert len(log) == 2
    assert again.info == store.info
    assert same.fingerprint() == tokenizer.fingerprint()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("corpus", ("other.txt",)),
        ("language", "de"),
        ("lower_case", False),
        ("keep_accents", True),
        ("vocabulary_size", 30_000),  # more tokens than the text yields
    ],
)
def test_text_with_other_settings_is_refused(corpus, tmp_path, name, value):
    """As after a kill between the preparation and the first checkpoint."""
    (tmp_path / "other.txt").write_text(Path(corpus.corpus[0]).read_text())
    if name == "corpus":
        value = (str(tmp_path / "other.txt"),)
    other = dataclasses.replace(corpus, **{name: value})
    open_text(corpus, RunFolder(tmp_path / "run"), print)
    with pytest.raises(
        UserError, match=rf"prepared with data.{name}=.*, expected .*; use another w"
    ):
        open_text(other, RunFolder(tmp_path / "run"), print)
    shutil.rmtree(tmp_path / "run" / "text")
    open_text(other, RunFolder(tmp_path / "run"), print)


def test_a_corpus_is_split_by_its_language(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "Prof. Dr. Abel kam bzw. ging. Ein हिन्दी."}\n' * 9)
    config = DataConfig(
        corpus=(str(path),), vocabulary_size=400, language="de", keep_accents=True
    )
    (store,), tokenizer = open_text(config, RunFolder(tmp_path / "w"), print)
    assert store.info.sentences == 18
    assert store.info.settings["language"] == "de"
    assert tokenizer.tokenize("हिन्दी Ein") == ["हिन्दी", "ein"]


def test_a_wrong_language_is_an_error_before_a_vocabulary_is_trained(
    corpus, tmp_path, monkeypatch
):
    """The vocabulary of a large text takes an hour."""
    trained = []

    def train(sentences, *arguments, **options):
        trained.extend(sentences)
        return train_vocabulary(trained, *arguments, **options)

    monkeypatch.setattr(pretrain_data, "train_vocabulary", train)
    config = dataclasses.replace(corpus, language="German")
    with pytest.raises(UserError, match="language='German', expected a code"):
        open_text(config, RunFolder(tmp_path), print)
    assert trained == []


@pytest.mark.parametrize("other", [False, True])
def test_a_sentencepiece_store_of_0_1_0_is_read(other, tmp_path, monkeypatch):
    """The old fingerprint contains only the tokens and the case."""
    sentences = ["the cat saw the cats that sat there"] * 20
    (tmp_path / "text.txt").write_text("\n".join(sentences))
    tokenizer = train_vocabulary(sentences, 30, kind="sentencepiece")
    text = "\n".join(["sentencepiece", "True", *tokenizer.tokens]) + "other" * other
    old = hashlib.sha256(text.encode()).hexdigest()
    with monkeypatch.context() as patch:
        patch.setattr(SentencePieceTokenizer, "fingerprint", lambda self: old)
        store = tmp_path / "store"
        prepare([str(tmp_path / "text.txt")], tokenizer, store, workers=1)
    config = DataConfig(path=str(store))
    if other:
        with pytest.raises(UserError, match="prepared with another vocabulary"):
            open_text(config, RunFolder(tmp_path), print)
        return
    (found,), same = open_text(config, RunFolder(tmp_path), print)
    assert found.info.vocabulary_fingerprint == old
    assert same.fingerprint() == tokenizer.fingerprint() != old


def test_a_copy_of_a_store_is_verified(small_store, bucket, tmp_path):
    """A truncated shard, in the copy or in the bucket, is an error."""
    place = epath.Path(bucket) / "store"
    for path in small_store[0].rglob("*"):
        if path.is_file():
            target = place / path.relative_to(small_store[0]).as_posix()
            target.write_bytes(path.read_bytes())
    (shard,) = place.glob("shard-*")
    complete = shard.read_bytes()
    shard.write_bytes(complete[:-2])
    config = DataConfig(path=str(place))
    for _ in range(2):
        with pytest.raises(UserError, match=f"{shard.name} is damaged"):
            open_text(config, RunFolder(tmp_path), print)
    shard.write_bytes(complete)
    (store,), _ = open_text(config, RunFolder(tmp_path), print)
    assert store.info == TokenStore(small_store[0]).info


WRONG = """
import sys
from bert_jax import errors
from bert_jax.commands import {command}
try:
    {command}.main(sys.argv[1:])
except errors.UserError as error:
    print(error)
print(sorted({{"jax", "orbax"}} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("train", ["--config=FILE", "--data.path=none"]),
        ("prepare", ["--input=none", "--vocabulary=STORE", "--output=x"]),
    ],
)
def test_a_wrong_path_is_an_error_before_jax_is_imported(
    command, arguments, config_file, small_store, tmp_path
):
    """The import needs seconds."""
    names = {"FILE": str(config_file), "STORE": str(small_store[0])}
    for name, value in names.items():
        arguments = [argument.replace(name, value) for argument in arguments]
    done = subprocess.run(
        [sys.executable, "-c", WRONG.format(command=command), *arguments],
        **{"cwd": tmp_path, "capture_output": True, "text": True},
    )
    message, modules = done.stdout.splitlines()
    assert "none" in message
    assert modules == "[]"
    assert not list(tmp_path.iterdir())


def test_a_config_must_name_one_text():
    with pytest.raises(
        UserError, match=r"^the config names no text; set .* data\.path"
    ):
        DataConfig().check_text()
    with pytest.raises(UserError, match=r"^data\.path=a and data\.corpus are given to"):
        DataConfig(path="a", corpus=("b.txt",)).check_text()


def test_another_vocabulary_than_the_stores_is_refused(corpus, tmp_path):
    open_text(corpus, RunFolder(tmp_path), print)
    vocabulary = tmp_path / "text" / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text().replace("##ing", "##gni"))
    config = DataConfig(path=str(tmp_path / "text"))
    with pytest.raises(UserError, match="another vocabulary"):
        open_text(config, RunFolder(tmp_path), print)


@pytest.fixture(scope="module")
def two(small_store, corpus, tmp_path_factory):
    """A store, and another text that was prepared with its vocabulary."""
    path = tmp_path_factory.mktemp("two") / "other"
    prepare(corpus.corpus, load_tokenizer(small_store[0]), path, workers=1)
    return str(small_store[0]), str(path)


def test_the_stores_of_a_mixture_are_opened_in_their_order(two, tmp_path):
    config = DataConfig(mixture=two, weights=(1.0, 2.0))
    stores, tokenizer = open_text(config, RunFolder(tmp_path), print)
    assert [str(store.directory) for store in stores] == [*two]
    infos = [store.info for store in stores]
    text = pretrain_data.recorded_text(infos)
    assert text == pretrain_data.text_of(config)
    assert text["documents"] == infos[0].documents + infos[1].documents
    assert text["tokens"] == infos[0].tokens + infos[1].tokens
    assert text["vocabulary"] == tokenizer.fingerprint()
    other_order = pretrain_data.recorded_text(infos[::-1])
    assert text["content"] != other_order["content"]
    alone = pretrain_data.text_of(DataConfig(path=two[0]))
    assert alone["content"] == infos[0].fingerprint()
    assert text["content"].split()[0] == alone["content"]


def test_a_mixture_has_one_vocabulary(two, corpus, tmp_path):
    open_text(corpus, RunFolder(tmp_path), print)
    mixture = *two, str(tmp_path / "text")
    config = DataConfig(mixture=mixture, weights=(1.0, 1.0, 1.0))
    message = f"^{tmp_path}/text has another vocabulary than {two[0]}; prepare all"
    with pytest.raises(UserError, match=message):
        open_text(config, RunFolder(tmp_path), print)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"weights": ()},
            r"data\.weights=\(\) for 2 folders of data\.mixture; expected",
        ),
        ({"weights": (1.0,)}, r"weights=\(1\.0,\) for 2 folders"),
        (
            {"mixture": (), "path": "a"},
            r"weights=\(.*\) for 0 folders of data\.mixture",
        ),
        ({"weights": (1.0, 1e-5)}, r"gives a folder less than 1 of 65,536 sequences"),
        ({"path": "a"}, r"^data\.path=a and data\.mixture are given together"),
        ({"corpus": ("a",)}, r"^data\.mixture and data\.corpus are given together"),
        ({"mixture": ("nowhere", "b")}, "nowhere"),
    ],
)
def test_wrong_mixtures_are_one_line_errors(two, changes, message):
    config = DataConfig(mixture=two, weights=(1.0, 2.0))
    config.check_text()
    with pytest.raises(UserError, match=message) as error:
        dataclasses.replace(config, **changes).check_text()
    assert "\n" not in str(error.value)


def test_the_files_of_all_texts_are_checked(two, tmp_path):
    copies = [tmp_path / "a", tmp_path / "b"]
    for place, copy in zip(two, copies, strict=True):
        shutil.copytree(place, copy)
    (shard,) = copies[1].glob("shard-*")
    content = bytearray(shard.read_bytes())
    content[10] ^= 1
    shard.write_bytes(content)
    stores = [TokenStore(copy) for copy in copies]
    message = f"{shard.name} is damaged"
    with (
        pytest.raises(UserError, match=message) as error,
        pretrain_data.checked(stores, print) as check,
    ):
        check(wait=True)
    assert str(copies[1]) in str(error.value)


def test_text_that_changed_after_its_preparation_is_refused(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("The sea is here.\n\nThe ship is there.\n" * 9)
    config = DataConfig(corpus=(str(path),), vocabulary_size=60)
    workdir = RunFolder(tmp_path / "run")
    open_text(config, workdir, print)
    text = path.read_text()
    message = "text.txt changed after .*run/text was prepared; put the files back"
    for changed in (f"{text}More.\n", text.replace("ship", "shop")):
        path.write_text(changed)
        with pytest.raises(UserError, match=message):
            open_text(config, workdir, print)
    path.write_text(text)  # a newer file with the same content
    open_text(config, workdir, print)
    path.unlink()  # a run does not need it
    open_text(config, workdir, print)
    path.write_text(f"{text}More.\n")
    with CheckpointStore(workdir.checkpoints, keep=1) as store:
        store.save(2, {"params": {"kernel": np.ones(3, np.float32)}}, {})
    open_text(config, workdir, print)  # a run that has begun keeps its text
