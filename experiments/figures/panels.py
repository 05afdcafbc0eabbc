"""Figures and panels over training: replayed transitions, priorities, and other metrics."""

import math
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from experiments.figures import elements
from experiments.figures.curves import Frames, Methods, Path, learning_curves, seeds_of
from experiments.figures.drawing import to_matplotlib
from experiments.figures.elements import STEPS, Axis, Figure, Key, Line, Panel, Rule, Style, Styles
from experiments.figures.style import FAINT, plain, styles_of
from experiments.statistics.gate import FEWEST_UPDATES, UNIFORM_BUFFER
from experiments.training.inspection import ODDS_EDGES


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
_STORED = {"linestyle": ":", "linewidth": 1.0}


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
    own, title = {plain(label): method for label, method in methods.items()}, plain(title)
    written = [out / f"{curves}{suffix}.png"]
    learning_curves(named, written[0], title, threshold, own)
    inspected = {label: frame for label, frame in named.items() if "replayed/abs_td" in frame}
    stored = Key("stored (uniformly)", {"color": FAINT, **_STORED})
    for name, panels, about, shown, more in (
        (
            "replayed", replayed_panels(inspected, own), f"What is replayed: {title}", inspected,
            [stored],
        ),
        ("own_metrics", metric_panels(named, own, ("replay/", "agent/")), title, named, []),
    ):  # fmt: skip
        if panels:
            written.append(out / f"{name}{suffix}.png")
            to_matplotlib(_figure(panels, shown, own, about, more), written[-1])
    return written


def replayed_panels(frames: Frames, methods: Methods) -> list[Panel]:
    """Return the panels of replayed and stored transitions; [] if no run was inspected."""
    styles = styles_of(methods)
    found = [_replayed(frames, styles, column, name) for column, name in REPLAYED.items()]
    return [panel for panel in (*found, _odds(frames, styles)) if panel is not None]


def metric_panels(
    frames: Frames, methods: Methods, prefixes: tuple[str, ...], without: Sequence[str] = ()
) -> list[Panel]:
    """Return a panel with means over seeds for each metric that is not always 0."""
    styles, found = styles_of(methods), []
    for column in {name: None for frame in frames.values() for name in frame}:
        if not column.startswith(prefixes) or column in without:
            continue
        own = {k: mean for k, mean in _means(frames, column).items() if mean.abs().max() > 0}
        parts = {name_of(column): own}
        if column == "replay/beta":  # beta means something else in ReF-ER
            refer = {label: means for label, means in own.items() if methods[label] == _REFER}
            parts = {BETA: refer, EXPONENT: {k: own[k] for k in own if k not in refer}}
        found += [_metric(column, name, part, styles) for name, part in parts.items() if part]
    return found


def priority_panels(frames: Frames, methods: Methods) -> list[Panel]:
    """Return a panel for each label with quantiles of the stored priorities during training."""
    styles, found = styles_of(methods), []
    for label, frame in frames.items():
        every = {name: _means({label: frame}, f"replay/{name}") for name in QUANTILES}
        if own := {name: means[label] for name, means in every.items() if means}:
            found.append(_quantiles(label, own, styles[label]))
    return found


def name_of(column: str) -> Name:
    """Return the title and unit of a metric, derived from the column's name if it is unknown."""
    if (known := _NAMES.get(column)) is not None:
        return known
    plain = column.partition("/")[2].replace("_", " ") or column
    return Name(plain.capitalize(), plain, column.endswith("_share"))


def _mean(frame: pd.DataFrame, column: str) -> pd.Series:
    """Return a metric's finite means over seeds, by agent step."""
    means = frame.groupby("step")[column].mean()
    return means[np.isfinite(means)]


def _means(frames: Frames, column: str) -> dict[str, pd.Series]:
    own = {label: _mean(frame, column) for label, frame in frames.items() if column in frame}
    return {label: means for label, means in own.items() if len(means)}


