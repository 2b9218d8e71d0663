"""The table of a study: a row for each variant, with means and differences over seeds."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from bert_jax.errors import UserError
from bert_jax.files import write_json, write_text
from bert_jax.progress import aligned, print_line
from bert_jax.runs import spread
from bert_jax.training.config import StudyConfig
from bert_jax.training.run import Log
from bert_jax.training.study import Result, finished, plan_study
from bert_jax.training.sweep import DIVERGED

TABLE = "table"  # what its files are called, before .json, .txt, .md and .png


def write_table(study: StudyConfig, folder: Path, log: Log = print_line) -> Result:
    """Writes and logs what the finished parts tell; see :func:`summarise`."""
    content = summarise(study, folder)
    text = list(table_lines(content))
    write_json(folder / f"{TABLE}.json", content)
    write_text(folder / f"{TABLE}.txt", "\n".join(text) + "\n")
    markdown = "\n".join(table_lines(content, markdown=True))
    write_text(folder / f"{TABLE}.md", markdown + "\n")
    for line in text:
        log(line)
    try:
        from bert_jax import figures

        figures.save(figures.study(content), folder / f"{TABLE}.png")
        log(f"picture: {folder / TABLE}.png")
    except UserError as error:  # without matplotlib
        log(f"no picture: {error}")
    return content


def summarise(study: StudyConfig, folder: Path) -> Result:
    """What the finished parts of a study tell, as JSON holds it.

    "variants": of each its "scores", by metric: "mean", "deviation" and "scores" of the
    seeds that are finished, and its "difference" from the first variant with a "mean" and
    the "standard_error" (None for one seed) of the difference of two means; "diverged":
    how many of its parts; "flops", "tokens", "steps": of one of its pretrainings; and
    their "seconds" in the mean. "finished" of the "parts" of the study.
    """
    parts, members = plan_study(study, folder)
    results = {name: finished(folder, name, parts) for name in parts}
    variants = {
        name: _variant([(task, results[part] or {}) for task, part in own])
        for name, own in members.items()
    }
    first = next(iter(variants.values()))["scores"]
    for variant in list(variants.values())[1:]:
        for metric, own in variant["scores"].items():
            if metric in first:
                own["difference"] = _difference(own, first[metric])
    return {
        "parts": len(parts),
        "finished": sum(result is not None for result in results.values()),
        "seeds": list(study.seeds),
        "variants": variants,
    }


def _variant(results: Sequence[tuple[str, Result]]) -> Result:
    """What the results of a variant's parts tell; each with the name of its task."""
    scores: dict[str, list[float]] = {}
    for task, result in results:
        for metric, value in result.get("scores", {}).items():
            scores.setdefault(f"{task} {metric}".strip(), []).append(value)
    pretrainings = [result for _, result in results if "flops" in result]
    known = pretrainings[0] if pretrainings else {}
    return {
        **{name: known.get(name) for name in ("steps", "tokens", "flops")},
        "seconds": spread([result["seconds"] for result in pretrainings])["mean"],
        "diverged": sum(DIVERGED in result for _, result in results),
        "scores": {metric: spread(values) for metric, values in scores.items()},
    }


def _difference(own: Result, first: Result) -> Result:
    """Of two means, with its standard error where both have several seeds."""
    both = (own, first)
    error = None
    if all(len(one["scores"]) > 1 for one in both):
        error = math.sqrt(
            sum(one["deviation"] ** 2 / len(one["scores"]) for one in both)
        )
    return {"mean": own["mean"] - first["mean"], "standard_error": error}


def table_lines(content: Result, *, markdown: bool = False) -> Iterator[str]:
    """The lines of a table of what :func:`summarise` gives: a row for each variant."""
    variants = content["variants"]
    metrics = list(dict.fromkeys(m for own in variants.values() for m in own["scores"]))
    rows = [["", *metrics, "PFLOP", "seconds"]]
    for name, own in variants.items():
        cells = [name]
        for metric in metrics:
            found = own["scores"].get(metric)
            cells.append("-" if found is None else _cell(found))
        work, seconds = own["flops"], own["seconds"]
        cells.append("-" if work is None else f"{work / 1e15:.3g}")
        cells.append("-" if seconds is None else f"{seconds:,.0f}")
        rows.append(cells)
    if markdown:
        rows.insert(1, ["---"] * len(rows[0]))
        yield from (f"| {' | '.join(row)} |" for row in rows)
    else:
        yield from aligned(rows)
    yield ""
    first, *others = variants
    seeds = ", ".join(map(str, content["seeds"]))
    yield (
        f"Mean ± deviation over the seeds {seeds}"
        + f"; in brackets the difference from {first} ± its standard error"
        * bool(others)
        + f". {content['finished']} of {content['parts']} parts are finished."
    )
    if diverged := sum(own["diverged"] for own in variants.values()):
        yield f"{diverged} runs diverged and are left out."


def _cell(found: Result) -> str:
    cell, count = f"{found['mean']:.1f}", len(found["scores"])
    if count > 1:
        cell += f" ± {found['deviation']:.1f}"
    if "difference" in found:
        error = found["difference"]["standard_error"]
        cell += f" ({found['difference']['mean']:+.1f}"
        cell += ")" if error is None else f" ± {error:.1f})"
    return cell
