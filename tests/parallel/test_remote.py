"""Folders of an object store, which a dictionary in memory stands for."""

import fsspec
import pytest
from etils import epath
from fsspec.implementations.memory import MemoryFileSystem

from bert_jax.errors import UserError
from bert_jax.parallel.remote import RunFolder, is_remote, local_copy
from bert_jax.training.metric_writer import MetricWriter, read_metrics


class Bucket(MemoryFileSystem):
    """gs:// in memory."""

    protocol = ("gs", "gcs")
    store = {}  # noqa: RUF012 - as fsspec has it
    pseudo_dirs = [""]  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("gs://", "memory://"))


@pytest.fixture
def bucket(monkeypatch, tmp_path):
    """A writable path in a bucket; copies lie in a cache of their own."""
    fsspec.register_implementation("gcs", Bucket, clobber=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Bucket.store.clear()
    return epath.Path("gs://bucket/folder")


def test_a_url_is_remote_and_a_path_is_not():
    assert is_remote("gs://bucket/x")
    assert not is_remote("runs/x")


def test_a_store_is_copied_once_and_again_when_it_changed(bucket):
    (bucket / "index").mkdir(parents=True)
    (bucket / "index" / "a.npy").write_text("1")
    (bucket / "index.json").write_text("{}")
    copy = local_copy(bucket, last="index.json")
    assert (copy / "index" / "a.npy").read_text() == "1"
    (copy / "mark").touch()
    assert local_copy(bucket, last="index.json") == copy
    assert (copy / "mark").exists()
    (bucket / "index.json").write_text("{ }")
    (bucket / "index" / "a.npy").write_text("2")
    assert (local_copy(bucket, last="index.json") / "index/a.npy").read_text() == "2"
    assert not (copy / "mark").exists()


def test_a_store_that_is_not_there_is_one_line(bucket):
    with pytest.raises(UserError, match=r"gs://bucket/folder has no index\.json"):
        local_copy(bucket, last="index.json")


def test_a_run_goes_on_on_another_machine(bucket, monkeypatch, tmp_path):
    folder = RunFolder("gs://bucket/folder")
    folder.fetch()
    (folder.local / "config.json").write_text("{}")
    writer = MetricWriter(folder.local, 0)
    writer.write(1, "train", {"loss": 2.0})
    writer.sync()
    folder.upload()
    writer.write(2, "train", {"loss": 1.0})
    writer.close()
    folder.upload()
    assert str(folder.checkpoints) == "gs://bucket/folder/checkpoints"
    (folder.checkpoints / "1").mkdir(parents=True)
    (folder.checkpoints / "1" / "large").write_text("x")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    other = RunFolder("gs://bucket/folder")
    other.fetch()
    assert other.local != folder.local
    assert (other.local / "config.json").read_text() == "{}"
    lines = read_metrics(other.local / "metrics.jsonl")
    assert [line["loss"] for line in lines] == [2.0, 1.0]
    assert list((other.local / "tensorboard").iterdir())
    assert not (other.local / "checkpoints").exists()


def test_a_local_workdir_is_used_as_it_is(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.fetch()
    folder.upload()
    assert folder.local == tmp_path / "run"
    assert folder.checkpoints == tmp_path / "run" / "checkpoints"
    assert list(folder.local.iterdir()) == []
