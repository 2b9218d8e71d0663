import errno
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bert_jax.data import preparation
from bert_jax.data.corpus import find_sources, read_documents
from bert_jax.data.corpus_formats import PASSAGES, Reading
from bert_jax.data.preparation import plan_shards, prepare, shard_count
from bert_jax.data.store import UNFINISHED, TokenStore
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.data.vocabulary_training import train_vocabulary
from bert_jax.data.wordpiece import WordPieceTokenizer
from bert_jax.errors import UserError
from bert_jax.files import locked

GOLDEN = Path(__file__).parents[1] / "golden"
VOCABULARY = GOLDEN / "tokenizer" / "uncased_vocab.txt"
TEXT = GOLDEN / "pretraining_data" / "moby_dick_sentences.txt"


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(VOCABULARY)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A folder of three files, 250 kB. Two files can be split."""
    folder = tmp_path_factory.mktemp("text")
    documents = TEXT.read_text().split("\n\n")
    documents[0] += "\nA \U0001f984 came."  # a token that no vocabulary contains
    (folder / "a.txt").write_text("\n\n".join(documents[:10]) + "\n")
    (folder / "b.md").write_text("# B\n\n" + "\n\n".join(documents[10:14]))
    (folder / "c.jsonl").write_text(
        "".join(json.dumps({"text": d}) + "\n" for d in documents[14:25])
    )
    return folder


def contents(directory):
    """Every file of the store, by name."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and not path.name.startswith("part-")
    }


@pytest.fixture
def interrupted_in(monkeypatch):
    """A function that interrupts the preparation in a given shard, like Ctrl-C."""
    write = preparation.Writer.__call__

    def interrupted_in(shard):
        def interrupted_write(writer, number, parts):
            if number == shard:
                raise KeyboardInterrupt
            return write(writer, number, parts)

        monkeypatch.setattr(preparation.Writer, "__call__", interrupted_write)

    return interrupted_in


@pytest.fixture(scope="module")
def prepared(text, tokenizer, tmp_path_factory):
    directory = tmp_path_factory.mktemp("prepared") / "store"
    report = prepare([str(text)], tokenizer, directory, shards=4, workers=1)
    return directory, report


def test_a_store_contains_every_sentence_in_order(prepared, text, tokenizer):
    directory, report = prepared
    documents = list(read_documents([str(text)]))
    expected = [ids for d in documents for ids in tokenizer.encode_batch(d)]
    store = TokenStore(directory)
    assert store.info == report.info
    assert store.info.documents == len(documents)
    assert store.info.sentences == len(expected)
    assert store.info.tokens == sum(map(len, expected))
    assert store.info.vocabulary_fingerprint == tokenizer.fingerprint()
    ranges = np.array([(i, i + 1) for i in range(0, len(expected), 7)])
    for (i, _), ids in zip(ranges, store.read_sentences(ranges), strict=True):
        np.testing.assert_array_equal(ids, expected[i])
    ends = np.cumsum([0] + [len(d) for d in documents])
    np.testing.assert_array_equal(store.document_sentences, ends)
    assert load_tokenizer(directory).fingerprint() == tokenizer.fingerprint()
    # The report counts only the work of this call.
    assert report.counts["tokens"] == store.info.tokens
    assert report.counts["text_bytes"] == sum(p.stat().st_size for p in text.iterdir())
    unknown = sum(int((ids == tokenizer.unk_id).sum()) for ids in expected)
    assert report.counts["unknown"] == unknown > 0
    share = f"{100 * unknown / store.info.tokens:.2f}% unknown tokens"
    assert f"{len(documents)} documents" in str(report) and share in str(report)


