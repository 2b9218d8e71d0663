"""Fixtures and guard rails for every test."""

import csv
import functools
import gc
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import huggingface_hub.constants
import jax
import numpy as np
import pytest
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict
from jax._src import compiler
from jax.experimental.compilation_cache import compilation_cache

from bert_jax.data.preparation import prepare
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.tokenizer_files import load_tokenizer
from bert_jax.data.vocabulary_training import train_vocabulary
from bert_jax.data.wordpiece import WordPieceTokenizer
from bert_jax.interop.checkpoint import Checkpoint
from bert_jax.interop.huggingface import save_huggingface
from bert_jax.model.bert import BertModel
from bert_jax.model.config import BertConfig, ComputeConfig, FeatureConfig
from bert_jax.model.tokens import Tokens
from bert_jax.objectives.networks import make_model
from bert_jax.parallel.mesh import make_mesh
from bert_jax.progress import Progress, show_progress
from bert_jax.tasks import labels
from bert_jax.training import finetune, finetune_data, pretrain

GOLDEN = Path(__file__).parent / "golden"
# Metrics that depend on the clock, or on the steps that a process timed.
TIMES = (
    *("tokens_per_second", "mfu", "data_wait"),
    *("seconds_left", "seconds", "lost_seconds"),
)

# A run of 14 steps in two phases, which needs seconds. Its numbers differ from the defaults
# and from each other, so that a test notices if one takes the place of another.
SMALL = """
def get_config():
    return dict(
        model=dict(vocab_size={vocab_size}, hidden_size=40, num_layers=1, num_heads=10,
                   intermediate_size=56, max_positions=64, hidden_dropout=0.2,
                   attention_dropout=0.3, layer_norm_epsilon=1e-5,
                   initializer_range=0.05),
        compute=dict(dtype="float32"),
        data=dict(path="{store}", holdout=0.22, threads=3, prefetch=11, packing=False,
                  examples=dict(mask_rate=0.18, mask_share=0.7, random_share=0.16,
                                short_sequence_rate=0.35)),
        optimizer=dict(learning_rate=1e-3, warmup=0.27, beta1=0.85, beta2=0.95,
                       epsilon=1e-4, weight_decay=0.03, clip_norm=0.6),
        phases=(
            dict(steps=9, sequence_length=24, batch_size=8, max_predictions=12),
            dict(steps=5, sequence_length=48, batch_size=16, max_predictions=14),
        ),
        mesh=dict(data=-1, model=1, fsdp=False),
        seed=13, log_every=2, eval_every=6, eval_batches=7, checkpoint_every=4,
        eval_mask_rate=0.28, keep_checkpoints=2, prompts=("the [MASK] of the sea",),
    )
"""

# No name is looked up on a hub, not even in processes that tests start.
os.environ["HF_HUB_OFFLINE"] = "1"
huggingface_hub.constants.HF_HUB_OFFLINE = True

# Eight CPU devices replace a TPU slice. Silent rank promotion is a bug.
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
# Compiled programs are shared by tests, processes and runs of the suite.
CACHE = str(Path(__file__).parent.parent / ".pytest_cache/xla")
os.environ["JAX_COMPILATION_CACHE_DIR"] = CACHE
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
jax.config.update("jax_compilation_cache_dir", CACHE)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
# Models are tiny, so optimised compilation takes longer than execution, here and in the
# commands that tests start.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
jax.config.update("jax_disable_most_optimizations", True)
# XLA compiles for CPUs through MLIR, which doubles the time. Without MLIR, two programs may
# round the same formula differently. Later versions only have MLIR, and abort if it is
# disabled.
PLAIN_EMITTERS = jax.__version_info__ < (0, 11)
# XLA splits a program into 32 parts, to compile them at the same time. All processors are
# busy with tests, and the parts need a fifth more time than the whole.
# Without the second flag the devices of a CPU may run independent collectives in different
# orders, and wait for each other until XLA aborts.
os.environ["XLA_FLAGS"] = " ".join(
    [
        "--xla_cpu_use_fusion_emitters=false" if PLAIN_EMITTERS else "",
        "--xla_cpu_enable_concurrency_optimized_scheduler=false",
        "--xla_cpu_parallel_codegen_split_count=1" if PLAIN_EMITTERS else "",
        os.environ.get("XLA_FLAGS", ""),
    ]
)
# Tracing creates many objects and little garbage. Garbage collections would take an eighth
# of the time.
gc.set_threshold(10_000, 50, 20)


