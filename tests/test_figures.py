"""Pictures show the right numbers."""

import json
import subprocess
import sys
from itertools import islice

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from matplotlib.collections import LineCollection

import bert_jax
from bert_jax import figures
from bert_jax.data.wordpiece import WordPieceTokenizer
from bert_jax.errors import UserError
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import BertConfig
from bert_jax.objectives.mlm_nsp import MlmNsp

PRETRAINING = [
    dict(step=10, split="train", loss=7.0, mlm_accuracy=0.1, learning_rate=1e-3)
    | dict(grad_norm=2.0, tokens_per_second=None, padding=0.1),
    dict(step=20, split="train", loss=6.0, mlm_accuracy=0.2, learning_rate=5e-4)
    | dict(grad_norm=1.0, tokens_per_second=5000.0, padding=0.1),
    dict(step=20, split="eval", loss=6.5, mlm_loss=6.5, mlm_accuracy=0.15)
    | dict(mlm_majority=0.06),
]
FINE_TUNING = [
    dict(step=5, split="train", loss=0.6, learning_rate=1e-5, grad_norm=1.0)
    | dict(tokens_per_second=100.0),
    {"step": 5, "split": "dev", "f1": 71.5, "accuracy": 80.0, "f1/PER": 60.0},
]


def write_run(folder, lines, config):
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in lines))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def pretraining(tmp_path):
    return write_run(tmp_path / "tiny", PRETRAINING, {"phases": []})


@pytest.fixture
def fine_tuning(tmp_path):
    return write_run(tmp_path / "mrpc", FINE_TUNING, {"family": "classification"})


def drawn(picture):
    """x and y of each line, by panel title and line label."""
    return {
        (axes.get_title(loc="left"), line.get_label()): [
            np.asarray(data).tolist() for data in line.get_data()
        ]
        for axes in picture.axes
        for line in axes.lines
    }


def legends(picture):
    """The entries of all legends."""
    return [name for legend in picture.legends for name in names(legend.get_texts())]


def image(axes):
    return np.asarray(axes.images[0].get_array())


def names(labels):
    return [label.get_text() for label in labels]


def test_curves_show_the_metrics(pretraining):
    lines = drawn(figures.curves(pretraining))
    masked = "masked tokens (MLM accuracy)"
    expected = {
        ("loss", "tiny, train"): [[10, 20], [7, 6]],
        ("loss", "tiny, eval"): [[20], [6.5]],
        (masked, "tiny, train"): [[10, 20], [10, 20]],  # percent
        (masked, "tiny, eval"): [[20], [15]],
        (masked, "tiny, eval, baseline"): [[20], [6]],
        ("learning rate", "tiny, train"): [[10, 20], [1e-3, 5e-4]],
        ("gradient norm", "tiny, train"): [[10, 20], [2, 1]],
        ("tokens per second", "tiny, train"): [[20], [5000]],
    }
    assert lines.keys() == expected.keys()
    for name, data in expected.items():
        for ours, theirs in zip(lines[name], data, strict=True):
            assert ours == pytest.approx(theirs), name


def test_a_picture_shows_where_longer_sequences_start(tmp_path):
    """Each phase has the baselines of its own evaluations."""
    found = [(0, 0.6), (20, 0.6), (20, 0.55), (30, 0.55)]
    lines = [
        dict(step=step, split="eval", loss=1.0, nsp_accuracy=0.7, nsp_majority=most)
        for step, most in found
    ]
    lengths = [(15, 8), (5, 8), (15, 16), (5, 4)]
    phases = [dict(steps=a, sequence_length=b, batch_size=2) for a, b in lengths]
    run = write_run(tmp_path / "run", lines, {"phases": phases})
    picture = figures.curves(run)
    for axes in picture.axes:
        assert [list(x.get_xdata()) for x in axes.lines].count([20, 20]) == 1
    assert "longer sequences start" in legends(picture)
    assert not any(axes.texts for axes in picture.axes)
    next_sentences = "next sentences (NSP accuracy)"
    x, y = drawn(picture)[next_sentences, "run, eval, baseline"]
    assert x == [0, 20, 20, 30]
    assert y == pytest.approx([60, 60, 55, 55])
    by_tokens = figures.curves(run, references=[run]).axes[0]
    assert [2 * 8 * 20] * 2 in [list(line.get_xdata()) for line in by_tokens.lines]
    # A logarithmic axis starts at the first report after step 0.
    first, last = 2 * 8 * 20, 2 * 8 * 20 + 2 * 16 * 10
    assert by_tokens.get_xscale() == "log"
    assert by_tokens.get_xlim() == pytest.approx((first, 1.25 * last))


