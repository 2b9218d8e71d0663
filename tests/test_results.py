"""results/*.json, and the figures and tables in the pages."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Pages in which commits and dates are expected.
DATED = {"CHANGELOG.md", "docs/results.md", "benchmarks/LOG.md"}
# Pages that still have some.
NOT_YET = set()
COMMIT = r"\b(?=\w*[a-f])(?=\w*\d)[0-9a-f]{7,40}\b|\b0\d{6}\b"
DATE = r"\b20[2-9]\d-[01]\d(?:-\d\d)?\b"
COUNT = r"\b\d[\d,]* (?:tests|passed|skipped|failed)\b"


@pytest.fixture
def made():
    """docs/scripts/write_results.py."""
    path = ROOT / "docs" / "scripts" / "write_results.py"
    spec = importlib.util.spec_from_file_location("write_results", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_and_charts_are_up_to_date(made, monkeypatch):
    """Which runs are current is ignored: it depends on later commits, and needs git."""
    monkeypatch.setattr(made, "change", lambda commit, *sources: "")
    old = []
    for path, expected in made.files().items():
        text = path.read_text().replace(made.MARK, "")
        text = re.sub(r"(<!-- age -->)[^<]*", r"\1", text)
        if text != expected.replace(made.MARK, ""):
            old.append(str(path.relative_to(ROOT)))
    assert old == [], "run python docs/scripts/write_results.py --allow_old"


def shapes(svg, tag, *names):
    """The attributes ``names`` of each shape of an SVG, as numbers."""
    found = re.findall(rf"<{tag} ([^>]*)/>", svg)
    return [[float(re.search(rf'{n}="([^"]*)"', x)[1]) for n in names] for x in found]


def test_the_chart_of_speed_has_a_bar_for_each_library(made):
    svg = (ROOT / "docs/pictures/speed.svg").read_text()
    _, *bars = shapes(svg, "rect", "width")
    results = [x for x in made.results().values() if x.get("table") == "speed"]
    texts = re.findall(r">([^<]*)</text>", svg)
    ours = texts.count("bert_jax")
    assert len(bars) == len(results) + ours
    assert ours == len({result["what"] for result in results})
    (unit,) = min(bars, key=lambda bar: abs(bar[0] - 340 / 1.75))  # of bert_jax
    for result in results:
        assert f"{result['peer']} {result['ratio']:.2f}" in texts
        assert [pytest.approx(unit * result["ratio"], abs=0.2)] in bars
    faster = [result for result in results if result["ratio"] < 1]
    assert svg.count(f'fill="{made.ORANGE}"') == len(faster) > 0


def test_the_chart_of_scores_has_whiskers(made):
    """One standard deviation to each side of the mean."""
    groups = {"a": [made.Mark(50, "A 50.0 ± 3.2", "#000", 3.2)]}
    svg = made.chart("Scores", groups, 40, 90, 10)
    assert shapes(svg, "circle", "cx") == [[20 + 340 * 10 / 50]]
    (low, high), *_ = re.findall(r"M([\d.]+) \d+H([\d.]+)M", svg)
    ends = [20 + 340 * (x - 40) / 50 for x in (46.8, 53.2)]
    assert [float(low), float(high)] == pytest.approx(ends, abs=0.05)
    assert made.score_mark("81.3 ± 1.9", "A", "#000") == (
        81.3,
        "A 81.3 ± 1.9",
        "#000",
        1.9,
    )
    ticks = re.findall(r'class="tick">(\d+)<', svg)
    assert ticks == ["40", "50", "60", "70", "80", "90"]


def test_readme_has_a_place_for_the_age_of_its_speed_figures(made):
    text = made.README.read_text()
    assert made.speed_figures(text)
    (sentence,) = re.findall(r"<!-- age -->(.*)<!-- /age -->", text)
    assert sentence in ("", made.AGE.format(""), made.AGE.format("some of "))


def test_marks_of_the_pages_are_complete(made):
    for page in made.pages():
        text = page.read_text()
        for kind in ("result", "table"):
            opened = len(re.findall(rf"<!-- {kind}: [\w.]+ -->", text))
            assert opened == text.count(f"<!-- /{kind} -->"), page
            # Also marks that contain a line break, which nothing fills.
            assert opened == len(re.findall(rf"<!--\s*{kind}:", text)), page
        # A line that starts with a comment is HTML in Markdown.
        assert not re.search(r"^[\s>*-]*<!-- /?result", text, flags=re.M), page


def test_results_are_complete(made):
    pages = "\n".join(page.read_text() for page in made.pages())
    tables = set(re.findall(r"<!-- table: (\w+) -->", pages))
    for name, result in made.results().items():
        assert {"what", "machine", "date", "commit", "command"} < set(result), name
        assert re.fullmatch(DATE, result["date"]), name
        assert re.fullmatch(r"[0-9a-f]{7}", result["commit"]), name
        if "rows" in result:
            assert {len(row) for row in result["rows"]} == {len(result["columns"])}
        else:
            assert {"value", "unit"} < set(result), name
        assert result.get("table", name) in tables, name
        for run in (result, *result.get("others", [])):
            # A source that no longer exists only makes the run old.
            assert run["sources"], name


def test_spans_and_tables_are_filled_from_results(made, monkeypatch):
    one = dict(value=150, unit="s", ratio=1.5, what="a step", date="2026-01-02")
    one |= dict(table="times", machine="a core", commit="1234567", command="make it")
    other = one | dict(what="a start", value=2e-6, unit="", command="see the log")
    other["commit"] = "7654321"
    rows = one | dict(columns=["a", "b"], rows=[[1, "x"]], note="Two.")
    rows["others"] = [other | {"date": "2026-01-03", "sources": []}]
    published = {"one": one, "other": other, "rows": rows | {"table": None}}
    published = {name: result | {"sources": []} for name, result in published.items()}
    monkeypatch.setattr(made, "results", lambda: published)
    monkeypatch.setattr(
        made,
        "change",
        lambda commit, *sources: {"7654321": "a has changed"}.get(commit, ""),
    )
    span = "It took <!-- result: {} -->{}<!-- /result -->."
    assert made.fill(span.format("one", "?")) == span.format("one", "2 min 30 s")
    assert made.fill(span.format("one.ratio", "9")) == span.format("one.ratio", "1.5")
    assert made.fill(span.format("other", "")) == span.format("other", "2.0e\u20116")
    tables = [f"<!-- table: {name} -->" for name in ("times", "rows", "runs")]
    filled = made.fill("old<!-- /table -->\n".join([*tables, ""]))
    assert "| a step | 2 min 30 s | 1.5 | 1 |" in filled
    assert "| a start | 2.0e\u20116 | 1.5 | 2 |\n<!-- /table -->" in filled
    assert "**a step** (runs 1, 3). Two.\n\n| a | b |\n" in filled
    assert filled.endswith("""<!-- table: runs -->
