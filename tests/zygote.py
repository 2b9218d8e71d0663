"""A Python that begins within milliseconds, for tests of what runs in a process of its own.

``zygote.py PLACE -m bert_jax.train ...`` does as ``python -m bert_jax.train ...`` does;
-c, - and a script, too. It asks the server at PLACE, which has imported all that is slow to
import, for a fork of itself, and gives it its streams, its environment and its folder.
What it is sent (SIGTERM, SIGINT) goes on to the fork; where one of the two is killed, so
is the other; and it ends as the fork does.

Three things differ from a process of its own: the hashes of strings are the server's,
modules are there before they are imported, and runs are drawn where $DRAWN is set alone.
Where these count a test starts a process of its own.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading

# All else that commands use comes with these, of which some are imported late.
IMPORTED = (
    "bert_jax.commands.config_file",
    "bert_jax.inference.embed",
    "bert_jax.training.from_python",
    "bert_jax.training.pretrain",
    "huggingface_hub.errors",
    "scipy.stats",
    "sklearn.metrics",
)
FORWARDED = (signal.SIGTERM, signal.SIGINT)


def ask(place: str, argv: list[str]) -> int:
    """Has a fork of the server run ``argv``; returns how it ended."""
    folder = os.getcwd()  # noqa: PTH109 (pathlib is slow to import)
    job = {"argv": argv, "environment": dict(os.environ), "folder": folder}
    with socket.socket(socket.AF_UNIX) as server, server.makefile("rw") as stream:
        server.connect(place)
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        socket.send_fds(server, [b"."], [0, 1, 2])
        print(json.dumps(job), file=stream, flush=True)
        process = int(stream.readline())
        for number in FORWARDED:
            signal.signal(number, lambda number, _: os.kill(process, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        return int(stream.readline())


def serve(place: str) -> dict | None:
    """Forks for all that ask at ``place``, until stdin ends.

    Returns None then; and in each fork its job.
    """
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place)
        listener.listen()
        print("ready", flush=True)
        while listener in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    return supervise(connection)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    return None


def supervise(connection: socket.socket) -> dict:
    """Forks once more and answers ``connection`` how that ended; returns in the fork."""
    _, streams, *_ = socket.recv_fds(connection, 1, 3)
    with connection.makefile() as client:
        job = json.loads(client.readline())
    process = os.fork()
    if process == 0:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        return job
    for stream in streams:
        os.close(stream)
    ended = False

    def watch() -> None:
        connection.recv(1)  # nothing comes, until the client is gone
        if not ended:
            os.kill(process, signal.SIGKILL)

    with contextlib.suppress(BrokenPipeError):
        connection.sendall(b"%d\n" % process)
        threading.Thread(target=watch, daemon=True).start()
        _, status = os.waitpid(process, 0)
        ended = True
        connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def become(job: dict) -> None:
    """Makes this fork what ``job`` asks for."""
    import runpy
    import types
    from pathlib import Path

    import jax

    from bert_jax.training import finetune, pretrain

    # Python's own handler: a child of a shell's background job ignores SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["folder"])
    if "DRAWN" not in os.environ:  # pictures of runs take most of a second
        for module in (finetune, pretrain):
            module.draw_run = lambda folder, log: None
    sys.stdout.reconfigure(
        line_buffering=os.isatty(1), write_through="PYTHONUNBUFFERED" in os.environ
    )
    # The server's stderr may be a file, and a stream remembers whether it can seek.
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    kinds = {bool: lambda text: text.lower() in ("1", "true"), type(None): str}
    for name, value in jax.config.values.items():
        if (text := os.environ.get(name.upper())) is not None:
            jax.config.update(name, kinds.get(type(value), type(value))(text))
    kind, *sys.argv = job["argv"]
    sys.path[0] = job["folder"]
    if kind == "-m":
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    elif kind in ("-c", "-"):
        code = sys.argv.pop(0) if kind == "-c" else sys.stdin.read()
        sys.argv = [kind, *sys.argv]
        sys.modules["__main__"] = module = types.ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), module.__dict__)
    else:
        sys.argv = [kind, *sys.argv]
        sys.path[0] = str(Path(kind).absolute().parent)
        runpy.run_path(kind, run_name="__main__")


def main() -> None:
    """The server: imports, and waits for those who ask."""
    import gc
    import importlib

    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    gc.set_threshold(10_000, 50, 20)  # as conftest.py has it
    job = serve(sys.argv[1])
    if job is not None:
        become(job)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        sys.argv.pop(1)
        main()
    else:
        code = ask(sys.argv[1], sys.argv[2:])
        if code < 0:  # killed by a signal, and so is this
            for number in FORWARDED:
                signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)
