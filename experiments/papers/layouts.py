"""Figures in the layouts of the papers: above with a paper's own aggregate, below with ours.

A layout is a function of what is plotted and of a path; entries give its options as data.
"""

import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analysis import judged
from experiments.analysis.bootstrap import bootstrap_interval, iqm
from experiments.analysis.style import (
    COLOURS,
    DASHES,
    INK,
    count_steps,
    make_figure,
    plain,
    save,
    styles_of,
    tidy,
)
from experiments.analysis.verdicts import FEWEST_SEEDS
from experiments.runs.judging import Findings


class Plotted(NamedTuple):
    """What is plotted."""

    frame: pd.DataFrame  # columns arm, seed and others
    methods: Mapping[str, str]  # the replay method behind each arm, for its colour
    title: str
    judged: Callable[[str], Findings] | None = None  # task -> its arms beside the baseline


Band = tuple[np.ndarray, np.ndarray, np.ndarray]  # line, and both ends of what is around it: [x]


def _around(middle: np.ndarray, spread: np.ndarray) -> Band:
    return middle, middle - spread, middle + spread


def _spread(values: np.ndarray) -> np.ndarray:
    return values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1])


def _percentiles(low: float, high: float) -> Callable[[np.ndarray], Band]:
    def band(values: np.ndarray) -> Band:
        return (np.median(values, axis=0), *np.percentile(values, [low, high], axis=0))

    return band


def _interval(values: np.ndarray) -> Band:
    """Return the mean and its 95 % interval, 1.96 standard errors."""
    return _around(values.mean(axis=0), 1.96 * _spread(values) / np.sqrt(len(values)))


def _ours(values: np.ndarray) -> Band:
    middle = iqm(values)
    return (middle, *bootstrap_interval(values)) if len(values) > 1 else (middle, middle, middle)


# What a paper's line and band are, by name.
AGGREGATES: Mapping[str, Callable[[np.ndarray], Band]] = MappingProxyType(
    {
        "mean, std": lambda values: _around(values.mean(axis=0), _spread(values)),
        "mean, half a std": lambda values: _around(values.mean(axis=0), _spread(values) / 2),
        "mean, 95 % interval": _interval,
        "mean, 20 to 80 %": lambda values: (
            values.mean(axis=0), *np.percentile(values, [20, 80], axis=0)
        ),
        "median, range": _percentiles(0, 100),
        "median, quartiles": _percentiles(25, 75),
        "median, 20 to 80 %": _percentiles(20, 80),
        "IQM, 95 % bootstrap interval": _ours,
    }
)  # fmt: skip
_OURS = "IQM, 95 % bootstrap interval"
_MOST_COLUMNS = 5
_HEAD = 1.0  # inches for the title


