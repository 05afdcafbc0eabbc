"""Messages about extras of this project that are not installed."""

import importlib.util
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]  # of the clone


def lacking_extra(what: str, modules: Mapping[str, str]) -> str | None:
    """Return a message about the first module that is not installed, or None.

    The message ends with a command that installs the module at the tested version, from any folder.

    Args:
      what: the feature that needs the modules, such as the name of an environment.
      modules: names of modules, each with the extra of this project that installs it.
    """
    for module, extra in modules.items():
        if importlib.util.find_spec(module) is None:
            words = [sys.executable, "-m", "pip", "install", "-c", str(_ROOT / "constraints.txt")]
            return f"{what} needs {module}: {shlex.join([*words, '-e', f'{_ROOT}[{extra}]'])}"
    return None
