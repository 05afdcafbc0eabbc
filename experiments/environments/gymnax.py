"""Environments of gymnax: classic control, MinAtar and small continuous tasks."""

import math

import jax.numpy as jnp
import numpy as np

from agents.types import Continuous, Discrete
from experiments.environments.config import EnvironmentConfig
from experiments.environments.episodes import make_episodic
from experiments.environments.gymnax_pictures import renderer
from experiments.environments.types import Array, Environment

__all__ = ["NAMES", "make", "renderer"]

# Name in gymnax -> kind of actions.
NAMES = {
    "CartPole-v1": "discrete",
    "Acrobot-v1": "discrete",
    "MountainCar-v0": "discrete",
    "Pendulum-v1": "continuous",
    "MountainCarContinuous-v0": "continuous",
    "Asterix-MinAtar": "discrete",
    "Breakout-MinAtar": "discrete",
    "Freeway-MinAtar": "discrete",
    "Seaquest-MinAtar": "discrete",
    "SpaceInvaders-MinAtar": "discrete",
    "Reacher-misc": "continuous",
    "Swimmer-misc": "continuous",
    "PointRobot-misc": "continuous",
}


def make(name: str, config: EnvironmentConfig = EnvironmentConfig()) -> Environment:
    """Make a gymnax environment.

    MinAtar's binary images become booleans, which take a quarter of the memory in a replay.
    Continuous actions are scaled from [-1, 1] to the environment's bounds.

    Args:
      name: one of `NAMES`.
      config: max_steps None takes gymnax's own limit.
    """
    import gymnax  # slow, and not needed by runs of other families

    env, params = gymnax.make(name)
    limit = config.max_steps or int(params.max_steps_in_episode)
    # Some dynamics check the limit themselves; here `make_episodic` applies it.
    params = params.replace(max_steps_in_episode=np.iinfo(np.int32).max)
    image = name.endswith("MinAtar")
    space, scale = _actions(env, params, name)

    def see(obs: Array) -> Array:
        return obs > 0 if image else obs

    def reset(key: Array):
        obs, state = env.reset_env(key, params)
        return state, see(obs)

    def step(key: Array, state, action: Array):
        obs, state, reward, terminated, _ = env.step_env(key, state, scale(action), params)
        return state, see(obs), reward, terminated

    return make_episodic(f"gymnax/{name}", reset, step, space, limit)


def _actions(env, params, name: str):
    """Return the action space, and a function from its actions to gymnax's."""
    space = env.action_space(params)
    if hasattr(space, "n"):
        return Discrete(int(space.n)), lambda action: action
    shape = space.shape
    low = np.broadcast_to(np.asarray(space.low, np.float32), shape)
    high = np.broadcast_to(np.asarray(space.high, np.float32), shape)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ValueError(f"gymnax/{name} has unbounded actions: choose another environment")

    def scale(action: Array) -> Array:
        unit = jnp.clip(action, -1.0, 1.0).reshape(shape)
        return low + (unit + 1.0) * 0.5 * (high - low)

    return Continuous(math.prod(shape)), scale
