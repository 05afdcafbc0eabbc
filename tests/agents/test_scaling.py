"""Observations and rewards in natural units."""

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from agents import scaling
from agents.racer import RACERConfig, racer
from agents.scaling import Scaling
from agents.td3 import TD3Config, td3
from agents.types import Continuous
from jaxreplay import Transition, ring
from jaxreplay.methods import refer
from tests.agents import tools

_add, _gather = jax.jit(ring.add), jax.jit(ring.gather)
measure_observations = jax.jit(scaling.measure_observations)
measure_rewards = jax.jit(scaling.measure_rewards)
scale_transition = jax.jit(scaling.scale_transition)


def ring_of(obs, reward, capacity=None):
    obs, reward = np.float32(obs), np.float32(reward)
    flag, scalar = np.zeros((), bool), np.zeros((), np.float32)
    example = Transition(obs[0], scalar, scalar, scalar, obs[0], flag, flag)
    held = ring.init(example, capacity or len(obs) + 2)  # two slots stay empty
    for one, r in zip(obs, reward):
        row = example._replace(obs=one, reward=r)
        held, _ = _add(held, jax.tree.map(lambda x: np.asarray(x)[None], row))
    return held


UNITS = Scaling(*np.float32([[0, 0], [1, 1]]), np.ones((), np.float32))


def test_scales_worked_by_hand():
    held = ring_of([[0, 10], [2, 10], [4, 10]], [1, -2, 2])
    units = measure_observations(UNITS, held)
    np.testing.assert_allclose(units.mean, [2, 10], rtol=1e-6)
    np.testing.assert_allclose(units.std, [1.6329931619, 1], rtol=1e-6)  # 1 in place of 0
    seen = jax.jit(scaling.scale_observations)(units, np.float32([0.0, 10.0]))
    np.testing.assert_allclose(seen, [-1.2247447964, 0], rtol=1e-5)
    rewards = measure_rewards(UNITS, held)
    np.testing.assert_allclose(rewards.reward, 1.7320508076, rtol=1e-6)
    nothing = measure_rewards(UNITS, ring_of([[0, 10]], [0]))
    assert float(nothing.reward) == 1  # 1 in place of 0, or the first reward would become huge


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(0, 2**31), st.floats(0.1, 10), st.floats(-10, 10))
def test_scaled_transitions_do_not_depend_on_units(seed, factor, shift):
    rng = np.random.default_rng(seed)
    obs, reward = rng.normal(size=(5, 2)), rng.normal(size=5)
    plain, moved = ring_of(obs, reward), ring_of(factor * obs + shift, factor * reward)
    views = []
    for held in (plain, moved):
        units = measure_rewards(measure_observations(UNITS, held), held)
        views.append(scale_transition(units, _gather(held, np.arange(5))))
    np.testing.assert_allclose(views[0].obs, views[1].obs, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(views[0].reward, views[1].reward, rtol=1e-3)


def test_agent_receives_scaled_inputs_and_reports_the_reward_scale():
    inner = td3(TD3Config(hidden=(4,)), Continuous(2))
    agent, inner = tools.compiled(scaling.normalise_inputs(inner)), tools.compiled(inner)
    obs = np.float32([[4.0, 8.0], [2.0, 4.0]])
    sample = tools.sample_of(obs, np.zeros((2, 2), np.float32), [10, 10], [0, 0], obs)
    state = tools.start(agent, sample)
    same = agent.greedy(state, obs), inner.greedy(state.agent, obs)
    np.testing.assert_allclose(*same, rtol=1e-5)
    units = Scaling(np.float32([1.0, 2.0]), np.float32([2.0, 4.0]), np.float32(5.0))
    state = state._replace(scaling=units)
    small = (obs - units.mean) / units.std
    np.testing.assert_allclose(
        agent.greedy(state, obs), inner.greedy(state.agent, small), rtol=1e-5
    )
    info = agent.update(state, sample, tools.KEY)[1].feedback
    for feedback in (info, agent.feedback(state, sample.transition, tools.KEY)):
        np.testing.assert_allclose(feedback["target"], 2.0, rtol=1e-5)
        np.testing.assert_array_equal(feedback["reward_scale"], 5.0)


def test_importance_ratios_of_new_steps_are_one_in_any_units():
    inner = racer(RACERConfig(hidden=(4,)), Continuous(2), refer.objective())
    agent = tools.compiled(scaling.normalise_inputs(inner))
    obs = np.float32([5.0, -40.0] + np.array([2.0, 30.0]) * np.arange(10).reshape(5, 2))
    sample = tools.sample_of(obs, np.zeros((5, 2), np.float32), np.ones(5), np.ones(5), obs)
    state = tools.start(agent, sample)
    state = state._replace(scaling=Scaling(obs.mean(axis=0), obs.std(axis=0), np.float32(3.0)))
    action, extras = agent.act(state, obs, tools.KEY)
    t = sample.transition._replace(action=action, extras=extras)
    np.testing.assert_allclose(agent.feedback(state, t, tools.KEY)["log_ratio"], 0, atol=1e-5)
    moved = state._replace(scaling=state.scaling._replace(mean=obs.mean(axis=0) + 5))
    assert np.abs(agent.feedback(moved, t, tools.KEY)["log_ratio"]).min() > 1e-5
