"""Loss-adjusted approximate actor prioritised replay, LA3P (Saglam et al. 2023)."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jaxreplay import buffer, equivalence, numerics, objectives, sum_tree
from jaxreplay import ring as ring_
from jaxreplay.batches import Parts, join
from jaxreplay.methods import lap, options, proportional
from jaxreplay.methods.proportional import ProportionalState
from jaxreplay.objectives import Objective
from jaxreplay.option import Config, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler
from jaxreplay.sum_tree import Sampling, SumTree
from jaxreplay.types import IGNORED, Array, Draw, Provision, Requirements, Sample, Tree, Trust

DISCRETE: Mapping[str, Any] = lap.DISCRETE  # defaults for discrete actions


@dataclasses.dataclass(frozen=True)
class LA3PConfig(Config):
    """Hyperparameters of LA3P, with the priorities of LAP."""

    alpha: float = option(0.4, options.ALPHA, "Fujimoto et al. 2020, Tab. 6")
    kappa: float = option(1.0, options.KAPPA)
    fraction: float = option(
        0.5,
        "fraction of the critic's and of the actor's transitions that is prioritised; 0 is PAL",
        "code of Saglam et al. 2023",
        at_least=0,
        at_most=1,
    )
    initial: options.Initial = option("max", options.INITIAL)
    maximum: options.Maximum = option("all_time", options.MAXIMUM)
    sampling: Sampling = option("stratified", options.SAMPLING)

    def parts(self, batch_size: int) -> Parts:
        """Return the `Parts` of a batch: drawn uniformly, by priority, and by inverse priority.

        Example:
          >>> LA3PConfig().parts(384).sizes
          (128, 128, 128)
        """
        prioritised = round(batch_size * self.fraction / (1 + self.fraction))
        prioritised = min(prioritised, batch_size // 2)  # an odd batch has a uniform row
        return Parts((batch_size - 2 * prioritised, prioritised, prioritised))


class LA3PState(NamedTuple):
    """Priorities, and their inverses."""

    priorities: ProportionalState
    inverse: SumTree  # leaves [C] float32, 1 / priority


@dataclasses.dataclass(frozen=True)
class LA3P(Sampler):
    """Samples batches of three parts: first uniformly, then by the priority p, then by 1 / p.

    `p = max(|td|, kappa)^alpha` as in LAP. The critic learns from the first two parts, and the
    actor from the first and the last. Only feedback on the first two parts changes priorities.
    """

    weight: ClassVar[None] = None
    config: LA3PConfig = LA3PConfig()

    @property
    def requires(self) -> Requirements:
        of_new = frozenset({"td_error"} if self.config.initial == "td" else ())
        return Requirements(feedback=frozenset({"td_error"}), feedback_of_new=of_new)

    @property
    def provides(self) -> frozenset[Provision]:
        return frozenset({"roles"})  # of transitions, by their position in the batch

    def init(self, key: Array, ring: Ring) -> LA3PState:
        priorities = proportional.init(ring.capacity, maximum=self.config.maximum)
        return LA3PState(priorities, sum_tree.init(ring.capacity))

    def add(
        self, state: LA3PState, ring: Ring, slots: Array, transition: Tree, **feedback: Array
    ) -> LA3PState:
        leaf = self._leaf(feedback, slots, ring) if self.config.initial == "td" else None
        priorities = proportional.insert(state.priorities, slots, leaf)
        inserted = sum_tree.get(priorities.tree, slots)  # the maximum in place of None or NaN
        return LA3PState(priorities, sum_tree.set(state.inverse, slots, 1 / inserted))

    def sample(self, state: LA3PState, ring: Ring, key: Array, batch_size: int) -> Draw:
        uniform, prioritised, _ = self.config.parts(batch_size).sizes
        keys, sampling = jax.random.split(key, 3), self.config.sampling
        size = jnp.maximum(ring_.size(ring), 1)
        slots = numerics.integers(keys[0], (uniform,), size)
        if prioritised:
            by_priority, _ = proportional.draw(
                state.priorities, ring, keys[1], prioritised, sampling
            )
            by_inverse = sum_tree.sample(state.inverse, keys[2], prioritised, sampling)
            slots = join(slots, by_priority, jnp.minimum(by_inverse, size - 1))
        chance = self.probability(state, ring, slots, batch_size)
        ones = jnp.ones(batch_size, jnp.float32)
        return Draw(slots, buffer.after(chance, ones), probability=chance)

    def update(self, state: LA3PState, ring: Ring, sample: Sample, **feedback: Array) -> LA3PState:
        uniform, by_priority, by_inverse = self.config.parts(len(sample.indices)).split(
            sample.indices
        )
        # Only the rows of the critic change priorities.
        slots = join(uniform, by_priority, jnp.full_like(by_inverse, IGNORED))
        leaf = self._leaf(feedback, slots, ring)
        return LA3PState(
            proportional.write(state.priorities, slots, leaf),
            sum_tree.set(state.inverse, slots, _inverse(leaf)),
        )

    def refresh(self, state: LA3PState, ring: Ring, slots: Array, **feedback: Array) -> LA3PState:
        leaf = self._leaf(feedback, slots, ring)
        return LA3PState(
            proportional.refresh(state.priorities, slots, leaf),
            sum_tree.set(state.inverse, slots, _inverse(leaf)),
        )

    def probability(self, state: LA3PState, ring: Ring, slots: Array, batch_size: int) -> Array:
        even = ring_.even_probability(ring, slots)
        total = sum_tree.total(state.inverse)
        inverse = sum_tree.get(state.inverse, slots) / jnp.where(total > 0, total, 1.0)
        inverse = jnp.where(total > 0, inverse, even)
        chance = proportional.probability(state.priorities, ring, slots)
        return self.config.parts(batch_size).probability(even, chance, inverse)

    def metrics(self, state: LA3PState, ring: Ring) -> dict[str, Array]:
        return proportional.metrics(state.priorities, ring)

    def _leaf(self, feedback: Mapping[str, Array], slots: Array, ring: Ring) -> Array:
        return lap.LAPLeaf(self.config.alpha, self.config.kappa)(feedback, slots, ring)


def _inverse(leaf: Array) -> Array:
    """Return `1 / leaf` `[B]`; both trees skip priorities that overflow."""
    return jnp.where(leaf < jnp.inf, 1 / leaf, jnp.inf)


sampler = LA3P


def method(config: LA3PConfig = LA3PConfig()) -> Method:
    """Return LA3P: the sampler, and an objective whose critic and actor learn from different parts.

    The loss of the critic is PAL in the uniform part and the Huber loss in the prioritised part,
    averaged over both. Agents without an actor ignore the last part.
    """
    pal, huber = equivalence.pal(config.alpha, config.kappa), objectives.huber(config.kappa)

    def error(td: Array) -> Array:  # [N, B]
        uniform, _, _ = config.parts(td.shape[-1]).sizes
        losses = [huber(td[..., uniform:])]
        if uniform:
            losses = [pal(td[..., :uniform]), *losses]
        return jnp.concatenate(losses, axis=-1)

    def critic(loss: Array, sample: Sample, trust: Trust | None) -> Array:
        uniform, by_priority, _ = config.parts(len(loss)).split(loss)
        return join(uniform, by_priority).mean()

    def actor(loss: Array, sample: Sample, trust: Trust | None) -> Array:
        uniform, _, by_inverse = config.parts(len(loss)).split(loss)
        return join(uniform, by_inverse).mean()

    return Method(sampler(config), Objective(error, critic, actor, roles=True))
