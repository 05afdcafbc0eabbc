"""N-step transitions, accumulated in a window of n steps before they are added to a replay.

Each push of a step emits, for every environment, the n-step transition that began n - 1 pushes ago.
Transitions at the end of an episode cover the remaining 1 to n - 1 steps. All slots of the ring
are therefore valid, and sampling does not compute returns. The first n - 1 pushes emit placeholders
that must not be added (`ready` is False):

    window = n_step.init(example, n=3, num_envs=8)
    for step in steps:
        window, transition = n_step.push(window, step, gamma=0.99)
        if n_step.ready(window):
            state = replay.add(state, transition)
"""

from typing import Any, NamedTuple, cast

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxreplay._internal import counters, packing
from jaxreplay._internal.arguments import Bounds, check_kind, check_scalar
from jaxreplay._internal.tracing import varying, with_default_promotion
from jaxreplay.types import Array, Transition


class Step(NamedTuple):
    """One step of E environments."""

    obs: chex.ArrayTree  # [E, ...]
    action: Array  # [E, ...]
    reward: Array  # [E] float32
    terminated: Array  # [E] bool
    truncated: Array  # [E] bool
    next_obs: chex.ArrayTree  # [E, ...] observation after the step, before a reset
    first: Array  # [E] bool, whether the step was the first of its episode
    extras: Any = None  # [E, ...] the agent's extras of the action


class Window(NamedTuple):
    """The last n steps of E environments; push p is at position p mod n."""

    steps: Step  # [n, E, ...]; not written if n is 1
    pushes: Array  # [] int32, step counter of pushes; before it overflows, it is reduced by a
    # multiple of n


def init(example: Step, n: int, num_envs: int = 1) -> Window:
    """Return an empty window.

    Args:
      example: one step without the axis of environments, for shapes and dtypes.
      n: number of steps of a return.
      num_envs: number of environments E.

    Raises:
      ValueError: one line: `n` or `num_envs` is not a positive integer; `reward` of the example is
        not a real scalar, `terminated`, `truncated` or `first` is not a bool scalar; or another
        field can't be stored.
    """
    for name, size in {"n_step": n, "num_envs": num_envs}.items():
        check_kind(name, size, int)
        Bounds(at_least=1).check(name, size)
    check_scalar("reward", example.reward, float)
    for name in ("terminated", "truncated", "first"):
        check_scalar(name, getattr(example, name), bool)
    packing.plan(example)  # raises here rather than in `push`
    steps = jax.tree.map(
        lambda x: jnp.zeros((n, num_envs, *jnp.shape(x)), jnp.asarray(x).dtype), example
    )
    return varying(Window(steps, jnp.zeros((), jnp.int32)))


def ready(window: Window) -> Array:
    """Return whether the latest push emitted a transition to be added, `[]` bool."""
    return window.pushes >= window.steps.reward.shape[0]


@with_default_promotion
def push(window: Window, step: Step, gamma: float) -> tuple[Window, Transition]:
    """Push one step and emit the n-step transition that began n - 1 pushes ago.

    The transition covers `k = min(n, steps until the end of the episode)` steps, with the reward
    `R = sum_{j<k} gamma^j r_j` and the discount gamma^k (0 if the episode terminated). The n-step
    target of an agent (Sutton & Barto 2018, Ch. 7) is then `R + discount * V(next_obs)`.

    Args:
      window: the window from `init` or the previous push.
      step: step `[E, ...]` with the fields of the example.
      gamma: discount per step, in [0, 1].

    Returns:
      The window, and a `Transition` `[E, ...]` with `next_obs` after the k-th step, `n_steps` k,
      and `last` True if its first step ended the episode. It is a placeholder until `ready`.

    Raises:
      ValueError: one line: a field of the step is missing or unknown, or its shape or dtype does
        not fit the window; or `gamma` is outside of [0, 1].
    """
    check_gamma(gamma)
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
    order = (window.pushes % n + jnp.arange(n)) % n  # positions, oldest step first
    ended = (steps.terminated | steps.truncated)[order]  # [n, E]
    over = jnp.cumsum(ended, axis=0) - ended > 0  # an earlier step of the window ended the episode
    gammas = gamma ** jnp.arange(n, dtype=jnp.float32)
    reward = jnp.where(over, 0.0, gammas[:, None] * steps.reward[order]).sum(axis=0)
    length = (~over).sum(axis=0)  # [E] steps until the end of the episode or of the window
    envs = jnp.arange(length.shape[0])
    at_end = order[length - 1]  # [E] position of the last step that counts
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
    """Return the window with all running episodes truncated after the latest step.

    Call it when environments were reset without a step that ended their episodes, such as when a
    run is resumed. Later pushes then emit transitions that do not cross the reset. A window with
    n = 1 has no pending steps: call `replay.end_episodes` for the transitions in the ring.
    """
    steps, n = window.steps, len(window.steps.truncated)
    newest = (window.pushes - 1) % n
    truncated = steps.truncated.at[newest].set(~steps.terminated[newest])
    return window._replace(steps=steps._replace(truncated=truncated))


def check_gamma(gamma: ArrayLike) -> None:
    """Validate a discount, unless it is traced.

    Raises:
      ValueError: it is not a number in [0, 1].
    """
    if not isinstance(gamma, jax.Array | np.ndarray):
        check_kind("gamma", gamma, float)
    elif jnp.shape(gamma):
        raise ValueError(f"gamma has shape {list(gamma.shape)}: it must be a scalar")
    Bounds(at_least=0, at_most=1).check("gamma", cast(float, gamma))


def _check_fits(window: Window, step: Step) -> None:
    """Validate that a step has the fields, shapes and dtypes of the window."""
    if not isinstance(step, Step):
        raise ValueError(f"push takes an n_step.Step, not a {type(step).__name__}")
    if jnp.ndim(window.steps.reward) != 2:
        raise ValueError(
            f"push was given vmapped windows ({len(window.steps.reward)} of them): call it under "
            "jax.vmap, or take one, jax.tree.map(lambda x: x[0], windows)"
        )
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), window.steps)
    num_envs = window.steps.reward.shape[1]
    packing.check_fits(packing.plan(one), step, num_envs)


def _single_step(step: Step, gamma: float) -> Transition:
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
