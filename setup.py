"""Contents and requirements of a wheel; pyproject.toml has the rest.

A wheel contains a copy of experiments/ as bert_jax/experiments, so that configs are found
by their names. An editable install has no copy: commands/config_file.py finds experiments/
beside the package.

`package_dir={"": "."}` makes setuptools add the clone to Python's path. Any other value
makes setuptools install an import hook instead. Python asks the hook after the working
directory, so that a folder named bert_jax there, such as the clone, hides the package.

A wheel requires the lines of requirements.txt without the lines of requirements-tfds.txt,
which only readers of tensorflow-datasets need. Each requirements-NAME.txt is the extra
NAME.
"""

import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


def requirements(path: Path) -> list[str]:
    """The requirements that a file lists, without its comments."""
    lines = (line.partition(" #")[0].strip() for line in path.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


class BuildWithExperiments(build_py):
    """Copies experiments/ into the package of a wheel."""

    def run(self) -> None:
        """Builds the package, then copies the configs."""
        super().run()
        if not self.editable_mode:
            shutil.copytree(
                ROOT / "experiments",
                Path(self.build_lib, "bert_jax", "experiments"),
                ignore=shutil.ignore_patterns("__pycache__"),
                dirs_exist_ok=True,
            )


extras = {
    path.stem.removeprefix("requirements-"): requirements(path)
    for path in ROOT.glob("requirements-*.txt")
}
setup(
    packages=find_packages(include=["bert_jax*"]),
    package_dir={"": "."},
    cmdclass={"build_py": BuildWithExperiments},
    install_requires=[
        requirement
        for requirement in requirements(ROOT / "requirements.txt")
        if requirement not in extras["tfds"]
    ],
    extras_require=extras,
)