def _figure(
    panels: Sequence[Panel], frames: Frames, methods: Methods, title: str, more: Sequence[Key]
) -> Figure:
    styles, rows = styles_of(methods), -(-len(panels) // 4)
    size = (12, 6 if rows == 2 else 0.9 + 2.4 * rows)
    keys = [*(Key(label, styles[label]) for label in frames), *more]
    seeds = seeds_of(frames)[0] if len(frames) > 1 else None
    return Figure(title, panels, size, 4, keys=keys, legend="below", seeds=seeds)


def _replayed(frames: Frames, styles: Styles, column: str, name: Name) -> Panel | None:
    lines = []
    for label, means in _means(frames, f"replayed/{column}").items():
        lines.append(Line(label, means.index, means, styles[label]))
        if f"stored/{column}" in frames[label]:
            means = _mean(frames[label], f"stored/{column}")
            style = {**styles[label], **_STORED}
            lines.append(Line(label, means.index, means, style, note="stored", named=False))
    if not lines:
        return None
    y = elements.share(name.unit) if name.share else Axis(name.unit)
    return Panel(name.title, Axis(STEPS), y, lines, _gate(f"replayed/{column}"))


def _odds(frames: Frames, styles: Styles) -> Panel | None:
    """Return the histogram of N P over the stored transitions at the last log point."""
    names = [f"replayed/odds_{number}" for number in range(len(ODDS_EDGES) + 1)]
    width = ODDS_EDGES[1] - ODDS_EDGES[0]
    edges = [ODDS_EDGES[0] - width, *ODDS_EDGES, ODDS_EDGES[-1] + width]
    lines = []
    for label, frame in frames.items():
        if set(names) <= set(frame):
            shares = frame[frame["step"] == frame["step"].max()][names].mean()
            x, y = [edges[0], *edges], [0.0, *shares, 0.0]
            lines.append(Line(label, x, y, styles[label], steps=True, note="share from there on"))
    if not lines:
        return None
    x = Axis("log10 of N P (uniform: 0)")
    return Panel("share of the stored, at the end", x, elements.share(), lines)


def _metric(column: str, name: Name, means: Mapping[str, pd.Series], styles: Styles) -> Panel:
    least = min(float(own.min()) for own in means.values())
    most = max(float(own.max()) for own in means.values())
    far = max(-least, most) > _DIVERGED and not name.share
    lines = [
        Line(
            label, own.index, elements.symlog(own) if far else own, styles[label],
            texts=[f"{y:.4g} at {x:,}" for x, y in own.items()] if far else (),
        )
        for label, own in means.items()
    ]  # fmt: skip
    y = Axis(name.unit)
    if far:
        y = elements.symlog_axis(name.unit, least, most)
    elif name.share:
        y = elements.share(name.unit)
    elif most - least < 1e-3 * max(abs(least), abs(most)):  # do not magnify rounding errors
        middle, half = (least + most) / 2, 5e-4 * max(abs(least), abs(most))
        y = replace(y, limits=(middle - half, middle + half))
    return Panel(name.title, Axis(STEPS), y, lines, _gate(column))


def _quantiles(label: str, found: Mapping[str, pd.Series], style: Style) -> Panel:
    lines = []
    for name, note, dashes, width in (
        ("priority_p50", "median", "-", 2.0), ("mean_priority", "mean", "--", 1.4),
        ("max_priority", "largest", ":", 1.4),
    ):  # fmt: skip
        if (own := found.get(name)) is not None:
            shown = {**style, "linestyle": dashes, "linewidth": width}
            around = [None, None]
            if name == "priority_p50" and {"priority_p10", "priority_p90"} <= set(found):
                around = [found[end].reindex(own.index) for end in ("priority_p10", "priority_p90")]
            lines.append(Line(label, own.index, own, shown, *around, note=note))
    every = [value for own in found.values() for value in own]
    return Panel(label, Axis(STEPS), Axis("priority", log=min(every, default=math.nan) > 0), lines)


def _gate(column: str) -> list[Rule]:
    return [Rule(_GATES[column], "gate")] if column in _GATES else []