1. 2026-01-02, `1234567` (current), a core: [one.json](../results/one.json)
2. 2026-01-02, `7654321`, a core: [other.json](../results/other.json)
3. 2026-01-03, `7654321`, a core: [rows.json](../results/rows.json)
<!-- /table -->
""")
    assert made.fill(filled) == filled
    monkeypatch.setattr(made, "CHARTED", {"times": ("value",)})
    filled = made.fill("<!-- table: times --><!-- /table -->")
    assert "| what | times as fast | run |" in filled
    assert "| a step | 1.5 | 1 |" in filled
    for text in (span.format("nothing", ""), "<!-- table: none --><!-- /table -->"):
        with pytest.raises(KeyError):
            made.fill(text)


@pytest.fixture
def checkout(made, monkeypatch, tmp_path):
    """A function that commits files, {name: text}, in a new repository.

    It returns the commit. None as a text deletes the file. The script uses the repository
    as its own.
    """
    if shutil.which("git") is None:
        pytest.skip("git is not installed")

    def git(*words):
        words = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def commit(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.unlink(missing_ok=True)
            if text is not None:
                path.write_text(text)
        git("add", "--all", ".")
        git("commit", "-qm", "a", "--allow-empty")
        made.change.cache_clear()
        return git("rev-parse", "--short=7", "HEAD")

    monkeypatch.setattr(made, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    git("init", "-q")
    return commit


CODE = '"""Steps."""\n\n\ndef step(x):\n    """A step."""\n    return x + 1\n'


def test_a_run_is_current_until_its_code_changes(made, checkout):
    measured = ("a.py", "room")
    first = checkout(
        {"a.py": CODE, "other.py": "1", "room/b.py": CODE, "room/c.md": "1"}
    )
    assert made.change(first, *measured) == ""
    # Docstrings, comments and format are not code.
    comment = "# Why.\n" + CODE.replace("A step", "One").replace("x + 1", "(x  +  1)")
    bare = "def step(x):\n    return x + 1\n"
    second = checkout({"a.py": comment, "room/b.py": bare, "other.py": "2"})
    assert made.change(first, *measured) == made.change(second, *measured) == ""
    assert made.change(first, *measured, "other.py") == "other.py has changed"
    changes = [
        ({"a.py": CODE.replace("+ 1", "+ 2")}, "a.py has changed"),
        ({"a.py": CODE.replace("return", "'text'\n    return")}, "a.py has changed"),
        ({"a.py": None}, "a.py does not exist"),
        ({"room/b.py": None, "room/moved.py": CODE}, "room/b.py has changed"),
        ({"room/c.md": "2"}, "room/c.md has changed"),
    ]
    whole = {"a.py": CODE, "room/b.py": CODE, "room/c.md": "1", "room/moved.py": None}
    for files, expected in changes:
        checkout(whole | files)
        assert made.change(first, *measured) == expected
    # A change that was taken back.
    checkout(whole)
    assert made.change(first, *measured) == ""


def test_a_change_that_is_not_committed_counts(made, checkout, tmp_path):
    commit = checkout({"a.py": CODE})
    (tmp_path / "a.py").write_text("x = 1\n")
    assert made.change(commit, "a.py") == "a.py has changed"


def test_no_run_is_current_without_its_commit_or_git(made, monkeypatch, tmp_path):
    (tmp_path / "a.py").write_text(CODE)
    monkeypatch.setattr(made, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    missing = "commit 1234567 is not in this checkout"
    assert made.change("1234567", "a.py") == missing
    monkeypatch.setenv("PATH", str(tmp_path))  # git is not installed
    made.change.cache_clear()
    assert made.change("1234567", "a.py") == missing


@pytest.fixture
def readme(made, checkout, monkeypatch, tmp_path):
    """README.md with two speed figures, one of two runs, and a figure of accuracy."""
    commit = checkout({"step.py": CODE, "embed.py": CODE, "old.py": CODE})
    run = {"what": "A time", "unit": "s", "commit": commit, "value": 2.0}
    step = run | {"ratio": 1.5, "sources": ["step.py"]}
    embed = run | {"ratio": 2.5, "sources": ["embed.py"]}
    embed["others"] = [run | {"sources": ["old.py"]}]
    accuracy = run | {"value": 0.5, "sources": ["nothing.py"], "unit": ""}
    published = {"step": step, "embed": embed, "accuracy": accuracy}
    monkeypatch.setattr(made, "results", lambda: published)
    monkeypatch.setattr(made, "README", tmp_path / "README.md")
    monkeypatch.setattr(made, "pages", lambda: [made.README])
    monkeypatch.setattr(made, "charts", dict)
    marks = [f"<!-- result: {name}.ratio -->?<!-- /result -->" for name in published]
    made.README.write_text("\n".join([*marks[:2], marks[2].replace(".ratio", "")]))
    with made.README.open("a") as file:
        file.write("\nThe end.<!-- age --><!-- /age -->\n")
    return made.README


def write(made, monkeypatch, *flags):
    monkeypatch.setattr(sys, "argv", ["write_results.py", *flags])
    made.main()


def test_current_speed_figures_are_written(made, readme, monkeypatch, capsys):
    write(made, monkeypatch)
    assert capsys.readouterr().out == "README.md\n"
    text = readme.read_text()
    assert "-->1.5<!--" in text and "-->2.5<!--" in text and "-->0.5<!--" in text
    assert text.endswith("The end.<!-- age --><!-- /age -->\n")


def test_old_speed_figures_are_refused(made, readme, checkout, monkeypatch, capsys):
    before = readme.read_text()
    checkout({"old.py": "x = 1\n"})
    with pytest.raises(SystemExit) as stop:
        write(made, monkeypatch)
    message = str(stop.value)
    assert message.startswith("error: ") and "--allow_old" in message
    assert "embed (old.py has changed)" in message
    assert "step" not in message and "accuracy" not in message
    assert readme.read_text() == before and capsys.readouterr().out == ""


def test_the_readme_states_that_figures_are_old(
    made, readme, checkout, monkeypatch, capsys
):
    some, all_of_them = made.AGE.format("some of "), made.AGE.format("")
    checkout({"old.py": "x = 1\n"})
    write(made, monkeypatch, "--allow_old")
    assert capsys.readouterr().out == "old: embed (old.py has changed)\nREADME.md\n"
    text = readme.read_text()
    assert "-->2.5<!--" in text
    assert text.endswith(f"The end.<!-- age -->{some}<!-- /age -->\n")
    checkout({"step.py": None})
    write(made, monkeypatch, "--allow_old")
    assert "old: step (step.py does not exist)\n" in capsys.readouterr().out
    assert readme.read_text() == text.replace(some, all_of_them)
    # The sentence is removed again.
    checkout({"old.py": CODE, "step.py": CODE})
    write(made, monkeypatch)
    assert readme.read_text() == text.replace(some, "")


def test_pages_have_no_commits_dates_and_counts_of_tests(made):
    """Measurements are in docs/results.md. Other pages link to it, or have its marks."""
    lines = {}
    for page in made.pages():
        name = str(page.relative_to(ROOT))
        if name not in DATED | NOT_YET:
            marked = r"https://\S+|<!-- result: [\w.]+ -->[^<]*<!-- /result -->"
            text = re.sub(marked, "", page.read_text())
            lines[name] = re.findall(f"{COMMIT}|{DATE}|{COUNT}", text)
    assert {name: words for name, words in lines.items() if words} == {}
