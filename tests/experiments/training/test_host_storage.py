"""Frames and rows in host memory, compared with storage on the device."""

import functools

import jax
import numpy as np
import pandas as pd
import pytest

from agents.dqn import DQNConfig, dqn
from agents.types import Discrete
from experiments import train
from experiments.environments.episodes import make_episodic
from experiments.environments.host import HostEnvironment
from experiments.environments.types import TimeStep
from experiments.runs import checkpoint
from experiments.training import host_store
from experiments.training.config import LoopConfig
from experiments.training.host_loop import HostRun
from experiments.training.loop import make_program
from experiments.training.rows_loop import RowsRun
from experiments.training.seeds import CompiledRun
from jaxreplay import Frames, Replay, Transitions, ring
from jaxreplay.loops import host_rows
from jaxreplay.methods import ners, per
from jaxreplay.storage import HostRing
from jaxreplay.types import Sample
from tests.refusals import refused

STACK, SIDE, LENGTH = 3, 6, 7


class Painting(HostEnvironment):
    """Environments with noise frames, in which every other episode is truncated."""

    def __init__(self, num_envs, training):
        obs = jax.ShapeDtypeStruct((SIDE, SIDE, STACK), np.dtype(np.uint8))
        super().__init__("test/Painting", num_envs, Discrete(2), 99, obs)

    def _reset(self, seeds):
        self.rngs = [np.random.default_rng(seed) for seed in seeds]
        self.count = np.zeros(self.num_envs, int)
        self.episode = np.arange(self.num_envs)
        self.stacks = np.stack([self._begin(lane) for lane in range(self.num_envs)])
        return self.stacks

    def _frame(self, lane):
        return self.rngs[lane].integers(0, 256, (SIDE, SIDE, 1), np.uint8)

    def _begin(self, lane):
        blank = np.zeros((SIDE, SIDE, STACK - 1), np.uint8)
        return np.concatenate([blank, self._frame(lane)], axis=2)

    def _send(self, actions):
        pass

    def _receive(self):
        self.count = self.count + 1
        news = np.stack([self._frame(lane) for lane in range(self.num_envs)])
        final = np.concatenate([self.stacks[..., 1:], news], axis=-1)
        over = self.count >= LENGTH - self.episode % 3
        cut = over & (self.episode % 2 == 0)
        self.stacks = np.stack(
            [self._begin(i) if over[i] else final[i] for i in range(self.num_envs)]
        )
        reward = self.count.astype(np.float32)
        self.count, self.episode = self.count * ~over, self.episode + over
        return self.stacks, TimeStep(reward, over & ~cut, cut, final)

    def close(self):
        pass


def make_run(on, num_envs, n_step):
    """Make a run that stores on the device, or frames or rows on the host."""
    config = LoopConfig(
        steps=400, warmup=30, eval_every=20, eval_episodes=1, n_step=n_step, inspect=1
    )
    storage = Frames(stack=STACK, spare=0.5, on_host=on == "frames")
    if on == "rows":
        storage = Transitions(on_host=True)
    agent = dqn(DQNConfig(network="mlp", hidden=(8,)), Discrete(2), per.method().objective)
    replay = Replay(per.sampler(), capacity=40, batch_size=8, num_envs=num_envs, storage=storage)
    return HostRun(Painting, Painting(1, True).spec, agent, replay, config, (0, 1))


def stored(run, state):
    """Return all stored transitions of the two seeds with their observations."""
    alone = [
        jax.tree.map(
            lambda x, axis, at=seed: x if axis is None else x[at],
            state.replay.ring, run.axes.replay.ring, is_leaf=lambda x: x is None,
        )
        for seed in range(2)
    ]  # fmt: skip
    slots = np.arange(int(ring.size(alone[0])))
    both = jax.tree.map(lambda *x: np.stack(x), *(ring.gather(held, slots) for held in alone))
    batch = Sample(np.stack([slots, slots]), both, None, None)
    store = host_store.store_of(alone[0], 2)
    if not jax.tree.leaves(store.kept):
        return both
    store.kept = state.host
    fill = jax.vmap(lambda batch, given: host_store.fill(alone[0], batch, given))
    return fill(batch, store.read(batch)).transition


@functools.cache
def played(on, folder, n_step=3, num_envs=2):
    """Wrap the ring, save, resume; return transitions, parameters, metrics, later transitions."""
    run = make_run(on, num_envs, n_step)
    state, metrics = run.chunk(run.init(), 30)
    before = stored(run, state), [x for x in jax.tree.leaves(state.agent) if x.dtype == np.float32]
    before = jax.tree.map(np.array, (*before, metrics))
    assert bool(jax.tree.leaves(state.host)) == (on != "device")
    checkpoint.save(folder / on, 1, state, {})
    run.close()
    again = make_run(on, num_envs, n_step)
    state = again.resume(checkpoint.load(folder / on, again.like()))
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(state.host))
    state, _ = again.chunk(state, 9)
    after = jax.tree.map(np.array, stored(again, state))
    again.close()
    return *before, after


@pytest.mark.parametrize("on", ["frames", "rows"])
def test_host_storage_equals_device_storage_before_and_after_resuming(on, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "host_store"
    theirs, ours = (played(where, folder) for where in ("device", on))
    jax.tree.map(np.testing.assert_array_equal, (theirs[0], theirs[3]), (ours[0], ours[3]))
    assert len(np.unique(ours[0].obs)) > 200 and (ours[0].obs[..., 0] == 0).any()
    for left, right in zip(theirs[1], ours[1], strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-3, atol=1e-5)
    names = ("eval_return", "stored/abs_td", "stored/age", "replayed/abs_td", "replayed/age")
    for name in names:  # inspections draw the same transitions
        np.testing.assert_allclose(theirs[2][name], ours[2][name], rtol=1e-3)


def test_atari_frames_are_stored_once_on_the_host(tmp_path):
    pytest.importorskip("ale_py")
    out = tmp_path / "run"
    command = [
        "--env", "atari/Pong", "--agent", "dqn", "--replay", "per", "--seeds", "2", "--steps",
        "60", "--warmup", "30", "--eval-every", "60", "--eval-episodes", "1", "--env.max-steps",
        "25", "--batch-size", "4", "--agent.network", "data_efficient", "--tensorboard", "false",
        "--figures", "false", "--replay-on", "host",
    ]  # fmt: skip
    assert train.main([*command, "--out", str(out)]) == 0
    assert train.main(["--resume", str(out)]) == 0
    frame = pd.read_csv(out / "metrics.csv")
    assert (frame["replay/frames_lost"] == 0).all() and frame["step"].max() == 60


def test_samplers_that_read_observations_are_refused():
    sizes = {"capacity": 8, "batch_size": 4, "storage": Frames(stack=3, on_host=True)}
    with refused("on_host", "obs", "next_obs"):
        Replay(ners.sampler(), **sizes)
    Replay(ners.sampler(ners.NERSConfig(features=("reward", "td_error"))), **sizes)


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
    storage = Transitions(on_host=on_host)
    replay = Replay(per.sampler(), capacity=200, batch_size=16, num_envs=2, storage=storage)
    config = LoopConfig(
        steps=1_000, warmup=300, eval_every=40, eval_episodes=2, n_step=3, learn_every=2,
        updates=2, inspect=2,
    )  # fmt: skip
    agent = dqn(DQNConfig(hidden=(8,)), Discrete(2), per.method().objective)
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
