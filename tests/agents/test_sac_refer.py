"""SAC under ReF-ER: its first step against the gradients of independently written losses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents.gaussian import Behaviour
from agents.networks import Actor, Critic
from agents.sac import Extras, SACConfig, sac
from agents.types import Continuous
from jaxreplay import Transition
from jaxreplay.methods.refer import Aux, ReFERConfig, objective
from jaxreplay.types import Sample

OBS, ROWS, C_MAX, ALPHA, HIDDEN = 3, 12, 5.0, 0.3, (8,)
KEY = jax.random.key(0)


@functools.cache
def made():
    config = SACConfig(HIDDEN, initial_alpha=ALPHA, critic_learning_rate=0.1)
    agent = sac(config, Continuous(2), objective(ReFERConfig()))
    state = agent.init(KEY, jnp.zeros(OBS), jnp.zeros(2))
    twins = jax.tree.map(lambda x: 1.5 * x, state.target_critics)
    return state._replace(target_critics=twins), jax.jit(agent.update)


def gaussian_of(params, obs):
    """Return mean and standard deviation before tanh."""
    out = Actor(4, HIDDEN).apply(params, obs)
    return out[:, :2], jnp.exp(out[:, 2:])


def log_density(x, mean, variance):
    return -0.5 * (jnp.square(x - mean) / variance + jnp.log(2 * np.pi * variance)).sum(axis=1)


def drawn(params, obs, key):
    """Return actions of the policy, after tanh, and their log densities."""
    mean, std = gaussian_of(params, obs)
    u = mean + std * jax.random.normal(key, mean.shape)
    squash = jnp.log(1 - jnp.tanh(u) ** 2 + 1e-6).sum(axis=1)
    return jnp.tanh(u), log_density(u, mean, std**2) - squash


def least(critics, obs, action):
    return jnp.minimum(*[Critic(HIDDEN).apply(c, obs, action) for c in critics])


def sample_of(which, beta):
    """Return near steps, far steps (half with ratios above, half below the bounds) or both."""
    keys = jax.random.split(KEY, 4)
    obs, next_obs = jax.random.normal(keys[0], (2, ROWS, OBS))
    mean, std = gaussian_of(made()[0].actor, obs)
    row = jnp.arange(ROWS)[:, None]
    far = {"near": row < 0, "far": row >= 0, "both": row % 3 > 0}[which]
    away = mean + 2.5 * std
    u = jnp.where(far & (row % 2 == 0), away, mean)
    u += 0.2 * std * jax.random.normal(keys[1], mean.shape)
    mu = Behaviour(jnp.where(far, away, mean + 0.1 * std), 1.1 * std**2)
    flags, reward = jnp.zeros(ROWS, bool), jax.random.normal(keys[2], (ROWS,))
    discount = jnp.where(jnp.arange(ROWS) % 4 == 0, 0.0, 0.9)
    extras = Extras(mu, u)
    t = Transition(obs, jnp.tanh(u), reward, discount, next_obs, flags, flags, extras)
    aux = Aux(jnp.float32(beta), jnp.log(C_MAX), ())
    return Sample(jnp.arange(ROWS), t, jnp.ones(ROWS), jnp.arange(ROWS), aux)


@jax.jit
def expected(state, sample, new_critics):
    """Return the gradients of actor and critics, and a mask of near steps."""
    t, beta = sample.transition, sample.aux.beta
    mu, u = t.extras
    key_target, key_actor = jax.random.split(KEY)  # the agent's draws
    mean, std = gaussian_of(state.actor, t.obs)
    ratio = jnp.exp(log_density(u, mean, std**2) - log_density(u, *mu))
    near = ((ratio > 1 / C_MAX) & (ratio < C_MAX)) * 1.0

    next_action, next_log = drawn(state.actor, t.next_obs, key_target)
    soft = least(state.target_critics, t.next_obs, next_action) - ALPHA * next_log
    target = t.reward + t.discount * soft

    def critic_loss(critics):
        errors = [target - Critic(HIDDEN).apply(c, t.obs, t.action) for c in critics]
        return (near * 0.5 * (errors[0] ** 2 + errors[1] ** 2)).mean()

    def actor_loss(params):
        action, log_prob = drawn(params, t.obs, key_actor)
        mean, std = gaussian_of(params, t.obs)
        shares = (mu.variance + (mean - mu.mean) ** 2) / std**2
        kl = 0.5 * (shares - 1 + jnp.log(std**2 / mu.variance)).sum(axis=1)
        soft = ALPHA * log_prob - least(new_critics, t.obs, action)
        return (beta * near * soft + (1 - beta) * kl).mean()

    return jax.grad(actor_loss)(state.actor), jax.grad(critic_loss)(state.critics), near


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("which", ["near", "far", "both"])
def test_first_step_mixes_the_loss_of_near_steps_and_the_divergence(which, beta):
    state, update = made()
    sample = sample_of(which, beta)
    after, _ = update(state, sample, KEY)
    actor, critics, near = expected(state, sample, after.critics)
    assert near.mean() == pytest.approx({"near": 1, "far": 0, "both": 1 / 3}[which])
    got = optax.tree.get(after.actor_opt_state, "mu"), optax.tree.get(after.critic_opt_state, "mu")
    same = lambda m, g: np.testing.assert_allclose(m, 0.1 * g, rtol=1e-3, atol=2e-6)
    jax.tree.map(same, got, (actor, critics))
    largest = lambda tree: max(float(jnp.abs(x).max()) for x in jax.tree.leaves(tree))
    # Far steps do not change the critics, nor the actor at beta 1.
    assert (largest(got[1]) == 0) == (which == "far")
    assert (largest(got[0]) == 0) == (which == "far" and beta == 1)
    assert largest(got[0]) > 1e-3 or (which == "far" and beta == 1)
