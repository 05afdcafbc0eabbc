"""Prioritised replay in which priorities decay with every update since they were computed.

The idea is from FreshPER (arXiv:2604.16918), of which only the abstract was available.
"""

import dataclasses
import math
from typing import Literal, NamedTuple, cast

import jax.numpy as jnp

from jaxreplay import sum_tree
from jaxreplay.loops import cond_on_schedule
from jaxreplay.methods import options, per, proportional
from jaxreplay.methods.parts.over import check_proportional, inner_method, over_proportional
from jaxreplay.methods.proportional import Proportional, ProportionalState
from jaxreplay.option import Config, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler
from jaxreplay.types import IGNORED, Array, Draw, Requirements, Sample, Tree

_LARGEST_SCALE = 2.0**16  # leaves are divided by the scale when it has grown to this number


@dataclasses.dataclass(frozen=True)
class FreshConfig(Config):
    """Hyperparameters of decaying priorities; the inner method `over` has its default options."""

    over: Literal["per", "lap"] = option("per", options.OVER)
    over_updates: int | None = option(None, options.OVER_UPDATES)
    decay: float = option(
        0.999,
        "factor by which every update since p was computed multiplies p^alpha; 1: no decay",
        at_least=0.5,
        at_most=1,
    )


class FreshState(NamedTuple):
    """Leaves times `decay^-later`, so that an update changes only the leaves of its batch."""

    scaled: ProportionalState  # only the leaves are scaled, not `max_leaf`
    later: Array  # [] int32, number of updates since the leaves were last divided by the scale


@dataclasses.dataclass(frozen=True)
class Fresh(Sampler):
    """Samples with `P(i) ~ p_i^alpha decay^u_i`, where u_i counts updates since p_i was computed.

    A priority p_i is computed when the transition is added, in `update`, and in `refresh`.
    Importance weights are those of the inner sampler. With the default decay, the priority of a
    transition that is not drawn again underflows to 0 after more than 80,000 updates.

    Args:
      inner: sampler with the priorities and importance weights, such as `per.sampler()`.
      config: options, of which `over` and `over_updates` are ignored.

    Raises:
      ValueError: If the inner sampler is not a `Proportional`, or tracks the smallest probability
        or the largest stored priority.
    """

    inner: Proportional = per.sampler()
    config: FreshConfig = FreshConfig()

    def __post_init__(self) -> None:
        check_proportional(self.inner)

    @property
    def requires(self) -> Requirements:
        return self.inner.requires

    def init(self, key: Array, ring: Ring) -> FreshState:
        return FreshState(self.inner.init(key, ring), jnp.zeros((), jnp.int32))

    def add(
        self, state: FreshState, ring: Ring, slots: Array, transition: Tree, **feedback: Array
    ) -> FreshState:
        largest = state.scaled.max_leaf
        new = jnp.broadcast_to(largest, slots.shape)
        if self.inner.initial == "td":
            leaf = self.inner.leaf(feedback, slots, ring)
            new = jnp.where((leaf >= 0) & (leaf < jnp.inf), leaf, new)
        scaled = proportional.insert(state.scaled, slots, new * self._scale(state.later))
        scaled = scaled._replace(max_leaf=jnp.maximum(largest, new.max()))
        return state._replace(scaled=scaled)

    def sample(self, state: FreshState, ring: Ring, key: Array, batch_size: int) -> Draw:
        return self.inner.sample(state.scaled, ring, key, batch_size)

    def update(
        self, state: FreshState, ring: Ring, sample: Sample, **feedback: Array
    ) -> FreshState:
        slots, later = sample.indices, state.later + 1
        leaf = self.inner.leaf(feedback, slots, ring)
        largest = proportional.count_invalid_and_max(slots != IGNORED, leaf)[1]
        scaled = proportional.write(state.scaled, slots, leaf * self._scale(later))
        scaled = scaled._replace(max_leaf=jnp.maximum(state.scaled.max_leaf, largest))
        if self.config.decay == 1:
            return FreshState(scaled, state.later)
        most = math.ceil(-math.log(_LARGEST_SCALE) / math.log(self.config.decay))
        tree = cond_on_schedule(
            later == most, sum_tree.scaling(self.config.decay**most), scaled.tree
        )
        return FreshState(scaled._replace(tree=tree), jnp.where(later == most, 0, later))

    def refresh(self, state: FreshState, ring: Ring, slots: Array, **feedback: Array) -> FreshState:
        leaf, scale = self.inner.leaf(feedback, slots, ring), self._scale(state.later)
        scaled = proportional.refresh(state.scaled, slots, leaf * scale)
        largest = sum_tree.leaves(scaled.tree).max() / scale
        return state._replace(scaled=scaled._replace(max_leaf=jnp.where(largest > 0, largest, 1.0)))

    def probability(self, state: FreshState, ring: Ring, slots: Array, batch_size: int) -> Array:
        return self.inner.probability(state.scaled, ring, slots, batch_size)

    def metrics(self, state: FreshState, ring: Ring) -> dict[str, Array]:
        scale = self._scale(state.later)
        metrics = self.inner.metrics(state.scaled, ring)
        of_leaves = ("mean_priority", "priority_p10", "priority_p50", "priority_p90")
        return metrics | {name: metrics[name] / scale for name in of_leaves}

    def _scale(self, later: Array) -> Array:
        """Return `decay^-later`, `[]` float32."""
        return jnp.exp(later.astype(jnp.float32) * jnp.float32(-math.log(self.config.decay)))


def sampler(config: FreshConfig = FreshConfig()) -> Fresh:
    """Return `Fresh` over the sampler of the method `config.over` with default options."""
    return Fresh(cast(Proportional, inner_method(config).sampler), config)


def method(config: FreshConfig = FreshConfig()) -> Method:
    """Return decaying priorities: the sampler, and the objective of the inner method."""
    return combine(inner_method(config), config)


def combine(inner: Method, config: FreshConfig = FreshConfig()) -> Method:
    """Return a proportional method, with any options, whose priorities decay with updates.

    Args:
      inner: method with the priorities, importance weights and loss.
      config: options, of which `over` and `over_updates` are ignored.

    Raises:
      ValueError: If `inner` is not a method with a `Proportional` sampler, or if `Fresh` rejects
        the sampler.

    Example:
      >>> from jaxreplay.contrib import relo
      >>> combine(relo.method(relo.ReLoConfig(alpha=0.5))).sampler.requires.feedback
      frozenset({'reducible_loss'})
    """
    return over_proportional(inner, lambda sampler: Fresh(sampler, config))
