"""The constant-lag window between environment and ring: n-step returns at insertion.

Every push emits, per environment, the transition that began n - 1 pushes ago, with the rewards and
the last observation that the episode really gave: tails at episode ends are emitted, shortened,
on the pushes that follow. The ring therefore holds no invalid slot, and sampling needs no index
algebra. The first n - 1 pushes of a window emit nothing to be stored (`ready` is False).
"""

from typing import Any, NamedTuple, cast

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxreplay._internal import counters, packing
from jaxreplay._internal.arguments import Bounds, check_kind, check_scalar
from jaxreplay._internal.tracing import as_by_default, varying
from jaxreplay.types import Array, Transition


class Step(NamedTuple):
    """One environment step, `[E, ...]`; without gamma, which the window folds in."""

    obs: chex.ArrayTree  # [E, ...]
    action: Array  # [E, ...]
    reward: Array  # [E] float32
    terminated: Array  # [E] bool
    truncated: Array  # [E] bool
    next_obs: chex.ArrayTree  # [E, ...] the true observation after the step, before any reset
    first: Array  # [E] bool, the step was its episode's first
    extras: Any = None  # [E, ...]


class Window(NamedTuple):
    """The last n steps of every environment; push p lies at position p mod n."""

    steps: Step  # [n, E, ...]; with n = 1 no step waits, and none is written
    pushes: Array  # [] int32, a clock that goes back by a multiple of n (`clocks`)


def init(example: Step, n: int, num_envs: int = 1) -> Window:
    """Make an empty window of `n` steps; `example` is one unbatched Step.

    Raises:
      ValueError: one line: `n` or `num_envs` is no number from 1 on, or reward, terminated,
        truncated or first of the example are not one real number or one bool.
    """
    for name, size in {"n_step": n, "num_envs": num_envs}.items():
        check_kind(name, size, int)
        Bounds(at_least=1).check(name, size)
    check_scalar("reward", example.reward, float)
    for name in ("terminated", "truncated", "first"):
        check_scalar(name, getattr(example, name), bool)
    packing.plan(example)  # refuses here what `push` would refuse
    steps = jax.tree.map(
        lambda x: jnp.zeros((n, num_envs, *jnp.shape(x)), jnp.asarray(x).dtype), example
    )
    return varying(Window(steps, jnp.zeros((), jnp.int32)))


def ready(window: Window) -> Array:
    """Return whether the latest push emitted a real transition, `[]` bool."""
    return window.pushes >= window.steps.reward.shape[0]


@as_by_default
def push(window: Window, step: Step, gamma: float) -> tuple[Window, Transition]:
    """Push one step and emit the n-step transition that began n - 1 pushes ago.

    Args:
      window: as `init` made it, or the push before.
      step: `[E, ...]`, of the example's type.
      gamma: discount per step, in [0, 1].

    Returns:
      The window, and a Transition `[E, ...]`: `reward = sum_j gamma^j r_j` and
      `discount = gamma^k` over the k <= n steps until the episode's end (0 if it terminated),
      `next_obs` the true observation after the k-th step. Meaningless until `ready`.

    Raises:
      ValueError: one line: a field of the step has another number of rows, shape or kind of numbers
        than the window's, is missing or unknown, or gamma lies outside.
    """
    check_gamma(gamma)
    _check_fits(window, step)
    n = len(window.steps.reward)
    if n == 1:
        return window._replace(pushes=counters.increment(window.pushes)), _of_one_step(step, gamma)
    newest = window.pushes % n
    steps = jax.tree.map(
        lambda all_, one: jax.lax.dynamic_update_index_in_dim(
            all_, jnp.asarray(one).astype(all_.dtype), newest, 0
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
    lanes = jnp.arange(length.shape[0])
    at_end = order[length - 1]  # [E] position of the last step that counts
    terminated = steps.terminated[at_end, lanes]
    oldest = jax.tree.map(lambda x: x[order[0]], steps)
    return window, Transition(
        obs=oldest.obs,
        action=oldest.action,
        reward=reward,
        discount=jnp.where(terminated, 0.0, gamma ** length.astype(jnp.float32)),
        next_obs=jax.tree.map(lambda x: x[at_end, lanes], steps.next_obs),
        first=oldest.first,
        last=oldest.terminated | oldest.truncated,
        extras=oldest.extras,
        n_steps=length.astype(jnp.int32),
    )


def end_episodes(window: Window) -> Window:
    """End the episodes that are running with the latest step, as a time limit does.

    It is for loops that go on after resets which no step told of. The steps that wait are emitted
    as those of ended episodes are; a window of one step keeps none (`replay.end_episodes` then ends
    those of the ring).
    """
    steps, n = window.steps, len(window.steps.truncated)
    newest = (window.pushes - 1) % n
    truncated = steps.truncated.at[newest].set(~steps.terminated[newest])
    return window._replace(steps=steps._replace(truncated=truncated))


def check_gamma(gamma: ArrayLike) -> None:
    """Refuse a discount that is none; one that is an input of the program passes.

    Raises:
      ValueError: it is no number in [0, 1].
    """
    if not isinstance(gamma, jax.Array | np.ndarray):
        check_kind("gamma", gamma, float)
    elif jnp.shape(gamma):
        raise ValueError(f"gamma has shape {list(gamma.shape)}: give one number")
    Bounds(at_least=0, at_most=1).check("gamma", cast(float, gamma))


def _check_fits(window: Window, step: Step) -> None:
    """Refuse a step that the window can't hold as it is."""
    if not isinstance(step, Step):
        raise ValueError(f"push was given a {type(step).__name__}: give an n_step.Step")
    if jnp.ndim(window.steps.reward) != 2:
        raise ValueError(
            f"push was given vmapped windows ({len(window.steps.reward)} of them): call it under "
            "jax.vmap, or take one, jax.tree.map(lambda x: x[0], windows)"
        )
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), window.steps)
    num_envs = window.steps.reward.shape[1]
    packing.check_fits(packing.plan(one), step, num_envs)


def _of_one_step(step: Step, gamma: float) -> Transition:
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
