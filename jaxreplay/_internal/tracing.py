"""Tracing utilities: dtype promotion, mesh axes and argument donation."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from jaxreplay.types import Array

Args = ParamSpec("Args")
Result = TypeVar("Result")


def with_default_promotion(function: Callable[Args, Result]) -> Callable[Args, Result]:
    """Return a function that is traced with JAX's default dtype and rank promotion.

    `jax_numpy_dtype_promotion="strict"` and `jax_numpy_rank_promotion="raise"` are meant to check
    user code. The library promotes deliberately, as Optax and Flax do.
    """

    @functools.wraps(function)
    def call(*args: Args.args, **kwargs: Args.kwargs) -> Result:
        config: Any = jax.config
        set_to = config.jax_numpy_dtype_promotion, config.jax_numpy_rank_promotion
        if set_to == ("standard", "allow"):  # a context would cause retracing
            return function(*args, **kwargs)
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return function(*args, **kwargs)

    return call


Tree = TypeVar("Tree")


def varying(tree: Tree) -> Tree:
    """Return arrays that vary over all mesh axes of an enclosing `jax.shard_map`.

    A loop can then carry the arrays even if only some writes vary. Outside of `jax.shard_map`, the
    arrays are returned unchanged.
    """
    axes = tuple(jax.sharding.get_abstract_mesh().manual_axes)
    if not axes:
        return tree
    either = jax.lax.pcast(jnp.zeros((), bool), axes, to="varying")
    return jax.tree.map(lambda x: jnp.where(either, x, x), tree)


def donatable(tree: Any) -> Any:
    """Return a pytree of distinct arrays, suitable for `jax.jit(step, donate_argnums=0)`.

    JAX can't donate the same array twice, and a state created outside of `jit` may contain
    duplicates: networks and their initial target networks, or several zero counters. Duplicates
    are copied. Outputs of jitted functions and of `Replay.init` are already distinct.

    Args:
      tree: pytree of arrays.
    """
    seen = set()

    def own(leaf: Array) -> Array:
        if id(leaf) in seen:
            return jnp.copy(leaf)
        seen.add(id(leaf))
        return leaf

    return jax.tree.map(own, tree)
