"""Sequences of successive steps for recurrent agents, uniform or prioritised (R2D2).

Kapturowski et al. 2019. Batches are `[B, T, ...]`: B sequences of T steps of one environment, each
in the order of time. The recurrent state that the agent had when it acted is a field of the row
like any other; that of a sequence's first step is where unrolling begins.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp

from jaxreplay import objectives, sum_tree
from jaxreplay import ring as ring_
from jaxreplay._internal import buffer, schedules
from jaxreplay._internal.buffer import Buffer
from jaxreplay._internal.numerics import to_power
from jaxreplay._internal.tracing import as_by_default
from jaxreplay.methods import proportional
from jaxreplay.methods.parts.options import SamplingOptions
from jaxreplay.methods.proportional import ImportanceWeights, ProportionalState
from jaxreplay.option import check_config_class, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler
from jaxreplay.types import IGNORED, Array, Draw, Requirements, Sample, Tree, get_field, has_field

_PAPER = "Kapturowski et al. 2019"


@dataclasses.dataclass(frozen=True)
class SequencesConfig(SamplingOptions):
    """Hyperparameters of replayed sequences.

    The paper's burn-in of 40 steps comes before the 80: `length=120, burn_in=40`.
    """

    length: int = option(
        80,
        "T: steps of a sequence, those of the burn-in included",
        f"{_PAPER}, hyperparameters",
        at_least=1,
    )
    period: int = option(
        40, "steps of an episode from one sequence's start to the next's", _PAPER, at_least=1
    )
    burn_in: int = option(
        0, "first steps of a sequence that only bring the recurrent state up to date", at_least=0
    )
    prioritised: bool = option(True, "draw by priority; false: all sequences are equally likely")
    eta: float = option(
        0.9,
        "share of the largest |TD error| in a sequence's priority; the rest is their mean's",
        f"{_PAPER}, Sec. 2.3",
        at_least=0,
        at_most=1,
    )
    alpha: float = option(
        0.9, "prioritisation exponent, 0 is uniform", f"{_PAPER}, hyperparameters", at_least=0
    )
    beta: float = option(
        0.6,
        "importance-sampling exponent, constant; weights are divided by the batch's largest",
        f"{_PAPER}, hyperparameters",
        at_least=0,
        at_most=1,
    )
    epsilon: float = option(
        1e-6, "added to the priority before the exponent; not given in the paper", at_least=0
    )

    @property
    def weight(self) -> ImportanceWeights:
        """Importance weights with a constant beta, divided by the batch's largest."""
        return ImportanceWeights(schedules.linear(self.beta, self.beta, None))

    def check(self) -> None:
        """Refuse sizes by which some steps would never be learned from."""
        if self.burn_in >= self.length:
            raise ValueError(
                f"burn_in is {self.burn_in}: it must leave something of the {self.length} steps"
            )
        if self.period > self.length - self.burn_in:
            raise ValueError(
                f"period is {self.period}: beyond {self.length - self.burn_in} (length - burn_in), "
                "steps between two sequences would never be learned from"
            )


class Aux(NamedTuple):
    """Which steps of a batch are what they seem."""

    mask: Array  # [B, T] bool, steps of the episode that the sequence begins in
    learn: Array  # [B, T] bool, of these, the steps after the burn-in: what losses run over


class SequencesState(NamedTuple):
    """Priorities of sequences, and where episodes are."""

    priorities: ProportionalState  # leaves are the sequences', at the slot of their first step
    episode: Buffer  # [C] int32, the number of the slot's episode in its lane
    current: Array  # [E] int32, of the newest step's
    position: Array  # [E] int32, steps of this episode before the newest, modulo the period
    ended: Array  # [E] bool, the newest step was its last
    recent: Array  # [T, E] int32, episodes of the T newest rows, in turn
    starts: Array  # [T, E] bool, whether a sequence starts there
    newest: Array  # [] int32, a clock modulo T: where in these two the newest row is


@as_by_default
def priority(td_error: Array, learn: Array, eta: float) -> Array:
    """Return `eta max|td| + (1 - eta) mean|td|` `[B]` over the steps that are learned from.

    Kapturowski et al. 2019, Sec. 2.3.

    Args:
      td_error: `[B, T]`.
      learn: `[B, T]` bool; without any, the priority is 0.
      eta: share of the largest.
    """
    size = jnp.where(learn, jnp.abs(td_error), 0.0)
    mean = size.sum(axis=1) / jnp.maximum(learn.sum(axis=1), 1)
    return eta * size.max(axis=1) + (1.0 - eta) * mean


