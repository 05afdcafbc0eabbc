"""Figures in the layouts of the papers: the paper's aggregate over seeds above, ours below.

A layout is a function of the data to plot and of the path of the figure. Entries specify its
keyword arguments in `experiments.papers.entry.Layout`.
"""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from experiments.figures import judged
from experiments.figures.style import (
    COLOURS,
    DASHES,
    FAINT,
    INK,
    count_steps,
    make_figure,
    plain,
    styles_of,
    tidy,
)
from experiments.papers import aggregates, gains
from experiments.papers.aggregates import AGGREGATES, OURS, Band, Panel, Plotted
from experiments.papers.archive import select_rows
from experiments.statistics.counts import count_pairs

_MARKERS = ("o", "s", "^", "D")  # markers of closed forms
_STEPS = "agent steps"
_OF_PSER = ["alpha", "rho", "window", "eta"]  # columns with settings of PSER


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
    x_label: str = _STEPS,
    y_label: str | Mapping[str, str] = "return",
    log: str = "",
    limits: tuple[float, float] | None = None,
    nested: Sequence[str] = (),
    theory: Sequence[str] = (),
    converged: Mapping[str, Any] = MappingProxyType({}),
    level: float = 0.0,
    repeats: str = "seeds",
) -> None:
    """Plot lines with bands, in a panel for each value of column `panel` and each group of arms.

    Infinite values belong to seeds that did not converge; the number of these seeds is printed at
    the upper edge of the panel.

    Args:
      plotted: data to plot.
      path: path of the PNG to write.
      y: column of the y-axis.
      x: column of the x-axis.
      panel: column whose values have one panel each.
      groups: title -> arms; each value of `panel` has one panel per group.
      aggregate: the paper's aggregate over seeds, a key of AGGREGATES.
      smooth: window of the paper's trailing moving average, as a share of the curve.
      x_label: label of the x-axis, with its unit.
      y_label: label of the y-axis, with its unit, or a label for each panel.
      log: axes with logarithmic scales, such as "xy".
      limits: limits of the y-axis.
      nested: arms with coinciding curves, drawn with decreasing widths so that all are visible.
      theory: arms that are closed forms, drawn as markers on top of the lines.
      converged: column -> value, which selects rows of `plotted.table`. In these rows, column `y`
        has the value of `x` at which a seed reached `level` (infinite if it did not). The curve
        ends there in a dot, and the title of the panel lists the arms with seeds that did not
        converge.
      level: value of `y` at which a seed counts as converged.
      repeats: word for seeds in the titles of panels.
    """
    frame = plotted.frame[plotted.frame[y].notna()]
    arms = aggregates.arms_of(plotted, frame)
    grouped = bool(groups)
    groups = groups or {"": arms}
    shown = [
        (place, title)
        for place in aggregates.places_of(frame, panel)
        for title, members in groups.items()
        if frame.loc[aggregates.rows_of(frame, panel, place), "arm"].isin(members).any()
    ]
    styles = _styles(plotted, groups)
    for above, arm in enumerate(reversed([arm for arm in nested if arm in styles])):
        styles[arm] |= {"linewidth": 1.2 + 1.4 * above, "zorder": 3.0 - above / len(nested)}
    for marker, arm in zip(_MARKERS, theory, strict=False):
        styles[arm] = {
            "color": INK, "linestyle": "none", "zorder": 4, "marker": marker, "markersize": 4.5,
            "markerfacecolor": "white",
        }  # fmt: skip
    size = Panel(3.3, 2.7, 0.6, list(groups.values()))
    figure, grid = aggregates.make(plotted, frame, aggregate, len(shown), size)
    for (kind, number), axes in grid.items():
        place, title = shown[number]
        own = frame[aggregates.rows_of(frame, panel, place)]
        for arm in (arm for arm in groups[title] if arm in set(own["arm"])):
            _line(axes, arm, _curves(own, arm, x, y, smooth, kind), kind, styles[arm])
        about = place if isinstance(place, str) else f"{panel} = {place:g}"
        heading = ", ".join(plain(each) for each in (about, title) if each)
        seen = [heading, aggregates.about(kind, own, repeats), *_lost(axes, own, x, y, styles)]
        if converged and plotted.table is not None:
            rows = select_rows(plotted.table, converged)
            rows = rows[aggregates.rows_of(rows, panel, place)]
            seen += _ends(axes, {arm: rows.loc[rows["arm"] == arm, y].to_numpy(float)
                                 for arm in groups[title]}, level, kind, styles)  # fmt: skip
        axes.set_title("\n".join(seen), loc="left", fontsize=9, color=INK)
        label = y_label if isinstance(y_label, str) else y_label[place]
        _axes(axes, x_label, label, log, limits)
        if grouped:
            aggregates.legend_below(axes, size)
    if not grouped:
        aggregates.legend(figure, grid, size)
    aggregates.write(figure, path)


