"""Methods, agents and environments of other packages, referred to by the names of their modules.

Only modules that the command line names are imported, never modules that only the folder of a run
names.
"""

import dataclasses
import functools
import importlib
import importlib.util
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from agents.types import Discrete
from experiments.environments import families
from experiments.environments.families import Family
from experiments.environments.types import CompiledConfig, Environment
from experiments.runs.registry import AGENTS, AgentEntry, register_agent
from experiments.training.config import LoopConfig, ReplaySizes
from jaxreplay.methods import METHODS, register

_BUILT_IN = {
    "replay": frozenset(METHODS), "agent": frozenset(AGENTS), "env": frozenset(families.FAMILIES),
}  # fmt: skip


def is_outside(kind: str, name: str) -> bool:
    """Return whether a replay, agent or env (`kind`) of this name is from another package."""
    return name.partition("/")[0] not in _BUILT_IN[kind]


def load_method(name: str) -> bool:
    """Import and register the replay method in a module, unless the name is registered.

    The module must define `method(config, updates) -> Method` and either a dataclass `config` or
    exactly one dataclass with a name that ends in "Config". It may define `DISCRETE`, default
    options for agents with discrete actions.

    Args:
      name: name of a registered method or of a module, such as `mypackage.mymethod`.

    Returns:
      Whether the method or module exists.

    Raises:
      ValueError: the module cannot be imported, or does not define a replay method.
    """
    if name not in METHODS and (module := _import(name)) is not None:
        method = _part_of(module, "method", "a replay method", METHODS)
        register(name, _config_of(module), method, getattr(module, "DISCRETE", {}))
    return name in METHODS


def load_agent(name: str) -> bool:
    """Import and register the agent in a module, unless the name is registered.

    The module must define `agent(config, action_space, objective) -> Agent`, `ACTIONS` ("discrete"
    or "continuous"), `OFFERS` (`agents.types.Offers`), and a config as for methods. It may define
    the defaults `LOOP` (LoopConfig) and `SIZES` (ReplaySizes). Argument, returned value and errors
    are those of `load_method`.
    """
    if name not in AGENTS and (module := _import(name)) is not None:
        make, actions, offers = (
            _part_of(module, part, "an agent", AGENTS) for part in ("agent", "ACTIONS", "OFFERS")
        )
        loop, sizes = getattr(module, "LOOP", LoopConfig()), getattr(module, "SIZES", ReplaySizes())
        entry = AgentEntry(_config_of(module), make, actions, offers, loop, sizes)
        register_agent(name, entry)
    return name in AGENTS


def load_environment(name: str) -> bool:
    """Import and register the environments in a module, unless the family is registered.

    The module must define `make(name, config) -> Environment`, which raises ValueError for an
    unknown name. It may define `Config`, a subclass of `CompiledConfig`.

    Args:
      name: name of a registered environment, or of a module and an environment, such as
        `mypackage.mytasks/Corridor`.

    Returns:
      Whether the family or module exists.

    Raises:
      ValueError: the module cannot be imported, or does not define environments.
    """
    prefix = name.partition("/")[0]
    if prefix not in families.FAMILIES and (module := _import(prefix)) is not None:
        make = _part_of(module, "make", "a module of environments", families.FAMILIES)
        kind = getattr(module, "Config", CompiledConfig)

        def named(short: str, config: CompiledConfig) -> Environment:
            made = make(short, config)
            if not isinstance(made, Environment):
                raise ValueError(
                    f"{prefix}.make('{short}', config) returned {type(made).__name__}, not an "
                    "Environment: return experiments.environments.episodes.make_episodic(...)"
                )
            return made._replace(name=f"{prefix}/{short}")

        @functools.cache
        def action_kind(short: str) -> str:
            space = named(short, kind()).action_space
            return "discrete" if isinstance(space, Discrete) else "continuous"

        family = Family({}, named, kind, find=action_kind, kind=action_kind)
        families.register(prefix, family)
    return prefix in families.FAMILIES


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
    except (Exception, SystemExit) as error:  # a module may raise any exception
        raise ValueError(f"importing {name} failed: {type(error).__name__}: {error}") from error


def _part_of(module: ModuleType, part: str, kind: str, known: Iterable[str]) -> Any:
    if not hasattr(module, part):
        names = ", ".join(known)
        raise ValueError(
            f"module {module.__name__} does not define '{part}': it is not {kind} (known: {names})"
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
