"""Greedy evaluation over whole episodes, compiled or on the host."""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from experiments.environments.types import Array, Environment, TimeStep
from experiments.training.state import fold_in


class Tally(NamedTuple):
    """Results of the first episode of each environment."""

    returns: Any  # [..., N] float32, undiscounted
    lengths: Any  # [..., N] int32, agent steps
    done: Any  # [..., N] bool, the episode has ended; later steps do not count


def play_out(
    step: Callable[[Any, Any], tuple[Any, TimeStep]],
    start: Any,
    shape: tuple[int, ...],
    while_loop: Callable[..., Any],
) -> tuple[Any, Any]:
    """Step environments until each has finished its first episode.

    Args:
      step: `(playing, time) -> (playing, TimeStep)` for all environments; `playing` is any state of
        environments and policy, and `time` counts agent steps from 0.
      start: `playing` after the reset.
      shape: `(N,)` for N environments, or `(S, N)` for S seeds.
      while_loop: `jax.lax.while_loop`, or `python_while` for a `step` that cannot be traced.

    Returns:
      Undiscounted returns float32 and lengths in agent steps int32, both of shape `shape`.
    """

    def unfinished(carry: Any) -> Any:
        return ~carry[1].done.all()

    def body(carry: Any) -> Any:
        playing, tally, time = carry
        playing, out = step(playing, time)
        return playing, _count(tally, out), time + 1

    tally = Tally(np.zeros(shape, np.float32), np.zeros(shape, np.int32), np.zeros(shape, bool))
    _, tally, _ = while_loop(unfinished, body, (start, tally, np.int32(0)))
    return tally.returns, tally.lengths


def python_while(condition: Callable[[Any], Any], body: Callable[[Any], Any], carry: Any) -> Any:
    """Run a loop in Python, as `jax.lax.while_loop` does on a device."""
    while condition(carry):
        carry = body(carry)
    return carry


class EvaluationKeys(NamedTuple):
    """Keys of an evaluation of N episodes."""

    resets: Array  # [N]
    steps: Array  # [N + 1] roots to fold with the time: N for environments, the last for actions


def evaluation_keys(key: Array, episodes: int) -> EvaluationKeys:
    """Split the key of an evaluation of N `episodes`."""
    keys = jax.random.split(key, 2 * episodes + 1)
    return EvaluationKeys(keys[:episodes], keys[episodes:])


def keys_at(keys: EvaluationKeys, time: Array) -> tuple[Array, Array]:
    """Return the key `[]` of all actions and the keys `[N]` of the environments at one step."""
    now = fold_in(keys.steps, time)
    return now[-1], now[:-1]


def evaluate(
    environment: Environment,
    policy: Callable[[chex.ArrayTree, Array, Any], tuple[Array, Any]],
    no_memory: Callable[[chex.ArrayTree], Any],
    key: Array,
    episodes: int,
) -> tuple[Array, Array]:
    """Play N whole `episodes` of a compiled environment.

    Args:
      environment: the environment.
      policy: maps observations `[N, ...]`, a key and a memory to actions `[N, ...]` and the next
        memory.
      no_memory: maps the first observations `[N, ...]` to the initial memory.
      key: PRNG key of the evaluation.
      episodes: N.

    Returns:
      Undiscounted returns `[N]` float32 and lengths `[N]` int32 in agent steps.
    """
    keys = evaluation_keys(key, episodes)

    def step(playing: Any, time: Array) -> tuple[Any, TimeStep]:
        state, obs, memory = playing
        key_act, keys_step = keys_at(keys, time)
        action, memory = policy(obs, key_act, memory)
        state, obs, out = jax.vmap(environment.step)(keys_step, state, action)
        return (state, obs, memory), out

    state, obs = jax.vmap(environment.reset)(keys.resets)
    start = state, obs, no_memory(obs)
    return play_out(step, start, (episodes,), jax.lax.while_loop)


def _count(tally: Tally, out: TimeStep) -> Tally:
    where = np.where if isinstance(out.reward, np.ndarray) else jnp.where
    return Tally(
        returns=tally.returns + where(tally.done, 0.0, out.reward),
        lengths=tally.lengths + ~tally.done,
        done=tally.done | out.terminated | out.truncated,
    )
