"""Inspections of the replay and evaluations, with known results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.tabular import TabularConfig, tabular
from agents.types import Discrete
from experiments.environments.types import TimeStep
from experiments.training.evaluation import evaluation_keys, keys_at, play_out, python_while
from experiments.training.inspection import ODDS_EDGES, conclude, inspect, measure, measure_share
from jaxreplay import Replay, Transition, sum_tree
from jaxreplay.methods import per, uniform

COUNT, BATCH = 64, 16


def inspected(sampler, leaves=None, batches=200, num_envs=1, count=COUNT):
    """Return the inspection of a replay of COUNT states with TD errors 0, 1, 2, ..."""
    agent = tabular(TabularConfig(num_states=COUNT, initial_std=0.0), Discrete(1))
    replay = Replay(sampler, capacity=2 * COUNT, batch_size=BATCH, num_envs=num_envs)
    scalar, flag = jnp.zeros(()), jnp.zeros((), bool)
    number = jnp.zeros((), jnp.int32)
    example = Transition(number, number, scalar, scalar, number, flag, flag)
    held = replay.init(jax.random.key(0), example)
    add = jax.jit(replay.add)
    for states in jnp.arange(count).reshape(-1, num_envs):
        row = jax.tree.map(lambda x: jnp.zeros(num_envs, x.dtype), example)
        held = add(held, row._replace(obs=states, reward=states.astype(jnp.float32)))
    if leaves is not None:
        tree = sum_tree.rebuild(held.sampler.tree, jnp.asarray(leaves, jnp.float32))
        held = held._replace(sampler=held.sampler._replace(tree=tree))
    state = agent.init(jax.random.key(0), number, number)

    def learn(key):  # measures only
        batch = replay.sample(held, key)
        seen = agent.feedback(state, batch.transition, key)
        return measure(batch, seen, held.ring) | measure_share(batch, held)

    def look(key):
        means = jax.tree.map(jnp.mean, jax.lax.map(learn, jax.random.split(key, batches)))
        return inspect(agent, state, replay, held, key, batches) | conclude(means)

    found = jax.jit(look)(jax.random.key(1))
    return {name: float(value) for name, value in found.items()}


@pytest.mark.parametrize(("num_envs", "age"), [(1, 31.5), (2, 31.0)])  # two envs: only even ages
def test_uniform_replay_has_statistics_of_the_stored_transitions(num_envs, age):
    found = inspected(uniform.sampler(), num_envs=num_envs)
    error = 18.5 / np.sqrt(200 * BATCH)  # standard error of a mean of rewards
    for name in ("replayed", "stored"):
        assert found[f"{name}/abs_td"] == pytest.approx(31.5, abs=4 * error)
        assert found[f"{name}/td_std"] == pytest.approx(18.47, abs=1)
        assert found[f"{name}/age"] == pytest.approx(age, abs=4 * error)
        assert found[f"{name}/q_value"] == found[f"{name}/q_std"] == 0
    assert found["replayed/effective_buffer"] == pytest.approx(1, rel=1e-5)
    assert found["replayed/effective_batch"] == pytest.approx(1, rel=1e-5)
    assert found["replayed/entropy"] == pytest.approx(1, rel=1e-5)
    distinct = COUNT * (1 - (1 - 1 / COUNT) ** BATCH) / BATCH
    assert found["replayed/distinct"] == pytest.approx(distinct, abs=0.02)
    odds = [found[f"replayed/odds_{number}"] for number in range(len(ODDS_EDGES) + 1)]
    assert sum(odds) == pytest.approx(1) and odds[4] + odds[5] == pytest.approx(1)


def test_single_transitions_have_maximal_entropy():
    found = inspected(uniform.sampler(), batches=1, count=1)
    assert found["replayed/entropy"] == found["replayed/effective_buffer"] == 1


def test_statistics_depend_on_priorities():
    leaves = np.zeros(2 * COUNT)
    leaves[:COUNT] = 1.0
    leaves[:8] = 101.0  # eight of 64 have priority 808 of 864
    found = inspected(per.sampler(per.PERConfig(sampling="iid", beta=1.0)), leaves)
    share = leaves[:COUNT] / leaves.sum()
    assert found["replayed/abs_td"] == pytest.approx(share @ np.arange(64), rel=0.1)
    assert found["replayed/age"] == pytest.approx(share @ np.arange(63, -1, -1), rel=0.02)
    used = 1 / (COUNT * np.square(share).sum())
    assert found["replayed/effective_buffer"] == pytest.approx(used, rel=0.05)  # an estimate
    entropy = -(share * np.log(share)).sum() / np.log(COUNT)
    assert found["replayed/entropy"] == pytest.approx(entropy, rel=1e-5)
    assert found["replayed/effective_batch"] < 0.5
    # N P is 7.5 for the eight and 0.07 for the others.
    assert found["replayed/odds_6"] == pytest.approx(8 / 64)
    assert found["replayed/odds_2"] == pytest.approx(56 / 64)


ENDS = np.array([[2, 5, 1], [3, 3, 4]])  # agent steps of the first episode, 2 seeds of 3


def play(make, while_loop):
    """Play environments with rewards 1, 2, 3 ... and nan after the first episode."""

    def step(playing, time):
        count = playing + 1
        assert playing.shape == ENDS.shape
        reward = make.where(count > ENDS, make.float32(np.nan), count.astype(np.float32))
        over = count == ENDS
        even = ENDS % 2 == 0
        return count, TimeStep(reward, over & even, over & ~even, playing)

    return play_out(step, make.zeros(ENDS.shape, np.int32), ENDS.shape, while_loop)


def test_evaluations_use_first_episodes_on_device_and_host():
    for make, loop in ((np, python_while), (jnp, jax.lax.while_loop)):
        returns, lengths = play(make, loop)
        np.testing.assert_array_equal(lengths, ENDS)
        np.testing.assert_array_equal(returns, ENDS * (ENDS + 1) / 2)
        assert (returns.dtype, lengths.dtype) == (np.float32, np.int32)
        assert isinstance(returns, np.ndarray) == (make is np)


def test_evaluations_use_every_key_once():
    all_ = evaluation_keys(jax.random.key(0), 4)
    steps = [keys_at(all_, time) for time in range(5)]
    data = [jax.random.key_data(jnp.append(acting, each)) for acting, each in steps]
    data.append(jax.random.key_data(all_.resets))
    assert len(np.unique(np.concatenate(data), axis=0)) == 5 * 5 + 4
