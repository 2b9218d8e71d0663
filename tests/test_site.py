"""The functions of docs/conf.py that convert pages for the site."""

import json
import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def site():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cpu")  # conf.py sets it for good
        yield runpy.run_path(str(DOCS / "conf.py"))


def test_the_search_finds_every_setting_by_its_name(site):
    page = (DOCS / "settings.md").read_text()
    lines = [x for x in page.split("\n") if x.startswith("- `")]
    objects = re.findall(
        r"^```{setting} (.*)\|(.*)\|(.*)$", site["searchable"](page), re.M
    )
    assert len(objects) == len(lines) > 100
    assert len({(name, place) for name, place, _ in objects}) == len(objects)
    assert ("optimizer.learning_rate", "", "required (fine-tuning 5e-05)") in objects
    assert ("data.max_length", "question_answering", " = 384") in objects


def test_the_sidebar_has_the_pages_of_the_index(site):
    bar = site["sidebar"](
        "# Title\n\n## A\n\n[B](b.md), [C](c/d.md)\n\n## E\n\n[F](f.md)\n"
    )
    assert [x for x in bar.split("\n") if x and "`" not in x] == [
        *(":hidden:", ":caption: A", "B <b>", "C <c/d>"),
        *(":hidden:", ":caption: E", "F <f>"),
    ]


def test_a_notebook_is_a_page_with_its_outputs(site):
    path = DOCS.parent / "notebooks" / "finetune.ipynb"
    notebook = json.loads(path.read_text())
    notebook["cells"] = notebook["cells"][:3]
    notebook["cells"][-1]["outputs"] = [{"text": ["one\n", "two\n"]}]
    page = site["as_page"](notebook, "notebook_finetune")
    assert page.endswith("````text\none\ntwo\n````\n")
    assert "".join(notebook["cells"][1]["source"]) in page


def test_copied_values_keep_their_quotes(site):
    assert site["smartquotes"] is False
