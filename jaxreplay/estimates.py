"""Retrace's estimates of Q for every stored step, kept beside a ring."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxreplay import returns
from jaxreplay import ring as ring_
from jaxreplay.ring import Ring
from jaxreplay.types import Array, Transition

FEEDBACK = frozenset({"value", "advantage", "next_value"})  # what an agent has to tell of a step


class Estimates(NamedTuple):
    """What the agent last said about every step, and Retrace made of it; in scaled rewards."""

    value: Array  # [C] float32, V(s_t)
    advantage: Array  # [C] float32, A(s_t, a_t)
    next_value: Array  # [C] float32, V(s_{t+1}), of the true observation after the step
    q_ret: Array  # [C] float32, Retrace's estimate of Q(s_t, a_t) at the latest sweep
    reward_scale: Array  # [] float32, what the agent divides rewards by


def init(ring: Ring) -> Estimates:
    """Make the estimates of an empty ring."""
    numbers = jnp.zeros((4, ring.capacity), jnp.float32)
    return Estimates(*numbers, reward_scale=jnp.ones((), jnp.float32))


def enter(
    held: Estimates, slots: Array, transition: Transition, fresh: Mapping[str, Array]
) -> Estimates:
    """Take in new steps at `slots` `[E]`, estimated by one step until the next sweep."""
    held = see(held, slots, fresh)
    reward = transition.reward / held.reward_scale
    q_ret = reward + transition.discount * fresh["next_value"]
    return held._replace(q_ret=ring_.write(held.q_ret, slots, q_ret))


def see(held: Estimates, slots: Array, values: Mapping[str, Array]) -> Estimates:
    """Write what the agent says about `slots` `[B]`; rows with an out-of-range slot are skipped.

    Args:
      held: the estimates.
      slots: `[B]` int32.
      values: by name, each `[B]`: those of `FEEDBACK`, and `reward_scale` if the agent has one.
    """
    # Rows to be ignored say 0.
    scale = values["reward_scale"].max() if "reward_scale" in values else held.reward_scale
    return Estimates(
        value=ring_.write(held.value, slots, values["value"]),
        advantage=ring_.write(held.advantage, slots, values["advantage"]),
        next_value=ring_.write(held.next_value, slots, values["next_value"]),
        q_ret=held.q_ret,
        reward_scale=jnp.where(scale > 0, scale, held.reward_scale),
    )


def sweep(held: Estimates, log_ratio: Array, ring: Ring) -> Estimates:
    """Run Retrace over the whole ring; unfinished episodes bootstrap from their newest step.

    Args:
      held: the estimates.
      log_ratio: `[C]`, log pi/mu of every step.
      ring: where the rewards are.
    """

    def read() -> tuple[Array, ...]:
        stored, newest = ring_.contents(ring), ring_.ages(ring) == 0
        return stored.reward / held.reward_scale, stored.discount, stored.last | newest

    def nothing() -> tuple[Array, ...]:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(read))

    # Behind a branch, which is always taken, the ring is read once; XLA would fuse the reads, with
    # a stride of a whole transition, into every level of the scan.
    steps = jax.lax.cond(ring.rows_added >= 0, read, nothing)
    steps += (held.value, held.advantage, held.next_value, log_ratio)
    by_lane = [x.reshape(-1, ring.num_envs) for x in steps]
    return held._replace(q_ret=returns.retrace(*by_lane, wrap=True).ravel())
