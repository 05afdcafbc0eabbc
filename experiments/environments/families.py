"""Environments by full name, such as gymnax/CartPole-v1, brax/ant and atari/Pong."""

import dataclasses
import difflib
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from experiments.environments import (
    atari,
    goals,
    gymnasium,
    gymnax,
    memory,
    packages,
    sparse_pendulum,
    walk,
)
from experiments.environments.extras import lacking_extra
from experiments.environments.host import HostEnvironment
from experiments.environments.types import CompiledConfig, Environment, EnvironmentConfig, Render


class Family(NamedTuple):
    """Environments with a common prefix and constructor, compiled or on the host."""

    actions: Mapping[str, str]  # listed name -> "discrete" or "continuous"
    # (name, config) -> Environment; (name, num_envs, config, training, render) -> HostEnvironment
    make: Callable[..., Any]
    config: type[EnvironmentConfig] = CompiledConfig
    needs: Callable[[str], Mapping[str, str]] = lambda name: {}  # module -> extra that installs it
    # Parses an unlisted name; returns None or raises a ValueError if it is unknown.
    find: Callable[[str], Any] | None = None
    kind: Callable[[str], str] = lambda name: "discrete"  # kind of actions of an unlisted name
    on_host: bool = False
    has_goals: bool = False  # whether `Environment.goals` is set


_families: dict[str, Family] = {
    "gymnax": Family(
        gymnax.NAMES, gymnax.make, needs=lambda name: {"gymnax": "gymnax"}, find=gymnax.find,
    ),
    "sparse_pendulum": Family(
        dict.fromkeys(sparse_pendulum.NAMES, "continuous"), sparse_pendulum.make
    ),
    "walk": Family(
        dict.fromkeys(walk.NAMES, "discrete"), walk.make, find=walk.find
    ),
    "goals": Family(
        goals.ACTIONS, goals.make, find=goals.find, has_goals=True
    ),
    "memory": Family(
        dict.fromkeys(memory.NAMES, "discrete"), memory.make, find=memory.find
    ),
    "brax": Family(
        dict.fromkeys(packages.BRAX, "continuous"), packages.make_brax, packages.BraxConfig,
        needs=lambda name: {"brax": "brax"},
    ),
    "playground": Family(
        dict.fromkeys(packages.PLAYGROUND, "continuous"), packages.make_playground,
        needs=lambda name: {"mujoco_playground": "playground"},
    ),
    "xminigrid": Family(
        dict.fromkeys(packages.XMINIGRID, "discrete"), packages.make_xminigrid,
        needs=lambda name: {"xminigrid": "xminigrid"}, find=packages.find_xminigrid,
    ),
    "jumanji": Family(
        dict.fromkeys(packages.JUMANJI, "discrete"), packages.make_jumanji,
        needs=lambda name: {"jumanji": "jumanji"}, find=packages.find_jumanji,
    ),
    "craftax": Family(
        dict.fromkeys(packages.CRAFTAX, "discrete"), packages.make_craftax,
        needs=lambda name: {"craftax": "craftax"},
    ),
    "gymnasium": Family(
        gymnasium.NAMES, gymnasium.make, gymnasium.GymnasiumConfig, needs=gymnasium.needs,
        find=gymnasium.find, kind=gymnasium.kind, on_host=True,
    ),
    "atari": Family(
        dict.fromkeys(atari.NAMES, "discrete"), atari.make, atari.AtariConfig,
        # gymnasium for the spaces of the vectorised emulator
        needs=lambda name: {"ale_py": "atari", "gymnasium": "atari"}, on_host=True,
    ),
}  # fmt: skip
FAMILIES: Mapping[str, Family] = MappingProxyType(_families)


def register(name: str, family: Family) -> None:
    """Add a family of environments, `name/...`, or replace the one with this name."""
    _families[name] = family


def names() -> tuple[str, ...]:
    """Return the full names of all environments that are listed, installed or not."""
    return tuple(f"{family}/{name}" for family, entry in FAMILIES.items() for name in entry.actions)


def check(name: str) -> None:
    """Check a full name.

    Raises:
      ValueError: there is no such environment, or its package is missing.
    """
    prefix, _, short = name.partition("/")
    family = FAMILIES.get(prefix)
    if family is not None and short in family.actions:
        return
    if family is not None and family.find is not None and short:
        if reason := lacking_extra(name, family.needs(short)):
            raise ValueError(reason)
        if family.find(short) is not None:
            return
    near = difflib.get_close_matches(name, names(), n=1, cutoff=0.5)
    hint = f": did you mean '{near[0]}'?" if near else ""
    raise ValueError(
        f"unknown environment '{name}'{hint} (families: {', '.join(FAMILIES)}; --list prints all; "
        "mypackage.mytasks/NAME for your own)"
    )


