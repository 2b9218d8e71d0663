"""Checkpoints on a hub, served by a local server, and errors of wrong names."""

import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import huggingface_hub.constants
import jax
import numpy as np
import pytest

import bert_jax
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.interop import load
from bert_jax.interop.find import check_checkpoint, find_files, hub_name, split_step

COMMIT = {"main": "a" * 40, "old": "b" * 40}


class Hub(http.server.ThreadingHTTPServer):
    """A local hub. It serves a model's commit, list of files and files."""

    daemon_threads = True

    def __init__(self, models):
        """models: folders by (name, revision)."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models = models
        self.sent = []  # names of the sent files, in order
        self.limit = None  # number of model descriptions before a rate limit
        self.url = f"http://127.0.0.1:{self.server_port}"

    def folder(self, name, revision):
        revisions = {COMMIT[r]: r for r in COMMIT}
        return self.models.get((name, revisions.get(revision, revision)))


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self):
        path = self.path.partition("?")[0].strip("/")
        if path.startswith("api/models/"):
            self._describe(path.removeprefix("api/models/"))
            return
        name, _, rest = path.partition("/resolve/")
        revision, _, file = rest.partition("/")
        folder = self.server.folder(name, revision)
        if folder is None or not (folder / file).is_file():
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        content = (folder / file).read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        if self.command == "GET":
            self.server.sent.append(file)
        headers = {"ETag": etag, "X-Repo-Commit": COMMIT.get(revision, revision)}
        self._answer(200, content, headers)

    do_GET = do_HEAD

    def _describe(self, path):
        if self.server.limit is not None and "/tree/" not in path:
            self.server.limit -= 1
            if self.server.limit < 0:
                self._answer(429, b"{}", {})
                return
        name, _, revision = path.partition("/revision/")
        name, tree, commit = name.partition("/tree/")
        revision = commit or revision or "main"
        if not any(known == name for known, _ in self.server.models):
            self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            return
        folder = self.server.folder(name, revision)
        if folder is None:
            self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return
        files = [
            {
                "type": "file",
                "path": file.relative_to(folder).as_posix(),
                "rfilename": file.relative_to(folder).as_posix(),
                "size": file.stat().st_size,
                "oid": hashlib.sha1(file.read_bytes()).hexdigest(),
            }
            for file in sorted(folder.rglob("*"))
            if file.is_file()
        ]
        about = {"id": name, "sha": COMMIT.get(revision, revision), "siblings": files}
        self._answer(200, json.dumps(files if tree else about).encode(), {})

    def _answer(self, code, content, headers):
        self.send_response(code)
        for header, value in headers.items():
            self.send_header(header, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_):
        """Prints nothing."""


@pytest.fixture(scope="module")
def models(golden, tmp_path_factory):
    """A model with weights in three forms; its old revision has only a pickle."""
    folders = tmp_path_factory.mktemp("hub")
    new = shutil.copytree(golden / "huggingface/pretraining", folders / "new")
    load_tokenizer(golden / "huggingface/tokenizer").save(new)
    (new / "README.md").write_text("a card")
    (new / "tf_model.h5").write_text("not ours")
    shutil.copy(golden / "huggingface/pickle/zip.bin", new / "pytorch_model.bin")
    old = shutil.copytree(new, folders / "old")
    (old / "model.safetensors").unlink()
    shards = shutil.copytree(golden / "huggingface/sharded", folders / "shards")
    google = shutil.copytree(golden / "google_bert", folders / "google")
    other = folders / "other"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "gpt2"}')
    (other / "model.safetensors").write_text("large")
    vectors = folders / "vectors"
    for part in ("huggingface/none", "huggingface/tokenizer"):
        shutil.copytree(golden / part, vectors, dirs_exist_ok=True)
    modules = golden / "sentence_transformers/dense"
    shutil.copytree(modules, vectors, dirs_exist_ok=True)
    named = shutil.copytree(vectors, folders / "named")
    text = (named / "modules.json").read_text()
    for before, after in {"1_Pooling": "pooling", "2_Dense": "12_projection"}.items():
        (named / before).rename(named / after)
        text = text.replace(f'"{before}"', f'"{after}"')
    (named / "modules.json").write_text(text)
    return {
        ("bert_jax/named", "main"): named,
        ("bert_jax/vectors", "main"): vectors,
        ("bert_jax/tiny", "main"): new,
        ("bert_jax/tiny", "old"): old,
        ("plain", "main"): new,
        ("bert_jax/shards", "main"): shards,
        ("bert_jax/google", "main"): google,
        ("bert_jax/gpt2", "main"): other,
    }


@pytest.fixture
def hub(models, monkeypatch, tmp_path):
    """A running local server in place of the hub, and an empty cache."""
    server = Hub(models)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    settings = {
        "ENDPOINT": server.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": server.url
        + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(tmp_path / "cache"),
        "HF_HUB_OFFLINE": False,
    }
    for name, value in settings.items():
        monkeypatch.setattr(huggingface_hub.constants, name, value)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_a_name_is_downloaded_once_and_only_needed_files(hub, models):
    model = bert_jax.load("bert_jax/tiny")
    assert sorted(hub.sent) == [
        "config.json",
        "model.safetensors",
        "tokenizer_config.json",
        "vocab.txt",
    ]
    expected = bert_jax.load(models["bert_jax/tiny", "main"])
    assert (model.head, model.source) == ("pretraining", "huggingface")
    assert model.tokenizer.fingerprint() == expected.tokenizer.fingerprint()
    same(model.params, expected.params)
    same(bert_jax.load("bert_jax/tiny").params, expected.params)
    assert len(hub.sent) == 4


def test_without_weights_no_weights_are_downloaded(hub, models):
    read = load.load("bert_jax/tiny", weights=False)
    assert sorted(hub.sent) == ["config.json", "tokenizer_config.json", "vocab.txt"]
    expected = bert_jax.load(models["bert_jax/tiny", "main"])
    assert (read.config, read.params) == (expected.config, {})
    assert read.tokenizer.fingerprint() == expected.tokenizer.fingerprint()
    tokenizer = bert_jax.tokenizer("bert_jax/tiny")
    assert tokenizer.fingerprint() == expected.tokenizer.fingerprint()
    assert tokenizer.model_max_length == expected.config.max_positions
    assert len(hub.sent) == 3


def test_a_revision_follows_the_at_sign(hub, models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a checkout may have runs/tiny
    model = bert_jax.load("bert_jax/tiny@old")
    assert "pytorch_model.bin" in hub.sent
    assert "model.safetensors" not in hub.sent
    same(model.params, bert_jax.load(models["bert_jax/tiny", "old"]).params)
    same(model.params, bert_jax.load(f"bert_jax/tiny@{COMMIT['old']}").params)
    with pytest.raises(
        UserError, match=r"tiny@new does not exist here, .*Revision Not Found"
    ):
        bert_jax.load("bert_jax/tiny@new")
    check_checkpoint("runs/tini")  # may be a name, so load looks it up
    with pytest.raises(
        UserError,
        match=r"runs/tini does not exist here, and its download from http\S+ failed .*"
        r"Repository Not Found.* private or gated.*"
        r"expected a Hugging Face folder .* a workdir",
    ):
        bert_jax.load("runs/tini")
    with pytest.raises(UserError, match=r"set init_from: expected a Hug"):
        check_checkpoint("", "init_from")


@pytest.mark.parametrize(("leader", "before"), [(True, 4), (False, 0)])
def test_process_0_downloads_before_other_processes(hub, monkeypatch, leader, before):
    """The other processes wait, and then read the files from the cache of their host."""
    sent = []

    def on_leader(action):
        if leader:
            action()
        sent.append(len(hub.sent))

    monkeypatch.setattr(load, "on_leader", on_leader)
    bert_jax.load("bert_jax/tiny")
    assert (sent, len(hub.sent)) == ([before], 4)


@pytest.mark.parametrize(
    ("name", "files"), [("shards", 5), ("google", 3)], ids=["shards", "google"]
)
def test_sharded_weights_and_googles_weights_are_downloaded(hub, models, name, files):
    model = bert_jax.load(f"bert_jax/{name}")
    same(model.params, bert_jax.load(models[f"bert_jax/{name}", "main"]).params)
    assert len(hub.sent) == files


def test_modules_of_sentence_transformers_are_downloaded(hub, models):
    model = bert_jax.load("bert_jax/vectors")
    expected = bert_jax.load(models["bert_jax/vectors", "main"])
    assert (model.head, model.extra) == ("cls", expected.extra)
    same(model.params, expected.params)
    assert "2_Dense/model.safetensors" in hub.sent


def test_modules_are_read_from_the_folders_in_modules_json(hub, models):
    model = bert_jax.load("bert_jax/named")
    same(model.params, bert_jax.load(models["bert_jax/named", "main"]).params)
    assert model.head == "cls"
    assert "12_projection/model.safetensors" in hub.sent


def test_an_existing_path_takes_precedence_over_a_name(
    hub, models, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    bert_jax.load("plain")
    assert len(hub.sent) == 4
    shutil.copytree(models["bert_jax/shards", "main"], tmp_path / "plain")
    assert bert_jax.load("plain").tokenizer is None
    assert len(hub.sent) == 4


def test_a_cached_model_loads_without_a_network(hub, monkeypatch):
    before = bert_jax.load("bert_jax/tiny")
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    same(bert_jax.load("bert_jax/tiny").params, before.params)
    with pytest.raises(
        UserError,
        match=r"bert_jax/large does not exist here, .* from http://127.0.0.1:9 failed "
        r"\(\[Errno 111\] Connection refused\); .*'hf download bert_jax/large --local",
    ) as caught:
        bert_jax.load("bert_jax/large")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("limit", [0, 1])
def test_the_error_of_a_rate_limit_has_its_status(hub, limit):
    """At the first request, and after the small files were downloaded."""
    hub.limit = limit
    message = r"tiny does not exist here, and its download from http\S+ failed \(.*"
    message += "429"
    with pytest.raises(UserError, match=message):
        bert_jax.load("bert_jax/tiny")
    hub.limit = None
    before = bert_jax.load("bert_jax/tiny")
    hub.limit = limit
    same(bert_jax.load("bert_jax/tiny").params, before.params)


def test_another_architecture_is_refused_before_its_weights_are_downloaded(hub):
    with pytest.raises(UserError, match="bert_jax/gpt2: model_type="):
        bert_jax.load("bert_jax/gpt2")
    assert hub.sent == ["config.json"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("google-bert/bert-base-uncased", ("google-bert/bert-base-uncased", None)),
        ("bert-base-uncased", ("bert-base-uncased", None)),
        ("a/b@v1.0", ("a/b", "v1.0")),
        ("a/b@refs/pr/1", ("a/b", "refs/pr/1")),
        ("a/b/c", None),
        ("./a", None),
        ("../a/b", None),
        ("/a", None),
        ("a/", None),
        ("gs://a/b", None),
        ("tests", None),  # a folder of the directory in which the tests run
    ],
)
def test_only_names_of_a_hub_are_taken_as_names(path, expected):
    assert hub_name(path) == expected


EXPERIMENTS = Path(__file__).parents[2] / "experiments"
COMMANDS = {
    f"train --config {EXPERIMENTS}/tiny.py": "--init_from",
    f"finetune --config {EXPERIMENTS}/finetune/glue.py:rte": "--init_from",
    "predict --input -": "--checkpoint",
    "embed --input - --output x.npz": "--checkpoint",
    "score --input -": "--checkpoint",
    "score --pairs x": "--checkpoint",
    "evaluate --input x": "--checkpoint",
    "convert --output x": "--checkpoint",
    "inspect": "",
}


def test_a_wrong_path_is_an_error_before_jax_is_imported(tmp_path):
    """Imports of JAX, scikit-learn and Flax take seconds.

    The folder has no run: a run that resumes needs no checkpoint to start from.
    """
    code = """if True:
        import importlib, sys
        from bert_jax.errors import UserError
        for line, flag in COMMANDS.items():
            name, *words = line.split()
            main = importlib.import_module(f"bert_jax.commands.{name}").main
            try:
                main([*words, f"{flag}=/nowhere" if flag else "/nowhere"])
            except UserError as error:
                print(error)
        print(*{'jax', 'flax', 'sklearn'} & sys.modules.keys())
    """.replace("COMMANDS", repr(COMMANDS))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    *errors, imported = done.stdout.splitlines()
    assert len(errors) == len(COMMANDS)
    for error in errors:
        assert error.startswith("/nowhere does not exist; expected a Hugging Face fol")
    assert imported == ""


@pytest.mark.long
def test_a_command_accepts_a_name(hub, tmp_path):
    """HF_ENDPOINT is the address of a mirror."""
    names = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
    arguments = ["--checkpoint", "bert_jax/tiny@old", "--output", tmp_path / "out"]
    done = subprocess.run(
        [sys.executable, "-m", "bert_jax", "convert", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | names,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "bert_jax/tiny@old: a checkpoint of huggingface; model_type: bert; "
    )
    [line] = done.stderr.splitlines()
    assert line.startswith("next: bert_jax predict --checkpoint ")
    assert (tmp_path / "out/vocab.txt").is_file()


@pytest.mark.parametrize("name", ["runs/ovn", "runs/deep/ovn"])
def test_a_similar_folder_is_suggested(name, hub, tmp_path, monkeypatch):
    """Even for a name that a hub may have."""
    monkeypatch.chdir(tmp_path)
    similar = Path(name).with_name("own")
    similar.mkdir(parents=True)
    message = f"^{name} does not exist.*; did you mean {similar}\\?"
    with pytest.raises(UserError, match=message) as caught:
        bert_jax.load(name)
    assert len(str(caught.value)) < 220


def test_weights_of_a_folder_take_precedence_over_its_subfolders(tmp_path):
    """A fine-tuning's workdir has best/, and no weights beside it."""
    for folder in ("model", "model/best", "model/checkpoints/500"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "config.json").write_text("{}")
        (tmp_path / folder / "model.safetensors").write_bytes(b"")
    model = tmp_path / "model"
    assert find_files(model) == ("huggingface", model)
    step = model / "checkpoints/500"
    assert split_step(step) == (str(step), None)
    assert find_files(step) == ("huggingface", step)
    (model / "model.safetensors").unlink()
    assert find_files(model) == ("huggingface", model / "best")


@pytest.mark.parametrize("url", ["memory://bucket/model", "file:///model", "xy://a/b"])
def test_a_url_of_an_unknown_store_is_refused(url):
    with pytest.raises(UserError, match=f"^{url} needs a library"):
        bert_jax.load(url)
