"""Rainbow: targets and losses worked by hand, options, noise, exploration, target network."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from agents.heads import cross_entropy, kl_divergence, project
from agents.networks import QNetwork
from agents.noisy import draw_noises, noisy, with_noise
from agents.rainbow import RainbowConfig, rainbow
from agents.types import Discrete
from tests.refusals import refused

STATES = np.eye(2, dtype=np.float32)
SUPPORT = np.float32([-2, -1, 0, 1, 2])
PLAIN = {"noisy": False, "dueling": False, "atoms": 5, "v_min": -2.0, "v_max": 2.0}
# Distributions of two actions in each state: [state, action, atom].
ONLINE = np.float32(
    [
        [[0.2, 0.2, 0.2, 0.2, 0.2], [0.1, 0.1, 0.1, 0.1, 0.6]],
        [[0.1, 0.1, 0.1, 0.1, 0.6], [0.6, 0.1, 0.1, 0.1, 0.1]],
    ]
)
TARGET = np.float32(
    [
        [[0.2, 0.2, 0.2, 0.2, 0.2], [0.2, 0.2, 0.2, 0.2, 0.2]],
        [[0.5, 0.2, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.2, 0.5]],
    ]
)


_project, _cross_entropy = jax.jit(project), jax.jit(cross_entropy)


def table(distributions):
    """Return parameters of a linear network that looks distributions up by one-hot observations."""
    logits = np.log(distributions).reshape(2, -1)
    layer = lambda kernel: {"kernel": kernel, "bias": np.zeros(kernel.shape[1], np.float32)}
    return {"params": {"MLP_0": {"Dense_0": layer(STATES), "Dense_1": layer(logits)}}}


@functools.cache
def tabular(**options):
    agent = rainbow(RainbowConfig(hidden=(2,), **PLAIN | options), Discrete(2))
    state = jax.jit(agent.init)(jax.random.key(0), STATES[0], np.int32(0))
    return agent, state._replace(params=table(ONLINE), target_params=table(TARGET))


@pytest.mark.parametrize(
    ("double", "discount", "moved"),
    [
        (True, 1.0, [0, 0.5, 0.2, 0.1, 0.2]),  # action 0, best online; the last two clip to 2
        (False, 1.0, [0, 0.1, 0.1, 0.1, 0.7]),  # action 1, best by the target network
        (True, 0.0, [0, 0, 0, 1, 0]),
    ],
)
def test_feedback_of_a_table_worked_by_hand(make_sample, double, discount, moved):
    agent, state = tabular(double=double)
    sample = make_sample(STATES[:1], np.int32([1]), [1.0], [discount], STATES[1:])
    _, info = jax.jit(agent.update)(state, sample, jax.random.key(0))
    entropy = -np.dot(moved, np.log(ONLINE[0, 1]))
    np.testing.assert_allclose(info.feedback["td_error"], [entropy], rtol=1e-5)
    np.testing.assert_allclose(info.feedback["q_value"], [1.0], rtol=1e-5)
    np.testing.assert_allclose(info.feedback["target"], [np.dot(moved, SUPPORT)], atol=1e-6)
    np.testing.assert_allclose(info.metrics["mass_at_ends"], moved[0] + moved[-1], rtol=1e-5)


def test_priorities_may_be_the_kl_divergence(make_sample):
    """It is the cross-entropy minus the target's entropy; the gradient is the same."""
    args = STATES, np.int32([0, 1]), [1.0, -1.0], [0.5, 0.0], STATES[::-1].copy()
    found = {}
    for priority in ("cross_entropy", "kl"):
        agent, state = tabular(priority=priority)
        found[priority] = jax.jit(agent.update)(state, make_sample(*args), jax.random.key(0))
        told = jax.jit(agent.feedback)(state, make_sample(*args).transition, jax.random.key(0))
        jax.tree.map(np.testing.assert_array_equal, told, found[priority][1].feedback)
    (state, plain), (same_state, kl) = found.values()
    jax.tree.map(np.testing.assert_array_equal, state, same_state)
    assert kl.metrics["loss"] == plain.metrics["loss"]
    # After the first transition action 0 is best (target .5 .2 .1 .1 .1). The second terminates
    # with reward -1, which concentrates the target on one atom.
    targets = [
        np.asarray(_project(TARGET[1, 0], np.float32(1), np.float32(0.5), SUPPORT)),
        np.float32([0, 1, 0, 0, 0]),
    ]
    expected = [scipy.stats.entropy(targets[0], ONLINE[0, 0]), -np.log(ONLINE[1, 1, 1])]
    np.testing.assert_allclose(kl.feedback["td_error"], expected, rtol=1e-4)
    np.testing.assert_allclose(plain.feedback["td_error"][1], expected[1], rtol=1e-5)
    assert plain.feedback["td_error"][0] > kl.feedback["td_error"][0] + 0.5


