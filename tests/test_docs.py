"""Pages: every link has a target, and every command and program works.

A comment above a block of code can have one of these forms:
  not run: REASON               its commands are only parsed, and its files must exist
  short: NAME FLAGS; NAME ...   flags that make the run of a command short
  file: NAME; OLD -> NEW; ...   the block is the content of this file, which runs in a short
                                form with these replacements
"""

import functools
import importlib.util
import inspect
import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import NamedTuple

import jax
import pytest

from bert_jax.commands import cli, convert
from bert_jax.commands.config_file import named_references
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.model.bert import BertForPreTraining
from bert_jax.model.config import BertConfig
from bert_jax.objectives.mlm_nsp import MlmNsp
from bert_jax.objectives.objective import PretrainingObjective
from bert_jax.runs import read_runs
from bert_jax.tasks.task import Task
from tests.conftest import xlm_r_tokenizer

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
LOG = ROOT / "benchmarks/LOG.md"  # for maintainers
PAGES = sorted(
    page
    for page in (
        *ROOT.glob("*.md"),
        *(ROOT / ".github").glob("*.md"),
        *DOCS.rglob("*.md"),
        ROOT / "launch/README.md",
        LOG,
    )
    if "generated" not in page.parts
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"].keys()
# Names on the Hub in programs of pages. In the tests they are local folders.
HUB_NAMES = (
    "google-bert/bert-base-uncased",
    "google-bert/bert-base-cased",
    "sentence-transformers/all-MiniLM-L6-v2",
)
XLM_R = "FacebookAI/xlm-roberta-base"  # also on the Hub
each_page = pytest.mark.parametrize(
    "page", PAGES, ids=lambda p: str(p.relative_to(ROOT))
)


class Block(NamedTuple):
    """A fenced block of a page, its language, and the comment above it."""

    page: Path
    line: int
    language: str
    text: str
    comment: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def note(self, kind: str) -> str:
        """The text of a comment "kind: ...", or an empty string."""
        return self.comment.partition(f"{kind}: ")[2]


def blocks(page):
    """All fenced blocks of a page."""
    blocks_of_page, comment, lines = (
        [],
        "",
        iter(enumerate(page.read_text().splitlines(), 1)),
    )
    for number, line in lines:
        text = line.strip()
        if match := re.match(r"```\{?([\w-]*)", text):
            end, body = text[: text.index("`") + 3], []
            for _, inner in lines:
                if inner.strip() == end:
                    break
                body.append(inner.removeprefix(" " * (len(line) - len(line.lstrip()))))
            blocks_of_page.append(
                Block(page, number, match[1], "\n".join(body), comment)
            )
            comment = ""
        elif text.startswith("<!--"):
            comment = text.removeprefix("<!--").removesuffix("-->").strip()
            while not text.endswith("-->"):
                text = next(lines)[1].strip()
                comment += f" {text.removesuffix('-->').strip()}"
        elif text:
            comment = ""
    return blocks_of_page


def prose(page):
    """A page without fenced blocks and inline code."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.M | re.S)
    return re.sub(r"`[^`\n]*(?:\n[^`\n]+)?`", "", text)


@functools.cache
def anchors(page):
    """The anchors that code hosts and MyST give to the headings of a page."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.M | re.S)
    names = []
    for title in re.findall(r"^#+ (.*)$", text, flags=re.M):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)
        slug = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        count = sum(
            re.fullmatch(rf"{slug}(-\d+)?", other) is not None for other in names
        )
        names.append(f"{slug}-{count}" if count else slug)
    return names


@each_page
def test_every_link_has_a_target(page):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target)
    assert broken == []


@each_page
def test_every_file_that_a_page_names_exists(page):
    """Files of the package, tests, configs and scripts, including comments of blocks."""
    package = ROOT / "bert_jax"
    folders = ["tests", "bert_jax", "experiments", "examples", "launch", "docs"]
    folders += [path.name for path in package.iterdir() if path.is_dir()]
    pattern = rf"(?<![\w./-])((?:{'|'.join(folders)})/[\w./]+\.(?:py|md|sh|yaml))\b"
    text = page.read_text()
    if page.name == "CHANGELOG.md":  # older versions had other files
        text = "".join(text.split("\n## ")[:2])
    names = re.findall(pattern, text)
    missing = [x for x in names if not any((r / x).exists() for r in (ROOT, package))]
    assert missing == []


