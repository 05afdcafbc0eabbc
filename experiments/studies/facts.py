"""Facts about the arms of a study: samplers, replay ratios, and options that arms must share."""

from collections.abc import Mapping
from typing import Any

from experiments.runs.run_config import RunConfig
from experiments.training.schedule import schedule
from jaxreplay.methods import METHODS
from jaxreplay.sampler import Sampler
from jaxreplay.saving import saved_size
from jaxreplay.types import EpisodeReturns

_PLAIN = "uniform"  # the method of baselines


def baseline_of(configs: Mapping[str, RunConfig]) -> str:
    """Return the label of the default baseline.

    This is the first arm with uniform replay. Without such an arm, it is the first arm with a
    uniform sampler, and otherwise the first arm.
    """
    plain = [label for label, config in configs.items() if config.replay == _PLAIN]
    uniform = [label for label, config in configs.items() if _sampler(config).is_uniform]
    return [*plain, *uniform, *configs][0]


def learns_from(config: RunConfig) -> EpisodeReturns | None:
    """Return which returns the sampler of a run learns from: "evaluation", "training" or None."""
    return _sampler(config).requires.episode_returns


def _sampler(config: RunConfig) -> Sampler:
    return METHODS[config.replay].method(config.replay_options).sampler


def replays_per_transition(config: RunConfig) -> float:
    """Return the replay ratio: the average number of times that a transition is replayed."""
    loop, sizes = config.loop, config.sizes
    recorded = sizes.demos is not None and sizes.demos_share == 1
    if loop.offline or recorded:
        plan = schedule(loop, sizes.num_envs)
        stored = saved_size(sizes.demos) if recorded else plan.warmup_steps
        return plan.updates * sizes.batch_size / stored
    return loop.updates * sizes.batch_size / (loop.learn_every * sizes.num_envs)


def replay_ratio(config: RunConfig) -> str:
    """Return the agent steps per update and the replay ratio of a run in words."""
    steps = config.loop.learn_every * config.sizes.num_envs / config.loop.updates
    ratio = replays_per_transition(config)
    return f"{steps:g} agent step{'s' * (steps != 1)} per update, {ratio:g} replays per transition"


def prioritises(config: RunConfig) -> bool:
    """Return whether an arm counts as tested only if its draws differ from uniform draws."""
    sampler = _sampler(config)
    # If the parts of a batch have roles, each is drawn by another rule: the mixture is no evidence.
    return not sampler.is_uniform and "roles" not in sampler.provides


def shared_settings(config: RunConfig) -> dict[str, Any]:
    """Return all options that arms must share, by name, such as "loop.steps".

    Options of the agent are not included. Within a study, they differ only if a preset or an arm
    sets them, and then they are part of the arm.
    """
    saved = config.to_json()
    parts = ("loop", "sizes", "env_options")
    shared = {f"{part}.{name}": value for part in parts for name, value in saved[part].items()}
    return {"agent": config.agent, **shared}
