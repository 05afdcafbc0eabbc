"""Runs read from their folders, for a page or a plot, and the page of runs.

Statistics are recomputed from the tables. The environments and methods of the runs need not be
installed. Unfinished runs are read up to their last log point.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from experiments.cli import shared
from experiments.figures import page
from experiments.figures.drawing import STEPS, finish
from experiments.figures.page import WIDE, Head, Section
from experiments.figures.sections import Group, training
from experiments.figures.style import Styles, plain
from experiments.runs import manifest, results, run_config, tables
from experiments.statistics import statistics
from experiments.statistics.decisions import FEWEST_SEEDS
from experiments.statistics.tables import cells, number, span
from experiments.storage import files
from experiments.studies.study_page import shared_options


class Arm(NamedTuple):
    """A run, which may be unfinished."""

    folder: Path
    config: dict[str, Any]  # sections of `config.json`
    code: str  # version of the code; "" if unknown
    frame: pd.DataFrame  # metrics of complete log points
    timing: pd.DataFrame | None  # None if the file is missing
    summary: dict[str, Any] | None  # None if the run has not ended

    @property
    def replay(self) -> str:
        """Name of the replay method."""
        return self.config["replay"]

    @property
    def seeds(self) -> int:
        """Number of seeds."""
        return self.frame["seed"].nunique()


Arms = Mapping[str, Arm]  # label -> run


def write(folder: Path) -> str:
    """Write the page of a run into its folder.

    Returns:
      One line to print, with the path or the reason why there is no page. Errors are not raised,
      so that they cannot stop the run.
    """
    try:
        arms = read({shared.shown(folder.name): folder}, other_code=True)
        return page.write(folder / page.NAME, render(arms))
    except ValueError as error:
        return f"report:  none: {error}"


def read(folders: Mapping[str, Path], other_code: bool) -> Arms:
    """Read folders of finished or unfinished runs.

    Args:
      folders: folders by label.
      other_code: whether runs of different versions of the code may be mixed.

    Raises:
      ValueError: there is no run, a file is damaged, nothing has been logged yet, or the runs
        cannot share a figure.
    """
    arms = {label: _arm(folder) for label, folder in folders.items()}
    code = "versions of the code or settings of JAX"
    for name, values, advice in (
        ("environments", {label: arm.config["env"] for label, arm in arms.items()},
         "show each apart"),
        (code, {label: arm.code or "none" for label, arm in arms.items()},
         "train them again, or add --other-code"),
    ):  # fmt: skip
        if len(set(values.values())) > 1 and not (name == code and other_code):
            shown = ", ".join(f"{label} {value}" for label, value in values.items())
            raise ValueError(f"the runs are of different {name} ({shown}): {advice}")
    return arms


def title_of(arms: Arms) -> str:
    """Return the agents and the environment, with the replay method of a single run."""
    agents = ", ".join(dict.fromkeys(arm.config["agent"] for arm in arms.values()))
    first = next(iter(arms.values()))
    replay = f" with {first.replay} replay" if len(arms) == 1 else ""
    return f"{agents}{replay} on {first.config['env']}"


def threshold_of(arms: Arms) -> float | None:
    """Return the return that counts as solved, or None if it differs between finished runs."""
    goals = {arm.summary["threshold"] for arm in arms.values() if arm.summary}
    return goals.pop() if len(goals) == 1 else None


def render(arms: Arms, title: str | None = None) -> str:
    """Return the HTML of the page; the default title names agents and environment."""
    goal = threshold_of(arms)
    methods = {label: arm.replay for label, arm in arms.items()}
    frames = {label: arm.frame for label, arm in arms.items()}
    group = Group("", next(iter(arms.values())).config["env"], methods, frames, goal)
    curves, *metrics = training([group])
    films = {label: arm.folder / "episode.gif" for label, arm in arms.items()}
    sections = [
        curves,
        _scores(arms, group.styles, goal),
        page.films({label: path for label, path in films.items() if path.is_file()}),
        *metrics,
        _time(arms, group.styles),
        _configuration(arms),
    ]
    return page.render(_head(arms, title), sections)


def _arm(folder: Path) -> Arm:
    """Read a run's folder.

    Raises:
      ValueError: there is no run, a file is damaged, or there is no log point yet.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(
            f"{folder} contains no run or study: give folders that train, compare or sweep wrote"
        )
    config = files.read_json(path)
    with files.reading(path, "restore it"):
        run_config.check_saved(config)
    summary, metrics = results.read_summary(folder), folder / "metrics.csv"
    timing = results.read_times(folder / "timing.csv")
    if summary is not None and metrics.is_file():
        frame = results.read_metrics(folder, summary)
        summary = results.recompute(summary, frame, timing)
    else:
        frame = _so_far(metrics)
    code = (summary or {}).get("versions", {}).get("code") or "+".join(manifest.read(folder).code)
    return Arm(folder, config, code, frame, timing, summary)


