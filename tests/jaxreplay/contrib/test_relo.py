"""ReLo: priorities and reducible losses by hand, and the agents that compute them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.critics import Critics, reducible_feedback
from experiments.runs import registry
from jaxreplay import objectives
from jaxreplay.contrib import relo
from jaxreplay.contrib.relo import ReLoConfig, ReLoPriority
from jaxreplay.methods import per
from jaxreplay.types import Requirements, Sample, Transition
from tests.refusals import refused

TARGET = np.array([1.0, 2.0, -1.0, 0.0], np.float32)
Q = np.array([[0.5, 2.5, -3.0, 0.1], [0.7, 1.5, -1.0, 0.3]], np.float32)
LAGGED = np.array([[0.2, 2.0, -2.0, 0.4], [0.2, 1.0, 0.0, 0.3]], np.float32)
HUBER = np.array([-0.195, 0.125, 1.0, -0.075])  # of the first critic
NEEDS = Requirements(feedback=frozenset({"reducible_loss"}))


def critics_of(values):
    """Critics whose parameters are their values of all transitions."""
    return Critics(lambda q, transition: jnp.asarray(q), *map(tuple, values))


def reducible(error, critics):
    objective = objectives.plain(error)._replace(requires=NEEDS)
    values = Q[:critics], LAGGED[:critics]
    found = reducible_feedback(critics_of(values), None, TARGET, objective)
    return found["reducible_loss"]


def test_reducible_losses_by_hand():
    np.testing.assert_allclose(reducible(objectives.huber(1.0), 1), HUBER, atol=1e-6)
    # Twin critics: half of mean(.17 .25 2 .05) - mean(.64 .5 1 .125), row by row.
    expected = np.array([0.17 - 0.64, 0.25 - 0.5, 2 - 1, 0.05 - 0.125]) / 2
    np.testing.assert_allclose(reducible(objectives.mse, 2), expected, atol=1e-6)


def test_feedback_that_the_method_does_not_read_is_not_computed():
    objective = objectives.plain(objectives.mse)
    critics = Critics(lambda params, transition: 1 / 0, (0,), (0,))
    assert reducible_feedback(critics, None, jnp.zeros(1), objective) == {}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.001, 0.28718837, 1.000006, 0.001]),
        ({"map": "exp", "alpha": 0.5}, [0.9071023416, 1.0606601718, 1.4142135624, 0.9631944177]),
        ({"map": "exp", "alpha": 1.0}, [0.8228346581, 1.125, 2.0, 0.9277434863]),
    ],
)
def test_priorities_by_hand(options, expected):
    config = ReLoConfig(**options)
    leaf = ReLoPriority(config.alpha, config.map, config.epsilon)
    feedback = {"reducible_loss": jnp.asarray(HUBER, jnp.float32)}
    np.testing.assert_allclose(leaf(feedback, None, None), expected, rtol=2e-5)


def test_the_objective_equals_that_of_per():
    ours, theirs = relo.method(), per.method()
    assert ours.objective._replace(requires=Requirements()) == theirs.objective
    assert ours.requires.feedback == {"reducible_loss"}


AGENTS = [name for name in registry.AGENTS if registry.feeds(name, "relo")]


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow if x == "td7" else ()) for x in AGENTS]
)
def test_agents_report_the_loss_minus_that_of_the_target_network(name):
    """It is 0 while both networks are equal, and `feedback` and `update` give the same values."""
    entry, config = registry.AGENTS[name], registry.AGENTS[name].config(hidden=(8,))
    discrete = entry.actions == "discrete"
    space = registry.environments.make(registry.EXAMPLES[entry.actions]).action_space
    agent = entry.make(config, space, relo.method().objective)
    obs = jax.random.normal(jax.random.key(1), (4, 3))
    action = jnp.zeros(4, jnp.int32) if discrete else jnp.full((4, space.size), 0.3)
    row = Transition(obs, action, jnp.arange(4.0), jnp.full(4, 0.9), obs[::-1])
    row = row._replace(extras=agent.act(agent.init(jax.random.key(0), obs[0], action[0]), obs,
                                        jax.random.key(3))[1])  # fmt: skip
    sample = Sample(jnp.arange(4), row, jnp.ones(4), jnp.ones(4, jnp.int32))
    state = agent.init(jax.random.key(0), obs[0], action[0])
    update = jax.jit(agent.update)
    state, info = update(state, sample, jax.random.key(2))
    np.testing.assert_array_equal(info.feedback["reducible_loss"], np.zeros(4))
    for turn in range(3):
        expected = agent.feedback(state, row, jax.random.key(turn))["reducible_loss"]
        assert np.abs(expected).max() > 0
        if discrete:  # other agents split the key of an update
            found = update(state, sample, jax.random.key(turn))[1].feedback["reducible_loss"]
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)
        state, _ = update(state, sample, jax.random.key(turn))


def test_relo_refuses_unsupported_agents():
    assert AGENTS == ["dqn", "discrete_sac", "td3", "td7", "sac", "iql", "ddpg", "naf"]
    with refused("relo", "rainbow", "reducible_loss"):
        registry.check_fit("rainbow", "relo", "gymnax/CartPole-v1")
