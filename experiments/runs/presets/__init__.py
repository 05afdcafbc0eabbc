"""Published settings by name, which replace defaults of the names and options of a run."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from experiments.runs.presets import atari, continuous
from experiments.runs.presets.preset import Preset as Preset
from experiments.runs.presets.preset import Settings as Settings

PRESETS: Mapping[str, Preset] = MappingProxyType({**atari.PRESETS, **continuous.PRESETS})


class Names(NamedTuple):
    """Default names of the parts of a run, and of the methods of a comparison."""

    env: str = "gymnax/CartPole-v1"
    agent: str = "dqn"
    replay: str = "uniform"
    replays: tuple[str, ...] = ("uniform", "per", "lap", "pal")  # methods of a comparison


def names(preset: str | None) -> Names:
    """Return the default names of a preset or, if it is None, of the commands."""
    if preset is None:
        return Names()
    chosen = PRESETS[preset]
    return Names(chosen.env or Names().env, chosen.agent, chosen.replay, tuple(chosen.replays))


def check_agent(name: str, agent: str) -> None:
    """Raise ValueError if a preset does not support an agent."""
    preset = PRESETS[name]
    if agent in preset.agents:
        return
    fitting = [other for other, entry in PRESETS.items() if agent in entry.agents]
    instead = f"one of {', '.join(fitting)}, or " if fitting else ""
    raise ValueError(
        f"preset '{name}' is for agent {' or '.join(preset.agents)}, not '{agent}': "
        f"use {instead}--agent {preset.agent}, or leave out --preset"
    )


def check_demos(name: str | None, config: Any) -> None:
    """Raise ValueError if a preset needs demonstrations and a RunConfig has no file of them."""
    if name and "demos_share" in PRESETS[name].sizes and config.sizes.demos is None:
        raise ValueError(f"preset '{name}' learns from demonstrations: add --demos FILE")


def apply(name: str, config: Any) -> Any:
    """Return a RunConfig with the options of a preset in place of its own.

    Raises:
      ValueError: the preset does not support the agent.
    """
    check_agent(name, config.agent)
    preset = PRESETS[name]
    arm = preset.replays.get(config.replay)
    agent = {**preset.agents[config.agent], **(arm.agent if arm else {})}
    shared: dict[str, Any] = {}
    for group in preset.shared:
        if set(group) <= _fields(config.replay_options):
            shared |= group
    known = _fields(config.env_options)
    environment = {name: value for name, value in preset.environment.items() if name in known}
    return dataclasses.replace(
        config,
        loop=dataclasses.replace(config.loop, **preset.loop),
        sizes=dataclasses.replace(config.sizes, **preset.sizes),
        env_options=dataclasses.replace(config.env_options, **environment),
        agent_options=dataclasses.replace(config.agent_options, **agent),
        replay_options=dataclasses.replace(
            config.replay_options, **{**shared, **(arm.replay if arm else {})}
        ),
    )


def _fields(options: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(options)}
