"""What a wheel contains and needs; pyproject.toml has the rest.

A wheel carries experiments/ as bert_jax/experiments, so that configs are found by their
names. It needs what requirements.txt lists, without the lines of requirements-tfds.txt:
they are a fifth of an environment, for those who read data sets of tensorflow-datasets.
Each requirements-NAME.txt is the extra NAME.
"""

from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent


def requirements(path: Path) -> list[str]:
    """The requirements that a file lists, without its comments."""
    lines = (line.partition(" #")[0].strip() for line in path.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


extras = {
    path.stem.removeprefix("requirements-"): requirements(path)
    for path in ROOT.glob("requirements-*.txt")
}
setup(
    packages=[
        *find_packages(include=["bert_jax*"]),
        "bert_jax.experiments",
        *(f"bert_jax.experiments.{name}" for name in ("ablations", "finetune")),
    ],
    package_dir={"bert_jax.experiments": "experiments"},
    install_requires=[
        requirement
        for requirement in requirements(ROOT / "requirements.txt")
        if requirement not in extras["tfds"]
    ],
    extras_require=extras,
)
