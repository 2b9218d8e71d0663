"""Start and end of commands: errors, compiled programs, memory of a CPU."""

import ctypes
import errno
import importlib
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
import types
from pathlib import Path

import jax
import pytest

from bert_jax.__main__ import COMMANDS
from bert_jax.commands import cli, score, startup
from bert_jax.commands.config_file import parse
from bert_jax.errors import Preempted, UserError
from bert_jax.training.config import finetune_config

MODEL = Path(__file__).parent.parent / "golden" / "v0_1_0" / "exported" / "mlm_nsp"

PROGRAM = """
import ctypes
from bert_jax.commands import cli

libc = ctypes.CDLL(None)
libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
libc.malloc.argtypes = libc.sbrk.argtypes = [ctypes.c_ssize_t]
libc.free.argtypes = [ctypes.c_void_p]
cli.start()
begin = libc.sbrk(0)
block = libc.malloc(5 << 29)  # never written, so no memory
assert block
high = libc.sbrk(0)
libc.free(block)
print(high - begin, libc.sbrk(0) - begin)
"""


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"),
    reason="needs Linux with glibc",
)
def test_a_freed_block_of_more_than_2_gib_stays_on_the_heap():
    """mallopt applies to a whole process, so the test starts one."""
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    grown, kept = map(int, result.stdout.split())
    assert kept == grown >= 5 << 29


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_freed_memory_is_kept_only_if_steps_run_on_the_cpu(monkeypatch, platform):
    kept = []
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    monkeypatch.setattr(startup, "keep_freed_memory", lambda: kept.append(True))
    cli.start()
    assert kept == [True] * (platform == "cpu")
    assert not jax.config.values["jax_cpu_enable_async_dispatch"]  # steps in order


@pytest.mark.parametrize(
    ("devices", "processes", "flags", "expected"),
    [
        (-1, False, "", ""),
        (8, False, "", "{}=false"),
        (-1, True, "--a=1", "--a=1 {}=false"),
        (-1, False, "--xla_force_host_platform_device_count=2", "--xla_f{}=false"),
        (8, True, "{}=true", "{}=true"),
    ],
)
def test_collectives_of_several_cpu_devices_run_in_one_order(
    devices, processes, flags, expected, monkeypatch
):
    name = "--xla_cpu_enable_concurrency_optimized_scheduler"
    expected = expected.replace("--xla_f", f"{flags} ").format(name)
    monkeypatch.setenv("XLA_FLAGS", flags.format(name))
    configured_flags = types.SimpleNamespace(jax_num_cpu_devices=devices)
    with monkeypatch.context() as patch:
        patch.setattr(jax, "config", configured_flags)
        startup.order_collectives(processes)
    assert os.environ["XLA_FLAGS"] == expected


@pytest.fixture
def configured():
    """Restores JAX's cache folder after the test."""
    before = jax.config.jax_compilation_cache_dir
    yield lambda folder: jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_compilation_cache_dir", before)


