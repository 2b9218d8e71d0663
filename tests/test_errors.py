import ast
import re
from pathlib import Path

import pytest

import bert_jax
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


# Files that only commands use. Flags of other programs, or beside the name of a command.
_OF_COMMANDS = ("commands/", "inference/lines.py", "parallel/processes.py")
_OF_COMMANDS += ("training/estimate.py", "training/checks.py", "__main__.py")
_OTHERS = {
    *("--local-dir", "--file_format", "--checksums", "--runner", "--pairs", "--to"),
    "--activation",
}


def test_messages_of_the_library_name_arguments_not_flags():
    """A function of Python has no flags, and a command has a flag for each argument."""
    package = Path(bert_jax.__file__).parent
    found = []
    for path in package.rglob("*.py"):
        place = path.relative_to(package).as_posix()
        if place.startswith(_OF_COMMANDS):
            continue
        tree = ast.parse(path.read_text())
        docstrings = {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if not is_text or node in docstrings:
                continue
            flags = {*re.findall(r"(?<![\w-])--[a-z][\w.-]+", node.value)}
            found += [(place, flag) for flag in flags - _OTHERS]
    assert found == []
