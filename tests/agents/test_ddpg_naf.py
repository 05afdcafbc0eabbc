"""DDPG and NAF: noise, behaviour statistics, and updates in NumPy, also under ReF-ER."""

import functools

import jax
import numpy as np
import pytest

from agents import ddpg, naf
from agents.common import inverse_time_decay
from agents.ddpg import DDPGConfig
from agents.exploration import Extras
from agents.naf import NAFConfig
from agents.types import Continuous
from jaxreplay.methods.refer import ReFERConfig, objective
from tests.agents import tools
from tests.refusals import refused

ROWS, DECAY = 12, 0.5
VARIANCE = 0.04  # 0.2^2


@functools.cache
def make(which, refer=True, **options):
    """Return an agent with compiled functions, and a state with distinct target networks."""
    module, config = {"ddpg": (ddpg, DDPGConfig), "naf": (naf, NAFConfig)}[which]
    config = config(**{"hidden": (4,), "tau": 0.25} | options)
    agent = getattr(module, which)(
        config, Continuous(2), objective(ReFERConfig()) if refer else None
    )
    agent = tools.compiled(agent)
    state, other = (tools.start(agent, tools.batch(), jax.random.key(seed)) for seed in range(2))
    if which == "ddpg":
        return agent, state._replace(targets=other.networks)
    # Large outputs, since the loss of NAF is nearly quadratic in small ones.
    large = jax.tree.map(lambda x: 3 * x, state.params)
    return agent, state._replace(params=large, target=other.params)


DESCENT = {"critic_weight_decay": DECAY, "critic_learning_rate": 1.0}  # the actor sees large steps


def act(params, obs):
    return np.tanh(tools.perceptron(params, obs, tools.softsign))


def value(params, obs, action):
    return tools.perceptron(params, tools.joined(obs, action), tools.softsign)[:, 0]


def outputs(params, obs):
    """Return NAF's mean, value, and lower-triangular factor."""
    out = tools.perceptron(params, obs, tools.softsign)
    factor = np.zeros((len(out), 2, 2))
    diagonal = tools.softplus(out[:, [3, 5]])
    factor[:, 0, 0], factor[:, 1, 0], factor[:, 1, 1] = diagonal[:, 0], out[:, 4], diagonal[:, 1]
    return out[:, :2], out[:, 2], factor


def naf_value(mean, value, factor, action):
    return value - 0.5 * np.square(np.einsum("bi,bij->bj", action - mean, factor)).sum(axis=1)


def sample_for(agent, state, which, beta):
    """Return steps that are near or far from the policy."""
    sample = tools.batch(ROWS)
    mean = np.asarray(agent.greedy(state, sample.transition.obs))
    action, behaviour = tools.stored(which, mean, np.float32(VARIANCE))
    sample = tools.change(sample, action=action, extras=Extras(behaviour))
    return sample._replace(aux=tools.refer_aux(beta))


def check_ddpg(sample, beta):
    """Compare one update with NumPy, and return the states and the gradients.

    Weight decay adds to the gradient, and the actor ascends the updated critic. With beta 1, the
    update of near steps is that without ReF-ER.
    """
    agent, state = make("ddpg", True, **DESCENT)
    after, info = agent.update(state, sample, tools.KEY)
    before, new, t = tools.in_double((state, after, sample.transition._replace(extras=None)))
    behaviour = sample.transition.extras.behaviour
    compare = lambda mean: tools.trust(mean, VARIANCE, behaviour, t.action)
    near, _ = compare(act(before.networks.actor, t.obs))
    target = value(before.targets.critic, t.next_obs, act(before.targets.actor, t.next_obs))
    target = t.reward + t.discount * target
    np.testing.assert_allclose(info.feedback["target"], target, rtol=1e-4, atol=1e-5)

    def critic_loss(params):
        squares = sum(np.square(x).sum() for x in jax.tree.leaves(params))
        td = target - value(params, t.obs, t.action)
        return (near * 0.5 * np.square(td)).mean() + 0.5 * DECAY * squares

    def actor_loss(params):
        mean = act(params, t.obs)
        near, kl = compare(mean)
        return (-beta * near * value(new.networks.critic, t.obs, mean) + (1 - beta) * kl).mean()

    grads = (
        tools.assert_gradient(after.critic_opt_state, critic_loss, before.networks.critic),
        tools.assert_gradient(after.actor_opt_state, actor_loss, before.networks.actor),
    )
    tools.assert_close(after.targets, tools.mixed(0.25, after.networks, state.targets))
    return before, grads, np.mean(near)


def largest(tree):
    return max(np.abs(x).max() for x in jax.tree.leaves(tree))


@tools.each_mixture
def test_ddpgs_update_under_refer_agrees_with_numpy(which, beta):
    agent, state = make("ddpg", True, **DESCENT)
    sample = sample_for(agent, state, which, beta)
    before, (critic, actor), near = check_ddpg(sample, beta)
    assert near == pytest.approx({"near": 1, "far": 0, "both": 1 / 3}[which])
    # Far steps do not change the critics, nor the actor at beta 1; beta does not scale critics.
    decay = jax.tree.map(lambda w: DECAY * w, before.networks.critic)
    still = largest(jax.tree.map(np.subtract, critic, decay)) < 1e-6
    assert still == (which == "far")
    assert (largest(actor) == 0) == (which == "far" and beta == 1)


