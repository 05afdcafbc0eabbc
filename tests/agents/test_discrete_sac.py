"""Discrete SAC: its equations by hand, one update in NumPy, and exploration by the policy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.discrete_sac import DiscreteSACConfig, discrete_sac, soft_value
from agents.types import Discrete
from experiments import environments
from experiments.training.config import LoopConfig
from experiments.training.loop import make_train
from jaxreplay import Replay
from jaxreplay.methods import uniform
from tests.refusals import refused

STATES = np.eye(2, dtype=np.float32)
LOGITS = np.float32([[0.0, 1.0, -1.0], [2.0, 0.0, 0.5]])  # [state, action]
CRITICS = np.float32([[[1, 2, 3], [0, 1, -1]], [[2, 1, 2], [1, 0, 0]]])  # [critic, state, action]
TARGETS = np.float32([[[0, 0, 0], [3, 1, 2]], [[1, 1, 1], [2, 2, 2]]])
ALPHA = 0.5


def test_soft_value_worked_by_hand():
    """Minimum values 1 and 2 with equal probabilities give 1.5 + alpha log 2."""
    q, policy = jnp.float32([[1, 3], [4, 2]]), jnp.log(jnp.float32([0.5, 0.5]))
    np.testing.assert_allclose(soft_value(q, policy, jnp.float32(0.2)), 1.6386294, rtol=1e-6)


def table(values):
    """Return parameters of a linear network that looks values up by one-hot observations."""
    layer = lambda kernel: {"kernel": kernel, "bias": np.zeros(kernel.shape[1], np.float32)}
    return {"params": {"MLP_0": {"Dense_0": layer(STATES), "Dense_1": layer(values)}}}


def bias(params):
    return np.asarray(params["params"]["MLP_0"]["Dense_1"]["bias"])


@functools.cache
def tabular(**options):
    rates = dict.fromkeys(
        ("actor_learning_rate", "critic_learning_rate", "alpha_learning_rate"), 0.1
    )
    config = DiscreteSACConfig(hidden=(2,), initial_alpha=ALPHA, **rates | options)
    agent = discrete_sac(config, Discrete(3))
    state = jax.jit(agent.init)(jax.random.key(0), STATES[0], np.int32(0))
    return agent, state._replace(
        actor=table(LOGITS),
        critics=tuple(map(table, CRITICS)),
        target_critics=tuple(map(table, TARGETS)),
    )


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_update_agrees_with_numpy(make_sample):
    agent, state = tabular(tau=0.5)
    action, reward, discount = np.int32([1, 2]), np.float32([1, -1]), np.float32([0.9, 0.0])
    weights = np.float32([0.5, 1.0])
    sample = make_sample(STATES, action, reward, discount, STATES[::-1].copy(), weights)
    after, info = jax.jit(agent.update)(state, sample, jax.random.key(0))

    policy = softmax(np.float64(LOGITS))
    value = (policy * (TARGETS.min(0) - ALPHA * np.log(policy))).sum(-1)
    target = reward + discount * value[::-1]
    q = CRITICS[:, [0, 1], action]
    td = target - q
    larger = np.where(np.abs(td[0]) >= np.abs(td[1]), td[0], td[1])
    np.testing.assert_allclose(info.feedback["td_error"], larger, rtol=1e-5)
    np.testing.assert_allclose(info.feedback["q_value"], q.min(0), rtol=1e-5)
    np.testing.assert_allclose(info.feedback["target"], target, rtol=1e-5)
    loss = (weights * 0.5 * (td**2).sum(0)).mean()
    np.testing.assert_allclose(info.metrics["loss"], loss, rtol=1e-5)

    step = 0.1  # Adam's first step has the sign of the gradient
    for critic, error in zip(after.critics, td, strict=True):
        gradient = np.zeros(3)
        for row in range(2):
            gradient[action[row]] -= weights[row] * error[row] / 2
        np.testing.assert_allclose(bias(critic), -step * np.sign(gradient), rtol=1e-4)
    # The actor learns from the updated critics. The gradient with respect to its logits is
    # pi (alpha log pi - Q + V).
    kernels = [np.asarray(c["params"]["MLP_0"]["Dense_1"]["kernel"]) for c in after.critics]
    hidden = [jax.tree.map(np.asarray, c["params"]["MLP_0"]["Dense_0"]) for c in after.critics]
    moved = np.stack(
        [
            np.maximum(STATES @ h["kernel"] + h["bias"], 0) @ kernel + bias(critic)
            for h, kernel, critic in zip(hidden, kernels, after.critics, strict=True)
        ]
    )
    least, log = moved.min(0), np.log(policy)
    soft = (policy * (least - ALPHA * log)).sum(-1)
    np.testing.assert_allclose(info.metrics["actor_loss"], -soft.mean(), rtol=1e-5)
    gradient = (policy * (ALPHA * log - least + soft[:, None])).mean(0)
    np.testing.assert_allclose(bias(after.actor), -step * np.sign(gradient), rtol=1e-3)
    entropy = -(policy * log).sum(-1).mean()
    np.testing.assert_allclose(info.metrics["entropy"], entropy, rtol=1e-5)
    low = entropy < 0.98 * np.log(3)  # the temperature grows if the entropy is below its target
    np.testing.assert_allclose(after.log_alpha, np.log(ALPHA) + (step if low else -step), rtol=1e-4)
    # tau is 0.5.
    halves = 0.5 * (kernels[0] + TARGETS[0])
    found = after.target_critics[0]["params"]["MLP_0"]["Dense_1"]["kernel"]
    np.testing.assert_allclose(found, halves, rtol=1e-5)


def test_target_networks_may_be_copied_periodically(make_sample):
    agent, state = tabular(tau=1.0, target_every=2)
    sample = make_sample(STATES, np.int32([0, 1]), [1.0, 1.0], [0.9, 0.9], STATES)
    update = jax.jit(agent.update)
    once, _ = update(state, sample, jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, once.target_critics, state.target_critics)
    twice, _ = update(once, sample, jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, twice.target_critics, twice.critics)


def test_actions_are_samples_of_the_policy():
    agent, state = tabular()
    obs = np.tile(STATES[:1], (20_000, 1))
    action, extras = jax.jit(agent.act)(state, obs, jax.random.key(1))
    assert extras is None
    share = np.bincount(np.asarray(action), minlength=3) / len(obs)
    np.testing.assert_allclose(share, softmax(LOGITS[0]), atol=0.015)
    np.testing.assert_array_equal(agent.greedy(state, STATES), [1, 0])


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"target_entropy": 1.5}, ("target_entropy", "1.5")),
        ({"initial_alpha": 0.0}, ("initial_alpha", "0.0")),
        ({"network": "resnet"}, ("network", "resnet", "mlp")),
        ({"tau": 0.0}, ("tau", "0.0")),
        ({"target_every": 0}, ("target_every", "0")),
    ],
)
def test_bad_options_are_refused(options, parts):
    with refused(*parts):
        DiscreteSACConfig(**options)


@pytest.mark.slow
def test_cartpole_is_learned():
    task = environments.make("gymnax/CartPole-v1")
    config = DiscreteSACConfig(hidden=(64, 64), target_entropy=0.5)
    agent = discrete_sac(config, task.action_space)
    replay = Replay(uniform.sampler(), capacity=15_000, batch_size=64)
    config = LoopConfig(steps=15_000, eval_every=3_000, inspect=0)
    metrics = jax.jit(make_train(task, agent, replay, config))(jax.random.key(0))[1]
    assert metrics["eval_return"].max() > 150  # a random policy reaches about 20
