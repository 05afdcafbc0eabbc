"""Compiled environments of other packages: brax, MuJoCo Playground, xminigrid, jumanji, craftax.

`--list` prints the names below; `find_...` accepts all names that the installed package registers.

Playground's tasks are the DeepMind Control suite. They use MJX in JAX, because Playground's default
physics, MuJoCo Warp, needs an NVIDIA GPU. Playground's robots for locomotion and manipulation are
left out, because their models must be downloaded.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from agents.types import Continuous, Discrete
from experiments.environments import mujoco
from experiments.environments.episodes import make_episodic
from experiments.environments.gymnax import from_gymnax
from experiments.environments.types import Array, CompiledConfig, Environment, Render
from jaxreplay.option import option

# Without swimmer: brax.fluid passes an argument to jax.numpy.clip that jax has removed.
BRAX = (
    "ant", "halfcheetah", "hopper", "walker2d", "humanoid", "humanoidstandup",
    "inverted_pendulum", "inverted_double_pendulum", "pusher", "reacher",
)  # fmt: skip
PLAYGROUND = (
    "AcrobotSwingup", "AcrobotSwingupSparse", "BallInCup", "CartpoleBalance",
    "CartpoleBalanceSparse", "CartpoleSwingup", "CartpoleSwingupSparse", "CheetahRun", "FingerSpin",
    "FingerTurnEasy", "FingerTurnHard", "FishSwim", "HopperHop", "HopperStand", "HumanoidStand",
    "HumanoidWalk", "HumanoidRun", "PendulumSwingup", "PointMass", "ReacherEasy", "ReacherHard",
    "SwimmerSwimmer6", "WalkerRun", "WalkerStand", "WalkerWalk",
)  # fmt: skip
XMINIGRID = (
    "MiniGrid-Empty-8x8", "MiniGrid-EmptyRandom-8x8", "MiniGrid-FourRooms", "MiniGrid-DoorKey-5x5",
    "MiniGrid-DoorKey-8x8", "MiniGrid-Unlock", "MiniGrid-MemoryS8", "MiniGrid-MemoryS16",
)  # fmt: skip
JUMANJI = ("Game2048-v1", "Maze-v0", "PacMan-v1", "SlidingTilePuzzle-v0", "Snake-v1")
CRAFTAX = ("Craftax-Classic-Symbolic-v1", "Craftax-Symbolic-v1")
_UNLIMITED = 10_000  # time limit in steps of jumanji's tasks without their own


@dataclasses.dataclass(frozen=True)
class BraxConfig(CompiledConfig):
    """Options of a brax environment."""

    backend: Literal["spring", "positional", "generalized", "mjx"] | None = option(
        None, "physics engine of brax; by default spring"
    )


def make_brax(name: str, config: BraxConfig = BraxConfig()) -> Environment:
    """Make a brax environment; diverging physics appears as NaN in observations and rewards.

    Raises:
      ValueError: the environment does not support the backend.
    """
    backend = config.backend or "spring"
    with mujoco.quiet():
        from brax import envs  # slow, and not needed by runs of other families

        try:
            env = envs.get_environment(name, backend=backend)
        except (NotImplementedError, KeyError, AttributeError) as error:
            raise ValueError(f"brax/{name} does not run on backend {backend!r}: {error}") from error

    def renderer() -> Render:
        return mujoco.renderer(f"brax/{name}", env.sys.mj_model, place)

    def place(data: Any, state: Any) -> None:
        data.qpos, data.qvel = state.pipeline_state.q, state.pipeline_state.qd

    return _physics(f"brax/{name}", env, env.reset, renderer, config)


def make_playground(name: str, config: CompiledConfig = CompiledConfig()) -> Environment:
    """Make a task of Playground's control suite; rewards are in [0, 1], and tasks never terminate.

    Diverging physics appears as NaN in reward and last observation and ends the episode.
    """
    with mujoco.quiet():
        from mujoco_playground import dm_control_suite  # slow, as it imports brax and warp

        env = dm_control_suite.load(name, config_overrides={"impl": "jax"})

    def begin(key: Array) -> Any:
        # Some tasks store the key in their state, which must contain plain arrays only.
        return env.reset(jax.random.key_data(key))

    def renderer() -> Render:
        return mujoco.renderer(f"playground/{name}", env.mj_model, place)

    def place(data: Any, state: Any) -> None:
        data.qpos, data.qvel = state.data.qpos, state.data.qvel
        data.mocap_pos, data.mocap_quat = state.data.mocap_pos, state.data.mocap_quat

    return _physics(f"playground/{name}", env, begin, renderer, config)


def _physics(
    name: str,
    env: Any,
    begin: Callable[[Array], Any],
    renderer: Callable[[], Render],
    config: CompiledConfig,
) -> Environment:
    """Make an Environment from one with brax's interface; a max_steps of None means 1000.

    Actions are clipped to [-1, 1], the scaled control range of the actuators; brax's own
    environments scale actions to actuators with another range.
    """

    def reset(key: Array) -> tuple[Any, Array]:
        state = begin(key)
        return state, state.obs

    def step(key: Array, state: Any, action: Array) -> tuple[Any, Array, Array, Array]:
        del key  # the physics is deterministic
        state = env.step(state, jnp.clip(action, -1.0, 1.0))
        return state, state.obs, state.reward, state.done > 0

    space, limit = Continuous(env.action_size), config.max_steps or 1000
    return make_episodic(
        name, reset, step, space, limit, config, costly_reset=True, renderer=renderer
    )


def make_xminigrid(name: str, config: CompiledConfig = CompiledConfig()) -> Environment:
    """Make an environment of XLand-MiniGrid (Nikulin et al. 2023).

    An observation is a boolean image `[V, V, 25]` of the V x V cells in view, with one-hot tiles
    and colours.

    Raises:
      ValueError: as in `find_xminigrid`.
    """
    import xminigrid
    from xminigrid.core.constants import NUM_COLORS, NUM_TILES

    find_xminigrid(name)
    env, params = xminigrid.make(name)

    def see(timestep) -> Array:
        tile, colour = timestep.observation[..., 0], timestep.observation[..., 1]
        parts = jax.nn.one_hot(tile, NUM_TILES), jax.nn.one_hot(colour, NUM_COLORS)
        return jnp.concatenate(parts, axis=-1) > 0

    def reset(key: Array):
        timestep = env.reset(params, key)
        return timestep, see(timestep)

    def step(key: Array, timestep, action: Array):
        del key
        timestep = env.step(params, timestep, action)
        return timestep, see(timestep), timestep.reward, timestep.discount == 0

    limit, space = config.max_steps or int(params.max_steps), Discrete(env.num_actions(params))
    return make_episodic(f"xminigrid/{name}", reset, step, space, limit, config)


def find_xminigrid(name: str) -> str | None:
    """Return the name if the package registers it, else None."""
    import xminigrid

    return name if name in xminigrid.registered_environments() else None


def make_jumanji(name: str, config: CompiledConfig = CompiledConfig()) -> Environment:
    """Make an environment of jumanji (Bonnet et al. 2024) with one discrete action per step.

    Observations are vectors of all arrays that jumanji returns, without the step counter and the
    mask of legal actions. Agents do not use the mask: illegal actions have the effect that jumanji
    defines.

    Raises:
      ValueError: actions are not one discrete number, or nothing limits the length of episodes.
    """
    import jumanji

    env = jumanji.make(name)
    actions = getattr(env.action_spec, "num_values", None)
    if np.ndim(actions) != 0 or actions is None:
        raise ValueError(
            f"jumanji/{name} has actions {env.action_spec}, and agents need one discrete number: "
            f"choose another environment, such as jumanji/{JUMANJI[0]}"
        )
    # At its own limit of steps, jumanji ends episodes as if the task had ended (discount 0), which
    # would be wrong in targets: truncate them one step earlier.
    own = getattr(env, "time_limit", None)
    limits = [limit for limit in (config.max_steps, own and own - 1) if limit]

    def see(timestep) -> Array:
        parts = timestep.observation._asdict()
        kept = [part for name, part in parts.items() if name not in ("step_count", "action_mask")]
        return jnp.concatenate([jnp.ravel(x).astype(jnp.float32) for x in jax.tree.leaves(kept)])

    def reset(key: Array):
        state, timestep = env.reset(key)
        return state, see(timestep)

    def step(key: Array, state, action: Array):
        del key
        state, timestep = env.step(state, action)
        return state, see(timestep), timestep.reward, timestep.discount == 0

    limit = min(limits, default=_UNLIMITED)
    return make_episodic(f"jumanji/{name}", reset, step, Discrete(int(actions)), limit, config)


def find_jumanji(name: str) -> str | None:
    """Return the name if the package registers it, else None."""
    import jumanji

    return name if name in jumanji.registered_environments() else None


def make_craftax(name: str, config: CompiledConfig = CompiledConfig()) -> Environment:
    """Make an environment of Craftax (Matthews et al. 2024) with symbolic observations."""
    from craftax.craftax_env import make_craftax_env_from_name

    env = make_craftax_env_from_name(name, auto_reset=False)
    return from_gymnax(f"craftax/{name}", env, env.default_params, config)
