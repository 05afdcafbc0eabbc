"""The choice of episodes to forget when a memory of whole episodes is full."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxreplay._internal.tracing import varying
from jaxreplay.types import Array


def choose_forgotten(share: Array, steps: Array, oldness: Array, memory: int) -> Array:
    """Choose the fewest episodes to forget so that at most `memory` steps remain.

    Episodes are forgotten by descending share of far-policy steps, the oldest first among equals
    (Novati & Koumoutsakos 2019, Alg. 1). One episode always remains, whatever its length. Bisection
    finds the last one to forget in about 60 passes over `[n]`, without a sort.

    Args:
      share: `[n]` float32 in [0, 1], of far-policy steps; all equal for first in, first out.
      steps: `[n]` int32, steps of each episode; 0 for empty entries.
      oldness: `[n]` int32, at least 0, distinct, larger for older episodes.
      memory: number of steps that may remain.

    Returns:
      `[n]` bool, True for episodes to forget.
    """
    exists = steps > 0
    excess = steps.sum() - memory
    # The bits of non-negative floats are ordered like the numbers; those up to 1.0 have 30 bits.
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
    """Return the largest number of `bits` bits that meets a monotone condition, which 0 meets."""

    def body(step: int, found: Array) -> Array:
        bound = found | (1 << (bits - 1 - step))
        return jnp.where(condition(bound), bound, found)

    return jax.lax.fori_loop(0, bits, body, varying(jnp.zeros((), jnp.int32)))
