"""A figure of the replay benchmark: time of a cycle over the capacity."""

import os
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from experiments.analysis.style import COLOURS, make_figure, save
from experiments.benchmarks.measure import CYCLE, MODES, Result
from experiments.benchmarks.outputs import MARK

_MARKERS = "osDv^<>PXd"


def plot(results: Sequence[Result], path: str | os.PathLike, title: str) -> None:
    """Plot whole cycles into a PNG: a column of panels per mode, a row per batch size.

    Where cycles were timed in several orders, the first one of a mode is shown.

    Raises:
      ValueError: there are no whole cycles among the results.
    """
    cycles = [result for result in results if result.verb == CYCLE]
    if not cycles:
        raise ValueError("the figure shows whole cycles: add cycle to --verbs")
    first = {result.mode: result.order for result in reversed(cycles)}
    cycles = [result for result in cycles if result.order == first[result.mode]]
    modes = [mode for mode in MODES if any(result.mode == mode for result in cycles)]
    batches = sorted({result.batch_size for result in cycles})
    peers = list(dict.fromkeys(result.peer for result in cycles))
    size = (2.0 + 3.6 * len(modes), 1.6 + 2.9 * len(batches))
    figure = make_figure(*size)
    grid = figure.subplots(len(batches), len(modes), squeeze=False, sharex=True, sharey="row")
    for line, batch_size in zip(grid, batches, strict=True):
        for axes, mode in zip(line, modes, strict=True):
            selected = [r for r in cycles if r.mode == mode and r.batch_size == batch_size]
            _panel(axes, selected, peers)
            axes.set_title(f"{mode}, batch {batch_size:,}", fontsize=9)
        line[0].set_ylabel("microseconds per cycle", fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("slots", fontsize=8)
    shown = {line.get_label(): line for axes in grid.flat for line in axes.lines}
    handles = [shown[peer] for peer in peers]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(4, len(handles)), fontsize=8,
        frameon=False,
    )  # fmt: skip
    figure.suptitle(title, fontsize=9, wrap=True)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    save(figure, path, software=MARK)


def _panel(axes: Axes, results: Sequence[Result], peers: Sequence[str]) -> None:
    for number, peer in enumerate(peers):
        points = sorted((r.capacity, r.median_us) for r in results if r.peer == peer)
        if not points:
            continue
        ours = peer.startswith("jaxreplay")
        axes.plot(
            *zip(*points, strict=True),
            label=peer,
            color=COLOURS[number % len(COLOURS)],
            marker=_MARKERS[number % len(_MARKERS)],
            linestyle="-" if ours else ("--" if number < len(COLOURS) else ":"),
            linewidth=2.2 if ours else 1.2,
            markersize=5,
        )
    capacities = sorted({result.capacity for result in results})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(capacities, [_slots(capacity) for capacity in capacities])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y", linewidth=0.4, alpha=0.6)
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _slots(capacity: int) -> str:
    power = capacity.bit_length() - 1
    return f"$2^{{{power}}}$" if capacity == 2**power else f"{capacity:,}"
