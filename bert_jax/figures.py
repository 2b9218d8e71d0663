"""Pictures as matplotlib figures: curves of runs, confusion matrices, attention.

>>> model = bert_jax.load("runs/tiny")
>>> picture = bert_jax.figures.attention_heads(model, "The file is read.", layer=0)
>>> picture.savefig("heads.png")

A notebook shows a figure that is the last value of a cell. Each run has its own colour,
line and marker. The colours suit colour-blind readers (Okabe and Ito, 2008), and heat maps
go from light to dark, so that a black and white print is readable.
"""

import io
import itertools
import logging
import math
import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from bert_jax.errors import UserError, counted, printable
from bert_jax.files import ending, new_file, read_json
from bert_jax.runs import NO_SCORES, Run, read_references, read_runs

__all__ = ["Picture", "attention_heads", "attention_lines", "confusion_matrix"]
__all__ += ["curves", "save", "save_confusions", "shards"]

# Matplotlib logs which fonts it looked for and did not find.
logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
try:
    import matplotlib
    from matplotlib import font_manager, ticker
    from matplotlib.axes import Axes
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle
except ImportError as missing:
    raise UserError("pictures need matplotlib; pip install matplotlib") from missing

if TYPE_CHECKING:  # pictures of runs work without JAX, which these modules import
    from jax.sharding import Sharding

    from bert_jax.inference.model import Bert

