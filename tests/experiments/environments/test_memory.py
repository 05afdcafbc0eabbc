"""Memory tasks, step by step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import environments
from tests.refusals import refused


def played(name, actions, seed):
    """Return the cue of an episode, its observations, and the results of its steps."""
    environment = environments.make(name)
    step = jax.jit(environment.step)
    state, obs = environment.reset(jax.random.key(seed))
    cue, seen, outs = int(state.inner.cue), [obs], []
    for time, action in enumerate(actions):
        state, _, out = step(jax.random.key(time), state, jnp.int32(action))
        seen.append(out.final_obs)
        outs.append(out)
    return cue, np.array(seen), outs


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("turn", [1, 2])
def test_maze_equals_steps_worked_by_hand(seed, turn):
    # Turning in the corridor or walking on at the junction costs 0.1 without moving.
    cue, seen, outs = played("memory/TMaze-3", [1, 0, 2, 0, 0, 0, turn], seed)
    assert cue in (1, -1)
    expected = [
        [cue, 0, 0], [cue, 0, 0], [0, 0, 1], [0, 0, 1], [0, 0, 1], [0, 1, 0], [0, 1, 0], [0, 1, 0]
    ]  # fmt: skip
    np.testing.assert_array_equal(seen, expected)
    rewards = [float(out.reward) for out in outs]
    won = (turn == 1) == (cue == 1)
    np.testing.assert_allclose(rewards, [-0.1, 0, -0.1, 0, 0, -0.1, 1 if won else -1])
    assert [bool(out.terminated) for out in outs] == [False] * 6 + [True]


@pytest.mark.parametrize("seed", range(4))
def test_chain_equals_steps_worked_by_hand(seed):
    cue, seen, outs = played("memory/Chain-4", [0, 1, 0, 0, 1], seed)
    np.testing.assert_allclose(
        seen[:5], [[cue, 1], [0, 0.75], [0, 0.5], [0, 0.25], [0, 0]], atol=1e-6
    )
    assert [float(out.reward) for out in outs] == [0, 0, 0, 0, cue]
    assert [bool(out.terminated) for out in outs] == [False] * 4 + [True]
    assert not any(out.truncated for out in outs)


def test_cues_are_fair_and_mazes_end():
    environment = environments.make("memory/TMaze-5")
    states, _ = jax.vmap(environment.reset)(jax.random.split(jax.random.key(0), 1_000))
    assert abs(float(states.inner.cue.mean())) < 0.13  # four standard errors
    assert environment.max_steps == 28
    _, _, outs = played("memory/TMaze-5", [1] * 28, 0)
    assert [bool(out.truncated) for out in outs] == [False] * 27 + [True]


@pytest.mark.parametrize("name", ["memory/TMaze-1", "memory/Chain-x", "memory/Maze-3"])
def test_other_names_are_refused(name):
    with refused(name):
        environments.make(name)


def test_pictures_show_the_cue_and_the_agent():
    environment = environments.make("memory/Chain-4")
    render = environments.renderer("memory/Chain-4")
    state, _ = environment.reset(jax.random.key(0))
    picture = render(state)
    assert picture.dtype == np.uint8 and picture.shape[2] == 3
    moved = environment.step(jax.random.key(1), state, jnp.int32(0))[0]
    assert (render(moved) != picture).any()
