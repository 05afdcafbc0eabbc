"""Contract tests for every pair of agent and replay method."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.types import Continuous, Discrete
from experiments.runs.registry import AGENTS, feeds, replay_options
from jaxreplay import Replay, Transition
from jaxreplay.methods import METHODS
from jaxreplay.testing import with_goals
from tests.methods import DISTINCT

# Quick tests: core methods with every agent, distinct methods with one or two agents.
CORE = ("uniform", "refer", "latest")
ALSO = (("rainbow", "ners"),)  # its errors are cross-entropies


def is_quick(agent, replay):
    """Return whether the method is core, or is distinct and the agent is DQN or ACER."""
    asked = METHODS[replay].method(METHODS[replay].config()).requires
    differs = replay in DISTINCT or asked.feedback - {"td_error"} or asked.chooses
    return replay in CORE or (agent, replay) in ALSO or (agent in ("dqn", "acer") and differs)


PAIRS = [
    pytest.param(
        (agent, replay), id=f"{agent}-{replay}",
        marks=() if is_quick(agent, replay) else pytest.mark.slow,
    )
    for agent in AGENTS for replay in METHODS if feeds(agent, replay)
]  # fmt: skip
OBS, BATCH, E = 3, 16, 2


def method_of(agent, replay):
    """Return the replay method with the agent's defaults, and windows short enough for a batch."""
    options = replay_options(agent, replay)
    if replay == "windows":
        options = dataclasses.replace(options, length=4)
    return with_goals(METHODS[replay].method(options.for_run(100)))


def pairs_that(hold):
    """Parametrize a test over the pairs with `hold(agent, replay)`."""
    chosen = [param for param in PAIRS if hold(*param.values[0])]
    return pytest.mark.parametrize("pair", chosen, indirect=True, scope="module")


@pytest.fixture(params=PAIRS, scope="module")
def pair(request):
    """Return agent and replay, their states after some adds, and a learn step, also compiled."""
    name, method_name = request.param
    entry, method = AGENTS[name], method_of(name, method_name)
    space = Discrete(3) if entry.actions == "discrete" else Continuous(2)
    loud = {"sigma": 3.0} if name == "rainbow" else {}  # seven actions show the noise
    agent = entry.make(entry.config(hidden=(8, 8), **loud), space, method.objective)
    replay = Replay(method.sampler, capacity=64, batch_size=BATCH, num_envs=E)
    action = jnp.ones((), jnp.int32) if entry.actions == "discrete" else jnp.ones(2) / 2
    scalar, flag = jnp.zeros(()), jnp.zeros((), bool)
    obs = jnp.zeros(OBS)
    state = jax.jit(agent.init)(jax.random.key(0), obs, action)
    extras = agent.act(state, obs[None], jax.random.key(0))[1]
    extras = jax.tree.map(lambda x: jnp.zeros_like(x[0]), extras)
    example = Transition(obs, action, scalar, scalar, obs, flag, flag, extras)
    held = replay.init(jax.random.key(1), example)

    @jax.jit
    def put(held, time):
        row = jax.tree.map(lambda x: jnp.stack([x] * E), example)
        obs = jax.random.normal(jax.random.key(time), (2, E, OBS))
        row = row._replace(
            obs=obs[0], next_obs=obs[1], reward=obs[0].sum(axis=1), discount=jnp.full(E, 0.9),
            first=jnp.full(E, time % 5 == 0), last=jnp.full(E, time % 5 == 4),
        )  # fmt: skip
        taken, extras = agent.act(state, obs[0], jax.random.key(time))
        if jax.tree.leaves(extras):
            row = row._replace(action=taken, extras=extras)
        wanted = replay.requires.feedback_of_new
        told = agent.feedback(state, row, jax.random.key(time)) if wanted else {}
        return replay.add(held, row, **{name: told[name] for name in wanted})

    for time in range(10):
        held = put(held, time)

    def learn(state, held, key):
        key_sample, key_agent = jax.random.split(key)
        sample = replay.sample(held, key_sample)
        state, info = agent.update(state, sample, key_agent)
        return state, replay.update(held, sample, **info.feedback), info

    bounded = name in ("dqn", "rainbow", "discrete_sac", "td3", "td7", "sac", "iql")
    return (
        (method_name, method),
        agent,
        space if bounded else None,
        state,
        held,
        learn,
        jax.jit(learn),
    )


