"""TD3: targets against NumPy, noise, delayed updates, and behaviour cloning."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.td3 import TD3Config, clipped_double_q_target, cloning_loss, td3
from agents.types import Continuous
from tests.refusals import refused

SMALL = {"hidden": (16, 16)}


def make(**options):
    return td3(TD3Config(**SMALL | options), Continuous(2)), start()


@functools.cache
def start():
    """Return the initial state, which does not depend on the other options."""
    init = jax.jit(td3(TD3Config(**SMALL), Continuous(2)).init)
    return init(jax.random.key(0), np.zeros(3, np.float32), np.zeros(2, np.float32))


def moved(new, old):
    return jax.tree.leaves(jax.tree.map(lambda a, b: np.not_equal(a, b).any(), new, old))


def forward(params, x):
    """Return the outputs of a network in NumPy."""
    layers = params["params"]["MLP_0"]
    for i in range(3):
        layer = jax.tree.map(np.asarray, layers[f"Dense_{i}"])
        x = x @ layer["kernel"] + layer["bias"]
        x = np.maximum(x, 0) if i < 2 else x
    return x


def test_clipped_double_q_target_worked_by_hand():
    target = clipped_double_q_target(np.float32([3.0, 2.0]), np.float32(1), np.float32(0.5))
    np.testing.assert_allclose(target, 2.0)


def test_td_error_agrees_with_numpy(sample):
    agent, state = make(target_noise=0.0)
    # Make the target networks differ from the online networks.
    policy = state.policy
    enlarged = lambda params: jax.tree.map(lambda x: np.asarray(x) * np.float32(1.5), params)
    policy = policy._replace(
        target_actor=enlarged(policy.target_actor), target_critics=enlarged(policy.target_critics)
    )
    state = state._replace(policy=policy)
    _, info = jax.jit(agent.update)(state, sample, jax.random.key(1))

    t = sample.transition
    next_action = np.tanh(forward(policy.target_actor, np.asarray(t.next_obs)))
    next_input = np.concatenate([t.next_obs, next_action], axis=1)
    next_q = np.stack([forward(p, next_input)[:, 0] for p in policy.target_critics])
    target = t.reward + t.discount * next_q.min(axis=0)
    now = np.concatenate([t.obs, t.action], axis=1)
    q = np.stack([forward(p, now)[:, 0] for p in state.critics])
    td = target - q
    larger = np.where(np.abs(td[0]) >= np.abs(td[1]), td[0], td[1])
    np.testing.assert_allclose(info.feedback["td_error"], larger, atol=1e-5)
    np.testing.assert_allclose(info.feedback["q_value"], q.min(axis=0), atol=1e-5)
    np.testing.assert_allclose(info.metrics["loss"], 0.5 * (td**2).sum(0).mean(), rtol=1e-5)


def test_target_noise_is_clipped(sample):
    """With a clip of nearly 0, TD errors barely depend on the noise."""
    clipped, state = make(target_noise=5.0, target_noise_clip=1e-6)
    noisy, _ = make(target_noise=5.0)
    alive = sample.transition.discount > 0

    def spread(agent):
        """Return the absolute differences of TD errors between two keys."""
        update = jax.jit(agent.update)
        td = [update(state, sample, jax.random.key(i))[1].feedback["td_error"] for i in range(2)]
        return np.abs(np.subtract(*td))[alive]

    assert 0 < spread(clipped).max() < 1e-5
    assert spread(noisy).max() > 1e-3


def test_exploration_noise_has_the_given_std():
    agent, state = make(exploration_noise=0.1)
    obs = np.zeros((20_000, 3), np.float32)
    action, extras = jax.jit(agent.act)(state, obs, jax.random.key(1))
    assert extras is None and np.abs(action).max() <= 1
    noise = np.subtract(action, jax.jit(agent.greedy)(state, obs))
    np.testing.assert_allclose(noise.mean(0), 0.0, atol=0.005)
    np.testing.assert_allclose(noise.std(0), 0.1, atol=0.005)
    loud, _ = make(exploration_noise=10.0)
    assert np.abs(jax.jit(loud.act)(state, obs, jax.random.key(1))[0]).max() == 1


def test_actor_and_targets_change_every_second_update(sample):
    agent, state = make(tau=0.1)
    update = jax.jit(agent.update)
    keys = jax.random.split(jax.random.key(1), 4)
    for count, key in enumerate(keys, start=1):
        before = state
        state, info = update(state, sample, key)
        assert int(state.updates) == count
        assert all(moved(state.critics, before.critics))
        for part in ("actor", "target_actor", "target_critics"):
            new, old = getattr(state.policy, part), getattr(before.policy, part)
            assert set(moved(new, old)) == {count % 2 == 0}
        if count % 2 == 0:
            jax.tree.map(
                lambda target, new, old: np.testing.assert_allclose(
                    target, 0.1 * np.asarray(new) + 0.9 * np.asarray(old), atol=1e-6
                ),
                state.policy.target_critics,
                state.critics,
                before.policy.target_critics,
            )


def test_actor_loss_is_minus_the_first_critic(sample):
    agent, state = make(policy_delay=1)
    after, info = jax.jit(agent.update)(state, sample, jax.random.key(1))
    obs = np.asarray(sample.transition.obs)
    action = np.tanh(forward(state.policy.actor, obs))
    q = forward(after.critics[0], np.concatenate([obs, action], axis=1))
    np.testing.assert_allclose(info.metrics["actor_loss"], -q.mean(), rtol=1e-4)


def test_policy_delay_remains_a_cond_under_vmap(sample):
    """With an unbatched clock, vmapped seeds skip the actor's update instead of masking it."""
    agent, state = make()
    axes = jax.tree.map(lambda _: 0, state)._replace(updates=None)
    seeds = jax.tree.map(lambda x: np.stack([x, x]), state)._replace(updates=state.updates)
    many = jax.vmap(agent.update, in_axes=(axes, None, None))
    equations = jax.make_jaxpr(many)(seeds, sample, jax.random.key(0)).eqns
    assert "cond" in {equation.primitive.name for equation in equations}


