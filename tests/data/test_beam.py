"""A pipeline of Apache Beam prepares the same bytes as `prepare`."""

import json
import shutil
import sys

import pytest
from etils import epath

from bert_jax.commands import prepare as command
from bert_jax.data import beam as pipelines
from bert_jax.data.beam import prepare_with_beam
from bert_jax.data.corpus import find_sources, fingerprint, read_documents
from bert_jax.data.corpus_formats import Reading
from bert_jax.data.preparation import prepare
from bert_jax.data.store import UNFINISHED, remove_files
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.errors import UserError


def beam():
    return pytest.importorskip(
        "apache_beam", reason="Apache Beam, the extra beam, is not installed"
    )


@pytest.fixture(scope="module")
def text(small_store, tmp_path_factory):
    """A folder with three text files (one is gzipped) and their vocabulary."""
    import gzip

    folder = tmp_path_factory.mktemp("text")
    source = small_store[0].parent / "text.txt"
    for name in ("a.txt", "b.txt"):
        shutil.copy(source, folder / name)
    (folder / "d.md").write_text("# A chapter\n\nIt has two sentences. This is one.\n")
    (folder / "c.txt.gz").write_bytes(gzip.compress(source.read_bytes(), mtime=0))
    return folder, load_tokenizer(small_store[0])


@pytest.fixture(scope="module")
def expected(text, tmp_path_factory):
    """The store that `prepare` writes in four shards, and its report."""
    directory = tmp_path_factory.mktemp("expected") / "store"
    report = prepare([str(text[0])], text[1], directory, workers=1, shards=4)
    return files(directory), report


def files(directory):
    """The bytes of every file below a local or remote folder."""
    directory = epath.Path(directory)
    paths = [*directory.glob("*"), *directory.glob("index/*")]
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in paths
        if not path.is_dir()
    }


def test_a_pipeline_writes_the_same_bytes(text, expected, tmp_path):
    beam()
    folder, tokenizer = text
    output = str(tmp_path / "store")
    report = prepare_with_beam([str(folder)], tokenizer, output, [], shards=4)
    assert files(output) == expected[0]
    assert (report.info, report.counts) == (expected[1].info, expected[1].counts)
    again = prepare_with_beam([str(folder)], tokenizer, output, [], shards=4)
    assert not again.counts


def test_a_pipeline_between_buckets_resumes_after_an_interruption(
    text, expected, bucket, monkeypatch
):
    """The names of the inputs differ, but the store is the same."""
    beam()
    folder, tokenizer = text
    for path in folder.iterdir():
        place = epath.Path(bucket) / "text" / path.name
        place.write_bytes(path.read_bytes())
    output = f"{bucket}/store"
    real = pipelines._write_remote

    def fail(*arguments):
        if list(epath.Path(output).glob("index/part-*")):
            raise OSError("the worker is gone")  # after it wrote a shard
        return real(*arguments)

    given = ([f"{bucket}/text"], tokenizer, output, [])
    with monkeypatch.context() as patch:
        patch.setattr(pipelines, "_write_remote", fail)
        with pytest.raises(Exception, match="the worker is gone"):
            prepare_with_beam(*given, shards=4)
    assert not (epath.Path(output) / "index.json").exists()
    with pytest.raises(UserError, match=f"^{output}: .* contains text prepared with o"):
        prepare_with_beam(*given, shards=5)
    report = prepare_with_beam(*given, shards=4)
    size, all_bytes = (r.counts["text_bytes"] for r in (report, expected[1]))
    assert 0 < size < all_bytes  # the finished part is not read again
    written = files(output)
    assert written.keys() == expected[0].keys()
    different = {name for name in written if written[name] != expected[0][name]}
    assert different == {"index.json"}
    old, new = (json.loads(names["index.json"]) for names in (expected[0], written))
    for index, inputs in ((old, str(folder)), (new, f"{bucket}/text")):
        assert index["settings"].pop("inputs") == [inputs]
        # In a bucket it depends on the size and time of each object.
        del index["settings"]["text"]["fingerprint"]
    assert new == old


