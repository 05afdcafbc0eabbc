"""Replay buffers: a ring buffer with a sampler, as pure functions on a single state."""

# Some calls change no value, only what JAX traces and what XLA compiles:
#
# * `cached_method`: equal replays share compiled functions, although Python creates a new bound
#   method, which JAX would trace again, at every access.
# * `buffer.fence` and `buffer.wait`: writes follow all reads of the same array. Otherwise,
#   XLA would copy the array to keep its old values. `buffer.settle` does so on accelerators.
# * `buffer.once`: XLA computes slots once instead of once for every word that it reads.
# * `unrolled`: keys yield the same random numbers, but hash faster on CPU.
# * `varying` and `donatable`: loops under `jax.shard_map` can carry a new state, and jitted
#   functions can donate it, even if a sampler uses an array twice.

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from jaxreplay import buffer, counters, devices
from jaxreplay import ring as ring_
from jaxreplay._internal import calls
from jaxreplay._internal.arguments import as_int32, check_array, check_size
from jaxreplay._internal.branches import cond_if_any
from jaxreplay._internal.tracing import cached_method, donatable, varying
from jaxreplay.buffer import unrolled
from jaxreplay.ring import Ring, Storage, Transitions
from jaxreplay.sampler import Sampler
from jaxreplay.types import IGNORED, Array, Requirements, Sample, State, Tree

_MAX_SLOTS = 2**30  # int32 step counters rewind by a multiple of the steps in the ring buffer


class ReplayState(NamedTuple):
    """State of a `Replay`, passed to and returned by its functions."""

    ring: Ring
    sampler: State
    dropped: Array  # [] int32, number of transitions with dropped values: feedback for overwritten
    # or empty slots, non-finite feedback, or NaN and infinity in new transitions (stored as 0)
    fence: Array  # [] int32, always 0, but computed from all previous reads, so writes follow them


