"""Locomotion and pendulum environments of brax, on any of its physics backends."""

import contextlib
import dataclasses
import io
import warnings
from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from agents.types import Continuous
from experiments.environments import mujoco_notes, mujoco_pictures
from experiments.environments.config import EnvironmentConfig
from experiments.environments.episodes import Step, make_episodic
from experiments.environments.types import Array, Environment
from experiments.installation import commands
from jaxreplay.option import option

NAMES = (
    "ant", "halfcheetah", "hopper", "walker2d", "humanoid", "humanoidstandup",
    "inverted_pendulum", "inverted_double_pendulum", "pusher", "reacher", "swimmer",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class BraxConfig(EnvironmentConfig):
    """Options of a brax environment."""

    backend: Literal["spring", "positional", "generalized", "mjx"] | None = option(
        None, "physics; none: spring"
    )


def make(name: str, config: BraxConfig = BraxConfig()) -> Environment:
    """Make a brax environment.

    Actions are clipped to [-1, 1], which stands for the actuators' control range. Physics that
    diverges shows as NaN in observations and rewards; nothing here hides it.

    Args:
      name: one of `NAMES`.
      config: max_steps None is 1000.

    Raises:
      ValueError: the environment does not support the backend.
    """
    env = _load(name, config)

    def reset(key: Array):
        state = env.reset(key)
        return state, state.obs

    # If the actuators' range is not [-1, 1], brax's own environments scale to it.
    step, space = clipped_step(env), Continuous(env.action_size)
    return make_episodic(
        f"brax/{name}", reset, step, space, config.max_steps or 1000, costly_reset=True
    )


def clipped_step(env: Any) -> Step:
    """Return the step of an environment with brax's interface, its actions clipped to [-1, 1]."""

    def step(key: Array, state: Any, action: Array) -> tuple[Any, Array, Array, Array]:
        del key  # the physics is deterministic
        state = env.step(state, jnp.clip(action, -1.0, 1.0))
        return state, state.obs, state.reward, state.done > 0

    return step


def renderer(name: str, config: BraxConfig = BraxConfig()) -> Callable[[Any], np.ndarray]:
    """Return `render(state) -> [H, W, 3] uint8` of brax's own state.

    Raises:
      ValueError: as `make`, or there is no OpenGL to render with.
    """

    def place(data: Any, state: Any) -> None:
        data.qpos, data.qvel = state.pipeline_state.q, state.pipeline_state.qd

    system = _load(name, config).sys
    return mujoco_pictures.renderer(f"brax/{name}", system.mj_model, place)


def missing(name: str) -> str | None:
    """Return the missing package and the command that installs it, or None."""
    return commands.missing(f"brax/{name}", {"brax": "brax"})


def _load(name: str, config: BraxConfig):
    """Build brax's environment; silence notes on optional packages and old model files."""
    backend = config.backend or "spring"
    noise = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(noise):
        warnings.simplefilter("ignore")
        from brax import envs  # slow, and not needed by runs of other families

        try:
            with mujoco_notes.silenced():
                return envs.get_environment(name, backend=backend)
        except (NotImplementedError, KeyError, AttributeError) as error:
            raise ValueError(f"brax/{name} does not run on backend {backend!r}: {error}") from error
