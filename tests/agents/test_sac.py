"""SAC: soft targets against NumPy, and the learned temperature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents import distributions
from agents.ensembles import apply_ensemble
from agents.networks import Actor, Critic
from agents.sac import SACConfig, sac, soft_target, temperature_loss
from agents.types import Continuous
from tests.refusals import refused

HIDDEN = (16, 16)


def make(**options):
    agent = sac(SACConfig(hidden=HIDDEN, **options), Continuous(2))
    return agent, agent.init(jax.random.key(0), jnp.zeros(3), jnp.zeros(2))


def test_soft_target_worked_by_hand():
    numbers = [jnp.float32(x) for x in ([3.0, 2.0], -1.5, 0.2, 1.0, 0.5)]
    np.testing.assert_allclose(soft_target(*numbers), 1 + 0.5 * (2 + 0.2 * 1.5), rtol=1e-6)


def test_td_error_of_a_nearly_deterministic_policy_agrees_with_numpy(sample):
    """With a vanishing std the next action is the mode, and only z is unknown in log pi."""
    agent, state = make(initial_alpha=0.2)
    layer = state.actor["params"]["MLP_0"]["Dense_2"]
    layer["kernel"] = layer["kernel"].at[:, 2:].set(0.0)
    layer["bias"] = layer["bias"].at[2:].set(-50.0)  # clipped to a log std of -20
    state = state._replace(
        critics=(state.critics[0], state.critics[0]),  # equal critics have equal errors
        target_critics=jax.tree.map(lambda x: 1.5 * x, state.critics),
    )
    _, info = jax.jit(agent.update)(state, sample, jax.random.key(1))

    t, alive = sample.transition, np.asarray(sample.transition.discount > 0)
    mean = Actor(4, HIDDEN).apply(state.actor, t.next_obs)[:, :2]
    critic, action = Critic(HIDDEN), jnp.tanh(mean)
    next_q = np.asarray(apply_ensemble(critic, state.target_critics, t.next_obs, action))
    q = np.asarray(apply_ensemble(critic, state.critics, t.obs, t.action))
    # log pi = sum of 20 - z^2/2 - log(2 pi)/2 - log(1 - a^2 + 1e-6) over dimensions.
    known = (20 - 0.5 * np.log(2 * np.pi) - np.log(1 - np.square(action) + 1e-6)).sum(1)
    base = np.asarray(t.reward + t.discount * (next_q.min(0) - 0.2 * known))
    excess = np.asarray(info.feedback["td_error"]) + q[0] - base
    np.testing.assert_allclose(excess[~alive], 0.0, atol=1e-5)
    z_squared = excess[alive] / (0.5 * 0.2 * 0.97)
    assert (z_squared > -1e-3).all() and (z_squared < 25).all() and z_squared.max() > 0.1


def test_temperature_rises_when_entropy_is_below_its_target():
    log_prob = jnp.float32([3.0, 1.0])  # entropy -2
    slope = jax.grad(temperature_loss)(jnp.log(jnp.float32(0.5)), log_prob, -1.0)
    np.testing.assert_allclose(slope, -0.5 * (2 - 1), rtol=1e-6)  # descent raises log alpha
    slope = jax.grad(temperature_loss)(jnp.log(jnp.float32(0.5)), log_prob, -3.0)
    np.testing.assert_allclose(slope, -0.5 * (2 - 3), rtol=1e-6)


def test_update_changes_actor_critics_targets_and_temperature(sample):
    agent, state = make(tau=0.1)
    after, info = jax.jit(agent.update)(state, sample, jax.random.key(1))
    expected = jax.tree.map(lambda new, old: 0.1 * new + 0.9 * old, after.critics, state.critics)
    jax.tree.map(
        lambda got, want: np.testing.assert_allclose(got, want, atol=1e-6),
        after.target_critics,
        expected,
    )
    moved = jax.tree.map(lambda new, old: bool((new != old).any()), after.actor, state.actor)
    assert all(jax.tree.leaves(moved))
    # Adam's first step is the learning rate times the sign of the gradient.
    low = bool(info.metrics["entropy"] < -2.0)
    np.testing.assert_allclose(after.log_alpha, 3e-4 if low else -3e-4, rtol=1e-3)
    np.testing.assert_allclose(info.metrics["alpha"], 1.0)


def test_act_samples_and_greedy_returns_the_mode():
    agent, state = make()
    obs = jnp.zeros((5000, 3))
    action, extras = agent.act(state, obs, jax.random.key(1))
    dist = distributions.from_outputs(Actor(4, HIDDEN).apply(state.actor, obs[:1]))
    u = np.arctanh(np.asarray(action))
    assert extras is None
    np.testing.assert_allclose(u.mean(0), dist.mean[0], atol=0.07)
    np.testing.assert_allclose(u.std(0), np.exp(dist.log_std[0]), rtol=0.07)
    np.testing.assert_allclose(agent.greedy(state, obs[:1]), np.tanh(dist.mean), rtol=1e-5)


@pytest.mark.parametrize(
    "options, parts",
    [
        ({"hidden": ()}, ("hidden",)),
        ({"alpha_learning_rate": 0.0}, ("alpha_learning_rate", "0.0")),
        ({"tau": 2.0}, ("tau", "2.0")),
        ({"initial_alpha": 0.0}, ("initial_alpha", "0.0")),
    ],
)
def test_bad_options_are_refused(options, parts):
    with refused(*parts):
        SACConfig(**options)
