"""The processes of a job: how they find one another, and how they end together.

All of it goes through one port, that of process 0 which --coordinator_address names. Each
other process has a connection to it, over which both send a line a second: one that says
why it fails, or is not heard of, ends all the others with a line that names it.

JAX's own connections between the processes lead through that port too. JAX ends a process
in C++, with a stack trace, as soon as such a connection breaks; through here they do not
break, and its own heartbeats, of which the same comes, are put off. Its agreement on the
step to stop at is not used: it holds Python's lock while it waits for an answer, which
would come through here.
"""

import asyncio
import contextlib
import dataclasses
import json
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Coroutine, Iterable
from typing import Any, NoReturn

import jax
from jax._src.clusters import ClusterEnv

from bert_jax.errors import PREEMPTED, UserError

_RETRY = 0.2  # seconds between calls to process 0
# Lines between processes; all else that they say is JSON.
_BEAT, _BYE, _JAX = b"\n", b"bye\n", b"jax\n"
_LINGER = 5  # seconds that a process which fails waits until the others have heard
_NEVER = 10**8  # seconds
# What JAX raises, by the first word, where another process has gone.
_OF_OTHERS = (
    *("ABORTED", "CANCELLED", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE"),
    *("FAILED_PRECONDITION", "UNKNOWN"),
)


def join(
    distributed: bool = False,
    coordinator_address: str = "",
    num_processes: int = 0,
    process_id: int = -1,
    join_timeout: int = 300,
    heartbeat_timeout: int = 30,
) -> bool:
    """Connects this process with the others, before anything else asks for devices.

    distributed: Cloud TPU, GKE, Slurm or Open MPI say where the others are. Otherwise
    coordinator_address (host:port of process 0), num_processes and process_id say so, all
    or none; none is a job of one process. join_timeout: seconds to wait for the others.
    heartbeat_timeout: seconds after which one that is silent is lost.

    Returns whether there are others. From here on a process that fails must call
    :func:`abandon`, and one that is done :func:`leave`. Raises UserError that names the
    processes which did not come in time.
    """
    by_hand = bool(coordinator_address)
    if not by_hand and (num_processes or process_id >= 0):
        raise UserError(
            "--num_processes and --process_id need --coordinator_address=HOST:PORT, where "
            "process 0 listens"
        )
    if by_hand and not (0 <= process_id < num_processes):
        raise UserError(
            f"--process_id={process_id} of --num_processes={num_processes}, "
            "expected 0 or more and below the number of processes"
        )
    if heartbeat_timeout < 3:
        raise UserError(
            f"--heartbeat_timeout={heartbeat_timeout}, expected 3 or more seconds: "
            "processes are heard of once a second"
        )
    if not (by_hand or distributed):
        return False
    address, count, process = coordinator_address, num_processes, process_id
    if not by_hand:
        # Private, but the only way to learn who is expected before JAX waits for them.
        address, count, process, _ = ClusterEnv.auto_detect_unset_distributed_params(
            *[None] * 5, join_timeout
        )
        if address is None:
            raise UserError(
                "--distributed found no Cloud TPU, GKE, Slurm or Open MPI job around this "
                "process; give --coordinator_address, --num_processes and --process_id"
            )
    global _job
    _job = Job(address, count, process)
    _job.meet(join_timeout)
    _job.watch(heartbeat_timeout)
    here = f"127.0.0.1:{_job.jax_port}"
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        here,
        count,
        process,
        coordinator_bind_address=here,
        initialization_timeout=join_timeout,
        heartbeat_timeout_seconds=_NEVER,
    )
    return True


def joined() -> bool:
    """Whether this process is one of a job that :func:`join` connected."""
    return _job is not None


def ask_to_stop() -> None:
    """Asks all processes to stop where :func:`stops` says; a handler of signals may."""
    _job.ask_to_stop()


def stops() -> bool:
    """Whether all processes are to stop here, because one of them was asked to.

    All call it equally often, such as after each step: from the same call on it is true
    in all of them. It waits only while they agree.
    """
    return _job.stops()


def leave() -> None:
    """Waits for the others to end too, so that no process waits for one that is gone."""
    jax.distributed.shutdown()
    _job.close()


def abandon(message: str, code: int, error: BaseException | None = None) -> NoReturn:
    """Prints ``message`` and ends all processes of the job with ``code``.

    Without it the others would wait in a collective for one that does not come. The last
    line of ``message`` is what they print. error: what this process fails of; where that
    may come of the end of another one, it is given the time to be noticed and named.
    """
    while error is not None:
        reason = str(error).partition(":")[0]
        if isinstance(error, jax.errors.JaxRuntimeError) and reason in _OF_OTHERS:
            time.sleep(_job.silence + 2)
            break
        error = error.__cause__ or error.__context__
    line = message.splitlines()[-1].removeprefix("error: ")
    _job.end(message, f"error: process {_job.process}: {line}", code)


