"""Comparison of replayed transitions with stored ones.

Mean and standard deviation of TD errors and Q among replayed transitions are Fig. 5 and Tab. 3 of
Oh et al. 2021.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from agents.types import Agent
from jaxreplay import devices
from jaxreplay import ring as ring_
from jaxreplay.replay import Replay
from jaxreplay.ring import Ring
from jaxreplay.types import Array, Sample

Metrics = dict[str, Array]

_CONCENTRATION = "replayed/concentration"  # N times the mean probability of drawn transitions

# Edges of the histogram of log10(N P), the probability of a transition relative to uniform.
ODDS_EDGES = (-2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0)


def measure_share(batch: Sample, replay: Any) -> Metrics:
    """Measure the effective share of the buffer; `conclude` converts means over updates to metrics.

    Args:
      batch: `[B]`, as drawn by the replay.
      replay: state of the replay before any transitions were added; its ring is used only for a
        batch with probabilities.
    """
    if not isinstance(batch.probability, jax.Array) or batch.indices.ndim > 1:
        return {}  # probabilities of sequences are not those of transitions
    size = devices.times(ring_.size(replay.ring), devices.current())
    return {_CONCENTRATION: size * batch.probability.mean()}


def measure(batch: Sample, feedback: Mapping[str, Array], ring: Ring) -> Metrics:
    """Measure a batch of the agent's update; `conclude` converts means over updates to metrics.

    Args:
      batch: `[B]` or `[B, T]`, as drawn by the replay.
      feedback: feedback of the agent's update, of the same shape; only steps that are learned from
        count.
      ring: the ring before any transitions were added.
    """
    slots = batch.indices.ravel()
    age = ring_.age(ring, slots) * _all_envs(ring)
    learned = batch.aux.learn if batch.indices.ndim > 1 else None  # of sequences
    return {f"replayed/{name}": value for name, value in _summary(feedback, learned).items()} | {
        "replayed/age": age.astype(jnp.float32).mean(),
        "replayed/distinct": _distinct(slots),
        "replayed/effective_batch": _effective(batch.weights),
    }


def conclude(means: Metrics) -> Metrics:
    """Return the logged metrics, given the means over updates of all metrics.

    Under `replayed/`: `abs_td` and `q_value`, means; `td_std` and `q_std`, standard deviations
    within a batch; `age` in agent steps; `distinct`, the share of different transitions in a batch;
    `effective_batch`, `(sum w)^2 / (B sum w^2)` of the importance weights (Kish 1965);
    `effective_buffer`, `1 / (N sum P^2)` for N transitions of probability P, the share of the
    buffer that is effectively drawn from. It needs `Draw.probability`: the mean of P over draws
    estimates `sum P^2`, so that `effective_buffer` is a harmonic mean over updates.
    """
    if _CONCENTRATION not in means:
        return means
    rest = {name: value for name, value in means.items() if name != _CONCENTRATION}
    return rest | {"replayed/effective_buffer": 1.0 / means[_CONCENTRATION]}


def inspect(
    agent: Agent, agent_state: Any, replay: Replay, state: Any, key: Array, batches: int
) -> Metrics:
    """Evaluate stored transitions and their probabilities with the current networks.

    No state changes.

    Args:
      agent: agent whose `feedback` returns TD errors and Q.
      agent_state: state of the agent.
      replay: replay with enough transitions to sample.
      state: state of the replay.
      key: PRNG key.
      batches: number of batches of stored transitions.

    Returns:
      Under `stored/`, for transitions drawn uniformly: `abs_td`, `q_value`, `td_std`, `q_std` and
      `age`, as in `conclude`. Under `replayed/`: the exact `effective_buffer` of this state (the
      mean over updates replaces it where available); `entropy` of the probabilities, divided by
      the entropy of uniform sampling; `odds_i`, the share of stored transitions for which
      log10(N P) is between ODDS_EDGES[i-1] and ODDS_EDGES[i].
    """
    key_stored, key_feedback = jax.random.split(key)
    ring = state.ring
    size = ring_.size(ring)
    shape = batches, replay.batch_size
    slots = jax.random.randint(key_stored, shape, 0, jnp.maximum(size, 1), jnp.int32)

    def evaluate(part: tuple[Array, Array]) -> Metrics:
        """Evaluate one batch; a loop over batches limits the memory in use."""
        slots, key = part
        return _summary(agent.feedback(agent_state, ring_.gather(ring, slots), key))

    seen = jax.lax.map(evaluate, (slots, jax.random.split(key_feedback, batches)))
    metrics = {f"stored/{name}": value.mean() for name, value in seen.items()}
    metrics["stored/age"] = (ring_.age(ring, slots) * _all_envs(ring)).astype(jnp.float32).mean()
    probability, axis = replay.probability(state, jnp.arange(ring.capacity)), ring.axis_name
    now = 1.0 / (
        devices.times(jnp.maximum(size, 1), axis)
        * devices.total(jnp.square(probability).sum(), axis)
    )
    return devices.mean(metrics, axis) | {
        "replayed/effective_buffer": now,
        "replayed/entropy": _entropy(probability, size, axis),
        **devices.mean(_odds(devices.times(probability, axis), size), axis),
    }


def _all_envs(ring: Ring) -> int:
    """Return the number of environments on all devices."""
    return ring.num_envs * devices.count(ring.axis_name)


def _summary(seen: Mapping[str, Array], where: Array | None = None) -> Metrics:
    td_error, q_value = seen["td_error"], seen["q_value"]
    return {
        "abs_td": jnp.abs(td_error).mean(where=where),
        "td_std": _std(td_error, where),
        "q_value": q_value.mean(where=where),
        "q_std": _std(q_value, where),
    }


def _std(values: Array, where: Array | None) -> Array:
    """Return the standard deviation within a batch, which may be sharded over devices."""
    axis = devices.current()
    if axis is None:
        return values.std(where=where)
    return jnp.sqrt(devices.variance(values, axis))


def _distinct(drawn: Array) -> Array:
    """Return the number of different slots in a batch `[B]`, divided by B."""
    ordered = jnp.sort(drawn)
    return (1.0 + (ordered[1:] != ordered[:-1]).sum()) / len(drawn)


def _effective(weights: Array) -> Array:
    """Return the effective size of a batch with weights `[B]`, divided by B."""
    axis = devices.current()
    size = len(weights) * devices.count(axis)
    return devices.total(weights.sum(), axis) ** 2 / (
        size * devices.total(jnp.square(weights).sum(), axis)
    )


def _entropy(probability: Array, size: Array, axis: str | None) -> Array:
    terms = jnp.where(probability > 0, probability * jnp.log(probability), 0.0)
    size = devices.times(size, axis)
    return jnp.where(
        size > 1, -devices.total(terms.sum(), axis) / jnp.log(jnp.maximum(size, 2)), 1.0
    )


def _odds(probability: Array, size: Array) -> Metrics:
    """Return the histogram of log10(N P) over the stored transitions, as shares."""
    live = jnp.arange(probability.size) < size
    odds = jnp.log10(jnp.maximum(probability * size, 1e-30))
    above = (live & (odds >= jnp.asarray(ODDS_EDGES)[:, None])).sum(axis=1)
    above = jnp.concatenate([size[None], above, jnp.zeros(1, above.dtype)])
    shares = (above[:-1] - above[1:]) / jnp.maximum(size, 1)
    return {f"replayed/odds_{number}": share for number, share in enumerate(shares)}
