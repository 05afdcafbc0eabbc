"""DeepMind Control tasks that compile: the suite of MuJoCo Playground, on MJX in JAX.

Playground's default physics, MuJoCo Warp, needs an NVIDIA GPU. Its robots for locomotion and
manipulation are left out, because their models must be downloaded.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from agents.types import Continuous
from experiments.environments import mujoco
from experiments.environments.brax import clipped_step
from experiments.environments.episodes import make_episodic
from experiments.environments.types import Array, CompiledConfig, Environment

NAMES = (
    "AcrobotSwingup", "AcrobotSwingupSparse", "BallInCup", "CartpoleBalance",
    "CartpoleBalanceSparse", "CartpoleSwingup", "CartpoleSwingupSparse", "CheetahRun", "FingerSpin",
    "FingerTurnEasy", "FingerTurnHard", "FishSwim", "HopperHop", "HopperStand", "HumanoidStand",
    "HumanoidWalk", "HumanoidRun", "PendulumSwingup", "PointMass", "ReacherEasy", "ReacherHard",
    "SwimmerSwimmer6", "WalkerRun", "WalkerStand", "WalkerWalk",
)  # fmt: skip


def make(name: str, config: CompiledConfig = CompiledConfig()) -> Environment:
    """Make a task of the suite; rewards are in [0, 1], and tasks never terminate.

    Actions are clipped to [-1, 1], the control range of all actuators. Diverging physics appears as
    NaN in reward and last observation and ends the episode.

    Args:
      name: one of `NAMES`.
      config: options; a max_steps of None means 1000.
    """
    env = _load(name)

    def reset(key: Array):
        # Some tasks store the key in their state, which must contain plain arrays only.
        state = env.reset(jax.random.key_data(key))
        return state, state.obs

    limit = config.max_steps or 1000
    step, space = clipped_step(env), Continuous(env.action_size)
    return make_episodic(f"playground/{name}", reset, step, space, limit, config, costly_reset=True)


def renderer(name: str, config: CompiledConfig = CompiledConfig()) -> Callable[[Any], np.ndarray]:
    """Return `render(state) -> [H, W, 3] uint8` for Playground's own state.

    Raises:
      ValueError: OpenGL is missing.
    """
    del config

    def place(data: Any, state: Any) -> None:
        data.qpos, data.qvel = state.data.qpos, state.data.qvel
        data.mocap_pos, data.mocap_quat = state.data.mocap_pos, state.data.mocap_quat

    return mujoco.renderer(f"playground/{name}", _load(name).mj_model, place)


def _load(name: str) -> Any:
    with mujoco.quiet():
        from mujoco_playground import dm_control_suite  # slow, as it imports brax and warp

        return dm_control_suite.load(name, config_overrides={"impl": "jax"})
