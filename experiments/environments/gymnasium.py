"""Environments of gymnasium, on the host: MuJoCo, Box2D, classic control, and any registered id.

`NAMES` lists the environments of the papers and similar ones. Any other id registered with
gymnasium works if its actions are Discrete or a bounded Box, and its observations a Box, Discrete
(which becomes one-hot), or a Dict of these. `module:id` first imports the module, which registers
the id.

The papers' MuJoCo tasks are v3, of OpenAI Gym with MuJoCo 2, which is no longer maintained. v4 has
the same dynamics, rewards and endings on current versions of MuJoCo; v5 corrects rewards and
models. The v3 names here are v4 with one change: the 84 contact forces in the observations of Ant
and Humanoid are zeros, as with MuJoCo 2 (v4 omits them for Ant, and computes them for Humanoid).
"""

import dataclasses
import difflib
import importlib
from types import MappingProxyType
from typing import Literal

from experiments.environments.host import HostEnvironment, describe_error
from experiments.environments.types import EnvironmentConfig
from jaxreplay.option import option

_MUJOCO = (
    "Hopper", "Walker2d", "HalfCheetah", "Ant", "Humanoid", "Swimmer", "HumanoidStandup",
    "InvertedPendulum", "InvertedDoublePendulum", "Reacher",
)  # fmt: skip
V3 = ("Hopper-v3", "Walker2d-v3", "HalfCheetah-v3", "Ant-v3", "Humanoid-v3", "Swimmer-v3")

# Name -> kind of actions.
NAMES = MappingProxyType(
    {
        "CartPole-v1": "discrete", "Acrobot-v1": "discrete", "MountainCar-v0": "discrete",
        "Pendulum-v1": "continuous", "MountainCarContinuous-v0": "continuous",
        "LunarLander-v3": "discrete", "LunarLanderContinuous-v3": "continuous",
        "BipedalWalker-v3": "continuous", "BipedalWalkerHardcore-v3": "continuous",
        **dict.fromkeys(
            (f"{name}-{version}" for version in ("v5", "v4") for name in _MUJOCO), "continuous"
        ),
        **dict.fromkeys(V3, "continuous"),
    }
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class GymnasiumConfig(EnvironmentConfig):
    """Options of a batch of gymnasium's environments."""

    vectorisation: Literal["sync", "async"] = option(
        "sync", "one thread for all environments, or a process for each"
    )


def make(
    name: str,
    num_envs: int,
    config: GymnasiumConfig = GymnasiumConfig(),
    training: bool = True,
    render: bool = False,
) -> HostEnvironment:
    """Make a batch of an environment of gymnasium, whose packages are installed (see `missing`).

    A max_steps of None means gymnasium's time limit. A batch with `render` has one thread.

    Raises:
      ValueError: the id is unknown, or its spaces are not supported.
    """
    del training
    from experiments.environments import vector  # imports gymnasium

    return vector.make(name, find(name), num_envs, config.max_steps, config.vectorisation, render)


def needs(name: str) -> dict[str, str]:
    """Return the modules that an environment needs, each with the extra that installs it."""
    modules = {"gymnasium": "gymnasium"}
    if name.rpartition("-")[0] in _MUJOCO:
        # gymnasium's MuJoCo tasks import imageio; mujoco may be installed with brax alone.
        modules |= {"mujoco": "mujoco", "imageio": "mujoco"}
    if name.startswith(("LunarLander", "BipedalWalker")):
        modules["Box2D"] = "box2d"
    return modules


def kind(name: str) -> str:
    """Return "discrete" or "continuous" for an unlisted name, by making the environment.

    Raises:
      ValueError: as in `make`.
    """
    environment = make(name, 1, GymnasiumConfig(max_steps=1))
    environment.close()
    return "discrete" if hasattr(environment.action_space, "n") else "continuous"


def find(name: str):
    """Return gymnasium's specification of `name` (v4's for the v3 names).

    Raises:
      ValueError: the id is unknown; the message names similar ids.
    """
    import gymnasium

    if name in V3:
        name = name.replace("-v3", "-v4")
    module, _, short = name.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:
            raise ValueError(
                f"gymnasium/{name}: importing {module} {describe_error(error)}"
            ) from error
    if short not in gymnasium.registry:
        known = sorted({*NAMES, *gymnasium.registry})
        near = difflib.get_close_matches(short, known, n=3, cutoff=0.4)
        hint = f": did you mean {' or '.join(f'gymnasium/{n}' for n in near)}?" if near else ""
        raise ValueError(f"gymnasium has no environment '{short}'{hint}")
    return gymnasium.registry[short]
