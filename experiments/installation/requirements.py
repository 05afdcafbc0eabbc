"""Does this Python have what the commands need? Said before anything else is imported.

Only the standard library is imported at the top, and no syntax is newer than what an old Python
reads: it has to get as far as the message.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

from experiments.installation.commands import ROOT, install, set_up

PYTHON = (3, 11)  # the oldest; pyproject.toml tells pip the same


def refuse_unmet() -> None:
    """Stop where a requirement is not met, in one line.

    Raises:
      SystemExit: this is `python -m experiments.something`.
      ImportError: the codebase is imported otherwise, such as from a notebook.
    """
    message = unmet()
    if message is None:
        return
    if sys.argv[0] == "-m":  # what Python puts there while it looks for the module
        print(f"error: {message}", file=sys.stderr)
        raise SystemExit(2)
    raise ImportError(message)


def unmet(python: tuple[int, int] = sys.version_info[:2], root: Path = ROOT) -> str | None:
    """Say in one line which requirement is not met, and what to do; None: all are.

    Versions newer than pyproject.toml allows are let pass: they are the user's own choice.

    Args:
      python: the version of this Python.
      root: the folder of the pyproject.toml that names the requirements.
    """
    if python < PYTHON:
        wanted, found = (".".join(map(str, version)) for version in (PYTHON, python))
        return f"experiments needs Python {wanted} or newer, and this is {found}: {set_up()}"
    lacking = _lacking(root)
    if lacking is None:
        return None
    outside = sys.prefix == sys.base_prefix  # system Pythons often refuse to install
    return f"experiments needs {lacking}: {set_up() if outside else install('codebase')}"


def _lacking(root: Path) -> str | None:
    """Say which packages of the library and the codebase are missing, or else too old."""
    import tomllib  # from Python 3.11 on

    try:
        from packaging.requirements import Requirement
    except ImportError:
        return "packaging, which is not installed here"
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    missing, old = [], []
    for line in (*project["dependencies"], *project["optional-dependencies"]["codebase"]):
        wanted = Requirement(line)
        try:
            found = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            missing.append(wanted.name)
            continue
        least = ",".join(str(part) for part in wanted.specifier if part.operator == ">=")
        if not type(wanted.specifier)(least).contains(found, prereleases=True):
            old.append(f"{wanted.name}{least}, and {found} is installed here")
    if missing:
        are = "are" if len(missing) > 1 else "is"
        return f"{', '.join(missing)}, which {are} not installed here"
    return "; ".join(old) or None
