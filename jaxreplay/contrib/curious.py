"""Curious replay (Kauvar et al. 2023): priorities from visit counts and losses."""

import dataclasses
from typing import Literal, NamedTuple

import jax.numpy as jnp

from jaxreplay import buffer, counters, objectives
from jaxreplay import ring as ring_
from jaxreplay.buffer import Buffer
from jaxreplay.methods import options, proportional
from jaxreplay.methods.proportional import ProportionalState
from jaxreplay.numerics import to_power
from jaxreplay.objectives import LossName
from jaxreplay.option import Config, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler
from jaxreplay.sum_tree import Sampling
from jaxreplay.types import IGNORED, Array, Draw, Requirements, Sample, Tree

_CODE = "code of Kauvar et al. 2023"


@dataclasses.dataclass(frozen=True)
class CuriousConfig(Config):
    """Hyperparameters of curious replay.

    A visit is an update with the transition. With the default options, the visit term dominates the
    priority of a transition up to about 26 visits.
    """

    alpha: float = option(0.7, "exponent of the loss", _CODE, at_least=0)
    epsilon: float = option(
        0.01, "constant added to |loss| before exponentiation", _CODE, at_least=0
    )
    signal: Literal["td_error", "model_loss"] = option(
        "td_error",
        "loss in priorities: the TD error, or the loss of the agent's model, as in the paper",
    )
    count_scale: float = option(
        1e4, "weight of the visit term; 0 leaves only the loss", _CODE, at_least=0
    )
    count_decay: float = option(
        0.7, "factor by which each visit multiplies the visit term", _CODE, at_least=0, at_most=1
    )
    new_priority: float = option(1e5, "priority of new transitions", _CODE, above=0)
    sampling: Sampling = option("stratified", options.SAMPLING)
    loss: LossName = option("agent", options.LOSS)


class CuriousState(NamedTuple):
    """Priorities and numbers of visits of all slots."""

    priorities: ProportionalState
    visits: Buffer  # [R, 128] int32 (`buffer.in_rows`), number of updates with the transition


@dataclasses.dataclass(frozen=True)
class Curious(Sampler):
    """Samples with priorities `count_scale count_decay^v + (|loss| + epsilon)^alpha`.

    v is the number of updates with the transition, including the one that provides the loss; a
    batch that repeats a transition counts once. Importance weights are 1.
    """

    config: CuriousConfig = CuriousConfig()

    @property
    def requires(self) -> Requirements:
        return Requirements(feedback=frozenset({self.config.signal}))

    def init(self, key: Array, ring: Ring) -> CuriousState:
        visits = buffer.in_rows(jnp.zeros(ring.capacity, jnp.int32))
        return CuriousState(proportional.init(ring.capacity), visits)

    def add(
        self, state: CuriousState, ring: Ring, slots: Array, transition: Tree, **feedback: Array
    ) -> CuriousState:
        new = jnp.full(slots.shape, self.config.new_priority, jnp.float32)
        priorities = proportional.insert(state.priorities, slots, new)
        visits = buffer.write_elements(state.visits, slots, jnp.zeros_like(slots))
        return CuriousState(priorities, visits)

    def sample(self, state: CuriousState, ring: Ring, key: Array, batch_size: int) -> Draw:
        sampling = self.config.sampling
        slots, chance = proportional.draw(state.priorities, ring, key, batch_size, sampling)
        weights = proportional.weights(None, state.priorities, ring, chance)
        return Draw(slots, weights, probability=chance)

    def update(
        self, state: CuriousState, ring: Ring, sample: Sample, **feedback: Array
    ) -> CuriousState:
        slots = sample.indices
        before = buffer.read_elements(state.visits, jnp.where(slots != IGNORED, slots, 0))
        visits = counters.increment(before)
        values = priority(feedback[self.config.signal], visits, self.config)
        return CuriousState(
            proportional.write(state.priorities, slots, values),
            buffer.write_elements(state.visits, slots, visits),
        )

    def probability(self, state: CuriousState, ring: Ring, slots: Array, batch_size: int) -> Array:
        return proportional.probability(state.priorities, ring, slots)

    def metrics(self, state: CuriousState, ring: Ring) -> dict[str, Array]:
        size = jnp.maximum(ring_.size(ring), 1)
        visits = buffer.of_slots(state.visits, ring.capacity).astype(jnp.float32)
        return {
            **proportional.metrics(state.priorities, ring),
            "mean_visits": visits.sum() / size,
            "max_visits": visits.max(),
        }


sampler = Curious


def method(config: CuriousConfig = CuriousConfig()) -> Method:
    """Return curious replay: the sampler, and an objective that averages losses.

    Agents without a model offer `td_error` only; with `signal="model_loss"`, pass the losses of
    your model to `Replay.update` in your own loop.
    """
    return Method(sampler(config), objectives.plain(objectives.named(config.loss)))


def priority(loss: Array, visits: Array, config: CuriousConfig) -> Array:
    """Return priorities `[B]` float32, given losses `[B]` and numbers of visits `[B]` int32.

    Example:
      >>> priority(jnp.zeros(2), jnp.array([0, 1]), CuriousConfig()).round(2).tolist()
      [10000.0400390625, 7000.0400390625]
    """
    novelty = config.count_scale * jnp.float32(config.count_decay) ** visits
    return novelty + to_power(jnp.abs(loss) + config.epsilon, config.alpha)
