"""Prioritised replay with random reshuffling, after RR-M (Fujita 2025).

RR-M masks transitions that were drawn more often than their priorities call for. Here, the mask is
soft: it multiplies priorities by a factor that depends on the count.
"""

import dataclasses
from typing import Literal, NamedTuple, cast

import jax.numpy as jnp

from jaxreplay import buffer, sum_tree
from jaxreplay import ring as ring_
from jaxreplay.buffer import Buffer
from jaxreplay.methods import options, per, proportional
from jaxreplay.methods.parts.over import check_proportional, inner_method, over_proportional
from jaxreplay.methods.proportional import Proportional, ProportionalState
from jaxreplay.option import Config, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler
from jaxreplay.types import IGNORED, Array, Draw, Requirements, Sample, Tree

_PAPER = "Fujita 2025"


@dataclasses.dataclass(frozen=True)
class MaskedConfig(Config):
    """Hyperparameters of reshuffling; the inner method has its default options (see `combine`)."""

    over: Literal["per", "lap"] = option(
        "per",
        "method that provides the priorities, importance weights and loss",
        f"{_PAPER}: lap",
    )
    over_updates: int | None = option(None, options.OVER_UPDATES)
    strength: float = option(
        0.3,  # keeps variances of excesses near 2.5
        "strength k of the mask exp(-k x) for x draws more than expected; 0: no mask",
        at_least=0,
        at_most=1,
    )


class MaskedState(NamedTuple):
    """Priorities, masked priorities and counts.

    `progress` is the sum over updates of B / (sum of the masked priorities). While `progress`
    increases by d, a transition with priority p is therefore expected to be drawn `p * d` times.
    """

    masked: ProportionalState  # its leaves are masked priorities, and its maximum is not masked
    counts: Buffer  # [C, 3] float32: priority, excess when it was last drawn, `progress` then
    progress: Array  # [] float32
    rest: Array  # [] float32, part of `progress` that is lost by rounding


