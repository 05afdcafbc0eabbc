"""Room for other critics: CrossQ, written here with public functions alone.

Its critics are batch-normalised over the current and the next pairs of state and action together,
and need no target networks (Bhatt et al. 2024).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from agents import common, distributions
from agents.common import Critique
from agents.networks import Actor, Critic, apply, dense, init_twin
from agents.types import Agent
from jaxreplay import objectives

ALPHA, MOMENTUM, ROWS = 0.05, 0.9, 8


def normalised(train):
    """A layer behind batch normalisation, by the batch or by running statistics."""

    def layer(x, features):
        return dense(nn.BatchNorm(use_running_average=not train, momentum=MOMENTUM)(x), features)

    return layer


LEARNING, FIXED = (Critic((16,), layer=normalised(train)) for train in (True, False))
ACTOR = Actor(4, (16,))
OBJECTIVE = common.complete(None, objectives.mse)
OPTIMISER = optax.adam(1e-2, b1=0.5)


class CrossQState(NamedTuple):
    actor: Any
    critics: Any  # two trees
    statistics: Any  # two trees: running means and variances
    actor_opt_state: Any
    critic_opt_state: Any


def init(key, obs, action):
    actor_key, critic_key = jax.random.split(key)
    actor = ACTOR.init(actor_key, obs[None])
    twins = init_twin(FIXED, critic_key, obs[None], action[None])
    critics, statistics = (tuple(t[name] for t in twins) for name in ("params", "batch_stats"))
    opt_states = OPTIMISER.init(actor), OPTIMISER.init(critics)
    return CrossQState(actor, critics, statistics, *opt_states)


def policy(params, obs):
    return distributions.from_outputs(apply(ACTOR, params, obs))


def act(state, obs, key, previous=None):
    return distributions.sample_and_log_prob(policy(state.actor, obs), key)[0], ()


def greedy(state, obs):
    return distributions.mode(policy(state.actor, obs))


def criticise(critics, state, t, key):
    """One forward pass for values and targets; new statistics come out beside them."""
    next_action, log_prob = distributions.sample_and_log_prob(policy(state.actor, t.next_obs), key)
    pairs = jax.tree.map(
        lambda *x: jnp.concatenate(x), (t.obs, t.action), (t.next_obs, next_action)
    )
    q, statistics = [], []
    for params, old in zip(critics, state.statistics, strict=True):
        variables = {"params": params, "batch_stats": old}
        joint, new = LEARNING.apply(variables, *pairs, mutable=["batch_stats"])
        q.append(joint)
        statistics.append(new["batch_stats"])
    q, next_q = jnp.split(jnp.stack(q), 2, axis=1)  # [2, B] each
    target = t.reward + t.discount * (next_q.min(axis=0) - ALPHA * log_prob)
    return Critique(q, jax.lax.stop_gradient(target), aux=tuple(statistics))


def update(state, sample, key):
    target_key, actor_key = jax.random.split(key)
    t = sample.transition
    grads, info, statistics = common.critic_gradient(
        lambda critics: criticise(critics, state, t, target_key), state.critics, sample, OBJECTIVE
    )
    critics, critic_opt_state = common.descend(
        OPTIMISER, grads, state.critic_opt_state, state.critics
    )

    def actor_loss(params):
        action, log_prob = distributions.sample_and_log_prob(policy(params, t.obs), actor_key)
        q = [
            apply(FIXED, {"params": p, "batch_stats": s}, t.obs, action)
            for p, s in zip(critics, statistics, strict=True)
        ]
        return (ALPHA * log_prob - jnp.minimum(*q)).mean()

    grads = jax.grad(actor_loss)(state.actor)
    actor, actor_opt_state = common.descend(OPTIMISER, grads, state.actor_opt_state, state.actor)
    return CrossQState(actor, critics, statistics, actor_opt_state, critic_opt_state), info


def feedback(state, t, key):
    critique = criticise(state.critics, state, t, key)
    return common.value_feedback(critique.q, critique.target)


CROSSQ = Agent(init, act, greedy, update, feedback)


@pytest.fixture(scope="module")
def start(make_sample):
    rng = np.random.default_rng(0)
    obs, next_obs = rng.normal(2.0, 3.0, size=(2, ROWS, 3)).astype(np.float32)
    action = rng.uniform(-1, 1, (ROWS, 2)).astype(np.float32)
    discount = np.where(np.arange(ROWS) % 4 == 0, 0.0, 0.9)
    sample = make_sample(obs, action, rng.normal(size=ROWS), discount, next_obs)
    return jax.jit(CROSSQ.init)(jax.random.key(0), obs[0], action[0]), sample


def test_statistics_are_of_the_joint_batch_and_are_carried(start):
    state, sample = start
    after, _ = jax.jit(CROSSQ.update)(state, sample, jax.random.key(1))
    t = sample.transition
    joint = np.concatenate([t.obs, t.next_obs]).mean(axis=0)
    for new in after.statistics:
        mean = np.asarray(new["MLP_0"]["BatchNorm_0"]["mean"])
        mean = mean[:3]  # of observations; actions follow
        np.testing.assert_allclose(mean, (1 - MOMENTUM) * joint, rtol=1e-5)
    assert jax.tree.map(jax.typeof, after) == jax.tree.map(jax.typeof, state)


def test_the_target_is_constant_but_its_rows_normalise_the_values(start):
    state, sample = start
    t, key = sample.transition, jax.random.key(1)
    judge = lambda critics, t=t: criticise(critics, state, t, key)
    gradient = jax.jit(lambda c: common.critic_gradient(judge, c, sample, OBJECTIVE))
    judged = jax.jit(judge)
    grads, info, _ = gradient(state.critics)
    critique = judged(state.critics, t)
    target, q = critique.target, np.asarray(critique.q)
    np.testing.assert_allclose(info.feedback["target"], target, rtol=1e-5)
    expected = jax.jit(jax.grad(lambda c: 0.5 * jnp.square(target - judge(c).q).sum(0).mean()))
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6),
        grads,
        expected(state.critics),
    )
    elsewhere = t._replace(next_obs=t.next_obs + 5.0)
    assert not np.allclose(q, judged(state.critics, elsewhere).q)


def test_it_learns(start):
    state, sample = start

    def body(state, key):
        state, info = CROSSQ.update(state, sample, key)
        return state, info.metrics["loss"]

    keys = jax.random.split(jax.random.key(2), 300)
    after, loss = jax.jit(lambda s: jax.lax.scan(body, s, keys))(state)
    loss = np.asarray(loss)
    assert np.isfinite(loss).all() and loss[-50:].mean() < loss[:5].mean() / 5
    action, _ = jax.jit(CROSSQ.act)(after, sample.transition.obs, jax.random.key(3))
    assert action.shape == (ROWS, 2) and np.abs(action).max() <= 1
