"""Each notebook runs in a short form, and the saved notebooks are up to date."""

import ast
import contextlib
import importlib
import json
import re
import runpy
import shutil
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))

pytestmark = [
    pytest.mark.long,
    # Pictures are drawn but not shown.
    pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive"),
]


@pytest.fixture(scope="module")
def execute(tmp_path_factory):
    """A function that runs a notebook by name and returns its variables."""
    folder = tmp_path_factory.mktemp("clone")
    (folder / "models").symlink_to(FOLDER.parent / "models")
    workdir = folder / "notebooks"
    workdir.mkdir()
    settings = {
        "NOTEBOOK_SHORT": "1",
        "MPLBACKEND": "agg",
        # Variables set by the notebook are restored as well.
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "8",
    }

    def run(name, **environment):
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(workdir)
            for key, value in (settings | environment).items():
                patch.setenv(key, value)
            try:
                return runpy.run_path(str(FOLDER / f"{name}.py"))
            finally:
                plt.close("all")

    return run


@pytest.fixture(scope="module")
def pretrained(execute):
    """The variables of the pretraining notebook."""
    return execute("pretrain")


@pytest.fixture(scope="module")
def checkpoint(pretrained):
    """The pretrained model, in the place of a download."""
    return "runs/notebook/my_bert"


def test_the_notebook_pretrain_runs(pretrained):
    assert np.isfinite(pretrained["scores"]["loss"])
    # After 14 steps the model has only learned which tokens are frequent.
    assert pretrained["scores"]["mlm_accuracy"] < 0.3
    assert len(pretrained["follows"]) == len(pretrained["random"]) > 0
    tokens = pretrained["tokens"]
    assert tokens[0] == "[CLS]" and tokens.count("[SEP]") == 2
    assert "[MASK]" in tokens


def test_the_notebook_finetune_runs(execute):
    variables = execute("finetune")
    assert len(variables["test"]) == len(variables["rows"]) // 5
    assert variables["score"] == pytest.approx(100 * variables["right"].mean())
    assert len(variables["wrong"]) == (~variables["right"]).sum()


def test_the_notebook_question_answering_runs(execute, checkpoint):
    variables = execute("question_answering", CHECKPOINT=checkpoint)
    assert variables["found"].keys() == variables["tests"].keys()
    for scores in variables["found"].values():
        assert 0 <= scores["exact_match"] <= scores["f1"] <= 100
    for (_, context, _), answer in zip(
        variables["rows"], variables["answers"], strict=True
    ):
        assert answer["answer"] in context


