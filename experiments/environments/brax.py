"""Locomotion and pendulum environments of brax, on any of its physics backends."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from agents.types import Continuous
from experiments.environments import mujoco
from experiments.environments.episodes import Step, make_episodic
from experiments.environments.types import Array, CompiledConfig, Environment
from jaxreplay.option import option

NAMES = (
    "ant", "halfcheetah", "hopper", "walker2d", "humanoid", "humanoidstandup",
    "inverted_pendulum", "inverted_double_pendulum", "pusher", "reacher", "swimmer",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class BraxConfig(CompiledConfig):
    """Options of a brax environment."""

    backend: Literal["spring", "positional", "generalized", "mjx"] | None = option(
        None, "physics; none: spring"
    )


def make(name: str, config: BraxConfig = BraxConfig()) -> Environment:
    """Make a brax environment.

    Actions are clipped to [-1, 1], the scaled control range of the actuators. Diverging physics
    appears as NaN in observations and rewards.

    Args:
      name: one of `NAMES`.
      config: options; a max_steps of None means 1000.

    Raises:
      ValueError: the environment does not support the backend.
    """
    env = _load(name, config)

    def reset(key: Array):
        state = env.reset(key)
        return state, state.obs

    # brax's own environments scale actions to actuators with another range.
    step, space = clipped_step(env), Continuous(env.action_size)
    limit = config.max_steps or 1000
    return make_episodic(f"brax/{name}", reset, step, space, limit, config, costly_reset=True)


def clipped_step(env: Any) -> Step:
    """Return the step of an environment with brax's interface, with actions clipped to [-1, 1]."""

    def step(key: Array, state: Any, action: Array) -> tuple[Any, Array, Array, Array]:
        del key  # the physics is deterministic
        state = env.step(state, jnp.clip(action, -1.0, 1.0))
        return state, state.obs, state.reward, state.done > 0

    return step


def renderer(name: str, config: BraxConfig = BraxConfig()) -> Callable[[Any], np.ndarray]:
    """Return `render(state) -> [H, W, 3] uint8` for brax's own state.

    Raises:
      ValueError: OpenGL is missing.
    """

    def place(data: Any, state: Any) -> None:
        data.qpos, data.qvel = state.pipeline_state.q, state.pipeline_state.qd

    return mujoco.renderer(f"brax/{name}", _load(name, config).sys.mj_model, place)


def _load(name: str, config: BraxConfig):
    backend = config.backend or "spring"
    with mujoco.quiet():
        from brax import envs  # slow, and not needed by runs of other families

        try:
            return envs.get_environment(name, backend=backend)
        except (NotImplementedError, KeyError, AttributeError) as error:
            raise ValueError(f"brax/{name} does not run on backend {backend!r}: {error}") from error
