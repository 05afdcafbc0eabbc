"""Figures and the page of a look through the replay microscope."""

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from experiments.figures import page
from experiments.figures.drawing import (
    Panel,
    draw_line,
    draw_rule,
    finish,
    finish_rows,
    write_grid,
)
from experiments.figures.page import Head, Section
from experiments.figures.style import FAINT, INK, Styles, plain, styles_of
from jaxreplay.microscope import STORED, Look

_BINS, _LEAST, _POINTS, _SAME = 40, -4.0, 1_500, 1e-6
_LARGE, _SQUARE, _SMALL = (9.0, 5.4), (9.0, 8.2), (4.6, 3.1)  # size of a figure in inches


def styles(look: Look) -> Styles:
    """Return the style of every method that has probabilities."""
    names = sorted(comparable(look), key=lambda name: name.endswith(STORED))  # drawn with dashes
    return styles_of({name: name.removesuffix(STORED) for name in names})


def comparable(look: Look) -> list[str]:
    """Return the names of the methods with probabilities."""
    return [name for name in look.methods if f"P {name}" in look.slots]


def distinct(look: Look) -> dict[str, list[str]]:
    """Return methods with distinct probabilities, each with the methods that share them."""
    found: dict[str, list[str]] = {}
    for name in comparable(look):
        chance = look.slots[f"P {name}"]
        same = (x for x in found if np.abs(look.slots[f"P {x}"] - chance).sum() < 2 * _SAME)
        if (first := next(same, None)) is None:
            found[name] = []
        else:
            found[first].append(name)
    return found


def panels(look: Look) -> dict[str, Panel]:
    """Return the panels by the names of their files, without panels that have no data."""
    own = next((name for name in look.methods if name.endswith(STORED)), None)
    found: dict[str, Panel] = {"who": partial(_draw_who, look=look)}
    if own is not None and own.removesuffix(STORED) in comparable(look):
        found["stale"] = partial(_draw_stale, look=look, own=own)
    found |= {
        "effect": partial(_draw_effect, look=look),
        "agreement": partial(_draw_agreement, look=look),
    }
    if "draws" in look.slots and "episode" in look.slots:
        found["episodes"] = partial(_draw_episodes, look=look)
    return found


_TITLES = {
    "who": "Probability by age",
    "stale": "Stored and exact priorities",
    "effect": "Gradient of a batch",
    "agreement": "Total variation between methods",
    "episodes": "Draws along episodes",
}


def write(look: Look, folder: Any, subtitle: str) -> list[str]:
    """Write a PNG of every panel into a folder; return the names of the files."""
    names, own = [], styles(look)
    called = {_called(name, same): own[name] for name, same in distinct(look).items()}
    for name, panel in panels(look).items():
        title, legend = f"{_TITLES[name]}: {subtitle}", called if name == "who" else None
        write_grid(folder / f"{name}.png", title, [panel], _sizes(name), legend=legend)
        names.append(f"{name}.png")
    return names


def render(
    look: Look,
    head: Head,
    cells: Sequence[Sequence[str]],
    card: Sequence[Sequence[str]],
    known: Sequence[Sequence[str]],
) -> str:
    """Return the HTML of the page.

    Args:
      look: result of `microscope.look`.
      head: head of the page.
      cells: cells of the table of methods, including the header.
      card: cells of the table of the run.
      known: cells of the table of committed verdicts on the task, or [].
    """
    drawn, own = panels(look), styles(look)
    legend = {name: own[name] for name in distinct(look)}
    same = {name: rest for name, rest in distinct(look).items() if rest}
    equal = "; ".join(f"{', '.join(rest)} as {name}" for name, rest in same.items())
    intros = {
        "who": "Mean probability of a transition by its age, relative to uniform replay. "
        + (f"Equal probabilities: {equal}." if equal else ""),
        "stale": "Each point is a transition. On the diagonal, the stored priority is the exact "
        "one of the current networks.",
        "effect": "Cosine between the expected gradient of a batch and the mean gradient of all "
        f"transitions, against its noise. Gradients are by the {look.gradients}.",
        "agreement": "Half of the sum of absolute differences: 0 for equal probabilities, 1 for "
        "disjoint ones.",
        "episodes": "Mean number of draws of a transition by its place in its episode.",
    }
    sections = [
        Section("run", "The run", "Quantities of this replay; see docs/microscope.md.",
                [page.table(card)]),
        Section("verdicts", "Verdicts on this task", "Of the suite in this repository, at the "
                "nearest replay volume: wins, losses and ties of seeds.", [page.table(known)])
        if known else None,
        *(
            Section(
                name, _TITLES[name], intros[name],
                [page.panels([panel], "", legend if name == "who" else None, _sizes(name))],
            )
            for name, panel in drawn.items()
        ),
        Section("methods", "Methods", "The same transitions under every method; the column basis "
                "says where the state is from.", [page.table(cells)]),
    ]  # fmt: skip
    return page.render(head, sections)


def _sizes(name: str) -> tuple[float, float]:
    return {"agreement": _SQUARE, "episodes": _SMALL}.get(name, _LARGE)


def _called(name: str, same: Sequence[str]) -> str:
    return f"{name} = {', '.join(same)}" if 0 < len(same) < 3 else name + "*" * bool(same)


