"""Layouts: bands by hand, and figures that show what they are given."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from experiments.papers import layouts, settings_grid
from experiments.papers.layouts import AGGREGATES, Plotted
from experiments.runs.rates import DAY, in_words

VALUES = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 60.0], [6.0, 90.0]])  # [seeds, points]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mean, std", (3.0, 3.0 - 2.160247, 3.0 + 2.160247)),
        ("mean, half a std", (3.0, 3.0 - 1.080123, 3.0 + 1.080123)),
        ("mean, 95 % interval", (3.0, 3.0 - 2.117042, 3.0 + 2.117042)),  # 1.96 std / sqrt(4)
        ("median, range", (2.5, 1.0, 6.0)),
        ("median, quartiles", (2.5, 1.75, 3.75)),
        ("mean, 20 to 80 %", (3.0, 1.6, 4.2)),
    ],
)
def test_bands_by_hand(name, expected):
    band = AGGREGATES[name](VALUES)
    np.testing.assert_allclose([each[0] for each in band], expected, rtol=1e-5)
    assert all(each.shape == (2,) for each in band)


def test_our_band_is_the_iqm_and_its_interval():
    middle, low, high = AGGREGATES["IQM, 95 % bootstrap interval"](VALUES)
    np.testing.assert_allclose(middle, [2.5, 40.0])
    assert (low <= middle).all() and (middle <= high).all()


def frame(seeds: int = 10) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        [
            {"env": env, "arm": arm, "seed": seed, "step": step, "n": 4.0, "start": "max",
             "eval_return": step * (1 + (arm == "per")) + rng.normal()}
            for env in ("walk/10", "walk/12") for arm in ("uniform", "per") for seed in range(seeds)
            for step in (10, 20, 30)
        ]
    )  # fmt: skip


def drawn(path):
    """Return how many colours a figure has besides white and greys."""
    pixels = np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3).astype(int)
    return len(np.unique(pixels[np.ptp(pixels, axis=1) > 40], axis=0))


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        (layouts.lines, {}),
        (layouts.lines, {"aggregate": "median, range", "smooth": 0.7, "log": "y"}),
        (layouts.lines, {"groups": {"one": ("uniform", "per")}, "limits": (0, 100)}),
        (layouts.bars, {"y": "eval_return"}),
        (layouts.scores, {"baseline": "uniform"}),
        (layouts.sooner, {"baseline": "uniform"}),
    ],
)
def test_layouts_draw_what_they_are_given(layout, options, tmp_path):
    methods = {"uniform": "uniform", "per": "per"}
    layout(Plotted(frame(), methods, "A title"), tmp_path / "a.png", **options)
    assert drawn(tmp_path / "a.png") >= 1  # PER's colour; uniform is grey
    Image.open(tmp_path / "a.png").verify()


def test_gains_and_shares_of_training_by_hand(tmp_path, monkeypatch):
    shown = {}

    def keep(plotted, path, **options):
        shown["frame"] = plotted.frame

    monkeypatch.setattr(layouts, "bars", keep)
    made = frame().assign(eval_return=lambda rows: rows["step"] * (1 + (rows["arm"] == "per")))
    layouts.scores(Plotted(made, {}, ""), tmp_path, baseline="uniform", last=2)
    assert set(shown["frame"]["arm"]) == {"per"}
    np.testing.assert_allclose(shown["frame"]["value"], 100.0)  # twice as much is 100 % more
    layouts.sooner(Plotted(made, {}, ""), tmp_path, baseline="uniform")
    shares = shown["frame"].groupby("arm")["value"].mean()
    np.testing.assert_allclose([shares["uniform"], shares["per"]], [100.0, 200 / 3])


def test_many_arms_of_one_method_are_told_apart():
    arms = {f"C{number}": "refer" for number in range(6)}
    styles = layouts._styles(Plotted(frame(), arms, ""), {"": tuple(arms)})
    assert len({(style["color"], style["linestyle"]) for style in styles.values()}) == 6
    # Beside its baseline a method keeps its colour, in every panel.
    panels = {"a": ("uniform_every1", "per_every1"), "b": ("uniform_every4", "per_every4")}
    methods = {arm: arm.partition("_")[0] for members in panels.values() for arm in members}
    styles = layouts._styles(Plotted(frame(), methods, ""), panels)
    assert styles["per_every1"]["color"] == styles["per_every4"]["color"]


def test_a_grid_of_settings(tmp_path):
    rows = [
        {"n": 3, "start": "max", "alpha": 0.5, "rho": 0.4, "window": 5, "eta": eta, "seed": seed,
         "arm": arm, "value": 10.0 + seed + (arm == "per")}
        for eta in (0.0, 0.7) for seed in range(3) for arm in ("per", "pser")
    ]  # fmt: skip
    settings_grid.draw(Plotted(pd.DataFrame(rows), {}, "A grid"), tmp_path / "a.png")
    assert drawn(tmp_path / "a.png") > 5


@pytest.mark.parametrize(
    ("minutes", "words"),
    [(0.5, "30 s"), (2, "2 min"), (179, "179 min"), (240, "4 h"), (3 * DAY, "3 days")],
)
def test_lengths_of_time_in_words(minutes, words):
    assert in_words(minutes) == words


def test_arms_of_one_method_share_no_look_with_another():
    arms = [f"C{number}" for number in range(9)]
    methods = dict.fromkeys(arms, "refer") | {"ppo": "latest", "acer": "windows"}
    styles = layouts._styles(Plotted(frame(), methods, "title"), {"": [*arms, "ppo", "acer"]})
    assert len({(style["color"], style["linestyle"]) for style in styles.values()}) == 11
    own = {styles[arm]["color"] for arm in arms}
    assert not own & {styles["ppo"]["color"], styles["acer"]["color"]}