def test_compiled_programs_are_saved_in_the_users_cache(
    configured, monkeypatch, tmp_path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    configured(None)
    startup.keep_programs("")
    folder = Path(jax.config.jax_compilation_cache_dir)
    assert folder.parent == tmp_path / "bert_jax"
    assert folder.name.startswith("xla-") and len(folder.name) == 12
    configured(None)
    startup.keep_programs("")
    assert Path(jax.config.jax_compilation_cache_dir) == folder
    # Programs for another processor crash on this one.
    monkeypatch.setattr(startup.Path, "read_text", lambda path: "flags : sse2\n")
    configured(None)
    startup.keep_programs("")
    assert Path(jax.config.jax_compilation_cache_dir) != folder


def test_a_user_without_a_home_saves_no_compiled_programs(configured, monkeypatch):
    def unknown(_):
        raise KeyError("no such user")

    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    configured(None)
    startup.keep_programs("")
    assert jax.config.jax_compilation_cache_dir is None


@pytest.mark.parametrize("workdir", ["gs://bucket/run", "/disk/run"])
def test_compiled_programs_are_saved_in_the_workdir(configured, workdir):
    configured(None)
    startup.keep_programs(workdir)
    folder = jax.config.jax_compilation_cache_dir
    assert folder.startswith(f"{workdir}/programs/xla-")


def test_the_users_own_cache_folder_is_kept(configured, tmp_path):
    configured(str(tmp_path))
    startup.keep_programs("gs://bucket/run")
    assert jax.config.jax_compilation_cache_dir == str(tmp_path)


def os_error(number, *names):
    return OSError(number, os.strerror(number), *names)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UserError("x=1, expected 2"), 2, "error: x=1, expected 2"),
        (Preempted("saved"), 75, "saved"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (
            BrokenPipeError(),
            141,
            "stopped before the end: the reader of the output closed the pipe",
        ),
        (
            os_error(errno.ENOSPC),
            2,
            "error: No space left on device (the disk, or /dev/shm); make room and run "
            "the same command again",
        ),
        (
            os_error(errno.ENOSPC, "/x"),
            2,
            "error: No space left on device (/x); make room and run the same command "
            "again",
        ),
        (os_error(errno.EACCES, "/x"), 2, "error: Permission denied (/x)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_that_a_user_can_fix_is_one_line(
    capsys, monkeypatch, error, code, line
):
    def fails(argv):
        raise error

    monkeypatch.setattr(os, "_exit", sys.exit)  # ends an interrupted command

    with pytest.raises(SystemExit) as end:
        cli.run(fails)
    assert end.value.code == code
    assert capsys.readouterr().err == (f"{line}\n" if line else "")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a bug"),
        os_error(errno.EBADF),  # a closed file
        os_error(errno.EACCES),  # an error without a file name
        os_error(errno.ENOENT, "/x"),  # a file that no flag named
        ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_bug_keeps_its_traceback(capsys, error):
    def fails(argv):
        raise error

    with pytest.raises(SystemExit) as end:
        cli.run(fails)
    assert end.value.code == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == f"{type(error).__name__}: {error}"
    assert any("in fails" in line for line in lines)


def test_warnings_of_other_libraries_are_not_printed():
    program = """
import logging
from bert_jax.commands import cli

def main(argv):
    for name in ("another.library", "bert_jax.tasks"):
        logging.getLogger(name).warning("a warning\\x1b of %s", name)
        logging.getLogger(name).error("an error of %s", name)

cli.run(main)
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stderr.splitlines() == [
        "an error of another.library",
        r"a warning\u001b of bert_jax.tasks",
        "an error of bert_jax.tasks",
    ]


def test_the_output_is_utf8_in_every_locale():
    program = (
        "from bert_jax.commands import cli; cli.run(lambda argv: print('\\u6c34'))"
    )
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        env=os.environ | ascii_only,
        check=True,
    )
    assert done.stdout.decode() == "水\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
@pytest.mark.parametrize(
    ("streams", "code", "message"),
    [
        ("<&- >&-", 0, ""),
        ("<&- >&- 2>&-", 0, ""),
        (
            "| true",
            141,
            "stopped before the end: the reader of the output closed the pipe",
        ),
        ("2>&1 | true", 141, ""),
        (">/dev/full", 2, "error: No space left on device (the disk, or /dev/shm)"),
        (">/dev/full 2>/dev/full", 2, ""),
    ],
)
def test_streams_may_be_closed_or_full(streams, code, message):
    """No opened file gets the number of a closed stream. Each error is printed once."""
    program = (
        "import os, sys, time; from bert_jax.commands import cli\n"
        "def main(argv):\n"
        "    assert sys.stdin.fileno() == 0 and os.open(os.devnull, 0) > 2\n"
        "    print('x' * 100_000, sys.stdin.read())\n"
        "cli.run(main)"
    )
    line = f"set -o pipefail; {shlex.join([sys.executable, '-c', program])} {streams}"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert (done.returncode, done.stderr.strip().split(";")[0]) == (code, message)


def test_sigterm_before_a_run_handles_it_ends_with_a_line_and_the_signal():
    program = (
        "import signal; from bert_jax.commands import cli\n"
        "cli.run(lambda argv: signal.raise_signal(signal.SIGTERM))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True)
    line = b"stopped by SIGTERM; start the same command again\n"
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, line)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
@pytest.mark.parametrize("stderr", ["2>/dev/full", "2> >(exec true)"])
def test_the_exit_code_does_not_depend_on_stderr(stderr):
    program = (
        "import sys\nfrom bert_jax.commands import cli\n"
        "from bert_jax.errors import UserError\n"
        "def main(argv):\n"
        "    while True:\n"
        "        try:\n"
        "            print('x', file=sys.stderr, flush=True)\n"
        "        except OSError:\n"
        "            raise UserError('x=1, expected 2')\n"
        "cli.run(main)"
    )
    line = f"{shlex.join([sys.executable, '-c', program])} {stderr}"
    assert subprocess.run(["bash", "-c", line]).returncode == 2


def test_a_hanging_thread_does_not_stop_a_command_from_ending():
    program = (
        "import threading\nfrom bert_jax.commands import cli\n"
        "from bert_jax.errors import *\n"
        "def main(argv):\n"
        "    threading.Thread(target=threading.Event().wait).start()\n"
        "    raise StalledError('no batch came')\n"
        "cli.run(main)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (2, "error: no batch came\n")


@pytest.mark.parametrize(
    "command, flag",
    [
        ("predict --checkpoint CHECKPOINT --text a --out a.csv", "output"),
        (
            "embed --checkpoint CHECKPOINT --input a --output b --max_len 3",
            "max_length",
        ),
        ("vocabulary --input a --output vocab.txt --sise=100", "size"),
        ("evaluate --checkpoint CHECKPOINT --inputs a.csv", "input"),
        ("prepare --input a --vocabulary b --output c --format lines", "input_format"),
    ],
)
def test_an_unknown_flag_is_reported_with_the_nearest_one(command, flag):
    name, *words = command.replace("CHECKPOINT", str(MODEL)).split()
    main = importlib.import_module(f"bert_jax.commands.{name}").main
    with pytest.raises(
        UserError, match=rf"^unexpected argument '--[^']+'; did you mean --{flag}\?$"
    ):
        main(words)


@pytest.mark.parametrize("command", COMMANDS)
def test_flags_with_a_file_or_folder_are_paths(command):
    """Their values may start with ~, which a shell does not expand after =."""
    module = importlib.import_module(f"bert_jax.commands.{command}")
    text, _ = cli.help_and_details(module.__doc__)
    kinds = r"FILE|DIR|PATH|RUN|STUDY|REFERENCE|C|X\.npz|T \[T|F \[F"
    lines = re.findall(rf"^  (?:--(\S+) )?({kinds})\b", text, re.MULTILINE)
    names = {flag or kind.lower() for flag, kind in lines}
    names -= {"columns"} | ({"text"} if command in ("predict", "score") else set())
    names = {{"run": "runs"}.get(name, name) for name in names}
    assert names <= cli.PATHS
    assert names or command in ("train", "finetune", "doctor", "estimate")


def test_paths_of_flags_start_with_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copytree(MODEL, tmp_path / "model")
    parser = cli.text_parser("bert_jax predict", {"pairs": {"nargs": "+"}})
    model, home = ["--checkpoint=~/model", "--output=~/x.csv"], f"{tmp_path}"
    args = parser.parse_args([*model, "--input", "~/a.csv", "--pairs", "~/b", "c"])
    assert (args.checkpoint, args.output) == (f"{home}/model", f"{home}/x.csv")
    assert (args.input, args.pairs) == (f"{home}/a.csv", [f"{home}/b", "c"])
    args = parser.parse_args([*model, "--text=~/a.csv", "--columns", "~/b"])
    assert (args.text, args.columns) == ([["~/a.csv"]], ["~/b"])
    settings = dict(family="classification", data=dict(task="table"), seed=3)
    program = f"def get_config(): return {settings}"
    (tmp_path / "config.py").write_text(program)
    line = ["--config=~/config.py", "--workdir=~/run", "--data.dir=~/rows"]
    parsed = parse([*line, "--init_from=~/model"], "usage", finetune_config)
    assert (parsed.workdir, parsed.config.seed) == (f"{home}/run", 3)
    assert parsed.config.init_from == f"{home}/model"
    assert parsed.config.data.dir == f"{home}/rows"


@pytest.mark.parametrize(
    ("by_jax", "platforms", "own", "quiet"),
    [
        ("1", None, False, True),
        ("1", "cpu", False, False),
        ("1", None, True, False),  # the user's variable, perhaps beside a TPU
        (None, None, False, False),  # JAX has seen a TPU
    ],
)
def test_libtpu_is_quiet_only_without_a_tpu(by_jax, platforms, own, quiet, monkeypatch):
    names = ("TPU_ACCELERATOR_TYPE", "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID")
    # monkeypatch restores the variables that the function sets.
    for name in (*names, "TPU_SKIP_MDS_QUERY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    if by_jax:
        monkeypatch.setenv("TPU_SKIP_MDS_QUERY", by_jax)
    monkeypatch.setattr(startup, "_OWN_QUERY", own)
    with monkeypatch.context() as patch:
        patch.setattr(jax, "config", types.SimpleNamespace(jax_platforms=platforms))
        startup.quiet_libtpu()
    assert [name in os.environ for name in names] == [quiet] * 3


@pytest.mark.long
def test_a_redirected_stderr_does_not_break_later_warnings():
    program = """
import contextlib, io, logging
with contextlib.redirect_stderr(io.StringIO()) as early:
    import bert_jax.interop.train_state
early.close()
logging.getLogger("bert_jax").warning("later")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr == "later\n"


def test_dashes_of_a_flag_are_underscores_and_a_value_is_unchanged():
    flags = {"input_format": "", "beam": ""}
    parser = cli.argument_parser("bert_jax prepare", flags)
    options = (
        "--runner X --job-name=a-b",
        "--runner=X --job-name a-b",
        "-- a so-so text",
        "--a-b=3 is so-so",
    )
    for value in options:
        for words in (["--beam", value], [f"--beam={value}"]):
            parsed = parser.parse_args([*words, "--input-format=a-b"])
            assert vars(parsed) == {"input_format": "a-b", "beam": value}


@pytest.mark.parametrize("status", [403, 404], ids=["forbidden", "upload unknown"])
def test_an_error_of_gcsfs_is_one_line(status):
    """A complete upload gives 404 if the first response was lost."""
    from gcsfs.retry import validate_response

    with pytest.raises(OSError) as caught:
        validate_response(status, b"{}", "http://store/upload?upload_id=1")
    line = cli._users_line(caught.value)
    assert line.startswith("error: the object store failed (")
    assert "run the same command again" in line
    assert cli._users_line(FileNotFoundError(2, "No such file", "absent")) is None


def test_all_pairs_are_read_before_scoring(tmp_path, capsys):
    """If the second set is wrong, no score of the first set is printed."""
    for name, line in (("good.txt", "a ship\ta sea\n"), ("bad.txt", "a ship\n")):
        (tmp_path / name).write_text(line)
    files = [str(tmp_path / name) for name in ("good.txt", "bad.txt")]
    flags = ["--checkpoint", str(MODEL), "--pairs", *files]
    with pytest.raises(
        UserError, match=r"bad\.txt:1 has 1 value; expected sentence_good"
    ):
        score.main(flags)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("score --pairs a.tsv --output b.jsonl", "output"),
        ("score --text a --columns b", "columns"),
        ("score --text a --pairs_range 1:2", "pairs_range"),
        ("predict --input a.txt --columns b", "columns"),
        ("embed --input a.txt --output b.npz --columns c", "columns"),
        ("predict --text a --next_sentence --top 3", "top"),
    ],
)
def test_a_flag_without_effect_is_an_error(command, flag, monkeypatch):
    monkeypatch.setattr(cli, "start", lambda: None)
    name, *words = command.split()
    main = importlib.import_module(f"bert_jax.commands.{name}").main
    with pytest.raises(UserError, match=rf"^--{flag} has no effect"):
        main(["--checkpoint", str(MODEL), *words])


def test_an_error_of_a_full_device_is_one_line():
    message = "RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.\nDetails: ..."
    line = cli._users_line(jax.errors.JaxRuntimeError(message))
    assert line.startswith("error: the device has too little memory (RESOURCE_EXHAUST")
    assert "--accumulation=2" in line and "\n" not in line
    assert cli._users_line(jax.errors.JaxRuntimeError("INTERNAL: a bug")) is None
