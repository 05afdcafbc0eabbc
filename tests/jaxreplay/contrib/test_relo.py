"""ReLo: priorities and reducible losses by hand, and the agents that compute them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.critics import Critics, reducible_feedback
from jaxreplay import objectives
from jaxreplay.contrib import relo
from jaxreplay.contrib.relo import ReLoConfig, ReLoLeaf
from jaxreplay.types import Requirements
from tests.jaxreplay.contrib.small_agents import fed_by, is_discrete, made

TARGET = np.array([1.0, 2.0, -1.0, 0.0], np.float32)
Q = np.array([[0.5, 2.5, -3.0, 0.1], [0.7, 1.5, -1.0, 0.3]], np.float32)
LAGGED = np.array([[0.2, 2.0, -2.0, 0.4], [0.2, 1.0, 0.0, 0.3]], np.float32)
HUBER = np.array([-0.195, 0.125, 1.0, -0.075])  # of the first critic
NEEDS = Requirements(feedback=frozenset({"reducible_loss"}))


def reducible(error, critics):
    objective = objectives.plain(error)._replace(requires=NEEDS)
    # Critics whose parameters are their values of all transitions.
    values = map(tuple, (Q[:critics], LAGGED[:critics]))
    values = Critics(lambda q, transition: jnp.asarray(q), *values)
    return reducible_feedback(values, None, TARGET, objective)["reducible_loss"]


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
    [  # (max(x, 0) + 1e-5)^0.6; x + 1 or exp(x), to the power of alpha
        ({}, [0.001, 0.28718837, 1.000006, 0.001]),
        ({"map": "exp", "alpha": 0.5}, [0.9071023416, 1.0606601718, 1.4142135624, 0.9631944177]),
        ({"map": "exp", "alpha": 1.0}, [0.8228346581, 1.125, 2.0, 0.9277434863]),
    ],
)
def test_priorities_by_hand(options, expected):
    config = ReLoConfig(**options)
    leaf = ReLoLeaf(config.alpha, config.map, config.epsilon)
    feedback = {"reducible_loss": jnp.asarray(HUBER, jnp.float32)}
    np.testing.assert_allclose(leaf(feedback, None, None), expected, rtol=2e-5)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(x, marks=() if x in ("dqn", "ensemble_qr", "sac", "iql") else pytest.mark.slow)
        for x in fed_by("relo")
    ],
)
def test_agents_report_the_loss_minus_that_of_the_target_network(name):
    """It is 0 while both networks are equal, and `feedback` and `update` give the same values."""
    agent, state, sample = made(name, relo.method().objective, 4)
    update, feedback = jax.jit(agent.update), jax.jit(agent.feedback)
    state, info = update(state, sample, jax.random.key(2))
    np.testing.assert_allclose(info.feedback["reducible_loss"], np.zeros(4), atol=1e-6)
    for turn in range(3):
        key = jax.random.key(turn)
        expected = feedback(state, sample.transition, key)["reducible_loss"]
        assert np.abs(expected).max() > 0
        state, info = update(state, sample, key)
        if is_discrete(name):
            found = info.feedback["reducible_loss"]
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)
