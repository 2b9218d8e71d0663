"""Private and experimental parts of JAX. No other file imports them.

They may change in any release of JAX. A comment or docstring gives the reason why bert_jax
needs each part.
"""

import functools
import types

import jax

# wait_at_barrier of its client needs no device and has its own timeout. The barriers of
# multihost_utils run a collective on the devices.
from jax._src.distributed import global_state

# multihost_utils: values of other processes, and the step at which all stop after SIGTERM.
# mesh_utils: an order of devices in which neighbours in the mesh are neighbours in the
# network, and meshes of several slices, which jax.make_mesh does not handle. topologies:
# devices to compile for that this machine does not have.
from jax.experimental import mesh_utils, multihost_utils, topologies

__all__ = [
    "eigen_options",
    "global_state",
    "mesh_utils",
    "multihost_utils",
    "splash_attention",
    "topologies",
]


# The option of XLA's compiler for CPUs that turns off products with YNNPACK.
_NO_YNNPACK = {"xla_cpu_experimental_ynn_fusion_type": ""}


@functools.cache
def eigen_options() -> dict[str, str]:
    """Options of XLA's compiler for CPUs with which Eigen computes the products.

    Empty if this version of XLA does not know the option, which changes only the speed.
    """
    try:
        jax.jit(lambda x: x, compiler_options=_NO_YNNPACK).lower(0).compile()
    except jax.errors.JaxRuntimeError:
        return {}
    return _NO_YNNPACK


def splash_attention() -> types.ModuleType:
    """Splash attention, JAX's only attention for TPUs that does not write scores to memory.

    The module is imported when it is first used, because its import takes a sixth of the
    start of a process.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    return splash
