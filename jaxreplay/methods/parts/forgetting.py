"""Selection of episodes to forget when a replay memory of whole episodes is full."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxreplay._internal.tracing import varying
from jaxreplay.types import Array


def choose_forgotten(share: Array, steps: Array, oldness: Array, memory: int) -> Array:
    """Select the fewest episodes to forget so that at most `memory` steps remain.

    Episodes are forgotten in descending order of their share of far-policy steps; ties are broken
    by age, oldest first (Novati & Koumoutsakos 2019, Alg. 1). At least one episode always remains.
    Bisection finds the last episode to forget in about 60 passes over the arrays, without sorting.

    Args:
      share: `[n]` float32 in [0, 1], share of far-policy steps; use equal values for FIFO order.
      steps: `[n]` int32, number of steps in each episode; 0 for entries without an episode.
      oldness: `[n]` int32, unique non-negative numbers that are larger for older episodes.
      memory: maximum number of remaining steps.

    Returns:
      `[n]` bool, True for episodes to forget.
    """
    exists = steps > 0
    excess = steps.sum() - memory
    # The bit patterns of non-negative floats sort like the floats; values up to 1.0 use 30 bits.
    rank = jax.lax.bitcast_convert_type(share.astype(jnp.float32), jnp.int32)

    def freed(forgotten: Array) -> Array:
        return jnp.where(forgotten, steps, 0).sum()

    least = _largest(lambda bound: freed(rank >= bound) >= excess, bits=30)
    above, equal = rank > least, rank == least
    more = excess - freed(above)
    oldest = _largest(lambda bound: freed(equal & (oldness >= bound)) >= more, bits=31)
    forgotten = exists & (above | (equal & (oldness >= oldest)))
    kept = exists & (rank == jnp.where(exists, rank, 2**31 - 1).min())
    kept &= oldness == jnp.where(kept, oldness, 2**31 - 1).min()
    return forgotten & ~kept & (excess > 0)


def _largest(condition: Callable[[Array], Array], bits: int) -> Array:
    """Return the largest `bits`-bit integer that satisfies a monotone condition, or 0 if none."""

    def body(step: int, found: Array) -> Array:
        bound = found | (1 << (bits - 1 - step))
        return jnp.where(condition(bound), bound, found)

    return jax.lax.fori_loop(0, bits, body, varying(jnp.zeros((), jnp.int32)))
