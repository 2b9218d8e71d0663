import pytest

from bert_jax.errors import DivergenceError, UserError, hint


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("learning_rate", "optimizer.learning_rate"),
        ("lr", "optimizer.learning_rate"),
        ("num_train_epochs", "epochs"),
        ("sweep.num_train_epochs", "sweep.epochs"),
        ("num_epochs", "epochs"),
        ("optimiser.learning_rate", "optimizer.learning_rate"),
        ("batchsize", "batch_size"),
        ("sweep.num_epochs", "sweep.epochs"),
        ("xyzzy", ""),
    ],
)
def test_the_nearest_setting_is_suggested(name, expected):
    known = ["sweep.epochs", "epochs", "batch_size", "optimizer.learning_rate"]
    assert hint(name, known) == (expected and f"did you mean {expected}?")


def test_ipython_shows_one_line():
    """IPython's shell calls this method of an exception for the lines to show."""
    assert UserError("wrong\nvalue")._render_traceback_() == [
        r"UserError: wrong\nvalue"
    ]
    assert DivergenceError("nan")._render_traceback_() == ["DivergenceError: nan"]


def test_arguments_of_transformers_without_a_setting_are_explained():
    assert hint("device", ["dev", "devices"]).startswith("JAX chooses devices")
    assert hint("data.text", ["data.text_b", "data.text_a"]).endswith(" data.text_a?")
    assert hint("文本列", ["标签", "文本"]) == "did you mean 文本?"
    assert hint("评论", ["标签", "文本"]) == ""
    assert hint("optimizer.fp16", ["fp"]).startswith("the setting is compute.dtype: ")