def lines(
    plotted: Plotted,
    path: Path,
    *,
    y: str = "eval_return",
    x: str = "step",
    panel: str = "env",
    groups: Mapping[str, Sequence[str]] = MappingProxyType({}),
    aggregate: str = "mean, std",
    smooth: float = 0.0,
    x_label: str = "agent steps",
    y_label: str = "return",
    log: str = "",
    limits: tuple[float, float] | None = None,
) -> None:
    """Plot lines with bands: a panel for each value of a column, or for each group of arms.

    Args:
      plotted: what to plot.
      path: the PNG.
      y: the column on the vertical axis.
      x: the column on the horizontal one.
      panel: the column whose values get panels.
      groups: title -> arms: panels by arms, inside of each value of `panel`.
      aggregate: the paper's, one of AGGREGATES.
      smooth: length of the paper's moving average, backwards, as a share of the curve.
      x_label: what is on the horizontal axis, with its unit.
      y_label: the same of the vertical one.
      log: axes with logarithmic scales, such as "xy".
      limits: of the vertical axis, for shares.
    """
    frame = plotted.frame[plotted.frame[y].notna()]
    arms = list(dict.fromkeys(frame["arm"]))
    groups = groups or {"": arms}
    places = list(dict.fromkeys(frame[panel])) if panel in frame else [""]
    shown = [
        (place, title)
        for place in places
        for title, members in groups.items()
        if frame.loc[_of(frame, panel, place), "arm"].isin(members).any()
    ]
    kinds = list(dict.fromkeys([aggregate, _OURS]))
    figure, grid = _panels(plotted, frame, kinds, len(shown), width=3.3, margin=0.6, height=2.7)
    styles = _styles(plotted, groups)
    for (kind, number), axes in grid.items():
        place, title = shown[number]
        own = frame[_of(frame, panel, place)]
        for arm in groups[title]:
            if arm in set(own["arm"]):
                _line(axes, arm, _curves(own, arm, x, y, smooth, kind), kind, styles[arm])
        about = place if isinstance(place, str) else f"{panel} {place:g}"
        heading = ", ".join(plain(each) for each in (about, title) if each)
        seeds = seeds_of(own)
        about = f"{kind}, {seeds} seed{'s' * (seeds != 1)}"
        axes.set_title(f"{heading}\n{about}", loc="left", fontsize=9, color=INK)
        _axes(axes, x_label, y_label, log, limits)
        if number == 0 or len(groups) > 1:
            axes.legend(frameon=False, fontsize=7.5)
    save(figure, path)


def bars(
    plotted: Plotted,
    path: Path,
    *,
    y: str = "value",
    panel: str = "env",
    aggregate: str = "mean, 95 % interval",
    y_label: str = "return",
    horizontal: bool = False,
) -> None:
    """Plot one bar per arm with its spread over seeds: a panel for each value of a column.

    Args:
      plotted: what to plot.
      path: the PNG.
      y: the column of the bars' lengths.
      panel: the column whose values get panels.
      aggregate: the paper's, one of AGGREGATES.
      y_label: what the lengths are, with their unit.
      horizontal: for many arms.
    """
    frame = plotted.frame[plotted.frame[y].notna()]
    if horizontal:
        frame = frame.sort_values(y, ascending=False, kind="stable")
    arms = list(dict.fromkeys(frame["arm"]))
    places = list(dict.fromkeys(frame[panel])) if panel in frame else [""]
    kinds = list(dict.fromkeys([aggregate, _OURS])) if seeds_of(frame) > 1 else [aggregate]
    height = 0.22 * len(arms) + 1.2 if horizontal else 3.0
    figure, grid = _panels(plotted, frame, kinds, len(places), width=3.4, margin=0.0, height=height)
    styles = styles_of({arm: plotted.methods.get(arm, arm) for arm in arms})
    for (kind, number), axes in grid.items():
        place = places[number]
        own = frame[_of(frame, panel, place)]
        for at, arm in enumerate(arms):
            values = own.loc[own["arm"] == arm, y].to_numpy(float)[:, None]
            # Along a list, arms are no methods: one colour for all.
            colour = INK if horizontal else styles[arm]["color"]
            if len(values):
                _bar(axes, at, AGGREGATES[kind](values), colour, horizontal)
        seeds = seeds_of(own)
        about = f"{kind}, {seeds} seeds" if seeds > 1 else ""
        axes.set_title(f"{plain(str(place))}\n{about}", loc="left", fontsize=9, color=INK)
        tidy(axes)
        names = [plain(arm) for arm in arms]
        if horizontal:
            axes.set_yticks(range(len(arms)), names, fontsize=7)
            axes.set_ylim(len(arms) - 0.4, -0.6)
            axes.set_xlabel(y_label, fontsize=9, color=INK)
        else:
            axes.set_xticks(range(len(arms)), names, rotation=40, ha="right", fontsize=8)
            axes.set_ylabel(y_label, fontsize=9, color=INK)
    save(figure, path)