_COLOURS = ("#0072B2", "#E69F00", "#000000", "#56B4E9", "#009E73", "#D55E00", "#CC79A7")
_LINES = ("-", "--", "-.", (0, (9, 2)), (0, (5, 1, 1, 1, 1, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "X", "P", "*")
_HEAT = "Blues"
_LETTERS_PER_INCH = 13  # of a picture's title
_WIDEST = 6  # points, the width of a line for a probability of 1
_CJK = [name for name in font_manager.get_font_names() if "CJK" in name]
_STYLE = {
    "text.parse_math": False,  # names and tokens may contain dollar signs
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#e0e0e0",
    "legend.frameon": False,
    "lines.markersize": 4,
    "figure.constrained_layout.use": True,
    # Matplotlib's own font has no Chinese, Japanese or Korean characters.
    "font.family": ["DejaVu Sans", *_CJK],
}
_styled = matplotlib.rc_context(_STYLE)


def __dir__() -> list[str]:
    return __all__


class Picture(Figure):
    """A figure in the style of this module."""

    @_styled
    def draw(self, renderer: Any) -> None:
        super().draw(renderer)

    def _repr_png_(self) -> bytes:
        """The picture in a notebook."""
        with io.BytesIO() as file:
            self.savefig(file, format="png")
            return file.getvalue()


def save(picture: Picture, path: Path) -> None:
    """Writes a picture in the format of its name's ending. path: file.png, .svg or .pdf."""
    kind = ending(path)[1:]
    if kind not in ("png", "svg", "pdf"):
        raise UserError(f"output={path} must end in .png, .svg or .pdf")
    with new_file(path) as file:
        picture.savefig(file, format=kind)


def _figure(
    title: str,
    count: int,
    columns: int,
    width: float,
    height: float,
    more_height: float = 0,
) -> tuple[Picture, list[Axes]]:
    """A picture with ``count`` panels in rows. A title of "" is left out.

    width, height: inches of a panel. more_height: inches of the picture's legend.
    """
    rows = math.ceil(count / columns)
    columns = math.ceil(count / rows)
    size = width * columns, height * rows + 0.6 + more_height
    picture = Picture(figsize=size)
    if title:
        title = textwrap.fill(title, int(_LETTERS_PER_INCH * size[0]))
        picture.suptitle(title, x=0.01, horizontalalignment="left")
    panels = list(picture.subplots(rows, columns, squeeze=False).flat)
    for axes in panels[count:]:
        axes.remove()
    return picture, panels[:count]


def _looks() -> Iterator[dict[str, Any]]:
    """Colour, line and marker of the first run, the second, and so on."""
    cycles = map(itertools.cycle, (_COLOURS, _LINES, _MARKERS))
    for colour, line, marker in zip(*cycles, strict=True):
        yield {"color": colour, "linestyle": line, "marker": marker}


# Titles of panels. Other panels have the name of their metric.
_TITLES = {
    "mlm_accuracy": "masked tokens (MLM accuracy)",
    "nsp_accuracy": "next sentences (NSP accuracy)",
    "grad_norm": "gradient norm",
}
# Units of metrics; scores are shown in percent.
_UNITS = {
    "loss": "mean over examples",
    "grad_norm": "mean over steps",
    "learning_rate": "",
    "tokens_per_second": "",
    "rmse": "units of the label",
    "mae": "units of the label",
}
_TRAINING, _EVALUATION = "training", "evaluation"
_BASELINE, _LONGER = "baseline: most frequent answer", "longer sequences start"
# The look of each kind of line in the legend. Evaluations have the marker of their run.
_KINDS = {
    _TRAINING: {"linewidth": 1.0, "marker": ""},
    _EVALUATION: {"marker": "o"},
    _BASELINE: {"linestyle": ":", "marker": ""},
    _LONGER: {"linestyle": "", "marker": "|", "markersize": 10},
}


@_styled
def curves(
    *workdirs: os.PathLike | str,
    references: Iterable[os.PathLike | str] = (),
    metrics: Sequence[str] = (),
) -> Picture:
    """Loss, scores and their baselines, learning rate and throughput of runs.

    workdirs: workdirs of pretraining, fine-tuning or sweeps, finished or still running.
    Thin lines show training, lines with markers evaluations, and dotted lines the baseline:
    the score of always predicting the most frequent answer. A thin vertical line shows
    where a phase of longer sequences starts. references: workdirs of pretraining to compare
    with. With references the x axis is the number of tokens, because steps with different
    batch sizes are not comparable. It is logarithmic and starts at the first report, so
    evaluations at step 0 are not visible. metrics: names in metrics.jsonl, such as "loss",
    one for each panel; by default all panels.
    """
    compared = read_references(references)
    runs = [*read_runs(workdirs), *compared]
    if not runs:
        raise UserError("there is no run to draw; give the workdir of a run")
    looks = list(zip(runs, _looks(), strict=False))
    if metrics:
        _check_metrics(metrics, runs)
    else:
        metrics = _default_metrics(runs, by_tokens=bool(compared))
    last_step = runs[0].metrics[-1]["step"]
    title = f"{runs[0].name}: {counted(last_step, 'step')}"
    names = []
    if len(runs) > 1:  # a legend in place of the title
        title = ""
        names = [Line2D([], [], label=run.name, **look) for run, look in looks]
    picture, panels = _figure(title, len(metrics), 2, 2.7, 2.1, 0.1 * len(names))
    kinds: set[str] = set()
    for axes, metric in zip(panels, metrics, strict=True):
        for run, look in looks:
            kinds |= _draw_metric(axes, run, metric, look, by_tokens=bool(compared))
        name = printable(_TITLES.get(metric, metric.replace("_", " ")))
        axes.set(title=name, ylabel=_UNITS.get(metric, "%"), xlabel="step")
        if compared:
            _use_tokens(axes, runs)
        axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
        axes.grid(True)
        if metric in ("learning_rate", "tokens_per_second"):
            axes.set_ylim(bottom=0)
        if metric == "tokens_per_second":
            axes.yaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    columns = min(2, len(metrics))
    if names:
        picture.legend(handles=names, loc="outside upper left", ncols=columns)
    handles = []
    for kind, look in _KINDS.items():
        if kind in kinds:
            handles.append(Line2D([], [], color="gray", label=kind, **look))
    picture.legend(handles=handles, loc="outside lower left", ncols=columns)
    return picture


def _default_metrics(runs: Sequence[Run], *, by_tokens: bool) -> list[str]:
    """The metrics that the runs have panels for."""
    metrics = ["loss"]
    for run in runs:
        for name in run.scores:
            if "/" not in name and name not in metrics:
                metrics.append(name)
    metrics.append("grad_norm")
    if not by_tokens:
        metrics += ["learning_rate", "tokens_per_second"]
    return metrics


def _check_metrics(metrics: Sequence[str], runs: Sequence[Run]) -> None:
    """Raises UserError for a metric that no run has."""
    known: dict[str, None] = {}
    for run in runs:
        for line in run.metrics:
            known |= dict.fromkeys(line)
    for name in metrics:
        if name not in known or name in NO_SCORES:
            expected = ", ".join(x for x in known if x not in NO_SCORES)
            raise UserError(f"no run has the metric {name!r}; expected {expected}")


def _use_tokens(axes: Axes, runs: Sequence[Run]) -> None:
    """Makes the x axis of a panel a logarithmic axis of tokens."""
    tokens = []
    for run in runs:
        reported = run.tokens([line["step"] for line in run.metrics])
        tokens += [number for number in reported if number > 0]
    first, last = 1, 1
    if tokens:
        first, last = min(tokens), max(tokens)
    # The limits are set first, because a logarithmic axis looks for limits above 0.
    axes.set(xlabel="tokens", xlim=(first, 1.25 * last))
    axes.set_xscale("log", nonpositive="mask")
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 3)))
    axes.xaxis.set_minor_locator(ticker.NullLocator())


