"""Matrix products in the form that one CPU computes fastest.

GPUs, TPUs and several CPU devices compute the product in its given form. A single CPU
device computes products of two matrices, because XLA copies kernels of three dimensions and
their gradients into another layout. For bfloat16, XLA's CPU library has only products with
a float32 result whose first factor is summed over its last dimension; the compiler computes
all other products in float32. On several devices this form would gather the whole batch.

A device sums in float32 and rounds once. Gradients are summed over devices in the dtype of
the activations, or in float32 with ComputeConfig.float32_gradients.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from bert_jax.model.device import on_one_cpu

Axes = tuple[tuple[int, ...], tuple[int, ...]]


def dot_general(
    x: jax.Array,
    kernel: jax.Array,
    dimension_numbers: tuple[Axes, Axes],
    precision: None = None,
    preferred_element_type: jnp.dtype | None = None,
) -> jax.Array:
    """lax.dot_general without batch dimensions, for nn.DenseGeneral.

    The contracted axes are the last axes of ``x`` and the first or last axes of ``kernel``,
    in order. The result has the dtype of ``x`` by default.

    Both factors are rounded to the dtype of ``x``, even in the products of the gradients.
    The gradient of each factor has that factor's dtype, and is rounded to it once. Products
    of float32 factors can be differentiated in forward mode.
    """
    del precision
    axes, dtype = dimension_numbers[0], jnp.dtype(preferred_element_type or x.dtype)
    if x.dtype == kernel.dtype == dtype == jnp.float32:
        return _dot(x, kernel, axes, dtype)
    return _rounded(x, kernel, axes, dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _rounded(x: jax.Array, kernel: jax.Array, axes: Axes, dtype: jnp.dtype):
    """:func:`dot_general`, with gradients in the dtypes of the factors."""
    return _dot(x, kernel.astype(x.dtype), axes, dtype)


def einsum(
    subscripts: str, x: jax.Array, y: jax.Array, dtype: jnp.dtype | None = None
) -> jax.Array:
    """jnp.einsum of two factors, summed over one axis.

    dtype: dtype of the result, by default the dtype of ``x``.
    """
    dtype = jnp.dtype(dtype or x.dtype)
    if on_one_cpu():
        return _einsum_of_matrices(subscripts, x, y, dtype)
    return _as_written(
        lambda x, y, dtype: jnp.einsum(subscripts, x, y, preferred_element_type=dtype),
        *(x, y, dtype),
    )


def swapaxes(x: jax.Array, axis1: int, axis2: int) -> jax.Array:
    """jnp.swapaxes. On one CPU the result is stored, not computed again for each use."""
    swapped = jnp.swapaxes(x, axis1, axis2)
    return lax.optimization_barrier(swapped) if on_one_cpu() else swapped


def _backward(axes, dtype, kept, grad):
    del dtype
    x, kernel = kept
    grad = grad.astype(x.dtype)
    rows = tuple(range(x.ndim - len(axes[0])))
    columns = tuple(axis for axis in range(kernel.ndim) if axis not in axes[1])
    grad_columns = tuple(range(len(rows), grad.ndim))
    grad_x = _dot(grad, kernel.astype(x.dtype), (grad_columns, columns), x.dtype)
    factors = (x, grad) if axes[1][0] == 0 else (grad, x)
    return grad_x, _dot(*factors, (rows, rows), kernel.dtype)


_rounded.defvjp(
    lambda x, kernel, *static: (_rounded(x, kernel, *static), (x, kernel)), _backward
)


def _dot(x: jax.Array, y: jax.Array, axes: Axes, dtype: jnp.dtype) -> jax.Array:
    """The product over the first or the last axes of each."""
    if on_one_cpu():
        return _dot_of_matrices(x, y, axes).astype(dtype)
    return _as_written(
        lambda x, y, dtype: lax.dot_general(
            x, y, (axes, ((), ())), preferred_element_type=dtype
        ),
        *(x, y, dtype),
    )


def _as_written(
    dot: Callable[..., jax.Array], x: jax.Array, y: jax.Array, dtype: jnp.dtype
) -> jax.Array:
    """``dot(x, y, dtype)``. Several CPU devices compute it in float32 and round once."""
    if x.dtype == jnp.float32:
        return dot(x, y, dtype)
    return lax.platform_dependent(
        x,
        y,
        cpu=lambda x, y: dot(
            x.astype(jnp.float32), y.astype(jnp.float32), jnp.float32
        ).astype(dtype),
        default=lambda x, y: dot(x, y, dtype),
    )


def _dot_of_matrices(x: jax.Array, y: jax.Array, axes: Axes) -> jax.Array:
    """The product of two matrices, float32."""
    size = math.prod(x.shape[axis] for axis in axes[0])
    x_rest, y_rest = (
        [n for axis, n in enumerate(a.shape) if axis not in contracted]
        for a, contracted in zip((x, y), axes, strict=True)
    )
    x_first, y_first = (contracted[0] == 0 for contracted in axes)
    x_matrix = x.reshape(size, -1) if x_first else x.reshape(-1, size)
    y_matrix = y.reshape(size, -1) if y_first else y.reshape(-1, size)
    if x_first and x.dtype != jnp.float32:
        x_matrix, x_first = _laid_out(x_matrix.T), False
    result = lax.dot_general(
        x_matrix,
        y_matrix,
        (((1 - x_first,), (1 - y_first,)), ((), ())),
        preferred_element_type=jnp.float32,
    )
    return result.reshape(*x_rest, *y_rest)


def _einsum_of_matrices(
    subscripts: str, x: jax.Array, y: jax.Array, dtype: jnp.dtype
) -> jax.Array:
    """The einsum as a batch of matrix products.

    The batch axes are first, and the first factor is summed over its last axis. XLA's CPU
    library has products in this form, and fuses the arithmetic between two products.
    """
    factors, result = subscripts.split("->")
    x_axes, y_axes = factors.split(",")
    batch = "".join(axis for axis in x_axes if axis in y_axes and axis in result)
    (summed,) = set(x_axes) & set(y_axes) - set(result)
    if x_axes[-1] != summed:
        x, y, x_axes, y_axes = y, x, y_axes, x_axes
    x_rest, y_rest = (
        "".join(axis for axis in axes if axis not in batch) for axes in (x_axes, y_axes)
    )
    x_rest = x_rest.replace(summed, "")
    x_matrices, y_matrices = batch + x_rest + summed, batch + y_rest
    x, y = (
        a if axes == matrices else _laid_out(jnp.einsum(f"{axes}->{matrices}", a))
        for a, axes, matrices in ((x, x_axes, x_matrices), (y, y_axes, y_matrices))
    )
    axes = batch + x_rest + y_rest.replace(summed, "")
    products = jnp.einsum(
        f"{x_matrices},{y_matrices}->{axes}", x, y, preferred_element_type=jnp.float32
    )
    products = products.astype(dtype)
    if axes == result:
        return products
    return lax.optimization_barrier(jnp.einsum(f"{axes}->{result}", products))


def _laid_out(x: jax.Array) -> jax.Array:
    """``x``, a transposed array, stored for a bfloat16 product on a CPU.

    The barrier hides the transposition from the compiler, which would treat it as a layout
    that its library does not support.
    """
    if x.dtype == jnp.float32:
        return x
    return lax.optimization_barrier(x.ravel()).reshape(x.shape)
