"""ACER's first step against an independent form of Alg. 3 of Wang et al. 2017, by network."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents import gaussian
from agents.acer import ACERConfig, acer
from agents.gaussian import Behaviour
from agents.networks import MLP
from agents.types import Continuous
from jaxreplay import Transition
from jaxreplay.methods.windows import Aux
from jaxreplay.types import Sample

T, W, OBS, GAMMA = 6, 4, 3, 0.9
KEY = jax.random.key(0)
CONFIG = ACERConfig(hidden=(8,), truncation=1.2, trust_region=0.3, samples=2)
VARIANCE = CONFIG.noise_std**2


def apply(params, *inputs):
    """Return a network's outputs `[B, n]`."""
    layers = params["params"].get("MLP_0", params["params"])
    size = layers["Dense_1"]["bias"].size
    return MLP((8, size), "tanh").apply({"params": layers}, jnp.concatenate(inputs, axis=-1))


def moved(params, scale, seed):
    """Return the parameters with added noise."""
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    noise = [scale * jax.random.normal(key, x.shape) for key, x in zip(keys, leaves)]
    return jax.tree.unflatten(tree, [x + y for x, y in zip(leaves, noise)])


@pytest.fixture(scope="module")
def case():
    """Return a state with a lagging average policy, a sample with both ends, and the new state."""
    agent = acer(CONFIG, Continuous(2))
    state = agent.init(KEY, jnp.zeros(OBS), jnp.zeros(2))
    networks = moved(state.networks, 0.3, 1)
    state = state._replace(networks=networks, average=moved(networks.policy, 0.1, 2))
    keys = jax.random.split(KEY, 4)
    obs, next_obs = jax.random.normal(keys[0], (2, T * W, OBS))
    mean = apply(networks.policy, obs)
    mu = Behaviour(mean + 0.15 * jax.random.normal(keys[1], mean.shape), jnp.full(mean.shape, 0.12))
    action = mu.mean + jnp.sqrt(mu.variance) * jax.random.normal(keys[2], mean.shape)
    last = jnp.arange(T * W) % 7 == 3
    discount = jnp.where(jnp.arange(T * W) % 14 == 3, 0.0, GAMMA)
    reward = jax.random.normal(keys[3], (T * W,))
    t = Transition(obs, action, reward, discount, next_obs, last, last, mu)
    rows = jnp.arange(T * W)
    sample = Sample(rows, t, jnp.ones(T * W), rows, Aux(rows.reshape(T, W)))
    return state, sample, jax.jit(agent.update)(state, sample, KEY)[0]


def returns(t, q, value, next_value, trace):
    """Return `[T * W]`, backwards in time: r + d (trace (Qret - Q) + V) of the next step."""
    t = jax.tree.map(lambda x: np.asarray(x).reshape(T, W, *x.shape[1:]), t)
    q, value, next_value, trace = (
        np.asarray(x).reshape(T, W) for x in (q, value, next_value, trace)
    )
    result = np.zeros((T, W))
    for lane in range(W):
        for row in reversed(range(T)):
            after = next_value[row, lane]
            if row + 1 < T and not t.last[row, lane]:
                error = result[row + 1, lane] - q[row + 1, lane]
                after = value[row + 1, lane] + trace[row + 1, lane] * error
            result[row, lane] = t.reward[row, lane] + t.discount[row, lane] * after
    return result.ravel()


def ratios(mean, mu, action):
    log_density = lambda m, v: -0.5 * (jnp.square(action - m) / v + jnp.log(v)).sum(axis=1)
    return np.asarray(jnp.exp(log_density(mean, VARIANCE * jnp.ones(2)) - log_density(*mu)))


def q_of(nets, obs, action, drawn):
    """Return V + A - mean A over the drawn actions (Eq. 13)."""
    own, means = apply(nets.advantage, obs, action), [apply(nets.advantage, obs, u) for u in drawn]
    return (apply(nets.value, obs) + own - sum(means) / len(means))[:, 0]


@jax.jit
def seen(state, t):
    """Return the network outputs for the sampled steps, with the actions that the agent draws."""
    nets, mean = state.networks, apply(state.networks.policy, t.obs)
    key_duel, key_new = jax.random.split(KEY)
    spread = jnp.full((CONFIG.samples, *mean.shape), VARIANCE)
    drawn = gaussian.sample(jnp.broadcast_to(mean, spread.shape), spread, key_duel)
    new = gaussian.sample(mean, spread[0], key_new)
    return {
        "mean": mean, "average": apply(state.average, t.obs), "drawn": drawn, "new": new,
        "value": apply(nets.value, t.obs)[:, 0], "next_value": apply(nets.value, t.next_obs)[:, 0],
        "q": q_of(nets, t.obs, t.action, drawn), "q_new": q_of(nets, t.obs, new, drawn),
    }  # fmt: skip


@jax.jit
@jax.grad
def gradient(networks, t, drawn, ascent, q_error, v_error):
    """Descend along `ascent` for the mean, and along the errors for Q and V."""
    policy = (ascent * apply(networks.policy, t.obs)).sum(axis=1)
    q, value = q_of(networks, t.obs, t.action, drawn), apply(networks.value, t.obs)[:, 0]
    return -(policy + q_error * q + v_error * value).mean()


@pytest.fixture(scope="module")
def expected(case):
    """Return the gradients of all networks, and the fraction of examples affected by each rule."""
    state, sample, _ = case
    t, now = jax.tree.map(np.asarray, (sample.transition, seen(state, sample.transition)))
    mean, q, value = now["mean"], now["q"], now["value"]
    ratio, ratio_new = (ratios(mean, t.extras, x) for x in (t.action, now["new"]))
    q_ret = returns(t, q, value, now["next_value"], np.minimum(1, np.sqrt(ratio)))
    q_opc = returns(t, q, value, now["next_value"], np.ones(T * W))

    kept = np.minimum(ratio, CONFIG.truncation) * (q_opc - value)
    cut = np.maximum(1 - CONFIG.truncation / ratio_new, 0) * (now["q_new"] - value)
    g = (kept[:, None] * (t.action - mean) + cut[:, None] * (now["new"] - mean)) / VARIANCE
    k = (mean - now["average"]) / VARIANCE  # of KL(average || policy), by the mean
    growth = (g * k).sum(axis=1)
    over = np.maximum(growth - CONFIG.trust_region, 0) / (k * k).sum(axis=1)
    ascent = g - over[:, None] * k

    error = q_ret - q
    grads = gradient(
        state.networks, sample.transition, now["drawn"], ascent, error, np.minimum(1, ratio) * error
    )
    shares = {
        "traces cut": ratio < 1, "ratios truncated": ratio > CONFIG.truncation,
        "corrected": cut != 0, "too far": over > 0,
        "too far if turned round": -growth > CONFIG.trust_region,
    }  # fmt: skip
    return grads, {rule: touched.mean() for rule, touched in shares.items()}


@pytest.mark.parametrize("network", ["policy", "value", "advantage"])
def test_first_step_matches_algorithm_3(case, expected, network):
    mu = optax.tree.get(case[2].opt_state.inner_states[network], "mu")
    got, grads = (jax.tree.leaves(getattr(x, network)) for x in (mu, expected[0]))
    for moment, grad in zip(got, grads, strict=True):
        np.testing.assert_allclose(moment, 0.1 * grad, rtol=2e-3, atol=1e-5)
    assert max(np.abs(grad).max() for grad in grads) > 0.1


def test_every_rule_affects_some_examples_but_not_all(expected):
    for rule, share in expected[1].items():
        assert 0.05 < share < 0.95, rule
