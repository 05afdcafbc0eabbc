"""Figures: data prepared from metrics, and their rendering."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imread

from experiments.figures import elements
from experiments.figures.curves import _subtitle, learning_curves
from experiments.figures.drawing import draw, to_matplotlib
from experiments.figures.elements import Axis, Figure, Key, Line, Panel
from experiments.figures.panels import draw_replayed, metric_panels
from experiments.figures.style import styles_of
from experiments.statistics.tables import table
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


def inspected(seeds: int) -> pd.DataFrame:
    frame = metrics(seeds, 1.0)
    shown = ("abs_td", "td_std", "q_value", "q_std", "age")
    for number, name in enumerate(shown):
        frame[f"replayed/{name}"] = frame["eval_return"] + number
        frame[f"stored/{name}"] = frame["eval_return"]
    for name in ("distinct", "effective_batch", "effective_buffer"):
        frame[f"replayed/{name}"] = 0.5
    for number in range(10):
        frame[f"replayed/odds_{number}"] = 0.1
    return frame


def test_figure_plots_statistics_of_replayed_batches(tmp_path):
    path = tmp_path / "replayed.png"
    assert draw_replayed({"uniform": inspected(3), "per": inspected(4)}, path, "What dqn replays")
    assert imread(path).shape[:2] == (600, 1200)
    own = [styles_of({name: name})[name]["color"] for name in ("uniform", "per", "lap")]
    assert all(pixels_of(path, colour) > 500 for colour in own[:2])
    assert pixels_of(path, own[2]) == 0


def test_a_long_title_is_not_cut_off(tmp_path):
    title = "sac on gymnax/MountainCarContinuous-v0, 16 agent steps per update, 8 replays per step"
    learning_curves({"a": metrics(2, 5.0)}, tmp_path / "figure.png", title)
    pixels = imread(tmp_path / "figure.png")[..., :3]
    assert (pixels[: len(pixels) // 8, -3:] == 1).all()


def test_figure_code_does_not_import_pyplot():
    code = "import sys, experiments.figures.panels; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_table_equals_values_worked_by_hand():
    rows = [
        row("uniform"),
        row("per", reached=0, median_steps_to_threshold=None, steps_per_second=None),
        row("lap", final_iqm=None, final_interval=[None, None]),
    ]
    assert table(rows).splitlines() == [
        "| replay  | final return: IQM [95 % interval] | seeds at 475 | steps to 475 (median)"
        " | steps/s |",
        "| ------- | --------------------------------: | -----------: | --------------------:"
        " | ------: |",
        "| uniform |                  480.2 [400, 500] |          2/3 |                20,000"
        " |  41,234 |",
        "| per     |                  480.2 [400, 500] |          0/3 |                     -"
        " |       - |",
        "| lap     |                          - [-, -] |          2/3 |                20,000"
        " |  41,234 |",
    ]


def test_table_columns_follow_from_thresholds_and_lengths():
    rows = [row("a", threshold=None), row("b", threshold=None, final_step=2_000)]
    lines = table(rows, "run").splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert cells[0] == ["run", "final return: IQM [95 % interval]", "agent steps", "steps/s"]
    assert [line[2] for line in cells[2:]] == ["50,000", "2,000"]


def test_learning_curves_name_diverged_arms():
    whole, broken = metrics(3, 1.0), metrics(3, 2.0)
    broken = broken.assign(**{"agent/loss": np.where(broken["seed"] == 1, np.nan, 0.5)})
    frames = {"uniform": whole.assign(**{"agent/loss": 0.5}), "per": broken}
    assert_names(_subtitle(frames), "per", "1/3")


def own_panels(frames):
    methods = {label: label for label in frames}
    panels = metric_panels(frames, methods, ("replay/",))
    return {panel.title: panel for panel in panels}


def test_axis_limits_ignore_rounding_errors_of_a_constant_metric():
    frames = {
        name: metrics(2, 1.0).assign(**{"replay/beta": 0.5 + off, "replay/size": 10.0 + 20 * off})
        for name, off in (("per", 0.0), ("lap", 1e-7), ("rank", -1e-7))
    }
    frames["rank"]["replay/size"] = 40.0
    frames = {
        label: frame.rename(columns={"replay/beta": "replay/b"}) for label, frame in frames.items()
    }
    panels = own_panels(frames)
    assert np.ptp(panels["B"].y.limits) == pytest.approx(5e-4, rel=0.01)
    assert panels["Size"].y.limits is None


def test_exploding_metrics_keep_their_sign_and_order():
    values = [-1e21, -5.0, 0.0, 9.0, 99.0, 1e21]
    found = elements.symlog(values)
    np.testing.assert_allclose(found[2:5], [0.0, 1.0, 2.0])
    assert (np.diff(found) > 0).all()
    places, names = zip(*elements.symlog_axis("loss", -1e6, 1e6).ticks)
    minus = "\N{MINUS SIGN}"
    assert names == (f"{minus}10⁶", f"{minus}10⁴", f"{minus}10²", "0", "10²", "10⁴", "10⁶")
    np.testing.assert_allclose(places, elements.symlog([-1e6, -1e4, -100, 0, 100, 1e4, 1e6]))
    panel = own_panels({"per": metrics(1, 1.0).assign(**{"replay/size": 1e21})})["Size"]
    np.testing.assert_allclose(panel.marks[0].y, 21.0)
    assert panel.marks[0].texts[0] == "1e+21 at 1,000"


STYLE = styles_of({"per": "per"})["per"]


def figure(**more):
    line = Line("$per_a$", [1, 2], [3.0, 4.0], STYLE)
    panel = Panel("a title as wide as the axes, " * 2, Axis("a label below"), Axis("y"), [line])
    title = "a title as wide as the figure, " * 3
    return Figure(title, [panel], (6, 4), keys=[Key("per", STYLE, "a note")], **more)


@pytest.mark.parametrize("legend", ["below", "ends", "beside", "listed"])
def test_titles_notes_and_panels_do_not_overlap(legend):
    drawn = draw(figure(legend=legend, seeds=5, subtitle="a subtitle"))
    FigureCanvasAgg(drawn).draw()
    title, subtitle, note = (text for text in drawn.texts if text.get_text())
    if title.get_text().startswith("a sub"):
        title, subtitle = subtitle, title
    assert_names(note.get_text(), "5", "seeds")
    boxes = [text.get_window_extent() for text in (subtitle, note)]
    boxes.append(drawn.axes[0].get_tightbbox())
    for at, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:at])
    assert title.get_window_extent().y0 > boxes[2].y1
    assert not draw(figure(legend=legend, seeds=10)).get_supxlabel()  # enough seeds for no note


def test_user_text_is_not_parsed_as_mathtext(tmp_path):
    to_matplotlib(figure(legend="ends"), tmp_path / "x.png")
    assert imread(tmp_path / "x.png").size
