"""Published settings by name: alternative defaults for the names and options of a run."""

from experiments.runs.presets.by_name import PRESETS, Names, apply, check_agent, names
from experiments.runs.presets.preset import Preset, Settings

__all__ = ["PRESETS", "Names", "Preset", "Settings", "apply", "check_agent", "names"]
