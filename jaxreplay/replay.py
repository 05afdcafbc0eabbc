"""A ring and a sampler behind five verbs."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from jaxreplay import clocks, requirements
from jaxreplay import fields as fields_
from jaxreplay import frames as frames_
from jaxreplay import ring as ring_
from jaxreplay._internal import buffer, rollouts, sharding
from jaxreplay._internal.arguments import as_int32, check_episode_return
from jaxreplay._internal.given import check_batch, checker
from jaxreplay._internal.made_with import (
    check_flags,
    check_sampler,
    check_sizes,
    check_storage,
)
from jaxreplay._internal.promotion import as_by_default
from jaxreplay.branches import rarely
from jaxreplay.donation import donatable
from jaxreplay.fields import Row
from jaxreplay.frames import Frames
from jaxreplay.keys import unrolled
from jaxreplay.ring import Ring
from jaxreplay.types import (
    Array,
    Replay,
    Sample,
    Sampler,
    State,
    Tree,
)

_MOST = 2**30  # slots: a clock of 32 bits can go back by whole rounds of so many


class ReplayState(NamedTuple):
    """What `make_replay`'s functions carry."""

    ring: Ring
    sampler: State
    dropped: Array  # [] int32, rows so far of which something was dropped: feedback for slots
    # that were overwritten, NaN and infinity in feedback or in new transitions (stored as 0)
    fence: Array  # [] int32, always 0, but known only once all reads so far are done: see `buffer`