def forest(plotted: Plotted, path: Path) -> None:
    """Plot the probability that each arm improves on the baseline, seed by seed, on one task.

    Args:
      plotted: what to plot.
      path: the PNG.
    """
    assert plotted.judged is not None
    (env,) = dict.fromkeys(plotted.frame["env"])
    found, shown = plotted.judged(env), set(plotted.frame["arm"])
    rows = [row for row in found.rows if row.label in shown]
    judged.forest(rows, plotted.methods, found.metric, found.baseline, path, plotted.title)


def scores(
    plotted: Plotted, path: Path, *, baseline: str, last: int = 5, y_label: str = ""
) -> None:
    """Plot by how much each arm's final score exceeds the baseline's, in percent, per task.

    The gain (x - y) / |y| of the mean over the last evaluations, seed by seed.

    Args:
      plotted: what to plot.
      path: the PNG.
      baseline: an arm.
      last: evaluations.
      y_label: of the bars; "": the gain in percent.
    """
    final = (
        plotted.frame.sort_values("step").groupby(["arm", "env", "seed"], sort=False)["eval_return"]
        .apply(lambda returns: returns.tail(last).mean()).rename("final").reset_index()
    )  # fmt: skip
    base = final[final["arm"] == baseline].set_index(["env", "seed"])["final"]
    own = final[final["arm"] != baseline].copy()
    # Of the baseline's mean over seeds: a seed's own can be next to nothing.
    scale = base.groupby("env").mean().abs()
    known = own.set_index(["env", "seed"]).index
    own["value"] = 100 * (own["final"].to_numpy() - base.reindex(known).to_numpy())
    own["value"] /= scale.reindex(own["env"]).to_numpy()
    label = y_label or f"gain over {baseline} (%)"
    bars(plotted._replace(frame=own), path, y_label=label, aggregate="mean, 95 % interval")


def sooner(plotted: Plotted, path: Path, *, baseline: str) -> None:
    """Plot after which share of training each arm reaches the baseline's final score.

    The level is the mean over the baseline's seeds of the last evaluation; an arm that does not
    reach it within training counts as 100 %.

    Args:
      plotted: what to plot.
      path: the PNG.
      baseline: an arm.
    """
    rows = []
    for env, frame in plotted.frame.groupby("env", sort=False):
        last = frame["step"].max()
        final = frame[(frame["arm"] == baseline) & (frame["step"] == last)]
        level = final["eval_return"].mean()
        for (arm, seed), own in frame.groupby(["arm", "seed"], sort=False):
            hits = own.loc[own["eval_return"] >= level, "step"]
            share = 100 * (hits.min() if len(hits) else last) / last
            rows.append({"env": env, "arm": arm, "seed": seed, "value": share})
    shown = plotted._replace(frame=pd.DataFrame(rows))
    label = f"training until {baseline}'s final score (%)"
    bars(shown, path, y_label=label, aggregate="median, range")


