"""Pendulum*: keep a pendulum upright for a sparse reward (Oh et al. 2021, Sec. 3.1).

The dynamics are those of OpenAI Gym's Pendulum-v0, which updates the angle before it clips the
speed. The reward is 1 if the rod has been within pi/3 of upright for over 20 steps in a row.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents.types import Continuous
from experiments.environments import shapes
from experiments.environments.episodes import make_episodic
from experiments.environments.types import Array, CompiledConfig, Environment

NAMES = ("Pendulum-v0",)

_MAX_SPEED = 8.0  # rad/s
_MAX_TORQUE = 2.0  # N m
_TIMESTEP = 0.05  # s
_UPRIGHT = jnp.pi / 3  # rad
_PATIENCE = 20  # steps upright without a reward
_MAX_STEPS = 200


class Pendulum(NamedTuple):
    """Position and speed of the rod; gravity 10 m/s^2, mass 1 kg, length 1 m."""

    angle: Array  # [] rad, 0 is upright
    speed: Array  # [] rad/s
    upright: Array  # [] int32, steps in a row within pi/3 of upright


def swing(angle: Array, speed: Array, torque: Array) -> tuple[Array, Array]:
    """Return angle (rad) and speed (rad/s) one step of 0.05 s later; torque in N m is clipped."""
    torque = jnp.clip(torque, -_MAX_TORQUE, _MAX_TORQUE)
    speed = speed + (15.0 * jnp.sin(angle) + 3.0 * torque) * _TIMESTEP
    return angle + speed * _TIMESTEP, jnp.clip(speed, -_MAX_SPEED, _MAX_SPEED)


def count_upright(upright: Array, angle: Array) -> Array:
    """Return the number of upright steps in a row after a step to `angle` (rad)."""
    wrapped = jnp.mod(angle + jnp.pi, 2 * jnp.pi) - jnp.pi
    return jnp.where(jnp.abs(wrapped) <= _UPRIGHT, upright + 1, 0)


def reward(upright: Array) -> Array:
    """Return 1 after more than 20 upright steps in a row, else 0."""
    return (upright > _PATIENCE).astype(jnp.float32)


def make(name: str, config: CompiledConfig = CompiledConfig()) -> Environment:
    """Make the sparse pendulum; observations are cosine, sine and speed, actions torque / 2.

    The number of upright steps is not observed. Episodes never terminate; a max_steps of None means
    200, as in Gym.
    """

    def see(state: Pendulum) -> Array:
        return jnp.stack([jnp.cos(state.angle), jnp.sin(state.angle), state.speed])

    def reset(key: Array) -> tuple[Pendulum, Array]:
        key_angle, key_speed = jax.random.split(key)
        state = Pendulum(
            jax.random.uniform(key_angle, (), jnp.float32, -jnp.pi, jnp.pi),
            jax.random.uniform(key_speed, (), jnp.float32, -1.0, 1.0),
            jnp.zeros((), jnp.int32),
        )
        return state, see(state)

    def step(key: Array, state: Pendulum, action: Array) -> tuple[Pendulum, Array, Array, Array]:
        del key
        torque = _MAX_TORQUE * jnp.clip(action[0], -1.0, 1.0)
        angle, speed = swing(state.angle, state.speed, torque)
        state = Pendulum(angle, speed, count_upright(state.upright, angle))
        return state, see(state), reward(state.upright), jnp.zeros((), bool)

    def render(state: Pendulum) -> np.ndarray:
        rod = [(0.0, 0.0), (-np.sin(float(state.angle)), np.cos(float(state.angle)))]
        hinge = (0.0, 0.0), 0.05, shapes.BLACK
        return shapes.picture((-1.3, 1.3, -1.3, 1.3), [(rod, 0.2, shapes.RED)], [hinge])

    limit, space = config.max_steps or _MAX_STEPS, Continuous(1)
    return make_episodic(
        f"sparse_pendulum/{name}", reset, step, space, limit, config, renderer=lambda: render
    )
