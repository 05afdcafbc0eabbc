"""The version of the library, and optional packages."""

import importlib
import shlex
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import ModuleType


def find() -> str:
    """Return the installed version, or that of the clone that contains this file."""
    try:
        return metadata.version("jaxreplay")
    except metadata.PackageNotFoundError:
        file = Path(__file__).parents[2] / "pyproject.toml"
        project = (
            tomllib.loads(file.read_bytes().decode()).get("project", {}) if file.is_file() else {}
        )
        return project["version"] if project.get("name") == "jaxreplay" else "0+unknown"


VERSION = find()


def imported(name: str, what: str, package: str | None = None) -> ModuleType:
    """Return a module of an optional package.

    Args:
      name: of the module.
      what: the features that need it, in the plural, such as "Minari datasets".
      package: to install; None is the first part of `name`.

    Raises:
      ImportError: the package is missing; one line with the command that installs it.
    """
    package = package or name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ImportError(
            f"{what} need {package}, which is not installed: {shlex.quote(sys.executable)} -m pip "
            f"install {shlex.quote(package)}"
        ) from None
