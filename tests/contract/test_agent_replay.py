"""Contract tests for every pair of agent and replay method."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.types import Agent, Continuous, Discrete
from experiments.runs.registry import AGENTS, feeds, replay_options
from jaxreplay import Method, Replay, ReplayState, Transition
from jaxreplay.methods import METHODS
from jaxreplay.testing import with_goals

# Quick tests: agents with a method for each kind of feedback, and else with these methods. Other
# methods differ in their samplers, which test_samplers covers.
CORE = ("uniform", "refer", "latest")
QUICK = {
    "dqn": ("per", "relo", "laber", "eper"), "rainbow": ("ners",), "ensemble_qr": ("uper",),
    "sac": ("refer",), "ddpg": ("refer",), "naf": ("refer",),
}  # fmt: skip
PAIRS = [
    pytest.param(
        (agent, replay), id=f"{agent}-{replay}",
        marks=() if replay in QUICK.get(agent, CORE) else pytest.mark.slow,
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


class Pair(NamedTuple):
    """An agent and a replay, and their states after ten additions."""

    method: Method
    agent: Agent
    space: Discrete | Continuous
    state: Any
    held: ReplayState
    learn: Any  # (state, held, key) -> (state, held, info), compiled


@pytest.fixture(params=PAIRS, scope="module")
def pair(request):
    name, method_name = request.param
    entry, method = AGENTS[name], method_of(name, method_name)
    space = Discrete(3) if entry.actions == "discrete" else Continuous(2)
    # Seven actions show the noise; minibatches divide the batch.
    options = {"rainbow": {"sigma": 3.0}, "pqn": {"minibatches": 4}}.get(name, {})
    agent = entry.make(entry.config(hidden=(8, 8), **options), space, method.objective)
    replay = Replay(method.sampler, capacity=64, batch_size=BATCH, num_envs=E)
    discrete = entry.actions == "discrete"
    action = np.ones((), np.int32) if discrete else np.full(2, 0.5, np.float32)
    scalar, flag, obs = np.zeros((), np.float32), np.zeros((), bool), np.zeros(OBS, np.float32)
    # Outside of jit, JAX compiles every operation separately and keeps it for the other pairs.
    initial = agent.init(jax.random.key(0), obs, action)

    def add(carry, time):
        state, held, example = carry
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
        return (state, replay.add(held, row, **{name: told[name] for name in wanted}), example), ()

    @jax.jit
    def start(state, key):
        extras = agent.act(state, obs[None], key)[1]
        extras = jax.tree.map(lambda x: jnp.zeros_like(x[0]), extras)
        example = Transition(obs, action, scalar, scalar, obs, flag, flag, extras)
        held = replay.init(jax.random.key(1), example)
        return jax.lax.scan(add, (state, held, example), jnp.arange(10))[0][:2]

    @jax.jit
    def learn(state, held, key):
        key_sample, key_agent = jax.random.split(key)
        sample = replay.sample(held, key_sample)
        state, info = agent.update(state, sample, key_agent)
        return state, replay.update(held, sample, **info.feedback), info

    return Pair(method, agent, space, *start(initial, jax.random.key(0)), learn)


def assert_same(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


def test_agents_return_the_required_feedback(pair):
    _, after, info = pair.learn(pair.state, pair.held, jax.random.key(0))
    assert pair.method.requires.feedback <= set(info.feedback)
    for values in info.feedback.values():
        assert (values.shape, values.dtype) == ((BATCH,), jnp.float32)
        assert np.isfinite(values).all()
    for value in info.metrics.values():
        assert value.shape == () and np.isfinite(value)
    assert int(after.dropped) == 0


@pairs_that(lambda agent, replay: method_of(agent, replay).requires.density)
def test_new_steps_have_importance_ratio_one(pair):
    _, _, info = pair.learn(pair.state, pair.held, jax.random.key(0))
    np.testing.assert_allclose(info.feedback["log_ratio"], 0, atol=1e-4)
    np.testing.assert_allclose(info.metrics["kl"], 0, atol=1e-4)


def test_learning_is_pure_and_depends_on_the_key(pair):
    states = pair.state, pair.held
    before = jax.tree.map(np.array, states)
    once = pair.learn(*states, jax.random.key(0))
    assert_same(once, pair.learn(*states, jax.random.key(0)))
    assert_same(states, before)
    differ = lambda left, right: any(
        (x != y).any() for x, y in zip(jax.tree.leaves(left), jax.tree.leaves(right))
    )
    assert differ(once[0], pair.learn(*states, jax.random.key(1))[0])
    assert differ(once[0], pair.state)


def test_learning_compiles_once_and_keeps_its_types(pair):
    carry = pair.state, pair.held
    after = jax.eval_shape(pair.learn, *carry, jax.random.key(2))[:2]
    assert after == jax.eval_shape(lambda *states: states, *carry)
    for seed in range(2):
        carry = pair.learn(*carry, jax.random.key(seed))[:2]
    assert pair.learn._cache_size() <= 1


BOUNDED = ("dqn", "rainbow", "pqn", "ensemble_qr", "discrete_sac", "td3", "td7", "sac", "iql")
FIRST = dict(reversed([param.values[0] for param in PAIRS if not param.marks]))


@pairs_that(lambda agent, replay: replay == FIRST.get(agent))
def test_actions_lie_in_the_space(pair, request):
    bounded = request.node.callspec.params["pair"][0] in BOUNDED
    obs = jax.random.normal(jax.random.key(0), (7, OBS))
    act = jax.jit(lambda key: pair.agent.act(pair.state, obs, key)[0])
    action = act(jax.random.key(1))
    for actions in (action, jax.jit(pair.agent.greedy)(pair.state, obs)):
        if isinstance(pair.space, Discrete):
            assert (actions.shape, actions.dtype) == ((7,), jnp.int32)
            assert not bounded or 0 <= int(actions.min()) <= int(actions.max()) < pair.space.n
        else:
            assert (actions.shape, actions.dtype) == ((7, 2), jnp.float32)
            assert not bounded or float(jnp.abs(actions).max()) <= 1
    np.testing.assert_array_equal(action, act(jax.random.key(1)))
    assert (np.asarray(action) != np.asarray(act(jax.random.key(2)))).any()
