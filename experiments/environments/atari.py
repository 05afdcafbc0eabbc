"""Atari games on the host, by the vectorised emulator of ale-py, whose wheels contain the games.

ale-py's `AtariVectorEnv` steps games in C++ threads, skips frames, takes the maximum of the last
two frames, resizes by area and repeats actions (per frame, "sticky"). This module adds:

* ends: a lost life is terminal while the game continues, and the time limit counts agent steps. The
  emulator itself would restart the game at a lost life, and count no-ops towards the limit.
* stacks: channels last, newest last, and zeros before an episode's first frame, also after a lost
  life.
* bilinear resizing of the full screen, 210 x 160.
* rendering: a second emulator, in colour, with the same seed and actions.

If a game ends before the last two frames of a skip, its last observation is the screen of the
previous step (as in Dopamine); no return bootstraps from it.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import jax
import numpy as np

from agents.types import Discrete
from experiments.environments.host import Array, HostEnvironment
from experiments.environments.types import EnvironmentConfig, TimeStep
from jaxreplay.option import option

NAMES = (
    "Alien", "Amidar", "Assault", "Asterix", "Asteroids", "Atlantis", "BankHeist", "BattleZone",
    "BeamRider", "Berzerk", "Bowling", "Boxing", "Breakout", "Centipede", "ChopperCommand",
    "CrazyClimber", "Defender", "DemonAttack", "DoubleDunk", "Enduro", "FishingDerby", "Freeway",
    "Frostbite", "Gopher", "Gravitar", "Hero", "IceHockey", "Jamesbond", "Kangaroo", "Krull",
    "KungFuMaster", "MontezumaRevenge", "MsPacman", "NameThisGame", "Phoenix", "Pitfall", "Pong",
    "PrivateEye", "Qbert", "Riverraid", "RoadRunner", "Robotank", "Seaquest", "Skiing", "Solaris",
    "SpaceInvaders", "StarGunner", "Surround", "Tennis", "TimePilot", "Tutankham", "UpNDown",
    "Venture", "VideoPinball", "WizardOfWor", "YarsRevenge", "Zaxxon",
)  # fmt: skip
_SCREEN = (210, 160)  # pixels, of all games listed


@dataclasses.dataclass(frozen=True)
class AtariConfig(EnvironmentConfig):
    """Options of the Atari protocol; None means the value in the paper that `protocol` names."""

    protocol: Literal["per", "lap", "pser", "ners"] = option(
        "per", "paper from which options that are none take their values"
    )
    sticky: float | None = option(
        None, "probability, per frame, that the last action repeats", at_least=0, at_most=1
    )
    noops: int | None = option(None, "maximum no-op frames at the start of a game", at_least=0)
    life_loss: bool | None = option(None, "a lost life is terminal (in training; the game goes on)")
    frame_skip: int | None = option(None, "frames that an action lasts", at_least=1)
    max_pool: bool | None = option(None, "observe the pixelwise maximum of the last two frames")
    size: int | None = option(None, "height and width of observations, pixels", at_least=1)
    resize: Literal["area", "linear"] | None = option(None, "interpolation of the resized frames")
    clip_rewards: bool | None = option(None, "clip rewards to [-1, 1] (in training)")
    max_frames: int | None = option(
        None, "frames until a game is truncated (max_steps overrides it)", at_least=1
    )
    full_action_set: bool | None = option(None, "all 18 actions instead of those with an effect")
    stack: int | None = option(None, "frames in an observation", at_least=1)

    def resolve(self) -> "AtariConfig":
        """Return the config with the paper's values in place of None."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        given = {name: value for name, value in own.items() if value is not None}
        config = dataclasses.replace(PROTOCOLS[self.protocol], **given)
        steps = config.max_steps or math.ceil(config.max_frames / config.frame_skip)
        return dataclasses.replace(config, max_steps=steps)


