"""Environments that reuse their arrays at every step and write into the actions.

Gymnasium allows both. Without copies, the reset after an episode would overwrite its last
observation, reward and flags.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.types import Continuous, Discrete
from experiments import environments
from experiments.environments.episodes import make_episodic
from experiments.environments.host import HostEnvironment
from experiments.environments.types import TimeStep

gymnasium = pytest.importorskip("gymnasium")

# Rewards, final observations and ends of four steps; the second and fourth end an episode.
REWARDS, SEEN, OVER = [1, 2, 1, 2], [1, 2, 1, 2], [False, True, False, True]
NEXT = [1, 0, 1, 0]  # observations after the reset


def counter(kind: str, dtype: type, terminates: bool):
    """Return a counter environment that shares its arrays with all instances in a process.

    Args:
      kind: "array", or "dict" with a wrapper that returns one entry.
      dtype: dtype of the observations.
      terminates: whether the second step terminates the episode; otherwise a time limit cuts it.
    """

    class Counter(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 9, (2, 3), dtype)
        action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        obs = np.zeros((2, 2, 3), dtype)
        reward, terminated, truncated = np.zeros((), np.float32), np.zeros(1, bool), np.zeros(1)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.count = 0
            return self.written(), {"obs": self.obs}

        def step(self, action):
            self.count += 1
            assert action == 0.5
            action[:] = -1
            return self.written(), self.reward, self.terminated, self.truncated, {"obs": self.obs}

        def written(self):
            self.obs[:] = self.count
            self.reward[...] = self.count
            self.terminated[:] = terminates and self.count == 2
            return {"obs": self.obs[0]} if kind == "dict" else self.obs[0]

    class Shown(gymnasium.ObservationWrapper):
        observation_space = Counter.observation_space

        def observation(self, observation):
            return observation["obs"]

    if kind == "dict":
        Counter.observation_space = gymnasium.spaces.Dict({"obs": Shown.observation_space})
        return lambda **_: Shown(Counter())
    return Counter


@pytest.fixture
def registered():
    before = dict(gymnasium.registry)
    made = []

    def registered(*args, vectorisation="sync"):
        gymnasium.register("Counter-v0", counter(*args), max_episode_steps=2)
        made.append(environments.make_host("gymnasium/Counter-v0", 3, vectorisation=vectorisation))
        return made[-1]

    yield registered
    for environment in made:
        environment.close()
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def check(environment, action, terminates):
    """Take four steps; returned arrays and actions must not change afterwards."""
    actions = np.full((environment.num_envs, 1), action, np.float32)
    kept = [(environment.reset(0), ())]
    for _ in range(4):
        kept.append(environment.step(actions))
    assert (actions == action).all()
    assert (kept[0][0] == 0).all()
    for (obs, step), reward, seen, over, after in zip(
        kept[1:], REWARDS, SEEN, OVER, NEXT, strict=True
    ):
        assert (step.reward == reward).all() and (step.final_obs == seen).all()
        assert (step.terminated == (over and terminates)).all()
        assert (step.truncated == (over and not terminates)).all()
        assert (obs == after).all()


@pytest.mark.parametrize("terminates", [False, True])
@pytest.mark.parametrize(
    ("kind", "dtype", "vectorisation"),
    [
        ("array", np.float32, "sync"),
        ("array", np.float64, "sync"),
        ("array", np.uint8, "sync"),
        ("dict", np.float32, "sync"),
        ("array", np.float32, "async"),
        ("dict", np.uint8, "async"),
    ],
)
def test_gymnasium_may_reuse_arrays(kind, dtype, vectorisation, terminates, registered):
    check(registered(kind, dtype, terminates, vectorisation=vectorisation), 0.5, terminates)


class Batch(HostEnvironment):
    """A custom family with one set of arrays for all steps of the batch."""

    def __init__(self, terminates: bool) -> None:
        like = jax.ShapeDtypeStruct((2,), np.dtype(np.float32))
        super().__init__("test/Batch", 3, Continuous(1), 2, like)
        self.after, final = np.zeros((3, 2), np.float32), np.zeros((3, 2), np.float32)
        self.out = TimeStep(np.zeros(3, np.float32), np.zeros(3, bool), np.zeros(3, bool), final)
        self.terminates, self.count = terminates, 0

    def _reset(self, seeds):
        self.count, self.after[:] = 0, 0
        return self.after

    def _send(self, actions):
        actions[:] = -1

    def _receive(self):
        self.count += 1
        over = self.count == 2
        self.out.final_obs[:] = self.out.reward[:] = self.count
        self.out.terminated[:], self.out.truncated[:] = (
            (over, False) if self.terminates else (False, over)
        )
        self.count *= not over
        self.after[:] = self.count
        return self.after, self.out

    def close(self):
        pass


@pytest.mark.parametrize("terminates", [False, True])
def test_custom_adapters_may_reuse_arrays(terminates):
    check(Batch(terminates), 0.25, terminates)


@pytest.mark.parametrize("wrap", [lambda function: function, jax.jit], ids=["eager", "jit"])
def test_callbacks_of_compiled_environments_may_reuse_arrays(wrap):
    obs = {"x": np.zeros(5, np.float32), "n": np.zeros((), np.int32)}
    reward, over = np.zeros((), np.float32), np.zeros((), bool)

    def written(count):
        obs["x"][:], obs["n"][...], reward[...] = count, count, count
        return np.int32(count), obs, reward, over

    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), written(0))

    def reset(key):
        del key
        return jax.pure_callback(lambda: written(0), like)[:2]

    def step(key, state, action):
        del key, action
        return jax.pure_callback(lambda count: written(int(count) + 1), like, state)

    environment = make_episodic("counter", reset, step, Discrete(2), max_steps=2)
    state, _ = wrap(environment.reset)(jax.random.key(0))
    kept, advance = [], wrap(environment.step)
    for _ in range(4):
        state, after, out = advance(jax.random.key(1), state, jnp.zeros((), jnp.int32))
        kept.append((after, out))
    for (after, out), number, seen, cut, next_ in zip(kept, REWARDS, SEEN, OVER, NEXT, strict=True):
        assert out.reward == number and out.truncated == cut
        for name in obs:
            assert (out.final_obs[name] == seen).all() and (after[name] == next_).all()
