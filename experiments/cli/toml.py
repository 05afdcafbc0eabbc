"""Options from a TOML file, named as on the command line."""

import tomllib
from pathlib import Path
from typing import Any


def words_of(path: Path) -> list[str]:
    """Return a file of options as words of a command line.

    Raises:
      ValueError: one line: it can't be read, names an option twice, or a value is none.
    """
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"{path} can't be read ({error.strerror}): name another --file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no TOML ({error}): mend it") from None
    axes = {name: _flat(content.pop(name, {}), path, table=name) for name in ("grid", "space")}
    words = []
    for name, value in _flat(content, path).items():
        values = value if isinstance(value, list) else [value]
        flag = name in ("overwrite", "dry_run", "dry-run") and value is True
        words += [f"--{name}", *(() if flag else map(_text, values))]
    for table, own in axes.items():
        if own:
            words += [f"--{table}", *(f"{name}={_joined(values)}" for name, values in own.items())]
    return words


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
