"""RACER's gradients by Eq. 3, 5, 6 and 8 of Novati & Koumoutsakos, and its first policy."""

import functools

import jax
import numpy as np
import pytest

from agents import racer
from agents.gaussian import Behaviour
from agents.racer import RACERConfig
from agents.types import Continuous
from jaxreplay.methods.refer import ReFERConfig, objective
from tests.agents import tools
from tests.refusals import refused

WIDTH = {"dg": 5, "sg": 3, "quadratic": 3, "none": 0}  # advantage outputs for two actions
BIAS = {"dg": [-1.0, 1, 1, 1, 1], "sg": [-1.0, 1, 1], "quadratic": [0.0] * 3, "none": []}


@functools.cache
def make(form):
    """Return an agent, and a state with outputs that vary with the observation."""
    config = RACERConfig(hidden=(4,), advantage=form)
    agent = tools.compiled(racer.racer(config, Continuous(2), objective(ReFERConfig())))
    state, rng = tools.start(agent, tools.batch()), np.random.default_rng(0)
    moved = jax.tree.map(lambda x: np.float32(x + 0.3 * rng.normal(size=x.shape)), state.params)
    return agent, state._replace(params=moved)


def outputs_of(form, params, obs):
    """Return mean, variance, value and advantage outputs of every observation, all `[B, ...]`."""
    out = tools.perceptron(params, obs, tools.softsign)
    variance = np.broadcast_to(tools.softplus(params["params"]["variance"]), (len(obs), 2))
    assert out.shape[1] == 3 + WIDTH[form]
    return out[:, :2], variance, out[:, 2], out[:, 3:] + BIAS[form]


def advantage(form, outputs, action, mean, variance):
    """Return f minus its expectation (Eq. 12 to 18), with Eq. 15's sign and factor corrected."""
    d = action - mean
    if form == "none":
        return 0.0
    if form == "quadratic":
        first, between, second = outputs
        factor = np.array([[tools.softplus(first), 0.0], [between, tools.softplus(second)]])
        matrix = factor @ factor.T
        return -0.5 * d @ matrix @ d + 0.5 * np.trace(matrix @ np.diag(variance))
    height, above = tools.softplus(outputs[0]), tools.softplus(outputs[1:3])
    below = tools.softplus(outputs[3:]) if form == "dg" else above
    squares = np.maximum(d, 0) ** 2 / above + np.minimum(d, 0) ** 2 / below
    roots = [np.sqrt(x / (x + variance)) for x in (above, below)]
    return height * (np.exp(-0.5 * squares.sum()) - np.prod(0.5 * (roots[0] + roots[1])))


def check_update(form, sample, beta):
    """Compare the gradient with the paper's directions, and return it and the mask of near steps.

    In the loss whose gradient they are, all factors of the directions are constants.
    """
    agent, state = make(form)
    after, info = agent.update(state, sample, tools.KEY)
    params, t = tools.in_double((state.params, sample.transition))
    mean, variance, value, shape = outputs_of(form, params, t.obs)
    near, _ = tools.trust(mean, variance, t.extras, t.action)
    ratio = np.exp(
        tools.log_density(t.action, mean, variance) - tools.log_density(t.action, *t.extras)
    )
    advantages = lambda shape: np.array(
        [advantage(form, *each) for each in zip(shape, t.action, mean, variance)]
    )
    q_ret, gain = sample.aux.q_ret, beta * near
    error = q_ret - value - advantages(shape)

    def surrogate(params):
        mean_, variance_, value_, shape_ = outputs_of(form, params, t.obs)
        log_prob = tools.log_density(t.action, mean_, variance_)
        ascent = gain * ratio * (q_ret - value) * log_prob  # Eq. 5
        ascent = ascent + gain * np.minimum(1, ratio) * error * value_  # Eq. 6
        ascent = ascent + gain * ratio * error * advantages(shape_)  # Eq. 8
        return ((1 - beta) * tools.trust(mean_, variance_, t.extras, t.action)[1] - ascent).mean()

    np.testing.assert_allclose(info.feedback["td_error"], error, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(
        info.feedback["log_ratio"], np.clip(np.log(ratio), -7, 7), rtol=1e-3, atol=1e-4
    )
    return tools.assert_gradient(after.opt_state, surrogate, params), near


def sample_for(form, which, beta):
    state, sample = make(form)[1], tools.batch(12)
    mean, variance, *_ = outputs_of(form, state.params, sample.transition.obs)
    action, behaviour = tools.stored(which, mean, variance)
    q_ret = np.random.default_rng(4).normal(size=12).astype(np.float32)
    return tools.change(sample, action=action, extras=behaviour)._replace(
        aux=tools.refer_aux(beta, q_ret)
    )


@tools.each_mixture
def test_update_follows_the_papers_directions(which, beta):
    grads, near = check_update("dg", sample_for("dg", which, beta), beta)
    assert near.mean() == pytest.approx({"near": 1, "far": 0, "both": 1 / 3}[which])
    bias = grads["params"]["MLP_0"]["Dense_1"]["bias"]
    # Value and advantage have no gradient from far steps; the policy has that of the divergence.
    assert bias[2:].any() == (which != "far" and beta > 0)
    assert bias[:2].any() == (which != "far" or beta < 1)


@pytest.mark.parametrize("form", ["sg", "quadratic", "none"])
def test_update_of_other_advantages_follows_the_papers_directions(form):
    check_update(form, sample_for(form, "both", 0.3), 0.3)


def test_penalty_of_the_behaviour_policy_has_no_gradient():
    state, sample = make("dg")[1], sample_for("dg", "near", 0.0)
    mean, variance, *_ = outputs_of("dg", state.params, sample.transition.obs)
    equal = Behaviour(np.float32(mean), np.float32(variance))
    grads, _ = check_update("dg", tools.change(sample, extras=equal), 0.0)
    assert all(np.abs(x).max() < 1e-5 for x in jax.tree.leaves(grads))


@pytest.mark.parametrize("form", ["dg", "none"])
def test_initial_policy_follows_the_paper(form):
    agent, sample = make(form)[0], tools.batch()
    state, obs = tools.start(agent, sample), sample.transition.obs
    action, behaviour = agent.act(state, obs, tools.KEY)
    np.testing.assert_allclose(behaviour.variance, 0.2, rtol=1e-5)
    np.testing.assert_allclose(behaviour.mean, agent.greedy(state, obs), rtol=1e-6)
    assert np.abs(behaviour.mean).max() < 0.1
    assert np.abs(action - behaviour.mean).max() <= 3 * np.sqrt(0.2) + 1e-5
    t = tools.change(sample, action=action, extras=behaviour).transition
    feedback = agent.feedback(state, t, tools.KEY)
    np.testing.assert_allclose(feedback["log_ratio"], 0, atol=1e-5)
    assert feedback["advantage"].any() == (form == "dg")


def test_replays_without_returns_are_refused():
    agent, state = make("dg")
    with refused("RACER", "returns"):
        agent.update(state, sample_for("dg", "near", 0.0)._replace(aux=None), tools.KEY)
