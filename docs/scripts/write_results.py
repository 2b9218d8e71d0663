"""Writes the published figures into the pages, and draws the charts of docs/results.md.

results/NAME.json has one figure (value, unit) or one table (columns, rows), with machine,
date, commit and command. A page has marks, and this script writes the text between them:

  <!-- result: NAME -->3.02 s<!-- /result -->          the value with its unit
  <!-- result: NAME.ratio -->1.6<!-- /result -->       another field of NAME, such as date
  <!-- table: NAME --> ... <!-- /table -->             a table
  <!-- table: runs --> ... <!-- /table -->             the runs of the tables above
  <!-- age -->...<!-- /age -->                         a sentence about old figures

The NAME of a table is a file with rows, or the "table" of several figures. A
figure or table of several runs lists the other runs in "others".

A run is current if the code of its "sources" has not changed since its commit. Comments and
docstrings are not code. A speed figure is a result with a "ratio": a time beside a peer's
time. If README.md shows a speed figure whose run is not current, the script names it,
writes nothing and exits with code 1. The marks of current runs and the sentence depend on
the checkout, so the tests compare pages without them.

usage:
  python docs/scripts/write_results.py [--allow_old]

flags:
  --allow_old  write old speed figures too, print their names, and write into README.md
               that the code has changed
"""

import argparse
import ast
import functools
import json
import re
import subprocess
import sys
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
README = ROOT / "README.md"
MARK = " (current)"
AGE = " The code has changed since {}these runs."
DOCUMENTED = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
COLUMNS = {
    "what": "what",
    "metric": "metric",
    "score": "score",
    "peer_score": "peer's score",
    "value": "value",
    "spread": "spread",
    "peer": "peer",
    "peer_value": "peer's value",
    "ratio": "times as fast",
    "run": "run",
}
# Columns that a table leaves out, because the chart above it shows them.
CHARTED = {
    "speed": ("peer", "peer_value", "ratio"),
    "finetune": ("metric", "score", "peer_score"),
}
BLUE, GREY, ORANGE = "#2f6fab", "#8896a3", "#d55e00"


class Run(NamedTuple):
    """One run of a command. Several results can be of one run."""

    date: str
    commit: str
    machine: str
    command: str
    mark: str


@functools.cache
def results() -> dict[str, dict[str, Any]]:
    """All published figures and tables by name."""
    paths = sorted((ROOT / "results").glob("*.json"))
    return {path.stem: json.loads(path.read_text()) for path in paths}


def pages() -> list[Path]:
    """The pages in which marks are filled in."""
    folders = ROOT / ".github", ROOT, ROOT / "launch"
    found = [*DOCS.rglob("*.md")]
    for folder in folders:
        found += folder.glob("*.md")
    return sorted(page for page in found if "generated" not in page.parts)