def test_a_run_that_has_reported_step_0_only_is_drawn_by_tokens(tmp_path):
    line = dict(step=0, split="eval", loss=9.0)
    phases = [dict(steps=10, sequence_length=8, batch_size=2)]
    run = write_run(tmp_path / "run", [line], {"phases": phases})
    picture = figures.curves(run, references=[run])
    assert picture._repr_png_().startswith(b"\x89PNG")
    assert picture.axes[0].get_xlim() == pytest.approx((1, 1.25))


def test_scores_of_fine_tuning_are_drawn(fine_tuning):
    picture = figures.curves(fine_tuning)
    found = drawn(picture)
    assert found["f1", "mrpc, dev"] == [[5], [71.5]]
    assert found["accuracy", "mrpc, dev"] == [[5], [80]]
    titles = [axes.get_title(loc="left") for axes in picture.axes]
    assert "f1/PER" not in titles
    units = {axes.get_title(loc="left"): axes.get_ylabel() for axes in picture.axes}
    assert units["f1"] == "%" and units["gradient norm"] == "mean over steps"


def test_panels_can_be_chosen(pretraining, fine_tuning):
    picture = figures.curves(pretraining, metrics=["mlm_accuracy", "loss"])
    titles = [axes.get_title(loc="left") for axes in picture.axes]
    assert titles == ["masked tokens (MLM accuracy)", "loss"]
    with pytest.raises(UserError, match="no run has the metric 'mlm'; expected loss, "):
        figures.curves(pretraining, metrics=["mlm"])
    with pytest.raises(UserError, match="no run has the metric 'step'"):
        figures.curves(pretraining, metrics=["step"])


def test_the_legend_names_the_runs_and_only_what_is_drawn(
    tmp_path, pretraining, fine_tuning
):
    baseline = "baseline: most frequent answer"
    picture = figures.curves(pretraining)
    assert picture.get_suptitle() == "tiny: 20 steps"
    assert legends(picture) == ["training", "evaluation", baseline]
    assert legends(figures.curves(fine_tuning)) == ["training", "evaluation"]
    assert legends(figures.curves(pretraining, metrics=["grad_norm"])) == ["training"]
    picture = figures.curves(pretraining, fine_tuning)
    assert picture.get_suptitle() == ""
    assert legends(picture) == ["tiny", "mrpc", "training", "evaluation", baseline]


def test_the_baseline_of_fine_tuning_is_the_share_of_the_most_frequent_label(tmp_path):
    lines = [
        dict(step=step, split="dev", accuracy=score, f1_macro=score, majority=52.0)
        for step, score in ((5, 50.0), (9, 75.0))
    ]
    run = write_run(tmp_path / "run", lines, {"family": "classification"})
    picture = figures.curves(run)
    found = drawn(picture)
    assert found["accuracy", "run, dev"] == [[5, 9], [50, 75]]
    assert found["accuracy", "run, dev, baseline"] == [[5, 9], [52, 52]]
    assert ("f1 macro", "run, dev, baseline") not in found
    titles = [axes.get_title(loc="left") for axes in picture.axes]
    assert titles[1:3] == ["accuracy", "f1 macro"] and "majority" not in titles
    assert "baseline: most frequent answer" in legends(picture)


