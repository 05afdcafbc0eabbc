"""RACER's first step against Eq. 3, 5, 6 and 8 of Novati & Koumoutsakos 2019."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents import racer
from agents.advantages import FORMS
from agents.gaussian import Behaviour
from agents.networks import MLP
from agents.racer import RACERConfig
from agents.types import Continuous
from jaxreplay import Transition
from jaxreplay.methods.refer import Aux, ReFERConfig, objective
from jaxreplay.types import Sample

OBS, ROWS, C_MAX = 3, 12, 5.0
KEY = jax.random.key(0)
WIDTH = {"dg": 5, "sg": 3, "quadratic": 3, "none": 0}  # advantage outputs for two actions
BIAS = {"dg": [-1.0, 1, 1, 1, 1], "sg": [-1.0, 1, 1], "quadratic": [0.0] * 3, "none": []}


@functools.cache
def made(form):
    """Return a state with outputs that vary with the observation, and a compiled update."""
    config = RACERConfig(hidden=(8,), advantage=form)
    agent = racer.racer(config, Continuous(2), objective(ReFERConfig()))
    state = jax.jit(agent.init)(KEY, np.zeros(OBS, np.float32), np.zeros(2, np.float32))
    rng = np.random.default_rng(0)
    moved = jax.tree.map(lambda x: np.float32(x + 0.3 * rng.normal(size=x.shape)), state.params)
    return state._replace(params=moved), jax.jit(agent.update)


def outputs_of(form, params, obs):
    """Return mean, variance, value and advantage outputs of every observation, all `[B, ...]`."""
    layers, raw = params["params"]["MLP_0"], params["params"]["variance"]
    out = MLP((8, 3 + WIDTH[form]), "softsign").apply({"params": layers}, obs)
    variance = jnp.broadcast_to(jnp.log1p(jnp.exp(raw)), (len(obs), 2))
    return out[:, :2], variance, out[:, 2], out[:, 3:] + jnp.asarray(BIAS[form], jnp.float32)


def sample_of(form, params, which, beta):
    """Return near steps, far steps (half with ratios above, half below the bounds) or both."""
    row = np.arange(ROWS)[:, None]
    far = {"near": row < 0, "far": row >= 0, "both": row % 3 > 0}[which]
    return _sample_of(form, params, far, np.float32(beta))


@functools.partial(jax.jit, static_argnums=0)
def _sample_of(form, params, far, beta):
    keys = jax.random.split(KEY, 5)
    obs, next_obs = jax.random.normal(keys[0], (2, ROWS, OBS))
    mean, variance, *_ = outputs_of(form, params, obs)
    std, row = jnp.sqrt(variance), jnp.arange(ROWS)[:, None]
    noise = 0.2 * std * jax.random.normal(keys[1], mean.shape)
    away = mean + 2.5 * std
    action = jnp.where(far & (row % 2 == 0), away, mean) + noise
    wide = variance * jax.random.uniform(keys[2], mean.shape, minval=0.8, maxval=1.2)
    mu = Behaviour(jnp.where(far, away, mean + 0.1 * std), wide)
    flags = jnp.zeros(ROWS, bool)
    t = Transition(obs, action, jnp.ones(ROWS), jnp.ones(ROWS), next_obs, flags, flags, mu)
    aux = Aux(beta, jnp.log(C_MAX), jax.random.normal(keys[3], (ROWS,)))
    return Sample(jnp.arange(ROWS), t, jnp.ones(ROWS), jnp.arange(ROWS), aux)


def advantage(form, outputs, action, mean, variance):
    """Return f minus its expectation (Eq. 12 to 18), with Eq. 15's sign and factor corrected."""
    softplus, d = lambda x: jnp.log1p(jnp.exp(x)), action - mean
    if form == "none":
        return jnp.zeros(())
    if form == "quadratic":
        first, between, second = outputs
        factor = jnp.asarray([[softplus(first), 0.0], [between, softplus(second)]])
        matrix = factor @ factor.T
        return -0.5 * d @ matrix @ d + 0.5 * jnp.trace(matrix @ jnp.diag(variance))
    height, above = softplus(outputs[0]), softplus(outputs[1:3])
    below = softplus(outputs[3:]) if form == "dg" else above
    squares = jnp.maximum(d, 0) ** 2 / above + jnp.minimum(d, 0) ** 2 / below
    roots = [jnp.sqrt(x / (x + variance)) for x in (above, below)]
    return height * (jnp.exp(-0.5 * squares.sum()) - jnp.prod(0.5 * (roots[0] + roots[1])))


