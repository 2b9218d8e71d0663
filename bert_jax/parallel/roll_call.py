"""Who of a job's processes is there, asked before JAX connects them.

JAX ends a process whose peers do not come, in C++, without saying who is missing. So the
others first call process 0 on the port where JAX will listen, and it answers all of them.
"""

import contextlib
import socket
import time

from bert_jax.errors import UserError

_RETRY = 0.2  # seconds


def roll_call(address: str, count: int, process: int, timeout: float) -> None:
    """Returns in all ``count`` processes when all are there.

    address: host:port of process 0. Raises UserError that names the processes which did
    not come within ``timeout`` seconds.
    """
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        raise UserError(f"--coordinator_address={address}, expected HOST:PORT")
    if process == 0:
        _listen(int(port), count, timeout)
    else:
        _call(host, int(port), process, timeout)


def _listen(port: int, count: int, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    callers: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(
                socket.create_server(
                    ("", port),
                    family=socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET,
                    dualstack_ipv6=socket.has_dualstack_ipv6(),
                )
            )
        except OSError as error:
            raise UserError(
                f"port {port} of --coordinator_address cannot be used ({error.strerror}); "
                "give another one to all processes"
            ) from error
        while len(callers) < count - 1 and time.monotonic() < deadline:
            server.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                caller, _ = server.accept()
                stack.enter_context(caller)
                caller.settimeout(5)
                name = caller.makefile().readline().strip()
            except OSError:  # nobody called in time, or hung up
                continue
            if name.isdecimal() and 0 < int(name) < count:
                callers[int(name)] = caller
        missing = [i for i in range(1, count) if i not in callers]
        for caller in callers.values():
            with contextlib.suppress(OSError):
                caller.sendall((" ".join(map(str, missing)) + "\n").encode())
        for caller in callers.values():
            # They hang up first, so that the port is free at once.
            with contextlib.suppress(OSError):
                caller.recv(1)
    _check(missing, timeout)


def _call(host: str, port: int, process: int, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while True:
        try:
            with socket.create_connection((host, port), timeout=5) as caller:
                caller.sendall(f"{process}\n".encode())
                # Process 0 may have begun to wait later than this one.
                caller.settimeout(2 * timeout)
                answer = caller.makefile().readline()
            if answer:
                _check([int(i) for i in answer.split()], timeout)
                return
        except OSError:
            pass
        if time.monotonic() > deadline:
            raise UserError(
                f"process 0 at {host}:{port} did not answer within {timeout:g} s; start "
                "it, or look into its output"
            )
        time.sleep(_RETRY)


def _check(missing: list[int], timeout: float) -> None:
    if missing:
        names = ", ".join(map(str, missing))
        who = f"process {names}" if len(missing) == 1 else f"processes {names}"
        raise UserError(
            f"{who} did not join within {timeout:g} s; start them all, or look into "
            "their output"
        )
