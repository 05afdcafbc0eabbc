"""Exploration noise of a fixed size around a deterministic policy, and its density."""

from typing import Any, NamedTuple, cast

import jax.numpy as jnp

from agents import gaussian
from agents.gaussian import Behaviour
from agents.options import NoiseOptions
from jaxreplay.objectives import Objective
from jaxreplay.types import Array, Transition, Trust

_OU_DECAY = 0.85  # 1 - theta, theta 0.15 (Lillicrap et al. 2016, Sec. 7)


class Extras(NamedTuple):
    """Extras stored with each step."""

    behaviour: Behaviour | None = None  # [E, A] each, if the replay method requires a density
    noise: Array | None = None  # [E, A] float32, value of the Ornstein-Uhlenbeck process


class NoisyPolicy:
    """Base class of agents with a deterministic policy and additive noise (DDPG, NAF)."""

    config: Any  # a subclass of NoiseOptions
    objective: Objective

    def greedy(self, state: Any, obs: Any) -> Array:
        """Return the mean actions `[E, A]` of the policy."""
        raise NotImplementedError

    def act(
        self, state: Any, obs: Any, key: Array, previous: Any = None
    ) -> tuple[Array, Extras | None]:
        """Return noisy actions `[E, A]` and their Extras, or None if nothing is stored.

        `previous` are the Extras of the previous step, zeros at the start of an episode; None
        means zeros.
        """
        mean = self.greedy(state, obs)
        variance = jnp.asarray(self.config.noise_std**2, mean.dtype)
        if self.config.noise == "gaussian":
            action, behaviour = gaussian.act(mean, variance, key)
            return action, Extras(behaviour) if self.objective.requires.density else None
        drift = jnp.zeros_like(mean) if previous is None else _OU_DECAY * previous.noise
        noise = gaussian.sample(drift, variance, key)
        return mean + noise, Extras(noise=noise)

    def trust(self, mean: Array, t: Transition) -> Trust | None:
        """Return ratio and divergence of `N(mean, noise_std^2)` and the stored behaviour policy.

        None if the objective requires no density.
        """
        if not self.objective.requires.density:
            return None
        behaviour = cast(Behaviour, cast(Extras, t.extras).behaviour)
        return gaussian.trust(mean, jnp.asarray(self.config.noise_std**2), behaviour, t.action)


def check_noise(config: NoiseOptions, density: bool) -> None:
    """Raise ValueError if a method requires a density and the noise is correlated in time.

    The density of an Ornstein-Uhlenbeck process depends on the previous noise, which is not part of
    the policy: even new actions would count as far-policy.
    """
    if density and config.noise != "gaussian":
        raise ValueError(
            f"noise is {config.noise!r}, whose density this replay method can't compare: "
            "use noise gaussian, or another replay method"
        )