def make_replay(
    sampler: Sampler,
    *,
    capacity: int,
    batch_size: int,
    num_envs: int = 1,
    frame_stack: int = 0,
    frame_spare: float = 0.04,
    frame_ahead: int | None = None,
    frames_on_host: bool = False,
    store_next_obs: bool = True,
    rows_on_host: bool = False,
) -> Replay:
    """Join a ring and a sampler into a Replay.

    In a compiled loop, `sample` and `update` leave a fence in the state, behind which the next verb
    writes: pass on the state that `sample` returns, or every step copies the whole ring and tree.
    Outside of compiled loops there is no such danger, and that state may be ignored:
    `jax.jit(lambda state, key: replay.sample(state, key)[1])` need not pass it through.

    Args:
      sampler: how to choose slots.
      capacity: transitions to remember, a multiple of `num_envs`; the ring has so many slots, or
        the sampler's `capacity_factor` times as many.
      batch_size: rows of one sample; `sample` takes another one on demand.
      num_envs: rows of one add.
      frame_stack: observations are stacks `[..., K]` of so many frames, newest last and zero before
        their episode: each frame is stored once. 0: they are stored as they are.
      frame_spare: places for the last frames of episodes, as a share of the capacity: 0.04 is
        enough for episodes of 25 steps or more on average. The metric `frames_lost` tells if not
        (and `frames_odd`, of episodes that begin with more than one frame).
      frame_ahead: the largest n of n-step returns, where observations or frames are stored once:
        every environment has so many places beyond those of its rows. With many environments, say
        it. None: 1 for rows of your own type without `n_steps`; else a quarter of an environment's
        rows, at least 32 and at most 255. `frames_lost` tells if it is too few.
      frames_on_host: the caller keeps the frames (`frames.empty_pixels`, `frames.write_on_host`);
        in sampled transitions, rows `[B, K]` of them stand for observations.
      store_next_obs: False stores observations of any kind once: the next one is that of the step
        after, and the last one of an episode takes one of the places of `frame_spare`. That is
        about half the memory where an environment has many more rows than `frame_ahead`. Rows have
        `obs`, `next_obs` and `first`; of n-step transitions of one's own type also `n_steps`.
      rows_on_host: the caller keeps all of a row that is larger than a number (`host_rows`), but
        for fields that the sampler looks at; sampled transitions lack it until `host_rows.join`.

    Raises:
      ValueError: the sizes do not fit together, or not the sampler.
    """
    check_flags(
        frames_on_host=frames_on_host, store_next_obs=store_next_obs, rows_on_host=rows_on_host
    )
    check_sampler(sampler, frames_on_host, rows_on_host)
    check_sizes(capacity, batch_size, num_envs, frame_stack, frame_spare)
    # Plain numbers, whatever came: a state's sizes are written to files, too.
    capacity, batch_size, num_envs = int(capacity), int(batch_size), int(num_envs)
    frame_stack = int(frame_stack)
    check_storage(
        frame_stack, frame_spare, frame_ahead, frames_on_host, store_next_obs, rows_on_host
    )
    if sampler.check_sizes is not None:
        sampler.check_sizes(capacity, num_envs, batch_size)
    slots, requires = capacity * sampler.capacity_factor, sampler.requires
    if slots > _MOST:
        raise ValueError(
            f"capacity is {capacity}: slots are numbered in 32 bits, so that it may be "
            f"{_MOST // sampler.capacity_factor:,} at most"
        )

    own = checker(sampler, slots, num_envs, ReplayState)

    def init(key: Array, example: Row) -> ReplayState:
        requirements.check_transition(requires, example)
        ring = ring_.init(
            example, slots, num_envs,
            frame_stack=frame_stack, frame_spare=frame_spare, frame_ahead=frame_ahead,
            frames_on_host=frames_on_host, store_next_obs=store_next_obs, rows_on_host=rows_on_host,
            kept=requires.transition_fields,
        )  # fmt: skip
        zero = jnp.zeros((), jnp.int32)
        state = ReplayState(ring, sampler.init(unrolled(key), ring), dropped=zero, fence=zero)
        return donatable(sharding.varying(state))

    def add(state: ReplayState, transition: Row, **feedback: Array) -> ReplayState:
        state = own("add", state)
        return _add(sampler, state, transition, feedback)

    def rows_of(asked: int | None) -> int:
        if asked is not None:
            requirements.check_batch_size(requires, asked, batch_size, capacity)
            if sampler.check_sizes is not None:
                sampler.check_sizes(capacity, num_envs, asked)
        return batch_size if asked is None else asked

    def sample(
        state: ReplayState, key: Array, batch_size: int | None = None
    ) -> tuple[ReplayState, Sample]:
        state = own("sample", state)
        return _sample(sampler, state, unrolled(key), rows_of(batch_size))

    def update(state: ReplayState, sample: Sample, **feedback: Array) -> ReplayState:
        state = own("update", state)
        sample = check_batch(sample, slots, sampler.length)
        return _update(sampler, state, sample, feedback)

    def observe(state: ReplayState, episode_return: Array, key: Array) -> ReplayState:
        state = own("observe", state)
        return _observe(sampler, state, episode_return, unrolled(key))

    def can_sample(state: ReplayState, batch_size: int | None = None) -> Array:
        state = own("can_sample", state)
        rows = rows_of(batch_size)
        if sampler.ready is not None:
            return sampler.ready(state.sampler, state.ring)
        return ring_.size(state.ring) >= rows

    def probability(state: ReplayState, slots: Array, batch_size: int | None = None) -> Array:
        state = own("probability", state)
        slots = as_int32("slots", slots, -1)
        there = (slots >= 0) & (slots < state.ring.capacity)
        rows, known = rows_of(batch_size), jnp.where(there, slots, 0)
        chance = sampler.probability(state.sampler, state.ring, known, rows)
        return jnp.where(there, chance, 0.0)

    def metrics(state: ReplayState) -> dict[str, Array]:
        state = own("metrics", state)
        return _metrics(sampler, state)

    def end_episodes(state: ReplayState) -> ReplayState:
        state = own("end_episodes", state)
        return _end_episodes(sampler, state)

    def add_one(state: ReplayState, given: tuple[Row, Mapping[str, Array]]) -> Any:
        return _add(sampler, state, *given), None

    def add_rollout(state: ReplayState, rollout: Row, **feedback: Array) -> ReplayState:
        state = own("add_rollout", state)
        rollout = rollouts.checked(state.ring, rollout, feedback)
        return jax.lax.scan(add_one, state, (rollout, feedback))[0]

    verbs: tuple[Any, ...] = (
        init, add, sample, update, observe, can_sample, probability, metrics, end_episodes,
        add_rollout,
    )  # fmt: skip
    for verb in verbs:  # help, and what Python says of wrong calls, name them so
        protocol = Replay.__annotations__[verb.__name__]
        verb.__qualname__, verb.__doc__ = f"Replay.{verb.__name__}", protocol.__call__.__doc__
    made = {verb.__name__: as_by_default(verb) for verb in verbs}
    return Replay(
        **made, capacity=capacity, num_envs=num_envs, batch_size=batch_size, requires=requires
    )


