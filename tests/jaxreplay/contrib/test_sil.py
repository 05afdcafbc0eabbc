"""SIL: returns, priorities and losses by hand, and a plain reference over episodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents import common
from agents.critics import Critics, fit
from experiments.runs import registry
from jaxreplay import Replay, objectives, sum_tree
from jaxreplay.contrib import discor, laber, sil
from jaxreplay.contrib.sil import SelfImitation, SILConfig
from jaxreplay.methods import lap, latest, per, uniform
from jaxreplay.methods.proportional import ImportanceWeights
from jaxreplay.mixing import mix
from jaxreplay.types import Sample, Transition
from tests.refusals import refused

GAMMA = 0.9
ADVANTAGE = np.array([2.0, -0.5, 0.6, 0.5])  # R = 3, .5, 2, -1 and V = 1, 1, 1.4, -1.5
EXAMPLE = Transition(
    obs=np.zeros(1, np.float32), action=np.zeros((), np.int32), reward=np.zeros((), np.float32),
    discount=np.zeros((), np.float32), next_obs=np.zeros(1, np.float32), last=np.zeros((), bool),
)  # fmt: skip


def test_priorities_by_hand():
    leaf = SelfImitation().leaf(jnp.float32(ADVANTAGE))
    np.testing.assert_allclose(leaf, [1, 2.5118864e-4, 0.7360219228, 0.6597539554], rtol=1e-5)
    weights = ImportanceWeights(lambda updates: 0.1, "buffer")(
        leaf / leaf.sum(), jnp.int32(4), jnp.int32(0), leaf.min() / leaf.sum()
    )
    np.testing.assert_allclose(weights, [0.4365158, 1, 0.4501020, 0.4550528], rtol=1e-5)
    unbounded = SelfImitation(config=SILConfig(clip=None)).leaf(jnp.float32(ADVANTAGE))
    np.testing.assert_allclose(unbounded[0], 2**0.6, rtol=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 100.0])
def test_known_returns_have_positive_priorities(alpha):
    assert (
        SelfImitation(config=SILConfig(alpha=alpha)).leaf(jnp.float32([-5, 0, 1e-30])) > 0
    ).all()


def imitation_gradient(advantage, config=SILConfig()):
    """Return d loss / dQ of the imitated rows, the last of a batch, times their number."""
    count = len(advantage)
    aux = sil.Aux(jnp.zeros(count), jnp.ones(count, bool), None)
    rows = jnp.arange(2 * count)
    sample = Sample(rows, Transition(), jnp.ones(2 * count), rows, aux)
    objective = sil.method(config).objective

    def loss(q):
        target = jnp.concatenate([jnp.zeros(count), jnp.float32(advantage)])
        return objective.critic(objective.losses(target - q), sample, None)

    grads = jax.grad(loss)(jnp.zeros((1, 2 * count)))[0]
    np.testing.assert_array_equal(grads[:count], jnp.zeros(count))
    return np.asarray(grads[count:]) * count


def test_gradients_by_hand():
    np.testing.assert_allclose(imitation_gradient(ADVANTAGE), [-1, 0, -0.6, -0.5], rtol=1e-6)
    found = imitation_gradient(ADVANTAGE, SILConfig(clip=None, coefficient=2.0))
    np.testing.assert_allclose(found, [-4, 0, -1.2, -1], rtol=1e-6)
    assert not imitation_gradient([-1.0, 0.0, -1e-3, -20.0]).any()


def log_of(lengths, truncated, num_envs=2, seed=0):
    """Return rewards, discounts and ends `[T, E]` of episodes with lengths in random order."""
    rng = np.random.default_rng(seed)
    steps = sum(lengths)
    rewards = rng.integers(-4, 5, (steps, num_envs)).astype(np.float32)
    last, cut = np.zeros((2, steps, num_envs), bool)
    for env in range(num_envs):
        ends = np.cumsum(rng.permutation(lengths)) - 1
        last[ends, env] = True
        cut[ends, env] = rng.random(len(ends)) < truncated
    return rewards, np.where(last & ~cut, 0.0, GAMMA).astype(np.float32), last


def expected_returns(log, time, truncated):
    """Return returns `[time, E]` of the steps of finished episodes, and NaN for other steps."""
    rewards, discounts, last = (x[:time] for x in log)
    found, later = np.full(rewards.shape, np.nan), np.full(rewards.shape[1], np.nan)
    for step in reversed(range(time)):
        cut = last[step] & (discounts[step] > 0) & ~truncated
        start = np.where(cut, np.nan, 0.0)
        later = np.where(last[step], start, later)
        later = rewards[step] + np.where(last[step], later, GAMMA * later)
        found[step] = later
    return found


def compiled(replay):
    @jax.jit
    def add(state, reward, discount, last):
        zeros = jnp.zeros((replay.num_envs, 1))
        action = jnp.zeros(replay.num_envs, jnp.int32)
        return replay.add(state, Transition(zeros, action, reward, discount, zeros, None, last))

    return add


def known_returns(state, time, num_envs):
    """Return the stored returns `[steps, E]`, oldest first, and NaN where they are not known."""
    leaves, returns = sum_tree.leaves(state.priorities.tree), np.asarray(state.returns.values)
    values = np.where(np.asarray(leaves) > 0, returns, np.nan).reshape(-1, num_envs)
    steps = len(values)
    return np.roll(values, -(time % steps), axis=0) if time > steps else values[:time]


@pytest.mark.parametrize(
    ("lengths", "truncated"),
    [([3, 1, 7, 2, 5, 4], False), ([1, 1, 1, 12, 1, 30, 2, 1], True)],
)
def test_returns_of_finished_episodes_equal_those_of_a_loop(lengths, truncated):
    """Known returns are right at any time, and all become known some steps after the end."""
    log = log_of(lengths, truncated=0.4)
    capacity = 40
    replay = Replay(
        SelfImitation(config=SILConfig(truncated=truncated)),
        capacity=capacity,
        batch_size=4,
        num_envs=2,
    )
    state, add = replay.init(jax.random.key(0), EXAMPLE), compiled(replay)
    for time in range(1, len(log[0]) + 1):
        state = add(state, *(x[time - 1] for x in log))
        found = known_returns(state.sampler, time, 2)
        expected = expected_returns(log, time, truncated)[-len(found) :]
        known = ~np.isnan(found)
        np.testing.assert_allclose(found[known], expected[known], rtol=1e-5, atol=1e-5)
    # Some steps after the last end, all returns are known.
    for _ in range(max(lengths) // 2 + 1):
        state = add(state, jnp.ones(2), jnp.full(2, GAMMA), jnp.zeros(2, bool))
        time += 1
    expected = expected_returns(log, len(log[0]), truncated)
    found = known_returns(state.sampler, time, 2)[: len(log[0]) - time]
    expected = expected[-len(found) :]
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))


def test_returns_become_known_backwards_from_the_end():
    replay = Replay(SelfImitation(), capacity=20, batch_size=2)
    state, add = replay.init(jax.random.key(0), EXAMPLE), compiled(replay)
    counts = []
    for time in range(12):
        last = jnp.array([time == 5])
        state = add(state, jnp.ones(1), jnp.where(last, 0.0, GAMMA), last)
        counts.append(int((np.asarray(sum_tree.leaves(state.sampler.priorities.tree)) > 0).sum()))
    assert counts == [0, 0, 0, 0, 0, 0, 2, 4, 6, 6, 6, 6]


def test_end_episodes_truncates_episodes():
    for truncated, count in ((False, 0), (True, 3)):
        sampler = SelfImitation(config=SILConfig(truncated=truncated))
        replay = Replay(sampler, capacity=20, batch_size=2, num_envs=2)
        state, add = replay.init(jax.random.key(0), EXAMPLE), compiled(replay)
        state = replay.end_episodes(state)
        for time in range(3):
            last = jnp.array([False, time == 2])
            state = add(state, jnp.ones(2), jnp.where(last, 0.0, GAMMA), last)
        state = replay.end_episodes(state)
        for _ in range(3):
            state = add(state, jnp.ones(2), jnp.full(2, GAMMA), jnp.zeros(2, bool))
        known = known_returns(state.sampler, 6, 2)
        assert [np.isfinite(known[:, env]).sum() for env in (0, 1)] == [count, 3]
        np.testing.assert_allclose(known[:3, 1], [2.71, 1.9, 1.0], rtol=1e-6)


def finished(sampler, episodes=3):
    """A replay with finished episodes of four rewards of 1, and a running one of rewards of 100."""
    replay = Replay(sampler, capacity=40, batch_size=8)
    state, add = replay.init(jax.random.key(0), EXAMPLE), compiled(replay)
    for time in range(4 * episodes):
        last = jnp.array([time % 4 == 3])
        state = add(state, jnp.ones(1), jnp.where(last, 0.0, GAMMA), last)
    for _ in range(3):
        state = add(state, jnp.full(1, 100.0), jnp.full(1, GAMMA), jnp.zeros(1, bool))
    return replay, state


def test_imitated_transitions_have_their_return_as_target():
    replay, state = finished(SelfImitation(config=SILConfig(share=0.25)))
    alone = Replay(uniform.sampler(), capacity=40, batch_size=6)
    batch = jax.jit(replay.sample)(state, jax.random.key(1))
    own = jax.jit(alone.sample)(finished(uniform.sampler())[1], jax.random.key(1))
    np.testing.assert_array_equal(batch.indices[:6], own.indices)
    np.testing.assert_array_equal(batch.transition.reward[:6], own.transition.reward)
    returns = np.array([3.439, 2.71, 1.9, 1.0])[np.asarray(batch.indices[6:]) % 4]
    np.testing.assert_allclose(batch.transition.reward[6:], returns, rtol=1e-6)
    np.testing.assert_array_equal(batch.transition.discount[6:], [0, 0])
    assert batch.aux.imitated.all() and (batch.indices[6:] < 12).all()


def test_feedback_on_imitated_transitions_changes_only_their_priorities():
    replay, state = finished(SelfImitation(per.sampler()))
    batch = jax.jit(replay.sample)(state, jax.random.key(1))
    batch = batch._replace(indices=jnp.array([12, 13, 14, 12, 0, 1, 2, 3]))
    batch = batch._replace(version=jnp.asarray(batch.indices) + 1)
    td = jnp.array([5.0, 6, 7, 5, *ADVANTAGE])
    after = jax.jit(replay.update)(state, batch, td_error=td).sampler
    leaves = np.asarray(sum_tree.leaves(after.priorities.tree))
    np.testing.assert_allclose(leaves[:5], [1, 2.5118864e-4, 0.7360219, 0.659754, 1], rtol=1e-5)
    before = np.asarray(sum_tree.leaves(state.sampler.inner.tree))
    inner = np.asarray(sum_tree.leaves(after.inner.tree))
    np.testing.assert_array_equal(inner[:12], before[:12])
    np.testing.assert_allclose(inner[12:15], (np.array([5, 6, 7]) + 1e-6) ** 0.6, rtol=1e-5)
    assert after.useful == 0.75


def test_no_transitions_are_imitated_before_an_episode_has_ended():
    replay, state = finished(SelfImitation(), episodes=0)
    batch = jax.jit(replay.sample)(state, jax.random.key(1))
    assert not batch.aux.imitated.any()
    np.testing.assert_array_equal(batch.transition.reward, np.full(8, 100))
    objective = sil.method().objective
    loss = objective.critic(jnp.ones(8).at[4:].set(jnp.nan), batch, None)
    assert loss == 1  # the mean over the other rows


@pytest.mark.parametrize("inner", [per.method(), lap.method()])
def test_learning_without_advantages_equals_that_of_the_inner_method(inner):
    """Gradients and actor losses equal those of the inner method on its rows."""
    replay, state = finished(SelfImitation(inner.sampler))
    batch = jax.jit(replay.sample)(state, jax.random.key(1))
    batch = batch._replace(weights=jnp.linspace(0.5, 1.0, 8))
    td = jax.random.normal(jax.random.key(2), (2, 8)).at[:, 4:].set(-1.0)
    own, _ = SILConfig().parts(8).split_sample(batch, [batch.aux.inner, None])
    losses = [
        jax.value_and_grad(
            lambda q, objective=objective, sample=sample: objective.critic(
                common.with_default_loss(objective, objectives.mse).losses(q), sample, None
            )
        )(td[:, : len(sample.indices)])
        for objective, sample in ((sil.combine(inner).objective, batch), (inner.objective, own))
    ]
    np.testing.assert_allclose(losses[0][0], losses[1][0], rtol=1e-6)
    np.testing.assert_allclose(losses[0][1][:, :4], losses[1][1], rtol=1e-6)
    assert not np.asarray(losses[0][1][:, 4:]).any()
    actor = [sil.combine(inner).objective.actor(td[0], batch, None)]
    actor.append(inner.objective.actor(td[0, :4], own, None))
    np.testing.assert_allclose(*actor, rtol=1e-6)


def test_one_update_of_linear_critics_by_hand():
    """Two rows have the squared error, and two others the lower bound."""
    rng = np.random.default_rng(0)
    features, returns = rng.normal(size=(4, 3)), np.array([0.2, -0.3, 0.7, -9.0])
    critics = [rng.normal(size=3), rng.normal(size=3)]
    aux = sil.Aux(jnp.zeros(2), jnp.ones(2, bool), None)
    weights = np.array([1.0, 1.0, 0.4, 0.8])
    row = Transition(jnp.float32(features))
    sample = Sample(jnp.arange(4), row, jnp.float32(weights), jnp.arange(4), aux)
    made = tuple(jnp.float32(w) for w in critics)
    objective = sil.method(SILConfig(coefficient=3.0)).objective
    of_linear = Critics(lambda w, t: t.obs @ w, made, made)
    target = jnp.float32(returns)

    def loss(params, sample, target):
        q = of_linear.values(params, sample.transition)
        return objective.critic(objective.losses(target - q), sample, None), q

    grads, _, _ = fit(loss, of_linear, sample, target, objective, jax.random.key(0))
    for found, w in zip(grads, critics, strict=True):
        td = returns - features @ w
        slope = np.array([td[0], td[1], *(3.0 * weights[2:] * np.clip(td[2:], 0, 1))])
        np.testing.assert_allclose(found, -(slope[:, None] * features).sum(0) / 2, rtol=1e-4)


AGENTS = [name for name in registry.AGENTS if registry.feeds(name, "sil")]


def test_supported_agents_and_default_losses():
    assert AGENTS == [
        "dqn", "ensemble_qr", "discrete_sac", "td3", "td7", "sac", "iql", "ddpg", "naf",
    ]  # fmt: skip
    assert registry.replay_options("dqn", "sil").loss == "huber"
    assert registry.replay_options("td3", "sil").loss == "mse"


@pytest.mark.parametrize(("options", "name"), [
    ({"share": 0.0}, "share"), ({"share": 1.0}, "share"), ({"alpha": -1.0}, "alpha"),
    ({"beta": 1.5}, "beta"), ({"clip": 0.0}, "clip"), ({"truncated": 1}, "truncated"),
])  # fmt: skip
def test_options_out_of_range_are_refused(options, name):
    with refused(name):
        SILConfig(**options)


def test_unsupported_compositions_are_refused():
    with refused("inner", "candidates"):
        sil.combine(laber.method())
    with refused("inner", "weights"):
        sil.combine(discor.method())
    with refused("inner", "Latest"):
        sil.combine(latest.method())
    with refused("inner", "SelfImitation"):
        SelfImitation(SelfImitation())
    with refused("inner", "method", "3"):
        sil.combine(3)
    with refused("batch_size", 2, 1):
        Replay(SelfImitation(), capacity=8, batch_size=1)
    with refused("first", "SelfImitation"):
        part = Replay(uniform.sampler(), capacity=8, batch_size=4)
        mix(Replay(SelfImitation(), capacity=8, batch_size=4), part)
