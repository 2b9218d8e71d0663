"""The start and the end of every command, and flags that several commands have."""

import argparse
import contextlib
import errno
import logging
import os
import re
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

from bert_jax.commands import startup
from bert_jax.data.corpus_formats import FORMATS
from bert_jax.errors import PREEMPTED, Preempted, StalledError, UserError, hint
from bert_jax.files import STORE_LIBRARIES, expanded, is_remote
from bert_jax.interop.find import check_checkpoint
from bert_jax.model.config import DTYPES
from bert_jax.progress import LogHandler, print_line, show_progress

# Flags with their defaults. A flag whose default is False takes no value. A function or a
# type is the type of a flag that must be given. A tuple lists choices, the default first. A
# dictionary has the options of add_argument().
Flags = Mapping[str, Any]

# Flags of a command that may run as several processes: the arguments of
# parallel.processes.connect(), and the seconds of parallel.processes.watch().
JOB_FLAGS: Flags = {
    "distributed": False,
    "coordinator_address": "",
    "num_processes": 0,
    "process_id": -1,
    "join_timeout": 300,
    "heartbeat_timeout": 30,
    "step_timeout": 600,
}

_LOST = (
    "error: another process failed or was lost ({}); check its output. Start the same "
    "command again: it resumes from the last checkpoint"
)

# The exit code of most programs whose reader closed the pipe, as `head` does: a shell
# returns 128 plus the number of the signal, here SIGPIPE.
_CLOSED_PIPE = 128 + 13

_STOPPED = b"stopped by SIGTERM; start the same command again\n"

_several = False  # whether this command has several processes
_leader = True  # whether this is process 0


def run(main: Callable[[list[str]], int | None]) -> None:
    """Runs ``main(argv)`` and exits. For an error that a user can fix the code is 2.

    A command exits with code 141 if the reader of its stdout closes the pipe, as `head`
    does. A SIGTERM prints one line and ends the process; a run that trains handles it, and
    saves. With several processes it exits with code 75 after a failed collective or a lost
    process. A process that fails exits at once, because it would otherwise wait for the
    other processes.
    """
    startup.prepare_streams()
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _stop)
    # Loggers without a handler print warnings of this package and errors of all packages.
    logging.lastResort = LogHandler(logging.WARNING)
    logging.lastResort.addFilter(_is_ours)
    # gcsfs also raises each error that it logs with a traceback.
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    failure: Exception | None = None
    try:
        code, message = _exit_code(main), ""
        sys.stdout.flush()
    except Preempted as stop:
        code, message = PREEMPTED, str(stop)
    except UserError as error:
        code, message, failure = 2, f"error: {error}", error
    except KeyboardInterrupt as stop:
        code, message = 130, str(stop) or "interrupted"
    except BrokenPipeError:
        code = _CLOSED_PIPE
        message = "stopped before the end: the reader of the output closed the pipe"
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


def _exit_code(main: Callable[[list[str]], int | None]) -> int:
    """Runs a command. --help and --print_config raise SystemExit."""
    try:
        return main(sys.argv[1:]) or 0
    except SystemExit as end:
        return end.code or 0


def _stop(*_: object) -> NoReturn:
    """Ends the process by SIGTERM after a line. Handles the signal before a run does."""
    # print would fail if it is interrupted while it writes to the same stream.
    with contextlib.suppress(OSError):
        os.write(2, _STOPPED)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTERM)
    raise SystemExit(128 + signal.SIGTERM)  # the signal is blocked


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


# Flags and arguments that are paths, which may start with ~. Settings that are paths have
# the type settings.FilePath.
PATHS = {
    *("checkpoint", "config", "data.dir", "extend", "input", "output", "pairs", "path"),
    *("reference", "runs", "search", "study", "vocabulary", "workdir"),
}


class _Parser(argparse.ArgumentParser):
    """Raises UserError, which ``run`` prints as one line. --help is the description."""

    def _add_action(self, action: argparse.Action) -> argparse.Action:
        """Adds an argument, of a group as well. A path is expanded before it is checked."""
        if action.dest in PATHS:
            kind = action.type or str
            action.type = lambda text: kind(expanded(text))
        return super()._add_action(action)

    def format_help(self) -> str:
        return f"{self.description}\n"

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
        """The arguments, and unknown ones. Dashes in a known flag count as underscores."""
        known = {x.replace("_", "-"): x for x in self._option_string_actions}

        def spelled(match: re.Match) -> str:
            return known.get(match[0].replace("_", "-"), match[0])

        flags = [re.sub("^--[^=]+", spelled, x) for x in args]
        return super().parse_known_args(flags, namespace)

    def error(self, message: str, near: str = "") -> NoReturn:
        # A setting is also --config.NAME.
        message = re.sub(r"^argument (--\S+)/--config\.\S+:", r"argument \1:", message)
        near = near or f"{self.prog} --help lists all arguments"
        raise UserError(f"{message}; {near}")


