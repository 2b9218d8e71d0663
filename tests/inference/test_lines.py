import os
import threading

import pytest

from bert_jax.inference.lines import chunks, read_lines

pytestmark = pytest.mark.usefixtures("quick_compiles")


def test_only_line_feeds_end_a_line(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes("a\u2028b\x0bc\r\n\nd".encode())
    assert list(read_lines(str(path))) == ["a\u2028b\x0bc", "", "d"]


def test_a_pipe_is_read(tmp_path):
    """As a shell's <(command) is."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("a\nb\n",), daemon=True)
    writer.start()
    assert list(read_lines(str(path))) == ["a", "b"]
    writer.join()


def test_chunks_hold_every_line_once():
    lines = [str(i) for i in range(10)]
    assert [len(chunk) for chunk in chunks(lines, 4)] == [4, 4, 2]
    assert [line for chunk in chunks(lines, 4) for line in chunk] == lines
    assert list(chunks([], 4)) == []


def test_a_chunk_may_wait_for_its_end():
    lines = list("ab.cdef.g")
    found = ["".join(chunk) for chunk in chunks(lines, 2, lambda line: line == ".")]
    assert found == ["ab.", "cdef.", "g"]
