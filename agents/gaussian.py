"""The diagonal Gaussian policy: its actions, and how far it is from the policy that acted.

Per example: means, variances and actions are `[A]`; batches come by vmap or leading axes, over
which everything here broadcasts. Actions are not bounded (environments clip them).
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxreplay.types import LOG_RATIO_LIMIT, Array, Trust


class Behaviour(NamedTuple):
    """The policy that acted, stored with each step as extras."""

    mean: Array  # [..., A] float32
    variance: Array  # [..., A] float32


def sample(mean: Array, variance: Array, key: Array, bound: float = 3.0) -> Array:
    """Draw actions `[..., A]` within `bound` standard deviations of the mean.

    The truncation's constant cancels in importance ratios (Novati & Koumoutsakos 2019, App. D).
    """
    z = jax.random.truncated_normal(key, -bound, bound, mean.shape)
    return mean + jnp.sqrt(variance) * z


def act(mean: Array, variance: Array, key: Array) -> tuple[Array, Behaviour]:
    """Draw actions `[E, A]`, and say what drew them.

    Args:
      mean: `[E, A]`.
      variance: `[E, A]`, or `[A]` or `[]` if it is the same in every state.
      key: of the noise.
    """
    behaviour = Behaviour(mean, jnp.broadcast_to(variance, mean.shape))
    return sample(*behaviour, key), behaviour


def log_prob(mean: Array, variance: Array, action: Array) -> Array:
    """Return the log density `[...]` of actions."""
    squares = jnp.square(action - mean) / variance + jnp.log(2 * math.pi * variance)
    return -0.5 * squares.sum(axis=-1)


def kl(mean: Array, variance: Array, mean_of: Array, variance_of: Array) -> Array:
    """Return `KL(N(mean, variance) || N(mean_of, variance_of))`, `[...]`."""
    squares = (variance + jnp.square(mean_of - mean)) / variance_of
    return 0.5 * (squares - 1.0 + jnp.log(variance_of / variance)).sum(axis=-1)


def trust(mean: Array, variance: Array, behaviour: Behaviour, action: Array) -> Trust:
    """Return how far the policy `N(mean, variance)` is from the behaviour that took `action`."""
    variance = jnp.broadcast_to(variance, mean.shape)
    log_ratio = log_prob(mean, variance, action) - log_prob(*behaviour, action)
    return Trust(
        log_ratio=jnp.clip(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT),
        kl=kl(*behaviour, mean, variance),
        reverse_kl=kl(mean, variance, *behaviour),
    )
