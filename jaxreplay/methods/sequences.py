"""Sequence replay for recurrent agents, uniform or prioritised as in R2D2.

Batches have shape `[B, T, ...]`: B sequences of T steps in chronological order, each from one
environment (Kapturowski et al. 2019). Store the agent's recurrent state as a field of the
transition, and unroll the agent from the recurrent state at the first step of each sequence.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp

from jaxreplay import buffer, objectives, schedules, sum_tree
from jaxreplay import ring as ring_
from jaxreplay.methods import options, proportional
from jaxreplay.methods.parts import episodes
from jaxreplay.methods.parts.episodes import Positions
from jaxreplay.methods.proportional import ImportanceWeights, ProportionalState
from jaxreplay.numerics import to_power
from jaxreplay.option import Config, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler
from jaxreplay.sum_tree import Sampling
from jaxreplay.types import (
    IGNORED,
    Array,
    Draw,
    Provision,
    Requirements,
    Sample,
    Tree,
)

_PAPER = "Kapturowski et al. 2019"


@dataclasses.dataclass(frozen=True)
class SequencesConfig(Config):
    """Hyperparameters of sequence replay.

    In the paper, a burn-in of 40 steps precedes 80 training steps: set `length=120, burn_in=40`.
    """

    length: int = option(80, options.LENGTH)
    burn_in: int = option(0, options.BURN_IN)
    eta: float = option(0.9, options.ETA)
    alpha: float = option(0.9, options.ALPHA, f"{_PAPER}, hyperparameters")
    epsilon: float = option(
        1e-6,
        "constant added to the priority before exponentiation; the paper gives no value",
        at_least=0,
    )
    period: int = option(
        40, "steps between the starts of consecutive sequences in an episode", _PAPER, at_least=1
    )
    prioritised: bool = option(True, "sample by priority; false: uniformly, with weights of 1")
    sampling: Sampling = option("stratified", options.SAMPLING)
    beta: float = option(
        0.6,
        "constant importance-sampling exponent; weights are divided by their batch maximum",
        f"{_PAPER}, hyperparameters",
        at_least=0,
        at_most=1,
    )

    @property
    def weight(self) -> ImportanceWeights:
        """Importance weights with a constant beta, divided by their batch maximum."""
        return ImportanceWeights(schedules.linear(self.beta, self.beta, None))

    def check(self) -> None:
        """Raise ValueError if some steps would never be trained on."""
        check_burn_in(self.burn_in, self.length)
        if self.period > self.length - self.burn_in:
            raise ValueError(
                f"period must be at most {self.length - self.burn_in} (length - burn_in) to train "
                f"on every step, got {self.period}"
            )


def check_burn_in(burn_in: int, length: int) -> None:
    """Raise ValueError unless the burn-in leaves a step of each sequence to train on."""
    if burn_in >= length:
        raise ValueError(f"burn_in must be below length {length}, got {burn_in}")


class Aux(NamedTuple):
    """Masks over the steps in a batch."""

    mask: Array  # [B, T] bool, whether the step is in the same episode as the first step
    learn: Array  # [B, T] bool, `mask` without the burn-in; average losses over these steps


class SequencesState(NamedTuple):
    """Priorities of sequences, and the positions of steps in their episodes."""

    priorities: ProportionalState  # a sequence's priority is at the slot of its first step
    positions: Positions


def priority(td_error: Array, learn: Array, eta: float) -> Array:
    """Return the priorities of sequences, `[B]` (Kapturowski et al. 2019, Sec. 2.3).

    The priority is `eta max|td| + (1 - eta) mean|td|` over the steps of a sequence.

    Args:
      td_error: `[B, T]` float32.
      learn: `[B, T]` bool, mask of the steps to include; the priority is 0 if no step is included.
      eta: weight of the largest |TD error|, in [0, 1].

    Example:
      >>> td_error, learn = jnp.array([[1.0, -3.0, 9.0]]), jnp.array([[True, True, False]])
      >>> priority(td_error, learn, eta=0.5).tolist()
      [2.5]
    """
    size = jnp.where(learn, jnp.abs(td_error), 0.0)
    mean = size.sum(axis=1) / jnp.maximum(learn.sum(axis=1), 1)
    return eta * size.max(axis=1) + (1.0 - eta) * mean


@dataclasses.dataclass(frozen=True)
class Sequences(Sampler):
    """Samples sequences `[B, T]` of T consecutive steps, each from one environment.

    As in R2D2 (Kapturowski et al. 2019), sequences start at the first step of each episode and
    every `period` steps thereafter, if the episode is longer than the burn-in. They can be sampled
    once all T steps are stored. A sequence may extend past the end of its episode, where `Aux.mask`
    is False, but is removed before it would cross the write cursor. New sequences receive the
    running maximum of the priorities.

    `batch_size` is the number of sequences. `update` accepts `td_error` `[B, T]` and uses only the
    steps in `Aux.learn`. Transitions must have the field `last`, `first`, or both.
    """

    needs_whole = "it draws sequences of several transitions"

    config: SequencesConfig = SequencesConfig()

    @property
    def requires(self) -> Requirements:
        names = {"td_error"} if self.config.prioritised else set()
        return Requirements(feedback=frozenset(names), single_steps=True)

    @property
    def provides(self) -> frozenset[Provision]:
        return frozenset({"sequences"})

    @property
    def is_uniform(self) -> bool:
        return not self.config.prioritised

    @property
    def length(self) -> int:
        return self.config.length

    def init(self, key: Array, ring: Ring) -> SequencesState:
        self._check(ring)
        return SequencesState(proportional.init(ring.capacity), episodes.init_positions(ring))

    def add(
        self, state: SequencesState, ring: Ring, slots: Array, transition: Tree, **feedback: Array
    ) -> SequencesState:
        """Insert newly complete sequences, and remove sequences whose first step is overwritten."""
        positions = episodes.add_steps(state.positions, slots, transition)
        first, complete = _find_complete(self.config, positions, ring)
        removed = slots if self.config.length > 1 else jnp.full_like(slots, IGNORED)
        firsts = jnp.concatenate([removed, jnp.where(complete, first, IGNORED)])
        new = jnp.broadcast_to(proportional.largest(state.priorities), first.shape)
        values = jnp.concatenate([jnp.zeros_like(new), new])
        return SequencesState(proportional.insert(state.priorities, firsts, values), positions)

    def sample(self, state: SequencesState, ring: Ring, key: Array, batch_size: int) -> Draw:
        config = self.config
        first, chance = proportional.draw(state.priorities, ring, key, batch_size, config.sampling)
        slots, mask = episodes.follow(state.positions, ring, first, config.length)
        ready = self.ready(state, ring, batch_size)
        mask &= ready
        learn = mask & (jnp.arange(config.length) >= config.burn_in)
        weights = jnp.ones(batch_size, jnp.float32)
        if config.prioritised:
            weights = proportional.weights(config.weight, state.priorities, ring, chance)
        return Draw(slots, jnp.where(ready, weights, 0.0), Aux(mask, learn), chance)

    def update(
        self, state: SequencesState, ring: Ring, sample: Sample, **feedback: Array
    ) -> SequencesState:
        if not self.config.prioritised:
            return state
        valid = sample.aux.learn & (sample.indices != IGNORED)
        size = priority(feedback["td_error"], valid, self.config.eta)
        first = episodes.still_stored(ring, sample, valid, at=0)
        leaf = to_power(size + self.config.epsilon, self.config.alpha)
        return state._replace(priorities=proportional.write(state.priorities, first, leaf))

    def probability(
        self, state: SequencesState, ring: Ring, slots: Array, batch_size: int
    ) -> Array:
        tree = state.priorities.tree
        # The slots at which sequences that contain each slot may start.
        firsts, _ = ring_.previous(ring, slots[:, None], jnp.arange(self.config.length))
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
            "max_priority": proportional.largest(state.priorities),
            "skipped_leaves": state.priorities.skipped.astype(jnp.float32),
        }

    def end_episodes(self, state: SequencesState, ring: Ring) -> SequencesState:
        return state._replace(positions=episodes.end_positions(state.positions))

    def _check(self, ring: Ring) -> None:
        """Raise ValueError if the ring buffer is too small or lacks episode boundaries."""
        length, period, steps = self.config.length, self.config.period, ring_.num_steps(ring)
        if steps < length + period - 1:
            raise ValueError(
                f"capacity must be at least {length + period - 1} steps per environment for "
                f"sequences of length {length} with period {period}, got {steps}"
            )
        episodes.check_boundaries(ring)


sampler = Sequences


def method(config: SequencesConfig = SequencesConfig()) -> Method:
    """Return sequence replay: the sampler, and an objective that averages weighted losses `[B]`.

    The agent must provide one loss per sequence, the mean over its steps in the mask
    `Sample.aux.learn` `[B, T]`.
    """
    return Method(sampler(config), objectives.weighted())


def check_valid(state: SequencesState, ring: Ring, config: SequencesConfig) -> None:
    """Check outside jit that a state is consistent with its ring buffer.

    Raises:
      ValueError: If a tree is inconsistent or a sequence extends past the newest step.
    """
    proportional.check_valid(state.priorities, ring)
    slots = jnp.flatnonzero(sum_tree.leaves(state.priorities.tree))
    late = ring_.age(ring, slots) < config.length - 1
    if late.any():
        raise ValueError(
            f"the sequence at slot {slots[late.argmax()]} extends past the newest step"
        )


def _find_complete(
    config: SequencesConfig, positions: Positions, ring: Ring
) -> tuple[Array, Array]:
    """Return the slots `[E]` of the T-th newest steps, where T is `config.length`.

    Also return a mask `[E]` of the slots at which a newly complete sequence starts.
    """
    ages = config.length - 1 - jnp.array([0, config.burn_in], jnp.int32)
    environments = jnp.arange(ring.num_envs, dtype=jnp.int32)
    slots = ring_.recent(ring, ages[:, None] * ring.num_envs + environments)
    start, after = buffer.read(positions.steps, slots.ravel()).reshape(slots.shape)
    starts = (start % config.period == 0) & (after == start + config.burn_in)
    return slots[0], starts & (ring.steps_added >= config.length)
