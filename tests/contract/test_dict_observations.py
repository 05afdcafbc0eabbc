"""Gymnasium environments with dict observations, from the batch to a trained policy."""

import jax
import numpy as np
import pandas as pd
import pytest

from agents.types import Discrete
from experiments import environments, train
from experiments.environments import EnvironmentFailed
from experiments.studies import policy
from tests.refusals import refusal, refused

gymnasium = pytest.importorskip("gymnasium")
NAME = "gymnasium/Parts-v0"
LENGTH = 4


class Parts(gymnasium.Env):
    """Environment with the step count in each entry; all instances share their arrays."""

    observation_space = gymnasium.spaces.Dict(
        {
            "wheels": gymnasium.spaces.Dict({"speed": gymnasium.spaces.Box(-1, 9, (2,))}),
            "mode": gymnasium.spaces.Discrete(3, start=1),
            "image": gymnasium.spaces.Box(0, 255, (3, 4, 1), np.uint8),
        }
    )
    action_space = gymnasium.spaces.Discrete(2)
    image, fails = np.zeros((3, 4, 1), np.uint8), False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.seen(), {}

    def step(self, action):
        self.count += 1
        return self.seen(), float(action), False, False, {}

    def seen(self):
        self.image[:] = self.count
        speed = np.full(2, np.nan if self.fails and self.count == 2 else self.count)
        return {"wheels": {"speed": speed}, "mode": 1 + self.count % 3, "image": self.image}


@pytest.fixture
def registered():
    before = dict(gymnasium.registry)
    gymnasium.register("Parts-v0", Parts, max_episode_steps=LENGTH)
    gymnasium.register(
        "Failing-v0", type("Failing", (Parts,), {"fails": True}), max_episode_steps=LENGTH
    )
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def expected(counts):
    counts = np.asarray(counts)
    return {
        "wheels": {"speed": np.float32(counts)[:, None].repeat(2, axis=1)},
        "mode": np.eye(3, dtype=np.int8)[counts % 3],
        "image": np.broadcast_to(np.uint8(counts)[:, None, None, None], (2, 3, 4, 1)),
    }


def same(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)
    assert jax.tree.map(lambda x: x.dtype, left) == jax.tree.map(lambda x: x.dtype, right)


def test_entries_are_copied_and_discrete_ones_are_one_hot(registered):
    environment = environments.make_host(NAME, 2)
    assert environment.action_space == Discrete(2)
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), expected([0, 0]))
    assert environment.spec.obs == like
    first = environment.reset(0)
    steps = [environment.step([0, 1]) for _ in range(LENGTH + 1)]
    same(first, expected([0, 0]))
    for number, (obs, step) in enumerate(steps, 1):
        count = (number - 1) % LENGTH + 1
        same(step.final_obs, expected([count, count]))
        same(obs, expected([count % LENGTH] * 2))
        assert (step.truncated == (count == LENGTH)).all() and not step.terminated.any()
    environment.close()


def test_non_finite_entries_are_refused_with_their_step(registered):
    environment = environments.make_host("gymnasium/Failing-v0", 2)
    environment.reset(7)
    environment.step([0, 0])
    with refused("gymnasium/Failing-v0", 2, 7, error=EnvironmentFailed):
        environment.step([0, 0])
    environment.close()


SMALL = (
    "--env", NAME, "--agent", "dqn", "--replay", "uniform", "--seeds", "2", "--steps", "60",
    "--warmup", "24", "--eval-every", "30", "--eval-episodes", "2", "--batch-size", "8",
    "--n-step", "2", "--inspect", "0", "--agent.hidden", "8", "--figures", "false",
    "--tensorboard", "false",
)  # fmt: skip


def test_runs_scale_dict_observations_and_policies_load(registered, tmp_path):
    out = tmp_path / "run"
    assert train.main([*SMALL, "--scale-observations", "true", "--out", str(out)]) == 0
    metrics = pd.read_csv(out / "metrics.csv")
    assert set(metrics["seed"]) == {0, 1} and (metrics["eval_length"] == LENGTH).all()
    trained = policy.load(out, policy.read(out), 1)
    speed = trained.agent.scaling.mean["wheels"]["speed"]
    assert ((speed > 0.5) & (speed < 2.5)).all()  # mean over episodes with counts 0 to 3
    action = trained.greedy(trained.agent, expected([0, 3]), jax.random.key(0))
    assert action.shape == (2,) and action.dtype == np.int32


def test_frame_stacks_of_dict_observations_are_refused(registered, tmp_path, capsys):
    error = refusal(capsys, train.main, *SMALL, "--frame-stack", 4, "--out", tmp_path / "run")
    assert "--frame-stack 0" in error and NAME in error and not (tmp_path / "run").exists()
