"""Linear layers whose gradients are the products that XLA computes fast.

JAX differentiates `x @ kernel` by the kernel as the transpose of `grad.T @ x`. On CPU that costs a
first layer of few inputs ten times as much as `x.T @ grad`, and every reader of the gradient, such
as Adam, goes through it against the grain.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.custom_derivatives import CustomVJPPrimal

Array = jax.Array

_NARROW = 32  # outputs, up to which `grad.T @ x` is the faster of the two: measured


@jax.custom_vjp
def product(x: Array, kernel: Array) -> Array:
    """Return `x @ kernel` for `[..., D]` and `[D, features]`; no forward-mode derivatives."""
    return jnp.matmul(x, kernel)


def _forward(x: CustomVJPPrimal, kernel: CustomVJPPrimal) -> tuple[Array, tuple[Any, Any]]:
    # What nobody differentiates by needs no product on the way back.
    kept = x.value if kernel.perturbed else None, kernel.value if x.perturbed else None
    return jnp.matmul(x.value, kernel.value), kept


def _backward(kept: tuple[Any, Any], grad: Any) -> tuple[Array | None, Array | None]:
    x, kernel = kept
    outputs, rows = grad.ndim - 1, tuple(range(grad.ndim - 1))
    by_x = by_kernel = None
    if kernel is not None:
        by_x = jax.lax.dot_general(grad, kernel, (((outputs,), (1,)), ((), ())))
    if x is not None and grad.shape[-1] <= min(_NARROW, x.shape[-1]):
        by_kernel = jax.lax.dot_general(grad, x, ((rows, rows), ((), ()))).T
    elif x is not None:
        by_kernel = jax.lax.dot_general(x, grad, ((rows, rows), ((), ())))
    return by_x, by_kernel


product.defvjp(_forward, _backward, symbolic_zeros=True)


def _of_layer(x: Array, kernel: Array, dimensions: Any, precision: Any = None) -> Array:
    del dimensions, precision  # flax's layer asks for `x @ kernel` in general terms
    return product(x, kernel)


Dense = functools.partial(nn.Dense, dot_general=_of_layer)
