"""Replay methods and agents that live outside of this repository, by the name of their module.

A module is imported only when a command line names it: reading a run's folder imports nothing.
"""

import dataclasses
import importlib
import importlib.util
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from experiments.runs.registry import AGENTS, AgentEntry, register_agent
from experiments.training.config import LoopConfig, ReplaySizes
from jaxreplay.methods import METHODS, register


def load_method(name: str) -> bool:
    """Import and register the replay method in a module, unless the name is known.

    The module has `method(config, updates) -> Method` and either `config`, a dataclass, or one
    dataclass of its own whose name ends in "Config". If options have other defaults for agents
    with discrete actions, `DISCRETE` says them.

    Args:
      name: of a method that is known, or of a module, such as `mypackage.mymethod`.

    Returns:
      Whether there is such a method or module.

    Raises:
      ValueError: one line: the module cannot be imported, or holds no replay method.
    """
    if name in METHODS:
        return True
    module = _import(name)
    if module is not None:
        method = _part_of(module, "method", "a replay method", METHODS)
        register(name, _config_of(module), method, getattr(module, "DISCRETE", {}))
    return module is not None


def load_agent(name: str) -> bool:
    """Import and register the agent in a module, unless the name is known.

    The module has `agent(config, action_space, objective) -> Agent`, `ACTIONS` ("discrete" or
    "continuous"), `OFFERS` (`agents.types.Offers`), a config as methods have, and, if it
    wants other defaults, `LOOP` (LoopConfig) and `SIZES` (ReplaySizes).

    Args:
      name: of an agent that is known, or of a module, such as `mypackage.myagent`.

    Returns:
      Whether there is such an agent or module.

    Raises:
      ValueError: one line: the module cannot be imported, or holds no agent.
    """
    if name in AGENTS:
        return True
    module = _import(name)
    if module is not None:
        make, actions, offers = (
            _part_of(module, part, "an agent", AGENTS) for part in ("agent", "ACTIONS", "OFFERS")
        )
        loop, sizes = getattr(module, "LOOP", LoopConfig()), getattr(module, "SIZES", ReplaySizes())
        entry = AgentEntry(_config_of(module), make, actions, offers, loop, sizes)
        register_agent(name, entry)
    return module is not None


def _import(name: str) -> ModuleType | None:
    """Import a module by its dotted name; None if there is none.

    Raises:
      ValueError: it fails.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        return None
    try:
        found = importlib.util.find_spec(name)
        return importlib.import_module(name) if found else None
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            return None
        raise ValueError(f"importing {name} failed: {error}") from error
    except (Exception, SystemExit) as error:  # whatever a module of the user's does
        raise ValueError(f"importing {name} failed: {type(error).__name__}: {error}") from error


def _part_of(module: ModuleType, part: str, what: str, known: Iterable[str]) -> Any:
    if not hasattr(module, part):
        names = ", ".join(known)
        raise ValueError(
            f"module {module.__name__} holds no {part}: it is not {what} (known: {names})"
        )
    return getattr(module, part)


def _config_of(module: ModuleType) -> type[Any]:
    if isinstance(getattr(module, "config", None), type):
        return module.config
    own = [
        value
        for name, value in vars(module).items()
        if name.endswith("Config")
        and dataclasses.is_dataclass(value)
        and value.__module__ == module.__name__
    ]
    if len(own) != 1:
        raise ValueError(
            f"module {module.__name__} holds {len(own)} dataclasses named ...Config: say which "
            "one has the options, with a line `config = ThatConfig`"
        )
    return own[0]