def pytest_collection_finish() -> None:
    """Excludes all imported objects from garbage collection."""
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --kills, for the long form of the tests that kill a command."""
    parser.addoption(
        "--kills", type=int, help="number of kills; each test has its own default"
    )
    parser.addoption("--long", action="store_true", help="also tests marked long")


@pytest.fixture(scope="session")
def kills(pytestconfig) -> int | None:
    """The number of kills of a command. None: the default of the test."""
    return pytestconfig.getoption("--kills")


# The slowest files start first, so that no worker ends with a slow file.
LONGEST = (
    *("test_distributed.py", "test_train.py", "test_kills.py", "test_finetune.py"),
    *("test_finetune_step.py", "test_from_python.py", "test_pretrain.py"),
    *("test_run.py", "test_step.py", "test_sweep.py", "test_every_function.py"),
)


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Orders the files for xdist. Deselects long tests of files that are not named."""
    items.sort(key=lambda item: item.path.name not in LONGEST)
    if not config.getoption("long"):
        named = {Path(arg.partition("::")[0]).resolve() for arg in config.args}
        long = [x for x in items if x.get_closest_marker("long")]
        out = [x for x in long if x.path not in named]
        config.hook.pytest_deselected(items=out)
        items[:] = [x for x in items if x not in out]


# The options of a ModernBERT without windows.
MODERNBERT = {
    "positions": "rotary",
    "type_vocab_size": 0,
    "pre_norm": True,
    "embedding_norm": True,
    "norm_bias": False,
    "attention_bias": False,
    "gated": True,
    "feed_forward_bias": "none",
    "pooler": "transform",
    "head_bias": False,
}


def xlm_r_tokenizer() -> Tokenizer:
    """A small tokenizer like XLM-R's, from the SentencePiece model in tests/golden."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(GOLDEN / "templates/fairseq", folder, dirs_exist_ok=True)
        settings = Path(folder, "tokenizer_config.json")
        settings.write_text('{"tokenizer_class": "XLMRobertaTokenizer"}')
        return load_tokenizer(folder)


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of outputs of the original code."""
    return GOLDEN


@pytest.fixture(scope="session")
def small_store(tmp_path_factory, golden) -> tuple[Path, int]:
    """A prepared part of Moby Dick, and the size of its vocabulary."""
    text = (golden / "pretraining_data" / "moby_dick_sentences.txt").read_text()
    directory = tmp_path_factory.mktemp("store")
    (directory / "text.txt").write_text("\n\n".join(text.split("\n\n")[:30]))
    sentences = (directory / "text.txt").read_text().split("\n")
    tokenizer = train_vocabulary(sentences, 600)
    prepare([str(directory / "text.txt")], tokenizer, directory / "store", workers=1)
    return directory / "store", tokenizer.vocab_size


@pytest.fixture(scope="session")
def config_file(small_store, tmp_path_factory) -> Path:
    """A config of a run of 14 steps on ``small_store``."""
    path = tmp_path_factory.mktemp("config") / "small.py"
    directory, vocab_size = small_store
    path.write_text(SMALL.format(store=directory, vocab_size=vocab_size))
    return path


@pytest.fixture(scope="session")
def one_phase_of(config_file, tmp_path_factory):
    """A function of a phase's number that returns a config file with only this phase."""

    def write(number: int) -> Path:
        path = tmp_path_factory.mktemp("config") / "one_phase.py"
        single_phase = f"""
both_phases = get_config

def get_config():
    config = both_phases()
    config["phases"] = config["phases"][{number}:{number + 1}]
    return config
"""
        path.write_text(config_file.read_text() + single_phase)
        return path

    return write