def test_the_language_is_kept_after_an_interruption(
    tokenizer, tmp_path, monkeypatch, interrupted_in
):
    text, directory = tmp_path / "a.jsonl", tmp_path / "store"
    row = json.dumps({"text": "Prof. Dr. Abel kam bzw. ging. Am 3. Mai kam er."})
    text.write_text(f"{row}\n" * 300)
    arguments = ([str(text)], tokenizer, directory)
    settings = {"shards": 4, "workers": 1, "language": "de"}
    interrupted_in(2)
    with pytest.raises(KeyboardInterrupt):
        prepare(*arguments, **settings)
    monkeypatch.undo()
    with pytest.raises(UserError, match="language was de, now en"):
        prepare(*arguments, shards=4, workers=1)
    report = prepare(*arguments, **settings)
    assert report.info.sentences == 600
    assert report.info.settings["language"] == "de"


def test_dropped_parts_are_counted_over_shards(tokenizer, tmp_path):
    head = "".join(f'<doc id="{i}" title="T">\nT\n\n' + "{}</doc>\n" for i in range(99))
    body = "This sentence is long enough to be kept in a text of sixty letters.\nH.\n"
    (tmp_path / "wiki_00").write_text(head.format(*[body] * 98, ""))
    inputs = [str(tmp_path / "wiki_00")]
    report = prepare(inputs, tokenizer, tmp_path / "s", shards=4, workers=1)
    assert report.info.sentences == 98
    assert report.counts[PASSAGES] == 99 + 98
    assert f"left out: 197 {PASSAGES}" in str(report)


def test_a_second_run_has_nothing_left_to_do(prepared, text, tokenizer, tmp_path):
    """Even if the text was moved to another folder."""
    directory, _ = prepared
    before = {p: p.stat().st_mtime_ns for p in directory.rglob("*")}
    shutil.copytree(text, tmp_path / "moved")
    for place in (text, tmp_path / "moved"):
        report = prepare([str(place)], tokenizer, directory, shards=4)
        assert not report.counts
        assert "already prepared" in str(report)
    assert {p: p.stat().st_mtime_ns for p in directory.rglob("*")} == before


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_run_resumes_and_ends_equal(
    prepared, text, tokenizer, tmp_path, monkeypatch, workers
):
    complete, _ = prepared
    directory = tmp_path / "store"

    # Within the second shard; with several processes, after the first shard.
    place = (preparation.Progress, "update")
    if workers == 1:
        place = (WordPieceTokenizer, "encode_batch")
    original = getattr(*place)

    def interrupt_later(*arguments):
        if any(directory.glob("index/part-*.npz")):
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(*place, interrupt_later)
    with pytest.raises(KeyboardInterrupt):
        prepare([str(text)], tokenizer, directory, shards=4, workers=workers)
    monkeypatch.undo()
    assert not multiprocessing.active_children()
    assert not (directory / "index.json").exists()
    with pytest.raises(UserError, match=r"index\.json does not exist"):
        TokenStore(directory)
    # A killed process leaves a partial file.
    for name in (".shard-00001-of-00004.tokens.7.tmp", "index/.part-00001.npz.7.tmp"):
        (directory / name).touch()
    report = prepare([str(text)], tokenizer, directory, shards=4, workers=workers)
    assert report.counts["text_bytes"] < sum(p.stat().st_size for p in text.iterdir())
    assert contents(directory) == contents(complete)


@pytest.mark.long
def test_a_killed_run_resumes_and_leaves_no_process(
    prepared, text, tokenizer, tmp_path
):
    complete, _ = prepared
    directory = tmp_path / "store"
    # The parent is killed after the first shard, at any point of the second one.
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from bert_jax.data import preparation\n"
        "from bert_jax.data.tokenizer_files import load_tokenizer\n"
        "def kill(progress, size):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "preparation.Progress.update = kill\n"
        "if __name__ == '__main__':\n"
        "    preparation.prepare([sys.argv[1]], load_tokenizer(sys.argv[2]),\n"
        "        Path(sys.argv[3]), shards=4, workers=2)\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    result = subprocess.run(
        [sys.executable, script, text, VOCABULARY, directory],
        env={**os.environ, "PYTHONPATH": str(GOLDEN.parents[1])},
        capture_output=True,
        text=True,
    )
    assert result.returncode == -signal.SIGKILL, result.stderr
    assert not (directory / "index.json").exists()
    # Its output ended, so its workers, which share it, have ended as well.
    prepare([str(text)], tokenizer, directory, shards=4, workers=1)
    assert contents(directory) == contents(complete)


