"""Options from a TOML file, named as on the command line."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.analysis import files
from experiments.runs import registry, run_config

_NOT_IN_FILES = ("file", "out", "resume", "overwrite", "on", "compilation-cache")
_NAME = re.compile(r"[A-Za-z][\w.-]*")
_OPTION = re.compile(r"-(?!\.?\d)")  # what a command line takes for an option


def words_of(path: Path) -> list[str]:
    """Return a file of options as words of a command line.

    A file may be somebody else's, so that places, hosts and modules are for the command line alone.

    Raises:
      ValueError: one line: it can't be read, names an option twice, or a name or a value is none or
        is not for files.
    """
    try:
        content = files.read_toml(path)
    except OSError as error:
        raise ValueError(f"{path} can't be read ({error.strerror}): name another --file") from None
    except files.Unreadable as error:
        raise ValueError(f"{path} is no TOML ({error}): correct it") from None
    axes = {name: _flat(content.pop(name, {}), path, table=name) for name in ("grid", "space")}
    words = []
    for name, value in _flat(content, path).items():
        texts = [_text(each) for each in (value if isinstance(value, list) else [value])]
        _check_words(path, name, texts)
        for text in texts:
            try:
                _check_option(name.replace("_", "-"), text)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from None
        flag = name in ("dry_run", "dry-run") and value is True
        words += [f"--{name}", *(() if flag else texts)]
    for table, own in axes.items():
        if own:
            texts = {name: _joined(values) for name, values in own.items()}
            for name in texts:
                _check_words(path, name, ())
            words += [f"--{table}", *(f"{name}={text}" for name, text in texts.items())]
    return words


def _check_option(name: str, value: str) -> None:
    """Refuse a place or a host, and a module that the command line has not named."""
    if name in _NOT_IN_FILES:
        raise ValueError(f"--{name} {value} stands in a file: give it on the command line")
    if name == "agent":
        registry.check_known("agent", value)
    elif name == "replays":
        registry.check_known("replay", value.rpartition("=")[2])
    elif name == "envs":
        run_config.check_imported(value)


def _check_words(path: Path, name: str, texts: Sequence[str]) -> None:
    """Refuse a name or a value that would be read as another option."""
    for what, text, is_one in (
        ("name", name, _NAME.fullmatch(name)),
        *(("value", text, not _OPTION.match(text)) for text in texts),
    ):
        if not is_one:
            raise ValueError(f"{path}: '{text}' is no {what} of an option: mend it")


def _flat(content: Any, path: Path, above: str = "", table: str = "grid") -> dict[str, Any]:
    """Return nested tables as one, with dotted names."""
    if not isinstance(content, dict):
        raise ValueError(f"{path}: [{table}] is no table: write NAME = [VALUE, VALUE] below it")
    found: dict[str, Any] = {}
    for name, value in content.items():
        nested = isinstance(value, dict)
        more = _flat(value, path, f"{above}{name}.") if nested else {above + name: value}
        spelt = {each.replace("-", "_"): each for each in found}
        for each in more:
            if (before := spelt.get(each.replace("-", "_"))) is not None:
                twice = "" if before == each else f", as {before} too"
                raise ValueError(f"{path} names {each} twice{twice}: leave one out")
        found |= more
    return found


def _joined(values: Any) -> str:
    each = values if isinstance(values, list) else [values]
    return ",".join(" ".join(map(_text, v)) if isinstance(v, list) else _text(v) for v in each)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
