"""Hindsight experience replay, HER (Andrychowicz et al. 2017), over another sampler.

Transitions are stored with the goal that the agent pursued. When a batch is read, the desired goals
of most transitions are replaced by goals that were achieved in the same episode, and rewards and
terminations are computed again.
"""

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxreplay import buffer, counters, numerics
from jaxreplay import ring as ring_
from jaxreplay.buffer import Buffer
from jaxreplay.methods import options
from jaxreplay.methods.parts.over import Inner, Wrapper, inner_method
from jaxreplay.option import Config, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method
from jaxreplay.types import (
    IGNORED,
    Array,
    Draw,
    Goals,
    Requirements,
    Sample,
    State,
    Tree,
    get_field,
    replace_fields,
    union,
)

Strategy = Literal["future", "final", "episode"]

_PAPER = "Andrychowicz et al. 2017"
_READS = frozenset({"obs", "next_obs", "reward", "discount", "first"})


@dataclasses.dataclass(frozen=True)
class HERConfig(Config):
    """Hyperparameters of hindsight replay; the inner method `over` has its default options."""

    over: Inner = option("uniform", options.OVER)
    over_updates: int | None = option(None, options.OVER_UPDATES)
    strategy: Strategy = option(
        "future",
        "step whose achieved goal replaces the desired goal: the drawn or a later step of the "
        "episode (future), the latest step of the episode (final), or any step of it (episode)",
        f"{_PAPER}, Sec. 4.5",
    )
    k: float = option(
        4.0,
        "relabelled transitions per transition with its original goal: a share k / (k + 1) of the "
        "batch",
        f"{_PAPER}, Sec. 4.5",
        at_least=0,
    )
    write_back: bool = option(
        False, "pass feedback on relabelled transitions, such as TD errors, to the inner method"
    )


class Aux(NamedTuple):
    """The relabelled transitions of a batch, and the inner sampler's auxiliary arrays."""

    relabelled: Array  # [B] bool, whether the desired goal was replaced
    goal: Array  # [B] int32, slot of the step whose achieved goal is desired instead, or own slot
    inner: Tree  # `Draw.aux` of the inner sampler


class HindsightState(NamedTuple):
    """State of the inner sampler, and the data that locate the steps of an episode.

    Episodes of an environment are numbered modulo the number of steps in the ring buffer. Every
    stored episode has at least one stored step, so no two stored episodes have the same number.
    """

    inner: State
    links: Buffer  # [2 C] int32. links[slot] is the index, C or larger, of the step's episode;
    # links[index] is the slot of the episode's newest step. One array takes one write.
    steps: Buffer | None  # [C] int32, position of each step in its episode; None unless the option
    # `strategy` is "episode"
    episode: Array  # [E] int32, number of the current episode
    position: Array  # [E] int32, position of the newest step in its episode; -1 after its end
    gamma: Array  # [] float32, largest discount of all steps, which is gamma
    terminated: Array  # [] float32, share of the latest relabelled transitions that terminate