def bars(
    plotted: Plotted,
    path: Path,
    *,
    panel: str = "env",
    aggregate: str = "mean, 95 % interval",
    y_label: str,
    repeats: str = "seeds",
) -> None:
    """Plot a bar with an error bar for each arm, in a panel for each value of column `panel`.

    The bars show column `value`.

    Args:
      plotted: data to plot; rows where `value` is NaN are left out.
      path: path of the PNG to write.
      panel: column whose values have one panel each.
      aggregate: the paper's aggregate over seeds, a key of AGGREGATES.
      y_label: label of the y-axis, with its unit.
      repeats: word for seeds in the titles of panels.
    """
    frame = plotted.frame[plotted.frame["value"].notna()]
    arms, places = aggregates.arms_of(plotted, frame), aggregates.places_of(frame, panel)
    figure, grid = aggregates.make(plotted, frame, aggregate, len(places), Panel(3.4, 2.7))
    styles = styles_of({arm: plotted.methods.get(arm, arm) for arm in arms})
    names = [plain(arm) for arm in arms]
    crowded = {"rotation": 40, "ha": "right"} if sum(map(len, names)) > 30 else {}
    for (kind, number), axes in grid.items():
        own = frame[aggregates.rows_of(frame, panel, places[number])]
        for at, arm in enumerate(arms):
            values = own.loc[own["arm"] == arm, "value"].to_numpy(float)[:, None]
            if len(values):
                _bar(axes, at, AGGREGATES[kind](values), styles[arm]["color"])
        heading = f"{plain(str(places[number]))}\n{aggregates.about(kind, own, repeats)}"
        axes.set_title(heading, loc="left", fontsize=9, color=INK)
        tidy(axes)
        axes.axhline(0, color=FAINT, linewidth=0.8)
        axes.set_xticks(range(len(arms)), names, fontsize=8, **crowded)
        axes.set_ylabel(y_label, fontsize=9, color=INK)
    aggregates.write(figure, path)


def forest(plotted: Plotted, path: Path) -> None:
    """Plot each arm's probability of improvement over the baseline, on one task."""
    assert plotted.judged is not None
    found, shown = plotted.judged(), set(plotted.frame["arm"])
    rows = [row for row in found.rows if row.label in shown]
    judged.forest(rows, plotted.methods, found.metric, found.baseline, path, plotted.title)


def claims(plotted: Plotted, path: Path) -> None:
    """Plot the estimate of every claim that was tested, with its interval and verdict."""
    assert plotted.judged is not None
    found, rows, methods = plotted.judged(), [], {}
    tested = [row for row in found.claims if row.looks]
    ratios = {label.partition("_every")[1:] for row in tested for label in row.claim.labels}
    common = "".join(*ratios) if len(ratios) == 1 else ""  # a replay ratio that all arms have
    for row in tested:
        arm, baseline, *others = (own.removesuffix(common) for own in row.claim.labels)
        name = f"{arm} vs {baseline}"
        if others:
            name = f"{arm} over {baseline}\nvs {others[0]} over {others[1]}"
        if row.claim.primary:
            name = f"{name} ({row.claim.primary})"
        methods[name] = plotted.methods[row.claim.arm]
        rows.append(dataclasses.replace(row, label=name, method=name))
    judged.forest(rows, methods, found.metric, "", path, plotted.title)


def scores(plotted: Plotted, path: Path, *, baseline: str) -> None:
    """Plot the gain in the final score of each arm over the baseline, in percent, per task.

    Gains are computed by `gains.of_seeds`: differences of means over the last evaluations, paired
    by seed, are divided by the magnitude of the baseline's mean over seeds.
    """
    own = gains.of_seeds(plotted.frame, baseline)
    bars(plotted._replace(frame=own), path, y_label=f"gain over {baseline} (%)")


