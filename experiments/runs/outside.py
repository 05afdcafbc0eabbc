"""Replay methods and agents outside this repository, registered under their module's name.

Only the command line causes an import; reading a run's folder imports nothing.
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
    dataclass of its own whose name ends in "Config". An optional `DISCRETE` has defaults of options
    for agents with discrete actions.

    Args:
      name: of a known method, or of a module, such as `mypackage.mymethod`.

    Returns:
      Whether there is such a method or module.

    Raises:
      ValueError: the module cannot be imported, or holds no replay method.
    """
    if name not in METHODS and (module := _import(name)) is not None:
        method = _part_of(module, "method", "a replay method", METHODS)
        register(name, _config_of(module), method, getattr(module, "DISCRETE", {}))
    return name in METHODS


def load_agent(name: str) -> bool:
    """Import and register the agent in a module, unless the name is known.

    The module has `agent(config, action_space, objective) -> Agent`, `ACTIONS` ("discrete" or
    "continuous"), `OFFERS` (`agents.types.Offers`), a config as methods have, and optional defaults
    `LOOP` (LoopConfig) and `SIZES` (ReplaySizes). Otherwise as `load_method`.
    """
    if name not in AGENTS and (module := _import(name)) is not None:
        make, actions, offers = (
            _part_of(module, part, "an agent", AGENTS) for part in ("agent", "ACTIONS", "OFFERS")
        )
        loop, sizes = getattr(module, "LOOP", LoopConfig()), getattr(module, "SIZES", ReplaySizes())
        entry = AgentEntry(_config_of(module), make, actions, offers, loop, sizes)
        register_agent(name, entry)
    return name in AGENTS


def _import(name: str) -> ModuleType | None:
    """Import a module by its dotted name; return None if it does not exist."""
    if not all(part.isidentifier() for part in name.split(".")):
        return None
    try:
        found = importlib.util.find_spec(name)
        return importlib.import_module(name) if found else None
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            return None
        raise ValueError(f"importing {name} failed: {error}") from error
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise ValueError(f"importing {name} failed: {type(error).__name__}: {error}") from error


def _part_of(module: ModuleType, part: str, kind: str, known: Iterable[str]) -> Any:
    if not hasattr(module, part):
        names = ", ".join(known)
        raise ValueError(
            f"module {module.__name__} holds no {part}: it is not {kind} (known: {names})"
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
            f"module {module.__name__} holds {len(own)} dataclasses named ...Config: mark "
            "the one with the options by `config = ThatConfig`"
        )
    return own[0]
