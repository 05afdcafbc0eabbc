"""Retrace's estimates of Q for every stored step, kept beside a ring."""

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp

from jaxreplay import returns
from jaxreplay import ring as ring_
from jaxreplay.ring import Ring
from jaxreplay.types import Array, Transition

FEEDBACK = frozenset({"value", "advantage", "next_value"})  # what an agent has to tell of a step


class Estimates(NamedTuple):
    """What the agent last said about every step, and Retrace made of it."""

    value: Array  # [C] float32, V(s_t), in scaled rewards, as the next two
    advantage: Array  # [C] float32, A(s_t, a_t)
    next_value: Array  # [C] float32, V(s_{t+1}), of the true observation after the step
    q_ret: Array  # [C] float32, Retrace's estimate of Q(s_t, a_t) at the latest sweep, in rewards
    # as they came: it stays right when the scale changes
    reward: Array  # [C] float32, as they came; a copy, which a sweep reads without the ring's rows
    discount: Array  # [C] float32
    last: Array  # [C] bool
    reward_scale: Array  # [] float32, what the agent divides rewards by


def init(ring: Ring) -> Estimates:
    """Make the estimates of an empty ring."""
    numbers = [jnp.zeros(ring.capacity, jnp.float32) for _ in range(6)]
    flags = jnp.zeros(ring.capacity, bool)
    return Estimates(*numbers, flags, reward_scale=jnp.ones((), jnp.float32))


def enter(
    held: Estimates, slots: Array, transition: Transition, fresh: Mapping[str, Array]
) -> Estimates:
    """Take in new steps at `slots` `[E]`, estimated by one step until the next sweep."""
    held, t = see(held, slots, fresh), transition
    q_ret = t.reward + t.discount * fresh["next_value"] * held.reward_scale
    return held._replace(
        q_ret=ring_.write(held.q_ret, slots, q_ret),
        reward=ring_.write(held.reward, slots, t.reward),
        discount=ring_.write(held.discount, slots, t.discount),
        last=ring_.write(held.last, slots, t.last),
    )


def end(held: Estimates, slots: Array) -> Estimates:
    """Let returns stop at `slots` `[E]`, whose episodes went no further."""
    return held._replace(last=ring_.write(held.last, slots, jnp.ones(slots.shape, bool)))


def returns_of(held: Estimates, slots: Array) -> Array:
    """Return the estimates of Q(s, a) of `slots` `[B]`, in scaled rewards."""
    return held.q_ret[slots] / held.reward_scale


def see(held: Estimates, slots: Array, values: Mapping[str, Array]) -> Estimates:
    """Write what the agent says about `slots` `[B]`; rows with an out-of-range slot are skipped.

    Args:
      held: the estimates.
      slots: `[B]` int32.
      values: by name, each `[B]`: those of `FEEDBACK`, and `reward_scale` if the agent has one.
    """
    # Rows to be ignored say 0.
    scale = values["reward_scale"].max() if "reward_scale" in values else held.reward_scale
    return held._replace(
        value=ring_.write(held.value, slots, values["value"]),
        advantage=ring_.write(held.advantage, slots, values["advantage"]),
        next_value=ring_.write(held.next_value, slots, values["next_value"]),
        reward_scale=jnp.where(scale > 0, scale, held.reward_scale),
    )


def sweep(held: Estimates, log_ratio: Array, ring: Ring) -> Estimates:
    """Run Retrace over the whole ring; unfinished episodes bootstrap from their newest step.

    Args:
      held: the estimates.
      log_ratio: `[C]`, log pi/mu of every step.
      ring: which step is the newest.
    """

    ends = held.last | (ring_.ages(ring) == 0)
    steps = (
        held.reward / held.reward_scale, held.discount, ends,
        held.value, held.advantage, held.next_value, log_ratio,
    )  # fmt: skip
    by_lane = [x.reshape(-1, ring.num_envs) for x in steps]
    q_ret = returns.retrace(*by_lane, wrap=True).ravel() * held.reward_scale
    return held._replace(q_ret=q_ret)