def _draw_metric(
    axes: Axes, run: Run, metric: str, look: Mapping[str, Any], *, by_tokens: bool
) -> set[str]:
    """Draws the lines of a run in a panel; each has the label "run, split".

    Returns the kinds of lines that it has drawn.
    """
    kinds: set[str] = set()
    place = list
    if by_tokens:
        place = run.tokens
    for split in run.splits:
        steps, values = run.series(split, metric)
        if not steps:
            continue
        percent, label = run.percent(metric), f"{run.name}, {split}"
        kind, how = _EVALUATION, look
        if split == "train":
            kind, how = _TRAINING, look | _KINDS[_TRAINING]
        axes.plot(place(steps), np.multiply(values, percent), label=label, **how)
        kinds.add(kind)
        steps, values = run.baseline(split, metric)
        if steps:
            label, values = f"{label}, baseline", np.multiply(values, percent)
            axes.plot(place(steps), values, label=label, **look | _KINDS[_BASELINE])
            kinds.add(_BASELINE)
    longer = [step for step, is_longer in run.new_lengths if is_longer]
    for x in place(longer):
        axes.axvline(x, color="gray", linewidth=0.6, zorder=1)
        kinds.add(_LONGER)
    return kinds


@_styled
def confusion_matrix(
    labels: Sequence[str], counts_CC: Sequence[Sequence[int]], title: str
) -> Picture:
    """A heat map of gold labels (rows) and predicted labels (columns).

    counts_CC: number of examples for each pair of labels. title: name of the examples, such
    as "dev rows". Numbers are counts. Colours are shares of a row.
    """
    # Imported late: other pictures need no scikit-learn, whose import takes a second.
    from sklearn.metrics import ConfusionMatrixDisplay

    counts_CC = np.array(counts_CC)
    shares_CC = counts_CC / np.maximum(counts_CC.sum(axis=1, keepdims=True), 1)
    right = np.trace(counts_CC) / max(counts_CC.sum(), 1)
    title = f"{title}: {right:.1%} of {counts_CC.sum():,} right"
    few = len(labels) <= 20
    cell, points = 0.15, 6  # inches of a cell, size of the names
    if few:
        cell, points = 0.55, 8
    size = max(3.4, cell * len(labels) + 1.5)
    picture, (axes,) = _figure(title, 1, 1, size + 1.2, size - 0.6)
    display = ConfusionMatrixDisplay(shares_CC, display_labels=labels)
    colours = {"cmap": _HEAT, "im_kw": {"vmin": 0, "vmax": 1}}
    display.plot(ax=axes, include_values=few, colorbar=False, **colours)
    if few:
        for text, count in zip(display.text_.flat, counts_CC.flat, strict=True):
            text.set_text(f"{count:,}")
    _label_cells(axes, labels, labels, points)
    axes.set(xlabel="predicted", ylabel="gold")
    bar = picture.colorbar(display.im_, ax=axes, format=ticker.PercentFormatter(1))
    bar.set_label("share of the gold label")
    return picture


