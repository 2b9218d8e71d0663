import dataclasses
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from bert_jax import progress
from bert_jax.data import checksums
from bert_jax.data.checksums import Check, check_now
from bert_jax.data.store import TokenStore, finish_store, shard_writer, write_info
from bert_jax.errors import UserError

NAMES = (
    *(f"shard-0000{i}-of-00003.tokens" for i in range(3)),
    *("index/sentence_offsets.npy", "index/document_sentences.npy"),
)


@pytest.fixture
def folder(tmp_path):
    """A store of three shards."""
    random = np.random.default_rng(4)
    for shard in range(3):
        with shard_writer(tmp_path / "store", shard, 3, np.dtype("<u2")) as append:
            for _ in range(5):
                append([random.integers(5, 90, 7, np.uint16) for _ in range(4)])
    identity = {"vocabulary_fingerprint": "f", "settings": {"shards": 3}}
    finish_store(tmp_path / "store", 90, identity)
    return tmp_path / "store"


@pytest.fixture
def reads(monkeypatch):
    """The names of the files that are read, in order."""
    names, read = [], checksums._read

    def counted(directory, name, known):
        names.append(name)
        return read(directory, name, known)

    monkeypatch.setattr(checksums, "_read", counted)
    return names


def flip(path):
    """Changes a number of a file so that the index still ascends."""
    content = bytearray(path.read_bytes())
    content[-16 if path.suffix == ".npy" else 20] ^= 1
    path.write_bytes(content)


def stamped(folder):
    """The names of the files that have a stamp in a folder of stamps."""
    return {path.stem.replace("index-", "index/") for path in folder.iterdir()}


