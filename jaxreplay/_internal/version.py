"""Which version of the library this is."""

import tomllib
from importlib import metadata
from pathlib import Path


def find() -> str:
    """Return the version that is installed, or else that of the clone which this file lies in."""
    try:
        return metadata.version("jaxreplay")
    except metadata.PackageNotFoundError:
        file = Path(__file__).parents[2] / "pyproject.toml"
        project = (
            tomllib.loads(file.read_bytes().decode()).get("project", {}) if file.is_file() else {}
        )
        return project["version"] if project.get("name") == "jaxreplay" else "0+unknown"


VERSION = find()
