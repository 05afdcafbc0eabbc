"""Discrete SAC: one update in NumPy, and exploration by the policy."""

import functools

import jax
import numpy as np
import pytest

from agents.discrete_sac import DiscreteSACConfig, discrete_sac
from agents.types import Discrete
from experiments import environments
from experiments.training.config import LoopConfig
from experiments.training.loop import make_train
from jaxreplay import Replay
from jaxreplay.methods import uniform
from tests.agents import tools

LOGITS = [[0.0, 1.0, -1.0], [2.0, 0.0, 0.5]]  # [state, action]
CRITICS = [[[1, 2, 3], [0, 1, -1]], [[2, 1, 2], [1, 0, 0]]]  # [critic, state, action]
TARGETS = [[[0, 0, 0], [3, 1, 2]], [[1, 1, 1], [2, 2, 2]]]
ALPHA, STEP = 0.5, 0.1
WEIGHTS = np.array([0.5, 1.0])
SAMPLE = tools.sample_of(
    tools.STATES, np.int32([1, 2]), [1, -1], [0.9, 0.0], tools.STATES[::-1], WEIGHTS
)


@functools.cache
def tabular(**options):
    names = ("actor_learning_rate", "critic_learning_rate", "alpha_learning_rate")
    config = DiscreteSACConfig(
        hidden=(2,), initial_alpha=ALPHA, **dict.fromkeys(names, STEP) | options
    )
    agent = tools.compiled(discrete_sac(config, Discrete(3)))
    networks = {"actor": tools.table(LOGITS), "critics": tuple(map(tools.table, CRITICS))}
    state = tools.start(agent, SAMPLE)._replace(
        **networks, target_critics=tuple(map(tools.table, TARGETS))
    )
    return agent, state


def test_update_agrees_with_numpy():
    agent, state = tabular(tau=0.5)
    after, info = agent.update(state, SAMPLE, tools.KEY)
    t, new = tools.in_double((SAMPLE.transition, after))
    policy = tools.softmax(np.float64(LOGITS))
    value = (policy * (np.min(TARGETS, axis=0) - ALPHA * np.log(policy))).sum(-1)
    target = t.reward + t.discount * value[::-1]

    def errors(critics):
        taken = [
            tools.perceptron(params, t.obs)[[0, 1], SAMPLE.transition.action] for params in critics
        ]
        return target - np.stack(taken)

    def critic_loss(critics):
        return (WEIGHTS * 0.5 * np.square(errors(critics)).sum(axis=0)).mean()

    # The actor learns from the updated critics.
    least = np.min([tools.perceptron(params, t.obs) for params in new.critics], axis=0)

    def actor_loss(params):
        policy = tools.softmax(tools.perceptron(params, t.obs))
        return -(policy * (least - ALPHA * np.log(policy))).sum(-1).mean()

    td = errors(state.critics)
    np.testing.assert_allclose(info.feedback["td_error"], tools.larger(td), rtol=1e-5)
    np.testing.assert_allclose(info.feedback["q_value"], (target - td).min(0), rtol=1e-5)
    np.testing.assert_allclose(info.feedback["target"], target, rtol=1e-5)
    np.testing.assert_allclose(info.metrics["loss"], critic_loss(state.critics), rtol=1e-5)
    np.testing.assert_allclose(info.metrics["actor_loss"], actor_loss(state.actor), rtol=1e-5)
    entropy = -(policy * np.log(policy)).sum(-1).mean()
    np.testing.assert_allclose(info.metrics["entropy"], entropy, rtol=1e-5)
    tools.assert_gradient(after.critic_opt_state, critic_loss, state.critics)
    tools.assert_gradient(after.actor_opt_state, actor_loss, state.actor)
    # The temperature grows if the entropy is below its target; Adam's first step is the rate.
    excess = entropy - 0.98 * np.log(3)
    slope = tools.gradient_of(after.alpha_opt_state)
    np.testing.assert_allclose(slope, ALPHA * excess, rtol=1e-4)
    np.testing.assert_allclose(after.log_alpha, np.log(ALPHA) - STEP * np.sign(excess), rtol=1e-4)
    tools.assert_close(after.target_critics, tools.mixed(0.5, after.critics, state.target_critics))


def test_target_networks_may_be_copied_periodically():
    agent, state = tabular(tau=1.0, target_every=2)
    once, _ = agent.update(state, SAMPLE, tools.KEY)
    tools.assert_same(once.target_critics, state.target_critics)
    twice, _ = agent.update(once, SAMPLE, tools.KEY)
    tools.assert_same(twice.target_critics, twice.critics)


def test_actions_are_samples_of_the_policy():
    agent, state = tabular(tau=0.5)
    obs = np.tile(tools.STATES[:1], (20_000, 1))
    action, extras = agent.act(state, obs, jax.random.key(1))
    assert extras is None
    share = np.bincount(np.asarray(action), minlength=3) / len(obs)
    np.testing.assert_allclose(share, tools.softmax(np.array(LOGITS[0])), atol=0.015)
    np.testing.assert_array_equal(agent.greedy(state, tools.STATES), [1, 0])


@pytest.mark.slow
def test_cartpole_is_learned():
    task = environments.make("gymnax/CartPole-v1")
    config = DiscreteSACConfig(hidden=(64, 64), target_entropy=0.5)
    agent = discrete_sac(config, task.action_space)
    replay = Replay(uniform.sampler(), capacity=15_000, batch_size=64)
    config = LoopConfig(steps=15_000, eval_every=3_000, inspect=0)
    metrics = jax.jit(make_train(task, agent, replay, config))(jax.random.key(0))[1]
    assert metrics["eval_return"].max() > 150  # a random policy reaches about 20
