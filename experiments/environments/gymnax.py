"""Environments of gymnax: classic control, MinAtar, small bsuite tasks and continuous tasks.

`DeepSea-bsuite-N` is DeepSea with N rows and columns, 2 to 64; the default is 8. The mapping of
actions in its cells is drawn once per N and shared by all episodes, runs and seeds, so that one
policy solves it.

Tasks with discrete actions that are left out: MemoryChain, MetaMaze and the Bernoulli and Gaussian
bandits require memory; SimpleBandit has other rewards at every step; DiscountingChain ends only by
its time limit; MNISTBandit needs a download; Pong's images fit no network; FrozenLake observes only
the number of a cell.
"""

import importlib
import math
import os
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np

from agents.types import Continuous, Discrete
from experiments.environments import shapes
from experiments.environments.episodes import make_episodic
from experiments.environments.extras import lacking_extra
from experiments.environments.types import Array, CompiledConfig, Environment, Render, size_of

_DEEP_SEA = "DeepSea-bsuite"

# Name in gymnax -> kind of actions.
NAMES = {
    "CartPole-v1": "discrete", "Acrobot-v1": "discrete", "MountainCar-v0": "discrete",
    "Pendulum-v1": "continuous", "MountainCarContinuous-v0": "continuous",
    "Asterix-MinAtar": "discrete", "Breakout-MinAtar": "discrete", "Freeway-MinAtar": "discrete",
    "Seaquest-MinAtar": "discrete", "SpaceInvaders-MinAtar": "discrete",
    "Catch-bsuite": "discrete", _DEEP_SEA: "discrete", "UmbrellaChain-bsuite": "discrete",
    "FourRooms-misc": "discrete", "Reacher-misc": "continuous", "Swimmer-misc": "continuous",
    "PointRobot-misc": "continuous",
}  # fmt: skip

# Episodes of these terminate only by solving the task.
_SOLVED_ENDS = ("MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1")
# gymnax cannot render these.
_NOT_DRAWN = ("Reacher-misc", "Swimmer-misc", "UmbrellaChain-bsuite")


def make(name: str, config: CompiledConfig = CompiledConfig()) -> Environment:
    """Make a gymnax environment.

    Binary images (of MinAtar, Catch and DeepSea) become booleans, which take a quarter of the
    memory in a replay; other observations are float32. Continuous actions are scaled from [-1, 1]
    to the environment's bounds.

    Args:
      name: one of `NAMES`, or DeepSea-bsuite-N.
      config: options; a max_steps of None means gymnax's time limit.

    Raises:
      ValueError: as in `find`.
    """
    env, params = load(name)
    image = name.endswith("MinAtar") or name.startswith(("Catch", "DeepSea"))
    solved, drawn = name in _SOLVED_ENDS, None if name in _NOT_DRAWN else partial(_renderer, name)
    return from_gymnax(f"gymnax/{name}", env, params, config, image, solved, drawn)


def from_gymnax(
    name: str,
    env: Any,
    params: Any,
    config: CompiledConfig = CompiledConfig(),
    image: bool = False,
    ends_with_success: bool = False,
    renderer: Callable[[], Render] | None = None,
) -> Environment:
    """Make an Environment from one with gymnax's interface, which other packages share.

    Args:
      name: full name, such as craftax/Craftax-Symbolic-v1.
      env: has `reset_env`, `step_env` and `action_space`.
      params: its parameters, with the time limit as `max_steps_in_episode` or `max_timesteps`.
      config: options; a max_steps of None means the time limit of `params`.
      image: whether observations are binary images.
      ends_with_success: whether episodes terminate only by solving the task.
      renderer: as for `make_episodic`.

    Raises:
      ValueError: actions are unbounded, or an option does not fit the environment.
    """
    field = "max_timesteps" if hasattr(params, "max_timesteps") else "max_steps_in_episode"
    limit = config.max_steps or int(getattr(params, field))
    # Disable the time limit of the dynamics, since `make_episodic` applies it.
    params = params.replace(**{field: np.iinfo(np.int32).max})
    space, scale = _actions(env, params, name)

    def see(obs: Array) -> Array:
        return obs > 0 if image else obs.astype(jnp.float32)

    def reset(key: Array):
        obs, state = env.reset_env(key, params)
        return state, see(obs)

    def step(key: Array, state, action: Array):
        obs, state, reward, terminated, _ = env.step_env(key, state, scale(action), params)
        return state, see(obs), reward, terminated

    return make_episodic(
        name, reset, step, space, limit, config,
        ends_with_success=ends_with_success, renderer=renderer,
    )  # fmt: skip