@dataclasses.dataclass(frozen=True)
class Hindsight(Wrapper):
    """Samples like an inner sampler, and replaces desired goals by achieved goals.

    Each transition of a batch is relabelled with probability `k / (k + 1)`, independently of the
    others. Its new goal is the goal that was achieved after a stored step of the same episode. The
    latest step of a running episode is its newest stored step. The reward and the discount are
    computed for the new goal: the discount is 0 if the new goal terminates the episode, or if the
    stored step terminated for a reason other than its original goal. The fields `first` and `last`
    still describe the stored episode.

    Probabilities and weights are those of the inner sampler. Only transitions with their original
    goal update the inner sampler's priorities, unless `write_back` is True.

    Args:
      inner: sampler that chooses the slots. It draws the same slots as without hindsight.
      config: options, of which `over` and `over_updates` are ignored.
      goals: goals of the task; `for_goals` also sets them.

    Raises:
      ValueError: If the inner sampler draws sequences, trajectories, whole episodes or only new
        transitions, or `goals` are not `Goals`.
    """

    config: HERConfig = HERConfig()
    goals: Goals | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.goals, Goals | None):
            raise ValueError(f"goals must be a jaxreplay.types.Goals, got {self.goals!r}")

    @property
    def requires(self) -> Requirements:
        of_goals = Requirements(single_steps=True, goals=True, transition_fields=_READS)
        return union(super().requires, of_goals)

    def for_goals(self, goals: Goals) -> "Hindsight":
        return dataclasses.replace(self, goals=goals)

    def check_sizes(self, capacity: int, num_envs: int, batch_size: int) -> None:
        self._goals()
        super().check_sizes(capacity, num_envs, batch_size)

    def init(self, key: Array, ring: Ring) -> HindsightState:
        _check_obs(ring, self._goals())
        by_position = self.config.strategy == "episode"
        return HindsightState(
            inner=self.inner.init(key, ring),
            links=jnp.zeros(2 * ring.capacity, jnp.int32),
            steps=jnp.zeros(ring.capacity, jnp.int32) if by_position else None,
            episode=jnp.full(ring.num_envs, -1, jnp.int32),
            position=jnp.full(ring.num_envs, -1, jnp.int32),
            gamma=jnp.zeros((), jnp.float32),
            terminated=jnp.zeros((), jnp.float32),
        )

    def add(
        self, state: HindsightState, ring: Ring, slots: Array, transition: Tree, **feedback: Array
    ) -> HindsightState:
        first, discount = (get_field(transition, name) for name in ("first", "discount"))
        begins = first.astype(bool) | (state.position < 0)
        number = (state.episode + 1) % ring_.num_steps(ring)
        episode = jnp.where(begins, number, state.episode)
        position = jnp.where(begins, 0, counters.increment(state.position))
        entry = ring.capacity + episode * ring.num_envs
        entry += jnp.arange(ring.num_envs, dtype=jnp.int32)
        ends = jnp.concatenate([entry, slots])
        steps = state.steps
        return state._replace(
            inner=self.inner.add(state.inner, ring, slots, transition, **feedback),
            links=buffer.write(state.links, jnp.concatenate([slots, entry]), ends),
            steps=None if steps is None else buffer.write(steps, slots, position),
            episode=episode,
            position=position,
            gamma=jnp.maximum(state.gamma, discount.max().astype(jnp.float32)),
        )

    def sample(self, state: HindsightState, ring: Ring, key: Array, batch_size: int) -> Draw:
        draw, k = self.inner.sample(state.inner, ring, key, batch_size), self.config.k
        # The inner sampler receives the key itself, so that it draws as it would alone.
        bits = numerics.bits(jax.random.fold_in(key, _RELABELLING), (2, batch_size))
        relabelled = (bits[0] >> 8).astype(jnp.float32) * 2.0**-24 < k / (k + 1)
        goal = self._goal(state, ring, draw.indices, bits[1])
        goal = buffer.once(jnp.where(relabelled, goal, draw.indices))
        return draw._replace(aux=Aux(relabelled, goal, draw.aux))

    def relabel(self, state: HindsightState, ring: Ring, draw: Draw, transition: Tree) -> Tree:
        aux: Any = draw.aux
        inner_draw = draw._replace(aux=aux.inner)
        transition = self.inner.relabel(state.inner, ring, inner_draw, transition)
        goals, width = self._goals(), get_field(transition, "next_obs").shape[-1]
        part = range(width)[-2 * goals.size : -goals.size]
        desired = ring_.gather_part(ring, aux.goal, "next_obs", part)
        changed = relabel(goals, transition, desired, state.gamma)

        def choose(new: Array, old: Array) -> Array:
            mask = aux.relabelled.reshape(-1, *[1] * (old.ndim - 1))
            return jnp.where(mask, new.astype(old.dtype), old)

        return jax.tree.map(choose, changed, transition)

    def update(
        self, state: HindsightState, ring: Ring, sample: Sample, **feedback: Array
    ) -> HindsightState:
        aux: Any = sample.aux
        terminated = aux.relabelled & (get_field(sample.transition, "discount") == 0)
        indices = sample.indices
        if not self.config.write_back:
            indices = jnp.where(aux.relabelled, IGNORED, indices)
        inner_sample = sample._replace(aux=aux.inner, indices=indices)
        count = jnp.maximum(aux.relabelled.sum(dtype=jnp.int32), 1)
        return state._replace(
            inner=self.inner.update(state.inner, ring, inner_sample, **feedback),
            terminated=terminated.sum(dtype=jnp.int32).astype(jnp.float32) / count,
        )

    def end_episodes(self, state: HindsightState, ring: Ring) -> HindsightState:
        inner = self.inner.end_episodes(state.inner, ring)
        return state._replace(inner=inner, position=jnp.full_like(state.position, -1))

    def metrics(self, state: HindsightState, ring: Ring) -> dict[str, Array]:
        return {**super().metrics(state, ring), "relabelled_terminated": state.terminated}

    def _goals(self) -> Goals:
        if self.goals is None:
            raise ValueError(
                "hindsight replay needs the goals of a task: use sampler.for_goals(goals), with "
                "jaxreplay.types.Goals"
            )
        return self.goals

    def _goal(self, state: HindsightState, ring: Ring, slots: Array, bits: Array) -> Array:
        """Return the slots `[B]` of the steps whose achieved goals become the desired goals."""
        end = buffer.read(state.links, buffer.read(state.links, slots))
        age = ring_.age(ring, slots)
        later = age - ring_.age(ring, end)
        if self.config.strategy == "final":
            offset = later
        else:
            earlier = jnp.zeros_like(later)
            if state.steps is not None:  # without steps that have been overwritten
                stored = ring_.size(ring) // ring.num_envs
                earlier = jnp.minimum(buffer.read(state.steps, slots), stored - 1 - age)
            count = (earlier + later + 1).astype(jnp.uint32)
            offset = numerics.multiply_high(bits, count).astype(jnp.int32) - earlier
        return (slots + offset * ring.num_envs) % ring.capacity


