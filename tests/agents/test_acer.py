"""ACER: its trust region by hand, and an update by Alg. 3 of Wang et al."""

import jax
import numpy as np
import pytest

from agents import gaussian
from agents.acer import ACERConfig, acer, within_trust_region
from agents.gaussian import Behaviour
from agents.types import Continuous
from jaxreplay.methods.windows import Aux
from tests.agents import tools

T, W, GAMMA = 6, 4, 0.9
CONFIG = ACERConfig(hidden=(4,), truncation=1.2, trust_region=0.3, samples=2, tau=0.25)
VARIANCE = 0.09  # 0.3^2


_within_trust_region = jax.jit(within_trust_region)


def test_trust_region_worked_by_hand():
    g, k = np.float32([3.0, 1.0]), np.float32([2.0, 0.0])
    np.testing.assert_allclose(_within_trust_region(g, k, 10.0), g)  # grows by only 6
    # 6 exceeds 1 by 5, and |k|^2 is 4: 3 - 5/4 * 2.
    np.testing.assert_allclose(_within_trust_region(g, k, 1.0), [0.5, 1.0], rtol=1e-6)
    np.testing.assert_allclose(_within_trust_region(g, np.zeros(2, np.float32), 1.0), g)


def network(params, *inputs):
    """Return a network's outputs `[B, n]`."""
    return tools.perceptron(params, tools.joined(*inputs), np.tanh)


def returns(t, q, value, next_value, trace):
    """Return `[T * W]`, backwards in time: r + d (trace (Qret - Q) + V) of the next step."""
    t = jax.tree.map(lambda x: x.reshape(T, W, *x.shape[1:]), t)
    q, value, next_value, trace = (x.reshape(T, W) for x in (q, value, next_value, trace))
    result = np.zeros((T, W))
    for lane in range(W):
        for row in reversed(range(T)):
            after = next_value[row, lane]
            if row + 1 < T and not t.last[row, lane]:
                error = result[row + 1, lane] - q[row + 1, lane]
                after = value[row + 1, lane] + trace[row + 1, lane] * error
            result[row, lane] = t.reward[row, lane] + t.discount[row, lane] * after
    return result.ravel()


def q_of(nets, obs, action, drawn):
    """Return V + A - mean A over the drawn actions (Eq. 13)."""
    advantages = [network(nets.advantage, obs, u) for u in drawn]
    own = network(nets.advantage, obs, action)
    return (network(nets.value, obs) + own - sum(advantages) / len(advantages))[:, 0]


@pytest.fixture(scope="module")
def case():
    """Return a state with a lagging average policy, a sample with both ends, and the update."""
    agent, rng = tools.compiled(acer(CONFIG, Continuous(2))), np.random.default_rng(5)
    sample = tools.batch(T * W)
    moved = lambda tree, scale: jax.tree.map(
        lambda x: np.float32(x + scale * rng.normal(size=x.shape)), tree
    )
    state = tools.start(agent, sample)
    networks = moved(state.networks, 0.3)
    state = state._replace(networks=networks, average=moved(networks.policy, 0.1))
    mean = network(networks.policy, sample.transition.obs)
    mu = mean + 0.15 * rng.normal(size=mean.shape), np.full(mean.shape, 0.12)
    rows = np.arange(T * W)
    sample = tools.change(
        sample, action=np.float32(mu[0] + np.sqrt(mu[1]) * rng.normal(size=mean.shape)),
        extras=Behaviour(*map(np.float32, mu)), last=rows % 7 == 3,
        discount=np.float32(np.where(rows % 14 == 3, 0.0, GAMMA)),
    )._replace(aux=Aux(rows.reshape(T, W)))  # fmt: skip
    return state, sample, *agent.update(state, sample, tools.KEY)


def test_update_agrees_with_algorithm_3(case):
    state, sample, after, info = case
    state, t = tools.in_double((state, sample.transition))
    nets, average = state.networks, state.average
    mean, value = network(nets.policy, t.obs), network(nets.value, t.obs)[:, 0]
    key_duel, key_new = jax.random.split(tools.KEY)  # the agent's draws
    spread = np.full((CONFIG.samples, *mean.shape), VARIANCE, np.float32)
    drawn = np.asarray(gaussian.sample(np.broadcast_to(mean, spread.shape), spread, key_duel))
    new = np.asarray(gaussian.sample(mean, spread[0], key_new))
    q = q_of(nets, t.obs, t.action, drawn)
    ratio, ratio_new = (
        np.exp(tools.log_density(x, mean, VARIANCE) - tools.log_density(x, *t.extras))
        for x in (t.action, new)
    )
    next_value = network(nets.value, t.next_obs)[:, 0]
    q_ret = returns(t, q, value, next_value, np.minimum(1, np.sqrt(ratio)))  # two dimensions
    q_opc = returns(t, q, value, next_value, np.ones(T * W))

    kept = np.minimum(ratio, CONFIG.truncation) * (q_opc - value)
    cut = np.maximum(1 - CONFIG.truncation / ratio_new, 0)
    corrected = cut * (q_of(nets, t.obs, new, drawn) - value)
    g = (kept[:, None] * (t.action - mean) + corrected[:, None] * (new - mean)) / VARIANCE
    k = (mean - network(average, t.obs)) / VARIANCE  # of KL(average || policy), by the mean
    growth = (g * k).sum(axis=1)
    over = np.maximum(growth - CONFIG.trust_region, 0) / (k * k).sum(axis=1)
    ascent = g - over[:, None] * k
    error = q_ret - q
    v_error = np.minimum(1, ratio) * error

    def loss(nets):
        """Descend along the ascent direction of the mean, and along the errors for Q and V."""
        policy = (ascent * network(nets.policy, t.obs)).sum(axis=1)
        q, value = q_of(nets, t.obs, t.action, drawn), network(nets.value, t.obs)[:, 0]
        return -(policy + error * q + v_error * value).mean()

    for name, expected in (("q_value", q), ("target", q_ret), ("log_ratio", np.log(ratio))):
        np.testing.assert_allclose(info.feedback[name], expected, rtol=1e-3, atol=1e-4)
    grads = tools.numerical_gradient(loss, nets)
    for name in ("policy", "value", "advantage"):
        found = getattr(tools.gradient_of(after.opt_state.inner_states[name]), name)
        tools.assert_close(found, getattr(grads, name), rtol=2e-3, atol=1e-4)
        assert max(np.abs(x).max() for x in jax.tree.leaves(found)) > 0.05
        assert tools.differs(getattr(after.networks, name), getattr(state.networks, name))
    # Each rule affects some examples but not all.
    for rule in (
        ratio < 1, ratio > CONFIG.truncation, cut != 0, over > 0, -growth > CONFIG.trust_region,
    ):  # fmt: skip
        assert 0.05 < rule.mean() < 0.95


def test_average_policy_is_an_exponential_moving_average(case):
    state, _, after, _ = case
    tools.assert_close(
        after.average, tools.mixed(0.25, after.networks.policy, state.average), atol=1e-7
    )
