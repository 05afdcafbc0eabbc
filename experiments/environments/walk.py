"""The Blind Cliffwalk of Schaul et al. 2016 (Sec. 3.1, App. B.1) as an environment.

`walk/N` has N states in a row. In each, one action leads to the next state and the other ends the
episode; only the last step has a reward, 1. Random actions reach it in one of 2^N episodes. The
right action alternates from state to state, so that learning about one state does not generalise.
"""

from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from agents.types import Discrete
from experiments.environments import shapes
from experiments.environments.episodes import make_episodic
from experiments.environments.types import Array, CompiledConfig, Environment, size_of

NAMES = ("8", "10", "12", "16")  # listed ones; any of `types.SIZES` works

Numbers = TypeVar("Numbers", int, np.ndarray, jax.Array)


class Walker(NamedTuple):
    """The position of the agent."""

    position: Array  # [] int32, 0 .. N - 1; N after the end of the episode


def find(name: str) -> int:
    """Return the number of states, N, of the environment `walk/<name>`.

    Raises:
      ValueError: the name is not a number from 2 to 64.
    """
    return size_of("walk/", name)


def right_action(state: Numbers) -> Numbers:
    """Return the right action in states `[...]` int: 0, 1, 0, 1 ... (App. B.1)."""
    return state % 2


def make(name: str, config: CompiledConfig = CompiledConfig()) -> Environment:
    """Make the walk; observations are one-hot, `[N]` float32, or all 0 after an episode's end.

    A max_steps of None means N, the longest episode. For errors, see `find`.
    """
    n = find(name)
    # States are light where action 0 is right and dark where action 1 is; the end is black.
    row = np.array([(230, 210, 160), (170, 140, 90)])[right_action(np.arange(n))]
    row = np.concatenate([row, np.zeros((1, 3), row.dtype)])

    def render(walker: Walker) -> np.ndarray:
        place = np.arange(n + 1)[:, None] == int(walker.position)
        return shapes.cells(np.where(place, (31, 119, 180), row)[None])

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

    limit, space = config.max_steps or n, Discrete(2)
    return make_episodic(f"walk/{name}", reset, step, space, limit, config, renderer=lambda: render)