def test_kl_divergence_of_a_correct_prediction_is_zero():
    target = np.float32([0.0, 0.2, 0.3, 0.5])
    entropy = -np.dot(target[1:], np.log(target[1:]))
    for error, expected in ((entropy, 0.0), (entropy - 1e-6, 0.0), (entropy + 0.25, 0.25)):
        found = jax.jit(kl_divergence)(np.float32(error), target)
        np.testing.assert_allclose(found, expected, atol=1e-6)
        assert found >= 0


def test_weights_scale_the_loss_but_not_the_feedback(make_sample):
    agent, state = tabular()
    args = STATES, np.int32([0, 1]), [1.0, -1.0], [0.5, 0.0], STATES[::-1].copy()
    update = jax.jit(agent.update)
    _, info = update(state, make_sample(*args), jax.random.key(0))
    error = np.asarray(info.feedback["td_error"])
    np.testing.assert_allclose(info.metrics["loss"], error.mean(), rtol=1e-6)
    _, weighted = update(state, make_sample(*args, weights=[0.25, 1.0]), jax.random.key(0))
    np.testing.assert_array_equal(weighted.feedback["td_error"], error)
    np.testing.assert_allclose(
        weighted.metrics["loss"], (0.25 * error[0] + error[1]) / 2, rtol=1e-6
    )


def test_gradient_is_that_of_the_cross_entropy(make_sample):
    """It is softmax minus target for the logits of the taken action, and 0 for the others."""
    agent, state = tabular(learning_rate=1.0, adam_eps=1e6, max_grad_norm=0.0)
    sample = make_sample(STATES[:1], np.int32([0]), [0.5], [0.5], STATES[1:], weights=[0.5])
    after, _ = jax.jit(agent.update)(state, sample, jax.random.key(0))
    # Adam with a huge epsilon is gradient descent with step size 1 / epsilon.
    layers = (s.params["params"]["MLP_0"]["Dense_1"]["bias"] for s in (after, state))
    change = -1e6 * np.subtract(*layers)
    target = _project(TARGET[1, 0], np.float32(0.5), np.float32(0.5), SUPPORT)
    np.testing.assert_allclose(change[:5], 0.5 * (ONLINE[0, 0] - target), atol=1e-5)
    np.testing.assert_allclose(change[5:], 0, atol=1e-7)


