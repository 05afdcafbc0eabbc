"""DeepMind Control tasks that compile: the suite of MuJoCo Playground, on MJX.

Playground's own default is the physics of MuJoCo Warp, which needs an NVIDIA GPU; here it is MJX's
in JAX, which runs wherever JAX does. Its robots for locomotion and manipulation, whose models must
be downloaded, are left out.
"""

import contextlib
import io
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from agents.types import Continuous
from experiments.environments import mujoco_notes, mujoco_pictures
from experiments.environments.brax import clipped_step
from experiments.environments.config import EnvironmentConfig
from experiments.environments.episodes import make_episodic
from experiments.environments.types import Array, Environment
from experiments.installation import commands

NAMES = (
    "AcrobotSwingup", "AcrobotSwingupSparse", "BallInCup", "CartpoleBalance",
    "CartpoleBalanceSparse", "CartpoleSwingup", "CartpoleSwingupSparse", "CheetahRun", "FingerSpin",
    "FingerTurnEasy", "FingerTurnHard", "FishSwim", "HopperHop", "HopperStand", "HumanoidStand",
    "HumanoidWalk", "HumanoidRun", "PendulumSwingup", "PointMass", "ReacherEasy", "ReacherHard",
    "SwimmerSwimmer6", "WalkerRun", "WalkerStand", "WalkerWalk",
)  # fmt: skip


def make(name: str, config: EnvironmentConfig = EnvironmentConfig()) -> Environment:
    """Make a task of the suite; rewards lie in [0, 1], and tasks never terminate.

    Actions are clipped to [-1, 1], the control range of all actuators. Physics that diverges shows
    as NaN in reward and last observation and ends the episode; nothing here hides it.

    Args:
      name: one of `NAMES`.
      config: max_steps None is 1000.

    Raises:
      ValueError: Playground is missing, or the task observes more than one array.
    """
    env = _load(name)
    shapes = jax.eval_shape(env.reset, jax.random.key(0)).obs
    if not hasattr(shapes, "shape"):
        raise ValueError(
            f"playground/{name} observes several arrays ({', '.join(shapes)}): only one can be used"
        )

    def reset(key: Array):
        # Some tasks keep the key in their state, which must hold plain arrays only.
        state = env.reset(jax.random.key_data(key))
        return state, state.obs

    limit = config.max_steps or 1000
    step, space = clipped_step(env), Continuous(env.action_size)  # its interface is that of brax
    return make_episodic(f"playground/{name}", reset, step, space, limit, costly_reset=True)


def renderer(
    name: str, config: EnvironmentConfig = EnvironmentConfig()
) -> Callable[[Any], np.ndarray]:
    """Return `render(state) -> [H, W, 3] uint8` of Playground's own state.

    Args:
      name: one of `NAMES`.
      config: not used, as no picture depends on it.

    Raises:
      ValueError: as `make`, or there is no OpenGL to render with.
    """
    del config

    def place(data: Any, state: Any) -> None:
        data.qpos, data.qvel = state.data.qpos, state.data.qvel
        data.mocap_pos, data.mocap_quat = state.data.mocap_pos, state.data.mocap_quat

    # The suite's tasks are meant to be seen through its first camera.
    return mujoco_pictures.renderer(f"playground/{name}", _load(name).mj_model, place, camera=0)


def missing(name: str) -> str | None:
    """Return the missing package and the command that installs it, or None."""
    return commands.missing(f"playground/{name}", {"mujoco_playground": "playground"})


def _load(name: str) -> Any:
    """Build Playground's environment; silence notes on optional packages and old models."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        from mujoco_playground import dm_control_suite  # slow, as it imports brax and warp

        with mujoco_notes.silenced():
            return dm_control_suite.load(name, config_overrides={"impl": "jax"})
