"""Returns of finished episodes, computed backwards in a constant number of steps per new step.

A loop at the end of an episode would, under vmap over seeds, run for the longest episode of all.
"""

from typing import NamedTuple

import jax.numpy as jnp

from jaxreplay import buffer
from jaxreplay import ring as ring_
from jaxreplay.buffer import Buffer
from jaxreplay.ring import Ring
from jaxreplay.types import IGNORED, Array

_TURNS = 2  # steps that receive their return per new step of the same environment; at least two, so
# that this work keeps up with the new steps


class EpisodeReturns(NamedTuple):
    """Returns, and the progress of their computation in each environment.

    A pass starts at the newest end of an episode, and stops where the previous pass started. Ages
    are in steps. An age equal to the number of steps in the ring buffer means that there is no such
    step.
    """

    values: Buffer  # [C] float32, return of a step, or its reward until the return is known;
    # -inf in a truncated episode whose returns are unknown
    decays: Buffer  # [C] float32, discount, or 0 at the end of an episode
    end: Array  # [E] int32, age of the newest end of an episode
    start: Array  # [E] int32, age of the step at which the current pass started
    cursor: Array  # [E] int32, age of the step that is next
    done: Array  # [E] int32, age of the step at which the previous pass started
    later: Array  # [E] float32, return of the step after the next one
    running: Array  # [E] bool, whether the newest step does not end its episode


def init(ring: Ring) -> EpisodeReturns:
    """Return the initial state, for an empty ring buffer."""
    beyond, envs = ring_.num_steps(ring), ring.num_envs
    return EpisodeReturns(
        jnp.zeros(ring.capacity, jnp.float32),
        jnp.zeros(ring.capacity, jnp.float32),
        *(jnp.full(envs, beyond, jnp.int32) for _ in range(4)),
        later=jnp.zeros(envs, jnp.float32),
        running=jnp.zeros(envs, bool),
    )


def add(
    state: EpisodeReturns, ring: Ring, slots: Array, reward: Array, discount: Array, last: Array,
    truncated: bool,
) -> tuple[EpisodeReturns, Array, Array]:  # fmt: skip
    """Record new single steps at `slots` `[E]`, and compute returns of older steps.

    Args:
      state: the returns.
      ring: the ring buffer, which already contains the new steps.
      slots: `[E]` int32.
      reward: `[E]`.
      discount: `[E]`, 0 if the step terminated its episode.
      last: `[E]` bool.
      truncated: whether to compute returns of truncated episodes, which stop at the truncation.

    Returns:
      The new state; the slots `[2 E]` int32 of the older steps, or `IGNORED`; and a mask `[2 E]`
      of the older steps whose returns are known. Returns in truncated episodes are unknown unless
      `truncated` is True.
    """
    reward = reward.astype(jnp.float32)
    if not truncated:
        reward = jnp.where(last & (discount > 0), -jnp.inf, reward)
    decay = jnp.where(last, 0.0, discount.astype(jnp.float32))
    state, swept, returns = _move(state, ring, slots)
    decay = buffer.after(returns, decay)  # computed from decays
    places, values = jnp.concatenate([slots, swept]), jnp.concatenate([reward, returns])
    state = state._replace(
        values=buffer.write(state.values, places, values),
        decays=buffer.write(state.decays, slots, decay),
        end=jnp.where(last, 0, state.end),
        running=~last,
    )
    return state, swept, returns > -jnp.inf


def end_episodes(state: EpisodeReturns, ring: Ring, truncated: bool) -> EpisodeReturns:
    """Truncate the running episodes; `truncated` has the same meaning as in `add`."""
    newest = ring_.recent(ring, jnp.arange(ring.num_envs, dtype=jnp.int32))
    slots = jnp.where(state.running, jnp.sort(newest), IGNORED)  # sorted by environment
    values = state.values
    if not truncated:
        values = buffer.write(values, slots, jnp.full(slots.shape, -jnp.inf, jnp.float32))
    return state._replace(
        values=values,
        decays=buffer.write(state.decays, slots, jnp.zeros(slots.shape, jnp.float32)),
        end=jnp.where(state.running, 0, state.end),
        running=jnp.zeros_like(state.running),
    )


def _move(state: EpisodeReturns, ring: Ring, slots: Array) -> tuple[EpisodeReturns, Array, Array]:
    """Continue each environment's backward pass by two steps, after new steps at `slots` `[E]`.

    Returns:
      The state, and slots `[2 E]` with their returns `[2 E]`; slots may be `IGNORED`.
    """
    beyond = ring_.num_steps(ring)
    ages = (state.end, state.start, state.cursor, state.done)
    end, start, cursor, done = (jnp.minimum(age + 1, beyond) for age in ages)
    stored = jnp.minimum(ring.steps_added, beyond)
    ended = cursor >= jnp.minimum(done, stored)
    done = jnp.where(ended, start, done)
    begins = ended & (end < done)
    start, cursor = (jnp.where(begins, end, age) for age in (start, cursor))
    limit = jnp.where(ended & ~begins, 0, jnp.minimum(done, stored))
    turns = [cursor + turn for turn in range(_TURNS)]
    places = [(slots - age * ring.num_envs) % ring.capacity for age in turns]
    reads = jnp.concatenate(places)
    rewards, decays = (
        buffer.read(x, reads).reshape(_TURNS, -1) for x in (state.values, state.decays)
    )
    later, returns, swept = state.later, [], []
    for age, place, reward, decay in zip(turns, places, rewards, decays, strict=True):
        later = reward + jnp.where(decay == 0, 0.0, decay * later)
        returns.append(later)
        swept.append(jnp.where(age < limit, place, IGNORED))
    cursor = jnp.minimum(cursor + _TURNS, beyond)
    state = state._replace(end=end, start=start, cursor=cursor, done=done, later=later)
    return state, jnp.concatenate(swept), buffer.once(jnp.concatenate(returns))
