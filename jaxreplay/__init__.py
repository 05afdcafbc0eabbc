"""Experience replay as pure functions: rings, sum trees, samplers and objectives for JAX."""

from importlib import metadata
from pathlib import Path

from jaxreplay import fields, frames, methods, n_step, objectives, ring, sum_tree
from jaxreplay.donation import donatable
from jaxreplay.replay import ReplayState, make_replay
from jaxreplay.requirements import Requirements
from jaxreplay.saving import load, save
from jaxreplay.types import (
    Draw,
    Method,
    Objective,
    Replay,
    Sample,
    Sampler,
    Transition,
    Trust,
)


def _version() -> str:
    """Return the version that is installed, or else that of the clone which this file lies in."""
    try:
        return metadata.version("jaxreplay")
    except metadata.PackageNotFoundError:
        import tomllib

        file = Path(__file__).parents[1] / "pyproject.toml"
        project = tomllib.loads(file.read_text()).get("project", {}) if file.is_file() else {}
        return project["version"] if project.get("name") == "jaxreplay" else "0+unknown"


__version__ = _version()

__all__ = [
    "Draw",
    "Method",
    "Objective",
    "Replay",
    "ReplayState",
    "Requirements",
    "Sample",
    "Sampler",
    "Transition",
    "Trust",
    "__version__",
    "donatable",
    "fields",
    "frames",
    "load",
    "make_replay",
    "methods",
    "n_step",
    "objectives",
    "ring",
    "save",
    "sum_tree",
]
