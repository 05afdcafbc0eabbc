"""Options from a TOML file, with the same names as on the command line."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.cli.options import Parser
from experiments.runs import registry, run_config
from experiments.storage import files

# A file may come from someone else: only the command line names folders, hosts and modules.
_COMMAND_LINE_ONLY = (
    "file", "out", "resume", "overwrite", "on", "compilation_cache", "list", "json",
    argparse.SUPPRESS,  # --help
)  # fmt: skip
NAMES = ("--agent", "--replays", "--envs", "--env", "--preset")
_CHECK_REGISTERED: Mapping[str, Callable[[str], None]] = {
    "agent": lambda text: registry.check_known("agent", text),
    "replays": lambda text: registry.check_known("replay", text.rpartition("=")[2]),
    "envs": run_config.check_imported,
}


class Options(NamedTuple):
    """Options of a file as texts by name, such as "--n-step": ["3"]."""

    path: Path
    texts: Mapping[str, Sequence[str]]

    def values(self, parser: Parser, only: Sequence[str] | None = None) -> argparse.Namespace:
        """Return the values of the options, or of `only` some, as the parser's types read them.

        Raises:
          ValueError: one line: an option is unknown, repeated or not allowed in files, a value is
            invalid, or an agent, replay method or environment is not registered.
        """
        found = argparse.Namespace()
        try:
            for name in (name for name in self.texts if only is None or name in only):
                option, texts = parser.option(name), self.texts[name]
                if option.dest in _COMMAND_LINE_ONLY:
                    raise ValueError(f"{name} is not allowed in files: use it on the command line")
                if option.dest in vars(found):
                    raise ValueError(f"{name} is given twice: remove one")
                if option.dest in _CHECK_REGISTERED:
                    for text in texts:
                        _CHECK_REGISTERED[option.dest](text)
                setattr(found, option.dest, parser.convert(option, texts))
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None
        return found


def read(path: Path) -> Options:
    """Return the options in a file.

    Raises:
      ValueError: one line: the file cannot be read, or gives an option twice.
    """
    try:
        content = files.read_toml(path)
    except OSError as error:
        raise ValueError(f"--file {path}: {error.strerror}") from None
    except files.Unreadable as error:
        raise ValueError(f"{path} is not valid TOML ({error}): correct it") from None
    try:
        axes = {table: _flat(content.pop(table, {}), table) for table in ("grid", "space")}
        texts = {f"--{n}".replace("_", "-"): _texts(value) for n, value in _flat(content).items()}
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    for table, own in axes.items():
        if own:
            texts[f"--{table}"] = [f"{name}={','.join(_texts(own[name]))}" for name in own]
    return Options(path, texts)


def _flat(content: Any, table: str = "", prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one, with dotted names that contain no dashes."""
    if not isinstance(content, dict):
        raise ValueError(f"[{table}] is not a table: write NAME = [VALUE, VALUE] below it")
    flat: dict[str, Any] = {}
    for key, value in content.items():
        name, nested = prefix + key.replace("-", "_"), isinstance(value, dict)
        for full, each in (_flat(value, table, f"{name}.") if nested else {name: value}).items():
            if full in flat:
                raise ValueError(f"{full} is given twice: remove one")
            flat[full] = each
    return flat


def _texts(value: Any) -> list[str]:
    """Return the text of each value of a list; spaces separate the parts of one value."""
    if isinstance(value, list):
        return [" ".join(_texts(each)) for each in value]
    return [str(value).lower() if isinstance(value, bool) else str(value)]
