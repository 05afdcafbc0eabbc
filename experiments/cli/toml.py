"""Options from a TOML file, with the same names as on the command line."""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.cli.parser import Parser
from experiments.files import disk
from experiments.runs import registry, run_config

# A file may come from someone else: only the command line names folders, hosts and modules.
_COMMAND_LINE_ONLY = (
    "file", "out", "resume", "overwrite", "on", "compilation_cache", "list", "json",
    argparse.SUPPRESS,  # --help
)  # fmt: skip
NAMES = ("--agent", "--replays", "--envs", "--env", "--preset")
_CHECK_REGISTERED: Mapping[str, Callable[[str], Any]] = {
    "agent": lambda text: registry.check_known("agent", text),
    "replays": lambda text: registry.check_known("replay", text.rpartition("=")[2]),
    "envs": run_config.check_imported,
}


class Options(NamedTuple):
    """Options of a file as texts by name, such as ("--n-step", ["3"])."""

    path: Path
    texts: Sequence[tuple[str, Sequence[str]]]

    def values(self, parser: Parser, only: Sequence[str] | None = None) -> argparse.Namespace:
        """Return the values of the options, or only of those in `only`, converted by `parser`.

        Raises:
          ValueError: an option is unknown, repeated or not allowed in files, a value is invalid, or
            an agent, replay method or environment is not registered. The message has one line.
        """
        found = argparse.Namespace()
        try:
            for name, texts in self.texts:
                if only is not None and name not in only:
                    continue
                option = parser.option(name)
                if option.dest in _COMMAND_LINE_ONLY:
                    raise ValueError(f"{name} is not allowed in files: use it on the command line")
                if option.dest in vars(found):
                    raise ValueError(f"{name} is given twice: remove one")
                for text in texts:
                    _CHECK_REGISTERED.get(option.dest, str)(text)
                setattr(found, option.dest, parser.convert(option, texts))
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None
        return found


def read(path: Path) -> Options:
    """Return the options in a file; raise ValueError, in one line, if it cannot be read."""
    content = disk.read_toml(path)
    own = content.get("grid", {})
    if not isinstance(own, dict):
        raise ValueError(
            f"{path}: grid is not a TOML table: write [grid], and NAME = [VALUE, VALUE] below it"
        )
    settings = [f"{name}={','.join(_texts(value))}" for name, value in _flat(own)]
    content["grid"] = settings or {}
    names = ((f"--{name}".replace("_", "-"), value) for name, value in _flat(content))
    return Options(path, [(name, _texts(value)) for name, value in names])


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name (`agent.tau`) and the value of each entry of nested tables."""
    for key, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _texts(value: Any) -> list[str]:
    """Return the words of a value on the command line, such as ["64 64"] for [[64, 64]]."""
    if isinstance(value, list):
        return [" ".join(_texts(each)) for each in value]
    return [str(value).lower() if isinstance(value, bool) else str(value)]
