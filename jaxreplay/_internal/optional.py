"""Packages that a few functions need, and the library does not depend on."""

import importlib
import shlex
import sys
from types import ModuleType


def imported(name: str, what: str, package: str | None = None) -> ModuleType:
    """Import a module of a package that may be missing.

    Args:
      name: of the module.
      what: needs it, in the plural, such as "Minari datasets".
      package: what to install; None: what the module's name begins with.

    Raises:
      ImportError: one line: it is missing, with a command that mends it.
    """
    package = package or name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ImportError(
            f"{what} need {package}, which is not installed: {shlex.quote(sys.executable)} -m pip "
            f"install {shlex.quote(package)}"
        ) from None
