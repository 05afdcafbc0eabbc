"""A batch of gymnasium's environments, in one thread or in processes."""

import contextlib
import functools
import multiprocessing
import signal
import warnings
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from agents.types import Continuous, Discrete
from experiments.environments import mujoco
from experiments.environments.host import (
    Array,
    HostEnvironment,
    OneFailed,
    describe_error,
    map_arrays,
)
from experiments.environments.types import TimeStep
from jaxreplay.types import Tree

_CONTACT_FORCES = 84  # entries of the observation of Ant-v3 and Humanoid-v3, zero with MuJoCo 2


class Indexed(gymnasium.Wrapper):
    """One environment of the batch, with one-hot Discrete observations, and its index in errors.

    All results are copied at once, because many environments write into the same arrays at every
    step and in the reset at the end of an episode. Infos are dropped, because gathering them over
    the batch takes as long as the physics.
    """

    def __init__(self, env: gymnasium.Env, index: int) -> None:
        super().__init__(env)
        space = env.observation_space
        self.observation_space = _one_hot_space(space)
        self._index = index
        self._see = np.array if isinstance(space, spaces.Box) else functools.partial(_copied, space)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        try:
            return self._see(self.env.reset(seed=seed, options=options)[0]), {}
        except (Exception, SystemExit) as error:
            raise OneFailed(self._index, describe_error(error)) from error

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        try:
            obs, *numbers = self.env.step(action)[:4]
            reward, terminated, truncated = (np.asarray(number).item() for number in numbers)
            return self._see(obs), reward, terminated, truncated, {}
        except (Exception, SystemExit) as error:
            raise OneFailed(self._index, describe_error(error)) from error