def test_runs_differ_in_colour_line_and_marker(pretraining, fine_tuning):
    picture = figures.curves(pretraining, fine_tuning)
    both = [line for axes in picture.axes for line in axes.lines]
    both = [line for line in both if line.get_label().endswith((", eval", ", dev"))]
    looks = {
        line.get_label(): (line.get_color(), line.get_linestyle(), line.get_marker())
        for line in both
    }
    assert len(looks) == 2
    assert all(a != b for a, b in zip(*looks.values(), strict=True))
    assert {"tiny", "mrpc", "training", "evaluation"} < set(legends(picture))
    many = [tuple(map(str, look.values())) for look in islice(figures._looks(), 40)]
    assert len(set(many)) == 40


def test_a_confusion_matrix_shows_counts_and_shares():
    labels, counts = ["no", "yes"], [[6, 2], [1, 3]]
    picture = figures.confusion_matrix(labels, counts, "dev rows")
    axes = picture.axes[0]
    np.testing.assert_allclose(image(axes), [[6 / 8, 2 / 8], [1 / 4, 3 / 4]])
    assert names(axes.texts) == ["6", "2", "1", "3"]
    assert names(axes.get_xticklabels()) == names(axes.get_yticklabels())
    assert names(axes.get_yticklabels()) == ["no", "yes"]
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("gold", "predicted")
    assert picture.get_suptitle() == "dev rows: 75.0% of 12 right"


@pytest.mark.parametrize("size, shown", [(20, 400), (21, 0)])
def test_a_large_confusion_matrix_has_only_colours(size, shown):
    labels = [f"class {i}" for i in range(size)]
    picture = figures.confusion_matrix(labels, np.eye(size, dtype=int), "dev rows")
    assert len(picture.axes[0].texts) == shown


def test_panels_and_their_labels_do_not_overlap(pretraining):
    picture = figures.curves(pretraining)
    picture.draw_without_rendering()
    # Without the margin of the text, in pixels.
    panels = [axes.get_tightbbox().padded(-4) for axes in picture.axes]
    assert len(panels) == 5
    for i, panel in enumerate(panels):
        assert panel.count_overlaps(panels[:i]) == 0


def test_names_with_dollar_signs_are_not_formulas(tmp_path):
    counts = [[1, 0], [0, 1]]
    picture = figures.confusion_matrix(["$x^{$", "b"], counts, "$dev^{$")
    figures.save(picture, tmp_path / "names.svg")


def test_curves_need_no_jax(pretraining):
    code = "import sys; from bert_jax.commands import plot; plot.main(sys.argv[1:])"
    code += "; assert not {'jax', 'matplotlib.pyplot'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code, pretraining], check=True)


def test_a_notebook_shows_a_picture(pretraining):
    assert figures.curves(pretraining)._repr_png_().startswith(b"\x89PNG")


