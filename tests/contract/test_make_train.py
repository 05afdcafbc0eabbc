"""Every compatible pair of agent and method trains as one program, with two vmapped seeds."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.racer import RACERConfig, racer
from experiments import environments
from experiments.runs.registry import AGENTS, feeds, replay_options
from experiments.training.loop import make_train
from jaxreplay import Replay
from jaxreplay.methods import METHODS
from jaxreplay.methods.refer import ReFERConfig
from jaxreplay.testing import with_goals

# Quick agents learn from several steps, of windows and of all new steps, which needs most of the
# loop; test_agent_replay covers the others. test_train runs dqn-per, test_plot runs ddpg-refer and
# naf-refer, test_loop runs ners and ero with dqn; notebook 06 trains racer with refer.
PAIRS = [
    pytest.param(
        agent,
        method,
        marks=() if agent in ("acer", "pqn") else pytest.mark.slow,
    )
    for agent in AGENTS
    for method in METHODS
    if feeds(agent, method)
]
ENVIRONMENTS = {"discrete": "gymnax/CartPole-v1", "continuous": "gymnax/Pendulum-v1"}


@pytest.mark.parametrize(("agent_name", "name"), PAIRS)
def test_training_runs_as_one_program(agent_name, name):
    entry = AGENTS[agent_name]
    environment = environments.make(ENVIRONMENTS[entry.actions], max_steps=8)
    options = replay_options(agent_name, name)
    if name == "windows":
        options = dataclasses.replace(options, length=4)
    method = with_goals(METHODS[name].method(options.for_run(60)))
    few = {"minibatches": 2} if agent_name == "pqn" else {}
    agent = entry.make(entry.config(hidden=(8,), **few), environment.action_space, method.objective)
    replay = Replay(method.sampler, capacity=64, batch_size=8, num_envs=2)
    rows = 4 if replay.requires.all_new else 1
    config = dataclasses.replace(
        entry.loop, learn_every=rows, steps=140, warmup=20, eval_every=40, eval_episodes=2,
        inspect=2, observe_every=20, n_step=1,
    )  # fmt: skip
    keys = jax.random.split(jax.random.key(0), 2)
    state, metrics = jax.jit(jax.vmap(make_train(environment, agent, replay, config)))(keys)
    if rows == 1:
        assert np.asarray(metrics["step"][0]).tolist() == [40, 80, 120, 140]
    assert (np.asarray(state.updates) == 60 // rows).all()
    for key, values in metrics.items():
        if key != "train_return":  # NaN if no episode ended
            assert np.isfinite(values).all(), key
    assert (metrics["replay/dropped"] == 0).all()
    assert (metrics["agent/loss"][0] != metrics["agent/loss"][1]).any()


@pytest.mark.slow  # test_common.py skips gradients that are not finite
def test_diverging_agents_leave_finite_states():
    # RACER's gradients overflow on plain replay with a huge learning rate.
    environment = environments.make("gymnax/Pendulum-v1", max_steps=8)
    off = {"reject": False, "penalise": False, "forget": "oldest"}
    method = METHODS["refer"].method(ReFERConfig(returns=True, **off))
    config = RACERConfig(hidden=(8,), learning_rate=10.0)
    agent = racer(config, environment.action_space, method.objective)
    replay = Replay(method.sampler, capacity=64, batch_size=8)
    loop = dataclasses.replace(AGENTS["racer"].loop, steps=400, warmup=40, eval_every=90)
    train = make_train(environment, agent, replay, loop)
    state, metrics = jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(0), 4))
    assert float(metrics["agent/kl"].max()) > 1e6
    assert (metrics["agent/skipped"][:, -1] > 0.5).all()
    for tree in (state.agent, state.replay):
        for leaf in jax.tree.leaves(tree):
            if jnp.issubdtype(leaf.dtype, jnp.floating):
                assert np.isfinite(leaf).all()
    for key, values in metrics.items():
        assert not np.isinf(values).any(), key
        # Metrics of updates and of batches are NaN if no value was finite.
        of_agent = key.startswith("agent/") or key.endswith(("td", "td_std", "q_value", "q_std"))
        assert np.isfinite(values).all() or of_agent, key