def _so_far(path: Path) -> pd.DataFrame:
    """Read the metrics of an unfinished run up to the last log point that all seeds have."""
    frame = tables.read_table(path, ("seed", "step", "eval_return"))
    if frame is not None:
        if frame.duplicated(["seed", "step"]).any():
            raise ValueError(f"{path} has a row twice: restore it")
        rows = frame.groupby("step")["seed"].transform("size")
        frame = frame[rows == frame["seed"].nunique()]
    if frame is None or frame.empty:
        raise ValueError(f"{path.parent} holds no log point yet: wait for the first")
    return frame


def _head(arms: Arms, title: str | None) -> Head:
    seeds = [arm.seeds for arm in arms.values()]
    configs = [arm.config for arm in arms.values()]
    several = len(arms) > 1
    facts = [
        ("agent", ", ".join(dict.fromkeys(config["agent"] for config in configs))),
        ("environment", configs[0]["env"]),
        ("arms", ", ".join(arms)) if several else ("replay", configs[0]["replay"]),
        ("seeds", span(seeds)),
        ("agent steps", span([int(arm.frame["step"].max()) for arm in arms.values()])),
    ]
    lines = []
    for label, arm in arms.items():
        if arm.summary is None:
            steps, every = arm.frame["step"].max(), arm.config["loop"]["steps"]
            lines.append(f"{label} has not ended: {steps:,} of {every:,} agent steps so far.")
        if lost := statistics.diverged_seeds(arm.frame):
            lines.append(f"{label} diverged with seeds {', '.join(map(str, lost))}.")
    if several and min(seeds) < FEWEST_SEEDS:
        lines.append(f"Pilot: a verdict takes {FEWEST_SEEDS} seeds, and these are {min(seeds)}.")
    codes = dict.fromkeys(arm.code for arm in arms.values() if arm.code)
    if len(codes) > 1 or any("+" in code for code in codes):
        made = "Several versions of the code or settings of JAX made these results"
        lines.append(f"{made}: {', '.join(codes)}.")
    return Head(title or title_of(arms), facts, lines)


def _scores(arms: Arms, styles: Styles, goal: float | None) -> Section | None:
    """Return the section with every arm's last evaluation: seeds, IQM and interval."""
    rows = {}
    for label, arm in arms.items():
        if arm.summary is not None:
            rows[label] = arm.summary
        elif not statistics.curves(arm.frame).empty:
            rows[label] = statistics.summarise(arm.frame, goal) | {"steps_per_second": None}
    if not rows:
        return None
    summary = cells([{**row, "replay": label} for label, row in rows.items()], "arm")
    returns = {
        label: dict(zip(row["seeds"], row["final_return"], strict=True))
        for label, row in rows.items()
    }
    seeds = sorted({seed for own in returns.values() for seed in own})
    every = [[str(seed), *(number(own.get(seed)) for own in returns.values())] for seed in seeds]
    panel = partial(_draw_last, rows=rows, styles=styles)
    blocks = [
        page.table(summary), page.panels([panel], size=WIDE),
        page.table([["seed", *rows], *every], "Every seed in numbers", folded=True),
    ]  # fmt: skip
    intro = "The last greedy evaluation of every seed; of unfinished runs, the last so far."
    return Section("scores", "Final scores", intro, blocks)


