"""Configuration of Sphinx. `make docs` writes the site to build/docs.

The pages are Markdown that is also readable on a code host. docs/generated is written
before each build: the API, from the docstrings, and copies of the pages outside docs/.
settings.md and commands.md are also made from the code, and tests compare them to it.
"""

import base64
import contextlib
import dataclasses
import inspect
import json
import os
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
ROOT = DOCS.parent
GENERATED = DOCS / "generated"
os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(ROOT))

import bert_jax  # noqa: E402

project = "bert_jax"
author = "the bert_jax authors"
version = release = bert_jax.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]

suppress_warnings = ["toc.not_included"]  # such as launch.md, which a guide links

smartquotes = False  # copied values keep their straight quotes

html_theme = "furo"
html_title = f"bert_jax {version}"
html_static_path = ["style.css"]
html_css_files = ["style.css"]
html_search_scorer = str(ROOT / "docs" / "search_order.js")
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
pygments_style, pygments_dark_style = "friendly", "monokai"

copybutton_selector = "div:not(.highlight-text) > div.highlight pre"  # not outputs
copybutton_prompt_text, copybutton_prompt_is_regexp = r">>> |\.\.\. ", True

myst_heading_anchors = 4  # the anchors that code hosts give to headings
nitpicky = True
# The names of other packages: a build needs no network.
nitpick_ignore_regex = [
    (r"py:.*", r"(?!bert_jax\b).*"),
    # Variables of types, and names of str.
    (r"py:class", r"bert_jax\.[\w.]+\.(T|TaskType|Function|FilePath|Label)"),
]

autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # Flax's own would be repeated for each module
autodoc_default_options = {"members": True, "special-members": "__call__"}
python_maximum_signature_line_length = 88

# Pages outside docs/, and the names of their copies in docs/generated.
OUTSIDE = {
    "README.md": "readme.md",
    "CHANGELOG.md": "changelog.md",
    ".github/CONTRIBUTING.md": "contributing.md",
    ".github/CODE_OF_CONDUCT.md": "code_of_conduct.md",
    ".github/SECURITY.md": "security.md",
    "AGENTS.md": "agents.md",
    "launch/README.md": "launch.md",
}
OUTSIDE |= {
    f"notebooks/{path.name}": f"notebook_{path.stem}.md"
    for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
}
# The API's page exists on the site only.
API_LINK = "API: `help(bert_jax.load)`", "[API](generated/api.md)"
# The folders of the package, in reading order.
FOLDERS = {
    "inference": "Vectors, answers and scores of a trained model.",
    "model": "The encoder, its heads and their configs.",
    "objectives": "The losses.",
    "tasks": "From the files of a task to scores.",
    "training": "The engine: state, step, loop, reports.",
    "data": "From text to batches.",
    "interop": "Checkpoints of bert_jax, Hugging Face and Google.",
    "parallel": "Meshes, sharding and several processes.",
}
# Modules of the first page of the API, with their headings.
FACE = {
    "Models": "bert_jax.inference.model",
    "Outputs of the encoder": "bert_jax.inference.outputs",
    "Trained models": "bert_jax.training.from_python",
    "Cross-validation": "bert_jax.training.cross_validation",
    "Figures": "bert_jax.figures",
}


def relink(text: str, old: Path, new: Path) -> str:
    """Rewrites links of Markdown in the folder ``old`` for a page in ``new``.

    A link whose text is its page's file name, such as data.md, gets the page's title.
    """

    def link(match: re.Match) -> str:
        target, anchor = match["target"], match["anchor"] or ""
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        path = (old / target).resolve()
        copy = OUTSIDE.get(os.path.relpath(path, ROOT))
        if copy:
            path = GENERATED / copy
        if path.is_dir():  # a folder is not a page of the site
            return match["name"]
        named = match["name"].endswith(".md") and path.suffix == ".md"
        name = "" if named and path.is_relative_to(DOCS) else match["name"]
        return f"[{name}]({os.path.relpath(path, new)}{anchor})"

    pattern = r"\[(?P<name>[^][]*)\]\((?P<target>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)"
    return re.sub(pattern, link, text)


def copies() -> Iterator[tuple[str, str]]:
    """Names and texts of copies of the existing pages of OUTSIDE."""
    for name, copy in OUTSIDE.items():
        if (ROOT / name).is_file():
            text = (ROOT / name).read_text()
            if name.endswith(".ipynb"):
                text = as_page(json.loads(text), Path(copy).stem)
            text = relink(text, (ROOT / name).parent, GENERATED)
            yield copy, text