TOKENS = "[PAD] [UNK] [CLS] [SEP] [MASK] the ship sail ##or ##s see bank ."
TOKENIZER = WordPieceTokenizer(TOKENS.split(), True)
CONFIG = BertConfig(
    vocab_size=TOKENIZER.vocab_size,
    hidden_size=32,
    num_layers=2,
    num_heads=2,
    intermediate_size=64,
    max_positions=24,
    initializer_range=0.5,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    params = jax.jit(MlmNsp(BertForPreTraining(CONFIG)).init)(jax.random.key(0))
    path = tmp_path_factory.mktemp("bert") / "model"
    checkpoint = Checkpoint(CONFIG, jax.device_get(params), TOKENIZER, "pretraining")
    save_huggingface(path, checkpoint)
    return bert_jax.load(path)


def test_heads_show_the_attention_of_a_layer(model):
    out = model("The sailors see.", attentions=True)
    for layer in (0, -1):
        picture = figures.attention_heads(model, "The sailors see.", layer)
        one, other, bar = picture.axes
        np.testing.assert_array_equal(image(one), out.attentions[layer, 0, 0])
        np.testing.assert_array_equal(image(other), out.attentions[layer, 0, 1])
        assert names(one.get_yticklabels()) == out.tokens[0]
        assert names(other.get_xticklabels()) == out.tokens[0]
        assert bar.get_ylabel() == "attention probability"
    assert "Layer 1 of 0 to 1" in picture.get_suptitle()
    picture.draw_without_rendering()
    title = picture.texts[0].get_window_extent()
    assert title.x1 <= picture.bbox.x1  # wrapped, because two heads are narrow
    for call in (figures.attention_heads, figures.attention_lines):
        head = [0] if call is figures.attention_lines else []
        with pytest.raises(UserError, match="layer=2, expected 0 to 1, or -2 to -1"):
            call(model, "The sailors see.", 2, *head)
    with pytest.raises(UserError, match="head=2, expected 0 to 1, or -2 to -1"):
        figures.attention_lines(model, "The sailors see.", 1, 2)


def test_blocks_show_the_devices_that_store_them():
    def drawn_blocks(axes):
        """Left, top, width and height of each block, by its label."""
        boxes = [
            (*box.get_xy(), box.get_width(), box.get_height()) for box in axes.patches
        ]
        return dict(zip(names(axes.texts), boxes, strict=True))

    devices = np.array(jax.devices()[:4])
    mesh = Mesh(devices.reshape(2, 2), ("data", "model"))
    kernel = NamedSharding(mesh, PartitionSpec(None, "model")), (6, 8)
    whole = NamedSharding(mesh, PartitionSpec()), (6, 8)
    batch = NamedSharding(mesh, PartitionSpec(("data", "model"))), (16, 5)
    picture = figures.shards(
        {"a": {"k": kernel, "w": whole}, "b": {"k": batch, "w": whole}}
    )
    first, second, third, last = picture.axes
    assert drawn_blocks(first) == {"0, 2": (0, 0, 0.5, 1), "1, 3": (0.5, 0, 0.5, 1)}
    assert drawn_blocks(third) == {f"{i}": (0, i / 4, 1, 0.25) for i in range(4)}
    assert drawn_blocks(second) == drawn_blocks(last) == {"all 4": (0, 0, 1, 1)}
    assert [axes.get_title(loc="left") for axes in picture.axes] == ["k", "w", "", ""]
    assert [axes.get_ylabel() for axes in picture.axes] == ["a", "", "b", ""]


def test_lines_join_words_by_their_attention(model):
    """Attention to the tokens of a word is summed, attention from its tokens averaged."""
    pair = ("The sailors", "see the ship")
    out = model([pair], attentions=True)
    assert out.tokens[0][2:5] == ["sail", "##or", "##s"]
    attention_LL = out.attentions[1, 0, 0]
    parts = [[0], [1], [2, 3, 4], [5], [6], [7], [8], [9]]
    expected_WW = [
        [attention_LL[np.ix_(a, b)].sum() / len(a) for b in parts] for a in parts
    ]
    picture = figures.attention_lines(model, pair, 1, 0)
    (axes,) = picture.axes
    (lines,) = (c for c in axes.collections if isinstance(c, LineCollection))
    widths_WW = np.reshape(lines.get_linewidths(), (8, 8)) / figures._WIDEST
    np.testing.assert_allclose(widths_WW, expected_WW, rtol=0, atol=1e-6)
    np.testing.assert_allclose(widths_WW.sum(axis=1), 1, rtol=0, atol=1e-6)
    ends = np.array(lines.get_segments()).reshape(8, 8, 2, 2)
    assert ends[2, 5].tolist() == [[0, 2], [1, 5]]
    words = ["[CLS]", "the", "sailors", "[SEP]", "see", "the", "ship", "[SEP]"]
    assert names(axes.get_yticklabels()) == words
    with pytest.raises(UserError, match="head=-3, expected 0 to 1, or -2 to -1"):
        figures.attention_lines(model, pair, 1, -3)