def test_a_model_in_a_bucket_is_not_overwritten(text, bucket):
    beam()
    folder, tokenizer = text
    place = epath.Path(bucket) / "model"
    place.mkdir()
    (place / "vocab.txt").write_text("[PAD]")
    with pytest.raises(UserError, match=r"model: it is not empty, but contains vocab"):
        prepare_with_beam([str(folder)], tokenizer, f"{bucket}/model", [])
    assert (place / "vocab.txt").read_text() == "[PAD]"


def test_the_file_that_finishes_a_store_is_copied_last(tmp_path):
    source, target = tmp_path / "a", tmp_path / "b"
    source.mkdir()
    (source / "index.json").touch()
    (source / "vocab.txt").symlink_to("gone")  # copying fails
    with pytest.raises(FileNotFoundError):
        pipelines._copy_files(source, target, "*.*")
    assert not (target / "index.json").exists()


def test_documents_are_read_from_a_bucket(text, bucket):
    folder, _ = text
    for path in folder.iterdir():
        (epath.Path(bucket) / "text" / path.name).write_bytes(path.read_bytes())
    here = list(read_documents([str(folder)]))
    assert list(read_documents([f"{bucket}/text"])) == here
    one = list(read_documents([str(folder / "a.txt")]))
    assert list(read_documents([f"{bucket}/text/a.txt"])) == one
    assert (
        list(read_documents([f"{bucket}/text/[ab].txt"])) == here[: len(here) // 3 * 2]
    )
    with pytest.raises(UserError, match=r"nothing does not exist; expected the path"):
        list(read_documents([f"{bucket}/nothing"]))
    # A different text of the same size is detected.
    (source,) = find_sources([f"{bucket}/text/a.txt"], Reading())
    before, place = fingerprint(source), epath.Path(source.name)
    place.write_bytes(place.read_bytes()[::-1])
    assert fingerprint(source) != before


def test_the_command_names_the_missing_requirement(text, tmp_path, monkeypatch):
    folder, tokenizer = text
    tokenizer.save(tmp_path)
    line = ["--input", str(folder), "--vocabulary", str(tmp_path)]
    with pytest.raises(UserError, match="in an object store, which needs beam"):
        command.main([*line, "--output", "gs://bucket/store"])
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[beam\]'"):
        command.main([*line, "--output", str(tmp_path / "store"), "--beam="])
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("unfinished", [False, True])
def test_a_bucket_keeps_only_parts_that_can_be_continued(
    unfinished, text, bucket, monkeypatch
):
    """A preparation without any text deletes its parts, and other text may follow."""
    folder, tokenizer = text
    store = epath.Path(bucket) / "store"
    left = [store / UNFINISHED, store / "index/part-00000.npz"]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")

    def fail(inputs, tokenizer, directory, **settings):
        assert (directory / "index/part-00000.npz").exists()
        if not unfinished:
            remove_files(directory)
        raise UserError("it failed")

    monkeypatch.setitem(sys.modules, "apache_beam", sys)
    monkeypatch.setattr(pipelines, "prepare", fail)
    with pytest.raises(UserError, match="it failed"):
        prepare_with_beam([str(folder)], tokenizer, f"{bucket}/store", [])
    assert [path.exists() for path in left] == [unfinished] * 2


def test_parts_in_a_bucket_stay_until_the_store_is_copied(text, bucket, monkeypatch):
    folder, tokenizer = text
    part = epath.Path(bucket) / "store/index/part-00000.npz"
    part.parent.mkdir(parents=True)
    part.write_text("{}")
    copy = pipelines._copy_files

    def fail(source, target, *patterns):
        if "*.*" in patterns:
            raise OSError("the network is gone")
        copy(source, target, *patterns)

    monkeypatch.setitem(sys.modules, "apache_beam", sys)
    monkeypatch.setattr(pipelines, "prepare", lambda *_, **more: None)
    monkeypatch.setattr(pipelines, "_copy_files", fail)
    with pytest.raises(OSError, match="the network is gone"):
        prepare_with_beam([str(folder)], tokenizer, f"{bucket}/store", [])
    assert part.exists()