def assert_same(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


def test_agents_return_the_required_feedback(pair):
    (_, method), _, _, state, held, _, learn = pair
    _, after, info = learn(state, held, jax.random.key(0))
    assert method.requires.feedback <= set(info.feedback)
    for values in info.feedback.values():
        assert (values.shape, values.dtype) == ((BATCH,), jnp.float32)
        assert np.isfinite(values).all()
    for value in info.metrics.values():
        assert value.shape == () and np.isfinite(value)
    assert int(after.dropped) == 0


@pairs_that(lambda agent, replay: method_of(agent, replay).requires.density)
def test_new_steps_have_importance_ratio_one(pair):
    _, _, _, state, held, _, learn = pair
    _, _, info = learn(state, held, jax.random.key(0))
    np.testing.assert_allclose(info.feedback["log_ratio"], 0, atol=1e-4)
    np.testing.assert_allclose(info.metrics["kl"], 0, atol=1e-4)


def test_learning_is_pure_and_depends_on_the_key(pair):
    _, _, _, state, held, _, learn = pair
    before = jax.tree.map(np.array, (state, held))
    once = learn(state, held, jax.random.key(0))
    assert_same(once, learn(state, held, jax.random.key(0)))
    assert_same((state, held), before)
    other = learn(state, held, jax.random.key(1))
    leaves = zip(jax.tree.leaves(once[0]), jax.tree.leaves(other[0]))
    assert any((x != y).any() for x, y in leaves)
    leaves = zip(jax.tree.leaves(once[0]), jax.tree.leaves(state))
    assert any((x != y).any() for x, y in leaves)


def test_learning_compiles_once_and_may_be_scanned(pair):
    (name, _), _, _, state, held, learn, jitted = pair
    keys = jax.random.split(jax.random.key(2), 4)
    carry = (state, held)
    for key in keys:
        carry = jitted(*carry, key)[:2]
    assert jitted._cache_size() <= 1

    def scan(carry):
        return jax.lax.scan(lambda c, k: (learn(*c, k)[:2], None), carry, keys)[0]

    jax.eval_shape(scan, (state, held))  # types for every pair; values once per agent
    if name != "uniform":
        return
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4),
        jax.jit(scan)((state, held)), carry,
    )  # fmt: skip


# test_samplers donates the states of samplers; compilation is expensive.
@pairs_that(lambda agent, replay: replay == "uniform")
def test_states_may_be_donated(pair):
    _, _, _, state, held, learn, jitted = pair
    expected = jitted(state, held, jax.random.key(3))
    state, held = jax.tree.map(jnp.copy, (state, held))
    donating = jax.jit(learn, donate_argnums=(0, 1))
    given = donating(state, held, jax.random.key(3))
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), given, expected
    )
    assert jax.tree.leaves(held)[0].is_deleted()


def test_actions_lie_in_the_space(pair):
    _, agent, space, state, *_ = pair
    obs = jax.random.normal(jax.random.key(0), (7, OBS))
    action, _ = agent.act(state, obs, jax.random.key(1))
    for actions in (action, agent.greedy(state, obs)):
        if isinstance(space, Discrete):
            assert (actions.shape, actions.dtype) == ((7,), jnp.int32)
            assert int(actions.min()) >= 0 and int(actions.max()) < space.n
        else:
            assert (actions.shape, actions.dtype) == ((7, 2), jnp.float32)
            assert space is None or float(jnp.abs(actions).max()) <= 1
    again, _ = agent.act(state, obs, jax.random.key(1))
    np.testing.assert_array_equal(action, again)
    other, _ = agent.act(state, obs, jax.random.key(2))
    assert (np.asarray(action) != np.asarray(other)).any()