class _Confusion(TypedDict):
    """The form of a SPLIT.confusion.json."""

    split: str
    of: str
    labels: list[str]
    counts: list[list[int]]


def save_confusions(folder: os.PathLike | str) -> None:
    """Draws each SPLIT.confusion.json in the output folder of a run or an evaluation."""
    for path in sorted(Path(folder).glob("*.confusion.json")):
        expected = "counts of gold and predicted labels"
        confusion = read_json(path, expected, _Confusion)
        title = f"{confusion['split']} {confusion['of']}"
        picture = confusion_matrix(confusion["labels"], confusion["counts"], title)
        save(picture, path.with_suffix(".png"))


def _label_cells(
    axes: Axes, across: Sequence[str], down: Sequence[str], points: float = 8
) -> None:
    """Writes the names of a heat map's columns and rows."""
    rotation = 0
    if sum(map(len, across)) > 20:
        rotation = 90
    axes.set_xticks(range(len(across)), across, rotation=rotation, fontsize=points)
    axes.set_yticks(range(len(down)), down, fontsize=points)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


@_styled
def attention_heads(model: "Bert", text: str | tuple[str, str], layer: int) -> Picture:
    """A heat map for each head of a layer: how strongly tokens attend to each other.

    model: a model of ``bert_jax.load``. text: a text or a pair of texts. layer: index of
    ``model(text, attentions=True).attentions``; -1 is the last layer. A row attends to the
    columns, and its probabilities add up to 1.
    """
    layers = model.config.num_layers
    _check_index("layer", layer, layers)
    out = model([text], attentions=True)
    tokens, attention_NLL = out.tokens[0], out.attentions[layer, 0]
    side = float(np.clip(0.13 * len(tokens), 2, 6))  # inches
    title = f"Layer {layer % layers} of 0 to {layers - 1}: "
    title += "how much each token (row) attends to each other token (column)"
    picture, panels = _figure(title, len(attention_NLL), 3, side + 0.5, side + 0.2)
    top = attention_NLL.max()
    for head, axes in enumerate(panels):
        image = axes.imshow(attention_NLL[head], cmap=_HEAT, vmin=0, vmax=top)
        _label_cells(axes, tokens, tokens, min(8, 55 * side / len(tokens)))
        axes.label_outer()  # hides the tokens between panels
        axes.set_title(f"head {head}")
    bar = picture.colorbar(image, ax=panels, shrink=0.6, aspect=30)
    bar.set_label("attention probability")
    return picture


def _check_index(name: str, index: int, count: int) -> None:
    """Raises UserError unless ``index`` is 0 to count - 1, or -count to -1."""
    if not isinstance(index, int | np.integer) or not -count <= index < count:
        expected = f"expected 0 to {count - 1}, or {-count} to -1"
        raise UserError(f"{name}={index!r}, {expected}")


