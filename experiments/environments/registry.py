"""Environments by full name, such as gymnax/CartPole-v1 and brax/ant."""

import difflib
from typing import Any

from experiments.environments import brax, gymnax
from experiments.environments.types import Environment


def names() -> tuple[str, ...]:
    """Return the full names of all environments."""
    return tuple(f"gymnax/{name}" for name in gymnax.NAMES) + tuple(
        f"brax/{name}" for name in brax.NAMES
    )


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
    check(name)
    family, _, short = name.partition("/")
    return gymnax.NAMES[short] if family == "gymnax" else "continuous"


def make(name: str, **kwargs: Any) -> Environment:
    """Make an environment by its full name.

    Args:
      name: one of `names()`.
      **kwargs: the family's own: `max_steps` for both, `backend` for brax.

    Raises:
      ValueError: there is no such environment, or it has no such argument.
    """
    check(name)
    family, _, short = name.partition("/")
    if family == "gymnax":
        if "backend" in kwargs:
            raise ValueError(f"{name} has no physics backend: leave out --env.backend")
        return gymnax.make(short, **kwargs)
    return brax.make(short, **kwargs)