def as_page(notebook: dict, name: str) -> str:
    """A notebook as Markdown with outputs. name: name of its pictures in GENERATED."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        code = cell["cell_type"] == "code"
        parts.append(f"````python\n{source}\n````" if code else source)
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                picture = GENERATED / f"{name}_{len(parts)}.png"
                picture.write_bytes(base64.b64decode("".join(data["image/png"])))
                parts.append(f"![Output of the cell]({picture})")
            else:
                text = "".join(output.get("text", data.get("text/plain", [])))
                parts.append(f"````text\n{text.rstrip()}\n````")
    return "\n\n".join(parts) + "\n"


def modules(folder: str) -> list[str]:
    """The names of a folder's modules, also in folders within it."""
    paths = sorted((ROOT / "bert_jax" / folder).rglob("*.py"))
    paths = [path.relative_to(ROOT).with_suffix("") for path in paths]
    return [".".join(path.parts) for path in paths if path.stem != "__init__"]


def face() -> str:
    """The page of ``import bert_jax``: its functions, then the classes of their results."""
    functions = ["load", "tokenizer", "finetune", "pretrain"]
    tasks = [f"tasks.{name}" for name in bert_jax.tasks.__all__]
    parts = [
        "# bert_jax\n\nThe functions of `import bert_jax`, and the models that they return."
    ]
    for title, names in {"Functions": functions, "Tasks": tasks}.items():
        shown = "\n".join(f".. autofunction:: bert_jax.{name}" for name in names)
        parts.append(f"## {title}\n\n```{{eval-rst}}\n{shown}\n```")
    options = f"\n   :inherited-members:\n   :exclude-members: {', '.join(functions)}"
    for title, name in FACE.items():
        module = f".. automodule:: {name}{options}"
        parts.append(f"## {title}\n\n```{{eval-rst}}\n{module}\n```")
    return "\n\n".join(parts) + "\n"


def api() -> Iterator[tuple[str, str]]:
    """Names and texts of the API's pages: public functions, folders, and a table."""
    shown = {*FACE.values(), "bert_jax.tasks.families"}
    pages = {
        folder: (text, [m for m in modules(folder) if m not in shown])
        for folder, text in FOLDERS.items()
    }
    apart = {*shown, "bert_jax.__main__", "bert_jax.train"}
    shared = [m for m in modules("") if m.count(".") == 1 and m not in apart]
    pages["shared"] = ("Modules that all folders use.", shared)
    yield "api_bert_jax.md", face()
    table = ["| [bert_jax](api_bert_jax.md) | The functions of `import bert_jax`. |"]
    for page, (text, names) in pages.items():
        title = f"bert_jax.{page}" if page in FOLDERS else page
        parts = [f"# {title}\n\n{text}"]
        table.append(f"| [{title}](api_{page}.md) | {text} |")
        for name in names:
            short = name.removeprefix(f"bert_jax.{page}.").removeprefix("bert_jax.")
            parts.append(f"## {short}\n\n```{{eval-rst}}\n.. automodule:: {name}\n```")
        yield f"api_{page}.md", "\n\n".join(parts) + "\n"
    head = "# API\n\nMade from the docstrings.\n\n| module | contents |\n|---|---|"
    contents = ["api_bert_jax", *(f"api_{page}" for page in pages)]
    tree = ["\n```{toctree}\n:hidden:\n", *contents, "```"]
    yield "api.md", "\n".join([head, *table, *tree]) + "\n"


def parameter_names(item: Any) -> set[str]:
    """The names of a function's parameters, or of a class's fields."""
    names = set()
    if inspect.isclass(item):
        names |= {name for name in vars(item) if name[0] != "_"}
        if dataclasses.is_dataclass(item):
            names |= {field.name for field in dataclasses.fields(item)}
    with contextlib.suppress(TypeError, ValueError):
        names |= set(inspect.signature(item).parameters)
    names |= set(getattr(getattr(item, "__code__", None), "co_varnames", ()))
    return names


def as_rest(text: str, names: set[str]) -> str:
    """Converts a plain docstring to reStructuredText.

    A paragraph may name parameters, "path: a folder. changes: of its fields.", with
    further lines indented or not. They become a list. ``names``: names of the parameters.
    """
    blocks = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if paragraph.startswith((">>>", " ", "..")):
            blocks.append(paragraph)
            continue
        if re.search(r"\S {3,}\S", paragraph):  # columns
            blocks.append(f"::\n\n{textwrap.indent(paragraph, '    ')}")
            continue
        for part in re.split(r"\n(?=- |\* |\d+\. )", paragraph):
            line = " ".join(map(str.strip, part.splitlines()))
            bullet = line.startswith("- ")
            line = escaped(line.removeprefix("- "))
            blocks.append(f"- {line}" if bullet else "\n\n".join(listed(line, names)))
    return "\n\n".join(blocks)