@_styled
def attention_lines(
    model: "Bert", text: str | tuple[str, str], layer: int, head: int
) -> Picture:
    """The attention of a head as lines from each word on the left to each on the right.

    A wide line is a high probability. The attention to the tokens of a word is added up,
    and the attention from its tokens is averaged (Clark et al., 2019, section 4.1).

    model, text, layer: as in :func:`attention_heads`. head: index of the head, from 0.
    """
    _check_index("layer", layer, model.config.num_layers)
    _check_index("head", head, model.config.num_heads)
    out = model([text], attentions=True)
    ids = out.input_ids[0]
    word_L = np.cumsum(model.tokenizer.word_starts(ids)) - 1
    own_WL = np.arange(word_L[-1] + 1)[:, None] == word_L
    words = [model.tokenizer.decode(ids[own_L]) for own_L in own_WL]
    mean_WL = own_WL / own_WL.sum(axis=1, keepdims=True)
    attention_WW = mean_WL @ out.attentions[layer, 0, head] @ own_WL.T
    title = f"Layer {layer}, head {head}: attention between words"
    picture, (axes,) = _figure(title, 1, 1, 5.0, 0.22 * len(words) + 0.6)
    ends = [[(0, i), (1, j)] for i, j in np.ndindex(attention_WW.shape)]
    lines = LineCollection(ends, linewidths=_WIDEST * attention_WW.ravel())
    lines.set(color=_COLOURS[0], alpha=np.clip(attention_WW.ravel() + 0.1, 0, 1))
    axes.add_collection(lines)
    axes.set(xlim=(0, 1), ylim=(len(words) - 0.5, -0.5))
    axes.set_xticks([0, 1], ["from", "to"])
    for side in (axes, axes.secondary_yaxis("right")):
        side.set_yticks(range(len(words)), words)
        side.tick_params(length=0)
        side.spines[:].set_visible(False)
    handles = []
    for share in (0.1, 0.5, 1):
        look = {"color": _COLOURS[0], "linewidth": _WIDEST * share}
        handles.append(Line2D([], [], label=f"{share:.0%}", **look))
    picture.legend(handles=handles, loc="outside lower center", ncols=3)
    return picture


@_styled
def shards(
    arrays: Mapping[str, Mapping[str, tuple["Sharding", tuple[int, int]]]],
) -> Picture:
    """The devices that store each block of matrices, with a row of panels for each mesh.

    arrays: for each mesh by name, its matrices by name, each as its sharding and its shape.
    A block shows the numbers of its devices, and has the colour of the first device. A
    block on all devices is grey.
    """
    columns = len(next(iter(arrays.values())))
    picture, panels = _figure("", len(arrays) * columns, columns, 1.8, 1.1)
    left = panels[::columns]
    for axes, title in zip(panels, next(iter(arrays.values())), strict=False):
        axes.set_title(title)
    for axes, (mesh, matrices) in zip(left, arrays.items(), strict=True):
        axes.set_ylabel(mesh)
        first = panels.index(axes)
        row = panels[first : first + columns]
        for panel, (sharding, shape) in zip(row, matrices.values(), strict=True):
            _draw_blocks(panel, sharding, shape)
    return picture


def _draw_blocks(axes: Axes, sharding: "Sharding", shape: tuple[int, int]) -> None:
    """The blocks of a matrix in the unit square, with the numbers of their devices."""
    devices_of: dict[tuple[float, ...], list[int]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        rows, columns = (part.indices(n) for part, n in zip(index, shape, strict=True))
        top, bottom = rows[0] / shape[0], rows[1] / shape[0]
        left, right = columns[0] / shape[1], columns[1] / shape[1]
        block = (left, top, right - left, bottom - top)
        devices_of.setdefault(block, []).append(device.id)
    for (left, top, width, height), devices in devices_of.items():
        colour = matplotlib.colormaps["tab10"](devices[0] % 10, alpha=0.6)
        label = ", ".join(map(str, sorted(devices)))
        if len(devices_of) == 1:
            colour, label = "0.85", f"all {len(devices)}"
        box = Rectangle((left, top), width, height, facecolor=colour, edgecolor="w")
        axes.add_patch(box)
        center = left + width / 2, top + height / 2
        axes.text(*center, label, ha="center", va="center", fontsize=7)
    axes.set(xlim=(0, 1), ylim=(1, 0), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
