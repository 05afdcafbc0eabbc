"""States inside of `jax.shard_map`, where every value varies over mesh axes or is known not to."""

from typing import TypeVar

import jax
import jax.numpy as jnp

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
