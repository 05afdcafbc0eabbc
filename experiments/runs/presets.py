"""Presets: published settings, by name, that replace defaults of a run.

`presets.toml` contains the settings and describes its format.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from experiments.files import disk

Options = Mapping[str, Any]  # option -> value
_NONE: Options = {}
_Made = TypeVar("_Made")


class Preset(NamedTuple):
    """Settings of a paper, by section of a run; explicit options take precedence."""

    about: str  # description in one line
    agents: Mapping[str, Options]  # supported agents; the first is the default
    replays: Mapping[str, Options]  # methods that the paper compares; the first is the default
    loop: Options
    sizes: Options
    agent_with: Mapping[str, Options] = _NONE  # by method: options of the agent with this method
    # Groups of options for all methods; a method gets the groups of which it has all options.
    shared: tuple[Options, ...] = ()
    environment: Options = _NONE  # options for families of environments that have them
    env: str | None = None  # default environment, or None for that of the command
    differs: tuple[str, ...] = ()  # differences from the paper, one sentence each

    @property
    def agent(self) -> str:
        """The default agent."""
        return next(iter(self.agents))

    @property
    def replay(self) -> str:
        """The default replay method."""
        return next(iter(self.replays))


def read_tables(path: Path, make: Callable[[str, dict[str, Any]], _Made]) -> dict[str, _Made]:
    """Return the objects that `make` builds from the name and content of each table in a TOML file.

    The content includes the content of the tables in `like`. Tables whose names start with an
    underscore, such as "_atari", are starting points of others and are left out.

    Raises:
      ValueError: the file cannot be read, or `make` fails; the error names file and table.
    """
    tables = disk.read_toml(path)

    def whole(name: str) -> dict[str, Any]:
        own, made = dict(tables[name]), {}
        for below in own.pop("like", ()):
            made = _merged(made, whole(below))
        return _merged(made, own)

    made = {}
    for name in (name for name in tables if not name.startswith("_")):
        try:
            made[name] = make(name, _values(whole(name)))
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            why = f"unknown name {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"{path.name}, table [{name}]: {why}") from error
    return made


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return nested tables of options; values in `above` take precedence over those in `below`."""
    both = dict(below)
    for name, value in above.items():
        if isinstance(value, dict) and name in both:
            both[name] = _merged(both[name], value)
        else:
            both[name] = both.get(name, []) + value if name == "differs" else value
    return both


def _values(value: Any) -> Any:
    """Convert values from TOML to values of options: arrays to tuples, and "(none)" to None."""
    if isinstance(value, dict):
        return {name: _values(each) for name, each in value.items()}
    if isinstance(value, list):
        return tuple(map(_values, value))
    return None if value == "(none)" else value


PRESETS: Mapping[str, Preset] = read_tables(
    Path(__file__).with_suffix(".toml"), lambda _, table: Preset(**table)
)


class Names(NamedTuple):
    """Default names of the parts of a run, and of the methods of a comparison."""

    env: str = "gymnax/CartPole-v1"
    agent: str = "dqn"
    replay: str = "uniform"
    replays: tuple[str, ...] = ("uniform", "per", "lap", "pal")  # methods of a comparison


def names(preset: str | None) -> Names:
    """Return the default names of a preset or, if `preset` is None, of the commands."""
    if preset is None:
        return Names()
    chosen = PRESETS[preset]
    return Names(chosen.env or Names().env, chosen.agent, chosen.replay, tuple(chosen.replays))


def check_agent(name: str, agent: str) -> None:
    """Raise ValueError if a preset does not exist, or does not support an agent."""
    if name not in PRESETS:
        raise ValueError(f"there is no preset '{name}': use one of {', '.join(PRESETS)}")
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
    """Raise ValueError if a preset needs demonstrations, but a RunConfig has no `demos` file."""
    if name and "demos_share" in PRESETS[name].sizes and config.sizes.demos is None:
        raise ValueError(f"preset '{name}' learns from demonstrations: add --demos FILE")


def apply(name: str, config: Any) -> Any:
    """Return a RunConfig with the options of a preset; errors are those of `check_agent`."""
    check_agent(name, config.agent)
    preset, known = PRESETS[name], _fields(config.replay_options)
    replay: dict[str, Any] = {}
    for group in (group for group in preset.shared if set(group) <= known):
        replay |= group
    sections: dict[str, Options] = {
        "loop": preset.loop,
        "sizes": preset.sizes,
        "env_options": {
            name: value
            for name, value in preset.environment.items()
            if name in _fields(config.env_options)
        },
        "agent_options": {
            **preset.agents[config.agent], **preset.agent_with.get(config.replay, {})
        },
        "replay_options": {**replay, **preset.replays.get(config.replay, {})},
    }  # fmt: skip
    changed = {
        section: dataclasses.replace(getattr(config, section), **options)
        for section, options in sections.items()
    }
    return dataclasses.replace(config, **changed)


def _fields(options: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(options)}
