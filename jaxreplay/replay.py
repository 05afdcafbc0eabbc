"""A replay: a ring of transitions with a sampler, as pure functions over one state."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from jaxreplay import ring as ring_
from jaxreplay._internal import buffer, calls, counters, tracing
from jaxreplay._internal.arguments import as_int32, check_feedback_array
from jaxreplay._internal.branches import cond_if_any
from jaxreplay._internal.buffer import unrolled
from jaxreplay._internal.tracing import donatable, with_default_promotion
from jaxreplay.ring import Ring
from jaxreplay.sampler import Sampler
from jaxreplay.storage import Storage, Transitions
from jaxreplay.types import IGNORED, Array, Requirements, Sample, State, Tree

_MOST = 2**30  # slots: step counters of 32 bits go back by multiples of the ring's steps


class ReplayState(NamedTuple):
    """State of a replay; every function of `Replay` takes it and returns it."""

    ring: Ring
    sampler: State
    dropped: Array  # [] int32, transitions so far with dropped contents: feedback for slots that
    # were overwritten, NaN or infinity in feedback or in new transitions (stored as 0)
    fence: Array  # [] int32, always 0, but available only after all reads so far: see `buffer`


@dataclasses.dataclass(frozen=True)
class Replay:
    """A replay buffer of a fixed capacity, with a sampler.

    A replay holds options only and is hashable; its contents are a `ReplayState`, which `init`
    makes. All functions are pure and may be jitted, vmapped over seeds and differentiated through
    (states carry no tangents). One iteration of a training loop is

        state = replay.add(state, transition)
        batch = replay.sample(state, key)
        state = replay.update(state, batch, td_error=td_error)

    Call `update` for every batch, also with samplers that need no feedback. It makes later writes
    wait until the batch has been read: an `add` after `sample` that does not wait makes XLA copy
    the whole ring in every iteration of a compiled loop. A loop that adds between `sample` and
    `update` calls `after_reading` before the add.

    Args:
      sampler: chooses the slots of a batch, such as `methods.per.sampler()`.
      capacity: transitions that are kept, a multiple of `num_envs`. The ring has
        `sampler.capacity_factor` times as many slots.
      batch_size: transitions of a batch, unless `sample` asks for another number.
      num_envs: E, environments that add a transition at a time.
      storage: how observations are stored: `Transitions()` stores both observations of every
        transition, `SharedObservations()` every observation once, `Frames(stack=4)` every frame of
        stacked observations once.

    Raises:
      ValueError: the sizes do not fit one another or the sampler; one line that names the argument.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jaxreplay import Replay, Transition, methods
      >>> replay = Replay(methods.per.sampler(), capacity=1000, batch_size=2)
      >>> example = Transition(obs=jnp.zeros(3), reward=jnp.zeros(()))
      >>> state = replay.init(jax.random.key(0), example)
      >>> state = replay.add(state, jax.tree.map(lambda x: x[None], example))
      >>> batch = replay.sample(state, jax.random.key(1))
      >>> batch.transition.obs.shape
      (2, 3)
    """

    sampler: Sampler
    _: dataclasses.KW_ONLY
    capacity: int
    batch_size: int
    num_envs: int = 1
    storage: Storage = Transitions()

    def __post_init__(self) -> None:
        calls.check_sampler(self.sampler, self.storage)
        for name in ("capacity", "batch_size", "num_envs"):
            calls.check_size(name, getattr(self, name))
            # Plain numbers: they are written to files, too.
            object.__setattr__(self, name, int(getattr(self, name)))
        calls.check_batch_size(Requirements(), self.batch_size, self.batch_size, self.capacity)
        if self.capacity % self.num_envs:
            raise ValueError(
                f"capacity {self.capacity} is not a multiple of num_envs {self.num_envs}: use "
                f"{max(1, self.capacity // self.num_envs) * self.num_envs}"
            )
        if self.slots > _MOST:
            most = _MOST // self.sampler.capacity_factor
            raise ValueError(f"capacity is {self.capacity}: it must be at most {most:,}")
        self.sampler.check_sizes(self.capacity, self.num_envs, self.batch_size)

    @property
    def slots(self) -> int:
        """Slots of the ring."""
        return self.capacity * self.sampler.capacity_factor

    @property
    def requires(self) -> Requirements:
        """Needs of the sampler."""
        return self.sampler.requires

    @with_default_promotion
    def init(self, key: Array, example: Tree) -> ReplayState:
        """Return the state of an empty replay.

        Args:
          key: PRNG key, for samplers with parameters.
          example: one transition without a batch axis, for shapes and dtypes: a `Transition`, or
            any other pytree of arrays.

        Raises:
          ValueError: the example lacks a field that the sampler reads, or holds an array that can't
            be stored.
        """
        calls.check_transition(self.requires, example)
        ring = ring_.init(
            example, self.slots, self.num_envs, self.storage, kept=self.requires.transition_fields
        )
        zero = jnp.zeros((), jnp.int32)
        inner = self.sampler.init(unrolled(key), ring)
        return donatable(tracing.varying(ReplayState(ring, inner, dropped=zero, fence=zero)))

    @with_default_promotion
    def add(self, state: ReplayState, transition: Tree, **feedback: Array) -> ReplayState:
        """Return the state with one more transition of every environment.

        Numbers that are not finite are stored as 0 and counted by the metric `dropped`.

        Args:
          state: of the replay.
          transition: `[E, ...]`, with the fields of the example.
          **feedback: `[E]` each, the feedback named by `Requirements.feedback_of_new`.

        Raises:
          ValueError: feedback is missing, or shapes or dtypes differ from the example's.
        """
        return self._add(calls.checked_state(self, "add", state), transition, feedback)

    @with_default_promotion
    def add_rollout(self, state: ReplayState, rollout: Tree, **feedback: Array) -> ReplayState:
        """Return the state with T successive transitions of every environment.

        Args:
          state: of the replay.
          rollout: `[T, E, ...]`, with the fields of the example.
          **feedback: `[T, E]` each, as for `add`.

        Raises:
          ValueError: as `add`; or fields differ in T; or the storage is on the host, where
            transitions are added one at a time.
        """
        state = calls.checked_state(self, "add_rollout", state)
        rollout = calls.checked_rollout(state.ring, rollout, feedback)

        def add(state: ReplayState, given: tuple[Tree, Mapping[str, Array]]) -> Any:
            return self._add(state, *given), None

        return jax.lax.scan(add, state, (rollout, feedback))[0]

    @with_default_promotion
    def sample(self, state: ReplayState, key: Array, batch_size: int | None = None) -> Sample:
        """Return a batch of transitions, `[B, ...]`.

        Pass it to `update`, even without feedback (see the class).

        Args:
          state: of the replay.
          key: PRNG key.
          batch_size: B, a static number; None is the replay's.

        Raises:
          ValueError: the replay is empty (under jit, ask `can_sample`), or can't be sampled with
            this batch size.
        """
        state = calls.checked_state(self, "sample", state)
        batch_size = self._size_of_batch(batch_size)
        self._check_not_empty(state)
        draw = self.sampler.sample(state.sampler, state.ring, unrolled(key), batch_size)
        indices = buffer.once(draw.indices)  # else for every number of the transitions that is read
        batch = Sample(
            indices=indices,
            transition=ring_.gather(state.ring, indices),
            weights=jnp.where(ring_.size(state.ring) > 0, draw.weights, 0.0),  # 0: it is empty
            version=ring_.version(state.ring, indices),
            aux=draw.aux,
            probability=draw.probability,
        )
        batch = buffer.settled(batch)
        # What `update` is given is available only after all reads, so that its writes follow them.
        # (Probabilities come of reads for draws and weights: unused, they are not computed.)
        fence = buffer.fence(batch._replace(probability=None))
        return batch._replace(indices=buffer.after(fence, batch.indices))

    @with_default_promotion
    def update(self, state: ReplayState, sample: Sample, **feedback: Array) -> ReplayState:
        """Return the state after the agent's feedback about a batch.

        Feedback for slots that have been overwritten since, and feedback that is not finite, is
        dropped and counted by the metric `dropped`.

        Args:
          state: of the replay.
          sample: the batch that `sample` returned.
          **feedback: `[B]` each, or `[B, T]` for sequences: the feedback named by
            `Requirements.feedback`, such as `td_error`. Other names that agents give are ignored.

        Raises:
          ValueError: feedback is missing or of another shape than the batch.
        """
        state = calls.checked_state(self, "update", state)
        sample = calls.checked_batch(sample, self.slots, self.sampler.length)
        wanted, shape = self.requires.feedback, sample.indices.shape
        calls.check_feedback(wanted, feedback, "update", shape)
        valid = ring_.version(state.ring, sample.indices) == sample.version
        sample, feedback = _constant(sample), _single(feedback)
        for values in feedback.values():
            valid &= jnp.isfinite(values)
        # These writes follow all reads so far, such as those of `observe`; the writes of the next
        # call follow these writes, and the reads of `sample`.
        indices = buffer.after(state.fence, jnp.where(valid, sample.indices, IGNORED))
        indices = buffer.once(indices)
        sample = sample._replace(indices=indices)
        feedback = {name: jnp.where(valid, values, 0.0) for name, values in feedback.items()}
        inner = self.sampler.update(state.sampler, state.ring, sample, **feedback)
        dropped = counters.saturating_add(state.dropped, (~valid).sum(dtype=jnp.int32))
        fence = state.fence + buffer.fence((inner, indices))
        return buffer.settled(state._replace(sampler=inner, dropped=dropped, fence=fence))

    @with_default_promotion
    def after_reading(self, state: ReplayState, batch: Sample) -> ReplayState:
        """Return the same state, whose next writes wait until a batch has been read.

        Only compiled loops that call `add` between `sample` and `update` need it, before `add`:
        otherwise XLA copies the whole ring in every iteration.

        Args:
          state: of the replay.
          batch: drawn from it by `sample`.
        """
        state = calls.checked_state(self, "after_reading", state)
        batch = calls.checked_batch(batch, self.slots, self.sampler.length)
        return state._replace(fence=state.fence + buffer.fence(batch.indices))

    @with_default_promotion
    def observe(self, state: ReplayState, episode_return: Array, key: Array) -> ReplayState:
        """Return the state after an episode return, for learned samplers; others ignore it.

        Args:
          state: of the replay.
          episode_return: `[]`, a mean return of the kind that `Requirements.episode_returns` names;
            one that is not finite changes nothing.
          key: PRNG key.
        """
        state = calls.checked_state(self, "observe", state)
        check_feedback_array("observe", "episode_return", episode_return, ())
        if self.requires.episode_returns is None:
            return state
        episode_return = _constant(jnp.asarray(episode_return, jnp.float32))
        due, given = jnp.isfinite(episode_return), (state.ring, episode_return, unrolled(key))
        inner = cond_if_any(due, self.sampler.observe, state.sampler, *given)
        pairs = zip(jax.tree.leaves(inner), jax.tree.leaves(state.sampler), strict=True)
        changed = [new for new, old in pairs if new is not old]
        # Any of them is available only after all reads; the smallest is the cheapest to wait for.
        fence = state.fence + buffer.fence(sorted(changed, key=jnp.size)[:1])
        return buffer.settled(state._replace(sampler=inner, fence=fence))

    @with_default_promotion
    def can_sample(self, state: ReplayState, batch_size: int | None = None) -> Array:
        """Return whether a batch can be drawn, `[]` bool.

        It is true once a whole batch is stored. Samplers of sequences draw with replacement: for
        these, one sequence is enough.

        Args:
          state: of the replay.
          batch_size: as for `sample`.
        """
        state = calls.checked_state(self, "can_sample", state)
        return self.sampler.ready(state.sampler, state.ring, self._size_of_batch(batch_size))

    @with_default_promotion
    def probability(self, state: ReplayState, slots: Array, batch_size: int | None = None) -> Array:
        """Return the probability of slots to be drawn, `[n]` float32.

        It is a slot's expected share of a batch: 1 in sum over all slots, and 0 for slots that are
        empty or do not exist.

        Args:
          state: of the replay.
          slots: `[n]` int32.
          batch_size: as for `sample`.
        """
        state = calls.checked_state(self, "probability", state)
        slots = as_int32("slots", slots, -1)
        exists = (slots >= 0) & (slots < state.ring.capacity)
        size, known = self._size_of_batch(batch_size), jnp.where(exists, slots, 0)
        chance = self.sampler.probability(state.sampler, state.ring, known, size)
        return jnp.where(exists, chance, 0.0)

    @with_default_promotion
    def metrics(self, state: ReplayState) -> dict[str, Array]:
        """Return metrics of replay and sampler, `[]` float32 each, by name."""
        state = calls.checked_state(self, "metrics", state)
        own = self.sampler.metrics(state.sampler, state.ring)
        return {
            "dropped": state.dropped.astype(jnp.float32),
            **own,
            **ring_.metrics(state.ring),
        }

    @with_default_promotion
    def end_episodes(self, state: ReplayState) -> ReplayState:
        """Return the state in which the newest transition of every environment ended its episode.

        For loops whose environments were reset without a step that ended the episode, as after
        `jaxreplay.load`: no sequence, window or n-step walk then leads from the old episodes into
        the new ones. The last step keeps its discount, as at a time limit; the field `first` of the
        next transition must be True. Where steps wait in an n-step window that goes on, call
        `n_step.end_episodes` instead.
        """
        state = calls.checked_state(self, "end_episodes", state)
        counter = state.ring.steps_added
        # The newest transition is found only after all reads.
        ring = state.ring.replace(steps_added=buffer.after(state.fence, counter))
        if any(field.top == "last" for field in ring.layout.fields):
            ring = ring_.end_episodes(ring)
        inner = self.sampler.end_episodes(state.sampler, ring)
        return buffer.settled(state._replace(ring=ring.replace(steps_added=counter), sampler=inner))

    def _add(
        self, state: ReplayState, transition: Tree, feedback: Mapping[str, Array]
    ) -> ReplayState:
        wanted, num_envs = self.requires.feedback_of_new, self.num_envs
        calls.check_feedback(wanted, feedback, "add", (num_envs,))
        ring_.check_fits(state.ring, transition)
        transition = _constant(ring_.as_stored(state.ring, jax.tree.map(jnp.asarray, transition)))
        new = buffer.after(state.fence, transition), _single(feedback)
        feedback = new[1]  # samplers decide about feedback that is not finite
        (transition, _), broken = _finite(new, num_envs)
        state = state._replace(dropped=counters.saturating_add(state.dropped, broken))
        ring, slots = ring_.write(state.ring, transition)
        slots = buffer.after(state.fence, slots)
        inner = self.sampler.add(state.sampler, ring, slots, transition, **feedback)
        return buffer.settled(state._replace(ring=ring, sampler=inner))

    def _size_of_batch(self, asked: int | None) -> int:
        if asked is None:
            return self.batch_size
        calls.check_batch_size(self.requires, asked, self.batch_size, self.capacity)
        self.sampler.check_sizes(self.capacity, self.num_envs, asked)
        return asked

    def _check_not_empty(self, state: ReplayState) -> None:
        # Under jit the size is unknown: the loop asks `can_sample` instead.
        steps_added = state.ring.steps_added
        if not isinstance(steps_added, Tracer) and int(steps_added) == 0:
            raise ValueError("the replay is empty: add transitions before sampling")
        ready = self.sampler.ready(state.sampler, state.ring, 1)
        if not isinstance(ready, Tracer) and not ready:
            raise ValueError(
                "the replay holds nothing that this sampler can draw: add more transitions before "
                "sampling (see can_sample)"
            )


def check_valid(state: ReplayState) -> None:
    """Check the invariants of a concrete replay's ring; methods check their samplers' own.

    Raises:
      ValueError: an invariant does not hold.
    """
    ring_.check_valid(state.ring)


def _finite(new: Tree, num_envs: int) -> tuple[Tree, Array]:
    """Return arrays `[E, ...]` with 0 in place of NaN and infinity, and their transitions `[]`."""
    broken = jnp.zeros(num_envs, bool)
    for leaf in jax.tree.leaves(new):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            broken |= ~jnp.isfinite(leaf).reshape(num_envs, -1).all(axis=1)

    def replaced(leaf: Array) -> Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return jnp.where(jnp.isfinite(leaf), leaf, jnp.zeros_like(leaf))

    return jax.tree.map(replaced, new), broken.sum(dtype=jnp.int32)


def _single(feedback: Mapping[str, Array]) -> dict[str, Array]:
    """Return feedback in float32, as samplers keep it; numbers beyond float32 are infinite."""
    single = {name: jnp.asarray(values).astype(jnp.float32) for name, values in feedback.items()}
    return _constant(single)


def _constant(given: Tree) -> Tree:
    """Return arguments without tangents, so that a loss may update the replay that it samples."""
    return jax.lax.stop_gradient(given)
