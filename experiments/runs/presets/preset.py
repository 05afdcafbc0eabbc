"""What a preset is."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

Options = Mapping[str, Any]  # option -> value
_NONE: Options = MappingProxyType({})


class Settings(NamedTuple):
    """What a paper sets for one replay method."""

    replay: Options = _NONE  # options of the method
    agent: Options = _NONE  # options of the agent that the paper changes where it has this method


class Preset(NamedTuple):
    """What a paper sets, by section of a run; options given explicitly still win."""

    about: str  # one line
    agents: Mapping[str, Options]  # that it is for; the first is its own
    replays: Mapping[str, Settings]  # that the paper compares; the first is its own
    loop: Options
    sizes: Options
    # Options of whatever method; a group is set only where the method has all of its options.
    shared: tuple[Options, ...] = ()
    environment: Options = _NONE  # set where the family of the environment has the option
    env: str | None = None  # one of the paper's, used where none is named; None: the command's own
    differs: tuple[str, ...] = ()  # from the paper, one sentence each

    @property
    def agent(self) -> str:
        """The agent that it brings where none is named."""
        return next(iter(self.agents))

    @property
    def replay(self) -> str:
        """The replay method that it brings where none is named."""
        return next(iter(self.replays))
