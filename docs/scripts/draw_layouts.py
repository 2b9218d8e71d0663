"""Draws the pictures of docs/batching.md and docs/guides/hosts.md.

They show batches and shardings that bert_jax makes.

usage:
  python docs/scripts/draw_layouts.py
"""

import itertools
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import matplotlib
import numpy as np
from jax.sharding import NamedSharding
from matplotlib.axes import Axes

from bert_jax import figures
from bert_jax.data.batching import EpochBatches, Features
from bert_jax.data.packing import best_fit
from bert_jax.model.config import MeshConfig
from bert_jax.parallel.mesh import batch_sharding, make_mesh
from bert_jax.parallel.sharding import partition_spec

PADDING = "#dddddd"
BLUE = "#56B4E9"
# Packing: the number of tokens of each pair of a batch, and of a row.
PAIRS, ROW = np.array([128, 126, 97, 84, 61, 44, 31, 20]), 128
# Buckets: the examples of an epoch, and a colour for each bucket.
COUNT, BATCH_SIZE = 800, 8
COLOURS = ("#56B4E9", "#E69F00")

Bar = tuple[int, str, str]  # number of tokens, colour and name of a sequence
styled = matplotlib.rc_context(figures._STYLE)


def draw_rows(axes: Axes, rows: list[list[Bar]], length: int) -> None:
    """The rows of a batch: sequences one after the other, and padding."""
    for number, bars in enumerate(rows):
        axes.barh(number, length, color=PADDING, label="padding")
        start = 0
        for size, colour, name in bars:
            axes.barh(number, size, left=start, color=colour, ec="white", label=name)
            axes.text(start + size / 2, number, name, ha="center", va="center")
            start += size
    axes.set(xlim=(0, length), ylim=(len(rows) - 0.5, -0.5), yticks=[])
    axes.spines["left"].set_visible(False)


@styled
def packing() -> figures.Picture:
    """The pairs of a batch alone in their rows, and packed."""
    picture = figures.Picture(figsize=(5.4, 2.2))
    alone = [[number] for number in range(len(PAIRS))]
    packed = best_fit(PAIRS, ROW, len(PAIRS))
    panels = picture.subplots(1, 2)
    for axes, rows, how in zip(
        panels, (alone, packed), ("alone", "packed"), strict=True
    ):
        bars = [[(PAIRS[i], BLUE, "ABCDEFGH"[i]) for i in row] for row in rows]
        draw_rows(axes, bars, ROW)
        axes.set_ylim(len(PAIRS) - 0.5, -0.5)
        padding = 1 - PAIRS.sum() / (len(rows) * ROW)
        axes.set_title(f"{how}: {len(rows)} rows, {padding:.0%} padding")
        axes.set(xlabel="tokens", xticks=range(0, ROW + 1, 32))
    return picture


def example_sizes() -> np.ndarray:
    """The number of tokens of each example, the longest first."""
    sizes = np.random.default_rng(0).lognormal(np.log(30), 0.6, COUNT)
    return np.sort(np.clip(sizes, 6, 128).astype(int))[::-1]


def epoch() -> EpochBatches:
    """The batches of an epoch with two buckets. All tokens of an example are its number."""
    ids = [np.full(size, i, np.int32) for i, size in enumerate(example_sizes())]
    features = Features(ids, [np.zeros_like(x) for x in ids], np.arange(COUNT))
    settings = {"batch_size": BATCH_SIZE, "buckets": 2, "epochs": 1, "seed": 0}
    return EpochBatches(features, pad_id=-1, limit=512, **settings)


def examples(batch: dict[str, np.ndarray]) -> list[list[int]]:
    """The numbers of the examples in each row of a batch."""
    runs = [itertools.groupby(ids) for ids in batch["input_ids"].tolist()]
    return [[number for number, _ in row if number >= 0] for row in runs]


@styled
def buckets() -> figures.Picture:
    """The examples of an epoch by length, and a batch of each bucket."""
    sizes, batches = example_sizes(), epoch()
    long, short = sorted(batches.shapes, key=lambda shape: -shape.length)
    first_of = {}  # the first batch with each shape
    in_long = 0  # number of examples in the bucket of the longer examples
    for batch in batches:
        length = batch["input_ids"].shape[1]
        first_of.setdefault(length, batch)
        in_long += BATCH_SIZE * (length == long.length)
    picture = figures.Picture(figsize=(5.4, 3.6))
    panels = picture.subplot_mosaic([["all", "all"], ["long", "short"]])
    axes = panels["all"]
    axes.fill_between(range(COUNT), sizes, color=PADDING)
    for start, end in ((0, in_long), (in_long, COUNT)):
        for group in np.linspace(start, end, BATCH_SIZE + 1):
            axes.axvline(group, color="white", linewidth=1)
    axes.axvline(in_long, color="black", linewidth=1)
    axes.set(
        xlim=(0, COUNT), ylim=0, xlabel="examples, the longest first", ylabel="tokens"
    )
    axes.set_title(f"{COUNT} examples in two buckets of {BATCH_SIZE} groups")
    for name, shape, colour in zip(
        ("long", "short"), (long, short), COLOURS, strict=True
    ):
        rows = examples(first_of[shape.length])
        numbers = [number for row in rows for number in row]
        axes.bar(numbers, sizes[numbers], width=4, color=colour, label=f"batch, {name}")
        bars = [[(sizes[i], colour, f"{sizes[i]}") for i in row] for row in rows]
        draw_rows(panels[name], bars, shape.length)
        panels[name].set_xlim(0, long.length)
        panels[name].set_title(f"a batch: {len(rows)} rows of {shape.length} tokens")
        panels[name].set(xlabel="tokens", ylim=(long.rows - 0.5, -0.5))
    return picture


MESHES = {
    "data=8": MeshConfig(data=8),
    "fsdp=True": MeshConfig(data=8, fsdp=True),
    "model=2": MeshConfig(data=4, model=2),
    "replica=2\nfsdp=True": MeshConfig(replica=2, data=4, fsdp=True),
}
WORDS, WIDTH = 30592, 768  # of BERT BASE; the vocabulary is padded to a multiple of 128


def mesh() -> figures.Picture:
    """Which of eight devices stores which part of a batch and of parameters of BASE."""
    matrices = {
        "word table": ("embeddings/word/embedding", (WORDS, WIDTH)),
        "feed-forward kernel": ("intermediate/kernel", (WIDTH, 4 * WIDTH)),
    }
    arrays = {}
    for name, config in MESHES.items():
        devices = make_mesh(config)
        arrays[name] = {"batch": (batch_sharding(devices), (256, 512))}
        for title, (parameter, shape) in matrices.items():
            split = devices.shape["data"] if config.fsdp else 1
            spec = partition_spec(parameter, shape, split)
            arrays[name][title] = NamedSharding(devices, spec), shape
    return figures.shards(arrays)


if __name__ == "__main__":
    from draw_pictures import shrink

    shrink(packing(), "packing.png")
    shrink(buckets(), "buckets.png")
    shrink(mesh(), "mesh.png")