def sooner(plotted: Plotted, path: Path, *, baseline: str) -> None:
    """Plot the percentage of training after which each arm reaches the baseline's final score.

    Percentages are computed by `gains.shares_until`: 100 % if a seed does not reach the score.
    """
    shown = plotted._replace(frame=gains.shares_until(plotted.frame, baseline))
    label = f"training until {baseline}'s final score (%)"
    bars(shown, path, y_label=label, aggregate="median, range")


def ranked(plotted: Plotted, path: Path, *, label: str, lacking: str) -> None:
    """Plot one horizontal bar per arm, in descending order.

    Args:
      plotted: data to plot, with columns arm and value.
      path: path of the PNG to write.
      label: label of the x-axis, with its unit.
      lacking: reason why some arms have no number; the figure lists these arms.
    """
    frame = plotted.frame.sort_values("value", ascending=False, kind="stable")
    known, others = frame[frame["value"].notna()], frame.loc[frame["value"].isna(), "arm"]
    figure = make_figure(6.5, 0.17 * len(known) + 1.4)
    aggregates.head(figure, plotted.title)
    axes = figure.subplots()
    axes.barh(range(len(known)), known["value"], color=INK, alpha=0.75)
    tidy(axes)
    axes.grid(axis="x", color="#e6e6e6", linewidth=0.8)
    axes.grid(axis="y", visible=False)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(known)), [plain(arm) for arm in known["arm"]], fontsize=7)
    axes.set_ylim(len(known) - 0.4, -0.6)
    axes.set_xlabel(label, fontsize=9, color=INK)
    if len(others):
        text = f"Not shown, {lacking}:\n{plain(', '.join(others))}"
        axes.text(0.98, 0.02, text, transform=axes.transAxes, ha="right", fontsize=8, color=INK)
    aggregates.write(figure, path)


def settings_grid(plotted: Plotted, path: Path, *, starts: Mapping[str, str]) -> None:
    """Plot the probability that PSER needs fewer updates than PER, as a matrix over settings.

    Cells contain wins and losses of PSER, paired by seed. A seed that did not converge loses
    against one that did.

    Args:
      plotted: data to plot, the table of `cliffwalk_tables.settings_of_pser`.
      path: path of the PNG to write.
      starts: value of column start -> text in the labels of rows.
    """
    frame = plotted.frame
    sizes, begun = (list(dict.fromkeys(frame[name])) for name in ("n", "start"))
    settings = list(frame[_OF_PSER].drop_duplicates().sort_values(_OF_PSER).itertuples(index=False))
    rows = list(itertools.product(begun, sizes))
    means, words = np.full((len(rows), len(settings)), np.nan), {}
    groups = dict(list(frame.groupby(["start", "n", *_OF_PSER])))
    for at in np.ndindex(means.shape):
        own = groups.get((*rows[at[0]], *settings[at[1]]))
        if own is not None:
            both = own.pivot(index="seed", columns="arm", values="value")
            counts = count_pairs(both["pser"], both["per"], higher_is_better=False)
            means[at], words[at] = counts.mean, f"{counts.wins}/{counts.losses}"
    figure = make_figure(2.2 + 0.62 * len(settings), 2.2 + 0.42 * len(rows))
    aggregates.head(figure, plotted.title, aggregates.seeds_of(frame))
    axes = figure.subplots()
    image = axes.imshow(means, cmap="RdBu", vmin=0, vmax=1, aspect="auto")
    for (row, column), text in words.items():
        dark = abs(means[row, column] - 0.5) > 0.3
        axes.text(
            column, row, text, ha="center", va="center", fontsize=8, color="white" if dark else INK
        )
    axes.set_yticks(
        range(len(rows)), [f"{n:g} states, from {starts.get(s, s)}" for s, n in rows], fontsize=8
    )
    shown = [f"alpha {s.alpha:g}\nrho {s.rho:g}\nW {s.window:g}\neta {s.eta:g}" for s in settings]
    axes.set_xticks(range(len(settings)), shown, fontsize=8)
    bar = figure.colorbar(image, ax=axes)
    bar.set_label("P(PSER needs fewer updates)", fontsize=9, color=INK)
    aggregates.write(figure, path)