def module_to_import(name: str) -> str | None:
    """Return the module that making an environment would import, or None.

    For `a.b/Name`, the module is `a.b`, and None if `a.b` is a registered family. For
    `gymnasium/a.b:Name-v0`, it is `a.b`, and None if `a.b` is already imported.
    """
    family, _, short = name.partition("/")
    if family not in FAMILIES:
        return family
    module = short.rpartition(":")[0]
    return module if module and module not in sys.modules else None


def is_host(name: str) -> bool:
    """Return whether an environment runs on the host."""
    return _split(name)[0].on_host


def has_goals(name: str) -> bool:
    """Return whether an environment has goals, which hindsight replay needs."""
    return _split(name)[0].has_goals


def missing(name: str) -> str | None:
    """Return a message about a missing package and its installation, or None."""
    family, short = _split(name)
    return lacking_extra(name, family.needs(short))


def action_kind(name: str) -> str:
    """Return the kind of an environment's actions: "discrete" or "continuous".

    An environment that its family does not list is made to find out.
    """
    family, short = _split(name)
    return family.actions[short] if short in family.actions else family.kind(short)


def options(name: str, **changes: Any) -> EnvironmentConfig:
    """Return the options of an environment: the defaults of its family with `changes`.

    Raises:
      ValueError: the environment or an option is unknown, or a value is not allowed.
    """
    return _changed(name, None, changes)


def foreign_options(name: str) -> dict[str, str]:
    """Return the options that `name` lacks and other families have, with these families' names."""
    own = _fields(_split(name)[0].config)
    theirs: dict[str, list[str]] = {}
    for prefix, family in FAMILIES.items():
        for field in _fields(family.config):
            if field not in own:
                theirs.setdefault(field, []).append(f"{prefix}/...")
    return {field: " and ".join(families) for field, families in theirs.items()}


def make(name: str, config: EnvironmentConfig | None = None, **changes: Any) -> Environment:
    """Make an environment that compiles, by its full name.

    Args:
      name: one of `names()`, or another name with a size, such as walk/13.
      config: its options; by default, `options(name)`.
      **changes: options to replace.

    Raises:
      ValueError: the environment is unknown, runs on the host or has other options, or a package is
        missing.
    """
    family, short = _installed(name)
    if family.on_host:
        raise ValueError(
            f"{name} runs on the host and cannot be compiled: environments.make_host makes it"
        )
    return family.make(short, _changed(name, config, changes))


def renderer(name: str, config: EnvironmentConfig | None = None, **changes: Any) -> Render:
    """Return `render(state) -> [H, W, 3] uint8` for states of `make` with the same arguments.

    Raises:
      ValueError: as in `make`, or the states cannot be rendered.
    """
    environment = make(name, config, **changes)
    if environment.renderer is None:
        raise ValueError(f"{name} cannot render its states")
    return environment.renderer()


def make_host(
    name: str,
    num_envs: int,
    config: EnvironmentConfig | None = None,
    training: bool = True,
    render: bool = False,
    **changes: Any,
) -> HostEnvironment:
    """Make a batch of `num_envs` environments on the host, such as atari/Pong.

    Args:
      name: full name.
      num_envs: number of environments.
      config: as for `make`.
      training: whether the batch is for training; in evaluations, games are whole and rewards
        unclipped.
      render: whether `render` will be called.
      **changes: as for `make`.

    Raises:
      ValueError: the environment is unknown, compiles or has other options, or a package is
        missing.
    """
    family, short = _installed(name)
    if not family.on_host:
        raise ValueError(f"{name} compiles and does not run on the host: use environments.make")
    if num_envs < 1:
        raise ValueError(f"num_envs is {num_envs}: it must be at least 1")
    return family.make(short, num_envs, _changed(name, config, changes), training, render)


def _split(name: str) -> tuple[Family, str]:
    check(name)
    prefix, _, short = name.partition("/")
    return FAMILIES[prefix], short


def _installed(name: str) -> tuple[Family, str]:
    if reason := missing(name):
        raise ValueError(reason)
    return _split(name)


def _fields(config: type[EnvironmentConfig]) -> list[str]:
    return [field.name for field in dataclasses.fields(config)]


def _changed(
    name: str, config: EnvironmentConfig | None, changes: Mapping[str, Any]
) -> EnvironmentConfig:
    """Return an environment's options with `changes`; raise for options of other families."""
    kind = _split(name)[0].config
    if config is not None and type(config) is not kind:
        raise ValueError(
            f"the config of {name} must be a {kind.__name__}, not a {type(config).__name__}"
        )
    known = _fields(kind)
    for option in (option for option in changes if option not in known):
        whose = foreign_options(name).get(option)
        why = f": it is an option of {whose}" if whose else f" (options: {', '.join(known)})"
        raise ValueError(f"{name} has no option '{option}'{why}: leave out --env.{option}")
    return dataclasses.replace(config or kind(), **changes)
