"""Makes the pictures of docs/guides/pictures.md, by running what the page shows.

RUNS: a folder with the runs tiny (experiments/tiny.py) and seed0 to seed2: the fine-tuning
of docs/tutorial.md, from the model of tiny, with the seeds 0 to 2 and log_every=10. MODEL:
sentence-transformers/all-MiniLM-L6-v2.

usage:
  python docs/scripts/draw_pictures.py RUNS MODEL
"""

import io
import json
import re
import sys
from pathlib import Path

from PIL import Image

from bert_jax import figures

DOCS = Path(__file__).resolve().parents[1]
PICTURES = DOCS / "pictures"
SMALL = {
    "confusion.png": 110,
    "lines.png": 130,
}  # dots per inch, for less than the width


def shrink(picture, name):
    """Writes a PNG of 128 colours: a third of the size, and it looks the same.

    A page shows it up to 740 pixels wide, and sharp screens show twice as many.
    """
    with io.BytesIO() as file:
        picture.savefig(file, format="png", dpi=SMALL.get(name, 200))
        image = Image.open(file).convert("RGB").quantize(128)
        image.save(PICTURES / name, optimize=True)
    print(name, (PICTURES / name).stat().st_size)


def main(runs, model):
    """Draws all of them."""
    page = (DOCS / "guides/pictures.md").read_text()
    runs = Path(runs)
    shrink(figures.curves(runs / "tiny"), "curves.png")
    seeds = [runs / f"seed{i}" for i in range(3)]
    shrink(figures.curves(*seeds, metrics=["loss", "accuracy"]), "compare.png")
    names = {"shrink": shrink}
    for note, block in re.findall(
        r"(<!-- [^\n]*\n)?```python\n(.*?)```", page, flags=re.S
    ):
        if not note:
            block = block.replace("all-MiniLM-L6-v2", model)
            block = re.sub(r"(\S.*)\.savefig\((.*)\)", r"shrink(\1, \2)", block)
            exec(compile(block, "pictures.md", "exec"), names)
    found = json.loads((runs / "seed0/predictions/dev.confusion.json").read_text())
    counts = figures.confusion_matrix(found["labels"], found["counts"], "dev rows")
    shrink(counts, "confusion.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
