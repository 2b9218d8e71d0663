"""The pictures of docs/batching.md and docs/guides/hosts.md show what bert_jax does."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from bert_jax.data.packing import best_fit

PAGE = Path(__file__).parent.parent / "docs" / "batching.md"


@pytest.fixture(scope="module")
def made():
    """docs/scripts/draw_layouts.py."""
    path = PAGE.parent / "scripts" / "draw_layouts.py"
    spec = importlib.util.spec_from_file_location("draw_layouts", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def drawn_rows(axes):
    """For each row of a panel: its length, and start and width of each sequence."""
    rows = {}
    for bars in axes.containers:
        (bar,) = bars.patches
        row = rows.setdefault(round(bar.get_y() + bar.get_height() / 2), [0, []])
        if bars.get_label() == "padding":
            row[0] = bar.get_width()
        else:
            row[1].append((bar.get_x(), bar.get_width()))
    return [rows[number] for number in sorted(rows)]


def test_the_picture_of_packing_shows_every_pair_once(made):
    alone, packed = made.packing().axes
    sizes = made.PAIRS.tolist()
    assert drawn_rows(alone) == [[128, [(0, size)]] for size in sizes]
    expected = []
    for row in best_fit(made.PAIRS, 128, 8):
        starts = np.cumsum([0, *(sizes[i] for i in row)]).tolist()
        bars = [(start, sizes[i]) for start, i in zip(starts, row, strict=False)]
        expected.append([128, bars])
    assert drawn_rows(packed) == expected
    assert sorted(width for _, bars in expected for _, width in bars) == sorted(sizes)
    # 1 - 591 / 1024 and 1 - 591 / 640
    assert sum(sizes) == 591
    assert alone.get_title(loc="left") == "alone: 8 rows, 42% padding"
    assert packed.get_title(loc="left") == "packed: 5 rows, 8% padding"
    (alt,) = [x for x in PAGE.read_text().splitlines() if "packing.png" in x]
    assert "42%" in alt and "8% padding" in alt and "20 to 128 tokens" in alt


def test_the_picture_of_buckets_shows_a_batch_of_each_bucket(made):
    """Each batch has one example of each group of its bucket."""
    picture = made.buckets()
    all_examples, *batches = picture.axes
    sizes = made.example_sizes()
    assert (np.diff(sizes) <= 0).all() and len(sizes) == 800
    *_, (border, _) = (line.get_xdata() for line in all_examples.lines)
    for axes, bars, ends in zip(
        batches, all_examples.containers, ((0, border), (border, 800)), strict=True
    ):
        numbers = sorted(round(x.get_x() + x.get_width() / 2) for x in bars)
        groups = np.searchsorted(np.linspace(*ends, 9), numbers, side="right") - 1
        assert groups.tolist() == list(range(8))
        rows = drawn_rows(axes)
        widths = sorted(width for _, row in rows for _, width in row)
        assert widths == sorted(sizes[numbers].tolist())
        (length,) = {length for length, _ in rows}
        title = f"a batch: {len(rows)} rows of {length} tokens"
        assert axes.get_title(loc="left") == title
        assert title.removeprefix("a batch: ") in PAGE.read_text()


def test_the_picture_of_meshes_shows_the_shardings_of_eight_devices(made):
    batch, table, kernel = range(3)
    rows = np.reshape(made.mesh().axes, (4, 3))
    labels = [[[x.get_text() for x in axes.texts] for axes in row] for row in rows]
    data, fsdp, model, replica = labels
    each = [str(device) for device in range(8)]
    assert data == [each, ["all 8"], ["all 8"]]
    assert fsdp == [each, ["all 8"], each]
    assert model[batch] == ["0, 1", "2, 3", "4, 5", "6, 7"]
    assert model[table] == model[kernel] == ["0, 2, 4, 6", "1, 3, 5, 7"]
    assert replica == [each, ["all 8"], ["0, 4", "1, 5", "2, 6", "3, 7"]]
