"""Folders of an object store, on a real server."""

import os
import socket
from pathlib import Path

import pytest
from etils import epath

from bert_jax.errors import UserError
from bert_jax.parallel import remote
from bert_jax.parallel.remote import (
    RunFolder,
    is_remote,
    local_checkpoint,
    local_copy,
)
from bert_jax.runs import read_metrics
from bert_jax.training.metrics import MetricWriter


@pytest.fixture
def folder(bucket):
    """A writable path in a bucket."""
    return epath.Path(bucket)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def other_machine(monkeypatch, tmp_path):
    """A function that goes to a machine with an empty cache, or back to the first."""

    def go(name):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))

    return go


def test_a_url_is_remote_and_a_path_is_not():
    assert is_remote("gs://bucket/x")
    assert not is_remote("runs/x")


@pytest.mark.parametrize(
    "url", ["https://huggingface.co/a/b", "http://a/b", "ftp://a/b", "hf://a/b"]
)
def test_a_web_address_is_one_line_that_says_how_to_name_a_model(url):
    for path in (url, Path(url)):  # a Path has one slash where the URL has two
        with pytest.raises(UserError, match=r"is a web address; .*the name of a model"):
            is_remote(path)


def test_a_store_that_no_library_knows_is_one_line():
    with pytest.raises(UserError, match=r"^foo://a/b needs a library that reads it"):
        local_copy("foo://a/b", last="x")


def test_a_store_is_copied_once_and_again_when_it_changed(folder):
    write(folder / "index/a.npy", "1")
    write(folder / "index.json", "{}")
    copy = local_copy(folder, last="index.json")
    assert (copy / "index/a.npy").read_text() == "1"
    (copy / "mark").touch()
    assert local_copy(folder, last="index.json") == copy
    assert (copy / "mark").exists()
    write(folder / "index.json", "{ }")
    write(folder / "index/a.npy", "2")
    assert (local_copy(folder, last="index.json") / "index/a.npy").read_text() == "2"
    assert not (copy / "mark").exists()


def test_a_new_copy_is_checked_once_and_a_damaged_one_is_removed(folder):
    write(folder / "index.json", "{}")
    checked = []

    def check(copy):
        checked.append((copy / "index.json").read_text())
        if len(checked) == 1:
            raise UserError("damaged")

    with pytest.raises(UserError, match="damaged"):
        local_copy(folder, last="index.json", check=check)
    copy = local_copy(folder, last="index.json", check=check)
    assert local_copy(folder, last="index.json", check=check) == copy
    assert checked == ["{}"] * 2


def test_a_store_that_is_not_there_is_one_line(folder):
    with pytest.raises(UserError, match=rf"{folder} has no index\.json"):
        local_copy(folder, last="index.json")


def test_a_run_goes_on_on_another_machine(bucket, other_machine):
    folder = RunFolder(bucket)
    folder.fetch()
    write(folder.local / "config.json", "{}")
    writer = MetricWriter(folder.local, 0)
    writer.write(1, "train", {"loss": 2.0})
    writer.sync()
    folder.upload()
    writer.write(2, "train", {"loss": 1.0})
    writer.close()
    folder.upload()
    assert str(folder.checkpoints) == f"{bucket}/checkpoints"
    write(folder.checkpoints / "1/large", "x")

    other_machine("other")
    other = RunFolder(bucket)
    other.fetch()
    assert other.local != folder.local
    assert (other.local / "config.json").read_text() == "{}"
    lines = read_metrics(other.local / "metrics.jsonl")
    assert [line["loss"] for line in lines] == [2.0, 1.0]
    assert list((other.local / "tensorboard").iterdir())
    assert not (other.local / "checkpoints").exists()


def test_a_folder_that_is_replaced_is_replaced_in_the_store(bucket, other_machine):
    """And what a machine wrote after its last upload is no part of the run."""
    folder = RunFolder(bucket)
    folder.fetch()
    write(folder.local / "best/old.txt", "old")
    write(folder.local / "best/same.txt", "same")
    folder.upload()
    unchanged = (epath.Path(bucket) / "best/same.txt").stat()
    (folder.local / "best/old.txt").unlink()
    write(folder.local / "best/new.txt", "new")
    folder.upload()
    write(folder.local / "best/late.txt", "late")
    assert (epath.Path(bucket) / "best/same.txt").stat() == unchanged

    for machine in ("other", "cache"):
        other_machine(machine)
        again = RunFolder(bucket)
        again.fetch()
        assert names(again.local / "best") == ["new.txt", "same.txt"]
    assert (folder.local / "best/new.txt").read_text() == "new"


