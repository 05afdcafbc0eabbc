"""Noise of a fixed size around a deterministic policy, and the density it gives the policy."""

from typing import Any, NamedTuple, cast

import jax.numpy as jnp

from agents import gaussian
from agents.gaussian import Behaviour
from agents.options import NoiseOptions
from jaxreplay.objectives import Objective
from jaxreplay.types import Array, Transition, Trust

_OU_DECAY = 0.85  # 1 - theta, theta 0.15 (Lillicrap et al. 2016, Sec. 7)


class Extras(NamedTuple):
    """What is stored with each step."""

    behaviour: Behaviour | None = None  # [E, A] each, for replay methods that ask
    noise: Array | None = None  # [E, A], where the Ornstein-Uhlenbeck process is


class NoisyPolicy:
    """What agents share whose policy is deterministic, with noise of a fixed size around it."""

    config: Any  # below NoiseOptions
    objective: Objective

    def greedy(self, state: Any, obs: Any) -> Array:
        """Return the policy's mean `[E, A]`."""
        raise NotImplementedError

    def act(
        self, state: Any, obs: Any, key: Array, previous: Any = None
    ) -> tuple[Array, Extras | None]:
        """Return actions `[E, A]`, and what is stored with them."""
        with_behaviour = self.objective.requires.density
        return explore(self.greedy(state, obs), key, self.config, previous, with_behaviour)

    def trust(self, mean: Array, t: Transition) -> Trust | None:
        """Return how far the policy is from the behaviour in `t`; None if nobody asks."""
        return trust(mean, t, self.config) if self.objective.requires.density else None


def check_noise(config: NoiseOptions, trust: bool) -> None:
    """Refuse noise without a density of its own for methods that compare densities.

    An Ornstein-Uhlenbeck process gives every action a density that depends on the noise before,
    which is no part of the policy: fresh actions would count as far from it.

    Raises:
      ValueError: the noise is correlated, and `trust` is asked for.
    """
    if trust and config.noise != "gaussian":
        raise ValueError(
            f"noise is {config.noise!r}, which has no density for this replay method to compare: "
            "use noise gaussian, or another replay method"
        )


def explore(
    mean: Array, key: Array, config: NoiseOptions, previous: Any, with_behaviour: bool
) -> tuple[Array, Extras | None]:
    """Add noise to mean actions `[E, A]`.

    Args:
      mean: `[E, A]`, what the policy does.
      key: of the noise.
      config: its options.
      previous: Extras of the step before, zeros where an episode begins; None: everywhere.
      with_behaviour: whether to store the behaviour.

    Returns:
      Actions `[E, A]`, and Extras, or None if there is nothing to store.
    """
    variance = jnp.asarray(config.noise_std**2, mean.dtype)
    if config.noise == "gaussian":
        action, behaviour = gaussian.act(mean, variance, key)
        return action, Extras(behaviour) if with_behaviour else None
    drift = jnp.zeros_like(mean) if previous is None else _OU_DECAY * previous.noise
    noise = gaussian.sample(drift, variance, key)
    return mean + noise, Extras(noise=noise)


def trust(mean: Array, t: Transition, config: NoiseOptions) -> Trust:
    """Return how far the policy `N(mean, noise_std^2)` is from the behaviour stored in `t`."""
    behaviour = cast(Behaviour, cast(Extras, t.extras).behaviour)
    return gaussian.trust(mean, jnp.asarray(config.noise_std**2), behaviour, t.action)
