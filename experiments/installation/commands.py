"""Missing packages, and the commands that install them, which work from any folder.

Only the standard library is imported at the top, and the syntax is that of old Python versions, so
that the error message of `refuse_unmet` appears before anything else fails.
"""

from __future__ import annotations

import importlib.util
import shlex
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # of the clone
PYTHON = (3, 11)  # the oldest supported version, as in pyproject.toml


def install(extra: str) -> str:
    """Return the command that installs an extra of this project with the tested versions.

    Args:
      extra: name below `[project.optional-dependencies]` in pyproject.toml, or several names
        separated by commas.
    """
    constraints, project = ROOT / "constraints.txt", f"{ROOT}[{extra}]"
    return f"{_pip()} -c {shlex.quote(str(constraints))} -e {shlex.quote(project)}"


def set_up() -> str:
    """Return the command that creates an environment for this project."""
    python = shlex.quote(str(ROOT / ".venv" / "bin" / "python"))
    return f"make -C {shlex.quote(str(ROOT))} setup, and use {python}"


def missing(what: str, modules: Mapping[str, str]) -> str | None:
    """Return a message about the first module that is not installed, or None.

    Args:
      what: the feature that needs the modules, such as the name of an environment.
      modules: the extra of this project that installs each module.
    """
    for module, extra in modules.items():
        if importlib.util.find_spec(module) is None:
            return f"{what} needs {module}: {install(extra)}"
    return None


def refuse_unmet() -> None:
    """Check the Python version and the packages of the commands.

    Raises:
      SystemExit: a requirement is not met, in a command (`python -m experiments.NAME`).
      ImportError: a requirement is not met, in another program, such as a notebook.
    """
    message = unmet()
    if message is not None and sys.argv[0] == "-m":  # while Python searches for the module
        print(f"error: {message}", file=sys.stderr)
        raise SystemExit(2)
    if message is not None:
        raise ImportError(message)


def unmet(python: tuple[int, int] = sys.version_info[:2], root: Path = ROOT) -> str | None:
    """Return a message about the requirements that are not met, or None.

    Versions newer than those in pyproject.toml are accepted.

    Args:
      python: version of Python.
      root: folder of the pyproject.toml.
    """
    if python < PYTHON:
        wanted, found = (".".join(map(str, version)) for version in (PYTHON, python))
        return f"experiments needs Python {wanted} or newer, not {found}: {set_up()}"
    if (lacking := _lacking(root)) is None:
        return None
    system = sys.prefix == sys.base_prefix  # the system's Python often refuses to install packages
    return f"experiments needs {lacking}: {set_up() if system else install('codebase')}"


def _lacking(root: Path) -> str | None:
    """Return the packages that are missing or too old, or None."""
    import tomllib  # since Python 3.11

    try:
        from packaging.requirements import Requirement
    except ImportError:
        return "packaging, which is not installed"
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lacking = []
    for line in (*project["dependencies"], *project["optional-dependencies"]["codebase"]):
        wanted = Requirement(line)
        least = ",".join(str(part) for part in wanted.specifier if part.operator == ">=")
        try:
            found = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            lacking.append(f"{wanted.name} (not installed)")
            continue
        if not type(wanted.specifier)(least).contains(found, prereleases=True):
            lacking.append(f"{wanted.name}{least} ({found} is installed)")
    return ", ".join(lacking) or None


def _pip() -> str:
    return f"{shlex.quote(sys.executable)} -m pip install"
