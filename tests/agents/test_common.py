"""The regression shared by all agents, against the LAP/PAL paper's losses worked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents import common
from jaxreplay import objectives

# Two critics' errors Q - y of four samples; with target 0 and Q as the parameters themselves,
# the gradient is the loss's derivative with respect to Q.
Q = jnp.float32([[0.2, -1.5, 3.0, -0.05], [-0.4, -1.0, 5.0, 0.02]])


def gradient(make_sample, objective, weights=None):
    zeros = np.zeros((4, 1), np.float32)
    sample = make_sample(zeros, zeros, np.zeros(4), np.zeros(4), zeros, weights)
    objective = common.complete(objective, objectives.mse)
    return common.critic_gradient(lambda q: q, Q, jnp.zeros(4), sample, objective)


def test_feedback_is_the_larger_error_with_its_sign_and_the_least_q(make_sample):
    _, info = gradient(make_sample, None)
    np.testing.assert_allclose(info.feedback["td_error"], [0.4, 1.5, -5.0, 0.05])
    np.testing.assert_allclose(info.feedback["q_value"], [-0.4, -1.5, 3.0, -0.05])


def test_default_objective_weighs_squared_errors(make_sample):
    weights = np.float32([0.7578582833, 1.0, 0.5743491775, 0.4352752816])
    grads, info = gradient(make_sample, None, weights)
    np.testing.assert_allclose(info.metrics["loss"], 5.7326764975 / 2, rtol=1e-6)
    np.testing.assert_allclose(grads, weights * Q / 4, rtol=1e-6)


@pytest.mark.parametrize(
    "twin, first, second",
    [
        (
            "own",
            [0.0393721484, -0.231523789, 0.3054974712, -0.0098430371],
            [-0.0787442968, -0.196860742, 0.3747547269, 0.0039372148],
        ),
        (
            "max",
            [0.0393721484, -0.231523789, 0.3747547269, -0.0098430371],
            [-0.0787442968, -0.231523789, 0.3747547269, 0.0039372148],
        ),
    ],
)
def test_pal_sees_both_critics_of_every_sample(make_sample, twin, first, second):
    objective = objectives.plain(objectives.pal(alpha=0.4, kappa=1.0, twin=twin))
    grads, _ = gradient(make_sample, objective)
    np.testing.assert_allclose(grads, [first, second], rtol=1e-5)


def test_an_objective_s_own_error_is_kept():
    objective = objectives.plain(objectives.l1)
    assert common.complete(objective, objectives.mse).error is objectives.l1
    assert common.complete(objectives.plain(), objectives.mse).error is objectives.mse


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_adam_is_not_moved_by_what_is_not_finite(bad):
    optimiser = common.adam(0.1, anneal=0.0, weight_decay=0.5)
    params = {"a": jnp.ones(3), "b": jnp.ones(())}
    state = optimiser.init(params)
    good = {"a": jnp.full(3, 2.0), "b": jnp.zeros(())}
    steps, after = optimiser.update(good | {"b": jnp.asarray(bad)}, state, params)
    assert not any(x.any() for x in jax.tree.leaves(steps))
    steps, _ = optimiser.update(good, after, params)
    fresh, _ = optax.chain(optax.add_decayed_weights(0.5), optax.adam(0.1)).update(
        good, optax.chain(optax.add_decayed_weights(0.5), optax.adam(0.1)).init(params), params
    )
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), steps, fresh)
