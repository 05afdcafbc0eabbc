"""How functions are traced: dtype promotion, mesh axes, and donation of their results."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from jaxreplay.types import Array

Args = ParamSpec("Args")
Result = TypeVar("Result")


def with_default_promotion(function: Callable[Args, Result]) -> Callable[Args, Result]:
    """Return a function that is traced with JAX's default promotion of dtypes and ranks.

    `jax_numpy_dtype_promotion="strict"` and `jax_numpy_rank_promotion="raise"` are for the code of
    the users who set them. The library promotes on purpose, like Optax and Flax.
    """

    @functools.wraps(function)
    def call(*args: Args.args, **kwargs: Args.kwargs) -> Result:
        config: Any = jax.config
        set_to = config.jax_numpy_dtype_promotion, config.jax_numpy_rank_promotion
        if set_to == ("standard", "allow"):  # another context would trace it again
            return function(*args, **kwargs)
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return function(*args, **kwargs)

    return call


Tree = TypeVar("Tree")


def varying(tree: Tree) -> Tree:
    """Return arrays that vary over all mesh axes of an enclosing `jax.shard_map`.

    A loop may then carry them, whichever writes vary. Outside of `jax.shard_map` they are returned
    unchanged.
    """
    axes = tuple(jax.sharding.get_abstract_mesh().manual_axes)
    if not axes:
        return tree
    either = jax.lax.pcast(jnp.zeros((), bool), axes, to="varying")
    return jax.tree.map(lambda x: jnp.where(either, x, x), tree)


def donatable(tree: Any) -> Any:
    """Return a pytree whose leaves are distinct arrays, for `jax.jit(step, donate_argnums=0)`.

    JAX does not donate an array twice, and a state that was made outside of `jit` may contain one
    in several places: networks and their initial targets, or counters that are all 0. Copies
    replace all but the first. Outputs of jitted functions and of `Replay.init` are distinct
    already.

    Args:
      tree: any pytree of arrays.
    """
    seen = set()

    def own(leaf: Array) -> Array:
        if id(leaf) in seen:
            return jnp.copy(leaf)
        seen.add(id(leaf))
        return leaf

    return jax.tree.map(own, tree)
