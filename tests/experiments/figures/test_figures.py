"""Figures: data prepared from metrics, and their rendering."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from experiments.figures.curves import _subtitle, learning_curves
from experiments.figures.panels import metric_panels
from experiments.figures.style import styles_of
from experiments.statistics.markdown import table
from jaxreplay.methods import METHODS
from tests.refusals import assert_names


def metrics(seeds: int, level: float, points: int = 12) -> pd.DataFrame:
    rng = np.random.default_rng(seeds)
    steps = 1000 * np.arange(1, points + 1)
    curves = level * (1 - np.exp(-steps / 4000)) + rng.normal(size=(seeds, points)) * level / 10
    rows = [
        {"seed": seed, "step": step, "eval_return": curves[seed, i]}
        for seed in range(seeds)
        for i, step in enumerate(steps)
    ]
    return pd.DataFrame(rows)


def row(replay: str, **changes) -> dict:
    return {
        "replay": replay, "seeds": [0, 1, 2], "final_iqm": 480.25, "final_interval": [400.0, 500.0],
        "threshold": 475.0, "reached": 2, "median_steps_to_threshold": 20000,
        "steps_per_second": 41234.4, "final_step": 50_000,
    } | changes  # fmt: skip


def pixels_of(path, colour: str) -> int:
    """Return the number of pixels of exactly this colour."""
    pixels = np.round(imread(path)[..., :3] * 255).astype(int)
    return int((pixels == [int(colour[i : i + 2], 16) for i in (1, 3, 5)]).all(-1).sum())


def test_figure_plots_every_label_in_its_colour(tmp_path):
    path = tmp_path / "figure.png"
    frames = {"uniform": metrics(5, 400.0), "per": metrics(5, 450.0), "one": metrics(1, 300.0)}
    learning_curves(frames, path, "DQN on CartPole", threshold=420)
    content = path.read_bytes()
    learning_curves(frames, path, "DQN on CartPole", threshold=420)
    assert path.read_bytes() == content and imread(path).shape[:2] == (750, 1200)
    assert path.stat().st_size < 150_000
    own = [styles_of({name: name})[name]["color"] for name in ("uniform", "per", "one", "lap")]
    assert all(pixels_of(path, colour) > 500 for colour in own[:3])
    assert pixels_of(path, own[3]) == 0


@pytest.mark.parametrize("values", [[np.nan, 1.0, 2.0], [1.0, np.nan, np.nan], [np.nan] * 3])
def test_figures_accept_missing_returns(tmp_path, values):
    frame = pd.DataFrame({"seed": 0, "step": [1, 2, 3], "eval_return": values})
    learning_curves({"a": metrics(2, 5.0), "b": frame}, tmp_path / "figure.png", "title")
    colour = styles_of({"a": "a"})["a"]["color"]
    assert pixels_of(tmp_path / "figure.png", colour) > 500


def test_methods_have_fixed_colours_independent_of_labels_and_other_arms():
    one = styles_of({"uniform": "uniform", "per": "per"})
    other = styles_of({"mine": "per", "lap": "lap", "flat": "per"})
    assert one["per"]["color"] == other["mine"]["color"] == other["flat"]["color"]
    assert other["mine"]["linestyle"] != other["flat"]["linestyle"]
    assert len({style["color"] for style in styles_of({m: m for m in METHODS}).values()}) == len(
        METHODS
    )
    assert styles_of({"mine": "mine"})["mine"]["color"] != one["uniform"]["color"]
    names = ("per", "oracle", "rank", "greedy", "pser", "uniform")  # two are not methods
    assert len({style["color"] for style in styles_of({m: m for m in names}).values()}) == 6
    assert one["uniform"]["linewidth"] > one["per"]["linewidth"]  # visible beneath an equal curve


def cells(*rows):
    lines = table(list(rows), "run").splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "---" not in line]


def test_table_equals_values_worked_by_hand():
    header, *found = cells(
        row("uniform"),
        row("per", reached=0, median_steps_to_threshold=None, steps_per_second=None),
        row("lap", final_iqm=None, final_interval=[None, None]),
    )
    final = "final return: IQM [95 % interval]"
    assert header == ["run", final, "seeds at 475", "steps to 475 (median)", "steps/s"]
    assert found == [
        ["uniform", "480.2 [400, 500]", "2/3", "20,000", "41,234"],
        ["per", "480.2 [400, 500]", "0/3", "-", "-"],
        ["lap", "- [-, -]", "2/3", "20,000", "41,234"],
    ]
    header, *found = cells(row("a", threshold=None), row("b", threshold=None, final_step=2_000))
    assert header == ["run", final, "agent steps", "steps/s"]
    assert [line[2] for line in found] == ["50,000", "2,000"]


def test_learning_curves_name_diverged_arms():
    whole, broken = metrics(3, 1.0), metrics(3, 2.0)
    broken = broken.assign(**{"agent/loss": np.where(broken["seed"] == 1, np.nan, 0.5)})
    frames = {"uniform": whole.assign(**{"agent/loss": 0.5}), "per": broken}
    assert_names(_subtitle(frames), "per", "1/3")


def test_exploding_metrics_have_a_symmetric_logarithmic_axis():
    frame = metrics(1, 1.0).assign(**{"replay/size": [-1e21, *[5.0] * 10, 1e21]})
    (panel,) = metric_panels({"per": frame}, {"per": "per"}, ("replay/",))
    axes = Figure().subplots()
    panel(axes)
    assert axes.get_title(loc="left") == "Size" and axes.get_yscale() == "symlog"
    (line,) = axes.get_lines()
    np.testing.assert_array_equal(line.get_ydata(), frame["replay/size"])