def ascent(form, outputs, action, mu, q_ret, beta):
    """Return one example's ascent direction for every output (Eq. 3), and its ratio."""
    mean, variance, value, shape = outputs
    log_density = lambda m, v: -0.5 * (jnp.square(action - m) / v + jnp.log(v)).sum()
    ratio = jnp.exp(log_density(mean, variance) - log_density(*mu))
    near = (ratio > 1 / C_MAX) & (ratio < C_MAX)
    a = advantage(form, shape, action, mean, variance)
    by_shape = jax.grad(lambda x: advantage(form, x, action, mean, variance))(shape)
    away, moved = action - mean, mean - mu.mean
    gain = jnp.where(near, beta, 0.0)
    policy = gain * ratio * (q_ret - value)
    by_variance = 0.5 * (away**2 / variance**2 - 1 / variance)
    kl_by_variance = 0.5 * (1 / variance - mu.variance / variance**2 - moved**2 / variance**2)
    return (
        policy * away / variance - (1 - beta) * moved / variance,  # Eq. 5
        policy * by_variance - (1 - beta) * kl_by_variance,
        gain * jnp.minimum(1, ratio) * (q_ret - value - a),  # Eq. 6
        gain * ratio * (q_ret - value - a) * by_shape,  # Eq. 8
    ), ratio


@functools.partial(jax.jit, static_argnums=0)
def expected(form, params, sample):
    """Return the negative ascent direction of all parameters, and the ratios."""
    t, aux = sample.transition, sample.aux
    one = functools.partial(ascent, form, beta=aux.beta)
    directions, ratio = jax.vmap(one)(
        outputs_of(form, params, t.obs), t.action, t.extras, aux.q_ret
    )
    _, pull = jax.vjp(lambda p: outputs_of(form, p, t.obs), params)
    return pull(jax.tree.map(lambda x: -x / ROWS, directions))[0], ratio


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("which", ["near", "far", "both"])
def test_first_step_follows_the_papers_directions(form, beta, which):
    state, update = made(form)
    sample = sample_of(form, state.params, which, beta)
    grads, ratio = expected(form, state.params, sample)
    ratio = np.asarray(ratio)
    share = np.mean((ratio <= 1 / C_MAX) | (ratio >= C_MAX))
    assert share == pytest.approx({"near": 0, "far": 1, "both": 2 / 3}[which])
    assert which == "near" or (ratio.max() > C_MAX and ratio.min() < 1 / C_MAX)
    after, _ = update(state, sample, KEY)
    mu = jax.tree.map(np.asarray, optax.tree.get(after.opt_state, "mu"))
    same = lambda m, g: np.testing.assert_allclose(m, 0.1 * np.asarray(g), rtol=2e-3, atol=2e-6)
    jax.tree.map(same, mu, grads)
    head = mu["params"]["MLP_0"]["Dense_1"]
    if which == "far" or beta == 0:  # value and advantage have no gradient
        assert not head["kernel"][:, 2:].any() and not head["bias"][2:].any()
    if which == "far" and beta == 1:
        assert not any(x.any() for x in jax.tree.leaves(mu))
    elif which != "near" or beta == 1:
        assert np.abs(head["bias"][:2]).max() > 1e-3  # the comparison is not trivial


def test_penalty_of_the_behaviour_policy_has_no_gradient():
    state, update = made("dg")
    sample = sample_of("dg", state.params, "near", 0.0)
    t = sample.transition
    mean, variance, *_ = jax.jit(outputs_of, static_argnums=0)("dg", state.params, t.obs)
    sample = sample._replace(transition=t._replace(extras=Behaviour(mean, variance)))
    after, info = update(state, sample, KEY)
    np.testing.assert_allclose(info.feedback["log_ratio"], 0, atol=1e-5)
    for moment in jax.tree.leaves(optax.tree.get(after.opt_state, "mu")):
        np.testing.assert_allclose(moment, 0, atol=1e-6)
