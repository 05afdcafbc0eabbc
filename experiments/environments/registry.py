"""Environments by full name, such as gymnax/CartPole-v1, brax/ant and atari/Pong.

Families either compile, and run inside the training loop's program, or live on the host.
"""

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from experiments.environments import (
    atari,
    brax,
    gymnasium,
    gymnax,
    playground,
    sparse_pendulum,
    walk,
)
from experiments.environments.config import EnvironmentConfig
from experiments.environments.host import HostEnvironment
from experiments.environments.types import Environment


class Family(NamedTuple):
    """Environments that compile and are all made the same way."""

    actions: Mapping[str, str]  # name -> "discrete" or "continuous", of those that are listed
    make: Callable[..., Environment]  # (name, config) -> Environment
    config: type[EnvironmentConfig] = EnvironmentConfig  # the options
    # (name, config) -> render(the dynamics' own state) -> [H, W, 3] uint8
    renderer: Callable[..., Callable[[Any], np.ndarray]] | None = None
    missing: Callable[[str], str | None] = lambda name: None  # name -> what to install first
    find: Callable[[str], Any] | None = None  # as in `HostFamily`
    kind: Callable[[str], str] | None = None


class HostFamily(NamedTuple):
    """Environments that live on the host and are all made the same way."""

    actions: Mapping[str, str]  # name -> "discrete" or "continuous", of those that are listed
    make: Callable[..., HostEnvironment]  # (name, num_envs, config, training, render)
    config: type[EnvironmentConfig]
    missing: Callable[[str], str | None]  # name -> what to install first
    # What an unlisted name stands for; None, or a ValueError that says more: nothing does.
    find: Callable[[str], Any] | None = None
    kind: Callable[[str], str] | None = None  # name -> kind of actions, for unlisted names


FAMILIES: Mapping[str, Family | HostFamily] = MappingProxyType(
    {
        "gymnax": Family(
            gymnax.NAMES, gymnax.make, renderer=gymnax.renderer, missing=gymnax.missing,
            find=gymnax.find, kind=lambda name: "discrete",
        ),
        "sparse_pendulum": Family(
            dict.fromkeys(sparse_pendulum.NAMES, "continuous"), sparse_pendulum.make,
            renderer=sparse_pendulum.renderer,
        ),
        "walk": Family(
            dict.fromkeys(walk.NAMES, "discrete"), walk.make, renderer=walk.renderer,
            find=walk.find, kind=lambda name: "discrete",
        ),
        "brax": Family(
            dict.fromkeys(brax.NAMES, "continuous"), brax.make, brax.BraxConfig, brax.renderer,
            missing=brax.missing,
        ),
        "playground": Family(
            dict.fromkeys(playground.NAMES, "continuous"), playground.make,
            renderer=playground.renderer, missing=playground.missing,
        ),
        "gymnasium": HostFamily(
            gymnasium.NAMES, gymnasium.make, gymnasium.GymnasiumConfig, gymnasium.missing,
            gymnasium.find, gymnasium.kind,
        ),
        "atari": HostFamily(
            dict.fromkeys(atari.NAMES, "discrete"), atari.make, atari.AtariConfig, atari.missing
        ),
    }
)  # fmt: skip


def names() -> tuple[str, ...]:
    """Return the full names of all environments that are listed, installed or not."""
    return tuple(f"{family}/{name}" for family, entry in FAMILIES.items() for name in entry.actions)


def check(name: str) -> None:
    """Refuse an unknown name.

    Raises:
      ValueError: one line with the nearest match.
    """
    prefix, _, short = name.partition("/")
    family = FAMILIES.get(prefix)
    if family is not None and short in family.actions:
        return
    if family is not None and family.find is not None and short:
        if reason := family.missing(short):
            raise ValueError(reason)
        if family.find(short) is not None:
            return
    near = difflib.get_close_matches(name, names(), n=1, cutoff=0.4)
    hint = f": did you mean '{near[0]}'?" if near else ""
    raise ValueError(
        f"unknown environment '{name}'{hint} (families: {', '.join(FAMILIES)}; --list names all)"
    )


def module_of(name: str) -> str | None:
    """Return the module that has to be imported before there is such an environment, if any is."""
    family, _, short = name.partition("/")
    return short.rpartition(":")[0] or None if family == "gymnasium" else None


