"""results/*.json, and the figures and tables in the pages."""

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Pages in which commits and dates are expected.
DATED = {"CHANGELOG.md", "docs/results.md", "docs/log.md"}
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


def test_pages_and_charts_are_up_to_date(made):
    """Marks of current runs are ignored, since they change with every commit."""
    old = [
        str(path.relative_to(ROOT))
        for path, text in made.files().items()
        if path.read_text().replace(made.MARK, "") != text.replace(made.MARK, "")
    ]
    assert old == [], "run python docs/scripts/write_results.py"


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
            for source in run["sources"]:
                assert (ROOT / source).exists(), f"{name}: {source}"


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
        made, "is_current", lambda commit, *sources: commit == "1234567"
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
1. 2026-01-02, `1234567` (current), a core: `make it`
2. 2026-01-02, `7654321`, a core: `see the log`
3. 2026-01-03, `7654321`, a core: `see the log`
<!-- /table -->
""")
    assert made.fill(filled) == filled
    for text in (span.format("nothing", ""), "<!-- table: none --><!-- /table -->"):
        with pytest.raises(KeyError):
            made.fill(text)


def test_a_run_is_current_until_its_code_changes(made, monkeypatch, tmp_path):
    def git(*words):
        words = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        return done.stdout.strip()

    monkeypatch.setattr(made, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for name in ("measured.py", "other.py"):
        (tmp_path / name).write_text("1")
    assert not made.is_current("1234567", "measured.py")  # without git
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "a")
    commit = git("rev-parse", "HEAD")
    (tmp_path / "other.py").write_text("2")
    git("commit", "-qam", "b")
    assert made.is_current(commit[:7], "measured.py")
    assert not made.is_current(commit[:7], "measured.py", "other.py")


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
