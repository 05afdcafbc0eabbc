"""What is replayed, beside what is stored: the picture behind a replay method.

The mean and spread of TD errors and Q among replayed transitions are Fig. 5 and Tab. 3 of
Oh et al. 2021.
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp

from agents.types import Agent
from jaxreplay import ring as ring_
from jaxreplay.types import Array, Replay, Transition

Metrics = dict[str, Array]

# Edges of the histogram of log10(N P): how many times likelier than uniform a transition is.
ODDS_EDGES = (-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0)


def inspect(
    agent: Agent, agent_state: Any, replay: Replay, state: Any, key: Array, batches: int
) -> Metrics:
    """Draw batches, and as many transitions uniformly, and look at both with the current networks.

    Nothing is learned and no state changes.

    Args:
      agent: whose `feedback` gives TD errors and Q.
      agent_state: its state.
      replay: a replay that can be sampled from.
      state: its state.
      key: PRNG key.
      batches: how many to draw.

    Returns:
      Under `replayed/` and `stored/`: `abs_td` and `q_value`, their means, `td_std` and `q_std`,
      and `age` in agent steps. Under `replayed/` alone: `distinct`, the share of different
      transitions in a batch; `effective_batch`, `(sum w)^2 / (B sum w^2)` of the importance
      weights; `effective_buffer`, `1 / (N sum P^2)`, the share of the buffer that the draws really
      use; `odds_i`, the share of stored transitions whose log10(N P) lies between ODDS_EDGES[i-1]
      and ODDS_EDGES[i].
    """
    key_draw, key_stored, *keys = jax.random.split(key, 4)
    ring = state.ring
    size = ring_.size(ring)

    def draw(key: Array) -> tuple[Array, Array]:
        batch = replay.sample(state, key)[1]
        return batch.indices, batch.weights

    drawn, weights = jax.lax.map(draw, jax.random.split(key_draw, batches))
    stored = jax.random.randint(key_stored, (drawn.size,), 0, jnp.maximum(size, 1), jnp.int32)
    metrics = {}
    for name, slots, key_feedback in zip(
        ("replayed", "stored"), (drawn.ravel(), stored), keys, strict=True
    ):
        seen = _feedback(agent, agent_state, ring_.gather(ring, slots), key_feedback, batches)
        metrics |= {f"{name}/{what}": value for what, value in _summary(seen).items()}
        age = ring_.age(ring, slots) * ring.num_envs
        metrics[f"{name}/age"] = age.astype(jnp.float32).mean()
    probability = replay.probability(state, jnp.arange(ring.capacity))
    effective = 1.0 / (jnp.maximum(size, 1) * jnp.square(probability).sum())
    return metrics | {
        "replayed/distinct": _distinct(drawn),
        "replayed/effective_batch": _effective(weights).mean(),
        "replayed/effective_buffer": effective,
        **_odds(probability, size),
    }


def _summary(seen: dict[str, Array]) -> Metrics:
    """Return means and standard deviations of each quantity."""
    return {
        "abs_td": jnp.abs(seen["td_error"]).mean(),
        "td_std": seen["td_error"].std(),
        "q_value": seen["q_value"].mean(),
        "q_std": seen["q_value"].std(),
    }


def _feedback(
    agent: Agent, agent_state: Any, transitions: Transition, key: Array, batches: int
) -> dict[str, Array]:
    """Return the feedback about `[n B]` transitions.

    One batch at a time, to stay within a batch's memory.
    """
    split = jax.tree.map(lambda x: x.reshape(batches, -1, *x.shape[1:]), transitions)
    keys = jax.random.split(key, batches)
    return jax.lax.map(lambda part: agent.feedback(agent_state, *part), (split, keys))


def _distinct(drawn: Array) -> Array:
    """Return the mean share of different slots in batches `[n, B]`."""
    ordered = jnp.sort(drawn, axis=1)
    new = ordered[:, 1:] != ordered[:, :-1]
    return (new.sum(axis=1) + 1).mean() / drawn.shape[1]


def _effective(weights: Array) -> Array:
    """Return the effective share `[n]` of weighted batches `[n, B]` (Kish 1965)."""
    return weights.sum(axis=1) ** 2 / (weights.shape[1] * jnp.square(weights).sum(axis=1))


def _odds(probability: Array, size: Array) -> Metrics:
    """Return the histogram of log10(N P) over the stored transitions, in shares."""
    live = jnp.arange(probability.size) < size
    odds = jnp.log10(jnp.maximum(probability * size, 1e-30))
    above = [size, *((live & (odds >= edge)).sum() for edge in ODDS_EDGES), jnp.zeros_like(size)]
    shares = [(low - high) / jnp.maximum(size, 1) for low, high in itertools.pairwise(above)]
    return {f"replayed/odds_{number}": share for number, share in enumerate(shares)}
