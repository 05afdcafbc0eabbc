"""N-step transitions, accumulated in a sliding window before they are added to a replay.

For every environment, each push returns the n-step transition that started n - 1 pushes ago. At the
end of an episode, transitions cover only the remaining steps. Every slot of the replay is
therefore valid, and sampling does not compute returns. The first n - 1 pushes return placeholders,
for which `ready` is False and which must not be added to a replay. In a compiled loop, make these
pushes before the first addition. The placeholders also provide an example for `Replay.init`:

    def fill(window, key):
        return n_step.push(window, play(key), gamma=0.99)  # play: key -> Step [8, ...]

    def step(carry, key):
        state, window = carry
        window, transition = n_step.push(window, play(key), gamma=0.99)
        return (replay.add(state, transition), window), None

    window = n_step.init(jax.tree.map(lambda x: x[0], play(key)), n=3, num_envs=8)
    window, placeholders = jax.lax.scan(fill, window, keys[:2])
    state = replay.init(key, jax.tree.map(lambda x: x[0, 0], placeholders))
    (state, window), _ = jax.lax.scan(step, (state, window), keys[2:])
"""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxreplay import counters
from jaxreplay._internal import packing
from jaxreplay._internal.arguments import Bounds, check_scalar, check_size
from jaxreplay._internal.tracing import varying, with_default_promotion
from jaxreplay.types import Array, Transition


class Step(NamedTuple):
    """A single step in E environments."""

    obs: chex.ArrayTree  # [E, ...]
    action: Array  # [E, ...]
    reward: Array  # [E] float32
    terminated: Array  # [E] bool
    truncated: Array  # [E] bool
    next_obs: chex.ArrayTree  # [E, ...] observation after the step, before any reset
    first: Array  # [E] bool, whether the step was the first in its episode
    extras: Any = None  # [E, ...] agent outputs for the action


class Window(NamedTuple):
    """The last n steps in E environments. The step of push p is stored at index p mod n."""

    steps: Step  # [n, E, ...], unused if n is 1
    pushes: Array  # [] int32, number of pushes, reduced by a multiple of n before it overflows


def init(example: Step, n: int, num_envs: int = 1) -> Window:
    """Return an empty window.

    Args:
      example: one step without the environment axis. It defines shapes and dtypes.
      n: number of steps per return.
      num_envs: number of environments E.

    Raises:
      ValueError: If `n` or `num_envs` is not a positive integer, or the example has a `reward` that
        is not a real scalar, a `terminated`, `truncated` or `first` that is not a boolean scalar,
        or another field that can't be stored.
    """
    for name, size in {"n_step": n, "num_envs": num_envs}.items():
        check_size(name, size)
    check_scalar("reward", example.reward, float)
    for name in ("terminated", "truncated", "first"):
        check_scalar(name, getattr(example, name), bool)
    packing.plan(example)  # validate fields here instead of in `push`
    steps = jax.tree.map(
        lambda x: jnp.zeros((n, num_envs, *jnp.shape(x)), jnp.asarray(x).dtype), example
    )
    return varying(Window(steps, jnp.zeros((), jnp.int32)))


def ready(window: Window) -> Array:
    """Return whether the latest push returned a valid transition, `[]` bool."""
    return window.pushes >= window.steps.reward.shape[0]


