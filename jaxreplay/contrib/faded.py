"""LAP with priorities that fade with age, as in DR.Q (Lyu et al. 2026)."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxreplay import buffer, counters, objectives, sum_tree
from jaxreplay import ring as ring_
from jaxreplay.loops import cond_on_schedule
from jaxreplay.methods import lap, options, proportional
from jaxreplay.methods.parts import two_trees
from jaxreplay.option import Config, option
from jaxreplay.ring import Ring
from jaxreplay.sampler import Method, Sampler
from jaxreplay.sum_tree import Sampling, SumTree
from jaxreplay.types import IGNORED, Array, Draw, Requirements, Sample, Tree

_CODE = "code of Lyu et al. 2026"

DISCRETE: Mapping[str, Any] = lap.DISCRETE  # defaults for discrete actions
_MOST_HALVINGS = 48  # within a step: float32 represents the leaves of all its transitions
_HALVINGS = 16  # the leaves of young transitions are multiplied by 2^-16 before they grow too large


@dataclasses.dataclass(frozen=True)
class FadedConfig(Config):
    """Hyperparameters of faded LAP; `FadedConfig(**DISCRETE)` suits discrete actions."""

    alpha: float = option(0.4, options.ALPHA, "Fujimoto et al. 2020, Tab. 6")
    kappa: float = option(1.0, options.KAPPA)
    fade: float = option(
        0.9999,
        "factor by which every later transition multiplies a priority; 1 is LAP",
        _CODE,
        at_least=0.9,
        at_most=1,
    )
    floor: float = option(
        0.1,
        "lower bound on the total factor of a priority, fade^age; 1 is LAP",
        _CODE,
        above=0,
        at_most=1,
    )
    sampling: Sampling = option("stratified", options.SAMPLING)

    def age_of_floor(self, num_envs: int, steps: int) -> int:
        """Return the number of steps after which priorities no longer fade, in [1, `steps`]."""
        if self.fade == 1:
            return steps
        return min(max(math.ceil(self._transitions(self.floor) / num_envs), 1), steps)

    def rescaling(self, num_envs: int) -> tuple[int, int]:
        """Return the number of transitions between rescalings, and the halvings per rescaling.

        A rescaling multiplies all leaves of the young tree by `2^-halvings`.

        Raises:
          ValueError: If the priorities fade too fast for the number of environments.
        """
        if self.fade == 1:
            return counters.LAST, 0
        transitions = max(round(self._transitions(2.0**-_HALVINGS)), 1)
        times = math.ceil(num_envs / transitions)
        if times > _MOST_HALVINGS // _HALVINGS:
            raise ValueError(
                f"fade is {self.fade}, and the priorities of {num_envs} environments fade too fast "
                "within a step: use a fade closer to 1, or fewer environments"
            )
        return transitions * times, _HALVINGS * times

    def _transitions(self, factor: float) -> float:
        return math.log(factor) / math.log(self.fade)


class FadedState(NamedTuple):
    """Priorities of young transitions, which fade together, and of old ones, which do not.

    The transitions of the newest A steps are young, where A is `FadedConfig.age_of_floor`. Their
    tree is a ring of A steps: a new step replaces the step that becomes old.
    """

    young: SumTree  # leaves [A E], priorities times fade^(age - later) e^-offset
    old: SumTree | None  # leaves [C], priorities times the floor, 0 if young; None if all are young
    newest: Array  # [] int32, the newest step in `young`
    later: Array  # [] int32, number of transitions added since `young` was last rescaled
    offset: Array  # [] float32, log of the fading factor that `later` leaves out
    max_leaf: Array  # [] float32, running maximum of the priorities before fading, initially 1
    skipped: Array  # [] int32, number of negative, NaN or infinite priorities that were skipped


@dataclasses.dataclass(frozen=True)
class Faded(Sampler):
    """Samples with `P(i) ~ max(|td_i|, kappa)^alpha max(fade^age_i, floor)`, with weights of 1.

    The age is the number of transitions that later steps have added, a multiple of the number of
    environments. The priorities of all young transitions fade by the same factor, so that an
    addition changes only the leaves of transitions that are new or become old.
    """

    config: FadedConfig = FadedConfig()

    @property
    def requires(self) -> Requirements:
        return Requirements(feedback=frozenset({"td_error"}))

    def check_sizes(self, capacity: int, num_envs: int, batch_size: int) -> None:
        self.config.rescaling(num_envs)

    def init(self, key: Array, ring: Ring) -> FadedState:
        steps, zero = self._steps(ring), jnp.zeros((), jnp.int32)
        return FadedState(
            young=sum_tree.init(steps * ring.num_envs),
            old=sum_tree.init(ring.capacity) if steps < ring_.num_steps(ring) else None,
            newest=jnp.full((), steps - 1, jnp.int32),
            later=zero,
            offset=jnp.zeros((), jnp.float32),
            max_leaf=jnp.ones((), jnp.float32),
            skipped=zero,
        )

    def add(
        self, state: FadedState, ring: Ring, slots: Array, transition: Tree, **feedback: Array
    ) -> FadedState:
        steps, num_envs = self._steps(ring), ring.num_envs
        newest = (state.newest + 1) % steps
        places = newest * num_envs + jnp.arange(num_envs, dtype=jnp.int32)
        later = state.later + (num_envs if self.config.fade < 1 else 0)
        old, value = state.old, state.max_leaf / self._factor(later, state.offset)
        if old is not None:
            leaving = sum_tree.get(state.young, places)
            value = buffer.after(leaving, value)
            since = later - steps * num_envs
            kept = leaving * self._factor(since, state.offset) * self.config.floor
            became, stored = ring_.previous(ring, slots, steps)
            became = jnp.where(stored, became, IGNORED)
            values = jnp.concatenate([kept, jnp.zeros_like(kept)])
            old = sum_tree.set(old, jnp.concatenate([became, slots]), values)
        young = sum_tree.set(state.young, places, jnp.broadcast_to(value, places.shape))
        state = state._replace(young=young, old=old, newest=newest, later=later)
        return self._rescaled(state, num_envs)

    def sample(self, state: FadedState, ring: Ring, key: Array, batch_size: int) -> Draw:
        shares = sum_tree.shares(key, batch_size, self.config.sampling)
        if state.old is None:
            slots = self._slots(state, ring, sum_tree.at_shares(state.young, shares))
        else:
            total, scale = self._total(state), 1 / self._factor(state.later, state.offset)
            old, young, is_old = two_trees.find(state.old, state.young, shares, total, scale)
            slots = jnp.where(is_old, old, self._slots(state, ring, young))
        chance = self.probability(state, ring, slots, batch_size)
        ones = jnp.ones(batch_size, jnp.float32)
        return Draw(slots, buffer.after(chance, ones), probability=chance)

    def update(
        self, state: FadedState, ring: Ring, sample: Sample, **feedback: Array
    ) -> FadedState:
        return self._written(state, ring, sample.indices, feedback)

    def refresh(self, state: FadedState, ring: Ring, slots: Array, **feedback: Array) -> FadedState:
        state = self._written(state, ring, slots, feedback)
        every = jnp.arange(ring.capacity, dtype=jnp.int32)
        leaf, age, is_young = self._leaf(state, ring, every)
        log = jnp.float32(math.log(self.config.fade) * ring.num_envs)
        fading = jnp.where(is_young, jnp.exp(age * log), self.config.floor)
        largest = jnp.where(every < ring_.size(ring), leaf / fading, 0.0).max()
        return state._replace(max_leaf=jnp.where(largest > 0, largest, 1.0))

    def _written(
        self, state: FadedState, ring: Ring, slots: Array, feedback: Mapping[str, Array]
    ) -> FadedState:
        """Return the state with priorities from the feedback on `slots` `[B]`."""
        config = self.config
        leaf = lap.LAPLeaf(config.alpha, config.kappa)(feedback, slots, ring)
        invalid, largest = proportional.count_invalid_and_max(slots != IGNORED, leaf)
        places, age, is_young = self._places(state, ring, slots)
        is_young &= slots != IGNORED
        since = jnp.where(is_young, age * ring.num_envs - state.later, 0)
        values = leaf * self._factor(since, -state.offset)
        young = sum_tree.set(state.young, jnp.where(is_young, places, IGNORED), values)
        old = state.old
        if old is not None:
            old = sum_tree.set(old, jnp.where(is_young, IGNORED, slots), leaf * config.floor)
        return state._replace(
            young=young,
            old=old,
            max_leaf=jnp.maximum(state.max_leaf, largest),
            skipped=counters.saturating_add(state.skipped, invalid),
        )

    def probability(self, state: FadedState, ring: Ring, slots: Array, batch_size: int) -> Array:
        leaf, _, _ = self._leaf(state, ring, slots)
        total = self._total(state)
        chance = leaf / jnp.where(total > 0, total, 1.0)
        return jnp.where(slots < ring_.size(ring), chance, 0.0)

    def metrics(self, state: FadedState, ring: Ring) -> dict[str, Array]:
        total = self._total(state)
        young = sum_tree.total(state.young) * self._factor(state.later, state.offset)
        return {
            "mean_priority": total / jnp.maximum(ring_.size(ring), 1),
            "max_priority": state.max_leaf,
            "young_share": young / jnp.where(total > 0, total, 1.0),
            "skipped_leaves": state.skipped.astype(jnp.float32),
        }

    def _leaf(self, state: FadedState, ring: Ring, slots: Array) -> tuple[Array, Array, Array]:
        """Return faded priorities, ages in steps, and whether `slots` are young, `[B]` each."""
        places, age, is_young = self._places(state, ring, slots)
        leaf = sum_tree.get(state.young, jnp.where(is_young, places, 0))
        leaf = leaf * self._factor(state.later, state.offset)
        if state.old is not None:
            leaf = jnp.where(is_young, leaf, sum_tree.get(state.old, slots))
        return leaf, age, is_young

    def _steps(self, ring: Ring) -> int:
        return self.config.age_of_floor(ring.num_envs, ring_.num_steps(ring))

    def _factor(self, later: Array, offset: Array) -> Array:
        """Return `fade^later e^offset`, `[...]` float32."""
        return jnp.exp(later.astype(jnp.float32) * jnp.float32(math.log(self.config.fade)) + offset)

    def _rescaled(self, state: FadedState, num_envs: int) -> FadedState:
        """Return the state with smaller leaves in `young` if these have grown large."""
        transitions, halvings = self.config.rescaling(num_envs)
        if not halvings:
            return state
        log = math.log(self.config.fade)
        due = state.later >= transitions
        scale = sum_tree.scaling(2.0**-halvings)
        young = cond_on_schedule(due, scale, state.young)
        # The rest that is not a whole number of transitions remains in the offset.
        offset = state.offset + jnp.float32(halvings * math.log(2.0) + transitions * log)
        extra = jnp.round(offset * jnp.float32(1 / log))
        later = state.later - transitions + extra.astype(jnp.int32)
        offset = offset - extra * jnp.float32(log)
        return state._replace(
            young=young,
            later=jnp.where(due, later, state.later),
            offset=jnp.where(due, offset, state.offset),
        )

    def _total(self, state: FadedState) -> Array:
        young = sum_tree.total(state.young) * self._factor(state.later, state.offset)
        return young if state.old is None else young + sum_tree.total(state.old)

    def _slots(self, state: FadedState, ring: Ring, places: Array) -> Array:
        """Return the slots `[B]` of the leaves at indices `places` `[B]` in the young tree."""
        age = (state.newest - places // ring.num_envs) % self._steps(ring)
        return ring_.recent(ring, age * ring.num_envs + places % ring.num_envs)

    def _places(self, state: FadedState, ring: Ring, slots: Array) -> tuple[Array, Array, Array]:
        """Return indices in the young tree, ages in steps, and whether slots are young, `[B]`."""
        slots, steps = jnp.minimum(slots, ring.capacity - 1), self._steps(ring)
        age = ring_.age(ring, slots)
        places = (state.newest - age) % steps * ring.num_envs + slots % ring.num_envs
        return places, age, age < steps


sampler = Faded


def method(config: FadedConfig = FadedConfig()) -> Method:
    """Return faded LAP: the sampler, and an objective that averages Huber losses (see `lap`)."""
    return Method(sampler(config), objectives.plain(objectives.huber(config.kappa)))