def check_valid(state: ReplayState) -> None:
    """Check the invariants of a concrete replay's ring (a sampler's own are its method's).

    Raises:
      ValueError: an invariant does not hold.
    """
    ring_.check_valid(state.ring)


def _add(
    sampler: Sampler, state: ReplayState, transition: Row, feedback: Mapping[str, Array]
) -> ReplayState:
    wanted = sampler.requires.feedback_of_new
    requirements.check_feedback(wanted, feedback, "add", "new transition", (state.ring.num_envs,))
    ring_.check_fits(state.ring, transition)
    transition = _constant(ring_.as_stored(state.ring, jax.tree.map(jnp.asarray, transition)))
    new = buffer.after(state.fence, transition), _single(feedback)
    feedback = new[1]  # the sampler decides what a step is worth of which nothing is known
    (transition, _), broken = _finite(new, state.ring.num_envs)
    state = state._replace(dropped=clocks.total(state.dropped, broken))
    ring, slots = ring_.add(state.ring, transition)
    slots = buffer.after(state.fence, slots)
    inner = sampler.add(state.sampler, ring, slots, transition, **feedback)
    return buffer.settled(state._replace(ring=ring, sampler=inner))


def _sample(
    sampler: Sampler, state: ReplayState, key: Array, batch_size: int
) -> tuple[ReplayState, Sample]:
    _refuse_empty(sampler, state)
    draw = sampler.sample(state.sampler, state.ring, key, batch_size)
    indices = buffer.once(draw.indices)  # else for every number of the rows that are read
    batch = Sample(
        indices=indices,
        transition=ring_.gather(state.ring, indices),
        # Of an empty replay, which under jit only `can_sample` can tell, rows count nothing.
        weights=jnp.where(ring_.size(state.ring) > 0, draw.weights, 0.0),
        version=ring_.version(state.ring, indices),
        aux=draw.aux,
        probability=draw.probability,
    )
    state, batch = buffer.settled((state, batch))
    # The next writes come after all that was read here. (What becomes probabilities was read for
    # draws and weights: if nobody looks at them, they are not computed.)
    fence = state.fence + buffer.fence(batch._replace(probability=()))
    batch = batch._replace(indices=buffer.after(fence, batch.indices))
    return state._replace(fence=fence), batch


def _update(
    sampler: Sampler, state: ReplayState, sample: Sample, feedback: Mapping[str, Array]
) -> ReplayState:
    wanted = sampler.requires.feedback
    shape = sample.indices.shape
    requirements.check_feedback(wanted, feedback, "update", "sampled transition", shape)
    valid = ring_.version(state.ring, sample.indices) == sample.version
    sample, feedback = _constant(sample), _single(feedback)
    for values in feedback.values():
        valid &= jnp.isfinite(values)
    indices = buffer.once(jnp.where(valid, sample.indices, state.ring.capacity))
    sample = sample._replace(indices=indices)
    feedback = {name: jnp.where(valid, values, 0.0) for name, values in feedback.items()}
    inner = sampler.update(state.sampler, state.ring, sample, **feedback)
    dropped = clocks.total(state.dropped, (~valid).sum(dtype=jnp.int32))
    fence = state.fence + buffer.fence(inner)
    return buffer.settled(state._replace(sampler=inner, dropped=dropped, fence=fence))


