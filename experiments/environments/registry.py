"""Environments by full name, such as gymnax/CartPole-v1 and brax/ant."""

import difflib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from experiments.environments import brax, gymnax, sparse_pendulum
from experiments.environments.types import Environment


class Family(NamedTuple):
    """Environments that are made alike."""

    actions: Mapping[str, str]  # name -> "discrete" or "continuous"
    make: Callable[..., Environment]  # (name, **options) -> Environment
    has_backend: bool = False  # whether there is a choice of physics


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "gymnax": Family(gymnax.NAMES, gymnax.make),
        "sparse_pendulum": Family(
            dict.fromkeys(sparse_pendulum.NAMES, "continuous"), sparse_pendulum.make
        ),
        "brax": Family(dict.fromkeys(brax.NAMES, "continuous"), brax.make, has_backend=True),
    }
)


def names() -> tuple[str, ...]:
    """Return the full names of all environments."""
    return tuple(f"{family}/{name}" for family, entry in FAMILIES.items() for name in entry.actions)


def check(name: str) -> None:
    """Refuse an unknown name.

    Raises:
      ValueError: one line with the nearest match and the list.
    """
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1, cutoff=0.4)
        hint = f": did you mean '{near[0]}'?" if near else ""
        raise ValueError(f"unknown environment '{name}'{hint} (choices: {', '.join(names())})")


def action_kind(name: str) -> str:
    """Return "discrete" or "continuous", without building the environment."""
    family, short = _split(name)
    return family.actions[short]


def make(name: str, **kwargs: Any) -> Environment:
    """Make an environment by its full name.

    Args:
      name: one of `names()`.
      **kwargs: the family's own: `max_steps` for all, `backend` for brax.

    Raises:
      ValueError: there is no such environment, or it has no such argument.
    """
    family, short = _split(name)
    if "backend" in kwargs and not family.has_backend:
        raise ValueError(f"{name} has no physics backend: leave out --env.backend")
    return family.make(short, **kwargs)


def _split(name: str) -> tuple[Family, str]:
    check(name)
    family, _, short = name.partition("/")
    return FAMILIES[family], short