def test_a_folder_is_prepared_once(bucket, other_machine):
    def make(directory):
        made.append(directory)
        write(directory / "shards/0", "tokens")
        write(directory / "index.json", "{}")

    made = []
    for machine in ("one", "one", "two"):
        other_machine(machine)
        copy = RunFolder(bucket).prepared("text", "index.json", make)
        assert (copy / "shards/0").read_text() == "tokens"
    assert len(made) == 1


def test_a_checkpoint_is_copied_without_what_is_not_its_model(folder):
    write(folder / "config.json", "{}")
    write(folder / "best/model.safetensors", "1")
    write(folder / "checkpoints/5/large", "x")
    write(folder / "sweep/run/large", "x")
    copy = local_checkpoint(folder)
    copied = {p.relative_to(copy).as_posix() for p in copy.rglob("*") if p.is_file()}
    assert copied == {"config.json", "best/model.safetensors"}
    write(folder / "best/model.safetensors", "22")
    (folder / "config.json").unlink()
    assert local_checkpoint(folder) == copy
    assert (copy / "best/model.safetensors").read_text() == "22"
    assert not (copy / "config.json").exists()


def test_the_prefix_of_a_checkpoint_of_google_is_copied_too(folder):
    for name in ("bert_model.ckpt.index", "bert_config.json", "other/x"):
        write(folder / name, name)
    copy = local_checkpoint(folder / "bert_model.ckpt")
    assert copy.with_suffix(".ckpt.index").read_text() == "bert_model.ckpt.index"
    assert names(copy.parent) == [
        "bert_config.json",
        "bert_model.ckpt.index",
    ]


def test_a_local_workdir_is_used_as_it_is(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.fetch()
    folder.upload()
    assert folder.local == tmp_path / "run"
    assert folder.checkpoints == tmp_path / "run" / "checkpoints"
    assert list(folder.local.iterdir()) == []


@pytest.mark.parametrize("name", ["..", ".", ""])
def test_a_name_in_a_store_leads_nowhere_else(tmp_path, name):
    """Object stores take any name; a copy of such a one would lie beside the cache."""

    class Folder:
        def __init__(self, name, *inside):
            self.name, self.inside = name, inside

        def iterdir(self):
            return self.inside

        def is_dir(self):
            return bool(self.inside)

        def exists(self):
            return True

    evil = Folder("run", Folder(name, Folder("config.json")))
    with pytest.raises(UserError, match="is no name of a file"):
        remote._mirror(evil, tmp_path / "cache")
    assert list(tmp_path.rglob("*.json")) == []


def test_a_workdir_in_a_bucket_is_one_run_s(bucket, quick_leases, other_machine):
    """The second is refused with the name of the first, which goes on."""
    first, lines = RunFolder(bucket), []
    with first.held(lines.append):
        first.fetch()
        write(first.local / "a.txt", "1")
        other_machine("other")
        name = f"in use by process {os.getpid()} on {socket.gethostname()}; wait"
        for _ in range(2):
            second = RunFolder(bucket).held(lines.append)
            with pytest.raises(UserError, match=name), second:
                pytest.fail("taken twice")
        first.upload()
        assert names(epath.Path(bucket)) == [".lock", "a.txt"]
    assert names(epath.Path(bucket)) == ["a.txt"]
    assert all("looking whether process" in line for line in lines)
    with RunFolder(bucket).held(lines.append):
        pass


def test_a_run_that_stood_still_does_not_write_over_its_successor(bucket, quick_leases):
    first = RunFolder(bucket)
    with first.held(print):
        first.fetch()
        write(first.local / "a.txt", "1")
        first._lease._done.set()  # while it stands still, it renews nothing
        first._lease._thread.join()
        write(epath.Path(bucket) / ".lock", '{"process": 7, "host": "far"}')
        with pytest.raises(UserError, match="in use by process 7 on far"):
            first.upload()
    assert names(epath.Path(bucket)) == [".lock"]