@dataclasses.dataclass(frozen=True)
class Sequences(Sampler):
    """Samples sequences of T successive steps of one environment, `[B, T]`.

    A sequence starts at an episode's first step and every `period` steps after, once T steps from
    there are stored and the episode outlasts the burn-in. It may extend beyond the end of its
    episode, where `Aux.mask` is False, and never crosses the write cursor: it is dropped when its
    first step is overwritten. New sequences have the largest priority so far. `update` takes
    `td_error` `[B, T]`, of which the steps in `Aux.learn` count.

    `batch_size` is the number of sequences. Transitions have a field `last`, or `first`, or both.
    """

    config: SequencesConfig = SequencesConfig()

    @property
    def requires(self) -> Requirements:
        """TD errors, if sequences are prioritised."""
        names = {"td_error"} if self.config.prioritised else set()
        return Requirements(feedback=frozenset(names))

    @property
    def is_uniform(self) -> bool:
        return not self.config.prioritised

    @property
    def length(self) -> int:
        return self.config.length

    def init(self, key: Array, ring: Ring) -> SequencesState:
        self._check(ring)
        lanes = ring.num_envs
        return SequencesState(
            priorities=proportional.init(ring.capacity),
            episode=jnp.zeros(ring.capacity, jnp.int32),
            current=jnp.full(lanes, -1, jnp.int32),
            position=jnp.full(lanes, -1, jnp.int32),
            ended=jnp.ones(lanes, bool),
            recent=jnp.zeros((self.config.length, lanes), jnp.int32),
            starts=jnp.zeros((self.config.length, lanes), bool),
            newest=jnp.full((), self.config.length - 1, jnp.int32),
        )

    def add(
        self,
        state: SequencesState,
        ring: Ring,
        slots: Array,
        transition: Tree,
        **feedback: Array,
    ) -> SequencesState:
        """Insert sequences that are complete now, and drop those that lose their first step."""
        state = _enter(self.config, state, ring, slots, transition)
        first, complete = _completed(self.config, state, ring)
        # Those whose first step has just been overwritten.
        gone = slots if self.config.length > 1 else jnp.full_like(slots, IGNORED)
        places = jnp.concatenate([gone, jnp.where(complete, first, IGNORED)])
        new = jnp.broadcast_to(state.priorities.max_leaf, first.shape)
        values = jnp.concatenate([jnp.zeros_like(new), new])
        return state._replace(priorities=proportional.insert(state.priorities, places, values))

    def sample(self, state: SequencesState, ring: Ring, key: Array, batch_size: int) -> Draw:
        config = self.config
        first, stats = proportional.draw(state.priorities, ring, key, batch_size, config.sampling)
        slots = _sequence(config, ring, first)
        episode = buffer.read(state.episode, slots.ravel()).reshape(slots.shape)
        some = self.ready(state, ring, batch_size)
        mask = (episode == episode[:, :1]) & some
        learn = mask & (jnp.arange(config.length) >= config.burn_in)
        weights = jnp.ones(batch_size, jnp.float32)
        if config.prioritised:
            weights = proportional.weights(config.weight, stats)
        return Draw(slots, jnp.where(some, weights, 0.0), Aux(mask, learn), stats.probability)

    def update(
        self, state: SequencesState, ring: Ring, sample: Sample, **feedback: Array
    ) -> SequencesState:
        if not self.config.prioritised:
            return state
        told = sample.aux.learn & (sample.indices != IGNORED)
        size = priority(feedback["td_error"], told, self.config.eta)
        # The first step of a sequence may have no feedback: any other step gives its slot.
        step = jnp.argmax(told, axis=1)
        there = jnp.take_along_axis(sample.indices, step[:, None], axis=1)[:, 0]
        first = (there - step * ring.num_envs) % ring.capacity
        known = told.any(axis=1) & (ring_.version(ring, first) == sample.version[:, 0])
        first = jnp.where(known, first, IGNORED)
        leaf = to_power(size + self.config.epsilon, self.config.alpha)
        return state._replace(priorities=proportional.write(state.priorities, first, leaf))

    def probability(
        self, state: SequencesState, ring: Ring, slots: Array, batch_size: int
    ) -> Array:
        tree = state.priorities.tree
        # First slots of the sequences that a slot may be in.
        firsts = _sequence(self.config, ring, slots, back=True)
        mass = sum_tree.get(tree, firsts.ravel()).reshape(firsts.shape).sum(axis=1)
        total = sum_tree.total(tree)
        return mass / (self.config.length * jnp.where(total > 0, total, 1.0))

    def ready(self, state: SequencesState, ring: Ring, batch_size: int) -> Array:
        return sum_tree.total(state.priorities.tree) > 0

    def metrics(self, state: SequencesState, ring: Ring) -> dict[str, Array]:
        tree = state.priorities.tree
        count = (sum_tree.leaves(tree) > 0).sum()
        return {
            "sequences": count.astype(jnp.float32),
            "mean_priority": sum_tree.total(tree) / jnp.maximum(count, 1),
            "max_priority": state.priorities.max_leaf,
            "skipped_leaves": state.priorities.skipped.astype(jnp.float32),
        }

    def end_episodes(self, state: SequencesState, ring: Ring) -> SequencesState:
        return state._replace(ended=jnp.ones_like(state.ended))

    def _check(self, ring: Ring) -> None:
        """Raise ValueError if the ring is too short, or does not mark episodes."""
        length, period, steps = self.config.length, self.config.period, ring_.rows(ring)
        if steps < length + period - 1:
            raise ValueError(
                f"capacity has {steps} steps of each environment: sequences of length {length}, "
                f"one every {period} steps, need at least {length + period - 1}"
            )
        blank = ring_.gather(ring, jnp.zeros(1, jnp.int32))
        if not (has_field(blank, "last") or has_field(blank, "first")):
            raise ValueError(
                "this sampler reads last or first (whether a step ends or begins an episode), and "
                f"the example, a {type(blank).__name__}, has neither: store one of them, False "
                "throughout if there are no episodes"
            )


