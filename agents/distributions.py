"""A diagonal Gaussian squashed into (-1, 1) by tanh (Haarnoja et al. 2018, App. C)."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
_EPS = 1e-6  # keeps log(1 - a^2) finite when tanh saturates


class TanhNormal(NamedTuple):
    """The distribution of tanh(u), where u ~ N(mean, exp(log_std)^2) in each dimension."""

    mean: Array  # [..., A] float32
    log_std: Array  # [..., A] float32


def from_outputs(outputs: Array) -> TanhNormal:
    """Split network outputs `[..., 2 A]` into means, and log stds that are clipped to [-20, 2]."""
    mean, log_std = jnp.split(outputs, 2, axis=-1)
    return TanhNormal(mean, jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX))


def _log_prob(dist: TanhNormal, z: Array, u: Array) -> Array:
    normal = -0.5 * jnp.square(z) - dist.log_std - 0.5 * math.log(2 * math.pi)
    return jnp.sum(normal - jnp.log(1 - jnp.square(jnp.tanh(u)) + _EPS), axis=-1)


def log_prob_of_pre_tanh(dist: TanhNormal, u: Array) -> Array:
    """Return the log density `[...]` of actions tanh(u), for u `[..., A]`.

    Fujimoto et al. 2020, Eq. 28.
    """
    return _log_prob(dist, (u - dist.mean) * jnp.exp(-dist.log_std), u)


def log_prob(dist: TanhNormal, action: Array) -> Array:
    """Return the log density `[...]` of actions `[..., A]` after clipping them to (-1, 1)."""
    return log_prob_of_pre_tanh(dist, jnp.arctanh(jnp.clip(action, -1 + _EPS, 1 - _EPS)))


def sample_and_log_prob(dist: TanhNormal, key: Array) -> tuple[Array, Array]:
    """Sample reparameterised actions `[..., A]`; return them and their log densities `[...]`."""
    z = jax.random.normal(key, dist.mean.shape)
    u = dist.mean + jnp.exp(dist.log_std) * z
    # Pass z, since (u - mean) / std loses all precision if std is much smaller than the mean.
    return jnp.tanh(u), _log_prob(dist, z, u)


def mode(dist: TanhNormal) -> Array:
    """Return the greedy action `tanh(mean)` `[..., A]`."""
    return jnp.tanh(dist.mean)