def test_changed_settings_are_refused_with_their_names(prepared, text, tokenizer):
    directory, _ = prepared
    before = contents(directory)
    cased = WordPieceTokenizer(tokenizer.tokens, lower_case=False)
    for message, used, inputs, settings in [
        ("vocabulary_fingerprint was", cased, text, {}),
        ("shards was 4, now 3", tokenizer, text, {"shards": 3}),
        ("text.files was 3, now 1", tokenizer, text / "a.txt", {}),
        ("format was auto, now lines", tokenizer, text, {"format": "lines"}),
        ("text_field was text, now x", tokenizer, text, {"text_field": "x"}),
    ]:
        with pytest.raises(UserError, match=message):
            prepare([str(inputs)], used, directory, **{"shards": 4, **settings})
    assert contents(directory) == before


def test_a_store_of_version_0_1_0_is_read_and_not_continued(tmp_path):
    directory = tmp_path / "store"
    shutil.copytree(GOLDEN / "v0_1_0" / "text", directory)
    (directory / "text.txt").rename(tmp_path / "text.txt")
    tokenizer = load_tokenizer(directory)
    stored = TokenStore(directory).info.vocabulary_fingerprint
    assert tokenizer.fingerprint() == stored
    before = contents(directory)
    message = "segmenter was sentencex 1.0.32, rules 1, now sentencex .*, rules 2"
    with pytest.raises(UserError, match=message):
        prepare([str(tmp_path / "text.txt")], tokenizer, directory)
    assert contents(directory) == before


def test_changed_text_is_detected_at_any_position(
    tokenizer, tmp_path, monkeypatch, interrupted_in
):
    path, directory = tmp_path / "a.txt", tmp_path / "store"
    sentences = [f"The ship number {i:05d} is at sea.\n" for i in range(4000)]
    path.write_text("".join(sentences))
    inputs = ([str(path)], tokenizer)
    interrupted_in(2)
    with pytest.raises(KeyboardInterrupt):
        prepare(*inputs, directory, shards=4, workers=1)
    monkeypatch.undo()
    # The changed text has the same size and differs far after the start.
    sentences[3000] = "The crew number 03000 is at sea.\n"
    path.write_text("".join(sentences))
    with pytest.raises(UserError, match=r"text\.fingerprint was .*, now "):
        prepare(*inputs, directory, shards=4, workers=1)


def test_bad_input_leaves_no_store(text, tokenizer, tmp_path):
    directory, titles = tmp_path / "store", tmp_path / "titles.txt"
    with pytest.raises(UserError, match="does not exist"):
        prepare([str(titles)], tokenizer, directory)
    with pytest.raises(UserError, match="shards=-1, expected at least 0"):
        prepare([str(text)], tokenizer, directory, shards=-1)
    assert not directory.exists()
    titles.write_text('<doc title="A">\nA\n</doc>\n')
    for _ in range(2):
        with pytest.raises(UserError, match="no text"):
            prepare([str(titles)], tokenizer, directory)
        assert not [*directory.glob("*.*")]
    # The folder can be used with other text and another vocabulary, which it may contain
    # if the last preparation was killed before the first shard.
    bpe = train_vocabulary(["The whale swims."] * 9, 300, kind="bpe")
    (directory / UNFINISHED).write_text("{}")
    tokenizer.save(directory)
    (directory / "mine.txt").write_text("mine")
    prepare([str(text)], bpe, directory, workers=1, shards=2)
    assert {path.name for path in directory.glob("[!.]*")} == {
        *("index", "index.json", "mine.txt"),
        *("tokenizer.json", "tokenizer_config.json"),
        *("shard-00000-of-00002.tokens", "shard-00001-of-00002.tokens"),
    }


