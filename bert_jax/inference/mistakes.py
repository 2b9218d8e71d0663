"""What a model got wrong on a labelled split: its worst errors, and who is taken for whom.

Three files in a folder, for a run WORKDIR/predictions:

SPLIT.errors.jsonl, SPLIT.errors.html
    The worst errors, at most LONGEST of them, the most confident first, and in regression
    the farthest off first. An object a line, a row of the page: "text", "gold",
    "predicted", "confidence" (the model's probability of what it predicted, null in
    regression), "where" (file and line, or the row of Python), and "id" where the row has
    one. Of tagging also "word", the one that is meant in the text.
SPLIT.confusion.json
    {"split": "dev", "of": "rows" or "words", "labels": [...], "counts": [[...], ...]}.
    counts[i][j] is how many have the gold label labels[i] and the predicted one
    labels[j]. Entities count by their type, without B- and I-. There is no such file for
    regression and SQuAD 1.1, which have no classes.
"""

import functools
import html
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_jax.errors import counted
from bert_jax.files import write_json, write_text
from bert_jax.tasks.task import Predictions, Task

LONGEST = 200  # errors in a table

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 75em;
  padding: 0 1em; color: #222; background: #fff; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; vertical-align: top; padding: .4em .7em;
  border-bottom: 1px solid #ddd; }}
.text, .where {{ overflow-wrap: anywhere; min-width: 6em; }}
th {{ position: sticky; top: 0; background: #f4f4f4; }}
.number {{ text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }}
.gold {{ color: #1a6b2d; }} .predicted {{ color: #a3262a; }} .where {{ color: #777; }}
@media (prefers-color-scheme: dark) {{
  body {{ color: #ddd; background: #1c1c1e; }} th {{ background: #2c2c2e; }}
  th, td {{ border-color: #3a3a3c; }}
  .gold {{ color: #7fd494; }} .predicted {{ color: #ff8a85; }}
}}
</style>
<h1>{title}</h1>
<p>{caption}</p>
<table>
<tr>{header}</tr>
{rows}
</table>
</html>
"""


def worst_errors(
    task: Task, rows: Sequence[Any], predictions: Predictions
) -> list[dict[str, Any]]:
    """All errors on rows with labels, the worst first; see the head of this file."""
    found = []
    for row, prediction in zip(rows, predictions, strict=True):
        place = {name: getattr(row, name, None) for name in ("where", "id")}
        for error in task.errors(row, prediction):
            entry = error._asdict() | place
            missing = [n for n in ("word", *place) if entry[n] is None]
            found.append({n: x for n, x in entry.items() if n not in missing})
    return sorted(found, key=_weight, reverse=True)


def _weight(error: dict[str, Any]) -> float:
    if error["confidence"] is None:
        return abs(error["predicted"] - error["gold"])
    return error["confidence"]


def confusion(
    task: Task, rows: Sequence[Any], predictions: Predictions
) -> tuple[list[str], list[list[int]]]:
    """The classes, and how many of the gold class i were taken for the class j.

    Both are empty where the task has no classes.
    """
    pairs = Counter(
        pair
        for row, prediction in zip(rows, predictions, strict=True)
        for pair in task.classes(row, prediction)
    )
    if not pairs:
        return [], []
    seen = {name for pair in pairs for name in pair}
    labels = list(task.labels) if seen <= {*task.labels} else sorted(seen)
    return labels, [[pairs[gold, other] for other in labels] for gold in labels]


def majority_warning(counts: Sequence[Sequence[int]]) -> str:
    """What to try where no more is right than the largest class alone would give; or "".

    counts: of :func:`confusion`.
    """
    totals = [sum(row) for row in counts]
    right = sum(row[i] for i, row in enumerate(counts))
    if sum(total > 0 for total in totals) < 2 or right > max(totals):
        return ""
    share = 100 * max(totals) / sum(totals)
    return (
        f"{100 * right / sum(totals):.1f}% are right, and always the largest class "
        f"would give {share:.1f}%: the run has learned nothing; try "
        "--config.optimizer.bias_correction=True, another --config.seed or more epochs"
    )


def write_mistakes(
    folder: Path,
    task: Task,
    split: str,
    rows: Sequence[Any],
    predictions: Predictions,
) -> list[Path]:
    """Writes the files that the head of this file describes; their paths."""
    errors = worst_errors(task, rows, predictions)
    paths = [folder / f"{split}.errors.jsonl", folder / f"{split}.errors.html"]
    # An id may be a date, or another value that JSON does not have.
    dumps = functools.partial(json.dumps, ensure_ascii=False, default=str)
    lines = map(dumps, errors[:LONGEST])
    write_text(paths[0], "".join(f"{line}\n" for line in lines))
    write_text(paths[1], _page(split, errors, len(rows)))
    labels, counts = confusion(task, rows, predictions)
    if labels:
        content = {"split": split, "of": task.counted, "labels": labels}
        paths.append(folder / f"{split}.confusion.json")
        write_json(paths[-1], content | {"counts": counts})
    return paths


def _page(split: str, errors: list[dict[str, Any]], rows: int) -> str:
    shown = errors[:LONGEST]
    caption = (
        f"{counted(len(errors), 'error')} in {counted(rows, 'row')}, the worst first."
    )
    if len(shown) < len(errors):
        caption += f" The first {len(shown)} are shown."
    names = list(dict.fromkeys(name for error in shown for name in error))
    cells = ["".join(_cell(name, error.get(name)) for name in names) for error in shown]
    return _PAGE.format(
        title=html.escape(f"Errors on {split}"),
        caption=caption,
        header="".join(f"<th>{html.escape(name)}</th>" for name in names),
        rows="\n".join(f"<tr>{line}</tr>" for line in cells),
    )


def _cell(name: str, value: Any) -> str:
    kind = name
    if isinstance(value, float):
        kind, value = "number", f"{value:.4f}"
    text = "" if value is None else str(value)
    return f'<td class="{html.escape(kind)}">{html.escape(text)}</td>'
