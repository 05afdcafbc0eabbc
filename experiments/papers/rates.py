"""How long runs take: measured, or estimated from rates on two CPU cores."""

from experiments import environments
from experiments.papers.entry import Computation
from experiments.papers.experiment import Experiment, SizeName
from experiments.papers.running import missing
from experiments.papers.tables import Data
from experiments.runs.run_config import RunConfig

DAY = 24 * 60  # minutes
_COMPILING = 20.0  # seconds a run
# Agent steps per second, of all seeds together, with an update per step on one of two cores.
_STEPS = {
    "dqn": 14_000.0, "td3": 2_000.0, "sac": 1_600.0, "ddpg": 1_500.0, "naf": 1_500.0,
    "racer": 3_000.0, "ppo": 8_000.0, "acer": 600.0, "rainbow": 1_500.0,
}  # fmt: skip
_PIXELS = {"atari": 0.04, "gymnax": 1.0}  # of that, where observations are stacks of frames
_SLOW = {"ners": 0.35, "ero": 0.6}  # of that, for samplers with networks of their own
_UNITS = 64 * 64  # of the networks that the rates are for
_ON_HOST = 2_000.0  # steps per second at most


def in_words(minutes: float) -> str:
    """Return a length of time in the unit that suits it."""
    if minutes >= 2 * DAY:
        return f"{minutes / DAY:,.0f} days"
    if minutes >= 180:
        return f"{minutes / 60:.0f} h"
    return f"{minutes:.0f} min" if minutes >= 2 else f"{60 * minutes:.0f} s"


def minutes(source: Experiment | Computation | None, size: SizeName, data: Data) -> float:
    """Return about how many minutes a table takes from nothing, on one core of this project's two.

    Runs that are in `data` took what they took; the others are estimated.
    """
    if source is None:
        return 0.0
    if isinstance(source, Computation):
        measured = data.made.get("seconds")
        scale = {"smoke": 0.05, "small": 1.0, "paper": 1.0}[size]
        return measured / 60 if measured is not None else source.minutes * scale
    seconds = sum(run["train_seconds"] for runs in data.runs.values() for run in runs.values())
    return (seconds + sum(_seconds(config) for *_, config in missing(source, size, data))) / 60


def left(source: Experiment | Computation | None, size: SizeName, data: Data) -> float:
    """Return about how many minutes what is missing of a table takes."""
    if source is None or (isinstance(source, Computation) and data.made):
        return 0.0
    if isinstance(source, Computation):
        return minutes(source, size, data)
    return sum(_seconds(config) for *_, config in missing(source, size, data)) / 60


def _seconds(config: RunConfig) -> float:
    family = config.env.partition("/")[0]
    hidden = getattr(config.agent_options, "hidden", None) or (64, 64)
    units = hidden[0] * (hidden[1] if len(hidden) > 1 else hidden[0])
    batch = config.sizes.batch_size / 64
    rate = _STEPS[config.agent] / max(1.0, units / _UNITS) ** 0.5 / max(1.0, batch) ** 0.5
    if "MinAtar" in config.env:
        rate *= 0.12
    if config.sizes.frame_stack or family == "atari":
        rate *= _PIXELS.get(family, 1.0)
    rate *= _SLOW.get(config.replay, 1.0)
    rate *= max(1.0, config.loop.learn_every * config.sizes.num_envs / config.loop.updates) ** 0.7
    if environments.is_host(config.env):
        rate = min(rate, _ON_HOST)
    return _COMPILING + config.loop.steps * config.seeds / rate