def _draw_who(axes: Axes, look: Look) -> None:
    count = len(look.slots["slot"])
    edges = np.linspace(0, count, min(_BINS, count) + 1).astype(int)
    age, order = look.slots["age"], np.argsort(look.slots["age"], kind="stable")
    middle = [age[order[a:b]].mean() for a, b in itertools.pairwise(edges)]
    own = styles(look)
    for name in distinct(look):
        chance = look.slots[f"P {name}"][order] * count
        means = [chance[a:b].mean() for a, b in itertools.pairwise(edges)]
        log = np.log10(np.maximum(means, 10**_LEAST))
        draw_line(axes, name, middle, np.where(np.array(means) > 0, log, np.nan), own[name])
    finish(axes, "", "age (transitions)", "log10 (N P)")


def _draw_stale(axes: Axes, look: Look, own: str) -> None:
    exact, count = own.removesuffix(STORED), len(look.slots["slot"])
    some = np.linspace(0, count - 1, min(_POINTS, count)).astype(int)
    x, y = (look.slots[f"P {name}"][some] * count for name in (exact, own))
    least = 10**_LEAST
    x, y = np.maximum(x, least), np.maximum(y, least)
    by = "age_updates" if "age_updates" in look.slots else "age"
    marks = axes.scatter(x, y, c=look.slots[by][some], s=9, cmap="viridis", linewidths=0, alpha=0.8)
    axes.figure.colorbar(
        marks, ax=axes, label="age (updates)" if by == "age_updates" else "age (transitions)"
    )
    ends = [min(x.min(), y.min()), max(x.max(), y.max())]
    axes.plot(ends, ends, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.set_xscale("log")
    axes.set_yscale("log")
    far, correlation = look.run["staleness"], look.run["rank correlation"]
    text = f"TV {far:.3f}, correlation with |TD| {correlation:.2f}"
    finish(axes, text, "N P with exact priorities", "N P as stored")


def _draw_effect(axes: Axes, look: Look) -> None:
    own = styles(look)
    labels: dict[tuple[float, float], list[str]] = {}
    for name, style in own.items():
        row = look.methods[name]
        place = row["noise / uniform"], row["cosine"]
        if not np.isfinite(place).all():
            continue
        colour, stored = style["color"], name.endswith(STORED)
        axes.plot(*place, "o", color=colour, markerfacecolor="white" if stored else colour)
        equal = (x for x in labels if np.allclose(x, place, rtol=1e-2, atol=1e-3))
        labels.setdefault(next(equal, place), []).append(name)
    wide = np.ptp(np.log([x for x, _ in labels])) > np.log(10)
    points = {place: np.array([np.log(place[0]) if wide else place[0], place[1]])
              for place in labels}  # fmt: skip
    span = np.maximum(np.ptp(list(points.values()), axis=0), 1e-3)
    below: dict[tuple[float, float], int] = {}
    for place in sorted(labels):
        off = {x: np.abs(points[place] - points[x]) / span for x in below}
        near = [below[x] for x in below if (off[x] < (0.2, 0.06)).all()]
        below[place] = max(near, default=-1) + 1
        shift = {"xytext": (6, 4 - 11 * below[place]), "textcoords": "offset points"}
        axes.annotate(plain(", ".join(labels[place])), place, fontsize=8, color=INK, **shift)
    uniform = look.methods["uniform"]
    best = uniform["noise / uniform"] / uniform["noise / oracle"]
    axes.set_xscale("log" if wide else "linear")
    axes.margins(x=0.15)
    draw_rule(axes, best, upright=True)
    shift = {"xytext": (4, 0), "textcoords": "offset points"}
    at = {"xycoords": axes.get_xaxis_transform(), "fontsize": 8, "color": FAINT}
    axes.annotate("oracle", (best, 0.02), **at, **shift)
    finish(axes, "", "noise of the gradient relative to uniform replay", "cosine")


def _draw_agreement(axes: Axes, look: Look) -> None:
    groups = distinct(look)
    chances = [look.slots[f"P {name}"] for name in groups]
    far = np.array([[0.5 * np.abs(a - b).sum() for b in chances] for a in chances])
    axes.imshow(far, cmap="Blues", vmin=0, vmax=1)
    labels = [_called(name, same) for name, same in groups.items()]
    for row, column in np.ndindex(far.shape):
        colour = "white" if far[row, column] > 0.55 else INK
        text = f"{far[row, column]:.2f}".lstrip("0") if row != column else ""
        axes.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)
    finish_rows(axes, "", "", labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(visible=False)
    axes.set_xticks(range(len(labels)), list(groups), rotation=60, ha="right")


def _draw_episodes(axes: Axes, look: Look) -> None:
    for label, values in places(look).items():
        axes.plot(*values, label=label, color="#0072B2", linewidth=1.7)
    draw_rule(axes, look.slots["draws"].mean(), "mean")
    finish(axes, "", "step of the episode", "draws")


def places(look: Look) -> Mapping[str, tuple[np.ndarray, np.ndarray]]:
    """Return "draws" -> (steps within episodes, mean draws of a transition at each step)."""
    episode, draws = look.slots["episode"], look.slots["draws"]
    order = np.argsort(episode, kind="stable")
    _, first, counts = np.unique(episode[order], return_index=True, return_counts=True)
    step = np.arange(len(order)) - np.repeat(first, counts)
    total, number = np.bincount(step, draws[order]), np.bincount(step)
    return {"draws": (np.arange(len(total)), total / number)}