def test_dueling_applies_to_each_atom():
    """Logits are value + advantage - mean advantage for each atom (Hessel et al. 2018)."""
    net = QNetwork(3, hidden=(8, 8), dueling=True, atoms=5)
    obs = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    logits, params = jax.jit(net.init_with_output)(jax.random.key(1), obs)
    logits, params = jax.tree.map(np.asarray, (logits, params))
    assert logits.shape == (4, 3, 5)
    for name, changed in (("advantages", 0.0), ("value", 1.0)):
        shifted = jax.tree.map(np.copy, params)
        shift = np.arange(5.0)  # one number for each atom, equal for all actions
        bias = shifted["params"][name]["Dense_1"]["bias"]
        bias += np.tile(shift, len(bias) // 5).astype(np.float32)
        np.testing.assert_allclose(
            jax.jit(net.apply)(shifted, obs), logits + changed * shift, rtol=1e-4, atol=1e-5
        )


def test_head_without_dueling_has_one_output_for_each_atom():
    net = QNetwork(3, hidden=(8,), atoms=5)
    obs = np.ones((4, 2), np.float32)
    params = jax.jit(net.init)(jax.random.key(1), obs)
    logits = jax.jit(net.apply)(params, obs)
    scalar = jax.jit(QNetwork(15, hidden=(8,)).apply)(params, obs)
    np.testing.assert_array_equal(logits, np.reshape(scalar, (4, 3, 5)))


@pytest.mark.parametrize(
    ("double", "dueling", "noisy"),
    [
        pytest.param(*on, marks=() if len(set(on)) == 1 else pytest.mark.slow)
        for on in itertools.product([False, True], repeat=3)
    ],
)
def test_double_dueling_and_noisy_are_independent_options(make_sample, double, dueling, noisy):
    config = RainbowConfig(
        double=double,
        dueling=dueling,
        noisy=noisy,
        atoms=7,
        hidden=(8,),
        target_every=2,
        epsilon_end=0.5,
    )
    agent = rainbow(config, Discrete(3))
    obs = np.random.default_rng(0).normal(size=(2, 6, 4)).astype(np.float32)
    sample = make_sample(obs[0], np.int32([0, 1, 2] * 2), np.ones(6), np.full(6, 0.9), obs[1])
    state = jax.jit(agent.init)(jax.random.key(1), obs[0, 0], np.int32(0))
    update = jax.jit(agent.update)
    once, info = update(state, sample, jax.random.key(2))
    assert ("epsilon" in info.metrics) == (not noisy)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((once, info)))
    assert (np.asarray(info.feedback["td_error"]) >= 0).all()
    _, other = update(state, sample, jax.random.key(3))
    same = np.array_equal(other.feedback["td_error"], info.feedback["td_error"])
    assert same == (not noisy)  # only the noise uses the key
    found = jax.jit(agent.feedback)(state, sample.transition, jax.random.key(2))
    for name, values in found.items():
        np.testing.assert_allclose(values, info.feedback[name], rtol=1e-4, atol=1e-5)
    # The target network is copied at every second update.
    jax.tree.map(np.testing.assert_array_equal, once.target_params, state.target_params)
    twice, _ = update(once, sample, jax.random.key(4))
    jax.tree.map(np.testing.assert_array_equal, twice.target_params, twice.params)


@functools.cache
def noisy_agent(lanes=400):
    """Return an agent, its state, equal observations, and a function for their Q-values."""
    agent = rainbow(RainbowConfig(hidden=(8,), sigma=3.0), Discrete(4))
    net = QNetwork(4, "auto", (8,), True, 51, noisy(3.0))
    obs = np.ones((lanes, 3), np.float32)
    state = jax.jit(agent.init)(jax.random.key(0), obs[0], np.int32(0))

    @jax.jit
    def values(params, obs):
        return jax.nn.softmax(net.apply(params, obs)) @ np.linspace(-10, 10, 51)

    return agent, state, obs, values


def test_acting_draws_noise_for_every_step_and_environment():
    agent, state, obs, values = noisy_agent()
    act = jax.jit(agent.act)
    action, extras = act(state, obs, jax.random.key(0))
    assert extras is None and action.dtype == jnp.int32
    assert len(set(action.tolist())) > 1  # for equal observations
    assert not np.array_equal(act(state, obs, jax.random.key(1))[0], action)
    # For a single environment, the key gives the noise directly.
    key = jax.random.key(5)
    noise = jax.jit(draw_noises, static_argnums=2)(state.params, key, 1)
    noise = jax.tree.map(lambda leaf: np.asarray(leaf)[0], noise)
    q = np.asarray(values(with_noise(state.params, noise), obs[:1]))
    assert act(state, obs[:1], key)[0] == q.argmax()


def test_greedy_actions_use_the_mean_weights():
    agent, state, obs, values = noisy_agent()
    q = np.asarray(values(state.params, obs))
    np.testing.assert_array_equal(jax.jit(agent.greedy)(state, obs), q.argmax(axis=-1))