def _observe(
    sampler: Sampler, state: ReplayState, episode_return: Array, key: Array
) -> ReplayState:
    check_episode_return(episode_return)
    if sampler.requires.episode_returns is None:
        return state
    episode_return = _constant(jnp.asarray(episode_return, jnp.float32))
    due, told = jnp.isfinite(episode_return), (state.ring, episode_return, key)
    inner = rarely(due, sampler.observe, state.sampler, *told)
    pairs = zip(jax.tree.leaves(inner), jax.tree.leaves(state.sampler), strict=True)
    changed = [new for new, old in pairs if new is not old]
    # Any of them is known only once all that was read is.
    fence = state.fence + buffer.fence(sorted(changed, key=jnp.size)[:1])
    return buffer.settled(state._replace(sampler=inner, fence=fence))


def _end_episodes(sampler: Sampler, state: ReplayState) -> ReplayState:
    clock = state.ring.rows_added
    # Which row is the newest is known once all that was read is.
    ring = state.ring.replace(rows_added=buffer.after(state.fence, clock))
    if any(field.top == "last" for field in ring.layout.fields):
        ring = ring_.end_episodes(ring)
    inner = sampler.end_episodes(state.sampler, ring)
    return buffer.settled(state._replace(ring=ring.replace(rows_added=clock), sampler=inner))


def _metrics(sampler: Sampler, state: ReplayState) -> dict[str, Array]:
    own = sampler.metrics(state.sampler, state.ring)
    if isinstance(state.ring.frames, Frames):
        own = {**own, **_frame_metrics(state.ring, state.ring.frames)}
    return {"dropped": state.dropped.astype(jnp.float32), **own}


def _frame_metrics(ring: Ring, frames: Frames) -> dict[str, Array]:
    # Pixels on the host are written when steps are taken, before the n-step window.
    ahead = frames.ahead if isinstance(ring.pixels, tuple) else 0
    live = jnp.arange(ring.capacity) < ring_.size(ring)
    spots = fields_.get(ring_.contents(ring), "obs")
    lost = frames_.lost(frames, spots, live, ahead)
    return {
        "frames_lost": lost.astype(jnp.float32),
        "frames_odd": frames.odd.astype(jnp.float32),
    }


def _finite(new: Tree, num_envs: int) -> tuple[Tree, Array]:
    """Return arrays `[E, ...]` with 0 for what is not finite, and how many rows had such, `[]`."""
    broken = jnp.zeros(num_envs, bool)
    for leaf in jax.tree.leaves(new):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            broken |= ~jnp.isfinite(leaf).reshape(num_envs, -1).all(axis=1)

    def mend(leaf: Array) -> Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return jnp.where(jnp.isfinite(leaf), leaf, jnp.zeros_like(leaf))

    return jax.tree.map(mend, new), broken.sum(dtype=jnp.int32)


def _single(feedback: Mapping[str, Array]) -> dict[str, Array]:
    """Return feedback in float32, as samplers keep it: what it can't hold is infinite there."""
    single = {name: jnp.asarray(values).astype(jnp.float32) for name, values in feedback.items()}
    return _constant(single)


def _constant(given: Tree) -> Tree:
    """Return what is handed to the replay without tangents: a state never has any.

    A loss may update the replay that it samples from, whatever the sampler computes.
    """
    return jax.lax.stop_gradient(given)


def _refuse_empty(sampler: Sampler, state: ReplayState) -> None:
    # Under jit the size is not known; the loop asks `can_sample` instead.
    rows_added = state.ring.rows_added
    if not isinstance(rows_added, Tracer) and int(rows_added) == 0:
        raise ValueError("the replay is empty: add transitions before sampling")
    ready = True if sampler.ready is None else sampler.ready(state.sampler, state.ring)
    if not isinstance(ready, Tracer) and not ready:
        raise ValueError(
            "the replay holds nothing yet that this sampler draws: add more before sampling "
            "(can_sample tells)"
        )
