"""Which whole episodes leave a full memory first."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxreplay._internal.tracing import varying
from jaxreplay.types import Array


def to_forget(share: Array, steps: Array, oldness: Array, memory: int) -> Array:
    """Choose the episodes to be forgotten, so that at most `memory` steps remain.

    Those with the highest share go first, of equals the oldest, and none more than needed
    (Novati & Koumoutsakos 2019, Alg. 1). One episode always stays, however long.

    No sorting: the last to go is found by bisection, the same few passes over `[n]` whatever the
    number of episodes.

    Args:
      share: `[n]` float32 in [0, 1], of far-policy steps; all equal for first in, first out.
      steps: `[n]` int32, steps of each episode; 0 stands for no episode.
      oldness: `[n]` int32, not negative, larger for older episodes, all different.
      memory: steps that may remain.

    Returns:
      `[n]` bool.
    """
    real = steps > 0
    excess = steps.sum() - memory
    # Of floats that are not negative, the bits are ordered like the numbers; 1.0 has 30 of them.
    rank = jax.lax.bitcast_convert_type(share.astype(jnp.float32), jnp.int32)

    def freed(going: Array) -> Array:
        return jnp.where(going, steps, 0).sum()

    least = _largest(lambda bound: freed(rank >= bound) >= excess, bits=30)
    above, equal = rank > least, rank == least
    more = excess - freed(above)
    oldest = _largest(lambda bound: freed(equal & (oldness >= bound)) >= more, bits=31)
    going = real & (above | (equal & (oldness >= oldest)))
    stays = real & (rank == jnp.where(real, rank, 2**31 - 1).min())
    stays &= oldness == jnp.where(stays, oldness, 2**31 - 1).min()
    return going & ~stays & (excess > 0)


def _largest(holds: Callable[[Array], Array], bits: int) -> Array:
    """Return the largest number of so many bits up to which `holds`; it must hold at 0."""

    def body(step: int, found: Array) -> Array:
        bound = found | (1 << (bits - 1 - step))
        return jnp.where(holds(bound), bound, found)

    return jax.lax.fori_loop(0, bits, body, varying(jnp.zeros((), jnp.int32)))
