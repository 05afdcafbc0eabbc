"""Uniform replay (Lin 1992; Mnih et al. 2015): every stored transition is equally likely."""

import dataclasses

import jax.numpy as jnp

from jaxreplay import objectives
from jaxreplay import ring as ring_
from jaxreplay._internal import random_bits
from jaxreplay.fields import Row
from jaxreplay.methods.parts.options import LossOptions
from jaxreplay.option import takes_own_config
from jaxreplay.ring import Ring
from jaxreplay.types import Array, Draw, Method, Sample, Sampler


@dataclasses.dataclass(frozen=True)
class UniformConfig(LossOptions):
    """Hyperparameters of uniform replay."""


def sampler() -> Sampler:
    """Make the uniform sampler: independent draws with replacement, weights 1, no state."""

    def init(key: Array, ring: Ring) -> tuple[()]:
        del key, ring
        return ()

    def add(
        state: tuple[()], ring: Ring, slots: Array, transition: Row, **feedback: Array
    ) -> tuple[()]:
        del ring, slots, transition, feedback
        return state

    def sample(state: tuple[()], ring: Ring, key: Array, batch_size: int) -> Draw:
        del state
        size = jnp.maximum(ring_.size(ring), 1)
        indices = random_bits.integers(key, (batch_size,), size)
        ones = jnp.ones((batch_size,), jnp.float32)
        return Draw(indices, ones, probability=ones / size)

    def update(state: tuple[()], ring: Ring, sample: Sample, **feedback: Array) -> tuple[()]:
        del ring, sample, feedback
        return state

    return Sampler(init, add, sample, update, even=True)


@takes_own_config
def method(config: UniformConfig = UniformConfig(), updates: int | None = None) -> Method:
    """Make uniform replay; `updates` (the run's gradient steps) is not used."""
    del updates
    return Method(sampler(), objectives.plain(config.named_loss))
