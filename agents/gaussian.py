"""Diagonal Gaussian policies, with importance ratios and divergences from the behaviour policy.

Means, variances and actions are `[..., A]`, for A action dimensions, and functions broadcast over
leading axes. Actions are unbounded; environments clip them.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxreplay.types import LOG_RATIO_LIMIT, Array, Trust


class Behaviour(NamedTuple):
    """Mean and variance of the policy that selected an action, stored as extras of the step."""

    mean: Array  # [..., A] float32
    variance: Array  # [..., A] float32


def sample(mean: Array, variance: Array, key: Array, bound: float = 3.0) -> Array:
    """Sample actions `[..., A]`, truncated to `bound` standard deviations around the mean.

    The normalising constant of the truncation cancels in importance ratios (Novati & Koumoutsakos
    2019, App. D).
    """
    z = jax.random.truncated_normal(key, -bound, bound, mean.shape)
    return mean + jnp.sqrt(variance) * z


def act(mean: Array, variance: Array, key: Array) -> tuple[Array, Behaviour]:
    """Sample actions `[E, A]` by `sample`, and return them with their Behaviour.

    Args:
      mean: `[E, A]`.
      variance: `[E, A]`, or `[A]` or `[]` if shared by all E rows.
      key: PRNG key.
    """
    behaviour = Behaviour(mean, jnp.broadcast_to(variance, mean.shape))
    return sample(*behaviour, key), behaviour


def log_prob(mean: Array, variance: Array, action: Array) -> Array:
    """Return the log density `[...]` of actions `[..., A]`."""
    squares = jnp.square(action - mean) / variance + jnp.log(2 * math.pi * variance)
    return -0.5 * squares.sum(axis=-1)


def kl(mean: Array, variance: Array, mean_of: Array, variance_of: Array) -> Array:
    """Return the divergence `KL(N(mean, variance) || N(mean_of, variance_of))` `[...]`."""
    squares = (variance + jnp.square(mean_of - mean)) / variance_of
    return 0.5 * (squares - 1.0 + jnp.log(variance_of / variance)).sum(axis=-1)


def trust(mean: Array, variance: Array, behaviour: Behaviour, action: Array) -> Trust:
    """Return clipped log ratios, KL(behaviour || policy) and KL(policy || behaviour), `[...]`."""
    variance = jnp.broadcast_to(variance, mean.shape)
    log_ratio = log_prob(mean, variance, action) - log_prob(*behaviour, action)
    return Trust(
        log_ratio=jnp.clip(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT),
        kl=kl(*behaviour, mean, variance),
        reverse_kl=kl(mean, variance, *behaviour),
    )