_NATURE = AtariConfig(
    protocol="per", sticky=0.0, noops=30, life_loss=True, frame_skip=4, max_pool=True, size=84,
    resize="area", clip_rewards=True, max_frames=108_000, full_action_set=False, stack=4,
)  # fmt: skip

# PSER's text mentions no-op starts, its code (Dopamine) has none.
PROTOCOLS: Mapping[str, AtariConfig] = MappingProxyType(
    {
        "per": _NATURE,
        "lap": dataclasses.replace(_NATURE, protocol="lap", sticky=0.25, noops=0, life_loss=False),
        "pser": dataclasses.replace(_NATURE, protocol="pser", noops=0),
        "ners": dataclasses.replace(_NATURE, protocol="ners", noops=29, resize="linear"),
    }
)


class Bilinear:
    """Resize `[..., H, W]` uint8 to `[..., h, w]`, as OpenCV's INTER_LINEAR.

    Each pixel is the mean of its four nearest neighbours, weighted by distance. Results are rounded
    to the nearest integer; OpenCV's fixed-point arithmetic may differ by 1.

    Args:
      before: H and W.
      after: h and w.
    """

    def __init__(self, before: tuple[int, int], after: tuple[int, int]) -> None:
        self._top, self._bottom, self._down = _neighbours(before[0], after[0])
        self._left, self._right, self._across = _neighbours(before[1], after[1])
        self._down = self._down[:, None]

    def __call__(self, pictures: Array) -> Array:
        top, bottom = (
            pictures[..., rows, :].astype(np.float32) for rows in (self._top, self._bottom)
        )
        rows = top + self._down * (bottom - top)
        left, right = rows[..., self._left], rows[..., self._right]
        return np.rint(left + self._across * (right - left)).astype(np.uint8)


def _neighbours(before: int, after: int) -> tuple[Array, Array, Array]:
    """Return the two neighbours of every new pixel, and the weight of the second."""
    centre = (np.arange(after) + 0.5) * before / after - 0.5
    centre = np.clip(centre, 0, before - 1)
    first = np.floor(centre).astype(int)
    return first, np.minimum(first + 1, before - 1), (centre - first).astype(np.float32)