def test_every_page_is_in_the_table_of_contents():
    """The links of index.md make the site's sidebar."""
    index = prose(DOCS / "index.md")
    linked = {(DOCS / x).resolve() for x in re.findall(r"\]\(([^)]+\.md)\)", index)}
    known = {DOCS / "index.md", ROOT / "launch/README.md", LOG}
    assert set(PAGES) - linked - known == set(), "link them in docs/index.md"


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "index.md"])
def test_the_tables_call_a_page_by_its_title(page):
    """Or by the part of the title before a colon. The tables of README and index.md."""
    rows = [line for line in page.read_text().splitlines() if line.startswith("|")]
    links = re.findall(r"\[([^]]+)\]\(([\w./]+\.md)\)", "\n".join(rows))
    names = [(name, (page.parent / target).resolve()) for name, target in links]
    pages = [(name, path) for name, path in names if path.is_relative_to(DOCS)]
    assert len(pages) > 15
    for name, path in pages:
        assert name in (title(path), title(path).partition(":")[0]), path


def title(page):
    return page.read_text().partition("\n")[0].removeprefix("# ")


def test_every_picture_is_named_by_a_page():
    """A picture that no page shows becomes outdated unnoticed."""
    named = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in re.findall(r"!\[[^]]*\]\(([^)\s]+)\)", page.read_text())
    }
    pictures = {*(DOCS / "pictures").iterdir()}
    assert len(pictures) >= 9  # and no scripts
    assert pictures - named == set()


def test_extras_are_installed_from_the_clone():
    """No registry has bert_jax, so an extra is '.[gcs]' or has the repository's address.

    Pages, messages, launch files and notebooks.
    """
    suffixes = ("*.py", "*.md", "*.txt", "*.sh", "*.yaml", "*.ipynb", "Dockerfile")
    folders = (".github", "bert_jax", "benchmarks", "docs", "examples")
    folders += ("experiments", "launch", "notebooks")
    files = [*ROOT.glob("*.md"), *ROOT.glob("*.txt")]
    for folder in folders:
        for suffix in suffixes:
            files += (ROOT / folder).rglob(suffix)
    installed = re.compile(r"bert_jax\[[\w,{}]+\](?! @ git\+)|pip install '?bert_jax")
    wrong = {str(file): installed.findall(file.read_text()) for file in files}
    assert {file: words for file, words in wrong.items() if words} == {}


def test_the_comparison_names_the_checkpoints_that_convert_writes():
    forms = re.search(r"--to {([\w,]+)}", convert.__doc__)[1].split(",")
    table = (ROOT / "README.md").read_text().partition("## Comparison")[2]
    cells = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|", table, flags=re.M))
    rows = {
        "Hugging Face checkpoints": "hf",
        "Google's TensorFlow checkpoints": "tensorflow",
    }
    for row, form in rows.items():
        assert cells[row] == ("reads, writes" if form in forms else "reads")


def commands(block):
    """The commands of a shell block as words, without assignments of variables."""
    text = block.text.replace("\\\n", " ")
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        while words and re.match(r"[A-Z_]+=", words[0]):
            words.pop(0)
        if words:
            yield words


def ours(words):
    """(name, arguments) of a command of bert_jax, or None."""
    if words[:3] == ["python", "-m", "bert_jax.train"]:
        return "train", words[3:]
    return (words[1], words[2:]) if words[0] == "bert_jax" else None


def command_main(name):
    return importlib.import_module(f"bert_jax.commands.{name}").main


