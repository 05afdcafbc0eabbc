"""Environments of gymnax: classic control, MinAtar, small tasks of bsuite and continuous ones.

`DeepSea-bsuite-N` is DeepSea with N rows and columns, 2 to 64; without a number it has 8. Which
action goes right in which cell is drawn once for each N: it is the same in every episode, run and
seed, so that there is one policy to learn.

Left out, of the tasks with discrete actions: MemoryChain, MetaMaze and the Bernoulli and Gaussian
bandits hide what tells one episode from another, for which agents need a memory; SimpleBandit has
other rewards at every step; DiscountingChain ends by its time limit alone, beyond which agents
would expect more; MNISTBandit has to be downloaded; Pong's images fit no network; and FrozenLake
shows nothing but the number of a cell.
"""

import math

import jax.numpy as jnp
import numpy as np

from agents.types import Continuous, Discrete
from experiments.environments import gymnax_package, sized
from experiments.environments.config import EnvironmentConfig
from experiments.environments.episodes import make_episodic
from experiments.environments.gymnax_pictures import renderer
from experiments.environments.types import Array, Environment
from experiments.installation import commands

__all__ = ["NAMES", "find", "make", "renderer"]

_DEEP_SEA = "DeepSea-bsuite"

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
    "Catch-bsuite": "discrete",
    _DEEP_SEA: "discrete",
    "UmbrellaChain-bsuite": "discrete",
    "FourRooms-misc": "discrete",
    "Reacher-misc": "continuous",
    "Swimmer-misc": "continuous",
    "PointRobot-misc": "continuous",
}


def make(name: str, config: EnvironmentConfig = EnvironmentConfig()) -> Environment:
    """Make a gymnax environment.

    Binary images (of MinAtar, Catch and DeepSea) become booleans, which take a quarter of the
    memory in a replay; other observations are float32. Continuous actions are scaled from [-1, 1]
    to the environment's bounds.

    Args:
      name: one of `NAMES`, or DeepSea-bsuite-N.
      config: max_steps None takes gymnax's own limit.

    Raises:
      ValueError: as `find`.
    """
    env, params = _dynamics(name)
    limit = config.max_steps or int(params.max_steps_in_episode)
    # Some dynamics check the limit themselves; here `make_episodic` applies it.
    params = params.replace(max_steps_in_episode=np.iinfo(np.int32).max)
    image = name.endswith("MinAtar") or name.startswith(("Catch", "DeepSea"))
    space, scale = _actions(env, params, name)

    def see(obs: Array) -> Array:
        return obs > 0 if image else obs.astype(jnp.float32)

    def reset(key: Array):
        obs, state = env.reset_env(key, params)
        return state, see(obs)

    def step(key: Array, state, action: Array):
        obs, state, reward, terminated, _ = env.step_env(key, state, scale(action), params)
        return state, see(obs), reward, terminated

    return make_episodic(f"gymnax/{name}", reset, step, space, limit)


def missing(name: str) -> str | None:
    """Return the missing package and the command that installs it, or None."""
    return commands.missing(f"gymnax/{name}", {"gymnax": "gymnax"})


def find(name: str) -> int | None:
    """Return the size of a DeepSea whose name says it; None for any other name.

    Raises:
      ValueError: in one line: the size is not a whole number from 2 to 64.
    """
    prefix = f"{_DEEP_SEA}-"
    return sized.size(f"gymnax/{prefix}", name[len(prefix) :]) if name.startswith(prefix) else None


def _dynamics(name: str):
    """Return gymnax's environment and its parameters."""
    gymnax = gymnax_package.load()  # slow, and not needed by runs of other families
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
        raise ValueError(f"gymnax/{name} has unbounded actions: choose another environment")

    def scale(action: Array) -> Array:
        unit = jnp.clip(action, -1.0, 1.0).reshape(shape)
        return low + (unit + 1.0) * 0.5 * (high - low)

    return Continuous(math.prod(shape)), scale
