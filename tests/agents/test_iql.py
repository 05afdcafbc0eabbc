"""IQL: its losses by hand, one update in NumPy, and its policy."""

import functools

import jax
import numpy as np
import pytest

from agents.iql import IQLConfig, expectile_loss, iql
from agents.types import Continuous
from jaxreplay import objectives
from jaxreplay.contrib import laber
from jaxreplay.methods import per
from jaxreplay.types import Requirements
from tests.refusals import refused

SMALL = {"hidden": (8, 8)}


def make(objective=None, **options):
    return iql(IQLConfig(**SMALL | options), Continuous(2), objective), start()


@functools.cache
def start():
    init = jax.jit(iql(IQLConfig(**SMALL), Continuous(2)).init)
    example = np.zeros(3, np.float32), np.zeros(2, np.float32)
    state, other = (init(jax.random.key(i), *example) for i in range(2))
    log_std = np.float32([-0.5, 0.25])
    actor = state.actor._replace(log_std=log_std)
    return state._replace(actor=actor, target_critics=other.critics)


def forward(params, x):
    """Return the outputs of a network in NumPy."""
    layers = params["params"]["MLP_0"]
    for i in range(3):
        layer = jax.tree.map(np.float64, layers[f"Dense_{i}"])
        x = x @ layer["kernel"] + layer["bias"]
        x = np.maximum(x, 0) if i < 2 else x
    return x


def test_losses_worked_by_hand():
    found = expectile_loss(np.float32([2, -2, 0]), 0.7)
    np.testing.assert_allclose(found, [2.8, 1.2, 0], rtol=1e-6)


@pytest.mark.parametrize("method", [None, per.method()], ids=["plain", "weighted"])
def test_update_agrees_with_numpy(sample, method):
    agent, state = make(
        None if method is None else method.objective, expectile=0.8, temperature=2.0,
        largest_weight=1.1, tau=0.25, value_learning_rate=1e-2,
    )  # fmt: skip
    weights = np.linspace(0.2, 1, 8, dtype=np.float32)
    sample = sample._replace(weights=weights)
    after, info = jax.jit(agent.update)(state, sample, jax.random.key(0))
    t = sample.transition
    both = np.concatenate([t.obs, t.action], axis=1)
    least = np.min([forward(p, both)[:, 0] for p in state.target_critics], axis=0)
    u = least - forward(state.value, t.obs)[:, 0]
    losses = np.where(u < 0, 0.2, 0.8) * u**2
    np.testing.assert_allclose(info.metrics["value_loss"], (weights * losses).mean(), rtol=1e-4)
    # Actor and critics use the updated value network.
    advantage = least - forward(after.value, t.obs)[:, 0]
    np.testing.assert_allclose(info.metrics["advantage"], advantage.mean(), rtol=1e-4, atol=1e-6)
    weight = np.minimum(np.exp(2 * advantage), 1.1)
    assert (weight == 1.1).any() and (weight < 1.1).any()
    mean, std = np.tanh(forward(state.actor.mean, t.obs)), np.exp(state.actor.log_std)
    log = -0.5 * ((t.action - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(info.metrics["actor_loss"], -(weight * log.sum(1)).mean(), rtol=1e-4)
    target = t.reward + t.discount * forward(after.value, t.next_obs)[:, 0]
    td = target - np.stack([forward(p, both)[:, 0] for p in state.critics])
    larger = np.where(np.abs(td[0]) >= np.abs(td[1]), td[0], td[1])
    np.testing.assert_allclose(info.feedback["td_error"], larger, rtol=1e-3, atol=1e-5)
    loss = (weights * 0.5 * (td**2).sum(0)).mean()
    np.testing.assert_allclose(info.metrics["loss"], loss, rtol=1e-4)
    # The gradient of a log std is the mean of weight * (1 - z^2), and Adam's first step is its
    # sign.
    gradient = (weight[:, None] * (1 - ((t.action - mean) / std) ** 2)).mean(0)
    step = np.subtract(after.actor.log_std, state.actor.log_std)
    np.testing.assert_allclose(step, -3e-4 * np.sign(gradient), rtol=1e-2)
    jax.tree.map(
        lambda new, old, found: np.testing.assert_allclose(
            found, 0.25 * np.asarray(new) + 0.75 * np.asarray(old), rtol=1e-5, atol=1e-7
        ),
        after.critics, state.target_critics, after.target_critics,
    )  # fmt: skip


def test_actor_learning_rate_may_decay(sample):
    agent, state = make(actor_updates=2)
    update, steps = jax.jit(agent.update), []
    for turn in range(3):
        after, _ = update(state, sample, jax.random.key(turn))
        steps.append(np.abs(np.subtract(after.actor.log_std, state.actor.log_std)).max())
        state = after
    np.testing.assert_allclose(steps[0], 3e-4, rtol=1e-3)
    assert steps[1] < 0.6 * steps[0] and steps[2] == 0


def test_policy_is_a_clipped_gaussian():
    agent, state = make()
    obs = np.zeros((20_000, 3), np.float32)
    action, extras = jax.jit(agent.act)(state, obs, jax.random.key(0))
    mean = jax.jit(agent.greedy)(state, obs)[0]
    np.testing.assert_allclose(mean, np.tanh(forward(state.actor.mean, obs[:1]))[0], rtol=1e-5)
    assert extras is None and np.abs(action).max() == 1
    middle = np.sort(np.asarray(action), axis=0)[len(obs) // 2]
    np.testing.assert_allclose(middle, mean, atol=0.03)
    # One std below the mean is the 15.9th percentile, which is not clipped.
    low = np.sort(np.asarray(action), axis=0)[int(0.1587 * len(obs))]
    expected = np.maximum(mean - np.exp(state.actor.log_std), -1)
    np.testing.assert_allclose(low, expected, atol=0.03)


def test_incompatible_options_and_objectives_are_refused():
    for options, parts in (
        ({"expectile": 1.0}, ("expectile", "1.0")),
        ({"temperature": -1.0}, ("temperature", "-1.0")),
        ({"largest_weight": 0.0}, ("largest_weight", "0.0")),
        ({"actor_updates": 0}, ("actor_updates", "0")),
    ):
        with refused(*parts):
            IQLConfig(**options)
    with refused("IQL", "candidates"):
        iql(IQLConfig(), Continuous(1), laber.method().objective)
    dense = objectives.plain()._replace(requires=Requirements(density=True))
    with refused("IQL", "density"):
        iql(IQLConfig(), Continuous(1), dense)