_RELABELLING = 0x48455200  # `fold_in` with a small number would repeat a key of `jax.random.split`


def relabel(goals: Goals, transition: Tree, desired: Array, gamma: Array | float) -> Tree:
    """Return single-step transitions `[B, ...]` as they would be with other desired goals.

    Args:
      goals: goals of the task.
      transition: `[B, ...]`, with the fields obs, next_obs, reward and discount.
      desired: `[B, G]`, the new goals.
      gamma: discount of a step after which the episode continues.

    Example:
      >>> goals = Goals(lambda achieved, desired: (0.0 - (achieved != desired).any(-1),
      ...                                          (achieved == desired).all(-1)), size=1)
      >>> step = {"obs": jnp.array([[1.0, 5.0]]), "next_obs": jnp.array([[2.0, 5.0]]),
      ...         "reward": jnp.array([-1.0]), "discount": jnp.array([0.9])}
      >>> relabelled = relabel(goals, step, jnp.array([[2.0]]), gamma=0.9)
      >>> relabelled["reward"].tolist(), relabelled["discount"].tolist()
      ([0.0], [0.0])
    """
    obs, next_obs, discount = (get_field(transition, x) for x in ("obs", "next_obs", "discount"))
    achieved = goals.achieved(next_obs)
    reached = goals.reward(achieved, goals.desired(next_obs))[1]
    reward, terminates = goals.reward(achieved, desired)
    # An episode that terminated, but not because of its goal, terminates with every goal.
    fails = (discount == 0) & ~reached
    going_on = jnp.where(discount == 0, gamma, discount)
    return replace_fields(
        transition,
        obs=goals.replace(obs, desired),
        next_obs=goals.replace(next_obs, desired),
        reward=reward,
        discount=jnp.where(terminates | fails, 0.0, going_on),
    )


def _check_obs(ring: Ring, goals: Goals) -> None:
    goal = jax.ShapeDtypeStruct((2, goals.size), jnp.float32)
    outputs = jax.eval_shape(goals.reward, goal, goal)
    shapes = [x.shape for x in jax.tree.leaves(outputs)]
    if shapes != [(2,), (2,)]:
        raise ValueError(
            "Goals.reward must return the reward and whether the episode terminates, [...] each, "
            f"for goals [..., {goals.size}], got shapes {shapes} for two goals"
        )
    row = ring_.gather(ring, jnp.zeros(1, jnp.int32))
    for name in ("obs", "next_obs"):
        obs = get_field(row, name)
        if not isinstance(obs, jax.Array) or obs.ndim != 2 or obs.shape[1] < 2 * goals.size:
            shapes = jax.tree.map(lambda x: list(x.shape[1:]), obs)
            raise ValueError(
                f"{name} must be a flat array with at least {2 * goals.size} elements, the last of "
                f"which are the achieved and the desired goal, got shape {shapes}"
            )


def sampler(config: HERConfig = HERConfig()) -> Hindsight:
    """Return the sampler of `method(config)`, which needs `for_goals` before use."""
    return Hindsight(inner_method(config).sampler, config)


def method(config: HERConfig = HERConfig()) -> Method:
    """Return hindsight replay over another method, with the objective of that method.

    Before use, set the goals of the task with `method.sampler.for_goals(goals)`.

    Args:
      config: options; `config.for_run(updates)` sets the length of the inner method's schedules.
    """
    inner = inner_method(config)
    return inner._replace(sampler=Hindsight(inner.sampler, config))
