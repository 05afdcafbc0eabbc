"""How functions are traced: dtype promotion, mesh axes, and donation of their results."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from jaxreplay.types import Array

Args = ParamSpec("Args")
Result = TypeVar("Result")


def as_by_default(function: Callable[Args, Result]) -> Callable[Args, Result]:
    """Return a function in which dtypes and ranks mix as they do by JAX's default.

    `jax_numpy_dtype_promotion="strict"` and `jax_numpy_rank_promotion="raise"` find mistakes in the
    code of those who set them. What is mixed here is meant, and Optax and Flax mix as well.
    """

    @functools.wraps(function)
    def call(*args: Args.args, **kwargs: Args.kwargs) -> Result:
        config: Any = jax.config
        set_to = config.jax_numpy_dtype_promotion, config.jax_numpy_rank_promotion
        if set_to == ("standard", "allow"):  # in another context, it would be traced once more
            return function(*args, **kwargs)
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return function(*args, **kwargs)

    return call


Tree = TypeVar("Tree")


def varying(tree: Tree) -> Tree:
    """Return arrays that vary over all axes that the program is mapped over by `jax.shard_map`.

    A loop may carry them then, whatever varies of what is written into them. Elsewhere they are
    returned as they are.
    """
    axes = tuple(jax.sharding.get_abstract_mesh().manual_axes)
    if not axes:
        return tree
    either = jax.lax.pcast(jnp.zeros((), bool), axes, to="varying")
    return jax.tree.map(lambda x: jnp.where(either, x, x), tree)


def donatable(tree: Any) -> Any:
    """Return a pytree in which no two leaves are one array: a copy stands for all but the first.

    JAX refuses to donate an array twice, and a state that was made outside of `jit` may hold one
    in several places (networks and their targets at first, counters that are all 0). What a
    jitted function returns needs none of this: every output has a buffer of its own.

    What `Replay(...).init` returns is so already; the state of an agent in a loop of your own
    is not.

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
