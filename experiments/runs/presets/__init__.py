"""Published settings by name: alternative defaults for the names and options of a run."""

from experiments.runs.presets.by_name import PRESETS, Names, apply, check_agent, names
from experiments.runs.presets.preset import Arm, Preset

__all__ = ["PRESETS", "Arm", "Names", "Preset", "apply", "check_agent", "names"]
