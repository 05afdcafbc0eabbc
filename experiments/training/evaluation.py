"""Greedy evaluation, inside the compiled program."""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from experiments.environments.types import Array, Environment


def evaluate(
    environment: Environment,
    policy: Callable[[chex.ArrayTree, Array], Array],
    key: Array,
    episodes: int,
) -> tuple[Array, Array]:
    """Play whole episodes side by side.

    Args:
      environment: where.
      policy: observations `[episodes, ...]` and a key -> actions `[episodes, ...]`.
      key: PRNG key.
      episodes: how many.

    Returns:
      Undiscounted returns `[episodes]` float32 and lengths `[episodes]` int32 in agent steps.
    """
    key_reset, key_steps = jax.random.split(key)
    state, obs = jax.vmap(environment.reset)(jax.random.split(key_reset, episodes))

    def going(carry) -> Array:
        return ~carry[2].all()

    def step(carry):
        state, obs, done, returns, lengths, time = carry
        key = jax.random.fold_in(key_steps, time)
        action = policy(obs, jax.random.fold_in(key, episodes))
        state, obs, out = jax.vmap(environment.step)(jax.random.split(key, episodes), state, action)
        returns = returns + jnp.where(done, 0.0, out.reward)
        lengths = lengths + jnp.where(done, 0, 1)
        done = done | out.terminated | out.truncated
        return state, obs, done, returns, lengths, time + 1

    zeros = jnp.zeros(episodes, jnp.int32)
    start = (state, obs, zeros > 0, zeros.astype(jnp.float32), zeros, jnp.zeros((), jnp.int32))
    _, _, _, returns, lengths, _ = jax.lax.while_loop(going, step, start)
    return returns, lengths
