"""Memory of the host: on a CPU, XLA allocates its buffers with malloc at every step."""

import ctypes
import sys

import jax

# From malloc.h: when the heap's top is trimmed, how far it is padded, how many blocks may
# be mapped on their own, how many heaps there are.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8


def reuse_memory() -> None:
    """Lets each step on a CPU have the memory of the step before it.

    Steps run in the call that starts them: one that runs on its own is done before its
    buffers are free, and the next may start in between, on twice the memory. Must be
    called before JAX has looked for devices; steps over several of them do not heed it.

    glibc keeps what is freed instead of giving it back to the kernel. By default each
    step maps its buffers anew, page fault by page fault: a sixth of a fine-tuning step on
    two cores, a quarter of one of BASE. One heap, since only the main one can grow beyond
    64 MiB without mapping; all of its freed top is kept, so the process stays as large as
    it ever was. Elsewhere than on Linux with glibc this part does nothing.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TOP_PAD, 1 << 26)
        mallopt(_M_TRIM_THRESHOLD, -1)  # never; a C int could name 2 GiB at most
