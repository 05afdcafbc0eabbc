"""Tasks with a goal that changes in every episode: flip bits, and reach a point.

Observations are flat: the observation, the achieved goal and the desired goal, as
`jaxreplay.types.Goals` describes. An episode terminates at its goal; each step before has a reward
of -1, so random actions hardly ever see any other reward (Andrychowicz et al. 2017, Sec. 3.1).
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents.types import Continuous, Discrete
from experiments.environments import shapes
from experiments.environments.episodes import make_episodic
from experiments.environments.types import Array, CompiledConfig, Environment, size_of
from jaxreplay.types import Goals

ACTIONS: Mapping[str, str] = MappingProxyType(
    {
        "BitFlip-8": "discrete",
        "BitFlip-15": "discrete",
        "BitFlip-25": "discrete",
        "PointReach": "continuous",
    }
)  # listed ones; any of `types.SIZES` works for BitFlip

_BITS = "BitFlip-"
_REACH = 0.1  # distance at which a point counts as reached
_FRICTION, _THRUST = 0.2, 0.05  # lost share of the velocity, and gained velocity, per step
_REACH_STEPS = 50


@dataclasses.dataclass(frozen=True)
class Within:
    """Reward of goals that count as reached within a Euclidean distance.

    Args:
      distance: largest distance between the achieved and the desired goal.
    """

    distance: float

    def __call__(self, achieved: Array, desired: Array) -> tuple[Array, Array]:
        """Return the reward (0 at the goal, else -1) and whether the goal is reached, `[...]`."""
        apart = jnp.square(achieved - desired).sum(axis=-1)
        reached = apart <= self.distance**2
        return reached.astype(jnp.float32) - 1.0, reached


class Bits(NamedTuple):
    """The present and the desired bits."""

    bits: Array  # [N] float32, 0 or 1
    desired: Array  # [N] float32, 0 or 1


class Point(NamedTuple):
    """A point mass in the square from -1 to 1, and the desired position."""

    position: Array  # [2] float32
    velocity: Array  # [2] float32, per step
    desired: Array  # [2] float32


def find(name: str) -> int | None:
    """Return the number of bits N of `goals/BitFlip-N`, or None for other names.

    Raises:
      ValueError: the number is not from 2 to 64.
    """
    if not name.startswith(_BITS):
        return None
    return size_of(f"goals/{_BITS}", name.removeprefix(_BITS))


def make(name: str, config: CompiledConfig = CompiledConfig()) -> Environment:
    """Make a task with goals.

    `BitFlip-N` has N bits, 0 or 1; action i flips bit i, and the desired bits are random. Its
    observation is empty apart from the goals: `[2 N]` float32, the bits and the desired bits.

    `PointReach` accelerates a point mass towards a random position; observations are the velocity,
    the position and the desired position, `[6]` float32.

    Args:
      name: `PointReach`, or `BitFlip-` and the number of bits, 2 to 64.
      config: options; a max_steps of None means N, or 50 for `PointReach`.

    Raises:
      ValueError: as in `find`, or an option changes goals or rewards.
    """
    if config.hide or config.project or config.delay > 1 or config.sparse:
        raise ValueError(
            f"goals/{name} computes rewards from goals, and hindsight would ignore these options: "
            "leave out --env.hide, --env.project, --env.delay and --env.sparse"
        )
    n = find(name)
    return _point(config) if n is None else _bits(name, n, config)


def _bits(name: str, n: int, config: CompiledConfig) -> Environment:
    goals = Goals(Within(0.5), size=n)

    def see(state: Bits) -> Array:
        return jnp.concatenate(state)

    def reset(key: Array) -> tuple[Bits, Array]:
        drawn = jax.random.bernoulli(key, 0.5, (2, n)).astype(jnp.float32)
        state = Bits(drawn[0], drawn[1])
        return state, see(state)

    def step(key: Array, state: Bits, action: Array) -> tuple[Bits, Array, Array, Array]:
        del key
        flipped = jnp.abs(state.bits - jax.nn.one_hot(action, n))
        state = Bits(flipped, state.desired)
        return state, see(state), *goals.reward(state.bits, state.desired)

    def render(state: Bits) -> np.ndarray:
        """Render the bits above the desired bits, blue for 1."""
        rows = np.stack([np.asarray(state.bits), np.asarray(state.desired)])
        return shapes.cells(np.where(rows[..., None] > 0, (31, 119, 180), (230, 230, 230)))

    limit, space = config.max_steps or n, Discrete(n)
    made = make_episodic(
        f"goals/{name}", reset, step, space, limit, config, renderer=lambda: render
    )
    return made._replace(goals=goals)


def _point(config: CompiledConfig) -> Environment:
    goals = Goals(Within(_REACH), size=2)

    def see(state: Point) -> Array:
        return jnp.concatenate([state.velocity, state.position, state.desired])

    def reset(key: Array) -> tuple[Point, Array]:
        drawn = jax.random.uniform(key, (2, 2), jnp.float32, -1.0, 1.0)
        state = Point(drawn[0], jnp.zeros(2, jnp.float32), drawn[1])
        return state, see(state)

    def step(key: Array, state: Point, action: Array) -> tuple[Point, Array, Array, Array]:
        del key
        thrust = _THRUST * jnp.clip(action, -1.0, 1.0)
        velocity = (1.0 - _FRICTION) * state.velocity + thrust
        position = jnp.clip(state.position + velocity, -1.0, 1.0)
        # A wall stops the point.
        velocity = jnp.where(jnp.abs(position) < 1.0, velocity, 0.0)
        state = Point(position, velocity, state.desired)
        return state, see(state), *goals.reward(state.position, state.desired)

    def render(state: Point) -> np.ndarray:
        """Render the point in red, and the disc that it has to reach in green."""
        goal = np.asarray(state.desired), _REACH, shapes.GREEN
        point = np.asarray(state.position), 0.04, shapes.RED
        walls = [(-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1)], 0.02, shapes.BLACK
        return shapes.picture((-1.1, 1.1, -1.1, 1.1), [walls], [goal, point])

    limit, space = config.max_steps or _REACH_STEPS, Continuous(2)
    made = make_episodic(
        "goals/PointReach", reset, step, space, limit, config, renderer=lambda: render
    )
    return made._replace(goals=goals)