def _draw_last(axes: Axes, rows: Mapping[str, Mapping[str, Any]], styles: Styles) -> None:
    """Draw the last evaluation of every seed by arm, and their IQM with its interval."""
    for place, (label, row) in enumerate(rows.items()):
        colour, returns = styles[label]["color"], np.array(row["final_return"], float)
        x = place + np.linspace(-0.2, 0.2, len(returns)) if len(returns) > 1 else [place]
        axes.plot(x, returns, "o", color=colour, markersize=4.5, alpha=0.5)
        if row["final_iqm"] is not None and None not in row["final_interval"]:
            axes.vlines(place, *row["final_interval"], color=colour, linewidth=1.5)
            axes.plot(place, row["final_iqm"], "_", color=colour, markersize=18, markeredgewidth=2)
    finish(axes, "Last evaluation of every seed", "", "return (greedy evaluation)")
    crowded = {"rotation": 40, "ha": "right"} if sum(map(len, rows)) > 50 else {}
    axes.set_xticks(range(len(rows)), list(map(plain, rows)), **crowded)
    axes.set_xlim(-0.6, len(rows) - 0.4)


def _time(arms: Arms, styles: Styles) -> Section | None:
    """Return the section with seconds and steps per second of every arm."""
    timing = {label: arm.timing for label, arm in arms.items() if arm.timing is not None}
    rows = [
        [label, *time_cells(arm.timing, arm.summary)]
        for label, arm in arms.items()
        if arm.timing is not None or arm.summary is not None
    ]
    if not rows:
        return None

    def draw(axes: Axes) -> None:
        for label, own in timing.items():
            axes.plot(own["step"], own["steps_per_second"], **styles[label])
        finish(axes, "Speed", STEPS, "agent steps per second")
        axes.set_ylim(0)

    header = [
        "arm", "training (s)", "steps/s (median)", "start-up (s)", "first log point (s)",
        "compilation (s)", "of all time",
    ]  # fmt: skip
    intro = (
        "Training: of all seeds together, with evaluations. Start-up: before training began, with "
        "the warm-up. Compilation is the time that JAX recorded for tracing, lowering, compiling "
        "and loading programs; its share is of start-up and training together."
    )
    figures = [page.panels([draw], "", styles, WIDE)] if timing else []
    return Section("time", "Time", intro, [page.table([header, *rows]), *figures])


def time_cells(timing: pd.DataFrame | None, summary: Mapping[str, Any] | None) -> list[str]:
    """Return the cells of a run's times: of training, speed, start-up and compilation."""
    if timing is None:
        assert summary is not None
        seconds, speed = summary["train_seconds"], summary["steps_per_second"]
        return [f"{seconds:,.1f}", f"{speed:,.0f}", *["-"] * 4]
    seconds, speed = timing["seconds"], timing["steps_per_second"]
    cells = [f"{seconds.sum():,.1f}", f"{speed.median():,.0f}", "-", f"{seconds.iloc[0]:,.1f}"]
    if not {"start_up", "compiling"} <= set(timing):  # times that were not recorded
        return [*cells, "-", "-"]
    start_up, compiling = timing["start_up"].sum(), timing["compiling"].sum()
    cells[2] = f"{start_up:,.1f}"
    return [*cells, f"{compiling:,.1f}", f"{100 * compiling / (start_up + seconds.sum()):.0f} %"]


def _configuration(arms: Arms) -> Section:
    """Return the section with configurations and versions."""
    header, made = ["arm", "device", "Python", "jax", "code"], []
    for label, arm in arms.items():
        saved = (arm.summary or {}).get("versions", {})
        known = [str(saved.get(key, "-")) for key in ("device", "python", "jax")]
        made.append([label, *known, arm.code or "-"])
    blocks = [page.table([header, *made], "Device and versions")]
    common, differing = shared_options({label: arm.config for label, arm in arms.items()})
    if differing:
        blocks.append(page.table([["option", *arms], *differing], "Differences of the arms"))
    caption = "Common to all arms" if len(arms) > 1 else "Configuration"
    blocks.append(page.table([["option", "value"], *common], caption, folded=True))
    return Section("settings", "Configuration", "", blocks)
