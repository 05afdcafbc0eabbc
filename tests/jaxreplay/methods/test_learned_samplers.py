"""NERS and ERO take a REINFORCE step on the change of the return with each observed return."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxreplay import Replay, testing
from jaxreplay.methods import ero, ners

CAPACITY, BATCH = 12, 4
SMALL = {
    "ners": ners.sampler(
        ners.NERSConfig(hidden=(8, 4), score_hidden=(4,), train_size=8, learning_rate=1e-2)
    ),
    "ero": ero.sampler(ero.EROConfig(hidden=(8,), learning_rate=1e-2, batch_size=16)),
}
both = pytest.mark.parametrize("name", SMALL)


class Made(NamedTuple):
    """A full replay without feedback, and its compiled functions."""

    state: Any
    replayed: Callable[..., Any]  # (state, seed) -> state after one replayed batch
    observe_return: Callable[..., Any]
    metrics: Callable[..., Any]


@functools.cache
def made(name):
    replay = Replay(SMALL[name], capacity=CAPACITY, batch_size=BATCH, num_envs=testing.E)

    @jax.jit
    def replayed(state, seed):
        batch = replay.sample(state, jax.random.key(seed))
        td = jax.random.normal(jax.random.key(100 + seed), (BATCH,))
        return replay.update(state, batch, td_error=td, target=2 * td)

    add, state = jax.jit(replay.add), jax.jit(replay.init)(jax.random.key(0), testing.EXAMPLE)
    for time in range(CAPACITY // testing.E):
        state = add(state, testing.rows(time))
    return Made(state, replayed, jax.jit(replay.observe_return), replay.metrics)


def told(name, *returns, state=None):
    """Return the state after these returns, each preceded by a replayed batch."""
    state = made(name).state if state is None else state
    for seed, episode_return in enumerate(returns):
        state = made(name).replayed(state, seed)
        state = made(name).observe_return(state, jnp.float32(episode_return), jax.random.key(seed))
    return state


def learned(state):
    """Return the variables that a step changes: parameters, optimiser state, number of steps."""
    inner = state.sampler
    return jax.tree.map(np.asarray, (inner.params, inner.opt_state.inner, inner.learned))


def unchanged(state, other):
    pairs = zip(jax.tree.leaves(learned(state)), jax.tree.leaves(learned(other)), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


def reward(name, state):
    return float(made(name).metrics(state)["replay_reward"])


@both
@pytest.mark.parametrize("jump", [1e30, -1e30])
def test_a_gradient_that_overflows_changes_nothing(name, jump):
    start = told(name, 0.0)
    after = told(name, jump, state=start)
    assert reward(name, after) == pytest.approx(jump)
    assert not after.sampler.opt_state.finite
    assert unchanged(after, start)
    # The return falls back by the same amount, which overflows too.
    again = told(name, 0.0, state=after)
    assert reward(name, again) == pytest.approx(-jump)
    assert unchanged(again, start)
    # A later change of ordinary size is learned from.
    more = told(name, 1.0, state=again)
    assert not unchanged(more, start) and int(more.sampler.learned) == 1


@both
def test_a_change_of_returns_beyond_float32_changes_nothing(name):
    start = told(name, -3e38)
    after = told(name, 3e38, state=start)
    assert unchanged(after, start) and reward(name, after) == 0
    if name == "ero":  # nor is a new subset chosen
        np.testing.assert_array_equal(after.sampler.chosen.nodes, start.sampler.chosen.nodes)
    assert bool(after.sampler.has_observed) and after.sampler.episode_return == np.float32(3e38)


@both
def test_the_first_return_is_only_a_baseline(name):
    start = made(name).state
    assert not start.sampler.has_observed
    first = told(name, 5.0)
    assert unchanged(first, start)
    assert bool(first.sampler.has_observed) and reward(name, first) == 0
    second = told(name, 7.0, state=first)
    assert not unchanged(second, start)
    assert reward(name, second) == 2 and int(second.sampler.learned) == 1


@both
def test_states_are_finite(name):
    state = told(name, 1.0, 3.0).sampler
    if name == "ners":
        state = state._replace(collected=())  # tickets of empty entries are infinite
    for leaf in map(np.asarray, jax.tree.leaves(state)):
        assert np.isfinite(leaf).all()