@dataclasses.dataclass(frozen=True)
class Replay:
    """A replay buffer with a fixed capacity and a sampler.

    A `Replay` is hashable and contains only options. Its contents are a `ReplayState`, which `init`
    creates. All functions are pure and support `jit`, `vmap` over seeds, and use inside
    differentiated functions (states carry no tangents). One iteration of a training loop is:

        state = replay.add(state, transition)
        batch = replay.sample(state, key)
        state = replay.update(state, batch, td_error=td_error)

    Call `update` for every batch, even if the sampler requires no feedback, because `update` forces
    later writes to run after the batch has been read. Otherwise, XLA may copy the whole ring buffer
    in every iteration of a compiled loop. If anything other than the `update` of this batch comes
    next (an `add`, another `sample`, or the `update` of another batch), call `after_reading` right
    after `sample`. `jaxreplay.testing.assert_in_place` checks a loop for copies.

    Args:
      sampler: sampler that chooses the slots of a batch, such as `methods.per.sampler()`.
      capacity: number of stored transitions, a multiple of `num_envs`. The ring buffer has
        `sampler.capacity_factor` times as many slots.
      batch_size: default batch size of `sample`.
      num_envs: number of environments E, each of which adds one transition per step.
      storage: storage format for observations. `Transitions()` stores both observations of every
        transition, `SharedObservations()` stores every observation once, and `Frames(stack=4)`
        stores every frame of stacked observations once.
      axis_name: name of a mesh axis under `jax.shard_map` over which one replay is sharded. All
        sizes then describe the part on a single device. See `jaxreplay.devices`. None means that
        the replay is not sharded.

    Raises:
      ValueError: If the sizes are incompatible with each other or with the sampler, or if the
        transitions of the sampler cannot be sharded over a mesh axis.

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
    axis_name: str | None = None

    def __post_init__(self) -> None:
        calls.check_sampler(self.sampler)
        if not isinstance(self.storage, Storage):
            raise ValueError(
                "storage must be an instance such as jaxreplay.Transitions(), SharedObservations() "
                f"or Frames(stack=4), got {self.storage!r}"
            )
        calls.check_axis(self.axis_name, self.sampler)
        ring_.check_sizes(self.capacity, self.num_envs)
        check_size("batch_size", self.batch_size)
        for name in ("capacity", "batch_size", "num_envs"):
            # Convert to Python integers, because sizes are also written to files.
            object.__setattr__(self, name, int(getattr(self, name)))
        if self.slots > _MAX_SLOTS:
            most = _MAX_SLOTS // self.sampler.capacity_factor
            raise ValueError(f"capacity must be at most {most:,}, got {self.capacity}")
        self._check_batch_size(self.batch_size)

    @property
    def slots(self) -> int:
        """Number of slots in the ring buffer."""
        return self.capacity * self.sampler.capacity_factor

    @property
    def requires(self) -> Requirements:
        """Requirements of the sampler."""
        return self.sampler.requires

    @cached_method
    def init(self, key: Array, example: Tree) -> ReplayState:
        """Return the state of an empty replay.

        Args:
          key: PRNG key for initialising the parameters of learned samplers.
          example: one transition without a batch axis. It defines shapes and dtypes. Any pytree
            of arrays is supported, such as a `Transition`.

        Raises:
          ValueError: If `example` lacks a field that the sampler reads, or contains an array that
            can't be stored.
        """
        calls.check_example(self.requires, example)
        ring = self.storage.init(example, self.slots, self.num_envs)
        if self.axis_name is not None:
            ring = ring.replace(axis_name=self.axis_name)
        zero = jnp.zeros((), jnp.int32)
        inner = self.sampler.init(unrolled(key), ring)
        return donatable(varying(ReplayState(ring, inner, dropped=zero, fence=zero)))

    @cached_method
    def add(self, state: ReplayState, transition: Tree, **feedback: Array) -> ReplayState:
        """Add one transition per environment and return the new state.

        NaN and infinite values are replaced by 0, and the metric `dropped` counts the transitions
        with such values.

        Args:
          state: state of the replay.
          transition: `[E, ...]`, with the same fields as the example.
          **feedback: `[E]` each, such as `td_error`. `Requirements.feedback_of_new` lists the
            required feedback.

        Raises:
          ValueError: If feedback is missing, or a shape or dtype does not match the example.
        """
        state = calls.checked_state(self, "add", state)
        wanted = self.requires.feedback_of_new
        calls.check_feedback(wanted, feedback, "add", (self.num_envs,))
        return self._add(state, state.ring.as_stored(transition), feedback)

    @cached_method
    def add_rollout(self, state: ReplayState, rollout: Tree, **feedback: Array) -> ReplayState:
        """Add T consecutive transitions per environment and return the new state.

        Args:
          state: state of the replay.
          rollout: `[T, E, ...]`, with the same fields as the example.
          **feedback: `[T, E]` each, the feedback that `add` requires.

        Raises:
          ValueError: If `add` would raise, or if fields differ in T.
        """
        state = calls.checked_state(self, "add_rollout", state)
        lead = (calls.rollout_length(rollout), self.num_envs)
        calls.check_feedback(self.requires.feedback_of_new, feedback, "add_rollout", lead)
        rollout = state.ring.as_stored(rollout, lead)

        def add(state: ReplayState, given: tuple[Tree, Mapping[str, Array]]) -> Any:
            return self._add(state, *given), None

        return jax.lax.scan(add, state, (rollout, feedback))[0]

    @cached_method
    def sample(self, state: ReplayState, key: Array, batch_size: int | None = None) -> Sample:
        """Sample a batch of transitions, `[B, ...]`.

        Pass every batch to `update`, even without feedback (see the class documentation).

        Args:
          state: state of the replay.
          key: PRNG key.
          batch_size: batch size B, a static integer. None means `self.batch_size`.

        Raises:
          ValueError: If the replay is empty or does not support this batch size. Under `jit`, an
            empty replay does not raise; check `can_sample` instead.
        """
        state = calls.checked_state(self, "sample", state)
        batch_size = self._size_of_batch(batch_size)
        self._check_ready(state)
        draw = self.sampler.sample(state.sampler, state.ring, unrolled(key), batch_size)
        draw = calls.checked_draw(self.sampler, draw, batch_size)
        if not self.sampler.is_uniform:
            draw = buffer.settle(draw)
        indices = buffer.once(draw.indices)
        stored = ring_.gather(state.ring, indices)
        batch = Sample(
            indices=indices,
            transition=self.sampler.relabel(state.sampler, state.ring, draw, stored),
            # Weights are 0 if the replay is empty.
            weights=jnp.where(ring_.size(state.ring) > 0, draw.weights, 0.0),
            version=ring_.version(state.ring, indices),
            aux=draw.aux,
            probability=draw.probability,
        )
        # Make the indices passed to `update` depend on all reads, so its writes follow these reads.
        # Probabilities derive from earlier reads; including them would force their computation.
        fence = buffer.fence(batch._replace(probability=None))
        return batch._replace(indices=buffer.wait(fence, batch.indices))

    @cached_method
    def update(self, state: ReplayState, sample: Sample, **feedback: Array) -> ReplayState:
        """Update the sampler with the agent's feedback on a batch and return the new state.

        Feedback such as TD errors is dropped if it is NaN or infinite, or if its slot is empty or
        has been overwritten since sampling. The metric `dropped` counts all three.

        Args:
          state: state of the replay.
          sample: batch returned by `sample`.
          **feedback: `[B]` each, or `[B, T]` for sequences, including all feedback in
            `Requirements.feedback`, such as `td_error`. Other names in `FEEDBACK` are ignored.

        Raises:
          ValueError: If feedback is missing or its shape does not match the batch.
        """
        state = calls.checked_state(self, "update", state)
        sample = calls.checked_batch(sample, self.slots, self.sampler.length)
        wanted, shape = self.requires.feedback, sample.indices.shape
        calls.check_feedback(wanted, feedback, "update", shape)
        valid = ring_.version(state.ring, sample.indices) == sample.version
        valid &= sample.indices < ring_.size(state.ring)  # `sample` of an empty replay under jit
        sample, feedback = _constant(sample), _single(feedback)
        for values in feedback.values():
            valid &= jnp.isfinite(values)
        # These writes follow all previous reads, such as those in `observe_return`. The writes of
        # the next call follow these writes and the reads in `sample`.
        indices = buffer.wait(state.fence, jnp.where(valid, sample.indices, IGNORED))
        indices = buffer.once(indices)
        sample = sample._replace(indices=indices)
        feedback = {name: jnp.where(valid, values, 0.0) for name, values in feedback.items()}
        given = state.sampler, state.ring, sample
        inner = calls.next_state(self.sampler, "update", *given, **feedback)
        dropped = counters.saturating_add(state.dropped, (~valid).sum(dtype=jnp.int32))
        fence = buffer.fence((inner, indices), state.fence)
        return state._replace(sampler=inner, dropped=dropped, fence=fence)

    @cached_method
    def refresh(self, state: ReplayState, slots: Array, **feedback: Array) -> ReplayState:
        """Set the exact priorities of slots, outside of any batch, and return the new state.

        Schedules over updates, such as the schedule of beta, do not advance. After a call, new
        transitions receive the maximum of all stored priorities. Empty slots and NaN or infinite
        feedback change nothing; the metric `dropped` counts NaN or infinite feedback.

        Args:
          state: state of the replay.
          slots: `[n]` int32, distinct, such as `jnp.arange(replay.slots)`.
          **feedback: `[n]` each, including all feedback in `Requirements.feedback`.

        Raises:
          ValueError: If feedback is missing, or its shape differs from the shape of `slots`.
          NotImplementedError: If the sampler does not implement `Sampler.refresh`.
        """
        state = calls.checked_state(self, "refresh", state)
        slots = as_int32("slots", slots, int(IGNORED))
        calls.check_feedback(self.requires.feedback, feedback, "refresh", slots.shape)
        feedback = _single(feedback)
        stored = (slots >= 0) & (slots < ring_.size(state.ring))
        valid = stored
        for values in feedback.values():
            valid &= jnp.isfinite(values)
        dropped = counters.saturating_add(state.dropped, (stored & ~valid).sum(dtype=jnp.int32))
        slots = buffer.once(buffer.wait(state.fence, jnp.where(valid, slots, IGNORED)))
        feedback = {name: jnp.where(valid, values, 0.0) for name, values in feedback.items()}
        given = state.sampler, state.ring, slots
        inner = calls.next_state(self.sampler, "refresh", *given, **feedback)
        fence = buffer.fence((inner, slots), state.fence)
        return state._replace(sampler=inner, dropped=dropped, fence=fence)

    @cached_method
    def after_reading(self, state: ReplayState, batch: Sample) -> ReplayState:
        """Return an equal state whose next writes run after a batch has been read.

        Call this function in a compiled loop right after `sample`, unless the `update` of the batch
        comes next. Otherwise, XLA copies the whole ring buffer in every iteration.

        Args:
          state: state of the replay.
          batch: batch returned by `sample`.
        """
        state = calls.checked_state(self, "after_reading", state)
        batch = calls.checked_batch(batch, self.slots, self.sampler.length)
        state = buffer.settle((state, batch))[0]
        return state._replace(fence=buffer.fence(batch.indices, state.fence))

    @cached_method
    def observe_return(self, state: ReplayState, episode_return: Array, key: Array) -> ReplayState:
        """Update a learned sampler with an episode return. Other samplers ignore episode returns.

        Args:
          state: state of the replay.
          episode_return: `[]`, the mean return of the evaluation or training episodes that
            `Requirements.episode_returns` specifies. NaN and infinite returns are ignored.
          key: PRNG key.
        """
        state = calls.checked_state(self, "observe_return", state)
        remedy = ": pass the mean of several returns"
        check_array("episode_return", episode_return, (), float, lambda given: remedy)
        if self.requires.episode_returns is None:
            return state
        episode_return = _constant(jnp.asarray(episode_return, jnp.float32))
        due, given = jnp.isfinite(episode_return), (state.ring, episode_return, unrolled(key))
        inner = cond_if_any(due, self.sampler.observe_return, state.sampler, *given)
        pairs = zip(jax.tree.leaves(inner), jax.tree.leaves(state.sampler), strict=True)
        changed = [new for new, old in pairs if new is not old]
        # Each changed array depends on all reads; waiting for the smallest array is cheapest.
        fence = buffer.fence(sorted(changed, key=jnp.size)[:1], state.fence)
        return state._replace(sampler=inner, fence=fence)

    @cached_method
    def can_sample(self, state: ReplayState, batch_size: int | None = None) -> Array:
        """Return whether a batch can be drawn, `[]` bool.

        By default, this is True once the replay contains `batch_size` transitions. Sequence
        samplers draw with replacement and require only one sequence.

        Args:
          state: state of the replay.
          batch_size: batch size, as in `sample`.
        """
        state = calls.checked_state(self, "can_sample", state)
        return self.sampler.ready(state.sampler, state.ring, self._size_of_batch(batch_size))

    @cached_method
    def probability(self, state: ReplayState, slots: Array, batch_size: int | None = None) -> Array:
        """Return the sampling probabilities of slots, `[n]` float32.

        Each probability is the expected fraction of a batch from this slot. The probabilities of
        all slots sum to 1. Slots that are empty or out of range have probability 0.

        Args:
          state: state of the replay.
          slots: `[n]` int32.
          batch_size: batch size, as in `sample`.
        """
        state = calls.checked_state(self, "probability", state)
        slots = as_int32("slots", slots, -1)
        exists = (slots >= 0) & (slots < state.ring.capacity)
        size, known = self._size_of_batch(batch_size), jnp.where(exists, slots, 0)
        chance = self.sampler.probability(state.sampler, state.ring, known, size)
        return jnp.where(exists, chance, 0.0)

    @cached_method
    def metrics(self, state: ReplayState) -> dict[str, Array]:
        """Return a dictionary of scalar float32 metrics of the replay and its sampler."""
        state = calls.checked_state(self, "metrics", state)
        of_sampler = self.sampler.metrics(state.sampler, state.ring)
        dropped = devices.total(state.dropped.astype(jnp.float32), self.axis_name)
        of_ring = devices.total(state.ring.metrics(), self.axis_name)
        return {"dropped": dropped, **of_sampler, **of_ring}

    @cached_method
    def end_episodes(self, state: ReplayState) -> ReplayState:
        """Truncate the current episode in every environment and return the new state.

        Call this function if environments were reset without a final step, for example after
        `jaxreplay.load`. It prevents sequences, windows and n-step returns from crossing the reset.
        The newest transition of every environment keeps its discount, as at a time limit. The field
        `first` of the next transition must be True. If an n-step window with incomplete transitions
        remains in use, call `n_step.end_episodes` instead.
        """
        state = calls.checked_state(self, "end_episodes", state)
        counter = state.ring.steps_added
        # The write to the newest transition must follow all reads.
        ring = state.ring.replace(steps_added=buffer.wait(state.fence, counter))
        if any(field.top == "last" for field in ring.layout.fields):
            ring = ring_.end_episodes(ring)
        inner = calls.next_state(self.sampler, "end_episodes", state.sampler, ring)
        return state._replace(ring=ring.replace(steps_added=counter), sampler=inner)

    def _add(
        self, state: ReplayState, transition: Tree, feedback: Mapping[str, Array]
    ) -> ReplayState:
        new = buffer.wait(state.fence, _constant(transition)), _single(feedback)
        feedback = new[1]  # still with NaN and infinity, because the sampler handles them
        (transition, _), broken = _finite(new, self.num_envs)
        state = state._replace(dropped=counters.saturating_add(state.dropped, broken))
        ring, slots = ring_.write(state.ring, transition)
        slots = buffer.wait(state.fence, slots)
        given = state.sampler, ring, slots, transition
        inner = calls.next_state(self.sampler, "add", *given, **feedback)
        return state._replace(ring=ring, sampler=inner)

    def _size_of_batch(self, asked: int | None) -> int:
        if asked is None:
            return self.batch_size
        if isinstance(asked, Tracer):
            raise ValueError(
                "batch_size must be static, got a traced value: use "
                "jax.jit(replay.sample, static_argnames='batch_size')"
            )
        check_size("batch_size", asked)
        self._check_batch_size(int(asked))
        if self.requires.all_new and asked != self.batch_size:
            raise ValueError(
                f"batch_size must be {self.batch_size} for this sampler, which returns every new "
                f"step once, got {asked}"
            )
        return int(asked)

    def _check_batch_size(self, size: int) -> None:
        if size > self.capacity:
            raise ValueError(f"batch_size must be at most the capacity {self.capacity}, got {size}")
        self.sampler.check_sizes(self.capacity, self.num_envs, size)

    def _check_ready(self, state: ReplayState) -> None:
        ready = self.sampler.ready(state.sampler, state.ring, 1)
        if not isinstance(ready, Tracer) and not ready:
            raise ValueError(
                "the replay is empty, or has too few transitions for this sampler: add more before "
                "sampling (see can_sample)"
            )


def _finite(new: Tree, num_envs: int) -> tuple[Tree, Array]:
    """Replace NaN and infinity by 0; return the arrays and the number of affected transitions."""
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
    """Cast feedback to float32; values that exceed the range of float32 become infinite."""
    single = {name: jnp.asarray(values).astype(jnp.float32) for name, values in feedback.items()}
    return _constant(single)


def _constant(given: Tree) -> Tree:
    """Stop gradients, so a loss function may update the replay from which it samples."""
    return jax.lax.stop_gradient(given)
