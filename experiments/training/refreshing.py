"""Feedback on all stored transitions, for methods that recompute all priorities."""

from typing import Any

import jax
import jax.numpy as jnp

from agents.types import Agent
from experiments.environments.types import Array
from jaxreplay import ring as ring_
from jaxreplay.replay import Replay
from jaxreplay.ring import Ring


def refreshed(
    replay: Replay, replay_state: Any, agent: Agent, agent_state: Any, updates: Array, key: Array
) -> Any:
    """Return the state of a replay, with the priorities of all slots recomputed when due.

    Args:
      replay: replay whose `requires.refresh` says when priorities are due.
      replay_state: state of the replay.
      agent: agent whose `feedback` determines the priorities.
      agent_state: state of the agent.
      updates: `[]` int32, number of updates so far, including the latest.
      key: PRNG key.
    """
    due = replay.requires.refresh
    if due is None:
        return replay_state

    def refresh(turn: Array, replay_state: Any) -> Any:
        # Slots depend on the turn, which is 0: otherwise, XLA would evaluate them before the loop,
        # also when nothing is due.
        slots = jnp.arange(replay.slots, dtype=jnp.int32) + turn
        told = evaluate(agent, agent_state, replay_state.ring, slots, key, due.chunk)
        known = {name: told[name] for name in replay.requires.feedback}
        return replay.refresh(replay_state, slots, **known)

    # A loop of one turn or none: a conditional would copy the arrays that it passes on.
    turns = (updates % due.every == 0).astype(jnp.int32)
    return jax.lax.fori_loop(0, turns, refresh, replay_state)


def evaluate(
    agent: Agent, agent_state: Any, ring: Ring, slots: Array, key: Array, chunk: int
) -> dict[str, Array]:
    """Return the agent's feedback on slots `[n]` int32, evaluated in chunks; each value is `[n]`.

    Chunks that begin with an empty slot are not evaluated; their feedback is 0.
    """
    count = len(slots)
    chunk = min(chunk, count)
    chunks = -(-count // chunk)
    parts = jnp.pad(slots, (0, chunks * chunk - count), mode="edge").reshape(chunks, chunk)

    def one(number: Array) -> dict[str, Array]:
        rows = ring_.gather(ring, parts[number])
        return agent.feedback(agent_state, rows, jax.random.fold_in(key, number))

    def turn(number: Array, told: dict[str, Array]) -> dict[str, Array]:
        return {name: told[name].at[number].set(value) for name, value in one(number).items()}

    like = jax.eval_shape(one, jnp.zeros((), jnp.int32))
    empty = {name: jnp.zeros((chunks, *x.shape), x.dtype) for name, x in like.items()}
    filled = (parts[:, 0] < ring_.size(ring)).sum()
    told = jax.lax.fori_loop(0, filled, turn, empty)
    return {name: values.ravel()[:count] for name, values in told.items()}
