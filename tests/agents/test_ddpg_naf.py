"""DDPG and NAF: noise, behaviour statistics, and gradients under ReF-ER."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents import advantages, ddpg, naf
from agents.ddpg import DDPGConfig
from agents.exploration import Extras
from agents.gaussian import Behaviour
from agents.naf import NAFConfig, Outputs
from agents.networks import Actor, Critic
from agents.types import Continuous
from jaxreplay.methods.refer import Aux, ReFERConfig, objective
from jaxreplay.types import Sample, Transition
from tests.refusals import refused

OBS, ROWS = 3, 6
KEY = jax.random.key(0)


def sample_of(extras, beta=0.3, c_max=5.0, action=None):
    obs = np.random.default_rng(0).normal(size=(2, ROWS, OBS)).astype(np.float32)
    action = np.full((ROWS, 2), 0.1, np.float32) if action is None else action
    rows, ones = np.arange(ROWS, dtype=np.int32), np.ones(ROWS, np.float32)
    flags = np.zeros(ROWS, bool)
    t = Transition(obs[0], action, np.float32(rows), 0.9 * ones, obs[1], flags, flags, extras)
    return Sample(rows, t, ones, rows, Aux(np.float32(beta), np.log(np.float32(c_max)), ()))


@functools.cache
def make(which, refer=True, **options):
    """Return an agent with compiled functions, and its initial state."""
    module, config = {"ddpg": (ddpg, DDPGConfig), "naf": (naf, NAFConfig)}[which]
    shape = objective(ReFERConfig()) if refer else None
    agent = getattr(module, which)(config(hidden=(8,), **options), Continuous(2), shape)
    names = ("init", "act", "greedy", "update")
    agent = agent._replace(**{name: jax.jit(getattr(agent, name)) for name in names})
    return agent, agent.init(KEY, np.zeros(OBS, np.float32), np.zeros(2, np.float32))


def behaviour(mean):
    return Extras(Behaviour(*(np.full((ROWS, 2), x, np.float32) for x in (mean, 0.04))))


def test_mean_is_bounded_by_default():
    obs = 100 * np.random.default_rng(0).normal(size=(50, OBS)).astype(np.float32)
    agent, state = make("ddpg")
    assert float(np.abs(agent.greedy(state, obs)).max()) < 1
    params = jax.tree.map(lambda x: 50 * np.asarray(x), state.networks)
    agent, state = make("ddpg", bounded=False)
    assert float(np.abs(agent.greedy(state._replace(networks=params), obs)).max()) > 1


@pytest.mark.parametrize("which", ["ddpg", "naf"])
def test_behaviours_are_stored_only_on_request(which):
    obs = np.zeros((4, OBS), np.float32)
    agent, state = make(which, refer=False)
    assert agent.act(state, obs, KEY)[1] is None
    agent, state = make(which)
    _, extras = agent.act(state, obs, KEY)
    np.testing.assert_allclose(extras.behaviour.variance, 0.04)
    np.testing.assert_array_equal(extras.behaviour.mean, agent.greedy(state, obs))


@pytest.mark.parametrize("which", ["ddpg", "naf"])
def test_exploration_noise_is_an_ornstein_uhlenbeck_process(which):
    """Each step keeps 0.85 of the previous noise; the std tends to 0.2 / sqrt(1 - 0.85^2)."""
    agent, state = make(which, refer=False, noise="ou")
    obs = np.zeros((500, OBS), np.float32)
    previous = Extras(None, np.zeros((500, 2), np.float32))

    def step(previous, key):
        action, extras = agent.act(state, obs, key, previous)
        return extras, extras.noise

    keys = jax.random.split(KEY, 60)
    _, noise = jax.jit(lambda: jax.lax.scan(step, previous, keys))()
    late = np.asarray(noise)[30:]
    assert late.std() == pytest.approx(0.2 * 0.9866 / np.sqrt(1 - 0.85**2), rel=0.03)
    correlation = (late[1:] * late[:-1]).mean() / (late**2).mean()
    assert correlation == pytest.approx(0.85, abs=0.02)
    first, _ = agent.act(state, obs, KEY, previous)
    assert np.subtract(first, agent.greedy(state, obs)).std() == pytest.approx(0.197, rel=0.1)


@pytest.mark.parametrize("which", ["ddpg", "naf"])
def test_correlated_noise_is_refused_where_densities_are_compared(which):
    with refused("noise", "ou", "gaussian"):
        make(which, noise="ou")
    make(which, refer=False, noise="ou")


def changed(before, after):
    """Return the largest absolute change of every leaf, by path."""
    leaves = zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True)
    return {jax.tree_util.keystr(path): np.abs(np.subtract(x, y)).max() for (path, x), y in leaves}


def test_ddpgs_actor_ascends_the_updated_critic():
    agent, state = make("ddpg", refer=False, critic_learning_rate=1.0)
    sample = sample_of(())
    after, _ = agent.update(state, sample, KEY)  # large enough to change the actor's gradient
    obs, actor = sample.transition.obs, Actor(2, (8,), "softsign")

    @jax.jit
    @jax.grad
    def gradient(params):
        action = jnp.tanh(actor.apply(params, obs))
        return -Critic((8,), "softsign").apply(after.networks.critic, obs, action).mean()

    mu = optax.tree.get(after.actor_opt_state, "mu")
    jax.tree.map(
        lambda g, mu: np.testing.assert_allclose(mu, 0.1 * np.asarray(g), rtol=1e-3, atol=1e-6),
        gradient(state.networks.actor), mu,
    )  # fmt: skip


def test_far_steps_do_not_change_ddpgs_critic():
    agent, state = make("ddpg", critic_weight_decay=0.0)
    after, info = agent.update(state, sample_of(behaviour(3.0)), KEY)
    assert (np.abs(info.feedback["log_ratio"]) > np.log(5)).all()
    assert max(changed(state.networks.critic, after.networks.critic).values()) == 0
    assert max(changed(state.networks.actor, after.networks.actor).values()) > 0  # from the penalty
    still, _ = agent.update(state, sample_of(behaviour(3.0), beta=1.0), KEY)
    assert max(changed(state.networks.actor, still.networks.actor).values()) == 0


def test_far_steps_change_only_nafs_mean():
    agent, state = make("naf")
    after, _ = agent.update(state, sample_of(behaviour(3.0)), KEY)
    last = lambda s: s.params["params"]["MLP_0"]["Dense_1"]["kernel"]
    moved = np.abs(np.subtract(last(after), last(state))).max(axis=0)
    assert (moved[:2] > 0).all() and (moved[2:] == 0).all()


def test_beta_does_not_scale_the_critics():
    for which in ("ddpg", "naf"):
        agent, state = make(which, **({"critic_weight_decay": 0.0} if which == "ddpg" else {}))
        mean = np.asarray(agent.greedy(state, sample_of(()).transition.obs))
        near = behaviour(mean)
        action = mean + 0.05
        moments, means = [], []
        for beta in (0.1, 0.9):
            after, _ = agent.update(state, sample_of(near, beta, action=action), KEY)
            if which == "ddpg":
                moments.append(optax.tree.get(after.critic_opt_state, "mu"))
            else:
                mu = optax.tree.get(after.opt_state, "mu")["params"]["MLP_0"]["Dense_1"]["kernel"]
                mu = np.asarray(mu)
                moments.append(mu[:, 2:])
                means.append(mu[:, :2])
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), *moments)
        if which == "naf":  # only the actor's loss trains its mean, and the KL is 0 here
            assert float(np.abs(means[0]).max()) > 0
            np.testing.assert_allclose(means[1], 9 * means[0], rtol=1e-3, atol=1e-6)


def test_naf_without_refer_minimises_the_squared_error():
    agent, state = make("naf", refer=False)
    sample = sample_of(())
    t = sample.transition

    def loss(params):
        outputs = state_outputs(agent, params, t.obs)
        target = t.reward + t.discount * state_outputs(agent, state.target, t.next_obs).value
        return (
            0.5 * jnp.square(jax.lax.stop_gradient(target) - naf.q_value(outputs, t.action)).mean()
        )

    grads = jax.jit(jax.grad(loss))(state.params)
    after, info = agent.update(state, sample, KEY)
    jax.tree.map(
        lambda g, mu: np.testing.assert_allclose(mu, 0.1 * np.asarray(g), rtol=1e-3, atol=1e-6),
        grads, optax.tree.get(after.opt_state, "mu"),
    )  # fmt: skip


def state_outputs(agent, params, obs):
    """Return NAF's outputs from its raw network outputs."""
    size = 2
    out = Actor(size + 1 + 3, (8,), "softsign").apply(params, obs)
    factor = jax.vmap(lambda x: advantages.lower_triangular(x, size))(out[:, 3:])
    return Outputs(out[:, :2], out[:, 2], factor)