@pytest.fixture
def parse(monkeypatch):
    """A function that only parses the command line of a bert_jax command."""
    read = cli._Parser.parse_args

    def parse_args(self, *args, **kwargs):
        read(self, *args, **kwargs)
        raise SystemExit(0)

    def parse(name, arguments):
        main = command_main(name)
        with pytest.raises(SystemExit) as stop, monkeypatch.context() as patch:
            patch.setattr(cli._Parser, "parse_args", parse_args)
            patch.setattr(cli, "check_checkpoint", lambda path: None)
            with_config = any(word.startswith("--config") for word in arguments)
            main([*arguments, *["--print_config"] * with_config])
        assert stop.value.code == 0

    return parse


def check_other(words, is_run):
    """Checks a command that is not from bert_jax as far as possible.

    is_run: whether its block runs. The block then has no command that a test cannot run.
    """
    program, *arguments = words
    if program == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.M)
        assert set(arguments) <= set(targets)
    elif program == "pip":
        for extras in re.findall(r"(?:bert_jax|\.)\[([\w,]+)\]", " ".join(arguments)):
            for name in extras.split(","):
                assert name in EXTRAS
    elif program.endswith(".sh"):
        before = arguments.index("--")
        dry = [ROOT / program, *arguments[:before], "--dry_run", *arguments[before:]]
        done = subprocess.run(dry, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    elif program == "python" and re.match(r"benchmarks/|notebooks/", arguments[0]):
        text = (ROOT / arguments[0]).read_text()
        for flag in re.findall(r"--\w+", " ".join(arguments[1:])):
            assert f'"{flag}"' in text, flag
    else:
        assert program == "." or not is_run, words


@each_page
def test_every_command_parses(page, parse, workspace, capsys):
    for block in blocks(page):
        if block.language not in ("sh", "bash", "console"):
            continue
        for words in commands(block):
            try:
                if command := ours(words):
                    parse(*command)
                else:
                    check_other(words, is_run(block))
            except Exception as error:
                error.add_note(f"{block.place}: {shlex.join(words)}")
                raise


def test_the_commands_of_the_makefile_parse(parse):
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    values = dict(re.findall(r"^(\w+) \?= (.*)$", text, flags=re.M))
    lines = re.findall(r"^\t\$\(BIN\)/bert_jax (.*)$", text, flags=re.M)
    assert len(lines) == 3
    for line in lines:
        command = re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], line)
        name, *words = command.partition("&&")[0].split()
        parse(name, words)


@pytest.mark.parametrize(
    ("page", "interface"),
    [("own_objective", PretrainingObjective), ("own_task", Task)],
)
def test_a_guide_has_the_names_of_the_interface(page, interface):
    text = (DOCS / f"guides/{page}.md").read_text()
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    arguments = re.findall(r"`(\w+)\(([\w, ]*)\)`", " ".join(cells))
    assert len(arguments) >= 4
    for name, page_arguments in arguments:
        expected = inspect.signature(getattr(interface, name)).parameters
        assert page_arguments.split(", ") == [*expected][1:], name
    assert {name for name, _ in arguments} >= interface.__abstractmethods__


MRPC = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"


@pytest.fixture(scope="session")
def text_and_vocabulary(tmp_path_factory, golden, small_store):
    """A text file, and a tokenizer of 600 tokens trained on it."""
    text = (golden / "pretraining_data" / "moby_dick_sentences.txt").read_text()
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join(text.split("\n\n")[:30]))
    return path, load_tokenizer(small_store[0])


@pytest.fixture(scope="session")
def pretrained(text_and_vocabulary, tmp_path_factory):
    """A Hugging Face folder with a tiny BERT and both pretraining heads."""
    _, tokenizer = text_and_vocabulary
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_layers=3,  # four states with the embeddings, which a page needs
        num_heads=2,
        intermediate_size=32,
    )
    init = jax.jit(MlmNsp(BertForPreTraining(config)).init)
    params = jax.device_get(init(jax.random.key(0)))
    folder = tmp_path_factory.mktemp("pretrained")
    save_huggingface(folder, Checkpoint(config, params, tokenizer, "pretraining"))
    return folder


