"""The version of the library and imports of optional packages."""

import importlib
import shlex
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import ModuleType


def _find() -> str:
    """Return the version of the installed package, or of the clone that contains this file."""
    try:
        return metadata.version("jaxreplay")
    except metadata.PackageNotFoundError:
        file = Path(__file__).parents[2] / "pyproject.toml"
        project = (
            tomllib.loads(file.read_bytes().decode()).get("project", {}) if file.is_file() else {}
        )
        return project["version"] if project.get("name") == "jaxreplay" else "0+unknown"


VERSION = _find()


def import_optional(name: str, what: str, package: str | None = None) -> ModuleType:
    """Import a module by name from an optional package.

    Args:
      name: name of the module.
      what: features that require the module, a plural such as "Minari datasets".
      package: package to install, or None for the first part of `name`.

    Raises:
      ImportError: If the package is missing. The message contains the installation command.
    """
    package = package or name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ImportError(
            f"{what} require {package}, which is not installed: {shlex.quote(sys.executable)} -m "
            f"pip install {shlex.quote(package)}"
        ) from None
