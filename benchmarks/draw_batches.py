"""How fast pretraining batches are drawn, against drawing them as the original does.

Ours reads a token store, pairs and masks for each epoch anew. One peer is reference_data's
re-statement of create_pretraining_data.py's loops over the same tokens in memory, another,
with --peer_python (see draw_batches_peer.py), transformers' collator, which only masks. CPU
seconds of one core, so that a busy machine counts less.

usage:
  python benchmarks/draw_batches.py [--repeats 5] [--peer_python PEER/bin/python]
    [--output FILE.json]
  python benchmarks/draw_batches.py --hosts 4,32,256 [--gs gs://BUCKET/FOLDER]
    [--output FILE.json]

With --hosts: what a step of pretraining costs each host, whose share of the packed batch is
drawn here one after the other. A host has four devices; text is random, of Wikipedia's
lengths. The last columns are how many of its cores it keeps busy so, where its chips train
BASE at half of their peak. --gs: a bucket, such as of a server that emulates one, where the
text lies; each host has a copy.
"""

import argparse
import itertools
import random
import tempfile
import time
from pathlib import Path

import numpy as np
from measure import (
    HERE,
    markdown,
    median_and_spread,
    run_worker,
    write_report,
)
from reference_data import ReferenceTokenizer, instances

from bert_jax.data.examples import ExampleConfig, ExampleSource
from bert_jax.data.pipeline import Phase, TrainingBatches
from bert_jax.data.preparation import prepare
from bert_jax.data.store import TokenStore, finish_store, shard_writer
from bert_jax.data.tokenizer import token_dtype
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.files import open_remote
from bert_jax.model.config import BertConfig
from bert_jax.parallel.remote import local_copy
from bert_jax.training.metrics import PEAK_FLOPS

GOLDEN = HERE.parent / "tests" / "golden"
TEXT = GOLDEN / "pretraining_data" / "moby_dick_sentences.txt"
VOCABULARY = GOLDEN / "tokenizer" / "uncased_vocab.txt"
CASES = (
    (128, 20, "token"),
    (512, 77, "token"),
    (128, 20, "whole_word"),
    (512, 77, "whole_word"),
    (128, 20, "ngram"),
)

HOST_CASES = ((256, 512, 77), (32_768, 128, 20), (32_768, 512, 77))
DEVICES = 4  # of a host
CHIPS = ("TPU v5e", "TPU v6e")


def ours(
    store, tokenizer, length, predictions, masking, count=4096, batch=256
) -> float:
    """Sequences a CPU second, the plan of the epoch included."""
    config = ExampleConfig(masking=masking)
    start = time.process_time()
    source = ExampleSource(
        store,
        tokenizer,
        config,
        sequence_length=length,
        max_predictions=predictions,
        seed=0,
    )
    for first in range(0, count, batch):
        source.draw(range(first, first + batch))
    return count / (time.process_time() - start)


def original(documents, tokenizer, length, predictions) -> float:
    """Sequences a CPU second of one pass over the documents, token masking."""
    rng = random.Random(0)
    start = time.process_time()
    count = sum(
        1
        for number in range(len(documents))
        for _ in instances(documents, number, tokenizer, rng, length, predictions)
    )
    return count / (time.process_time() - start)


def collator(sentences, tokenizer, length, python, folder, repeats) -> dict:
    """What draw_batches_peer.py gives for the text in blocks of ``length``."""
    tokens = np.concatenate(sentences)
    blocks = len(tokens) // (length - 2)
    text = np.reshape(tokens[: blocks * (length - 2)], (blocks, length - 2))
    ends = [np.full((blocks, 1), i) for i in (tokenizer.cls_id, tokenizer.sep_id)]
    path = folder / f"blocks{length}.npy"
    np.save(path, np.concatenate([ends[0], text, ends[1]], axis=1))
    return run_worker(
        [
            *(python, HERE / "draw_batches_peer.py", "--blocks", path),
            *("--vocabulary", VOCABULARY, "--repeats", repeats),
        ]
    )


def random_store(folder: Path, tokens: int = 40_000_000) -> TokenStore:
    """Documents of log-normal length, 600 tokens on average; sentences of 3 to 47."""
    random = np.random.default_rng(0)
    with shard_writer(folder, 0, 1, token_dtype(30_522)) as write:
        while tokens > 0:
            count = int(random.lognormal(2.5, 1.1)) + 1
            sizes = random.integers(3, 48, count)
            ids = random.integers(999, 30_522, sizes.sum()).astype(np.uint16)
            write(np.split(ids, np.cumsum(sizes[:-1])))
            tokens -= len(ids)
    finish_store(
        folder, 1, vocab_size=30_522, vocabulary_fingerprint="random", settings={}
    )
    return TokenStore(folder)


