"""Loss-adjusted approximate actor prioritised replay, LA3P (Saglam et al. 2023)."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxreplay import buffer, equivalence, numerics, objectives, sum_tree
from jaxreplay import ring as ring_
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
        "fraction of the rows of the critic and of the actor that are prioritised; 0 is PAL",
        "code of Saglam et al. 2023",
        at_least=0,
        at_most=1,
    )
    sampling: Sampling = option("stratified", options.SAMPLING)

    def parts(self, batch_size: int) -> tuple[int, int]:
        """Return the sizes of the uniform part, and of each of the two prioritised parts.

        Example:
          >>> LA3PConfig().parts(384)
          (128, 128)
        """
        prioritised = round(batch_size * self.fraction / (1 + self.fraction))
        prioritised = min(prioritised, batch_size // 2)  # an odd batch has a uniform row
        return batch_size - 2 * prioritised, prioritised


class LA3PState(NamedTuple):
    """Priorities, and their inverses."""

    priorities: ProportionalState
    inverse: SumTree  # leaves [C] float32, 1 / priority


@dataclasses.dataclass(frozen=True)
class LA3P(Sampler):
    """Draws a batch of three parts: uniform, by the priority p, and by 1 / p, in this order.

    `p = max(|td|, kappa)^alpha` as in LAP. The critic learns from the first two parts, and the
    actor from the first and the last. Only the rows of the critic change priorities.
    """

    config: LA3PConfig = LA3PConfig()

    @property
    def requires(self) -> Requirements:
        return Requirements(feedback=frozenset({"td_error"}))

    @property
    def provides(self) -> frozenset[Provision]:
        return frozenset({"roles"})  # of transitions, by their position in the batch

    def init(self, key: Array, ring: Ring) -> LA3PState:
        return LA3PState(proportional.init(ring.capacity), sum_tree.init(ring.capacity))

    def add(
        self, state: LA3PState, ring: Ring, slots: Array, transition: Tree, **feedback: Array
    ) -> LA3PState:
        largest = proportional.largest(state.priorities)
        inverse = jnp.broadcast_to(1 / largest, slots.shape)
        return LA3PState(
            proportional.insert(state.priorities, slots),
            sum_tree.set(state.inverse, slots, inverse),
        )

    def sample(self, state: LA3PState, ring: Ring, key: Array, batch_size: int) -> Draw:
        uniform, prioritised = self.config.parts(batch_size)
        keys, sampling = jax.random.split(key, 3), self.config.sampling
        size = jnp.maximum(ring_.size(ring), 1)
        parts = [numerics.integers(keys[0], (uniform,), size)]
        if prioritised:
            by_priority = proportional.draw(state.priorities, ring, keys[1], prioritised, sampling)
            by_inverse = sum_tree.sample(state.inverse, keys[2], prioritised, sampling)
            parts += [by_priority[0], jnp.minimum(by_inverse, size - 1)]
        slots = jnp.concatenate(parts)
        chance = self.probability(state, ring, slots, batch_size)
        ones = jnp.ones(batch_size, jnp.float32)
        return Draw(slots, buffer.after(buffer.fence(chance), ones), probability=chance)

    def update(self, state: LA3PState, ring: Ring, sample: Sample, **feedback: Array) -> LA3PState:
        _, prioritised = self.config.parts(len(sample.indices))
        count = len(sample.indices) - prioritised  # of the critic's rows
        slots = jnp.where(jnp.arange(len(sample.indices)) < count, sample.indices, IGNORED)
        leaf = lap.LAPLeaf(self.config.alpha, self.config.kappa)(feedback, slots, ring)
        return LA3PState(
            proportional.write(state.priorities, slots, leaf),
            # Both trees skip priorities that overflow.
            sum_tree.set(state.inverse, slots, jnp.where(leaf < jnp.inf, 1 / leaf, jnp.inf)),
        )

    def probability(self, state: LA3PState, ring: Ring, slots: Array, batch_size: int) -> Array:
        uniform, prioritised = self.config.parts(batch_size)
        even = ring_.even_probability(ring, slots)
        total = sum_tree.total(state.inverse)
        inverse = sum_tree.get(state.inverse, slots) / jnp.where(total > 0, total, 1.0)
        inverse = jnp.where(total > 0, inverse, even)
        chance = proportional.probability(state.priorities, ring, slots)
        return (uniform * even + prioritised * (chance + inverse)) / batch_size

    def metrics(self, state: LA3PState, ring: Ring) -> dict[str, Array]:
        return proportional.metrics(state.priorities, ring)


sampler = LA3P


def method(config: LA3PConfig = LA3PConfig()) -> Method:
    """Return LA3P: the sampler, and an objective in which critic and actor read different rows.

    The loss of the critic is PAL in the uniform part and the Huber loss in the prioritised part,
    averaged over both. Agents without an actor ignore the last part.
    """
    pal, huber = equivalence.pal(config.alpha, config.kappa), objectives.huber(config.kappa)

    def error(td: Array) -> Array:  # [N, B]
        uniform, _ = config.parts(td.shape[-1])
        losses = [huber(td[..., uniform:])]
        if uniform:
            losses = [pal(td[..., :uniform]), *losses]
        return jnp.concatenate(losses, axis=-1)

    def critic(loss: Array, sample: Sample, trust: Trust | None) -> Array:
        return loss[: len(loss) - config.parts(len(loss))[1]].mean()

    def actor(loss: Array, sample: Sample, trust: Trust | None) -> Array:
        uniform, prioritised = config.parts(len(loss))
        rows = jnp.arange(len(loss))
        mask = (rows < uniform) | (rows >= uniform + prioritised)
        return jnp.where(mask, loss, 0.0).sum() / (uniform + prioritised)

    return Method(sampler(config), Objective(error, critic, actor, roles=True))
