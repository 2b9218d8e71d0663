"""Settings of the process that a command makes before its work starts.

Docstrings give the reasons and measurements. Times are CPU time on two cores.
"""

import contextlib
import ctypes
import hashlib
import os
import platform
import re
import sys
import warnings
from pathlib import Path
from typing import Any

from bert_jax.files import PROGRAMS, cache_folder, is_remote

# From malloc.h: when the heap's top is trimmed, how far it is padded, how many blocks may
# be mapped separately.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4


def prepare_streams() -> None:
    """Opens the null device for closed streams; sets UTF-8 for output in every locale.

    Without the null device the first opened files would get the numbers of closed streams,
    and the output would be written into those files.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")


# Whether the user has set the variable that JAX sets on a machine without a TPU.
_OWN_QUERY = "TPU_SKIP_MDS_QUERY" in os.environ


def quiet_libtpu() -> None:
    """Keeps libtpu silent on a machine without a TPU.

    If libtpu is installed, which ``estimate`` needs, JAX loads it when it looks for
    devices, and libtpu prints five lines about a missing type and host. The variables that
    are set here name an arbitrary type and host.
    """
    import jax

    no_tpu = os.environ.get("TPU_SKIP_MDS_QUERY") == "1" and not _OWN_QUERY
    # JAX has then seen that no TPU is attached.
    if no_tpu and jax.config.jax_platforms is None:
        os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v4-8")
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
        os.environ.setdefault("TPU_WORKER_ID", "0")


def hide_cancelled_work() -> None:
    """Hides errors of the reads and writes that Orbax cancels after one has failed.

    Orbax still raises the first error, so a full disk prints one line instead of 41
    tracebacks.
    """
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        code = getattr(unraisable.object, "cr_code", None)
        text = f"{unraisable.exc_value} {code and code.co_filename}"
        words = ("Event loop is closed", "was never awaited", "orbax", "tensorstore")
        if not any(word in text for word in words):
            before(unraisable)

    sys.unraisablehook = hook
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)


def run_steps_in_order() -> None:
    """On a CPU, runs each step inside the call that starts it.

    Otherwise the next step may start before the buffers of the last one are free. A
    training step with 200 MiB of activations has a peak of 510 MiB instead of 565 MiB.
    """
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)


def order_collectives(processes: bool) -> None:
    """Runs the collectives of several CPU devices in the same order on each device.

    XLA's scheduler for CPUs may start independent collectives in another order on each
    device. The devices then wait for each other until XLA ends the process.

    processes: whether the run has several processes. Must be called before JAX has devices.
    """
    import jax

    name, flags = "xla_cpu_enable_concurrency_optimized_scheduler", "XLA_FLAGS"
    given = os.environ.get(flags, "")
    several = jax.config.jax_num_cpu_devices > 1 or "device_count" in given
    if (several or processes) and name not in given:
        os.environ[flags] = f"{given} --{name}=false".strip()


def keep_programs(workdir: str) -> None:
    """Keeps programs that take over a second to compile in ~/.cache/bert_jax.

    The second start of a run with the config tiny takes 55 s instead of 75 s.

    workdir: if given, the programs are kept there instead, so that the run's other machines
    find them. Only process 0 writes programs. $XDG_CACHE_HOME replaces ~/.cache. Does
    nothing if $JAX_COMPILATION_CACHE_DIR is set or the user has no home directory. Each
    kind of processor has its own folder, because programs for one kind crash on another.
    """
    import jax

    if jax.config.jax_compilation_cache_dir is not None:
        return
    try:
        folder = f"{workdir}/{PROGRAMS}" if workdir else cache_folder()
    except RuntimeError:
        return
    if not is_remote(folder):
        folder = Path(folder).absolute()
    jax.config.update("jax_compilation_cache_dir", f"{folder}/xla-{_processor()}")


def _processor() -> str:
    """Eight digits for the processor's instruction set."""
    kind = platform.machine() + platform.processor()
    with contextlib.suppress(OSError):  # not Linux
        about = Path("/proc/cpuinfo").read_text()
        kind += "".join(re.findall("^(?:flags|Features).*", about, re.MULTILINE)[:1])
    return hashlib.sha256(kind.encode()).hexdigest()[:8]


def keep_freed_memory() -> None:
    """Keeps freed memory in this process for the next step on a CPU.

    XLA allocates its buffers with malloc at every step, and glibc maps large blocks again
    each time, page by page. A small training step takes 0.23 s instead of 0.26 s. The
    process stays as large as its peak. Without glibc this does nothing.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TOP_PAD, 1 << 26)
        mallopt(_M_TRIM_THRESHOLD, -1)  # never; the largest C int is 2 GiB
