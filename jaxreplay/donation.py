"""States that may be donated: `jax.jit(step, donate_argnums=0)` reuses their memory."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxreplay.types import Array


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
