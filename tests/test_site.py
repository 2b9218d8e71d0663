"""The functions of docs/conf.py that convert pages for the site, and the site's search."""

import json
import re
import runpy
import shutil
import subprocess
import sys
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


# Search terms that people type on the site, and the page that answers them.
SEARCHED = {
    "embeddings": "guides/vectors",
    "semantic search": "guides/vectors",
    "domain adaptation": "guides/further_pretraining",
    "continued pretraining": "guides/further_pretraining",
    "dataframe": "guides/finetune",
    "text classification": "guides/finetune",
    "named entity recognition": "guides/finetune",
    "question answering": "guides/finetune",
    "multiple gpus": "guides/hardware",
    "colab": "guides/hardware",
    "out of memory": "troubleshooting",
    "distributed training": "guides/hosts",
    "preemption": "guides/hosts",
    "chinese": "guides/languages",
    "multilingual": "guides/languages",
    "wandb": "guides/pretrain",
    "long documents": "guides/long_text",
    "small data": "guides/small_data",
    "ablation": "guides/studies",
    "loss curve": "guides/pictures",
    "pytorch": "guides/pytorch_users",
    "transformers": "names_in_other_libraries",
    "modernbert": "guides/modernbert",
    "roberta": "guides/roberta",
    "learning_rate": "settings",
}
# A browser, as far as the search needs one.
BROWSER = """
globalThis.window = globalThis;
globalThis.document = {getElementById: () => null};
const _ = (text) => text, _ready = () => {}, SPHINX_HIGHLIGHT_ENABLED = false;
"""
ANSWER = """
const found = (query) => Search._performSearch(...Search._parseQuery(query));
const pages = (query) => found(query).reverse().map((result) => result[0]);
console.log(JSON.stringify(QUERIES.map(pages)));
"""


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
def test_the_search_of_the_site_finds_a_guide(tmp_path):
    """The page is among the first three results. Builds the site, and runs its search."""
    pytest.importorskip("sphinx", reason="pip install -e '.[docs]'")
    extensions = "extensions=myst_parser,sphinx.ext.autodoc"  # those with text
    options = ["-q", "-b", "html", "-D", extensions, DOCS, tmp_path]
    subprocess.run([sys.executable, "-m", "sphinx", *options], check=True)
    static = tmp_path / "_static"
    scripts = [
        BROWSER,
        (static / "language_data.js").read_text(),
        (static / "searchtools.js").read_text(),
        (tmp_path / "searchindex.js").read_text(),
        f"const QUERIES = {json.dumps([*SEARCHED])};",
        ANSWER,
    ]
    program = tmp_path / "search.js"
    program.write_text("\n".join(scripts))
    answer = subprocess.run(["node", program], check=True, capture_output=True)
    first = {
        query: pages[:3]
        for query, pages in zip(SEARCHED, json.loads(answer.stdout), strict=True)
    }
    wrong = {
        query: first[query] for query in first if SEARCHED[query] not in first[query]
    }
    assert wrong == {}