def code(text: str) -> str:
    """The syntax tree of a Python file without docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.dump(tree)


def git(*words: str) -> str | None:
    """The output of a git command. None if it fails, and without git."""
    command = ["git", *words]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8")
    except OSError:
        return None
    return None if done.returncode else done.stdout


def is_same(commit: str, file: str) -> bool:
    """Whether a file has the same code as at a commit. Only Python files have code."""
    path = ROOT / file
    if path.suffix != ".py" or not path.exists():
        return False
    old = git("show", f"{commit}:./{file}")
    return old is not None and code(old) == code(path.read_text(encoding="utf-8"))


@functools.cache
def change(commit: str, *sources: str) -> str:
    """Names a change of the sources since a commit. Empty if the run is current.

    sources: files and folders, as paths from ROOT. Files that are not Python must be equal
    byte by byte. A run is not current if its commit is not in the checkout.
    """
    for source in sources:
        if not (ROOT / source).exists():
            return f"{source} does not exist"
    differing = git(
        "diff", "--name-only", "--no-renames", "--relative", commit, "--", *sources
    )
    if differing is None:
        return f"commit {commit} is not in this checkout"
    for file in differing.splitlines():
        if not is_same(commit, file):
            return f"{file} has changed"
    return ""


def speed_figures(text: str) -> dict[str, str]:
    """The changes since the runs of the speed figures in a page, by their names."""
    changes = {}
    for name in re.findall(r"<!-- result: (\w+)", text):
        result = results()[name]
        if "ratio" in result:
            runs = result, *result.get("others", [])
            each = [change(run["commit"], *run["sources"]) for run in runs]
            changes[name] = ", ".join(sorted({*each} - {""}))
    return changes


def age(text: str) -> str:
    """A sentence about the speed figures of a page. Empty if all are current."""
    changes = speed_figures(text).values()
    if not any(changes):
        return ""
    return AGE.format("" if all(changes) else "some of ")


def run_of(entry: dict[str, Any]) -> Run:
    """The run of a result, or of one of its others."""
    mark = "" if change(entry["commit"], *entry["sources"]) else MARK
    fields = ("date", "commit", "machine", "command")
    return Run(*(entry[field] for field in fields), mark)


def shown(result: dict[str, Any], field: str = "value") -> str:
    """A field of a result as text. Values have their unit."""
    value = result.get(field)
    if value is None:
        return ""
    unit = result["unit"] if field.endswith("value") else ""
    if unit == "s" and isinstance(value, int) and "peer" not in result:
        return f"{value // 60} min {value % 60} s"
    if isinstance(value, float) and abs(value) < 1e-3:
        value = f"{value:.1e}".replace("e-0", "e\N{NON-BREAKING HYPHEN}")
    elif not isinstance(value, str):
        value = f"{value:,}"
    return value + (unit if unit in ("", "%") else f"\N{NO-BREAK SPACE}{unit}")


def markdown(columns: list[str], rows: list) -> str:
    """A table. A line of a cell does not end at a plus-minus sign."""
    lines = [columns, ["---"] * len(columns), *rows]
    text = "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
    return text.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")


def run_numbers(name: str, runs: dict[Run, str]) -> str:
    """The numbers of a result's runs. ``runs`` gets each new run, and the result's name."""
    result, numbers = results()[name], []
    for entry in (result, *result.get("others", [])):
        run = run_of(entry)
        runs.setdefault(run, name)
        numbers.append(str(list(runs).index(run) + 1))
    return ", ".join(numbers)


def run_list(runs: dict[Run, str]) -> str:
    """A numbered list with the file of results/ that has the command of each run."""
    lines = []
    for number, (run, name) in enumerate(runs.items(), 1):
        file = f"[{name}.json](../results/{name}.json)"
        what = f"{run.date}, `{run.commit}`{run.mark}, {run.machine}"
        lines.append(f"{number}. {what}: {file}")
    return "\n".join(lines)


def table(name: str, runs: dict[Run, str]) -> str:
    """A result with rows, or all figures of a table. New runs are added to ``runs``."""
    if name == "runs":
        return run_list(runs)
    if name in results():
        result = results()[name]
        word = "runs" if "others" in result else "run"
        head = f"**{result['what']}** ({word} {run_numbers(name, runs)})"
        text = ". ".join(filter(None, [head, result.get("note")]))
        return f"{text}\n\n{markdown(result['columns'], result['rows'])}"
    rows = [
        {field: shown(result, field) for field in COLUMNS}
        | {"run": run_numbers(key, runs)}
        for key, result in results().items()
        if result.get("table") == name
    ]
    if not rows:
        raise KeyError(f"table {name}")
    left_out = set(CHARTED.get(name, ()))
    if len({row["peer"] for row in rows}) == 1:  # the text names it
        left_out.add("peer")
    shown_fields = [field for field in COLUMNS if field not in left_out]
    fields = [field for field in shown_fields if any(row[field] for row in rows)]
    # The rows of a run with several peers are equal without the columns of the peers.
    cells = dict.fromkeys(tuple(row[field] for field in fields) for row in rows)
    return markdown([COLUMNS[field] for field in fields], [*cells])


def fill(text: str) -> str:
    """A page with the figures, tables and sentence of its marks."""
    runs: dict[Run, str] = {}
    sentence = age(text)

    def span(match: re.Match) -> str:
        name, _, field = match[2].partition(".")
        return match[1] + shown(results()[name], field or "value") + match[3]

    def block(match: re.Match) -> str:
        return f"{match[1]}\n{table(match[2], runs)}\n{match[3]}"

    text = re.sub(
        r"(<!-- result: ([\w.]+) -->)[^<]*(<!-- /result -->)", span, text, flags=re.S
    )
    text = re.sub(
        r"(<!-- table: (\w+) -->).*?(<!-- /table -->)", block, text, flags=re.S
    )
    return re.sub(r"(<!-- age -->)[^<]*(<!-- /age -->)", rf"\g<1>{sentence}\g<2>", text)


class Mark(NamedTuple):
    """A value in a chart. With a deviation it is a dot with whiskers, otherwise a bar."""

    value: float
    text: str
    colour: str
    deviation: float | None = None


def chart(
    title: str, groups: dict[str, list[Mark]], start: float, end: float, step: float
) -> str:
    """An SVG of marks on an axis from ``start`` to ``end``, with a line at each step.

    groups: the marks below each label.
    """
    left, width, top = 20, 340, 62

    def place(value: float) -> float:
        return round(left + width * (value - start) / (end - start), 1)

    parts, y = [], top
    for label, marks in groups.items():
        parts.append(f'<text x="{left}" y="{y + 12}">{escape(label)}</text>')
        y += 18
        for mark in marks:
            parts += drawn(mark, place, left, y)
            y += 17
        y += 8
    lines = []
    for number in range(round((end - start) / step) + 1):
        value = start + number * step
        x = place(value)
        lines.append(f'<path d="M{x} {top - 8}V{y}" stroke="#dde3e8"/>')
        lines.append(f'<text x="{x}" y="{top - 12}" class="tick">{value:g}</text>')
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 580 {y + 4}" width="580" '
        f'role="img" aria-label="{escape(title)}">',
        '<style>text { font: 13px system-ui, "DejaVu Sans", sans-serif; fill: #1f2933;'
        " stroke: #fff; stroke-width: 4px; paint-order: stroke; }"
        " .title { font-weight: 600; } .tick { font-size: 11px; text-anchor: middle; }"
        "</style>",
        f'<rect width="580" height="{y + 4}" rx="12" fill="#fff"/>',
        f'<text x="{left}" y="26" class="title">{escape(title)}</text>',
    ]
    return "\n".join([*head, *lines, *parts, "</svg>\n"])


def drawn(
    mark: Mark, place: Callable[[float], float], left: float, y: float
) -> list[str]:
    """The SVG of a mark. place: the x of a value."""
    x, colour = place(mark.value), f'fill="{mark.colour}"'
    if mark.deviation is None:
        shape = (
            f'<rect x="{left}" y="{y}" width="{x - left:.1f}" height="14" {colour}/>'
        )
        shapes, end = [shape], x
    else:
        low, end = (place(mark.value + sign * mark.deviation) for sign in (-1, 1))
        path = f"M{low} {y + 7}H{end}M{low} {y + 3}v8M{end} {y + 3}v8"
        whisker = f'<path d="{path}" stroke="{mark.colour}" stroke-width="2"/>'
        shapes = [whisker, f'<circle cx="{x}" cy="{y + 7}" r="4" {colour}/>']
    text = f'<text x="{end + 8:.1f}" y="{y + 12}">{escape(mark.text)}</text>'
    return [*shapes, text]


def score_mark(score: str, who: str, colour: str) -> Mark:
    """The mark of a score of the form "81.3 ± 1.9", or "81.3" of a single seed."""
    mean, _, deviation = score.partition(" ± ")
    if not deviation:
        deviation = "0"
    return Mark(float(mean), f"{who} {score}", colour, float(deviation))


def charts() -> dict[Path, str]:
    """The charts of docs/results.md by file."""
    speed: dict[str, list[Mark]] = {}
    scores = {}
    for name, result in results().items():
        what = result["what"]
        if result.get("table") == "speed":
            marks = speed.setdefault(what, [Mark(1, "bert_jax", BLUE)])
            colour = GREY if result["ratio"] >= 1 else ORANGE
            text = f"{result['peer']} {result['ratio']:.2f}"
            marks.append(Mark(result["ratio"], text, colour))
        if name.startswith("finetune_") and name.endswith("_float32"):
            ours = score_mark(result["score"], "bert_jax", BLUE)
            theirs = score_mark(result["peer_score"], "Trainer", GREY)
            scores[f"{what.removesuffix(', float32')}: {result['metric']}"] = [
                ours,
                theirs,
            ]
    return {
        DOCS / "pictures/speed.svg": chart(
            "Speedup of bert_jax: time of the other library / time of bert_jax",
            speed,
            0,
            1.75,
            0.25,
        ),
        DOCS / "pictures/finetune.svg": chart(
            "Dev scores: mean and standard deviation over seeds", scores, 40, 90, 10
        ),
    }


def files() -> dict[Path, str]:
    """Every file that this command writes, and its text."""
    return {page: fill(page.read_text()) for page in pages()} | charts()


def main() -> None:
    """Writes the files that differ, unless README.md shows an old speed figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--allow_old", action="store_true")
    options = parser.parse_args()
    changes = speed_figures(README.read_text())
    old = [f"{name} ({what})" for name, what in changes.items() if what]
    if old and not options.allow_old:
        sys.exit(
            "error: README.md shows speed figures whose code has changed since their "
            f"runs: {'; '.join(old)}. Measure them again, or add --allow_old"
        )
    for figure in old:
        print(f"old: {figure}")
    for path, text in files().items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
