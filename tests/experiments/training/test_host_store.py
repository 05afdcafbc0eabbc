"""Frames in the host's memory: the same stacks as on the device, also on going on."""

import jax
import numpy as np
import pytest

from agents.dqn import DQNConfig, dqn
from agents.types import Discrete
from experiments import train
from experiments.environments.host import HostEnvironment, HostStep
from experiments.runs import checkpoint
from experiments.training import host_store
from experiments.training.config import LoopConfig
from experiments.training.host_loop import HostRun
from jaxreplay import make_replay, ring
from jaxreplay.methods import ners, per
from jaxreplay.types import Sample

STACK, SIDE, LENGTH = 3, 6, 7


class Painting(HostEnvironment):
    """Environments whose frames are noise, different at every step; every other episode is cut."""

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
        return self.stacks, HostStep(reward, over & ~cut, cut, final)

    def close(self):
        pass


def make_run(on_host, num_envs=2, n_step=3, capacity=40):
    config = LoopConfig(
        steps=400, warmup=30, eval_every=20, eval_episodes=1, n_step=n_step, inspect=0
    )
    method = per.method()
    agent = dqn(DQNConfig(network="mlp", hidden=(8,)), Discrete(2), method.objective)

    replay = make_replay(
        method.sampler, capacity=capacity, batch_size=8, num_envs=num_envs, frame_stack=STACK,
        frame_spare=0.5, frames_on_host=on_host,
    )  # fmt: skip
    spec = Painting(1, True).spec
    return HostRun(Painting, spec, agent, replay, config, (0, 1))


def stored(run, state):
    """Return all transitions of the two seeds, with their observations."""
    held = []
    for seed in range(2):
        alone = jax.tree.map(lambda x: x[seed] if x.ndim and len(x) == 2 else x, state.replay.ring)
        held.append(ring.gather(alone, np.arange(int(ring.size(alone)))))
    both = jax.tree.map(lambda *x: np.stack(x), *held)
    if not state.host:
        return both
    store = host_store.HostFrames(run.device.like.replay.ring.frames, state.host)
    obs, next_obs = store.read(Sample(None, both, None, None))
    return both._replace(obs=obs, next_obs=next_obs)


@pytest.mark.parametrize(
    ("n_step", "num_envs"), [(3, 2), pytest.param(1, 1, marks=pytest.mark.slow)]
)
def test_stacks_are_those_of_the_device_and_a_resumed_run_has_them_still(
    n_step, num_envs, tmp_path
):
    runs = [make_run(on_host, num_envs, n_step) for on_host in (False, True)]
    states = [run.chunk(run.init(), 30)[0] for run in runs]  # past the ring's end
    assert not states[0].host and states[1].host.pixels.any()
    theirs, ours = (stored(run, state) for run, state in zip(runs, states))
    jax.tree.map(np.testing.assert_array_equal, theirs, ours)
    assert len(np.unique(ours.obs)) > 200 and (ours.obs[..., 0] == 0).any()
    for left, right in zip(*(jax.tree.leaves(state.agent) for state in states), strict=True):
        left, right = (x if x.dtype != states[0].keys.learn.dtype else 0 for x in (left, right))
        np.testing.assert_allclose(left, right, rtol=1e-3, atol=1e-5)

    saved = [checkpoint.save(tmp_path / str(i), 1, state, {}) for i, state in enumerate(states)]
    assert all(path.exists() for path in saved)
    for run in runs:
        run.close()
    states = [
        run.resume(checkpoint.load(tmp_path / str(i), run.like())) for i, run in enumerate(runs)
    ]
    assert isinstance(states[1].host.pixels, np.ndarray)
    states = [run.chunk(state, 9)[0] for run, state in zip(runs, states)]
    theirs, ours = (stored(run, state) for run, state in zip(runs, states))
    jax.tree.map(np.testing.assert_array_equal, theirs, ours)


def test_a_run_from_the_command_line(tmp_path):
    pytest.importorskip("ale_py")
    out = tmp_path / "run"
    command = [
        "--env", "atari/Pong", "--agent", "dqn", "--replay", "per", "--seeds", "2", "--steps",
        "60", "--warmup", "30", "--eval-every", "60", "--eval-episodes", "1", "--env.max-steps",
        "25", "--batch-size", "4", "--agent.network", "data_efficient", "--tensorboard", "false",
        "--figures", "false",
        "--replay-on", "host",
    ]  # fmt: skip
    assert train.main([*command, "--out", str(out)]) == 0
    assert train.main(["--resume", str(out)]) == 0


def test_samplers_that_look_at_observations_are_refused():
    sizes = {"capacity": 8, "batch_size": 4, "frame_stack": 3, "frames_on_host": True}
    with pytest.raises(ValueError, match="this sampler looks at observations"):
        make_replay(ners.sampler(), **sizes)
    make_replay(ners.sampler(ners.NERSConfig(features=("reward", "td_error"))), **sizes)