def test_updates_draw_three_independent_noises(make_sample):
    """The expected cross-entropy applies the three networks with separate noise."""
    config = RainbowConfig(hidden=(8,), atoms=5, v_min=-2.0, v_max=2.0, sigma=3.0)
    agent = rainbow(config, Discrete(3))
    obs = np.random.default_rng(0).normal(size=(2, 6, 4)).astype(np.float32)
    state = jax.jit(agent.init)(jax.random.key(1), obs[0, 0], np.int32(0))
    key, action = jax.random.key(2), np.int32([0, 1, 2] * 2)
    sample = make_sample(obs[0], action, np.ones(6), np.full(6, 0.5), obs[1])
    net = QNetwork(3, "auto", (8,), True, 5, noisy(3.0))

    @jax.jit
    def outputs(params, key):
        noises = draw_noises(params, key, 3)
        online, select, target = (
            net.apply(with_noise(params, jax.tree.map(lambda leaf: leaf[i], noises)), o)
            for i, o in enumerate((obs[0], obs[1], obs[1]))
        )
        return online, jax.nn.softmax(select), jax.nn.softmax(target)

    online, select, target = map(np.asarray, outputs(state.params, key))
    best = (select @ SUPPORT).argmax(axis=-1)
    expected = [
        _cross_entropy(
            _project(target[i, best[i]], np.float32(1), np.float32(0.5), SUPPORT),
            online[i, action[i]],
        )
        for i in range(6)
    ]
    found = jax.jit(agent.feedback)(state, sample.transition, key)["td_error"]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_epsilon_without_noise_decreases_linearly_with_updates():
    agent, state = tabular(epsilon_start=0.8, epsilon_end=0.2, epsilon_updates=100)
    act = jax.jit(agent.act)
    obs = np.tile(STATES[0], (20_000, 1))
    greedy = np.asarray(jax.jit(agent.greedy)(state, obs))
    assert (greedy == 1).all()  # so action 0 is half of the random actions
    for updates, epsilon in [(0, 0.8), (50, 0.5), (1000, 0.2)]:
        clock = state._replace(updates=np.int32(updates))
        action, _ = act(clock, obs, jax.random.key(updates))
        np.testing.assert_allclose((np.asarray(action) == 0).mean(), epsilon / 2, atol=0.015)


@pytest.mark.parametrize("noisy", [pytest.param(False, marks=pytest.mark.slow), True])
def test_rainbow_learns_the_values_of_a_chain(make_sample, noisy):
    """State 0 leads to state 1 without reward, which terminates with reward 1: Q = gamma and 1."""
    config = RainbowConfig(
        hidden=(16,), learning_rate=1e-2, target_every=10, noisy=noisy, sigma=0.1, v_min=-2.0,
        v_max=2.0, atoms=21, adam_eps=1e-8,
    )  # fmt: skip
    agent = rainbow(config, Discrete(2))
    obs = np.repeat(STATES, 2, axis=0)  # both actions in both states
    sample = make_sample(
        obs, np.int32([0, 1, 0, 1]), [0, 0, 1, 1], [0.9, 0.9, 0, 0], obs[::-1].copy()
    )
    state = jax.jit(agent.init)(jax.random.key(0), STATES[0], np.int32(0))

    def body(state, key):
        return agent.update(state, sample, key)[0], None

    keys = jax.random.split(jax.random.key(1), 500)
    state = jax.jit(lambda s: jax.lax.scan(body, s, keys)[0])(state)
    found = jax.jit(agent.feedback)(state, sample.transition, jax.random.key(2))
    np.testing.assert_allclose(found["q_value"], [0.9, 0.9, 1, 1], atol=0.1 if noisy else 0.03)


@pytest.mark.parametrize(
    "options, parts",
    [
        ({"atoms": 1}, ("atoms", "1", "2")),
        ({"v_min": 1.0, "v_max": 1.0}, ("v_min", "v_max", "1.0")),
        ({"v_max": float("inf")}, ("v_max", "inf")),
        ({"v_min": float("nan")}, ("v_min", "nan")),
        ({"sigma": 0.0}, ("sigma", "0.0")),
        ({"network": "resnet"}, ("network", "resnet", "auto", "mlp", "data_efficient")),
        ({"hidden": ()}, ("hidden",)),
        ({"learning_rate": 0.0}, ("learning_rate", "0.0")),
        ({"adam_eps": 0.0}, ("adam_eps", "0.0")),
        ({"target_every": 0}, ("target_every", "0")),
        ({"epsilon_end": -0.1}, ("epsilon_end", "-0.1")),
        ({"max_grad_norm": -1.0}, ("max_grad_norm", "-1.0")),
        ({"priority": "td"}, ("priority", "td", "cross_entropy", "kl")),
        ({"optimiser": "sgd"}, ("optimiser", "sgd", "adam", "rmsprop")),
        ({"rmsprop_decay": 1.0}, ("rmsprop_decay", "1.0")),
        ({"rmsprop_eps": 0.0}, ("rmsprop_eps", "0.0")),
    ],
)
def test_bad_options_are_refused(options, parts):
    with refused(*parts):
        RainbowConfig(**options)