def _styles(plotted: Plotted, groups: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
    """Return a style for each arm: its method's, unless more than two arms of a panel share it."""
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


def _curves(own: pd.DataFrame, arm: str, x: str, y: str, smooth: float, kind: str) -> pd.DataFrame:
    """Return an arm's curves, one column per seed, smoothed unless `kind` is OURS."""
    values = own[own["arm"] == arm].pivot_table(index=x, columns="seed", values=y)
    # Infinite values cannot be plotted; where one occurs, no aggregate is drawn.
    values = values[~np.isinf(values).any(axis=1)]
    whole = values.dropna(axis=1)  # curves of seeds that diverged are shorter
    values = whole if whole.shape[1] else values.dropna()
    window = 1 if kind == OURS else round(smooth * len(values))
    return values.rolling(window, min_periods=1).mean() if window > 1 else values


def _line(axes: Axes, arm: str, values: pd.DataFrame, kind: str, style: Any) -> None:
    if values.empty:
        return
    at = values.index.to_numpy(float)
    middle, low, high = AGGREGATES[kind](values.to_numpy(float).T)
    marker = {"marker": "o", "markersize": 3} if len(at) < 8 else {}
    axes.plot(at, middle, label=plain(arm), **{**marker, **style})
    if values.shape[1] > 1:
        axes.fill_between(at, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _lost(axes: Axes, own: pd.DataFrame, x: str, y: str, styles: Mapping[str, Any]) -> list[str]:
    """Print the number of unconverged seeds at the upper edge of the axes; return a caption."""
    lost = own[np.isinf(own[y])]
    for number, arm in enumerate(dict.fromkeys(lost["arm"])):
        for at, count in lost[lost["arm"] == arm].groupby(x)["seed"].nunique().items():
            axes.annotate(
                f"x\n{count}", (at, 1), xycoords=axes.get_xaxis_transform(), ha="center", va="top",
                xytext=(0, -18 * number), textcoords="offset points", fontsize=7,
                linespacing=0.9, color=styles[arm]["color"],
            )  # fmt: skip
    if lost.empty:
        return []
    axes.margins(y=0.12)
    return ["x: number of seeds that did not converge"]


def _ends(
    axes: Axes, ends: Mapping[str, np.ndarray], level: float, kind: str, styles: Mapping[str, Any]
) -> list[str]:
    """Draw a dot where each arm converged; return a caption per arm with seeds that did not."""
    found = []
    drawn = {line.get_label(): line for line in axes.lines}
    for arm, own in ends.items():
        if lost := int(np.isinf(own).sum()):
            found.append(f"{plain(arm)}: {lost} of {len(own)} seeds did not converge")
        elif len(own) and plain(arm) in drawn:
            at, style = AGGREGATES[kind](own[:, None])[0][0], styles[arm]
            last, value = np.asarray(drawn[plain(arm)].get_xydata())[-1]
            if value > level:  # a thinned curve may end before the dot
                axes.plot([last, at], [value, level], **style)
            axes.plot(
                at, level, "o", color=style["color"], markersize=style["linewidth"] + 3,
                markerfacecolor=style["color"] if style["linestyle"] == "-" else "none",
                zorder=style["zorder"],
            )  # fmt: skip
    return found


def _bar(axes: Axes, at: int, band: Band, colour: str) -> None:
    middle, low, high = (float(each[0]) for each in band)
    axes.bar(at, middle, color=colour, alpha=0.75)
    axes.errorbar(at, middle, yerr=[[middle - low], [high - middle]], color=INK, linewidth=1)


def _axes(
    axes: Axes, x_label: str, y_label: str, log: str, limits: tuple[float, float] | None
) -> None:
    tidy(axes)
    axes.set_xlabel(x_label, fontsize=9, color=INK)
    axes.set_ylabel(y_label, fontsize=9, color=INK)
    if "x" in log:
        axes.set_xscale("log")
    elif x_label == _STEPS:
        count_steps(axes, 4)
    else:  # numbers of states or updates
        axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10], integer=True))
        axes.xaxis.set_major_formatter("{x:,.0f}")
    if "y" in log:
        axes.set_yscale("log")
    if limits:
        axes.set_ylim(*limits)
