"""Quantile heads: their loss worked by hand, updates in NumPy, and learning."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.heads import ImplicitQuantiles, midpoints, quantile_huber
from agents.rainbow import RainbowConfig, rainbow
from agents.types import Discrete
from experiments import environments
from experiments.training.config import LoopConfig
from experiments.training.loop import make_train
from jaxreplay import Replay
from jaxreplay.contrib import laber
from jaxreplay.methods import uniform
from tests.refusals import refused

STATES = np.eye(2, dtype=np.float32)
PLAIN = {"noisy": False, "dueling": False, "hidden": (2,)}
# Quantiles of two actions in each state: [state, action, quantile].
ONLINE = np.float32([[[0, 1, 2], [-1, 0, 4]], [[2, 2, 2], [0, 1, 6]]])
TARGET = np.float32([[[0, 0, 0], [0, 0, 0]], [[1, 3, 5], [0, 0, 1]]])


def loss_of(target, quantiles, fractions, kappa=1.0):
    """Return the quantile Huber loss in NumPy, pair by pair."""
    total = 0.0
    for quantile, fraction in zip(quantiles, fractions, strict=True):
        for aim in target:
            u = aim - quantile
            size = abs(u)
            huber = 0.5 * size**2 if size <= kappa else kappa * (size - kappa / 2)
            total += abs(fraction - (u < 0)) * huber / kappa / len(target)
    return total


@pytest.mark.parametrize(("kappa", "expected"), [(1.0, 0.640625), (0.5, 0.875)])
def test_quantile_huber_loss_worked_by_hand(kappa, expected):
    args = np.float32([0, 2]), np.float32([1, 0.5]), np.float32([0.25, 0.75])
    np.testing.assert_allclose(quantile_huber(*args, kappa), expected, rtol=1e-6)
    np.testing.assert_allclose(loss_of(*args, kappa), expected, rtol=1e-6)


@pytest.mark.parametrize("fraction", [0.15, 0.55, 0.95])
def test_quantile_loss_is_minimal_at_the_quantile(fraction):
    target = jnp.arange(10.0)  # its .15 quantile is 1, its .55 quantile is 5
    slope = jax.grad(lambda x: quantile_huber(target, x[None], jnp.float32([fraction]), 1e-3).sum())
    quantile = int(fraction * 10)
    assert slope(quantile - 0.1) < 0 < slope(quantile + 0.1)


def table(values):
    """Return parameters of a linear network that looks quantiles up by one-hot observations."""
    layer = lambda kernel: {"kernel": kernel, "bias": np.zeros(kernel.shape[1], np.float32)}
    kernels = {"Dense_0": layer(STATES), "Dense_1": layer(values.reshape(2, -1))}
    return {"params": {"MLP_0": kernels}}


@functools.cache
def tabular(**options):
    config = RainbowConfig(head="quantile", quantiles=3, **PLAIN, **options)
    agent = rainbow(config, Discrete(2))
    state = jax.jit(agent.init)(jax.random.key(0), STATES[0], np.int32(0))
    return agent, state._replace(params=table(ONLINE), target_params=table(TARGET))


@pytest.mark.parametrize(
    ("double", "discount", "moved"),
    [
        (True, 0.5, [1, 1, 1.5]),  # action 1, best by the online network
        (False, 0.5, [1.5, 2.5, 3.5]),  # action 0, best by the target network
        (True, 0.0, [1, 1, 1]),
    ],
)
def test_update_of_fixed_quantiles_agrees_with_numpy(make_sample, double, discount, moved):
    agent, state = tabular(double=double, learning_rate=1.0, adam_eps=1e6, max_grad_norm=0.0)
    weights = [0.5]
    sample = make_sample(STATES[:1], np.int32([1]), [1.0], [discount], STATES[1:], weights)
    after, info = jax.jit(agent.update)(state, sample, jax.random.key(0))
    fractions = [1 / 6, 3 / 6, 5 / 6]
    expected = loss_of(moved, ONLINE[0, 1], fractions)
    np.testing.assert_allclose(info.feedback["td_error"], [expected], rtol=1e-5)
    np.testing.assert_allclose(info.feedback["q_value"], [1.0], rtol=1e-6)
    np.testing.assert_allclose(info.feedback["target"], [np.mean(moved)], rtol=1e-6)
    np.testing.assert_allclose(info.metrics["loss"], 0.5 * expected, rtol=1e-5)
    # Adam with a huge epsilon is gradient descent with step size 1 / epsilon.
    layers = (s.params["params"]["MLP_0"]["Dense_1"]["bias"] for s in (after, state))
    change = np.reshape(-1e6 * np.subtract(*layers), (2, 3))
    slope = [
        np.mean([-abs(f - (aim < q)) * np.clip(aim - q, -1, 1) for aim in moved])
        for q, f in zip(ONLINE[0, 1], fractions, strict=True)
    ]
    np.testing.assert_allclose(change[1], 0.5 * np.array(slope), atol=1e-5)
    np.testing.assert_array_equal(change[0], 0)


def implicit_forward(params, obs, fractions, hidden):
    """Return quantiles `[B, n, K]` of an implicit network without dueling, in NumPy."""
    params = jax.tree.map(np.float64, params["params"])
    dense = lambda p, x: x @ p["kernel"] + p["bias"]
    relu = lambda x: np.maximum(x, 0)
    x = obs
    for i in range(hidden - 1):
        x = relu(dense(params[f"Dense_{i}"], x))
    waves = np.cos(np.pi * fractions[..., None] * np.arange(1, 5))
    x = x[:, None] * relu(dense(params["fractions"]["Dense_0"], waves))
    head = params["MLP_0"]
    return np.moveaxis(dense(head["Dense_1"], relu(dense(head["Dense_0"], x))), 1, 2)


@pytest.mark.parametrize(("hidden", "double"), [((5, 6), True), ((6,), False)])
def test_feedback_of_implicit_quantiles_agrees_with_numpy(make_sample, hidden, double):
    config = RainbowConfig(
        head="implicit", quantiles=3, averaged=7, embedding=4, kappa=0.5,
        **PLAIN | {"hidden": hidden}, double=double,
    )  # fmt: skip
    agent = rainbow(config, Discrete(3))
    rng = np.random.default_rng(0)
    obs, next_obs = rng.normal(size=(2, 4, 2)).astype(np.float32)
    action, reward = np.int32([0, 1, 2, 1]), rng.normal(size=4)
    sample = make_sample(obs, action, reward, [0.9, 0.0, 0.9, 0.9], next_obs)
    init = jax.jit(agent.init)
    state, other = (init(jax.random.key(i), obs[0], action[0]) for i in range(2))
    state = state._replace(target_params=other.params)
    key = jax.random.key(3)
    _, info = jax.jit(agent.update)(state, sample, key)

    forward = functools.partial(implicit_forward, hidden=len(hidden))
    grid = np.broadcast_to((np.arange(7) + 0.5) / 7, (4, 7))
    chooser = state.params if double else state.target_params
    best = forward(chooser, next_obs, grid).mean(-1).argmax(-1)
    rows = np.arange(4)
    predicted, aimed = map(np.asarray, ImplicitQuantiles(drawn=3).draw(key, 4))
    moved = forward(state.target_params, next_obs, aimed)[rows, best]
    moved = sample.transition.reward[:, None] + sample.transition.discount[:, None] * moved
    taken = forward(state.params, obs, predicted)[rows, action]
    losses = [loss_of(*each, 0.5) for each in zip(moved, taken, predicted, strict=True)]
    np.testing.assert_allclose(info.feedback["td_error"], losses, rtol=1e-4)
    np.testing.assert_allclose(info.feedback["q_value"], taken.mean(-1), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(info.feedback["target"], moved.mean(-1), rtol=1e-4, atol=1e-6)
    q = forward(state.params, obs, grid).mean(-1)
    np.testing.assert_array_equal(agent.greedy(state, obs), q.argmax(-1))


@pytest.mark.parametrize("head", ["quantile", "implicit"])
def test_distribution_of_a_coin_is_learned(make_sample, head):
    """Rewards of 0 and 1 are equally likely after action 0, and always 0.4 after action 1."""
    config = RainbowConfig(
        head=head, noisy=False, hidden=(16,), quantiles=8, kappa=0.05, learning_rate=1e-2,
    )  # fmt: skip
    agent = rainbow(config, Discrete(2))
    obs = np.ones((4, 2), np.float32)
    sample = make_sample(obs, np.int32([0, 0, 1, 1]), [0, 1, 0.4, 0.4], np.zeros(4), obs)
    state = jax.jit(agent.init)(jax.random.key(0), obs[0], np.int32(0))

    def body(state, key):
        return agent.update(state, sample, key)[0], None

    keys = jax.random.split(jax.random.key(1), 400)
    state = jax.jit(lambda s: jax.lax.scan(body, s, keys)[0])(state)
    fractions = None if head == "quantile" else jnp.broadcast_to(midpoints(8), (4, 8))
    found = config.make_network(2).apply(state.params, obs, fractions)[0]
    np.testing.assert_allclose(found[0, [0, 1, 6, 7]], [0, 0, 1, 1], atol=0.1)
    np.testing.assert_allclose(found[1], 0.4, atol=0.1)
    assert agent.greedy(state, obs)[0] == 0


@pytest.mark.parametrize("head", [pytest.param("quantile", marks=pytest.mark.slow), "implicit"])
def test_chosen_candidates_keep_their_fractions(make_sample, head):
    """Gradient norms and losses of the chosen rows use the same draws."""
    config = RainbowConfig(head=head, quantiles=4, hidden=(4,), averaged=4)
    method = laber.method(laber.LaBERConfig(candidates=2))
    rng = np.random.default_rng(0)
    obs, next_obs = rng.normal(size=(2, 8, 2)).astype(np.float32)
    sample = make_sample(obs, np.int32([0, 1] * 4), rng.normal(size=8), np.zeros(8), next_obs)
    plain, choosing = (rainbow(config, Discrete(2), o) for o in (None, method.objective))
    state = jax.jit(plain.init)(jax.random.key(0), obs[0], np.int32(0))
    key = jax.random.key(1)
    expected = jax.jit(plain.update)(state, sample, key)[1].feedback
    after, info = jax.jit(choosing.update)(state, sample, key)
    for name, values in expected.items():  # for all candidates
        np.testing.assert_allclose(info.feedback[name], values, rtol=1e-5)
    assert np.isfinite(info.metrics["loss"]) and info.metrics["loss"] > 0
    moved = jax.tree.map(lambda x, y: np.any(x != y), after.params, state.params)
    assert all(jax.tree.leaves(moved))


def test_incompatible_options_are_refused():
    for head in ("quantile", "implicit"):
        with refused("priority", "kl", "head", head):
            RainbowConfig(head=head, priority="kl")
    with refused("head", "c52", "c51", "quantile", "implicit"):
        RainbowConfig(head="c52")
    for name in ("quantiles", "averaged", "embedding"):
        with refused(name, "0"):
            RainbowConfig(**{name: 0})
    with refused("kappa", "0.0"):
        RainbowConfig(kappa=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["quantile", "implicit"])
def test_cartpole_is_learned(head):
    task = environments.make("gymnax/CartPole-v1")
    options = RainbowConfig(head=head, noisy=False, hidden=(64, 64), quantiles=8, averaged=8)
    agent = rainbow(options, task.action_space)
    replay = Replay(uniform.sampler(), capacity=10_000, batch_size=64)
    config = LoopConfig(steps=10_000, n_step=5, eval_every=2_000, inspect=0)
    metrics = jax.jit(make_train(task, agent, replay, config))(jax.random.key(0))[1]
    assert metrics["eval_return"].max() > 120  # a random policy reaches about 20
