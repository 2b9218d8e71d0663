"""Imports point one way: commands -> training -> inference -> objectives, interop, tasks
-> model, data, parallel."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "bert_jax"
# What each folder may import of ours, beside itself, errors.py, files.py,
# locks.py, progress.py and settings.py. Training also reads and draws runs: runs.py,
# figures.py. Interop reads a run's parameters with training/checkpoints.py, which imports
# only parallel.
CHECKPOINTS = "training/checkpoints.py"
ALLOWED = {
    "data": set(),
    "model": set(),
    "parallel": set(),
    "tasks": {"data"},
    CHECKPOINTS: {"parallel"},
    "interop": {"data", "model", "parallel", CHECKPOINTS},
    "objectives": {"data", "model", "parallel", "tasks"},
    "inference": {"data", "model", "parallel", "tasks", "interop", "objectives"},
    "training": {
        *("data", "model", "parallel", "tasks", "interop", "objectives", "inference"),
        *("figures", "runs", CHECKPOINTS),
    },
}


def imported_folders(path: Path) -> set[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    ours = [name.split(".")[1:] for name in names if name.startswith("bert_jax.")]
    return {
        CHECKPOINTS if parts[:2] == ["training", "checkpoints"] else parts[0]
        for parts in ours
    }


@pytest.mark.parametrize("folder", ALLOWED)
def test_folder_imports_only_what_lies_below_it(folder):
    path = PACKAGE / folder
    files = [path] if path.is_file() else list(path.rglob("*.py"))
    assert files
    for path in files:
        extra = (
            imported_folders(path)
            - ALLOWED[folder]
            - {folder, "errors", "files", "locks", "progress", "settings"}
        )
        assert not extra, f"{path.name} imports {extra}"


def test_every_folder_has_a_rule():
    folders = {p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name[0] != "_"}
    assert folders == set(ALLOWED) - {CHECKPOINTS}


def test_orbax_is_imported_in_one_file():
    users = [p for p in PACKAGE.rglob("*.py") if "orbax" in p.read_text()]
    assert users == [PACKAGE / CHECKPOINTS]