def _styles(plotted: Plotted, groups: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
    """Return a style for each arm: its method's, unless a panel has several arms of one method."""
    named = {arm: plotted.methods.get(arm, arm) for members in groups.values() for arm in members}
    crowded = {
        method
        for members in groups.values()
        for method, count in Counter(named[arm] for arm in members).items()
        if count > 2
    }
    styles = styles_of(named)
    alike = [arm for arm, method in named.items() if method in crowded]
    taken = {styles[arm]["color"] for arm in named if arm not in alike}
    free = [colour for colour in COLOURS if colour not in taken]
    for number, arm in enumerate(alike):
        look = {
            "color": free[number % len(free)],
            "linestyle": DASHES[number // len(free) % len(DASHES)],
        }
        styles[arm] = {**look, "linewidth": 1.7}
    return styles


def _of(frame: pd.DataFrame, panel: str, place: Any) -> np.ndarray:
    """Return which rows belong to a panel, [rows]."""
    return (frame[panel] == place).to_numpy() if panel in frame else np.ones(len(frame), bool)


def _panels(
    plotted: Plotted,
    frame: pd.DataFrame,
    kinds: Sequence[str],
    count: int,
    *,
    width: float,
    margin: float,
    height: float,
) -> tuple[Figure, dict[tuple[str, int], Axes]]:
    """Make a figure with a block of panels for each aggregate, one below the other.

    Args:
      plotted: tells the title.
      frame: what is shown; tells the number of seeds.
      kinds: the aggregates.
      count: panels in each block.
      width: of a panel, inches.
      margin: to the left of all, inches.
      height: of a panel, inches.

    Returns:
      The figure, and its panels by aggregate and number.
    """
    columns = min(count, _MOST_COLUMNS)
    per_row = -(-count // columns)
    figure = make_figure(max(6.0, width * columns + margin), _HEAD + height * per_row * len(kinds))
    head(figure, plotted.title, seeds_of(frame))
    grid = figure.subplots(per_row * len(kinds), columns, squeeze=False)
    for axes in grid.ravel():
        axes.set_axis_off()
    shown = {
        (kind, number): grid[block * per_row + number // columns, number % columns]
        for block, kind in enumerate(kinds)
        for number in range(count)
    }
    for axes in shown.values():
        axes.set_axis_on()
    return figure, shown


def _curves(own: pd.DataFrame, arm: str, x: str, y: str, smooth: float, kind: str) -> pd.DataFrame:
    """Return an arm's curves, a column for each seed, smoothed where it is the paper's figure."""
    values = own[own["arm"] == arm].pivot_table(index=x, columns="seed", values=y)
    # A seed that never got there has no place on the axis, and nor has its median.
    values = values[~np.isinf(values).any(axis=1)]
    whole = values.dropna(axis=1)  # a seed that diverged ends
    values = whole if whole.shape[1] else values.dropna()
    window = 1 if kind == _OURS else round(smooth * len(values))
    return values.rolling(window, min_periods=1).mean() if window > 1 else values


def _line(axes: Axes, arm: str, values: pd.DataFrame, kind: str, style: Any) -> None:
    if values.empty:
        return
    at = values.index.to_numpy(float)
    middle, low, high = AGGREGATES[kind](values.to_numpy(float).T)
    marker = {"marker": "o", "markersize": 3} if len(at) < 8 else {}
    axes.plot(at, middle, label=plain(arm), **style, **marker)
    if values.shape[1] > 1:
        axes.fill_between(at, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _bar(axes: Axes, at: int, band: Band, colour: str, horizontal: bool) -> None:
    middle, low, high = (float(each[0]) for each in band)
    ends, look = [[middle - low], [high - middle]], {"color": colour, "alpha": 0.75}
    if horizontal:
        axes.barh(at, middle, **look)
        axes.errorbar(middle, at, xerr=ends, color=INK, linewidth=1)
    else:
        axes.bar(at, middle, **look)
        axes.errorbar(at, middle, yerr=ends, color=INK, linewidth=1)


def _axes(
    axes: Axes, x_label: str, y_label: str, log: str, limits: tuple[float, float] | None
) -> None:
    tidy(axes)
    axes.set_xlabel(x_label, fontsize=9, color=INK)
    axes.set_ylabel(y_label, fontsize=9, color=INK)
    if "x" in log:
        axes.set_xscale("log")
    elif x_label == "agent steps":
        count_steps(axes, 4)
    if "y" in log:
        axes.set_yscale("log")
    if limits:
        axes.set_ylim(*limits)


def seeds_of(frame: pd.DataFrame) -> int:
    """Return how many seeds an arm has; the control's are others, and don't add to them."""
    return int(frame.groupby("arm")["seed"].nunique().max())


def head(figure: Figure, title: str, seeds: int) -> None:
    """Write the title, broken to the figure's width, and a caveat for few seeds."""
    if 1 < seeds < FEWEST_SEEDS:
        title = f"{title} (pilot: {seeds} seeds carry no verdict)"
    lines = textwrap.wrap(plain(title), int(11 * figure.get_figwidth()))
    figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=11.5, color=INK)
