"""Tables of settings: the presets, which the tests compare with the papers' tables."""

from typing import Any

import pandas as pd

from experiments.papers.entry import Computation, Request
from experiments.runs.presets import PRESETS


def options_of_presets(request: Request) -> pd.DataFrame:
    """Return one row per option of each preset: preset, section, option, value."""
    rows = []
    for name in request.options["presets"]:
        preset = PRESETS[name]
        sections: dict[str, Any] = {
            **{f"agent {agent}": values for agent, values in preset.agents.items()},
            "loop": preset.loop,
            "sizes": preset.sizes,
            "environment": preset.environment,
        }
        for replay, settings in preset.replays.items():
            sections[f"replay {replay}"] = settings.replay
            sections[f"agent with {replay}"] = settings.agent
        rows += [
            {"preset": name, "section": section, "option": option, "value": str(value)}
            for section, values in sections.items()
            if not request.options["parts"] or section.startswith(tuple(request.options["parts"]))
            for option, value in values.items()
        ]
    return pd.DataFrame(rows)


def table(name: str, *presets: str, parts: tuple[str, ...] = ()) -> Computation:
    """Return the table of some presets' settings."""
    return Computation(
        f"settings_{name}", options_of_presets, {"smoke": {"presets": presets, "parts": parts}},
        sources=("experiments/papers/settings.py", "experiments/runs/presets/*.py"), minutes=0.01,
    )  # fmt: skip
