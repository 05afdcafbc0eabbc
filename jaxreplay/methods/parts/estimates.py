"""Retrace estimates of Q for all stored steps (Munos et al. 2016)."""

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp

from jaxreplay import buffer, returns
from jaxreplay import ring as ring_
from jaxreplay.buffer import Buffer
from jaxreplay.ring import Ring
from jaxreplay.types import Array, Tree, get_field

FEEDBACK = frozenset({"value", "advantage", "next_value"})  # values that the agent must provide


class Estimates(NamedTuple):
    """The agent's latest value estimates and the Retrace estimate of each step.

    Estimates marked "scaled" are for rewards divided by `reward_scale`. `q_ret` is for the original
    rewards and therefore remains valid when the scale changes. `reward`, `discount` and `last` are
    copied from the ring buffer.
    """

    value: Buffer  # [C] float32, V(s_t), scaled
    advantage: Buffer  # [C] float32, A(s_t, a_t), scaled
    next_value: Buffer  # [C] float32, V(s_{t+1}) at the true next observation, scaled
    q_ret: Buffer  # [C] float32, Retrace's Q(s_t, a_t) at the latest refresh, not scaled
    reward: Buffer  # [C] float32, not scaled
    discount: Buffer  # [C] float32
    last: Buffer  # [C] bool, whether the step ends its episode
    reward_scale: Array  # [] float32, number by which the agent divides rewards


def init(ring: Ring) -> Estimates:
    """Return initial estimates, for an empty ring buffer."""
    # Create separate arrays because JAX can't donate the same array twice.
    zeros = (jnp.zeros(ring.capacity, jnp.float32) for _ in range(6))
    return Estimates(
        *zeros, last=jnp.zeros(ring.capacity, bool), reward_scale=jnp.ones((), jnp.float32)
    )


def add(state: Estimates, slots: Array, transition: Tree, values: Mapping[str, Array]) -> Estimates:
    """Add new steps `[E, ...]` at `slots` `[E]`, with one-step estimates of Q until a refresh.

    `values` maps names to arrays `[E]`, as in `update`; NaN and infinity are replaced by 0.
    """
    values = {name: jnp.where(jnp.isfinite(x), x, 0.0) for name, x in values.items()}
    state = update(state, slots, values)
    reward, discount, last = (get_field(transition, x) for x in ("reward", "discount", "last"))
    q_ret = reward + discount * values["next_value"] * state.reward_scale
    return state._replace(
        q_ret=buffer.write(state.q_ret, slots, q_ret),
        reward=buffer.write(state.reward, slots, reward),
        discount=buffer.write(state.discount, slots, discount),
        last=buffer.write(state.last, slots, last),
    )


def end(state: Estimates, slots: Array) -> Estimates:
    """Mark the steps at `slots` `[E]` as the last steps of their episodes."""
    return state._replace(last=buffer.write(state.last, slots, jnp.ones(slots.shape, bool)))


def returns_of(state: Estimates, slots: Array) -> Array:
    """Return the Retrace estimates at `slots` `[B]`, for scaled rewards."""
    return state.q_ret[slots] / state.reward_scale


def update(state: Estimates, slots: Array, values: Mapping[str, Array]) -> Estimates:
    """Write the agent's value estimates for a batch at `slots` `[B]`; skip `IGNORED` slots.

    `values` maps the names in `FEEDBACK`, and optionally `reward_scale`, to `[B]` float32 arrays.
    """
    # The maximum skips ignored transitions, whose feedback is 0.
    scale = values["reward_scale"].max() if "reward_scale" in values else state.reward_scale
    return state._replace(
        value=buffer.write(state.value, slots, values["value"]),
        advantage=buffer.write(state.advantage, slots, values["advantage"]),
        next_value=buffer.write(state.next_value, slots, values["next_value"]),
        reward_scale=jnp.where(scale > 0, scale, state.reward_scale),
    )


def refresh(state: Estimates, log_ratio: Array, ring: Ring) -> Estimates:
    """Recompute `q_ret` with Retrace from the log importance ratios `[C]` of all stored steps.

    Unfinished episodes bootstrap from their newest step.
    """
    ends = state.last | (ring_.ages(ring) == 0)
    steps = (
        state.reward / state.reward_scale, state.discount, ends,
        state.value, state.advantage, state.next_value, log_ratio,
    )  # fmt: skip
    by_environment = [x.reshape(-1, ring.num_envs) for x in steps]
    q_ret = returns.retrace(*by_environment, wrap=True).ravel() * state.reward_scale
    return state._replace(q_ret=q_ret)
