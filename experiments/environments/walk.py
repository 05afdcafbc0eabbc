"""The Blind Cliffwalk of Schaul et al. 2016 (Sec. 3.1, App. B.1), to walk on instead of by memory.

`walk/N` has N states in a row. In each, one action leads on to the next and the other ends the
episode; the last step on is rewarded with 1, and no other. Random actions get there in one of 2^N
episodes. Which action is right alternates from state to state, so that nothing that was learned of
one state helps in the next.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from agents.types import Discrete
from experiments.environments import sized
from experiments.environments.config import EnvironmentConfig
from experiments.environments.episodes import make_episodic
from experiments.environments.shapes import BLACK, BLUE, GREEN, GREY, RED, SAND, Canvas
from experiments.environments.types import Array, Environment

NAMES = ("8", "10", "12", "16")  # that are listed; any of `sized.SIZES` will do

_CELL = 32  # pixels of a cell's side

Numbers = TypeVar("Numbers", int, np.ndarray, jax.Array)


class Walker(NamedTuple):
    """Where the agent is."""

    position: Array  # [] int32, 0 .. N - 1; N: nowhere, as the episode is over


def find(name: str) -> int:
    """Return the number of states, N, of the environment `walk/<name>`.

    Raises:
      ValueError: in one line: the name is not a number from 2 to 64.
    """
    return sized.size("walk/", name)


def right_action(state: Numbers) -> Numbers:
    """Return the action that leads on from states `[...]` int: 0, 1, 0, 1 ... (App. B.1)."""
    return state % 2


def make(name: str, config: EnvironmentConfig = EnvironmentConfig()) -> Environment:
    """Make the walk; observations are one-hot, `[N]` float32, and 0 after either end.

    Args:
      name: the number of states, 2 to 64, such as 10.
      config: max_steps None leaves every episode its end: they are at most N agent steps long.

    Raises:
      ValueError: as `find`.
    """
    n = find(name)

    def see(walker: Walker) -> Array:
        return jax.nn.one_hot(walker.position, n)  # of N: zeros

    def reset(key: Array) -> tuple[Walker, Array]:
        del key
        walker = Walker(jnp.zeros((), jnp.int32))
        return walker, see(walker)

    def step(key: Array, walker: Walker, action: Array) -> tuple[Walker, Array, Array, Array]:
        del key
        right = action == right_action(walker.position)
        walker = Walker(jnp.where(right, walker.position + 1, n))
        terminated = walker.position == n
        return walker, see(walker), right & terminated, terminated

    return make_episodic(f"walk/{name}", reset, step, Discrete(2), config.max_steps or n)


def renderer(
    name: str, config: EnvironmentConfig = EnvironmentConfig()
) -> Callable[[Walker], np.ndarray]:
    """Return `render(state) -> [H, W, 3] uint8`: the states side by side, and the flag behind them.

    The mark on each is at the left where action 0 is right, and at the right where action 1 is.
    """
    del config
    n = find(name)

    def render(walker: Walker) -> np.ndarray:
        canvas = Canvas(-0.5, n + 0.5, -1.0, 1.0, width=_CELL * (n + 1))
        for cell in range(n + 1):
            left, right = cell - 0.47, cell + 0.47
            ground = [(left, -1.0), (right, -1.0), (right, 0.0), (left, 0.0)]
            canvas.polygon(ground, SAND if cell < n else GREY)
            if cell < n:
                canvas.disc((cell - 0.25 + 0.5 * right_action(cell), -0.5), 0.12, RED)
        canvas.line([(n - 0.2, 0.0), (n - 0.2, 0.9)], BLACK, 0.06)
        canvas.polygon([(n - 0.2, 0.9), (n - 0.2, 0.4), (n + 0.35, 0.65)], GREEN)
        canvas.disc((float(walker.position), 0.35), 0.3, BLUE)
        return canvas.picture()

    return render
