"""ACER's policy gradient, trust region and targets."""

import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.acer import ACERConfig, acer, policy_gradient, within_trust_region
from agents.gaussian import Behaviour
from agents.types import Continuous
from jaxreplay import Transition
from jaxreplay.methods.windows import Aux
from jaxreplay.types import Sample
from tests.refusals import refused

KEY = jax.random.key(0)
T, W, OBS = 5, 3, 4


def test_policy_gradient_worked_by_hand():
    score, new = np.float32([1.0, -2.0]), np.float32([0.5, 0.5])
    gradient = jax.jit(policy_gradient)
    given = lambda ratio, ratio_new: gradient(
        score, new, *np.float32([3.0, 2.0, np.log(ratio), np.log(ratio_new)]), 5.0
    )
    np.testing.assert_allclose(given(0.5, 4.0), [1.5, -3.0], rtol=1e-6)  # no truncation
    np.testing.assert_allclose(given(8.0, 10.0), [15.5, -29.5], rtol=1e-6)  # 5 * 3 plus half of 2


def test_truncation_with_correction_is_unbiased():
    """Truncated term plus correction estimate the policy's expectation (Wang et al., Eq. 7)."""
    count, mu, pi = 400_000, (0.0, 1.0), (0.7, 0.25)
    density = lambda a, p: np.exp(-0.5 * (a - p[0]) ** 2 / p[1]) / np.sqrt(p[1])
    log_ratio = lambda a: np.log(density(a, pi) / density(a, mu))
    rng = np.random.default_rng(0)
    stored, new = (
        (p[0] + np.sqrt(p[1]) * rng.normal(size=count)).astype(np.float32) for p in (mu, pi)
    )
    value = lambda a: np.sin(2 * a) + a
    score = lambda a: (a - np.float32(pi[0]))[:, None] / np.float32(pi[1])
    estimate = jax.jit(jax.vmap(policy_gradient, (0, 0, 0, 0, 0, 0, None)))(
        score(stored), score(new), value(stored), value(new), log_ratio(stored), log_ratio(new), 1.2
    )
    exact = (score(new)[:, 0] * value(new)).mean()
    np.testing.assert_allclose(np.mean(estimate), exact, atol=0.02)


_within_trust_region = jax.jit(within_trust_region)


def test_trust_region_worked_by_hand():
    g, k = np.float32([3.0, 1.0]), np.float32([2.0, 0.0])
    np.testing.assert_allclose(_within_trust_region(g, k, 10.0), g)  # grows by only 6
    np.testing.assert_allclose(_within_trust_region(g, k, 1.0), [0.5, 1.0], rtol=1e-6)
    np.testing.assert_allclose(_within_trust_region(g, np.zeros(2, np.float32), 1.0), g)


vectors = st.lists(st.floats(-5, 5, width=32), min_size=3, max_size=3).map(np.float32)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(vectors, vectors, st.floats(0.1, 5))
def test_trust_region_bounds_the_growth_of_the_divergence(g, k, bound):
    z = np.asarray(_within_trust_region(g, k, bound))
    assert float(z @ k) <= bound + 1e-3
    if float(g @ k) <= bound:
        np.testing.assert_allclose(z, g, rtol=1e-6)


@functools.cache
def make(**options):
    """Return an agent with compiled functions, and its initial state."""
    agent = acer(ACERConfig(hidden=(8,), **options), Continuous(2))
    names = ("init", "act", "greedy", "update")
    agent = agent._replace(**{name: jax.jit(getattr(agent, name)) for name in names})
    return agent, agent.init(KEY, np.zeros(OBS, np.float32), np.zeros(2, np.float32))


def sample_of(agent, state):
    rng, rows = np.random.default_rng(0), np.arange(T * W, dtype=np.int32)
    obs, next_obs = rng.normal(size=(2, T * W, OBS)).astype(np.float32)
    action, _ = agent.act(state, obs, jax.random.key(1))
    variance = np.full((T * W, 2), 0.12, np.float32)
    behaviour = Behaviour(np.asarray(agent.greedy(state, obs)) + 0.1, variance)
    last = rng.random(T * W) < 0.3
    reward = rng.normal(size=T * W).astype(np.float32)
    ones = np.ones(T * W, np.float32)
    t = Transition(obs, action, reward, 0.9 * ones, next_obs, last, last, behaviour)
    return Sample(rows, t, ones, rows, Aux(rows.reshape(T, W)))


def test_targets_are_retrace_with_square_roots_of_the_ratios():
    agent, state = make()
    sample = sample_of(agent, state)
    t = sample.transition
    _, info = agent.update(state, sample, KEY)
    q = np.asarray(info.feedback["q_value"]).reshape(T, W)
    ratio = np.exp(np.asarray(info.feedback["log_ratio"]).reshape(T, W))
    value = lambda obs: value_of(state, obs).reshape(T, W)
    v, v_next = value(t.obs), value(t.next_obs)
    reward, last = (np.asarray(x).reshape(T, W) for x in (t.reward, t.last))
    expected = np.zeros((T, W))
    for lane in range(W):
        for row in reversed(range(T)):
            after = v_next[row, lane]
            if not last[row, lane] and row + 1 < T:
                cut = min(1.0, ratio[row + 1, lane] ** 0.5)
                error = expected[row + 1, lane] - q[row + 1, lane]
                after = v[row + 1, lane] + cut * error
            expected[row, lane] = reward[row, lane] + 0.9 * after
    target = np.asarray(info.feedback["target"]).reshape(T, W)
    np.testing.assert_allclose(target, expected, rtol=1e-3, atol=1e-3)


def value_of(state, obs):
    from agents.networks import MLP

    return np.asarray(jax.jit(MLP((8, 1), "tanh").apply)(state.networks.value, obs))[:, 0]


def test_average_policy_is_an_exponential_moving_average():
    agent, state = make(tau=0.25)
    after, _ = agent.update(state, sample_of(agent, state), KEY)
    state, after = jax.tree.map(np.asarray, (state, after))
    expected = jax.tree.map(lambda a, b: 0.75 * a + 0.25 * b, state.average, after.networks.policy)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), after.average, expected)
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), state.networks, after.networks)
    assert all(any(jax.tree.leaves(network)) for network in moved)


@pytest.mark.parametrize(
    ("option", "value"),
    [("truncation", 0.0), ("trust_region", -1.0), ("samples", 0), ("noise_std", 0.0), ("tau", 2.0)],
)
def test_bad_options_are_refused(option, value):
    with refused(option, value):
        ACERConfig(**{option: value})
