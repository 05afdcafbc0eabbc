"""RACER's gradients worked by hand, its initial policy and its options."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents import gaussian, racer
from agents.advantages import FORMS
from agents.gaussian import Behaviour
from agents.racer import RACERConfig, surrogate_loss
from agents.types import Continuous
from jaxreplay import Transition
from jaxreplay.methods.refer import Aux, ReFERConfig, objective
from jaxreplay.types import Sample
from tests.refusals import refused

MU = Behaviour(jnp.zeros(2), jnp.full(2, 0.1))
ACTION = jnp.asarray([0.4, -0.5])
GIVEN = {
    "mean": jnp.asarray([0.1, -0.2]),
    "variance": jnp.asarray([0.2, 0.05]),
    "value": jnp.asarray(0.5),
    "height": jnp.asarray(1.3),
    "above": jnp.asarray([0.5, 0.3]),
    "below": jnp.asarray([0.2, 1.0]),
}


def loss(given, beta, c_max):
    """Return the agent's loss of one sample as a function of its network outputs."""
    inverse = lambda x: jnp.log(jnp.expm1(x))
    outputs = jnp.r_[given["height"], given["above"], given["below"]]
    hold = jax.lax.stop_gradient
    advantage = FORMS["dg"].advantage(
        inverse(outputs), ACTION, hold(given["mean"]), hold(given["variance"])
    )
    trust = gaussian.trust(given["mean"], given["variance"], MU, ACTION)
    log_prob = gaussian.log_prob(given["mean"], given["variance"], ACTION)
    q_ret = jnp.asarray(1.7)
    one = surrogate_loss(log_prob, trust.log_ratio, given["value"], advantage, q_ret)
    aux = Aux(jnp.asarray(beta), jnp.log(c_max), q_ret[None])
    sample = Sample(jnp.arange(1), None, jnp.ones(1), jnp.ones(1), aux)
    batch = jax.tree.map(lambda x: x[None], trust)
    return objective(ReFERConfig()).actor(one[None], sample, batch)


@pytest.mark.parametrize(
    ("beta", "c_max", "ascent"),
    [
        (
            1.0, 5.0,
            {
                "mean": [4.5393628686, -18.1574514746],
                "variance": [-4.1610826296, 24.2099352994],
                "value": 1.0235583055,
                "height": 0.3503425204,
                "above": [0.1424999541, -0.2870518924],
                "below": [-1.4101326618, 0.1016773995],
            },
        ),
        (
            0.3, 5.0,
            {
                "mean": [1.0118088606, -2.6472354424],
                "variance": [-2.0358247889, 19.8629805898],
                "value": 0.3070674917,
                "height": 0.1051027561,
                "above": [0.0427499862, -0.0861155677],
                "below": [-0.4230397985, 0.0305032198],
            },
        ),
        (
            0.3, 1.05,
            {
                "mean": [-0.35, 2.8],
                "variance": [-0.7875, 12.6],
                "value": 0,
                "height": 0,
                "above": [0, 0],
                "below": [0, 0],
            },
        ),
    ],
    ids=["alone", "mixed", "far"],
)  # fmt: skip
def test_gradients_worked_by_hand(beta, c_max, ascent):
    grads = jax.grad(loss)(GIVEN, beta, c_max)
    for name, expected in ascent.items():
        np.testing.assert_allclose(-grads[name], expected, rtol=2e-4, atol=2e-6, err_msg=name)


def make(advantage="dg"):
    agent = racer.racer(
        RACERConfig(hidden=(8,), advantage=advantage), Continuous(2), objective(ReFERConfig())
    )
    return agent, agent.init(jax.random.key(0), jnp.zeros(3), jnp.zeros(2))


@pytest.mark.parametrize("advantage", FORMS)
def test_initial_policy_follows_the_paper(advantage):
    agent, state = make(advantage)
    obs = jax.random.normal(jax.random.key(1), (5, 3))
    action, behaviour = agent.act(state, obs, jax.random.key(2))
    np.testing.assert_allclose(behaviour.variance, 0.2, rtol=1e-5)
    np.testing.assert_allclose(behaviour.mean, agent.greedy(state, obs))
    assert float(jnp.abs(behaviour.mean).max()) < 0.1
    assert float(jnp.abs(action - behaviour.mean).max()) <= 3 * np.sqrt(0.2) + 1e-5
    t = Transition(obs, action, jnp.ones(5), jnp.ones(5), obs, False, False, behaviour)
    feedback = agent.feedback(state, t, jax.random.key(0))
    np.testing.assert_allclose(feedback["log_ratio"], 0, atol=1e-5)
    if advantage == "none":
        np.testing.assert_array_equal(feedback["advantage"], 0)
    else:
        assert (np.abs(feedback["advantage"]) > 0).all()


def test_replays_without_returns_are_refused():
    agent, state = make()
    t = Transition(*[jnp.zeros((2, 3))] * 2, *[jnp.zeros(2)] * 2, jnp.zeros((2, 3)), *[False] * 2)
    sample = Sample(jnp.arange(2), t, jnp.ones(2), jnp.ones(2))
    with refused("RACER", "returns"):
        agent.update(state, sample, jax.random.key(0))


@pytest.mark.parametrize(
    ("option", "value"), [("advantage", "cubic"), ("initial_variance", 0.0), ("anneal", -1.0)]
)
def test_bad_options_are_refused(option, value):
    with refused(option, value):
        RACERConfig(**{option: value})