def listed(line: str, names: set[str]) -> list[str]:
    """The parts of a line. Parts that describe a parameter become items of a list."""
    some = r"[a-z_]\w*(?:(?:, | and )[a-z_]\w*)*"
    parts, start, item = [], 0, False
    for match in re.finditer(rf"(?:^|(?<=[.;] ))({some}): ", line):
        if set(re.split(", | and ", match[1])) <= names:
            parts.append((item, line[start : match.start()].strip()))
            start, item = match.start(), True
    parts.append((item, line[start:]))
    return [
        re.sub(rf"^({some}): ", r"- **\1**: ", part) if item else part
        for item, part in parts
        if part
    ]


def escaped(line: str) -> str:
    """A line in which only double backticks and roles are marks."""
    parts = re.split(r"(``.+?``|:\w+:`.+?`)", line)
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"([*|`]|_(?!\w))", r"\\\1", parts[i])
    return "".join(parts)


def process_docstring(app, what, name, item, options, lines) -> None:
    """Converts our docstrings to reStructuredText."""
    lines[:] = [*as_rest("\n".join(lines), parameter_names(item)).split("\n"), ""]


def process_signature(app, what, name, item, options, signature, returns):
    """Defaults that are functions or types are shown by their names."""
    text = (signature or "").replace("<factory>", "...")
    text = re.sub(
        r"<(?:built-in |)(?:function|class) '?(?:\w+\.)*(\w+)'?>", r"\1", text
    )
    return text or signature, returns


def skip_member(app, what, name, item, skip, options) -> bool | None:
    """Skips members that a class inherits from another package."""
    item = getattr(item, "fget", item)  # a property's function
    module = getattr(item, "__module__", None) or "bert_jax"
    return None if module.partition(".")[0] == "bert_jax" else True


def toctree(text: str, caption: str = "", start: str = "") -> str:
    """A hidden toctree of the linked pages whose names start with ``start``."""
    entries = re.findall(rf"\[([^]]*)\]\(({start}[\w./]+)\.md\)", text)
    entries = [f"{name} <{page}>" for name, page in entries]
    head = ["\n\n```{toctree}", ":hidden:", f":caption: {caption}" * bool(caption)]
    return "\n".join([*filter(None, head), "", *entries, "```\n"])


def sidebar(index: str) -> str:
    """Toctrees for the sidebar: one for each heading of index.md, with the linked pages."""
    sections = [section.partition("\n") for section in index.split("\n## ")[1:]]
    return "".join(toctree(text, caption) for caption, _, text in sections)


SETTING = re.compile(r"^- `([\w.[\]]+)(?:( = .*?)`|`, (required))(.*?): (.*)$")


def searchable(page: str) -> str:
    """settings.md with its settings as objects, so that the search finds their names.

    An object is written NAME|PLACE|DEFAULT. The place distinguishes equal names.
    """
    names = [match[1] for match in map(SETTING.match, page.split("\n")) if match]
    lines, place = [], ""
    for line in page.split("\n"):
        if match := re.match(r"## (.*)|### `data` of (.*)", line):
            place = match[1] or match[2]
        if match := SETTING.match(line):
            name, default, required, more, doc = match.groups()
            where = place if names.count(name) > 1 else ""
            value = f"{default or required}{more}".replace("`", "")
            line = f"```{{setting}} {name}|{where}|{value}\n{doc}\n```"
        lines.append(line)
    return "\n".join(lines)


def setting_object(env, signature: str, node) -> str:
    """Shows a setting's name and default, and returns its name for the search."""
    from sphinx import addnodes  # tests need no Sphinx

    name, place, value = signature.split("|")
    node += addnodes.desc_name(name, name)
    node += addnodes.desc_annotation(value, f" {value.strip()}")
    return f"{name} ({place})" if place else name


def read_source(app, page: str, source: list[str]) -> None:
    """Links to pages outside docs/ lead to their copies. index.md gets the sidebar."""
    folder = (DOCS / page).parent
    if folder != GENERATED:
        source[0] = relink(source[0], folder, folder)
    if page == "settings":
        source[0] = searchable(source[0])
    if page == "index":
        source[0] = source[0].replace(*API_LINK)
        source[0] += sidebar(source[0])
    if page == "notebooks":
        source[0] += toctree(source[0], start="generated/notebook_")


def setup(app) -> None:
    """Writes docs/generated, and connects the functions above."""
    GENERATED.mkdir(exist_ok=True)
    pages = {GENERATED / name: text for name, text in (*copies(), *api())}
    for path in set(GENERATED.glob("*.md")) - set(pages):
        path.unlink()
    for path, text in pages.items():
        if not path.is_file() or path.read_text() != text:  # Sphinx reads what changed
            path.write_text(text)
    app.add_object_type("setting", "setting", "%s (setting)", setting_object)
    app.connect("source-read", read_source)
    app.connect("autodoc-process-docstring", process_docstring)
    app.connect("autodoc-process-signature", process_signature)
    app.connect("autodoc-skip-member", skip_member)
