"""Arithmetic of the library's own, whatever the caller demands of theirs."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax

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
