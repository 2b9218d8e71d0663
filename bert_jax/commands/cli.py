"""The start and the end of every command, and flags that several commands have."""

import argparse
import contextlib
import errno
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

from bert_jax.commands import startup
from bert_jax.errors import PREEMPTED, Preempted, StalledError, UserError, hint
from bert_jax.files import STORE_LIBRARIES, is_remote
from bert_jax.interop.find import check_checkpoint
from bert_jax.model.config import DTYPES
from bert_jax.progress import LogHandler, print_line, show_progress

# Flags of a command that may run as several processes, with their defaults: the arguments
# of parallel.processes.connect(), and the seconds of parallel.processes.watch().
JOB_FLAGS = {
    "distributed": False,
    "coordinator_address": "",
    "num_processes": 0,
    "process_id": -1,
    "join_timeout": 300,
    "heartbeat_timeout": 30,
    "step_timeout": 600,
}

_LOST = (
    "error: another process failed or was lost ({}); look into its output. Start the same "
    "command again: it resumes from the last checkpoint"
)

# The exit code of most programs whose reader closed the pipe, as `head` does: a shell
# returns 128 plus the number of the signal, here SIGPIPE.
_CLOSED_PIPE = 128 + 13

_several = False  # whether this command has several processes


def run(main: Callable[[list[str]], int | None]) -> None:
    """Runs ``main(argv)`` and exits. An error that a user can fix prints one line, code 2.

    A command exits with code 141 if the reader of its stdout closes the pipe, as `head`
    does. With several processes it exits with code 75 after a failed collective or a lost
    process. A process that fails exits at once, because it would otherwise wait for the
    other processes.
    """
    startup.prepare_streams()
    # Loggers without a handler print warnings of this package and errors of all packages.
    logging.lastResort = LogHandler(logging.WARNING)
    logging.lastResort.addFilter(_is_ours)
    # gcsfs also raises each error that it logs with a traceback.
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    failure: Exception | None = None
    try:
        code, message = main(sys.argv[1:]) or 0, ""
        sys.stdout.flush()
    except Preempted as stop:
        code, message = PREEMPTED, str(stop)
    except UserError as error:
        code, message, failure = 2, f"error: {error}", error
    except KeyboardInterrupt:
        code, message = 130, "interrupted"
    except BrokenPipeError:
        code = _CLOSED_PIPE
        message = "stopped before the end: the reader of the output closed its pipe"
    except Exception as error:
        line, failure = _users_line(error), error
        code, message = (1, traceback.format_exc()) if line is None else (2, line)
    _finish(sys.stdout)
    if _several:
        from bert_jax.parallel.processes import leave, lost_peer

        together = code == 0 or code == PREEMPTED
        if lost := lost_peer(failure):
            code, message = PREEMPTED, _LOST.format(lost)
        _print_last(message)
        leave(code, together=together)
    _print_last(message)
    # sys.exit would wait for other threads, such as one that stalls or is saving.
    if isinstance(failure, StalledError) or code == 130:
        os._exit(code)
    sys.exit(code)


def _finish(stream: TextIO) -> None:
    """Flushes a stream. If that fails, the null device replaces the stream.

    Python flushes all streams when it exits. If that fails, it replaces the exit code.
    """
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _print_last(message: str) -> None:
    """Prints a message to stderr, if there is one. Errors of stderr are ignored."""
    if message:
        with contextlib.suppress(OSError):
            print_line(message.rstrip(), sys.stderr)
    _finish(sys.stderr)


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name.startswith("bert_jax") or record.levelno >= logging.ERROR


class _Parser(argparse.ArgumentParser):
    """Raises UserError, which ``run`` prints as one line."""

    def parse_args(self, args: Sequence[str], namespace: Any = None) -> Any:
        """The arguments. An error suggests a flag that is similar to an unknown one."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            dashes = "^--(config[.])?|=.*"  # a setting is also --config.NAME
            known = [re.sub(dashes, "", flag) for flag in self._option_string_actions]
            name = re.sub(dashes, "", unknown[0])
            is_setting = re.search("^-|=", unknown[0])
            near = hint(name, known, "--{}".format) if is_setting else ""
            self.error(f"unexpected argument {unknown[0]!r}", near)
        return parsed

    def parse_known_args(self, args: Any, namespace: Any = None) -> Any:
        """The arguments, and unknown ones. Dashes in a flag are underscores."""
        flags = (
            re.sub("(?<=^--)[^=]+", lambda m: m[0].replace("-", "_"), x) for x in args
        )
        return super().parse_known_args([*flags], namespace)

    def error(self, message: str, near: str = "") -> NoReturn:
        near = near or f"{self.prog} --help shows all arguments"
        raise UserError(f"{message}; {near}")


def argument_parser(
    usage: str, flags: Mapping[str, str | int | bool] | None = None
) -> argparse.ArgumentParser:
    """The parser of a command whose docstring ends in ``bert_jax NAME ...``.

    flags: flags with their defaults. A flag whose default is False takes no value.
    """
    example = usage.strip().splitlines()[-1].split()
    parser = _Parser(
        " ".join(example[:2]),
        usage=argparse.SUPPRESS,  # the docstring contains the usage
        description=usage,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for name, default in (flags or {}).items():
        if default is False:
            parser.add_argument(f"--{name}", action="store_true")
        else:
            parser.add_argument(f"--{name}", type=type(default), default=default)
    return parser


def check_unused(
    parser: argparse.ArgumentParser, args: argparse.Namespace, *flags: str
) -> None:
    """Raises UserError for a flag that was given and has no effect."""
    for name in flags:
        if getattr(args, name) != parser.get_default(name):
            raise UserError(
                f"--{name} has no effect with the other flags; leave it out"
            )


def check_columns(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Raises UserError for --columns with rows that have none, such as lines."""
    from bert_jax.tasks.rows import is_table

    if not args.input or not is_table(Path(args.input)):
        check_unused(parser, args, "columns")


