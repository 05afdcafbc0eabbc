"""Reading of runs from their folders, for an HTML page or a plot, and the HTML page of runs.

The environments and methods of the runs need not be installed. Unfinished runs are read up to their
last log point.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from experiments.figures import page
from experiments.figures.drawing import finish
from experiments.figures.page import WIDE, Head, Section
from experiments.figures.sections import ArmGroup, training
from experiments.figures.style import Styles, plain
from experiments.statistics import summaries
from experiments.statistics.counts import FEWEST_SEEDS
from experiments.statistics.markdown import cells, number, span
from experiments.studies import store
from experiments.studies.results import Run, run_of
from experiments.studies.study_page import shared_options

Arms = Mapping[str, Run]  # label -> run


def read(folders: Mapping[str, Path], other_code: bool) -> Arms:
    """Read folders of finished or unfinished runs.

    Args:
      folders: folders by label.
      other_code: whether runs of different versions of the code may be mixed.

    Raises:
      ValueError: there is no run, a file is damaged, nothing has been logged yet, or the runs
        cannot share a figure.
    """
    arms = {label: run_of(store.read(folder)) for label, folder in folders.items()}
    code = "versions of the code or settings of JAX"
    for name, values, advice in (
        ("environments", {label: arm.config["env"] for label, arm in arms.items()},
         "show each apart"),
        (code, {label: arm.versions["code"] or "none" for label, arm in arms.items()},
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
    """Return the return that counts as solved, or None if it differs between runs."""
    goals = {arm.threshold for arm in arms.values()}
    return goals.pop() if len(goals) == 1 else None


def render(arms: Arms, title: str | None = None) -> str:
    """Return the HTML of the page; the default title names agents and environment."""
    goal = threshold_of(arms)
    methods = {label: arm.replay for label, arm in arms.items()}
    frames = {label: arm.frame for label, arm in arms.items()}
    group = ArmGroup("", next(iter(arms.values())).config["env"], methods, frames, goal)
    curves, *metrics = training([group])
    films = {label: arm.folder / "episode.gif" for label, arm in arms.items()}
    sections = [
        curves,
        _scores(arms, group.styles, goal),
        page.films({label: path for label, path in films.items() if path.is_file()}),
        *metrics,
        _time(arms),
        _configuration(arms),
    ]
    return page.render(_head(arms, title), sections)


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
        if lost := summaries.diverged_seeds(arm.frame):
            lines.append(f"{label} diverged with seeds {', '.join(map(str, lost))}.")
    if several and min(seeds) < FEWEST_SEEDS:
        lines.append(f"Pilot: a verdict takes {FEWEST_SEEDS} seeds, and these are {min(seeds)}.")
    codes = dict.fromkeys(arm.versions["code"] for arm in arms.values() if arm.versions["code"])
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
        elif not summaries.curves(arm.frame).empty:
            rows[label] = summaries.summarise(arm.frame, goal) | {"steps_per_second": None}
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


def _time(arms: Arms) -> Section | None:
    """Return the section with seconds and steps per second of every run that has ended."""
    rows = [
        [
            label, f"{own['train_seconds']:,.1f}", f"{own['compiling']:,.1f}",
            f"{own['steps_per_second']:,.0f}",
        ]
        for label, arm in arms.items()
        if (own := arm.summary) is not None
    ]  # fmt: skip
    if not rows:
        return None
    header = ["arm", "seconds", "of these compiling", "steps/s"]
    intro = "Of all seeds together, with warm-up and evaluations; steps/s without compilation."
    return Section("time", "Time", intro, [page.table([header, *rows])])


def _configuration(arms: Arms) -> Section:
    """Return the section with configurations and versions."""
    header, made = ["arm", "device", "Python", "jax", "code"], []
    for label, arm in arms.items():
        known = [arm.versions.get(key) or "-" for key in ("device", "python", "jax", "code")]
        made.append([label, *known])
    blocks = [page.table([header, *made], "Device and versions")]
    common, differing = shared_options({label: arm.config for label, arm in arms.items()})
    if differing:
        blocks.append(page.table([["option", *arms], *differing], "Differences of the arms"))
    caption = "Common to all arms" if len(arms) > 1 else "Configuration"
    blocks.append(page.table([["option", "value"], *common], caption, folded=True))
    return Section("settings", "Configuration", "", blocks)
