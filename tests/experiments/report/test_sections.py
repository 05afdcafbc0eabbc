"""Parts of a page, with numbers worked by hand."""

import pandas as pd

from experiments.figures.style import styles_of
from experiments.report import costs, settings


def test_compilation_seconds_are_read_from_the_timing_table():
    """Compilation happens before the first log point or after a run is resumed."""
    timing = pd.DataFrame(
        {
            "step": [100, 200, 300], "seconds": [6.0, 2.0, 4.0], "start_up": [5.0, 0.0, 3.0],
            "compiling": [7.0, 0.0, 3.0], "steps_per_second": [16.0, 50.0, 25.0],
        }
    )  # fmt: skip
    before = timing[["step", "seconds", "steps_per_second"]]
    section = costs.of_runs(
        {"per": timing, "lap": before}, {}, dict(styles_of({"per": "per", "lap": "lap"}))
    )
    assert section is not None
    assert section.blocks[0].cells[1:] == [
        ["per", "12.0", "25", "8.0", "6.0", "10.0", "50 %"],
        ["lap", "12.0", "25", "-", "6.0", "-", "-"],
    ]


def test_differing_options_are_separated_from_shared_options():
    arms = {
        "per": {"--steps": "100", "--replay": "per", "--replay.alpha": "0.6"},
        "pal": {"--steps": "100", "--replay": "pal"},
    }
    shared, apart = settings.split(arms)
    assert shared == {"--steps": "100"}
    assert apart == {
        "--replay": {"per": "per", "pal": "pal"},
        "--replay.alpha": {"per": "0.6", "pal": "-"},
    }