def checkpoint(path: str) -> str:
    """The ``type`` of a flag for a checkpoint: checks the path before JAX is imported."""
    check_checkpoint(path)
    return path


def add_checkpoint_flags(
    parser: argparse.ArgumentParser, max_length: str = "all positions"
) -> None:
    """Adds the flags of every command that runs a checkpoint on texts."""
    number = {"type": int, "metavar": "N"}
    about = (
        "a workdir, a Hugging Face folder, Google's bert_model.ckpt, or org/name[@REV]"
    )
    parser.add_argument("--checkpoint", type=checkpoint, required=True, help=about)
    about = "of products and activations (default: as the workdir, else float32)"
    parser.add_argument("--dtype", choices=DTYPES, help=about)
    about = "rows of 32 tokens, or as many tokens in longer rows (%(default)s)"
    parser.add_argument("--batch_size", default=32, help=about, **number)
    about = f"tokens ({max_length})"
    parser.add_argument("--max_length", default=0, help=about, **number)


def model_options(args: argparse.Namespace) -> dict[str, Any]:
    """The values of add_checkpoint_flags, except the checkpoint."""
    return {name: vars(args)[name] for name in ("batch_size", "max_length", "dtype")}


def add_columns_flag(parser: argparse.ArgumentParser) -> None:
    """Adds --columns for tables."""
    about = "columns of a table that have the text or texts (default: as trained, else "
    about += "text, or text_a and text_b)"
    values = {"nargs": "+", "default": (), "metavar": "NAME"}
    parser.add_argument("--columns", help=about, **values)


def add_text_flags(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Adds --text or --input, --columns and --output."""
    given = parser.add_mutually_exclusive_group(required=required)
    about = "one row; may be repeated"
    given.add_argument("--text", action="append", nargs="+", help=about)
    about = (
        "a table (.csv, .tsv, .jsonl, .json, .parquet), else UTF-8 lines; - for stdin"
    )
    given.add_argument("--input", metavar="FILE", help=about)
    add_columns_flag(parser)
    about = "a .csv file, or another for JSON lines; replaced if it exists (stdout)"
    parser.add_argument("--output", default="-", metavar="FILE", help=about)
    about = "print JSON lines instead of lines to read"
    parser.add_argument("--json", action="store_true", help=about)


def add_corpus_flags(parser: argparse.ArgumentParser) -> None:
    """Adds --input, --input_format, --text_field and --language."""
    from bert_jax.data.corpus import FORMATS

    parser.add_argument("--input", nargs="+", required=True, metavar="TEXT")
    parser.add_argument("--input_format", choices=("auto", *FORMATS), default="auto")
    about = "of JSONL and tfds rows (%(default)s)"
    parser.add_argument("--text_field", default="text", help=about)
    about = "language whose abbreviations do not end a sentence (%(default)s)"
    parser.add_argument("--language", default="en", metavar="CODE", help=about)


def _users_line(error: Exception) -> str | None:
    """One line for an error that a user can fix outside of bert_jax; None for a bug."""
    frames = [frame.f_globals for frame, _ in traceback.walk_tb(error.__traceback__)]
    # gcsfs also raises Python's own exceptions, such as OSError for a forbidden access.
    raised_in = [
        type(error).__module__,
        *(frame.get("__name__", "") for frame in frames[-1:]),
    ]
    if {name.partition(".")[0] for name in raised_in} & STORE_LIBRARIES:
        line = " ".join(f"{type(error).__name__}: {error}".split())
        again = "correct its cause, or wait, and run the same command again"
        return f"error: the object store failed ({line[:300]}); {again}"
    # A missing file is a bug here: if a user named the file, its reader raises UserError.
    if not isinstance(error, OSError) or error.errno == errno.ENOENT:
        return None
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        # The error of a semaphore, which needs /dev/shm, names no file.
        place = error.filename or "the disk, or /dev/shm"
        again = "make room and run the same command again"
        return f"error: {error.strerror} ({place}); {again}"
    return f"error: {error.strerror} ({error.filename})" if error.filename else None


def start(flags: Mapping[str, Any] | None = None, workdir: str = "") -> None:
    """Prepares JAX: the cache of programs, memory on a CPU, the other processes.

    Must be called before JAX looks for devices. flags: values of JOB_FLAGS, for a command
    that has them; process 0 then prints the log. workdir: folder of the run.
    """
    import jax

    of_several = flags and (flags["distributed"] or flags["coordinator_address"])
    startup.keep_programs(workdir if of_several or is_remote(workdir) else "")
    startup.run_steps_in_order()
    startup.order_collectives(bool(of_several))
    startup.hide_cancelled_work()
    if flags is not None:
        from bert_jax.parallel import processes

        global _several
        connection = {name: flags[name] for name in JOB_FLAGS}
        step_timeout = connection.pop("step_timeout")
        _several = processes.connect(**connection)
        if _several and step_timeout:
            processes.watch(step_timeout)
        if jax.process_index() == 0:
            log_to_screen()
        else:
            show_progress(False)
    if jax.default_backend() == "cpu":
        startup.keep_freed_memory()


def print_next(*commands: str) -> None:
    """Prints commands that use a finished run. Only process 0 prints them."""
    from bert_jax.parallel.processes import is_leader

    if is_leader():
        for command in commands:
            print_line(f"next: {command}")


def log_to_screen() -> None:
    """Prints log lines and progress of this package, not of other libraries."""
    logger = logging.getLogger("bert_jax")
    logger.addHandler(LogHandler())
    logger.setLevel(logging.INFO)
    logger.propagate = False
