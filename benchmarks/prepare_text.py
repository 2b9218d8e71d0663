"""Preparing text: our CPU seconds and MB/s per core beside the original's way.

One process, one core's work; CPU time, not wall time, so a busy machine changes little.

usage:
  python benchmarks/prepare_text.py [--json FILE] [--repeat 10]
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from reference_data import ReferenceTokenizer, create_pretraining_data

from bert_jax.data.preparation import prepare
from bert_jax.data.tokenizer_files import load_tokenizer

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
TEXT = GOLDEN / "pretraining_data" / "moby_dick_sentences.txt"
VOCABULARY = GOLDEN / "tokenizer" / "uncased_vocab.txt"
# The original's own time for this text and vocabulary (length 128, dupe_factor 5, one
# core), measured separately: it needs TensorFlow 1.
ORIGINAL_SECONDS = 7.0


def _best(work: Callable[[], object], times: int = 3) -> float:
    """The least CPU seconds, all threads counted, of a few runs."""
    seconds = []
    for _ in range(times):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


def _prepare(text: Path, folder: Path, format: str) -> None:
    # Loaded anew each time: the tokenizer remembers words.
    tokenizer = load_tokenizer(VOCABULARY)
    with tempfile.TemporaryDirectory(dir=folder) as output:
        prepare([str(text)], tokenizer, Path(output), format=format, workers=1)


def _command(text: Path, folder: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory(dir=folder) as output:
        subprocess.run(
            [
                *(sys.executable, "-m", "bert_jax.prepare", "--workers", "1"),
                *("--input", text, "--vocabulary", VOCABULARY, "--output", output),
            ],
            check=True,
            capture_output=True,
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measures and prints a table, and writes it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--repeat", type=int, default=10, help="copies in the long text"
    )
    args = parser.parse_args()

    content = TEXT.read_text()
    size = len(content.encode())
    rows: list[tuple[str, float, int]] = []  # what, CPU seconds, bytes
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # The same sentences as paragraphs of eight, which have to be found again.
        paragraphs = folder / "paragraphs.txt"
        paragraphs.write_text(_as_paragraphs(content))
        long = folder / "long.txt"
        long.write_text("\n\n\n".join([paragraphs.read_text()] * args.repeat))
        with Path(os.devnull).open("w") as sys.stderr:  # no progress bars in the table
            for what, text, format, times in (
                ("read, tokenise, write", TEXT, "lines", 3),
                ("read, segment, tokenise, write", paragraphs, "paragraphs", 3),
                (f"the same, text x {args.repeat}", long, "paragraphs", 1),
            ):
                seconds = _best(lambda t=text, f=format: _prepare(t, folder, f), times)
                rows.append((f"bert_jax: {what}", seconds, text.stat().st_size))
        sys.stderr = sys.__stderr__
        rows.append(
            ("bert_jax: the whole command, imports too", _command(TEXT, folder), size)
        )
        reference = ReferenceTokenizer(VOCABULARY)
        seconds = _best(
            lambda: create_pretraining_data(
                content.split("\n"), reference, folder / "out"
            ),
            1,
        )
        rows.append(("stand-in for create_pretraining_data.py", seconds, size))
    rows.append(("create_pretraining_data.py, measured apart", ORIGINAL_SECONDS, size))

    standin = rows[-2][1] / rows[-2][2]
    original = rows[-1][1] / rows[-1][2]
    print(f"{platform.python_implementation()} {platform.python_version()}, one core")
    print(f"{'':44} CPU s     MB   MB/s  x stand-in  x original")
    results = []
    for what, seconds, length in rows:
        cost = seconds / length
        print(
            f"{what:44} {seconds:5.2f} {length / 1e6:6.2f} {length / 1e6 / seconds:6.2f} "
            f"{standin / cost:11.1f} {original / cost:11.1f}"
        )
        results.append(
            {
                "what": what,
                "cpu_seconds": seconds,
                "bytes": length,
                "times_standin": standin / cost,
                "times_original": original / cost,
            }
        )
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


def _as_paragraphs(content: str) -> str:
    documents = []
    for document in content.strip().split("\n\n"):
        sentences = document.split("\n")
        blocks = [" ".join(sentences[i : i + 8]) for i in range(0, len(sentences), 8)]
        documents.append("\n\n".join(blocks))
    return "\n\n\n".join(documents) + "\n"


if __name__ == "__main__":
    main()
