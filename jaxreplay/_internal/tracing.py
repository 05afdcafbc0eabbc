"""Tracing utilities: dtype promotion, mesh axes and argument donation."""

import functools
import types
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import jax
import jax.numpy as jnp

from jaxreplay.traced import cached
from jaxreplay.types import Array

Args = ParamSpec("Args")
Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])


def with_default_promotion(function: Callable[Args, Result]) -> Callable[Args, Result]:
    """Wrap a function so that JAX traces it with the default dtype and rank promotion.

    `jax_numpy_dtype_promotion="strict"` and `jax_numpy_rank_promotion="raise"` are meant to check
    user code. The library promotes deliberately, as Optax and Flax do.
    """

    @functools.wraps(function)
    def call(*args: Args.args, **kwargs: Args.kwargs) -> Result:
        config: Any = jax.config
        set_to = config.jax_numpy_dtype_promotion, config.jax_numpy_rank_promotion
        if set_to == ("standard", "allow"):  # entering a context would cause retracing
            return function(*args, **kwargs)
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return function(*args, **kwargs)

    return call


Tree = TypeVar("Tree")


def varying(tree: Tree) -> Tree:
    """Mark arrays as varying over all mesh axes of an enclosing `jax.shard_map`.

    A loop can then carry the arrays even if only some of its writes vary over a mesh axis. Outside
    of `jax.shard_map`, the arrays are returned unchanged.
    """
    axes = tuple(jax.sharding.get_abstract_mesh().manual_axes)
    if not axes:
        return tree
    either = jax.lax.pcast(jnp.zeros((), bool), axes, to="varying")
    return jax.tree.map(lambda x: jnp.where(either, x, x), tree)


def donatable(tree: Any) -> Any:
    """Copy duplicate arrays of a pytree, so that `jax.jit(step, donate_argnums=0)` accepts it.

    JAX can't donate the same array twice, and a training state created outside of `jit` may contain
    an array twice: as the parameters of a network and of its initial target network, or as two zero
    counters. Outputs of jitted functions and of `Replay.init` are already distinct.

    Args:
      tree: pytree of arrays.
    """
    seen = set()

    def copy_if_seen(leaf: Array) -> Array:
        if id(leaf) in seen:
            return jnp.copy(leaf)
        seen.add(id(leaf))
        return leaf

    return jax.tree.map(copy_if_seen, tree)


class _CachedMethod:
    """A method that is the same object for all equal instances, so that JAX traces it once."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = with_default_promotion(function)
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> Callable[..., Any]:
        return self._function if instance is None else _bind(self._function, instance)


def cached_method(function: Function) -> Function:
    """Decorate a method of a hashable class so that equal instances share compiled functions.

    The method is traced with the default promotion (see `with_default_promotion`). JAX caches
    compiled functions by identity, and Python creates a new bound method for every access.
    """
    return cast(Function, _CachedMethod(function))


@cached
def _bind(function: Callable[..., Any], instance: Any) -> Callable[..., Any]:
    return types.MethodType(function, instance)