@pytest.mark.parametrize(
    "options, parts",
    [
        ({"hidden": (256, 0)}, ("hidden",)),
        ({"actor_learning_rate": -1.0}, ("actor_learning_rate", "-1.0")),
        ({"tau": 0.0}, ("tau", "0.0")),
        ({"target_noise": -0.1}, ("target_noise", "-0.1")),
        ({"policy_delay": 0}, ("policy_delay", "0")),
        ({"bc_alpha": -1.0}, ("bc_alpha", "-1.0")),
    ],
)
def test_bad_options_are_refused(options, parts):
    with refused(*parts):
        TD3Config(**options)


def test_cloning_loss_worked_by_hand():
    """Mean |Q| is 2, so lambda is 1.25; mean squared distances are .25 and .5."""
    q, stored = jnp.float32([1, -3]), jnp.float32([[0.5, 0], [0, 0]])
    action = jnp.float32([[0, 0.5], [1, 0]])
    found = cloning_loss(q, action, stored, 2.5)
    np.testing.assert_allclose(found, [-1.25 + 0.25, 3.75 + 0.5], rtol=1e-6)
    slope = jax.grad(lambda q: cloning_loss(q, action, stored, 2.5).sum())(q)
    np.testing.assert_allclose(slope, [-1.25, -1.25], rtol=1e-6)  # lambda has no gradient


def test_actor_loss_adds_behaviour_cloning_to_the_critic(sample):
    agent, state = make(policy_delay=1, bc_alpha=2.5)
    after, info = jax.jit(agent.update)(state, sample, jax.random.key(1))
    t = sample.transition
    action = np.tanh(forward(state.policy.actor, np.asarray(t.obs)))
    q = forward(after.critics[0], np.concatenate([t.obs, action], axis=1))[:, 0]
    expected = -2.5 * q.mean() / np.abs(q).mean() + ((action - t.action) ** 2).mean()
    np.testing.assert_allclose(info.metrics["actor_loss"], expected, rtol=1e-4)
