"""Linear layers made of the products that XLA computes fast.

JAX differentiates `x @ kernel` by the kernel as the transpose of `grad.T @ x`. On CPU that costs a
first layer of few inputs ten times as much as `x.T @ grad`, and every reader of the gradient, such
as Adam, goes through it against the grain.

XLA on CPU is fast at products of large matrices, and of a matrix and a vector, but not at those of
which one side is a few numbers long, such as the values of two actions. Of 256 hidden units and two
outputs, the gradient by the kernel takes a quarter as long as that of 256 outputs would; one output
after the other, as vectors, it takes a fortieth of it. A sum over a few numbers is written out: it
then becomes a part of the operation that follows, such as a ReLU.

It may become a part of several operations, each of which rounds it in its own way. So the values
of critics, of which the least is taken, are never such sums: the gradient of a minimum goes to the
numbers that are equal to it, and would be 0 / 0 if none were. What has no more outputs than inputs
therefore remains a product.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.custom_derivatives import CustomVJPPrimal

Array = jax.Array

# Measured with batches of 32 to 256, 64 to 256 hidden units, one seed and eight.
_FEW = 8  # inputs or outputs, up to which a product is better written out
_NARROW = 32  # outputs, up to which `grad.T @ x` is the faster of the two


@jax.custom_vjp
def product(x: Array, kernel: Array) -> Array:
    """Return `x @ kernel` for `[..., D]` and `[D, features]`; no forward-mode derivatives."""
    return _product(x, kernel)


def _forward(x: CustomVJPPrimal, kernel: CustomVJPPrimal) -> tuple[Array, tuple[Any, Any]]:
    # What nobody differentiates by needs no product on the way back.
    kept = x.value if kernel.perturbed else None, kernel.value if x.perturbed else None
    return _product(x.value, kernel.value), kept


def _backward(kept: tuple[Any, Any], grad: Any) -> tuple[Array | None, Array | None]:
    x, kernel = kept
    return (
        None if kernel is None else _by_x(grad, kernel),
        None if x is None else _by_kernel(x, grad),
    )


def _product(x: Array, kernel: Array) -> Array:
    if not _written_out(*kernel.shape):
        return jnp.matmul(x, kernel)
    terms = [x[..., i, None] * kernel[i] for i in range(kernel.shape[0])]
    return functools.reduce(jnp.add, terms)


def _by_x(grad: Array, kernel: Array) -> Array:
    if _written_out(*kernel.T.shape):
        return _product(grad, kernel.T)
    # A product with the transpose would copy it.
    return jax.lax.dot_general(grad, kernel, (((grad.ndim - 1,), (1,)), ((), ())))


def _by_kernel(x: Array, grad: Array) -> Array:
    """Return the sum over all rows of `x[..., D]` times `grad[..., features]`."""
    rows = tuple(range(grad.ndim - 1))
    inputs, outputs = x.shape[-1], grad.shape[-1]

    def dot(a: Array, b: Array) -> Array:
        return jax.lax.dot_general(a, b, ((rows, rows), ((), ())))

    if rows and _written_out(outputs, inputs):
        return jnp.stack([dot(x, grad[..., i]) for i in range(outputs)], axis=1)
    if outputs <= min(_NARROW, inputs):
        return dot(grad, x).T
    return dot(x, grad)


def _written_out(few: int, many: int) -> bool:
    return 1 <= few <= _FEW and few < many and jax.default_backend() == "cpu"


product.defvjp(_forward, _backward, symbolic_zeros=True)


def _of_layer(x: Array, kernel: Array, dimensions: Any, precision: Any = None) -> Array:
    del dimensions, precision  # flax's layer asks for `x @ kernel` in general terms
    return product(x, kernel)


Dense = functools.partial(nn.Dense, dot_general=_of_layer)
