"""The type of a preset: published settings of an agent and replay methods."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

Options = Mapping[str, Any]  # option -> value
_NONE: Options = MappingProxyType({})


class Settings(NamedTuple):
    """Settings of a paper for one replay method."""

    replay: Options = _NONE  # options of the method
    agent: Options = _NONE  # options of the agent that differ with this method


class Preset(NamedTuple):
    """Settings of a paper, by section of a run; explicit options take precedence."""

    about: str  # description in one line
    agents: Mapping[str, Options]  # supported agents; the first is the default
    replays: Mapping[str, Settings]  # methods that the paper compares; the first is the default
    loop: Options
    sizes: Options
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
