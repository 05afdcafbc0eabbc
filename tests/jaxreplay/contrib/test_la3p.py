"""LA3P: priorities and losses by hand, and the rows of critic and actor."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.ddpg import DDPGConfig, ddpg
from agents.sac import SACConfig, sac
from agents.td3 import TD3Config, td3
from agents.td7 import TD7Config, td7
from agents.types import Continuous
from jaxreplay import Replay, Transition, objectives, sum_tree, testing
from jaxreplay.contrib import la3p
from jaxreplay.contrib.la3p import LA3PConfig
from jaxreplay.methods import pal
from jaxreplay.methods.pal import PALConfig
from jaxreplay.types import Sample
from tests.methods import compiled
from tests.refusals import refused

EXAMPLE = Transition(reward=np.float32(0))
TD = np.float32([0.3, -0.5, 1.0, -2.0, 4.0])


def told(config, td=TD):
    replay, state = filled(config, len(td))
    for shift in range(len(td)):  # so that every slot is once among the critic's rows
        slots = np.roll(np.arange(len(td), dtype=np.int32), -shift)
        state = update(replay, state, slots, td[slots])
    return replay, state


def filled(config, size):
    replay = compiled(Replay(la3p.sampler(config), capacity=size, batch_size=size))
    state = replay.init(jax.random.key(0), EXAMPLE)
    for _ in range(size):
        state = replay.add(state, Transition(reward=np.zeros(1, np.float32)))
    return replay, state


def update(replay, state, slots, td):
    batch = replay.sample(state, jax.random.key(0))
    return replay.update(state, batch._replace(indices=slots, version=slots + 1), td_error=td)


def test_sizes_of_the_parts_by_hand():
    assert LA3PConfig().parts(384).sizes == (128, 128, 128)
    assert LA3PConfig(fraction=0.0).parts(9).sizes == (9, 0, 0)
    assert LA3PConfig(fraction=1.0).parts(8).sizes == (0, 4, 4)
    assert LA3PConfig(fraction=1.0).parts(7).sizes == (1, 3, 3)
    assert LA3PConfig().parts(1).sizes == (1, 0, 0)
    with refused("fraction", "1.5"):
        LA3PConfig(fraction=1.5)


def test_priorities_and_inverse_priorities_by_hand():
    replay, state = told(LA3PConfig())
    leaves = np.asarray(sum_tree.leaves(state.sampler.priorities.tree))
    np.testing.assert_allclose(leaves, [1, 1, 1, 1.3195079108, 1.7411011266], rtol=1e-5)
    inverse = np.asarray(sum_tree.leaves(state.sampler.inverse))
    share = inverse / inverse.sum()
    expected = [0.2308292041, 0.2308292041, 0.2308292041, 0.1749358243, 0.1325765635]
    np.testing.assert_allclose(share, expected, rtol=1e-5)
    np.testing.assert_allclose(share * leaves / leaves.sum(), 0.0380868, rtol=1e-5)
    chance = replay.probability(state, np.arange(5))  # parts of 1, 2 and 2 rows
    np.testing.assert_allclose(chance, (0.2 + 2 * leaves / leaves.sum() + 2 * share) / 5, rtol=1e-5)
    assert share.max() <= leaves.max() / leaves.min() / 5


def test_rows_of_the_actor_do_not_change_priorities():
    replay, state = filled(LA3PConfig(), 6)
    slots = np.arange(6, dtype=np.int32)
    state = update(replay, state, slots, np.full(6, 32, np.float32))
    leaves = sum_tree.leaves(state.sampler.priorities.tree)  # 32^0.4 = 4
    np.testing.assert_allclose(leaves, [4, 4, 4, 4, 1, 1], rtol=1e-5)
    np.testing.assert_allclose(sum_tree.leaves(state.sampler.inverse), 1 / leaves, rtol=1e-6)


def test_priorities_that_overflow_change_neither_tree():
    _, state = told(LA3PConfig(alpha=2.0), np.float32([1e30, 1.0, 2.0, 4.0, 1e30]))
    leaves = np.array([1.0, 1.0, 4.0, 16.0, 1.0])
    np.testing.assert_allclose(sum_tree.leaves(state.sampler.priorities.tree), leaves, rtol=1e-5)
    np.testing.assert_allclose(sum_tree.leaves(state.sampler.inverse), 1 / leaves, rtol=1e-5)


def test_loss_of_the_critic_by_part():
    objective = la3p.method().objective
    td = jnp.array([[0.5, 2.0, 0.5, 3.0, 9.0, 9.0]])  # two rows in each part
    weight = np.array([1.0, 2.0**0.4]).mean()
    expected = [0.125 / weight, 2.0**1.4 / 1.4 / weight, 0.125, 2.5]
    np.testing.assert_allclose(objective.error(td)[0, :4], expected, rtol=1e-5)
    sample = Sample(jnp.arange(6), EXAMPLE, jnp.ones(6), jnp.ones(6))
    loss = jnp.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert float(objective.critic(loss, sample, None)) == 2.5
    assert float(objective.actor(loss, sample, None)) == 3.5


def test_fraction_0_equals_pal():
    ours, theirs = la3p.method(LA3PConfig(fraction=0.0)).objective, pal.method(PALConfig())
    td = jax.random.normal(jax.random.key(0), (2, 8)) * 3
    np.testing.assert_allclose(ours.error(td), theirs.objective.error(td), rtol=1e-6)
    replay, state = told(LA3PConfig(fraction=0.0))
    np.testing.assert_allclose(replay.probability(state, np.arange(5)), 0.2, rtol=1e-6)


def test_fraction_1_gives_the_critic_loss_of_lap():
    objective = la3p.method(LA3PConfig(fraction=1.0)).objective
    td = jax.random.normal(jax.random.key(0), (2, 8)) * 3
    np.testing.assert_allclose(objective.error(td), objectives.huber(1.0)(td), rtol=1e-6)


AGENTS = {  # with moments of the actor's gradients, as Adam's first step depends only on their sign
    "td3": (td3, TD3Config(hidden=(8,), policy_delay=1), lambda s: s.policy.opt_state),
    "td7": (td7, TD7Config(hidden=(8,), policy_delay=1), lambda s: s.actor_opt_state),
    "sac": (sac, SACConfig(hidden=(8,)), lambda s: s.actor_opt_state),
    "ddpg": (ddpg, DDPGConfig(hidden=(8,)), lambda s: s.actor_opt_state),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=() if x in ("dqn", "td3") else pytest.mark.slow) for x in AGENTS],
)
def test_actor_and_critic_learn_only_from_their_rows(name):
    make, config, of_actor = AGENTS[name]
    agent = make(config, Continuous(2), la3p.method().objective)
    obs = jax.random.normal(jax.random.key(1), (6, 3))
    action = jax.random.uniform(jax.random.key(2), (6, 2))
    state = agent.init(jax.random.key(0), obs[0], action[0])
    extras = jax.jit(agent.act)(state, obs, jax.random.key(3))[1]
    update = jax.jit(agent.update)

    def learned(changed, field):
        row = Transition(
            obs, action, jnp.arange(6.0) / 10, jnp.full(6, 0.9), obs[::-1], extras=extras
        )
        values = np.array(getattr(row, field))
        values[changed] *= 1.5
        row = row._replace(**{field: values})
        sample = Sample(jnp.arange(6), row, jnp.ones(6), jnp.ones(6, jnp.int32))
        after = update(state, sample, jax.random.key(4))[0]
        return of_actor(after), after.critic_opt_state

    def equal(one, other):
        pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
        return all(np.array_equal(x, y) for x, y in pairs)

    actor, critic = learned([], "reward")
    for rows in ([1], [2, 3]):
        assert not equal(learned(rows, "reward")[1], critic)
    own = [4, 5]  # rows only of the actor
    for field in ("reward", "action"):
        assert equal(learned(own, field), (actor, critic))
    found, of_critic = learned(own, "obs")
    assert equal(of_critic, critic) and not equal(found, actor)


def test_updates_keep_both_trees_valid():
    case = testing.Case(la3p.method())
    state = case.fill()
    for time in range(8, 20):
        state, _ = case.step(state, time)
    sum_tree.check_valid(state.sampler.inverse)
    sum_tree.check_valid(state.sampler.priorities.tree)
