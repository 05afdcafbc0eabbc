"""Uniform replay (Lin 1992; Mnih et al. 2015): every stored transition is equally likely."""

import dataclasses

import jax.numpy as jnp

from jaxreplay import devices, numerics, objectives
from jaxreplay import ring as ring_
from jaxreplay.methods import options
from jaxreplay.objectives import LossName
from jaxreplay.option import Config, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler
from jaxreplay.types import Array, Draw


@dataclasses.dataclass(frozen=True)
class UniformConfig(Config):
    """Hyperparameters of uniform replay."""

    loss: LossName = option("agent", options.LOSS)


@dataclasses.dataclass(frozen=True)
class Uniform(Sampler):
    """Samples stored transitions uniformly with replacement; importance weights are 1."""

    needs_whole = None

    @property
    def is_uniform(self) -> bool:
        return True

    def init(self, key: Array, ring: Ring) -> None:
        return None

    def sample(self, state: None, ring: Ring, key: Array, batch_size: int) -> Draw:
        size = jnp.maximum(ring_.size(ring), 1)
        indices = numerics.integers(key, (batch_size,), size)
        ones = jnp.ones((batch_size,), jnp.float32)
        return Draw(indices, ones, probability=devices.share(ones / size, ring.axis_name))


sampler = Uniform


def method(config: UniformConfig = UniformConfig()) -> Method:
    """Return uniform replay, the baseline: the sampler, and an objective that averages losses.

    Args:
      config: options; `loss` replaces the agent's own loss on the TD error.
    """
    return Method(sampler(), objectives.plain(objectives.named(config.loss)))