EMULATOR = """
import sys
from gcp_storage_emulator.handlers import objects

plain_download = objects.download

def download(request, response, storage, *args, **kwargs):
    # With the header that TensorStore needs to write over what it has read.
    plain_download(request, response, storage, *args, **kwargs)
    if response.status == 200:
        place = request.params["bucket_name"], request.params["object_id"]
        response["x-goog-generation"] = storage.get_file_obj(*place)["generation"]

objects.download = download

def move(request, response, storage):
    # gcsfs asks for it, and asks again for half a minute where it is not there.
    request.params["dest_bucket_name"] = request.params["bucket_name"]
    objects.copy(request, response, storage)
    if response.status == 200:
        objects.delete(request, response, storage)

from gcp_storage_emulator import server
path = "/storage/v1/b/(?P<bucket_name>[^/]+)/o/(?P<object_id>.+)/moveTo/o/"
path += "(?P<dest_object_id>.+)"
server.HANDLERS = (path, {"POST": move}), *server.HANDLERS

server = server.create_server("127.0.0.1", 0, in_memory=True, default_bucket="bucket")
server.start()
print(server._api._httpd.server_port, flush=True)
sys.stdin.read()
server.stop()
"""


@pytest.fixture(scope="session")
def storage_server():
    """Environment variables of a server with the API of Google Cloud Storage."""
    with subprocess.Popen(
        [sys.executable, "-c", EMULATOR],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        address = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        yield {
            "STORAGE_EMULATOR_HOST": address,
            "TENSORSTORE_GCS_HTTP_URL": address,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "any",  # for TensorStore
        }
        server.stdin.close()


@pytest.fixture
def bucket(storage_server, monkeypatch, tmp_path):
    """The URL of a folder of the server. The test has its own cache of copies."""
    for name, value in storage_server.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return f"gs://bucket/{tmp_path.name}"


@pytest.fixture
def port():
    """A port for process 0 of a job, which no other program gets during the test.

    JAX's server can listen on it, because both sockets allow sharing the port.
    """
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("", 0))
        yield reserved.getsockname()[1]


@pytest.fixture(scope="session")
def metric_lines():
    """A function of a workdir that returns metrics.jsonl without times."""

    def read(workdir: Path) -> list[dict]:
        text = (workdir / "metrics.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        return [{k: v for k, v in x.items() if k not in TIMES} for x in lines]

    return read


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [f"w{i}" for i in range(40)]
CLUES = ["good", "bad", "anna", "paris", "red", "blue", "color", "is", "it", "?", "."]
SIZES = dict(
    vocab_size=len(SPECIAL + WORDS + CLUES),
    hidden_size=32,
    num_layers=1,
    num_heads=2,
    intermediate_size=64,
    max_positions=32,
)
DEVICE = jax.devices()[0]


@pytest.fixture(scope="session", autouse=True)
def _no_pictures():
    """Runs in this process draw no pictures, which would take most of a second."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for module in (finetune, pretrain):
            monkeypatch.setattr(module, "draw_run", lambda folder, log: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_device():
    """Runs use one device, unless their config or the test asks for more.

    The compiler takes longer for eight devices.
    """

    def make(config, devices=None):
        sizes = config.replica, config.data, config.model
        alone = devices is None and max(sizes) == 1
        return make_mesh(config, [DEVICE] if alone else devices)

    with pytest.MonkeyPatch.context() as monkeypatch:
        for module in (finetune_data, pretrain):
            monkeypatch.setattr(module, "make_mesh", make)
        yield


@pytest.fixture
def eight_devices(monkeypatch):
    """Runs use all devices, as for users."""
    for module in (finetune_data, pretrain):
        monkeypatch.setattr(module, "make_mesh", make_mesh)


@pytest.fixture(autouse=True)
def _nothing_is_left():
    """Restores the settings of the process after each test."""
    logger, signals = logging.getLogger("bert_jax"), (signal.SIGINT, signal.SIGTERM)
    level, propagate, handlers = logger.level, logger.propagate, [*logger.handlers]
    environment, folder = dict(os.environ), Path.cwd()
    settings, actions = jax.config.values, [signal.getsignal(n) for n in signals]
    for warns_once in (labels.in_order_of, labels.names_by_number):
        warns_once.cache_clear()
    yield
    logger.setLevel(level)
    logger.propagate, logger.handlers[:] = propagate, handlers
    for name in os.environ.keys() - environment:
        del os.environ[name]
    os.environ.update(environment)
    os.chdir(folder)
    for name, value in jax.config.values.items():
        if value != settings.get(name, value):
            jax.config.update(name, settings[name])
    for number, action in zip(signals, actions, strict=True):
        signal.signal(number, action)
    show_progress(True)
    assert not Progress._instances  # an open bar would mix with later output


@pytest.fixture(scope="module")
def fused():
    """Fuses as for users, for tests that compare two programs bit for bit."""
    plain = compiler.get_compile_options

    def get_compile_options(*args, env_options_overrides=None, backend=None, **kwargs):
        options = dict(env_options_overrides or {})
        if backend.platform == "cpu" and PLAIN_EMITTERS:
            options.setdefault("xla_cpu_use_fusion_emitters", True)
            options.setdefault("xla_cpu_parallel_codegen_split_count", 32)
        return plain(*args, env_options_overrides=options, backend=backend, **kwargs)

    with pytest.MonkeyPatch.context() as monkeypatch:
        # Private, but the only place that can override XLA_FLAGS.
        monkeypatch.setattr(compiler, "get_compile_options", get_compile_options)
        yield


@pytest.fixture(scope="module")
def optimized(fused):
    """Compiles as for users, for tests of compiled programs and of users' numbers."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(scope="session")
def model_config():
    """BertConfig of the tiny model, which learns due to its wide initialisation."""
    return functools.partial(BertConfig, **SIZES, initializer_range=0.1)


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(SPECIAL + WORDS + CLUES) + "\n")
    return load_tokenizer(path)


