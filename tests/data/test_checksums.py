import dataclasses
import json
import os
import threading

import numpy as np
import pytest

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


def flip(path, *, keep_time=False):
    """Changes a number of a file so that the index still ascends."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[-16 if path.suffix == ".npy" else 20] ^= 1
    path.write_bytes(content)
    if keep_time:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def check(folder, share=0.0):
    """Checks a store in a thread, and waits for it."""
    with Check(TokenStore(folder), share) as started:
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


def test_a_file_is_read_again_only_after_a_change(folder):
    """Proved by damage that keeps size and time, which only a read can find."""
    check(folder)
    for name in NAMES:
        flip(folder / name, keep_time=True)
    check(folder)
    with pytest.raises(UserError, match="is damaged"):
        check_now(TokenStore(folder))  # always reads
    os.utime(folder / NAMES[1], ns=(1, 1))
    with pytest.raises(UserError, match=NAMES[1]):
        check(folder)


def test_a_file_that_is_damaged_is_not_recorded_as_checked(folder):
    flip(folder / NAMES[1])
    for _ in range(2):
        with pytest.raises(UserError, match=NAMES[1]):
            check(folder)
    recorded = json.loads((folder / ".checked").read_text())
    assert recorded.keys() == {NAMES[0]}


def test_processes_start_at_different_files(folder):
    flip(folder / NAMES[3])
    with pytest.raises(UserError, match=NAMES[3]):
        check(folder, share=2 / 5)
    recorded = json.loads((folder / ".checked").read_text())
    assert recorded.keys() == {NAMES[2]}


def test_checked_files_of_a_store_that_is_not_writable_are_in_the_cache(
    folder, monkeypatch, tmp_path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(checksums.os, "access", lambda *_: False)
    check(folder)
    assert not (folder / ".checked").exists()
    (path,) = (tmp_path / "cache/bert_jax/checked").iterdir()
    assert json.loads(path.read_text()).keys() == {*NAMES}
    flip(folder / NAMES[0], keep_time=True)
    check(folder)


def test_a_check_does_not_hold_up_its_caller_and_ends_with_its_block(
    folder, monkeypatch
):
    started, go_on, threads = threading.Event(), threading.Event(), []

    def blocks(numbers):
        threads.append(threading.current_thread())
        started.set()
        for part in (numbers[:3], numbers[3:]):
            go_on.wait()
            yield part

    monkeypatch.setattr(checksums, "_blocks", blocks)
    with Check(TokenStore(folder)) as work:
        started.wait()
        assert not work.finished()
    go_on.set()
    (thread,) = threads
    thread.join()
    assert len(threads) == 1 and not (folder / ".checked").exists()


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


def test_the_checksums_of_0_1_0_are_read(golden):
    store = TokenStore(golden / "v0_1_0/text")
    assert store.info.checksums.keys() == store.files.keys()
    check_now(store)
    assert len(store.info.fingerprint()) == 16


def test_checksums_of_other_files_are_refused(folder):
    info = TokenStore(folder).info
    write_info(folder, dataclasses.replace(info, checksums={NAMES[0]: 3}))
    with pytest.raises(UserError, match=r"index.json is damaged .*of other files"):
        TokenStore(folder)
