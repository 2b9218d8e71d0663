"""Folders of an object store on a local server."""

import datetime
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from etils import epath

from bert_jax import remote
from bert_jax.errors import UserError
from bert_jax.files import is_remote
from bert_jax.remote import cached_folder, local_copy


@pytest.fixture
def folder(bucket):
    """A writable path in a bucket."""
    return epath.Path(bucket)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_url_is_remote_and_a_path_is_not():
    assert is_remote("gs://bucket/x")
    assert not is_remote("runs/x")
    for url in ("foo://a/b", "https://huggingface.co/a/b", "file:///a"):
        with pytest.raises(UserError, match=rf"^{url} needs a library"):
            local_copy(url)


def test_a_store_is_copied_once_and_again_after_a_change(folder):
    with pytest.raises(UserError, match=rf"{folder} does not exist"):
        local_copy(folder)
    write(folder / "index/a.npy", "1")
    write(folder / "index.json", "{}")
    copy = local_copy(folder)
    assert (copy / "index/a.npy").read_text() == "1"
    (copy / "mark").touch()
    assert local_copy(folder) == copy
    assert (copy / "mark").exists()
    write(folder / "index/a.npy", "2")
    assert (local_copy(folder) / "index/a.npy").read_text() == "2"
    assert not (copy / "mark").exists()


def test_processes_of_a_host_share_one_download(folder, monkeypatch):
    """All processes look for the copy at once. The first downloads, the others wait."""
    count, copies, downloads = 4, [], []
    write(folder / "index.json", "{}")
    write(folder / "part", "1")
    barrier, place, download = threading.Barrier(count), cached_folder, remote.download

    def together(path):
        barrier.wait()
        return place(path)

    def counted(*arguments):
        downloads.append(arguments)
        download(*arguments)

    monkeypatch.setattr(remote, "cached_folder", together)
    monkeypatch.setattr(remote, "download", counted)
    threads = [
        threading.Thread(target=lambda: copies.append(local_copy(folder)))
        for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(downloads) == 1
    assert copies == [place(folder)] * count
    assert names(copies[0]) == [".files", "index.json", "part"]


def test_only_the_model_files_of_a_checkpoint_are_copied(folder):
    write(folder / "config.json", "{}")
    write(folder / "best/model.safetensors", "1")
    modules = {"1_Pooling/config.json", "best/2_Dense/config.json"}
    for name in modules:
        write(folder / name, "{}")
    write(folder / "checkpoints/5/large", "x")
    write(folder / "sweep/run/large", "x")
    copy = local_copy(folder, model=True)
    copied = {p.relative_to(copy).as_posix() for p in copy.rglob("*") if p.is_file()}
    assert copied == modules | {".files", "config.json", "best/model.safetensors"}
    write(folder / "best/model.safetensors", "22")
    (folder / "config.json").unlink()
    assert local_copy(folder, model=True) == copy
    assert (copy / "best/model.safetensors").read_text() == "22"
    assert not (copy / "config.json").exists()


def test_a_google_checkpoint_is_copied_by_its_prefix(folder):
    for name in ("bert_model.ckpt.index", "bert_config.json", "other/x"):
        write(folder / name, name)
    copy = local_copy(folder / "bert_model.ckpt", model=True)
    assert copy.with_suffix(".ckpt.index").read_text() == "bert_model.ckpt.index"
    assert names(copy.parent) == [".files", "bert_config.json", "bert_model.ckpt.index"]
    with pytest.raises(UserError, match="nothing does not exist"):
        local_copy(folder / "nothing", model=True)


@pytest.mark.parametrize("key", ["mtime", "updated", "LastModified", "last_modified"])
def test_each_library_of_a_store_has_its_own_name_for_the_time(monkeypatch, key):
    """gcsfs, s3fs and adlfs. A file that keeps its size may have changed."""
    time = datetime.datetime(2026, 1, 2, 3)
    found = {"root/a": {"size": 3, key: time, "ETag": "x"}, "root/b/": {"size": 0}}
    store = SimpleNamespace(find=lambda root, detail: found)
    monkeypatch.setattr(remote.fsspec.core, "url_to_fs", lambda _: (store, "root"))
    assert remote.list_files("gs://bucket") == {"a": [3, "2026-01-02 03:00:00"]}


@pytest.fixture
def served(monkeypatch):
    """A function of a function: the store calls it to download a file."""

    def serve(get_file):
        store = SimpleNamespace(get_file=get_file)
        monkeypatch.setattr(remote.fsspec.core, "url_to_fs", lambda _: (store, "root"))

    return serve


def test_several_files_are_downloaded_at_a_time(served, tmp_path):
    """Each download waits until all others have started."""
    files = ["index.json", "index/a.npy", "part-0", "part-1"]
    all_started = threading.Barrier(len(files))

    def get_file(source, target):
        all_started.wait(60)
        Path(target).write_text(source)

    served(get_file)
    remote.download("gs://bucket/store", files, tmp_path)
    for name in files:
        assert (tmp_path / name).read_text() == f"root/{name}"


def test_after_an_error_no_further_file_is_downloaded(served, tmp_path, monkeypatch):
    started = []

    def get_file(source, target):
        started.append(source)
        raise OSError("the network is down")

    served(get_file)
    monkeypatch.setattr(remote, "_DOWNLOADS", 1)
    files = [f"part-{number}" for number in range(2000)]
    with pytest.raises(OSError, match="the network is down"):
        remote.download("gs://bucket/store", files, tmp_path)
    assert len(started) < len(files)


def test_names_in_a_store_cannot_escape_the_copy(folder, tmp_path):
    """Object stores accept any name."""
    for name in ("../evil", f"{tmp_path}/evil", "a/../../evil"):
        with pytest.raises(UserError, match="is outside the folder"):
            remote.download(folder, [name], tmp_path / "copy")
    assert not list(tmp_path.glob("**/evil"))