@pytest.fixture(scope="session")
def init_params():
    """A function of (model, seed) that returns parameters on the host."""

    def init(model, seed=0):
        ids = np.zeros((1, 8), np.int32)
        init = functools.partial(model.init, deterministic=True)
        if isinstance(model, BertModel):
            init = functools.partial(init, method="encode")
        tokens = Tokens.of_mask(ids, ids, ids + 1)
        return jax.device_get(jax.jit(init)(jax.random.key(seed), tokens)["params"])

    return init


@pytest.fixture(scope="session")
def random_params():
    """A function of the shapes of parameters that returns random parameters.

    It compiles no program, while initialising a model compiles as long as its step. Rows of
    the word table without a token are also random.
    """

    def make(shapes):
        random, flat = np.random.default_rng(0), {}
        for name, leaf in flatten_dict(shapes).items():
            flat[name] = random.normal(0, 0.05, leaf.shape).astype(leaf.dtype)
            if name[-1] == "scale":
                flat[name] += 1
        return unflatten_dict(flat)

    return make


@pytest.fixture(scope="session")
def checkpoint_dir(tmp_path_factory, model_config, vocabulary, init_params):
    """A Hugging Face folder with an encoder and its pooler, without a head."""
    folder = tmp_path_factory.mktemp("checkpoint")
    params = init_params(make_model(model_config(), "sequence", 1, FeatureConfig()))
    bert = {"bert": params["bert"]}
    save_huggingface(folder, Checkpoint(model_config(), bert, vocabulary, "none"))
    return folder


