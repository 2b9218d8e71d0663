"""Products: their values, and the code of the CPU's compiler."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model.kernels.attention_xla import attend_xla
from bert_jax.model.kernels.products import dot_general, einsum
from bert_jax.model.tokens import Tokens

pytestmark = pytest.mark.usefixtures("optimized")

# Shapes of x and kernel, axes, and einsum's name for it.
CASES = {
    "dense": ((24, 32), (32, 16), ((1,), (0,)), "md,df->mf"),
    "to heads": ((24, 32), (32, 4, 8), ((1,), (0,)), "md,dnh->mnh"),
    "from heads": ((24, 4, 8), (4, 8, 32), ((1, 2), (0, 1)), "mnh,nhd->md"),
    "words": ((3, 8, 32), (40, 32), ((2,), (1,)), "bmd,wd->bmw"),
}


def integers(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """Random -1, 0 and 1. Sums of their products are exact in bfloat16."""
    return np.random.default_rng(seed).integers(-1, 2, shape).astype(np.float64)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
def test_products_and_gradients_are_exact(case, dtype):
    x_shape, kernel_shape, axes, subscripts = CASES[case]
    x, kernel = integers(0, x_shape), integers(1, kernel_shape)
    expected = np.einsum(subscripts, x, kernel)
    grad = integers(2, expected.shape)
    actual, pull = jax.vjp(
        lambda x, kernel: dot_general(x, kernel, (axes, ((), ()))),
        jnp.asarray(x, dtype),
        jnp.asarray(kernel, dtype),
    )
    inputs, result = subscripts.split("->")
    first, second = inputs.split(",")
    pairs = [
        (actual, expected),
        *zip(
            pull(jnp.asarray(grad, dtype)),
            (
                np.einsum(f"{result},{second}->{first}", grad, kernel),
                np.einsum(f"{result},{first}->{second}", grad, x),
            ),
            strict=True,
        ),
    ]
    for a, b in pairs:
        assert a.dtype == dtype
        np.testing.assert_array_equal(np.float64(a), b)


def test_a_float32_result_is_not_rounded_but_its_gradient_is():
    """257 and 1 + 2**-8 need nine bits; the eight bits of the factors round them."""
    x = jnp.ones((1, 257), jnp.bfloat16)
    kernel = jnp.stack([x[0], -x[0]])
    axes = ((1,), (1,)), ((), ())
    actual, pull = jax.vjp(lambda x: dot_general(x, kernel, axes, None, jnp.float32), x)
    assert actual.dtype == jnp.float32
    np.testing.assert_array_equal(actual, [[257, -257]])
    (grad,) = pull(jnp.array([[1 + 2**-8, 1]], jnp.float32))
    assert grad.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.float32(grad), 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "subscripts",
    ["BQNH,BKNH->BNQK", "BNQK,BKNH->BNQH", "BNQK,BKNH->BQNH", "BNQK,BQNH->BKNH"],
)
def test_einsum_is_exact_for_all_subscripts(subscripts, dtype):
    sizes = dict(B=2, N=3, Q=5, K=7, H=4)
    axes = subscripts.split("->")[0].split(",")
    x, y = (integers(i, tuple(sizes[a] for a in axes[i])) for i in (0, 1))
    actual = einsum(subscripts, jnp.asarray(x, dtype), jnp.asarray(y, dtype))
    assert actual.dtype == dtype
    np.testing.assert_array_equal(np.float64(actual), np.einsum(subscripts, x, y))


def compiled(function, *args) -> list[str]:
    """The computations of the compiled ``function``."""
    return jax.jit(function).lower(*args).compile().as_text().split("\n\n")


def factors(computations: list[str]) -> list[tuple[str, str]]:
    """The dtypes of the two factors of each product."""
    pairs = []
    for computation in computations:
        types = dict(re.findall(r"%([\w.\-]+) = (\w+)\[", computation))
        dots = re.findall(r" dot\(%([\w.\-]+), %([\w.\-]+)\)", computation)
        pairs.extend(tuple(types[name] for name in names) for names in dots)
    return pairs


@pytest.mark.parametrize("dtype, short", [("float32", "f32"), ("bfloat16", "bf16")])
@pytest.mark.parametrize("case", CASES)
def test_a_cpu_multiplies_in_the_dtype_of_the_factors(case, dtype, short):
    """All three products have the dtype of the factors."""
    x_shape, kernel_shape, axes, _ = CASES[case]
    multiply = functools.partial(dot_general, dimension_numbers=(axes, ((), ())))

    def step(x, kernel, grad):
        product, pull = jax.vjp(multiply, x, kernel)
        return product, pull(grad)

    x, kernel = jnp.zeros(x_shape, dtype), jnp.zeros(kernel_shape, dtype)
    computations = compiled(step, x, kernel, multiply(x, kernel))
    assert factors(computations) == 3 * [(short, short)]


def test_a_cpu_attends_in_bfloat16():
    q = jnp.zeros((2, 32, 2, 16), jnp.bfloat16)
    attends = jnp.ones((2, 32, 32), bool)

    def step(q, k, v, grad):
        output, pull = jax.vjp(lambda *qkv: attend_xla(*qkv, attends), q, k, v)
        return output, pull(grad)

    # Two forward, four backward.
    assert factors(compiled(step, q, q, q, q)) == 6 * [("bf16", "bf16")]


def test_a_cpu_attends_in_one_call_of_its_library():
    """Without a gradient, one call computes both products and the softmax.

    Small arrays need two calls.
    """
    q = jax.ShapeDtypeStruct((8, 128, 12, 64), jnp.float32)
    mask = jax.ShapeDtypeStruct((8, 128), jnp.int32)
    computations = compiled(
        lambda q, k, v, mask: attend_xla(
            q, k, v, Tokens.of_mask(mask, mask, mask).attends()
        ),
        *(q, q, q, mask),
    )
    (call,) = (text for text in computations if factors([text]))
    assert factors([call]) == 2 * [("f32", "f32")]
    assert " exponential(" in call
