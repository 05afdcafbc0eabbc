"""The carry of a loop, with its small arrays joined on accelerators."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.environments.types import Array

_SMALL = 64  # elements of the largest array that is joined
_DTYPES = (jnp.float32, jnp.int32, jnp.uint32)

Joined = tuple[list[Array], list[Array]]


class Carry:
    """Joins the small arrays of a pytree into vectors of 32-bit words, and separates them again.

    A GPU launches a kernel for every array that an iteration of a loop changes, and a training loop
    changes dozens of small ones: step counters, states of environments, sums of metrics.

    Arrays that all seeds share have a separate vector, so that conditions on step counters remain
    branches under vmap.
    """

    def __init__(self, example: Any, differs: Sequence[bool] | None) -> None:
        """Plan the vectors.

        Args:
          example: pytree of arrays, or of their shapes and dtypes.
          differs: for each leaf, whether it differs between seeds; None to join nothing.
        """
        self._leaves, self._tree = jax.tree.flatten(example)
        groups: tuple[list[int], list[int]] = [], []
        self._alone: list[int] = []
        for i, x in enumerate(self._leaves):
            joins = differs and x.dtype in _DTYPES and math.prod(x.shape) <= _SMALL
            (groups[differs[i]] if joins else self._alone).append(i)
        self._groups = [group for group in groups if group]

    def join(self, tree: Any) -> Joined:
        """Return the vectors of the joined arrays, and the other arrays."""
        leaves = jax.tree.leaves(tree)

        def words(i: int) -> Array:
            return jax.lax.bitcast_convert_type(leaves[i], jnp.uint32).ravel()

        joined = [jnp.concatenate([words(i) for i in group]) for group in self._groups]
        return joined, [leaves[i] for i in self._alone]

    def separate(self, carry: Joined) -> Any:
        """Return the pytree from which `join` made `carry`."""
        joined, alone = carry
        leaves = dict(zip(self._alone, alone, strict=True))
        for vector, group in zip(joined, self._groups, strict=True):
            ends = np.cumsum([math.prod(self._leaves[i].shape) for i in group])
            for i, words in zip(group, jnp.split(vector, ends[:-1]), strict=True):
                like = self._leaves[i]
                words = words.reshape(like.shape)
                leaves[i] = jax.lax.bitcast_convert_type(words, like.dtype)
        return jax.tree.unflatten(self._tree, [leaves[i] for i in range(len(leaves))])