@with_default_promotion
def push(window: Window, step: Step, gamma: float | Array) -> tuple[Window, Transition]:
    """Push one step and return the n-step transition that started n - 1 pushes ago.

    The transition covers `k = min(n, steps until the end of the episode)` steps, with the reward
    `R = sum_{j<k} gamma^j r_j` and the discount gamma^k (0 if the episode terminated within them).
    An agent with the value function V then has the n-step target `R + discount * V(next_obs)`
    (Sutton & Barto 2018, Ch. 7).

    Args:
      window: window returned by `init` or the previous push.
      step: a step `[E, ...]` with the same fields as the example passed to `init`.
      gamma: discount per step, in [0, 1].

    Returns:
      The new window and a `Transition` `[E, ...]`. `next_obs` is the observation after the k-th
      step, `n_steps` is k, and `last` is True if the first of the k steps ended the episode. The
      transition is a placeholder until `ready` is True.

    Raises:
      ValueError: If a field of `step` is missing or unknown, its shape or dtype does not match the
        window, or `gamma` is outside of [0, 1].
    """
    Bounds(at_least=0, at_most=1).check("gamma", gamma)
    _check_fits(window, step)
    n = len(window.steps.reward)
    if n == 1:
        return window._replace(pushes=counters.increment(window.pushes)), _single_step(step, gamma)
    newest = window.pushes % n
    steps = jax.tree.map(
        lambda old, new: jax.lax.dynamic_update_index_in_dim(
            old, jnp.asarray(new).astype(old.dtype), newest, 0
        ),
        window.steps,
        step,
    )
    window = Window(steps, counters.increment(window.pushes, counters.rewind(n)))
    order = (window.pushes % n + jnp.arange(n)) % n  # indices of steps, from oldest to newest
    ended = (steps.terminated | steps.truncated)[order]  # [n, E]
    over = jnp.cumsum(ended, axis=0) - ended > 0  # an earlier step in the window ended the episode
    gammas = gamma ** jnp.arange(n, dtype=jnp.float32)
    reward = jnp.where(over, 0.0, gammas[:, None] * steps.reward[order]).sum(axis=0)
    length = (~over).sum(axis=0)  # [E] number of steps until the end of the episode or window
    envs = jnp.arange(length.shape[0])
    at_end = order[length - 1]  # [E] index of the last step in the transition
    terminated = steps.terminated[at_end, envs]
    oldest = jax.tree.map(lambda x: x[order[0]], steps)
    return window, Transition(
        obs=oldest.obs,
        action=oldest.action,
        reward=reward,
        discount=jnp.where(terminated, 0.0, gamma ** length.astype(jnp.float32)),
        next_obs=jax.tree.map(lambda x: x[at_end, envs], steps.next_obs),
        first=oldest.first,
        last=oldest.terminated | oldest.truncated,
        extras=oldest.extras,
        n_steps=length.astype(jnp.int32),
    )


def end_episodes(window: Window) -> Window:
    """Truncate all current episodes after the latest step and return the new window.

    Call this function if environments were reset without a final step, for example when a run is
    resumed. Later pushes then return transitions that do not cross the reset. A window with n = 1
    contains no incomplete transitions: call `replay.end_episodes` instead, because the latest step
    is already in the replay.
    """
    steps, n = window.steps, len(window.steps.truncated)
    newest = (window.pushes - 1) % n
    truncated = steps.truncated.at[newest].set(~steps.terminated[newest])
    return window._replace(steps=steps._replace(truncated=truncated))


def _check_fits(window: Window, step: Step) -> None:
    """Raise ValueError unless the fields, shapes and dtypes of a step match the window."""
    if not isinstance(step, Step):
        raise ValueError(f"push got a {type(step).__name__}, expected an n_step.Step")
    if jnp.ndim(window.steps.reward) != 2:
        raise ValueError(
            f"push got {len(window.steps.reward)} vmapped windows, expected one window: call push "
            "under jax.vmap, or select a window with jax.tree.map(lambda x: x[0], windows)"
        )
    example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), window.steps)
    packing.check_fits(packing.plan(example), step, window.steps.reward.shape[1:])


def _single_step(step: Step, gamma: float | Array) -> Transition:
    return Transition(
        obs=step.obs,
        action=step.action,
        reward=step.reward,
        discount=jnp.where(step.terminated, 0.0, gamma).astype(jnp.float32),
        next_obs=step.next_obs,
        first=step.first,
        last=step.terminated | step.truncated,
        extras=step.extras,
        n_steps=jnp.ones_like(step.terminated, jnp.int32),
    )
