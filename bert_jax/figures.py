"""Pictures as matplotlib figures: how runs went, errors, what a model sees.

>>> model = bert_jax.load("runs/tiny")
>>> picture = bert_jax.figures.attention_heads(model, "The file is read.", layer=0)
>>> picture.savefig("heads.png")

A figure that ends a notebook's cell is shown there. All have one style. Its colours are
told apart by the colour-blind (Okabe and Ito, 2008), each has its own marker and line, and
heat maps go from light to dark, so that all can be read in black and white.
"""

import io
import itertools
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bert_jax.errors import UserError
from bert_jax.files import ending, new_file, read_json
from bert_jax.runs import Run, read_reference, read_runs

# It would say that it looks for fonts, and which ones it lacks.
logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
try:
    import matplotlib
    from matplotlib import font_manager, ticker
    from matplotlib.axes import Axes
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
except ImportError as missing:
    raise UserError("pictures need matplotlib; pip install matplotlib") from missing

if TYPE_CHECKING:  # it imports JAX, which pictures of runs do without
    from bert_jax.inference.model import Bert, Text

ENDINGS = (".png", ".svg", ".pdf")
_COLOURS = ("#0072B2", "#E69F00", "#000000", "#56B4E9", "#009E73", "#D55E00", "#CC79A7")
_LINES = ("-", "--", "-.", (0, (9, 2)), (0, (5, 1, 1, 1, 1, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "X", "P", "*")
_HEAT = "Blues"
_GREY = "#555555"
_STYLE = {
    "text.parse_math": False,  # names and tokens may contain dollar signs
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.labelcolor": _GREY,
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _GREY,
    "axes.axisbelow": True,
    "grid.color": "#e0e0e0",
    "grid.linewidth": 0.6,
    "xtick.color": _GREY,
    "ytick.color": _GREY,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.titlesize": 11,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.08,
    "figure.constrained_layout.h_pad": 0.06,
    # Matplotlib's own font has no Chinese, Japanese or Korean.
    "font.family": [
        "DejaVu Sans",
        *(name for name in font_manager.get_font_names() if "CJK" in name),
    ],
}
_styled = matplotlib.rc_context(_STYLE)


class Picture(Figure):
    """A figure in our style, wherever it is drawn."""

    @_styled
    def draw(self, renderer: Any) -> None:
        super().draw(renderer)

    def _repr_png_(self) -> bytes:
        """What a notebook shows."""
        with io.BytesIO() as file:
            self.savefig(file, format="png")
            return file.getvalue()


def check_ending(path: Path) -> None:
    """Raises UserError for a name that says no format that pictures have."""
    if ending(path) not in ENDINGS:
        raise UserError(f"--output={path}, expected a name in {', '.join(ENDINGS)}")


def save(picture: Picture, path: Path) -> None:
    """Writes a picture whole or not at all; the name says the format."""
    with new_file(path) as file:
        picture.savefig(file, format=ending(path)[1:])


def _figure(
    title: str, width: float, height: float, rows: int = 1, columns: int = 1
) -> tuple[Picture, list[Axes]]:
    """An empty picture with a grid of axes, row by row; its size is in inches."""
    picture = Picture(figsize=(width, height))
    picture.suptitle(title, x=0.01, horizontalalignment="left")
    return picture, list(picture.subplots(rows, columns, squeeze=False).flat)


def _looks() -> Iterator[dict[str, Any]]:
    """Colour, line and marker of the first run, the second, and so on."""
    cycles = map(itertools.cycle, (_COLOURS, _LINES, _MARKERS))
    for colour, line, marker in zip(*cycles, strict=True):
        yield {"color": colour, "linestyle": line, "marker": marker}


# Of what metrics.jsonl has: the panel's title and the unit of its axis.
_PANELS = {
    "loss": ("Loss", "mean over examples"),
    "mlm_accuracy": ("Masked tokens predicted right", "%"),
    "nsp_accuracy": ("Sentence pairs judged right", "%"),
    "sop_accuracy": ("Orders of two texts judged right", "%"),
    "learning_rate": ("Learning rate", ""),
    "grad_norm": ("Norm of the gradient", "mean over steps"),
    "tokens_per_second": ("Throughput", "tokens per second"),
}
_THIN = {"linewidth": 1.0, "marker": ""}
_FIRST_TOKENS = 100_000  # from here on an axis of tokens is logarithmic
_DOTTED = {"linewidth": 1.2, "linestyle": ":", "marker": ""}


@_styled
def curves(
    *workdirs: os.PathLike | str, references: Sequence[os.PathLike | str] = ()
) -> Picture:
    """Loss, scores beside their baselines, learning rate and throughput of runs.

    workdirs: of pretraining or fine-tuning runs, ended or not, or of sweeps. Thin lines
    are of training, those with markers of evaluations. A baseline is what always the most
    frequent answer reaches. references: files of reference curves; with them everything is
    drawn by the tokens seen, because steps of other batch sizes do not compare.
    """
    runs = [*read_runs(workdirs), *map(read_reference, references)]
    looks = list(zip(runs, _looks(), strict=False))
    scores = dict.fromkeys(
        name for run in runs for name in run.scores if "/" not in name
    )
    metrics = ["loss", *scores, "grad_norm"]
    if not references:
        metrics += ["learning_rate", "tokens_per_second"]
    rows = math.ceil(len(metrics) / 4)
    columns = math.ceil(len(metrics) / rows)
    picture, panels = _figure(
        f"{len(runs)} runs"
        if len(runs) > 1
        else f"{runs[0].name}: {runs[0].metrics[-1]['step']:,} steps",
        3.4 * columns,
        2.5 * rows + 0.6 + 0.1 * len(runs),
        rows,
        columns,
    )
    fine_tuning = any("family" in run.config for run in runs)  # its scores are percent
    for axes, metric in zip(panels, metrics, strict=False):
        for run, look in looks:
            _draw_metric(axes, run, metric, look, by_tokens=bool(references))
        title, unit = _PANELS.get(metric, (metric, "%" if fine_tuning else ""))
        axes.set(title=title, ylabel=unit, xlabel="step")
        if references:
            axes.set_xlabel("tokens seen")
            axes.set_xscale("symlog", linthresh=_FIRST_TOKENS)
            axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
        axes.grid(True)
        if metric == "tokens_per_second":
            axes.yaxis.set_major_formatter(ticker.EngFormatter(sep=""))
        if metric in ("learning_rate", "tokens_per_second"):
            axes.set_ylim(bottom=0)
    for axes in panels[len(metrics) :]:
        axes.remove()
    if len(runs) > 1:
        names = [Line2D([], [], label=run.name, **look) for run, look in looks]
        picture.legend(handles=names, loc="outside lower left", ncols=2)
    evaluated = dict.fromkeys(s for run in runs for s in run.splits if s != "train")
    kinds = {"training": _THIN}
    if evaluated:
        kinds[f"{' and '.join(evaluated)} split"] = {"marker": "o"}
    lines = [line for axes in picture.axes for line in axes.lines]
    if any(line.get_linestyle() == _DOTTED["linestyle"] for line in lines):
        kinds["baseline: always the most frequent answer"] = _DOTTED
    shown = [Line2D([], [], color=_GREY, label=k, **how) for k, how in kinds.items()]
    side = "right" if len(runs) > 1 else "left"
    picture.legend(handles=shown, loc=f"outside lower {side}", ncols=3)
    return picture


def _draw_metric(
    axes: Axes, run: Run, metric: str, look: Mapping[str, Any], *, by_tokens: bool
) -> None:
    """The lines of one run in one panel; each is labelled "run, split"."""
    for split in run.splits:
        steps, values = run.series(split, metric)
        if not steps:
            continue
        percent = run.percent(metric)
        own = look | (_THIN if split == "train" else {})
        label = f"{run.name}, {split}"
        x = run.tokens(steps) if by_tokens else steps
        axes.plot(x, np.multiply(values, percent), label=label, **own)
        if (baseline := run.baseline(split, metric)) is not None:
            label = f"{label}, baseline"
            axes.axhline(baseline * percent, label=label, **look | _DOTTED)


@_styled
def confusion_matrix(
    labels: Sequence[str], counts_CC: Sequence[Sequence[int]], title: str
) -> Picture:
    """How often each label was taken for which.

    counts_CC: rows of gold labels, columns of predicted ones. title: of what, such as
    "dev rows". Colours are shares of a row: which labels it was given.
    """
    counts_CC = np.array(counts_CC)
    shares_CC = counts_CC / np.maximum(counts_CC.sum(axis=1, keepdims=True), 1)
    right = np.trace(counts_CC) / max(counts_CC.sum(), 1)
    title = f"{title}: {right:.1%} of {counts_CC.sum():,} right"
    few = len(labels) <= 20
    size = max(3.4, (0.55 if few else 0.15) * len(labels) + 1.5)
    picture, (axes,) = _figure(title, size + 1.2, size)
    image = axes.imshow(shares_CC, cmap=_HEAT, vmin=0, vmax=1)
    _tick_labels(axes, labels, labels, 8 if few else 6)
    axes.set(xlabel="predicted", ylabel="gold")
    for (i, j), count in np.ndenumerate(counts_CC):
        if few:
            _write(axes, j, i, f"{count:,}", shares_CC[i, j])
    bar = picture.colorbar(image, ax=axes, format=ticker.PercentFormatter(1))
    bar.set_label("share of the gold label")
    return picture


def save_confusions(folder: os.PathLike | str) -> None:
    """Draws each SPLIT.confusion.json of a folder, as fine-tuning and evaluate write it."""
    for path in sorted(Path(folder).glob("*.confusion.json")):
        found = read_json(path, "counts of gold and predicted labels")
        title = f"{found['split']} {found['of']}"
        picture = confusion_matrix(found["labels"], found["counts"], title)
        save(picture, path.with_suffix(".png"))


def _write(axes: Axes, x: float, y: float, text: str, share: float, **how: Any) -> None:
    """Text in a cell of a heat map, in a colour that can be read on it."""
    colour = "white" if share > 0.55 else "black"
    axes.text(x, y, text, ha="center", va="center", color=colour, **how)


def _tick_labels(
    axes: Axes, across: Sequence[str], down: Sequence[str], points: float = 8
) -> None:
    """Names of the columns and rows of a heat map."""
    upright = 90 if sum(map(len, across)) > 20 else 0
    axes.set_xticks(range(len(across)), across, rotation=upright, fontsize=points)
    axes.set_yticks(range(len(down)), down, fontsize=points)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


@_styled
def attention_heads(model: "Bert", text: "Text", layer: int) -> Picture:
    """How much each token attends to each other one, a heat map for each head of a layer.

    layer: an index of ``model(text, attentions=True).attentions``: 0 is the first, -1 the
    last. text may be a pair. Rows attend to columns; a row adds up to 1.
    """
    layer = _index(layer, model.config.num_layers, "layer")
    out = model([text], attentions=True)
    tokens, attention_NLL = out.tokens[0], out.attentions[layer, 0]
    heads, columns = len(attention_NLL), min(4, len(attention_NLL))
    rows = math.ceil(heads / columns)
    side = float(np.clip(0.13 * len(tokens), 2, 6))  # inches
    points = min(8, 55 * side / len(tokens))
    picture, panels = _figure(
        f"Layer {layer} of 0 to {model.config.num_layers - 1}: how much each token (row) "
        "attends to each other one (column)",
        side * columns + 1.8,
        (side + 0.3) * rows + 1.0,
        rows,
        columns,
    )
    for axes in panels[heads:]:
        axes.remove()
    for head, axes in enumerate(panels[:heads]):
        image = axes.imshow(
            attention_NLL[head], cmap=_HEAT, vmin=0, vmax=attention_NLL.max()
        )
        down = tokens if head % columns == 0 else ()
        across = tokens if head + columns >= heads else ()
        _tick_labels(axes, across, down, points)
        axes.set_title(f"head {head}")
    bar = picture.colorbar(image, ax=panels[:heads], shrink=0.6, aspect=30)
    bar.set_label("attention probability")
    return picture


@_styled
def attention_lines(model: "Bert", text: "Text", layer: int, head: int) -> Picture:
    """One head's attention as lines from each word, at the left, to each at the right.

    The wider a line, the greater the probability. Of a word of several tokens the
    attention to them is added up and that from them averaged (Clark et al., 2019, section
    4.1). layer, head: indices, as for :func:`attention_heads`.
    """
    layer = _index(layer, model.config.num_layers, "layer")
    head = _index(head, model.config.num_heads, "head")
    out = model([text], attentions=True)
    words = _words(model, out.input_ids[0])
    to_LW = out.attentions[layer, 0, head] @ (words.share_WL > 0).T
    attention_WW = words.share_WL @ to_LW
    count = len(words.texts)
    picture, (axes,) = _figure(
        f"Layer {layer}, head {head}: where each word looks", 5.0, 0.22 * count + 1.2
    )
    places = [(i, j) for i in range(count) for j in range(count)]
    probabilities = attention_WW.ravel()
    axes.add_collection(
        LineCollection(
            [[(0, i), (1, j)] for i, j in places],
            linewidths=_WIDEST * probabilities,
            alpha=np.clip(probabilities + 0.1, 0, 1),
            colors=_COLOURS[0],
        )
    )
    axes.set(xlim=(0, 1), ylim=(count - 0.5, -0.5), xticks=(0, 1))
    axes.set_xticklabels(["from", "to"])
    axes.set_yticks(range(count), words.texts, color="black")
    right = axes.secondary_yaxis("right")
    right.set_yticks(range(count), words.texts, color="black")
    for side in (axes, right):
        side.tick_params(length=0)
        side.spines[:].set_visible(False)
    picture.legend(
        handles=[
            Line2D([], [], color=_COLOURS[0], linewidth=_WIDEST * p, label=f"{p:.0%}")
            for p in (0.1, 0.5, 1.0)
        ],
        loc="outside lower center",
        ncols=3,
    )
    return picture


_WIDEST = 6  # points, of a line for a probability of 1


@_styled
def word_senses(
    model: "Bert", word: str, senses: Mapping[str, Sequence[str]]
) -> Picture:
    """How alike a word's vectors are in several texts, layer by layer.

    senses: texts that have the word, by the name of the sense that it has in them. At the
    left are mean cosines of two vectors of one sense, and of two of different ones; layer
    0 is the embeddings. At the right are all cosines at the layer that parts them best.
    """
    texts = [text for group in senses.values() for text in group]
    if len(senses) < 2 or len(texts) == len(senses):
        raise UserError(
            f"{len(texts)} texts in {len(senses)} senses; expected two senses or more, "
            "and two texts in one of them"
        )
    sense_T = np.repeat(list(senses), [len(group) for group in senses.values()])
    found = _encoded(model, texts)
    places = [_place(model, word, words) for words in found]
    vectors_KTD = np.stack(
        [words.vectors_KWD[:, i] for words, i in zip(found, places, strict=True)],
        axis=1,
    )
    cosines_KTT = np.einsum("ktd,kud->ktu", vectors_KTD, vectors_KTD)
    pairs_TT = np.triu(np.ones_like(cosines_KTT[0], bool), 1)
    same_TT = sense_T[:, None] == sense_T
    lines = {
        f"both “{name}”": pairs_TT & same_TT & (sense_T == name)
        for name, group in senses.items()
        if len(group) > 1
    } | {"different senses": pairs_TT & ~same_TT}
    gap_K = [
        c[pairs_TT & same_TT].mean() - c[pairs_TT & ~same_TT].mean()
        for c in cosines_KTT
    ]
    best = int(np.argmax(gap_K))

    snippets = [_around(words, i) for words, i in zip(found, places, strict=True)]
    picture, (axes, heat) = _figure(
        f"“{word}” in {len(texts)} texts: do its vectors tell {len(senses)} senses apart?",
        10.5,
        0.25 * len(texts) + 2.8,
        1,
        2,
    )
    for (name, chosen_TT), look in zip(lines.items(), _looks(), strict=False):
        axes.plot(cosines_KTT[:, chosen_TT].mean(axis=1), label=name, **look)
    axes.set(
        title="Similarity of two vectors, layer by layer",
        xlabel="layer (0: the embeddings)",
        ylabel="mean cosine",
    )
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    axes.grid(True)
    axes.legend()
    image = heat.imshow(cosines_KTT[best], cmap=_HEAT)
    _tick_labels(heat, [str(i + 1) for i in range(len(texts))], snippets)
    heat.set_yticks(
        range(len(texts)), [f"{snippet}  {i + 1}" for i, snippet in enumerate(snippets)]
    )
    heat.set_title(f"Layer {best}, which parts the senses best")
    picture.colorbar(image, ax=heat).set_label("cosine")
    return picture


@_styled
def nearest_words(
    model: "Bert",
    word: str,
    text: str,
    among: Sequence[str],
    *,
    top: int = 5,
    same_word: bool = True,
) -> Picture:
    """What a word of a text is most like at each layer, of all words of other texts.

    One row for each layer, 0 for the embeddings, and in it the ``top`` words whose vectors
    have the greatest cosine with the word's, with their neighbours in their texts.
    same_word: whether the word itself may be among them.
    """
    own, *others = _encoded(model, [text, *among])
    place = _place(model, word, own)
    candidates = [
        (words, i)
        for words in others
        for i in range(1, len(words.texts) - 1)
        if same_word or words.texts[i] != own.texts[place]
    ]
    if not candidates:
        raise UserError("there are no words to compare with; expected texts of others")
    vectors_KCD = np.stack([w.vectors_KWD[:, i] for w, i in candidates], axis=1)
    cosines_KC = np.einsum("kcd,kd->kc", vectors_KCD, own.vectors_KWD[:, place])
    nearest_KT = np.argsort(-cosines_KC, axis=1, kind="stable")[:, :top]
    cosines_KT = np.take_along_axis(cosines_KC, nearest_KT, axis=1)
    picture, (axes,) = _figure(
        f"Nearest to “{word}” in “{_around(own, place)}”, layer by layer",
        2.4 * nearest_KT.shape[1] + 1.5,
        0.32 * len(cosines_KT) + 1.1,
    )
    low, high = float(cosines_KT.min()), float(cosines_KT.max())
    image = axes.imshow(cosines_KT, cmap=_HEAT, vmin=low, vmax=high, aspect="auto")
    for (k, t), c in np.ndenumerate(nearest_KT):
        share = (cosines_KT[k, t] - low) / max(high - low, 1e-9)
        _write(axes, t, k, _around(*candidates[c], 2, "«{}»"), share, fontsize=8)
    _tick_labels(
        axes,
        [f"{i + 1}." for i in range(nearest_KT.shape[1])],
        ["embeddings", *(f"layer {k}" for k in range(1, len(cosines_KT)))],
    )
    picture.colorbar(image, ax=axes).set_label("cosine")
    return picture


class _Words(NamedTuple):
    """The words of a text, special tokens among them.

    share_WL: each row is 1 / n at the n tokens of its word. vectors_KWD: of length 1, the
    mean of the word's tokens, of the embeddings and each layer; None where not asked for.
    """

    texts: list[str]
    share_WL: np.ndarray
    vectors_KWD: np.ndarray | None = None


def _words(model: "Bert", input_ids: np.ndarray) -> _Words:
    """The words that tokens make up."""
    number_L = np.cumsum(~model.tokenizer.continuation[input_ids]) - 1
    own_WL = np.arange(number_L[-1] + 1)[:, None] == number_L
    texts = [model.tokenizer.decode(input_ids[own_L]) for own_L in own_WL]
    return _Words(texts, own_WL / own_WL.sum(axis=1, keepdims=True))


def _encoded(model: "Bert", texts: Sequence[str]) -> list[_Words]:
    """The words of each text, with their vectors."""
    out = model(list(texts), hidden_states=True)
    found = []
    for row, length in enumerate(out.attention_mask.sum(axis=1)):
        words = _words(model, out.input_ids[row, :length])
        vectors_KWD = words.share_WL @ out.hidden_states[:, row, :length]
        vectors_KWD /= np.linalg.norm(vectors_KWD, axis=-1, keepdims=True)
        found.append(words._replace(vectors_KWD=vectors_KWD))
    return found


def _place(model: "Bert", word: str, words: _Words) -> int:
    """Where a word first is in a text; raises UserError where it is not."""
    name = model.tokenizer.decode(model.tokenizer.encode(word))
    if name not in words.texts:
        raise UserError(
            f"{word!r} is not in {' '.join(words.texts)!r}; expected a whole word of it"
        )
    return words.texts.index(name)


def _around(words: _Words, place: int, count: int = 3, mark: str = "{}") -> str:
    """A word, in a ``mark``, between ``count`` words at each side, none of them special."""
    before = words.texts[max(place - count, 1) : place]
    after = words.texts[place + 1 : -1][:count]
    return " ".join([*before, mark.format(words.texts[place]), *after])


def _index(index: int, count: int, name: str) -> int:
    """An index from 0, of one that may count from the end."""
    if not -count <= index < count:
        raise UserError(
            f"{name} {index} is not there; expected 0 to {count - 1}, or {-count} to -1"
        )
    return index % count


@_styled
def study(content: Mapping[str, Any]) -> Picture:
    """What a study found, a panel for each metric; content: that of its table.json.

    A mark for each seed, and the mean with its standard error.
    """
    variants = content["variants"]
    metrics = list(dict.fromkeys(m for own in variants.values() for m in own["scores"]))
    if not metrics:
        raise UserError("no part of the study is finished; there is nothing to draw")
    columns = min(3, len(metrics))
    rows = math.ceil(len(metrics) / columns)
    height = rows * (0.3 * len(variants) + 0.9) + 0.6
    picture, panels = _figure(
        f"{len(variants)} variants, {len(content['seeds'])} seeds",
        1.4 + 2.6 * columns,
        height,
        rows,
        columns,
    )
    for i, axes in enumerate(panels):
        if i >= len(metrics):
            axes.remove()
            continue
        for place, own in enumerate(variants.values()):
            found = own["scores"].get(metrics[i])
            if found is None:
                continue
            values = found["scores"]
            error = found["deviation"] / math.sqrt(len(values))
            axes.plot(values, [place] * len(values), "o", color=_COLOURS[3], alpha=0.7)
            axes.errorbar(
                found["mean"], place, xerr=error, fmt="|", color="black", markersize=12
            )
        names = list(variants) if i % columns == 0 else [""] * len(variants)
        axes.set_yticks(range(len(variants)), names)
        axes.set_ylim(len(variants) - 0.5, -0.5)
        axes.set_title(metrics[i])
        axes.grid(True, axis="x")
    seeds = Line2D([], [], color=_COLOURS[3], marker="o", linestyle="", label="a seed")
    mean = Line2D([], [], color="black", marker="|", label="mean ± standard error")
    picture.legend(handles=[seeds, mean], loc="outside lower left", ncols=2)
    return picture
