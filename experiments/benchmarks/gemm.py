"""Matrix products: those in a program, and how fast the machine does them.

Nearly all floating-point operations of a training step are in its matrix products, so the machine's
rate at these bounds the speed of a step.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr

from experiments.benchmarks.timing import Run
from jaxreplay.types import Array


class Product(NamedTuple):
    """One matrix product of a program."""

    left: tuple[int, ...]  # shape
    right: tuple[int, ...]
    dimensions: Any  # as `jax.lax.dot_general` takes them
    times: float  # how often it runs per step, on average

    def operations(self) -> float:
        """Return floating-point operations per run, 2 for each multiplication with its addition."""
        (_, contracted), (_, batch) = self.dimensions
        shared = {*contracted, *batch}
        free = [size for axis, size in enumerate(self.right) if axis not in shared]
        return 2.0 * math.prod(self.left) * math.prod(free)

    def over(self, seeds: int) -> "Product":
        """Return the product that vmap over `seeds` seeds makes of this one."""
        if seeds == 1:
            return self
        contracted, batch = self.dimensions
        shifted = tuple(tuple(axis + 1 for axis in axes) for axes in contracted)
        batched = tuple((0, *(axis + 1 for axis in axes)) for axes in batch)
        return Product((seeds, *self.left), (seeds, *self.right), (shifted, batched), self.times)


def products(function: Callable[..., Any], *args: Any, share: float = 1.0) -> list[Product]:
    """Return the matrix products in `function(*args)`.

    Args:
      function: jax-traceable.
      args: its arguments.
      share: how often, from 0 to 1, a conditional takes the branch with the most work.
    """
    return list(_walk(jax.make_jaxpr(function)(*args).jaxpr, 1.0, share))


def operations(work: Sequence[Product]) -> float:
    """Return floating-point operations per step of all products."""
    return sum(product.operations() * product.times for product in work)


def large(size: int) -> Product:
    """Return the product of two square matrices."""
    return Product((size, size), (size, size), (((1,), (0,)), ((), ())), 1.0)


def run_of(work: Sequence[Product]) -> Run:
    """Return a loop that computes all of these products, each once per cycle."""

    def once(_: Array, carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        left, right, results = carry
        # Each product depends on its last result, so that XLA cannot move it out of the loop.
        left = [
            x.at[(0,) * x.ndim].set(1e-6 * y.ravel()[0]) for x, y in zip(left, results, strict=True)
        ]
        pairs = zip(left, right, work, strict=True)
        return left, right, [jax.lax.dot_general(x, y, p.dimensions) for x, y, p in pairs]

    def loop(carry: Any, count: Array) -> Any:
        return jax.lax.fori_loop(0, count, once, carry)

    keys = iter(jax.random.split(jax.random.key(0), 2 * len(work)))
    left = [jax.random.normal(next(keys), product.left) for product in work]
    right = [jax.random.normal(next(keys), product.right) for product in work]
    results = [
        jax.lax.dot_general(x, y, p.dimensions) for x, y, p in zip(left, right, work, strict=True)
    ]
    compiled = jax.jit(loop, donate_argnums=0)
    carry = (left, right, results)

    def run(count: int) -> float:
        nonlocal carry
        begin = time.perf_counter()
        carry = jax.block_until_ready(compiled(carry, jnp.asarray(count, jnp.int32)))
        return time.perf_counter() - begin

    return run


def _walk(jaxpr: Jaxpr, times: float, share: float) -> Iterator[Product]:
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            left, right = (tuple(variable.aval.shape) for variable in equation.invars)
            yield Product(left, right, equation.params["dimension_numbers"], times)
        elif equation.primitive.name == "cond":
            branches = [
                list(_walk(branch.jaxpr, times * share, share))
                for branch in equation.params["branches"]
            ]
            yield from max(branches, key=operations)
        else:
            repeats = equation.params.get("length", 1)
            for inner in _inside(equation.params.values()):
                yield from _walk(inner, times * repeats, share)


def _inside(parameters: Any) -> Iterator[Jaxpr]:
    for value in parameters:
        if isinstance(value, ClosedJaxpr):
            yield value.jaxpr
        elif isinstance(value, Jaxpr):
            yield value
