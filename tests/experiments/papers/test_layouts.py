"""Layouts: bands worked by hand, and figures drawn from given data."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from experiments.papers import aggregates, layouts
from experiments.papers.aggregates import AGGREGATES, Plotted
from tests.refusals import assert_names

VALUES = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 60.0], [6.0, 90.0]])  # [seeds, points]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mean, std", (3.0, 3.0 - 2.160247, 3.0 + 2.160247)),
        ("mean, 95 % interval", (3.0, 3.0 - 2.117042, 3.0 + 2.117042)),  # 1.96 std / sqrt(4)
        ("median, range", (2.5, 1.0, 6.0)),
        ("median, quartiles", (2.5, 1.75, 3.75)),
        ("mean, 20 to 80 %", (3.0, 1.6, 4.2)),
        ("IQM, 95 % interval", (2.5, 1.0, 6.0)),  # P(three equal seeds): 13 / 256
    ],
)
def test_bands_equal_values_worked_by_hand(name, expected):
    band = AGGREGATES[name](VALUES)
    np.testing.assert_allclose([each[0] for each in band], expected, rtol=1e-5)
    assert all(each.shape == (2,) for each in band)


def frame(seeds: int = 10) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        [
            {"env": env, "arm": arm, "seed": seed, "step": step, "n": 4.0, "start": "max",
             "eval_return": step * (1 + (arm == "per")) + rng.normal(), "value": 1.0 + seed}
            for env in ("walk/10", "walk/12") for arm in ("uniform", "per") for seed in range(seeds)
            for step in (10, 20, 30)
        ]
    )  # fmt: skip


def drawn(path):
    """Return the number of colours of a figure other than white and greys."""
    pixels = np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3).astype(int)
    return len(np.unique(pixels[np.ptp(pixels, axis=1) > 40], axis=0))


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        (layouts.lines, {"aggregate": "median, range", "smooth": 0.7, "log": "y"}),
        (layouts.lines, {"groups": {"one": ("uniform", "per")}, "limits": (0, 100)}),
        (layouts.bars, {"y_label": "return"}),
    ],
)
def test_layouts_draw_the_given_data(layout, options, tmp_path):
    methods = {"uniform": "uniform", "per": "per"}
    layout(Plotted(frame(), methods, "A title"), tmp_path / "a.png", **options)
    assert drawn(tmp_path / "a.png") >= 1  # colour of PER; uniform is grey
    Image.open(tmp_path / "a.png").verify()


@pytest.fixture
def figures(monkeypatch):
    """Return a list that records every written figure."""
    shown = []
    monkeypatch.setattr(aggregates, "write", lambda figure, path: shown.append(figure))
    return shown


def headings(figure):
    return [axes.get_title(loc="left").split("\n") for axes in figure.axes if axes.axison]


def test_arms_and_panels_have_the_given_order(figures, tmp_path):
    methods = {arm: arm for arm in ("uniform", "rank", "per", "lap")}
    made = pd.concat([frame().assign(arm=arm) for arm in sorted(methods)])
    made = pd.concat([made[made["env"] == env] for env in ("walk/12", "walk/10")])
    for layout in (layouts.scores, layouts.sooner):
        layout(Plotted(made, methods, ""), tmp_path, baseline="uniform")
        above = figures[-1].axes[:2]
        assert [own[0] for own in headings(figures[-1])] == ["walk/12", "walk/10"] * 2
        ticks = [[tick.get_text() for tick in axes.get_xticklabels()] for axes in above]
        assert ticks == [list(methods)[layout is layouts.scores :]] * 2
    layouts.lines(Plotted(made, methods, ""), tmp_path)
    assert [text.get_text() for text in figures[-1].legends[0].get_texts()] == list(methods)
    assert not any(axes.get_legend() for axes in figures[-1].axes)


def test_seeds_that_did_not_converge_are_counted(figures, tmp_path):
    made = frame(seeds=4)[lambda rows: rows["env"] == "walk/10"].copy()
    lost = (made["arm"] == "per") & (made["step"] == 30) & (made["seed"] < 3)
    made.loc[lost, "eval_return"] = np.inf
    layouts.lines(Plotted(made, {}, ""), tmp_path, log="xy")
    (above, below) = headings(figures[-1])
    assert above[-1] == below[-1]
    assert_names(above[-1], "x", "seeds")
    assert [text.get_text() for text in figures[-1].axes[0].texts] == ["x\n3"]
    ends = made[made["step"] == 30].assign(kind="end", x=1.0)
    layouts.lines(
        Plotted(made[made["step"] < 30], {}, "", table=ends), tmp_path,
        converged={"kind": "end"}, level=50.0,
    )  # fmt: skip
    assert_names(headings(figures[-1])[0][-1], "per", "3", "4", "seeds")
    (dot,) = [line for line in figures[-1].axes[0].lines if line.get_marker() == "o"][2:]
    own = ends.loc[ends["arm"] == "uniform", "eval_return"]
    assert dot.get_xdata()[0] == pytest.approx(own.mean()) and dot.get_ydata()[0] == 50.0


def test_figures_name_few_seeds_and_games_without_values(figures, tmp_path):
    layouts.lines(Plotted(frame(seeds=1), {}, "One"), tmp_path)
    assert_names(figures[-1].get_suptitle(), "One", "pilot", "1")
    made = pd.DataFrame({"arm": ["Pong", "Alien", "Boxing"], "value": [1.0, np.nan, 5.0]})
    layouts.ranked(Plotted(made, {}, "Games"), tmp_path, label="change (%)", lacking="as it is 0")
    (axes,) = figures[-1].axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["Boxing", "Pong"]
    assert_names(axes.texts[0].get_text(), "as it is 0", "Alien")


def test_gains_and_shares_of_training_equal_values_worked_by_hand(tmp_path, monkeypatch):
    shown = {}

    def keep(plotted, path, **options):
        shown["frame"] = plotted.frame

    monkeypatch.setattr(layouts, "bars", keep)
    made = frame().assign(eval_return=lambda rows: rows["step"] * (1 + (rows["arm"] == "per")))
    layouts.scores(Plotted(made, {}, ""), tmp_path, baseline="uniform")
    assert set(shown["frame"]["arm"]) == {"per"}
    np.testing.assert_allclose(shown["frame"]["value"], 100.0)  # twice the score is a gain of 100 %
    layouts.sooner(Plotted(made, {}, ""), tmp_path, baseline="uniform")
    shares = shown["frame"].groupby("arm")["value"].mean()
    np.testing.assert_allclose([shares["uniform"], shares["per"]], [100.0, 200 / 3])


def test_settings_are_drawn_as_a_grid(figures, tmp_path):
    rows = [
        {"n": 3, "start": start, "alpha": 0.5, "rho": 0.4, "window": 5, "eta": eta, "seed": seed,
         "arm": arm, "value": np.inf if arm == "pser" and eta and seed else 10.0 * (1 + seed)}
        for start in ("max", "td") for eta in (0.0, 0.7) for seed in range(3)
        for arm in ("per", "pser")
    ]  # fmt: skip
    starts = {"max": "the maximum", "td": "epsilon"}
    layouts.settings_grid(Plotted(pd.DataFrame(rows), {}, "A grid"), tmp_path, starts=starts)
    cells = figures[-1].axes[0]
    (image,) = cells.images
    # Equal numbers tie; PSER does not converge for two of three seeds with eta 0.7.
    np.testing.assert_allclose(image.get_array(), [[0.5, 1 / 6], [0.5, 1 / 6]])
    assert [text.get_text() for text in cells.texts] == ["0/0", "0/2"] * 2
    assert_names(cells.get_yticklabels()[0].get_text(), "3", "the maximum")
    assert_names(cells.get_yticklabels()[1].get_text(), "3", "epsilon")
    assert_names(cells.get_xticklabels()[1].get_text(), "eta 0.7")