def find(name: str) -> int | None:
    """Return the size N of DeepSea-bsuite-N; None for any other name.

    Raises:
      ValueError: N is not a whole number from 2 to 64.
    """
    prefix = f"{_DEEP_SEA}-"
    return size_of(f"gymnax/{prefix}", name[len(prefix) :]) if name.startswith(prefix) else None


def load(name: str):
    """Return gymnax's environment and its parameters.

    Gymnax uses seaborn only to render Pong, and the import of seaborn takes five times as long as
    the import of gymnax itself. Seaborn is therefore imported only when Pong is rendered.
    """
    if "gymnax" not in sys.modules and "seaborn" not in sys.modules:
        later = ModuleType("seaborn")
        later.__getattr__ = lambda name: getattr(importlib.import_module("seaborn"), name)
        sys.modules["seaborn"] = later
        try:
            import gymnax
        finally:
            del sys.modules["seaborn"]
    import gymnax

    size = find(name)
    return gymnax.make(name) if size is None else gymnax.make(_DEEP_SEA, size=size)


def _actions(env, params, name: str):
    """Return the action space, and a function from its actions to gymnax's."""
    space = env.action_space(params)
    if hasattr(space, "n"):
        return Discrete(int(space.n)), lambda action: action
    shape = space.shape
    low = np.broadcast_to(np.asarray(space.low, np.float32), shape)
    high = np.broadcast_to(np.asarray(space.high, np.float32), shape)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ValueError(f"{name} has unbounded actions: choose another environment")

    def scale(action: Array) -> Array:
        unit = jnp.clip(action, -1.0, 1.0).reshape(shape)
        return low + (unit + 1.0) * 0.5 * (high - low)

    return Continuous(math.prod(shape)), scale


def _renderer(name: str) -> Render:
    """Return gymnax's own renderer; raise ValueError if a package that it needs is missing."""
    if name.startswith(_DEEP_SEA):
        return _deep_sea
    if reason := lacking_extra(f"a picture of gymnax/{name}", {"pygame": "gymnax"}):
        raise ValueError(reason)
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")  # avoids warnings without a sound card
    env, params = load(name)
    from gymnax.visualize import vis_gym

    if name in vis_gym.SUPPORTED_GYM_ENVS:
        return lambda state: vis_gym.render_gym_frame(name, state, params)
    return _visualizer(env, params)


def _visualizer(env: Any, params: Any) -> Render:
    from gymnax.visualize import Visualizer
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    states: list[Any] = [None]
    picture = Visualizer(env, params, states)
    canvas = FigureCanvasAgg(picture.fig)

    def render(state: Any) -> np.ndarray:
        first, states[0] = states[0] is None, state
        if first:
            picture.init()
        picture.update(0)
        picture.ax.set_title(env.name)  # omits the number of the step
        canvas.draw()
        return np.array(canvas.buffer_rgba())[..., :3]

    return render


def _deep_sea(state: Any) -> np.ndarray:
    """Render reachable cells in grey, the goal in amber, and the player in white."""
    size = len(state.action_mapping)
    grid = np.where(np.tri(size, dtype=bool)[..., None], [120, 130, 140], 0)
    grid[-1, -1] = 255, 187, 60
    grid[int(state.row), int(state.column)] = 255
    return shapes.cells(grid)