def hosts_shares(store, tokenizer, case, hosts: int) -> dict:
    """CPU milliseconds of a step of each of ``hosts``: the mean, the most, the common part.

    case: pairs, length, predictions.
    """
    pairs, length, predictions = case
    host = 0

    def rows(size: int) -> tuple[range]:
        bounds = (min(h * size // hosts, size) for h in (host, host + 1))
        return (range(*bounds),)

    batches = TrainingBatches(
        store,
        tokenizer,
        (Phase(8, pairs, length, predictions),),
        ExampleConfig(),
        seed=0,
        documents=np.arange(store.info.documents),
        rows=rows,
        packing=DEVICES * hosts,
    )
    batches[0]  # maps the store
    seconds, shares = [], []
    for host in range(hosts):  # noqa: B007 - the rows above are this host's
        start = time.process_time()
        batch = batches[1]
        seconds.append(time.process_time() - start)
        shares.append(batch["nsp_weights"].sum())
    host = hosts  # which has no rows: what every host does
    start = time.process_time()
    batches[1]
    common = time.process_time() - start
    flops = BertConfig.base().step_flops(length, predictions, pairs) / hosts / DEVICES
    steps = {chip: flops / (PEAK_FLOPS[chip] / 2) for chip in CHIPS}  # seconds
    return {
        "batch": f"{pairs:,} x {length}",
        "hosts": hosts,
        "pairs of a host": f"{min(shares):,.0f} to {max(shares):,.0f}",
        "CPU ms a step": 1e3 * np.mean(seconds),
        "most": 1e3 * max(seconds),
        "of it the plan of the batch": 1e3 * common,
        **{f"cores, {chip}": np.mean(seconds) / steps[chip] for chip in CHIPS},
    }


def measure_hosts(counts: list[int], bucket: str, output: Path | None) -> None:
    """Prints the table of the hosts' shares."""
    with tempfile.TemporaryDirectory() as folder:
        store, tokenizer = random_store(Path(folder)), load_tokenizer(VOCABULARY)
        if bucket:
            start = time.process_time()
            store = TokenStore(_through(bucket, Path(folder)))
            print(f"copied from {bucket} in {time.process_time() - start:.1f} CPU s")
        rows = [
            hosts_shares(store, tokenizer, case, hosts)
            for case in HOST_CASES
            for hosts in counts
            if DEVICES * hosts <= case[0]
        ]
    print(markdown(rows))
    write_report(output, {"rows": rows})


def _through(bucket: str, folder: Path) -> Path:
    """The store as a host has it after it was put into a bucket."""
    for file in (path for path in folder.rglob("*") if path.is_file()):
        target = open_remote(f"{bucket}/{file.relative_to(folder)}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    return local_copy(bucket, "index.json")


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer_python")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--hosts", help="numbers of hosts")
    parser.add_argument("--gs", default="", metavar="URL")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.hosts:
        counts = [int(n) for n in options.hosts.split(",")]
        measure_hosts(counts, options.gs, options.output)
        return
    tokenizer, reference = load_tokenizer(VOCABULARY), ReferenceTokenizer(VOCABULARY)
    rows, table = [], []
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        prepare([str(TEXT)], tokenizer, folder / "store", workers=1)
        store = TokenStore(folder / "store")
        sentences = store.read_sentences(
            [(i, i + 1) for i in range(store.info.sentences)]
        )
        documents = [
            [[tokenizer.tokens[i] for i in ids] for ids in sentences[a:b]]
            for a, b in itertools.pairwise(store.document_sentences)
        ]
        for length, predictions, masking in CASES:
            case = (length, predictions)
            row = {"length": length, "masking": masking, "ours": [], "original": []}
            for _ in range(options.repeats):
                row["ours"].append(ours(store, tokenizer, *case, masking))
                if masking == "token":
                    row["original"].append(original(documents, reference, *case))
            if masking == "token" and options.peer_python:
                row["collator"] = collator(
                    sentences,
                    tokenizer,
                    length,
                    options.peer_python,
                    folder,
                    options.repeats,
                )
            rows.append(row)
            table.append(summary(row))
    print(f"sequences a CPU second, median of {options.repeats} (spread)")
    print(markdown(table))
    write_report(options.output, {"rows": rows})


def summary(row: dict) -> dict:
    """A line of the table."""
    mine, spread = median_and_spread(row["ours"])
    line = {
        "length": row["length"],
        "masking": row["masking"],
        "ours": f"{mine:,.0f} ({spread:.0%})",
    }
    peers = {"as the original draws": row["original"]}
    if "collator" in row:
        found = row["collator"]
        if "error" in found:
            return line | {"transformers' collator": found["error"]}
        peers["transformers' collator, no pairs"] = found["sequences_per_second"]
    for name, rates in peers.items():
        if rates:
            median, spread = median_and_spread(rates)
            line |= {
                name: f"{median:,.0f} ({spread:.0%})",
                f"ours / {name}": mine / median,
            }
    return line


if __name__ == "__main__":
    main()
