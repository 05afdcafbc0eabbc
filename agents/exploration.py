"""Fixed-scale exploration noise around a deterministic policy, and the action density."""

from typing import Any, NamedTuple, cast

import jax.numpy as jnp

from agents import gaussian
from agents.gaussian import Behaviour
from jaxreplay.objectives import Objective
from jaxreplay.types import Array, Transition, Trust

_OU_DECAY = 0.85  # 1 - theta, with theta = 0.15 (Lillicrap et al. 2016, Sec. 7)


class Extras(NamedTuple):
    """Extras stored with each step of E environments."""

    behaviour: Behaviour | None = None  # [E, A] each; None unless an action density is required
    noise: Array | None = None  # [E, A] float32, Ornstein-Uhlenbeck noise


class NoisyPolicy:
    """Base class for agents with a deterministic policy and additive noise (DDPG, NAF)."""

    config: Any  # with the options `noise` and `noise_std`
    objective: Objective

    def greedy(self, state: Any, obs: Any) -> Array:
        """Return the policy's mean actions `[E, A]`."""
        raise NotImplementedError

    def act(
        self, state: Any, obs: Any, key: Array, previous: Any = None
    ) -> tuple[Array, Extras | None]:
        """Add noise to the mean actions, and return the actions `[E, A]` and Extras or None.

        `previous` contains the Extras of the previous step, or zeros at the start of an episode.
        None is equivalent to zeros.
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
        """Return the `Trust` of `N(mean, noise_std^2)`, compared with the stored behaviour policy.

        Return None if the objective does not require an action density.
        """
        if not self.objective.requires.density:
            return None
        behaviour = cast(Behaviour, cast(Extras, t.extras).behaviour)
        return gaussian.trust(mean, jnp.asarray(self.config.noise_std**2), behaviour, t.action)


def check_noise(noise: str, density: bool) -> None:
    """Raise ValueError if an action density is required but the noise is correlated over time.

    With Ornstein-Uhlenbeck noise, the action density depends on the previous noise and not only on
    the policy. Replay methods would classify even new actions as far from the current policy.
    """
    if density and noise != "gaussian":
        raise ValueError(
            "noise must be 'gaussian' for replay methods that compare densities, got "
            f"{noise!r}: use noise='gaussian', or another replay method"
        )
