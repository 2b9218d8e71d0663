"""Imports point one way: commands -> training -> inference -> interop -> objectives ->
tasks, model, data, parallel -> arguments, errors, files, progress, protobuf, remote,
schema, settings, unstable. Private and experimental parts of JAX are in one file."""

import ast
import graphlib
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "bert_jax"
# Every file may import these. They import only each other.
LOWEST = {
    *("arguments", "errors", "files", "progress", "protobuf", "remote", "schema"),
    *("settings", "unstable"),
}
# The folders that each folder may import, besides itself and LOWEST.
ALLOWED = {
    **{f"{name}.py": set() for name in sorted(LOWEST)},
    "data": set(),
    "model": set(),
    "parallel": {"model"},
    "tasks": {"data"},
    "interop": {"data", "model", "parallel", "objectives"},
    "objectives": {"data", "model", "parallel", "tasks"},
    "inference": {"data", "model", "parallel", "tasks", "interop", "objectives"},
    "training": {
        *("data", "model", "parallel", "tasks", "interop", "objectives", "inference"),
        *("figures", "runs"),
    },
}

# Imports of Orbax, and names of private and experimental parts of libraries.
ORBAX = re.compile(r"^\s*(from|import) orbax", re.MULTILINE)
UNSTABLE = re.compile(r"\._src\b|\.experimental\b|from jax import .*\bexperimental\b")


def imports(path: Path) -> set[str]:
    """Full names of all imports of a file from the package, including imports in
    functions.
    """
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return {name for name in names if name.partition(".")[0] == "bert_jax"}


def imported_folders(path: Path) -> set[str]:
    parts = [name.split(".")[1:] for name in imports(path) if "." in name]
    return {part[0] for part in parts}


def test_there_are_no_import_cycles():
    files = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path
        for path in PACKAGE.rglob("*.py")
    }
    files = {name.removesuffix(".__init__"): path for name, path in files.items()}
    graph = {
        name: {
            other if other in files else other.rpartition(".")[0]
            for other in imports(path)
        }
        - {name}
        for name, path in files.items()
    }
    assert set().union(*graph.values()) <= set(files)
    # Raises CycleError with the files of a cycle.
    list(graphlib.TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("folder", ALLOWED)
def test_a_folder_imports_only_folders_below_it(folder):
    path = PACKAGE / folder
    files = [path] if path.is_file() else list(path.rglob("*.py"))
    assert files
    for path in files:
        own_name = folder.removesuffix(".py")
        extra = imported_folders(path) - ALLOWED[folder] - LOWEST - {own_name}
        assert not extra, f"{path.name} imports {extra}"


def test_every_folder_has_a_rule():
    folders = {p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name[0] != "_"}
    ruled = {name for name in ALLOWED if not name.endswith(".py")}
    assert folders == ruled | {"commands"}  # commands may import all


@pytest.mark.parametrize("folder", ["training", "inference"])
def test_a_module_imports_at_most_40_names_of_the_package(folder):
    """A module that needs more does several jobs."""
    counts = {path.name: len(imports(path)) for path in (PACKAGE / folder).glob("*.py")}
    assert counts and {name for name, count in counts.items() if count > 40} == set()


def test_orbax_is_imported_in_one_file():
    users = [p for p in PACKAGE.rglob("*.py") if ORBAX.search(p.read_text())]
    assert users == [PACKAGE / "interop/train_state.py"]
    # orbax.checkpoint.experimental.v1 is the same module, but moves to another place.
    assert "from orbax.checkpoint import v1 as ocp" in users[0].read_text()


def test_private_and_experimental_parts_of_libraries_are_imported_in_one_file():
    users = [p for p in PACKAGE.rglob("*.py") if UNSTABLE.search(p.read_text())]
    assert users == [PACKAGE / "unstable.py"]


def test_a_start_does_not_import_the_kernels_of_tpus():
    """Their import takes a sixth of the start. unstable.py imports them when they are
    used.
    """
    lines = (PACKAGE / "unstable.py").read_text().splitlines()
    kernels = [line for line in lines if "pallas" in line]
    assert kernels and all(line.startswith("    from ") for line in kernels)


@pytest.mark.parametrize(
    "line",
    [
        "from jax._src import core",
        "import jax._src.core",
        "from jax.experimental import shard_map",
        "from jax import experimental",
        "x = jax.experimental.io_callback(f)",
        "from orbax.checkpoint.experimental import v1 as ocp",
        "from orbax.checkpoint._src.path import atomicity",
        "x = ocp._src",
        "import flax.core._src",
    ],
)
def test_the_search_finds_private_and_experimental_parts(line):
    assert UNSTABLE.search(f"import os\n{line}\n")


def test_every_test_file_has_its_own_name():
    """Reports of pytest, and readers who search, use only the name of the file."""
    files = (PACKAGE.parent / "tests").rglob("test_*.py")
    names = sorted(path.name for path in files)
    assert [name for name in names if names.count(name) > 1] == []
