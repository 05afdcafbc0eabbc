"""Figures of the Blind Cliffwalk: how many updates replay methods need, measured and in theory."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analysis.style import COLOURS, colour_and_dashes, make_figure, save, tidy
from experiments.papers import cliffwalk, cliffwalk_theory
from experiments.runs import code

_COMPARED = ("uniform", "oracle", "greedy", "proportional", "rank", "pser")
_STARTS = (
    "uniform", "oracle", "proportional", "pser", "proportional, from epsilon", "pser, from epsilon",
)  # fmt: skip
_RHOS = (0.4, 0.65, 0.8)


class Request(NamedTuple):
    """What the user wants of a figure."""

    out: Path  # the folder to write to
    states: int  # the largest number of Cliffwalk states
    seeds: int
    say: Callable[[str], None]  # progress
    other_code: bool = False  # keep numbers that another version of the code made


def updates_by_size(request: Request) -> list[Path]:
    """Plot the updates until convergence against the size of the memory, tabular and linear.

    Schaul et al. 2016, Fig. 1 (right) and App. B.1. Sizes at which some seed of a method did not
    converge are left out: with a shared constant, the updates that lower the error most can form a
    cycle, and the oracle looks only one update ahead. Numbers already in `out` are kept.

    Raises:
      ValueError: another version of the code made them, and the request does not allow that.
    """
    out, states, seeds, say, _ = request
    path = out / "per.fig1.csv"
    rows = _kept(path, request.other_code)
    done = {(row["values"], row["method"], row["n"], row["seed"]) for row in rows}
    for values, name, n in itertools.product(("table", "linear"), _COMPARED, range(2, states + 1)):
        if all((values, name, n, seed) in done for seed in range(seeds)):
            continue  # kept from an earlier run
        rows = [
            row for row in rows if (row["values"], row["method"], row["n"]) != (values, name, n)
        ]
        curve = _run(n, name, seeds, values == "linear", say)
        rows += [
            {"values": values, "method": name, "n": n, "seed": seed, "updates": int(updates),
             "code": _version()}
            for seed, updates in enumerate(curve.updates)
        ]  # fmt: skip
        pd.DataFrame(rows).to_csv(path, index=False)
    frame = pd.DataFrame(rows)
    frame = frame[(frame["n"] <= states) & (frame["seed"] < seeds)]
    stuck = frame[frame["updates"] < 0].groupby(["values", "method", "n"]).size()
    for (values, name, n), count in stuck.items():
        say(f"{name}, {values}, n = {n}: {count} of {seeds} seeds did not converge, left out")
    complete = frame.groupby(["values", "method", "n"])["updates"].transform("min") >= 0
    frame = frame[complete]
    figure, panels = _figure(2, "Blind Cliffwalk: updates until the squared error is below 0.001")
    for axes, values in zip(panels, ("table", "linear"), strict=True):
        for number, name in enumerate(_COMPARED):
            shown = frame[(frame["values"] == values) & (frame["method"] == name)]
            by_size = shown.groupby("n")["updates"]
            size = 2.0 ** (by_size.median().index + 1) - 2
            style = colour_and_dashes(number)
            axes.plot(size, by_size.median(), label=name, marker="o", markersize=3, **style)
            axes.fill_between(
                size, by_size.min(), by_size.max(), color=style["color"], alpha=0.15, linewidth=0
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        _label(axes, f"{values}: median and range of {seeds} seeds", "transitions in the memory")
        axes.set_ylabel("updates")
    panels[0].legend(frameon=False)
    save(figure, out / "per.fig1.png")
    return [path, out / "per.fig1.png"]


def _version() -> str:
    return code.version("experiments/papers/cliffwalk*.py")


def _kept(path: Path, other_code: bool) -> list[dict[str, Any]]:
    """Return the rows of a table that is there already."""
    if not path.exists():
        return []
    frame = pd.read_csv(path, dtype={"code": str})
    frame["code"] = frame["code"].fillna("unknown") if "code" in frame else "unknown"
    rows = frame.to_dict("records")
    others = set(frame["code"]) - {_version()}
    if others and not other_code:
        raise ValueError(
            f"{path} holds numbers of another version of the code ({', '.join(sorted(others))}): "
            "add --overwrite to compute them anew, or --other-code to keep them"
        )
    return rows


def error_by_updates(request: Request) -> list[Path]:
    """Plot the squared error against updates, for the largest number of states.

    Brittain et al. 2019, Fig. 2: priorities start at the maximum, or at epsilon.
    """
    out, states, seeds, say, _ = request
    figure, (axes,) = _figure(1, f"Blind Cliffwalk with {states} states")
    rows = []
    for number, name in enumerate(_STARTS):
        errors = _run(states, name, seeds, False, say).errors  # [L, S]
        updates = np.arange(len(errors)) * cliffwalk.CHUNK
        middle, low, high = np.median(errors, axis=1), errors.min(axis=1), errors.max(axis=1)
        style = colour_and_dashes(number)
        axes.plot(updates, middle, label=name, linewidth=1.6, **style)
        axes.fill_between(updates, low, high, color=style["color"], alpha=0.12, linewidth=0)
        keep = _thinned(len(errors))
        rows += [
            {"method": name, "updates": updates[i], "median": middle[i], "min": low[i],
             "max": high[i]}
            for i in keep
        ]  # fmt: skip
    frame = pd.DataFrame(rows)
    axes.set_xscale("symlog", linthresh=cliffwalk.CHUNK)
    axes.set_xlim(left=0)
    axes.set_yscale("log")
    axes.set_ylim(bottom=cliffwalk.CONVERGED / 10)
    axes.axhline(cliffwalk.CONVERGED, color="#8a8a8a", linewidth=0.9, linestyle=(0, (4, 3)))
    _label(axes, f"median and range of {seeds} seeds", "updates")
    axes.set_ylabel("mean squared error to the true Q")
    axes.legend(frameon=False)
    frame.to_csv(out / "pser.fig2.csv", index=False, float_format="%.6g")
    save(figure, out / "pser.fig2.png")
    return [out / "pser.fig2.csv", out / "pser.fig2.png"]


def expected_updates(request: Request) -> list[Path]:
    """Plot Theorem 1: expected updates until the whole path is learned, at learning rate 1.

    Brittain et al. 2019, Sec. 3.1. Lines are the closed forms, points simulations. The expression
    for PSER is exact only for an idealised process. With priorities from the error after the
    update, PSER grows like PER; with the error before it, PSER stays close to the expression,
    above or below.
    """
    out, states, seeds, say, _ = request
    sizes = list(range(2, states + 1))
    runs = 100 * seeds
    rng = np.random.default_rng(0)
    rows = []

    def simulate(n: int, process: str, rho: float) -> None:
        updates = cliffwalk_theory.simulate(n, process, rho, rng, runs)
        error = updates.std(ddof=1) / np.sqrt(runs)
        rows.append({"process": process, "rho": rho, "n": n, "mean": updates.mean(), "se": error})

    for n in sizes:
        say(f"Theorem 1: n = {n}")
        for process in ("per-post", "per-pre"):
            simulate(n, process, 0.4)
        for rho in _RHOS:
            for process in ("pser-idealised", "pser-pre", "pser-post"):
                simulate(n, process, rho)
    frame = pd.DataFrame(rows)
    figure, panels = _figure(3, "Blind Cliffwalk: expected updates until the path is learned")
    for axes, rho in zip(panels, _RHOS, strict=True):
        per = [cliffwalk_theory.expected_per(n) for n in sizes]
        axes.plot(sizes, per, label="PER (Eq. 15)", **colour_and_dashes(1))
        pser = [cliffwalk_theory.expected_pser(n, rho) for n in sizes]
        axes.plot(sizes, pser, label="PSER (Eq. 16)", **colour_and_dashes(0))
        for process, marker, number in (
            ("per-post", "o", 1), ("pser-idealised", "o", 0), ("pser-pre", "^", 2),
            ("pser-post", "s", 3),
        ):  # fmt: skip
            shown = frame[frame["process"] == process]
            if process.startswith("pser"):
                shown = shown[shown["rho"] == rho]
            axes.errorbar(
                shown["n"], shown["mean"], 2 * shown["se"], linestyle="", marker=marker,
                markersize=4, color=COLOURS[number], label=f"simulated: {process}",
            )  # fmt: skip
        axes.set_yscale("log")
        _label(axes, f"rho = {rho}, {runs} runs", "states n")
    panels[0].set_ylabel("updates")
    panels[0].legend(frameon=False, fontsize=8)
    frame.to_csv(out / "pser.fig3.csv", index=False, float_format="%.6g")
    save(figure, out / "pser.fig3.png")
    return [out / "pser.fig3.csv", out / "pser.fig3.png"]


def _run(
    n: int, name: str, seeds: int, linear: bool, say: Callable[[str], None]
) -> cliffwalk.Curve:
    kind = "linear" if linear else "table"
    title = f"{name}, {kind}, n = {n}"
    curve = cliffwalk.run(
        n,
        cliffwalk.METHODS[name],
        seeds,
        linear,
        max_updates=max(20_000, (40 if name == "uniform" else 10) * 2 ** (n + 1)),
        report=lambda updates, error: say(f"{title}: {updates:,} updates, error {error:.2g}"),
    )
    converged = curve.updates[curve.updates >= 0]
    after = f"{np.median(converged):,.0f}" if len(converged) else "-"
    say(f"{title}: {len(converged)} of {seeds} seeds converged, after {after} updates (median)")
    return curve


def _figure(columns: int, title: str) -> tuple[Figure, Sequence[Axes]]:
    figure = make_figure(4.5 * columns + 1.5, 4.5, dpi=130)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, color="#333333")
    axes = figure.subplots(1, columns, sharey=True, squeeze=False)[0]
    return figure, axes


def _label(axes: Axes, title: str, x_label: str) -> None:
    tidy(axes)
    axes.set_title(title, loc="left", fontsize=10, color="#333333")
    axes.set_xlabel(x_label, color="#333333")


def _thinned(count: int, most: int = 300) -> list[int]:
    """Return at most `most` indices below `count`, denser at the start."""
    spread = np.geomspace(1, count, num=min(most, count)).astype(int) - 1
    return sorted(set(spread.tolist()))