def check_naf(sample, refer, beta=1.0):
    agent, state = make("naf", refer)
    after, info = agent.update(state, sample, tools.KEY)
    before, t = tools.in_double((state, sample.transition._replace(extras=None)))
    target = t.reward + t.discount * outputs(before.target, t.next_obs)[1]
    np.testing.assert_allclose(info.feedback["target"], target, rtol=1e-4, atol=1e-5)
    fixed, near = outputs(before.params, t.obs), 1

    def loss(params):
        mean, v, factor = outputs(params, t.obs)
        if not refer:
            return 0.5 * np.square(target - naf_value(mean, v, factor, t.action)).mean()
        near, kl = tools.trust(mean, VARIANCE, sample.transition.extras.behaviour, t.action)
        # The critic's loss trains V and the factor; the actor's, with the divergence, the mean.
        critic = 0.5 * np.square(target - naf_value(fixed[0], v, factor, t.action))
        actor = 0.5 * np.square(target - naf_value(mean, *fixed[1:], t.action))
        return (near * critic + beta * near * actor + (1 - beta) * kl).mean()

    if refer:
        near, _ = tools.trust(fixed[0], VARIANCE, sample.transition.extras.behaviour, t.action)
    tools.assert_gradient(after.opt_state, loss, before.params)
    tools.assert_close(after.target, tools.mixed(0.25, after.params, state.target))
    return np.asarray(
        tools.gradient_of(after.opt_state)["params"]["MLP_0"]["Dense_1"]["bias"]
    ), np.mean(near)


def test_nafs_update_agrees_with_numpy():
    check_naf(tools.batch(ROWS), refer=False)


@tools.each_mixture
def test_nafs_update_under_refer_agrees_with_numpy(which, beta):
    agent, state = make("naf")
    bias, near = check_naf(sample_for(agent, state, which, beta), True, beta)
    assert near == pytest.approx({"near": 1, "far": 0, "both": 1 / 3}[which])
    assert (np.abs(bias[2:]).max() == 0) == (which == "far")  # value and factor
    assert (np.abs(bias[:2]).max() == 0) == (which == "far" and beta == 1)  # mean


def test_mean_is_bounded_by_default():
    obs = 100 * np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    agent, state = make("ddpg", True, **DESCENT)
    params = jax.tree.map(lambda x: 50 * x, state.networks)
    assert np.abs(agent.greedy(state, obs)).max() < 1
    agent, state = make("ddpg", bounded=False)
    assert np.abs(agent.greedy(state._replace(networks=params), obs)).max() > 1


@pytest.mark.parametrize("which", ["ddpg", "naf"])
def test_behaviours_are_stored_only_on_request(which):
    obs, options = np.zeros((4, 3), np.float32), DESCENT if which == "ddpg" else {}
    agent, state = make(which, False, **options)
    assert agent.act(state, obs, tools.KEY)[1] is None
    agent, state = make(which, True, **options)
    _, extras = agent.act(state, obs, tools.KEY)
    np.testing.assert_allclose(extras.behaviour.variance, VARIANCE)
    np.testing.assert_allclose(extras.behaviour.mean, agent.greedy(state, obs), rtol=1e-6)


def test_exploration_noise_is_an_ornstein_uhlenbeck_process():
    """Each step keeps 0.85 of the previous noise; the std tends to 0.2 / sqrt(1 - 0.85^2)."""
    agent, state = make("ddpg", False, noise="ou")
    obs, extras = np.zeros((500, 3), np.float32), Extras(None, np.zeros((500, 2), np.float32))
    first, _ = agent.act(state, obs, tools.KEY, extras)
    assert np.subtract(first, agent.greedy(state, obs)).std() == pytest.approx(0.197, rel=0.1)
    noise = []
    for number in range(60):
        _, extras = agent.act(state, obs, jax.random.key(number), extras)
        noise.append(extras.noise)
    late = np.array(noise)[30:]
    assert late.std() == pytest.approx(0.2 * 0.9866 / np.sqrt(1 - 0.85**2), rel=0.03)
    correlation = (late[1:] * late[:-1]).mean() / (late**2).mean()
    assert correlation == pytest.approx(0.85, abs=0.02)


@pytest.mark.parametrize("which", ["ddpg", "naf"])
def test_correlated_noise_is_refused_where_densities_are_compared(which):
    module, config = {"ddpg": (ddpg, DDPGConfig), "naf": (naf, NAFConfig)}[which]
    made = getattr(module, which)
    made(config(noise="ou"), Continuous(2))
    with refused("noise", "ou", "gaussian"):
        made(config(noise="ou"), Continuous(2), objective(ReFERConfig()))


def test_learning_rates_anneal():
    rates = [inverse_time_decay(1e-4, 5e-7)(k) for k in (0, 10**5, 10**6, 2 * 10**6, 10**7)]
    expected = [1e-4, 9.5238095238e-5, 6.6666666667e-5, 5e-5, 1.6666666667e-5]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
