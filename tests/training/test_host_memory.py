"""keep_freed_memory, on glibc's heap."""

import ctypes
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes
from bert_jax.training.host_memory import keep_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
libc.malloc.argtypes = libc.sbrk.argtypes = [ctypes.c_ssize_t]
libc.free.argtypes = [ctypes.c_void_p]
{call}
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
@pytest.mark.parametrize("keeps", [True, False])
def test_a_freed_block_of_more_than_2_gib_stays_on_the_heap(keeps):
    """mallopt is for a whole process: hence one of its own."""
    program = PROGRAM.format(call="keep_freed_memory()" if keeps else "")
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    grown, kept = map(int, result.stdout.split())
    if keeps:
        assert kept == grown >= 5 << 29
    else:
        assert kept <= grown < 1 << 28  # mapped on its own