class GymnasiumEnvironment(HostEnvironment):
    """A batch of gymnasium's environments, in this thread or with a process each.

    One thread is faster unless a step is much longer than a millisecond. With one thread, `receive`
    steps the environments, while the device computes the update that was dispatched before.
    """

    def __init__(self, name: str, vector: Any, max_steps: int) -> None:
        self._vector = vector
        self._space = vector.single_action_space
        self._in_processes = isinstance(vector, AsyncVectorEnv)
        self._actions: Array | None = None  # actions of the current step, in this thread
        like = _shapes(vector.single_observation_space)
        super().__init__(name, vector.num_envs, _actions(name, self._space), max_steps, like)

    def _reset(self, seeds: list[int]) -> Tree:
        return self._cast(self._vector.reset(seed=seeds)[0])

    def _send(self, actions: Array) -> None:
        self._actions = self._scale(actions)
        if self._in_processes:
            self._vector.step_async(self._actions)

    def _receive(self) -> tuple[Tree, TimeStep]:
        if self._in_processes:
            return self._unpack(*self._vector.step_wait())
        return self._unpack(*self._vector.step(self._actions))

    def _scale(self, actions: Array) -> Array:
        """Return actions within the environment's bounds."""
        if isinstance(self._space, spaces.Discrete):
            return actions + self._space.start
        low, high = self._space.low, self._space.high
        unit = np.clip(actions, -1.0, 1.0).reshape(-1, *self._space.shape)
        return np.clip(low + (unit + 1.0) * 0.5 * (high - low), low, high).astype(low.dtype)

    def _unpack(
        self, obs: Any, reward: Array, terminated: Array, truncated: Array, infos: dict[str, Any]
    ) -> tuple[Tree, TimeStep]:
        obs = final = self._cast(obs)
        if "final_obs" in infos:
            final = map_arrays(np.copy, obs)
            for index in np.flatnonzero(terminated | truncated):
                map_arrays(functools.partial(_put, index), final, infos["final_obs"][index])
        reward = reward.astype(np.float32)
        return obs, TimeStep(reward, terminated, truncated & ~terminated, final)

    def _cast(self, obs: Any) -> Tree:
        return map_arrays(lambda x, like: x.astype(like.dtype, copy=False), obs, self.obs)

    def render(self) -> Array:
        if self._in_processes or self._vector.render_mode != "rgb_array":
            raise ValueError(f"{self.name} was made without render=True")
        try:
            return np.array(self._vector.envs[0].render(), np.uint8)
        except (Exception, SystemExit) as error:
            raise ValueError(
                f"{self.name} cannot be rendered: rendering {describe_error(error)} "
                "(MuJoCo without a screen needs MUJOCO_GL=egl or MUJOCO_GL=osmesa)"
            ) from error

    def close(self) -> None:
        if self._vector.closed:
            return
        # Without terminate, closing waits for the current step, or for a worker that has died.
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
        mujoco.without_screen()
    one = functools.partial(_make_one, name, spec, limit, rendering)
    each = [functools.partial(one, index) for index in range(num_envs)]
    try:
        first = one(0)  # to check that it can be made, and its spaces
    except (Exception, SystemExit) as error:
        raise ValueError(f"{full} cannot be made: making it {describe_error(error)}") from error
    with contextlib.closing(first):
        _actions(full, first.action_space)
        if not _is_supported(space := first.env.observation_space):
            raise ValueError(
                f"{full} has observations {space}: only Box, Discrete and Dict are supported"
            )
    if vectorisation == "async" and not render:
        return GymnasiumEnvironment(full, _in_processes(each), limit)
    vector = SyncVectorEnv(each, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
    return GymnasiumEnvironment(full, vector, limit)


def _make_one(
    name: str, spec: Any, limit: int, rendering: dict[str, str], index: int
) -> gymnasium.Env:
    uses_mujoco = "mujoco" in str(spec.entry_point)
    with warnings.catch_warnings(), mujoco.quiet() if uses_mujoco else contextlib.nullcontext():
        warnings.simplefilter("ignore")  # about old versions of environments
        env = gymnasium.make(spec, max_episode_steps=limit, disable_env_checker=True, **rendering)
    if name in ("Ant-v3", "Humanoid-v3"):
        env = _without_contact_forces(env, pad=name == "Ant-v3")
    return Indexed(env, index)


def _without_contact_forces(env: gymnasium.Env, pad: bool) -> gymnasium.Env:
    """Set the contact forces at the end of observations to zero, as in v3; `pad` appends them."""
    size = env.observation_space.shape[0] + (_CONTACT_FORCES if pad else 0)
    space = spaces.Box(-np.inf, np.inf, (size,), np.float64)
    zeros = np.zeros(_CONTACT_FORCES)

    def see(obs: Array) -> Array:
        return np.concatenate([obs if pad else obs[:-_CONTACT_FORCES], zeros])

    return gymnasium.wrappers.TransformObservation(env, see, space)


def _is_supported(space: spaces.Space) -> bool:
    if isinstance(space, spaces.Dict):
        return len(space) > 0 and all(map(_is_supported, space.values()))
    return isinstance(space, spaces.Box | spaces.Discrete)


def _one_hot_space(space: spaces.Space) -> spaces.Space:
    """Return the space of the results of `_copied`; unsupported spaces are unchanged."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _one_hot_space(part) for key, part in space.items()})
    if isinstance(space, spaces.Discrete):
        return spaces.Box(0, 1, (int(space.n),), np.int8)
    return space


def _copied(space: spaces.Space, obs: Any) -> Tree:
    """Copy an observation, with Discrete entries one-hot."""
    if isinstance(space, spaces.Dict):
        return {key: _copied(part, obs[key]) for key, part in space.items()}
    if isinstance(space, spaces.Discrete):
        return (np.arange(space.n) == np.asarray(obs) - space.start).astype(np.int8)
    return np.array(obs)


def _shapes(space: Any) -> Tree:
    """Return the shapes and dtypes of observations, floats as float32."""
    if isinstance(space, spaces.Dict):
        return {key: _shapes(part) for key, part in space.items()}
    dtype = np.dtype(np.float32) if space.dtype.kind == "f" else space.dtype
    return jax.ShapeDtypeStruct(space.shape, dtype)


def _put(index: int, into: Array, value: Array) -> None:
    into[index] = value


def _in_processes(each: list[Any]) -> AsyncVectorEnv:
    """Give each environment a process, forked from a server that imports this module once.

    A fork of this process may hang, because JAX runs threads in it.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload([__name__])
    return AsyncVectorEnv(
        [functools.partial(_ignoring_interrupts, one) for one in each],
        copy=False, autoreset_mode=AutoresetMode.SAME_STEP, context="forkserver", daemon=True,
    )  # fmt: skip


def _ignoring_interrupts(make_one: Any) -> gymnasium.Env:
    """Make an environment in its process, which ignores the Ctrl-C that a terminal sends to all."""
    if multiprocessing.parent_process() is not None:  # gymnasium also makes one in this process
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return make_one()


def _actions(name: str, space: spaces.Space) -> Discrete | Continuous:
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        raise ValueError(f"{name} has actions {space}: only Discrete and Box are supported")
    if not space.is_bounded("both"):
        raise ValueError(f"{name} has unbounded actions: choose another environment")
    return Continuous(int(np.prod(space.shape)))
