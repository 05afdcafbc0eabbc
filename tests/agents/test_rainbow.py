"""Rainbow: updates of tables by hand for each head, dueling, noise, exploration, learning."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from agents.heads import ImplicitQuantiles, midpoints, project
from agents.networks import QNetwork
from agents.noisy import draw_noises, noisy, with_noise
from agents.rainbow import RainbowConfig, rainbow
from agents.types import Discrete
from experiments import environments
from experiments.training.config import LoopConfig
from experiments.training.loop import make_train
from jaxreplay import Replay
from jaxreplay.contrib import laber
from jaxreplay.methods import uniform
from tests.agents import tools
from tests.refusals import refused

SUPPORT = np.float32([-2, -1, 0, 1, 2])
PLAIN = {"noisy": False, "dueling": False, "hidden": (2,)}
C51 = {"atoms": 5, "v_min": -2.0, "v_max": 2.0}
# Adam with a huge epsilon is gradient descent with step size 1 / epsilon.
DESCENT = {"learning_rate": 1.0, "adam_eps": 1e6, "max_grad_norm": 0.0}
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
# Quantiles of two actions in each state: [state, action, quantile].
QUANTILES = np.float32([[[0, 1, 2], [-1, 0, 4]], [[2, 2, 2], [0, 1, 6]]])
TARGET_QUANTILES = np.float32([[[0, 0, 0], [0, 0, 0]], [[1, 3, 5], [0, 0, 1]]])
_project = jax.jit(project)


def one_step(action, reward, discount, weight=1.0):
    """Return a transition from the first state to the second."""
    return tools.sample_of(
        tools.STATES[:1],
        np.int32([action]),
        [reward],
        [discount],
        tools.STATES[1:],
        weights=[weight],
    )


@functools.cache
def tabular(head="c51", **options):
    """Return an agent for two states, and a state with the outputs above."""
    config = RainbowConfig(**PLAIN, **C51, head=head, quantiles=3, **DESCENT | options)
    agent = tools.compiled(rainbow(config, Discrete(2)))
    given = (np.log(ONLINE), np.log(TARGET)) if head == "c51" else (QUANTILES, TARGET_QUANTILES)
    params, target_params = map(tools.table, given)
    state = tools.start(agent, one_step(0, 0, 0))
    return agent, state._replace(params=params, target_params=target_params)


def gradient(after, state):
    """Return the gradient by the outputs of both actions `[2, m]`."""
    change = tools.last_layer(after.params) - tools.last_layer(state.params)
    return -1e6 * change.reshape(2, -1)


@pytest.mark.parametrize(
    ("double", "discount", "moved"),
    [
        (True, 1.0, [0, 0.5, 0.2, 0.1, 0.2]),  # action 0, best online; the last two clip to 2
        (False, 1.0, [0, 0.1, 0.1, 0.1, 0.7]),  # action 1, best by the target network
        (True, 0.0, [0, 0, 0, 1, 0]),
    ],
)
def test_update_of_probabilities_worked_by_hand(double, discount, moved):
    agent, state = tabular(double=double)
    after, info = agent.update(state, one_step(1, 1, discount, weight=0.5), tools.KEY)
    entropy = -np.dot(moved, np.log(ONLINE[0, 1]))
    np.testing.assert_allclose(info.feedback["td_error"], [entropy], rtol=1e-5)
    np.testing.assert_allclose(info.feedback["q_value"], [1.0], rtol=1e-5)
    np.testing.assert_allclose(info.feedback["target"], [np.dot(moved, SUPPORT)], atol=1e-6)
    np.testing.assert_allclose(info.metrics["loss"], 0.5 * entropy, rtol=1e-5)
    np.testing.assert_allclose(info.metrics["mass_at_ends"], moved[0] + moved[-1], rtol=1e-5)
    # It is softmax minus target for the logits of the taken action, and 0 for the others.
    expected = np.stack([np.zeros(5), 0.5 * (ONLINE[0, 1] - moved)])
    np.testing.assert_allclose(gradient(after, state), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("double", "discount", "moved"),
    [
        (True, 0.5, [1, 1, 1.5]),  # action 1, best by the online network
        (False, 0.5, [1.5, 2.5, 3.5]),  # action 0, best by the target network
        (True, 0.0, [1, 1, 1]),
    ],
)
def test_update_of_quantiles_worked_by_hand(double, discount, moved):
    agent, state = tabular("quantile", double=double)
    after, info = agent.update(state, one_step(1, 1, discount, weight=0.5), tools.KEY)
    fractions, quantiles = [1 / 6, 3 / 6, 5 / 6], QUANTILES[0, 1]
    expected = tools.quantile_loss(moved, quantiles, fractions)
    np.testing.assert_allclose(info.feedback["td_error"], [expected], rtol=1e-5)
    np.testing.assert_allclose(info.feedback["q_value"], [1.0], rtol=1e-6)
    np.testing.assert_allclose(info.feedback["target"], [np.mean(moved)], rtol=1e-6)
    np.testing.assert_allclose(info.metrics["loss"], 0.5 * expected, rtol=1e-5)
    slope = [
        np.mean([-abs(f - (aim < q)) * np.clip(aim - q, -1, 1) for aim in moved])
        for q, f in zip(quantiles, fractions, strict=True)
    ]
    expected = np.stack([np.zeros(3), 0.5 * np.array(slope)])
    np.testing.assert_allclose(gradient(after, state), expected, atol=1e-5)


def test_priorities_may_be_the_kl_divergence():
    """It is the cross-entropy minus the target's entropy; the gradient is the same."""
    sample = tools.sample_of(
        tools.STATES, np.int32([0, 1]), [1.0, -1.0], [0.5, 0.0], tools.STATES[::-1]
    )
    found = {}
    for priority in ("cross_entropy", "kl"):
        agent, state = tabular(**({"double": True} if priority != "kl" else {"priority": "kl"}))
        found[priority] = agent.update(state, sample, tools.KEY)
        tools.assert_same(
            agent.feedback(state, sample.transition, tools.KEY), found[priority][1].feedback
        )
    (state, plain), (same_state, kl) = found.values()
    tools.assert_same(state, same_state)
    assert kl.metrics["loss"] == plain.metrics["loss"]
    # After the first transition action 0 is best (target .5 .2 .1 .1 .1). The second terminates
    # with reward -1, which concentrates the target on one atom.
    first = np.asarray(_project(TARGET[1, 0], np.float32(1), np.float32(0.5), SUPPORT))
    expected = [scipy.stats.entropy(first, ONLINE[0, 0]), -np.log(ONLINE[1, 1, 1])]
    np.testing.assert_allclose(kl.feedback["td_error"], expected, rtol=1e-4)
    np.testing.assert_allclose(plain.feedback["td_error"][1], expected[1], rtol=1e-5)
    assert plain.feedback["td_error"][0] > kl.feedback["td_error"][0] + 0.5


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


