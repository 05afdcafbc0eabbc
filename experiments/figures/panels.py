"""Panels over training: replayed transitions, priorities, and other metrics."""

import pathlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from experiments.figures.curves import Frames, Methods, Path, learning_curves, seeds_of
from experiments.figures.drawing import STEPS, Panel, draw_line, draw_rule, finish, write_grid
from experiments.figures.style import FAINT, Style, Styles, plain, styles_of
from experiments.statistics.gate import FEWEST_UPDATES, UNIFORM_BUFFER
from experiments.training.inspection import ODDS_EDGES

Means = Mapping[str, pd.Series]  # label -> means over seeds, by agent step


class Name(NamedTuple):
    """Title and unit of a metric."""

    title: str
    unit: str  # label of the axis
    share: bool = False  # whether values are in [0, 1]


REPLAYED = {  # by column of the inspection, without "replayed/"
    "abs_td": Name("mean |TD error|", "|TD error|, return"),
    "td_std": Name("std of TD error in a batch", "std, return"),
    "q_value": Name("mean Q", "Q, return"),
    "q_std": Name("std of Q in a batch", "std, return"),
    "age": Name("mean age", STEPS),
    "distinct": Name("distinct share of a batch", "share", True),
    "effective_buffer": Name("share of the buffer in use", "1 / (N ΣP²)", True),
}
_NAMES = {
    "replay/sampler_updates": Name("Updates of the sampler's network", "updates"),
    "replay/replay_reward": Name("Replay reward of the learned sampler", "change of return"),
    "replay/subset": Name("Share of the stored that the policy keeps", "share", True),
    "replay/window": Name("Window of recent transitions", "transitions"),
    "replay/alpha": Name("Priority exponent alpha", "alpha"),
    "replay/c_max": Name("Importance ratio from which a step is far", "c_max"),
    "replay/far_share": Name("Share of far-policy steps", "share", True),
    "replay/remembered": Name("Steps remembered", STEPS),
    "replay/forgotten_episodes": Name("Episodes forgotten", "episodes"),
    "replay/reclaimed_episodes": Name("Episodes given up for their slots", "episodes"),
    "replay/dropped": Name("Feedback dropped: overwritten, or not finite", "rows"),
    "replay/skipped_leaves": Name("Priorities dropped: not finite, or negative", "priorities"),
    "agent/alpha": Name("Temperature alpha", "alpha"),
    "agent/epsilon": Name("Exploration epsilon", "probability", True),
    "agent/entropy": Name("Entropy of the policy", "nats"),
    "agent/kl": Name("KL divergence of the policy from behaviour", "KL(μ‖π), nats"),
    "agent/q_value": Name("Mean Q of the replayed", "return"),
    "agent/skipped": Name("Share of updates that changed nothing", "share", True),
    "agent/variance": Name("Variance of the policy", "variance of actions"),
    "agent/mass_at_ends": Name("Mass at the ends of the support", "probability", True),
}
EXPONENT = Name("Importance exponent beta", "beta", True)
BETA = Name("ReF-ER's beta: weight of the gradient over the penalty's", "beta", True)

QUANTILES = ("priority_p10", "priority_p50", "priority_p90", "mean_priority", "max_priority")
_GATES = {
    "replayed/effective_buffer": UNIFORM_BUFFER, "replay/sampler_updates": FEWEST_UPDATES,
}  # fmt: skip
_DIVERGED = 1e5  # magnitude above which a metric has a symlog axis, so that others stay visible
_REFER = "refer"
STORED = {"linestyle": ":", "linewidth": 1.0}  # look of lines of stored transitions


