"""Retrace's estimates of Q for every stored step, kept beside a ring."""

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp

from jaxreplay import returns
from jaxreplay import ring as ring_
from jaxreplay._internal import buffer
from jaxreplay._internal.buffer import Buffer
from jaxreplay.ring import Ring
from jaxreplay.types import Array, Tree, get_field

FEEDBACK = frozenset({"value", "advantage", "next_value"})  # what an agent has to tell of a step


class Estimates(NamedTuple):
    """What the agent last said about every step, and Retrace made of it."""

    value: Buffer  # [C] float32, V(s_t), in scaled rewards, as the next two
    advantage: Buffer  # [C] float32, A(s_t, a_t)
    next_value: Buffer  # [C] float32, V(s_{t+1}), of the true observation after the step
    q_ret: Buffer  # [C] float32, Retrace's Q(s_t, a_t) at the latest refresh, in rewards
    # as they came: it stays right when the scale changes
    reward: Buffer  # [C] float32, as they came; read by refreshes without the ring's rows
    discount: Buffer  # [C] float32
    last: Buffer  # [C] bool
    reward_scale: Array  # [] float32, what the agent divides rewards by


def init(ring: Ring) -> Estimates:
    """Make the estimates of an empty ring."""

    def numbers() -> Buffer:  # each its own, for donation
        return jnp.zeros(ring.capacity, jnp.float32)

    return Estimates(
        value=numbers(),
        advantage=numbers(),
        next_value=numbers(),
        q_ret=numbers(),
        reward=numbers(),
        discount=numbers(),
        last=jnp.zeros(ring.capacity, bool),
        reward_scale=jnp.ones((), jnp.float32),
    )


def add(state: Estimates, slots: Array, transition: Tree, fresh: Mapping[str, Array]) -> Estimates:
    """Take in new steps at `slots` `[E]`, estimated by one step until the next refresh.

    Estimates that are not finite count as 0.
    """
    fresh = {name: jnp.where(jnp.isfinite(x), x, 0.0) for name, x in fresh.items()}
    state = see(state, slots, fresh)
    reward, discount, last = (get_field(transition, x) for x in ("reward", "discount", "last"))
    q_ret = reward + discount * fresh["next_value"] * state.reward_scale
    return state._replace(
        q_ret=buffer.write(state.q_ret, slots, q_ret),
        reward=buffer.write(state.reward, slots, reward),
        discount=buffer.write(state.discount, slots, discount),
        last=buffer.write(state.last, slots, last),
    )


def end(state: Estimates, slots: Array) -> Estimates:
    """Let returns stop at `slots` `[E]`, whose episodes went no further."""
    return state._replace(last=buffer.write(state.last, slots, jnp.ones(slots.shape, bool)))


def returns_of(state: Estimates, slots: Array) -> Array:
    """Return the estimates of Q(s, a) of `slots` `[B]`, in scaled rewards."""
    return state.q_ret[slots] / state.reward_scale


def see(state: Estimates, slots: Array, values: Mapping[str, Array]) -> Estimates:
    """Write what the agent says about `slots` `[B]`; rows with an out-of-range slot are skipped.

    Args:
      state: the estimates.
      slots: `[B]` int32.
      values: by name, each `[B]`: those of `FEEDBACK`, and `reward_scale` if the agent has one.
    """
    # Rows to be ignored say 0.
    scale = values["reward_scale"].max() if "reward_scale" in values else state.reward_scale
    return state._replace(
        value=buffer.write(state.value, slots, values["value"]),
        advantage=buffer.write(state.advantage, slots, values["advantage"]),
        next_value=buffer.write(state.next_value, slots, values["next_value"]),
        reward_scale=jnp.where(scale > 0, scale, state.reward_scale),
    )


def refresh(state: Estimates, log_ratio: Array, ring: Ring) -> Estimates:
    """Run Retrace over the whole ring; unfinished episodes bootstrap from their newest step.

    Args:
      state: the estimates.
      log_ratio: `[C]`, log pi/mu of every step.
      ring: which step is the newest.
    """

    ends = state.last | (ring_.ages(ring) == 0)
    steps = (
        state.reward / state.reward_scale, state.discount, ends,
        state.value, state.advantage, state.next_value, log_ratio,
    )  # fmt: skip
    by_lane = [x.reshape(-1, ring.num_envs) for x in steps]
    q_ret = returns.retrace(*by_lane, wrap=True).ravel() * state.reward_scale
    return state._replace(q_ret=q_ret)
