"""Frames of environments on the host, stored once, compared with whole observations."""

import jax
import numpy as np

from agents.dqn import DQNConfig, dqn
from agents.types import Discrete
from experiments.environments.host import HostEnvironment
from experiments.environments.types import TimeStep
from experiments.studies.checkpoints import Checkpoint, Progress
from experiments.training.config import LoopConfig
from experiments.training.host_loop import HostDriver
from jaxreplay import Frames, Replay, Transitions, ring
from jaxreplay.methods import per

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


def make_driver(storage):
    config = LoopConfig(steps=400, warmup=30, eval_every=20, eval_episodes=1, n_step=3, inspect=1)
    agent = dqn(DQNConfig(network="mlp", hidden=(8,)), Discrete(2), per.method().objective)
    replay = Replay(per.sampler(), capacity=40, batch_size=8, num_envs=2, storage=storage)
    return HostDriver(Painting, Painting(1, True).spec, agent, replay, config, (0, 1))


def stored(driver, state):
    """Return all stored transitions of the two seeds."""
    alone = [
        jax.tree.map(
            lambda x, axis, at=seed: x if axis is None else x[at],
            state.replay.ring, driver.axes.replay.ring, is_leaf=lambda x: x is None,
        )
        for seed in range(2)
    ]  # fmt: skip
    slots = np.arange(int(ring.size(alone[0])))
    return jax.tree.map(lambda *x: np.stack(x), *(ring.gather(held, slots) for held in alone))


def played(storage, folder):
    """Wrap the ring, save and resume; return stored transitions before and after, and metrics."""
    driver, checkpoint = make_driver(storage), Checkpoint(folder, [("painting", 0)])
    state, metrics = driver.chunk(driver.init(), 30)
    before = jax.tree.map(np.array, (stored(driver, state), metrics))
    folder.mkdir()
    checkpoint.write(Progress([metrics]), 90, state)
    state, _ = driver.chunk(driver.resume(checkpoint.read(driver)[1]), 9)
    after = stored(driver, state)
    driver.close()
    return *before, after


def test_frames_stored_once_equal_whole_observations_before_and_after_resuming(tmp_path):
    whole = played(Transitions(), tmp_path / "whole")
    once = played(Frames(stack=STACK, spare=0.5), tmp_path / "once")
    jax.tree.map(np.testing.assert_array_equal, (whole[0], whole[2]), (once[0], once[2]))
    assert len(np.unique(once[0].obs)) > 200 and (once[0].obs[..., 0] == 0).any()
    assert (once[1]["replay/frames_lost"] == 0).all()
    for name in ("eval_return", "stored/abs_td", "stored/age", "replayed/abs_td", "replayed/age"):
        np.testing.assert_allclose(whole[1][name], once[1][name], rtol=1e-3)