def check(folder, share=0.0):
    """Checks a store in a thread, and waits for it."""
    with Check([TokenStore(folder)], share) as started:
        assert started.finished(wait=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_number_in_any_file_is_found(folder, name):
    check(folder)
    flip(folder / name)
    message = (
        rf"{name} is damaged \(.*its checksum is \d+.*; expected the checksum \d+; "
    )
    with pytest.raises(UserError, match=message):
        check(folder)
    with pytest.raises(UserError, match=message):
        check_now(TokenStore(folder))


def test_a_file_is_read_again_only_after_a_change(folder, reads):
    check(folder)
    check(folder)
    assert reads == [*NAMES]
    reads.clear()
    os.utime(folder / NAMES[1], ns=(1, 1))
    check(folder)
    assert reads == [NAMES[1]]
    reads.clear()
    check_now(TokenStore(folder))  # always reads
    assert reads == [*NAMES]


def test_a_copy_with_all_times_and_stamps_is_read(folder, tmp_path, reads):
    check(folder)
    reads.clear()
    copy = shutil.copytree(folder, tmp_path / "copy")
    for name in NAMES:
        before, after = (folder / name).stat(), (copy / name).stat()
        assert before.st_mtime_ns == after.st_mtime_ns
    check(copy)
    assert reads == [*NAMES]
    # A change of bytes that resets the time of the file.
    reads.clear()
    path = copy / NAMES[3]
    before = path.stat()
    flip(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(UserError, match=NAMES[3]):
        check(copy)
    assert reads == [NAMES[3]]


def test_files_that_were_checked_on_request_are_not_read_again(folder, reads):
    check_now(TokenStore(folder))
    assert stamped(folder / ".checked") == {*NAMES}
    reads.clear()
    check(folder)
    assert reads == []


def test_a_damaged_stamp_only_costs_a_read(folder, reads):
    check(folder)
    (folder / ".checked/index-document_sentences.npy.json").write_text('{"size": 3}')
    reads.clear()
    check(folder)
    assert reads == [NAMES[4]]


@pytest.mark.parametrize("name", [NAMES[0], NAMES[4]])
def test_a_file_that_became_shorter_is_named(folder, name):
    """A memory map of the file would end the process with a signal."""
    store = TokenStore(folder)
    os.truncate(folder / name, 0 if name == NAMES[0] else 136)
    with pytest.raises(UserError, match=f"{name} is damaged .*its checksum is"):
        check_now(store)
    with Check([store]) as work, pytest.raises(UserError, match=f"{name} is damaged"):
        work.finished(wait=True)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs Linux")
def test_an_error_of_the_disk_is_one_line(folder):
    store = TokenStore(folder)
    (folder / NAMES[1]).unlink()
    # Reading the first bytes of this file raises EIO.
    (folder / NAMES[1]).symlink_to("/proc/self/mem")
    message = rf"cannot read .*{NAMES[1]} \(Input/output error\); expected the checksum"
    with Check([store]) as work, pytest.raises(UserError, match=message):
        work.finished(wait=True)


def test_a_file_that_is_damaged_has_no_stamp(folder):
    flip(folder / NAMES[1])
    for _ in range(2):
        with pytest.raises(UserError, match=NAMES[1]):
            check(folder)
    assert stamped(folder / ".checked") == {NAMES[0]}


def test_processes_start_at_different_files(folder):
    flip(folder / NAMES[3])
    with pytest.raises(UserError, match=NAMES[3]):
        check(folder, share=2 / 5)
    assert stamped(folder / ".checked") == {NAMES[2]}


def test_stamps_of_a_store_that_is_not_writable_are_in_the_cache(
    folder, monkeypatch, tmp_path, reads
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(checksums.os, "access", lambda *_: False)
    check(folder)
    assert not (folder / ".checked").exists()
    (stamps,) = (tmp_path / "cache/bert_jax/checked").iterdir()
    assert stamped(stamps) == {*NAMES}
    reads.clear()
    check(folder)
    assert reads == []


def test_a_check_does_not_hold_up_its_caller_and_ends_with_its_block(
    folder, monkeypatch
):
    started, go_on, threads = threading.Event(), threading.Event(), []

    def read(directory, name, known):
        threads.append(threading.current_thread())
        started.set()
        go_on.wait()
        yield 3
        raise AssertionError("read on after the end of the block")

    monkeypatch.setattr(checksums, "_read", read)
    with Check([TokenStore(folder)]) as work:
        started.wait()
        assert not work.finished()
    go_on.set()
    (thread,) = threads
    thread.join()
    assert work.finished()
    assert len(threads) == 1


def test_only_a_block_that_is_read_is_progress_during_a_wait(folder, monkeypatch):
    """The step deadline therefore ends a process whose disk hangs."""
    made, before, idle = [], [], []
    one_read, awaited = threading.Event(), threading.Event()

    class Ended(threading.Event):
        def wait(self, timeout=None):
            awaited.set()
            return super().wait(timeout)

    def read(directory, name, known):
        yield 3
        before.append(len(made))
        one_read.set()
        awaited.wait()
        idle.append(progress.idle_seconds())
        yield 3
        yield 3

    monkeypatch.setattr(checksums, "_read", read)
    monkeypatch.setattr(checksums, "made_progress", lambda: made.append(1))
    monkeypatch.setattr(progress, "_last", progress._last - 1000)
    work = Check([TokenStore(folder)])
    work._ended = Ended()
    with work:
        one_read.wait()
        assert work.finished(wait=True)
    assert before[0] == 0
    assert len(made) == 3 * len(NAMES) - 1
    assert min(idle) >= 1000


def test_checksums_are_added_to_a_store_without_them(folder):
    index = (folder / "index.json").read_text()
    store = TokenStore(folder)
    write_info(folder, dataclasses.replace(store.info, checksums={}))
    flip(folder / NAMES[0])
    check(folder)  # there is nothing to compare with
    flip(folder / NAMES[0])
    check_now(TokenStore(folder))
    assert (folder / "index.json").read_text() == index
    check(folder)


def test_the_checksums_of_0_1_0_are_read(golden, tmp_path):
    store = TokenStore(shutil.copytree(golden / "v0_1_0/text", tmp_path / "text"))
    assert store.info.checksums.keys() == store.files.keys()
    check_now(store)
    assert len(store.info.fingerprint()) == 16


def test_checksums_of_other_files_are_refused(folder):
    info = TokenStore(folder).info
    write_info(folder, dataclasses.replace(info, checksums={NAMES[0]: 3}))
    with pytest.raises(UserError, match=r"index.json is damaged .*for other files"):
        TokenStore(folder)