class AtariEnvironment(HostEnvironment):
    """Parallel copies of one game, in C++ threads.

    Observations are `[size, size, stack]` uint8, by default `[84, 84, 4]`, newest frame last.
    """

    def __init__(
        self, name: str, rom: str, num_envs: int, config: AtariConfig, training: bool, render: bool
    ) -> None:
        self._config = config = config.resolve()
        self._lives_count = training and config.life_loss
        self._clip = training and config.clip_rewards
        self._games = _emulator(rom, num_envs, config)
        self._film = _emulator(rom, 1, config, colour=True) if render else None
        self._shrink = Bilinear(_SCREEN, (config.size,) * 2) if config.resize == "linear" else None
        self._lives = np.zeros(num_envs, np.int32)  # [E]
        self._clock = np.zeros(num_envs, np.int32)  # [E] agent steps in this game
        self._stack = np.zeros((num_envs, config.size, config.size, config.stack), np.uint8)
        self._picture: Array | None = None
        self.frame_stack = config.stack
        super().__init__(
            name,
            num_envs,
            Discrete(int(self._games.single_action_space.n)),
            config.max_steps,
            jax.ShapeDtypeStruct(self._stack.shape[1:], np.dtype(np.uint8)),
        )

    def _reset(self, seeds: list[int]) -> Array:
        frames, info = self._games.reset(seed=np.asarray(seeds))
        if self._film is not None:
            self._picture = self._film.reset(seed=np.asarray(seeds[:1]))[0]
        self._lives = info["lives"].copy()
        self._clock[:] = 0
        everywhere = np.ones(self.num_envs, bool)
        self._stack = self._begin(self._stack, self._see(frames), everywhere)
        return self._stack

    def _send(self, actions: Array) -> None:
        self._games.send(actions)
        if self._film is not None:
            self._film.send(actions[:1])

    def _receive(self) -> tuple[Array, TimeStep]:
        frames, reward, over, _, info = self._games.recv()
        if self._film is not None:
            self._picture = self._film.recv()[0]
        shown = last = self._see(frames)
        if over.any():
            last = np.where(over[:, None, None], self._see(info["final_obs"]), shown)
        final = np.concatenate([self._stack[..., 1:], last[..., None]], axis=-1)
        self._clock += 1
        capped = (self._clock >= self.max_steps) & ~over
        lost = (info["lives"] < self._lives) & ~over if self._lives_count else np.zeros_like(over)
        if capped.any():
            frames, info = self._restart(capped)
            shown = self._see(frames)
        self._lives = info["lives"].copy()
        self._clock[over | capped] = 0
        ended = over | capped | lost
        self._stack = self._begin(final, shown, ended) if ended.any() else final
        reward = np.clip(reward, -1, 1) if self._clip else reward
        terminated = over | lost
        step = TimeStep(reward.astype(np.float32), terminated, capped & ~terminated, final)
        return self._stack, step

    def _restart(self, games: Array) -> tuple[Array, dict[str, Any]]:
        """Restart the games in `games` `[E]` bool; return the frames of all games."""
        if self._film is not None and games[0]:
            self._picture = self._film.reset()[0]
        # Without a seed, the random stream continues, so that the next game differs.
        return self._games.reset(options={"reset_mask": games})

    def _begin(self, stacks: Array, frames: Array, where: Array) -> Array:
        """Return stacks; those in `where` `[E]` bool have only the newest frame, from `frames`."""
        stacks = stacks.copy()
        stacks[where] = 0
        stacks[where, ..., -1] = frames[where]
        return stacks

    def _see(self, frames: Array) -> Array:
        """Resize the emulator's frames `[E, 1, h, w]` to the size of observations, `[E, H, W]`."""
        return frames[:, 0] if self._shrink is None else self._shrink(frames[:, 0])

    def render(self) -> Array:
        if self._film is None:
            raise ValueError(f"{self.name} was made without render=True")
        return self._picture[0, 0].copy()

    def close(self) -> None:
        self._games.close()
        if self._film is not None:
            self._film.close()


def make(
    name: str,
    num_envs: int,
    config: AtariConfig = AtariConfig(),
    training: bool = True,
    render: bool = False,
) -> AtariEnvironment:
    """Make `num_envs` environments of an Atari game, such as MsPacman; ale-py must be installed.

    The protocol's terminal lost lives and clipped rewards apply only in `training`; otherwise
    episodes are whole games with the game's own score. With `render`, a second emulator also plays
    the first game, for pictures.
    """
    rom = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    return AtariEnvironment(f"atari/{name}", rom, num_envs, config, training, render)


def _emulator(rom: str, num_envs: int, config: AtariConfig, colour: bool = False) -> Any:
    """Make ale-py's vectorised emulator, with single frames, raw scores and whole games."""
    import ale_py
    from ale_py.vector_env import AtariVectorEnv

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    full_screen = colour or config.resize == "linear"
    height, width = _SCREEN if full_screen else (config.size, config.size)
    # The time limit is applied above; the emulator's own limit must be later.
    never = 2 * (config.max_steps * config.frame_skip + config.noops + 1)
    return AtariVectorEnv(
        rom,
        num_envs,
        max_num_frames_per_episode=never,
        repeat_action_probability=config.sticky,
        full_action_space=config.full_action_set,
        autoreset_mode="SameStep",
        img_height=height,
        img_width=width,
        grayscale=not colour,
        stack_num=1,
        frameskip=config.frame_skip,
        maxpool=config.max_pool and config.frame_skip > 1,
        noop_max=config.noops + 1,  # exclusive
        reward_clipping=False,
        use_fire_reset=False,
    )