def help_and_details(doc: str) -> tuple[str, str]:
    """The two parts of a command's docstring: up to the list of its flags, and the rest.

    --help prints the first part. docs/commands.md has both.
    """
    about, mark, rest = doc.strip().partition("\nflags:\n")
    flags, _, details = rest.partition("\n\n")
    return f"{about}{mark}{flags}", details


def argument_parser(doc: str, flags: Flags) -> argparse.ArgumentParser:
    """The parser of a command. doc: its docstring, with lines "bert_jax NAME ..."."""
    text, _ = help_and_details(doc)
    [name, *_] = [*re.findall(r"bert_jax \w+", text), "bert_jax"]
    parser = _Parser(name, description=text, allow_abbrev=False)
    for flag, default in flags.items():
        options: dict[str, Any] = {"type": type(default), "default": default}
        if isinstance(default, dict):
            options = default
        elif default is False:
            options = {"action": "store_true"}
        elif isinstance(default, tuple):
            options = {"choices": default, "default": default[0]}
        elif callable(default):
            options = {"type": default, "required": True}
        parser.add_argument(f"--{flag}", **options)
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
    """Raises UserError for --columns with rows without columns, such as lines."""
    from bert_jax.tasks.rows import is_table

    if not args.input or not is_table(Path(args.input)):
        check_unused(parser, args, "columns")


def checkpoint(path: str) -> str:
    """The ``type`` of a flag for a checkpoint: checks the path before JAX is imported."""
    check_checkpoint(path)
    return path


# Flags of every command that runs a checkpoint on texts.
MODEL_FLAGS: Flags = {
    "checkpoint": checkpoint,
    "batch_size": 32,
    "max_length": 0,
    "dtype": ("", *DTYPES),
    "columns": {"nargs": "+", "default": ()},
}
# Flags of every command that reads a corpus.
CORPUS_FLAGS: Flags = {
    "input": {"nargs": "+", "required": True},
    "input_format": ("auto", *FORMATS),
    "text_field": "text",
    "language": "en",
}


def text_parser(
    doc: str, flags: Flags, required: bool = True
) -> argparse.ArgumentParser:
    """The parser of a command that processes rows. required: whether rows must be given."""
    parser = argument_parser(
        doc, {**MODEL_FLAGS, "output": "-", "json": False, **flags}
    )
    rows = parser.add_mutually_exclusive_group(required=required)
    rows.add_argument("--text", action="append", nargs="+")
    rows.add_argument("--input")
    return parser


def model_options(args: argparse.Namespace) -> dict[str, Any]:
    """The values of MODEL_FLAGS, except the checkpoint."""
    sizes = {"batch_size": args.batch_size, "max_length": args.max_length}
    return sizes | {"dtype": args.dtype or None}


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
        again = "fix the cause, or wait, and run the same command again"
        return f"error: the object store failed ({line[:300]}); {again}"
    if "RESOURCE_EXHAUSTED" in str(error):  # of XLA
        reason = " ".join(str(error).split())
        return (
            f"error: the device has too little memory ({reason[:200]}); use a smaller "
            "--batch_size, or in training --accumulation=2 or more, which keeps the update"
        )
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
    startup.quiet_libtpu()
    if flags is not None:
        from bert_jax.parallel import processes

        global _several, _leader
        connection = {name: flags[name] for name in JOB_FLAGS}
        step_timeout = connection.pop("step_timeout")
        _several = processes.connect(**connection)
        if _several and step_timeout:
            processes.watch(step_timeout)
        _leader = jax.process_index() == 0
        if _leader:
            log_to_screen()
        else:
            show_progress(False)
    if jax.default_backend() == "cpu":
        startup.keep_freed_memory()


def print_next(*commands: Sequence[str]) -> None:
    """Prints the commands that a user may want next, to stderr. Only process 0 does.

    commands: the arguments of each command of bert_jax.
    """
    if not _leader:
        return
    for command in commands:
        print_line(f"next: bert_jax {shlex.join(command)}", sys.stderr)


def log_to_screen() -> None:
    """Prints log lines and progress of this package, not of other libraries."""
    logger = logging.getLogger("bert_jax")
    logger.addHandler(LogHandler())
    logger.setLevel(logging.INFO)
    logger.propagate = False
