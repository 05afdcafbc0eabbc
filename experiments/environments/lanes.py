"""A batch of gymnasium's environments, in one thread or in processes."""

import contextlib
import functools
import multiprocessing
import signal
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from agents.types import Continuous, Discrete
from experiments.environments import mujoco_notes, mujoco_pictures
from experiments.environments.host import Array, HostEnvironment, HostStep, LaneFailed, raised

_CONTACT_FORCES = 84  # entries of the observation of Ant-v3 and Humanoid-v3, zero with MuJoCo 2


class Lane(gymnasium.Wrapper):
    """One environment of the batch, whose errors say which one it is.

    Everything that the environment returns is copied at once: many environments write into the same
    arrays at every step, and in the reset that follows the end of an episode. Infos are dropped,
    because gathering them over the batch takes as long as the physics.
    """

    def __init__(self, env: gymnasium.Env, index: int) -> None:
        super().__init__(env)
        self._index = index

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        try:
            return np.array(self.env.reset(seed=seed, options=options)[0]), {}
        except (Exception, SystemExit) as error:
            raise LaneFailed(self._index, raised(error)) from error

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        try:
            obs, *numbers = self.env.step(action)[:4]
            reward, terminated, truncated = (np.asarray(number).item() for number in numbers)
            return np.array(obs), reward, terminated, truncated, {}
        except (Exception, SystemExit) as error:
            raise LaneFailed(self._index, raised(error)) from error


class GymnasiumEnvironment(HostEnvironment):
    """A batch of gymnasium's environments, in this thread or each in a process of its own.

    One thread is faster unless a step takes much longer than a millisecond. The step is then taken
    in `receive`, while the device works on the update that was dispatched before.
    """

    def __init__(self, name: str, vector: Any, max_steps: int) -> None:
        self._vector = vector
        self._space = vector.single_action_space
        self._in_processes = isinstance(vector, AsyncVectorEnv)
        self._actions: Array | None = None  # of the step under way, if it is taken in this thread
        space = vector.single_observation_space
        self._dtype = np.dtype(np.float32) if space.dtype.kind == "f" else space.dtype
        shape = jax.ShapeDtypeStruct(space.shape, self._dtype)
        super().__init__(name, vector.num_envs, _actions(name, self._space), max_steps, shape)

    def _reset(self, seeds: list[int]) -> Array:
        return self._vector.reset(seed=seeds)[0].astype(self._dtype, copy=False)

    def _send(self, actions: Array) -> None:
        if self._in_processes:
            self._vector.step_async(self._scale(actions))
        else:
            self._actions = self._scale(actions)

    def _receive(self) -> tuple[Array, HostStep]:
        if self._in_processes:
            return self._unpack(*self._vector.step_wait())
        # In this thread: meanwhile the device computes in threads of its own.
        return self._unpack(*self._vector.step(self._actions))

    def _scale(self, actions: Array) -> Array:
        """Return actions as the environment expects them."""
        if isinstance(self._space, spaces.Discrete):
            return actions + self._space.start
        low, high = self._space.low, self._space.high
        unit = np.clip(actions, -1.0, 1.0).reshape(-1, *self._space.shape)
        return np.clip(low + (unit + 1.0) * 0.5 * (high - low), low, high).astype(low.dtype)

    def _unpack(
        self, obs: Array, reward: Array, terminated: Array, truncated: Array, infos: dict[str, Any]
    ) -> tuple[Array, HostStep]:
        obs = obs.astype(self._dtype, copy=False)
        final = obs
        if "final_obs" in infos:
            final = obs.copy()
            for lane in np.flatnonzero(terminated | truncated):
                final[lane] = infos["final_obs"][lane]
        reward = reward.astype(np.float32)
        return obs, HostStep(reward, terminated, truncated & ~terminated, final)

    def render(self) -> Array:
        """Return a picture `[H, W, 3]` uint8 of the first environment."""
        if self._in_processes or self._vector.render_mode != "rgb_array":
            raise ValueError(f"{self.name} was made without render=True")
        try:
            return np.array(self._vector.envs[0].render(), np.uint8)
        except (Exception, SystemExit) as error:
            raise ValueError(
                f"{self.name} cannot be rendered: rendering {raised(error)} "
                "(MuJoCo without a screen needs MUJOCO_GL=egl or MUJOCO_GL=osmesa)"
            ) from error

    def close(self) -> None:
        """Free the environments and their processes."""
        if self._vector.closed:
            return
        # Without terminate, closing would wait for a step under way, or for a worker that died.
        self._vector.close(**({"terminate": True} if self._in_processes else {}))