@pytest.fixture(scope="session")
def make_arrays():
    """A function of (head, seed, rows, length) that returns a padded batch.

    "regression" is the head "sequence" with floats as labels.
    """

    def make(head, seed=0, rows=8, length=16, choices=3, shortest=5):
        random = np.random.default_rng(seed)
        shape = (rows, choices) if head == "choice" else (rows,)
        lengths = random.integers(shortest, length + 1, shape)
        mask = np.int32(np.arange(length) < lengths[..., None])
        arrays = {
            "input_ids": random.integers(4, SIZES["vocab_size"], mask.shape, np.int32)
            * mask,
            "token_type_ids": random.integers(0, 2, mask.shape, np.int32) * mask,
            "attention_mask": mask,
            "weights": np.ones(rows if head == "choice" else (rows, 1), np.float32),
        }
        if head != "choice":
            arrays["segment_ids"] = mask
            arrays["starts"] = np.zeros((rows, 1), np.int32)
        if head == "sequence":
            arrays["label"] = random.integers(0, 3, (rows, 1), np.int32)
        elif head == "regression":
            arrays["label"] = random.normal(size=(rows, 1)).astype(np.float32)
        elif head == "choice":
            arrays["label"] = random.integers(0, choices - 1, rows, np.int32)
            arrays["choice_mask"] = np.ones((rows, choices), np.float32)
            arrays["choice_mask"][::2, -1] = 0
        elif head == "token":
            labels = random.integers(0, 3, mask.shape, np.int32)
            labelled = (random.random(mask.shape) < 0.6) & (mask > 0)
            arrays["labels"] = np.where(labelled, labels, -1).astype(np.int32)
        else:
            arrays["start"] = random.integers(0, shortest, (rows, 1), np.int32)
            arrays["end"] = random.integers(0, shortest, (rows, 1), np.int32)
        return arrays

    return make


class Choices(nn.Module):
    """A multiple-choice model that also accepts (B, C, L) and then returns (B, C)."""

    model: nn.Module
    compute: ComputeConfig = ComputeConfig()

    def __call__(self, tokens, **settings):
        *choices, L = tokens.input_ids.shape
        if len(choices) == 1:
            return self.model(tokens, **settings)
        arrays = tokens.input_ids, tokens.token_type_ids, tokens.segment_ids
        rows = Tokens.of_mask(*(x.reshape(-1, L) for x in arrays))
        return self.model(rows, **settings).reshape(choices)


@pytest.fixture(scope="session")
def make_head(model_config):
    """A function of (head, config changes) that returns the head of the loss, and the
    module."""

    def make(head, compute=ComputeConfig(), **changes):
        outputs = {"sequence": 3, "token": 3}.get(head, 1)
        head = "sequence" if head == "regression" else head
        config = model_config(**changes)
        model = make_model(config, head, outputs, FeatureConfig(), compute)
        return head, Choices(model) if head == "choice" else model

    return make


def _words(random, count):
    return [WORDS[i] for i in random.integers(0, len(WORDS), count)]


def _with_clue(random, clue, longest=12):
    words = _words(random, random.integers(3, longest))
    words.insert(random.integers(0, len(words) + 1), clue)
    return words


def write_classification(folder, rows=24, seed=0):
    """One of two words decides the label. test.tsv has no labels."""
    random = np.random.default_rng(seed)
    for split, count in (("train", rows), ("dev", 9), ("test", 5)):
        with (folder / f"{split}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"] if split != "test" else ["text"])
            for i in range(count):
                clue, label = (("good", "yes"), ("bad", "no"))[i % 2]
                text = " ".join(_with_clue(random, clue))
                writer.writerow([text, label] if split != "test" else [text])
    return dict(family="classification", data=dict(task="table"))


def write_regression(folder, rows=24, seed=0):
    """The number is 4 for texts with one word, and 1 with another word."""
    random = np.random.default_rng(seed)
    for split, count in (("train", rows), ("dev", 9)):
        lines = ["text\tlabel"]
        for i in range(count):
            clue, label = (("good", 4.0), ("bad", 1.0))[i % 2]
            lines.append(f"{' '.join(_with_clue(random, clue, 20))}\t{label}")
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return dict(family="classification", data=dict(task="table", regression=True))


def write_tagging(folder, rows=24, seed=0):
    """Two words are entities, all others are not."""
    random = np.random.default_rng(seed)
    types = {"anna": "B-PER", "paris": "B-LOC"}
    for split, count in (("train", rows), ("dev", 9)):
        blocks = []
        for i in range(count):
            words = _with_clue(random, ("anna", "paris")[i % 2])
            tags = [types.get(word, "O") for word in words]
            blocks += [f"{w}\t{t}" for w, t in zip(words, tags, strict=True)] + [""]
        (folder / f"{split}.txt").write_text("\n".join(blocks) + "\n")
    return dict(family="tagging", data=dict(task="columns"))


