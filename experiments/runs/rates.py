"""Estimated duration of a run, from rates measured on two CPU cores."""

from experiments import environments
from experiments.runs.run_config import RunConfig

DAY = 24 * 60  # minutes
COMPILING = 20.0  # seconds per program
# Agent steps per second, summed over seeds, with one update per step on one of two cores.
_STEPS = {
    "dqn": 14_000.0, "td3": 2_000.0, "td7": 300.0, "sac": 1_600.0, "ddpg": 1_500.0, "naf": 1_500.0,
    "racer": 3_000.0, "ppo": 8_000.0, "pqn": 3_500.0, "acer": 600.0, "rainbow": 1_500.0,
}  # fmt: skip
_UNKNOWN = 1_500.0  # rate of agents of other packages
_PIXELS = {"atari": 0.04, "gymnax": 1.0}  # relative rate with stacks of frames as observations
_SLOW = {"ners": 0.35, "ero": 0.6}  # relative rate of samplers with networks
_UNITS = 64 * 64  # units in the networks of the measured rates
_ON_HOST = 2_000.0  # largest rate of environments on the host


def in_words(minutes: float) -> str:
    """Return a duration as text in a suitable unit, such as "5 h"."""
    if minutes >= 2 * DAY:
        return f"{minutes / DAY:,.0f} days"
    if minutes >= 180:
        return f"{minutes / 60:.0f} h"
    return f"{minutes:.0f} min" if minutes >= 2 else f"{60 * minutes:.0f} s"


def seconds(config: RunConfig) -> float:
    """Return the estimated seconds that a run with all its seeds takes, without compilation."""
    family = config.env.partition("/")[0]
    hidden = getattr(config.agent_options, "hidden", None) or (64, 64)
    units = hidden[0] * (hidden[1] if len(hidden) > 1 else hidden[0])
    batch = config.sizes.batch_size / 64
    rate = (
        _STEPS.get(config.agent, _UNKNOWN)
        / max(1.0, units / _UNITS) ** 0.5
        / max(1.0, batch) ** 0.5
    )
    if "MinAtar" in config.env:
        rate *= 0.12
    if config.sizes.frame_stack or family == "atari":
        rate *= _PIXELS.get(family, 1.0)
    rate *= _SLOW.get(config.replay, 1.0)
    rate *= max(1.0, config.loop.learn_every * config.sizes.num_envs / config.loop.updates) ** 0.7
    if environments.is_host(config.env):
        rate = min(rate, _ON_HOST)
    return config.loop.steps * config.seeds / rate
