"""Draws the reference curves and writes their table into guides/is_my_loss_right.md.

The picture of README.md has the scores of the reference "small".

A curve is added by copying config.json and metrics.jsonl of a run into
experiments/references/NAME, and by this.

usage:
  python docs/scripts/draw_references.py
"""

import re
from pathlib import Path

from bert_jax.commands.config_file import named_references
from bert_jax.runs import Run, read_runs

PAGE = Path(__file__).resolve().parents[1] / "guides" / "is_my_loss_right.md"
HEAD = """| reference | step | tokens seen | loss | MLM loss | MLM acc. | NSP acc. | norm |
|---|---|---|---|---|---|---|---|
"""


def rows(name: str, run: Run) -> list[str]:
    """What a run reports at step 0, near 100, 1,000 and 10,000, and at its last step."""
    lines = [line for line in run.metrics if line["split"] == "train"]
    last = lines[-1]["step"]
    begin = [x for x in run.metrics if x["split"] == "eval" and x["step"] == 0]
    wanted = [step for step in (100, 1000, 10_000) if step < last]
    near = [min(lines, key=lambda x: abs(x["step"] - step)) for step in wanted]
    found = []
    for line in [*begin, *near, lines[-1]]:
        norm = f"{line['grad_norm']:.2f}" if "grad_norm" in line else ""
        cells = [
            f"`{name}`",
            f"{line['step']:,}",
            f"{run.tokens([line['step']])[0]:,}",
            f"{line['loss']:.2f}",
            f"{line['mlm_loss']:.2f}",
            f"{line['mlm_accuracy']:.1%}",
            f"{line['nsp_accuracy']:.0%}",
            norm,
        ]
        found.append(f"| {' | '.join(cells)} |")
    return found


def written(page: str) -> str:
    """The page with the table of all references between its two marks."""
    table = HEAD + "\n".join(
        row
        for run in read_runs(named_references().values())
        for row in rows(run.name, run)
    )
    mark = "<!-- curves -->"
    return re.sub(f"{mark}.*{mark}", f"{mark}\n\n{table}\n\n{mark}", page, flags=re.S)


if __name__ == "__main__":
    from draw_pictures import shrink

    from bert_jax import figures

    PAGE.write_text(written(PAGE.read_text()))
    references = named_references()
    panels = ["loss", "nsp_accuracy"]
    shrink(
        figures.curves(references=references.values(), metrics=panels), "references.png"
    )
    panels = ["mlm_accuracy", "nsp_accuracy"]
    shrink(figures.curves(references["small"], metrics=panels), "small.png")