@check_config_class
def sampler(config: SequencesConfig = SequencesConfig()) -> Sequences:
    """Return the sampler of sequences."""
    return Sequences(config)


@check_config_class
def method(config: SequencesConfig = SequencesConfig()) -> Method:
    """Return replayed sequences, with weighted means of the losses `[B]` of sequences."""
    return Method(sampler(config), objectives.weighted())


def check_valid(state: SequencesState, ring: Ring, config: SequencesConfig) -> None:
    """Check a concrete state against its ring.

    Raises:
      ValueError: a tree is inconsistent, or a sequence reaches beyond what is stored.
    """
    proportional.check_valid(state.priorities, ring)
    slots = jnp.flatnonzero(sum_tree.leaves(state.priorities.tree))
    late = ring_.age(ring, slots) < config.length - 1
    if late.any():
        raise ValueError(f"the sequence at slot {slots[late.argmax()]} reaches beyond the newest")


def _enter(
    config: SequencesConfig, state: SequencesState, ring: Ring, slots: Array, transition: Tree
) -> SequencesState:
    """Count the new steps at `slots` `[E]` into their episodes."""
    begins = state.ended
    if has_field(transition, "first"):
        begins = begins | get_field(transition, "first").astype(bool)
    current = state.current + begins
    position = jnp.where(begins, 0, (state.position + 1) % config.period)
    ended = jnp.zeros_like(begins)
    if has_field(transition, "last"):
        ended = get_field(transition, "last").astype(bool)
    row = (state.newest + 1) % config.length
    return state._replace(
        episode=buffer.write(state.episode, slots, current),
        current=current,
        position=position,
        ended=ended,
        recent=state.recent.at[row].set(current),
        starts=state.starts.at[row].set(position == 0),
        newest=row,
    )


def _completed(config: SequencesConfig, state: SequencesState, ring: Ring) -> tuple[Array, Array]:
    """Return the slots `[E]` from which T steps are stored, and whether a sequence starts there."""
    row = ring.rows_added - config.length
    at, after = ((state.newest + steps) % config.length for steps in (1, 1 + config.burn_in))
    outlasts = state.recent[after] == state.recent[at]
    lanes = jnp.arange(ring.num_envs, dtype=jnp.int32)
    slots = row % ring_.rows(ring) * ring.num_envs + lanes
    return slots, (row >= 0) & state.starts[at] & outlasts


def _sequence(config: SequencesConfig, ring: Ring, slots: Array, back: bool = False) -> Array:
    """Return the slots `[n, T]` from `slots` `[n]` on, or back from there, in one environment."""
    steps = jnp.arange(config.length, dtype=jnp.int32) * ring.num_envs
    return (slots[:, None] + (-steps if back else steps)) % ring.capacity