def test_the_notebook_checkpoints_runs(execute, checkpoint, golden, tmp_path):
    google = shutil.copytree(golden / "google_bert", tmp_path / "google")
    size = json.loads((google / "bert_config.json").read_text())["vocab_size"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = [*special, *(f"w{i}" for i in range(size - len(special)))]
    (google / "vocab.txt").write_text("\n".join(tokens) + "\n")
    variables = execute(
        "checkpoints", CHECKPOINT=checkpoint, GOOGLE_CHECKPOINT=str(google)
    )
    np.testing.assert_allclose(
        np.linalg.norm(variables["vectors"], axis=1), 1, rtol=1e-5
    )
    assert len(variables["texts"]) == len(variables["package_of"]) == 80
    assert variables["google"].head == "pretraining"


def test_the_notebook_see_inside_runs(execute):
    variables = execute("see_inside")
    out = variables["out"]
    np.testing.assert_allclose(out.attentions.sum(axis=-1), 1, rtol=1e-5)
    assert len(out.hidden_states) == len(out.attentions) + 1
    assert (
        variables["far_KN"].shape
        == out.attentions.shape[:1] + out.attentions.shape[2:3]
    )
    # A word has the cosine 1 with itself and less with words of other texts.
    cosine_KTT, texts = variables["cosine_KTT"], 8
    assert cosine_KTT.shape == (len(out.hidden_states), texts, texts)
    np.testing.assert_allclose(cosine_KTT[:, range(8), range(8)], 1, rtol=1e-5)
    pairs = texts * (texts / 2 - 1), texts * texts / 2
    means = np.average(
        [variables["same_K"], variables["different_K"]], axis=0, weights=pairs
    )
    np.testing.assert_allclose(
        means, (cosine_KTT.sum(axis=(1, 2)) - texts) / sum(pairs), rtol=1e-4
    )


def test_the_notebook_eight_devices_runs(execute):
    variables = execute(
        "eight_devices"
    )  # the notebook compares the losses of its meshes
    shards = variables["held"]
    assert shards["data=2, model=4"] < shards["data=4, model=2"] < shards["data=8"]
    assert shards["data=8, fsdp"] < shards["data=8"]
    assert set(variables["traffic"]["data=8"]) == {"all-reduce"}


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_notebook_is_its_source_with_outputs(name):
    path = FOLDER / f"{name}.ipynb"
    assert path.stat().st_size < 300e3
    saved = json.loads(path.read_text("utf-8"))["cells"]
    source_cells = [cell for cell in saved if cell["id"] != "install"]
    source = (FOLDER / f"{name}.py").read_text("utf-8")
    cells = re.split(r"^# %%(.*)\n", source, flags=re.MULTILINE)[1:]
    kinds, texts = cells[::2], cells[1::2]
    texts = [
        re.sub("^# ?", "", text, flags=re.MULTILINE) if "markdown" in kind else text
        for kind, text in zip(kinds, texts, strict=True)
    ]
    stale = f"the source has changed; run make notebooks NAMES={name}"
    assert [text.strip() for text in texts] == [
        "".join(cell["source"]).strip() for cell in source_cells
    ], stale
    code = [cell for cell in source_cells if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in code), stale
    assert not any(
        output["output_type"] == "error" for cell in code for output in cell["outputs"]
    )
    pictures = [
        o for c in code for o in c["outputs"] if "image/png" in o.get("data", {})
    ]
    assert len(pictures) >= 2


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_notebook_installs_bert_jax_as_make_writes_it(name):
    """Colab runs this cell, and it names the clone's models for finetune, see_inside."""
    values = {}
    for node in ast.parse((FOLDER / "make.py").read_text("utf-8")).body:
        if isinstance(node, ast.Assign):
            with contextlib.suppress(ValueError):  # not a literal
                values[node.targets[0].id] = ast.literal_eval(node.value)
    device = values["DEVICES"].get(name, values["DEVICE"])
    expected = values["INSTALL"].format(device=device)
    cells = json.loads((FOLDER / f"{name}.ipynb").read_text("utf-8"))["cells"]
    (install,) = [cell for cell in cells if cell["id"] == "install"]
    assert "".join(install["source"]) == expected, f"run make notebooks NAMES={name}"


def test_every_notebook_is_saved_and_listed():
    sources = {path.stem for path in FOLDER.glob("*.py")} - {"make"}
    assert sources == set(NAMES)
    page = (FOLDER.parent / "docs" / "notebooks.md").read_text("utf-8")
    assert sources == set(re.findall(r"\| \[(\w+)\]\(\.\./notebooks/\1\.ipynb\)", page))


@pytest.mark.parametrize("name", NAMES)
def test_each_name_of_the_package_in_a_notebook_exists(name):
    """The short form leaves out cells, such as those that compile for a TPU."""
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
    modules, used = {}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "bert_jax":
                    modules["bert_jax"] = importlib.import_module("bert_jax")
        if isinstance(node, ast.ImportFrom) and node.module.startswith("bert_jax"):
            for alias in node.names:
                with contextlib.suppress(ModuleNotFoundError):
                    path = f"{node.module}.{alias.name}"
                    modules[alias.name] = importlib.import_module(path)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used.append((node.value.id, node.attr))
    of_package = [(module, attr) for module, attr in used if module in modules]
    assert of_package
    for module, attr in of_package:
        assert hasattr(modules[module], attr), f"{module}.{attr}"
