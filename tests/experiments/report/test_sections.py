"""Parts of a page, with numbers worked by hand."""

import numpy as np
import pandas as pd
import pytest

from experiments.figures.style import styles_of
from experiments.report import costs, plots, settings


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


def test_options_are_named_and_written_as_on_the_command_line():
    config = {
        "env": "walk/10", "loop": {"learn_every": 4, "offline": False},
        "agent_options": {"hidden": [64, 32], "clip": None}, "replay_options": {"beta_end": 1.0},
    }  # fmt: skip
    assert settings.flat(config) == {
        "--env": "walk/10", "--learn-every": "4", "--offline": "false",
        "--agent.hidden": "64 32", "--agent.clip": "none", "--replay.beta-end": "1.0",
    }  # fmt: skip


def test_values_that_are_not_finite_are_gaps_in_a_line():
    assert plots.numbers([1.0, np.nan, np.inf, 0.1234567891]) == [1.0, None, None, 0.1234568]


def test_text_in_scripts_is_escaped():
    text = plots.to_script({"name": "</script><script>alert(1)</script>&"})
    assert "<" not in text and ">" not in text and "&" not in text
    with pytest.raises(ValueError, match="not JSON compliant"):
        plots.to_script([float("nan")])


def test_labels_are_escaped_for_plotly():
    assert plots.plain_text("<b>a</b> \n &") == "&lt;b&gt;a&lt;/b&gt;<br>&amp;"