@dataclasses.dataclass(frozen=True)
class Masked(Sampler):
    """Samples like a proportional sampler, but counts of draws stay close to their expectations.

    An update increases the expected count of each transition in proportion to its priority p, and
    the actual count by 1 for each row with the transition. The excess x is the actual minus the
    expected count when the transition was last drawn. Transitions are drawn in proportion to
    `p exp(-k x)`, where the factor `exp(-k x)` is clipped to [1/4, 4]. A positive excess delays the
    next draw, and a negative excess brings it forward. Excesses therefore stay bounded, and the
    difference between shares of draws and shares of priorities falls as 1 / (number of batches).
    New transitions have counts of 0. `update` must be called once for each batch.

    Importance weights are those of the inner sampler, computed from probabilities without the mask.

    Args:
      inner: sampler with the priorities and importance weights, such as `lap.sampler()`.
      config: options, of which `over` and `over_updates` are ignored.

    Raises:
      ValueError: If the inner sampler is not a `Proportional`, or tracks the smallest probability
        or the largest stored priority.
    """

    inner: Proportional = per.sampler()
    config: MaskedConfig = MaskedConfig()

    def __post_init__(self) -> None:
        check_proportional(self.inner)

    @property
    def requires(self) -> Requirements:
        return self.inner.requires

    def init(self, key: Array, ring: Ring) -> MaskedState:
        counts, zero = jnp.zeros((ring.capacity, 3), jnp.float32), jnp.zeros((), jnp.float32)
        return MaskedState(self.inner.init(key, ring), counts, zero, zero)

    def add(
        self, state: MaskedState, ring: Ring, slots: Array, transition: Tree, **feedback: Array
    ) -> MaskedState:
        masked = self.inner.add(state.masked, ring, slots, transition, **feedback)
        new = sum_tree.get(masked.tree, slots)
        counts = _row(new, jnp.zeros_like(new), state.progress)
        return state._replace(masked=masked, counts=buffer.write(state.counts, slots, counts))

    def sample(self, state: MaskedState, ring: Ring, key: Array, batch_size: int) -> Draw:
        slots, chance = proportional.draw(state.masked, ring, key, batch_size, self.inner.sampling)
        if self.inner.weight is not None:
            slots, total = buffer.once(slots), sum_tree.total(state.masked.tree)
            # The sum of masked priorities approaches that of priorities.
            unmasked = buffer.read_columns(state.counts, slots, range(1))[:, 0] / jnp.where(
                total > 0, total, 1.0
            )
            chance = jnp.where(total > 0, unmasked, chance)
        return Draw(slots, proportional.weights(self.inner.weight, state.masked, ring, chance))

    def update(
        self, state: MaskedState, ring: Ring, sample: Sample, **feedback: Array
    ) -> MaskedState:
        slots, total = sample.indices, sum_tree.total(state.masked.tree)
        valid = slots != IGNORED
        count = valid.sum().astype(jnp.float32)
        rest = state.rest + jnp.where(total > 0, count / jnp.where(total > 0, total, 1.0), 0.0)
        progress = state.progress + rest
        rest = rest - (progress - state.progress)
        # Each of several rows with the same transition counts.
        ones = jnp.ones(slots.shape, jnp.float32)
        counts = buffer.add(state.counts, slots, _row(0 * ones, ones, jnp.zeros(())))
        before, excess, since = buffer.read(counts, jnp.where(valid, slots, 0)).T
        excess = excess - before * ((progress - since) + rest)
        leaf = self.inner.leaf(feedback, slots, ring)
        largest = proportional.count_invalid_and_max(valid, leaf)[1]
        masked = proportional.write(state.masked, slots, leaf * mask(excess, self.config.strength))
        masked = masked._replace(max_leaf=jnp.maximum(state.masked.max_leaf, largest))
        priority = jnp.where((leaf >= 0) & (leaf < jnp.inf), leaf, before)
        counts = buffer.write(counts, slots, _row(priority, excess, progress))
        return MaskedState(masked, counts, progress, rest)

    def probability(self, state: MaskedState, ring: Ring, slots: Array, batch_size: int) -> Array:
        return proportional.probability(state.masked, ring, slots)

    def metrics(self, state: MaskedState, ring: Ring) -> dict[str, Array]:
        priority, excess, since = state.counts.T
        excess = excess - priority * ((state.progress - since) + state.rest)
        size = jnp.maximum(ring_.size(ring), 1)
        excess = jnp.where(jnp.arange(ring.capacity) < size, excess, 0.0)
        return {
            **self.inner.metrics(state.masked, ring),
            "rms_excess": jnp.sqrt(jnp.square(excess).sum() / size),
        }


def _row(priority: Array, excess: Array, progress: Array) -> Array:
    return jnp.stack([priority, excess, jnp.broadcast_to(progress, excess.shape)], axis=-1)


def mask(excess: Array, strength: float) -> Array:
    """Return factors `[B]` of priorities, `exp(-strength excess)` clipped to [1/4, 4].

    Example:
      >>> mask(jnp.array([0.0, 100.0, -100.0]), 0.3).tolist()
      [1.0, 0.25, 4.0]
    """
    return jnp.clip(jnp.exp(-strength * excess), 0.25, 4.0)


def sampler(config: MaskedConfig = MaskedConfig()) -> Masked:
    """Return `Masked` over the sampler of the method `config.over` with default options."""
    return Masked(cast(Proportional, inner_method(config).sampler), config)


def method(config: MaskedConfig = MaskedConfig()) -> Method:
    """Return reshuffled prioritised replay: the sampler, and the objective of the inner method."""
    return combine(inner_method(config), config)


def combine(inner: Method, config: MaskedConfig = MaskedConfig()) -> Method:
    """Return a proportional method, with any options, whose counts of draws follow its priorities.

    Args:
      inner: method with the priorities, importance weights and loss.
      config: options, of which `over` and `over_updates` are ignored.

    Raises:
      ValueError: If `inner` is not a method with a `Proportional` sampler, or if `Masked` rejects
        the sampler.

    Example:
      >>> from jaxreplay.contrib import relo
      >>> combine(relo.method(relo.ReLoConfig(alpha=0.5))).sampler.requires.feedback
      frozenset({'reducible_loss'})
    """
    return over_proportional(inner, lambda sampler: Masked(sampler, config))
