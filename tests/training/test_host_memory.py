"""reuse_memory: when a step is done, and glibc's heap."""

import ctypes
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes
from bert_jax.training.host_memory import reuse_memory

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
    program = PROGRAM.format(call="reuse_memory()" if keeps else "")
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    grown, kept = map(int, result.stdout.split())
    if keeps:
        assert kept == grown >= 5 << 29
    else:
        assert kept <= grown < 1 << 28  # mapped on its own


@pytest.mark.parametrize("waits", [True, False])
def test_a_step_is_done_when_the_call_returns(waits):
    """Then its buffers are free, as they are not yet when its results are ready."""
    program = f"""
import jax
import jax.numpy as jnp
from bert_jax.training.host_memory import reuse_memory

if {waits}:
    reuse_memory()
step = jax.jit(lambda x: jnp.tanh(x @ x) @ x)
x = jnp.ones((2048, 2048))
jax.block_until_ready(step(x))
print(step(x).is_ready())
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == [str(waits)]