@dataclasses.dataclass(frozen=True)
class _Peer:
    """Another process of the job, and the connection with it."""

    name: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Job:
    """Connections of this process with the others: an event loop on its own thread."""

    def __init__(self, address: str, count: int, process: int):
        """address: host:port of process 0. Raises UserError where that is none."""
        host, _, port = address.rpartition(":")
        if not (host and port.isdecimal() and len(port) < 6 and int(port) < 1 << 16):
            raise UserError(f"--coordinator_address={address}, expected HOST:PORT")
        self.process, self.silence = process, 0.0
        self._host, self._port, self._count = host, int(port), count
        self._peers: dict[int, _Peer] = {}
        self._follows: set[asyncio.Task] = set()
        self._servers: list[asyncio.Server] = []
        self._ending = threading.Lock()  # held by the thread that ends this process
        # The calls of stops() so far, and from which one on it is true. While the processes
        # agree on that one, they are held.
        self._calls, self._last, self._held = 0, math.inf, False
        self._agreed = threading.Condition()
        self._counts: list[int] = []  # at process 0: the calls of those that are held
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="job", daemon=True
        )
        self._thread.start()

    def _run(self, coroutine: Coroutine) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def meet(self, timeout: float) -> None:
        """Waits until all processes of the job have called it.

        JAX ends a process whose peers do not come, in C++, and does not say who is
        missing. So before JAX connects them, all call process 0, and it answers all.

        Raises UserError that names the processes which did not come within ``timeout``
        seconds.
        """
        try:
            missing = self._run(
                self._call(timeout) if self.process else self._listen(timeout)
            )
            if missing:
                names = ", ".join(map(str, missing))
                who = f"process {names}" if len(missing) == 1 else f"processes {names}"
                raise UserError(
                    f"{who} did not join within {timeout:g} s; start them all, or look "
                    "into their output"
                )
        except UserError:
            self._stop()
            raise

    async def _listen(self, timeout: float) -> list[int]:
        self._all_there = asyncio.Event()
        try:
            server = socket.create_server(
                ("", self._port),
                family=socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET,
                dualstack_ipv6=socket.has_dualstack_ipv6(),
            )
        except OSError as error:
            raise UserError(
                f"port {self._port} of --coordinator_address cannot be used "
                f"({error.strerror}); give another one to all processes"
            ) from error
        # JAX's, which process 0 itself reaches without this port.
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.jax_port = probe.getsockname()[1]
        self._servers = [await asyncio.start_server(self._answer, sock=server)]
        if self._count > 1:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_there.wait(), timeout)
        missing = [i for i in range(1, self._count) if i not in self._peers]
        for peer in self._peers.values():
            peer.writer.write((" ".join(map(str, missing)) + "\n").encode())
        return missing

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        line = b""
        with contextlib.suppress(OSError, TimeoutError, ValueError):  # too long
            line = await asyncio.wait_for(reader.readline(), 5)
        if line == _JAX:
            await _relay(reader, writer, "127.0.0.1", self.jax_port)
            return
        number, _, host = line.strip().partition(b" ")
        if self._all_there.is_set() or not (
            number.isdigit() and len(number) < 10 and 0 < int(number) < self._count
        ):
            writer.close()
            return
        named = "".join(
            c for c in host[:255].decode(errors="replace") if c.isprintable()
        )
        peer = _Peer(f"process {int(number)} on {named}", reader, writer)
        self._peers[int(number)] = peer
        if len(self._peers) == self._count - 1:
            self._all_there.set()

    async def _call(self, timeout: float) -> list[int]:
        where, deadline = f"{self._host}:{self._port}", time.monotonic() + timeout
        while True:
            with contextlib.suppress(OSError, TimeoutError):
                reader, writer = await asyncio.wait_for(
                    asyncio.open_connection(self._host, self._port), 5
                )
                writer.write(f"{self.process} {socket.gethostname()}\n".encode())
                # Process 0 may have begun to wait later than this one.
                answer = await asyncio.wait_for(reader.readline(), 2 * timeout)
                if answer:
                    self._peers[0] = _Peer(f"process 0 at {where}", reader, writer)
                    break
            if time.monotonic() > deadline:
                raise UserError(
                    f"process 0 at {where} did not answer within {timeout:g} s; start it, "
                    "or look into its output"
                )
            await asyncio.sleep(_RETRY)

        async def relay(*near: Any) -> None:
            await _relay(*near, self._host, self._port, _JAX)

        self._servers = [await asyncio.start_server(relay, "127.0.0.1", 0)]
        self.jax_port = self._servers[0].sockets[0].getsockname()[1]
        return [int(i) for i in answer.split()]

    def watch(self, silence: float) -> None:
        """Ends this process when another one fails, or is silent for so many seconds."""
        self.silence = silence
        self._run(self._watch())

    async def _watch(self) -> None:
        self._follows = {
            asyncio.create_task(self._follow(peer)) for peer in self._peers.values()
        }
        self._beats = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(1)
            stood = time.monotonic() - before - 1
            if stood > self.silence:
                await self._lose(f"this process stood still for {stood:.0f} s")
            for peer in self._peers.values():
                peer.writer.write(_BEAT)

    async def _follow(self, peer: _Peer) -> None:
        """Reads what another process says, until it leaves."""
        how = "ended without a word"
        try:
            while line := await asyncio.wait_for(peer.reader.readline(), self.silence):
                if line == _BYE:
                    return
                if line != _BEAT and line.endswith(b"\n"):
                    await self._hear(peer, json.loads(line))
        except TimeoutError:
            how = f"has not been heard of for {self.silence:g} s"
        except OSError:
            pass
        await self._lose(f"{peer.name} {how}")

    async def _hear(self, peer: _Peer, said: dict[str, Any]) -> None:
        match said:
            case {"line": line, "code": code}:
                await self._end(line, line, code)
            case {"stop": _}:
                self._hold_all()
            case {"hold": _}:
                _say([peer], calls=self._hold())
            case {"calls": calls}:
                self._count_held(calls)
            case {"last": last}:
                self._go_on(last)

    async def _lose(self, what: str) -> None:
        what += "; start the same command again, which goes on from the last checkpoint"
        line = f"error: {what}"
        await self._end(line, line, PREEMPTED)

    async def _end(self, said: str, line: str, code: int) -> None:
        """Ends this process, whatever its threads wait for, unless another thread does.

        said: what it prints. line: what the others print.
        """
        if not self._ending.acquire(blocking=False):
            return
        print(said, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        await self._tell(line, code)
        os._exit(code)

    async def _tell(self, line: str, code: int) -> None:
        _say(self._peers.values(), line=line[:10_000], code=code)
        # Who has read it ends. A connection that was closed before took it along.
        await self._wait(self._follows - {asyncio.current_task()})

    async def _wait(self, follows: set[asyncio.Task]) -> None:
        if follows:
            await asyncio.wait(follows, timeout=_LINGER)

    def ask_to_stop(self) -> None:
        """See :func:`ask_to_stop`."""
        self._loop.call_soon_threadsafe(self._ask_to_stop)

    def stops(self) -> bool:
        """See :func:`stops`."""
        with self._agreed:
            self._agreed.wait_for(lambda: not self._held)
            self._calls += 1
            return self._calls >= self._last

    # Process 0 holds all, learns how often each of them has called stops(), and says from
    # which call on it is true: the one after the last that any of them has made.

    def _ask_to_stop(self) -> None:
        if self.process:
            _say([self._peers[0]], stop=1)
        else:
            self._hold_all()

    def _hold_all(self) -> None:
        if not self._counts:
            _say(self._peers.values(), hold=1)
            self._count_held(self._hold())

    def _hold(self) -> int:
        with self._agreed:
            self._held = True
            return self._calls

    def _count_held(self, calls: int) -> None:
        self._counts.append(calls)
        if len(self._counts) == self._count:
            last = max(self._counts) + 1
            _say(self._peers.values(), last=last)
            self._go_on(last)

    def _go_on(self, last: int) -> None:
        with self._agreed:
            self._last, self._held = last, False
            self._agreed.notify_all()

    def end(self, said: str, line: str, code: int) -> NoReturn:
        """Ends this process, and all others."""
        self._ending.acquire()  # where another thread ends it, for ever
        print(said, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        self._run(self._tell(line, code))
        os._exit(code)

    def close(self) -> None:
        """Waits until all have called it: they may need process 0 until then."""
        self._run(self._say_bye())
        self._stop()

    async def _say_bye(self) -> None:
        for peer in self._peers.values():
            peer.writer.write(_BYE)
        await self._wait(self._follows)

    def _stop(self) -> None:
        async def stop() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            for server in self._servers:
                server.close()
            for peer in self._peers.values():
                peer.writer.close()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._run(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _say(peers: Iterable[_Peer], **said: Any) -> None:
    for peer in peers:
        peer.writer.write(json.dumps(said).encode() + b"\n")


async def _relay(
    near: asyncio.StreamReader,
    near_writer: asyncio.StreamWriter,
    host: str,
    port: int,
    first: bytes = b"",
) -> None:
    """Passes on what comes, both ways; ``first`` goes before it.

    What breaks on the far side is not passed on: who is near would end itself. It waits,
    until it is ended by what :meth:`Job._follow` finds.
    """
    deadline = time.monotonic() + 60
    while True:
        try:
            far, far_writer = await asyncio.open_connection(host, port)
            break
        except OSError:  # the service of JAX begins after the roll call
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(_RETRY)
    far_writer.write(first)

    async def there() -> None:
        await _pump(near, far_writer)
        far_writer.close()

    await asyncio.gather(there(), _pump(far, near_writer))
    near_writer.close()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()


_job: Job | None = None
