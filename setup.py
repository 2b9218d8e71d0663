"""The step of a build that pyproject.toml cannot describe.

A wheel contains a copy of experiments/ as bert_jax/experiments, so that configs are found
by their names. An editable install has no copy: commands/config_file.py finds experiments/
beside the package.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithExperiments(build_py):
    """Copies experiments/ into the package of a wheel."""

    def run(self) -> None:
        """Builds the package, then copies the configs."""
        super().run()
        if not self.editable_mode:
            shutil.copytree(
                Path(__file__).parent / "experiments",
                Path(self.build_lib, "bert_jax", "experiments"),
                ignore=shutil.ignore_patterns("__pycache__"),
                dirs_exist_ok=True,
            )


setup(cmdclass={"build_py": BuildWithExperiments})