def write_multiple_choice(folder, rows=24, seed=0):
    """Two or three choices. Only the right choice has a certain word."""
    random = np.random.default_rng(seed)
    for split, count in (("train", rows), ("dev", 9)):
        lines = []
        for i in range(count):
            choices = [_words(random, 3) for _ in range(2 + i % 2)]
            label = int(random.integers(len(choices)))
            choices[label] = ["good", *choices[label][:2]]
            row = {
                "context": " ".join(_words(random, random.integers(2, 6))),
                "choices": [" ".join(choice) for choice in choices],
                "label": label,
            }
            lines.append(json.dumps(row))
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return dict(family="multiple_choice", data=dict(task="table"))


def write_question_answering(folder, rows=24, seed=0):
    """The answer is the only color in the context."""
    random = np.random.default_rng(seed)
    for split, count in (("train", rows), ("dev", 9)):
        articles = []
        for i in range(count):
            answer = ("red", "blue")[i % 2]
            context = " ".join(_with_clue(random, answer))
            start = f" {context} ".index(f" {answer} ")
            question = {
                "id": f"{split}{i}",
                "question": "color is it ?",
                "answers": [{"text": answer, "answer_start": start}],
            }
            paragraphs = [{"context": context, "qas": [question]}]
            articles.append({"title": str(i), "paragraphs": paragraphs})
        path = folder / f"{split}-v1.1.json"
        path.write_text(json.dumps({"version": "1.1", "data": articles}))
    data = dict(max_question_length=8, max_answer_length=3, n_best=3)
    return dict(family="question_answering", data=data)


def write_multi_label(folder, rows=24, seed=0):
    """Each of two words gives a text one of its labels."""
    random = np.random.default_rng(seed)
    for split, count in (("train", 2 * rows), ("dev", 12)):
        lines = []
        for i in range(count):
            clues = {"good": "yes", "bad": "no"}
            clues = {w: k for n, (w, k) in enumerate(clues.items()) if i >> n & 1}
            words = _words(random, random.integers(3, 9))
            for clue in clues:
                words.insert(random.integers(0, len(words) + 1), clue)
            row = {"text": " ".join(words), "labels": list(clues.values())}
            lines.append(json.dumps(row))
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return dict(family="multi_label", data={})


