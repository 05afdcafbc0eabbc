"""The compiled loop with rows on the host, compared with rows on the device."""

import jax
import numpy as np
import pytest

from agents.dqn import DQNConfig, dqn
from agents.types import Discrete
from experiments import train
from experiments.environments.episodes import make_episodic
from experiments.runs import checkpoint
from experiments.training.config import LoopConfig
from experiments.training.loop import make_program
from experiments.training.rows_loop import RowsRun
from experiments.training.seeds import CompiledRun
from jaxreplay import Replay, Transitions, ring
from jaxreplay.loops import host_rows
from jaxreplay.methods import per
from jaxreplay.storage import HostRing
from jaxreplay.types import Sample
from tests.refusals import refused

SEEDS = (3, 4)


def wandering():
    """Return an environment with a random walk as observation and episodes of five steps."""

    def reset(key):
        return jax.random.normal(key, (3,)), jax.random.normal(key, (3,))

    def step(key, state, action):
        state = 0.5 * state + jax.random.normal(key, (3,)) + action
        return state, state, state.sum(), state[0] > 2

    return make_episodic("wandering", reset, step, Discrete(2), 5)


def parts(on_host):
    method = per.method()
    agent = dqn(DQNConfig(hidden=(8,)), Discrete(2), method.objective)
    storage = Transitions(on_host=on_host)
    replay = Replay(method.sampler, capacity=200, batch_size=16, num_envs=2, storage=storage)
    config = LoopConfig(
        steps=1_000, warmup=300, eval_every=40, eval_episodes=2, n_step=3, learn_every=2,
        updates=2, inspect=2,
    )  # fmt: skip
    return wandering(), agent, replay, config


@pytest.fixture(scope="module")
def on_host():
    return RowsRun(*parts(True), SEEDS)


@pytest.fixture(scope="module")
def on_device():
    return CompiledRun(make_program(*parts(False)), SEEDS)


def rows_of(run, state, seed):
    """Return all stored transitions of a seed."""
    held = jax.tree.map(
        lambda x, axis: x if axis is None else x[seed],
        state.replay.ring, run.axes.replay.ring, is_leaf=lambda x: x is None,
    )  # fmt: skip
    slots = np.arange(int(ring.size(held)))
    read = Sample(slots, ring.gather(held, slots), slots, slots)
    if not isinstance(held, HostRing):
        return read.transition
    return host_rows.join(held, read, host_rows.read(state.host[seed], slots)).transition


def test_rows_on_the_host_equal_the_loop_on_the_device(on_host, on_device):
    runs = on_device, on_host
    states = [run.init() for run in runs]
    for seed in range(2):  # the ring has wrapped around before the first update
        theirs, ours = (rows_of(run, run.to_save(state), seed) for run, state in zip(runs, states))
        jax.tree.map(np.testing.assert_array_equal, theirs, ours)
        assert len(ours.reward) == 200 and len(np.unique(ours.obs)) > 300
    (_, theirs), (_, ours) = (run.chunk(state, 5) for run, state in zip(runs, states))
    assert theirs.keys() == ours.keys()
    for name in theirs:
        np.testing.assert_allclose(theirs[name], ours[name], rtol=1e-4, err_msg=name)
    assert on_host.schedule == on_device.schedule


def test_runs_resume_from_a_checkpoint_bit_for_bit(on_host, tmp_path):
    state, _ = on_host.chunk(on_host.init(), 4)
    checkpoint.save(tmp_path, 1, state, {})
    straight, expected = on_host.chunk(state, 4)
    again = on_host.resume(checkpoint.load(tmp_path, on_host.like()))
    assert isinstance(again.host, np.ndarray) and again.host is not straight.host
    state, metrics = on_host.chunk(again, 4)
    assert straight.host.any()
    jax.tree.map(
        np.testing.assert_array_equal,
        (straight.host, jax.tree.leaves(straight.agent), expected),
        (state.host, jax.tree.leaves(state.agent), metrics),
    )


def test_replays_that_read_whole_rows_are_refused():
    with refused("storage=Transitions(on_host=True)"):
        RowsRun(*parts(False), SEEDS)


def test_train_command_keeps_rows_on_the_host(tmp_path):
    command = [
        "--env", "walk/10", "--agent", "dqn", "--replay", "per", "--seeds", "2", "--steps", "60",
        "--warmup", "40", "--eval-every", "20", "--eval-episodes", "1", "--batch-size", "4",
        "--agent.hidden", "4", "--tensorboard", "false", "--figures", "false",
        "--replay-on", "host",
    ]  # fmt: skip
    assert train.main([*command, "--out", str(tmp_path / "run")]) == 0
    assert train.main(["--resume", str(tmp_path / "run")]) == 0
