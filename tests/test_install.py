"""A wheel and an sdist contain all files that work without a clone."""

import email
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BUILT = ("bert_jax", "experiments")
BUILD = """
import sys
from setuptools import build_meta
print(getattr(build_meta, sys.argv[1])(sys.argv[2]))
"""


def build(what, source, target):
    done = subprocess.run(
        [sys.executable, "-c", BUILD, f"build_{what}", str(target)],
        cwd=source,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return target / done.stdout.splitlines()[-1]


def copy_of_the_clone(source):
    for name in BUILT:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for file in ROOT.iterdir():
        if file.is_file():
            shutil.copy(file, source)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of the sdist of a copy of this clone."""
    folder = tmp_path_factory.mktemp("install")
    source = folder / "source"
    copy_of_the_clone(source)
    sdist = build("sdist", source, folder)
    shutil.unpack_archive(sdist, folder, filter="data")
    return build("wheel", sdist.with_name(sdist.name.removesuffix(".tar.gz")), folder)


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder with the wheel's bert_jax, away from the clone."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_a_wheel_of_the_sdist_has_every_module_and_config(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {n for n in archive.namelist() if ".dist-info/" not in n}
    expected = {
        path.relative_to(ROOT).as_posix()
        for name in BUILT
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names == {
        name.replace("experiments/", "bert_jax/experiments/", 1)
        if name.startswith("experiments/")
        else name
        for name in expected
    }
    assert len(names) > 100


def test_a_wheel_has_the_listed_requirements(installed):
    (path,) = installed.glob("*.dist-info/METADATA")
    metadata = email.message_from_string(path.read_text())
    needs = metadata.get_all("Requires-Dist")
    extras = {*("gpu", "tpu", "gcs", "tfds", "beam", "chinese", "notebooks", "docs")}
    assert set(metadata.get_all("Provides-Extra")) == {*extras, "test"}
    required = {re.match(r"[\w.-]+", x)[0] for x in needs if "extra ==" not in x}
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    listed = {re.match(r"[\w.-]+", line)[0] for line in lines if line[0] != "#"}
    assert required == listed
    assert {"jax", "flax"} <= listed
    # A data set of tensorflow-datasets is optional, because the library is large.
    assert "tensorflow-datasets" not in required
    tfds = [need for need in needs if 'extra == "tfds"' in need]
    assert len(tfds) == 2


def test_a_wheel_finds_its_configs_by_name_outside_the_clone(installed, tmp_path):
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "bert_jax", "finetune"),
            *("--config", "wnut17_features", "--print_config"),
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "data.task = 'wnut17'" in done.stdout
    assert "features.layers = (-4, -3, -2, -1)" in done.stdout
    (script,) = installed.glob("*.dist-info/entry_points.txt")
    assert "bert_jax = bert_jax.__main__:run" in script.read_text()


def test_the_folder_that_contains_the_clone_imports_the_package(tmp_path):
    clone = tmp_path / "bert_jax"  # the folder name of git clone
    copy_of_the_clone(clone)
    site = tmp_path / "site"
    site.mkdir()
    with zipfile.ZipFile(build("editable", clone, site)) as archive:
        archive.extractall(site)
    script = (
        "import site; site.addsitedir('site'); import bert_jax; "
        "print(bert_jax.__version__, bert_jax.__file__)"
    )
    done = subprocess.run(  # -S: without the installed package of the tests
        [sys.executable, "-S", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    version, file = done.stdout.split()
    assert version and file == str(clone / "bert_jax" / "__init__.py")


def test_the_root_has_at_most_twelve_files():
    """A visitor sees the README without scrolling."""
    names = sorted(path.name for path in ROOT.iterdir() if path.is_file())
    files = [name for name in names if name != ".git"]  # a file in a worktree
    assert len(files) <= 12, files