def write_sentence_vectors(folder, rows=24, seed=0):
    """Two texts are similar if they have the same clue."""
    random = np.random.default_rng(seed)
    for split, count in (("train", 2 * rows), ("dev", 12)):
        lines = ["text_a\ttext_b\tlabel"]
        for i in range(count):
            clues = ("good", "bad")[i % 2], ("good", "bad")[i // 2 % 2]
            texts = [" ".join(_with_clue(random, clue, 6)) for clue in clues]
            lines.append("\t".join([*texts, "5" if clues[0] == clues[1] else "1"]))
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return dict(family="sentence_vectors", data={})


WRITERS = {
    "classification": write_classification,
    "regression": write_regression,
    "tagging": write_tagging,
    "multiple_choice": write_multiple_choice,
    "question_answering": write_question_answering,
    "multi_label": write_multi_label,
    "sentence_vectors": write_sentence_vectors,
}


@pytest.fixture(scope="session")
def settings(tmp_path_factory, checkpoint_dir):
    """A function of (family, changes) that returns settings of a run on tiny data."""

    @functools.cache
    def data_set(what):
        folder = tmp_path_factory.mktemp(what)
        return folder, WRITERS[what](folder)

    def make(what, **changes):
        folder, settings = data_set(what)
        data = settings["data"] | {"dir": str(folder), "max_length": 24}
        return settings | {
            "data": data | changes.pop("data", {}),
            "init_from": str(checkpoint_dir),
            "model": dict(hidden_dropout=0.0, attention_dropout=0.0),
            # Some runs must learn their rows in few steps, so the rest has the defaults.
            "optimizer": dict(learning_rate=1e-2, bias_correction=True)
            | changes.pop("optimizer", {}),
            "batch_size": 8,
            "eval_batch_size": 12,
            "epochs": 10,
            "buckets": 1,
            "log_every": 2,
            "checkpoint_every": 1000,
            **changes,
        }

    return make


@pytest.fixture(scope="session")
def max_difference():
    """The largest absolute difference between two trees of arrays."""

    def difference(a, b):
        pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
        return max(float(np.max(np.abs(np.subtract(x, y)))) for x, y in pairs)

    return difference


@pytest.fixture(scope="session")
def small_model_config() -> BertConfig:
    return BertConfig(
        vocab_size=96,
        hidden_size=16,
        num_layers=2,
        num_heads=4,
        intermediate_size=40,
        max_positions=20,
        hidden_dropout=0.15,
        attention_dropout=0.25,
        layer_norm_epsilon=1e-5,
        initializer_range=0.03,
    )


@pytest.fixture
def tpu_compiler():
    """The TPU's compiler. JAX cannot read cached programs of devices it does not have."""
    pytest.importorskip("libtpu", reason="the TPU compiler: pip install libtpu")
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # otherwise JAX continues to use it
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


@pytest.fixture(scope="session")
def make_batch():
    """A function of (seed, rows) that returns a padded batch with unused predictions."""

    def make(seed: int, rows: int = 16, length: int = 16, predictions: int = 4):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(8, length + 1, rows)
        used = rng.integers(1, predictions + 1, rows)
        return {
            "input_ids": rng.integers(0, 96, (rows, length), np.int32),
            "token_type_ids": rng.integers(0, 2, (rows, length), np.int32),
            "attention_mask": np.int32(np.arange(length) < lengths[:, None]),
            "mlm_positions": rng.integers(0, 8, (rows, predictions), np.int32),
            "mlm_ids": rng.integers(0, 96, (rows, predictions), np.int32),
            "mlm_weights": np.float32(np.arange(predictions) < used[:, None]),
            "nsp_labels": rng.integers(0, 2, rows, np.int32),
        }

    return make


# Tests of dropout set its rates.
FINETUNE = """
def get_config():
    return dict(
        family="classification", init_from="{folder}/checkpoint",
        data=dict(task="table", dir="{folder}/data", max_length=14),
        model=dict(hidden_dropout=0.0, attention_dropout=0.0),
        optimizer=dict(learning_rate=8e-4, warmup=0.4, beta1=0.85, beta2=0.95,
                       epsilon=1e-4, weight_decay=0.04, clip_norm=0.6),
        sweep=dict(batch_size=(4,), learning_rate=(1e-3,), epochs=(1,), seeds=(5, 6)),
        batch_size=4, eval_batch_size=8, epochs=1, buckets=1, log_every=1, seed=7,
        checkpoint_every=2, mesh=dict(data=-1, model=1, fsdp=False),
    )
"""


@pytest.fixture(scope="session")
def finetune_folder(tmp_path_factory):
    """A tiny checkpoint, a table of eight rows, and their config.py."""
    path = tmp_path_factory.mktemp("finetune")
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = WordPieceTokenizer([*specials, "good", "bad", "it", "is"], True)
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        intermediate_size=32,
        max_positions=16,
    )
    ids = np.zeros((1, 8), np.int32)
    init = jax.jit(functools.partial(BertModel(config).init, deterministic=True))
    params = init(jax.random.key(0), ids, ids, ids + 1)["params"]
    checkpoint = Checkpoint(config, {"bert": params}, tokenizer, "none")
    save_huggingface(path / "checkpoint", checkpoint)
    (path / "data").mkdir()
    rows = "it is good,yes\nit is bad,no\n" * 4
    for split in ("train", "dev"):
        (path / "data" / f"{split}.csv").write_text(f"text,label\n{rows}")
    (path / "config.py").write_text(FINETUNE.format(folder=path))
    return path