def is_host(name: str) -> bool:
    """Return whether an environment lives on the host."""
    return isinstance(_split(name)[0], HostFamily)


def missing(name: str) -> str | None:
    """Say what to install before an environment can run; None if nothing is known to be missing."""
    family, short = _split(name)
    return family.missing(short)


def action_kind(name: str) -> str:
    """Return "discrete" or "continuous", without building the environment if it is listed."""
    family, short = _split(name)
    return family.actions[short] if short in family.actions else family.kind(short)


def options(name: str, **changes: Any) -> EnvironmentConfig:
    """Return the options of an environment: the defaults of its family, but for `changes`.

    Raises:
      ValueError: there is no such environment, it has no such option, or a value is not allowed.
    """
    return _changed(name, None, changes)


def foreign_options(name: str) -> dict[str, str]:
    """Return the options that only other families have, each with the names of those families."""
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
      name: one of `names()`, or another of a family with sizes, such as walk/13.
      config: its options; None takes the defaults, `options(name)`.
      **changes: options to replace in them.

    Raises:
      ValueError: there is no such environment, it lives on the host, or the options are not its.
    """
    family, short = _split(name)
    if isinstance(family, HostFamily):
        raise ValueError(
            f"{name} lives on the host and cannot be compiled: environments.make_host makes it"
        )
    if reason := family.missing(short):
        raise ValueError(reason)
    return family.make(short, _changed(name, config, changes))


def renderer(
    name: str, config: EnvironmentConfig | None = None, **changes: Any
) -> Callable[[Any], np.ndarray]:
    """Return a function that renders the states of an environment that compiles.

    Args:
      name: one of `names()`; those on the host render themselves (`HostEnvironment.render`).
      config: as for `make`.
      **changes: as for `make`.

    Returns:
      `render(state) -> [H, W, 3] uint8`, of a state of `make(name, config)`, on the host.

    Raises:
      ValueError: as `make`; or the states cannot be rendered, and why.
    """
    family, short = _split(name)
    if isinstance(family, HostFamily) or family.renderer is None:
        raise ValueError(f"{name} cannot render its states")
    if reason := family.missing(short):
        raise ValueError(reason)
    render = family.renderer(short, _changed(name, config, changes))
    return lambda state: render(state.inner)


def make_host(
    name: str,
    num_envs: int,
    config: EnvironmentConfig | None = None,
    training: bool = True,
    render: bool = False,
    **changes: Any,
) -> HostEnvironment:
    """Make a batch of environments that live on the host, by their full name.

    Args:
      name: such as gymnasium/Hopper-v5 or atari/Pong.
      num_envs: how many.
      config: as for `make`.
      training: whether it is for training; for evaluation, games are whole and rewards unclipped.
      render: whether `render` will be called.
      **changes: as for `make`.

    Raises:
      ValueError: there is no such environment, it compiles, the options are not its, or a package
        is missing (the message names the extra to install).
    """
    family, short = _split(name)
    if not isinstance(family, HostFamily):
        raise ValueError(f"{name} compiles and does not live on the host: use environments.make")
    if num_envs < 1:
        raise ValueError(f"num_envs is {num_envs}: it must be at least 1")
    if reason := family.missing(short):
        raise ValueError(reason)
    return family.make(short, num_envs, _changed(name, config, changes), training, render)


def _split(name: str) -> tuple[Family | HostFamily, str]:
    check(name)
    prefix, _, short = name.partition("/")
    return FAMILIES[prefix], short


def _fields(config: type[EnvironmentConfig]) -> list[str]:
    return [field.name for field in dataclasses.fields(config)]


def _changed(
    name: str, config: EnvironmentConfig | None, changes: Mapping[str, Any]
) -> EnvironmentConfig:
    """Return an environment's options with `changes`, refusing what is not its own."""
    kind = _split(name)[0].config
    if config is not None and type(config) is not kind:
        raise ValueError(f"{name} has options {kind.__name__}, not {type(config).__name__}")
    known = _fields(kind)
    for option in (option for option in changes if option not in known):
        whose = foreign_options(name).get(option)
        why = f": it is an option of {whose}" if whose else f" (options: {', '.join(known)})"
        raise ValueError(f"{name} has no option '{option}'{why}: leave out --env.{option}")
    return dataclasses.replace(config or kind(), **changes)