def make(
    name: str, spec: Any, num_envs: int, max_steps: int | None, vectorisation: str, render: bool
) -> GymnasiumEnvironment:
    """Make a batch from gymnasium's `spec`; see `experiments.environments.gymnasium.make`."""
    full = f"gymnasium/{name}"
    limit = max_steps or spec.max_episode_steps
    if limit is None:
        raise ValueError(f"{full} has no time limit of its own: give --env.max-steps")
    rendering = {"render_mode": "rgb_array"} if render else {}
    if render:
        mujoco_pictures.without_screen()
    lane = functools.partial(_make_lane, name, spec, limit, rendering)
    lanes = [functools.partial(lane, index) for index in range(num_envs)]
    first = _first(full, lanes[0])
    try:
        _actions(full, first.action_space)
        _check_observations(full, first.observation_space)
    finally:
        first.close()
    if vectorisation == "async" and not render:
        return GymnasiumEnvironment(full, _in_processes(lanes), limit)
    vector = SyncVectorEnv(lanes, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
    return GymnasiumEnvironment(full, vector, limit)


def _make_lane(
    name: str, spec: Any, limit: int, rendering: dict[str, str], index: int
) -> gymnasium.Env:
    with _quiet("mujoco" in str(spec.entry_point)):
        env = gymnasium.make(spec, max_episode_steps=limit, disable_env_checker=True, **rendering)
    if name in ("Ant-v3", "Humanoid-v3"):
        env = _without_contact_forces(env, pad=name == "Ant-v3")
    return Lane(env, index)


def _ignoring_interrupts(lane: Any) -> gymnasium.Env:
    """Make a lane in its own process, which ignores the Ctrl-C that a terminal sends to all."""
    if multiprocessing.parent_process() is not None:  # gymnasium also makes one in this process
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return lane()


@contextlib.contextmanager
def _quiet(mujoco_too: bool) -> Iterator[None]:
    """Silence notes on old versions and old model files while environments are made."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with mujoco_notes.silenced() if mujoco_too else contextlib.nullcontext():
            yield


def _without_contact_forces(env: gymnasium.Env, pad: bool) -> gymnasium.Env:
    """Make observations end in as many zeros as v3 had contact forces."""
    size = env.observation_space.shape[0] + (_CONTACT_FORCES if pad else 0)
    space = spaces.Box(-np.inf, np.inf, (size,), np.float64)
    zeros = np.zeros(_CONTACT_FORCES)

    def see(obs: Array) -> Array:
        return np.concatenate([obs if pad else obs[:-_CONTACT_FORCES], zeros])

    return gymnasium.wrappers.TransformObservation(env, see, space)


def _first(name: str, lane: Any) -> gymnasium.Env:
    """Make one environment, to check that it can be made and to see its spaces."""
    try:
        return lane()
    except (Exception, SystemExit) as error:
        raise ValueError(f"{name} cannot be made: making it {raised(error)}") from error


def _in_processes(lanes: list[Any]) -> AsyncVectorEnv:
    """Give each environment a process.

    They are forked from a server without threads, since a fork of this process, where JAX runs
    threads, may hang. The server imports this module once for all of them.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload([__name__])
    lanes = [functools.partial(_ignoring_interrupts, lane) for lane in lanes]
    return AsyncVectorEnv(
        lanes, copy=False, autoreset_mode=AutoresetMode.SAME_STEP,
        context="forkserver", daemon=True,
    )  # fmt: skip


def _actions(name: str, space: spaces.Space) -> Discrete | Continuous:
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        raise ValueError(f"{name} has actions {space}: only Discrete and Box are supported")
    if not space.is_bounded("both"):
        raise ValueError(f"{name} has unbounded actions: choose another environment")
    return Continuous(int(np.prod(space.shape)))


def _check_observations(name: str, space: spaces.Space) -> None:
    if not isinstance(space, spaces.Box):
        raise ValueError(f"{name} has observations {space}: only Box is supported")
