"""Tasks that need memory: only the first observation shows the cue that determines the reward.

`memory/TMaze-N` is a corridor of N steps to a junction (after Bakker 2002). The first observation
shows whether to turn up or down there. In `memory/Chain-N`, the action after N steps has to match
the first observation, and other actions have no effect. Without memory, the best mean return is 0
in both tasks.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents.types import Discrete
from experiments.environments import shapes
from experiments.environments.episodes import make_episodic
from experiments.environments.types import Array, CompiledConfig, Environment, size_of

NAMES = ("Chain-10", "Chain-20", "TMaze-10", "TMaze-20")  # listed ones; other sizes work as well
_MAZE, _CHAIN = "TMaze-", "Chain-"
_STAY = -0.1  # reward of a step that does not move, in the maze


class Cued(NamedTuple):
    """The cue that is shown at the start, and the position or time."""

    cue: Array  # [] float32, 1 or -1
    place: Array  # [] int32, 0 .. N


def find(name: str) -> tuple[str, int] | None:
    """Return the kind and the size N of a task; None for any other name.

    Raises:
      ValueError: N is not a whole number from 2 to 64.
    """
    for kind in (_MAZE, _CHAIN):
        if name.startswith(kind):
            return kind, size_of(f"memory/{kind}", name.removeprefix(kind))
    return None


def make(name: str, config: CompiledConfig = CompiledConfig()) -> Environment:
    """Make a task that needs memory.

    `TMaze-N` observes the cue at the start, whether the agent is at the junction, and whether it is
    in between, `[3]` float32. Action 0 moves forward. At the junction, actions 1 and 2 end the
    episode with reward 1 if they match the cue (1 for cue 1), else -1. All other actions leave the
    agent in place, with reward -0.1.

    `Chain-N` observes the cue at the start, and the share of the time that is left, `[2]` float32.
    The action after N steps ends the episode with reward 1 if it matches the cue (1 for cue 1),
    else -1.

    A max_steps of None means 4 N + 8 in the maze, and N + 1 in the chain. For errors, see `find`.
    """
    found = find(name)
    assert found is not None
    kind, n = found

    def reset(key: Array) -> tuple[Cued, Array]:
        cue = jnp.where(jax.random.bernoulli(key), 1.0, -1.0)
        state = Cued(cue.astype(jnp.float32), jnp.zeros((), jnp.int32))
        return state, see(state)

    def see_maze(state: Cued) -> Array:
        start, end = state.place == 0, state.place == n
        return jnp.stack([state.cue * start, end, ~start & ~end]).astype(jnp.float32)

    def step_maze(key: Array, state: Cued, action: Array) -> tuple[Cued, Array, Array, Array]:
        del key
        at_end, forward = state.place == n, action == 0
        turned = at_end & ~forward
        right = (action == 1) == (state.cue > 0)
        moved = ~at_end & forward
        reward = jnp.where(turned, jnp.where(right, 1.0, -1.0), jnp.where(moved, 0.0, _STAY))
        state = state._replace(place=state.place + moved)
        return state, see(state), reward, turned

    def see_chain(state: Cued) -> Array:
        return jnp.stack([state.cue * (state.place == 0), 1.0 - state.place / n])

    def step_chain(key: Array, state: Cued, action: Array) -> tuple[Cued, Array, Array, Array]:
        del key
        over = state.place == n
        right = (action == 1) == (state.cue > 0)
        reward = jnp.where(over, jnp.where(right, 1.0, -1.0), 0.0)
        state = state._replace(place=state.place + ~over)
        return state, see(state), reward, over

    def render(state: Cued) -> np.ndarray:
        """Render the way, with the agent in blue; the first cell is light for cue 1."""
        row = np.full((n + 1, 3), 230)
        row[0] = (230, 210, 160) if float(state.cue) > 0 else (170, 140, 90)
        row[int(state.place)] = (31, 119, 180)
        return shapes.cells(row[None])

    maze = kind == _MAZE
    see, step = (see_maze, step_maze) if maze else (see_chain, step_chain)
    limit = config.max_steps or (4 * n + 8 if maze else n + 1)
    space = Discrete(3 if maze else 2)
    return make_episodic(
        f"memory/{name}", reset, step, space, limit, config, renderer=lambda: render
    )
