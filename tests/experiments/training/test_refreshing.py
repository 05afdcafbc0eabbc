"""Loops refresh the priorities of all stored transitions after every K updates."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.dqn import DQNConfig, dqn
from agents.sac import SACConfig, sac
from experiments import environments
from experiments.training.config import LoopConfig, check
from experiments.training.loop import make_program, make_train
from experiments.training.refreshing import evaluate
from jaxreplay import Replay, ring, sum_tree
from jaxreplay.contrib import refresh
from jaxreplay.contrib.refresh import RefreshConfig
from jaxreplay.methods import per
from jaxreplay.methods.per import PERConfig
from jaxreplay.mixing import mix
from tests.refusals import refused

AGENTS = {
    "dqn": ("gymnax/CartPole-v1", dqn, DQNConfig(hidden=(8,))),
    "sac": ("gymnax/Pendulum-v1", sac, SACConfig(hidden=(8,))),
}
KEY = jax.random.key(0)


def parts(agent, every, chunk=7, capacity=40):
    """Return what a loop of 20 updates is made of, with PER alone if `every` is None."""
    name, make, config = AGENTS[agent]
    environment = environments.make(name, max_steps=8)
    method = per.method(PERConfig(epsilon=0.0))
    if every is not None:
        method = refresh.combine(method, RefreshConfig(every=every, chunk=chunk))
    made = make(config, environment.action_space, method.objective)
    replay = Replay(method.sampler, capacity=capacity, batch_size=4, num_envs=2)
    loop = LoopConfig(steps=50, warmup=10, eval_every=40, eval_episodes=1, inspect=0)
    return environment, made, replay, loop


@functools.cache
def train(agent, every, chunk=7, capacity=40, seeds=None):
    """Return the last state, and the agent."""
    own = parts(agent, every, chunk, capacity)
    run = make_train(*own)
    if seeds is not None:
        return jax.jit(jax.vmap(run))(jax.random.split(KEY, seeds))[0], own[1]
    return jax.jit(run)(KEY)[0], own[1]


def leaves_and_current(state, agent):
    filled = int(ring.size(state.replay.ring))
    leaves = sum_tree.leaves(state.replay.sampler.tree)
    assert not np.asarray(leaves)[filled:].any()
    rows = ring.gather(state.replay.ring, jnp.arange(filled))
    td = np.asarray(agent.feedback(state.agent, rows, KEY)["td_error"])
    return np.asarray(leaves)[:filled], np.abs(td) ** 0.6


@pytest.mark.parametrize(("every", "capacity", "chunk"), [(20, 100, 4096), (3, 40, 7)])
def test_after_every_k_th_update_priorities_are_those_of_the_latest_networks(
    every, capacity, chunk
):
    state, agent = train("dqn", every, chunk, capacity)
    assert int(state.updates) == 20
    leaves, current = leaves_and_current(state, agent)
    equal = np.isclose(leaves, current, rtol=1e-3, atol=1e-5)
    assert equal.all() == (20 % every == 0)
    assert not equal.all() or state.replay.sampler.max_leaf == leaves.max()
    assert int(state.replay.sampler.updates) == 20


def test_seeds_have_their_own_priorities():
    states, agent = train("dqn", 2, seeds=2)
    first, second = (jax.tree.map(lambda x, i=i: x[i], states) for i in range(2))
    for state in (first, second):
        leaves, current = leaves_and_current(state, agent)
        np.testing.assert_allclose(leaves, current, rtol=1e-3, atol=1e-5)
        assert state.replay.sampler.max_leaf == leaves.max()
    assert (first.replay.sampler.tree.nodes != second.replay.sampler.tree.nodes).any()


def test_agents_that_sample_actions_evaluate_them_with_keys_of_their_own():
    environment, agent, *others = parts("sac", 1)
    state = jax.jit(make_program(environment, agent, *others).init)(KEY)
    told = evaluate(agent, state.agent, state.replay.ring, jnp.zeros(6, jnp.int32), KEY, 4)
    first, last = told["td_error"][:4], told["td_error"][4:]
    assert len(np.unique(np.asarray(first))) == 4 and not np.isin(last, first).any()


def test_other_methods_and_their_numbers_are_unchanged():
    last, _ = train("dqn", 20, 4096, 100)  # refreshes after the last update
    plain, _ = train("dqn", None, 4096, 100)
    for found, expected in zip(jax.tree.leaves(last.agent), jax.tree.leaves(plain.agent)):
        np.testing.assert_array_equal(found, expected)


def test_mixtures_with_demonstrations_are_refused():
    replay = Replay(refresh.sampler(), capacity=40, batch_size=4)
    with refused("--demos", "--replay", "per"):
        check(LoopConfig(), mix(replay, replay, 0.5, 4))  # pyright: ignore[reportArgumentType]
