"""Commands that install what is missing; each works from any folder, as it is printed."""

import importlib.util
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # of the clone


def install(extra: str) -> str:
    """Return the command that installs an extra of this project, at the versions of the tests.

    Args:
      extra: a name under `[project.optional-dependencies]` in pyproject.toml, or several with
        commas between.
    """
    constraints, project = ROOT / "constraints.txt", f"{ROOT}[{extra}]"
    return f"{_pip()} -c {shlex.quote(str(constraints))} -e {shlex.quote(project)}"


def missing(what: str, modules: Mapping[str, str]) -> str | None:
    """Return the line about the first module that is not installed, with its remedy, or None.

    Args:
      what: needs the modules, such as an environment's full name.
      modules: the extra of this project that installs each module.
    """
    for module, extra in modules.items():
        if importlib.util.find_spec(module) is None:
            return f"{what} needs {module}: {install(extra)}"
    return None


def install_package(requirement: str) -> str:
    """Return the command that installs a package which is no extra of this project.

    Args:
      requirement: as pip has it, such as "imageio[ffmpeg]".
    """
    return f"{_pip()} {shlex.quote(requirement)}"


def install_accelerator(name: str, prefix: str = sys.prefix) -> str:
    """Return the command that installs jax for an accelerator.

    In the environment that make has set up, make has to know, or it would go back to the CPU when
    it next installs.

    Args:
      name: cuda12, cuda13 or tpu.
      prefix: the folder of this Python's environment.
    """
    if Path(prefix).resolve() == (ROOT / ".venv").resolve():
        return f"make -C {shlex.quote(str(ROOT))} setup ACCELERATOR={name}"
    return install(name)


def set_up() -> str:
    """Return what to do where this Python is of no use: make an environment and use its Python."""
    python = shlex.quote(str(ROOT / ".venv" / "bin" / "python"))
    return f"make -C {shlex.quote(str(ROOT))} setup, and use {python}"


def _pip() -> str:
    return f"{shlex.quote(sys.executable)} -m pip install"