@pytest.fixture(scope="session")
def xlm_roberta(tmp_path_factory):
    """A Hugging Face folder with a tiny XLM-R and its MLM head."""
    tokenizer = xlm_r_tokenizer()
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        intermediate_size=32,
        type_vocab_size=1,
        position_offset=2,
        model_type="xlm-roberta",
    )
    init = jax.jit(MlmNsp(BertForPreTraining(config)).init)
    params = jax.device_get(init(jax.random.key(0)))
    del params["nsp"], params["bert"]["pooler"]
    folder = tmp_path_factory.mktemp("xlm_roberta")
    save_huggingface(folder, Checkpoint(config, params, tokenizer, "pretraining"))
    return folder


@pytest.fixture
def workspace(tmp_path, monkeypatch, text_and_vocabulary, pretrained, xlm_roberta):
    """A folder with all files that the pages expect. Commands run in it."""
    text, tokenizer = text_and_vocabulary
    for name in ("experiments", "launch", "benchmarks", "docs", "models"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name in ("TEXT", "my_text"):
        (tmp_path / name).symlink_to(text)
    for name in ("glue/MRPC", "my_task", "reviews", "runs", "data"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.syspath_prepend(ROOT / "examples")  # the page's PYTHONPATH
    folders = dict.fromkeys(("runs/tiny", *HUB_NAMES), pretrained)
    for name, folder in {**folders, XLM_R: xlm_roberta}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(folder)
    tokenizer.save(tmp_path)
    (tmp_path / "texts.txt").write_text("It is a fine day\nNobody came\n")
    (tmp_path / "pairs.txt").write_text("It is so\tSo it is\nIt is so\tNobody came\n")
    for split in ("train", "dev"):
        mrpc = (
            "1\t1\t2\tIt is so .\tSo it is .\n0\t1\t2\tIt is so .\tNobody came .\n" * 4
        )
        (tmp_path / f"glue/MRPC/{split}.tsv").write_text(MRPC + mrpc)
        rows = "It is a fine day,good\nNobody came,bad\n" * 4
        (tmp_path / f"my_task/{split}.csv").write_text(f"text,label\n{rows}")
    (tmp_path / "glue/MRPC/test.tsv").write_text(
        "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\tIt is .\tIt was .\n"
    )
    (tmp_path / "my_search/qrels").mkdir(parents=True)
    for name in ("queries", "corpus"):
        line = json.dumps({"_id": "1", "text": "It is a fine day"})
        (tmp_path / f"my_search/{name}.jsonl").write_text(f"{line}\n")
    qrels = "query-id\tcorpus-id\tscore\n1\t1\t1\n"
    (tmp_path / "my_search/qrels/test.tsv").write_text(qrels)
    pair = {"sentence_good": "It is so.", "sentence_bad": "It are so."}
    (tmp_path / "blimp/data").mkdir(parents=True)
    (tmp_path / "blimp/data/agreement.jsonl").write_text(
        (json.dumps(pair) + "\n") * 501
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "start", lambda *arguments: None)
    write_files(tmp_path)
    return tmp_path


def write_files(folder):
    """Writes the files whose contents are blocks of a page."""
    for page in PAGES:
        for block in blocks(page):
            if note := block.note("file"):
                name, *replacements = note.split("; ")
                text = f"{block.text}\n"
                for replacement in replacements:
                    old, new = replacement.split(" -> ")
                    assert old in text, f"{block.place}: {old}"
                    text = text.replace(old, new)
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text)


def run_commands(block):
    """Runs the bert_jax commands of a shell block, with the flags of its short form."""
    short = {}
    for note in filter(None, block.note("short").split("; ")):
        name, *flags = shlex.split(note)
        short[name] = flags
    for words in commands(block):
        if command := ours(words):
            name, arguments = command
            flags = short.get(name, [])
            code = command_main(name)([*arguments, *flags])
            assert not code, f"{block.place}: {shlex.join(words)}"


def is_run(block):
    return block.language in ("sh", "python") and not (
        block.note("not run") or block.note("file")
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(map(is_run, blocks(page)))],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_every_block_runs(page, workspace, capsys):
    """In the order of the page, so that a block can read files of earlier blocks."""
    names = {"a": "It was late.", "b": "The door was shut."}
    names["texts"] = ["It is a [MASK] day.", "Nobody came to the [MASK]."]
    names["rows"] = [("It is a fine day", "good"), ("Nobody came", "bad")] * 8
    if page.name == "README.md":  # its programs run unchanged
        names.clear()
    for block in filter(is_run, blocks(page)):
        try:
            if block.language == "sh":
                run_commands(block)
            else:
                exec(compile(block.text, block.place, "exec"), names)
        except BaseException as error:
            error.add_note(block.place)
            raise


@each_page
def test_blocks_name_checkpoints_that_exist(page):
    """People copy commands and programs, so these have no placeholders for names."""
    placeholder = re.compile(r"\b(OWNER|REPOSITORY|ADDRESS|CHECKPOINT)\b")
    copied = [block for block in blocks(page) if block.language in ("sh", "python")]
    wrong = [block.place for block in copied if placeholder.search(block.text)]
    assert wrong == []


def test_blocks_of_the_readme_are_as_narrow_as_a_phone():
    """390 pixels show 42 characters of code on the site. Longer lines are cut."""
    lines = [x for block in blocks(ROOT / "README.md") for x in block.text.splitlines()]
    assert len(lines) > 30
    assert [line for line in lines if len(line) > 42] == []


@each_page
def test_a_block_that_is_not_run_has_a_reason(page):
    for block in blocks(page):
        assert block.language in ("", "sh", "python", "text", "toctree"), block.place
        kind = block.comment.partition(":")[0]
        assert not block.comment or kind in ("not run", "short", "file"), block.place
        if kind == "not run":
            assert len(block.note(kind)) > 10, block.place
        elif block.language == "sh" and kind == "":
            assert any(map(ours, commands(block))), f"{block.place} runs nothing"


def test_the_page_of_losses_has_the_numbers_of_the_references():
    spec = importlib.util.spec_from_file_location(
        "references", DOCS / "scripts" / "draw_references.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.PAGE.read_text()
    assert module.written(text) == text, "python docs/scripts/draw_references.py"
    for name in named_references():
        assert f"| `{name}` | 0 |" in text or f"| `{name}` | 100 |" in text


def test_the_caption_of_readmes_picture_has_the_scores_of_its_run():
    (run,) = read_runs([named_references()["small"]])
    first, last = (run.series("eval", "nsp_accuracy")[1][i] for i in (0, -1))
    assert [round(100 * x) for x in (first, last)] == [45, 88]
    assert round(100 * run.series("eval", "mlm_accuracy")[1][-1]) == 39
    assert round(100 * run.baseline("eval", "mlm_accuracy")[1][-1]) == 5
    assert round(100 * run.baseline("eval", "nsp_accuracy")[1][-1]) == 55
    text = (ROOT / "README.md").read_text()
    (alt, caption) = re.search(
        r"!\[(.*?)\]\(docs/pictures/small\.png\)\n\n(.*?)\n\n", text, flags=re.S
    ).groups()
    for number in ("39%", "5%", "45 to 88%", "55%", f"{run.metrics[-1]['step']:,}"):
        assert number in alt, number
    assert "39%" in caption and "88%" in caption


def test_every_picture_of_a_page_has_a_description_and_a_caption():
    """The caption is a paragraph in italics below the picture."""
    written = [page for page in DOCS.rglob("*.md") if "generated" not in page.parts]
    pages = [ROOT / "README.md", *written]
    shown = set()
    for page in pages:
        text = page.read_text()
        for alt, name, after in re.findall(
            r"!\[(.*?)\]\(\S*pictures/(\S+)\)\n\n(.)", text, flags=re.S
        ):
            shown.add(name)
            assert len(alt) > 40, (page, name)
            assert after == "*", (page, name)
    assert shown == {path.name for path in (DOCS / "pictures").iterdir()}


def test_the_citation_has_the_version_of_the_package():
    from bert_jax import __version__

    text = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {__version__}\n" in text


def test_the_picture_of_the_flow_names_folders_that_exist():
    text = (DOCS / "pictures" / "flow.svg").read_text()
    folders = re.findall(r"(\w+)/(?=[,<])", text)
    assert len(folders) == 7
    for folder in folders:
        assert (ROOT / "bert_jax" / folder).is_dir(), folder
