"""Sequence replay for recurrent agents, uniform or prioritised as in R2D2.

Batches have shape `[B, T, ...]`: B sequences of T steps in chronological order, each from one
environment (Kapturowski et al. 2019). Store the agent's recurrent state as a field of the
transition, and unroll the agent from the recurrent state at the first step of each sequence.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp

from jaxreplay import objectives, sum_tree
from jaxreplay import ring as ring_
from jaxreplay._internal import buffer, schedules
from jaxreplay._internal.buffer import Buffer
from jaxreplay._internal.numerics import to_power
from jaxreplay._internal.tracing import with_default_promotion
from jaxreplay.methods import proportional
from jaxreplay.methods.parts import ConfiguredSampler
from jaxreplay.methods.per import SamplingOptions
from jaxreplay.methods.proportional import ImportanceWeights, ProportionalState
from jaxreplay.option import option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method
from jaxreplay.types import IGNORED, Array, Draw, Requirements, Sample, Tree, get_field, has_field

_PAPER = "Kapturowski et al. 2019"


@dataclasses.dataclass(frozen=True)
class SequencesConfig(SamplingOptions):
    """Hyperparameters of sequence replay.

    In the paper, a burn-in of 40 steps precedes 80 training steps: set `length=120, burn_in=40`.
    """

    length: int = option(
        80, "T: steps per sequence, including the burn-in", f"{_PAPER}, hyperparameters", at_least=1
    )
    period: int = option(
        40, "steps between the starts of consecutive sequences in an episode", _PAPER, at_least=1
    )
    burn_in: int = option(
        0, "initial steps of a sequence that only warm up the recurrent state", at_least=0
    )
    prioritised: bool = option(True, "sample by priority; false: uniformly, with weights of 1")
    eta: float = option(
        0.9,
        "weight of the largest |TD error| in a sequence's priority; the mean has weight 1 - eta",
        f"{_PAPER}, Sec. 2.3",
        at_least=0,
        at_most=1,
    )
    alpha: float = option(
        0.9, "prioritisation exponent; 0 is uniform", f"{_PAPER}, hyperparameters", at_least=0
    )
    beta: float = option(
        0.6,
        "constant importance-sampling exponent; weights are divided by their batch maximum",
        f"{_PAPER}, hyperparameters",
        at_least=0,
        at_most=1,
    )
    epsilon: float = option(
        1e-6, "added to the priority before exponentiation; the paper gives no value", at_least=0
    )

    @property
    def weight(self) -> ImportanceWeights:
        """Importance weights with a constant beta, divided by their batch maximum."""
        return ImportanceWeights(schedules.linear(self.beta, self.beta, None))

    def check(self) -> None:
        """Raise ValueError if some steps would never be trained on."""
        if self.burn_in >= self.length:
            raise ValueError(f"burn_in must be below length {self.length}, got {self.burn_in}")
        if self.period > self.length - self.burn_in:
            raise ValueError(
                f"period must be at most {self.length - self.burn_in} (length - burn_in) to train "
                f"on every step, got {self.period}"
            )


class Aux(NamedTuple):
    """Masks over the steps in a batch."""

    mask: Array  # [B, T] bool, whether the step is in the same episode as the first step
    learn: Array  # [B, T] bool, `mask` without the burn-in; average losses over these steps


class SequencesState(NamedTuple):
    """Priorities of sequences, and the data that identify the episode of each step."""

    priorities: ProportionalState  # a sequence's priority is at the slot of its first step
    episode: Buffer  # [C] int32, episode number of the step in its environment
    current: Array  # [E] int32, episode number of the newest step
    position: Array  # [E] int32, position of the newest step in its episode, modulo the period
    ended: Array  # [E] bool, whether the newest step was the last step of its episode
    recent: Array  # [T, E] int32, ring buffer of the episode numbers of the T newest steps
    starts: Array  # [T, E] bool, whether a sequence starts at each of the T newest steps
    newest: Array  # [] int32, index of the newest step in `recent` and `starts`


@with_default_promotion
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
class Sequences(ConfiguredSampler):
    """Samples sequences `[B, T]` of T consecutive steps, each from one environment.

    As in R2D2 (Kapturowski et al. 2019), sequences start at the first step of each episode and
    every `period` steps thereafter, if the episode is longer than the burn-in. They can be sampled
    once all T steps are stored. A sequence may extend past the end of its episode, where `Aux.mask`
    is False, but is removed before it would cross the write cursor. New sequences receive the
    running maximum of the priorities.

    `batch_size` is the number of sequences. `update` accepts `td_error` `[B, T]` and uses only the
    steps in `Aux.learn`. Transitions must have the field `last`, `first`, or both.
    """

    config: SequencesConfig = SequencesConfig()

    @property
    def requires(self) -> Requirements:
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
        num_envs = ring.num_envs
        return SequencesState(
            priorities=proportional.init(ring.capacity),
            episode=jnp.zeros(ring.capacity, jnp.int32),
            current=jnp.full(num_envs, -1, jnp.int32),
            position=jnp.full(num_envs, -1, jnp.int32),
            ended=jnp.ones(num_envs, bool),
            recent=jnp.zeros((self.config.length, num_envs), jnp.int32),
            starts=jnp.zeros((self.config.length, num_envs), bool),
            newest=jnp.full((), self.config.length - 1, jnp.int32),
        )

    def add(
        self, state: SequencesState, ring: Ring, slots: Array, transition: Tree, **feedback: Array
    ) -> SequencesState:
        """Insert newly complete sequences, and remove sequences whose first step is overwritten."""
        state = _count_steps(self.config, state, slots, transition)
        first, complete = _find_complete(self.config, state, ring)
        removed = slots if self.config.length > 1 else jnp.full_like(slots, IGNORED)
        firsts = jnp.concatenate([removed, jnp.where(complete, first, IGNORED)])
        new = jnp.broadcast_to(state.priorities.max_leaf, first.shape)
        values = jnp.concatenate([jnp.zeros_like(new), new])
        return state._replace(priorities=proportional.insert(state.priorities, firsts, values))

    def sample(self, state: SequencesState, ring: Ring, key: Array, batch_size: int) -> Draw:
        config = self.config
        first, stats = proportional.draw(state.priorities, ring, key, batch_size, config.sampling)
        slots = _walk(config, ring, first)
        episode = buffer.read(state.episode, slots.ravel()).reshape(slots.shape)
        ready = self.ready(state, ring, batch_size)
        mask = (episode == episode[:, :1]) & ready
        learn = mask & (jnp.arange(config.length) >= config.burn_in)
        weights = jnp.ones(batch_size, jnp.float32)
        if config.prioritised:
            weights = proportional.weights(config.weight, stats)
        return Draw(slots, jnp.where(ready, weights, 0.0), Aux(mask, learn), stats.probability)

    def update(
        self, state: SequencesState, ring: Ring, sample: Sample, **feedback: Array
    ) -> SequencesState:
        if not self.config.prioritised:
            return state
        valid = sample.aux.learn & (sample.indices != IGNORED)
        size = priority(feedback["td_error"], valid, self.config.eta)
        # The index of the first step may be `IGNORED`: derive its slot from a valid step.
        step = jnp.argmax(valid, axis=1)
        slot = jnp.take_along_axis(sample.indices, step[:, None], axis=1)[:, 0]
        first = (slot - step * ring.num_envs) % ring.capacity
        stored = valid.any(axis=1) & (ring_.version(ring, first) == sample.version[:, 0])
        first = jnp.where(stored, first, IGNORED)
        leaf = to_power(size + self.config.epsilon, self.config.alpha)
        return state._replace(priorities=proportional.write(state.priorities, first, leaf))

    def probability(
        self, state: SequencesState, ring: Ring, slots: Array, batch_size: int
    ) -> Array:
        tree = state.priorities.tree
        # The slots at which sequences that contain each slot may start.
        firsts = _walk(self.config, ring, slots, back=True)
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
        """Raise ValueError if the ring buffer is too small or lacks episode boundaries."""
        length, period, steps = self.config.length, self.config.period, ring_.num_steps(ring)
        if steps < length + period - 1:
            raise ValueError(
                f"capacity must be at least {length + period - 1} steps per environment for "
                f"sequences of length {length} with period {period}, got {steps}"
            )
        blank = ring_.gather(ring, jnp.zeros(1, jnp.int32))
        if not (has_field(blank, "last") or has_field(blank, "first")):
            raise ValueError(
                "the example transition must have a field last or first, got a "
                f"{type(blank).__name__} with neither; store whether a step ends or starts an "
                "episode (False without episodes)"
            )


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


def _count_steps(
    config: SequencesConfig, state: SequencesState, slots: Array, transition: Tree
) -> SequencesState:
    """Record the episode of each new step at `slots` `[E]`, and whether it starts a sequence."""
    begins = state.ended
    if has_field(transition, "first"):
        begins = begins | get_field(transition, "first").astype(bool)
    current = state.current + begins
    position = jnp.where(begins, 0, (state.position + 1) % config.period)
    ended = jnp.zeros_like(begins)
    if has_field(transition, "last"):
        ended = get_field(transition, "last").astype(bool)
    newest = (state.newest + 1) % config.length
    return state._replace(
        episode=buffer.write(state.episode, slots, current),
        current=current,
        position=position,
        ended=ended,
        recent=state.recent.at[newest].set(current),
        starts=state.starts.at[newest].set(position == 0),
        newest=newest,
    )


def _find_complete(
    config: SequencesConfig, state: SequencesState, ring: Ring
) -> tuple[Array, Array]:
    """Return the slots `[E]` of the T-th newest steps, where T is `config.length`.

    Also return a mask `[E]` of the slots at which a newly complete sequence starts.
    """
    step = ring.steps_added - config.length
    start, after = ((state.newest + steps) % config.length for steps in (1, 1 + config.burn_in))
    outlasts = state.recent[after] == state.recent[start]
    environments = jnp.arange(ring.num_envs, dtype=jnp.int32)
    slots = step % ring_.num_steps(ring) * ring.num_envs + environments
    return slots, (step >= 0) & state.starts[start] & outlasts


def _walk(config: SequencesConfig, ring: Ring, slots: Array, back: bool = False) -> Array:
    """Return slots `[n, T]` of `config.length` steps from `slots` `[n]`, forwards or backwards."""
    steps = jnp.arange(config.length, dtype=jnp.int32) * ring.num_envs
    return (slots[:, None] + (-steps if back else steps)) % ring.capacity
