"""Options from a TOML file, with the same names as on the command line."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.runs import registry, run_config
from experiments.storage import files

_COMMAND_LINE_ONLY = ("file", "out", "resume", "overwrite", "on", "compilation-cache")
_NAME = re.compile(r"[A-Za-z][\w.-]*")
_OPTION = re.compile(r"-(?!\.?\d)")  # start of an option, not of a negative number


def words_of(path: Path) -> list[str]:
    """Return the options in a file as words of a command line.

    A file may come from someone else. Only the command line may name folders, hosts and modules.

    Raises:
      ValueError: one line: the file cannot be read, gives an option twice, or has a name or value
        that is invalid or not allowed in files.
    """
    content = files.read_toml(path)
    try:
        axes = {table: _flat(content.pop(table, {}), table) for table in ("grid", "space")}
        words = []
        for name, value in _flat(content).items():
            texts = _texts(name, value)
            flag = name.replace("_", "-") == "dry-run" and value is True
            words += [f"--{name}", *([] if flag else texts)]
        for table, own in axes.items():
            settings = [f"{name}={','.join(_texts(name, own[name], ' '))}" for name in own]
            words += [f"--{table}", *settings] if own else []
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return words


def _flat(content: Any, table: str = "", prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one with dotted names."""
    if not isinstance(content, dict):
        raise ValueError(f"[{table}] is not a table: write NAME = [VALUE, VALUE] below it")
    flat: dict[str, Any] = {}
    for name, value in content.items():
        nested = isinstance(value, dict)
        inner = _flat(value, table, f"{prefix}{name}.") if nested else {prefix + name: value}
        for full in inner:
            if full.replace("-", "_") in {known.replace("-", "_") for known in flat}:
                raise ValueError(f"{full} is given twice: remove one")
        flat |= inner
    return flat


def _texts(name: str, value: Any, joined: str | None = None) -> list[str]:
    """Return values as words; those of a list within a list are joined, if a separator is given.

    Raises:
      ValueError: the name or a value is invalid, or not allowed in files.
    """
    values = value if isinstance(value, list) else [value]
    if joined is not None:
        return [joined.join(_texts(name, v)) if isinstance(v, list) else _text(v) for v in values]
    texts = [_text(each) for each in values]
    if not _NAME.fullmatch(name):
        raise ValueError(f"'{name}' is not the name of an option: correct it")
    for text in texts:
        if _OPTION.match(text):
            raise ValueError(f"{name} = '{text}' looks like an option: correct it")
    _check_allowed(name.replace("_", "-"), texts)
    return texts


def _check_allowed(name: str, texts: Sequence[str]) -> None:
    """Refuse folders and hosts, and modules that the command line has not named."""
    if name in _COMMAND_LINE_ONLY:
        raise ValueError(f"--{name} is not allowed in files: use it on the command line")
    for text in texts:
        if name == "agent":
            registry.check_known("agent", text)
        elif name == "replays":
            registry.check_known("replay", text.rpartition("=")[2])
        elif name == "envs":
            run_config.check_imported(text)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
