"""Presets by name: which there are, the names that they bring, and how they change a run."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from experiments.runs.presets import ero, lap, ners, offline, per, pser, rainbow, refer, sac
from experiments.runs.presets.preset import Preset

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        name: preset
        for paper in (rainbow, per, lap, pser, ners, ero, refer, offline, sac)
        for name, preset in paper.PRESETS.items()
    }
)


class Names(NamedTuple):
    """What a command runs where its command line names nothing else."""

    env: str = "gymnax/CartPole-v1"
    agent: str = "dqn"
    replay: str = "uniform"
    replays: tuple[str, ...] = ("uniform", "per", "lap", "pal")  # that a comparison is of


def names(preset: str | None) -> Names:
    """Return the names that a preset brings; None: those of the commands themselves."""
    if preset is None:
        return Names()
    chosen = PRESETS[preset]
    return Names(chosen.env or Names().env, chosen.agent, chosen.replay, tuple(chosen.replays))


def check_agent(name: str, agent: str) -> None:
    """Refuse a preset that is for other agents.

    Raises:
      ValueError: one line.
    """
    preset = PRESETS[name]
    if agent in preset.agents:
        return
    fitting = [other for other, entry in PRESETS.items() if agent in entry.agents]
    instead = f"one of {', '.join(fitting)}, or " if fitting else ""
    raise ValueError(
        f"preset '{name}' is for agent {' or '.join(preset.agents)}, not '{agent}': "
        f"use {instead}--agent {preset.agent}, or leave out --preset"
    )


def apply(name: str, config: Any) -> Any:
    """Return a RunConfig with a preset's values in place of its own.

    Raises:
      ValueError: the preset is for other agents.
    """
    check_agent(name, config.agent)
    preset = PRESETS[name]
    arm = preset.replays.get(config.replay)
    agent = {**preset.agents[config.agent], **(arm.agent if arm else {})}
    shared = {k: v for group in preset.shared for k, v in _if_all(config, group).items()}
    return dataclasses.replace(
        config,
        loop=dataclasses.replace(config.loop, **preset.loop),
        sizes=dataclasses.replace(config.sizes, **preset.sizes),
        env_options=_with_known(config.env_options, preset.environment),
        agent_options=dataclasses.replace(config.agent_options, **agent),
        replay_options=dataclasses.replace(
            config.replay_options, **{**shared, **(arm.replay if arm else {})}
        ),
    )


def _if_all(config: Any, group: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a group of replay options if the method has all of them, or else none."""
    has = {field.name for field in dataclasses.fields(config.replay_options)}
    return group if set(group) <= has else {}


def _with_known(options: Any, values: Mapping[str, Any]) -> Any:
    """Return `options` with those `values` that are fields of it."""
    has = {field.name for field in dataclasses.fields(options)}
    return dataclasses.replace(options, **{k: v for k, v in values.items() if k in has})