def test_an_error_in_a_worker_has_file_and_line(tokenizer, tmp_path):
    good, path = json.dumps({"text": "Good."}) + "\n", tmp_path / "a.jsonl"
    path.write_text(good * 5000 + "{}\n" + good * 5000)
    with pytest.raises(UserError, match=r"a.jsonl:5001: expected a JSON object"):
        prepare([str(path)], tokenizer, tmp_path / "s", workers=2, shards=4)
    assert not (tmp_path / "s" / "index.json").exists()


@pytest.mark.parametrize("writer", ["savez", "write_array_header_1_0"])
def test_a_full_disk_leaves_no_store_that_looks_finished(
    prepared, text, tokenizer, tmp_path, monkeypatch, writer
):
    """The disk fills up at the end of a shard, or while the index is joined."""
    directory = tmp_path / "store"
    module = np if writer == "savez" else np.lib.format
    write = getattr(module, writer)

    def full(file, *arrays, **named):
        write(file, *arrays, **named)
        if "part-00002" in file.name or "sentence_offsets" in file.name:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, writer, full)
    with pytest.raises(OSError, match="No space left"):
        prepare([str(text)], tokenizer, directory, shards=4, workers=1)
    assert not (directory / "index.json").exists()
    assert not list(directory.rglob("*.tmp"))
    assert not (directory / "index" / "sentence_offsets.npy").exists()
    finished = len(list(directory.glob("index/part-*")))
    assert finished == (2 if writer == "savez" else 4)
    monkeypatch.undo()
    report = prepare([str(text)], tokenizer, directory, shards=4, workers=1)
    assert bool(report.counts) == (finished < 4)
    assert contents(directory) == contents(prepared[0])


def test_a_second_run_at_the_same_time_is_refused(text, tokenizer, tmp_path):
    refused = pytest.raises(UserError, match=f"in use by process {os.getpid()} on ")
    with locked(tmp_path / "store"), refused:
        prepare([str(text)], tokenizer, tmp_path / "store")


class Deadly(WordPieceTokenizer):
    """Kills the process that uses it."""

    def encode_batch(self, texts):
        os.kill(os.getpid(), signal.SIGKILL)

    def __reduce__(self):
        return Deadly, (self.tokens, self.lower_case)


def test_a_killed_worker_is_a_one_line_error(text, tokenizer, tmp_path):
    deadly = Deadly(tokenizer.tokens, tokenizer.lower_case)
    with pytest.raises(UserError, match="a worker process was killed"):
        prepare([str(text)], deadly, tmp_path / "store", shards=4, workers=2)
    assert not multiprocessing.active_children()


def test_a_plan_covers_every_byte_once(text):
    sources = find_sources([str(text), str(text / "a.txt")], Reading())
    for shards in (1, 2, 5, 17):
        parts = [p for shard in plan_shards(sources, shards) for p in shard]
        for source in dict.fromkeys(sources):
            copies = sources.count(source)
            ranges = sorted(
                (a, b) for part_source, a, b in parts if part_source == source
            )
            assert sum(stop - start for start, stop in ranges) == copies * source.size
            assert source.splittable or ranges == [(0, source.size)] * copies
            assert len(ranges) >= copies
        splittable = [s for s in sources if s.splittable]
        plan = plan_shards(splittable, shards)
        sizes = [sum(stop - start for _, start, stop in shard) for shard in plan]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    "size, shards",
    [(1, 1), (4 << 20, 1), (46 << 20, 12), (10 << 30, 256), (1 << 40, 2048)],
)
def test_a_shard_for_every_4_mib_up_to_256_and_then_of_512_mib(size, shards):
    assert shard_count(size) == shards