@pytest.mark.parametrize(
    ("hidden", "double"), [((5, 6), True), pytest.param((6,), False, marks=pytest.mark.slow)]
)
def test_feedback_of_implicit_quantiles_agrees_with_numpy(hidden, double):
    config = RainbowConfig(
        head="implicit", quantiles=3, averaged=7, embedding=4, kappa=0.5,
        **PLAIN | {"hidden": hidden}, double=double,
    )  # fmt: skip
    agent, sample = tools.compiled(rainbow(config, Discrete(3))), tools.batch(4, 2, 3)
    state, other = (tools.start(agent, sample, jax.random.key(seed)) for seed in range(2))
    state, t = state._replace(target_params=other.params), sample.transition
    _, info = agent.update(state, sample, tools.KEY)

    forward = functools.partial(implicit_forward, hidden=len(hidden))
    grid = np.broadcast_to((np.arange(7) + 0.5) / 7, (4, 7))
    chooser = state.params if double else state.target_params
    best = forward(chooser, t.next_obs, grid).mean(-1).argmax(-1)
    rows = np.arange(4)
    predicted, aimed = map(np.asarray, ImplicitQuantiles(drawn=3).draw(tools.KEY, 4))
    assert tools.differs(predicted, aimed)
    moved = forward(state.target_params, t.next_obs, aimed)[rows, best]
    moved = t.reward[:, None] + t.discount[:, None] * moved
    taken = forward(state.params, t.obs, predicted)[rows, t.action]
    losses = [tools.quantile_loss(*each, 0.5) for each in zip(moved, taken, predicted, strict=True)]
    np.testing.assert_allclose(info.feedback["td_error"], losses, rtol=1e-4)
    np.testing.assert_allclose(info.feedback["q_value"], taken.mean(-1), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(info.feedback["target"], moved.mean(-1), rtol=1e-4, atol=1e-6)
    q = forward(state.params, t.obs, grid).mean(-1)
    np.testing.assert_array_equal(agent.greedy(state, t.obs), q.argmax(-1))


@pytest.mark.parametrize("head", [pytest.param("quantile", marks=pytest.mark.slow), "implicit"])
def test_chosen_candidates_keep_their_fractions(head):
    """Gradient norms and losses of the chosen rows use the same draws."""
    config = RainbowConfig(head=head, quantiles=4, hidden=(4,), averaged=4, embedding=4)
    method = laber.method(laber.LaBERConfig(candidates=2))
    sample = tools.batch(8, 2, 2)
    plain, choosing = (
        tools.compiled(rainbow(config, Discrete(2), o)) for o in (None, method.objective)
    )
    state = tools.start(plain, sample)
    expected = plain.feedback(state, sample.transition, tools.KEY)
    after, info = choosing.update(state, sample, tools.KEY)
    for name, values in expected.items():  # for all candidates
        np.testing.assert_allclose(info.feedback[name], values, rtol=1e-4, atol=1e-6)
    assert np.isfinite(info.metrics["loss"]) and info.metrics["loss"] > 0
    leaves = zip(jax.tree.leaves(after.params), jax.tree.leaves(state.params), strict=True)
    assert all(tools.differs(x, y) for x, y in leaves)


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


@functools.cache
def agent_with(noise):
    """Return an agent with or without noisy layers, and its initial state."""
    config = RainbowConfig(noisy=noise, hidden=(8,), **C51, sigma=3.0, target_every=2)
    agent = tools.compiled(rainbow(config, Discrete(4)))
    return agent, tools.start(agent, tools.batch(6, 4, 4))


@pytest.mark.parametrize("noise", [False, True])
def test_noise_decides_about_exploration(noise):
    """With noisy layers, updates depend on the key, and epsilon is not used."""
    (agent, state), sample = agent_with(noise), tools.batch(6, 4, 4)
    once, info = agent.update(state, sample, tools.KEY)
    twice, _ = agent.update(once, sample, jax.random.key(3))
    assert ("epsilon" in info.metrics) == (not noise)
    # The target network is copied at every second update.
    tools.assert_same(once.target_params, state.target_params)
    tools.assert_same(twice.target_params, twice.params)
    told = agent.feedback(state, sample.transition, tools.KEY)
    tools.assert_close(told, info.feedback)
    other = agent.feedback(state, sample.transition, jax.random.key(3))
    assert tools.differs(other["td_error"], told["td_error"]) == noise


@functools.partial(jax.jit, static_argnums=1)
def noisy_outputs(params, count, key, observations):
    """Return probabilities `[B, 4, 5]` for each noise of a key and its observations."""
    net, noises = QNetwork(4, "auto", (8,), True, 5, noisy(3.0)), draw_noises(params, key, count)
    return [
        jax.nn.softmax(net.apply(with_noise(params, jax.tree.map(lambda x: x[i], noises)), obs))
        for i, obs in enumerate(observations)
    ]


def test_acting_draws_noise_for_every_step_and_environment():
    (agent, state), obs, key = agent_with(True), np.ones((100, 4), np.float32), jax.random.key(5)
    action, extras = agent.act(state, obs, key)
    assert extras is None and action.dtype == jnp.int32
    assert len(set(action.tolist())) > 1  # for equal observations
    assert not np.array_equal(agent.act(state, obs, jax.random.key(1))[0], action)
    # For a single environment, the key gives the noise directly.
    (probability,) = noisy_outputs(state.params, 1, key, [obs[:1]])
    assert agent.act(state, obs[:1], key)[0] == (probability @ SUPPORT).argmax()


def test_greedy_actions_use_the_mean_weights():
    (agent, state), obs = agent_with(True), tools.batch(50, 4, 4).transition.obs
    net = QNetwork(4, "auto", (8,), True, 5, noisy(3.0))
    q = jax.nn.softmax(jax.jit(net.apply)(state.params, obs)) @ SUPPORT
    np.testing.assert_array_equal(agent.greedy(state, obs), q.argmax(axis=-1))


def test_updates_draw_three_independent_noises():
    """The expected cross-entropy applies the three networks with separate noise."""
    (agent, state), t, key = agent_with(True), tools.batch(6, 4, 4).transition, jax.random.key(2)
    outputs = noisy_outputs(state.params, 3, key, [t.obs, t.next_obs, t.next_obs])
    online, select, target = map(np.asarray, outputs)
    best = (select @ SUPPORT).argmax(axis=-1)
    expected = [
        -_project(target[i, best[i]], t.reward[i], t.discount[i], SUPPORT)
        @ np.log(online[i, t.action[i]])
        for i in range(6)
    ]
    found = agent.feedback(state, t, key)["td_error"]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_epsilon_without_noise_decreases_linearly_with_updates():
    agent, state = tabular(epsilon_start=0.8, epsilon_end=0.2, epsilon_updates=100)
    obs = np.tile(tools.STATES[0], (20_000, 1))
    assert (np.asarray(agent.greedy(state, obs)) == 1).all()  # action 0 is half of the random ones
    for updates, epsilon in [(0, 0.8), (50, 0.5), (1000, 0.2)]:
        clock = state._replace(updates=np.int32(updates))
        action, _ = agent.act(clock, obs, jax.random.key(updates))
        np.testing.assert_allclose((np.asarray(action) == 0).mean(), epsilon / 2, atol=0.015)


def learned(config, sample, updates):
    """Return the state after updates on one batch, and the agent."""
    agent = rainbow(config, Discrete(2))
    run = tools.compiled(agent)

    def body(state, key):
        return agent.update(state, sample, key)[0], None

    keys = jax.random.split(jax.random.key(1), updates)
    state = jax.jit(lambda s: jax.lax.scan(body, s, keys)[0])(tools.start(run, sample))
    return state, run


@pytest.mark.slow  # updates by hand and in NumPy cover its parts
@pytest.mark.parametrize("noisy", [False, True])
def test_values_of_a_chain_are_learned(noisy):
    """State 0 leads to state 1 without reward, which terminates with reward 1: Q = gamma and 1."""
    config = RainbowConfig(
        hidden=(16,), learning_rate=1e-2, target_every=10, noisy=noisy, sigma=0.1, v_min=-2.0,
        v_max=2.0, atoms=21, adam_eps=1e-8,
    )  # fmt: skip
    obs, action = np.repeat(tools.STATES, 2, axis=0), np.int32([0, 1, 0, 1])  # all pairs
    sample = tools.sample_of(obs, action, [0, 0, 1, 1], [0.9, 0.9, 0, 0], obs[::-1])
    state, agent = learned(config, sample, 500)
    q = agent.feedback(state, sample.transition, jax.random.key(2))["q_value"]
    np.testing.assert_allclose(q, [0.9, 0.9, 1, 1], atol=0.1 if noisy else 0.03)


@pytest.mark.parametrize("head", [pytest.param("quantile", marks=pytest.mark.slow), "implicit"])
def test_distribution_of_a_coin_is_learned(head):
    """Rewards of 0 and 1 are equally likely after action 0, and always 0.4 after action 1."""
    config = RainbowConfig(
        head=head, noisy=False, hidden=(16,), quantiles=8, kappa=0.05, learning_rate=1e-2,
    )  # fmt: skip
    obs = np.ones((4, 2), np.float32)
    sample = tools.sample_of(obs, np.int32([0, 0, 1, 1]), [0, 1, 0.4, 0.4], np.zeros(4), obs)
    state, agent = learned(config, sample, 400)
    fractions = None if head == "quantile" else jnp.broadcast_to(midpoints(8), (4, 8))
    found = jax.jit(config.make_network(2).apply)(state.params, obs, fractions)[0]
    np.testing.assert_allclose(found[0, [0, 1, 6, 7]], [0, 0, 1, 1], atol=0.1)
    np.testing.assert_allclose(found[1], 0.4, atol=0.1)
    assert agent.greedy(state, obs)[0] == 0


def test_incompatible_options_are_refused():
    for head in ("quantile", "implicit"):
        with refused("priority", "kl", "head", head):
            RainbowConfig(head=head, priority="kl")
    with refused("v_min", "v_max", "1.0"):
        RainbowConfig(v_min=1.0, v_max=1.0)


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
