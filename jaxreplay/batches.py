"""Batches whose rows come from several sources, such as an inner sampler and the newest steps."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxreplay.types import Array, Sample, Tree


class Parts(NamedTuple):
    """Successive parts of a batch, each from a different source.

    Example:
      >>> parts = Parts((2, 1))
      >>> [rows.tolist() for rows in parts.split(jnp.arange(3))]
      [[0, 1], [2]]
      >>> parts.probability(jnp.array([0.75, 0.25]), jnp.array([0.0, 1.0])).tolist()
      [0.5, 0.5]
    """

    sizes: tuple[int, ...]  # number of rows of each part

    @property
    def batch_size(self) -> int:
        """Number of rows of the batch."""
        return sum(self.sizes)

    def split(self, tree: Tree, axis: int = 0) -> list[Any]:
        """Split a pytree of arrays, whose batch axis is `axis`, into one pytree for each part."""
        ends = itertools.accumulate(self.sizes)
        spans = [range(end - size, end) for size, end in zip(self.sizes, ends, strict=True)]
        return [
            jax.tree.map(
                lambda x, span=span: jax.lax.slice_in_dim(x, span.start, span.stop, axis=axis),
                tree,
            )
            for span in spans
        ]

    def split_sample(self, sample: Sample, auxiliary: Sequence[Tree]) -> list[Sample]:
        """Split a batch into one `Sample` for each part, with its tree in `auxiliary` as `aux`."""
        batches = self.split(sample._replace(aux=None))
        return [batch._replace(aux=aux) for batch, aux in zip(batches, auxiliary, strict=True)]

    def probability(self, *probabilities: Array) -> Array:
        """Return the expected fraction of the batch that comes from each of n slots, `[n]`.

        Args:
          *probabilities: for each part, the expected fraction of the part that comes from each
            slot, `[n]`.
        """
        pairs = zip(self.sizes, probabilities, strict=True)
        return jnp.asarray(sum(size / self.batch_size * chance for size, chance in pairs))


def join(*parts: Tree) -> Any:
    """Concatenate the rows of pytrees `[B_i, ...]` of the same structure."""
    return jax.tree.map(lambda *rows: jnp.concatenate(rows), *parts)