def test_naf_values_worked_by_hand():
    factor = np.float32([[[0.9, 0.0], [-0.4, 0.6]]])
    outputs = Outputs(np.float32([[0.1, -0.2]]), np.float32([2.0]), factor)
    q = jax.jit(naf.q_value)(outputs, np.float32([[0.4, -0.5]]))
    np.testing.assert_allclose(q, 2 - 0.09225, rtol=1e-6)


def test_weight_decay_adds_to_the_gradient():
    mu = []
    for decay in (0.0, 0.5):
        agent, state = make("ddpg", refer=False, critic_weight_decay=decay)
        after, _ = agent.update(state, sample_of(()), KEY)
        mu.append(optax.tree.get(after.critic_opt_state, "mu"))
    jax.tree.map(
        lambda x, y, w: np.testing.assert_allclose(y - x, 0.05 * w, rtol=1e-3, atol=1e-5),
        *jax.tree.map(np.asarray, (*mu, state.networks.critic)),
    )  # fmt: skip


def test_learning_rates_anneal():
    from agents.common import inverse_time_decay

    rates = [inverse_time_decay(1e-4, 5e-7)(k) for k in (0, 10**5, 10**6, 2 * 10**6, 10**7)]
    expected = [1e-4, 9.5238095238e-5, 6.6666666667e-5, 5e-5, 1.6666666667e-5]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("config", "option", "value"),
    [
        (DDPGConfig, "noise", "pink"), (DDPGConfig, "noise_std", 0.0), (DDPGConfig, "tau", 0.0),
        (DDPGConfig, "critic_weight_decay", -1.0), (DDPGConfig, "actor_learning_rate", 0.0),
        (DDPGConfig, "hidden", ()), (DDPGConfig, "activation", "sine"),
        (NAFConfig, "noise", "pink"), (NAFConfig, "learning_rate", -1.0), (NAFConfig, "tau", 2.0),
    ],
)  # fmt: skip
def test_bad_options_are_refused(config, option, value):
    with refused(option):
        config(**{option: value})
