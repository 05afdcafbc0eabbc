"""Linear layers with fast matrix products on CPU.

For inputs `x` and the gradient `grad` of the outputs, JAX computes the gradient of the kernel of
`x @ kernel` as the transpose of `grad.T @ x`. On CPU this takes ten times as long as `x.T @ grad`
for a first layer with few inputs, and operations on the kernel gradient, such as Adam's update,
then read memory with a stride.

XLA on CPU is fast for products of large matrices and for matrix-vector products, but slow if one
dimension is tiny, such as the values of two actions. For 256 hidden units, the kernel gradient for
two outputs takes a quarter of the time for 256 outputs; with one matrix-vector product per output,
it takes a fortieth of that time. A sum over few inputs is unrolled, and XLA fuses the sum into the
next operation, such as a ReLU.

XLA may fuse an unrolled sum into several operations that round differently. For twin critics, the
gradient of their minimum flows to the values equal to the minimum, and would be 0 / 0 if rounding
left no equal value. Therefore a layer with no more outputs than inputs is never unrolled.

On one core, a step of DQN on CartPole takes 1.06 to 1.20 times as long without these products (1, 8
and 64 seeds), and a step of SAC on Pendulum 1.02 to 1.27 times as long.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import CustomVJPPrimal

from jaxreplay._internal.platforms import by_platform
from jaxreplay.types import Array

# These limits were measured with batches of 32 to 256, 64 to 256 hidden units, and 1 and 8 seeds.
_FEW = 8  # largest number of inputs or outputs for which unrolling is faster
_NARROW = 32  # largest number of outputs for which `grad.T @ x` is faster than `x.T @ grad`


@jax.custom_vjp
def product(x: Array, kernel: Array) -> Array:
    """Return `x @ kernel` for `[..., D]` and `[D, features]`; only reverse-mode differentiation."""
    return _product(x, kernel)


def _forward(x: CustomVJPPrimal, kernel: CustomVJPPrimal) -> tuple[Array, tuple[Any, Any]]:
    # An argument that isn't differentiated needs no product in the backward pass.
    residuals = x.value if kernel.perturbed else None, kernel.value if x.perturbed else None
    return _product(x.value, kernel.value), residuals


def _backward(residuals: tuple[Any, Any], grad: Any) -> tuple[Array | None, Array | None]:
    x, kernel = residuals
    return (
        None if kernel is None else _grad_by_x(grad, kernel),
        None if x is None else _grad_by_kernel(x, grad),
    )


def _product_on_cpu(x: Array, kernel: Array) -> Array:
    if not _is_unrolled(*kernel.shape):
        return jnp.matmul(x, kernel)
    terms = [x[..., i, None] * kernel[i] for i in range(kernel.shape[0])]
    return functools.reduce(jnp.add, terms)


_product = by_platform(jnp.matmul, cpu=_product_on_cpu)


def _plain_grad_by_x(grad: Array, kernel: Array) -> Array:
    # `grad @ kernel.T` would copy the kernel.
    return jax.lax.dot_general(grad, kernel, (((grad.ndim - 1,), (1,)), ((), ())))


def _grad_by_x_on_cpu(grad: Array, kernel: Array) -> Array:
    if _is_unrolled(*kernel.T.shape):
        return _product(grad, kernel.T)
    return _plain_grad_by_x(grad, kernel)


_grad_by_x = by_platform(_plain_grad_by_x, cpu=_grad_by_x_on_cpu)


def _dot(x: Array, grad: Array) -> Array:
    """Sum outer products of `x` `[..., D]` and `grad` over leading axes, `[D, features]`."""
    return _contract(x, grad, grad.ndim - 1)


def _contract(a: Array, b: Array, leading: int) -> Array:
    axes = tuple(range(leading))
    return jax.lax.dot_general(a, b, ((axes, axes), ((), ())))


def _grad_by_kernel_on_cpu(x: Array, grad: Array) -> Array:
    inputs, outputs, leading = x.shape[-1], grad.shape[-1], grad.ndim - 1
    if leading and _is_unrolled(outputs, inputs):
        columns = [_contract(x, grad[..., i], leading) for i in range(outputs)]
        return jnp.stack(columns, axis=1)
    if outputs <= min(_NARROW, inputs):
        return _dot(grad, x).T
    return _dot(x, grad)


_grad_by_kernel = by_platform(_dot, cpu=_grad_by_kernel_on_cpu)


def _is_unrolled(few: int, many: int) -> bool:
    return 1 <= few <= _FEW and few < many


product.defvjp(_forward, _backward, symbolic_zeros=True)