def during_training(
    frames: Mapping[str, pd.DataFrame],
    methods: Mapping[str, str],
    out: pathlib.Path,
    title: str,
    threshold: float | None = None,
    suffix: str = "",
    curves: str = "learning_curves",
) -> list[Path]:
    """Draw learning curves, replayed transitions, and metrics of methods and agents, as PNG.

    `replayed` compares replayed with stored transitions; its last panel is a histogram of N P, the
    probability of a stored transition relative to uniform replay, at the last log point.
    `own_metrics` has a panel for each column under `replay/` and `agent/`. Lines are means over
    seeds.

    Args:
      frames: metrics by label, with columns seed, step and eval_return.
      methods: replay method of each label, which determines its colour.
      out: folder of the figures.
      title: title in one line.
      threshold: return that counts as solved, or None.
      suffix: end of the names of the files.
      curves: name of the file of learning curves.

    Returns:
      Paths of the figures; a figure without data is left out.
    """
    named = {plain(label): frame for label, frame in frames.items()}
    methods, title = {plain(label): method for label, method in methods.items()}, plain(title)
    written = [out / f"{curves}{suffix}.png"]
    learning_curves(named, written[0], title, threshold, methods)
    styles, seeds = styles_of(methods), seeds_of(named)[0] if len(named) > 1 else None
    inspected = {label: styles[label] for label in named if "replayed/abs_td" in named[label]}
    inspected["stored (uniformly)"] = {"color": FAINT, **STORED}
    for name, panels, about, legend in (
        ("replayed", replayed_panels(named, styles), f"What is replayed: {title}", inspected),
        ("own_metrics", metric_panels(named, methods, ("replay/", "agent/")), title, styles),
    ):
        if panels:
            rows = -(-len(panels) // 4)
            size = (12, 6 if rows == 2 else 0.9 + 2.4 * rows)
            written.append(out / f"{name}{suffix}.png")
            write_grid(written[-1], about, panels, size, columns=4, legend=legend, seeds=seeds)
    return written


def replayed_panels(frames: Frames, styles: Styles) -> list[Panel]:
    """Return the panels of replayed and stored transitions; [] if no run was inspected."""
    found = []
    for column, name in REPLAYED.items():
        if means := means_of(frames, f"replayed/{column}"):
            stored, gate = means_of(frames, f"stored/{column}"), _GATES.get(f"replayed/{column}")
            found.append(partial(draw_means, name=name, means=means, styles=styles, stored=stored,
                                 gate=gate))  # fmt: skip
    if shares := _shares_of_odds(frames):
        found.append(partial(draw_odds, shares=shares, styles=styles))
    return found


def metric_panels(
    frames: Frames, methods: Methods, prefixes: tuple[str, ...], without: Sequence[str] = ()
) -> list[Panel]:
    """Return a panel of means over seeds for each metric under `prefixes` that is not always 0."""
    styles, found = styles_of(methods), []
    for column in {name: None for frame in frames.values() for name in frame}:
        if not column.startswith(prefixes) or column in without:
            continue
        means = means_of(frames, column)
        means = {label: mean for label, mean in means.items() if mean.abs().max() > 0}
        parts = {name_of(column): means}
        if column == "replay/beta":  # beta means something else in ReF-ER
            refer = {label: mean for label, mean in means.items() if methods[label] == _REFER}
            parts = {BETA: refer, EXPONENT: {k: means[k] for k in means if k not in refer}}
        found += [
            partial(draw_means, name=name, means=part, styles=styles, gate=_GATES.get(column))
            for name, part in parts.items()
            if part
        ]
    return found


def priority_panels(frames: Frames, styles: Styles) -> list[Panel]:
    """Return a panel for each label with quantiles of the stored priorities during training."""
    found = []
    for label, frame in frames.items():
        means = {name: means_of({label: frame}, f"replay/{name}") for name in QUANTILES}
        if quantiles := {name: mean[label] for name, mean in means.items() if mean}:
            panel = partial(draw_quantiles, label=label, quantiles=quantiles, style=styles[label])
            found.append(panel)
    return found


def name_of(column: str) -> Name:
    """Return the title and unit of a metric, derived from the column's name if it is unknown."""
    if (known := _NAMES.get(column)) is not None:
        return known
    words = column.partition("/")[2].replace("_", " ") or column
    return Name(words.capitalize(), words, column.endswith("_share"))


def means_of(frames: Frames, column: str) -> dict[str, pd.Series]:
    """Return a metric's finite means over seeds by label, without labels that lack it."""
    found = {}
    for label, frame in frames.items():
        if column in frame:
            means = frame.groupby("step")[column].mean()
            found[label] = means[np.isfinite(means)]
    return {label: means for label, means in found.items() if len(means)}


def draw_means(
    axes: Axes,
    name: Name,
    means: Means,
    styles: Styles,
    stored: Means | None = None,
    gate: float | None = None,
) -> None:
    """Draw means over seeds of a metric during training.

    Args:
      axes: the axes.
      name: title and unit of the metric.
      means: means of each label; if they are huge, the axis is symmetric-logarithmic.
      styles: style of each label.
      stored: means over stored transitions, drawn as thin dotted lines.
      gate: limit for the metric, drawn as a line; an arm on its wrong side is not tested.
    """
    for label, mean in means.items():
        draw_line(axes, label, mean.index, mean, styles[label])
    for label, mean in (stored or {}).items():
        draw_line(axes, label, mean.index, mean, {**styles[label], **STORED})
    if gate is not None:
        draw_rule(axes, gate, "gate")
    least = min(float(mean.min()) for mean in means.values())
    most = max(float(mean.max()) for mean in means.values())
    largest = max(-least, most)
    if name.share:
        axes.set_ylim(-0.02, 1.02)
    elif largest > _DIVERGED:
        axes.set_yscale("symlog", linthresh=1.0)
    elif most - least < 1e-3 * largest:  # do not magnify rounding errors
        axes.set_ylim((least + most - 1e-3 * largest) / 2, (least + most + 1e-3 * largest) / 2)
    finish(axes, name.title, STEPS, name.unit)


def draw_odds(axes: Axes, shares: Mapping[str, np.ndarray], styles: Styles) -> None:
    """Draw the histogram of N P (draw probability relative to uniform) over stored transitions."""
    width = ODDS_EDGES[1] - ODDS_EDGES[0]
    edges = [ODDS_EDGES[0] - width, *ODDS_EDGES, ODDS_EDGES[-1] + width]
    for label, histogram in shares.items():
        x, y = [edges[0], *edges], [0.0, *histogram, 0.0]
        axes.plot(x, y, drawstyle="steps-post", label=plain(label), **styles[label])
    finish(axes, "share of the stored, at the end", "log10 of N P (uniform: 0)", "share")
    axes.set_ylim(-0.02, 1.02)


def draw_quantiles(
    axes: Axes, label: str, quantiles: Mapping[str, pd.Series], style: Style
) -> None:
    """Draw quantiles of the stored priorities of one label by name, during training."""
    for name, dashes, width in (
        ("priority_p50", "-", 2.0), ("mean_priority", "--", 1.4), ("max_priority", ":", 1.4)
    ):  # fmt: skip
        if (mean := quantiles.get(name)) is not None:
            axes.plot(mean.index, mean, **{**style, "linestyle": dashes, "linewidth": width})
    if {"priority_p10", "priority_p90"} <= set(quantiles):
        low, high = (quantiles[name] for name in ("priority_p10", "priority_p90"))
        high = high.reindex(low.index)
        axes.fill_between(low.index, low, high, color=style["color"], alpha=0.15, linewidth=0)
    least, most = axes.dataLim.intervaly
    if most > 10 * least > 0:
        axes.set_yscale("log")
    finish(axes, label, STEPS, "priority")


def _shares_of_odds(frames: Frames) -> dict[str, np.ndarray]:
    """Return the histogram of N P at the last log point by label, a mean over seeds."""
    names = [f"replayed/odds_{number}" for number in range(len(ODDS_EDGES) + 1)]
    return {
        label: frame[frame["step"] == frame["step"].max()][names].mean().to_numpy()
        for label, frame in frames.items()
        if set(names) <= set(frame)
    }
